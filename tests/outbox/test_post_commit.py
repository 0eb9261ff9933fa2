"""What is registered in a session is sent after its outermost commit, once, in order; or not at all."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, event, insert, text
from sqlalchemy.exc import IntegrityError, InvalidRequestError, OperationalError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from duly import InvalidArgument
from duly.kernel.errors import UnsafeSession
from duly.kernel.events import PROCESS
from duly.outbox.post_commit import enqueue_task_after_commit, post_commit_sender, set_post_commit_sender
from duly.storage import session_end
from duly.tracing import carried, traceparent
from outbox.post_commit_hands import Line, Order, Shop, make_engine, open_shop
from servers import PostgresServer


@pytest.fixture
def shop(db_url: str) -> Iterator[Shop]:
    with open_shop(db_url) as shop:
        yield shop


@pytest.fixture
def session(shop: Shop) -> Iterator[Session]:
    with shop.session() as session:
        yield session


# --- The scenarios, in the order of SQLAlchemy's events ------------------------------------------------------------------


def test_nothing_is_sent_before_the_commit_and_everything_after_it(shop: Shop, session: Session) -> None:  # R004-1
    shop.order(session, 1)
    shop.order(session, 2)
    session.flush()
    assert (shop.sent, shop.told) == ([], {})
    session.commit()
    assert (shop.sent, shop.orders(), shop.told) == ([1, 2], [1, 2], {"enqueued": 2})


def test_the_session_is_free_and_its_rows_are_visible_when_a_task_is_sent(shop: Shop, session: Session) -> None:
    seen: list[Any] = []
    with post_commit_sender(lambda *call: seen.append((shop.orders(), session.in_transaction()))):
        shop.order(session, 1)
    session.commit()
    assert seen == [([1], False)]


def test_a_commit_sends_what_was_registered_without_any_statement(shop: Shop, session: Session) -> None:
    shop.register(session, 1)
    session.commit()
    assert shop.sent == [1]


def test_a_second_commit_sends_nothing_again(shop: Shop, session: Session) -> None:  # R004-4
    shop.order(session, 1)
    session.commit()
    session.commit()
    shop.order(session, 2)
    session.commit()
    assert shop.sent == [1, 2]


def test_a_rollback_sends_nothing_then_or_later(shop: Shop, session: Session) -> None:  # R004-1
    shop.order(session, 1)
    session.rollback()
    shop.order(session, 2)
    session.commit()
    assert (shop.sent, shop.orders(), shop.told) == ([2], [2], {"rolled_back": 1, "enqueued": 1})


def test_a_rollback_before_any_statement_drops_too(shop: Shop, session: Session) -> None:
    shop.register(session, 1)
    session.rollback()
    session.commit()
    assert (shop.sent, shop.told) == ([], {"rolled_back": 1})


def test_a_block_that_raises_sends_nothing(shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError), shop.session() as session, session.begin():
        shop.order(session, 1)
        raise ZeroDivisionError
    assert (shop.sent, shop.orders(), shop.told) == ([], [], {"rolled_back": 1})


def test_a_released_savepoint_is_sent_by_the_outer_commit_only(shop: Shop, session: Session) -> None:  # T004-a
    shop.order(session, 1)
    with session.begin_nested():
        shop.order(session, 2)
    assert shop.sent == []
    session.commit()
    assert (shop.sent, shop.orders()) == ([1, 2], [1, 2])


def test_a_savepoint_rolled_back_takes_its_own_along_and_nothing_else(shop: Shop, session: Session) -> None:  # R004-2
    shop.order(session, 1)
    savepoint = session.begin_nested()
    shop.order(session, 2)
    savepoint.rollback()
    assert shop.told == {"rolled_back": 1}
    shop.order(session, 3)
    session.commit()
    assert (shop.sent, shop.orders()) == ([1, 3], [1, 3])


def test_a_released_savepoint_is_lost_with_the_outer_transaction(shop: Shop, session: Session) -> None:  # R004-3
    with session.begin_nested():
        shop.order(session, 1)
    session.rollback()
    session.commit()
    assert (shop.sent, shop.orders(), shop.told) == ([], [], {"rolled_back": 1})


def test_a_savepoint_released_into_one_that_is_rolled_back_is_lost(shop: Shop, session: Session) -> None:
    shop.order(session, 1)
    middle = session.begin_nested()
    shop.order(session, 2)
    with session.begin_nested():
        shop.order(session, 3)
    middle.rollback()
    session.commit()
    assert (shop.sent, shop.orders(), shop.told) == ([1], [1], {"rolled_back": 2, "enqueued": 1})


def test_a_savepoint_rolled_back_with_another_open_inside_takes_both(shop: Shop, session: Session) -> None:
    middle = session.begin_nested()
    shop.order(session, 1)
    session.begin_nested()
    shop.order(session, 2)
    middle.rollback()
    shop.order(session, 3)
    session.commit()
    assert (shop.sent, shop.orders(), shop.told) == ([3], [3], {"rolled_back": 2, "enqueued": 1})


def test_a_commit_in_the_middle_of_savepoints_commits_them_all(shop: Shop, session: Session) -> None:
    shop.order(session, 1)
    session.begin_nested()
    shop.order(session, 2)
    session.begin_nested()
    shop.order(session, 3)
    session.commit()
    assert (shop.sent, shop.orders()) == ([1, 2, 3], [1, 2, 3])


def test_the_order_is_that_of_registration_over_all_savepoints(shop: Shop, session: Session) -> None:  # R004-4
    shop.order(session, 1)
    middle = session.begin_nested()
    shop.order(session, 2)
    inner = session.begin_nested()
    shop.order(session, 3)
    inner.commit()
    shop.order(session, 4)
    middle.commit()
    shop.order(session, 5)
    with session.begin_nested():
        shop.order(session, 6)
    session.commit()
    assert shop.sent == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("outer", ["commit", "rollback"])
def test_b041_savepoints_released_and_rolled_back_under_both_ends(
    shop: Shop, session: Session, outer: str
) -> None:  # B041
    shop.order(session, 1)  # A
    with session.begin_nested():
        shop.order(session, 2)  # B
    savepoint = session.begin_nested()
    shop.order(session, 3)  # C
    savepoint.rollback()
    assert shop.sent == []
    getattr(session, outer)()
    if outer == "commit":
        assert (shop.sent, shop.told) == ([1, 2], {"enqueued": 2, "rolled_back": 1})
    else:
        assert (shop.sent, shop.told) == ([], {"rolled_back": 3})
    assert shop.orders() == shop.sent


@pytest.mark.parametrize("end", ["close", "reset", "invalidate", "expunge_all+close"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_session_that_is_closed_sends_nothing_then_or_later(shop: Shop, end: str, nested: bool) -> None:  # T004-b
    session = shop.session()
    shop.order(session, 1)
    if nested:
        session.begin_nested()
        shop.order(session, 2)
    for step in end.split("+"):
        getattr(session, step)()
    assert shop.told == {"rolled_back": 2 if nested else 1}
    shop.order(session, 3)
    session.commit()
    session.close()
    assert (shop.sent, shop.orders()) == ([3], [3])


def test_a_flush_that_fails_sends_nothing(shop: Shop, session: Session) -> None:
    shop.order(session, 1)
    session.commit()
    shop.order(session, 2)
    shop.break_flush(session)
    session.rollback()
    session.commit()
    assert (shop.sent, shop.orders(), shop.told) == ([1], [1], {"enqueued": 1, "rolled_back": 1})


def test_what_is_registered_after_a_failed_flush_shares_its_fate(shop: Shop, session: Session) -> None:
    shop.order(session, 1)
    session.commit()
    shop.break_flush(session)
    shop.register(session, 2)
    session.rollback()
    assert (shop.sent, shop.told) == ([1], {"enqueued": 1, "rolled_back": 1})


def test_a_flush_that_fails_in_a_savepoint_takes_the_savepoint_along(shop: Shop, session: Session) -> None:
    shop.order(session, 1)
    session.commit()
    shop.order(session, 2)
    savepoint = session.begin_nested()
    shop.order(session, 3)
    shop.break_flush(session)
    savepoint.rollback()
    shop.order(session, 4)
    session.commit()
    assert (shop.sent, shop.orders()) == ([1, 2, 4], [1, 2, 4])


def test_a_flush_that_fails_in_the_commit_sends_nothing(shop: Shop, session: Session) -> None:
    shop.order(session, 1)
    session.commit()
    shop.order(session, 2)
    session.add(Order(id=1))
    with pytest.raises(IntegrityError):
        session.commit()
    session.rollback()
    assert (shop.sent, shop.orders()) == ([1], [1])


@pytest.mark.parametrize("block", [False, True])
def test_a_commit_that_fails_sends_nothing(shop: Shop, block: bool) -> None:
    with shop.session() as session:
        if block:
            with pytest.raises(IntegrityError), session.begin():
                shop.order(session, 1)
                session.execute(insert(Line).values(id=1, order_id=99))
        else:
            shop.order(session, 1)
            session.execute(insert(Line).values(id=1, order_id=99))
            with pytest.raises(IntegrityError):
                session.commit()
            assert shop.sent == []
            session.rollback()
        assert (shop.sent, shop.orders(), shop.told) == ([], [], {"rolled_back": 1})
        shop.order(session, 2)
        session.commit()
    assert shop.sent == [2]


@pytest.mark.postgres
def test_a_connection_lost_at_the_commit_sends_nothing(pg_url: str) -> None:
    with open_shop(pg_url) as shop, shop.session() as session:
        shop.order(session, 1)
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        with shop.engine.connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        with pytest.raises(OperationalError):
            session.commit()
        session.rollback()
        assert (shop.sent, shop.orders(), shop.told) == ([], [], {"rolled_back": 1})


@pytest.mark.postgres
@pytest.mark.parametrize("when", ["before the failure", "after it", "before_commit", "after_commit"])
def test_a_commit_that_postgresql_turns_into_a_rollback_sends_nothing(pg_url: str, when: str) -> None:  # R004-1
    with open_shop(pg_url) as shop, shop.session() as session:
        if when == "before the failure":
            shop.order(session, 1)
        with pytest.raises(Exception, match="division by zero"):
            session.execute(text("SELECT 1/0"))
        if when == "after it":
            shop.register(session, 1)
        elif when != "before the failure":
            event.listen(session, when, lambda session: shop.register(session, 1))
        session.commit()  # raises nothing: the server answers ROLLBACK
        assert (shop.sent, shop.orders(), shop.told) == ([], [], {"rolled_back": 1})


@pytest.mark.postgres
def test_a_failure_that_a_savepoint_took_back_is_forgotten(pg_url: str) -> None:
    with open_shop(pg_url) as shop, shop.session() as session:
        shop.order(session, 1)
        savepoint = session.begin_nested()
        with pytest.raises(Exception, match="division by zero"):
            session.execute(text("SELECT 1/0"))
        shop.register(session, 2)
        savepoint.rollback()
        session.commit()
        assert (shop.sent, shop.orders()) == ([1], [1])


def test_two_phases_send_at_the_second(own_postgres: PostgresServer) -> None:
    with open_shop(own_postgres.url) as shop:
        with make_engine(own_postgres.url, isolation_level="AUTOCOMMIT").connect() as admin:
            admin.execute(text("ALTER SYSTEM SET max_prepared_transactions = 5"))
        own_postgres.stop()
        own_postgres.start()
        shop.engine.dispose()
        with shop.session(twophase=True) as session:
            shop.order(session, 1)
            session.prepare()
            assert shop.sent == []
            session.commit()
            assert (shop.sent, shop.orders()) == ([1], [1])
            shop.order(session, 2)
            session.prepare()
            session.rollback()
            shop.order(session, 3)
            session.commit()
        assert (shop.sent, shop.orders(), shop.told) == ([1, 3], [1, 3], {"enqueued": 2, "rolled_back": 1})


@pytest.mark.parametrize("on_the_class", [False, True])
def test_a_listener_of_the_application_that_raises_hides_no_commit(shop: Shop, on_the_class: bool) -> None:
    def fail(_session: Session) -> None:
        raise ZeroDivisionError

    kind = sessionmaker(shop.engine)
    session = kind()
    event.listen(kind if on_the_class else session, "after_commit", fail)
    shop.order(session, 1)
    with pytest.raises(ZeroDivisionError):
        session.commit()
    session.close()  # SQLAlchemy allows nothing else now
    assert (shop.sent, shop.orders()) == ([1], [1])


def test_not_even_a_listener_that_was_there_first_hides_a_commit(sqlite_url: str) -> None:
    program = f"""
