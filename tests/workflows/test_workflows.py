"""Runs of workflows on both databases, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

import pytest
from sqlalchemy import Connection, bindparam, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from duly import Backoff, Duly, PermanentError
from duly import Status as Status_
from duly.jobs.prune import prune_expired
from duly.jobs.store import FAR
from duly.kernel.errors import (
    DatabaseUnavailable,
    InvalidArgument,
    InvalidPayload,
    NotFound,
    Retry,
    Snooze,
    WrongState,
)
from duly.storage.types import Instant
from duly.testing import ManualClock, drain
from duly.workflows import ChildFailed, Kind, Status, StepFailed, UnknownWorkflow, WaitTimedOut, WorkflowContext
from duly.workflows.store import WorkflowStore

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class Calls:
    """Counts what steps did."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, name: str, answer: Any = None) -> Any:
        self.made.append(name)
        return answer

    def __eq__(self, other: object) -> bool:
        return self.made == other

    __hash__ = None  # type: ignore[assignment]

    @property
    def counted(self) -> Counter[str]:
        return Counter(self.made)


@pytest.fixture
def calls() -> Calls:
    return Calls()


def state(app: Duly, run: int) -> tuple[str, Any]:
    found = app.workflows.get(run)
    return found.state, found.output if found.state != "failed" else found.error["message"]


# --- Steps -------------------------------------------------------------------------------------------------------------


def test_a_run_does_its_steps_in_order_and_ends_with_what_the_code_returns(
    app: Duly, calls: Calls
) -> None:  # T003-k, R003-12
    @app.workflow("greet")
    async def greet(ctx: WorkflowContext, name: str, times: int = 2) -> dict[str, Any]:
        async def one() -> str:
            calls("one")
            return f"hello {name}"

        first = await ctx.step("one", one)
        second = await ctx.step("two", calls, "two", times * 21)
        return {"first": first, "second": second, "run": ctx.run_id}

    run = greet.start("Ann").job.id
    job = app.jobs.get(run)
    assert (job.task, job.queue, job.input) == (
        "ENGINE_RUN",
        "workflows",
        {"workflow": "greet", "input": {"name": "Ann"}},
    )
    assert drain(app).succeeded == 1
    assert state(app, run) == ("succeeded", {"first": "hello Ann", "second": 42, "run": run})
    assert calls == ["one", "two"]
    assert [(s.position, s.kind, s.name, s.status, s.output) for s in app.workflows.history(run)] == [
        (1, Kind.STEP, "one", Status.DONE, "hello Ann"), (2, Kind.STEP, "two", Status.DONE, 42),
    ]  # fmt: skip


def test_the_input_of_a_run_is_checked_by_its_annotations(app: Duly) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext, n: int, at: datetime) -> str:
        return (at + n * DAY).isoformat()

    with pytest.raises(InvalidArgument, match=r"^n: "):
        w.start("x", datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidArgument, match=r"^more: "):
        app.workflows.start("w", {"n": 1, "at": "2026-01-01T00:00:00Z", "more": 1})
    run = w.start(2, datetime(2026, 1, 1, tzinfo=UTC)).job.id
    drain(app)
    assert state(app, run) == ("succeeded", "2026-01-03T00:00:00+00:00")


@dataclass
class Order:
    id: int
    at: datetime


def test_answers_of_steps_come_back_as_their_annotation_says_the_first_time_and_every_other(
    app: Duly, calls: Calls
) -> None:
    def fetch() -> Order:
        calls("fetch")
        return Order(7, datetime(2026, 1, 1, tzinfo=UTC))

    seen: list[Any] = []

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> int:
        order = await ctx.step("fetch", fetch)
        seen.append(order)
        await ctx.sleep(60)
        return order.id

    run = w.start().job.id
    drain(app)
    app.db.clock.advance(60)  # type: ignore[attr-defined]
    drain(app)
    assert state(app, run) == ("succeeded", 7)
    assert seen == [Order(7, datetime(2026, 1, 1, tzinfo=UTC))] * 2
    assert calls == ["fetch"]


def test_a_step_that_fails_is_tried_again_after_a_while_and_holds_no_worker_meanwhile(
    app: Duly, clock: ManualClock, calls: Calls
) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        await ctx.step("before", calls, "before")

        def flaky() -> str:
            calls("flaky")
            if calls.counted["flaky"] < 3:
                raise ConnectionError("no line")
            return "through"

        return await ctx.step("flaky", flaky)

    run = w.start().job.id
    assert drain(app).snoozed == 1
    assert app.workflows.get(run).state == "retrying"
    clock.advance(9)
    assert drain(app).claimed == 0
    clock.advance(1)
    drain(app)  # 10 s: the second
    clock.advance(20)
    drain(app)  # 20 s after that: the third
    assert state(app, run) == ("succeeded", "through")
    assert calls.counted == {"before": 1, "flaky": 3}
    assert app.workflows.history(run)[1].attempts == 3
    assert app.jobs.get(run).attempts == 1


def test_a_step_whose_attempts_are_used_up_raises_in_the_code_and_a_permanent_error_at_once(
    app: Duly, clock: ManualClock, calls: Calls
) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        def broken() -> None:
            calls("broken")
            raise ValueError("never")

        def refused() -> None:
            calls("refused")
            raise PermanentError("not you")

        try:
            await ctx.using(attempts=2, backoff=Backoff(base=1)).step("broken", broken)
        except StepFailed as error:
            assert error.error["type"] == "ValueError"
            await ctx.step("refused", refused)
        return "unreached"

    run = w.start().job.id
    drain(app)
    clock.advance(1)
    drain(app)
    assert state(app, run) == ("failed", "refused: PermanentError: not you")
    assert calls == ["broken", "broken", "refused"]
    assert [(s.status, s.attempts) for s in app.workflows.history(run)] == [(Status.FAILED, 2), (Status.FAILED, 1)]


