"""What a relay does: nothing is forgotten, nothing is overtaken, one failure holds up nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.orm import Session

from contract.hands import Later, audit, together, wait_until
from duly import Backoff, Duly, InvalidArgument, PermanentError, Retry
from duly.outbox.box import Outbox
from duly.outbox.look import Look
from duly.outbox.message import Message, Status
from duly.outbox.plan import release
from duly.outbox.relay import Relay, Report
from duly.testing import ManualClock
from outbox.hands import AT_ONCE, Ear, Hold, Recorder, change, pending, publish, statuses
from servers import PostgresServer


def failing(*payloads: Any, error: Callable[[], BaseException] = lambda: ValueError("no")) -> Callable[[Message], None]:
    """What a transport does about messages: raises for some."""

    def then(message: Message) -> None:
        if message.payload in payloads:
            raise error()

    return then


# --- Nothing is forgotten ------------------------------------------------------------------------------------------------


def test_a_message_that_commits_late_is_sent_although_its_id_is_smaller(pg_url: str) -> None:  # B043
    app, recorder = Duly(pg_url), Recorder()
    box = Outbox(app, transports={"t": recorder})
    box.open()
    with (
        Session(app.db.session_engine) as tx1,
        Session(app.db.session_engine) as tx2,
        Session(app.db.session_engine) as tx3,
    ):
        box.publish(tx3, "t:x", "rolled back, leaves a gap")
        box.publish(tx1, "t:x", "smaller id, commits later")
        box.publish(tx2, "t:x", "larger id, commits first")
        tx3.rollback()
        tx2.commit()
        relay = box.relay()
        relay.run_once()
        assert recorder.payloads == ["larger id, commits first"]
        tx1.commit()
        relay.run_once()
    assert recorder.payloads == ["larger id, commits first", "smaller id, commits later"]
    assert recorder.sent[0].id > recorder.sent[1].id
    assert box.status().pending == 0
    app.close()


def test_poison_does_not_keep_good_messages_back(
    make: Callable[..., Outbox], recorder: Recorder, clock: ManualClock
) -> None:  # B045
    box = make(batch=10, max_attempts=5, backoff=Backoff(base=1, factor=2, max=300))
    recorder.then = failing(*range(10))
    for n in range(15):
        publish(box, "t:x", n)
    relay = box.relay()
    first = relay.run_once()
    assert (first.claimed, first.sent, first.failed) == (10, 0, 10)
    clock.advance(1)  # the poison is due again, and comes behind what has not been tried
    second = relay.run_once()
    assert (second.claimed, second.sent, second.failed) == (10, 5, 5)
    assert sorted(recorder.payloads) == [10, 11, 12, 13, 14]  # side by side: loose messages have no order
    relay.run_once()
    for _ in range(5):
        clock.advance(300)
        relay.run_once()
    assert statuses(box) == {**dict.fromkeys(range(10), "parked"), **dict.fromkeys(range(10, 15), "sent")}
    tries = [sum(m.payload == n for m in recorder.tried) for n in range(10)]
    assert tries == [5] * 10
    parked = box.find(status=Status.PARKED)
    assert len(parked) == 10  # visible …
    assert parked[0].error["message"] == "no"
    recorder.then = lambda message: None
    assert box.redrive_where(reason="the other side is well again") == 10  # … and replayable
    relay.run_once()
    assert set(statuses(box).values()) == {"sent"}
    assert {m.message_id for m in parked} < {m.message_id for m in recorder.sent}


def test_a_relay_with_nothing_to_do_writes_nothing(box: Outbox, clock: ManualClock) -> None:
    publish(box, "t:x", 1, run_in=60)
    writes: list[Any] = []
    real = box.db.write
    box.db.write = lambda fn: writes.append(fn) or real(fn)  # type: ignore[method-assign, func-returns-value]
    assert box.relay().run_once() == Report()
    assert len(writes) == 1  # the look for lapsed leases


def test_a_relay_without_transports_is_refused(app: Duly) -> None:
    with pytest.raises(InvalidArgument, match="transports"):
        Outbox(app).relay().run_once()


def test_messages_for_other_relays_are_left_alone_and_told_once(app: Duly, box: Outbox, ear: Ear) -> None:
    publish(Outbox(app), "other:x", "other")
    publish(box, "t:x", "mine")
    relay = box.relay()
    assert relay.run_once().sent == 1
    assert relay.run_once().claimed == 0
    assert pending(box) == ["other"]
    assert [e["destination"] for e in ear.named("outbox_stranded")] == ["other:x"]


# --- Failures ------------------------------------------------------------------------------------------------------------


def test_a_failure_is_stored_told_and_tried_again_later(
    box: Outbox, recorder: Recorder, clock: ManualClock, ear: Ear
) -> None:
    recorder.then = failing(1)
    ident = publish(box, "t:x", 1)
    relay = box.relay()
    assert relay.run_once().failed == 1
    m = box.get(ident)
    assert (m.status, m.attempts, m.error["type"], m.error["message"]) == (Status.PENDING, 1, "ValueError", "no")
    assert m.due_at is not None
    assert 1 <= (m.due_at - clock.now()).total_seconds() <= 1.5
    [told] = ear.named("outbox_failed")
    assert (told["message"], told["destination"], told["attempt"], told["error"]) == (m.id, "t:x", 1, "ValueError")
    assert relay.run_once().claimed == 0
    recorder.then = lambda message: None
    clock.advance(2)
    assert relay.run_once().sent == 1
    assert box.get(ident).attempts == 2
    assert recorder.sent[0].message_id == ident


def test_what_a_transport_says_stays_in_the_row_and_out_of_events(
    box: Outbox, recorder: Recorder, clock: ManualClock, ear: Ear
) -> None:  # R004-6
    """Its text may quote an address, or a token."""
    text = "cannot mail ada@example.org with token=s3cret"

    def then(message: Message) -> None:
        raise ValueError(text)

    recorder.then = then
    ident = publish(box, "t:x", 1)
    for _ in range(box.policy.max_attempts):
        box.relay().run_once()
        clock.advance(600)
    assert box.get(ident).status is Status.PARKED
    assert box.get(ident).error["message"] == text
    assert [e.facts["error"] for e in ear.events if e.name in ("outbox_failed", "outbox_parked")] == ["ValueError"] * 5
    assert not [e for e in ear.events if "s3cret" in repr(e) or "ada@" in repr(e)]


def test_a_permanent_failure_parks_at_once_with_an_alert_and_a_row_in_the_trail(
    app: Duly, box: Outbox, recorder: Recorder, ear: Ear
) -> None:
    recorder.then = failing(1, error=lambda: PermanentError("no such endpoint"))
    ident = publish(box, "t:x", 1, tenant="acme")
    assert box.relay(name="me").run_once().parked == 1
    m = box.get(ident)
    assert (m.status, m.attempts, m.error["message"]) == (Status.PARKED, 1, "no such endpoint")
    [event] = [e for e in ear.events if e.name == "outbox_parked"]
    assert event.level == "error"
    assert dict(event.facts) == {
        "message": m.id, "destination": "t:x", "attempts": 1, "reason": "refused", "error": "PermanentError",
    }  # fmt: skip
    [row] = audit(app, m.id, "OUTBOX_PARKED")
    assert (row["actor"], row["entity"], row["level"], row["tenant"]) == ("me", "message", "error", "acme")
    assert row["meta"] == {"reason": "refused", "attempts": 1, "destination": "t:x"}


def test_the_other_side_may_say_when_to_come_back(box: Outbox, recorder: Recorder, clock: ManualClock) -> None:
    recorder.then = failing(1, error=lambda: Retry("later", after=90))
    publish(box, "t:x", 1)
    relay = box.relay()
    relay.run_once()
    clock.advance(89)
    assert relay.run_once().claimed == 0
    clock.advance(1)
    assert relay.run_once().claimed == 1


def test_a_transport_that_ends_its_thread_harms_one_attempt_only(
    box: Outbox, recorder: Recorder, clock: ManualClock
) -> None:
    recorder.then = failing(1, error=lambda: SystemExit(3))
    publish(box, "t:x", 1)
    publish(box, "t:x", 2)
    relay = box.relay()
    assert relay.run_once().failed == 1
    clock.advance(2)  # nobody can tell yet whether it is the message or the destination
    relay.run_once()
    assert recorder.payloads == [2]


def test_events_hold_no_payload_and_no_headers(box: Outbox, recorder: Recorder, ear: Ear) -> None:  # HOUSE decision 11
    recorder.then = failing("secret-a", error=lambda: PermanentError("no"))
    publish(box, "t:x", "secret-a", headers={"h": "secret-b"})
    publish(box, "t:x", "secret-c", headers={"h": "secret-d"})
    box.relay().run_once()
    assert ear.named("outbox_sent")
    assert "secret" not in repr(ear.events)


# --- Order ---------------------------------------------------------------------------------------------------------------


def test_a_line_is_sent_in_order_and_in_one_go(box: Outbox, recorder: Recorder) -> None:  # T004-r
    for n in range(8):
        publish(box, "t:x", n, ordering_key="o")
    assert box.relay().run_once().sent == 8
    assert recorder.payloads == list(range(8))


def test_a_failure_ends_the_line_and_costs_those_behind_it_nothing(
    make: Callable[..., Outbox], recorder: Recorder, clock: ManualClock
) -> None:
    box = make(backoff=Backoff(base=1))
    recorder.then = failing(1)
    for n in range(4):
        publish(box, "t:x", n, ordering_key="o")
    relay = box.relay()
    report = relay.run_once()
    assert (report.sent, report.failed, report.released) == (1, 1, 2)
    assert {m.payload: m.attempts for m in box.find()} == {0: 1, 1: 1, 2: 0, 3: 0}
    assert relay.run_once().claimed == 0  # the head waits, so the line does
    recorder.then = lambda message: None
    clock.advance(1)
    relay.run_once()
    assert recorder.payloads == [0, 1, 2, 3]


def test_other_lines_and_loose_messages_are_not_held_up(box: Outbox, recorder: Recorder) -> None:
    recorder.then = failing("a1")
    for payload, key in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("loose", None)):
        publish(box, "t:x", payload, ordering_key=key)
    publish(box, "t:y", "elsewhere", ordering_key="a")
    box.relay().run_once()
    assert sorted(recorder.payloads) == ["b1", "b2", "elsewhere", "loose"]
    assert pending(box) == ["a1", "a2"]


def test_a_line_that_is_being_sent_is_nobody_elses(box: Outbox, recorder: Recorder) -> None:  # T004-r
    hold = recorder.then = Hold()
    for n in range(3):
        publish(box, "t:x", n, ordering_key="o")
    relay = box.relay()
    thread = threading.Thread(target=relay.run_once)
    thread.start()
    hold.wait()
    publish(box, "t:x", 3, ordering_key="o")
    assert box.relay().run_once().claimed == 0
    hold.release()
    thread.join(30)
    assert box.relay().run_once().sent == 1
    assert recorder.payloads == [0, 1, 2, 3]


@pytest.mark.parametrize(("on_parked", "sent"), [("hold", [0]), ("skip", [0, 2, 3])])
def test_a_parked_message_holds_its_line_unless_told_otherwise(
    make: Callable[..., Outbox], recorder: Recorder, on_parked: str, sent: list[int]
) -> None:
    box = make(on_parked=on_parked)
    recorder.then = failing(1, error=lambda: PermanentError("no"))
    for n in range(4):
        publish(box, "t:x", n, ordering_key="o")
    relay = box.relay()
    for _ in range(3):
        relay.run_once()
    assert recorder.payloads == sent
    recorder.then = lambda message: None
    box.redrive(box.find(status=Status.PARKED)[0].id)
    for _ in range(2):
        relay.run_once()
    assert sorted(recorder.payloads) == [0, 1, 2, 3]
    assert recorder.payloads == ([0, 1, 2, 3] if on_parked == "hold" else [0, 2, 3, 1])


def test_a_planned_head_holds_its_line(box: Outbox, recorder: Recorder, clock: ManualClock) -> None:
    publish(box, "t:x", 1, ordering_key="o", run_in=60)
    publish(box, "t:x", 2, ordering_key="o")
    relay = box.relay()
    assert relay.run_once().claimed == 0
    clock.advance(60)
    relay.run_once()
    assert recorder.payloads == [1, 2]


def test_a_line_put_aside_in_the_middle_ends_there(box: Outbox, recorder: Recorder) -> None:
    idents = [publish(box, "t:x", n, ordering_key="o") for n in range(4)]
    box.park(idents[2], reason="wrong")
    box.relay().run_once()
    assert recorder.payloads == [0, 1]
    assert statuses(box) == {0: "sent", 1: "sent", 2: "parked", 3: "pending"}


def test_what_was_a_head_at_the_look_and_is_none_any_more_is_not_taken(
    make: Callable[..., Outbox], recorder: Recorder
) -> None:
    """Between the look and the claim an operator has the message before it sent again."""
    box = make(batch=1)
    first, _ = [publish(box, "t:x", n, ordering_key="o") for n in range(2)]
    relay = box.relay()
    relay.run_once()
    look = box.db.read(relay._looker.look)
    assert [box.get(ident).payload for ident in look.heads["t:x"]] == [1]
    box.redrive(first, force=True)
    assert box.db.write(lambda c: relay._take(c, look, None)) == []
    for _ in range(2):
        relay.run_once()
    assert recorder.payloads == [0, 0, 1]


def test_an_older_message_that_is_redriven_waits_for_what_is_in_flight_of_its_line(
    make: Callable[..., Outbox], recorder: Recorder
) -> None:
    box = make()
    first = publish(box, "t:x", 1, ordering_key="o")
    box.relay().run_once()
    publish(box, "t:x", 2, ordering_key="o")
    publish(box, "t:y", 3, ordering_key="o")  # another line
    hold = recorder.then = Hold()
    slow = threading.Thread(target=box.relay(name="slow").run_once)
    slow.start()
    hold.wait()
    hold.wait()
    recorder.then = lambda message: None
    box.redrive(first, force=True)
    publish(box, "t:x", 4, ordering_key="p")
    other = box.relay(name="other")
    assert other.run_once().sent == 1
    assert recorder.payloads == [1, 4]
    assert other.db.read(other._looker.look).empty, "a line that is out is not looked at again and again"
    hold.release()
    slow.join(30)
    other.run_once()
    assert recorder.payloads[-1] == 1


def test_a_redrive_and_a_claim_of_its_line_at_the_same_moment_follow_each_other(pg_url: str) -> None:
    """Whichever comes first, the other one sees what it did: the line is never out at two relays."""
    app = Duly(pg_url)
    box = Outbox(app, transports={"t": Recorder()}, batch=1)
    box.open()
    first, second = [publish(box, "t:x", n, ordering_key="o") for n in (1, 2)]
    one, other = box.relay(), box.relay()
    one.run_once()
    look = box.db.read(one._looker.look)
    with app.db.engine.begin() as connection:  # a claim that has not committed
        assert [m.payload for m in one._take(connection, look, None)] == [2]
        redriving = Later(lambda: box.redrive(first, force=True))
        wait_until(lambda: redriving.is_waiting(app))
    redriving.result()
    assert other._claim()[0] == []
    app.db.write(lambda c: one.store.settle(c, [release(box.get(second))]))
    assert other.run_once().sent == 1  # the first again
    with app.db.engine.begin() as connection:  # a redrive that has not committed
        box.store.redrive(connection, [box.get(first).id])
        look = Look(heads={"t:x": [box.get(second).id]}, rooms={"t:x": 1})
        assert app.db.write(lambda c: other._take(c, look, None)) == []
    app.close()


def test_with_more_keys_than_are_looked_at_every_key_has_its_turn(
    make: Callable[..., Outbox], recorder: Recorder
) -> None:
    """Hundreds of lines whose heads are parked stand before those that can go."""
    box = make(batch=50)
    with Session(box.db.session_engine) as session, session.begin():
        for n in range(450):
            box.publish(session, "t:x", n, ordering_key=f"a{n:03}")
        for n in range(120):
            box.publish(session, "t:x", f"good{n}", ordering_key=f"b{n:03}")
    change(box, "UPDATE outbox SET status = 'parked' WHERE ordering_key < 'b'")
    relay = box.relay()
    for _ in range(8):
        relay.run_once()
    assert sorted(recorder.payloads) == sorted(f"good{n}" for n in range(120))


def test_with_more_destinations_than_are_looked_at_every_one_has_its_turn(
    make: Callable[..., Outbox], recorder: Recorder
) -> None:
    box = make()
    with Session(box.db.session_engine) as session, session.begin():
        for n in range(450):
            box.publish(session, f"t:{n:03}", n, run_in=3600 if n < 400 else None)
    relay = box.relay()
    for _ in range(4):
        relay.run_once()
    assert sorted(recorder.payloads) == list(range(400, 450))


def test_lines_and_loose_messages_share_the_batch(make: Callable[..., Outbox], recorder: Recorder) -> None:
    box = make(batch=10)
    with Session(box.db.session_engine) as session, session.begin():
        box.publish_many(session, "t:x", ["line"] * 40, ordering_key="o")
        box.publish_many(session, "t:x", ["loose"] * 40)
    box.relay().run_once()
    assert len(recorder.sent) == 10
    assert recorder.payloads.count("line") == 5


# --- Leases ---------------------------------------------------------------------------------------------------------------


def test_a_lapsed_lease_is_taken_over_and_the_late_relay_writes_nothing(
    app: Duly, box: Outbox, recorder: Recorder, clock: ManualClock, ear: Ear
) -> None:  # T004-r
    hold = recorder.then = Hold()
    ident = publish(box, "t:x", 1)
    reports: list[Report] = []
    slow = threading.Thread(target=lambda: reports.append(box.relay(name="slow").run_once()))
    slow.start()
    hold.wait()
    clock.advance(61)
    recorder.then = lambda message: None
    quick = box.relay(name="quick").run_once()
    assert (quick.rescued, quick.sent) == (1, 1)
    hold.release()
    slow.join(30)
    assert (reports[0].sent, reports[0].lost) == (0, 1)
    assert [e["messages"] for e in ear.named("outbox_lease_lost")] == [[box.get(ident).id]]
    assert [e["count"] for e in ear.named("outbox_rescued")] == [1]
    assert (box.get(ident).status, box.get(ident).relay, box.get(ident).attempts) == (Status.SENT, "quick", 1)
    assert {m.message_id for m in recorder.sent} == {ident}


def test_a_slow_send_keeps_its_lease(db_url: str) -> None:
    app, hold = Duly(db_url), Hold()
    box = Outbox(app, transports={"t": Recorder(hold)}, lease=0.6)
    publish(box, "t:x", 1)
    with running(box.relay()):
        hold.wait()
        first = box.find()[0].lease_until
        wait_until(lambda: box.find()[0].lease_until != first)
        assert box.relay().run_once() == Report()
        hold.release()
        wait_until(lambda: statuses(box) == {1: "sent"})
    assert box.find()[0].attempts == 1  # it was never taken over
    app.close()


def test_a_cycle_renews_what_is_being_sent(db_url: str) -> None:
    app, hold = Duly(db_url), Hold()
    box = Outbox(app, transports={"t": Recorder(hold)}, lease=0.6)
    publish(box, "t:x", 1)
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(box.relay().run_once()))
    thread.start()
    hold.wait()
    first = box.find()[0].lease_until
    wait_until(lambda: box.find()[0].lease_until != first)
    hold.release()
    thread.join(30)
    assert reports[0].sent == 1
    app.close()


def test_a_line_whose_lease_is_lost_is_not_continued(box: Outbox, recorder: Recorder, clock: ManualClock) -> None:
    """The relay is told by its renewal that the line is another's now, and sends no more of it."""
    hold = recorder.then = Hold()
    for n in range(3):
        publish(box, "t:x", n, ordering_key="o")
    relay = box.relay(name="slow")
    reports: list[Report] = []
    slow = threading.Thread(target=lambda: reports.append(relay.run_once()))
    slow.start()
    hold.wait()
    change(box, "UPDATE outbox SET lease_token = lease_token + 1")
    relay._renew()
    hold.release()
    slow.join(30)
    assert recorder.payloads == [0]
    assert reports[0].lost == 3


