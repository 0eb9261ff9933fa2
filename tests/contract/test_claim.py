"""Claiming: in order, exactly once, never more than was asked for, and cheaply whatever the backlog."""

from __future__ import annotations

import multiprocessing
import re
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import make_url, text

from contract.hands import NOON, Hand, ids, rows, run_sql, together, wait_until, work_off, working
from duly import Context, Duly, Status
from duly.jobs.sql import postgres
from duly.testing import ManualClock


@pytest.fixture
def send(app: Duly) -> Callable[..., int]:
    @app.task("X")
    def x(n: int = 0) -> None: ...

    return lambda **options: x.using(**options).enqueue().job.id


# --- Order -------------------------------------------------------------------------------------------------------------


def test_jobs_are_claimed_by_priority_then_planned_instant_then_id(
    send: Callable[..., int], hand: Hand
) -> None:  # R003-3
    low = send(priority=-1)
    late = send()
    early = send(run_at=NOON - timedelta(seconds=1))
    later = send()
    high = send(priority=5)
    assert ids(hand.claim(n=10)) == [high, early, late, later, low]


def test_a_claim_takes_the_first_and_leaves_the_rest_in_their_order(
    send: Callable[..., int], hand: Hand
) -> None:  # R003-3
    wanted = [send() for _ in range(5)]
    assert ids(hand.claim(n=2)) == wanted[:2]
    assert ids(hand.claim(n=2)) == wanted[2:4]
    assert ids(hand.claim(n=2)) == wanted[4:]
    assert hand.claim(n=2) == []


def test_a_claimed_job_is_running_under_a_lease(app: Duly, send: Callable[..., int], hand: Hand) -> None:  # R003-2
    ident = send()
    claimed = hand.one()
    job = app.jobs.get(ident)
    assert (job.status, job.attempts, job.worker, job.started_at) == (Status.RUNNING, 1, "hand", NOON)
    assert job.lease_until == NOON + timedelta(seconds=30)
    assert (claimed.attempts, claimed.max_attempts, claimed.input) == (1, 4, "{}")


def test_of_the_jobs_of_a_claim_each_name_is_kept_once(pg: Duly) -> None:  # ADR 0032
    @pg.task("send_letter", queue="letters")
    def send_letter() -> None: ...

    send_letter.using(tenant="acme").enqueue_many([{}, {}])
    first, second = Hand(pg).claim("letters", n=2)
    assert (first.tenant, first.queue, first.task) == ("acme", "letters", "send_letter")
    for name in ("tenant", "queue", "task"):
        assert getattr(first, name) is getattr(second, name)
    assert first.id != second.id


def test_a_claim_that_finds_nothing_is_an_ordinary_answer(
    app: Duly, send: Callable[..., int], hand: Hand
) -> None:  # R003-2
    assert hand.claim(n=5) == []


def test_a_retried_job_keeps_its_place(
    app: Duly, send: Callable[..., int], hand: Hand, clock: ManualClock
) -> None:  # T003-a
    first, second = send(), send()
    hand.fail(hand.one())
    third = send()
    assert ids(hand.claim()) == [second]  # it blocks nobody while it waits
    clock.advance(10)
    fourth = send()
    assert ids(hand.claim(n=9)) == [first, third, fourth]
    job = app.jobs.get(first)
    assert job.run_at == job.created_at == NOON


def test_a_future_job_is_claimed_at_its_instant_and_not_before(
    app: Duly, send: Callable[..., int], hand: Hand, clock: ManualClock
) -> None:  # R003-4
    ident = send(run_in=60)
    clock.advance(timedelta(seconds=60) - timedelta(microseconds=1))
    assert hand.claim() == []
    clock.advance(timedelta(microseconds=1))
    assert ids(hand.claim()) == [ident]


def test_a_promoted_job_takes_its_place_by_its_planned_instant(
    send: Callable[..., int], hand: Hand, clock: ManualClock
) -> None:
    planned = [send(run_in=n) for n in (3, 1, 2)]
    clock.advance(2.5)
    now = send()
    clock.advance(10)
    assert ids(hand.claim(n=9)) == [planned[1], planned[2], now, planned[0]]


def test_only_jobs_of_known_tasks_are_claimed(app: Duly, send: Callable[..., int], hand: Hand) -> None:  # R003-3
    app.enqueue("UNKNOWN", {})
    known = send()
    assert ids(hand.claim(n=9)) == [known]
    assert hand.claim(n=9) == []
    assert app.jobs.count(status=[Status.QUEUED]) == 1


def test_only_the_queue_that_is_served_is_claimed(send: Callable[..., int], hand: Hand) -> None:
    other, here = send(queue="other"), send()
    assert ids(hand.claim("default", 9)) == [here]
    assert ids(hand.claim("other", 9)) == [other]