def test_a_step_may_say_itself_when_it_wants_to_be_called_again(app: Duly, clock: ManualClock, calls: Calls) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        def busy() -> str:
            calls("busy")
            if calls.counted["busy"] == 1:
                raise Snooze(after=100)
            if calls.counted["busy"] == 2:
                raise Retry("wait", after=50)
            return "ok"

        return await ctx.using(attempts=2).step("busy", busy)

    run = w.start().job.id
    drain(app)
    clock.advance(100)
    drain(app)
    clock.advance(49)
    drain(app)
    assert calls.counted["busy"] == 2
    clock.advance(1)
    drain(app)
    assert state(app, run) == ("succeeded", "ok")


def test_the_effect_of_a_step_with_a_session_and_its_record_are_one_commit(app: Duly, calls: Calls) -> None:
    app.open()
    app.db.write(lambda c: c.execute(text("CREATE TABLE paid (id INTEGER PRIMARY KEY, run BIGINT)")))

    @app.workflow("pay")
    async def pay(ctx: WorkflowContext) -> int:
        def charge(run: int, session: Session) -> int:
            session.execute(
                text("INSERT INTO paid (id, run) VALUES (:n, :run)"), {"n": len(calls.made) + 1, "run": run}
            )
            calls("charge")
            if calls.counted["charge"] == 1:
                raise ConnectionError("after the effect")
            return 1

        async def note(session: AsyncSession) -> None:
            await session.execute(text("INSERT INTO paid (id, run) VALUES (99, 0)"))

        await ctx.using(backoff=Backoff(base=0)).step("charge", charge, ctx.run_id)
        await ctx.step("note", note)
        return 5

    run = pay.start().job.id
    drain(app)
    assert state(app, run) == ("succeeded", 5)
    assert app.db.read(lambda c: c.execute(text("SELECT id FROM paid ORDER BY id")).scalars().all()) == [2, 99]


# --- Waiting -----------------------------------------------------------------------------------------------------------


def test_a_sleeping_run_holds_no_worker_and_goes_on_when_it_is_time(
    app: Duly, clock: ManualClock, calls: Calls
) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        await ctx.step("a", calls, "a")
        began = await ctx.now()
        await ctx.sleep(DAY)
        await ctx.sleep(until=began + 2 * DAY)
        await ctx.step("b", calls, "b")
        return (await ctx.now()).isoformat()

    run = w.start().job.id
    drain(app)
    assert app.workflows.get(run).state == "sleeping"
    assert app.jobs.get(run).status == "queued"
    clock.advance(DAY - timedelta(seconds=1))
    assert drain(app).claimed == 0
    clock.advance(1)
    drain(app)
    assert calls == ["a"]
    clock.advance(DAY)
    drain(app)
    assert state(app, run) == ("succeeded", "2026-03-04T09:00:00+00:00")
    assert calls == ["a", "b"]


def test_a_signal_wakes_the_run_that_waits_for_it_and_one_that_comes_before_is_kept(app: Duly, calls: Calls) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[Any]:
        first = await ctx.wait_event("paid")
        await ctx.step("between", calls, "between")
        return [first, await ctx.wait_event("shipped"), await ctx.wait_event("paid")]

    run = w.start().job.id
    app.workflows.signal(run, "shipped", {"box": 1})  # before anybody has looked at the run
    drain(app)
    assert app.workflows.get(run).state == "waiting"
    assert app.workflows.get(run).waits[0]["name"] == "paid"
    assert app.workflows.signal(run, "paid", 10, key="once")
    assert not app.workflows.signal(run, "paid", 10, key="once")
    app.workflows.signal(run, "paid", 20)
    drain(app)
    assert state(app, run) == ("succeeded", [10, {"box": 1}, 20])
    with pytest.raises(WrongState):
        app.workflows.signal(run, "paid", 30)
    with pytest.raises(NotFound):
        app.workflows.signal(run + 1, "paid")
    with pytest.raises(NotFound):
        app.workflows.signal(run, "paid", tenant="other")


def test_a_wait_that_times_out_is_on_record_and_a_signal_that_comes_too_late_changes_nothing(
    app: Duly, clock: ManualClock
) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[Any]:
        first = await ctx.wait_event("paid", timeout=HOUR, default="nothing")
        try:
            await ctx.wait_event("paid", timeout=HOUR)
        except WaitTimedOut as error:
            return [first, error.name]
        return ["unreached"]

    run = w.start().job.id
    drain(app)
    clock.advance(HOUR)
    drain(app)
    clock.advance(HOUR + MINUTE)
    app.workflows.signal(run, "paid", "late")  # a minute after the time was over, though nobody has looked
    drain(app)
    assert state(app, run) == ("succeeded", ["nothing", "paid"])
    assert [s.status for s in app.workflows.history(run)] == [Status.TIMED_OUT, Status.TIMED_OUT]


def test_a_person_is_asked_and_answers(app: Duly, clock: ManualClock) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[Any]:
        yes, no = await ctx.gather(ctx.approve("budget"), ctx.approve("trip", timeout=DAY))
        return [bool(yes), yes.by, bool(no), no.reason]

    run = w.start().job.id
    drain(app)
    assert app.workflows.get(run).state == "AWAITING_HUMAN"
    app.workflows.signal(run, "budget", {"approved": True})  # an event is no approval
    drain(app)
    with pytest.raises(InvalidArgument, match="budget, trip"):
        app.workflows.approve(run, actor="ann")
    with pytest.raises(InvalidArgument, match="'x'"):
        app.workflows.approve(run, "x", actor="ann")
    app.workflows.approve(run, "budget", actor="ann")
    app.workflows.approve(run, "trip", False, reason="too far", actor="bob")
    with pytest.raises(WrongState):
        app.workflows.approve(run, "trip", True, actor="eve")
    drain(app)
    assert state(app, run) == ("succeeded", [True, "ann", False, "too far"])
    audited = app.db.read(
        lambda c: c.execute(text("SELECT action, actor FROM audit_log WHERE entity = 'run' ORDER BY id")).all()
    )
    assert [tuple(row) for row in audited] == [
        ("WORKFLOW_SIGNALLED", "code"), ("WORKFLOW_APPROVED", "ann"), ("WORKFLOW_REJECTED", "bob"),
    ]  # fmt: skip


# --- Children ----------------------------------------------------------------------------------------------------------


