"""Pages of the dashboard and answers of the API over a database that is full. Answers are milliseconds of server time by page."""

from __future__ import annotations

import random
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from bench import marks

#: Shares of the jobs that are live, and of the ended that failed.
LIVE, FAILED = 0.1, 0.04
ERRORS = ("ConnectionError", "TimeoutError", "ValueError", "Throttled", "PermanentError", "Timeout", "KeyError")
TIMES = 7


def pages_pg(n: int) -> dict[str, Any]:
    """``n`` jobs of seven days in ten queues, of thirty tasks and three tenants; then every page that lists, counts or draws them."""
    return _pages(n)


def pages_sqlite(n: int) -> dict[str, Any]:
    return _pages(n)


def _pages(n: int) -> dict[str, Any]:
    from starlette.testclient import TestClient

    from duly import Duly
    from duly.web.app import create

    app = Duly(marks.TARGET)
    app.migrate()
    app.schedule("nightly", _nightly(), "task 1")
    app.schedules.sync()
    _, failed = _fill(app, n)
    answer: dict[str, Any] = {}
    paths = {
        "overview": "/", "jobs": "/jobs", "jobs, failed": "/jobs?status=failed", "jobs, ready": "/jobs?status=queued&queue=queue+3",
        "jobs, one task": "/jobs?task=task+7", "jobs, one tenant": "/jobs?tenant=tenant+1", "jobs, before 6 days": "/jobs?before=6d",
        "jobs, since 6 hours": "/jobs?since=6h", "jobs, one error": "/jobs?error=Timeout", "jobs, an error of none": "/jobs?error=Nope",
        "jobs, a key of none": "/jobs?key=nope", "jobs, nothing fits": "/jobs?queue=queue+3&task=task+7", "jobs, cancelled": "/jobs?status=cancelled",
        "jobs, what a replay would do": "/jobs/act?queue=queue+3&event=replay", "publishing": "/publishing", "workflows": "/workflows",
        "a job": f"/jobs/{failed}", "failures": "/failures", "queues": "/queues", "schedules": "/schedules", "calendar": "/calendar", "audit": "/audit",
        "what a blackout would hold": "/calendar/impact?scope=all&start=00:00&end=23:00&tz=UTC",
        "find a job": f"/jobs/go?q={failed}", "API: overview": "/api/v1/overview", "API: jobs": "/api/v1/jobs?limit=100",
        "API: count": "/api/v1/jobs/count?status=succeeded", "API: queues": "/api/v1/queues",
    }  # fmt: skip
    with TestClient(create(app, local=True), base_url="http://127.0.0.1", follow_redirects=False) as client:
        for name, path in paths.items():
            times = []
            for _ in range(TIMES):
                begun = time.perf_counter()
                got = client.get(path)
                times.append((time.perf_counter() - begun) * 1_000)
                assert got.status_code in (200, 303), (path, got.status_code, got.text[:300])
            answer[name] = statistics.median(times)
    app.close()
    return answer


def _nightly() -> Any:
    from duly import Cron

    return Cron("30 2 * * *", tz="Europe/Paris")


def _fill(app: Any, n: int) -> tuple[int, int]:
    """Rows as they would be, written by hand. Returns (the last id, the id of one that failed)."""
    from sqlalchemy import insert, text

    from duly.jobs.tables import attempts, jobs, jobs_done

    app.open()
    pick, now, failed = random.Random(7), datetime.now(UTC), 0
    live_from = int(n * (1 - LIVE))
    for start in range(1, n + 1, 10_000):
        done, live, tries = [], [], []
        for ident in range(start, min(start + 10_000, n + 1)):
            is_live = ident > live_from
            at = now - timedelta(days=7) * (1 - ident / n)
            row: dict[str, Any] = {
                "id": ident, "tenant": f"tenant {ident % 3}", "queue": f"queue {ident % 10}", "task": f"task {ident % 30}", "priority": 0,
                "status": "queued", "run_at": at, "input": {"n": 1}, "attempts": 0, "max_attempts": 4, "created_at": at,
            }  # fmt: skip
            if is_live:
                later = ident % 5 == 0
                live.append({**row, "due_at": now + timedelta(seconds=ident % 90_000) if later else None})
                continue
            bad = pick.random() < FAILED
            error = {"type": pick.choice(ERRORS), "message": "no answer"} if bad else None
            began = at + timedelta(seconds=pick.random() * 3)
            done.append({
                **row, "status": "failed" if bad else "succeeded", "attempts": 4 if bad else 1, "error": error, "worker": "w", "started_at": began,
                "finished_at": began + timedelta(seconds=1),
            })  # fmt: skip
            if bad:
                failed = ident
                tries += [
                    {"job_id": ident, "tenant": row["tenant"], "attempt": k, "worker": "w", "started_at": began, "ended_at": began, "outcome": "failed", "error": error}
                    for k in (1, 2, 3)
                ]  # fmt: skip

        def write(c: Any, several: Any = ((jobs_done, done), (jobs, live), (attempts, tries))) -> None:
            for table, rows in several:
                if rows:
                    c.execute(insert(table), rows)

        app.db.write(write)
    with app.db.engine.begin() as c:
        c.execute(text("ANALYZE"))
    return n, failed
