"""What was told to end before it began does not begin: each test forces that order. Issue 18, point 4."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.orm import Session

from duly import Duly, Status
from duly.cli import work
from duly.cli.main import cli
from duly.jobs import processes
from duly.jobs.loops import Loop, Threads
from duly.kernel.events import Emitter
from duly.monitoring.alerts.beside import Judge
from duly.outbox import box as boxes
from duly.outbox.box import Outbox
from duly.storage.postgres import Listener
from duly.web.ending import Ending
from duly.web.serve import Beside


@pytest.fixture
def app(sqlite_url: str) -> Iterator[Duly]:
    app = Duly(sqlite_url, poll=0.05)
    app.task("X")(lambda: None)
    yield app
    app.close()


def untouched(app: Duly) -> bool:
    """Has no worker been here?"""
    return (
        app.jobs.count(status=(Status.QUEUED,)) == 1
        and app.db.read(lambda c: c.scalar(text("SELECT count(*) FROM workers"))) == 0
    )


class Sent:
    """A transport that counts."""

    def __init__(self) -> None:
        self.count = 0

    def send(self, message: Any) -> None:
        self.count += 1


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def box(app: Duly, sent: Sent) -> Outbox:
    box = Outbox(app, transports={"t": sent})
    with Session(app.db.session_engine) as session, session.begin():
        box.publish(session, "t:x", 1)
    return box


# ---------------------------------------------------------------------- workers


@pytest.mark.parametrize("until_idle", [False, True])
def test_a_worker_that_was_told_to_stop_runs_no_job_and_does_no_duty(app: Duly, until_idle: bool) -> None:
    app.enqueue("X")
    heard: list[str] = []
    app.listen(lambda event: heard.append(event.name))
    worker = app.worker()
    worker.stop()
    tally = worker.run(until_idle=until_idle)
    assert (tally.claimed, worker.state) == (0, "stopped")
    assert "worker_started" not in heard
    assert untouched(app)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_before_the_loop_of_a_worker_is_heard(
    app: Duly, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    app.enqueue("X")
    worker = app.worker()
    arun = worker.arun

    def late(**given: Any) -> Any:
        signal.raise_signal(number)  # it runs, and its loop does not hear signals yet
        return arun(**given)

    monkeypatch.setattr(worker, "arun", late)
    assert worker.run().claimed == 0
    assert untouched(app)


def test_a_worker_on_a_loop_of_somebody_else_that_was_told_to_stop_does_not_begin(app: Duly) -> None:
    app.enqueue("X")

    async def embed() -> int:
        worker = await asyncio.to_thread(app.worker)
        task = asyncio.create_task(worker.arun())
        worker.stop()  # the task has not had its first turn
        return (await task).claimed

    assert asyncio.run(embed()) == 0
    assert untouched(app)


def test_an_executor_of_celery_that_was_told_to_stop_does_not_begin(app: Duly) -> None:
    from duly.integrations.celery.executor import Executor

    app.open()
    executor = Executor(app.engine, "fleet@here:1")
    executor.stop()
    executor.start()
    executor.join(60)
    assert not executor.alive
    assert executor.state == "stopped"


def test_a_process_for_a_handler_is_not_kept_that_comes_when_its_worker_has_ended() -> None:
    children = processes.Children()
    children.close()
    with pytest.raises(processes.ChildDied):
        children.get()
    assert (children._idle, children._busy) == ([], set())


# ---------------------------------------------------------------------- relays


@pytest.mark.parametrize("until_idle", [False, True])
def test_a_relay_that_was_told_to_stop_sends_nothing(box: Outbox, sent: Sent, until_idle: bool) -> None:
    relay = box.relay()
    relay.stop()
    assert relay.run(until_idle=until_idle).claimed == 0
    assert sent.count == 0
    assert relay.run(until_idle=True).sent == 1  # it was told once


def test_a_second_stop_is_for_the_run_that_was_told_and_not_for_the_next_one(box: Outbox, sent: Sent) -> None:
    relay = box.relay()

    def stop_twice(event: Any) -> None:
        if event.name == "outbox_relay_started":
            relay.stop()
            relay.stop()

    deaf = box.listen(stop_twice)
    relay.run()
    deaf()
    relay.run(until_idle=True)
    assert sent.count == 1


SHOP = """
from duly import Duly
from duly.outbox import Outbox

class Sent:
    def send(self, message):
        open("sent.txt", "a").write("x")

app = Duly("sqlite:///up.db")
box = Outbox(app, transports={"t": Sent()})

@app.task
def order(session) -> None:
    box.publish(session, "t:x", 1)
    open("ran.txt", "a").write("x")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of an application with one job, in the present folder. Its module, and outboxes of other tests, are of no concern to others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(boxes, "_made", weakref.WeakSet())
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / f"shop_{secrets.token_hex(4)}.py"
    file.write_text(SHOP)
    told = CliRunner().invoke(cli, ["enqueue", "order", "--app", file.name])
    assert told.exit_code == 0, told.output
    yield file
    sys.modules.pop(file.stem, None)