def test_one_claim_serves_several_queues_each_within_its_room(app: Duly, send: Callable[..., int]) -> None:
    sent = {q: [send(queue=q) for _ in range(4)] for q in ("a", "b", "c")}
    store = app.engine.store
    got = app.db.once(lambda c: store.claim(c, {"a": 1, "b": 3}, ["X"], 1 << 60, 30, "w"))
    assert {q: sorted(j.id for j in got if j.queue == q) for q in "ab"} == {"a": sent["a"][:1], "b": sent["b"][:3]}
    assert len(got) == 4


def test_the_lag_of_a_claim_is_counted_from_when_the_job_was_due(
    send: Callable[..., int], hand: Hand, clock: ManualClock
) -> None:  # R000-19
    send(run_in=10)
    clock.advance(12.5)
    job = hand.one()
    assert job.lag == pytest.approx(2.5)
    hand.fail(job)
    clock.advance(11)
    assert hand.one().lag == pytest.approx(1)


def test_a_thousand_due_jobs_and_more_are_all_made_ready(
    app: Duly, send: Callable[..., int], hand: Hand, clock: ManualClock
) -> None:
    app.find_task("X").using(run_in=5).enqueue_many([{"n": n} for n in range(1500)])
    clock.advance(5)
    got = hand.claim(n=2000) + hand.claim(n=2000)
    assert [j.id for j in got] == sorted(j.id for j in got)
    assert len({j.id for j in got}) == 1500


# --- Once --------------------------------------------------------------------------------------------------------------


def test_eight_claimers_share_a_hundred_jobs_without_a_double(
    app: Duly, send: Callable[..., int]
) -> None:  # B025, R002-9
    for _ in range(100):
        send()
    claims: list[list[int]] = []
    lock = threading.Lock()

    def work(name: str) -> None:
        hand = Hand(app, name)
        empty = 0
        while empty < 3:  # an empty claim may only mean that others held the rows at that moment
            got = ids(hand.claim(n=5))
            empty = 0 if got else empty + 1
            with lock:
                claims.append(got)

    assert together(*[lambda n=n: work(f"w{n}") for n in range(8)]) == [None] * 8
    taken = [i for claim in claims for i in claim]
    assert max(map(len, claims)) == 5
    assert len(taken) == len(set(taken)) == 100
    assert rows(app, "SELECT min(attempts), max(attempts) FROM jobs") == [(1, 1)]


def test_of_twenty_claimers_of_one_job_exactly_one_wins(app: Duly, send: Callable[..., int]) -> None:  # R002-9, B054
    send()
    got = together(*[lambda n=n: Hand(app, f"w{n}").claim() for n in range(20)])
    assert sorted(map(len, got)) == [0] * 19 + [1]  # type: ignore[arg-type]
    assert rows(app, "SELECT attempts FROM jobs") == [(1,)]


TRAP = ["enable_hashagg", "enable_hashjoin", "enable_mergejoin", "enable_material", "enable_memoize", "enable_sort", "enable_indexscan",
        "enable_bitmapscan", "enable_indexonlyscan"]  # fmt: skip


@pytest.mark.parametrize("off", [TRAP[:6], TRAP])
def test_a_claim_of_one_takes_one_whatever_the_planner_does(pg: Duly, off: list[str]) -> None:  # B025
    @pg.task("X")
    def x() -> None: ...

    x.enqueue_many([{}] * 20)
    run_sql(pg, "ANALYZE jobs")
    store = pg.engine.store

    def claim(connection: Any) -> int:
        for name in off:
            connection.execute(text(f"SET LOCAL {name} = off"))
        return len(store.claim(connection, {"default": 1}, ["X"], 1 << 60, 30, "w"))

    assert pg.db.write(claim) == 1
    assert rows(pg, "SELECT count(*) FROM jobs WHERE status = 'running'") == [(1,)]


def plan(app: Duly, sql: str, parameters: dict[str, Any]) -> str:
    def explain(connection: Any) -> str:
        cursor = connection.connection.driver_connection.cursor()
        cursor.execute("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) " + sql, parameters)
        out = "\n".join(row[0] for row in cursor.fetchall())
        connection.rollback()
        return out

    with app.db.engine.connect() as connection:
        return explain(connection)


