"""Whatever the server, the role or the environment sets: Duly's connections set what they rely on, and what cannot be right is refused in words."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from contract.hands import Hand
from duly import INJECT, Duly, PermanentError
from duly.audit import seal
from duly.kernel.errors import UnsafeSession, UnsuitableDatabase
from duly.monitoring.examine import examine
from duly.monitoring.health import Grade, judge
from duly.testing import ManualClock, drain

#: Legal, and wrong for whoever reads texts of instants, numbers or bytes.
ODD = {
    "timezone": "Asia/Kathmandu",
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "serializable",
}


def _set(url: str, **settings: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in settings.items():
            to = sql.SQL("ALTER DATABASE {} SET {} TO {}")
            connection.execute(to.format(sql.Identifier(connection.info.dbname), sql.Identifier(name), sql.Literal(value)))  # fmt: skip


def _odd(url: str, settings: dict[str, str]) -> None:
    # a list stands without quotes in one setting, and a name with them in the others: libpq's way is the same for all
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in settings.items():
            connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {name} TO {value if name == 'datestyle' else repr(value)}")  # type: ignore[call-overload]  # fmt: skip


def test_the_chain_holds_and_jobs_run_whatever_the_database_sets_by_default(pg_url: str) -> None:  # C049
    app = Duly(pg_url)
    app.task("X")(lambda text: text)
    app.enqueue("X", {"text": "e\u0301 ☕ 0.1 Привет"})
    Hand(app).one()
    app.queues.pause("default", reason="naïve ☕", actor="someone")
    assert seal.Sealer(app.db).seal() > 0
    app.close()
    _odd(pg_url, ODD)
    again = Duly(pg_url)
    assert seal.verify(again.db).broken is None
    again.queues.resume("default", actor="someone")
    assert seal.Sealer(again.db).seal() > 0
    assert seal.verify(again.db).broken is None
    with again.db.engine.connect() as connection:
        level = connection.exec_driver_sql("SHOW transaction_isolation").scalar()
    assert level == "read committed"
    with again.db.session_engine.begin() as connection:
        assert again.task("Y")(lambda: 1).using(session=connection).enqueue().created
    again.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [("-c datestyle=SQL,DMY", "DateStyle is 'SQL, DMY'"), ("-c client_encoding=LATIN1", "client encoding is LATIN1")],
)
def test_a_lent_connection_whose_settings_would_give_wrong_answers_is_refused_in_words(
    pg: Duly, pg_url: str, options: str, why: str
) -> None:  # C049, C002
    lent = create_engine(make_url(pg_url).set(drivername="postgresql+psycopg"), connect_args={"options": options})
    with lent.begin() as connection, pytest.raises(UnsafeSession, match=why):
        pg.task("X")(lambda: None).using(session=connection).enqueue()
    lent.dispose()
    assert pg.jobs.count() == 0


def test_texts_arrive_as_they_were_sent_whatever_client_encoding_the_environment_names(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # C002
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    app = Duly(f"{pg_url}?client_encoding=latin1")
    app.task("X")(lambda text: None)
    app.enqueue("X", {"text": "Müller é"})
    with psycopg.connect(pg_url, client_encoding="UTF8") as connection:
        assert connection.execute("SELECT input ->> 'text' FROM jobs").fetchone() == ("Müller é",)
    app.close()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_is_not_utf8_is_refused_with_how_to_make_one_that_is(
    empty_pg_url: str, encoding: str, postgres_admin: object, request: pytest.FixtureRequest
) -> None:  # C002
    name = f"{make_url(empty_pg_url).database}_{encoding.lower()}"
    with psycopg.connect(empty_pg_url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE_PROVIDER libc LOCALE 'C'"  # type: ignore[call-overload]
        )
    app = Duly(make_url(empty_pg_url).set(database=name).render_as_string(hide_password=False))
    app.task("X")(lambda: None)
    try:
        for act in (app.migrate, app.worker, lambda: app.enqueue("X")):
            with pytest.raises(UnsuitableDatabase, match=rf"is {encoding}.*createdb --encoding=UTF8 --template=template0"):  # fmt: skip
                act()
        failed = {f.check: f.remedy for f in judge(examine(app.engine)) if f.grade is Grade.FAIL}
        assert "createdb --encoding=UTF8" in failed["encoding"]
    finally:
        app.close()
        with psycopg.connect(empty_pg_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]


def test_a_sqlite_file_in_utf16_is_refused(tmp_path: Path) -> None:  # C002
    file = tmp_path / "wide.db"
    with sqlite3.connect(file) as connection:
        connection.executescript("PRAGMA encoding = 'UTF-16le'; CREATE TABLE mine (id);")
    app = Duly(f"sqlite:///{file}")
    with pytest.raises(UnsuitableDatabase, match="is UTF-16le"):
        app.enqueue("X")
    app.close()


def test_doctor_names_a_changed_collation_and_what_to_run(pg: Duly, pg_url: str) -> None:  # C003
    pg.open()
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute("UPDATE pg_database SET datcollversion = '0.9' WHERE datname = current_database()")
    found = {f.check: f for f in judge(examine(pg.engine))}["collation"]
    assert found.grade is Grade.WARN
    assert "has changed from version 0.9" in found.detail
    # a statistic, in no way a key: the one index that depends on it
    assert found.detail.endswith("these indexes of Duly may be wrong: ix_jobs_done_failures")
    assert "REFRESH COLLATION VERSION" in found.remedy


def test_doctor_names_the_limits_that_end_work(pg_url: str, clock: ManualClock) -> None:  # C009
    _set(pg_url, statement_timeout="2s", idle_in_transaction_session_timeout="3s")
    app = Duly(pg_url, clock=clock)
    found = {f.check: f.detail for f in judge(examine(app.engine)) if f.grade is Grade.WARN}
    assert "idle_in_transaction_session_timeout = 3000ms, statement_timeout = 2000ms" in found["limits"]
    app.close()


@pytest.mark.parametrize("end", ["returns", "raises"])
def test_a_handler_whose_transaction_was_cut_off_fails_with_what_cut_it_off_or_what_it_raised(
    pg: Duly, end: str
) -> None:  # C009
    @pg.task("import", max_attempts=1)
    def cut(session: Session = INJECT) -> None:
        with pg.db.engine.connect() as other:
            pid = session.connection().exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            session.connection().exec_driver_sql("SET idle_in_transaction_session_timeout = '10ms'")
            while other.exec_driver_sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}").first():
                other.rollback()
                other.exec_driver_sql("SELECT pg_sleep(0.01)")
        if end == "raises":
            raise PermanentError("the file is broken")

    beside = pg.task("beside")(lambda: "well").enqueue().job
    job = cut.enqueue().job
    drain(pg)
    failed = pg.jobs.get(job.id)
    assert failed is not None
    assert (failed.status, failed.attempts) == ("failed", 1)
    why = "the file is broken" if end == "raises" else "terminating connection due to idle-in-transaction timeout"
    assert failed.error is not None
    assert why in failed.error["message"]
    assert (pg.jobs.get(beside.id) or beside).status == "succeeded"


#: What stands for PostgreSQL's own where its schema comes before ``pg_catalog``.
FOREIGN = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '1999-01-01 00:00:00+00'::timestamptz $$;
CREATE FUNCTION evil.statement_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '1999-01-01 00:00:00+00'::timestamptz $$;
CREATE FUNCTION evil.lower(text) RETURNS text LANGUAGE sql AS $$ SELECT 'evil'::text $$;
CREATE FUNCTION evil.coalesce_not(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.coalesce_not);
CREATE FUNCTION evil.never(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.never);
CREATE DOMAIN evil.jsonb AS text;
"""


