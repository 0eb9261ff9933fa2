"""Insert, claim and finish on SQLite. The caller is inside BEGIN IMMEDIATE, so nothing moves in between.

A batch travels as one JSON text and is opened with ``json_each``; a statement per row would cost more than its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection

from duly.calendars.tables import held
from duly.jobs.settle import Claimed, Settlement
from duly.jobs.tables import COMMON
from duly.kernel.clock import to_micros
from duly.storage.rows import as_one, read

_HELD = "SET status = 'running', attempts = attempts + 1, worker = :worker, lease_token = :token + id, lease_until = :until, started_at = :now"
GATE_OPEN = "NOT EXISTS (SELECT 1 FROM system_state WHERE key = 'atlas_online' AND lower(trim(trim(value), '\"')) NOT IN ('true', '1', 'on', 'yes'))"
#: The first ready jobs of a queue that nothing governs.
CLAIM = f"""
UPDATE jobs {_HELD} WHERE id IN (
  SELECT id FROM jobs WHERE queue = :queue AND status = 'queued' AND due_at IS NULL AND task IN (SELECT value FROM json_each(:tasks))
     AND (needs IS NULL OR needs IN (SELECT value FROM json_each(:abilities)))
     AND {GATE_OPEN} AND NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND governed)
     AND NOT {held(True, ":queue", ":now")}
   ORDER BY priority DESC, run_at, id LIMIT :room)"""
#: Is any job of these queues ready? Asked before a claim that would have to write.
ANY_READY = """
SELECT 1 FROM json_each(:queues) q WHERE EXISTS (
  SELECT 1 FROM jobs WHERE queue = q.value AND status = 'queued' AND due_at IS NULL) LIMIT 1"""
HOLD = f"UPDATE jobs {_HELD} WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'queued' AND due_at IS NULL"
_CLAIMED = (
    "id, tenant, queue, task, input, attempts, max_attempts, priority, run_at, created_at, "
    "(started_at - max(run_at, coalesce(next_retry_at, run_at))) / 1e6, key, key_scope, concurrency_key, parent_id, meta, lease_token"
)
READ = as_one(_CLAIMED, "jobs WHERE id IN (SELECT value FROM json_each(:ids)) AND lease_token = :token + id")
#: What a claim has just taken, found by the index of leases.
READ_CLAIM = as_one(
    _CLAIMED, "jobs WHERE status = 'running' AND queue = :queue AND lease_until = :until AND lease_token = :token + id"
)

_KEPT = [c for c in COMMON if c not in ("status", "output", "error", "cost_cents", "remote_id")]
#: A lease token is the claim's random number plus the job's id: it belongs to one job and one claim, so two flat lists do.
_HELD_ROWS = "id IN (SELECT value FROM json_each(:ids)) AND lease_token IN (SELECT value FROM json_each(:tokens))"
_EACH = """FROM json_each(:rows) r JOIN jobs j ON j.id = json_extract(r.value, '$[0]')
 WHERE j.lease_token = json_extract(r.value, '$[1]')"""
_DONE = f"INSERT INTO jobs_done (id, status, output, error, cost_cents, remote_id, finished_at, {', '.join(_KEPT)})"
_TRAIL = "INSERT INTO audit_log (at, tenant, actor, level, action, entity, entity_id, meta)"
#: Rows that end alike: nothing but ids and tokens to open.
ARCHIVE_ALIKE = f"""{_DONE}
SELECT id, :status, :output, NULL, cost_cents, remote_id, :now, {", ".join(_KEPT)} FROM jobs WHERE {_HELD_ROWS}"""
_THESE = "id IN (SELECT value FROM json_each(:ids))"
AUDIT_ALIKE = f"""{_TRAIL}
SELECT :now, tenant, :actor, :level, :action, 'job', CAST(id AS TEXT), '{{}}' FROM jobs WHERE {_THESE}"""
ARCHIVE = f"""{_DONE}
SELECT j.id, json_extract(r.value, '$[2]'), json_extract(r.value, '$[3]'), json_extract(r.value, '$[4]'),
       coalesce(json_extract(r.value, '$[5]'), j.cost_cents), coalesce(json_extract(r.value, '$[6]'), j.remote_id), :now,
       {", ".join("j." + c for c in _KEPT)}
  {_EACH}"""
AUDIT = f"""{_TRAIL}
SELECT :now, j.tenant, :actor, json_extract(r.value, '$[3]'), json_extract(r.value, '$[2]'), 'job', CAST(j.id AS TEXT),
       coalesce(json_extract(r.value, '$[4]'), '{{}}')
  {_EACH}"""
HELD = f"SELECT json_group_array(id) FROM jobs WHERE {_HELD_ROWS}"
REMOVE = f"DELETE FROM jobs WHERE {_THESE}"

INSERT_ONE = """
INSERT INTO jobs (tenant, queue, task, status, priority, run_at, due_at, input, max_attempts, concurrency_key, parent_id, meta, created_at, fair)
VALUES (:tenant, :queue, :task, 'queued', :priority, :run_at, :due_at, :input, :max_attempts, :concurrency_key, :parent_id, :meta, :now,
        EXISTS (SELECT 1 FROM queues q WHERE q.name = :queue AND q.fair))
RETURNING id
"""
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


def _run(connection: Connection, sql: str, parameters: dict[str, Any]) -> Any:
    """Run a statement on the driver itself; through SQLAlchemy's adapter when the driver is asynchronous. Returns its cursor."""
    if connection.dialect.is_async:
        cursor: Any = connection.connection.cursor()
        cursor.execute(sql, parameters)
        return cursor
    driver: Any = connection.connection.driver_connection
    return driver.execute(sql, parameters)


