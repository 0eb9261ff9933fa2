"""Duly and the bare statement in one process, turn and turn about, so that noise hits both alike.

`BENCH_TARGET` is Duly's database, the option `raw` the bare one's. Answers are seconds per side. When Duly cannot be imported or
fails, its side is missing and `error` says why.
"""

import contextlib
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import marks
from bench.contenders import duly

ROOT = Path(__file__).resolve().parent.parent
#: Operations in one turn.
TURN = 25
BARE = "create table bare(id {identity}, queue text not null, task text not null, due_at {instant} not null, input {json} not null)"
BARE_PG = BARE.format(identity="bigint generated always as identity primary key", instant="timestamptz", json="jsonb")
BARE_SQLITE = BARE.format(identity="integer primary key", instant="integer", json="text")


def _application(answer: dict[str, Any]) -> Any:
    try:
        app = duly.application()
        app.migrate()
        return app
    except Exception as e:
        answer["error"] = f"{type(e).__name__}: {e}".replace(str(ROOT), ".")[:200]
        return None


def _raw_pg() -> Any:
    import psycopg

    return psycopg.connect(marks.OPTIONS["raw"], autocommit=True)


def _raw_sqlite() -> sqlite3.Connection:
    c = sqlite3.connect(marks.OPTIONS["raw"].removeprefix("sqlite:///"), isolation_level=None, timeout=10)
    c.execute("pragma journal_mode=wal")
    c.execute("pragma synchronous=full")
    return c


