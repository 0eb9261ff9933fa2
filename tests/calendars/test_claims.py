"""Claims obey blackouts: held work waits, loses nothing, and hides nobody else's."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from contract.hands import Hand, ids, rows, run_sql
from duly import Duly, Status, Window
from duly.jobs.sql import postgres
from duly.kernel.events import Event
from duly.testing import ManualClock, drain

MICRO = timedelta(microseconds=1)
Send = Callable[..., list[int]]
NIGHT = Window(days=["wed"], start="22:00", end="07:00", tz="Europe/Rome", name="quiet", scope="queue:mail")
BEGINS, ENDS = datetime(2026, 3, 4, 21, tzinfo=UTC), datetime(2026, 3, 5, 6, tzinfo=UTC)
#: Whatever governs the queue, the blackout is asked as well.
GOVERNED = pytest.mark.parametrize("limit", [None, 2], ids=["free", "limited"])


def move_on(app: Duly) -> None:
    """What a worker does when a stretch has ended."""
    store = app.engine.calendars
    app.db.write(lambda c: store.advance(c, store.outdated(c)))


def now_and_for_ever(name: str = "quiet", scope: str = "queue:mail") -> Window:
    return Window(tz="UTC", name=name, scope=scope)


@GOVERNED
def test_wednesday_from_22_to_7_in_rome(
    app: Duly, send: Send, hand: Hand, clock: ManualClock, limit: int | None
) -> None:  # R002-8, T002-d, T002-e
    app.calendars.set(NIGHT)
    if limit:
        app.queues.set("mail", limit=limit)
    jobs = send(2, queue="mail")
    for instant in (BEGINS, BEGINS + timedelta(hours=3), ENDS - MICRO):
        clock.set(instant)
        assert hand.claim("mail", 5) == []
    assert {app.jobs.get(j).attempts for j in jobs} == {0}
    clock.set(ENDS)
    move_on(app)
    assert ids(hand.claim("mail", 5)) == jobs
    clock.set(BEGINS + timedelta(days=7) - MICRO)
    assert ids(hand.claim("mail", 5)) == [] and len(send(1, queue="mail")) == 1
    clock.set(BEGINS + timedelta(days=7))
    assert hand.claim("mail", 5) == []


@pytest.mark.parametrize(
    ("probe", "held"),
    [
        ("2026-01-15T20:59:00", False),
        ("2026-01-15T21:00:00", True),
        ("2026-01-15T23:30:00", True),
        ("2026-01-16T05:59:00", True),
        ("2026-01-16T06:00:00", False),
        # the nights in which the clock is put forward and back
        ("2026-03-28T21:00:00", True),
        ("2026-03-29T04:59:59", True),
        ("2026-03-29T05:00:00", False),
        ("2026-10-25T05:59:59", True),
        ("2026-10-25T06:00:00", False),
    ],
)
def test_both_sides_of_midnight_are_held_and_the_end_is_not(
    app: Duly, send: Send, hand: Hand, clock: ManualClock, probe: str, held: bool
) -> None:  # B057, T002-d
    clock.set(datetime(2026, 1, 15, 12, tzinfo=UTC))
    app.calendars.set(Window(start="22:00", end="07:00", tz="Europe/Rome", name="nights", scope="queue:mail"))
    send(1, queue="mail")
    clock.set(datetime.fromisoformat(probe).replace(tzinfo=UTC))
    move_on(app)
    assert (hand.claim("mail") == []) is held


def test_a_night_does_not_hold_the_day(app: Duly, send: Send, hand: Hand, clock: ManualClock) -> None:  # B057
    app.calendars.set(Window(start="00:00", end="08:00", tz="UTC", name="nights", scope="queue:mail"))
    send(1, queue="mail")
    clock.set(datetime(2026, 3, 3, 7, 59, tzinfo=UTC))
    assert hand.claim("mail") == []
    clock.set(datetime(2026, 3, 3, 20, tzinfo=UTC))
    move_on(app)
    assert len(hand.claim("mail")) == 1


@GOVERNED
def test_a_held_queue_hides_no_other(app: Duly, send: Send, hand: Hand, limit: int | None) -> None:  # B061, T002-e
    if limit:
        app.queues.set("mail", limit=limit)
    app.calendars.set(now_and_for_ever())
    send(100, queue="mail", priority=9)
    [free] = send(1, queue="web")
    found = app.db.once(lambda c: app.engine.store.claim(c, {"mail": 10, "web": 10}, ["X"], 1 << 60, 30.0, "w"))
    assert ids(found) == [free]


@pytest.mark.parametrize(
    ("scope", "held"),
    [
        ("all", {"mail", "web", "mail2"}),
        ("queue:mail", {"mail"}),
        ("queue:ma%", set()),
        ("channel:mail", {"mail"}),
        ("schedule:mail", set()),
    ],
)
@GOVERNED
def test_a_scope_holds_whom_it_names(
    app: Duly, send: Send, hand: Hand, scope: str, held: set[str], limit: int | None
) -> None:  # X6
    app.calendars.set(now_and_for_ever(scope=scope))
    for queue in ("mail", "web", "mail2"):
        if limit:
            app.queues.set(queue, limit=limit)
        send(1, queue=queue)
    assert {q for q in ("mail", "web", "mail2") if not hand.claim(q)} == held


def test_a_blackout_of_everything_holds_starts_and_nothing_else(app: Duly, send: Send, hand: Hand) -> None:  # X6
    [job] = send(1)
    running = hand.one()
    app.calendars.set(now_and_for_ever(scope="all"))
    send(1)  # enqueueing goes on
    assert hand.renew(running) == {job} and hand.succeed(running)  # what runs, runs to its end
    assert (hand.claim(), app.jobs.get(job).status) == ([], Status.SUCCEEDED)


@GOVERNED
def test_the_next_claim_obeys_whatever_a_worker_believes(
    app: Duly, db_url: str, send: Send, clock: ManualClock, limit: int | None
) -> None:  # a stale picture
    if limit:
        app.queues.set("mail", limit=limit)
    send(1, queue="mail")
    elsewhere = Duly(db_url, clock=clock)
    worker = app.worker({"mail": 1})
    worker.house.controls()
    assert worker.house.blackouts.held == frozenset()
    elsewhere.calendars.set(now_and_for_ever())  # the worker has heard of nothing
    assert worker._claim_all()[0] == 0
    elsewhere.calendars.remove("quiet")
    assert rows(app, "SELECT status, attempts FROM jobs") == [("queued", 0)]
    elsewhere.close()


def test_held_work_burns_no_attempt_however_often_it_is_asked_for(
    app: Duly, send: Send, hand: Hand, clock: ManualClock
) -> None:  # T002-b, B067
    [job] = send(1, queue="mail", max_attempts=1)
    app.calendars.set(now_and_for_ever())
    for _ in range(50):
        assert hand.claim("mail") == []
    app.calendars.remove("quiet")
    found = hand.one("mail")
    assert (found.id, found.attempts, app.jobs.get(job).max_attempts) == (job, 1, 1)


def test_after_a_blackout_the_backlog_flows_at_the_limit_and_in_order(
    app: Duly, send: Send, hand: Hand, clock: ManualClock
) -> None:  # B060
    app.queues.set("mail", limit=2)
    app.calendars.set(NIGHT)
    clock.set(BEGINS)
    jobs = [send(1, queue="mail", run_at=BEGINS + timedelta(minutes=12 - n))[0] for n in range(12)]
    jobs.reverse()  # the last was planned first
    done: list[int] = []
    clock.set(ENDS - MICRO)
    assert hand.claim("mail", 10) == []
    clock.set(ENDS)
    move_on(app)
    while len(done) < 12:
        running = hand.claim("mail", 10)
        assert len(running) == 2
        assert hand.claim("mail", 10) == []
        clock.advance(90)
        for job in running:
            assert hand.succeed(job)
        done += ids(running)
    assert done == jobs
    assert {app.jobs.get(j).attempts for j in jobs} == {1}


def test_what_is_due_during_a_blackout_waits_for_its_end_and_keeps_its_place(
    app: Duly, send: Send, clock: ManualClock
) -> None:
    app.calendars.set(NIGHT)
    late = send(1, queue="mail", run_at=BEGINS + timedelta(hours=2))
    early = send(1, queue="mail", run_at=BEGINS + timedelta(hours=1))
    clock.set(BEGINS + timedelta(hours=3))
    assert drain(app, queues=["mail"]).claimed == 0
    clock.set(ENDS)
    order: list[int] = []
    app.listen(lambda e: order.extend(e.facts.get("lags", ())) if e.name == "jobs_claimed" else None)
    assert drain(app, queues=["mail"]).succeeded == 2
    first, second = (app.jobs.get(j) for j in (*early, *late))
    assert first.started_at == second.started_at == ENDS
    assert [lag for _, _, lag in order] == sorted((lag for _, _, lag in order), reverse=True)


def test_two_windows_that_touch_are_one_silence(app: Duly, send: Send, clock: ManualClock) -> None:
    app.calendars.set(NIGHT)
    app.calendars.set(Window(days="thu", start="07:00", end="09:00", tz="Europe/Rome", name="breakfast", scope="all"))
    send(1, queue="mail")
    for instant in (BEGINS, ENDS, ENDS + timedelta(hours=2) - MICRO):
        clock.set(instant)
        assert drain(app, queues=["mail"]).claimed == 0
    clock.set(ENDS + timedelta(hours=2))
    assert drain(app, queues=["mail"]).succeeded == 1


def test_a_row_that_was_written_by_hand_holds_until_somebody_has_looked(
    app: Duly, send: Send, hand: Hand, clock: ManualClock
) -> None:
    app.calendars.set(NIGHT)
    run_sql(app, "UPDATE blackouts SET holds_from = NULL, holds_until = NULL")
    send(1, queue="mail")
    assert hand.claim("mail") == []
    assert drain(app, queues=["mail"]).succeeded == 1  # it looks, finds that it is Monday, and moves the row


def test_one_that_cannot_be_read_holds_what_it_names_and_no_more(app: Duly, send: Send, told: list[Event]) -> None:
    app.calendars.set(NIGHT)
    app.calendars.set(now_and_for_ever("broken"))
    run_sql(
        app, """UPDATE blackouts SET definition = '{"tz": "Mars/Olympus"}', holds_from = NULL WHERE name = 'broken'"""
    )
    send(1, queue="mail")
    send(1, queue="web")
    tally = drain(app, queues=["mail", "web"])
    assert (tally.claimed, tally.succeeded) == (1, 1)
    assert [e.facts["blackout"] for e in told if e.name == "blackout_unreadable"] == ["broken"]
    app.calendars.remove("broken")
    assert drain(app, queues=["mail"]).succeeded == 1


def test_a_window_that_fails_to_be_worked_out_stops_no_other(
    app: Duly, send: Send, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, told: list[Event]
) -> None:
    app.calendars.set(NIGHT)
    app.calendars.set(Window(days="wed", start="22:00", end="07:00", tz="Europe/Berlin", name="bug", scope="queue:web"))
    clock.set(BEGINS)
    send(1, queue="mail")
    send(1, queue="web")
    from duly.calendars import store

    def broken(window: Window | None, *rest: Any) -> Any:
        if window is not None and window.name == "bug":
            raise RuntimeError("a bug")
        return real(window, *rest)

    real = store.hold
    monkeypatch.setattr(store, "hold", broken)
    clock.set(ENDS)
    assert drain(app, queues=["mail", "web"]).succeeded == 1
    assert app.calendars.get("quiet").hold.since == BEGINS + timedelta(days=7)
    assert "bug" in [e.facts["blackout"] for e in told if e.name == "blackout_unreadable"]


# --- Saying so -----------------------------------------------------------------------------------------------------------


def check(app: Duly, job: int) -> Any:
    return next(c for c in app.why(job) if c.name == "blackout")


def test_why_says_which_blackout_holds_a_job_and_until_when(app: Duly, send: Send, clock: ManualClock) -> None:
    app.calendars.set(NIGHT)
    app.calendars.set(Window(days="thu", start="07:00", end="09:00", tz="Europe/Rome", name="breakfast", scope="all"))
    [job] = send(1, queue="mail")
    [other] = send(1, queue="web")
    assert check(app, job).met
    clock.set(BEGINS)
    assert check(app, job).detail == "queue mail is in the blackout quiet until 2026-03-05T08:00:00Z"
    assert check(app, job).remedy == "wait for its end, or duly blackouts disable quiet"
    assert check(app, other).met
    clock.set(ENDS)  # nobody has moved the row, and yet it says what is the case
    assert check(app, job).detail == "queue mail is in the blackout breakfast until 2026-03-05T08:00:00Z"
    app.calendars.set(now_and_for_ever("ever", "all"))
    assert check(app, other).detail == "queue web is in the blackout breakfast, ever, and no end of it is in sight"


def test_a_worker_tells_when_a_blackout_begins_and_ends(
    app: Duly, send: Send, clock: ManualClock, told: list[Event]
) -> None:
    app.calendars.set(NIGHT)
    app.calendars.set(Window(days="wed", start="22:00", end="23:00", tz="Europe/Rome", name="other", scope="queue:web"))
    send(1, queue="mail")
    worker = app.worker({"mail": 1})
    for instant in (BEGINS - MICRO, BEGINS, BEGINS + timedelta(hours=2), ENDS, ENDS + timedelta(hours=1)):
        clock.set(instant)
        worker.house.controls()
    found = [(e.name, e.facts["blackout"], e.facts.get("until")) for e in told if e.name.startswith("blackout_")]
    assert found == [("blackout_began", "quiet", ENDS), ("blackout_ended", "quiet", None)]


def test_a_program_that_works_until_idle_does_not_wait_for_the_end_of_a_blackout(app: Duly, send: Send) -> None:
    send(1, queue="mail")
    assert app.engine.busy(["mail"])
    app.calendars.set(now_and_for_ever())
    assert not app.engine.busy(["mail"])
    send(1, queue="web")
    assert app.engine.busy(["mail", "web"])
    app.calendars.set(now_and_for_ever("all", "all"))
    assert not app.engine.busy(["mail", "web"])


# --- What it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 50, 1000])
def test_a_claim_reads_its_rows_in_order_from_the_index_and_the_blackouts_once(pg: Duly, kept: int) -> None:
    # HOUSE decision 13
    run_sql(
        pg,
        "INSERT INTO jobs (tenant, queue, task, status, priority, run_at, input, max_attempts, created_at) "
        "SELECT 't', 'q' || i % 3, 'X', 'queued', i % 5, now() - i * interval '1 ms', '{}', 4, now() FROM generate_series(1, 20000) i",
    )
    run_sql(
        pg,
        "INSERT INTO blackouts (name, scope, definition, enabled, version, holds_from, created_at, updated_at, updated_by) "
        "SELECT 'b' || i, 'queue:b' || i, '{}', true, 1, now() + interval '1 day', now(), now(), '' FROM generate_series(1, :n) i",
        n=kept,
    )
    with pg.db.auto.connect() as connection:
        connection.execute(text("VACUUM ANALYZE jobs, blackouts"))
    parameters = {"queues": ["q0", "q1", "q9"], "rooms": [10] * 3, "tasks": ["X"], "abilities": [], "token": 1, "lease": 30.0, "worker": "w", "now": None}  # fmt: skip
    with pg.db.engine.connect() as connection:
        cursor: Any = connection.connection.driver_connection.cursor()  # type: ignore[union-attr]
        cursor.execute("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) " + postgres.CLAIM, parameters)
        plan = "\n".join(row[0] for row in cursor.fetchall())
        connection.rollback()
    assert "Index Scan using ix_jobs_ready" in plan and "Seq Scan on jobs" not in plan and "Sort" not in plan, plan
    looked_at = [int(n) for n in re.findall(r"ix_jobs_ready on jobs j \(actual rows=(\d+)", plan)]
    assert looked_at and max(looked_at) <= 10, plan
    [loops] = re.findall(r"on blackouts b \(actual rows=\S+ loops=(\d+)\)", plan)
    assert loops == "1", plan
