"""Insert, claim and finish on PostgreSQL: one set-based statement each.

The claim takes rows as ``id = ANY(ARRAY(SELECT … FOR UPDATE SKIP LOCKED LIMIT n))``: an array is computed once, so the
planner can neither run the subquery again for each row (case B025) nor turn it into a join over the whole table. Inside
stands a LATERAL per queue, so that each queue's rows come straight from the index in order. ``now`` null means the
server's clock.

A lease token is the claim's random number plus the job's id, so it belongs to one job and one claim. The settlement can
therefore ask for ids and tokens as two plain arrays: no join that the planner could run as a loop, and no mention of the
status, which would offer it an index on the wrong column (a row with a token is running; a CHECK says so).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from sqlalchemy import Connection, PoolProxiedConnection

from duly.calendars.tables import held
from duly.jobs.settle import Claimed, Settlement
from duly.jobs.tables import COMMON
from duly.storage.postgres import Statement, instant_of, number_of
from duly.storage.qualified import qualified, schema_of, text
from duly.storage.rows import PRESENT
from duly.storage.wake import CHANNEL

if TYPE_CHECKING:
    from duly.jobs.enqueue import NewJob

T = TypeVar("T")

#: Instants as seconds since 1970: date_part is quicker than extract, and a float than a datetime, which few handlers ask for.
CLAIMED = (
    "id, tenant, queue, task, input::text, attempts, max_attempts, priority, date_part('epoch', run_at), date_part('epoch', created_at), "
    "date_part('epoch', started_at - greatest(run_at, coalesce(next_retry_at, run_at))), "
    "key, key_scope, concurrency_key, parent_id, meta::text, lease_token"
)
NOW = f"coalesce(%(now)s::timestamptz, {PRESENT})"
GATE_OPEN = (
    "NOT EXISTS (SELECT 1 FROM system_state s WHERE s.key = 'atlas_online' "
    "AND lower(btrim(btrim(s.value), '\"')) NOT IN ('true', '1', 'on', 'yes'))"
)

CLAIM = f"""
UPDATE jobs SET status = 'running', attempts = attempts + 1, worker = %(worker)s, lease_token = %(token)s + id,
       lease_until = {NOW} + make_interval(secs => %(lease)s), started_at = {NOW}
 WHERE id = ANY(ARRAY(
         SELECT picked.id
           FROM unnest(%(queues)s::text[], %(rooms)s::int[]) AS q(name, room)
          CROSS JOIN LATERAL (
                SELECT j.id FROM jobs j
                 WHERE j.queue = q.name AND j.status = 'queued' AND j.due_at IS NULL AND j.task = ANY(%(tasks)s::text[])
                   AND (j.needs IS NULL OR j.needs = ANY(%(abilities)s::text[]))
                 ORDER BY j.priority DESC, j.run_at, j.id
                 LIMIT q.room FOR UPDATE SKIP LOCKED) AS picked
          WHERE {GATE_OPEN}
            AND NOT EXISTS (SELECT 1 FROM queues g WHERE g.name = q.name AND g.governed)
            AND NOT {held(False, "q.name", NOW)}))
RETURNING {CLAIMED}"""

TAKE = f"""
UPDATE jobs SET status = 'running', attempts = attempts + 1, worker = %(worker)s, lease_token = %(token)s + id,
       lease_until = {NOW} + make_interval(secs => %(lease)s), started_at = {NOW}
 WHERE id = ANY(%(ids)s::bigint[]) AND status = 'queued' AND due_at IS NULL
