"""A database that answers and takes nothing, and answers that are lost: no run is doubled for it, and none is called lost."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, make_url, text

from contract.hands import attempts, wait_until, working
from duly import INJECT, DatabaseUnavailable, Duly, Job, Status
from duly.kernel.events import Event


@contextmanager
def read_only(url: str) -> Iterator[None]:
    """As after a failover to a standby, or where the last space of a disk is protected."""
    name = make_url(url).database
    with psycopg.connect(url, dbname="postgres", autocommit=True) as admin:

        def move(how: str) -> None:
            admin.execute(f'ALTER DATABASE "{name}" {how}')
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])

        move("SET default_transaction_read_only = on")
        try:
            yield
        finally:
            move("RESET default_transaction_read_only")


@contextmanager
def without_a_table(url: str) -> Iterator[None]:
    """As where a right is missing: what is wrong is not the values."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("ALTER TABLE audit_log RENAME TO hidden")
        try:
            yield
        finally:
            admin.execute("ALTER TABLE hidden RENAME TO audit_log")


@pytest.mark.parametrize("refusing", [read_only, without_a_table], ids=lambda f: f.__name__)
def test_outcomes_wait_for_a_database_that_takes_no_writes(pg_url: str, refusing: Callable[[str], Any]) -> None:
    # guarantees.md: "The worker keeps the outcome and writes it when the database answers again"
    app, go, begun, seen = Duly(pg_url, poll=0.05), threading.Event(), list[int](), list[Event]()
    app.listen(seen.append)

    @app.task("X", max_attempts=1)
    def x(n: int) -> int:
        begun.append(n)
        assert go.wait(30)
        return n

    jobs = [x.enqueue(n).job.id for n in range(4)]
    worker = app.worker({"default": 4})
    with working(worker):
        wait_until(lambda: len(begun) == 4)
        with refusing(pg_url):
            go.set()
            wait_until(lambda: [e for e in seen if e.name == "settle_failed"])
            wait_until(lambda: not worker.ready)
        wait_until(lambda: app.jobs.count(status=[Status.QUEUED, Status.RUNNING]) == 0)
        wait_until(lambda: worker.ready)
    assert [(app.jobs.get(i).status, app.jobs.get(i).output, attempts(app, i)) for i in jobs] == [
        (Status.SUCCEEDED, n, []) for n in range(4)
    ]
    assert sorted(begun) == [0, 1, 2, 3]
    assert not [e for e in seen if e.name in ("lease_lost", "settlement_refused")]
    app.close()


def test_a_database_that_is_read_only_is_one_that_is_not_there_for_writers(pg_url: str) -> None:
    app = Duly(pg_url)
    task = app.task("X")(lambda: None)
    with read_only(pg_url), pytest.raises(DatabaseUnavailable, match="takes no writes"):
        task.enqueue()
    app.close()