from sqlalchemy import event
from sqlalchemy.orm import Session

event.listen(Session, "after_commit", lambda session: 1 / 0)

from duly.outbox.post_commit import enqueue_task_after_commit, set_post_commit_sender
from duly.storage.sqlite import make_engine

set_post_commit_sender(lambda *call: print("sent", call[0]))
session = Session(make_engine({sqlite_url!r}))
enqueue_task_after_commit(session, "ship")
try:
    session.commit()
except ZeroDivisionError:
    session.close()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("sent ship\n", "")


def test_a_task_may_be_registered_in_listeners_of_the_flush_and_the_commit(shop: Shop, session: Session) -> None:
    numbers = iter(range(10, 20))
    for name in ("before_flush", "after_flush", "after_flush_postexec", "before_commit", "after_commit"):
        event.listen(session, name, lambda *_: shop.register(session, next(numbers)))
    session.add(Order(id=1))
    session.commit()
    assert (shop.sent, shop.orders()) == ([10, 11, 12, 13, 14], [1])


def test_a_savepoint_inside_of_a_flush_gives_to_the_transaction_around_the_flush(shop: Shop, session: Session) -> None:
    def after_flush(session: Session, _context: object) -> None:
        with session.begin_nested():
            shop.register(session, 7)

    event.listen(session, "after_flush", after_flush)
    session.add(Order(id=1))
    session.commit()
    assert shop.sent == [7]