def test_a_run_waits_for_its_children_and_gets_what_they_answer(app: Duly, calls: Calls) -> None:  # R003-12
    @app.task("double", queue="work", max_attempts=1)
    def double(n: int) -> int:
        calls(f"double {n}")
        if n == 13:
            raise PermanentError("not thirteen")
        return 2 * n

    @app.workflow("inner")
    async def inner(ctx: WorkflowContext, n: int) -> int:
        return await ctx.enqueue(double, n) + 1

    @app.workflow("outer")
    async def outer(ctx: WorkflowContext) -> list[Any]:
        loose = await ctx.start(double, 100)
        several = await ctx.gather(
            ctx.enqueue(double, 1), ctx.enqueue(double.using(priority=5), n=2), ctx.enqueue("double", n=3)
        )
        nested = await ctx.enqueue(inner, 10)
        try:
            await ctx.enqueue(double, 13)
        except ChildFailed as error:
            return [loose, *several, nested, error.error["message"], error.job_id]
        return []

    run = outer.start().job.id
    drain(app)
    found, answer = state(app, run)
    assert found == "succeeded"
    assert answer[1:6] == [2, 4, 6, 21, "not thirteen"]
    assert app.jobs.get(answer[0]).parent_id == run
    assert calls.counted == {f"double {n}": 1 for n in (100, 1, 2, 3, 10, 13)}
    tree = app.workflows.tree(run)
    assert [(b.depth, b.task, b.name) for b in tree if b.task == "ENGINE_RUN"] == [(1, "ENGINE_RUN", "inner")]
    assert Counter(b.depth for b in tree) == {1: 6, 2: 1}


def test_a_child_that_nobody_waits_for_does_not_keep_the_run_from_going_on(app: Duly, calls: Calls) -> None:
    @app.task("slow", queue="slow")
    def slow() -> None:
        calls("slow")

    @app.task("quick", queue="quick")
    def quick() -> None:
        calls("quick")

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        await ctx.start(slow)
        await ctx.enqueue(quick)
        return "on"

    run = w.start().job.id
    drain(app, queues=["workflows", "quick"])
    assert state(app, run) == ("succeeded", "on")
    assert calls == ["quick"]


def test_a_run_that_waits_for_children_and_for_an_event_is_woken_by_either(app: Duly, calls: Calls) -> None:
    @app.task("work", queue="work")
    def work() -> int:
        return 1

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[Any]:
        return await ctx.gather(ctx.enqueue(work), ctx.wait_event("go", timeout=DAY), ctx.step("s", calls, "s"))

    run = w.start().job.id
    drain(app, queues=["workflows"])
    app.workflows.signal(run, "go", "now")
    assert drain(app, queues=["workflows"]).claimed == 1
    assert [s.status for s in app.workflows.history(run)] == [Status.WAITING, Status.DONE, Status.DONE]
    drain(app)
    assert state(app, run) == ("succeeded", [1, "now", None])
    assert calls == ["s"]


def test_a_parent_of_a_thousand_children_is_woken_once_they_have_all_ended(app: Duly) -> None:
    @app.task("square", queue="work")
    async def square(n: int) -> int:
        return n * n

    turns: list[int] = []

    @app.workflow("sum")
    async def total(ctx: WorkflowContext) -> int:
        turns.append(1)
        return sum(await ctx.gather(*(ctx.enqueue(square, n) for n in range(1000))))

    run = total.start().job.id
    app.worker().run(until_idle=True)
    assert state(app, run) == ("succeeded", sum(n * n for n in range(1000)))
    assert len(turns) == 2
    assert app.db.read(lambda c: c.execute(text("SELECT count(*) FROM job_waits")).scalar()) == 0


def test_what_is_gathered_raises_the_first_failure_after_all_have_ended_or_gives_it_back(
    app: Duly, calls: Calls
) -> None:
    def bad() -> None:
        raise PermanentError("bad")

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[str]:
        try:
            await ctx.gather(ctx.step("bad", bad), ctx.step("good", calls, "good"))
        except StepFailed as error:
            first = error.name
        both = await ctx.gather(
            ctx.step("bad again", bad), ctx.step("better", calls, "better", 2), return_exceptions=True
        )
        return [first, type(both[0]).__name__, both[1]]

    run = w.start().job.id
    drain(app)
    assert state(app, run) == ("succeeded", ["bad", "StepFailed", 2])
    assert calls.counted == {"good": 1, "better": 1}


# --- Failure and undoing -----------------------------------------------------------------------------------------------


def test_a_run_that_fails_undoes_its_steps_the_last_first_and_each_once(
    app: Duly, clock: ManualClock, calls: Calls
) -> None:
    def undo(name: str) -> Any:
        def undone(answer: Any) -> None:
            calls(f"undo {name} {answer}")
            if name == "b" and calls.counted[f"undo {name} {answer}"] == 1:
                raise ConnectionError("not now")

        return undone

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        for name in ("a", "b", "c"):
            await ctx.using(compensate=undo(name)).step(name, calls, name, name.upper())
        await ctx.step("plain", calls, "plain")
        await ctx.step("bad", _refuse)

    run = w.start().job.id
    drain(app)
    assert app.workflows.get(run).state == "retrying"
    clock.advance(10)
    drain(app)
    assert state(app, run) == ("failed", "bad: PermanentError: no")
    assert calls == ["a", "b", "c", "plain", "undo c C", "undo b B", "undo b B", "undo a A"]
    assert [(s.position, s.kind) for s in app.workflows.history(run)][-3:] == [
        (-3, Kind.UNDO),
        (-2, Kind.UNDO),
        (-1, Kind.UNDO),
    ]
    assert [a.action for a in _audit(app, run)] == ["JOB_FAILED_PERMANENT"]


def _refuse() -> None:
    raise PermanentError("no")


def _audit(app: Duly, run: int) -> list[Any]:
    query = text("SELECT action, meta FROM audit_log WHERE entity = 'job' AND entity_id = :run ORDER BY id")
    return list(app.db.read(lambda c: c.execute(query, {"run": str(run)}).all()))


