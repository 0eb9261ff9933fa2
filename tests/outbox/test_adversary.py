"""What an adversary found, held down."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session

from duly import Duly, InvalidArgument, NotFound
from duly.kernel.errors import DatabaseUnavailable
from duly.outbox import Outbox
from duly.outbox.message import Message


@pytest.fixture
def app(db_url: str) -> Iterator[Duly]:
    app = Duly(db_url)
    yield app
    app.close()


class Told:
    def __init__(self) -> None:
        self.payloads: list[Any] = []

    def send(self, message: Message) -> None:
        self.payloads.append(message.payload)


class Asynchronous:
    async def send(self, message: Message) -> None: ...


class Hidden:
    def send(self, message: Message) -> Any:
        return Asynchronous().send(message)


def publish(app: Duly, box: Outbox, destination: str, *payloads: Any, **options: Any) -> None:
    with Session(app.db.session_engine) as session, session.begin():
        box.publish_many(session, destination, payloads, **options)


def test_an_asynchronous_transport_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="asynchronous"):
        Outbox("sqlite:///x.db", transports={"a": Asynchronous()})  # type: ignore[dict-item]


def test_a_transport_that_returns_an_awaitable_has_sent_nothing(app: Duly) -> None:
    box = Outbox(app, transports={"a": Hidden()})
    publish(app, box, "a", 1)
    assert box.relay().run_once().parked == 1


def test_transports_must_be_a_mapping() -> None:
    with pytest.raises(InvalidArgument, match="transports"):
        Outbox("sqlite:///x.db", transports=[Told()])  # type: ignore[arg-type]


class Hanging:
    def __init__(self) -> None:
        self.go = threading.Event()

    def send(self, message: Message) -> None:
        self.go.wait(60)


def test_destinations_that_hang_take_no_other_along(app: Duly) -> None:  # B045
    hanging, told = Hanging(), Told()
    box = Outbox(app, transports={"hang": hanging, "well": told})
    for n in range(12):
        publish(app, box, f"hang:{n}", *range(6))
    relay = box.relay()
    thread = threading.Thread(target=relay.run, daemon=True)
    thread.start()
    publish(app, box, "well", *range(20))
    for _ in range(1500):
        if len(told.payloads) == 20:
            break
        threading.Event().wait(0.02)
    assert sorted(told.payloads) == list(range(20))
    assert relay._lanes.hanging(0.0), "and those that hang are told"
    hanging.go.set()
    relay.stop()
    thread.join(60)


def test_a_cycle_that_could_not_be_written_holds_nothing(app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    box = Outbox(app, transports={"a": told}, lease=0.5)
    publish(app, box, "a", 1)
    relay = box.relay()

    def away(*_: Any) -> Any:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(relay, "_write", away)
    with pytest.raises(DatabaseUnavailable):
        relay.run_once()
    monkeypatch.undo()
    relay.run(until_idle=True)
    for _ in range(200):
        if box.status().sent == 1:
            break
        threading.Event().wait(0.05)
        relay = box.relay()
        relay.run(until_idle=True)
    assert box.status().sent == 1
    assert told.payloads == [1, 1]


def test_wrong_input_is_refused_by_name(app: Duly) -> None:
    box = Outbox(app, transports={"a": Told()})
    with pytest.raises(NotFound):
        box.get(2**70)
    for field, act in (
        ("limit", lambda: box.redrive_where(limit=-1)),
        ("now", lambda: box.relay().run_once("x")),  # type: ignore[arg-type]
        ("reason", lambda: box.park(1, reason=None)),  # type: ignore[arg-type]
        ("older", lambda: box.prune("x")),  # type: ignore[arg-type]
        ("headers.x", lambda: publish(app, box, "a", 1, headers={"x": " padded"})),
    ):
        with pytest.raises(InvalidArgument) as caught:
            act()
        assert caught.value.field == field


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Failing:
    def send(self, message: Message) -> None:
        raise Mute


def test_an_error_without_a_text_is_an_ordinary_failure(app: Duly) -> None:
    box = Outbox(app, transports={"a": Failing()})
    app.listen(lambda event: None)
    publish(app, box, "a", 1)
    assert box.relay().run_once().failed == 1
