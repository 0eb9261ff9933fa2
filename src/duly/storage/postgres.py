"""PostgreSQL: a pool of psycopg connections, LISTEN as a hint, locks that die with their transaction.

Nothing here keeps state in a database session, so PgBouncer in transaction mode works (``pooler="transaction"``): no
prepared statements, no LISTEN, no session locks; polling does the rest.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg
from psycopg import generators, pq
from sqlalchemy import Connection, Engine, PoolProxiedConnection, QueuePool, create_engine, event, exc
from sqlalchemy.engine import URL
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState

from duly.storage.qualified import quoted, schema_of, text
from duly.storage.session_settings import SESSION, Place, keep
from duly.storage.wake import CHANNEL, CONTROLS

T = TypeVar("T")
#: A connection on which nobody answers is given up after a quarter of a minute. Where a firewall or a load balancer forgets
#: it, without a word to either side, the systems' own patience is two hours.
PATIENCE = {"connect_timeout": 10, "keepalives_idle": 5, "keepalives_interval": 3, "keepalives_count": 3, "tcp_user_timeout": 15_000}  # fmt: skip


def _patience(url: URL) -> dict[str, int]:
    """``PATIENCE``, but for what the URL says itself."""
    return {name: value for name, value in PATIENCE.items() if name not in url.query}


def make_engine(
    url: URL,
    *,
    pool_size: int = 10,
    prepare: bool = True,
    settings: dict[str, str] = SESSION,
    place: Place | None = None,
    alone: bool = False,
    **kwargs: Any,
) -> Engine:
    """A pooled engine. A connection that died while it was idle is noticed without a round trip and replaced.

    ``settings``: what each connection sets when it is opened. ``place``: where Duly's tables are. ``alone``: only Duly uses it.
    """
    connect_args = {
        "prepare_threshold": 5 if prepare else None,
        "application_name": "duly",
        "client_encoding": "UTF8",  # whatever the environment says
        **_patience(url),
        **kwargs.pop("connect_args", {}),
    }
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        poolclass=QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=30,
        pool_reset_on_return=None,  # done below, for a fraction of the cost
        connect_args=connect_args,
        **{"hide_parameters": True, **kwargs},  # what errors say goes into logs and into the errors of jobs
    )
    keep(engine, settings, place, alone=alone, pooled=not prepare)

    @event.listens_for(engine, "checkout")
    def refuse_dead(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        if _dead(connection, record.info):
            raise exc.DisconnectionError("the server closed this connection")

    @event.listens_for(engine, "reset")
    def roll_back(connection: Any, record: ConnectionPoolEntry | None, state: PoolResetState) -> None:
        server = connection.pgconn
        if state.terminate_only or server.transaction_status == pq.TransactionStatus.IDLE:
            return
        if server.status != pq.ConnStatus.OK and record is not None:
            record.invalidate()  # lost, as whoever used it has been told: nothing to roll back, and no news for the log
            return
        connection.rollback()  # raises for one in mid-statement, and the pool throws it away

    return engine


def make_async_engine(url: URL, *, prepare: bool = True, place: Place | None = None, **kwargs: Any) -> Any:
    """An engine for AsyncSession on psycopg's async face (needs ``duly[async]``)."""
    from sqlalchemy.ext.asyncio import create_async_engine

    connect_args = {
        "prepare_threshold": 5 if prepare else None,
        "application_name": "duly",
        "client_encoding": "UTF8",
        **_patience(url),
    }
    engine = create_async_engine(
        url.set(drivername="postgresql+psycopg"), connect_args=connect_args, pool_pre_ping=True,
        **{"hide_parameters": True, **kwargs},
    )  # fmt: skip
    keep(engine.sync_engine, SESSION if prepare else {"DateStyle": "ISO"}, place, pooled=not prepare)
    return engine


