"""How runs end: retries at exact instants, one audit row at the end, and an outcome whatever a handler does."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from contract.hands import AT_ONCE, NOON, Hand, actions, attempts, audit, rows, wait_until, working
from duly import INJECT, Backoff, Cancel, Context, Duly, InvalidArgument, Job, PermanentError, Retry, Snooze, Status
from duly.testing import ManualClock, drain

MICRO = timedelta(microseconds=1)


def seconds(clock: ManualClock) -> float:
    return (clock.now() - NOON).total_seconds()


# --- Retries -----------------------------------------------------------------------------------------------------------


def test_three_retries_are_four_runs_at_0_10_30_and_70_seconds(
    app: Duly, clock: ManualClock
) -> None:  # B030, R003-5, R003-6, T003-b
    runs: list[float] = []

    @app.task("FAIL")
    async def fail() -> None:
        runs.append(seconds(clock))
        raise ValueError(f"no {len(runs)}")

    ident = fail.enqueue().job.id
    for retries, due in ((1, 10), (2, 30), (3, 70)):
        drain(app)
        job = app.jobs.get(ident)
        assert (job.status, job.retry_count, job.finished_at) == (Status.QUEUED, retries, None)  # T003-l
        assert job.next_retry_at == job.due_at == NOON + timedelta(seconds=due)
        assert job.error["message"] == f"no {retries}"
        assert job.error["attempted_at"] == clock.now().isoformat()
        clock.set(NOON + timedelta(seconds=due - 0.1))
        assert drain(app).claimed == 0  # not claimable at 9.9 s
        clock.set(NOON + timedelta(seconds=due))
    drain(app)
    job = app.jobs.get(ident)
    assert runs == [0, 10, 30, 70]
    assert (job.status, job.retry_count, job.attempts, job.max_retries) == (Status.FAILED, 3, 4, 3)
    assert (job.finished_at, job.started_at, job.run_at) == (NOON + timedelta(seconds=70),) * 2 + (NOON,)
    [row] = audit(app, ident)
    assert (row["action"], row["level"], row["tenant"], row["actor"]) == (
        "JOB_EXHAUSTED_RETRIES",
        "error",
        "default",
        "drain",
    )
    assert row["meta"] == {"attempts": 4, "reason": "failed"}


@pytest.mark.parametrize(("max_attempts", "executions"), [(1, 1), (2, 2), (4, 4), (5, 5)])
def test_attempts_are_executions_with_the_first(app: Duly, max_attempts: int, executions: int) -> None:  # B030, X2
    runs: list[int] = []

    @app.task("FAIL", max_attempts=max_attempts, backoff=AT_ONCE)
    def fail(me: Context) -> None:
        runs.append(me.job.attempts)
        raise ValueError("no")

    ident = fail.enqueue().job.id  # type: ignore[call-arg]
    tally = drain(app)
    assert runs == list(range(1, executions + 1))
    assert (tally.retried, tally.failed) == (executions - 1, 1)
    assert app.jobs.get(ident).retry_count == executions - 1
    assert actions(app, ident) == ["JOB_EXHAUSTED_RETRIES"]


def test_a_job_may_have_more_or_fewer_attempts_than_its_task(app: Duly) -> None:  # R003-6
    @app.task("FAIL", max_attempts=2, backoff=AT_ONCE)
    def fail() -> None:
        raise ValueError

    idents = [fail.using(max_attempts=n).enqueue().job.id for n in (1, 3)] + [fail.enqueue().job.id]
    drain(app)
    assert [app.jobs.get(i).attempts for i in idents] == [1, 3, 2]


def test_a_success_after_failures_ends_well_and_keeps_their_history(
    app: Duly, clock: ManualClock
) -> None:  # R003-7, T003-l
    @app.task("FLAKY")
    def flaky(me: Context) -> str:
        if me.job.attempts < 3:
            raise ConnectionError(f"attempt {me.job.attempts}")
        return "done"

    ident = flaky.enqueue().job.id  # type: ignore[call-arg]
    for _ in range(3):
        drain(app)
        clock.advance(60)
    job = app.jobs.get(ident)
    assert (job.status, job.output, job.error, job.attempts) == (Status.SUCCEEDED, "done", None, 3)
    assert (job.started_at, job.finished_at) == (NOON + timedelta(seconds=120),) * 2
    history = attempts(app, ident)
    assert [(a.attempt, a.outcome, a.error["message"], a.error["type"]) for a in history] == [
        (1, "failed", "attempt 1", "ConnectionError"), (2, "failed", "attempt 2", "ConnectionError"),
    ]  # fmt: skip
    assert [(a.started_at, a.ended_at) for a in history] == [(NOON + timedelta(seconds=s),) * 2 for s in (0, 60)]
    assert actions(app, ident) == ["FLAKY_COMPLETED"]


def test_a_first_time_success_writes_one_audit_row_and_no_attempt(app: Duly) -> None:  # R003-7
    @app.task("EMAIL_SEND", audit_action="EMAIL_SENT")
    def send() -> dict[str, int]:
        return {"n": 1}

    ident = send.using(tenant="acme").enqueue().job.id
    drain(app)
    [row] = audit(app, ident)
    assert (row["action"], row["level"], row["tenant"], row["entity"], row["at"]) == (
        "EMAIL_SENT",
        "info",
        "acme",
        "job",
        NOON,
    )
    assert attempts(app, ident) == []
    assert app.jobs.get(ident).output == {"n": 1}


def test_successes_are_left_out_of_the_trail_when_the_setting_says_so(db_url: str, clock: ManualClock) -> None:
    app = Duly(db_url, clock=clock, audit_success=False)

    @app.task("X", max_attempts=1)
    def x(ok: bool) -> None:
        if not ok:
            raise ValueError

    good, bad = x.enqueue(True).job.id, x.enqueue(False).job.id
    drain(app)
    assert (actions(app, good), actions(app, bad)) == ([], ["JOB_EXHAUSTED_RETRIES"])
    app.close()


def test_jitter_keeps_a_retry_within_its_bounds(app: Duly, clock: ManualClock) -> None:  # R002-11
    @app.task("FAIL", backoff=Backoff(base=10, jitter=5))
    def fail() -> None:
        raise ValueError

    fail.enqueue_many([{}] * 20)
    drain(app)
    waits = {(j.next_retry_at - NOON).total_seconds() for j in app.jobs.find() if j.next_retry_at}
    assert len(waits) > 1
    assert min(waits) >= 10
    assert max(waits) < 15


# --- What a handler may say --------------------------------------------------------------------------------------------


def test_a_permanent_error_is_not_tried_again(app: Duly) -> None:  # T003-d
    @app.task("X")
    def x() -> None:
        raise PermanentError("no such address")

    ident = x.enqueue().job.id
    drain(app)
    job = app.jobs.get(ident)
    assert (job.status, job.attempts, job.error["message"], job.error["type"]) == (
        Status.FAILED,
        1,
        "no such address",
        "PermanentError",
    )
    assert [(r["action"], r["meta"]) for r in audit(app, ident)] == [("JOB_FAILED_PERMANENT", {"attempts": 1})]
    assert [a.outcome for a in attempts(app, ident)] == ["refused"]


def test_a_retry_waits_as_long_as_the_handler_says(app: Duly, clock: ManualClock) -> None:  # B067
    @app.task("X", max_attempts=2)
    def x() -> None:
        raise Retry("429", after=timedelta(seconds=120))

    ident = x.enqueue().job.id
    drain(app)
    job = app.jobs.get(ident)
    assert (job.next_retry_at, job.attempts, job.error["message"]) == (NOON + timedelta(seconds=120), 1, "429")
    clock.advance(120)
    drain(app)
    assert (app.jobs.get(ident).status, actions(app, ident)) == (Status.FAILED, ["JOB_EXHAUSTED_RETRIES"])


@pytest.mark.parametrize("after", [1e18, float("inf")])
@pytest.mark.parametrize("signal", [Retry, Snooze])
def test_an_absurd_delay_harms_neither_the_job_nor_the_lists_it_stands_in(
    app: Duly, signal: Any, after: float
) -> None:  # B067
    @app.task("X")
    def x() -> None:
        raise signal(after=after)

    ident = x.enqueue().job.id
    drain(app)
    [job] = app.jobs.find()
    assert (job.id, job.status) == (ident, Status.QUEUED)
    assert job.due_at is not None and job.due_at > NOON + timedelta(days=365)


def test_fifty_snoozes_use_no_attempt(app: Duly, clock: ManualClock) -> None:  # B067
    runs: list[int] = []

    @app.task("X", max_attempts=1)
    def x(me: Context) -> str:
        runs.append(me.job.attempts)
        if len(runs) <= 50:
            raise Snooze("later", after=60)
        return "at last"

    ident = x.enqueue().job.id  # type: ignore[call-arg]
    for n in range(50):
        drain(app)
        job = app.jobs.get(ident)
        assert (job.status, job.attempts, job.retry_count, job.next_retry_at) == (Status.QUEUED, 0, 0, None)
        assert job.due_at == NOON + timedelta(seconds=60 * (n + 1))
        clock.advance(60)
    drain(app)
    assert (app.jobs.get(ident).status, runs) == (Status.SUCCEEDED, [1] * 51)
    assert attempts(app, ident) == []


def test_a_snooze_until_an_instant_is_due_at_that_instant(app: Duly, clock: ManualClock) -> None:
    until = NOON + timedelta(hours=3, microseconds=7)

    @app.task("X")
    def x() -> None:
        if clock.now() < until:
            raise Snooze(until=until)

    ident = x.enqueue().job.id
    drain(app)
    assert app.jobs.get(ident).due_at == until
    clock.set(until - MICRO)
    assert drain(app).claimed == 0
    clock.set(until)
    assert drain(app).succeeded == 1


def test_a_handler_may_cancel_its_own_job(app: Duly) -> None:
    @app.task("X")
    def x() -> None:
        raise Cancel("the order was withdrawn")

    ident = x.enqueue().job.id
    drain(app)
    job = app.jobs.get(ident)
    assert (job.status, job.error["message"]) == (Status.CANCELLED, "the order was withdrawn")
    assert actions(app, ident) == ["JOB_CANCELLED"]


def test_a_handler_is_told_its_job_and_may_say_what_it_cost_and_made(app: Duly) -> None:  # R003-10
    seen: list[Job] = []

    @app.task("X")
    def x(me: Context, job: Job) -> None:
        seen.extend([me.job, job])
        me.cost_cents, me.remote_id = 12, "msg-7"

    @app.task("Y", max_attempts=1)
    def y(me: Context) -> None:
        me.cost_cents = 5
        raise ValueError

    made = x.using(tenant="acme", key="k", concurrency_key="c", priority=4, meta={"trace": "t1"}).enqueue().job  # type: ignore[call-arg]
    costly = y.enqueue().job  # type: ignore[call-arg]
    drain(app)
    for job in seen:
        assert (job.id, job.tenant, job.key, job.concurrency_key, job.priority, job.meta) == (
            made.id,
            "acme",
            "k",
            "c",
            4,
            {"trace": "t1"},
        )
        assert (job.attempts, job.max_attempts, job.run_at, job.created_at, job.status) == (
            1,
            4,
            NOON,
            NOON,
            Status.RUNNING,
        )
    done = app.jobs.get(made.id)
    assert (done.cost_cents, done.remote_id) == (12, "msg-7")
    assert app.jobs.get(costly.id).cost_cents == 5


def test_an_input_that_no_longer_fits_its_task_fails_for_good_once_a_deploy_must_be_over(
    app: Duly, another: Callable[[], Duly], clock: ManualClock
) -> None:  # T003-d
    old = another()
    old.task("X")(lambda n: None)
    ident = old.enqueue("X", {"n": "seven"}).job.id

    @app.task("X")
    def x(n: int) -> None: ...

    drain(app)
    assert (app.jobs.get(ident).status, app.jobs.get(ident).attempts) == (Status.QUEUED, 0)
    clock.advance(timedelta(hours=1))
    drain(app)
    job = app.jobs.get(ident)
    assert (job.status, job.attempts, actions(app, ident)) == (Status.FAILED, 1, ["JOB_FAILED_PERMANENT"])
    assert job.error["message"].startswith("n: ")


def test_an_argument_error_inside_a_handler_is_an_ordinary_failure(app: Duly) -> None:
    from duly import InvalidArgument

    @app.task("X", max_attempts=2, backoff=AT_ONCE)
    def x() -> None:
        raise InvalidArgument("a", "is wrong.")

    @app.task("Y", max_attempts=2, backoff=AT_ONCE)
    async def y() -> None:
        x.using(priority="high").enqueue()

    jobs = [x.enqueue().job.id, y.enqueue().job.id]
    drain(app)
    assert [actions(app, i) for i in jobs] == [["JOB_EXHAUSTED_RETRIES"]] * 2


# --- Whatever a handler does -------------------------------------------------------------------------------------------


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Unstorable(Exception):
    def __str__(self) -> str:
        return "a\x00b \ud800 é"


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(
    ("error", "message"),
    [(Rude(), "(the error's text cannot be made)"), (Unstorable(), "a\\0b \\ud800 é"), (ValueError("x" * 10_000), "x" * 4000),
     (KeyError(), "KeyError"), (asyncio.CancelledError(), "CancelledError"), (SystemExit(3), "3"), (TimeoutError("t"), "t")],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_an_exception_of_any_kind_is_an_outcome(app: Duly, kind: str, error: BaseException, message: str) -> None:
    def plain() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    ident = app.task("X", max_attempts=1)(plain if kind == "plain" else coroutine).enqueue().job.id
    assert drain(app).failed == 1
    job = app.jobs.get(ident)
    assert (job.status, job.error["message"], job.error["type"]) == (Status.FAILED, message, type(error).__name__)
    assert attempts(app, ident)[0].error == job.error


@pytest.mark.parametrize(
    ("name", "value"),
    [("cost_cents", "x"), ("cost_cents", 1.5), ("cost_cents", float("nan")), ("cost_cents", True), ("cost_cents", 2**31),
     ("remote_id", 7), ("remote_id", "a\x00"), ("remote_id", "\ud800"), ("audit_action", "\ud800"), ("audit_action", 7)],
)  # fmt: skip
@pytest.mark.parametrize("ends", ["well", "badly"])
def test_what_a_handler_notes_and_nobody_can_store_is_left_out_and_the_run_ends_as_it_did(
    app: Duly, name: str, value: Any, ends: str
) -> None:  # R003-10
    runs: list[int] = []

    @app.task("X", backoff=AT_ONCE, max_attempts=1)
    def x(context: Context = INJECT) -> int:
        runs.append(1)
        context.cost_cents, context.remote_id, context.audit_action = 3, "their-1", "LETTER_SENT"
        setattr(context, name, value)
        if ends == "badly":
            raise ValueError("no")
        return 5

    ident = x.enqueue().job.id
    drain(app)
    job = app.jobs.get(ident)
    assert runs == [1]
    assert job.cost_cents == (0 if name == "cost_cents" else 3)
    assert job.remote_id == (None if name == "remote_id" else "their-1")
    if ends == "badly":
        assert (job.status, job.error["type"]) == (Status.FAILED, "ValueError")
        return
    assert (job.status, job.output, job.error["type"]) == (Status.SUCCEEDED, 5, "UnstorableResult")
    assert f"context.{name}" in job.error["message"]
    assert actions(app, ident) == ["X_COMPLETED" if name == "audit_action" else "LETTER_SENT"]


@pytest.mark.parametrize(
    "result", [object(), "a\x00", {"a": "\ud800"}, "x" * 300_000, 2**80], ids=lambda r: str(r)[:12]
)
def test_a_result_that_cannot_be_stored_ends_its_job_well_and_says_so(app: Duly, result: Any) -> None:
    runs: list[int] = []

    @app.task("X", backoff=AT_ONCE)
    def x() -> Any:
        runs.append(1)
        return result

    ident = x.enqueue().job.id
    drain(app)
    job = app.jobs.get(ident)
    assert (job.status, job.output, job.error["type"], runs) == (Status.SUCCEEDED, {}, "UnstorableResult", [1])
    assert actions(app, ident) == ["X_COMPLETED"]


@pytest.mark.parametrize("result", ["\\u0000", 'a\tb\n"\\', {"z": [1.5, None]}, ["é\U0001f600"], 0, False, ""])
def test_any_other_result_comes_back_as_it_was_returned(app: Duly, result: Any) -> None:
    ident = app.task("X")(lambda: result).enqueue().job.id
    other = app.task("Y", max_attempts=1)(lambda: 1 / 0).enqueue().job.id  # settled beside another kind of end
    drain(app)
    assert app.jobs.get(ident).output == result
    assert app.jobs.get(other).error["message"] == "division by zero"


def test_names_may_hold_any_character_that_a_database_can_store(app: Duly) -> None:
    name = "a \"b\" \\ {c}, 'd' %s :x é NULL"
    ident = (
        app.task(name, queue=name, audit_action=name)(lambda: None)
        .using(tenant=name, key=name, concurrency_key=name)
        .enqueue()
        .job.id
    )
    plain = app.task(name + "2", queue=name)(lambda: None).enqueue().job.id
    drain(app)
    job = app.jobs.get(ident)
    assert (job.status, job.task, job.queue, job.tenant, job.key) == (Status.SUCCEEDED, *[name] * 4)
    assert actions(app, ident) == [name]
    assert actions(app, plain) == [name + "2_COMPLETED"]


def test_ends_of_different_kinds_are_settled_by_one_statement(app: Duly) -> None:
    from duly.jobs.settle import settle
    from duly.kernel.outcome import Outcome
    from duly.kernel.outcome import OutcomeKind as K

    @app.task("A", audit_action='DONE "A"')
    def a(n: int = 0) -> None: ...

    @app.task("B", max_attempts=1)
    def b() -> None: ...

    idents = [a.enqueue().job.id, b.enqueue().job.id, a.enqueue().job.id, a.enqueue().job.id]
    jobs = sorted(Hand(app).claim(n=4), key=lambda j: j.id)
    outcomes = [
        Outcome(K.SUCCEEDED, '{"a":"\\n\\"x\\""}', None, None, None, 7, "r\n1"),
        Outcome(K.FAILED, error={"message": 'no "\n\t\\'}),
        Outcome(K.SUCCEEDED, "{}", {"type": "UnstorableResult"}),
        Outcome(K.REFUSED, error={"message": "gone"}),
    ]
    batch = [settle(j, o, app.engine.policy(j.task)) for j, o in zip(jobs, outcomes, strict=True)]
    assert app.db.write(lambda c: app.engine.store.settle(c, batch, "w")) == set(idents)
    done = [app.jobs.get(i) for i in idents]
    assert [j.status.value for j in done] == ["succeeded", "failed", "succeeded", "failed"]
    assert (done[0].output, done[0].cost_cents, done[0].remote_id) == ({"a": '\n"x"'}, 7, "r\n1")
    assert [j.error for j in done[1:]] == [{"message": 'no "\n\t\\'}, {"type": "UnstorableResult"}, {"message": "gone"}]
    assert [actions(app, i) for i in idents] == [
        ['DONE "A"'],
        ["JOB_EXHAUSTED_RETRIES"],
        ['DONE "A"'],
        ["JOB_FAILED_PERMANENT"],
    ]


async def never() -> None: ...


async def nobody_goes_through() -> AsyncIterator[int]:
    yield 1


@contextmanager
def nobody_enters() -> Iterator[int]:
    yield 1


def hands_on(what: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: what()


def hands_on_later(what: Callable[[], Any]) -> Callable[[], Any]:
    async def later() -> Any:
        return what()

    return later


@pytest.mark.parametrize("what", [never, nobody_goes_through, nobody_enters], ids=lambda f: f.__name__)
@pytest.mark.parametrize("how", [hands_on, hands_on_later], ids=lambda f: f.__name__)
def test_a_handler_that_returns_work_instead_of_doing_it_has_not_succeeded(app: Duly, what: Any, how: Any) -> None:
    ident = app.task("X")(how(what)).enqueue().job.id
    drain(app)
    job = app.jobs.get(ident)
    assert (job.status, job.attempts) == (Status.FAILED, 1), "another attempt would be the same"
    assert job.error["message"].startswith("task X returned an object of type ")
    assert "async def" in job.error["message"]


def test_a_handler_that_waits_for_its_own_session_is_told_so(sqlite_url: str) -> None:
    app = Duly(sqlite_url, busy_timeout=0.2)
    other = app.task("OTHER")(lambda: None)

    @app.task("X", max_attempts=1)
    def x(session: Session = INJECT) -> None:
        session.execute(text("INSERT INTO system_state (key, value, updated_at) VALUES ('x', 'y', 0)"))
        other.enqueue()

    ident = x.enqueue().job.id
    drain(app)
    message = app.jobs.get(ident).error["message"]
    assert message.endswith("It may be the session of this handler: what it does beside that needs session=session.")
    app.close()


def test_a_function_whose_body_nobody_would_run_is_no_task(app: Duly) -> None:
    for fn in (nobody_goes_through, functools.partial(hands_on, never), AT_ONCE):
        with pytest.raises(InvalidArgument, match="task X: is an"):
            app.task("X")(fn)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="task partial: is an object of type partial, not a function"):
        app.task(functools.partial(hands_on, never))


# --- Timeouts ----------------------------------------------------------------------------------------------------------


def test_a_coroutine_beyond_its_timeout_is_interrupted_and_tried_again(app: Duly) -> None:
    interrupted: list[bool] = []

    @app.task("X", timeout=0.05, max_attempts=2, backoff=AT_ONCE)
    async def x() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            interrupted.append(True)
            raise

    ident = x.enqueue().job.id
    tally = drain(app)
    job = app.jobs.get(ident)
    assert (tally.retried, tally.failed, interrupted) == (1, 1, [True, True])
    assert (job.status, job.error["type"]) == (Status.FAILED, "Timeout")
    assert job.error["message"] == "the handler ran longer than its timeout of 0.05 s"
    assert [a.outcome for a in attempts(app, ident)] == ["timed_out"] * 2
    assert audit(app, ident)[0]["meta"] == {"attempts": 2, "reason": "timed_out"}


def test_a_handler_on_a_thread_hears_of_its_timeout_at_a_checkpoint(app: Duly) -> None:
    @app.task("X", timeout=0.05, max_attempts=1)
    def x(me: Context) -> None:
        while True:
            me.checkpoint()
            threading.Event().wait(0.005)

    ident = x.enqueue().job.id  # type: ignore[call-arg]
    drain(app)
    assert (app.jobs.get(ident).error["type"], [a.outcome for a in attempts(app, ident)]) == ("Timeout", ["timed_out"])


def test_a_handler_that_swallows_its_interruption_and_returns_has_succeeded(app: Duly) -> None:
    @app.task("X", timeout=0.05)
    async def x() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved"
        return "never"

    ident = x.enqueue().job.id
    drain(app)
    assert (app.jobs.get(ident).status, app.jobs.get(ident).output) == (Status.SUCCEEDED, "saved")


def test_a_run_within_its_timeout_is_left_alone(app: Duly) -> None:
    @app.task("X", timeout=30)
    async def x() -> str:
        await asyncio.sleep(0.1)
        return "fine"

    ident = x.enqueue().job.id
    drain(app)
    assert app.jobs.get(ident).output == "fine"


# --- In processes ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_handler_in_a_process_ends_in_every_way_that_others_do(sqlite_url: str) -> None:
    from contract.apart import apart

    app = Duly(sqlite_url, poll=0.05)
    task = app.task("APART", run_in="process", timeout=6, max_attempts=1)(apart.fn)
    ends = ["return", "raise", "permanent", "retry", "snooze", "cancel", "exit", "return", "die", "hang"]
    made = {end: task.enqueue(end).job.id for end in ends}
    with working(app.worker({"default": 1}, name="w")):  # one after the other, so that a child is used again
        wait_until(lambda: rows(app, "SELECT count(*) FROM jobs WHERE attempts = 0 AND due_at IS NULL") == [(0,)])
        wait_until(lambda: rows(app, "SELECT count(*) FROM jobs WHERE status = 'running'") == [(0,)])
    found = {end: app.jobs.get(ident) for end, ident in made.items()}
    assert {end: (j.status.value, (j.error or {}).get("type")) for end, j in found.items()} == {
        "return": ("succeeded", None),
        "raise": ("failed", "ZeroDivisionError"),
        "permanent": ("failed", "PermanentError"),
        "retry": ("failed", "Retry"),
        "snooze": ("queued", None),
        "cancel": ("cancelled", "Cancel"),
        "exit": ("failed", "SystemExit"),
        "die": ("failed", "ChildDied"),
        "hang": ("failed", "Timeout"),
    }
    assert found["return"].output == {"pid": True}
    assert (found["snooze"].attempts, found["snooze"].due_at is not None) == (0, True)
    assert actions(app, made["permanent"]) == ["JOB_FAILED_PERMANENT"]
    app.close()
