"""``duly migrate``, ``duly doctor``, ``duly audit``: the database, its health, its record."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import make_url, text

from cli.hands import Run
from duly import Duly
from duly.audit.seal import Sealer
from duly.kernel.errors import SchemaMissing
from duly.storage import migrate
from duly.testing import drain

# ---------------------------------------------------------------------- migrate


def test_a_fresh_database_is_migrated_once(run: Run, empty_pg_url: str) -> None:
    url = ["--database-url", empty_pg_url]
    said = run("jobs", "list", *url)
    assert (said.code, "Run `duly migrate` first" in said.err) == (1, True)
    first = run("migrate", *url, "--json")
    assert (first.code, first.json["before"], first.json["after"]) == (0, None, migrate.HEAD)
    assert f"is at revision {migrate.HEAD} already" in run("migrate", *url).out
    assert run("jobs", "list", *url).code == 0


def test_an_embedded_database_is_made_when_something_is_put_in(run: Run, folder: Path) -> None:
    assert run("queues", "pause", "mail", "--reason", "x").code == 0
    assert (folder / "duly.db").exists()
    assert "already" in run("migrate").out


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_the_statements_are_printed_for_those_who_migrate_by_hand(run: Run, folder: Path, dialect: str) -> None:
    said = run("migrate", "--sql", "--dialect", dialect)
    assert said.code == 0
    assert "CREATE TABLE jobs (" in said.out
    assert "CREATE TABLE jobs (" in run("migrate", "--sql", "--dialect", dialect, "--json").json["sql"]
    assert not list(folder.glob("*.db"))


def test_the_statements_default_to_the_databases_own_dialect(run: Run) -> None:
    said = run("migrate", "--sql", "--database-url", "postgresql://nobody@127.0.0.1:1/x")  # not asked
    assert (said.code, "BIGINT GENERATED" in said.out) == (0, True)


#: An application that touches its database while it is imported.
EAGER = """
from duly import Duly
app = Duly({url})

@app.task
def hello(name: str) -> str:
    return f"Hello {{name}}"