RETURNING {CLAIMED}"""

_KEPT = [c for c in COMMON if c not in ("status", "output", "error", "cost_cents", "remote_id")]
FINISH = f"""
WITH o AS MATERIALIZED (
       SELECT * FROM unnest(%(ids)s::bigint[], %(tokens)s::bigint[], %(statuses)s::text[], %(outputs)s::text[], %(errors)s::text[],
              %(costs)s::int[], %(remotes)s::text[], %(actions)s::text[], %(levels)s::text[], %(metas)s::text[])
           AS o(id, token, status, output, error, cost, remote, action, level, meta)),
     d AS (
       DELETE FROM jobs j WHERE j.id = ANY(%(ids)s::bigint[]) AND j.lease_token = ANY(%(tokens)s::bigint[])
       RETURNING j.id, j.lease_token, {", ".join("j." + c for c in COMMON)}),
     h AS (
       INSERT INTO jobs_done (id, status, output, error, cost_cents, remote_id, finished_at, {", ".join(_KEPT)})
       SELECT d.id, coalesce(o.status, %(status)s), coalesce(o.output, %(output)s)::json, o.error::json, coalesce(o.cost, d.cost_cents), coalesce(o.remote, d.remote_id), {NOW},
              {", ".join("d." + c for c in _KEPT)}
         FROM d JOIN o ON o.id = d.id AND o.token = d.lease_token
       RETURNING id),
     a AS (
       INSERT INTO audit_log (at, tenant, actor, level, action, entity, entity_id, meta)
       SELECT {NOW}, d.tenant, %(actor)s, coalesce(o.level, %(level)s), coalesce(o.action, %(action)s), 'job', d.id::text, coalesce(o.meta, '{{}}')::json
         FROM d JOIN o ON o.id = d.id AND o.token = d.lease_token
        WHERE coalesce(o.action, %(action)s) IS NOT NULL)
SELECT id FROM h"""

_NEW = """tenant, queue, task, status, priority, run_at, due_at, input, max_attempts, key, key_scope, concurrency_key,
          parent_id, meta, created_at, fair"""
INSERT_ONE = text(f"""
INSERT INTO jobs ({_NEW})
SELECT CAST(:tenant AS text), CAST(:queue AS text), CAST(:task AS text), 'queued', CAST(:priority AS int), w.run_at,
       CASE WHEN w.run_at > w.now THEN w.run_at END, CAST(:input AS json), CAST(:max_attempts AS int), NULL, NULL,
       CAST(:concurrency_key AS text), CAST(:parent_id AS bigint), CAST(:meta AS json), w.now,
       EXISTS (SELECT 1 FROM queues q WHERE q.name = CAST(:queue AS text) AND q.fair)
  FROM (SELECT n.now, coalesce(CAST(:run_at AS timestamptz), n.now + make_interval(secs => CAST(:delay AS float8)), n.now) AS run_at
          FROM (SELECT coalesce(CAST(:now AS timestamptz), {PRESENT}) AS now) AS n) AS w
RETURNING id, run_at, due_at, created_at, CASE WHEN CAST(:notify AS boolean) THEN pg_notify('{CHANNEL}', CAST(:queue AS text)) END
""")


#: The same past the driver's cursor: a single enqueue is a commit and little else.
@lru_cache
def _insert_alone(schema: str | None) -> Statement:
    return Statement("duly_insert_one", qualified(INSERT_ONE.text, schema))


#: And for a job that is due at once by the server's clock, as most are: nothing to work out. Its parameters stand in the order in which
#: ``insert_at_once`` gives them.
_AT_ONCE = f"""
INSERT INTO jobs (tenant, queue, task, status, priority, run_at, input, max_attempts, meta, created_at, fair)
VALUES (:tenant, :queue, :task, 'queued', :priority, {PRESENT}, :input, :max_attempts, :meta, {PRESENT},
        EXISTS (SELECT 1 FROM queues q WHERE q.name = :queue AND q.fair))
RETURNING id, run_at, CASE WHEN CAST(:notify AS boolean) THEN pg_notify('{CHANNEL}', :queue) END
"""


@lru_cache
def _insert_at_once(schema: str | None) -> Statement:
    return Statement("duly_insert_at_once", qualified(_AT_ONCE, schema))


INSERT_MANY = text(f"""
INSERT INTO jobs (id, {_NEW})
SELECT r.id, r.tenant, r.queue, r.task, 'queued', r.priority, r.run_at, r.due_at, r.input, r.max_attempts, r.key, r.key_scope,
       r.concurrency_key, r.parent_id, r.meta, r.created_at, r.fair
  FROM json_to_recordset(CAST(:rows AS json)) AS r(id bigint, tenant text, queue text, task text, priority int, run_at timestamptz,
       due_at timestamptz, input json, max_attempts int, key text, key_scope text, concurrency_key text, parent_id bigint, meta json,
       created_at timestamptz, fair boolean)