def test_what_cannot_be_undone_is_named(app: Duly, clock: ManualClock, calls: Calls) -> None:
    def never(answer: Any) -> None:
        calls("never")
        raise PermanentError("gone")

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda _: calls("undo a")).step("a", calls, "a")
        await ctx.using(compensate=never).step("b", calls, "b")
        raise PermanentError("enough")

    run = w.start().job.id
    drain(app)
    assert state(app, run) == ("failed", "enough (could not be undone: b)")
    assert calls == ["a", "b", "never", "undo a"]


def test_an_error_of_the_code_itself_is_tried_again_like_any_job_and_then_ends_the_run(
    app: Duly, clock: ManualClock, calls: Calls
) -> None:
    @app.workflow("w", max_attempts=2)
    async def w(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda _: calls("undo")).step("a", calls, "a")
        raise KeyError("typo")

    run = w.start().job.id
    drain(app)
    assert calls == ["a"]
    clock.advance(10)
    drain(app)
    assert state(app, run) == ("failed", "KeyError: 'typo'")
    assert calls == ["a", "undo"]


# --- Code that changes -------------------------------------------------------------------------------------------------


def test_code_that_asks_for_something_else_than_the_run_has_on_record_is_told_so_in_words(
    app: Duly, clock: ManualClock, calls: Calls
) -> None:
    names = ["charge"]

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        for name in names:
            await ctx.step(name, calls, name)
        await ctx.sleep(60)

    run = w.start().job.id
    drain(app)
    names[:] = ["ship"]
    clock.advance(60)
    drain(app)
    found, message = state(app, run)
    assert found == "failed"
    assert "step 1 of this run is on record as step 'charge', and the code now asks for step 'ship' there" in message
    names[:] = ["charge"]
    assert app.workflows.replay(run, reason="put back", actor="ann").state == "queued"
    drain(app)
    assert state(app, run)[0] == "succeeded"
    assert calls == ["charge"]

    other = w.start().job.id
    drain(app)
    names.clear()
    clock.advance(60)
    drain(app)
    assert "on record as step 'charge', and the code now asks for sleep 'sleep' there" in state(app, other)[1]


def test_code_that_ends_without_asking_for_all_that_is_on_record_is_told_so(
    app: Duly, clock: ManualClock, calls: Calls
) -> None:
    short = False

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.step("a", calls, "a")
        if not short:
            await ctx.sleep(60)

    run = w.start().job.id
    drain(app)
    short = True
    clock.advance(60)
    drain(app)
    assert "has sleep 'sleep' on record as step 2, and the code ended after 1" in state(app, run)[1]


def test_a_sleeping_run_goes_on_with_the_version_it_began_with(app: Duly, clock: ManualClock, calls: Calls) -> None:
    @app.workflow("w")
    async def one(ctx: WorkflowContext) -> str:
        await ctx.sleep(60)
        return "one"

    run = one.start().job.id
    drain(app)

    @app.workflow("w", version=2)
    async def two(ctx: WorkflowContext) -> str:
        return "two"

    clock.advance(60)
    later = app.workflows.start("w").job.id
    drain(app)
    assert (state(app, run)[1], state(app, later)[1]) == ("one", "two")
    with pytest.raises(InvalidArgument, match="defined twice in version 2"):

        @app.workflow("w", version=2)
        async def three(ctx: WorkflowContext) -> None: ...

    with pytest.raises(UnknownWorkflow, match=r"w \(1, 2\)"):
        app.workflows.find("w", 3)


def test_a_run_whose_version_is_not_known_here_waits_for_a_worker_that_knows_it(
    app: Duly, db_url: str, clock: ManualClock
) -> None:
    @app.workflow("w")
    async def one(ctx: WorkflowContext) -> str:
        return "one"

    other = Duly(db_url, clock=clock)
    told: list[Any] = []
    other.listen(told.append)

    @other.workflow("elsewhere")
    async def elsewhere(ctx: WorkflowContext) -> None: ...

    run = one.start().job.id
    assert drain(other).snoozed == 1
    assert [e.name for e in told if e.level == "warning"] == ["workflow_unknown"]
    clock.advance(30)
    drain(app)
    assert state(app, run) == ("succeeded", "one")
    other.close()


def test_a_change_that_is_guarded_meets_new_runs_and_those_that_have_not_come_there(
    app: Duly, clock: ManualClock, calls: Calls
) -> None:
    changed = False

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.step("a", calls, "a")
        if changed and await ctx.patched("second letter"):
            await ctx.step("letter", calls, "letter")
        await ctx.sleep(60)
        if changed and await ctx.patched("farewell"):
            await ctx.step("farewell", calls, "farewell")
        await ctx.step("z", calls, "z")

    old = w.start().job.id
    drain(app)
    changed = True
    new = w.start().job.id
    drain(app)
    clock.advance(60)
    drain(app)
    assert (state(app, old)[0], state(app, new)[0]) == ("succeeded", "succeeded")
    assert calls == ["a", "a", "letter", "farewell", "z", "farewell", "z"]


# --- Acts --------------------------------------------------------------------------------------------------------------


def test_a_failed_run_goes_on_from_the_step_that_failed_and_an_ended_one_from_any(app: Duly, calls: Calls) -> None:
    broken = True

    def maybe() -> str:
        calls("maybe")
        if broken:
            raise PermanentError("down")
        return "up"

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        await ctx.step("a", calls, "a")
        found = await ctx.step("maybe", maybe)
        event = await ctx.wait_event("go")
        return f"{found} {event}"

    run = w.start().job.id
    app.workflows.signal(run, "go", 1)
    drain(app)
    assert state(app, run)[0] == "failed"
    broken = False
    app.workflows.replay(run, actor="ann", reason="mended")
    drain(app)
    assert state(app, run) == ("succeeded", "up 1")
    assert calls == ["a", "maybe", "maybe"]
    app.workflows.replay(run, "maybe", actor="ann")
    with pytest.raises(WrongState):
        app.workflows.replay(run)
    drain(app)
    assert state(app, run) == ("succeeded", "up 1")  # the signal is there again
    assert calls == ["a", "maybe", "maybe", "maybe"]
    with pytest.raises(InvalidArgument, match="no step of that name"):
        app.workflows.replay(run, "x")
    with pytest.raises(InvalidArgument, match="steps 1 to 3"):
        app.workflows.replay(run, 9)


