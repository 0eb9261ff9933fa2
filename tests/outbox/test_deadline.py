"""Everything that a commit waits for has a deadline (T004-q)."""

from __future__ import annotations

import contextvars
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from redis import Redis
from sqlalchemy import make_url, text
from sqlalchemy.orm import Session

from contract.hands import Proxy, wait_until
from duly.idempotency import MemoryStore, RedisStore, SqlStore, idempotent_task
from duly.idempotency.reservation import State
from duly.idempotency.store import KeyFilter
from duly.integrations.celery import apply_robust_settings
from duly.kernel.errors import StoreUnavailable
from duly.kernel.events import PROCESS
from duly.outbox import enqueue_task_after_commit, set_post_commit_sender
from duly.outbox.transports.brokers import CAREFUL
from duly.storage import deadline as bounds
from duly.storage.deadline import Deadline
from duly.storage.sqlite import make_engine


@contextmanager
def mute() -> Iterator[int]:
    """A server that accepts and is silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        for each in kept:
            each.close()
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def told() -> Iterator[list[Any]]:
    heard: list[Any] = []
    stop = PROCESS.listen(heard.append)
    yield heard
    stop()
    set_post_commit_sender(None)


def commit(*names: str) -> None:
    with Session(make_engine("sqlite://")) as session, session.begin():
        for name in names:
            enqueue_task_after_commit(session, name)


def results(told: list[Any]) -> list[tuple[str, str]]:
    return [(e.facts["task_name"], e.facts["result"]) for e in told if e.name == "postcommit"]


@pytest.mark.parametrize("scheme", ["redis", "pyamqp"])
def test_a_hung_broker_keeps_no_commit(told: list[Any], scheme: str) -> None:  # F8
    with mute() as port:
        app = Celery(
            "hung", broker=f"{scheme}://127.0.0.1:{port}//" if scheme == "pyamqp" else f"redis://127.0.0.1:{port}/0"
        )
        set_post_commit_sender(app, within=0.2)
        commit("one")  # would stand here for minutes
        commit("two")  # waits behind the first, and keeps nobody
        assert [e.name for e in told] == ["postcommit_late"] * 2
        kind = "redis" if scheme == "redis" else "amqp"
        assert app.conf.broker_transport_options.items() >= dict(CAREFUL[kind]).items()


def test_what_is_late_tells_its_result_and_what_waits_behind_it_follows_in_order(told: list[Any]) -> None:
    go, sent = threading.Event(), list[str]()

    def sender(name: str, args: Any, kwargs: Any, options: Any) -> None:
        if name == "a":
            assert go.wait(30)
        if name == "c":
            raise OSError("gone")
        sent.append(name)

    set_post_commit_sender(sender, within=0.05)
    commit("a", "b")
    commit("c")
    commit("d")
    assert (sent, results(told)) == ([], [])
    go.set()
    wait_until(lambda: len(results(told)) == 4)
    assert sent == ["a", "b", "d"]
    assert results(told) == [("a", "enqueued"), ("b", "enqueued"), ("c", "skipped"), ("d", "enqueued")]


def test_what_has_no_place_behind_a_late_one_is_told_as_skipped(
    told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MOST_BEHIND", 1)
    go = threading.Event()
    set_post_commit_sender(lambda *_: go.wait(30), within=0.05)
    for name in ("a", "b", "c"):
        commit(name)
    assert results(told) == [("c", "skipped")]
    go.set()
    wait_until(lambda: len(results(told)) == 3)


def test_a_call_is_made_with_the_callers_context_and_raises_to_whoever_waits() -> None:
    who = contextvars.ContextVar("who", default="")
    who.set("ada")
    seen: list[str] = []
    bound = Deadline(30)
    assert bound.run(lambda: seen.append(who.get())) == "done"
    with pytest.raises(KeyboardInterrupt):
        bound.run(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert seen == ["ada"]


def test_a_hung_store_of_keys_keeps_no_commit_and_its_end_is_written_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # C2
    monkeypatch.setattr("duly.idempotency.keeper.Deadline", lambda: Deadline(0.05))
    go, hangs = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def replace(self, old: Any, new: Any) -> bool:
            if hangs.is_set():
                assert go.wait(30)
            return super().replace(old, new)

    store = Slow()

    @idempotent_task(name="slow", store=store, key=lambda session: "k")
    def body(session: Session) -> int:
        session.execute(text("SELECT 1"))
        return 7

    with Session(make_engine("sqlite://")) as session, session.begin():
        body(session)
        hangs.set()
    [found] = store._kept.values()
    assert found.state is State.IN_PROGRESS, "the commit is over, and the end is on its way"
    go.set()
    wait_until(lambda: [kept.state for kept in store._kept.values()] == [State.SUCCEEDED])


@pytest.mark.parametrize("kind", [pytest.param("pg_url", marks=pytest.mark.postgres), "redis_url"])
def test_a_hung_server_of_keys_keeps_no_commit_and_its_end_is_written_later(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:  # C2
    monkeypatch.setattr("duly.idempotency.keeper.Deadline", lambda: Deadline(0.05))
    url = make_url(request.getfixturevalue(kind))
    proxy = Proxy(str(url.host), int(url.port or 0))
    straight, slow = (one.render_as_string(hide_password=False) for one in (url, url.set(port=proxy.port)))
    store: SqlStore | RedisStore = SqlStore(slow) if kind == "pg_url" else RedisStore(slow)
    direct: SqlStore | RedisStore = SqlStore(straight) if kind == "pg_url" else RedisStore(straight)
    if isinstance(store, SqlStore):
        store.create_table()
    session = Session(make_engine("sqlite://"))

    @idempotent_task(name="hung", store=store)
    def handed(session: Session) -> None:
        session.execute(text("CREATE TABLE a (id INTEGER)"))

    @idempotent_task(name="taken", store=store)
    def taken() -> None:
        session.execute(text("CREATE TABLE b (id INTEGER)"))

    def states() -> list[State]:
        return [one.state for one in direct.find(KeyFilter(), 10)[0]]

    handed(session)
    taken()
    proxy.swallow = True
    session.commit()  # would stand here for ever
    assert states() == [State.IN_PROGRESS] * 2
    proxy.swallow = False
    proxy.hang_up()
    wait_until(lambda: states() == [State.SUCCEEDED] * 2)
    proxy.door.close()
    for each in (store, direct):
        each.close()


def test_a_client_of_redis_that_would_wait_for_ever_is_bounded() -> None:  # C2
    with mute() as port:
        store = RedisStore(Redis(port=port, socket_timeout=None), timeout=0.1)
        with pytest.raises(StoreUnavailable, match="TimeoutError"):
            store.read("t", "k")
        store.close()


def test_robust_settings_bound_the_broker_and_the_results_and_keep_what_is_said() -> None:  # T004-q
    app = Celery("x", broker="redis://localhost/0", backend="redis://localhost/1")
    app.conf.broker_transport_options = {"socket_timeout": 3}
    found = apply_robust_settings(app)
    assert found["broker_transport_options"]["socket_timeout"] == 3
    assert found["broker_transport_options"]["socket_connect_timeout"] == 5
    assert (found["redis_socket_timeout"], found["redis_socket_connect_timeout"]) == (15, 5)
    plain = Celery("y", broker="amqp://localhost")
    assert apply_robust_settings(plain)["broker_transport_options"]["read_timeout"] == 15


# --- A process that ends ------------------------------------------------------------------------------------------------

PROGRAM = """
import sys, threading, time
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from duly.idempotency import MemoryStore, idempotent_task
from duly.kernel.errors import StoreUnavailable
from duly.kernel.events import PROCESS
from duly.outbox import enqueue_task_after_commit, set_post_commit_sender
from duly.storage import deadline

