"""A message is there when, and only when, the transaction that it was published in commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from contract.hands import Later, together, wait_until
from duly import Duly, InvalidArgument
from duly.kernel.errors import InvalidPayload, UnsafeSession
from duly.outbox.box import Outbox
from duly.outbox.message import Status
from duly.testing import ManualClock
from duly.tracing import carried
from outbox.hands import Recorder, pending, publish

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


# --- With the transaction ------------------------------------------------------------------------------------------------


def test_a_message_lives_and_dies_with_its_transaction(box: Outbox) -> None:  # R004-7
    engine = box.db.session_engine
    with Session(engine) as session:
        box.publish(session, "t:x", "rolled back")
        session.rollback()
        box.publish(session, "t:x", "committed")
        session.commit()
        box.publish(session, "t:x", "closed")
    with engine.connect() as connection:
        box.publish(connection, "t:x", "connection")
        connection.commit()
        box.publish(connection, "t:x", "never")
    assert pending(box) == ["committed", "connection"]


def test_a_savepoint_takes_its_messages_along(box: Outbox) -> None:  # R004-2, R004-3
    with Session(box.db.session_engine) as session, session.begin():
        box.publish(session, "t:x", "outer")
        with session.begin_nested() as savepoint:
            box.publish(session, "t:x", "inner, rolled back")
            savepoint.rollback()
        with session.begin_nested():
            box.publish(session, "t:x", "inner, released")
    assert pending(box) == ["outer", "inner, released"]


def test_nothing_is_sent_before_the_commit(box: Outbox, recorder: Recorder) -> None:  # R004-1
    with Session(box.db.session_engine) as session, session.begin():
        box.publish(session, "t:x", 1)
        session.flush()
        if not box.db.is_sqlite:  # there, nobody else can write meanwhile
            assert box.relay().run_once().claimed == 0
    assert box.relay().run_once().sent == 1
    assert recorder.payloads == [1]


def test_asynchronous_sessions_and_connections_carry_messages_too(box: Outbox) -> None:
    async def story() -> None:
        engine = box.db.async_engine
        async with AsyncSession(engine) as session, session.begin():
            await box.apublish(session, "t:x", "session")
            assert len(await box.apublish_many(session, "t:x", ["a", "b"])) == 2
        async with AsyncSession(engine) as session:
            await box.apublish(session, "t:x", "rolled back")
            await session.rollback()
        async with engine.begin() as connection:
            await box.apublish(connection, "t:x", "connection", key="k")
        await engine.dispose()

    asyncio.run(story())
    assert pending(box) == ["session", "a", "b", "connection"]


def test_an_asynchronous_session_given_to_the_synchronous_door_is_told_the_other_one(box: Outbox) -> None:
    class Fake:
        def run_sync(self) -> None: ...

    with pytest.raises(InvalidArgument, match=r"await outbox\.apublish"):
        box.publish(Fake(), "t:x", 1)
    with pytest.raises(InvalidArgument, match="session"):
        box.publish("a session", "t:x", 1)


def test_an_sqlite_session_whose_savepoints_do_not_hold_is_refused(sqlite_url: str) -> None:
    box = Outbox(sqlite_url)
    engine = create_engine(sqlite_url)
    with Session(engine) as session, pytest.raises(UnsafeSession, match="make_engine"):
        box.publish(session, "t:x", 1)
    engine.dispose()
    box.close()


def test_a_session_of_another_kind_of_database_is_refused(pg_url: str, sqlite_url: str) -> None:
    box, other = Outbox(pg_url), Duly(sqlite_url)
    with Session(other.db.session_engine) as session, pytest.raises(InvalidArgument, match="on sqlite"):
        box.publish(session, "t:x", 1)
    other.close()
    box.close()


# --- Keys ------------------------------------------------------------------------------------------------------------------


def test_a_taken_key_gives_the_message_that_has_it(box: Outbox) -> None:
    with Session(box.db.session_engine) as session, session.begin():
        first = box.publish(session, "t:x", 1, key="order-17")
        again = box.publish(session, "t:x", 2, key="order-17")
    with Session(box.db.session_engine) as session, session.begin():
        later = box.publish(session, "t:x", 3, key="order-17")
    assert first.created
    assert again == later == (first.message_id, False)
    assert pending(box) == [1]


def test_a_key_belongs_to_a_tenant_and_a_destination(box: Outbox) -> None:  # B053
    for n, (to, tenant) in enumerate((("t:x", None), ("t:x", "b"), ("t:y", None))):
        with Session(box.db.session_engine) as session, session.begin():
            assert box.publish(session, to, n, key="k", tenant=tenant).created
    assert pending(box) == [0, 1, 2]


def test_a_key_stays_taken_once_its_message_is_sent_and_is_free_when_it_is_pruned(box: Outbox) -> None:
    first = publish(box, "t:x", 1, key="k")
    box.relay().run_once()
    assert publish(box, "t:x", 2, key="k") == first
    assert box.prune(0) == 1
    assert publish(box, "t:x", 3, key="k") != first


def test_a_rolled_back_key_was_never_taken(box: Outbox) -> None:
    with Session(box.db.session_engine) as session:
        box.publish(session, "t:x", 1, key="k")
        session.rollback()
    publish(box, "t:x", 2, key="k")
    assert pending(box) == [2]


def test_of_many_that_publish_one_key_at_once_one_writes(box: Outbox) -> None:
    box.open()

    def one() -> Any:
        with Session(box.db.session_engine) as session, session.begin():
            return box.publish(session, "t:x", 1, key="k")

    came = together(*[one] * 6)
    made = [m for m in came if not isinstance(m, Exception)]
    assert len(made) == len(came), came
    assert sorted(m.created for m in made) == [False] * 5 + [True]
    assert len({m.message_id for m in made}) == 1
    assert pending(box) == [1]


# --- Many ------------------------------------------------------------------------------------------------------------------


def test_many_are_written_in_order_and_answer_one_by_one(box: Outbox) -> None:
    publish(box, "t:x", "old", key="b")
    with Session(box.db.session_engine) as session, session.begin():
        made = box.publish_many(session, "t:x", [1, 2, 3, 4], keys=["a", "b", None, "a"])
        assert box.publish_many(session, "t:x", []) == []
    assert [m.created for m in made] == [True, False, True, False]
    assert made[0].message_id == made[3].message_id
    assert pending(box) == ["old", 1, 3]


def test_many_keep_their_order_in_thousands(box: Outbox) -> None:
    with Session(box.db.session_engine) as session, session.begin():
        box.publish_many(session, "t:x", range(2000), ordering_key="o")
    assert pending(box) == list(range(2000))


def test_keys_that_are_not_one_for_each_are_refused(box: Outbox) -> None:
    with Session(box.db.session_engine) as session, pytest.raises(InvalidArgument, match="keys"):
        box.publish_many(session, "t:x", [1, 2], keys=["a"])

    async def key() -> None:
        await box.apublish_many(None, "t:x", [1], key="a")

    with pytest.raises(InvalidArgument, match="keys="):
        asyncio.run(key())


# --- What is carried -----------------------------------------------------------------------------------------------------


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=json_values)
def test_any_json_value_arrives_as_it_was_published(box: Outbox, recorder: Recorder, payload: Any) -> None:
    recorder.sent.clear()
    publish(box, "t:x", payload)
    assert box.relay().run_once().sent == 1
    assert recorder.payloads == [payload]
    assert type(recorder.payloads[0]) is type(payload)


def test_everything_about_a_message_reaches_the_transport(box: Outbox, recorder: Recorder, clock: ManualClock) -> None:
    ident = publish(box, "t:x:y", {"n": 1}, key="k", ordering_key="o", headers={"a-b": "c"}, tenant="acme")
    box.relay(name="me").run_once()
    [m] = recorder.sent
    assert (m.message_id, m.destination, m.target, m.payload) == (ident, "t:x:y", "x:y", {"n": 1})
    assert (m.key, m.ordering_key, dict(m.headers), m.tenant, m.attempts) == ("k", "o", {"a-b": "c"}, "acme", 1)
    assert m.created_at == clock.now()
    stored = box.get(ident)
    assert (stored.status, stored.relay, stored.sent_at) == (Status.SENT, "me", clock.now())
    assert box.get(stored.id) == stored


def test_the_present_trace_goes_with_the_message(box: Outbox) -> None:
    with carried(TRACE):
        with_trace = publish(box, "t:x", 1)
        own = publish(box, "t:x", 2, headers={"traceparent": TRACE[:-1] + "0"})
    without = publish(box, "t:x", 3)
    assert box.get(with_trace).headers == {"traceparent": TRACE}
    assert box.get(own).headers == {"traceparent": TRACE[:-1] + "0"}
    assert box.get(without).headers == {}


def test_a_message_waits_for_its_instant(box: Outbox, recorder: Recorder, clock: ManualClock) -> None:
    publish(box, "t:x", "in", run_in=timedelta(minutes=5))
    publish(box, "t:x", "at", run_at=datetime(2026, 1, 1, 0, 10, tzinfo=UTC))
    publish(box, "t:x", "now")
    relay = box.relay()
    assert relay.run_once().sent == 1
    clock.advance(300)
    assert relay.run_once().sent == 1
    clock.advance(300)
    assert relay.run_once().sent == 1
    assert recorder.payloads == ["now", "in", "at"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"destination": "nowhere:x"}, "destination"), ({"key": ""}, "key"), ({"key": "x" * 201}, "key"), ({"ordering_key": "a\nb"}, "ordering_key"),
        ({"tenant": ""}, "tenant"), ({"headers": {"a": 1}}, "headers.a"), ({"run_at": datetime(2026, 1, 1)}, "run_at"), ({"run_in": "soon"}, "run_in"),
        ({"run_in": 1, "run_at": datetime(2026, 1, 1, tzinfo=UTC)}, "run_at"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_what_cannot_be_used_is_named_and_nothing_is_written(box: Outbox, options: dict[str, Any], named: str) -> None:
    with Session(box.db.session_engine) as session, session.begin(), pytest.raises(InvalidArgument) as refused:
        box.publish(session, **{"destination": "t:x", "payload": 1, **options})
    assert refused.value.field == named
    assert pending(box) == []


@pytest.mark.parametrize(
    ("payload", "named"),
    [({"a": [float("nan")]}, "a[0]"), ({"a": {"b": {1, 2}}}, "a.b"), ("\x00", "payload"), ({1: 2}, ""), ("x" * 300_000, "payload")],
    ids=["nan", "set", "nul", "key", "size"],
)  # fmt: skip
def test_a_payload_that_cannot_be_carried_is_refused_with_its_path(box: Outbox, payload: Any, named: str) -> None:
    with Session(box.db.session_engine) as session, session.begin(), pytest.raises(InvalidPayload) as refused:
        box.publish(session, "t:x", payload)
    assert refused.value.field == named


def test_an_outbox_without_transports_takes_every_destination(app: Duly) -> None:
    """The process that publishes need not know how messages leave."""
    box = Outbox(app)
    publish(box, "anywhere:x", 1)
    assert pending(box) == [1]


# --- On PostgreSQL: the order of commits ---------------------------------------------------------------------------------


@pytest.fixture
def pg(pg_url: str) -> Any:
    app = Duly(pg_url)
    box = Outbox(app, transports={"t": Recorder()})
    box.open()
    yield box
    app.close()


def test_writers_of_one_line_wait_for_each_other_so_that_ids_follow_commits(pg: Outbox) -> None:
    """Two transactions, the first is slow to commit: without the lock the second would overtake it."""
    first, second = Session(pg.db.session_engine), Session(pg.db.session_engine)
    pg.publish(first, "t:x", "first", ordering_key="o")
    later = Later(lambda: pg.publish(second, "t:x", "second", ordering_key="o"))
    wait_until(lambda: later.is_waiting(pg.app))  # type: ignore[arg-type]
    assert pg.relay().run_once().claimed == 0
    first.commit()
    later.result()
    second.commit()
    pg.relay().run_once()
    assert pg.transports["t"].payloads == ["first", "second"]  # type: ignore[attr-defined]
    first.close()
    second.close()


def test_writers_of_different_lines_do_not_wait(pg: Outbox) -> None:
    with Session(pg.db.session_engine) as one, Session(pg.db.session_engine) as other:
        other.execute(text("SET lock_timeout = '5s'"))
        pg.publish(one, "t:x", 1, ordering_key="a")
        pg.publish(other, "t:x", 2, ordering_key="b")
        pg.publish(other, "t:y", 3, ordering_key="a")
        pg.publish(other, "t:x", 4)
        other.commit()
        one.commit()
    assert pending(pg) == [1, 2, 3, 4]


def test_lines_published_together_are_locked_in_one_order(pg: Outbox) -> None:
    """Two transactions that publish several lines at once, in opposite orders, do not deadlock."""

    def write(names: list[str]) -> Callable[[], Any]:
        def run() -> None:
            for _ in range(15):
                with Session(pg.db.session_engine) as session, session.begin():
                    new = [pg._new("t:x", n, None, n, None, None, None, None) for n in names]
                    pg._write(session.connection(), new)

        return run

    assert together(write(["a", "b", "c"]), write(["c", "b", "a"])) == [None, None]


def test_a_table_that_is_spelled_with_its_schema_has_the_same_lines(pg: Outbox) -> None:
    pg.open()
    spelled = Outbox(pg.db.session_engine, table="outbox", schema="public")
    with Session(pg.db.session_engine) as first, Session(pg.db.session_engine) as second:
        pg.publish(first, "t:x", 1, ordering_key="o")
        later = Later(lambda: spelled.publish(second, "t:x", 2, ordering_key="o"))
        wait_until(lambda: later.is_waiting(pg.app))  # type: ignore[arg-type]
        first.commit()
        later.result()
        second.commit()
    assert pending(pg) == [1, 2]


def test_a_session_without_a_database_is_refused_by_name(box: Outbox) -> None:
    with Session() as session, pytest.raises(InvalidArgument, match="session: is bound to no database"):
        box.publish(session, "t:x", 1)


def test_a_payload_may_hold_what_has_one_form_in_json(box: Outbox) -> None:  # F14
    class Kind(Enum):
        NEW = "new"

    @dataclass
    class Line:
        price: Decimal

    class Order(BaseModel):
        id: UUID
        at: datetime

    order = Order(id=UUID(int=7), at=datetime(2026, 1, 2, 3, tzinfo=UTC))
    ident = publish(
        box, "t:x", {"order": order, "lines": (Line(Decimal("1.10")),), "kind": Kind.NEW, "day": date(2026, 1, 2)}
    )
    assert box.get(ident).payload == {
        "order": {"id": str(UUID(int=7)), "at": "2026-01-02T03:00:00Z"}, "lines": [{"price": "1.10"}], "kind": "new", "day": "2026-01-02",
    }  # fmt: skip
    for wrong in (object(), float("nan"), Decimal("NaN"), 2**70):
        with pytest.raises(InvalidPayload) as refused:
            publish(box, "t:x", {"uuid": UUID(int=1), "a": [wrong]})
        assert "Annotate" not in str(refused.value)
        assert "a[0]" in refused.value.field
