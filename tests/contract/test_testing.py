"""What users get for their own tests: a clock they move, a drain that runs what is ready, a look at what was enqueued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from contract.hands import AT_ONCE, NOON, Hand, rows
from duly import Context, Daily, DatabaseUnavailable, Duly, Every, InvalidArgument, Job, Status, UsageError
from duly.testing import ManualClock, adrain, assert_enqueued, drain, enqueued

# --- ManualClock -------------------------------------------------------------------------------------------------------


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=2))))
    assert clock.now() == clock.now() == datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    assert clock.now().tzinfo is UTC
    assert clock.advance(1.5) == clock.now() == datetime(2026, 3, 29, 0, 30, 1, 500_000, tzinfo=UTC)
    assert clock.advance(timedelta(days=1)).day == 30
    assert clock.manual is True
    assert repr(clock) == "ManualClock(2026-03-30T00:30:01.500000+00:00)"


def test_its_monotonic_time_only_grows() -> None:
    clock = ManualClock()
    clock.advance(10)
    clock.set(clock.now() - timedelta(days=1))
    assert clock.monotonic() == 10
    clock.set(clock.now() + timedelta(seconds=5))
    assert clock.monotonic() == 15


def test_a_clock_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="naive"):
        ManualClock(datetime(2026, 3, 29))
    with pytest.raises(InvalidArgument, match="naive"):
        ManualClock().set(datetime(2026, 3, 29))
    with pytest.raises(InvalidArgument, match="backwards"):
        ManualClock().advance(-1)


# --- drain -------------------------------------------------------------------------------------------------------------


def test_drain_decides_what_schedules_have_due_and_runs_it(app: Duly, clock: ManualClock) -> None:
    ran: list[str] = []

    @app.task("report")
    def report(job: Job) -> None:
        ran.append((job.meta or {})["due_at"])

    app.schedule("nightly", Daily("02:30", tz="UTC"), report, catch_up="all")
    assert drain(app).claimed == 0  # it is written, and counts from now on
    clock.advance(timedelta(days=2))
    assert drain(app).succeeded == 2
    assert drain(app).claimed == 0
    assert [text[8:16] for text in ran] == ["03T02:30", "04T02:30"]


def test_adrain_does_the_same_on_an_event_loop(app: Duly, clock: ManualClock) -> None:
    @app.task("report")
    async def report() -> None: ...

    app.schedule("hourly", Every("1h"), report)

    async def a_test() -> int:
        await adrain(app)
        clock.advance(timedelta(hours=1))
        return (await adrain(app)).succeeded

    assert asyncio.run(a_test()) == 1


def test_drain_runs_what_is_ready_and_what_that_makes_ready_one_after_the_other(app: Duly) -> None:
    order: list[int] = []

    @app.task("X")
    async def x(n: int) -> int:
        order.append(n)
        if n < 3:
            await x.using(priority=5).aenqueue(n + 10)
        return n

    for n in (1, 2):
        x.enqueue(n)
    tally = drain(app)
    assert order == [1, 11, 2, 12]
    assert (tally.claimed, tally.succeeded) == (4, 4)
    assert drain(app).claimed == 0


def test_drain_waits_for_no_future_job(app: Duly, clock: ManualClock) -> None:
    app.task("X")(lambda: None).using(run_in=60).enqueue()
    assert drain(app).claimed == 0
    clock.advance(60)
    assert drain(app).succeeded == 1


def test_drain_serves_the_queues_of_all_tasks_unless_it_is_told_which(app: Duly) -> None:
    app.task("A", queue="a")(lambda: None).enqueue()
    app.task("B", queue="b")(lambda: None).enqueue()
    app.task("C")(lambda: None).enqueue()
    assert drain(app, queues="b").succeeded == 1
    assert drain(app, queues=["b", "elsewhere"]).succeeded == 0
    assert drain(app).succeeded == 2


def test_drain_can_be_limited_to_a_number_of_runs(app: Duly) -> None:
    app.task("X")(lambda: None).enqueue_many([{}] * 5)
    assert drain(app, limit=2).succeeded == 2
    assert drain(app, limit=0).claimed == 0
    assert app.jobs.count(status=[Status.QUEUED]) == 3


def test_drain_runs_coroutines_and_plain_functions_where_a_worker_would(app: Duly) -> None:
    main = threading.get_ident()

    @app.task("ASYNC")
    async def coroutine() -> bool:
        return threading.get_ident() == main and asyncio.get_running_loop().is_running()

    @app.task("PLAIN")
    def plain() -> bool:
        return threading.get_ident() == main

    jobs = coroutine.enqueue().job, plain.enqueue().job
    drain(app)
    assert [app.jobs.get(j.id).output for j in jobs] == [True, False]


def test_drain_rescues_what_a_dead_worker_held(app: Duly, clock: ManualClock) -> None:
    app.task("X", backoff=AT_ONCE)(lambda: "done").enqueue()
    Hand(app, "dead").one()
    assert drain(app).claimed == 0
    clock.advance(31)
    assert drain(app).succeeded == 1


def test_a_handler_may_move_the_clock_beyond_its_own_lease(app: Duly, clock: ManualClock) -> None:
    @app.task("X")
    def x(me: Context) -> int:
        clock.advance(timedelta(hours=5))
        return me.job.attempts

    ident = app.enqueue("X").job.id
    assert drain(app).succeeded == 1
    assert (app.jobs.get(ident).output, app.jobs.get(ident).finished_at) == (1, NOON + timedelta(hours=5))


def test_drain_is_used_again_and_again_also_by_transactional_handlers(app: Duly) -> None:
    @app.task("X")
    async def x(session: AsyncSession) -> None: ...

    for _ in range(3):
        app.enqueue("X")
        assert drain(app).succeeded == 1


def test_drain_leaves_no_trace_of_itself(app: Duly) -> None:
    app.task("X")(lambda: None).enqueue()
    before = threading.active_count()
    drain(app)
    assert rows(app, "SELECT count(*) FROM workers") == [(0,)]
    drain(app)
    assert threading.active_count() <= before + 3  # the storage pool, which is the application's


def test_on_a_running_loop_there_is_an_asynchronous_drain(app: Duly) -> None:
    @app.task("X")
    async def x() -> None: ...

    async def story() -> None:
        await x.aenqueue()
        with pytest.raises(UsageError, match="await adrain"):
            drain(app)
        assert (await adrain(app)).succeeded == 1

    asyncio.run(story())


def test_a_drain_that_is_cancelled_gives_its_job_back(app: Duly) -> None:
    began = asyncio.Event()

    @app.task("X")
    async def x() -> None:
        began.set()
        await asyncio.sleep(60)

    ident = x.enqueue().job.id

    async def story() -> None:
        drained = asyncio.create_task(adrain(app))
        await began.wait()
        drained.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drained

    asyncio.run(story())
    job = app.jobs.get(ident)
    assert (job.status, job.attempts) == (Status.QUEUED, 0)


def test_a_drain_that_cannot_write_an_outcome_says_so(app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    app.task("X")(lambda: None).enqueue()

    def broken(*args: object, **kwargs: object) -> None:
        raise DatabaseUnavailable("gone")

    monkeypatch.setattr(app.engine.store, "settle", broken)
    with pytest.raises(DatabaseUnavailable, match="gone"):
        drain(app)


def test_drain_without_tasks_does_nothing(app: Duly) -> None:
    app.enqueue("X")
    assert drain(app).claimed == 0


def test_drain_works_in_memory_too() -> None:
    app = Duly("sqlite://", clock=ManualClock())
    app.task("X")(lambda: 7).enqueue()
    assert drain(app).succeeded == 1
    assert enqueued(app)[0].output == 7
    app.close()


# --- assert_enqueued ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pay(app: Duly) -> Callable[..., None]:
    @app.task("PAY", queue="money")
    def pay(amount: Decimal, on: date | None = None, to: str = "x") -> None: ...

    pay.using(tenant="acme", key="k").enqueue(Decimal("9.90"), on=date(2026, 3, 2))
    pay.using(run_in=60, priority=4).enqueue(Decimal(5), to="y")
    return pay


def test_jobs_are_found_by_task_input_and_options(app: Duly, pay: Callable[..., None]) -> None:
    first, second = enqueued(app)
    assert assert_enqueued(app, pay) == [first, second]  # type: ignore[arg-type]
    assert assert_enqueued(app, "PAY", count=2) == [first, second]
    assert assert_enqueued(app, "PAY", input={"amount": Decimal("9.90")}) == [first]
    assert assert_enqueued(app, "PAY", input={"on": date(2026, 3, 2), "amount": "9.90"}) == [first]
    assert assert_enqueued(app, "PAY", tenant="acme", key="k", queue="money") == [first]
    assert assert_enqueued(app, "PAY", run_at=NOON + timedelta(seconds=60), priority=4) == [second]
    assert assert_enqueued(app, "OTHER", count=0) == []
    assert enqueued(app, "PAY", input={"to": "x"}) == []  # a default is not part of the input


def test_jobs_that_have_run_count_as_enqueued(app: Duly, pay: Callable[..., None]) -> None:
    drain(app)
    assert_enqueued(app, "PAY", status="succeeded", count=1)
    assert_enqueued(app, "PAY", status=Status.QUEUED, count=1)


def test_children_are_found_by_their_parent(app: Duly) -> None:
    parent = app.enqueue("A").job
    child = app.enqueue("B", parent=parent).job
    assert [j.id for j in enqueued(app, parent=parent)] == [j.id for j in enqueued(app, parent=parent.id)] == [child.id]


def test_a_failed_assertion_shows_what_was_enqueued_instead(app: Duly, pay: Callable[..., None]) -> None:
    with pytest.raises(AssertionError) as failed:
        assert_enqueued(app, "PAY", input={"amount": Decimal(7)}, queue="money")
    lines = str(failed.value).splitlines()
    assert lines[0] == "expected a job of task 'PAY', input={'amount': Decimal('7')}, queue='money'; found none."
    assert lines[1] == "Jobs of this task:"
    assert (
        lines[2] == "  job 1: PAY on money, queued, tenant acme, input {'amount': '9.90', 'on': '2026-03-02'}, key 'k'"
    )
    with pytest.raises(AssertionError, match=r"expected 3 job\(s\) of task 'PAY'; found 2"):
        assert_enqueued(app, "PAY", count=3)
    with pytest.raises(AssertionError, match="expected no job of task 'PAY'; found 2"):
        assert_enqueued(app, "PAY", count=0)
    with pytest.raises(AssertionError, match="Jobs of other tasks:\n  job 1: PAY"):
        assert_enqueued(app, "MAIL")


def test_a_failed_assertion_on_an_empty_database_says_so_and_a_long_list_is_cut(app: Duly) -> None:
    with pytest.raises(AssertionError, match="No job was made at all"):
        assert_enqueued(app, "X")
    app.enqueue_many("X", [{}] * 25)
    with pytest.raises(AssertionError, match="… and 15 more"):
        assert_enqueued(app, "X", count=3)


def test_a_filter_that_does_not_exist_is_an_error_and_not_a_pass(app: Duly) -> None:
    app.enqueue("X")
    with pytest.raises(TypeError):
        assert_enqueued(app, "X", que="x")
    with pytest.raises(ValueError, match="finished"):
        assert_enqueued(app, "X", status="finished")
