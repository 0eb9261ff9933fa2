"""The trail: written with the change or not at all, only ever longer, and whoever tampers with it is named."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, text

from contract.hands import AT_ONCE, Hand, K, actions, audit, rows, run_sql, together
from duly import Duly, Status
from duly.audit.seal import Sealer, Verdict, bodies, verify
from duly.audit.store import record
from duly.jobs.settle import settle
from duly.kernel.outcome import Outcome
from duly.testing import ManualClock, drain

HOUR = timedelta(hours=1)


def note(app: Duly, n: int = 1) -> None:
    """Add rows to the trail, one transaction each."""
    app.open()
    for i in range(n):
        app.db.write(partial(record, app.db, actor="me", action="NOTED", entity="note", entity_id=i, meta={"n": i}))


def seal(app: Duly) -> int:
    return Sealer(app.db).seal()


def tamper(app: Duly, sql: str) -> None:
    """What somebody with the keys of the database could do."""
    app.open()

    def act(connection: Any) -> None:
        if app.db.is_sqlite:
            for name in [
                r[0] for r in connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
            ]:
                connection.execute(text(f"DROP TRIGGER {name}"))
        else:
            for table in ("audit_log", "audit_seals"):
                connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        connection.execute(text(sql))

    app.db.write(act)


# --- Written with the change -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [K.SUCCEEDED, K.REFUSED])
def test_a_completion_whose_audit_row_cannot_be_written_did_not_happen(app: Duly, end: K) -> None:  # T003-i
    app.task("X", audit_action="DONE")(lambda: None).using(key="k", unique_until="done").enqueue()
    hand = Hand(app)
    job = hand.one()
    if app.db.is_sqlite:
        run_sql(app, "CREATE TRIGGER full_disk BEFORE INSERT ON audit_log BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    else:
        run_sql(
            app,
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $$disk full$$; END'",
        )
        run_sql(app, "CREATE TRIGGER full_disk BEFORE INSERT ON audit_log FOR EACH ROW EXECUTE FUNCTION full_disk()")
    with pytest.raises(Exception, match="disk full"):
        hand.end(job, Outcome(end, "{}"))
    assert app.jobs.get(job.id).status is Status.RUNNING
    assert rows(app, "SELECT count(*) FROM jobs_done") == [(0,)]
    assert rows(app, "SELECT count(*) FROM job_keys") == [(1,)]
    assert rows(app, "SELECT count(*) FROM attempts") == [(0,)]
    run_sql(app, "DROP TRIGGER full_disk" + ("" if app.db.is_sqlite else " ON audit_log"))
    assert hand.end(job, Outcome(end, "{}"))
    assert len(actions(app, job.id)) == 1


def test_a_transaction_that_rolls_back_leaves_no_trace_in_the_trail(app: Duly) -> None:  # R003-7
    app.task("X")(lambda: None).enqueue()
    job = Hand(app).one()
    done = settle(job, Outcome(K.SUCCEEDED, "{}"), app.engine.policy("X"))

    def act(connection: Any) -> None:
        assert app.engine.store.settle(connection, [done], "w") == {job.id}
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        app.db.write(act)
    assert (app.jobs.get(job.id).status, actions(app)) == (Status.RUNNING, [])


def test_rows_of_the_trail_belong_to_the_tenant_of_their_job(app: Duly) -> None:  # R003-9
    task = app.task("X", max_attempts=1, backoff=AT_ONCE)(lambda ok: ok or 1 / 0)
    jobs = [task.using(tenant=t).enqueue(ok).job.id for t in ("a", "b") for ok in (True, False)]
    drain(app)
    app.jobs.replay(jobs[1])
    app.jobs.cancel(jobs[1])
    assert {(row["entity_id"], row["tenant"]) for row in audit(app)} == {
        (str(ident), tenant) for ident, tenant in zip(jobs, "aabb", strict=True)
    }


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE audit_log SET actor = 'nobody'",
        "DELETE FROM audit_log",
        "DELETE FROM audit_log WHERE id = 1",
        "TRUNCATE audit_log",
    ],
)
def test_the_database_refuses_to_change_or_to_shorten_the_trail(app: Duly, sql: str) -> None:
    note(app, 2)
    if sql.startswith("TRUNCATE") and app.db.is_sqlite:
        sql = "UPDATE audit_log SET meta = '{}' WHERE id = 2"  # SQLite has no TRUNCATE
    with pytest.raises(Exception, match="append-only"):
        run_sql(app, sql)
    assert len(audit(app)) == 2


# --- Sealed ------------------------------------------------------------------------------------------------------------


def test_a_trail_that_nobody_touched_is_found_whole(app: Duly) -> None:
    assert verify(app.db) == Verdict(0, 0, 0)
    note(app, 3)
    assert verify(app.db) == Verdict(0, 0, 3)
    assert seal(app) == 3
    assert seal(app) == 0
    note(app, 2)
    assert verify(app.db) == Verdict(3, 1, 2)
    assert seal(app) == 2
    seen: list[int] = []
    assert verify(app.db, seen.append) == Verdict(5, 2, 0)
    assert seen == [3, 5]


def test_a_long_trail_is_sealed_in_portions(app: Duly) -> None:
    note(app, 12)
    sealer = Sealer(app.db)
    assert [sealer.seal(5) for _ in range(4)] == [5, 5, 2, 0]
    assert verify(app.db) == Verdict(12, 3, 0)


def test_one_seal_covers_rows_that_were_read_in_portions(app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.audit.seal.PORTION", 2)
    note(app, 5)
    assert Sealer(app.db).seal() == 5
    assert verify(app.db) == Verdict(rows=5, seals=1, unsealed=0)
    note(app, 4)
    assert [Sealer(app.db).seal(3), Sealer(app.db).seal(3), Sealer(app.db).seal(3)] == [3, 1, 0]
    assert verify(app.db) == Verdict(rows=9, seals=3, unsealed=0)


@pytest.mark.parametrize(
    "change",
    [
        "at = at",
        "tenant = 'x'",
        "actor = 'x'",
        "level = 'error'",
        "action = 'X'",
        "entity = 'x'",
        "entity_id = '77'",
        """meta = '{"n": 77}'""",
    ],
)
def test_a_changed_row_is_named(app: Duly, change: str) -> None:
    note(app, 5)
    seal(app)
    if change.startswith("at"):
        change = "at = at + 1" if app.db.is_sqlite else "at = at + interval '1 microsecond'"
    tamper(app, f"UPDATE audit_log SET {change} WHERE id = 3")
    found = verify(app.db)
    assert (found.row_id, found.seal_id, found.broken) == (3, 1, "audit row 3 was changed")


def test_texts_moved_from_one_column_to_the_next_are_noticed(app: Duly) -> None:
    note(app, 1)
    seal(app)
    tamper(app, "UPDATE audit_log SET actor = 'm', tenant = 'systeme'")  # "system" + "me" and "systeme" + "m"
    assert verify(app.db).broken == "audit row 1 was changed"


def test_a_removed_row_is_named(app: Duly) -> None:
    note(app, 5)
    seal(app)
    note(app, 2)
    seal(app)
    tamper(app, "DELETE FROM audit_log WHERE id = 6")
    found = verify(app.db)
    assert (found.row_id, found.seal_id, found.broken, found.rows) == (6, 2, "audit row 6 was removed", 5)


def test_a_row_slipped_in_behind_a_seal_is_named(app: Duly, clock: ManualClock) -> None:
    note(app, 5)
    tamper(app, "DELETE FROM audit_log WHERE id = 3")  # a gap, as a rolled back transaction leaves one
    seal(app)
    clock.advance(HOUR + timedelta(seconds=1))
    assert seal(app) == 0  # somebody looks, and finds nothing
    columns = "tenant, actor, level, action, entity, entity_id, meta, at"
    tamper(app, f"INSERT INTO audit_log (id, {columns}) SELECT 3, {columns} FROM audit_log WHERE id = 4")
    seal(app)
    found = verify(app.db)
    assert (found.row_id, found.broken) == (3, "audit row 3 was slipped in behind seal 1")


def test_a_row_replaced_as_a_whole_is_named(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    note(app, 3)
    seal(app)
    columns = "tenant, level, action, entity, entity_id, meta, at"
    # on SQLite a REPLACE deletes without asking the trigger
    run_sql(
        app,
        f"INSERT OR REPLACE INTO audit_log (id, actor, {columns}) SELECT 2, 'somebody else', {columns} FROM audit_log WHERE id = 2",
    )
    assert verify(app.db).broken == "audit row 2 was changed"
    app.close()


@pytest.mark.parametrize(
    ("sql", "seal_id"),
    [
        ("DELETE FROM audit_seals WHERE id = 2", 3),
        ("DELETE FROM audit_seals WHERE id = 1", 2),
        ("UPDATE audit_seals SET rows = 1 WHERE id = 2", 2),
        ("UPDATE audit_seals SET first_id = 2 WHERE id = 2", 2),
        ("UPDATE audit_seals SET last_id = last_id + 1 WHERE id = 2", 2),
        ("UPDATE audit_seals SET entries = (SELECT entries FROM audit_seals WHERE id = 1) WHERE id = 2", 2),
        ("UPDATE audit_seals SET hash = previous WHERE id = 2", 2),
        ("UPDATE audit_seals SET previous = hash WHERE id = 2", 2),
        ("UPDATE audit_seals SET gaps = '[[1,9]]' WHERE id = 2", 2),
        ("UPDATE audit_seals SET sealed_at = (SELECT sealed_at FROM audit_seals WHERE id = 3) WHERE id = 2", 2),
    ],
)
def test_a_changed_or_removed_seal_is_named(app: Duly, clock: ManualClock, sql: str, seal_id: int) -> None:
    for _ in range(3):
        note(app, 2)
        seal(app)
        clock.advance(60)
    assert verify(app.db).broken is None
    tamper(app, sql)
    found = verify(app.db)
    assert found.broken is not None
    assert found.seal_id == seal_id


def test_sealers_at_once_make_one_chain(app: Duly) -> None:
    note(app, 40)
    got = together(*[partial(Sealer(app.db).seal, 7)] * 6)
    assert not [g for g in got if isinstance(g, Exception)]
    while seal(app):
        pass
    assert verify(app.db).broken is None
    assert verify(app.db).rows == 40


# --- Rows that commit late ---------------------------------------------------------------------------------------------


def late(app: Duly, sealed: Callable[[], object], n: int = 1) -> None:
    """Give ids to ``n`` rows in a transaction that commits only after ``sealed()``, each id beside another's."""
    with app.db.engine.begin() as connection:
        for i in range(n):
            record(app.db, connection, actor="late", action="NOTED", entity="note", entity_id=i)
            note(app)
        sealed()