def test_a_message_that_kills_its_relays_is_parked_and_told(
    app: Duly, make: Callable[..., Outbox], ear: Ear, clock: ManualClock
) -> None:
    box = make(max_attempts=2)
    ident = publish(box, "t:x", 1)
    for _ in range(4):  # relays that take it and are never heard of again
        box.relay(name="dead")._claim()
        clock.advance(61)
        box.relay(name="other")._rescue()
    m = box.get(ident)
    assert (m.status, m.attempts, m.error["type"]) == (Status.PARKED, 2, "Lost")
    assert [e["reason"] for e in ear.named("outbox_parked")] == ["lost"]
    assert [row["meta"]["reason"] for row in audit(app, m.id, "OUTBOX_PARKED")] == ["lost"]


def test_many_relays_send_every_message_once(make: Callable[..., Outbox], recorder: Recorder) -> None:  # T004-r
    box = make(batch=7)
    with Session(box.db.session_engine) as session, session.begin():
        box.publish_many(session, "t:x", range(200))
        for key in range(20):
            box.publish_many(session, "t:x", [f"{key}.{n}" for n in range(10)], ordering_key=str(key))

    def work() -> int:
        relay, sent = box.relay(), 0
        while not box.status(sent=False).drained:
            sent += relay.run_once().sent
        return sent

    done = together(*[work] * 4)
    assert not [d for d in done if isinstance(d, Exception)]
    assert sum(done) == len(recorder.sent) == 400  # type: ignore[arg-type]
    assert len({m.message_id for m in recorder.sent}) == 400
    for key in range(20):
        assert [p for p in recorder.payloads if str(p).startswith(f"{key}.")] == [f"{key}.{n}" for n in range(10)]


