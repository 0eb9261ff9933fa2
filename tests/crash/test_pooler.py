"""Nothing of ours stays in a PostgreSQL session: behind a pooler, and after a transaction that failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text

from crash.program import BOOKS
from crash.scene import Scene
from duly import Backoff, Duly, Job, Status
from duly.audit import seal
from keeper import until


@contextmanager
def at_work(app: Duly) -> Iterator[None]:
    worker = app.worker({"default": 5})
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        assert until(lambda: worker.state == "running", 10)
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


def ended(app: Duly, job: Job) -> bool:
    return app.jobs.get(job.id).is_final


def prepared(app: Duly) -> int:
    """How many prepared statements the sessions of this application hold."""
    count = "SELECT count(*) FROM pg_prepared_statements"
    with ExitStack() as stack:
        total = 0
        for engine in {app.db.engine, app.db._vital}:
            for _ in range(engine.pool.checkedin()):  # type: ignore[attr-defined]
                total += stack.enter_context(engine.connect()).execute(text(count)).scalar_one()
        return total


@pytest.mark.parametrize(("pooler", "keeps"), [("transaction", False), ("none", True)])
def test_behind_a_transaction_pooler_nothing_is_prepared_and_nobody_listens(
    pg_url: str, pooler: str, keeps: bool
) -> None:
    """HOUSE decision 12. The setting "none" shows that the look would find something."""
    app = Duly(pg_url, pooler=pooler, poll=0.02)

    @app.task("X", backoff=Backoff(base=0))
    def x(n: int) -> None: ...

    with psycopg.connect(pg_url, autocommit=True) as admin, at_work(app):
        listening = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        for n in range(30):
            job = x.enqueue(n).job
            assert until(partial(ended, app, job), 10)
        assert until(lambda: (admin.execute(listening).fetchall() == [(1,)]) is keeps, 5)
    assert (prepared(app) > 0) is keeps
    app.close()


def test_a_worker_drains_on_sessions_that_forget_everything_between_transactions(pg_url: str) -> None:
    """HOUSE decision 12: every session is emptied when it goes back to the pool, as a strict pooler would."""
    app = Duly(pg_url, pooler="transaction", poll=0.02)
    heard: list[Any] = []
    app.listen(lambda e: heard.append(e) if e.level == "error" else None)

    @app.task("X", max_attempts=2, backoff=Backoff(base=0))
    def x(n: int) -> int:
        if n % 10 == 0:
            raise ValueError("every tenth fails")
        return n

    for engine in {app.db.engine, app.db._vital}:

        @event.listens_for(engine, "checkin")
        def forget(connection: Any, _record: Any) -> None:
            if connection is not None and not connection.closed:
                before, connection.autocommit = connection.autocommit, True
                connection.execute("DISCARD ALL", prepare=False)
                connection.autocommit = before

    with at_work(app):
        x.enqueue_many([{"n": n} for n in range(200)])
        for n in range(20):
            x.using(key=f"k{n}", run_in=0.1).enqueue(1)
        assert until(lambda: app.db.read(lambda c: c.execute(text("SELECT count(*) FROM jobs")).scalar()) == 0, 20)
    assert app.jobs.count(status=[Status.SUCCEEDED]) == 200
    assert app.jobs.count(status=[Status.FAILED]) == 20
    assert [e for e in heard if e.name != "job_failed"] == []
    app.close()


# --- Locks (B020) ------------------------------------------------------------------------------------------------------

LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"


def test_a_transaction_that_fails_leaves_no_lock_behind(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """B020: the lock under which the trail is sealed dies with its transaction, and the next one to seal gets it."""
    app, other = Duly(pg_url), Duly(pg_url)
    app.gate.offline()
    with psycopg.connect(pg_url, autocommit=True) as admin:

        def locks() -> int:
            [(count,)] = admin.execute(LOCKS).fetchall()
            return int(count)

        real, held = seal.link, []

        def fail(*_: Any) -> Any:
            held.append(locks())
            raise ValueError("in the middle of it")

        monkeypatch.setattr(seal, "link", fail)
        with pytest.raises(ValueError, match="in the middle"):
            seal.Sealer(app.db).seal()
        assert (held, locks()) == ([1], 0)
        monkeypatch.setattr(seal, "link", real)
        assert seal.Sealer(other.db).seal() == 1
        assert locks() == 0
    app.close()
    other.close()


def test_workers_whose_handlers_fail_in_their_transactions_hold_no_lock(
    pg_url: str, make_scene: Callable[..., Scene]
) -> None:  # B020
    scene = make_scene(pg_url)
    scene.change(BOOKS)
    for task in ("BOOK", "ABOOK"):
        for _ in range(5):
            scene.enqueue(task, options={"max_attempts": 2}, fail=True)
    scene.worker("w")
    scene.wait_for_end()
    assert scene.app.jobs.count(status=[Status.FAILED]) == 10
    assert scene.sql("SELECT count(*) FROM books") == [(0,)]
    with psycopg.connect(pg_url, autocommit=True) as admin:
        idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        assert until(lambda: admin.execute(LOCKS).fetchall() == [(0,)], 5)
        assert until(lambda: admin.execute(idle).fetchall() == [(0,)], 5)