def test_a_fork_has_what_came_before_on_record_and_leaves_the_first_run_alone(app: Duly, calls: Calls) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext, n: int) -> list[int]:
        a = await ctx.step("a", calls, "a", n)
        b = await ctx.step("b", calls, "b", len(calls.made))
        return [a, b]

    run = w.start(5).job.id
    drain(app)
    fork = app.workflows.fork(run, "b", actor="ann")
    assert (fork.forked_from, fork.input) == (run, {"n": 5})
    drain(app)
    assert state(app, run) == ("succeeded", [5, 1])
    assert state(app, fork.id) == ("succeeded", [5, 2])
    assert calls == ["a", "b", "b"]


def test_a_run_is_cancelled_with_everything_below_it(app: Duly, calls: Calls) -> None:
    @app.task("work", queue="work")
    def work() -> None:
        calls("work")

    @app.workflow("inner")
    async def inner(ctx: WorkflowContext) -> None:
        await ctx.enqueue(work)

    @app.workflow("outer")
    async def outer(ctx: WorkflowContext) -> None:
        await ctx.gather(ctx.enqueue(inner), ctx.enqueue(work))

    run = outer.start().job.id
    drain(app, queues=["workflows"])
    assert len(app.workflows.tree(run)) == 3
    assert app.workflows.cancel(run, reason="no more", actor="ann").state == "cancelled"
    assert {b.status for b in app.workflows.tree(run)} == {"cancelled"}
    drain(app)
    assert calls == []
    with pytest.raises(WrongState):
        app.workflows.cancel(run)


def test_runs_are_listed_by_workflow_and_state_and_a_tenant_sees_its_own(app: Duly) -> None:
    @app.workflow("a")
    async def a(ctx: WorkflowContext) -> None:
        await ctx.wait_event("go")

    @app.workflow("b")
    async def b(ctx: WorkflowContext) -> None: ...

    first, second, third = a.start().job.id, b.start().job.id, a.using(tenant="acme").start().job.id
    drain(app)
    fourth = b.start().job.id
    assert [r.id for r in app.workflows.list()] == [fourth, third, second, first]
    assert [(r.id, r.workflow, r.state) for r in app.workflows.list("b")] == [
        (fourth, "b", "queued"),
        (second, "b", "succeeded"),
    ]
    assert [r.id for r in app.workflows.list(status=["queued"], tenant="acme")] == [third]
    assert [r.id for r in app.workflows.list(limit=1, below=second)] == [first]
    with pytest.raises(NotFound):
        app.workflows.get(first, tenant="acme")
    with pytest.raises(NotFound):
        app.workflows.history(third, tenant="default")
    with pytest.raises(InvalidArgument):
        app.workflows.list(status=["lost"])


def _count(connection: Connection, table: str) -> Any:
    return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar()


def test_what_is_on_record_goes_with_the_job(app: Duly, clock: ManualClock) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.step("a", int)
        await ctx.wait_event("go")

    run, live = w.start().job.id, w.start().job.id
    drain(app)
    app.workflows.signal(run, "go")
    drain(app)
    app.jobs.admin.prune(clock.now() + DAY)
    app.workflows.keep()
    left = [
        app.db.read(partial(_count, table=table)) for table in ("workflow_runs", "workflow_steps", "workflow_signals")
    ]
    assert left == [1, 2, 0]
    assert app.workflows.get(live).state == "waiting"


def test_a_run_that_slept_through_its_news_is_woken_by_housekeeping(app: Duly) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> Any:
        return await ctx.wait_event("go")

    run = w.start().job.id
    drain(app)
    app.workflows.signal(run, "go", 1)
    app.db.write(lambda c: c.execute(text("UPDATE jobs SET due_at = :far WHERE id = :run"),
                                     {"far": 253402214400000000 if app.db.is_sqlite else datetime(9999, 12, 31, tzinfo=UTC), "run": run}))  # fmt: skip
    assert drain(app).claimed == 0
    app.workflows.keep()
    drain(app)
    assert state(app, run) == ("succeeded", 1)


def test_a_step_that_answers_what_cannot_be_kept_fails_in_words(app: Duly) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext, kind: str) -> None:
        await ctx.step("big", lambda: "x" * 2_000_000 if kind == "big" else object())

    big, odd = w.start("big").job.id, w.start("odd").job.id
    drain(app)
    assert "the limit is" in state(app, big)[1]
    assert "cannot be stored" in state(app, odd)[1]


def test_what_is_asked_for_wrongly_is_refused_by_the_field(app: Duly) -> None:
    wrongs: list[Any] = [
        lambda ctx: ctx.step("", int), lambda ctx: ctx.step("a", 5), lambda ctx: ctx.sleep(), lambda ctx: ctx.sleep(5, until=datetime.now(UTC)),
        lambda ctx: ctx.sleep(-1), lambda ctx: ctx.sleep(float("nan")), lambda ctx: ctx.sleep(until=datetime(2026, 1, 1)),
        lambda ctx: ctx.wait_event("x", timeout=1, until=datetime.now(UTC)), lambda ctx: ctx.using(attempts=0), lambda ctx: ctx.using(timeout=0),
        lambda ctx: ctx.wait_event("a\nb"),
    ]  # fmt: skip
    refused: list[int] = []

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        for n, wrong in enumerate(wrongs):
            try:
                wrong(ctx)
            except InvalidArgument:
                refused.append(n)

    w.start()
    drain(app)
    assert refused == list(range(len(wrongs)))
    with pytest.raises(InvalidArgument, match="async def"):
        app.workflow("plain")(lambda ctx: None)
    with pytest.raises(InvalidArgument, match="takes no context"):

        @app.workflow("none")
        async def none() -> None: ...

    with pytest.raises(InvalidArgument, match="Return a list"):

        @app.workflow("generator")
        async def generator(ctx: WorkflowContext) -> Any:
            yield 1

    for version in (0, 2**31, 10**12):
        with pytest.raises(InvalidArgument, match=r"version: .* from 1 to 2,147,483,647"):
            app.workflow("v", version=version)(w.fn)