# --- Running -------------------------------------------------------------------------------------------------------------


@contextmanager
def running(*relays: Relay) -> Iterator[None]:
    """Relays at work on threads of their own, stopped in good order at the end."""
    threads = [threading.Thread(target=relay.run, daemon=True, name=relay.name) for relay in relays]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for relay in relays:
            relay.stop()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a relay did not stop"


@pytest.fixture
def live(db_url: str, recorder: Recorder) -> Iterator[Callable[..., Outbox]]:
    """Outboxes on the system's clock."""
    app = Duly(db_url)

    def make(**settings: Any) -> Outbox:
        transports = {"t": recorder, **settings.pop("transports", {})}
        box = Outbox(app, transports=transports, **settings)
        box.open()
        return box

    yield make
    app.close()


def test_a_running_relay_hears_of_a_message_at_once(live: Callable[..., Outbox], recorder: Recorder) -> None:
    """Its own looks are an hour apart, so it was told."""
    box = live(poll=3600)
    with running(box.relay()):
        publish(box, "t:x", 0)
        wait_until(lambda: recorder.payloads == [0])
        for n in range(1, 4):
            wait_until(lambda: box.status().drained)
            publish(box, "t:x", n)
            wait_until(lambda n=n: n in recorder.payloads)  # type: ignore[misc]