@pytest.fixture
def foreign(pg_url: str) -> str:
    """A database whose own path leads to operators, functions and types that are not PostgreSQL's."""
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(FOREIGN)
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET search_path TO evil, pg_catalog, public").format(name))
    return pg_url


def test_what_a_schema_puts_before_postgresqls_own_is_not_used_on_dulys_connections(foreign: str) -> None:  # G5
    app = Duly(foreign)
    app.task("X")(lambda text: text)

    @app.task("WRITES")
    def writes(session: Session = INJECT) -> str:
        app.task("Y")(lambda: None).using(session=session, key="y").enqueue()
        return str(session.execute(text("SELECT lower('ABC')")).scalar_one())

    @app.task("AWRITES")
    async def awrites(session: AsyncSession = INJECT) -> str:
        await app.task("Y2")(lambda: None).using(session=session, key="y2").aenqueue()
        return str((await session.execute(text("SELECT lower('ABC')"))).scalar_one())

    for _ in range(2):
        app.enqueue("X", {"text": "é"}, key="Ann")
    writes.enqueue()
    awrites.enqueue()
    assert app.jobs.count() == 3
    assert drain(app).succeeded == 5
    assert [job.output for job in app.jobs.find(task="AWRITES")] == ["abc"]
    assert [job.output for job in app.jobs.find(task="WRITES")] == ["abc"]
    app.queues.pause("default", reason="x", actor="ann")
    assert seal.Sealer(app.db).seal() > 0
    assert seal.verify(app.db).broken is None
    app.close()


def test_a_lent_connection_on_which_equal_means_something_else_is_refused_in_words(foreign: str) -> None:  # G5
    app = Duly(foreign)
    task = app.task("X")(lambda: None)
    url = make_url(foreign).set(drivername="postgresql+psycopg")
    lent = create_engine(url)
    with (
        lent.begin() as connection,
        pytest.raises(
            UnsafeSession, match=r"the schema evil has its own (function|operator|type) .*Leave pg_catalog out"
        ),
    ):
        task.using(session=connection, key="a").enqueue()
    lent.dispose()
    # a path that names pg_catalog late, and has nothing of its own before it, is as good as any
    plain = create_engine(url, connect_args={"options": "-csearch_path=public,pg_catalog"})
    with plain.begin() as connection:
        task.using(session=connection, key="a").enqueue()
        assert not task.using(session=connection, key="a").enqueue().created
    plain.dispose()
    app.close()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_lent_async_session_is_refused_alike(foreign: str, driver: str) -> None:  # G5
    app = Duly(foreign)
    task = app.task("X")(lambda: None)

    async def enqueue() -> None:
        lent = create_async_engine(make_url(foreign).set(drivername=f"postgresql+{driver}"))
        async with AsyncSession(lent) as session:
            with pytest.raises(UnsafeSession, match="the schema evil has its own"):
                await task.using(session=session, key="a").aenqueue()
        await lent.dispose()

    asyncio.run(enqueue())
    assert app.jobs.count() == 0
    app.close()


def test_behind_a_pooler_such_a_search_path_is_refused_as_it_cannot_be_set(foreign: str) -> None:  # G5
    app = Duly(foreign, pooler="transaction")
    app.task("X")(lambda: None)
    with pytest.raises(UnsafeSession, match="the schema evil has its own"):
        app.enqueue("X")
    app.close()