def test_a_scheduled_workflow_is_a_schedule_of_its_runs(app: Duly, clock: ManualClock) -> None:
    from duly import Every

    @app.workflow("nightly")
    async def nightly(ctx: WorkflowContext, n: int) -> int:
        return n

    app.schedule("nightly", Every(HOUR), "ENGINE_RUN", {"workflow": "nightly", "input": {"n": 3}})
    drain(app)
    clock.advance(HOUR)
    drain(app)
    [run] = app.workflows.list("nightly")
    assert (run.state, run.output) == ("succeeded", 3)


def test_many_steps_at_once_are_each_recorded(app: Duly) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> int:
        async def one(n: int) -> int:
            await asyncio.sleep(0)
            return n

        return sum(await ctx.gather(*(ctx.step(f"s{n}", one, n) for n in range(50))))

    run = w.start().job.id
    drain(app)
    assert state(app, run) == ("succeeded", 1225)
    assert len(app.workflows.history(run)) == 50


def test_what_another_worker_has_put_on_record_meanwhile_is_not_overlooked(
    app: Duly, db_url: str, clock: ManualClock, calls: Calls
) -> None:
    other = Duly(db_url, clock=clock)
    for one, broken in ((app, False), (other, True)):

        @one.workflow("w")
        async def w(ctx: WorkflowContext, broken: bool = broken) -> str:
            await ctx.step("a", calls, "a")
            await ctx.sleep(60)
            await ctx.step("b", calls, "b")
            if broken:
                raise ConnectionError("just here")  # without lying down
            await ctx.sleep(60)
            return "done"

    run = app.workflows.start("w").job.id
    drain(app)
    assert run in app.workflows._memory._kept
    clock.advance(60)
    assert drain(other).retried == 1
    clock.advance(10)
    drain(app)
    clock.advance(60)
    drain(app)
    assert state(app, run) == ("succeeded", "done")
    assert calls == ["a", "b"]
    other.close()


def test_a_child_may_have_a_name_of_its_own_and_be_undone_like_a_step(app: Duly, calls: Calls) -> None:
    @app.task("book", queue="work")
    def book(n: int) -> int:
        calls(f"book {n}")
        return n

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        for n in (1, 2):
            await ctx.using(name=f"room {n}", compensate=lambda answer: calls(f"cancel {answer}")).enqueue(book, n)
        await ctx.step("bad", _refuse)

    run = w.start().job.id
    drain(app)
    assert state(app, run)[0] == "failed"
    assert calls == ["book 1", "book 2", "cancel 2", "cancel 1"]
    assert [(s.kind, s.name) for s in app.workflows.history(run)][:2] == [(Kind.TASK, "room 1"), (Kind.TASK, "room 2")]


def test_input_that_a_child_cannot_take_ends_the_run_at_once(app: Duly) -> None:
    @app.task("book", queue="work")
    def book(n: int) -> int:
        return n

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.enqueue("book", n="x")

    run = w.start().job.id
    assert drain(app).failed == 1
    assert state(app, run) == (
        "failed",
        "InvalidArgument: n: input should be a valid integer, unable to parse string as an integer.",
    )


# --- The end of a turn is nobody's failed step -------------------------------------------------------------------------


def test_a_lease_that_is_lost_is_no_failed_step(app: Duly, calls: Calls) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        def pay() -> None:
            calls("pay")
            if calls.counted["pay"] == 1:  # somebody else has taken the run over meanwhile
                app.db.write(lambda c: c.execute(text("UPDATE jobs SET lease_token = 7 WHERE task = 'ENGINE_RUN'")))

        try:
            await ctx.step("pay", pay)
        except Exception:
            await ctx.step("refund", calls, "refund")
        return "paid"

    run = w.start().job.id
    assert drain(app).lost == 1
    app.db.write(lambda c: c.execute(text("UPDATE jobs SET status = 'queued', lease_token = NULL, lease_until = NULL")))
    drain(app)
    assert state(app, run) == ("succeeded", "paid")
    assert calls == ["pay"]  # this process remembers what it could not record; another one would call it again