def _list(connection: Connection, sql: str, parameters: dict[str, Any]) -> list[Any]:
    """The answer of a statement that gives one row with one JSON list."""
    out: list[Any] = orjson.loads(_run(connection, sql, parameters).fetchone()[0])
    return out


def claim(
    connection: Connection,
    queues: dict[str, int],
    tasks: Sequence[str],
    token: int,
    lease: float,
    worker: str,
    now: datetime | None,
    prepare: bool = True,
    abilities: Sequence[str] = (),
) -> list[Claimed]:
    """Take up to ``queues[name]`` ready jobs of each queue that nothing governs, in order."""
    assert now is not None
    names, at = orjson.dumps(list(tasks)).decode(), to_micros(now)
    known = orjson.dumps(list(abilities)).decode()
    mine = {"token": token, "until": at + int(lease * 1e6)}
    found: list[Claimed] = []
    for queue, room in queues.items():
        asked = {"queue": queue, "room": room, "tasks": names, "abilities": known, "worker": worker, "now": at, **mine}
        if _run(connection, CLAIM, asked).rowcount:
            found += map(Claimed._make, read(_run(connection, READ_CLAIM, {"queue": queue, **mine}).fetchone()[0]))
    return found


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
    wanted = {"ids": orjson.dumps(list(ids)).decode(), "token": token}
    _run(connection, HOLD, {**wanted, "worker": worker, "until": at + int(lease * 1e6), "now": at})
    return list(map(Claimed._make, read(_run(connection, READ, wanted).fetchone()[0])))


def finish(
    connection: Connection, batch: Sequence[Settlement], actor: str, now: datetime | None, prepare: bool = True
) -> list[int]:
    """Move settled jobs to jobs_done with their audit rows. Returns the ids that were still held under their tokens."""
    assert now is not None
    first = batch[0]
    dumps = orjson.dumps
    parameters: dict[str, Any] = {
        "ids": dumps([s.id for s in batch]).decode(), "tokens": dumps([s.token for s in batch]).decode(), "now": to_micros(now), "actor": actor,
        "status": first.status.value, "output": first.output, "level": first.level, "action": first.action,
    }  # fmt: skip
    status, output = first.status, first.output
    if all(
        s.output == output and s.status is status and s.error is None and s.cost_cents is None and s.remote_id is None
        for s in batch
    ):
        archived = _run(connection, ARCHIVE_ALIKE, parameters).rowcount
    else:
        rows = [
            (s.id, s.token, s.status.value, s.output, s.error and dumps(s.error).decode(), s.cost_cents, s.remote_id)
            for s in batch
        ]
        archived = _run(connection, ARCHIVE, {"rows": dumps(rows).decode(), "now": to_micros(now)}).rowcount
    held = [s.id for s in batch]
    if archived != len(batch):  # some are held under another token by now: from here on only the others are meant
        held = _list(connection, HELD, parameters)
        parameters["ids"] = dumps(held).decode()
    action, level = first.action, first.level
    if all(s.action == action and s.level == level and s.meta is None for s in batch):
        if action is not None:
            _run(connection, AUDIT_ALIKE, parameters)
    else:
        told = [
            (s.id, s.token, s.action, s.level, s.meta and dumps(s.meta).decode()) for s in batch if s.action is not None
        ]
        _run(connection, AUDIT, {"rows": dumps(told).decode(), "now": to_micros(now), "actor": actor})
    _run(connection, REMOVE, parameters)
    return held


def insert_one(connection: Connection, parameters: dict[str, Any]) -> Any:
    """Insert one job without a key, its instants given. Returns (id, run_at, due_at, created_at)."""
    stored = {n: to_micros(v) if isinstance(v, datetime) else v for n, v in parameters.items()}
    ident = _run(connection, INSERT_ONE, stored).fetchone()[0]
    return ident, parameters["run_at"], parameters["due_at"], parameters["now"]


def insert_many(connection: Connection, rows: Sequence[dict[str, Any]], own: bool) -> None:
    """Insert rows that carry their ids and instants."""
    instants = {"run_at", "due_at", "created_at"}
    values = [tuple(to_micros(r[c]) if c in instants and r[c] is not None else r[c] for c in _COLUMNS) for r in rows]
    connection.exec_driver_sql(INSERT_MANY, values)


def insert_alike(connection: Connection, row: dict[str, Any], ids: Sequence[int], inputs: Sequence[str]) -> None:
    """Insert jobs that share every column of ``row`` but id and input: two values travel per job."""
    shared = [c for c in _COLUMNS if c not in ("id", "input")]
    values = ", ".join(_literal(row[c]) for c in shared)
    driver: Any = connection.connection.driver_connection
    driver.executemany(
        f"INSERT INTO jobs (id, input, status, {', '.join(shared)}) VALUES (?, ?, 'queued', {values})",
        zip(ids, inputs, strict=True),
    )


def _literal(value: Any) -> str:
    """A value as SQL text."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return str(to_micros(value))
    if isinstance(value, bool | int):
        return str(int(value))
    return "'" + str(value).replace("'", "''") + "'"


def ring(connection: Connection, queues: Sequence[str]) -> None:
    """Nothing to do: other processes watch the file, this one's bells are rung after the commit."""


def sent(connection: Connection, now: datetime | None) -> datetime:
    assert now is not None
    return now