PROCESS.listen(lambda e: print(e.name, e.facts.get("count", ""), e.facts.get("task_names", e.facts.get("result", "")), flush=True))
seconds = float(sys.argv[1])
deadline.WITHIN = 0.7


def sender(name, args, kwargs, options):
    time.sleep(seconds)


class Away(MemoryStore):
    back_at = float("inf")

    def replace(self, old, new):
        if time.monotonic() < self.back_at:
            raise StoreUnavailable("away")
        print("written", flush=True)
        return super().replace(old, new)


store = Away()


@idempotent_task(store=store)
def body():
    return 1


set_post_commit_sender(sender, within=0.7)
with Session(create_engine("sqlite://")) as session:
    enqueue_task_after_commit(session, "CHARGE")
    session.commit()
body()
store.back_at = time.monotonic() + seconds / 2
"""


def test_a_process_that_ends_waits_once_more_and_says_what_is_lost() -> None:  # FAULTS_2 F19
    def told(seconds: float) -> list[str]:
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(seconds)], capture_output=True, text=True, timeout=60, check=True
        )
        return run.stdout.splitlines()

    back, lost = told(1.0), told(1000.0)
    assert "written" in back and "postcommit  enqueued" in back
    assert not any("lost" in line or "unwritten" in line for line in back)
    assert "written" not in lost and "postcommit_lost 1 ['CHARGE']" in lost
    assert any(line.startswith("idempotency_unwritten") for line in lost)
