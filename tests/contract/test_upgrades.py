"""Upgrading a server beside a busy system: keys compared as bytes, short locks, and who is in the way."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from contract.hands import Hand, together
from duly import Duly
from duly.kernel.errors import DatabaseBusy
from duly.storage import collation, locking, migrate

#: Text columns of Duly's indexes that the database's collation sorts. An expression's own texts are not keys (a statistic of errors).
_SORTED = """
SELECT c.relname, i.relname, a.attname
  FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class c ON c.oid = x.indrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(x.indkey)
 WHERE n.nspname = 'public' AND c.relname <> 'duly_version' AND a.attcollation = 'pg_catalog."default"'::regcollation"""
_INDEXES = "SELECT indexname FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"


@pytest.fixture
def older(empty_pg_url: str) -> Iterator[Duly]:
    """A database as the version before made it, with a job, a key and somebody who may read."""
    app = Duly(empty_pg_url)
    app.db.write(lambda c: migrate._upgrade(c, "0011"))
    with psycopg.connect(empty_pg_url) as c:
        c.execute("INSERT INTO jobs (tenant, queue, task, status, priority, run_at, input, max_attempts, created_at) VALUES ('t', 'q', 'X', 'queued', 0, now(), '{}', 3, now())")  # fmt: skip
        c.execute("INSERT INTO job_keys (tenant, queue, key, job_id, payload_hash, scope, created_at) VALUES ('t', 'q', 'k', 1, '', 'forever', now())")  # fmt: skip
        c.execute("GRANT SELECT ON all_jobs TO pg_monitor")
    yield app
    app.close()


def _asked(url: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(sql).fetchall()  # type: ignore[call-overload,no-any-return]


def test_no_index_of_duly_is_sorted_by_the_collation_of_the_database(pg_url: str) -> None:  # C003
    assert _asked(pg_url, _SORTED) == []


@pytest.mark.parametrize("large", [0, 1 << 40], ids=["built beside", "rebuilt"])
def test_an_older_database_keeps_its_rows_indexes_and_rights_when_its_keys_become_bytes(
    older: Duly, empty_pg_url: str, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:  # C003
    monkeypatch.setattr(collation, "LARGE", large)
    before = _asked(empty_pg_url, _INDEXES)
    assert _asked(empty_pg_url, _SORTED)
    assert older.migrate() == ("0011", migrate.HEAD)
    assert _asked(empty_pg_url, _SORTED) == []
    assert set(before) <= set(_asked(empty_pg_url, _INDEXES))
    assert _asked(empty_pg_url, "SELECT k.key FROM job_keys k JOIN all_jobs USING (tenant, queue)") == [("k",)]
    assert _asked(empty_pg_url, "SELECT has_table_privilege('pg_monitor', 'all_jobs', 'SELECT')") == [(True,)]
    with pytest.raises(psycopg.errors.UniqueViolation), psycopg.connect(empty_pg_url) as connection:
        connection.execute("INSERT INTO job_keys SELECT * FROM job_keys")
    older.task("X")(lambda: None)
    assert [job.id for job in Hand(older).claim("q")] == [1]


def test_a_view_of_somebody_on_a_view_of_ours_leaves_its_table_as_it_is_and_says_so(
    older: Duly, empty_pg_url: str
) -> None:  # C003
    with psycopg.connect(empty_pg_url) as connection:
        connection.execute("CREATE VIEW mine AS SELECT queue FROM all_jobs")
    heard: list[str] = []
    from duly.kernel.events import PROCESS

    stop = PROCESS.listen(lambda event: heard.append(str(event.facts.get("table"))))
    assert older.migrate() == ("0011", migrate.HEAD)
    stop()
    assert set(heard) == {"jobs", "jobs_done"}
    assert {table for table, *_ in _asked(empty_pg_url, _SORTED)} == {"jobs", "jobs_done"}


def test_a_migration_that_cannot_have_a_table_names_who_holds_it_and_keeps_nobody_waiting(
    older: Duly, empty_pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # C004
    monkeypatch.setattr(locking, "WAIT", 0.1)
    monkeypatch.setattr(locking, "PAUSES", (0.01,))
    with psycopg.connect(empty_pg_url, application_name="nightly dump") as reader:
        reader.execute("SELECT count(*) FROM queues")
        pid = reader.info.backend_pid
        with pytest.raises(DatabaseBusy, match=rf"^Table queues cannot be changed now: process {pid} \(application nightly dump, user postgres\) holds it in a transaction"):  # fmt: skip
            older.migrate()
        with psycopg.connect(empty_pg_url, autocommit=True) as other:  # nobody stands behind it
            other.execute("SET lock_timeout = '50ms'")
            other.execute("INSERT INTO queues (name, governed, fair, updated_at) VALUES ('a', false, false, now())")
    assert older.migrate() in (("0011", migrate.HEAD), (migrate.HEAD, migrate.HEAD))
    assert _asked(empty_pg_url, _SORTED) == []


def test_a_revision_that_cannot_have_a_table_changes_nothing(
    empty_pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # C004
    monkeypatch.setattr(locking, "WAIT", 0.1)
    monkeypatch.setattr(locking, "PAUSES", (0.01,))
    app = Duly(empty_pg_url)
    app.db.write(lambda c: migrate._upgrade(c, "0010"))
    before = _asked(empty_pg_url, _INDEXES)
    with psycopg.connect(empty_pg_url) as writer:
        writer.execute("LOCK TABLE jobs_done IN ROW EXCLUSIVE MODE")
        with pytest.raises(DatabaseBusy, match=f"process {writer.info.backend_pid} "):
            app.migrate()
        assert _asked(empty_pg_url, "SELECT version_num FROM duly_version") == [("0010",)]
        assert _asked(empty_pg_url, _INDEXES) == before
    assert app.migrate() == ("0010", migrate.HEAD)
    app.close()


def test_two_migrations_of_one_server_wait_for_each_other(older: Duly, empty_pg_url: str) -> None:  # C004
    apps = [Duly(empty_pg_url) for _ in range(3)]
    answers = together(*[partial(app.migrate) for app in apps])
    assert sorted(map(str, answers)) == sorted(map(str, [("0011", migrate.HEAD), *[(migrate.HEAD, migrate.HEAD)] * 2]))
    for app in apps:
        app.close()