@pytest.mark.parametrize("governed", [False, True], ids=["open", "limited"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_claim_whose_answer_is_lost_costs_its_jobs_no_attempt(
    live: Duly, monkeypatch: pytest.MonkeyPatch, governed: bool, times: int
) -> None:
    # README: "A job that was committed is run until it has ended"
    runs, seen = list[int](), list[Event]()
    live.listen(seen.append)

    @live.task("X", max_attempts=1)
    def x(job: Job = INJECT) -> None:
        runs.append(job.id)

    if governed:
        live.queues.set("default", limit=3)
    losses, here = [0], threading.local()

    def taking(claim: Callable[..., Any]) -> Callable[..., Any]:
        def claimed(*given: Any, **more: Any) -> Any:
            rows = claim(*given, **more)
            here.took = bool(rows)
            return rows

        return claimed

    def cut(door: Callable[..., Any]) -> Callable[..., Any]:
        def through(fn: Callable[..., Any]) -> Any:
            def within(connection: Any) -> Any:
                here.took = False
                return fn(connection), here.took

            out, took = door(within)
            if took and losses[0] < times:
                losses[0] += 1
                raise DatabaseUnavailable("the connection was lost after the commit")
            return out

        return through

    monkeypatch.setattr(live.engine.store, "claim", taking(live.engine.store.claim))
    monkeypatch.setattr(live.engine.queues, "claim_governed", taking(live.engine.queues.claim_governed))
    for door in ("once", "write"):
        monkeypatch.setattr(live.db, door, cut(getattr(live.db, door)))
    jobs = [x.enqueue().job.id for _ in range(5)]
    with working(live.worker({"default": 5})):
        wait_until(lambda: len([e for e in seen if e.name == "claim_given_back"]) == times)
        wait_until(lambda: live.jobs.count(status=[Status.SUCCEEDED]) == 5)
    assert sorted(runs) == jobs
    assert [(live.jobs.get(i).attempts, attempts(live, i)) for i in jobs] == [(1, [])] * 5


@pytest.mark.parametrize("loop", ["claim", "settle"])
def test_a_loop_to_which_the_database_says_nothing_any_more_gives_up_its_connection(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.setattr("duly.jobs.worker.life.SILENCE", 0.5)
    app, runs, seen = Duly(pg_url, lease=1, poll=0.05), list[int](), list[Event]()
    app.listen(seen.append)
    statement, silent = getattr(app.engine.store, loop), threading.Event()

    def waits(connection: Connection, *given: Any, **more: Any) -> Any:
        if not silent.is_set():
            silent.set()
            connection.execute(text("SELECT pg_sleep(600)"))
        return statement(connection, *given, **more)

    monkeypatch.setattr(app.engine.store, loop, waits)
    task = app.task("X", max_attempts=1)(lambda: runs.append(1))
    with working(app.worker({"default": 5})):
        job = task.enqueue().job
        wait_until(lambda: app.jobs.get(job.id).status == Status.SUCCEEDED)
    assert runs == [1]
    assert [e.facts["loop"] for e in seen if e.name == "answer_missing"] == [loop]
    app.close()


def test_a_connection_that_is_lost_in_its_statement_leaves_no_traceback(
    pg_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Duly(pg_url)
    task = app.task("X")(lambda: None)
    task.enqueue()
    kill = text("SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(DatabaseUnavailable):
        app.db.write(lambda c: c.execute(kill))
    with pytest.raises(DatabaseUnavailable):
        app.db.once(lambda c: c.connection.driver_connection.execute("SELECT pg_terminate_backend(pg_backend_pid())"))  # type: ignore[union-attr]
    assert task.enqueue().created
    assert [record.getMessage() for record in caplog.records] == []
    app.close()


def test_a_database_url_has_the_last_word_on_patience() -> None:
    from duly.storage.postgres import PATIENCE, _patience

    assert _patience(make_url("postgresql://h/d")) == PATIENCE
    assert "tcp_user_timeout" not in _patience(make_url("postgresql://h/d?tcp_user_timeout=0"))


@pytest.mark.parametrize("how", ["replaced", "moved"])
def test_a_worker_whose_file_was_moved_or_replaced_is_not_ready_and_says_so(sqlite_url: str, how: str) -> None:
    app, seen = Duly(sqlite_url), list[Event]()
    app.listen(seen.append)
    app.task("X")(lambda: None)
    file = Path(make_url(sqlite_url).database or "")
    worker = app.worker({"default": 1})
    worker.house.presence()
    assert worker.problems == []
    copy = file.with_suffix(".copy")
    shutil.copyfile(file, copy)
    file.rename(file.with_suffix(".old"))
    if how == "replaced":
        copy.rename(file)
    for _ in range(2):
        worker.house.presence()
    assert ["was moved or replaced while it was open" in problem for problem in worker.problems] == [True]
    assert [e.name for e in seen] == ["database_replaced"]
    app.close()
