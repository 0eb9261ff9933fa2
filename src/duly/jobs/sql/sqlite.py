"""Insert, claim and finish on SQLite. The caller is inside BEGIN IMMEDIATE, so nothing moves in between.

A batch travels as one JSON text and is opened with ``json_each``; a statement per row would cost more than its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection, text

from duly.jobs.settle import Claimed, Settlement
from duly.jobs.tables import COMMON
from duly.storage.types import to_micros

CLAIMED = (
    "id, tenant, queue, task, input, attempts, max_attempts, priority, run_at, created_at, "
    "(started_at - max(run_at, coalesce(next_retry_at, run_at))) / 1e6, key, key_scope, concurrency_key, parent_id, meta"
)
_HELD = "SET status = 'running', attempts = attempts + 1, worker = :worker, lease_token = :token + id, lease_until = :until, started_at = :now"
GATE_OPEN = "NOT EXISTS (SELECT 1 FROM system_state WHERE key = 'atlas_online' AND lower(trim(trim(value), '\"')) NOT IN ('true', '1', 'on', 'yes'))"
CLAIM = f"""
UPDATE jobs {_HELD}
 WHERE id IN (SELECT id FROM jobs WHERE queue = :queue AND status = 'queued' AND due_at IS NULL
                 AND task IN (SELECT value FROM json_each(:tasks))
               ORDER BY priority DESC, run_at, id LIMIT :room)
   AND {GATE_OPEN} AND NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND governed)
RETURNING {CLAIMED}"""
TAKE = f"""
UPDATE jobs {_HELD} WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'queued' AND due_at IS NULL RETURNING {CLAIMED}"""

_KEPT = [c for c in COMMON if c not in ("status", "output", "error", "cost_cents", "remote_id")]
_ROWS = """FROM json_each(:rows) r JOIN jobs j ON j.id = json_extract(r.value, '$[0]')
 WHERE j.status = 'running' AND j.lease_token = json_extract(r.value, '$[1]')"""
ARCHIVE = f"""
INSERT INTO jobs_done (id, status, output, error, cost_cents, remote_id, finished_at, {", ".join(_KEPT)})
SELECT j.id, json_extract(r.value, '$[2]'), json_extract(r.value, '$[3]'), json_extract(r.value, '$[4]'),
       coalesce(json_extract(r.value, '$[5]'), j.cost_cents), coalesce(json_extract(r.value, '$[6]'), j.remote_id), :now,
       {", ".join("j." + c for c in _KEPT)}
  {_ROWS}"""
AUDIT = f"""
INSERT INTO audit_log (at, tenant, actor, level, action, entity, entity_id, meta)
SELECT :now, j.tenant, :actor, json_extract(r.value, '$[8]'), json_extract(r.value, '$[7]'), 'job', CAST(j.id AS TEXT),
       coalesce(json_extract(r.value, '$[9]'), '{{}}')
  {_ROWS} AND json_extract(r.value, '$[7]') IS NOT NULL"""
REMOVE = """
DELETE FROM jobs WHERE status = 'running' AND (id, lease_token) IN (
       SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:rows)) RETURNING id"""

INSERT_ONE = text("""
INSERT INTO jobs (tenant, queue, task, status, priority, run_at, due_at, input, max_attempts, concurrency_key, parent_id, meta, created_at, fair)
VALUES (:tenant, :queue, :task, 'queued', :priority, :run_at, :due_at, :input, :max_attempts, :concurrency_key, :parent_id, :meta, :now,
        coalesce((SELECT q.fair FROM queues q WHERE q.name = :queue), false))
RETURNING id
""")
_COLUMNS = (
    "id",
    "tenant",
    "queue",
    "task",
    "priority",
    "run_at",
    "due_at",
    "input",
    "max_attempts",
    "key",
    "key_scope",
    "concurrency_key",
    "parent_id",
    "meta",
    "created_at",
    "fair",
)
INSERT_MANY = f"INSERT INTO jobs ({', '.join(_COLUMNS)}, status) VALUES ({', '.join('?' * len(_COLUMNS))}, 'queued')"


def _rows(connection: Connection, sql: str, parameters: dict[str, Any]) -> Any:
    """Run a statement on the driver itself; through SQLAlchemy's adapter when the driver is asynchronous."""
    if connection.dialect.is_async:
        cursor = connection.connection.cursor()
        cursor.execute(sql, parameters)
        return cursor.fetchall()
    return connection.connection.driver_connection.execute(sql, parameters).fetchall()  # type: ignore[union-attr]


def claim(
    connection: Connection,
    queues: dict[str, int],
    tasks: Sequence[str],
    token: int,
    lease: float,
    worker: str,
    now: datetime | None,
    prepare: bool = True,
) -> list[Claimed]:
    """Take up to ``queues[name]`` ready jobs of each queue that nothing governs, in order."""
    assert now is not None
    at, names = to_micros(now), orjson.dumps(list(tasks)).decode()
    held = {"worker": worker, "token": token, "until": at + int(lease * 1e6), "now": at, "tasks": names}
    out: list[Claimed] = []
    for queue, room in queues.items():
        rows = _rows(connection, CLAIM, {**held, "queue": queue, "room": room})
        out += [Claimed._make((*row, token + row[0])) for row in rows]
    return out


def take(
    connection: Connection,
    ids: Sequence[int],
    token: int,
    lease: float,
    worker: str,
    now: datetime | None,
    prepare: bool = True,
) -> list[Claimed]:
    """Take exactly these jobs, those of them that are still ready."""
    assert now is not None
    at = to_micros(now)
    parameters = {
        "ids": orjson.dumps(list(ids)).decode(),
        "worker": worker,
        "token": token,
        "until": at + int(lease * 1e6),
        "now": at,
    }
    return [Claimed._make((*row, token + row[0])) for row in _rows(connection, TAKE, parameters)]


def finish(
    connection: Connection, batch: Sequence[Settlement], actor: str, now: datetime | None, prepare: bool = True
) -> list[int]:
    """Move settled jobs to jobs_done with their audit rows. Returns the ids that were still held under their tokens."""
    assert now is not None
    rows = orjson.dumps(
        [
            (
                s.id,
                s.token,
                s.status.value,
                s.output,
                None if s.error is None else orjson.dumps(s.error).decode(),
                s.cost_cents,
                s.remote_id,
                s.action,
                s.level,
                None if s.meta is None else orjson.dumps(s.meta).decode(),
            )
            for s in batch
        ]
    ).decode()
    parameters = {"rows": rows, "now": to_micros(now), "actor": actor}
    _rows(connection, ARCHIVE, parameters)
    if any(s.action is not None for s in batch):
        _rows(connection, AUDIT, parameters)
    return [row[0] for row in _rows(connection, REMOVE, {"rows": rows})]


def insert_many(connection: Connection, rows: Sequence[dict[str, Any]], own: bool) -> None:
    """Insert rows that carry their ids and instants."""
    instants = {"run_at", "due_at", "created_at"}
    values = [tuple(to_micros(r[c]) if c in instants and r[c] is not None else r[c] for c in _COLUMNS) for r in rows]
    connection.exec_driver_sql(INSERT_MANY, values)


def ring(connection: Connection, queues: Sequence[str]) -> None:
    """Nothing to do: other processes watch the file, this one's bells are rung after the commit."""


def sent(connection: Connection, now: datetime | None) -> datetime:
    assert now is not None
    return now