def test_a_database_that_does_not_answer_is_no_failed_step(
    app: Duly, clock: ManualClock, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        try:
            await ctx.step("pay", calls, "pay")
        except Exception as error:
            await ctx.step("tell", calls, type(error).__name__)
        return "paid"

    real, broken = WorkflowStore.write, [True]

    def write(self: Any, *args: Any) -> None:
        if broken and broken.pop():
            raise DatabaseUnavailable("just now")
        real(self, *args)

    monkeypatch.setattr(WorkflowStore, "write", write)
    run = w.start().job.id
    drain(app)
    assert state(app, run) == ("succeeded", "paid")
    assert calls == ["pay"]  # what was done is recorded once the database is back
    assert [s.name for s in app.workflows.history(run)] == ["pay"]


def test_changed_code_is_told_whatever_the_code_catches(app: Duly, clock: ManualClock, calls: Calls) -> None:
    name = "charge"

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> bool:
        try:
            await ctx.step(name, calls, name)
        except Exception:
            await ctx.step("alarm", calls, "alarm")
        await ctx.sleep(60)
        return True

    run = w.start().job.id
    drain(app)
    name = "other"
    clock.advance(60)
    drain(app)
    assert "on record as step 'charge'" in state(app, run)[1]
    assert calls == ["charge"]


def test_what_stands_in_finally_is_done_at_the_end_of_the_run_and_not_of_a_turn(app: Duly, calls: Calls) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        await ctx.step("lock", calls, "lock")
        try:
            await ctx.wait_event("go")
            await ctx.step("work", calls, "work")
        finally:
            await ctx.step("unlock", calls, "unlock")
        return "done"

    run = w.start().job.id
    drain(app)
    assert calls == ["lock"]
    app.workflows.signal(run, "go")
    drain(app)
    assert state(app, run) == ("succeeded", "done")
    assert calls == ["lock", "work", "unlock"]


def test_a_wait_that_the_code_swallows_is_waited_for(app: Duly, clock: ManualClock, calls: Calls) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        try:
            await ctx.sleep(3600)
        except BaseException:
            calls("swallowed")
        await ctx.step("after", calls, "after")
        return "done"

    run = w.start().job.id
    drain(app)
    assert app.workflows.get(run).state == "sleeping"
    assert "after" not in calls.made
    clock.advance(3600)
    drain(app)
    assert state(app, run) == ("succeeded", "done")


def test_a_run_that_was_cancelled_in_the_middle_of_a_step_makes_nothing_more(app: Duly, calls: Calls) -> None:
    @app.task("kid", queue="work")
    def kid() -> None:
        calls("kid")

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.step("slow", lambda: app.workflows.cancel(ctx.run_id, actor="ann"))
        await ctx.enqueue(kid)

    run = w.start().job.id
    drain(app)
    assert app.workflows.get(run).state == "cancelled"
    assert calls == []
    assert app.workflows.tree(run) == []


def test_a_signal_starts_no_run_before_its_time_and_hastens_no_attempt(
    app: Duly, clock: ManualClock, calls: Calls
) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        calls("began")
        raise ConnectionError("no")

    run = w.using(run_in=60).start().job.id
    app.workflows.signal(run, "hello")
    assert drain(app).claimed == 0
    clock.advance(60)
    assert drain(app).retried == 1
    for _ in range(5):
        app.workflows.signal(run, "hello")
        assert drain(app).claimed == 0
    app.workflows.keep()
    assert drain(app).claimed == 0
    assert calls == ["began"]


def test_a_fork_takes_over_nothing_that_was_undone_and_makes_no_child_again(app: Duly, calls: Calls) -> None:
    @app.task("kid", queue="work")
    def kid() -> None:
        calls("kid")

    broken = True

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.start(kid)
        await ctx.using(compensate=lambda _: calls("undo a")).step("a", calls, "a")
        await ctx.step("b", _refuse if broken else int)

    run = w.start().job.id
    drain(app)
    with pytest.raises(InvalidArgument, match=r"step 2 \(a\) before it was undone"):
        app.workflows.fork(run, "b")
    broken = False
    fork = app.workflows.fork(run).id
    drain(app)
    assert state(app, fork)[0] == "succeeded"
    assert calls == ["a", "undo a", "kid", "a"] or calls == ["kid", "a", "undo a", "a"]
    assert next(s.status for s in app.workflows.history(run)) is Status.DONE


def test_the_children_of_a_live_run_are_not_pruned(app: Duly, clock: ManualClock) -> None:
    @app.task("fast", queue="work")
    def fast() -> int:
        return 1

    @app.workflow("slow")
    async def slow(ctx: WorkflowContext) -> int:
        await ctx.sleep(30 * DAY)
        return 2

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[Any]:
        return await ctx.gather(ctx.enqueue(fast), ctx.enqueue(slow))

    run = w.start().job.id
    drain(app)
    clock.advance(20 * DAY)
    prune_expired(app.db)
    clock.advance(10 * DAY)
    drain(app)
    assert state(app, run) == ("succeeded", [1, 2])
    clock.advance(20 * DAY)
    prune_expired(app.db)
    prune_expired(app.db)
    assert app.jobs.find() == []


def test_a_decision_answers_the_question_that_was_asked_and_no_later_one(app: Duly, clock: ManualClock) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[Any]:
        first = await ctx.approve("credit", timeout=HOUR, default=None)
        second = await ctx.approve("credit")
        if not second:
            raise PermanentError("refused")
        return [first, second.by]

    run = w.start().job.id
    drain(app)
    clock.advance(HOUR + MINUTE)
    with pytest.raises(WrongState):
        app.workflows.approve(run, actor="late")
    drain(app)
    app.workflows.approve(run, approved=False, actor="ann")
    drain(app)
    assert state(app, run) == ("failed", "refused")
    app.workflows.replay(run, 2, actor="ann")
    drain(app)
    assert app.workflows.get(run).state == "AWAITING_HUMAN"  # asked anew
    with pytest.raises(InvalidArgument, match="reads as a decision"):
        app.workflows.signal(run, "approve:2:credit", {"approved": True})
    app.workflows.approve(run, actor="bob")
    drain(app)
    assert state(app, run) == ("succeeded", [None, "bob"])


def test_a_run_is_found_by_its_workflow_among_many_others_that_have_not_begun(app: Duly) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None: ...

    @app.workflow("other", queue="elsewhere")
    async def other(ctx: WorkflowContext) -> None: ...

    first = w.start().job.id
    drain(app, queues=["workflows"])
    second = w.start().job.id
    for _ in range(60):
        other.start()
    assert [r.id for r in app.workflows.list("w")] == [second, first]
    assert len(app.workflows.list("other", limit=100)) == 60
    assert "elsewhere" in app.worker().lanes  # each workflow's queue is served


def test_what_is_asked_for_twice_or_cannot_be_carried_is_refused(app: Duly) -> None:
    @app.task("odd", queue="work")
    def odd() -> Any:
        return object()

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[str]:
        seen = []
        one = ctx.step("one", int)
        for attempt in (
            lambda: ctx.gather(one, one),
            lambda: ctx.step("nan", lambda: [float("nan")]),
            lambda: ctx.enqueue(odd),
        ):
            try:
                await attempt()
            except Exception as error:
                seen.append(str(error))
        return seen

    run = w.start().job.id
    drain(app)
    twice, nan, lost = state(app, run)[1]
    assert "the same thing twice" in twice
    assert "not finite" in nan
    assert "UnstorableResult" in lost


def test_a_step_that_waits_for_its_next_attempt_counts_by_the_clock_of_the_database(pg_url: str) -> None:  # T003-j
    app = Duly(pg_url, clock=None)

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.step("s", _broken)

    run = w.start().job.id
    real = app.engine.clock.now
    app.engine.clock.now = lambda: real() - HOUR  # type: ignore[method-assign]
    drain(app)
    [step] = app.workflows.history(run)
    now = app.db.read(app.db.present)
    assert step.due_at is not None
    assert timedelta(seconds=5) < step.due_at - now <= timedelta(seconds=10)
    app.close()


def _broken() -> None:
    raise ConnectionError("no")


def test_why_says_what_a_run_waits_for(app: Duly) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.approve("budget")

    run = w.start().job.id
    drain(app)
    [due] = [check for check in app.why(run) if check.name == "due"]
    assert (due.met, due.detail) == (False, "the run waits: approval budget")
    assert due.remedy == f"Answer it: `duly workflows approve {run} budget`."


@pytest.mark.parametrize("far", [True, False])
def test_a_run_that_slept_through_the_end_of_its_children_is_woken_by_the_sweep(app: Duly, far: bool) -> None:
    @app.task("kid", queue="work")
    def kid() -> int:
        return 1

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> Any:
        return await ctx.gather(ctx.enqueue(kid), ctx.wait_event("never", timeout=DAY, default=2))

    run = w.start().job.id
    drain(app, queues=["workflows"])
    drain(app, queues=["work"])  # its end wakes the run; as if it had not:
    child = app.workflows.tree(run)[0].id
    until = FAR if far else app.db.clock.now() + DAY
    again = text("UPDATE jobs SET due_at = :until, waits_for_children = true WHERE id = :run")
    again = again.bindparams(bindparam("until", until, Instant), run=run)
    app.db.write(lambda c: c.execute(again))
    app.db.write(lambda c: c.execute(text(f"INSERT INTO job_waits (waiter_id, job_id) VALUES ({run}, {child})")))
    assert drain(app).claimed == 0
    app.worker().house.parents()
    assert drain(app).claimed == 1
    assert [s.status for s in app.workflows.history(run)] == [Status.DONE, Status.WAITING]


def test_a_tree_of_any_size_is_cancelled_whole_and_numbers_that_no_run_has_are_not_found(app: Duly) -> None:
    @app.task("kid", queue="work")
    def kid(n: int) -> None: ...

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.gather(*(ctx.enqueue(kid, n) for n in range(1_100)))

    run = w.start().job.id
    drain(app, queues=["workflows"])
    app.workflows.cancel(run, actor="ann")
    assert app.jobs.count(status=[Status_.CANCELLED]) == 1_101
    for number in (2**63, 0, -1, True):
        for ask in (app.workflows.get, app.workflows.cancel, app.workflows.signal, app.jobs.cancel):
            with pytest.raises(NotFound):
                ask(number, "x") if ask == app.workflows.signal else ask(number)  # type: ignore[operator, call-arg]
    assert len(app.jobs.find(below=2**63)) == 50


class Looks(Protocol):
    run_id: int


def test_a_workflow_whose_first_parameter_can_be_no_context_is_refused_where_it_is_defined(app: Duly) -> None:
    kinds: list[Any] = [int, "int", str | None, list[str], dict, Duly, None]
    for kind in kinds:

        async def wrong(n: Any, other: int = 1) -> None: ...

        wrong.__annotations__["n"] = kind
        with pytest.raises(
            InvalidArgument, match=r"workflow wrong: takes no context: its first parameter, n, .*ctx: WorkflowContext"
        ):
            app.workflow("wrong")(wrong)

    rights: list[Any] = [WorkflowContext, "WorkflowContext", WorkflowContext | None, Any, object, Looks, TypeVar("T")]
    for version, kind in enumerate(rights, 1):

        async def right(n: Any) -> int:
            return int(n.run_id)

        right.__annotations__["n"] = kind
        app.workflow("right", version=version)(right)

    @app.workflow("bare")
    async def bare(anything) -> int:  # type: ignore[no-untyped-def]
        return int(anything.run_id)

    run = bare.start().job.id
    drain(app)
    assert state(app, run) == ("succeeded", run)


def test_a_run_made_with_a_whole_number_of_more_than_64_bits_is_refused_at_once(app: Duly) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext, n: int) -> str:
        return str(n)

    @app.workflow("parent")
    async def parent(ctx: WorkflowContext) -> Any:
        return await ctx.enqueue(w, n=20 * 10**18)

    for start in (
        lambda: w.start(20 * 10**18),
        lambda: app.workflows.start("w", {"n": 20 * 10**18}),
        lambda: app.enqueue("ENGINE_RUN", {"workflow": "w", "input": {"n": 20 * 10**18}}),
    ):
        with pytest.raises(InvalidPayload, match="n: is an integer of more than 64 bits"):
            start()
    fits, child = w.start(2**64 - 1).job.id, parent.start().job.id
    drain(app)
    assert state(app, fits) == ("succeeded", "18446744073709551615")
    assert state(app, child)[0] == "failed"
    assert "n: is an integer of more than 64 bits" in state(app, child)[1]