@contextlib.contextmanager
def _timed(answer: dict[str, Any], side: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    answer[side] = answer.get(side, 0.0) + time.perf_counter() - start


# ------------------------------------------------------------------ one enqueue, one commit


def single_pg(n: int) -> dict[str, Any]:
    c = _raw_pg()
    c.execute(BARE_PG)
    insert = "insert into bare(queue, task, due_at, input) values('default', 'noop', now(), %s::jsonb)"
    return _single(n, lambda i: c.execute(insert, (f'{{"i":{i}}}',), prepare=True))


def single_sqlite(n: int) -> dict[str, Any]:
    c = _raw_sqlite()
    c.execute(BARE_SQLITE)
    insert = "insert into bare(queue, task, due_at, input) values('default', 'noop', ?, ?)"
    return _single(n, lambda i: c.execute(insert, (time.time_ns() // 1000, f'{{"i":{i}}}')))


def _single(n: int, bare: Callable[[int], object]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    app = _application(answer)
    noop = duly.task(app, "noop") if app else None
    for i in range(TURN):  # connections, prepared statements, caches
        bare(i)
        if noop:
            noop.enqueue(i)
    for k in range(0, n, TURN):
        with _timed(answer, "raw"):
            for i in range(k, k + TURN):
                bare(i)
        if noop:
            with _timed(answer, "duly"):
                for i in range(k, k + TURN):
                    noop.enqueue(i)
    return answer


# ------------------------------------------------------------------ many at once


def bulk_pg(n: int) -> dict[str, Any]:
    """Bulk enqueue, then COPY of the very rows it wrote into a table without index or constraint.

    Both begin with the same list of arguments; the bare side encodes them as JSON and knows every other column beforehand.
    """
    import orjson

    answer: dict[str, Any] = {}
    app, c = _application(answer), _raw_pg()
    jobs = [{"i": i} for i in range(n)]
    columns = [("queue", "text"), ("task", "text"), ("due_at", "timestamptz"), ("input", "jsonb")]
    rows: list[tuple[Any, ...]] = [("default", "noop", "2030-01-01 00:00:00+00", None)] * n
    if app:
        columns, rows = _rows_pg(app, jobs, answer)
    c.execute("create table bare({})".format(", ".join(f"{name} {kind}" for name, kind in columns)))
    at = [name for name, _ in columns].index("input")
    split = [(row[:at], row[at + 1 :]) for row in rows]
    with _timed(answer, "raw"), c.cursor().copy("copy bare from stdin") as copy:
        for job, (before, after) in zip(jobs, split, strict=True):
            copy.write_row((*before, orjson.dumps(job).decode(), *after))
    return answer


def _rows_pg(
    app: Any, jobs: list[dict[str, int]], answer: dict[str, Any]
) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
    """Enqueue, timed; then the columns of Duly's table and the rows written, as text."""
    import psycopg

    noop = duly.task(app, "noop")
    noop.enqueue_many(jobs[:100])
    with _timed(answer, "duly"):
        noop.enqueue_many(jobs)
    with psycopg.connect(marks.TARGET, autocommit=True) as d:
        described = d.execute(
            "select quote_ident(attname), format_type(atttypid, atttypmod) from pg_attribute"
            " where attrelid = 'jobs'::regclass and attnum > 0 and not attisdropped order by attnum"
        )
        columns = [(name, kind) for name, kind in described]
        with d.cursor().copy(f"copy (select * from jobs order by id desc limit {len(jobs)}) to stdout") as out:
            return columns, list(out.rows())


def bulk_sqlite(n: int) -> dict[str, Any]:
    """Bulk enqueue, then executemany of the very rows it wrote into a table without index, in one transaction."""
    import orjson

    answer: dict[str, Any] = {}
    app, c = _application(answer), _raw_sqlite()
    jobs = [{"i": i} for i in range(n)]
    names, rows = ["queue", "task", "due_at", "input"], [("default", "noop", 1_893_456_000_000_000, None)] * n
    if app:
        noop = duly.task(app, "noop")
        noop.enqueue_many(jobs[:100])
        with _timed(answer, "duly"):
            noop.enqueue_many(jobs)
        d = sqlite3.connect(marks.TARGET.removeprefix("sqlite:///"), timeout=10)
        cursor = d.execute("select * from jobs order by id desc limit ?", (n,))
        names, rows = [x[0] for x in cursor.description], cursor.fetchall()
        d.close()
    c.execute("create table bare({})".format(", ".join(f'"{name}"' for name in names)))
    at = names.index("input")
    split = [(row[:at], row[at + 1 :]) for row in rows]
    with _timed(answer, "raw"):
        c.execute("begin immediate")
        c.executemany(
            "insert into bare values({})".format(", ".join("?" * len(names))),
            ((*before, orjson.dumps(job).decode(), *after) for job, (before, after) in zip(jobs, split, strict=True)),
        )
        c.execute("commit")
    return answer


# ------------------------------------------------------------------ from enqueue to handler start


def _pause() -> None:
    """About 50 ms, never in step with anything that polls."""
    time.sleep(random.uniform(0.03, 0.07))


def pickup_pg(n: int) -> dict[str, Any]:
    """Send n probes to a Duly worker and n to the raw listener, in turn. Tables are there."""
    answer: dict[str, Any] = {}
    app, c = _application(answer), _raw_pg()
    probe = duly.task(app, "probe") if app else None
    send = """with sent as (insert into jobs(queue, task, input) values('q', 't', jsonb_build_object('t', %s::float8)) returning 1)
              select pg_notify('jobs', '') from sent"""
    for _ in range(n):
        c.execute(send, (time.time(),), prepare=True)
        _pause()
        if probe:
            probe.enqueue(time.time())
            _pause()
    return answer


def pickup_sqlite(n: int) -> dict[str, Any]:
    """Send n probes to a Duly worker in another process."""
    answer: dict[str, Any] = {}
    app = _application(answer)
    for _ in range(n if app else 0):
        duly.task(app, "probe").enqueue(time.time())
        _pause()
    return answer


def pickup_within(n: int) -> dict[str, Any]:
    """Send n probes to a Duly worker in this very process."""
    answer: dict[str, Any] = {}
    app = _application(answer)
    if not app:
        return answer
    probe = duly.task(app, "probe")

    def send() -> None:
        time.sleep(1.5)
        for _ in range(n):
            probe.enqueue(time.time())
            _pause()
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send, daemon=True).start()
    app.worker().run()
    return answer
