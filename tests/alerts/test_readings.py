"""What rules are judged by, read from real databases: the boundaries, and what is left out of account."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert, text, update

from alerts.hands import NOON, MakeWorld, World
from duly import Duly
from duly.audit.seal import Sealer
from duly.calendars.tables import blackouts
from duly.kernel.recurrence import Cron
from duly.monitoring.alerts import readings
from duly.monitoring.alerts.alert import Reading
from duly.monitoring.alerts.looks import ROWS, SLICES
from duly.outbox.tables import outbox, outbox_holds
from duly.schedules.tables import schedules


def test_an_empty_database_has_nothing_to_say(world: World) -> None:
    facts = world.app.alerts.look()
    assert facts.unknown == {}
    assert {name for name, reading in facts.readings.items() if reading.samples} == set()
    assert set(facts.readings) == {rule.name for rule in world.app.alerts.rules}
    assert world.judge() == []


@pytest.mark.parametrize("table", ["outbox", "schedules", "round_ticks", "groups", "rounds"])
def test_a_room_that_nobody_uses_is_asked_for_once_and_no_further(world: World, table: str) -> None:  # ADR 0032
    engines = {world.app.db.engine, world.app.db._reader}
    asked: list[str] = []

    def told(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if re.search(rf"\b{table}\b", statement):
            asked.append(statement)

    for engine in engines:
        event.listen(engine, "before_cursor_execute", told)
    world.app.alerts.look()
    for engine in engines:
        event.remove(engine, "before_cursor_execute", told)
    schema = "" if world.app.db.is_sqlite else '"public".'
    assert asked == [f"SELECT 1 FROM {schema}{table} LIMIT 1"]


def test_a_look_at_a_database_in_memory_leaves_everybodys_connection_as_it_was() -> None:  # ADR 0032
    app = Duly("sqlite://")
    app.task("X")(lambda: None)
    app.open()
    assert app.alerts.look().unknown == {}
    assert "compiled_cache" not in app.db.write(lambda c: c.get_execution_options())
    app.close()


# --- Idle ----------------------------------------------------------------------------------------------------------------


def test_an_hour_without_a_job_is_fine_and_more_is_not(world: World) -> None:  # R000-20
    world.worker()
    world.app.enqueue("X")
    world.clock.advance(timedelta(hours=1))
    assert world.readings("jobs_idle") == {"": 3600}
    assert ("suspect", "jobs_idle", "") not in world.judge()
    assert ("suspect", "jobs_idle", "") in world.later(microseconds=1)
    assert ("raise", "jobs_idle", "") in world.later(minutes=2)


def test_a_job_that_starts_or_ends_is_a_sign_of_life(world: World) -> None:
    world.app.enqueue("X")
    second = world.app.enqueue("X", queue="other").job.id
    world.clock.advance(timedelta(hours=3))
    assert world.readings("jobs_idle") == {"": 3 * 3600}
    world.ended("failed", world.ago(minutes=70))
    assert world.readings("jobs_idle") == {"": 70 * 60}
    world.ended("succeeded", world.ago(minutes=30), world.ago(hours=2))
    assert world.readings("jobs_idle") == {"": 30 * 60}
    world.change_job(
        second, status="running", lease_token=1, lease_until=world.ago(minutes=-1), started_at=world.ago(minutes=5)
    )
    assert world.readings("jobs_idle") == {"": 5 * 60}
    world.ended("succeeded", world.ago(seconds=3))
    assert world.readings("jobs_idle") == {"": 3}


def test_nothing_is_idle_where_nothing_is_due(world: World) -> None:
    world.ended("succeeded", world.ago(days=2))
    world.app.enqueue("X", run_in=60)
    assert world.readings("jobs_idle") == {}
    world.clock.advance(timedelta(seconds=90))
    assert world.readings("jobs_idle") == {"": 30}  # counted from the moment from which there was something to do


def test_a_run_that_failed_and_is_tried_again_is_a_sign_of_life_too(world: World) -> None:
    world.app.enqueue("X")
    world.clock.advance(timedelta(hours=2))
    world.app.db.write(lambda c: c.execute(text(
        "INSERT INTO attempts (job_id, tenant, attempt, ended_at, outcome) VALUES (1, 'default', 1, :at, 'failed')"
    ), {"at": _stored(world, world.ago(minutes=10))}))  # fmt: skip
    assert world.readings("jobs_idle") == {"": 600}


def _stored(world: World, at: Any) -> Any:
    from duly.kernel.clock import to_micros

    return to_micros(at) if world.app.db.is_sqlite else at


# --- Failures --------------------------------------------------------------------------------------------------------------


def test_ten_percent_of_failures_are_fine_and_more_are_not(world: World) -> None:  # R000-20
    world.ended("succeeded", *[world.ago(minutes=n) for n in range(9)])
    world.ended("failed", world.ago(minutes=1))
    assert world.readings("jobs_failing") == {"": 0.1}
    assert world.judge() == []
    world.ended("failed", world.ago(minutes=2))
    assert set(world.later(seconds=1)) == {("raise", "jobs_failing", ""), ("raise", "queue_failing", "default")}
    assert world.only("jobs_failing").detail == "18.2 % of the 11 jobs that ended lately have failed; 10 % is fine."


def test_nine_samples_are_not_judged(world: World) -> None:  # T000-p
    world.ended("failed", *[world.ago(minutes=n) for n in range(9)])
    assert world.judge() == []
    world.ended("failed", world.ago(minutes=2))
    assert len(world.later(seconds=1)) == 2


def test_the_window_is_half_an_hour(world: World) -> None:  # T000-p
    world.ended("failed", *[world.ago(minutes=30)] * 20)
    assert world.readings("jobs_failing") == {}
    world.ended("failed", *[world.ago(minutes=29, seconds=59)] * 20)
    assert world.readings("jobs_failing") == {"": 1}
    world.clock.advance(timedelta(seconds=1))
    assert world.readings("jobs_failing") == {}


@pytest.mark.parametrize("minutes", [31, 60, 24 * 60])
def test_a_queue_whose_jobs_are_rarer_than_the_window_is_judged_by_jobs_that_failed_in_a_row(
    world: World, minutes: int
) -> None:
    # A4: one alert for as long as it lasts, whatever is in the window at the moment
    said: list[tuple[str, str]] = []
    for status in ("succeeded", "failed", "failed", "failed", "succeeded", "succeeded"):
        world.ended(status, world.clock.now(), queue="hourly")
        for _ in range(6):
            said += [
                (status, event)
                for event, rule, _ in world.judge()
                if rule == "queue_failing" and event in ("raise", "clear")
            ]
            world.clock.advance(timedelta(minutes=minutes / 6))
    assert said == [("failed", "raise"), ("succeeded", "clear")]


def test_threshold_window_and_samples_are_settings(make_world: MakeWorld) -> None:  # T000-p
    world = make_world(alerts_failures=0.5, alerts_window=60, alerts_samples=2)
    world.ended("failed", world.ago(seconds=59), world.ago(seconds=30))
    world.ended("failed", *[world.ago(seconds=61)] * 50)
    world.ended("succeeded", world.ago(seconds=1))
    assert world.readings("jobs_failing") == {"": pytest.approx(2 / 3)}
    assert ("raise", "jobs_failing", "") in world.judge()


def test_queues_are_told_apart_and_cancelled_jobs_are_no_failures(world: World) -> None:
    world.ended("failed", *[world.ago(minutes=1)] * 10, queue="bad")
    world.ended("succeeded", *[world.ago(minutes=1)] * 990, queue="good")
    world.ended("cancelled", *[world.ago(minutes=1)] * 500, queue="good")
    assert world.readings("queue_failing") == {"bad": 1, "good": 0}
    assert world.readings("jobs_failing") == {"": 0.01}
    assert world.judge() == [("raise", "queue_failing", "bad")]


def test_a_busy_window_is_sampled_evenly(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.monitoring.alerts.looks.ROWS", 3)
    world.ended("succeeded", *[world.ago(minutes=m, seconds=30) for m in range(30) for _ in range(10)])
    [sample] = world.app.alerts.look().readings["jobs_failing"].samples
    assert (sample.value, sample.samples) == (0, 30 * 3)
    assert ROWS * SLICES >= 100_000


# --- Backlog, workers ------------------------------------------------------------------------------------------------------


def test_the_oldest_due_job_of_each_queue_is_found_at_any_priority(world: World) -> None:
    world.app.enqueue("X", queue="a", priority=-5)
    world.clock.advance(timedelta(minutes=10))
    world.app.enqueue("X", queue="a", priority=9)
    world.app.enqueue("X", queue="b")
    world.app.enqueue("X", queue="c", run_in=3600)
    assert world.readings("queue_backlog") == {"a": 600, "b": 0}


def test_a_job_that_is_due_and_that_no_worker_has_promoted_counts(world: World) -> None:
    world.app.enqueue("X", queue="a", run_in=60)
    world.clock.advance(timedelta(minutes=11))
    assert world.readings("queue_backlog") == {"a": 600}


def test_age_counts_from_when_a_job_could_run_not_from_when_it_was_planned(world: World) -> None:
    world.app.enqueue("X", queue="replanned", run_at=world.ago(days=3))
    retry = world.app.enqueue("X", queue="retried").job.id
    world.clock.advance(timedelta(minutes=30))
    world.change_job(retry, next_retry_at=world.ago(minutes=2))
    assert world.readings("queue_backlog") == {"replanned": 1800, "retried": 120}


def test_held_work_is_no_backlog_and_nothing_is_idle_meanwhile(world: World) -> None:
    for queue in ("a", "b", "c"):
        world.app.enqueue("X", queue=queue)
    world.clock.advance(timedelta(hours=2))
    world.app.queues.pause("a")
    row = {"name": "night", "scope": "queue:b", "definition": {}, "enabled": True, "version": 1, "holds_from": world.ago(hours=1),
           "created_at": NOON, "updated_at": NOON, "updated_by": "t"}  # fmt: skip
    world.app.db.write(lambda c: c.execute(insert(blackouts).values(**row)))
    assert world.readings("queue_backlog") == {"c": 7200}
    world.app.db.write(lambda c: c.execute(update(blackouts).values(scope="all")))
    assert world.readings("queue_backlog") == world.readings("jobs_idle") == world.readings("queue_unserved") == {}
    world.app.db.write(lambda c: c.execute(update(blackouts).values(holds_from=world.ago(hours=-1))))
    assert set(world.readings("queue_backlog")) == {"b", "c"}
    world.app.gate.offline("deploy")
    assert world.readings("queue_backlog") == world.readings("jobs_idle") == {}


def test_due_work_without_a_worker_is_found(world: World) -> None:
    world.app.enqueue("X", queue="a")
    world.app.enqueue("X", queue="b")
    world.clock.advance(timedelta(seconds=61))
    world.worker("w1", "a")
    assert world.readings("queue_unserved") == {"b": 61}
    world.worker("w1", "a", "b", seconds=61)  # has not been heard of
    assert world.readings("queue_unserved") == {"a": 61, "b": 61}


def test_a_worker_that_went_silent_is_found_and_forgotten_after_an_hour(world: World) -> None:
    world.worker("well", "mail")
    world.worker("hung", seconds=60)
    assert world.judge() == []
    assert world.later(seconds=1) == [("raise", "worker_silent", "hung")]
    world.clock.advance(timedelta(minutes=59))
    world.worker("well", "mail")
    assert world.readings("worker_silent") == {"well": 0}
    world.judge()
    world.worker("well", "mail")
    assert world.later(seconds=30) == [("clear", "worker_silent", "hung")]


def test_a_worker_that_ended_without_goodbye_is_over_once_its_jobs_were_taken_or_its_successor_lives(world: World) -> None:  # issue 16, C4  # fmt: skip
    ident = world.app.enqueue("X").job.id
    world.change_job(ident, status="running", lease_token=1, lease_until=NOON, started_at=NOON, worker="killed")
    world.worker("killed", running=1, seconds=61)
    world.worker("idle", seconds=61)
    assert set(world.readings("worker_silent")) == {"killed", "idle"}
    world.change_job(ident, status="queued", lease_token=None, lease_until=None)
    assert set(world.readings("worker_silent")) == {"idle"}
    world.worker("other", "mail")
    assert set(world.readings("worker_silent")) == {"idle", "other"}
    world.worker("successor")
    assert set(world.readings("worker_silent")) == {"successor", "other"}


def test_an_unready_worker_says_why(world: World) -> None:
    world.worker("w1", state="unready")
    world.judge()
    world.clock.advance(timedelta(minutes=2))
    world.worker("w1", state="unready")
    assert world.judge() == [("raise", "worker_unready", "w1")]


def test_a_lease_that_nobody_rescues_is_found(world: World) -> None:
    ident = world.app.enqueue("X").job.id
    world.change_job(ident, status="running", lease_token=1, lease_until=NOON, started_at=NOON)
    assert world.readings("leases_stuck") == {}
    world.clock.advance(timedelta(seconds=60))
    assert world.readings("leases_stuck") == {"": 60}
    assert ("raise", "leases_stuck", "") in world.later(seconds=1)


# --- Gate, pauses, seals ---------------------------------------------------------------------------------------------------


def test_a_gate_and_a_pause_that_last_too_long_are_told_and_end_at_once(world: World) -> None:
    world.app.gate.offline("deploy")
    world.app.queues.pause("mail", "provider is down", "cli:ada")
    assert world.later(minutes=30) == []
    assert world.later(seconds=1) == [("raise", "gate_offline", "")]
    assert world.later(hours=4) == [("raise", "queue_paused", "mail")]
    assert world.only("queue_paused").detail.endswith("4 h is fine (by cli:ada: provider is down).")
    world.app.gate.online()
    world.app.queues.resume("mail")
    assert set(world.later(seconds=1)) == {("clear", "gate_offline", ""), ("clear", "queue_paused", "mail")}


def test_an_audit_trail_that_is_not_sealed_is_found_while_workers_live(world: World) -> None:
    world.app.gate.offline()
    world.app.gate.online()
    world.clock.advance(timedelta(minutes=11))
    assert world.readings("seals_behind") == {}
    world.worker()
    assert world.readings("seals_behind") == {"": 660}
    Sealer(world.app.db).seal()
    assert world.readings("seals_behind") == {}


# --- Outbox ----------------------------------------------------------------------------------------------------------------


def message(n: int, at: Any, **more: Any) -> dict[str, Any]:
    return {
        "message_id": f"m{n}", "tenant": "default", "destination": "webhook:billing", "payload": {}, "headers": {}, "status": "pending",
        "created_at": at, "due_at": at, "ordering_key": None, **more,
    }  # fmt: skip


def test_parked_and_waiting_messages_are_found_by_destination(world: World) -> None:
    ago = world.ago
    rows = [
        message(1, ago(minutes=50), status="sent"), message(2, ago(minutes=40), status="parked"), message(3, ago(minutes=39), status="parked"),
        # failed again and again: due later, and yet old
        message(4, ago(minutes=20), due_at=ago(minutes=-5)), message(5, ago(minutes=10)),
        message(6, ago(minutes=8), destination="duly:x", ordering_key="k"), message(7, ago(minutes=60), destination="duly:x", ordering_key="k", status="sent"),
    ]  # fmt: skip
    world.app.db.write(lambda c: c.execute(insert(outbox), rows))
    assert world.readings("outbox_parked") == {"webhook:billing": 2}
    assert world.readings("outbox_waiting") == {"webhook:billing": 1200, "duly:x": 480}
    assert set(world.judge()) == {
        ("raise", "outbox_parked", "webhook:billing"),
        ("raise", "outbox_waiting", "webhook:billing"),
    }


def test_a_destination_that_is_held_is_told_while_something_waits_for_it(world: World) -> None:  # R004-19
    ago = world.ago
    rows = [message(1, ago(minutes=9)), message(2, ago(minutes=9), destination="duly:x", ordering_key="k")]
    facts = {"until": ago(minutes=-1), "tries": 9, "problem": "OSError", "relay": "r"}
    held = [
        {"destination": "webhook:billing", "kind": "refused", "since": ago(seconds=5), **facts},
        {"destination": "duly:x", "kind": "away", "since": ago(minutes=5), **facts},
        {"destination": "duly:empty", "kind": "away", "since": ago(minutes=5), **facts},
    ]

    def write(connection: Any) -> None:
        connection.execute(insert(outbox), rows)
        connection.execute(insert(outbox_holds), held)

    world.app.db.write(write)
    assert world.readings("outbox_refused") == {"webhook:billing": 5}
    assert world.readings("outbox_away") == {"duly:x": 300}
    assert set(world.judge()) >= {("raise", "outbox_refused", "webhook:billing"), ("raise", "outbox_away", "duly:x")}


# --- Schedules -------------------------------------------------------------------------------------------------------------


def test_a_schedule_that_nobody_looks_at_is_overdue(world: World) -> None:
    world.app.schedule("hourly", Cron("0 * * * *", tz="UTC"), "X")
    world.app.schedules.sync()
    due = world.app.schedules.get("hourly").next_at
    assert due == NOON + timedelta(hours=1)
    world.clock.advance(timedelta(hours=1, minutes=5))
    assert world.readings("schedules_overdue") == {"": 300}
    assert ("raise", "schedules_overdue", "") not in world.judge()
    assert ("raise", "schedules_overdue", "") in world.later(seconds=1)
    assert "(hourly)" in world.only("schedules_overdue").detail
    world.app.scheduler().tick()
    assert world.readings("schedules_overdue") == {}


def test_missed_occurrences_are_told_for_half_an_hour(world: World) -> None:
    world.app.schedule("hourly", Cron("0 * * * *", tz="UTC"), "X", catch_up="none")
    world.app.schedules.sync()
    world.clock.advance(timedelta(hours=3, minutes=30))
    world.app.scheduler().tick()
    assert world.readings("schedules_missed") == {"": 3}
    assert ("raise", "schedules_missed", "") in world.judge()
    assert "(hourly)" in world.only("schedules_missed").detail
    world.clock.advance(timedelta(minutes=30))
    assert world.readings("schedules_missed") == {}


def test_a_broken_schedule_is_named(world: World) -> None:
    world.app.schedule("hourly", Cron("0 * * * *", tz="UTC"), "X")
    world.app.schedules.sync()
    values = {"error": "no such zone", "error_at": NOON, "failures": 3}
    world.app.db.write(lambda c: c.execute(update(schedules).values(**values)))
    assert world.judge() == [("raise", "schedule_broken", "hourly")]


# --- What cannot be read ---------------------------------------------------------------------------------------------------


def test_a_reading_that_fails_is_unknown_and_the_others_are_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(look: Any) -> Reading:
        look.connection.execute(text("SELECT x FROM nowhere"))
        raise AssertionError

    def clumsy(look: Any) -> Reading:
        raise KeyError("x")

    monkeypatch.setitem(readings.LOOKS, "jobs_idle", broken)
    monkeypatch.setitem(readings.LOOKS, "queue_backlog", clumsy)
    facts = world.app.alerts.look()
    assert set(facts.unknown) == {"jobs_idle", "queue_backlog"}
    assert "nowhere" in facts.unknown["jobs_idle"]


def test_a_statement_that_takes_too_long_is_given_up(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.monitoring.alerts.looks.ONE", 0.05)
    world = make_world()
    if world.app.db.is_sqlite:
        pytest.skip("there is no limit on SQLite")

    def slow(look: Any) -> Reading:
        look.connection.execute(text("SELECT pg_sleep(30)"))
        raise AssertionError

    monkeypatch.setitem(readings.LOOKS, "jobs_idle", slow)
    assert "timeout" in world.app.alerts.look().unknown["jobs_idle"]


# --- The plans -------------------------------------------------------------------------------------------------------------


def test_windows_and_backlogs_are_read_by_index(world: World) -> None:
    """No look walks through jobs or ended jobs: its statements are explained on tables that are large enough to matter."""
    app = world.app
    world.ended("succeeded", *[world.ago(minutes=n % 3000) for n in range(3000)])
    app.enqueue_many("X", [{} for _ in range(2000)], queue="deep")
    app.db.write(lambda c: c.execute(text("ANALYZE")))
    seen: list[tuple[str, Any]] = []

    def watch(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool) -> None:
        if "jobs" in statement and statement.startswith("SELECT"):
            seen.append((statement, parameters))

    engines = {app.db.engine, app.db._reader}
    for engine in engines:
        event.listen(engine, "before_cursor_execute", watch)
    app.alerts.look()
    for engine in engines:
        event.remove(engine, "before_cursor_execute", watch)
    assert len(seen) >= 8

    def explain(connection: Any) -> list[str]:
        out = []
        if not app.db.is_sqlite:
            connection.execute(text("SELECT set_config('enable_seqscan', 'off', true)"))
        for statement, parameters in seen:
            asked = "EXPLAIN QUERY PLAN " if app.db.is_sqlite else "EXPLAIN "
            rows = connection.exec_driver_sql(asked + statement, parameters).all()
            out.append("\n".join(str(row[-1]) for row in rows))
        return out

    for plan in app.db.read(explain):
        assert "Seq Scan on jobs" not in plan, plan
        if app.db.is_sqlite:
            scans = [line for line in plan.splitlines() if line.startswith("SCAN jobs") and "USING" not in line]
            assert scans == [], plan
