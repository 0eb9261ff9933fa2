"""Looking: what is found in a real database, on both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, text, update

from duly import Daily, Duly, Every
from duly.audit import read as trail
from duly.audit.seal import Sealer
from duly.jobs import survey
from duly.jobs.filter import JobFilter
from duly.jobs.worker import Worker
from duly.kernel.errors import SchemaTooNew
from duly.monitoring.examine import examine, wake_facts
from duly.monitoring.health import Grade, judge
from duly.schedules import tables
from duly.storage import migrate, migrations
from duly.testing import ManualClock, drain

NOON = datetime(2026, 7, 27, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def app(db_url: str, clock: ManualClock) -> Iterator[Duly]:
    app = Duly(db_url, clock=clock)

    @app.task("SEND", queue="mail")
    def send() -> None: ...

    yield app
    app.close()


def troubles(app: Duly) -> dict[str, str]:
    return {f.check: f.detail for f in judge(examine(app.engine)) if f.grade is not Grade.OK}


def present(app: Duly, *queues: str) -> Worker:
    """A worker that has said that it is here."""
    worker = app.worker(list(queues))
    worker.state = "running"
    worker.house.presence()
    return worker


def test_an_empty_database_wants_a_worker_and_nothing_else(app: Duly) -> None:
    facts = examine(app.engine)
    assert (facts.revision, facts.problem) == (migrate.HEAD, "")
    assert facts.now == NOON or not app.db.is_sqlite
    assert set(troubles(app)) <= {"workers", "clock"}  # the clock of this test is not the server's
    present(app, "mail")
    assert set(troubles(app)) <= {"clock"}


@pytest.mark.parametrize(("oldest", "grade"), [("0050", "fail"), (None, "fail"), (migrate.HEAD, "warn")])
def test_a_newer_database_is_a_failure_where_it_bars_this_code_and_else_a_warning(
    app: Duly, oldest: str | None, grade: str
) -> None:
    app.open()

    def move_on(c: Connection) -> None:
        c.execute(text("UPDATE duly_version SET version_num = '0099'"))
        where = {"k": migrate.WORKS_WITH_KEY}
        if oldest is None:
            c.execute(text("DELETE FROM system_state WHERE key = :k"), where)
        else:
            c.execute(text("UPDATE system_state SET value = :v WHERE key = :k"), {**where, "v": oldest})

    app.db.write(move_on)
    [schema] = [f for f in judge(examine(app.engine)) if f.check == "schema"]
    assert (schema.grade, schema.remedy) == (grade, "upgrade this program")
    if grade == "fail":
        with pytest.raises(SchemaTooNew) as refused:
            app.db.read(lambda c: migrate.check(c, app.db.shown_url))
        assert schema.detail == str(refused.value)


def test_a_database_of_any_older_revision_is_to_be_migrated_and_that_is_all_that_is_said_of_it(
    db_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    older = sorted(file.name[:4] for file in Path(migrations.__file__).parent.glob("versions/0*.py"))[:-1]
    assert len(older) >= 10
    sqlite = db_url.startswith("sqlite")
    url = f"sqlite:///{tmp_path / 'old.db'}" if sqlite else request.getfixturevalue("empty_pg_url")
    app = Duly(url)
    for revision in older:
        app.db.write(lambda c, to=revision: command.upgrade(migrate._config(connection=c), to))
        facts = examine(app.engine)
        assert (facts.problem, facts.revision) == ("", revision)
        [schema] = [f for f in judge(facts) if f.grade is Grade.FAIL]
        assert schema.check == "schema"
        assert schema.detail == f"at revision {revision}; this version needs {migrate.HEAD}"
        assert schema.remedy == "duly migrate"
    app.close()


def test_a_database_that_takes_no_writes_is_a_failure(pg_url: str) -> None:
    Duly(pg_url).open()
    app = Duly(f"{pg_url}?options=-c%20default_transaction_read_only%3Don")
    [database] = [f for f in judge(examine(app.engine)) if f.grade is Grade.FAIL]
    assert database.check == "database"
    assert database.detail.startswith("the database is read-only (default_transaction_read_only is on): PostgreSQL ")
    app.close()


def test_jobs_that_could_run_now_are_counted_also_those_whose_moment_has_just_come(
    app: Duly, clock: ManualClock
) -> None:
    app.enqueue("SEND", queue="mail")
    app.enqueue("SEND", queue="mail", run_in=60)
    app.enqueue("SEND", queue="mail", run_in=3600)
    assert "none is alive, and 1 job could run now" in troubles(app)["workers"]
    clock.advance(timedelta(seconds=60))
    assert "none is alive, and 2 jobs could run now" in troubles(app)["workers"]


def test_work_that_no_worker_takes_is_found(app: Duly) -> None:
    present(app, "mail")
    app.enqueue("SEND", queue="mail")
    app.enqueue("SEND", queue="video")
    app.enqueue("MISSPELT", queue="mail")
    found = troubles(app)
    assert "no worker serves queue video, where 1 job" in found["queues"]
    assert "no worker of queue mail knows task MISSPELT, of which 1 job" in found["tasks"]


def test_a_worker_that_is_not_ready_is_found_with_its_reason(app: Duly) -> None:
    worker = present(app, "mail")
    worker.house.stalled = "claimable work waits and this worker claims none"
    worker.house.presence()
    assert "is not ready: claimable work waits" in troubles(app)["workers"]


def test_lapsed_leases_are_found_once_a_rescue_should_have_come(app: Duly, clock: ManualClock) -> None:
    app.enqueue("SEND", queue="mail")
    lease = app.settings.lease
    claimed = app.db.write(lambda c: app.engine.store.claim(c, {"mail": 1}, ["SEND"], 7, lease, "box-1"))
    assert len(claimed) == 1
    clock.advance(timedelta(seconds=lease + 1))
    assert "leases" not in troubles(app)
    clock.advance(timedelta(seconds=20))
    assert "the leases of 1 job have lapsed" in troubles(app)["leases"]


def test_rows_that_nobody_seals_are_found(app: Duly, clock: ManualClock) -> None:
    app.queues.pause("mail")
    app.queues.resume("mail")
    Sealer(app.db).seal()
    assert app.db.read(trail.tail).rows == 0
    app.gate.offline()
    app.gate.online()
    Sealer(app.db).seal()
    app.queues.set("mail", limit=3)
    assert app.db.read(trail.tail) == trail.Tail(1, NOON)
    clock.advance(timedelta(minutes=10))
    present(app, "mail")
    assert "1 row is not sealed yet" in troubles(app)["audit trail"]


def test_the_gate_is_told_with_who_moved_it_unless_nobody_did_through_duly(app: Duly) -> None:
    app.gate.offline(actor="cli:ada", reason="deploy")
    assert "closed by cli:ada: deploy" in troubles(app)["gate"]
    from sqlalchemy import text

    app.gate.online()
    app.db.write(lambda c: c.execute(text("UPDATE system_state SET value = 'maintenance' WHERE key = 'atlas_online'")))
    assert troubles(app)["gate"] == "offline; no worker claims anything, and no relay sends anything"


def test_counts_agree_with_what_a_bulk_act_would_touch(app: Duly) -> None:
    app.enqueue_many("SEND", [{}] * 3, queue="mail")
    drain(app)
    app.enqueue_many("OTHER", [{}] * 2, queue="mail", tenant="acme")
    counted = app.db.read(lambda c: survey.bunches(c, JobFilter(queue="mail")))
    assert sum(b.count for b in counted) == 5
    assert [(b.task, b.count) for b in app.db.read(lambda c: survey.bunches(c, JobFilter(tenant="acme")))] == [
        ("OTHER", 2)
    ]
    for b in counted:
        assert app.jobs.count(queue=b.queue, task=b.task, status=[b.status]) == b.count


def test_a_server_without_a_pooler_is_told_from_one_with(pg_url: str) -> None:
    app = Duly(pg_url)
    wake = wake_facts(app.db)
    assert (wake.pooled, wake.tried) == (False, True)
    assert wake.heard_in is not None
    assert wake.heard_in < 2
    app.close()
    behind = Duly(pg_url, pooler="transaction")
    assert wake_facts(behind.db).tried is False
    behind.close()


def test_looking_makes_no_file(tmp_path: Path) -> None:
    app = Duly(f"sqlite:///{tmp_path}/new.db")
    facts = examine(app.engine)
    assert facts.file is not None
    assert not facts.file.exists
    assert list(tmp_path.iterdir()) == []


def test_broken_and_overdue_schedules_are_found(app: Duly, clock: ManualClock) -> None:
    if not app.db.is_sqlite:
        clock.set(datetime.now(UTC))  # the doctor asks the server for the time
    for name, recurrence in (("nightly", Daily("02:30", tz="UTC")), ("hourly", Every("1h"))):
        app.schedules.set(app.schedules.spec(name, recurrence, "SEND"))
    schedules = examine(app.engine).schedules
    assert schedules is not None
    assert (schedules.count, schedules.paused, schedules.broken, schedules.overdue) == (2, 0, (), ())
    assert schedules.next is not None
    assert schedules.next[0] == "hourly" or schedules.next[1].hour == 2
    app.schedules.pause("nightly")
    with app.db.engine.begin() as connection:
        connection.execute(text("UPDATE schedules SET recurrence = '[]' WHERE name = 'nightly'"))
        early = app.db.clock.now() - timedelta(minutes=5)
        connection.execute(update(tables.schedules).values(look_at=early))
    found = examine(app.engine).schedules
    assert found is not None
    assert [name for name, _ in found.overdue] == ["hourly", "nightly"]
    app.scheduler().tick()
    said = troubles(app)["schedules"]
    assert said.startswith("nightly could not be planned for ")
    assert "schedule: is []" in said or "recurrence: is []" in said
