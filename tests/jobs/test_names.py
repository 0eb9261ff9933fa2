"""Names that do not exist are told at once, with the nearest one that does; ``strict_names`` refuses them (A2)."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from sqlalchemy.orm import Session

import duly
from duly import Duly, Every, UnknownName, UnknownNameWarning, UnknownTask, Window
from duly import app as app_module
from duly.jobs.names import AGAIN, Names
from duly.jobs.tables import jobs_done, workers
from duly.kernel.events import Event
from duly.kernel.names import nearest, noticing, unknown
from duly.outbox import Outbox
from duly.outbox.transports.webhook import WebhookTransport
from duly.settings import unknown_variables
from duly.testing import drain


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Duly]:
    app = Duly(f"sqlite:///{tmp_path}/duly.db")

    @app.task
    def typo(x: int = 0) -> None: ...

    @app.task("SEND", queue="mail")
    def send(to: str) -> None: ...

    yield app
    app.close()


@pytest.fixture
def told(app: Duly) -> list[Event]:
    found: list[Event] = []
    app.listen(lambda event: found.append(event) if event.name == "unknown_name" else None)
    return found


def test_the_nearest_name_is_offered_whatever_its_case_and_length() -> None:
    assert nearest("tyop", ["typo", "other"]) == "typo"
    assert nearest("send_email", ["SEND_EMAIL"]) == "SEND_EMAIL"
    assert nearest("x" * 100_000, ["x" * 99_999]) is None
    assert nearest("", ["a"]) is None
    assert unknown("task", "zzz", ["b", "a"]) == 'No task is called "zzz". Known tasks: a, b.'
    assert unknown("task", "zzz", []) == 'No task is called "zzz". No task is known.'


def test_a_task_that_does_not_exist_is_told_where_it_is_enqueued(app: Duly, told: list[Event]) -> None:
    with pytest.warns(UnknownNameWarning, match='No task is called "tyop". Did you mean "typo"') as seen:
        job = app.enqueue("tyop", {"x": 1}).job
    assert job.task == "tyop"  # a worker that defines it may start later
    assert seen[0].filename == __file__
    assert [dict(e.facts) for e in told] == [{"what": "task", "unknown": "tyop", "nearest": "typo"}]


def test_every_way_to_enqueue_by_name_tells(app: Duly) -> None:
    with noticing() as seen:
        app.enqueue_many("tyop1", [{}])
        app.prepare("tyop2")
        asyncio.run(app.aenqueue("tyop3"))
        app.schedules.set(app.schedules.spec("nightly", Every(60), "tyop4"))
        app.enqueue("typo", queue="defualt")
        app.engine.tasks["typo"].using(queue="mial").enqueue(1)
    assert [line.partition(".")[0] for line in seen] == [
        *(f'No task is called "tyop{n}"' for n in (1, 2, 3, 4)), 'No queue is called "defualt"', 'No queue is called "mial"',
    ]  # fmt: skip
    assert 'Did you mean "mail"' in seen[-1]


def test_a_declared_schedule_may_stand_above_its_task_and_is_told_of_when_it_is_written(app: Duly) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.schedule("early", Every(60), task="below")
        app.schedule("wrong", Every(60), task="belwo")

        @app.task
        def below() -> None: ...

    for _ in range(2):  # each start says so again, not only the one that writes it
        with noticing() as seen:
            app.schedules.sync()
        assert seen == [
            'No task is called "belwo". Did you mean "below"? The job waits until a worker that defines it starts.'
        ]


def test_strict_names_refuses_before_anything_is_written(tmp_path: Path) -> None:
    app = Duly(f"sqlite:///{tmp_path}/duly.db", strict_names=True)

    @app.task
    def typo() -> None: ...

    app.enqueue("typo")
    for ask in (
        lambda: app.enqueue("tyop"),
        lambda: asyncio.run(app.aenqueue("tyop")),
        lambda: app.enqueue("typo", queue="defualt"),
        lambda: app.schedules.set(app.schedules.spec("s", Every(60), "tyop")),
    ):
        with pytest.raises(UnknownName, match="Did you mean"):
            ask()
    assert app.jobs.count() == 1
    assert app.schedules.all() == []
    assert issubclass(UnknownTask, UnknownName)
    app.close()


def test_a_living_worker_or_a_job_that_has_run_makes_a_name_known(app: Duly) -> None:
    def warned(name: str, **options: Any) -> list[str]:
        app.engine.names._found.clear()
        with noticing() as seen:
            app.enqueue(name, **options)
        return seen

    assert warned("elsewhere", queue="far")
    assert warned("elsewhere", queue="far")  # a job that waits under a wrong name does not make it right
    now = app.engine.clock.now()
    row = {"name": "w", "host": "h", "pid": 1, "version": "0", "state": "running", "started_at": now, "seen_at": now}
    app._write(lambda c: c.execute(insert(workers).values(queues={"far": 1}, tasks=["elsewhere"], **row)))
    assert warned("elsewhere", queue="far") == []
    app._write(lambda c: c.execute(update(workers).values(seen_at=now.replace(year=2020))))
    assert warned("elsewhere")  # it died long ago
    drained = app.enqueue("typo").job
    drain(app)
    app._write(lambda c: c.execute(update(jobs_done).where(jobs_done.c.id == drained.id).values(task="elsewhere")))
    assert warned("elsewhere") == []


def test_a_name_that_is_defined_here_costs_no_statement(app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Names, "_looked_up", lambda self, what, *_: asked.append(what) or frozenset())
    app.enqueue("typo")
    app.enqueue("SEND", {"to": "x"}, queue="default")
    app.engine.tasks["SEND"].using(queue="mail").enqueue("x")
    app.enqueue("EMAIL_SEND", {"to": "a@b.c"})
    assert asked == []
    assert AGAIN < 60


def test_on_a_running_loop_nobody_waits_for_the_look(app: Duly, told: list[Event]) -> None:
    async def ask() -> str:
        return app.warn_unknown_task("tyop")

    assert asyncio.run(ask()) == ""
    for _ in range(500):
        if told:
            break
        asyncio.run(asyncio.sleep(0.01))
    assert told[0].facts["nearest"] == "typo"


def test_a_queue_that_is_acted_on_is_told_where_nothing_uses_it_and_never_refused(tmp_path: Path) -> None:
    app = Duly(f"sqlite:///{tmp_path}/strict.db", strict_names=True)

    @app.task("SEND", queue="mail")
    def send(to: str) -> None: ...

    acts: tuple[Callable[[], object], ...] = (
        lambda: app.queues.pause("mial"),
        lambda: app.queues.set("mail_", limit=2),
        lambda: app.calendars.set(Window(tz="UTC", name="night", start="22:00", end="06:00", scope="queue:maill")),
        lambda: app.worker({"mali": 1}),
    )
    for act in acts:
        with pytest.warns(UnknownNameWarning, match='Did you mean "mail"'):
            act()
    assert app.queues.get("mial").paused_at is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.queues.pause("mail")
        app.queues.set("default", limit=1)
        app.calendars.set(Window(tz="UTC", name="all", start="22:00", end="06:00"))
        app.worker()
    app.close()


def test_an_endpoint_that_is_not_there_is_told_when_a_message_is_published(app: Duly, told: list[Event]) -> None:
    urls = {"billing": "https://billing.example.org/"}
    outbox = Outbox(
        app, transports={"webhook": WebhookTransport(urls), "other": WebhookTransport("https://x.example.org/")}
    )
    app.open()
    with Session(app.db.session_engine) as session, session.begin():
        with pytest.warns(UnknownNameWarning, match='No webhook endpoint is called "biling". Did you mean "billing"?'):
            outbox.publish(session, "webhook:biling", {})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            outbox.publish(session, "webhook:billing", {})
            outbox.publish(session, "other:whatever", {})
    assert [(e.facts["unknown"], e.facts["nearest"]) for e in told] == [("biling", "billing")]


def test_a_variable_that_nothing_reads_is_told_once_in_a_process_with_the_setting_that_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = tmp_path / "channels.yaml"
    channels.write_text("blog: {connector: folder, options: {folder: '${DULY_BLOG_FOLDER}'}}\n")
    monkeypatch.setattr(app_module, "_TOLD", set())
    for name in (
        "DULY_LEESE",
        "duly_poll",
        "DULY_XQZWV",
        "DULY_BLOG_FOLDER",
        "DULY_APP",
        "DULY_DEBUG",
        "DULY_TOKEN",
        "DULY_TEST_X",
        "DULY_TESTING",
    ):
        monkeypatch.setenv(name, "10")
    monkeypatch.setenv("DULY_PUBLISH_CHANNELS", str(channels))
    events: list[Event] = []
    with noticing() as seen:
        app = Duly("sqlite://")
    with noticing() as again:
        Duly("sqlite://").close()
    app.listen(events.append)
    app.task("T")(lambda: None)
    app.worker()
    app.close()
    assert seen == [
        "The environment sets DULY_LEESE, which nothing reads. Did you mean DULY_LEASE?",
        "The environment sets DULY_TESTING, which nothing reads. duly doctor --settings lists all that there are.",
        "The environment sets DULY_XQZWV, which nothing reads. duly doctor --settings lists all that there are.",
        "The environment sets duly_poll, which nothing reads. Did you mean DULY_POLL?",
    ]
    assert again == []
    assert [(e.facts["what"], e.facts["nearest"]) for e in events if e.name == "unknown_name"] == [
        ("variable", "DULY_LEASE"), ("variable", None), ("variable", None), ("variable", "DULY_POLL"),
    ]  # fmt: skip
    channels.unlink()
    assert unknown_variables({"DULY_LEESE": "1"}, str(channels)) == {}  # nobody can say what the file names


def test_every_variable_that_the_code_reads_is_known() -> None:
    read = set[str]()
    for file in Path(duly.__file__).parent.rglob("*.py"):
        read |= set(re.findall(r"environ[\w.(\[]*[\"'](DULY_\w+)", file.read_text(encoding="utf-8")))
    assert {"DULY_APP", "DULY_DEBUG", "DULY_DATABASE_URL"} <= read
    assert unknown_variables(dict.fromkeys(read, "1")) == {}
