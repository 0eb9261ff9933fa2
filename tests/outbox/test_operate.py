"""What operators see and do: how it stands, having messages sent again, putting them aside, and what is forgotten when."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from contract.hands import audit
from duly import Backoff, Duly, InvalidArgument, PermanentError
from duly.kernel.errors import NotFound, WrongState
from duly.outbox.box import Outbox
from duly.outbox.message import Message, Status
from duly.testing import ManualClock
from outbox.hands import Ear, Recorder, change, publish, statuses


def refuse(message: Message) -> None:
    if message.payload == "bad":
        raise PermanentError("no")


@pytest.fixture
def mixed(box: Outbox, recorder: Recorder, clock: ManualClock) -> dict[str, str]:
    """One message of every kind; name → message id."""
    recorder.then = refuse
    idents = {"sent": publish(box, "t:x", "sent"), "bad": publish(box, "t:x", "bad")}
    box.relay().run_once()
    clock.advance(60)
    idents |= {"old": publish(box, "t:x", "old")}
    clock.advance(30)
    idents |= {"line": publish(box, "t:y", "line", ordering_key="o"), "later": publish(box, "t:y", "later", run_in=60)}
    return idents


def test_the_standing_counts_everything_and_knows_the_oldest(
    box: Outbox, mixed: dict[str, str], clock: ManualClock
) -> None:
    s = box.status()
    assert (s.pending, s.due, s.in_flight, s.parked, s.sent) == (3, 2, 0, 1, 1)
    assert (s.oldest_age, s.oldest_at) == (30, clock.now() - timedelta(seconds=30))
    assert [(b.destination, b.pending, b.due, b.parked, b.sent, b.oldest_age) for b in s.destinations] == [
        ("t:x", 1, 1, 1, 1, 30), ("t:y", 2, 1, 0, 0, 0),
    ]  # fmt: skip
    assert not s.drained
    uncounted = box.status(sent=False)
    assert [uncounted.sent, *(b.sent for b in uncounted.destinations)] == [None] * 3


def test_a_destination_to_which_everything_was_sent_is_counted_too(box: Outbox) -> None:
    for n in range(3):
        publish(box, f"t:{n % 2}", n)
    box.relay().run_once()
    assert [(b.destination, b.pending, b.sent) for b in box.status().destinations] == [("t:0", 0, 2), ("t:1", 0, 1)]


def test_what_is_being_sent_is_counted_as_in_flight(box: Outbox, recorder: Recorder) -> None:
    publish(box, "t:x", 1)
    publish(box, "t:x", 2, ordering_key="o")
    seen: list[Any] = []
    recorder.then = lambda message: seen.append(box.status(sent=False))
    box.relay().run_once()
    assert {(s.pending, s.due, s.in_flight) for s in seen} == {(2, 0, 2)}
    assert box.status().drained  # the runbook's row_count = 0


def test_an_empty_outbox_is_drained(box: Outbox) -> None:
    s = box.status()
    assert (s.drained, s.pending, s.sent, s.oldest_at, s.oldest_age, s.destinations) == (True, 0, 0, None, 0, ())


def test_messages_are_found_by_what_they_are(box: Outbox, mixed: dict[str, str]) -> None:
    def found(**filters: Any) -> list[Any]:
        return [m.payload for m in box.find(**filters)]

    assert found() == ["later", "line", "old", "bad", "sent"]
    assert found(status="parked") == ["bad"]
    assert found(status=[Status.SENT, Status.PARKED]) == ["bad", "sent"]
    assert found(destination="t:y") == ["later", "line"]
    assert found(ordering_key="o") == ["line"]
    assert found(message_id=mixed["old"]) == ["old"]
    assert found(tenant="nobody") == []
    assert found(limit=2, below=box.get(mixed["line"]).id) == ["old", "bad"]
    with pytest.raises(InvalidArgument, match="limit"):
        box.find(limit=0)


def test_a_message_of_another_tenant_is_not_there(box: Outbox) -> None:
    ident = publish(box, "t:x", 1, tenant="a")
    assert box.get(ident, tenant="a").payload == 1
    for wrong in (lambda: box.get(ident, tenant="b"), lambda: box.get(12345), lambda: box.get("no-such")):
        with pytest.raises(NotFound, match="no message"):
            wrong()
    with pytest.raises(NotFound):
        box.park(ident, reason="x", tenant="b")


# --- Again ---------------------------------------------------------------------------------------------------------------


def test_a_parked_message_is_sent_again_under_its_id(
    app: Duly, box: Outbox, recorder: Recorder, mixed: dict[str, str], clock: ManualClock
) -> None:
    recorder.then = lambda message: None
    [m] = box.redrive(mixed["bad"], reason="fixed", actor="cli:ada")
    assert (m.status, m.attempts, m.due_at, m.parked_at) == (Status.PENDING, 0, clock.now(), None)
    assert m.error["message"] == "no"  # why it was parked is still told
    box.relay().run_once()
    assert mixed["bad"] in {m.message_id for m in recorder.sent}
    [row] = audit(app, m.id, "OUTBOX_REDRIVEN")
    assert (row["actor"], row["meta"], row["entity"]) == ("cli:ada", {"reason": "fixed"}, "message")


def test_a_sent_message_is_sent_again_only_when_that_is_meant(
    box: Outbox, recorder: Recorder, mixed: dict[str, str]
) -> None:
    with pytest.raises(WrongState, match="sent"):
        box.redrive(mixed["sent"])
    box.redrive(mixed["sent"], force=True)
    box.relay().run_once()
    assert [m.message_id for m in recorder.sent].count(mixed["sent"]) == 2


def test_all_that_are_named_or_none_are_sent_again(app: Duly, box: Outbox, mixed: dict[str, str]) -> None:
    with pytest.raises(WrongState, match="pending"):
        box.redrive(mixed["bad"], mixed["old"])
    with pytest.raises(NotFound):
        box.redrive(mixed["bad"], 12345)
    assert statuses(box)["bad"] == "parked"
    assert audit(app, action="OUTBOX_REDRIVEN") == []


def test_parked_messages_are_sent_again_by_filter(make: Callable[..., Outbox], recorder: Recorder) -> None:
    box = make()
    recorder.then = refuse
    for destination in ("t:x", "t:x", "t:y"):
        publish(box, destination, "bad")
    box.relay().run_once()
    assert box.redrive_where(destination="t:y") == 1
    assert box.redrive_where(limit=1) == 1
    assert box.redrive_where() == 1
    assert box.redrive_where() == 0
    with pytest.raises(WrongState):
        box.redrive_where(status=Status.PENDING)


def test_a_redriven_message_has_all_its_attempts_again(
    make: Callable[..., Outbox], recorder: Recorder, clock: ManualClock
) -> None:
    box = make(max_attempts=2, backoff=Backoff(base=0))

    def fail(message: Message) -> None:
        raise ValueError("no")

    recorder.then = fail
    ident = publish(box, "t:x", 1)
    for _ in range(2):
        for _ in range(3):
            box.relay().run_once()
        assert (box.get(ident).status, box.get(ident).attempts) == (Status.PARKED, 2)
        box.redrive(ident)
    assert len(recorder.tried) == 4


# --- Aside ---------------------------------------------------------------------------------------------------------------


def test_a_pending_message_is_put_aside_with_a_reason(
    app: Duly, box: Outbox, recorder: Recorder, mixed: dict[str, str]
) -> None:
    [m] = box.park(mixed["old"], reason="wrong address", actor="cli:ada")
    assert (m.status, m.error) == (Status.PARKED, {"message": "wrong address", "type": "Parked", "by": "cli:ada"})
    box.relay().run_once()
    assert "old" not in recorder.payloads
    [row] = audit(app, m.id, "OUTBOX_PARKED")
    assert (row["actor"], row["level"], row["meta"]) == ("cli:ada", "warning", {"reason": "wrong address"})
    for wrong in ("old", "sent"):
        with pytest.raises(WrongState):
            box.park(mixed[wrong], reason="x")


def test_a_message_put_aside_while_it_is_being_sent_stays_aside(box: Outbox, recorder: Recorder) -> None:
    ident = publish(box, "t:x", 1)
    recorder.then = lambda message: box.park(ident, reason="stop") and None
    report = box.relay().run_once()
    assert (report.sent, report.lost) == (0, 1)
    assert statuses(box) == {1: "parked"}


# --- Forgotten -----------------------------------------------------------------------------------------------------------


def test_sent_messages_are_kept_for_a_week_and_the_others_for_ever(
    box: Outbox, mixed: dict[str, str], clock: ManualClock, ear: Ear
) -> None:
    clock.advance(timedelta(days=7) - timedelta(seconds=91))
    assert box.prune() == 0
    clock.advance(1)
    assert box.prune() == 1
    assert set(statuses(box)) == {"bad", "old", "line", "later"}
    assert ear.named("outbox_pruned") == [{"count": 1}]


def test_pruning_goes_in_portions_and_takes_a_span_of_the_callers(box: Outbox, clock: ManualClock) -> None:
    with Session(box.db.session_engine) as session, session.begin():
        box.publish_many(session, "t:x", range(2500))
    change(box, "UPDATE outbox SET status = 'sent', sent_at = created_at")
    assert box.prune(timedelta(seconds=1)) == 0
    assert box.prune(0) == 2500
    for wrong in (-1, float("nan")):
        with pytest.raises(InvalidArgument, match="older"):
            box.prune(wrong)


# --- Settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease": 0}, {"poll": "x"}, {"batch": 0}, {"batch": True}, {"concurrency": 0}, {"per_destination": 2.5}, {"keep": -1}, {"grace": float("inf")},
        {"max_payload": 1}, {"notify": "yes"}, {"colour": "blue"}, {"max_attempts": 0}, {"tenant": ""}, {"table": "out box"}, {"schema": "a;b"},
        {"transports": {"T": Recorder()}}, {"transports": {"a:b": Recorder()}}, {"transports": {"t": object()}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)  # fmt: skip
def test_a_setting_that_cannot_be_used_is_refused_by_name(sqlite_url: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Outbox(sqlite_url, **wrong)
    assert refused.value.field.partition("[")[0] in {*wrong, "destination"}


@pytest.mark.parametrize("place", [None, 3, "mysql://x/y", "not a url"], ids=str)
def test_a_place_that_is_no_database_is_refused(place: Any) -> None:
    with pytest.raises(InvalidArgument):
        Outbox(place)


def test_the_clock_of_an_application_is_its_own(app: Duly) -> None:
    with pytest.raises(InvalidArgument, match="clock"):
        Outbox(app, clock=ManualClock())


# --- What the planner does (PostgreSQL) -------------------------------------------------------------------------------------


def test_looks_and_claims_do_not_read_the_backlog(pg_url: str) -> None:
    """Twenty thousand messages wait in one line, as many parked and sent ones lie about: each statement reads a few rows."""
    app = Duly(pg_url)
    box = Outbox(app, transports={"t": Recorder()}, batch=10)
    box.open()
    with Session(app.db.session_engine) as session, session.begin():
        for start in range(0, 20_000, 1000):
            for key in ("line", None):
                box.publish_many(session, "t:x", range(start, start + 1000), ordering_key=key)
            box.publish_many(session, "t:old", range(start, start + 1000))
    change(box, "UPDATE outbox SET status = 'sent', sent_at = now() WHERE destination = 't:old' AND id % 2 = 0")
    change(
        box, "UPDATE outbox SET status = 'parked', parked_at = now() WHERE destination = 't:old' AND status = 'pending'"
    )
    with app.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE outbox"))
        box.relay().run_once()
        connection.execute(text("SELECT pg_stat_reset()"))
    relay = box.relay()
    statements: list[tuple[str, Any]] = []

    from sqlalchemy import event

    @event.listens_for(app.db.engine, "before_cursor_execute")
    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        statements.append((statement, parameters))

    assert relay.run_once().sent == 10
    event.remove(app.db.engine, "before_cursor_execute", note)
    assert len(statements) >= 6
    for statement, parameters in statements:
        with app.db.engine.connect() as connection, connection.begin() as transaction:
            explained = connection.exec_driver_sql(
                f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters
            ).scalar_one()
            transaction.rollback()
        for node in _nodes(explained[0]["Plan"]):
            rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            assert rows < 1000, f"{node['Node Type']} reads {rows} rows in {statement}"
    app.close()


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan] + [node for inner in plan.get("Plans", []) for node in _nodes(inner)]


def test_a_filter_never_redrives_what_an_operator_put_aside(box: Outbox, mixed: dict[str, str]) -> None:  # D5, R002-25
    [aside] = box.park(mixed["old"], reason="wrong address", actor="cli:ada")
    assert box.redrive_where("after the outage", destination="t:x") == 1
    assert (box.get(mixed["bad"]).status, box.get(mixed["old"]).status) == (Status.PENDING, Status.PARKED)
    box.redrive(mixed["old"], reason="right after all")
    assert box.get(aside.message_id).status is Status.PENDING


# --- The gate ------------------------------------------------------------------------------------------------------------


def test_the_gate_holds_relays_too_within_its_scope(
    app: Duly, box: Outbox, recorder: Recorder, ear: Ear
) -> None:  # R003-14, X6
    relay = box.relay()
    app.gate.offline("migration")
    publish(box, "t:x", 1)
    assert (relay.run_once().claimed, app.gate.is_outbox_online) == (0, False)
    app.gate.online(scope="outbox")
    assert (relay.run_once().sent, app.gate.is_online) == (1, False)
    app.gate.online()
    app.gate.offline(scope=["outbox"])
    publish(box, "t:x", 2)
    assert (relay.run_once().claimed, app.gate.is_online) == (0, True)
    app.gate.offline(scope="jobs")
    app.gate.online(scope="jobs")
    assert relay.run_once().claimed == 0, "the outbox keeps what was said about it"
    app.gate.online()
    assert relay.run_once().sent == 1
    assert [e["online"] for e in ear.named("outbox_gate")] == [False, True, False, True]
    with pytest.raises(InvalidArgument, match="scope"):
        app.gate.offline(scope="rounds")


def test_a_gate_that_cannot_be_read_holds_relays(app: Duly, box: Outbox) -> None:  # T003-f
    app.gate.offline()
    change(box, "UPDATE system_state SET value = 'perhaps' WHERE key = 'atlas_online'")
    publish(box, "t:x", 1)
    assert box.relay().run_once().claimed == 0


def test_an_outbox_elsewhere_has_no_gate(app: Duly, recorder: Recorder, tmp_path: Path) -> None:
    box = Outbox(f"sqlite:///{tmp_path / 'shop.db'}", transports={"t": recorder})
    box.create_table()
    app.gate.offline()
    publish(box, "t:x", 1)
    assert box.relay().run_once().sent == 1
    box.close()
