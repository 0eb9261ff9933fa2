"""The schema: made once however many ask, the same as the code says, and refused when the code cannot know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from contract.hands import rows, run_sql, together
from duly import Duly
from duly.kernel.errors import SchemaMissing, SchemaTooNew
from duly.storage import migrate


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new.db'}"
    url: str = request.getfixturevalue("empty_pg_url")
    return url


@pytest.fixture
def opened() -> Iterator[Callable[[str], Duly]]:
    apps: list[Duly] = []

    def make(url: str) -> Duly:
        apps.append(Duly(url))
        return apps[-1]

    yield make
    for app in apps:
        app.close()


def test_the_migrated_schema_is_the_one_the_code_describes(app: Duly) -> None:
    def differences(connection: Any) -> list[Any]:
        options = {"version_table": migrate.VERSION_TABLE, "compare_type": True}
        found: list[Any] = compare_metadata(
            MigrationContext.configure(connection, opts=options), migrate.all_metadata()
        )
        return found

    app.open()
    assert app.db.write(differences) == []


def test_the_table_of_live_jobs_leaves_room_and_is_vacuumed_often_on_postgresql(pg_url: str) -> None:
    """SQLAlchemy compares no storage parameters, and 2.0 cannot say those of a table."""
    with psycopg.connect(pg_url) as connection:
        [(found,)] = connection.execute("SELECT reloptions FROM pg_class WHERE relname = 'jobs'").fetchall()
    assert sorted(found) == ["autovacuum_vacuum_cost_delay=0", "autovacuum_vacuum_scale_factor=0.02", "fillfactor=70"]


def test_the_code_is_written_for_the_newest_revision() -> None:
    script = ScriptDirectory.from_config(migrate._config())
    assert script.get_current_head() == migrate.HEAD
    assert script.get_heads() == [migrate.HEAD]


def test_the_database_knows_which_code_may_run_on_it(app: Duly) -> None:
    assert rows(app, "SELECT version_num FROM duly_version") == [(migrate.HEAD,)]
    [(oldest,)] = rows(app, "SELECT value FROM system_state WHERE key = 'schema_works_with'")
    assert oldest <= migrate.HEAD


def test_migrating_says_from_where_to_where_and_is_idle_the_second_time(
    empty_url: str, opened: Callable[[str], Duly]
) -> None:
    app = opened(empty_url)
    assert app.migrate() == (None, migrate.HEAD)
    assert app.migrate() == (migrate.HEAD, migrate.HEAD)
    assert app.enqueue("X").created


def test_four_that_migrate_at_once_make_one_schema(empty_url: str, opened: Callable[[str], Duly]) -> None:
    apps = [opened(empty_url) for _ in range(4)]
    answers = together(*[app.migrate for app in apps])
    assert sorted(map(str, answers)) == sorted([str((None, migrate.HEAD))] + [str((migrate.HEAD, migrate.HEAD))] * 3)
    assert rows(apps[0], "SELECT count(*) FROM duly_version") == [(1,)]
    assert together(*[partial(app.enqueue, "X") for app in apps])
    assert apps[0].jobs.count() == 4


def test_databases_of_one_program_may_be_migrated_at_once(tmp_path: Path, opened: Callable[[str], Duly]) -> None:
    apps = [opened(f"sqlite:///{tmp_path / f'{n}.db'}") for n in range(6)]
    assert together(*[app.migrate for app in apps]) == [(None, migrate.HEAD)] * 6


def test_an_embedded_database_makes_its_own_tables_at_first_use(tmp_path: Path, opened: Callable[[str], Duly]) -> None:
    apps = [opened(f"sqlite:///{tmp_path / 'new.db'}") for _ in range(3)]
    made = together(*[partial(app.enqueue, "X") for app in apps])
    assert not [m for m in made if isinstance(m, Exception)]
    assert apps[0].jobs.count() == 3


def test_a_server_database_without_tables_is_refused_with_what_to_do(
    empty_pg_url: str, opened: Callable[[str], Duly]
) -> None:
    app = opened(empty_pg_url)
    for act in (partial(app.enqueue, "X"), app.jobs.find, partial(app.queues.pause, "q")):
        with pytest.raises(SchemaMissing, match="Run `duly migrate`"):
            act()
    app.task("X")(lambda: None)
    with pytest.raises(SchemaMissing):
        app.worker()


def test_a_server_database_of_an_older_version_is_refused_with_what_to_do(
    pg_url: str, opened: Callable[[str], Duly]
) -> None:
    run_sql(opened(pg_url), "UPDATE duly_version SET version_num = '0000'")
    with pytest.raises(SchemaMissing, match="is at revision 0000"):
        opened(pg_url).enqueue("X")


def test_a_database_that_a_newer_version_migrated_is_refused_unless_it_says_that_this_one_may_go_on(
    db_url: str, opened: Callable[[str], Duly]
) -> None:
    first = opened(db_url)
    run_sql(first, "UPDATE duly_version SET version_num = '9999'")
    assert opened(db_url).enqueue("X").created  # additive: this code still works beside it
    run_sql(first, "UPDATE system_state SET value = '9998' WHERE key = 'schema_works_with'")
    refused = opened(db_url)
    for act in (partial(refused.enqueue, "X"), refused.migrate, partial(refused.enqueue, "X")):
        with pytest.raises(SchemaTooNew, match="Upgrade this program"):
            act()
    run_sql(first, "DELETE FROM system_state WHERE key = 'schema_works_with'")
    with pytest.raises(SchemaTooNew):
        opened(db_url).enqueue("X")


def test_the_schema_can_be_made_by_hand_from_its_text(empty_pg_url: str, opened: Callable[[str], Duly]) -> None:
    with psycopg.connect(empty_pg_url, autocommit=True) as connection:
        connection.execute(migrate.sql("postgresql"))
    app = opened(empty_pg_url)
    assert app.enqueue("X").created
    assert app.migrate() == (migrate.HEAD, migrate.HEAD)


def test_instants_and_documents_are_stored_as_the_databases_know_them(app: Duly) -> None:
    app.enqueue("X", {"z": 1, "a": 2})
    if app.db.is_sqlite:
        assert rows(app, "SELECT typeof(run_at), typeof(input), input FROM jobs") == [
            ("integer", "text", '{"z":1,"a":2}')
        ]
    else:
        kinds = "SELECT pg_typeof(run_at)::text, pg_typeof(input)::text, input::text FROM jobs"
        assert rows(app, kinds) == [("timestamp with time zone", "json", '{"z":1,"a":2}')]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE jobs SET status = 'succeeded'",
        "UPDATE jobs SET status = 'running'",  # without a lease
        "UPDATE jobs SET lease_token = 1",  # without running
        "UPDATE jobs SET input = NULL",
    ],
)
def test_the_database_itself_refuses_a_state_that_is_not_in_the_lifecycle(app: Duly, sql: str) -> None:  # R003-1
    app.enqueue("X")
    with pytest.raises(Exception, match=r"(?i)constraint"):
        run_sql(app, sql)


def test_a_database_of_the_first_revision_is_upgraded_with_what_is_in_it(
    empty_url: str, opened: Callable[[str], Duly]
) -> None:
    app = opened(empty_url)

    def first_revision(connection: Connection) -> None:
        command.upgrade(migrate._config(connection=connection), "0001")

    app.db.write(first_revision)
    now = "1767225600000000" if app.db.is_sqlite else "'2026-01-01+00'"
    insert = (
        "INSERT INTO jobs (tenant, queue, task, status, priority, run_at, input, max_attempts, created_at, fair) "
        f"VALUES ('default', 'default', 'X', 'queued', 0, {now}, '{{}}', 4, {now}, false)"
    )
    app.db.write(lambda c: c.execute(text(insert)))
    assert app.migrate() == ("0001", migrate.HEAD)
    assert [job.task for job in opened(empty_url).jobs.find()] == ["X"]
    assert app.reservations.prune() == 0