def there(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.txt"))


@pytest.mark.parametrize("where", ["_banner", "_monitor"])
def test_a_signal_before_duly_up_begins_starts_neither_worker_nor_relay_nor_site(
    shop: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    real, begun = getattr(work, where), []

    def told(*given: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr(work, where, told)
    monkeypatch.setattr(Beside, "start", lambda self: begun.append("site"))
    monkeypatch.setattr(Loop, "start", lambda self: begun.append(self.name))
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = CliRunner().invoke(cli, ["up", shop.name])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.exit_code == 0, done.output
    assert (begun, there(shop.parent)) == ([], [])


def test_a_signal_between_two_relays_of_duly_up_starts_no_other_one() -> None:
    begun: list[str] = []

    class One:
        emitter = Emitter()

        def __init__(self, name: str) -> None:
            self.name, self.ran = name, threading.Event()

        def run(self) -> None:
            begun.append(self.name)
            self.ran.wait(60)

        def stop(self) -> None:
            self.ran.set()

    class Box:
        def __init__(self, name: str, told: bool) -> None:
            self.name, self.told = name, told

        def relay(self) -> One:
            if self.told:
                posts.ask()
            return One(self.name)

    posts = work.Relays()
    posts.boxes = [Box("told", True), Box("other", False)]
    posts.start()
    assert begun == []
    assert [loop.thread.ident for _, loop in posts._running] == [None]


@pytest.mark.parametrize("when", ["the relay runs", "the next worker is made"])
def test_a_signal_between_two_workers_of_duly_up_until_idle_is_not_lost(
    shop: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    from duly.outbox.relay import Relay

    workers: list[Any] = []
    run, make = Relay.run, Duly.worker

    def relayed(self: Relay, **given: Any) -> Any:
        if when == "the relay runs":
            self.box.listen(lambda e: signal.raise_signal(signal.SIGTERM) if e.name == "outbox_relay_started" else None)
        out = run(self, **given)
        self.tally.sent += 1  # whatever was sent: there would be another turn
        return out

    def made(self: Duly, *given: Any, **more: Any) -> Any:
        worker = make(self, *given, **more)
        workers.append(worker)
        if when == "the next worker is made" and len(workers) == 2:
            signal.raise_signal(signal.SIGTERM)
        return worker

    monkeypatch.setattr(Relay, "run", relayed)
    monkeypatch.setattr(Duly, "worker", made)
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = CliRunner().invoke(cli, ["up", shop.name, "--until-idle"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.exit_code == 0, done.output
    assert [one.tally.claimed for one in workers] == ([1] if when == "the relay runs" else [1, 0])


# ---------------------------------------------------------------------- the web


def test_a_site_beside_a_worker_that_was_told_to_stop_takes_no_connection(app: Duly) -> None:
    site = Beside(app, "", 0, exact=True)
    site.stop()
    site.start()
    site._thread.join(60)
    assert not site._thread.is_alive()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(site.url.rpartition(":")[2])), 1)


def test_a_signal_before_there_is_a_server_means_that_none_begins() -> None:
    class Server:
        def handle_exit(self, number: int, frame: object) -> None: ...

    left: list[str] = []
    with Ending() as ending:
        signal.raise_signal(signal.SIGTERM)
        left.append("the block went on")
    assert left == []
    assert not ending.serves(Server())


# ---------------------------------------------------------------------- threads


class Alerts:
    """Stands for an application's alerts."""

    def __init__(self) -> None:
        self.looks = 0

    def seen(self, by: str) -> None:
        self.looks += 1


def test_a_judge_that_was_told_to_end_does_not_judge() -> None:
    alerts: Any = Alerts()
    judge = Judge(alerts, "web:here:1")
    judge.stop()
    judge.start()
    judge._thread.join(60)
    assert (alerts.looks, judge._thread.is_alive()) == (0, False)


def test_a_listener_that_was_told_to_end_does_not_connect() -> None:
    from sqlalchemy.engine import make_url

    problems: list[BaseException] = []
    listener = Listener(make_url("postgresql://nobody@127.0.0.1:1/x"), lambda _: None, problems.append)
    listener.stop()
    listener.start()
    listener.stop()
    assert problems == []
    assert not listener._thread.is_alive()


def test_a_loop_that_was_told_to_end_takes_no_step_and_reserves_nothing() -> None:
    done: list[str] = []
    loop = Loop("x", lambda: done.append("step"), Emitter(), lambda: done.append("reserved"))
    loop.stop()
    loop.start()
    assert loop.join(60)
    assert done == []


def test_a_call_that_comes_when_its_threads_were_let_go_begins_nothing() -> None:
    threads, done = Threads(2), []
    threads.close()
    assert not threads.submit(done.append, 1)
    assert (done, threads._started) == ([], 0)