def test_a_row_that_commits_after_a_later_one_was_sealed_is_sealed_later(pg: Duly) -> None:  # B043
    def sealed() -> None:
        assert seal(pg) == 1
        assert verify(pg.db) == Verdict(1, 1, 0)

    pg.open()
    late(pg, sealed)
    assert [r["actor"] for r in audit(pg)] == ["late", "me"]
    assert verify(pg.db) == Verdict(1, 1, 1)
    assert seal(pg) == 1
    assert seal(pg) == 0
    assert verify(pg.db) == Verdict(2, 2, 0)
    tamper(pg, "UPDATE audit_log SET actor = 'x' WHERE id = 1")
    assert verify(pg.db).broken == "audit row 1 was changed"


def test_a_gap_stays_open_across_the_seals_that_follow(pg: Duly, clock: ManualClock) -> None:  # B043
    def sealed() -> None:
        assert seal(pg) == 2
        for _ in range(3):
            clock.advance(60)
            note(pg)
            assert seal(pg) == 1

    pg.open()
    late(pg, sealed, 2)
    assert seal(pg) == 2
    assert seal(pg) == 0
    assert verify(pg.db) == Verdict(7, 5, 0)


def test_a_late_row_is_sealed_together_with_new_ones(pg: Duly) -> None:  # B043
    pg.open()
    late(pg, lambda: seal(pg))
    note(pg, 3)
    assert seal(pg) == 4
    assert verify(pg.db) == Verdict(5, 2, 0)


