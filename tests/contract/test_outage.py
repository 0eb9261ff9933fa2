"""A database that does not answer: said in one word, waited for, and no outcome is lost meanwhile."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, make_url

from contract.hands import AT_ONCE, Hand, K, attempts, rows, wait_until, working
from duly import DatabaseUnavailable, Duly, Status
from duly.jobs.settle import settle
from duly.jobs.sql import postgres
from duly.kernel.events import Event
from duly.kernel.outcome import Outcome


def hang_up(app: Duly, connection: Connection) -> None:
    """Let the server end this very connection, as a restart or a failover would."""
    driver: Any = connection.connection.driver_connection
    with psycopg.connect(app.db.url.render_as_string(hide_password=False), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [driver.info.backend_pid])
    wait_until(
        lambda: rows(app, "SELECT count(*) FROM pg_stat_activity WHERE pid = :p", p=driver.info.backend_pid) == [(0,)]
    )


STEPS: dict[str, Callable[[Duly, Connection, Any], object]] = {
    "claim": lambda app, c, job: app.engine.store.claim(c, {"default": 1}, ["X"], 1, 30, "w"),
    "settle": lambda app, c, job: app.engine.store.settle(c, [settle(job, Outcome(K.SUCCEEDED, "1"), app.engine.policy("X"))], "w"),
    "retry": lambda app, c, job: app.engine.store.settle(c, [settle(job, Outcome(K.FAILED), app.engine.policy("X"))], "w"),
    "renew": lambda app, c, job: app.engine.store.renew(c, [(job.id, job.token)], 30),
    "promote": lambda app, c, job: app.engine.store.promote(c),
}  # fmt: skip


@pytest.mark.parametrize("door", ["write", "once", "read"])
@pytest.mark.parametrize("step", STEPS)
def test_a_connection_that_breaks_in_a_statement_means_that_the_database_is_unavailable(
    pg: Duly, door: str, step: str
) -> None:  # B034
    pg.task("X")(lambda: None).enqueue()
    job = Hand(pg).one()

    def act(connection: Connection) -> object:
        hang_up(pg, connection)
        return STEPS[step](pg, connection, job)

    with pytest.raises(DatabaseUnavailable):
        getattr(pg.db, door)(act)
    assert pg.jobs.get(job.id).status is Status.RUNNING
    assert Hand(pg).succeed(job)  # and the next connection is a good one


def test_an_outcome_survives_a_connection_that_breaks_while_it_is_written(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # B034
    app = Duly(pg_url, poll=0.05)
    heard: list[Event] = []
    app.listen(heard.append)
    real, broken = postgres.finish, threading.Event()

    def finish(connection: Connection, *args: Any, **kwargs: Any) -> Any:
        if not broken.is_set():
            broken.set()
            hang_up(app, connection)
        return real(connection, *args, **kwargs)

    monkeypatch.setattr(postgres, "finish", finish)

    @app.task("X", backoff=AT_ONCE)
    def x() -> str:
        return "kept"

    with working(app.worker(name="w")):
        job = x.enqueue().job
        wait_until(lambda: app.jobs.get(job.id).is_final)
    assert broken.is_set()
    done = app.jobs.get(job.id)
    assert (done.status, done.output, done.error, done.attempts) == (Status.SUCCEEDED, "kept", None, 1)
    assert attempts(app, job.id) == []
    assert "settle_failed" in [e.name for e in heard]
    assert "lease_lost" not in [e.name for e in heard]
    app.close()


def test_a_sqlite_file_that_another_writer_keeps_is_unavailable_after_the_timeout(sqlite_url: str) -> None:  # B039
    app = Duly(sqlite_url, busy_timeout=0.05)
    app.task("X")(lambda: None).enqueue()
    job = Hand(app).one()
    other = sqlite3.connect(str(make_url(sqlite_url).database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for act in (lambda: Hand(app).succeed(job), lambda: Hand(app).claim(), lambda: app.enqueue("X")):
        with pytest.raises(DatabaseUnavailable, match="locked"):
            act()
    other.execute("COMMIT")
    assert Hand(app).succeed(job)
    other.close()
    app.close()


def test_an_outcome_that_the_database_refuses_ends_its_job_all_the_same(
    live: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Event] = []
    live.listen(heard.append)

    @live.task("X")
    def x() -> str:
        return "odd"

    import duly.jobs.run as run

    # a result that slipped through every check and is no JSON
    monkeypatch.setattr(run, "encode_output", lambda value, limit: ("{no json", None))
    with working(live.worker(name="w")):
        jobs = [x.enqueue().job for _ in range(3)]
        wait_until(lambda: live.jobs.count(status=[Status.SUCCEEDED]) == 3)
    if live.db.is_sqlite:
        return  # it stores any text
    for job in jobs:
        done = live.jobs.get(job.id)
        assert (done.output, done.error["type"], done.attempts) == ({}, "UnstorableOutcome", 1)
    assert [e.facts["job"] for e in heard if e.name == "settlement_refused"] == [j.id for j in jobs]