{touch}
"""
TOUCHES = [
    "app.open()",
    "app.reservations",
    "app.jobs.count()",
    "try:\n    app.open()\nexcept Exception as error:\n    raise RuntimeError('no shop') from error",
]


@pytest.mark.parametrize("touch", TOUCHES, ids=["open", "reservations", "jobs", "wrapped"])
def test_an_application_that_opens_its_database_while_it_is_imported_does_not_stand_in_the_way_of_its_tables(
    run: Run, write: Callable[[str], str], empty_pg_url: str, touch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write(EAGER.format(url=repr(empty_pg_url), touch=touch))
    monkeypatch.setenv("DULY_APP", name)
    stopped = run("enqueue", "hello", '{"name": "Ada"}')
    assert (stopped.code, "Run `duly migrate` first" in stopped.err or touch == TOUCHES[-1]) == (1, True)
    ill = run("doctor")
    assert (ill.code, "the tables of Duly are not there" in ill.out, ill.err) == (1, True, "")
    first = run("migrate", "--json")
    assert (first.code, first.json["before"], first.json["after"], first.err) == (0, None, migrate.HEAD, "")
    assert run("enqueue", "hello", '{"name": "Ada"}').code == 0
    assert "already" in run("migrate").out


def test_an_older_schema_is_brought_up_to_date_though_the_application_stops_at_it(
    run: Run, write: Callable[[str], str], empty_pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = Duly(empty_pg_url)
    with older.db.engine.begin() as connection:
        command.upgrade(migrate._config(connection=connection), "0010")
    older.close()
    monkeypatch.setenv("DULY_DATABASE_URL", empty_pg_url)
    monkeypatch.setenv("DULY_APP", write(EAGER.format(url="", touch="app.open()")))
    assert "is at revision 0010, this version needs" in run("queues", "list").err
    ill = run("doctor")
    assert (ill.code, "at revision 0010; this version needs" in ill.out) == (1, True)
    said = run("migrate", "--json")
    assert (said.code, said.json["before"], said.json["after"]) == (0, "0010", migrate.HEAD)
    assert run("queues", "list").code == 0


def test_the_database_on_the_line_is_migrated_without_an_application_that_cannot_be_loaded(
    run: Run, write: Callable[[str], str], empty_pg_url: str, sqlite_url: str
) -> None:
    eager = write(EAGER.format(url=repr(empty_pg_url), touch="app.open()"))
    said = run("migrate", "--app", eager, "--database-url", sqlite_url)  # another one than the application stops at
    assert (said.code, f"is at revision {migrate.HEAD} already" in said.out) == (0, True)
    assert f"{eager} cannot be loaded: SchemaMissing" in said.err
    assert "It is left out: the database is sqlite:///" in said.err
    same = run("migrate", "--app", eager, "--database-url", empty_pg_url)
    assert (same.code, "freshly made" in same.out, same.err) == (0, True, "")


def test_an_application_that_is_broken_is_told_and_left_out_where_a_database_is_named(
    run: Run, write: Callable[[str], str], empty_pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = write("import not_installed_anywhere\n")
    for args in (["migrate"], ["migrate", "--sql"]):
        said = run(*args, "--app", broken)
        assert (said.code, "No module named" in said.err, said.out) == (1, True, "")
    said = run("migrate", "--app", broken, "--database-url", empty_pg_url)
    assert (said.code, "freshly made" in said.out) == (0, True)
    assert f"{broken} cannot be loaded: ModuleNotFoundError: No module named 'not_installed_anywhere'" in said.err
    monkeypatch.setenv("DULY_DATABASE_URL", empty_pg_url)
    said = run("migrate", "--app", "nosuch.py")
    assert (said.code, "already" in said.out, "there is no file nosuch.py. It is left out" in said.err) == (
        0,
        True,
        True,
    )
    said = run("doctor", "--app", broken)  # who asks whether all is well is told that it is not
    assert (said.code, "No module named" in said.err) == (1, True)


def test_the_password_of_a_database_without_tables_is_told_nowhere(
    run: Run, write: Callable[[str], str], empty_pg_url: str
) -> None:
    url = make_url(empty_pg_url).set(password="topsecret").render_as_string(hide_password=False)
    app = Duly(url)
    with pytest.raises(SchemaMissing) as caught:
        app.open()
    assert caught.value.database is app.db
    app.close()
    back = pickle.loads(pickle.dumps(caught.value))
    assert (str(back), back.database) == (str(caught.value), None)
    eager = write(EAGER.format(url=repr(url), touch="app.open()"))
    for args in (["doctor"], ["doctor", "--settings"], ["migrate"]):
        said = run(*args, "--app", eager)
        assert "topsecret" not in said.out + said.err + str(caught.value) + repr(vars(caught.value))


# ---------------------------------------------------------------------- doctor


def grades(run: Run, *args: str) -> dict[str, str]:
    return {f["check"]: f["grade"] for f in run("doctor", "--json", *args).json["findings"]}


def test_the_doctor_makes_nothing(run: Run, folder: Path) -> None:
    said = run("doctor")
    assert (said.code, "does not exist yet" in said.out) == (0, True)
    assert list(folder.iterdir()) == []


def test_a_healthy_database_has_no_failure(on: Run) -> None:
    said = on("doctor")
    assert said.code == 0, said
    assert "1 warning." in said.out  # no worker is alive
    found = grades(on)
    assert found["workers"] == "warn"
    assert {name for name, grade in found.items() if grade == "fail"} == set()
    for check in ("database", "schema", "time zones", "gate", "paused", "backlog", "leases", "audit trail"):
        assert found[check] == "ok", check


def test_the_doctor_fails_as_every_command_does_on_a_database_that_a_newer_duly_has_barred(on: Run, app: Duly) -> None:
    app.open()
    app.db.write(lambda c: c.execute(text("UPDATE duly_version SET version_num = '0099'")))
    app.db.write(lambda c: c.execute(text("UPDATE system_state SET value = '0050' WHERE key = 'schema_works_with'")))
    said, other = on("doctor"), on("jobs", "list")
    assert (said.code, other.code) == (1, 1)
    assert other.err.removeprefix("duly: ").strip() in said.out


def test_on_postgres_the_doctor_looks_at_the_clock_and_at_wake_ups(run: Run, pg_url: str) -> None:
    found = grades(run, "--database-url", pg_url)
    assert (found["clock"], found["wake-ups"]) == ("ok", "ok")


def test_work_that_nobody_can_do_is_a_failure(on: Run, app: Duly) -> None:
    app.enqueue("A")
    app.gate.offline(reason="deploy")
    app.queues.pause("mail", "lunch")
    said = on("doctor")
    assert said.code == 1
    assert "none is alive, and 1 job could run now" in said.out
    assert "duly gate online" in said.out
    assert "duly queues resume mail" in said.out
    assert "1 failed, 2 warnings." in said.out


def test_a_database_that_does_not_answer_is_a_finding(run: Run) -> None:
    said = run("doctor", "--database-url", "postgresql://ada:topsecret@127.0.0.1:1/x")
    assert said.code == 1
    assert "does not answer" in said.out
    assert "topsecret" not in said.out + said.err


def test_a_database_without_tables_is_a_finding_and_stays_so(run: Run, empty_pg_url: str) -> None:
    for _ in range(2):
        said = run("doctor", "--database-url", empty_pg_url)
        assert said.code == 1
        assert "the tables of Duly are not there" in said.out
        assert "duly migrate" in said.out


def test_a_file_that_is_no_database_is_a_finding(run: Run, folder: Path) -> None:
    (folder / "duly.db").write_text("to be or not to be " * 100)
    said = run("doctor")
    assert (said.code, "not a database" in said.out) == (1, True)


def test_settings_are_listed_with_their_source_and_without_a_password(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DULY_LEASE", "12.5")
    monkeypatch.setenv("DULY_DATABASE_URL", "postgresql://ada:topsecret@db/x")
    said = run("doctor", "--settings", "--json")
    rows = {r["name"]: r for r in said.json}
    assert (rows["lease"]["value"], rows["lease"]["source"], rows["lease"]["default"]) == (12.5, "environment", 30.0)
    assert rows["grace"]["source"] == "default"
    assert rows["database_url"]["value"] == "postgresql://ada:***@db/x"
    assert "topsecret" not in said.out + run("doctor", "--settings").out


# ---------------------------------------------------------------------- audit


@pytest.fixture
def trail(app: Duly) -> Duly:
    """A trail of some rows, sealed."""

    @app.task("OK")
    def fine() -> None: ...

    fine.enqueue_many([{}] * 3)
    drain(app)
    app.queues.pause("mail", "lunch", actor="cli:ada")
    app.gate.offline(actor="cli:bob")
    Sealer(app.db).seal()
    return app


def test_the_trail_is_listed_newest_first_and_filtered(on: Run, trail: Duly) -> None:
    rows = on("audit", "list", "--json").json
    assert [r["action"] for r in rows] == ["ATLAS_OFFLINE", "QUEUE_PAUSED", *["OK_COMPLETED"] * 3]
    for filters, n in (
        (["--actor", "cli:ada"], 1),
        (["--action", "OK_COMPLETED"], 3),
        (["--entity", "gate"], 1),
        (["--level", "warning"], 1),
        (["--since", "1h"], 5),
        (["--before", "1h"], 0),
        (["--tenant", "default"], 3),
        (["--limit", "2"], 2),
        (["--below", str(rows[0]["id"])], 4),
    ):
        assert len(on("audit", "list", "--json", *filters).json) == n, filters
    assert "queue mail" in on("audit", "list").out
    assert on("audit", "list", "--actor", "nobody").out == "Nothing was recorded.\n"


def test_a_trail_that_nobody_touched_holds(on: Run, trail: Duly) -> None:
    said = on("audit", "verify", "--json")
    assert (said.code, said.json["holds"], said.json["rows"], said.json["unsealed"]) == (0, True, 5, 0)
    trail.gate.online()
    assert on("audit", "verify").out == "The chain holds: 5 rows in 1 seal; 1 row not sealed yet.\n"


def test_a_changed_row_is_named_and_ends_with_1(on: Run, trail: Duly) -> None:
    row = on("audit", "list", "--json").json[1]["id"]

    def forge(connection: object) -> None:
        execute = connection.execute  # type: ignore[attr-defined]
        if trail.db.is_sqlite:
            for (name,) in execute(
                text("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit_log'")
            ).all():
                execute(text(f"DROP TRIGGER {name}"))
        else:
            execute(text("ALTER TABLE audit_log DISABLE TRIGGER USER"))
        execute(text("UPDATE audit_log SET actor = 'cli:eve' WHERE id = :id"), {"id": row})

    trail.db.write(forge)
    said = on("audit", "verify")
    assert said.code == 1
    assert f"the chain is broken: audit row {row} was changed" in said.err
    assert on("audit", "verify", "--json").json["row_id"] == row