def test_a_running_relay_looks_by_itself_where_nobody_tells_it(live: Callable[..., Outbox], recorder: Recorder) -> None:
    box = live(poll=0.05, notify=False)
    with running(box.relay()):
        publish(box, "t:x", 1)
        publish(box, "t:x", 2, run_in=0.2)
        wait_until(lambda: recorder.payloads == [1, 2])


def test_a_slow_destination_holds_up_nobody_else(live: Callable[..., Outbox], recorder: Recorder) -> None:
    hold = Hold()
    slow = Recorder(hold)
    box = live(transports={"slow": slow}, per_destination=2)
    with Session(box.db.session_engine) as session, session.begin():
        box.publish_many(session, "slow:x", range(50))
        box.publish_many(session, "t:x", range(50))
    with running(box.relay()):
        hold.wait()
        wait_until(lambda: len(recorder.sent) == 50)
        publish(box, "t:x", "later")
        wait_until(lambda: len(recorder.sent) == 51)
        assert len(slow.tried) == 2  # no more than are allowed at once
        hold.release()
        wait_until(lambda: len(slow.sent) == 50)


def test_a_failed_message_is_tried_again_by_itself(live: Callable[..., Outbox], recorder: Recorder) -> None:
    box = live(backoff=Backoff(base=0.05, factor=1))
    recorder.then = lambda message: failing(1)(message) if message.attempts < 3 else None
    publish(box, "t:x", 1)
    with running(box.relay()):
        wait_until(lambda: statuses(box) == {1: "sent"})
    assert [m.attempts for m in recorder.tried] == [1, 2, 3]