def test_a_rollback_in_autocommit_mode_drops_the_tasks_though_the_rows_stay(shop: Shop) -> None:
    engine = create_engine(shop.engine.url, isolation_level="AUTOCOMMIT")
    with shop.session(engine) as session:
        shop.order(session, 1)
        session.rollback()
        assert shop.sent == []
        shop.order(session, 2)
        session.commit()
    engine.dispose()
    assert (shop.sent, shop.orders()) == ([2], [1, 2])


# --- Which sessions ------------------------------------------------------------------------------------------------------


def test_the_first_use_of_a_session_may_be_a_registration(shop: Shop) -> None:
    with shop.session() as session:
        shop.register(session, 1)
        assert session.in_transaction()
        session.rollback()
        assert shop.told == {"rolled_back": 1}


def test_a_session_that_begins_nothing_by_itself_is_asked_to_begin(shop: Shop) -> None:
    with shop.session(autobegin=False) as session:
        with pytest.raises(InvalidArgument, match="Begin one first"):
            shop.register(session, 1)
        with session.begin():
            shop.register(session, 2)
    assert shop.sent == [2]


def test_a_scoped_session_is_the_session_of_this_thread(shop: Shop) -> None:
    scoped = scoped_session(sessionmaker(shop.engine))
    shop.order(scoped, 1)  # type: ignore[arg-type]
    scoped.commit()
    shop.order(scoped, 2)  # type: ignore[arg-type]
    scoped.remove()
    assert (shop.sent, shop.orders()) == ([1], [1])