def test_hundreds_of_late_rows_are_all_sealed(
    pg: Duly, clock: ManualClock
) -> None:  # B043: two busy workers interleave their ids
    pg.open()
    late(pg, lambda: seal(pg), 700)
    while seal(pg):
        pass
    assert verify(pg.db).rows == 1400
    clock.advance(2 * HOUR)
    assert verify(pg.db).broken is None


def test_ids_of_rolled_back_transactions_are_gaps_that_block_nothing(pg: Duly, clock: ManualClock) -> None:  # B043
    note(pg, 2)
    with pg.db.engine.connect() as connection:
        record(pg.db, connection, actor="x", action="NOTED", entity="note", entity_id=0)
        connection.rollback()
    note(pg, 2)
    assert seal(pg) == 4
    clock.advance(2 * HOUR)
    assert seal(pg) == 0
    assert verify(pg.db) == Verdict(4, 2, 0)  # the second closes the gap


def test_every_worker_seals_what_is_done(db_url: str) -> None:
    from contract.hands import wait_until, working

    app = Duly(db_url, poll=0.05)
    app.task("X")(lambda: None).enqueue_many([{}] * 5)
    with working(app.worker(name="w")):
        wait_until(lambda: verify(app.db).rows == 5)
    assert verify(app.db).broken is None
    app.close()