def test_a_stopping_relay_finishes_what_is_on_its_way_and_gives_the_rest_back(
    live: Callable[..., Outbox], recorder: Recorder
) -> None:
    hold = recorder.then = Hold()
    box = live(per_destination=1)
    with Session(box.db.session_engine) as session, session.begin():
        box.publish_many(session, "t:x", range(5), ordering_key="o")
        box.publish_many(session, "t:x", range(5, 10))
    relay, reports = box.relay(), list[Report]()
    thread = threading.Thread(target=lambda: reports.append(relay.run()))
    thread.start()
    hold.wait()
    relay.stop()
    wait_until(relay._lanes.stopping.is_set)
    hold.release()
    thread.join(30)
    assert len(recorder.sent) == 1
    assert [m for m in box.find() if m.lease_until is not None] == []
    assert sum(m.attempts for m in box.find()) == 1
    assert reports[0].sent == 1


def test_a_stopping_relay_ends_a_line_behind_its_present_message(
    live: Callable[..., Outbox], recorder: Recorder
) -> None:
    hold = recorder.then = Hold()
    box = live()
    with Session(box.db.session_engine) as session, session.begin():
        box.publish_many(session, "t:x", range(5), ordering_key="o")
    relay = box.relay()
    thread = threading.Thread(target=relay.run)
    thread.start()
    hold.wait()
    relay.stop()
    wait_until(relay._lanes.stopping.is_set)
    hold.release()
    thread.join(30)
    assert recorder.payloads == [0]
    assert {m.payload: (str(m.status), m.attempts) for m in box.find()} == {
        0: ("sent", 1),
        **dict.fromkeys(range(1, 5), ("pending", 0)),
    }


