"""What happens for each job costs the same with fifty thousand jobs waiting: no statement reads the table from end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, text

from contract.hands import NOON, K, run_sql
from duly import Duly, Status
from duly.jobs.ask import facts
from duly.jobs.filter import JobFilter
from duly.jobs.settle import Claimed, settle
from duly.kernel.outcome import Outcome
from duly.testing import ManualClock

ROWS = 50_000


@pytest.fixture
def crowd(pg: Duly) -> Iterator[Duly]:
    """Fifty thousand jobs wait, some of them for later, and as many have ended; a hundred run."""
    pg.task("X")(lambda: None)
    pg.queues.set("fair", fair=True)
    pg.queues.set("keyed", key_limit=1)
    insert = (
        "INSERT INTO jobs (id, tenant, queue, task, status, priority, run_at, due_at, input, attempts, max_attempts, created_at, fair, "
        "concurrency_key, lease_token, lease_until) "
        "SELECT i, 't' || i % 20, (ARRAY['default', 'fair', 'keyed'])[i % 3 + 1], 'X', CASE WHEN i <= 100 THEN 'running' ELSE 'queued' END, i % 3, "
        ":now - i * interval '1 ms', CASE WHEN i > :n / 2 THEN :now + i * interval '1 s' END, '{}', 1, 4, :now, i % 3 = 1, 'k' || i % 500, "
        "CASE WHEN i <= 100 THEN i END, CASE WHEN i <= 100 THEN :now - i * interval '1 s' + interval '50 s' END FROM generate_series(1, :n) i"
    )
    run_sql(pg, insert, now=NOON, n=ROWS)
    done = (
        "INSERT INTO jobs_done (id, tenant, queue, task, status, run_at, input, attempts, max_attempts, created_at, finished_at) "
        "SELECT i, 't', 'default', 'X', 'succeeded', :now, '{}', 1, 4, :now, :now FROM generate_series(:n + 1, 2 * :n) i"
    )
    run_sql(pg, done, now=NOON, n=ROWS)
    run_sql(pg, "SELECT setval(pg_get_serial_sequence('jobs', 'id'), :n)", n=3 * ROWS)
    with pg.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    yield pg


def running(ident: int) -> Claimed:
    return Claimed(ident, "t", "default", "X", "{}", 1, 4, 0, NOON, NOON, 0.0, None, None, None, None, None, ident)


def settled(app: Duly, connection: Connection, kind: K) -> object:
    jobs = [running(i) for i in range(1, 20)]
    batch = [settle(job, Outcome(kind, "{}"), app.engine.policy("X")) for job in jobs]
    held = app.engine.store.settle(connection, batch, "w")
    assert len(held) == 19
    return held


def governed(app: Duly, connection: Connection, queue: str) -> object:
    got = app.engine.queues.claim_governed(connection, queue, 10, ["X"], 1 << 60, 30, "w")
    assert len(got) == 10
    return got


Step = Callable[[Duly, Connection], object]
STEPS: dict[str, Step] = {
    "claim": lambda app, c: app.engine.store.claim(c, {"default": 50}, ["X"], 1 << 60, 30, "w")[49],
    "claim nothing": lambda app, c: app.engine.store.claim(c, {"elsewhere": 50}, ["X"], 1 << 60, 30, "w"),
    "claim with limits": lambda app, c: governed(app, c, "keyed"),
    "claim by turns": lambda app, c: governed(app, c, "fair"),
    "renew": lambda app, c: app.engine.store.renew(c, [(i, i) for i in range(1, 50)], 30)[49],
    "succeed": lambda app, c: settled(app, c, K.SUCCEEDED),
    "retry": lambda app, c: settled(app, c, K.FAILED),
    "refuse": lambda app, c: settled(app, c, K.REFUSED),
    "rescue": lambda app, c: app.engine.store.rescue(c, NOON.isoformat(), "w")[0],
    "promote": lambda app, c: app.engine.store.promote(c),
    "next due": lambda app, c: app.engine.store.next_due(c),
    "sweep": lambda app, c: app.engine.store.sweep_parents(c, "w"),
    "enqueue": lambda app, c: app.enqueue("X", key="k", concurrency_key="c", session=c),
    "get": lambda app, c: [app.engine.reader.get(c, i) for i in (1, ROWS, ROWS + 1)],
    "list": lambda app, c: app.engine.reader.find(c, JobFilter(status=[Status.QUEUED]), 50)[49],
    "why": lambda app, c: facts(app.engine, c, 9000),
    "cancel": lambda app, c: app.jobs.admin._cancel(c, 5000, "me", ""),
}  # fmt: skip


def read_in_sequence(connection: Connection) -> dict[str, int]:
    """How many rows this connection has read by scanning a table, by table."""
    query = "SELECT relname, seq_tup_read FROM pg_stat_xact_user_tables WHERE relname IN ('jobs', 'jobs_done')"
    return {name: n for name, n in connection.execute(text(query))}  # noqa: C416


def test_no_step_of_a_job_reads_a_table_from_end_to_end(crowd: Duly, clock: ManualClock) -> None:  # HOUSE decision 13
    clock.advance(60)
    read: dict[str, dict[str, int]] = {}
    for name, step in STEPS.items():
        with crowd.db.engine.connect() as connection:
            before = read_in_sequence(connection)
            step(crowd, connection)
            read[name] = {t: n - before[t] for t, n in read_in_sequence(connection).items()}
            connection.rollback()
    assert read == {name: {"jobs": 0, "jobs_done": 0} for name in STEPS}


def test_a_scan_would_be_noticed(crowd: Duly) -> None:
    with crowd.db.engine.connect() as connection:
        before = read_in_sequence(connection)
        connection.execute(text("SELECT count(*) FROM jobs WHERE tenant = 't1'")).scalar()
        assert read_in_sequence(connection)["jobs"] - before["jobs"] == ROWS
