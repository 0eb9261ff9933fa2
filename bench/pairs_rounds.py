"""Ticks of rounds over many groups of which some are due, in one process. Answers are seconds, and MiB where it says so."""

from __future__ import annotations

import resource
from datetime import UTC, datetime, timedelta
from typing import Any

from bench import marks
from bench.pairs import _timed

NOW = datetime(2026, 6, 1, 10, tzinfo=UTC)
DAY = timedelta(days=1)
PROMPTS, ZONES = 9, ("Europe/Paris", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "UTC")


def rounds_pg(n: int, total: int) -> dict[str, Any]:
    """``n`` of ``total`` groups are due at each of the three ticks; each has nine prompts, seven rounds behind it and a member."""
    return _rounds(n, total)


def rounds_sqlite(n: int, total: int) -> dict[str, Any]:
    return _rounds(n, total)


def _rounds(n: int, total: int) -> dict[str, Any]:
    from duly import Duly
    from duly.rounds import Rounds
    from duly.testing import ManualClock

    clock = ManualClock(NOW)
    app = Duly(marks.TARGET, clock=clock)
    app.migrate()
    rounds, answer = Rounds(app), dict[str, Any]()
    _fill(app, n, total)
    for kind in ("open", "close"):
        getattr(rounds, kind)()  # warm
    with _timed(answer, "idle"):
        rounds.open()
    before = _peak()
    for kind, at in (("plan", NOW), ("open", NOW + DAY), ("close", NOW + 2 * DAY)):
        clock.set(at)
        with _timed(answer, kind):
            report = getattr(rounds, kind)()
        assert (report.done, report.failed) == (n, 0), report
    answer["MiB"] = _peak() - before
    assert app.jobs.count() == n
    with _timed(answer, "raw"), app.db.engine.begin() as c:
        # the least that a transition is: one row that changes its state
        moved = c.exec_driver_sql("UPDATE rounds SET late = 0 WHERE late IS NOT NULL")
    assert moved.rowcount == n
    return answer


def _fill(app: Any, n: int, total: int) -> None:
    sqlite = app.db.is_sqlite

    def at(instant: datetime) -> str:
        return str(int(instant.timestamp() * 1_000_000)) if sqlite else f"'{instant.isoformat()}'::timestamptz"

    def series(last: int, first: int = 1) -> str:
        if sqlite:
            return f"(WITH RECURSIVE s(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM s WHERE i < {last}) SELECT i FROM s) AS s"
        return f"generate_series({first}, {last}) AS s(i)"

    def day(k: str) -> str:
        return f"date('2026-01-01', '+' || {k} || ' days')" if sqlite else f"(date '2026-01-01' + CAST({k} AS int))"

    now, far, zone = at(NOW), at(NOW + 300 * DAY), " ".join(f"WHEN {k} THEN '{z}'" for k, z in enumerate(ZONES))
    statements = [
        # the others have an open round each, whose end is far
        f"INSERT INTO groups (id, tenant, name, zone, is_active, notifications, plan_at, created_at, updated_at, updated_by) "
        f"{'' if sqlite else 'OVERRIDING SYSTEM VALUE '}SELECT i, 'default', 'g' || i, CASE i % {len(ZONES)} {zone} END, true, true, "
        f"CASE WHEN i <= {n} THEN {now} END, {now}, {now}, 'bench' FROM {series(total)}",
        f"INSERT INTO group_prompts (group_id, text, is_active, created_at) SELECT g.i, 'prompt ' || p.i, true, {now} "
        f"FROM (SELECT i FROM {series(n)}) g, (SELECT i FROM {series(PROMPTS)}) p",
        f"INSERT INTO group_members (group_id, name, channels, is_active, created_at) SELECT i, 'ada', 'log', true, {now} FROM {series(n)}",
        "INSERT INTO rounds (tenant, group_id, scheduled_for, status, zone, drop_time, planned_at, prompt_id, open_at, close_at, created_at, "
        f"opened_at, closed_at) SELECT 'default', p.group_id, {day('k.i')}, 'closed', 'UTC', '18:00', {now}, p.id, {at(NOW - 3 * DAY)}, "
        f"{at(NOW - 2 * DAY)}, {now}, {now}, {now} FROM group_prompts p, (SELECT i FROM {series(7)}) k WHERE p.text = 'prompt ' || k.i",
        "INSERT INTO rounds (tenant, group_id, scheduled_for, status, zone, drop_time, planned_at, prompt_text, open_at, close_at, created_at, "
        f"opened_at) SELECT 'default', i, {day('1')}, 'open', 'UTC', '18:00', {now}, 'prompt', {now}, {far}, {now}, {now} FROM {series(total, n + 1)}",
    ]  # fmt: skip
    for statement in statements:
        with app.db.engine.begin() as c:
            c.exec_driver_sql(statement.replace("%", "%%") if not sqlite else statement)
    with app.db.auto.connect() as c:
        c.exec_driver_sql("ANALYZE" if sqlite else "VACUUM ANALYZE")


def _peak() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