def test_a_cycle_sends_no_more_at_once_than_is_allowed(make: Callable[..., Outbox], recorder: Recorder) -> None:
    box, most, now, lock = make(per_destination=2), list[int](), list[int](), threading.Lock()

    def count(message: Message) -> None:
        with lock:
            now.append(message.payload)
            most.append(len(now))
        time.sleep(0.005)
        with lock:
            now.remove(message.payload)

    recorder.then = count
    with Session(box.db.session_engine) as session, session.begin():
        box.publish_many(session, "t:x", range(20))
    assert box.relay().run_once().sent == 20
    assert max(most) == 2


def test_a_second_stop_does_not_wait(live: Callable[..., Outbox], recorder: Recorder) -> None:
    hold = recorder.then = Hold()
    box = live(grace=3600)
    publish(box, "t:x", 1)
    relay = box.relay()
    thread = threading.Thread(target=relay.run)
    thread.start()
    hold.wait()
    relay.stop()
    relay.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert statuses(box) == {1: "pending"}
    hold.release()


def test_until_idle_ends_when_nothing_is_due(live: Callable[..., Outbox], recorder: Recorder) -> None:
    box = live()
    with Session(box.db.session_engine) as session, session.begin():
        for key in range(5):
            box.publish_many(session, "t:x", range(120), ordering_key=str(key))
        box.publish_many(session, "t:x", range(300))
        box.publish(session, "t:x", "tomorrow", run_in=86_400)
    relay = box.relay()
    report = relay.run(until_idle=True)
    assert (report.claimed, report.sent) == (900, 900)
    assert pending(box) == ["tomorrow"]
    assert relay.run(until_idle=True).sent == 900  # it may run again, and goes on counting