def test_a_run_that_holds_a_number_too_long_from_before_is_left_to_others_and_says_why(app: Duly) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext, n: int) -> str:
        return str(n)

    run = w.start(1).job.id
    input = f'{{"workflow": "w", "input": {{"n": {20 * 10**18}}}}}'
    made = "CAST(:i AS JSONB)" if app.db.name == "postgresql" else ":i"
    app.db.write(lambda c: c.execute(text(f"UPDATE jobs SET input = {made} WHERE id = :id"), {"i": input, "id": run}))
    assert drain(app).unreadable == 1
    found = app.workflows.get(run)
    assert (found.state, found.attempts) == ("queued", 0)
    assert (
        "input: cannot be carried: Integer exceeds 64-bit range. Send long integers as text." in found.error["message"]
    )


def test_a_run_that_answers_with_work_that_nobody_has_done_fails_in_words_and_is_undone(
    app: Duly, calls: Calls
) -> None:
    async def later() -> int:
        return 5

    async def numbers() -> Any:
        yield 1

    @app.workflow("w")
    async def w(ctx: WorkflowContext, kind: str) -> Any:
        await ctx.using(compensate=lambda _: calls(f"undo {kind}")).step("a", lambda: 1)
        return {"coroutine": later, "generator": numbers, "pending": lambda: ctx.step("b", lambda: 2)}[kind]()

    runs = {kind: w.start(kind).job.id for kind in ("coroutine", "generator", "pending")}
    drain(app)
    assert state(app, runs["pending"])[0] == "failed"
    assert "ctx.step('b') (test_workflows.py:" in state(app, runs["pending"])[1]
    for kind, told in (("coroutine", "coroutine"), ("generator", "async_generator")):
        assert state(app, runs[kind])[0] == "failed"
        assert (
            f"workflow w answered with an object of type {told}: work that nobody has done" in state(app, runs[kind])[1]
        )
    assert sorted(calls.made) == ["undo coroutine", "undo generator", "undo pending"]