def test_what_is_no_session_is_refused(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        for wrong in (connection, shop.engine, None, "session", sessionmaker(shop.engine)):
            with pytest.raises(InvalidArgument) as refused:
                enqueue_task_after_commit(wrong, "ship")
            assert refused.value.field == "session"
        with pytest.raises(InvalidArgument, match="wrap it"):
            enqueue_task_after_commit(connection, "ship")


def test_threads_with_a_session_each_do_not_meet(shop: Shop) -> None:
    def work(number: int) -> None:
        for step in range(20):
            with shop.session() as session:
                shop.register(session, number * 100 + step)
                (session.commit if step % 2 else session.rollback)()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(shop.sent) == [n * 100 + step for n in range(8) for step in range(1, 20, 2)]
    assert shop.told == {"enqueued": 80, "rolled_back": 80}


def test_nothing_is_left_of_transactions_that_have_ended(shop: Shop) -> None:
    with shop.session() as session:
        for number in range(200):
            shop.register(session, number)
            with session.begin_nested():
                shop.register(session, number)
            (session.commit if number % 3 else session.rollback)()
        dropped = shop.session()  # and of one that nobody ends
        shop.register(dropped, 1)
        del dropped
        gc.collect()
        assert session_end.count_waiting() == 0


# --- When a send fails ---------------------------------------------------------------------------------------------------


def test_a_send_that_fails_harms_neither_the_commit_nor_the_next_ones(shop: Shop, session: Session) -> None:  # R004-5
    def send(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> None:
        if args == (2,):
            raise ConnectionError("no broker")
        shop.sent.append(args[0])

    with post_commit_sender(send):
        for number in (1, 2, 3):
            shop.order(session, number)
        session.commit()
    shop.order(session, 4)
    session.commit()
    assert (shop.sent, shop.orders()) == ([1, 3, 4], [1, 2, 3, 4])
    assert shop.told == {"enqueued": 3, "skipped": 1}
    [skipped] = [e for e in shop.events if e.facts["result"] == "skipped"]
    assert (skipped.level, skipped.facts["error"]) == ("error", "ConnectionError")


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_a_process_that_is_asked_to_end_tells_what_it_did_not_send(
    shop: Shop, session: Session, ending: type[BaseException]
) -> None:
    def send(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> None:
        if args == (2,):
            raise ending
        shop.sent.append(args[0])

    with post_commit_sender(send):
        for number in (1, 2, 3):
            shop.order(session, number)
        with pytest.raises(ending):
            session.commit()
    assert (shop.sent, shop.orders(), shop.told) == ([1], [1, 2, 3], {"enqueued": 1, "skipped": 2})
    shop.order(session, 4)
    session.commit()
    assert shop.sent == [1, 4]


def test_a_listener_of_events_that_raises_harms_nothing(shop: Shop, session: Session) -> None:
    def fail(_event: object) -> None:
        raise ZeroDivisionError

    deaf = PROCESS.listen(fail)
    try:
        shop.order(session, 1)
        session.commit()
    finally:
        deaf()
    assert shop.sent == [1]


@pytest.mark.parametrize("block", [False, True])
def test_what_a_sender_registers_belongs_to_the_next_transaction(shop: Shop, block: bool) -> None:
    def send(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> None:
        shop.sent.append(args[0])
        if args[0] < 3:
            shop.register(session, args[0] + 10)

    with post_commit_sender(send), shop.session() as session:
        if block:
            with session.begin():
                shop.order(session, 1)
                shop.order(session, 2)
        else:
            shop.order(session, 1)
            shop.order(session, 2)
            session.commit()
        assert shop.sent == [1, 2]
        session.commit()
        assert shop.sent == [1, 2, 11, 12]
        session.commit()
        assert shop.sent == [1, 2, 11, 12]


def test_a_sender_may_use_the_session(shop: Shop, session: Session) -> None:
    def send(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> None:
        shop.sent.append(args[0])
        if args == (1,):
            with session.begin():
                shop.order(session, 5)
            shop.register(session, 6)

    with post_commit_sender(send):
        shop.order(session, 1)
        shop.order(session, 2)
        session.commit()
        assert (shop.sent, shop.orders()) == ([1, 5, 2], [1, 2, 5])
        session.commit()
    assert shop.sent == [1, 5, 2, 6]


# --- What is told --------------------------------------------------------------------------------------------------------


def test_events_name_the_task_and_the_trace_and_nothing_else(shop: Shop, session: Session) -> None:  # R004-6
    header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with carried(header):
        enqueue_task_after_commit(session, "ship", 1, address="Ada, 12 Mill Lane")
    enqueue_task_after_commit(session, "bill", 2)
    session.commit()
    shop.register(session, 3)
    session.rollback()
    assert [(e.level, dict(e.facts)) for e in shop.events] == [
        ("info", {"task_name": "ship", "result": "enqueued", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}),
        ("info", {"task_name": "bill", "result": "enqueued"}),
        ("info", {"task_name": "ship", "result": "rolled_back"}),
    ]


def test_a_send_happens_in_the_trace_that_registered_it(shop: Shop, session: Session) -> None:
    header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    other = "00-11111111111111111111111111111111-2222222222222222-01"
    seen: list[str | None] = []
    with post_commit_sender(lambda *call: seen.append(traceparent())):
        with carried(header):
            shop.register(session, 1)
        shop.register(session, 2)
        with carried(other):
            session.commit()
    assert seen == [header, None]


# --- Bad input loses nothing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("", {}, "task_name"),
        (None, {}, "task_name"),
        ("ship", {"queue": ""}, "queue"),
        ("ship", {"queue": 3}, "queue"),
        ("ship", {"countdown": -1}, "countdown"),
        ("ship", {"countdown": float("nan")}, "countdown"),
        ("ship", {"countdown": float("inf")}, "countdown"),
        ("ship", {"countdown": 10**400}, "countdown"),
        ("ship", {"countdown": True}, "countdown"),
        ("ship", {"countdown": "soon"}, "countdown"),
        ("ship", {"lock": threading.Lock()}, "lock"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_and_the_others_are_sent(
    shop: Shop, session: Session, name: Any, options: dict[str, Any], field: str
) -> None:
    shop.order(session, 1)
    with pytest.raises(InvalidArgument) as refused:
        enqueue_task_after_commit(session, name, **options)
    assert refused.value.field == field
    session.commit()
    assert (shop.sent, shop.told) == ([1], {"enqueued": 1})


def test_without_a_sender_a_task_is_refused_where_it_is_registered(shop: Shop, session: Session) -> None:
    before = set_post_commit_sender(None)
    try:
        with pytest.raises(InvalidArgument, match="set_post_commit_sender"):
            shop.register(session, 1)
    finally:
        set_post_commit_sender(before)
    assert not session.in_transaction()


def test_a_permanently_closed_session_is_refused(shop: Shop) -> None:
    session = shop.session(close_resets_only=False)
    session.close()
    with pytest.raises(InvalidRequestError, match="permanently closed"):
        shop.register(session, 1)


# --- Rolled back behind the session's back ---------------------------------------------------------------------------------


def test_a_rollback_sent_as_text_sends_nothing(shop: Shop, session: Session) -> None:  # R004-1
    shop.order(session, 1)
    session.flush()
    shop.register(session, 2)
    session.execute(text("ROLLBACK"))
    session.commit()
    assert (shop.sent, shop.orders(), shop.told) == ([], [], {"rolled_back": 2})


def test_what_sqlite_rolls_back_by_itself_is_not_sent(sqlite_url: str) -> None:  # R004-1
    with open_shop(sqlite_url) as shop, shop.session() as session:
        shop.order(session, 1)
        session.commit()
        shop.order(session, 2)
        session.flush()
        shop.register(session, 3)
        table = Order.__tablename__
        with pytest.raises(IntegrityError):
            session.execute(
                text(
                    f"INSERT OR ROLLBACK INTO {table} (id) SELECT id FROM {table} WHERE id = (SELECT min(id) FROM {table})"
                )
            )
        session.commit()
        assert (shop.sent, shop.orders()) == ([1], [1])


# --- SQLite as most programs open it --------------------------------------------------------------------------------------


@pytest.fixture
def ordinary(sqlite_url: str) -> Iterator[tuple[Shop, Any]]:
    """A shop, and an engine that nobody has prepared."""
    engine = create_engine(sqlite_url)
    with open_shop(sqlite_url) as shop:
        yield shop, engine
    engine.dispose()


def test_a_savepoint_outside_of_any_transaction_is_refused_before_anything_is_registered(
    ordinary: tuple[Shop, Any],
) -> None:
    """R004-2: its rows are committed at its release, so neither sending nor dropping the task would be right."""
    shop, engine = ordinary
    with Session(engine) as session, session.begin_nested():
        session.execute(insert(Order).values(id=1))
        with pytest.raises(UnsafeSession, match="make_engine"):
            shop.register(session, 1)
    assert (shop.sent, shop.told) == ([], {})


@pytest.mark.parametrize("first", ["nothing", "select", "insert"])
@pytest.mark.parametrize("end", ["commit", "rollback", "savepoint"])
def test_savepoints_of_an_ordinary_engine_are_exact_for_what_is_registered_before_them(
    ordinary: tuple[Shop, Any], first: str, end: str
) -> None:  # R004-2, R004-3
    shop, engine = ordinary
    with Session(engine) as session:
        if first == "select":
            session.execute(text("SELECT 1"))
        elif first == "insert":
            session.execute(insert(Order).values(id=9))
        shop.order(session, 1) if first == "insert" else shop.register(session, 1)
        savepoint = session.begin_nested()
        if first != "insert":
            session.execute(insert(Order).values(id=1))
        shop.order(session, 2)
        if end == "savepoint":
            savepoint.rollback()
            session.execute(insert(Order).values(id=1)) if first != "insert" else None
        else:
            savepoint.commit()
        if end == "rollback":
            session.rollback()
        else:
            session.commit()
    assert shop.sent == {"commit": [1, 2], "savepoint": [1], "rollback": []}[end]
    assert [order for order in shop.orders() if order != 9] == shop.sent


def test_a_task_registered_first_in_a_savepoint_is_exact_too(ordinary: tuple[Shop, Any]) -> None:
    shop, engine = ordinary
    with Session(engine) as session, session.begin(), session.begin_nested():
        shop.order(session, 1)
    with pytest.raises(RuntimeError), Session(engine) as session, session.begin():
        with session.begin_nested():
            shop.order(session, 2)
        raise RuntimeError("all of it")
    assert (shop.sent, shop.orders()) == ([1], [1])