@pytest.mark.parametrize("analysed", [True, False])
@pytest.mark.parametrize("batch", [1, 100])
def test_a_claim_reads_its_rows_from_the_index_in_order_however_long_the_backlog(
    pg: Duly, batch: int, analysed: bool
) -> None:  # HOUSE decision 13
    @pg.task("X")
    def x() -> None: ...

    pg.open()
    run_sql(
        pg,
        "INSERT INTO jobs (tenant, queue, task, status, priority, run_at, input, max_attempts, created_at) "
        "SELECT 't' || i % 7, 'q' || i % 3, 'X', 'queued', i % 5, now() - i * interval '1 ms', '{}', 4, now() FROM generate_series(1, 50000) i",
    )
    if analysed:
        with pg.db.auto.connect() as connection:
            connection.execute(text("VACUUM ANALYZE jobs"))
    found = plan(pg, postgres.CLAIM, {"queues": ["q0", "q1", "q9"], "rooms": [batch] * 3, "tasks": ["X"], "abilities": [], "token": 1, "lease": 30.0, "worker": "w", "now": None})  # fmt: skip
    assert "Index Scan using ix_jobs_ready" in found
    assert re.search(r"(Bitmap )?Index Scan (using|on) pk_jobs", found)
    assert "Seq Scan on jobs" not in found
    assert "Sort" not in found
    looked_at = [int(n) for n in re.findall(r"ix_jobs_ready on jobs j \(actual rows=(\d+)", found)]
    assert looked_at and max(looked_at) <= batch


def test_a_claim_on_sqlite_reads_its_rows_from_the_index_in_order(sqlite_url: str) -> None:  # HOUSE decision 13
    from duly.jobs.sql import sqlite as dialect

    app = Duly(sqlite_url)
    app.open()
    run_sql(app, "ANALYZE")
    parameters = {
        "worker": "",
        "token": 1,
        "until": 1,
        "now": 1,
        "queue": "q",
        "tasks": "[]",
        "abilities": "[]",
        "room": 1,
        "ids": "[]",
    }
    with closing(sqlite3.connect(str(make_url(sqlite_url).database))) as connection:
        claim, read, hold = (
            [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, parameters)]
            for sql in (dialect.CLAIM, dialect.READ_CLAIM, dialect.HOLD)
        )
    assert any(re.match(r"SEARCH jobs USING (COVERING )?INDEX ix_jobs_ready \(queue=\?\)", s) for s in claim), claim
    assert any("SEARCH jobs USING INTEGER PRIMARY KEY" in s for s in claim), claim
    assert any("SEARCH jobs USING INDEX ix_jobs_running (queue=? AND lease_until=?)" in s for s in read), read
    assert any("SEARCH jobs USING INTEGER PRIMARY KEY" in s for s in hold), hold
    assert not [s for s in claim + read + hold if "TEMP B-TREE" in s or s.startswith("SCAN jobs")]
    app.close()


# --- SQLite's locks ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_threads_and_processes_on_one_file_never_find_it_locked(sqlite_url: str) -> None:  # B039
    app = Duly(sqlite_url, sqlite_synchronous="NORMAL")
    task = app.task("X")(lambda: None)
    task.enqueue_many([{}] * 350)
    spawn = multiprocessing.get_context("spawn")
    found: Any = spawn.Queue()
    processes = [spawn.Process(target=work_off, args=(sqlite_url, 8, found)) for _ in range(2)]
    for process in processes:
        process.start()
    for _ in range(50):  # meanwhile the API inserts
        task.enqueue()
    answers = [found.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(30)
    rest = ids(Hand(app).claim(n=400))
    taken = [i for got, _ in answers for i in got] + rest
    assert [p for _, problems in answers for p in problems] == []
    assert len(taken) == len(set(taken)) == 400
    app.close()


def test_a_write_that_follows_a_read_waits_its_turn(sqlite_url: str) -> None:  # B039
    app = Duly(sqlite_url, busy_timeout=10)
    other = Duly(sqlite_url)
    app.open()
    began, go = threading.Event(), threading.Event()

    def slow(connection: Any) -> None:
        connection.execute(text("SELECT count(*) FROM jobs")).scalar()
        began.set()
        assert go.wait(10)
        connection.execute(text("UPDATE system_state SET updated_at = 0"))

    def quick() -> int:
        assert began.wait(10)
        threading.Timer(0.2, go.set).start()  # while this one waits for the lock
        return other.enqueue("X").job.id

    assert together(lambda: app.db.write(slow), quick)[0] is None
    assert app.jobs.count() == 1
    app.close()
    other.close()


def test_a_handler_sees_its_instants_to_the_microsecond(live: Duly) -> None:
    seen: dict[int, tuple[datetime, datetime]] = {}

    @live.task("X")
    async def x(me: Context) -> None:
        seen[me.job.id] = me.job.run_at, me.job.created_at

    planned = [
        datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=86_399 * n, microseconds=7_919 * n + 1) for n in range(100)
    ]
    asked = [x.using(run_at=at).enqueue().job for at in planned]  # type: ignore[call-arg]
    with working(live.worker({"default": 5})):
        wait_until(lambda: live.jobs.count(status=[Status.SUCCEEDED]) == 100)
    assert [seen[job.id][0] for job in asked] == planned
    assert all(seen[job.id][1] == live.jobs.get(job.id).created_at for job in asked)
