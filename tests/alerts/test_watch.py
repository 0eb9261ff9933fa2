"""Judging for good: once, on the record, whoever judges; and taking note."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import IntegrityError

from alerts.hands import MakeWorld, World
from contract.hands import together
from duly import NotFound, WrongState
from duly.audit.tables import audit_log
from duly.monitoring.alerts import readings
from duly.monitoring.alerts.alert import Reading, Sample, State
from duly.monitoring.alerts.tables import alert_watch, alerts


def failing(world: World) -> None:
    """Ten failures of one queue: two alerts at once."""
    world.ended("failed", *[world.ago(minutes=1)] * 10)


def test_a_raised_alert_has_its_row_its_audit_row_and_its_event(world: World) -> None:
    world.app.gate.offline()
    world.clock.advance(timedelta(minutes=31))
    assert world.judge("worker-7") == [("raise", "gate_offline", "")]
    alert = world.only("gate_offline")
    assert (alert.state, alert.value, alert.raised_at, alert.since) == (
        State.RAISED,
        1860,
        world.clock.now(),
        world.clock.now(),
    )
    assert world.audit() == [
        (
            "worker-7",
            "ALERT_RAISED",
            "warning",
            {"rule": "gate_offline", "subject": "", "value": 1860, "threshold": 1800},
        )
    ]
    [event] = world.heard("alert_raised")
    assert event.level == "warning"
    assert event.facts == {
        "rule": "gate_offline",
        "subject": "",
        "alert": alert.id,
        "severity": "warning",
        "detail": alert.detail,
    }


def test_it_is_cleared_by_itself_with_its_audit_row(world: World) -> None:
    failing(world)
    world.judge()
    assert world.later(minutes=31) == []  # fine, and not for long enough
    assert set(world.later(minutes=5)) == {("clear", "jobs_failing", ""), ("clear", "queue_failing", "default")}
    assert [action for _, action, _, _ in world.audit()] == ["ALERT_RAISED"] * 2 + ["ALERT_CLEARED"] * 2
    assert [level for _, _, level, _ in world.audit()] == ["error", "warning", "info", "info"]
    assert len(world.heard("alert_cleared")) == 2
    assert world.raised() == set()
    assert world.history("jobs_failing") == [State.CLEARED]


def test_a_raised_alert_is_not_raised_again_and_a_new_one_has_a_row_of_its_own(world: World) -> None:
    failing(world)
    world.judge()
    for _ in range(5):
        assert world.later(seconds=30) == []
    world.later(minutes=40)
    world.later(minutes=5)
    failing(world)
    assert len(world.later(seconds=1)) == 2
    assert world.history("jobs_failing") == [State.RAISED, State.CLEARED]
    assert len(world.heard("alert_raised")) == 4


def test_a_suspicion_that_passes_leaves_no_row_and_no_trace(world: World) -> None:
    world.worker(state="unready")
    assert world.judge() == [("suspect", "worker_unready", "w1")]
    assert world.open()["worker_unready", "w1"].state is State.PENDING
    world.worker()
    assert world.later(seconds=10) == []
    assert world.app.alerts.find() == []
    assert world.audit() == []
    assert world.heard("alert_raised") == []


def test_a_clock_that_was_ahead_for_a_while_blinds_nobody(world: World) -> None:
    now = world.clock.now()
    world.later(days=30)
    world.clock.set(now)
    failing(world)
    world.app.alerts.duty("a worker")
    assert {rule for rule, _ in world.raised()} == {"jobs_failing", "queue_failing"}


# --- Who judges ------------------------------------------------------------------------------------------------------------


def test_one_of_all_workers_judges_in_an_interval(make_world: MakeWorld) -> None:
    one = make_world()
    two = make_world(one.clock)
    asked = one.app.settings.alerts_every
    assert one.app.alerts.judge("one", asked) is not None
    assert two.app.alerts.judge("two", asked) is None
    one.clock.advance(timedelta(seconds=asked - 1))
    assert two.app.alerts.judge("two", asked) is None
    one.clock.advance(timedelta(seconds=1))
    assert two.app.alerts.judge("two", asked) is not None
    assert one.app.alerts.judge("one", asked) is None
    judged = one.app.alerts.standing().judged
    assert judged is not None
    assert (judged.by, judged.at) == ("two", one.clock.now())


def test_the_duty_of_every_worker_judges(world: World) -> None:
    failing(world)
    worker = world.app.worker(["default"], name="w9")
    [duty] = [duty for duty in worker.house.duties if duty.name == "alerts"]
    assert duty.every == world.app.settings.alerts_every
    duty.act()
    assert {actor for actor, *_ in world.audit()} == {"w9"}


@pytest.mark.parametrize("n", range(3))
def test_two_that_judge_at_once_raise_once(make_world: MakeWorld, n: int) -> None:
    worlds = [make_world(None) for _ in range(4)]
    for k, world in enumerate(worlds):  # clocks of four machines, never quite the same
        world.clock.advance(timedelta(microseconds=k))
    failing(worlds[0])
    out = together(*(lambda w=w: w.app.alerts.judge("me") for w in worlds))
    assert not [error for error in out if isinstance(error, Exception)], out
    moves = [(m.event, m.alert.rule) for moved in out if isinstance(moved, list) for m in moved]
    assert sorted(moves) == [("raise", "jobs_failing"), ("raise", "queue_failing")]
    assert len(worlds[0].audit()) == 2
    assert sum(len(w.heard("alert_raised")) for w in worlds) == 2


def test_two_open_alerts_of_one_subject_are_refused_by_the_database(world: World) -> None:
    failing(world)
    world.judge()

    def twice(c: Any) -> None:
        names = [col.name for col in alerts.c if col.name != "id"]
        row = c.execute(select(*(alerts.c[n] for n in names)).limit(1)).mappings().one()
        c.execute(alerts.insert().values(**row))

    with pytest.raises(IntegrityError):
        world.app.db.write(twice)


def test_facts_that_are_older_than_the_last_judgement_are_refused(make_world: MakeWorld) -> None:
    """A process is stopped between its look and its judgement, and goes on ten minutes later."""
    slow = make_world()
    failing(slow)
    old = slow.app.alerts.look()
    quick = make_world(None)
    quick.clock.advance(timedelta(minutes=40))
    assert quick.judge() == []
    store, rules = slow.app.alerts.store, slow.app.alerts.rules
    assert slow.app.db.write(lambda c: store.apply(c, rules, old, "slow", 0)) is None
    assert slow.app.alerts.find() == []


def test_a_judgement_that_is_rolled_back_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(world)
    store = world.app.alerts.store

    def broken(*args: Any) -> None:
        raise RuntimeError("no disk")

    monkeypatch.setattr(store, "_record", broken)
    with pytest.raises(RuntimeError):
        world.app.alerts.judge("x")
    monkeypatch.undo()
    assert world.app.alerts.find() == []
    assert world.app.alerts.standing().judged is None
    assert world.heard("alert_raised") == []
    assert len(world.judge()) == 2


# --- What cannot be read -----------------------------------------------------------------------------------------------------


def test_an_unknown_fact_changes_nothing_and_is_told_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(world)
    world.judge()

    def broken(look: Any) -> Reading:
        raise PermissionError("no right to read jobs_done")

    monkeypatch.setitem(readings.LOOKS, "jobs_failing", broken)
    for _ in range(20):
        world.later(minutes=10)
    assert ("jobs_failing", "") in world.raised()  # not cleared
    assert ("queue_failing", "default") not in world.raised()
    [event] = world.heard("alert_unknown")
    assert event.facts["rule"] == "jobs_failing"
    assert "no right" in world.app.alerts.standing().unknown["jobs_failing"]
    monkeypatch.undo()
    world.later(minutes=10)
    assert world.later(minutes=10) == [("clear", "jobs_failing", "")]
    assert world.app.alerts.standing().unknown == {}


def test_a_rule_that_is_off_is_not_judged(make_world: MakeWorld) -> None:
    world = make_world(alerts_off="jobs_failing")
    failing(world)
    assert world.judge() == [("raise", "queue_failing", "default")]


# --- Taking note -------------------------------------------------------------------------------------------------------------


def test_taking_note_is_on_the_record_and_changes_nothing_else(world: World) -> None:
    failing(world)
    world.judge()
    ident = world.only("jobs_failing").id
    world.clock.advance(timedelta(minutes=1))
    acked = world.app.alerts.ack(ident, "provider is down", "cli:ada")
    assert (acked.acked_by, acked.acked_at, acked.ack_reason) == ("cli:ada", world.clock.now(), "provider is down")
    assert world.audit()[-1] == (
        "cli:ada", "ALERT_ACKED", "info", {"rule": "jobs_failing", "subject": "", "reason": "provider is down"}
    )  # fmt: skip
    assert [e.facts["alert"] for e in world.heard("alert_acked")] == [ident]
    world.judge()
    assert world.only("jobs_failing") == world.app.alerts.get(ident)
    assert world.app.alerts.get(ident).is_acked
    assert world.only("jobs_failing").state is State.RAISED


def test_a_second_note_keeps_the_first(world: World) -> None:
    failing(world)
    world.judge()
    ident = world.only("jobs_failing").id
    world.app.alerts.ack(ident, "mine", "cli:ada")
    again = world.app.alerts.ack(ident, "no, mine", "cli:bob")
    assert (again.acked_by, again.ack_reason) == ("cli:ada", "mine")
    assert len(world.heard("alert_acked")) == 1


def test_only_a_raised_alert_can_be_noted(world: World) -> None:
    with pytest.raises(NotFound):
        world.app.alerts.ack(99)
    world.worker(state="unready")
    world.judge()
    with pytest.raises(WrongState):
        world.app.alerts.ack(world.only("worker_unready").id)


# --- Cleaning up -------------------------------------------------------------------------------------------------------------


def test_cleared_alerts_are_kept_as_history_and_forgotten_after_their_retention(make_world: MakeWorld) -> None:
    world = make_world(alerts_retention=86_400)
    failing(world)
    world.judge()
    world.later(minutes=40)
    world.later(minutes=10)
    assert world.history("jobs_failing") == [State.CLEARED]
    world.later(hours=23)
    assert world.history("jobs_failing") == [State.CLEARED]
    world.later(hours=2)
    assert world.history("jobs_failing") == []


def test_the_row_of_the_watch_is_made_when_it_is_missing(world: World) -> None:
    world.judge()
    world.app.db.write(lambda c: c.execute(delete(alert_watch)))
    world.later(seconds=1)
    count = world.app.db.read(lambda c: c.execute(select(func.count()).select_from(alert_watch)).scalar_one())
    assert count == 1


def test_many_subjects_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        readings.LOOKS, "queue_paused", lambda look: Reading.of([Sample(f"q{n}", 1e6 + n) for n in range(500)])
    )
    assert len(world.judge()) == 20
    assert world.later(hours=5) == []


def test_judging_writes_no_row_while_nothing_is_wrong(world: World) -> None:
    world.judge()
    before = world.app.db.read(lambda c: c.execute(select(func.count()).select_from(audit_log)).scalar_one())
    world.worker()
    world.later(seconds=30)
    after = world.app.db.read(lambda c: c.execute(select(func.count()).select_from(audit_log)).scalar_one())
    assert (before, after, world.app.alerts.find()) == (0, 0, [])


def test_the_application_can_be_asked_without_having_been_opened(make_world: MakeWorld) -> None:
    from duly import Duly

    app = Duly("sqlite://")
    assert app.alerts.standing().alerts == ()
    app.close()


def test_an_alert_keeps_its_first_instant_through_many_looks(world: World) -> None:
    failing(world)
    world.judge()
    since = world.only("jobs_failing").since
    world.later(minutes=10)
    alert = world.only("jobs_failing")
    assert (alert.since, alert.last_seen) == (since, world.clock.now())


def test_the_severity_follows_the_rules_of_who_judges(world: World) -> None:
    failing(world)
    world.judge()
    world.app.db.write(lambda c: c.execute(update(alerts).values(severity="warning")))
    world.later(seconds=1)
    assert str(world.only("jobs_failing").severity) == "critical"