def test_a_row_with_an_id_below_the_first_is_named_as_slipped_in(app: Duly) -> None:
    app.gate.offline("so that there is a row")
    assert seal(app) >= 1
    tamper(
        app,
        f"""INSERT INTO audit_log (id, at, tenant, actor, level, action, entity, entity_id, meta)
        VALUES (-1, {"0" if app.db.is_sqlite else "now()"}, 'default', 'cli:eve', 'info', 'X', 'job', '1', '{{}}')""",
    )
    verdict = verify(app.db)
    assert (verdict.row_id, verdict.seal_id) == (-1, None)
    assert "slipped in" in (verdict.broken or "")


def test_the_database_refuses_to_change_or_remove_seals(app: Duly) -> None:
    app.gate.offline("so that there is a row")
    assert seal(app) >= 1
    for statement in ("UPDATE audit_seals SET rows = 0", "DELETE FROM audit_seals"):
        with pytest.raises(Exception, match="append-only"):
            app.db.write(lambda c, sql=statement: c.execute(text(sql)))


def test_a_row_that_commits_late_is_sealed_though_nobody_sealed_for_hours(pg: Duly, clock: ManualClock) -> None:  # B043
    pg.open()
    late(pg, lambda: seal(pg))
    clock.advance(2 * HOUR)
    assert verify(pg.db).broken is None
    assert verify(pg.db).unsealed == 1
    assert seal(pg) == 1
    assert verify(pg.db).broken is None
    assert verify(pg.db).unsealed == 0


def test_a_seal_is_found_without_reading_what_it_covers_and_by_one_statement_however_long_the_trail(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:  # ADR 0032
    note(app, 9)
    monkeypatch.setattr("duly.audit.seal.PORTION", 2)
    said: list[str] = []

    def told(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        said.append(statement)

    event.listen(app.db._reader, "before_cursor_execute", told)
    driver: list[str] = []
    real = bodies

    def noted(connection: Any, where: str, **numbers: int) -> list[tuple[int, str]]:
        driver.append(where)
        return real(connection, where, **numbers)

    monkeypatch.setattr("duly.audit.seal.bodies", noted)
    assert [seal(app), seal(app)] == [9, 0]
    assert len(driver) > 4
    assert len(set(driver)) == 1  # drivers keep what they are asked: one statement, not one for each portion
    assert not [one for one in said if one.startswith("SELECT") and "entries" in one]