def test_two_running_relays_share_the_work(live: Callable[..., Outbox], recorder: Recorder) -> None:
    recorder.then = lambda message: time.sleep(0.001)
    box = live(per_destination=2)
    with Session(box.db.session_engine) as session, session.begin():
        box.publish_many(session, "t:x", range(300))
        for key in range(10):
            box.publish_many(session, "t:x", [f"{key}.{n}" for n in range(20)], ordering_key=str(key))
    with running(box.relay(), box.relay()):
        wait_until(lambda: box.status(sent=False).drained)
    assert len(recorder.sent) == len({m.message_id for m in recorder.sent}) == 500
    for key in range(10):
        assert [p for p in recorder.payloads if str(p).startswith(f"{key}.")] == [f"{key}.{n}" for n in range(20)]


def test_a_running_relay_prunes(live: Callable[..., Outbox], recorder: Recorder) -> None:
    box = live(keep=0)
    publish(box, "t:x", 1)
    box.relay().run_once()
    with running(box.relay()):
        wait_until(lambda: box.find() == [])
    assert Outbox(box.app, keep=None).prune() == 0


def test_a_transport_that_fails_a_thousand_times_does_not_starve_the_others(
    make: Callable[..., Outbox], recorder: Recorder
) -> None:
    bad = Recorder(failing("bad"))
    box = make({"bad": bad}, backoff=AT_ONCE, max_attempts=1000, batch=20)
    with Session(box.db.session_engine) as session, session.begin():
        box.publish_many(session, "bad:x", ["bad"] * 30)
    relay = box.relay()
    relay.run_once()
    publish(box, "t:x", "good")
    for _ in range(3):
        relay.run_once()
    assert recorder.payloads == ["good"]


def test_what_was_sent_while_the_database_was_away_is_marked_when_it_is_back(own_postgres: PostgresServer) -> None:
    app, hold = Duly(own_postgres.url), Hold()
    ear, recorder = Ear(app), Recorder(hold)
    box = Outbox(app, transports={"t": recorder}, per_destination=3)
    with Session(app.db.session_engine) as session, session.begin():
        box.publish_many(session, "t:x", range(6))
        box.publish_many(session, "t:x", ["a", "b", "c"], ordering_key="o")
    relay = box.relay()
    with running(relay):
        for _ in range(3):
            hold.wait()
        own_postgres.stop()
        hold.release()
        wait_until(lambda: len(recorder.sent) >= 3)
        wait_until(lambda: not relay.ready)
        own_postgres.start()
        wait_until(lambda: len(recorder.sent) == 9)
        wait_until(lambda: ear.named("loop_recovered") and box.status().drained)
    assert len({m.message_id for m in recorder.sent}) == 9  # nothing was sent twice: the leases had not lapsed
    assert [p for p in recorder.payloads if isinstance(p, str)] == ["a", "b", "c"]
    app.close()
