"""Workers at work when a blackout begins and ends. On the system's clock: windows of a few seconds, without a look at a watch."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from contract.hands import rows, wait_until, working
from duly import Duly, Status, Window
from duly.jobs.blackouts import BlackoutWatch
from duly.jobs.claim import Lane
from duly.jobs.worker import Worker
from duly.kernel.events import Event
from duly.testing import ManualClock
from soaking import sqlite_first

db_url = sqlite_first()

QUEUED, SUCCEEDED = [Status.QUEUED], [Status.SUCCEEDED]


def running(app: Duly) -> int:
    n: int = rows(app, "SELECT count(*) FROM jobs WHERE status = 'running'")[0][0]
    return n


def only_told(worker: Worker) -> None:
    """Looking now and then is for those who cannot be told: here only bells and known instants tell."""
    for duty in worker.house.duties:
        duty.every = 3600.0


def soon(after: float, long: float, scope: str = "queue:default") -> tuple[Window, datetime, datetime]:
    """A window that begins after some seconds, in whole ones, and its two instants."""
    begins = (datetime.now(UTC) + timedelta(seconds=after)).replace(microsecond=0) + timedelta(seconds=1)
    ends = begins + timedelta(seconds=long)
    window = Window(start=f"{begins:%H:%M:%S}", end=f"{ends:%H:%M:%S}", tz="UTC", name="soon", scope=scope)
    return window, begins, ends


def now(name: str = "now", scope: str = "queue:default") -> Window:
    return Window(tz="UTC", name=name, scope=scope)


@pytest.mark.parametrize("limit", [None, 2], ids=["free", "limited"])
def test_nothing_starts_within_a_window_and_its_end_wakes_the_worker(live: Duly, limit: int | None) -> None:
    starts: list[datetime] = []

    @live.task("X")
    async def x(n: int) -> None:
        starts.append(datetime.now(UTC))
        await asyncio.sleep(0.002)

    if limit:
        live.queues.set("default", limit=limit)
    x.enqueue_many([{"n": n} for n in range(5000)])
    worker = live.worker({"default": 2})
    only_told(worker)
    with working(worker):
        wait_until(lambda: starts)
        window, begins, ends = soon(1, 1)
        live.calendars.set(window)
        wait_until(lambda: worker.lanes["default"].closes_at < float("inf"))
        wait_until(lambda: datetime.now(UTC) >= ends or live.jobs.count(status=SUCCEEDED) == 5000)
        before = live.jobs.count(status=SUCCEEDED)
        assert before < 5000, "the machine is so fast that the story is over before it begins"
        wait_until(lambda: len(starts) > before + 100)  # it polls each minute only
    assert [str(s - begins) for s in starts if begins <= s < ends] == []
    assert live.jobs.count(status=[Status.FAILED]) == 0
    assert rows(live, "SELECT max(attempts) FROM jobs WHERE status = 'queued'") == [(0,)]


def test_a_window_set_while_a_worker_runs_gives_back_what_it_had_fetched(db_url: str) -> None:
    here, elsewhere = Duly(db_url, poll=60), Duly(db_url)
    done: list[int] = []
    go = threading.Event()

    @here.task
    async def short(n: int) -> None:
        while n == 100 and not go.is_set():
            await asyncio.sleep(0.01)
        done.append(n)

    @here.task(queue="web")
    async def other() -> None: ...

    short.enqueue_many([{"n": n} for n in range(400)])
    worker = here.worker({"default": 1, "web": 1})
    only_told(worker)
    with working(worker):
        wait_until(lambda: len(done) == 100)
        wait_until(lambda: running(here) > 1)
        elsewhere.calendars.set(now())
        wait_until(lambda: running(here) == 1)  # what was fetched is given back; what runs goes on
        assert other.enqueue().job.queue == "web"  # type: ignore[call-arg]
        wait_until(lambda: here.jobs.count(status=SUCCEEDED, queue="web") == 1)  # another queue flows
        go.set()
        wait_until(lambda: running(here) == 0)
        assert len(done) == 101
        assert {j.attempts for j in here.jobs.find(status=QUEUED, limit=400)} == {0}
        elsewhere.calendars.remove("now")
        wait_until(lambda: len(done) == 400)
    assert sorted(done) == list(range(400))
    here.close()
    elsewhere.close()


def test_a_blackout_of_everything_reaches_each_queue_of_a_worker(live: Duly) -> None:  # X6
    @live.task("X")
    async def x() -> None: ...

    worker = live.worker({"default": 1, "mail": 1})
    only_told(worker)
    with working(worker):
        live.calendars.set(now(scope="all"))
        wait_until(lambda: worker.house.blackouts.held == {"default", "mail"})
        for queue in ("default", "mail"):
            x.using(queue=queue).enqueue()  # type: ignore[call-arg]
        live.calendars.disable("now")
        wait_until(lambda: live.jobs.count(status=SUCCEEDED) == 2)


def test_a_held_worker_is_not_stalled(live: Duly) -> None:
    @live.task("X")
    async def x() -> None: ...

    live.calendars.set(now())
    x.enqueue()  # type: ignore[call-arg]
    worker = live.worker({"default": 1})
    with working(worker):
        wait_until(lambda: "default" in worker.house.blackouts.held)
        for _ in range(3):
            worker.house.progress()
        assert worker.ready
        live.calendars.remove("now")
        wait_until(lambda: live.jobs.count(status=SUCCEEDED) == 1)


def test_a_row_that_cannot_be_read_keeps_no_worker_from_other_queues(live: Duly) -> None:
    told: list[Event] = []
    live.listen(told.append)

    @live.task("X")
    async def x() -> None: ...

    live.calendars.set(now("broken", "queue:mail"))
    live._write(
        lambda c: c.exec_driver_sql("""UPDATE blackouts SET definition = '{"tz": "Mars/Olympus"}', holds_from = NULL""")
    )
    worker = live.worker({"default": 1, "mail": 1})
    for queue in ("default", "mail"):
        x.using(queue=queue).enqueue()  # type: ignore[call-arg]
    with working(worker):
        wait_until(lambda: live.jobs.count(status=SUCCEEDED, queue="default") == 1)
        wait_until(lambda: "mail" in worker.house.blackouts.held)
        assert worker.ready and live.jobs.count(status=QUEUED, queue="mail") == 1
    assert not [e for e in told if e.name in ("duty_failed", "loop_failed")]
    assert len([e for e in told if e.name == "blackout_unreadable"]) == 1


# --- What a worker knows beforehand ----------------------------------------------------------------------------------


@pytest.fixture
def watch(live: Duly) -> BlackoutWatch:
    live.open()
    lanes = {name: Lane(name, 1, 10) for name in ("mail", "web")}
    return BlackoutWatch(live.db, lambda: live.engine.calendars, live.events, lanes)


def look(live: Duly, watch: BlackoutWatch) -> tuple[frozenset[str], bool]:
    live.db.read(watch.ask)
    return watch.obey()


def test_lanes_know_when_a_blackout_will_begin_and_the_watch_when_to_look_again(
    live: Duly, watch: BlackoutWatch
) -> None:
    assert look(live, watch) == (frozenset(), False)
    assert watch.turns_at == watch.lanes["mail"].closes_at == float("inf")
    live.calendars.set(soon(100, 60, "queue:mail")[0])
    assert look(live, watch) == (frozenset(), False)
    assert watch.turns_at == watch.lanes["mail"].closes_at < float("inf")
    assert watch.lanes["web"].closes_at == float("inf")
    live.calendars.set(now(scope="queue:web"))
    closes = watch.lanes["mail"].closes_at
    assert look(live, watch) == ({"web"}, False)
    assert abs(watch.lanes["mail"].closes_at - closes) < 60 and watch.lanes["web"].closes_at < closes
    live.calendars.remove("now")
    assert look(live, watch) == (frozenset(), True)
    assert watch.lanes["web"].closes_at == float("inf")


def test_a_clock_that_is_moved_by_hand_foretells_nothing(db_url: str) -> None:
    clock = ManualClock()
    app = Duly(db_url, clock=clock)
    app.calendars.set(Window(start="22:00", end="23:00", tz="UTC", name="w"))
    watch = BlackoutWatch(app.db, lambda: app.engine.calendars, app.events, {"mail": Lane("mail", 1, 10)})
    look(app, watch)
    assert watch.turns_at == watch.lanes["mail"].closes_at == float("inf")
    clock.advance(timedelta(hours=22))
    assert look(app, watch) == ({"mail"}, False)
    clock.advance(timedelta(hours=1))
    assert look(app, watch) == (frozenset(), True)
    app.close()
