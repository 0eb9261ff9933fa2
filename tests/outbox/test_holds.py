"""Destinations that cannot be reached are held: what a failure says, when it is asked again, and what it costs (R004-19)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, ReadOnlyError
from redis.exceptions import ConnectionError as RedisGone
from sqlalchemy import select

from duly import Backoff, Duly, PermanentError, Retry
from duly.kernel.errors import DestinationUnavailable
from duly.kernel.hold import IN_A_ROW
from duly.outbox.box import Outbox
from duly.outbox.holds import Fault, Holds, fault_of
from duly.outbox.message import Message, Status
from duly.outbox.tables import outbox_holds
from duly.outbox.transports.brokers import meaning
from duly.testing import ManualClock
from outbox.hands import Ear, Recorder, publish, statuses

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def message(ident: int, destination: str = "t:x") -> Message:
    return Message(ident, f"m{ident}", "default", destination, None, token=ident)


class Down:
    """A transport whose other side is away while ``error`` is set."""

    def __init__(self) -> None:
        self.error: Callable[[], BaseException] | None = ConnectionRefusedError
        self.tried: list[Any] = []
        self.sent: list[Any] = []

    def send(self, message: Message) -> None:
        self.tried.append(message.payload)
        if self.error is not None:
            raise self.error()
        self.sent.append(message.payload)


# --- What a failure says -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "fault"),
    [
        (DestinationUnavailable("gone"), Fault.AWAY), (DestinationUnavailable("404", attention=True), Fault.REFUSED),
        (ConnectionRefusedError(), Fault.AWAY), (socket.gaierror(), Fault.AWAY), (TimeoutError(), Fault.AWAY), (ssl.SSLError(), Fault.AWAY),
        (ssl.SSLCertVerificationError(), Fault.AWAY), (ExceptionGroup("two", [OSError(), TimeoutError()]), Fault.AWAY),
        (PermanentError("no"), Fault.MESSAGE), (TypeError("not JSON"), Fault.MESSAGE), (UnicodeEncodeError("ascii", "é", 0, 1, "no"), Fault.MESSAGE),
        (RuntimeError("?"), Fault.UNCLEAR), (KeyError("?"), Fault.UNCLEAR), (Retry(after=3), Fault.UNCLEAR), (SystemExit(1), Fault.UNCLEAR),
    ],
    ids=repr,
)  # fmt: skip
def test_what_speaks_not_of_the_message_is_not_its_fault(problem: BaseException, fault: Fault) -> None:
    assert fault_of(problem) is fault


@pytest.mark.parametrize(
    ("raised", "attention"),
    [(RedisGone("refused"), False), (ReadOnlyError("replica"), False), (AuthenticationError("no"), True)],
    ids=repr,
)
def test_what_a_brokers_client_raises_says_whether_it_passes(raised: Exception, attention: bool) -> None:
    with pytest.raises(DestinationUnavailable) as told, meaning():
        raise raised
    assert told.value.attention is attention


# --- Holding -------------------------------------------------------------------------------------------------------------


def test_probes_come_after_waits_that_grow_with_the_outage_up_to_five_minutes() -> None:
    holds, now, waits = Holds(Backoff(base=1, factor=2, max=300)), NOON, list[float]()
    while now < NOON + timedelta(hours=2):
        wait = holds.failed(message(len(waits)), OSError(), now)
        assert wait is not None
        waits.append(wait)
        assert holds.room("t:x", 9, now + timedelta(seconds=wait - 0.01)) == 0
        now += timedelta(seconds=wait)
        assert holds.room("t:x", 9, now) == 1
        assert holds.admits(message(len(waits)), now)
        assert not holds.admits(message(99), now), "one at a time"
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (1, 300)
    assert all(wait <= max(1, 0.34 * sum(waits[: n + 1])) for n, wait in enumerate(waits)), "an end is noticed soon"


def test_one_that_gets_through_opens_its_destination_and_others_were_never_held() -> None:
    told: list[tuple[str, str]] = []
    holds = Holds(Backoff(base=1), lambda what, hold, now: told.append((what, hold.destination)))
    holds.failed(message(1), OSError(), NOON)
    assert (holds.room("t:x", 5, NOON), holds.room("t:y", 5, NOON)) == (0, 5)
    holds.passed(message(2), NOON)
    assert holds.room("t:x", 5, NOON) == 5
    assert told == [("held", "t:x"), ("open", "t:x")]


def test_a_destination_that_was_well_is_held_after_some_failures_in_a_row_and_at_once_where_it_said_when() -> None:
    holds = Holds(Backoff(base=1))
    holds.passed(message(1), NOON)
    for n in range(IN_A_ROW - 1):
        assert holds.failed(message(n + 2), OSError(), NOON) is not None
        assert holds.room("t:x", 5, NOON) == 5
    holds.failed(message(9), OSError(), NOON)
    assert holds.room("t:x", 5, NOON) == 0
    for n, problem in enumerate(
        [DestinationUnavailable("429", after=40), DestinationUnavailable("401", attention=True)]
    ):
        holds.passed(message(1), NOON)
        holds.failed(message(2 + 20 * n), problem, NOON)
        assert holds.room("t:x", 5, NOON) == 0


@pytest.mark.parametrize(
    ("problem", "uses_attempts"),
    [(RuntimeError("?"), True), (DestinationUnavailable("403", attention=True), True), (DestinationUnavailable("503"), False)],
    ids=repr,
)  # fmt: skip
def test_a_message_that_fails_while_others_get_through_has_a_trouble_of_its_own(
    problem: BaseException, uses_attempts: bool
) -> None:
    holds = Holds(Backoff(base=1, factor=2, max=300))
    assert holds.failed(message(1), problem, NOON) is not None  # nobody can tell yet
    for n in range(2, 6):
        holds.passed(message(n), NOON)
        wait = holds.failed(message(1), problem, NOON)
        assert (wait is None) is uses_attempts
        assert holds.room("t:x", 5, NOON) == 5, "the others are not held for it"


def test_what_is_wrong_with_the_message_uses_an_attempt_and_lets_the_next_probe_go() -> None:
    holds = Holds(Backoff(base=1))
    holds.failed(message(1), OSError(), NOON)
    later = NOON + timedelta(seconds=1)
    assert holds.admits(message(2), later)
    assert holds.failed(message(2), PermanentError("422"), later) is None
    assert holds.admits(message(3), later)


def test_people_are_told_what_happened_in_a_word_that_holds_no_data() -> None:
    told: list[str] = []
    holds = Holds(Backoff(base=1), lambda what, hold, now: told.append(hold.problem))
    behind = DestinationUnavailable("https://user:pw@host refused")
    behind.__cause__ = ConnectionRefusedError()
    for n, problem in enumerate([DestinationUnavailable("404 from host", word="404"), behind, KeyError("secret")]):
        holds.failed(message(n, f"t:{n}"), problem, NOON)
    assert told == ["404", "ConnectionRefusedError", "KeyError"]


def test_a_clock_that_was_set_back_keeps_no_destination_held() -> None:
    holds = Holds(Backoff(base=1))
    holds.failed(message(1), OSError(), NOON)
    assert holds.room("t:x", 5, NOON - timedelta(hours=1)) == 1


# --- With a relay --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError, lambda: RuntimeError("whatever"), lambda: Retry(after=20), lambda: DestinationUnavailable("401", attention=True)],
    ids=["refused", "unknown", "retry", "login"],
)  # fmt: skip
def test_an_outage_of_any_length_parks_nothing_and_loses_nothing(
    make: Callable[..., Outbox], clock: ManualClock, ear: Ear, recorder: Recorder, error: Any
) -> None:  # F1
    down = Down()
    down.error = error
    box = make({"down": down})
    for n in range(12):
        publish(box, "down:a", n, ordering_key=[None, "x", "y", "z"][n % 4])
    publish(box, "t:x", "elsewhere")
    relay = box.relay()
    for _ in range(150):
        relay.run_once()
        clock.advance(240)
    assert recorder.payloads == ["elsewhere"]
    assert {m.status for m in box.find(destination="down:a")} == {Status.PENDING}
    assert {m.attempts for m in box.find(destination="down:a")} == {0}
    assert len(set(down.tried)) > 3, "each probe is another message, where there are several"
    [hold] = [d.hold for d in box.status().destinations if d.hold is not None]
    assert (hold.destination, hold.since) == ("down:a", hold.since)
    assert [e["destination"] for e in ear.named("outbox_held")] == ["down:a"]
    down.error = None
    for _ in range(20):
        clock.advance(301)
        relay.run_once()
    assert box.status().drained
    for key in range(1, 4):
        assert [p for p in down.sent if p % 4 == key] == [key, key + 4, key + 8]
    assert [e["destination"] for e in ear.named("outbox_open")] == ["down:a"]
    assert box.db.read(lambda c: c.execute(select(outbox_holds)).all()) == []


def test_twenty_seconds_of_outage_are_over_soon_after(make: Callable[..., Outbox], clock: ManualClock) -> None:  # F1
    down = Down()
    box = make({"down": down})
    for n in range(12):
        publish(box, "down:a", n, ordering_key=str(n % 3))
    relay = box.relay()
    for _ in range(60):
        relay.run_once()
        clock.advance(1)
    down.error = None
    for _ in range(45):
        relay.run_once()
        clock.advance(1)
    assert len(down.sent) == 12


def test_a_relay_that_starts_knows_what_others_have_found_out(
    app: Duly, make: Callable[..., Outbox], clock: ManualClock
) -> None:
    down = Down()
    box = make({"down": down})
    for n in range(50):
        publish(box, "down:a", n)
    box.relay().run_once()
    tried = len(down.tried)
    assert tried < 10, "once it is known to be away, the rest is given back untried"
    assert box.relay().run_once().claimed == 0
    clock.advance(2)
    assert box.relay().run_once().claimed == 1
    assert len(down.tried) == tried + 1


def test_one_deadly_message_parks_alone_and_the_rest_goes(make: Callable[..., Outbox], clock: ManualClock) -> None:
    """A message that makes the endpoint answer 500 every time: it is found out because the others get through."""

    class Picky(Down):
        def send(self, message: Message) -> None:
            self.error = (lambda: RuntimeError("500")) if message.payload == 3 else None
            super().send(message)

    picky = Picky()
    box = make({"picky": picky}, per_destination=1)
    relay = box.relay()
    for n in range(60):
        publish(box, "picky:a", n)
        relay.run_once()
        clock.advance(30)
    for _ in range(5):
        relay.run_once()
        clock.advance(301)
    parked = [p for p, status in statuses(box).items() if status == "parked"]
    assert parked == [3]
    assert len(picky.sent) == 59
