"""A tick of the scheduler, and the same number of jobs made in bulk, in one process. Answers are seconds per side."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bench import marks
from bench.pairs import _timed

#: Jobs made in one transaction by the bare side: as many as one transaction of a tick makes.
BATCH = 200


def tick_pg(n: int) -> dict[str, Any]:
    """``n`` minutely schedules fire in one tick; then under overlap=skip; then ``n`` jobs are made 200 by 200."""
    return _tick(n)


def tick_sqlite(n: int) -> dict[str, Any]:
    return _tick(n)


def _tick(n: int) -> dict[str, Any]:
    from duly import Duly
    from duly.kernel.recurrence import Cron
    from duly.testing import ManualClock

    clock = ManualClock(datetime(2026, 5, 1, tzinfo=UTC))
    app = Duly(marks.TARGET, clock=clock)
    app.migrate()
    app.task("noop")(lambda: None)
    every = Cron("* * * * *", tz="Europe/Paris")
    for i in range(n):
        app.schedules.set(app.schedules.spec(f"s{i}", every, "noop"))
    scheduler, answer = app.scheduler(), dict[str, Any]()
    clock.advance(timedelta(minutes=1))
    scheduler.tick()  # warm
    clock.advance(timedelta(minutes=1))
    with _timed(answer, "fired"):
        report = scheduler.tick()
    assert report.fired == n, report
    with app.db.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE schedules SET overlap = 'skip'")
        connection.exec_driver_sql("DELETE FROM jobs")
    clock.advance(timedelta(minutes=1))
    with _timed(answer, "alone"):
        report = scheduler.tick()
    assert report.fired == n, report
    new = app.prepare("noop")
    with _timed(answer, "raw"):
        for start in range(0, n, BATCH):
            app.enqueue_prepared([new] * min(BATCH, n - start))
    return answer