class Statement:
    """A statement sent straight through libpq, a transaction by itself, for those that go one by one and must cost little.

    The driver's cursor costs a third of a small INSERT's round trip. Parameters are given as PostgreSQL's own texts (None
    for null) in the order of ``names``; rows come back as their binary columns.
    """

    def __init__(self, name: str, sql: str) -> None:
        self.name = name.encode()
        self.names: list[str] = []

        def numbered(match: re.Match[str]) -> str:
            if match[1] not in self.names:
                self.names.append(match[1])
            return f"${self.names.index(match[1]) + 1}"

        self.sql = re.sub(r"(?<!:):(\w+)", numbered, sql).encode()

    def run(self, pooled: PoolProxiedConnection, parameters: Sequence[bytes | None], prepare: bool) -> pq.abc.PGresult:
        """Run it on a pooled connection that is in no transaction. Raises the driver's errors."""
        self.send(pooled, parameters, prepare)
        return self.answer(pooled)

    def send(self, pooled: PoolProxiedConnection, parameters: Sequence[bytes | None], prepare: bool) -> None:
        """Its first half: from here on the server is at work."""
        connection: Any = pooled.driver_connection
        server: pq.abc.PGconn = connection.pgconn
        if not prepare:
            server.send_query_params(self.sql, parameters, result_format=1)
            return
        if self.name not in pooled.info:
            try:
                server.send_prepare(self.name, self.sql)
                self.answer(pooled)
                pooled.info[self.name] = True
            except BaseException:
                pooled.invalidate()  # whoever is interrupted here cannot tell whether it is prepared
                raise
        server.send_query_prepared(self.name, parameters, result_format=1)

    @staticmethod
    def answer(pooled: PoolProxiedConnection) -> pq.abc.PGresult:
        """Its second half: wait until the server is done."""
        connection: Any = pooled.driver_connection
        # the driver's own waiting: it lets other threads run, and Ctrl-C cancels the statement
        result: pq.abc.PGresult = connection.wait(generators.execute(connection.pgconn))[-1]
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise psycopg.errors.error_from_result(result)
        return result


_instant = struct.Struct("!q").unpack
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def number_of(column: bytes | None) -> int:
    """A binary bigint that is not null."""
    assert column is not None
    found: int = _instant(column)[0]
    return found


def instant_of(column: bytes | None) -> datetime | None:
    """A binary timestamptz, in UTC."""
    return None if column is None else _EPOCH + timedelta(microseconds=_instant(column)[0])


