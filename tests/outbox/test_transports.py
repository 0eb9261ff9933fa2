"""The other transports: a queue of Duly, Celery, a stream, RabbitMQ. Each hands over the message id."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection, Exchange, Queue
from sqlalchemy import insert

from duly import Duly, InvalidArgument, PermanentError
from duly.idempotency import RedisStore
from duly.jobs.tables import workers
from duly.kernel.errors import DestinationUnavailable
from duly.kernel.events import Event
from duly.kernel.names import noticing
from duly.outbox.box import Outbox
from duly.outbox.message import Message, Status
from duly.outbox.transports import Transport
from duly.outbox.transports.celery import CeleryTransport
from duly.outbox.transports.duly import DulyTransport
from duly.outbox.transports.rabbitmq import RabbitTransport
from duly.outbox.transports.redis import RedisStreamTransport
from duly.testing import drain
from duly.tracing import carried
from outbox.hands import AT_ONCE, Recorder, publish
from servers import ValkeyServer

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
IDENT = "1b4e28ba-2fa1-4d5b-9c3c-0e02b2c3d479"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def message(destination: str, payload: Any, **more: Any) -> Message:
    return Message(7, IDENT, more.pop("tenant", "default"), destination, payload, **{"created_at": NOON, **more})


def test_they_are_transports() -> None:
    kinds = (DulyTransport, CeleryTransport, RedisStreamTransport, RabbitTransport)
    assert all(callable(kind.send) for kind in kinds)
    assert isinstance(Recorder(), Transport)


# --- Duly ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Duly]:
    """Another application, on another database."""
    app = Duly(f"sqlite:///{tmp_path / 'warehouse.db'}")

    @app.task("PICK", queue="picking")
    def pick(order: int, count: int = 1) -> dict[str, int]:
        return {"picked": order * count}

    yield app
    app.close()


def test_a_message_becomes_one_job_however_often_it_is_handed_over(warehouse: Duly) -> None:
    transport = DulyTransport(warehouse)
    for attempt in (1, 2):
        transport.send(message("duly:PICK", {"order": 17}, tenant="acme", attempts=attempt))
    [job] = warehouse.jobs.find()
    assert (job.task, job.queue, job.tenant, job.input, job.key) == (
        "PICK",
        "picking",
        "acme",
        {"order": 17},
        f"outbox:{IDENT}",
    )
    drain(warehouse)
    transport.send(message("duly:PICK", {"order": 17}, tenant="acme"))
    assert warehouse.jobs.count() == 1


def test_the_queue_and_the_other_options_may_be_set(warehouse: Duly) -> None:
    DulyTransport(warehouse, queue="late", priority=5).send(message("duly:PICK", {"order": 1}))
    assert [(job.queue, job.priority) for job in warehouse.jobs.find()] == [("late", 5)]
    DulyTransport(warehouse).send(message("duly:ELSEWHERE", {"any": [1]}))  # a task that is defined in another program
    assert warehouse.jobs.find()[0].task == "ELSEWHERE"


def test_a_relay_warns_of_no_task_that_a_worker_of_the_other_duly_knows(warehouse: Duly, tmp_path: Path) -> None:  # A2
    handle = Duly(f"sqlite:///{tmp_path / 'warehouse.db'}")  # as a relay has it: it defines nothing
    transport = DulyTransport(handle, queue="picking")
    handle.open()
    with noticing() as seen:
        transport.send(message("duly:PICK", {"order": 1}))
    assert [said.partition(".")[0] for said in seen] == ['No task is called "PICK"', 'No queue is called "picking"']
    now = handle.engine.clock.now()
    row = {"name": "w", "host": "h", "pid": 1, "version": "0", "state": "running", "started_at": now, "seen_at": now}
    row |= {"queues": {"picking": 1}, "tasks": ["PICK"]}
    handle.db.write(lambda c: c.execute(insert(workers).values(row)))
    handle.engine.names._found.clear()  # what was looked up a moment ago
    with noticing() as seen:
        transport.send(message("duly:PICK", {"order": 1}))
    assert seen == []
    strict = Duly(f"sqlite:///{tmp_path / 'warehouse.db'}", strict_names=True)
    with pytest.raises(DestinationUnavailable, match="PACK"):  # a worker that knows it may start later
        DulyTransport(strict, queue="picking").send(message("duly:PACK", {}))
    for app in (handle, strict):
        app.close()


@pytest.mark.parametrize(
    ("destination", "payload"),
    [
        ("duly:PICK", [17]),
        ("duly:PICK", 17),
        ("duly", {"order": 1}),
        ("duly:PICK", {"order": "many"}),
        ("duly:PICK", {"size": 3}),
    ],
    ids=["a list", "a number", "no task", "wrong type", "wrong name"],
)
def test_a_message_that_can_never_be_a_job_is_refused_for_good(warehouse: Duly, destination: str, payload: Any) -> None:
    with pytest.raises(PermanentError):
        DulyTransport(warehouse).send(message(destination, payload))
    assert warehouse.jobs.count() == 0


def test_from_the_order_to_the_job_in_another_database(make: Callable[..., Outbox], warehouse: Duly) -> None:
    box = make({"duly": DulyTransport(warehouse)})
    with carried(TRACE):
        publish(box, "duly:PICK", {"order": 6, "count": 7})
    box.relay().run_once()
    assert drain(warehouse).succeeded == 1
    [job] = warehouse.jobs.find()
    assert job.output == {"picked": 42}
    assert TRACE[3:35] in json.dumps(job.meta)  # the job belongs to the trace of the order


def test_a_database_that_does_not_answer_is_tried_again(make: Callable[..., Outbox]) -> None:
    gone = Duly("postgresql://nobody@127.0.0.1:9/gone?connect_timeout=1")
    box = make({"duly": DulyTransport(gone)})
    publish(box, "duly:PICK", {"order": 1})
    assert box.relay().run_once().failed == 1


@pytest.mark.parametrize("wrong", [{"key": "k"}, {"session": None}, {"tenant": "t"}], ids=str)
def test_what_the_message_decides_cannot_be_set(warehouse: Duly, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        DulyTransport(warehouse, **wrong)


def test_something_that_is_no_application_is_refused() -> None:
    for kind in (DulyTransport, CeleryTransport, RedisStreamTransport):
        with pytest.raises(InvalidArgument):
            kind(object())  # type: ignore[abstract, arg-type]
    with pytest.raises(InvalidArgument, match="url"):
        RabbitTransport("rabbit")


# --- Celery --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def celery(redis_url: str) -> Iterator[Celery]:
    app = Celery("shop", broker=redis_url, set_as_current=False)
    yield app
    app.close()


def queued(redis_url: str, queue: str = "celery") -> list[tuple[dict[str, Any], Any]]:
    """(headers, body) of the tasks that wait in the broker, the oldest first."""
    with redis.Redis.from_url(redis_url) as client:
        raw = [json.loads(text) for text in client.lrange(queue, 0, -1)][::-1]  # type: ignore[union-attr, arg-type]
    return [(r["headers"], json.loads(base64.b64decode(r["body"]))) for r in raw]


def test_a_message_becomes_a_celery_task_with_its_id(celery: Celery, redis_url: str) -> None:
    transport = CeleryTransport(celery)
    transport.send(message("celery:shop.pick", {"order": 17}, headers={"traceparent": TRACE}))
    transport.send(message("celery:shop.count", [1, 2]))
    (first, first_body), (second, second_body) = queued(redis_url)
    assert (first["id"], first["task"], first["traceparent"]) == (IDENT, "shop.pick", TRACE)
    assert first_body[:2] == [[], {"order": 17}]
    assert (second["task"], second_body[:2]) == ("shop.count", [[[1, 2]], {}])


def test_headers_of_a_message_cannot_pass_for_celerys_own(celery: Celery, redis_url: str) -> None:  # T004-r
    wrong = {"id": "another", "task": "shop.other", "expires": "2000-01-01", "Retries": "9", "mine": "yes"}
    CeleryTransport(celery).send(message("celery:shop.pick", {}, headers=wrong))
    [(headers, _)] = queued(redis_url)
    assert (headers["id"], headers["task"], headers["expires"], headers["retries"]) == (IDENT, "shop.pick", None, 0)
    assert headers["mine"] == "yes"


def test_a_broker_is_asked_to_confirm_and_not_waited_for_for_ever(celery: Celery) -> None:  # T004-q
    celery.conf.broker_transport_options = {"socket_timeout": 3, "visibility_timeout": 7}
    CeleryTransport(celery).send(message("celery:shop.pick", {}))
    chosen = celery.conf.broker_transport_options
    assert chosen == {"socket_timeout": 3, "visibility_timeout": 7, "socket_connect_timeout": 5}


def test_options_of_celery_go_along(celery: Celery, redis_url: str) -> None:
    CeleryTransport(celery, queue="late", expires=60).send(message("celery:shop.pick", {}))
    [(headers, _)] = queued(redis_url, "late")
    assert headers["expires"] is not None
    with pytest.raises(InvalidArgument, match="task_id"):
        CeleryTransport(celery, task_id="x")
    with pytest.raises(PermanentError):
        CeleryTransport(celery).send(message("celery", {}))


def test_a_celery_worker_gets_what_was_published(make: Callable[..., Outbox], redis_url: str) -> None:
    from celery.contrib.testing.worker import start_worker

    app = Celery("shop", broker=redis_url, backend=redis_url, set_as_current=False)

    @app.task(name="shop.pick", bind=True, shared=False)
    def pick(self: Any, order: int) -> Any:
        return [self.request.id, order]

    box = make({"celery": CeleryTransport(app)})
    ident = publish(box, "celery:shop.pick", {"order": 17})
    assert box.relay().run_once().sent == 1
    with start_worker(app, perform_ping_check=False, pool="solo"):
        assert app.AsyncResult(ident).get(timeout=30) == [ident, 17]
    app.close()


# --- Redis ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def valkey(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def test_a_message_becomes_an_entry_of_a_stream(redis_url: str, valkey: Any) -> None:
    transport = RedisStreamTransport(redis_url)
    transport.send(message("redis:orders", {"n": [1, "é"]}, headers={"a": "b"}, key="k", ordering_key="o"))
    [(_, fields)] = valkey.xrange("orders")
    assert json.loads(fields.pop("payload")) == {"n": [1, "é"]}
    assert json.loads(fields.pop("headers")) == {"a": "b"}
    assert fields == {"id": IDENT, "key": "k", "ordering_key": "o", "created_at": "2026-03-02T12:00:00+00:00"}
    transport.close()


def test_the_stream_may_be_named_once_for_all(valkey: Any) -> None:
    RedisStreamTransport(valkey, "all").send(message("redis", 1))
    RedisStreamTransport(valkey, "all").send(message("redis:own", 1))
    assert (valkey.xlen("all"), valkey.xlen("own")) == (1, 1)
    with pytest.raises(PermanentError, match="no stream"):
        RedisStreamTransport(valkey).send(message("redis", 1))


def test_a_stream_is_kept_short(valkey: Any) -> None:
    exact = RedisStreamTransport(valkey, maxlen=10, approximate=False)
    about = RedisStreamTransport(valkey, maxlen=10)
    for n in range(400):
        exact.send(message("redis:exact", n))
        about.send(message("redis:about", n))
    assert valkey.xlen("exact") == 10
    assert 10 <= valkey.xlen("about") < 400
    for wrong in (0, True, "10"):
        with pytest.raises(InvalidArgument, match="maxlen"):
            RedisStreamTransport(valkey, maxlen=wrong)


def test_a_name_that_holds_something_else_holds_the_destination(valkey: Any) -> None:  # R004-19
    valkey.set("orders", "x")
    with pytest.raises(DestinationUnavailable, match="orders is no stream") as raised:
        RedisStreamTransport(valkey).send(message("redis:orders", 1))
    assert raised.value.attention


def test_a_line_arrives_in_order_and_a_stopped_server_gets_it_later(
    make: Callable[..., Outbox], own_valkey: ValkeyServer
) -> None:
    transport = RedisStreamTransport(own_valkey.url)
    box = make({"redis": transport}, backoff=AT_ONCE, max_attempts=10)
    for n in range(10):
        publish(box, "redis:orders", n, ordering_key="o")
    own_valkey.stop()
    relay = box.relay()
    assert relay.run_once().failed == 1
    own_valkey.start()
    relay.run_once()
    with redis.Redis.from_url(own_valkey.url, decode_responses=True) as client:
        assert [json.loads(fields["payload"]) for _, fields in client.xrange("orders")] == list(range(10))  # type: ignore[union-attr]
    transport.close()


# --- RabbitMQ: kombu's memory transport stands in for the broker -----------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[Connection]:
    """A broker in this process. What only a real one does (confirmations, returns) is not shown here."""
    with Connection("memory://") as connection:
        Queue("orders", Exchange("shop", type="topic"), routing_key="orders.*")(connection.channel()).declare()
        Queue("plain")(connection.channel()).declare()
        yield connection


def received(broker: Connection, queue: str) -> list[Any]:
    simple = broker.SimpleQueue(queue)
    out = []
    while simple.qsize():
        out.append(simple.get(timeout=1))
        out[-1].ack()
    simple.close()
    return out


def test_a_message_is_published_with_its_id(broker: Connection) -> None:
    transport = RabbitTransport("memory://", "shop")
    transport.send(message("rabbitmq:orders.new", {"n": 1}, headers={"traceparent": TRACE}))
    transport.send(message("rabbitmq:orders.paid", [2]))
    first, second = received(broker, "orders")
    assert (first.payload, second.payload) == ({"n": 1}, [2])
    assert first.properties["message_id"] == IDENT
    assert first.properties["timestamp"] == int(NOON.timestamp())
    assert first.headers["traceparent"] == TRACE
    assert (first.content_type, first.properties["delivery_mode"]) == ("application/json", 2)
    transport.close()


def test_without_an_exchange_the_target_is_the_queue(broker: Connection) -> None:
    RabbitTransport("memory://").send(message("rabbitmq:plain", 1))
    RabbitTransport("memory://", routing_key="plain").send(message("rabbitmq", 2))
    assert [m.payload for m in received(broker, "plain")] == [1, 2]
    with pytest.raises(PermanentError, match="routing key"):
        RabbitTransport("memory://").send(message("rabbitmq", 1))


def test_confirmations_are_asked_for_and_a_connection_that_failed_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = RabbitTransport("memory://")
    assert transport._connection.transport_options["confirm_publish"] is True
    transport.send(message("rabbitmq:a", 1))
    transport.send(message("rabbitmq:a", 1))
    assert len(transport._idle) == 1  # used again
    real, asked = transport._publish, list[Any]()

    def fail(channel: Any, *args: Any) -> None:
        asked.append(channel)
        raise TimeoutError("no confirmation")

    monkeypatch.setattr(transport, "_publish", fail)
    with pytest.raises(TimeoutError):
        transport.send(message("rabbitmq:a", 1))
    assert not transport._idle
    monkeypatch.setattr(transport, "_publish", lambda channel, *args: asked.append(channel) or real(channel, *args))
    transport.send(message("rabbitmq:a", 1))
    assert asked[0] is not asked[1]
    transport.close()


def test_a_broker_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(OSError, match="refused"):
        RabbitTransport("amqp://guest@127.0.0.1:9//").send(message("rabbitmq:a", 1))


def test_events_of_sends_hold_no_address(make: Callable[..., Outbox], app: Duly) -> None:
    heard: list[Event] = []
    app.events.listen(heard.append)
    box = make({"rabbitmq": RabbitTransport("amqp://guest:s3cret@127.0.0.1:9//")})
    ident = publish(box, "rabbitmq:a", 1)
    box.relay().run_once()
    assert box.get(ident).status is Status.PENDING
    assert "s3cret" not in repr(heard) + repr(box.get(ident).error)


def test_a_url_that_cannot_be_used_is_not_repeated() -> None:
    """A password with a slash in it ends up where a port is looked for."""
    for make in (RedisStreamTransport, RedisStore):
        with pytest.raises(InvalidArgument, match="URL that cannot be used") as caught:
            make("redis://:s3cret/x@host:6379/0")
        assert "s3cret" not in str(caught.value)
        assert caught.value.__suppress_context__
