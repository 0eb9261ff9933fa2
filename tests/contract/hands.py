"""A worker's hand, moved one step at a time: claim, settle, renew, rescue. And what a test reads afterwards."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import RowMapping, select, text

from duly import Backoff, Duly, Job
from duly.audit.tables import audit_log
from duly.jobs.job import Attempt
from duly.jobs.run import describe
from duly.jobs.settle import Claimed, settle
from duly.jobs.worker import Worker
from duly.kernel.outcome import Outcome, OutcomeKind

T = TypeVar("T")
K = OutcomeKind
#: Where every manual clock begins.
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


@dataclass
class Hand:
    """Does what a worker does, when it is told to, through the worker's own statements."""

    app: Duly
    name: str = "hand"
    lease: float = 30.0

    def claim(self, queue: str = "default", n: int = 1) -> list[Claimed]:
        """Make due jobs ready and claim up to ``n`` jobs of a queue, governed or not."""
        app, engine = self.app, self.app.engine
        app.open()
        app.db.once(engine.store.promote)
        token, tasks = secrets.randbits(62), engine.task_names
        if app.queues.get(queue).governed:
            return app.db.write(
                lambda c: engine.queues.claim_governed(c, queue, n, tasks, token, self.lease, self.name)
            )
        return app.db.once(lambda c: engine.store.claim(c, {queue: n}, tasks, token, self.lease, self.name))

    def one(self, queue: str = "default") -> Claimed:
        """Claim exactly one job."""
        [job] = self.claim(queue)
        return job

    def end(self, job: Claimed, outcome: Outcome, u: float = 0.0) -> bool:
        """Settle a run. False when the lease was lost and nothing changed."""
        store = self.app.engine.store
        decided = settle(job, outcome, self.app.engine.policy(job.task), u)
        return job.id in self.app.db.write(lambda c: store.settle(c, [decided], self.name))

    def succeed(self, job: Claimed, output: str = "{}") -> bool:
        return self.end(job, Outcome(K.SUCCEEDED, output))

    def fail(self, job: Claimed, message: str = "no", kind: OutcomeKind = K.FAILED, **more: Any) -> bool:
        return self.end(job, Outcome(kind, error=describe(ValueError(message), self.app.db.clock.now()), **more))

    def renew(self, *jobs: Claimed) -> set[int]:
        """Renew leases. Returns the ids of those still held."""
        store, held = self.app.engine.store, [(job.id, job.token) for job in jobs]
        return set(self.app.db.write(lambda c: store.renew(c, held, self.lease)))

    def rescue(self) -> list[tuple[int, str]]:
        """Rescue what has lapsed: (id, event) of each."""
        app = self.app
        at = app.db.clock.now().isoformat()
        return [(s.id, s.event) for s in app.db.write(lambda c: app.engine.store.rescue(c, at, self.name))]


# --- Reading -----------------------------------------------------------------------------------------------------------


def audit(app: Duly, entity_id: object = None, action: str | None = None) -> list[RowMapping]:
    """Rows of the trail, oldest first."""
    query = select(audit_log).order_by(audit_log.c.id)
    if entity_id is not None:
        query = query.where(audit_log.c.entity_id == str(entity_id))
    if action is not None:
        query = query.where(audit_log.c.action == action)
    app.open()
    return app.db.read(lambda c: list(c.execute(query).mappings()))


def actions(app: Duly, entity_id: object = None) -> list[str]:
    return [row["action"] for row in audit(app, entity_id)]


def attempts(app: Duly, ident: int) -> list[Attempt]:
    return app.db.read(lambda c: app.engine.reader.attempts_of(c, ident))


def rows(app: Duly, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """What a SELECT says."""
    app.open()
    return app.db.read(lambda c: [tuple(row) for row in c.execute(text(sql), parameters)])


def run_sql(app: Duly, sql: str, **parameters: Any) -> int:
    """Do to the database what somebody else might. Returns how many rows it touched."""
    app.open()
    return app.db.write(lambda c: c.execute(text(sql), parameters).rowcount)


def ids(jobs: Sequence[Claimed | Job]) -> list[int]:
    return [job.id for job in jobs]


# --- At the same time --------------------------------------------------------------------------------------------------


def together(*calls: Callable[[], T], timeout: float = 60) -> list[T | Exception]:
    """Run calls at the same moment, each on a thread of its own. Results, or what was raised, in their order."""
    start, out = threading.Barrier(len(calls)), list[Any]([None] * len(calls))

    def run(place: int) -> None:
        start.wait(timeout)
        try:
            out[place] = calls[place]()
        except Exception as error:
            out[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), "a call did not come back"
    return out


class Later:
    """A call on a thread of its own whose answer is asked for later."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(call)
        self._pool.shutdown(wait=False)

    def result(self, timeout: float = 30) -> Any:
        return self._future.result(timeout)

    def is_waiting(self, app: Duly) -> bool:
        """Does a statement of this database wait for a lock (PostgreSQL)?"""
        if self._future.done():
            raise AssertionError(f"the call did not wait: {self._future.exception() or self._future.result()}")
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return bool(rows(app, query)[0][0])


def work_off(url: str, n_threads: int, found: Any) -> None:
    """In a process of its own: threads that claim and settle jobs of task X until nothing is left."""
    app, taken = Duly(url, sqlite_synchronous="NORMAL"), list[int]()
    app.task("X")(lambda: None)

    def work(name: str) -> None:
        hand, empty = Hand(app, name), 0
        while empty < 5:
            got = hand.claim(n=3)
            empty = 0 if got else empty + 1
            for job in got:
                assert hand.succeed(job)
                taken.append(job.id)

    out = together(*(partial(work, f"w{n}") for n in range(n_threads)))
    app.close()
    found.put((taken, [repr(error) for error in out if error is not None]))


def wait_until(condition: Callable[[], object], timeout: float = 240) -> None:
    """Look again and again until a condition holds."""
    pause, tries = threading.Event(), int(timeout / 0.01)
    for _ in range(tries):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError(f"waited {timeout:g} s in vain")


@contextmanager
def working(*workers: Worker) -> Iterator[None]:
    """Workers at work on threads of their own, stopped in good order at the end."""
    threads = [threading.Thread(target=worker.run, daemon=True, name=worker.name) for worker in workers]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(worker.state == "running" for worker in workers))
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a worker did not stop"


#: For tests that count attempts and not seconds.
AT_ONCE = Backoff(base=0)


class Proxy:
    """Hands bytes on between a client and the server, until it is told to swallow them or to drop the server's side."""

    def __init__(self, host: str, port: int) -> None:
        self.target, self.swallow = (host, port), False
        self.clients: list[socket.socket] = []
        self.servers: list[socket.socket] = []
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.door.accept()
                self.clients.append(client)
                server = socket.create_connection(self.target)
                self.servers.append(server)
                for here, there in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=(here, there), daemon=True).start()

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(65536):
                if not self.swallow:
                    there.sendall(data)
        # the client's side stays open, as behind a proxy that failed over

    def hang_up(self) -> None:
        """Drop the clients' connections."""
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        self.clients.clear()