""")
_COPY = f"COPY jobs (id, {_NEW}) FROM STDIN"
#: From this many rows on, COPY beats one INSERT.
COPY_FROM = 20


def _rows(
    connection: Connection, sql: str, parameters: dict[str, Any], prepare: bool, make: Callable[[Any], Any] = tuple
) -> Any:
    """Run a statement on the driver itself (binary results, prepared); through SQLAlchemy when the driver is asynchronous.

    ``make`` is given each row's values as a tuple.
    """
    sql = qualified(sql, schema_of(connection.dialect))
    if connection.dialect.is_async:
        return list(map(make, connection.exec_driver_sql(sql, parameters).all()))
    driver: Any = connection.connection.driver_connection
    cursor = driver.cursor(binary=True, row_factory=lambda _cursor: make)
    return cursor.execute(sql, parameters, prepare=prepare).fetchall()


def _claims() -> Callable[[Any], Claimed]:
    """Makes the rows of one claim. They are many, with few names between them: each name is kept once."""
    names: dict[str, str] = {}
    kept = names.setdefault

    def claimed(values: Any) -> Claimed:
        tenant, queue, task = values[1:4]
        return _new(Claimed, (values[0], kept(tenant, tenant), kept(queue, queue), kept(task, task), *values[4:]))

    return claimed


_new: Callable[..., Claimed] = tuple.__new__


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
    rows: list[Claimed] = _rows(
        connection,
        CLAIM,
        {
            "queues": list(queues),
            "rooms": list(queues.values()),
            "tasks": list(tasks),
            "abilities": list(abilities),
            "token": token,
            "lease": lease,
            "worker": worker,
            "now": now,
        },
        prepare,
        _claims(),
    )
    return rows


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
    parameters = {"ids": list(ids), "token": token, "lease": lease, "worker": worker, "now": now}
    rows: list[Claimed] = _rows(connection, TAKE, parameters, prepare, _claims())
    return rows


def finish(
    connection: Connection, batch: Sequence[Settlement], actor: str, now: datetime | None, prepare: bool = True
) -> list[int]:
    """Move settled jobs to jobs_done with their audit rows. Returns the ids that were still held under their tokens."""
    parameters: dict[str, Any] = {
        "ids": _numbers([s.id for s in batch]),
        "tokens": _numbers([s.token for s in batch]),
        "costs": _unless_none([s.cost_cents for s in batch]),
        "remotes": _unless_none([s.remote_id for s in batch]),
        "errors": _documents([s.error for s in batch]),
        "metas": _documents([s.meta for s in batch]),
        "actor": actor,
        "now": now,
    }  # fmt: skip
    columns: tuple[tuple[str, str, list[Any]], ...] = (
        ("status", "statuses", [s.status for s in batch]),
        ("output", "outputs", [s.output for s in batch]),
        ("action", "actions", [s.action for s in batch]),
        ("level", "levels", [s.level for s in batch]),
    )
    for one, many, values in columns:
        # a column with one value in all rows is sent once; unnest fills its empty array with nulls
        first = values[0]
        same = values.count(first) == len(values)
        parameters[one] = (None if first is None else str(first)) if same else None
        parameters[many] = "{}" if same else _texts(values)
    return [row[0] for row in _rows(connection, FINISH, parameters, prepare)]


def _unless_none(values: list[Any]) -> list[Any]:
    return [] if values.count(None) == len(values) else values


def _documents(values: list[dict[str, Any] | None]) -> str:
    """An array literal of JSON documents; an empty one when there is none."""
    if values.count(None) == len(values):
        return "{}"
    return _texts([None if value is None else orjson.dumps(value).decode() for value in values])


def _numbers(values: list[int]) -> str:
    """An array literal. The driver's own encoding of lists was a fifth of a settlement's cost."""
    return "{" + ",".join(map(str, values)) + "}"


def _texts(values: Sequence[str | None]) -> str:
    """An array literal of texts without control characters (JSON documents and names): JSON's quoting is the array's own then."""
    return "{" + orjson.dumps(values)[1:-1].decode() + "}"


def insert_one(connection: Connection, parameters: dict[str, Any]) -> Any:
    """Insert one job without a key in the transaction of ``connection``. Returns (id, run_at, due_at, created_at)."""
    return connection.execute(INSERT_ONE, parameters).one()[:4]


def insert_alone(
    pooled: PoolProxiedConnection, parameters: dict[str, Any], prepare: bool, schema: str | None = None
) -> Any:
    """The same as a transaction by itself, on a connection of ours that is in none."""
    statement = _insert_alone(schema)
    texts = [None if v is None else str(v).encode() for v in map(parameters.__getitem__, statement.names)]
    value = statement.run(pooled, texts, prepare).get_value
    return number_of(value(0, 0)), instant_of(value(0, 1)), instant_of(value(0, 2)), instant_of(value(0, 3))


def insert_at_once(
    pooled: PoolProxiedConnection,
    new: NewJob,
    notify: bool,
    prepare: bool,
    meanwhile: Callable[[], T],
    schema: str | None = None,
) -> tuple[int, datetime, T]:
    """The same for a job that is due at once by the server's clock. Returns (id, that instant, what ``meanwhile`` returned).

    ``meanwhile`` is called while the server is at work, and must not raise.
    """
    texts = (
        new.tenant.encode(), new.queue.encode(), new.task.encode(), b"%d" % new.priority, new.input.encode(),
        b"%d" % new.max_attempts, None if new.meta is None else new.meta.encode(), b"t" if notify else b"f",
    )  # fmt: skip
    statement = _insert_at_once(schema)
    statement.send(pooled, texts, prepare)
    made = meanwhile()
    value = statement.answer(pooled).get_value
    at = instant_of(value(0, 1))
    assert at is not None
    return number_of(value(0, 0)), at, made


def insert_many(connection: Connection, rows: Sequence[dict[str, Any]], own: bool) -> None:
    """Insert rows that carry their ids and instants. ``own``: the connection is ours (psycopg), so COPY may be used."""
    if own and len(rows) >= COPY_FROM:
        cursor = connection.connection.driver_connection.cursor()  # type: ignore[union-attr]
        with cursor.copy(qualified(_COPY, schema_of(connection.dialect))) as copy:
            write = copy.write_row
            for r in rows:
                write(
                    (
                        r["id"],
                        r["tenant"],
                        r["queue"],
                        r["task"],
                        "queued",
                        r["priority"],
                        r["run_at"],
                        r["due_at"],
                        r["input"],
                        r["max_attempts"],
                        r["key"],
                        r["key_scope"],
                        r["concurrency_key"],
                        r["parent_id"],
                        r["meta"],
                        r["created_at"],
                        r["fair"],
                    )
                )
        return
    encoded = orjson.dumps(
        [{**r, "input": orjson.Fragment(r["input"]), "meta": r["meta"] and orjson.Fragment(r["meta"])} for r in rows]
    )
    connection.execute(INSERT_MANY, {"rows": encoded.decode()})


def insert_alike(connection: Connection, row: dict[str, Any], ids: Sequence[int], inputs: Sequence[str]) -> None:
    """Insert jobs that share every column of ``row`` but id and input, as one COPY whose lines are made of ready parts."""
    names = [name.strip() for name in _NEW.split(",")]
    at = names.index("input")
    shared = {
        **row,
        "status": "queued",
        "run_at": row["run_at"].isoformat(),
        "created_at": row["created_at"].isoformat(),
    }
    before = "\t".join(_copied(shared[name]) for name in names[:at])
    after = "\t".join(_copied(shared[name]) for name in names[at + 1 :])
    driver: Any = connection.connection.driver_connection
    with driver.cursor().copy(qualified(_COPY, schema_of(connection.dialect))) as copy:
        for start in range(0, len(ids), 2000):
            part = zip(ids[start : start + 2000], inputs[start : start + 2000], strict=True)
            lines = [f"{ident}\t{before}\t{_escaped(text)}\t{after}\n" for ident, text in part]
            copy.write("".join(lines))


def _escaped(text: str) -> str:
    """JSON text in COPY's text format: it holds no raw tab or newline, only backslashes need a second one."""
    return text.replace("\\", "\\\\") if "\\" in text else text


def _copied(value: Any) -> str:
    """A value in COPY's text format."""
    if value is None:
        return "\\N"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def ring(connection: Connection, queues: Sequence[str]) -> None:
    """One NOTIFY per queue, sent when the transaction commits."""
    for queue in queues:
        connection.execute(text("SELECT pg_notify(:channel, :queue)"), {"channel": CHANNEL, "queue": queue[:2000]})


def sent(connection: Connection, now: datetime | None) -> datetime:
    """The instant to write into rows that carry their own: the present one, unless one is given."""
    if now is not None:
        return now
    at: datetime = connection.execute(text(f"SELECT {PRESENT}")).scalar_one()
    return at.astimezone(UTC)
