"""Who sends: a Duly application, a Celery application, a function. Chosen, and given its arguments, at registration."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from celery import Celery, current_app
from sqlalchemy.orm import Session

from duly import Duly, InvalidArgument
from duly.outbox.post_commit import enqueue_task_after_commit, post_commit_sender, set_post_commit_sender
from duly.testing import ManualClock
from duly.tracing import carried
from outbox.post_commit_hands import Order, Shop, open_shop

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
HEADER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def shop(db_url: str) -> Iterator[Shop]:
    with open_shop(db_url) as shop:
        yield shop


@pytest.fixture
def session(shop: Shop) -> Iterator[Session]:
    with shop.session() as session:
        yield session


@pytest.fixture
def app(db_url: str) -> Iterator[Duly]:
    app = Duly(db_url, clock=ManualClock(NOON))

    @app.task("ship", queue="mail", priority=3)
    def ship(order: int, day: datetime | None = None) -> None: ...

    yield app
    app.close()


# --- A function ----------------------------------------------------------------------------------------------------------


def test_a_function_gets_the_name_the_arguments_and_the_options_given(session: Session) -> None:
    sender = Mock()
    with post_commit_sender(sender):
        enqueue_task_after_commit(session, "ship", 1, "x", queue="mail", countdown=timedelta(minutes=2), to="Ada")
        enqueue_task_after_commit(session, "ship", countdown=0)
        enqueue_task_after_commit(session, "ship", session=5, task_name="x")
        session.commit()
    assert [call.args for call in sender.call_args_list] == [
        ("ship", (1, "x"), {"to": "Ada"}, {"queue": "mail", "countdown": 120.0}),
        ("ship", (), {}, {"countdown": 0}),
        ("ship", (), {"session": 5, "task_name": "x"}, {}),
    ]


def test_arguments_are_sent_as_they_were_when_registered(session: Session) -> None:
    sent: list[Any] = []
    items = [1]
    with post_commit_sender(lambda *call: sent.append(call)):
        enqueue_task_after_commit(session, "ship", items, same=items, deep={"items": items})
        items.append(2)
        session.commit()
    assert sent == [("ship", ([1],), {"same": [1], "deep": {"items": [1]}}, {})]


def test_the_sender_is_the_one_of_the_registration(session: Session) -> None:
    first, second = Mock(), Mock()
    with post_commit_sender(first):
        enqueue_task_after_commit(session, "ship", 1)
        with post_commit_sender(second):
            enqueue_task_after_commit(session, "ship", 2)
            session.commit()
    assert ([c.args[1] for c in first.call_args_list], [c.args[1] for c in second.call_args_list]) == ([(1,)], [(2,)])


def test_the_former_sender_comes_back(session: Session) -> None:
    before = set_post_commit_sender(None)
    first, second = Mock(), Mock()
    try:
        assert set_post_commit_sender(first) is None
        with pytest.raises(ZeroDivisionError), post_commit_sender(second) as inside:
            assert inside is second
            raise ZeroDivisionError
        assert set_post_commit_sender(None) is first
    finally:
        set_post_commit_sender(before)


def test_a_sender_is_that_of_the_whole_process(shop: Shop) -> None:
    def work() -> None:
        with shop.session() as session:
            shop.register(session, 7)
            session.commit()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert shop.sent == [7]


async def _asynchronous(*call: object) -> None: ...


class _Called:
    async def __call__(self, *call: object) -> None: ...


@pytest.mark.parametrize("sender", [_asynchronous, _Called(), AsyncMock(), "ship", 5, object()])
def test_who_cannot_send_is_refused_where_he_is_chosen(sender: Any) -> None:
    with pytest.raises(InvalidArgument) as refused, post_commit_sender(sender):
        pass
    assert refused.value.field == "sender"


def test_a_coroutine_that_nobody_awaits_is_a_failed_send(shop: Shop, session: Session) -> None:
    with post_commit_sender(lambda *call: _asynchronous(*call)):
        enqueue_task_after_commit(session, "ship")
        session.commit()
    assert shop.told == {"skipped": 1}


# --- Celery --------------------------------------------------------------------------------------------------------------


def test_a_celery_application_sends_by_name(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    celery = Celery("shop")
    monkeypatch.setattr(celery, "send_task", lambda *args, **kwargs: sent.append((args, kwargs)))
    items = [1]
    with post_commit_sender(celery):
        enqueue_task_after_commit(session, "ship", 1, items=items)
        items.append(2)
        enqueue_task_after_commit(session, "ship", queue="mail", countdown=30)
        session.commit()
    assert sent == [(("ship", (1,), {"items": [1]}), {}), (("ship", (), {}), {"queue": "mail", "countdown": 30})]


def test_a_message_reaches_a_broker(shop: Shop, session: Session) -> None:
    celery = Celery("shop", broker="memory://", task_ignore_result=True)
    with post_commit_sender(celery):
        enqueue_task_after_commit(session, "ship", 1, to="Ada", queue="mail")
        session.commit()
    with celery.connection_for_read() as connection, connection.SimpleQueue("mail") as queue:
        message = queue.get(timeout=5)
        assert message.headers["task"] == "ship"
        assert message.payload[:2] == [[1], {"to": "Ada"}]
        message.ack()
    assert shop.told == {"enqueued": 1}


def test_what_celery_could_not_send_is_refused_where_it_is_written(session: Session) -> None:
    """After the commit nobody can mend it any more."""
    order = Order(id=1)
    with post_commit_sender(Celery("shop", broker="memory://")), session.begin():
        for args, kwargs, path in (((1, order), {}, r"args\[1\]"), ((), {"order": order}, "order")):
            with pytest.raises(InvalidArgument, match=f"{path}: cannot be encoded by Celery's serializer 'json'"):
                enqueue_task_after_commit(session, "receipt", *args, **kwargs)


def test_celery_gets_the_trace_that_was_current_at_the_registration(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent: list[Any] = []
    celery = Celery("shop", broker="memory://", task_ignore_result=True)
    monkeypatch.setattr(
        celery.amqp, "send_task_message", lambda producer, name, message, **o: sent.append(o["headers"])
    )
    with post_commit_sender(celery), session.begin(), carried(trace):
        enqueue_task_after_commit(session, "receipt", 1)
    assert sent == [{"traceparent": trace}]


def test_the_current_application_of_celery_is_one(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(current_app._get_current_object(), "send_task", lambda *args, **kwargs: sent.append(args[0]))
    with post_commit_sender(current_app):
        enqueue_task_after_commit(session, "ship")
        session.commit()
    assert sent == ["ship"]


# --- Duly ----------------------------------------------------------------------------------------------------------------


def test_a_duly_application_makes_a_job_of_a_task_it_knows(app: Duly, shop: Shop, session: Session) -> None:
    with post_commit_sender(app):
        enqueue_task_after_commit(session, "ship", 1, day=NOON)
        enqueue_task_after_commit(session, "ship", 2, queue="slow", countdown=timedelta(minutes=5))
        assert app.jobs.count() == 0
        session.commit()
    second, first = app.jobs.find()
    assert (first.input, first.queue, first.priority) == ({"order": 1, "day": "2026-03-02T12:00:00Z"}, "mail", 3)
    assert (second.input["order"], second.queue, second.run_at) == (2, "slow", NOON + timedelta(minutes=5))
    assert shop.told == {"enqueued": 2}


def test_a_job_of_a_rolled_back_transaction_is_not_made(app: Duly, session: Session) -> None:
    with post_commit_sender(app):
        enqueue_task_after_commit(session, "ship", 1)
        session.rollback()
        session.commit()
    assert app.jobs.count() == 0


def test_an_argument_that_a_job_cannot_carry_is_refused_at_registration(app: Duly, session: Session) -> None:
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        (("one",), {}, "order"),
        ((), {"order": 1, "wrong": 2}, "wrong"),
        ((1, 2, 3), {}, "task ship"),
    ]
    with post_commit_sender(app):
        for args, kwargs, field in cases:
            with pytest.raises(InvalidArgument) as refused:
                enqueue_task_after_commit(session, "ship", *args, **kwargs)
            assert refused.value.field == field
    assert not session.in_transaction()


def test_arguments_of_a_job_are_encoded_at_registration(app: Duly, session: Session) -> None:
    items = [1]
    with post_commit_sender(app):
        enqueue_task_after_commit(session, "elsewhere", items=items)
        items.append(2)
        session.commit()
    assert app.jobs.find()[0].input == {"items": [1]}


def test_a_task_that_is_defined_elsewhere_takes_keywords_only(app: Duly, session: Session) -> None:
    with post_commit_sender(app):
        with pytest.raises(InvalidArgument, match="as keywords") as refused:
            enqueue_task_after_commit(session, "elsewhere", 1)
        assert refused.value.field == "args"
        enqueue_task_after_commit(session, "elsewhere", order=1, queue="far")
        session.commit()
    assert [(job.task, job.queue, job.input) for job in app.jobs.find()] == [("elsewhere", "far", {"order": 1})]


def test_a_job_belongs_to_the_trace_that_registered_it(app: Duly, session: Session) -> None:
    with post_commit_sender(app):
        with carried(HEADER):
            enqueue_task_after_commit(session, "ship", 1)
        session.commit()
    assert app.jobs.find()[0].meta == {"traceparent": HEADER}


def test_a_database_of_jobs_that_is_away_harms_no_commit(shop: Shop, session: Session) -> None:  # R004-5
    app = Duly("postgresql://nobody@127.0.0.1:1/nowhere")
    with post_commit_sender(app):
        enqueue_task_after_commit(session, "ship", order=1)
        session.commit()
    assert shop.told == {"skipped": 1}
    app.close()