class Answers:
    """Who waits for an answer of the server, and since when; and how to end that.

    For threads that must never wait for long. A connection can be silent in ways that no system notices: a proxy that still
    takes what is sent, a server that is stopped.
    """

    def __init__(self, engine: Engine) -> None:
        self._awaited: dict[Any, tuple[str, float, Any]] = {}
        event.listen(engine, "checkout", self._taken)
        event.listen(engine, "checkin", self._returned)

    def _taken(self, connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        self._awaited[record] = threading.current_thread().name, time.monotonic(), connection

    def _returned(self, _connection: Any, record: ConnectionPoolEntry) -> None:
        self._awaited.pop(record, None)

    def give_up(self, threads: Collection[str], seconds: float) -> list[str]:
        """Hang up where one of these threads has had a connection for longer than so many seconds; its statement fails then, as when the
        server is lost. Returns their names."""
        late = time.monotonic() - seconds
        out = []
        for record, (name, since, connection) in list(self._awaited.items()):
            if since < late and name in threads and self._awaited.pop(record, None) is not None:
                with (
                    contextlib.suppress(OSError, psycopg.Error),
                    socket.socket(fileno=os.dup(connection.fileno())) as line,
                ):
                    line.shutdown(socket.SHUT_RDWR)
                out.append(name)
        return out


class Kept:
    """A connection kept out of the pool between transactions of one statement: there and back is a tenth of what such a
    one takes. Threads that come while it is in use are served by the pool."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._idle: deque[PoolProxiedConnection] = deque(maxlen=1)

    def run(self, fn: Callable[[PoolProxiedConnection], T]) -> T:
        """``fn(pooled connection)``, in no transaction."""
        pooled = self._take()
        try:
            found = fn(pooled)
        except BaseException:
            pooled.close()  # the pool's reset looks what broke
            raise
        if self._idle:
            pooled.close()
        else:
            self._idle.append(
                pooled
            )  # two at the same moment: the deque drops one, and dropped ones return to the pool
        return found

    def _take(self) -> PoolProxiedConnection:
        try:
            pooled = self._idle.pop()
        except IndexError:
            return self.engine.raw_connection()
        if _dead(pooled.driver_connection, pooled.info):
            pooled.invalidate()
            return self.engine.raw_connection()
        return pooled

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _dead(connection: Any, info: dict[Any, Any]) -> bool:
    """An idle connection has nothing to read. When it has, the server has hung up, or is telling us that it will.

    Asked before each transaction, so what asks is made once; ``info`` is what its pool remembers as long as it lasts.
    """
    if connection.closed:
        return True
    ask = info.get("duly_poll")
    if ask is None:
        poller = select.poll()
        poller.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        ask = info["duly_poll"] = poller.poll
    return bool(ask(0))


def next_ids(connection: Connection, table: str, count: int) -> list[int]:
    """Take ``count`` ids of ``table`` at once."""
    schema = schema_of(connection.dialect)
    if schema:
        table = f"{quoted(schema)}.{table}".replace("'", "''")
    rows = connection.execute(
        text(
            f"WITH s AS MATERIALIZED (SELECT CAST(pg_get_serial_sequence('{table}', 'id') AS regclass) AS name) "
            "SELECT nextval(s.name) FROM s, generate_series(1, :n)"
        ),
        {"n": count},
    )
    return [row[0] for row in rows]


#: Seconds between questions on the connection that listens, and for which their answer is waited. A connection whose other end has gone
#: without a word (a proxy, a load balancer) is known after both.
PULSE, ANSWER = 5.0, 5.0
_LISTENING = b"SELECT pg_catalog.count(*) FROM pg_catalog.pg_listening_channels()"


class Listener:
    """A thread that listens on the channels and rings. It reconnects by itself; while it cannot, polling carries on."""

    def __init__(
        self, url: URL, ring: Callable[[str], None], failed: Callable[[BaseException], None],
        recovered: Callable[[], None] = lambda: None, channels: Sequence[str] = (CHANNEL, CONTROLS),
    ) -> None:  # fmt: skip
        self._channels = channels
        self._conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._patience: dict[str, Any] = {**_patience(url)}
        self._ring, self._failed, self._recovered = ring, failed, recovered
        #: Why it does not listen now; empty when it does.
        self.problem = "not listening yet"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duly-listen", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:  # it has begun
            self._thread.join(timeout=3)

    def _run(self) -> None:
        pause, lost = 0.1, False
        while not self._stop.is_set():
            try:
                with psycopg.connect(
                    self._conninfo,
                    autocommit=True,
                    application_name="duly-listen",
                    client_encoding="UTF8",
                    **self._patience,
                ) as connection:
                    for channel in self._channels:
                        connection.execute(f"LISTEN {channel}")
                        self._ring(channel)  # something may have come while nobody listened
                    self.problem, pause = "", 0.1
                    if lost:
                        self._recovered()
                    lost = False
                    self._listen(connection.pgconn)
            except Exception as error:
                self.problem, lost = str(error).strip() or type(error).__name__, True
                self._failed(error)
                self._stop.wait(pause)
                pause = min(pause * 2, 10)

    def _listen(self, server: pq.abc.PGconn) -> None:
        """Ring for what is heard, and ask now and then whether the server still knows that somebody listens. Returns when told to stop.

        Raises the driver's OperationalError where the connection is lost, or nobody answers.
        """
        poller = select.poll()
        poller.register(server.socket, select.POLLIN | select.POLLHUP | select.POLLERR)
        heard = time.monotonic()
        asked: float | None = None
        while not self._stop.is_set():
            if poller.poll(500):
                server.consume_input()  # raises where the other side has hung up
                heard = time.monotonic()
                while (notice := server.notifies()) is not None:
                    self._ring(notice.relname.decode())
                while asked is not None and not server.is_busy():
                    result = server.get_result()
                    if result is None:
                        asked = None
                    elif result.status != pq.ExecStatus.TUPLES_OK:
                        raise psycopg.errors.error_from_result(result)
                    elif result.get_value(0, 0) != str(len(self._channels)).encode():
                        raise psycopg.OperationalError("the server no longer knows that this connection listens")
            now = time.monotonic()
            if asked is None and now - heard > PULSE:
                server.send_query(_LISTENING)
                asked = now
            elif asked is not None and now - asked > ANSWER:
                raise psycopg.OperationalError(f"the connection that listens gave no answer within {ANSWER:g} s")
