"""Duly's tables are in one schema of a PostgreSQL, and every statement says which, whatever a connection's search_path is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from contract.hands import Hand
from duly import Duly
from duly.idempotency import idempotent_task
from duly.kernel.outcome import Outcome, OutcomeKind
from duly.monitoring.examine import examine
from duly.monitoring.health import Grade, judge
from duly.outbox import Outbox
from duly.storage import migrate
from duly.testing import ManualClock


class Nowhere:
    """A transport that takes everything."""

    def send(self, message: object) -> None: ...


SRC = Path(migrate.__file__).parents[1]


@pytest.fixture
def tenants(pg: Duly, pg_url: str) -> Iterator[Engine]:
    """Somebody's engine, whose connections look at a tenant first: a table of every name of Duly's is there, too."""
    pg.open()
    with psycopg.connect(pg_url) as connection:
        connection.execute("CREATE SCHEMA acme")
        for name in migrate.all_metadata().tables:
            connection.execute(f"CREATE TABLE acme.{name} (other int)")  # type: ignore[call-overload]
    engine = create_engine(make_url(pg_url).set(drivername="postgresql+psycopg"))

    @event.listens_for(engine, "connect")
    def tenant(connection: psycopg.Connection[object], _: object) -> None:
        connection.execute("SET search_path TO acme, public")
        connection.commit()

    yield engine
    engine.dispose()


def _counts(url: str, *tables: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables]  # type: ignore[call-overload,index]


def test_what_a_tenants_session_enqueues_is_in_the_table_that_workers_read(
    pg: Duly, pg_url: str, tenants: Engine
) -> None:  # C008
    run = pg.task("X")(lambda **_: None)
    outbox = Outbox(pg, transports={"there": Nowhere()})
    with tenants.connect() as connection, connection.begin():
        connection.execution_options(schema_translate_map={None: "acme"})  # a map of the session's own tables
        run.using(session=connection).enqueue()
        run.using(session=connection, key="k").enqueue()
        run.using(session=connection, key="k").enqueue()
        run.using(session=connection, concurrency_key="c", queue="narrow").enqueue()
        with Session(connection) as session:
            run.using(session=session).enqueue_many([{} for _ in range(30)])
        outbox.publish(connection, "there", {"a": 1}, ordering_key="o")
    assert _counts(pg_url, "public.jobs", "acme.jobs", "public.job_keys", "public.outbox", "acme.outbox") == [33, 0, 1, 1, 0]  # fmt: skip
    hand = Hand(pg)
    assert len(hand.claim(n=50)) == 32
    assert len(hand.claim("narrow")) == 1


def test_the_end_of_a_key_is_written_where_its_reservation_is_in_a_tenants_session(
    pg: Duly, pg_url: str, tenants: Engine
) -> None:  # C008
    @idempotent_task(store=pg.reservations)
    def pay(session: Session) -> int:
        return 7

    with Session(tenants) as session, session.begin():
        assert pay(session) == 7
    assert _counts(pg_url, "public.idempotency", "acme.idempotency") == [1, 0]


def test_everything_works_in_a_schema_of_its_own_where_no_search_path_leads(
    empty_pg_url: str, clock: ManualClock
) -> None:  # C008
    nowhere = f"{empty_pg_url}?options=-c%20search_path%3Dpg_catalog"
    app = Duly(nowhere, clock=clock, schema="Duly's")
    assert app.migrate() == (None, migrate.HEAD)
    assert app.migrate() == (migrate.HEAD, migrate.HEAD)

    @app.task("X", max_attempts=2)
    def x(**_: int) -> int:
        return 1

    x.enqueue()
    x.using(key="k", run_in=5).enqueue()
    x.using(concurrency_key="c", queue="narrow").enqueue()
    x.enqueue_many([{"n": n} for n in range(30)])
    app.queues.pause("narrow", actor="someone")
    app.queues.resume("narrow", actor="someone")
    hand = Hand(app)
    jobs = hand.claim(n=40)
    assert len(jobs) == 31
    assert all(hand.end(job, Outcome(OutcomeKind.SUCCEEDED, output="1")) for job in jobs[:30])
    assert hand.end(jobs[30], Outcome(OutcomeKind.FAILED, error={"type": "E"}))
    assert app.jobs.count() == 33
    assert app.jobs.find(limit=5)
    outbox = Outbox(app, transports={"there": Nowhere()})
    app.db.write(lambda c: outbox.publish(c, "there", {"a": 1}, ordering_key="o"))
    assert outbox.relay("r").run_once() is not None
    worker = app.worker(["default"])
    worker.house.presence()
    for duty in worker.house.duties:
        duty.act()
    worker.house.say_goodbye()
    failed = [f for f in judge(examine(app.engine)) if f.grade is Grade.FAIL and f.check != "backlog"]
    assert [f.check for f in failed if f.check not in ("workers", "leases")] == []
    app.close()
    with psycopg.connect(empty_pg_url) as connection:
        found = connection.execute("SELECT DISTINCT schemaname FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')").fetchall()  # fmt: skip
    assert found == [("Duly's",)]


def test_the_statements_of_an_install_by_hand_make_the_tables_in_the_schema_that_is_set(empty_pg_url: str) -> None:
    with psycopg.connect(empty_pg_url, autocommit=True) as connection:
        connection.execute(migrate.sql("postgresql", "elsewhere"))
    app = Duly(empty_pg_url, schema="elsewhere")
    assert app.migrate() == (migrate.HEAD, migrate.HEAD)
    assert app.enqueue("X").created
    app.close()


def test_sql_that_names_tables_is_written_with_the_text_that_knows_their_schema() -> None:  # C008
    """SQLAlchemy's own ``text`` is for conditions of a table's columns, and for statements that name no table of Duly's."""
    migrate.all_metadata()
    named = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE|COPY)\s+(?:{'|'.join(migrate.metadata.tables)})\b")
    wrong = []
    for file in SRC.rglob("*.py"):
        said = file.read_text()
        plain = re.search(r"^from sqlalchemy import (?:\([^)]*\btext\b[^)]*\)|[^(\n]*\btext\b)", said, re.MULTILINE)
        if plain and "migrations" not in file.parts and named.search(said):
            wrong.append(str(file.relative_to(SRC)))
    assert wrong == []
