"""PostgreSQL: a pool of psycopg connections, LISTEN as a hint, locks that die with their transaction.

Nothing here keeps state in a database session, so PgBouncer in transaction mode works (``pooler="transaction"``): no
prepared statements, no LISTEN, no session locks; polling does the rest.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, QueuePool, create_engine, event, exc, text
from sqlalchemy.engine import URL

from duly.storage.wake import CHANNEL


def make_engine(url: URL, *, pool_size: int = 10, prepare: bool = True, **kwargs: Any) -> Engine:
    """A pooled engine. A connection that died while it was idle is noticed without a round trip and replaced."""
    connect_args = {
        "prepare_threshold": 5 if prepare else None,
        "application_name": "duly",
        "connect_timeout": 10,
        **kwargs.pop("connect_args", {}),
    }
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        poolclass=QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=30,
        connect_args=connect_args,
        **kwargs,
    )

    @event.listens_for(engine, "checkout")
    def refuse_dead(connection: Any, _record: object, _proxy: object) -> None:
        # An idle connection has nothing to read. When it has, the server has hung up (or is telling us that it will).
        if connection.closed or _readable(connection.fileno()):
            raise exc.DisconnectionError("the server closed this connection")

    return engine


def make_async_engine(url: URL, *, prepare: bool = True, **kwargs: Any) -> Any:
    """An engine for AsyncSession on psycopg's async face (needs ``duly[async]``)."""
    from sqlalchemy.ext.asyncio import create_async_engine

    connect_args = {"prepare_threshold": 5 if prepare else None, "application_name": "duly"}
    return create_async_engine(
        url.set(drivername="postgresql+psycopg"), connect_args=connect_args, pool_pre_ping=True, **kwargs
    )


def _readable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poller.poll(0))


def next_ids(connection: Connection, table: str, count: int) -> list[int]:
    """Take ``count`` ids of ``table`` at once."""
    rows = connection.execute(
        text(
            f"WITH s AS MATERIALIZED (SELECT CAST(pg_get_serial_sequence('{table}', 'id') AS regclass) AS name) "
            "SELECT nextval(s.name) FROM s, generate_series(1, :n)"
        ),
        {"n": count},
    )
    return [row[0] for row in rows]


class Listener:
    """A thread that listens on the channel and rings. It reconnects by itself; while it cannot, polling carries on."""

    def __init__(self, url: URL, ring: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        self._conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._ring, self._failed = ring, failed
        self._stop = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="duly-listen", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=3)

    def _run(self) -> None:
        pause = 0.1
        while not self._stop.is_set():
            try:
                with psycopg.connect(
                    self._conninfo, autocommit=True, application_name="duly-listen", connect_timeout=10
                ) as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    pause = 0.1
                    self._ring()  # something may have come while nobody listened
                    while not self._stop.is_set():
                        for _ in connection.notifies(timeout=0.5, stop_after=1):
                            self._ring()
            except Exception as error:
                self._failed(error)
                self._stop.wait(pause)
                pause = min(pause * 2, 10)
