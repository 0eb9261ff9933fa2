"""A handler with a session: its effects and the end of its job are one commit, or neither happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from contract.hands import AT_ONCE, actions, attempts, rows, run_sql, wait_until, working
from duly import Cancel, Context, Duly, PermanentError, Retry, Snooze, Status
from duly.testing import ManualClock, drain

Handler = Callable[..., Any]


@pytest.fixture(autouse=True)
def orders(app: Duly) -> Iterator[None]:
    app.open()
    run_sql(app, "CREATE TABLE orders (id integer PRIMARY KEY)")
    yield
    if app.db._async is not None:
        asyncio.run(app.db.async_engine.dispose())


@pytest.fixture(params=["plain", "async"])
def define(request: pytest.FixtureRequest, app: Duly) -> Callable[..., Any]:
    """Define task X as a plain or an async handler: it writes an order, then does ``then(session)``."""

    def make(then: Handler = lambda session: None, **options: Any) -> Any:
        def plain(session: Session, n: int = 1) -> Any:
            session.execute(text("INSERT INTO orders VALUES (:n)"), {"n": n})
            return then(session)

        async def coroutine(session: AsyncSession, n: int = 1) -> Any:
            await session.execute(text("INSERT INTO orders VALUES (:n)"), {"n": n})
            return then(session)

        return app.task("X", backoff=AT_ONCE, **options)(plain if request.param == "plain" else coroutine)

    return make


def written(app: Duly) -> list[int]:
    return [row[0] for row in rows(app, "SELECT id FROM orders ORDER BY id")]


def test_effects_and_settlement_are_committed_together(app: Duly, define: Callable[..., Any]) -> None:
    ident = define(lambda session: "done").enqueue().job.id
    assert drain(app).succeeded == 1
    assert (app.jobs.get(ident).status, app.jobs.get(ident).output) == (Status.SUCCEEDED, "done")
    assert (written(app), actions(app, ident)) == ([1], ["X_COMPLETED"])


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("no"), "failed"), (PermanentError("no"), "failed"), (Retry("no"), "failed"), (Cancel("no"), "cancelled"), (Snooze(after=60), "queued")],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_a_handler_that_raises_leaves_no_effect(
    app: Duly, define: Callable[..., Any], error: Exception, status: str
) -> None:
    def then(session: Any) -> None:
        raise error

    ident = define(then, max_attempts=2).enqueue().job.id
    drain(app)
    assert (app.jobs.get(ident).status.value, written(app)) == (status, [])


def test_a_lease_lost_before_the_first_write_rolls_the_effects_back(app: Duly) -> None:  # B026
    @app.task("X")
    def x(session: Session, me: Context) -> None:
        run_sql(app, "UPDATE jobs SET lease_token = 1 WHERE id = :id", id=me.job.id)
        session.execute(text("INSERT INTO orders VALUES (1)"))

    ident = app.enqueue("X").job.id
    tally = drain(app)
    assert (tally.lost, tally.succeeded, written(app)) == (1, 0, [])
    assert app.jobs.get(ident).status is Status.RUNNING


def test_effects_happen_once_whatever_a_late_worker_does(app: Duly, clock: ManualClock) -> None:  # B026
    runs: list[int] = []

    @app.task("X", backoff=AT_ONCE)
    def x(session: Session, me: Context) -> None:
        runs.append(me.job.attempts)
        if len(runs) == 1:  # its lease lapses while it works, and a rescue gives the job back
            clock.advance(60)
            at = clock.now().isoformat()
            app.db.write(lambda c: app.engine.store.rescue(c, at, "saviour"))
        session.execute(text("INSERT INTO orders VALUES (1)"))

    ident = app.enqueue("X").job.id
    tally = drain(app)
    assert (runs, written(app)) == ([1, 2], [1])
    assert (tally.lost, tally.succeeded) == (1, 1)
    assert actions(app, ident) == ["X_COMPLETED"]


def test_jobs_enqueued_in_the_handlers_session_share_its_fate(app: Duly) -> None:
    @app.task("CHILD", queue="later")
    def child() -> None: ...

    @app.task("X", max_attempts=1)
    def x(session: Session, fail: bool) -> None:
        child.using(session=session).enqueue()
        child.using(session=session, key="k").enqueue()
        if fail:
            raise ValueError

    app.enqueue("X", {"fail": True})
    drain(app, queues=["default"])
    assert app.jobs.count(task="CHILD") == 0
    app.enqueue("X", {"fail": False})
    drain(app, queues=["default"])
    assert app.jobs.count(task="CHILD") == 2


def test_a_commit_that_the_database_refuses_is_a_failure_without_effects(app: Duly, define: Callable[..., Any]) -> None:
    run_sql(app, "INSERT INTO orders VALUES (1)")
    ident = define(max_attempts=1).enqueue().job.id
    drain(app)
    job = app.jobs.get(ident)
    assert (job.status, job.error["type"]) == (Status.FAILED, "IntegrityError")
    assert written(app) == [1]
    assert [a.outcome for a in attempts(app, ident)] == ["failed"]


def test_a_result_that_cannot_be_stored_does_not_take_the_effects_along(app: Duly, define: Callable[..., Any]) -> None:
    ident = define(lambda session: object()).enqueue().job.id
    drain(app)
    assert (app.jobs.get(ident).error["type"], written(app)) == ("UnstorableResult", [1])


def test_a_handler_that_commits_halfway_keeps_what_it_committed(app: Duly) -> None:
    @app.task("X", max_attempts=1)
    def x(session: Session) -> None:
        session.execute(text("INSERT INTO orders VALUES (1)"))
        session.commit()
        session.execute(text("INSERT INTO orders VALUES (2)"))
        raise ValueError

    ident = app.enqueue("X").job.id
    drain(app)
    assert (app.jobs.get(ident).status, written(app)) == (Status.FAILED, [1])


def test_a_transactional_parent_waits_for_its_children(app: Duly) -> None:
    @app.task("CHILD")
    def child() -> None: ...

    @app.task("X", wait_for_children="fail")
    def x(session: Session, me: Context) -> None:
        child.using(session=session, parent=me.job).enqueue()
        session.execute(text("INSERT INTO orders VALUES (1)"))

    ident = app.enqueue("X").job.id
    drain(app)
    assert (app.jobs.get(ident).status, written(app)) == (Status.SUCCEEDED, [1])


def test_a_timeout_rolls_the_effects_back(app: Duly) -> None:
    @app.task("X", timeout=0.05, max_attempts=1)
    async def x(session: AsyncSession) -> None:
        await session.execute(text("INSERT INTO orders VALUES (1)"))
        await asyncio.sleep(60)

    ident = app.enqueue("X").job.id
    drain(app)
    assert (app.jobs.get(ident).error["type"], written(app)) == ("Timeout", [])


def test_transactional_handlers_run_beside_each_other_in_a_worker(db_url: str) -> None:
    app = Duly(db_url, poll=0.05)

    @app.task("X")
    def x(session: Session, n: int) -> None:
        session.execute(text("INSERT INTO orders VALUES (:n)"), {"n": n})

    app.enqueue_many("X", [{"n": n} for n in range(30)])
    with working(app.worker({"default": 4}, name="w")):
        wait_until(lambda: app.jobs.count(status=[Status.SUCCEEDED]) == 30)
    assert written(app) == list(range(30))
    app.close()
