"""Looking back through the jobs: nothing is missed and nothing told twice, however early a look stops (ADR 0033, B080)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, text

from contract.hands import NOON
from duly import Duly
from duly.jobs import look as looking
from duly.jobs.filter import JobFilter
from duly.jobs.look import Tally, look, tally
from duly.jobs.survey import pace
from duly.jobs.tables import jobs, jobs_done
from duly.publishing.store import PublicationStore
from duly.publishing.view import PublicationFilter

HOUR = timedelta(hours=1)
MADE = 400


def at(ident: int) -> datetime:
    return NOON - HOUR * (MADE - ident)


@pytest.fixture
def history(app: Duly) -> Callable[[JobFilter], list[int]]:
    """Four hundred jobs, one an hour, most of them ended; every fifth number was pruned. What fits a filter is told from Python's memory."""
    pick = Random(11)
    live, done, known = [], [], []
    for ident in range(1, MADE + 1):
        if ident % 5 == 0:
            continue
        status = pick.choices(["succeeded", "failed", "cancelled", "queued", "running"], [60, 10, 5, 20, 5])[0]
        kind = (
            pick.choice(["OSError", "ValueError"])
            if status == "failed" or (status == "queued" and pick.random() < 0.2)
            else None
        )
        row: dict[str, Any] = {
            "id": ident, "tenant": f"t{ident % 3}", "queue": f"q{pick.randrange(4)}", "task": pick.choice(["A", "A", "A", "B"]), "priority": 0,
            "status": status, "run_at": at(ident), "input": {}, "attempts": 1, "max_attempts": 4, "created_at": at(ident),
            "key": f"k{ident % 50}" if pick.random() < 0.3 else None, "error": {"type": kind} if kind else None,
        }  # fmt: skip
        # some take hours, so that jobs do not end in the order in which they were made
        end = at(ident) + HOUR * pick.choice([0, 0, 0, 30])
        if status in ("queued", "running"):
            lease = (
                {"lease_token": 1, "lease_until": NOON}
                if status == "running"
                else {"lease_token": None, "lease_until": None}
            )
            live.append({**row, **lease})
        else:
            done.append({**row, "finished_at": end})
        known.append({**row, "moment": at(ident) if status in ("queued", "running") else end, "class": kind})

    def write(c: Connection) -> None:
        c.execute(insert(jobs), live)
        c.execute(insert(jobs_done), done)

    app.db.write(write)

    def fitting(f: JobFilter) -> list[int]:
        return [
            row["id"] for row in reversed(known)
            if all(getattr(f, name) in (None, row[name]) for name in ("tenant", "queue", "task", "key"))
            and (not f.status or row["status"] in f.status) and (not f.ids or row["id"] in f.ids)
            and (f.since is None or row["moment"] >= f.since) and (f.before is None or row["moment"] < f.before)
            and (f.error is None or row["class"] == f.error)
        ]  # fmt: skip

    return fitting


FILTERS = [
    JobFilter(),
    JobFilter(task="B"),
    JobFilter(task="nobody's"),
    JobFilter(queue="q1", task="B"),
    JobFilter(tenant="t1", status=["succeeded"]),
    JobFilter(status=["failed"]),
    JobFilter(status=["cancelled"], task="B"),
    JobFilter(status=["failed", "cancelled"], queue="q2"),
    JobFilter(status=["failed", "queued"], task="B"),
    JobFilter(status=["failed", "succeeded"]),
    JobFilter(status=["queued"]),
    JobFilter(key="k7"),
    JobFilter(key="k7", status=["failed", "running", "succeeded"]),
    JobFilter(error="OSError"),
    JobFilter(error="OSError", status=["failed"], queue="q1"),
    JobFilter(error="NoSuch"),
    JobFilter(ids=[3, 77, 78, 5], task="A"),
    JobFilter(since=at(300)),
    JobFilter(before=at(100)),
    JobFilter(since=at(100), before=at(103), task="A"),
    JobFilter(since=at(390), status=["succeeded"], task="B"),
    JobFilter(before=at(200), task="B", tenant="t2"),
    JobFilter(before=at(-50)),
    JobFilter(since=NOON + HOUR),
]


@pytest.mark.parametrize("few", [0, 20, 10_000])
@pytest.mark.parametrize("seconds", [0.0, None])
def test_pages_together_hold_all_that_fits_newest_first_and_each_once(
    app: Duly, history: Callable[[JobFilter], list[int]], monkeypatch: pytest.MonkeyPatch, few: int, seconds: float | None
) -> None:  # fmt: skip
    monkeypatch.setattr(looking, "FIRST", 20)
    monkeypatch.setattr(looking, "GROWTH", 2)
    monkeypatch.setattr(looking, "LONGEST", 50)
    monkeypatch.setattr(looking, "FEW", few)
    for f in FILTERS:
        for limit in (1, 7, 500):
            found: list[int] = []
            below: int | None = None
            pages = 0
            while True:
                page = app.db.snapshot(lambda c, f=f, n=limit, b=below: look(c, f, n, b, seconds))
                ids = [job.id for job in page.rows]
                assert len(ids) <= limit
                assert seconds is not None or not page.is_cut, "nothing stops a look that has all the time"
                assert page.is_cut or page.below is None or len(ids) == limit, "a page that is not full says why"
                found += ids
                pages += 1
                assert below is None or page.below is None or page.below < below, "a look goes on"
                below = page.below
                if below is None:
                    break
            assert found == history(f), (f, limit, few, seconds)


def test_a_count_that_was_stopped_says_at_least(
    app: Duly, history: Callable[[JobFilter], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "FIRST", 20)
    monkeypatch.setattr(looking, "FEW", 5)
    for f in FILTERS:
        right = len(history(f))
        assert app.db.read(lambda c, f=f: tally(c, f, 10_000)) == Tally(right, at_least=False)
        short = app.db.read(lambda c, f=f: tally(c, f, 10_000, 0.0))
        assert short.count == right if not short.at_least else short.count <= right
        capped = app.db.read(lambda c, f=f: tally(c, f, 3))
        assert capped == (Tally(3, at_least=True) if right >= 3 else Tally(right, at_least=False))
    assert app.db.read(lambda c: tally(c, JobFilter(task="B"), 10_000, 0.0)).at_least


def test_a_look_before_an_instant_does_not_read_what_was_made_after_it(
    app: Duly, history: Callable[[JobFilter], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many jobs were made since: the first stretch holds jobs that fit."""
    monkeypatch.setattr(looking, "FIRST", 20)
    monkeypatch.setattr(looking, "FEW", 0)
    page = app.db.read(lambda c: look(c, JobFilter(before=at(100), task="A"), 3, None, 0.0))
    assert [job.id for job in page.rows] == history(JobFilter(before=at(100), task="A"))[:3]


def test_clocks_that_differ_by_minutes_hide_no_job(
    app: Duly, history: Callable[[JobFilter], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was made, by another machine's clock, half an hour after it ended is found."""
    monkeypatch.setattr(looking, "FIRST", 10)
    monkeypatch.setattr(looking, "FEW", 0)
    app.db.write(lambda c: c.execute(text("UPDATE jobs_done SET finished_at = created_at")))
    with_some = app.db.read(lambda c: look(c, JobFilter(status=["succeeded"], task="A"), 500)).rows
    early = with_some[5]
    assert early.finished_at is not None
    end = early.finished_at - timedelta(minutes=30)
    app.db.write(lambda c: c.execute(jobs_done.update().where(jobs_done.c.id == early.id).values(finished_at=end)))
    found = app.db.read(lambda c: look(c, JobFilter(before=end + timedelta(minutes=1), task="A"), 500)).rows
    assert early.id in [job.id for job in found]


def test_a_job_that_ends_while_it_is_looked_for_is_found_and_counted_once(
    app: Duly, history: Callable[[JobFilter], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row moves from one table to the other, between two statements of a look."""
    app.db.write(lambda c: c.execute(text("UPDATE jobs SET status = 'queued', lease_token = NULL, lease_until = NULL")))
    waiting = app.jobs.find(500, status=["queued"])
    few = looking._few

    def end_one() -> None:
        job = waiting.pop()
        thread = threading.Thread(target=app.jobs.cancel, args=(job.id,))
        thread.start()
        thread.join(30)
        assert not thread.is_alive()

    def meddled(*given: Any) -> Any:
        found = few(*given)
        end_one()
        return found

    monkeypatch.setattr(looking, "_few", meddled)
    f = JobFilter(since=at(1))
    expected = {job.id for job in app.jobs.find(500, since=at(1))}
    assert len(expected) == len(app.jobs.find(500, since=at(1))) == app.jobs.count(since=at(1))
    assert {job.id for job in app.db.snapshot(lambda c: look(c, f, 500, None, 0.0)).rows} == expected


def test_a_class_of_errors_is_not_read_again_for_each_stretch(
    app: Duly, history: Callable[[JobFilter], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its index is in the order of time: a stretch of ids that was looked for in it would read and sort the whole class, each time."""
    monkeypatch.setattr(looking, "FIRST", 20)
    monkeypatch.setattr(looking, "FEW", 2)
    with plans(app) as said:
        app.db.snapshot(lambda c: look(c, JobFilter(error="OSError", status=["failed"], task="B"), 50))
    stretches = [line for line in said if "ix_jobs_done_failed" in line]
    assert len(stretches) >= 2
    assert sum("ix_jobs_done_failures" in line for line in said) == 1, said


def test_jobs_that_run_and_jobs_with_a_key_are_found_at_once_below_many_others(
    app: Duly, history: Callable[[JobFilter], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "FIRST", 5)
    for f in (JobFilter(status=["running"]), JobFilter(key="k7"), JobFilter(key="k7", status=["queued", "failed"])):
        page = app.db.snapshot(lambda c, f=f: look(c, f, 500, None, 0.0))
        assert [job.id for job in page.rows] == history(f)
        assert page.below is None


def test_the_highest_id_there_is_is_found_and_nothing_is_below_the_lowest(app: Duly) -> None:
    row = {
        "id": 2**63 - 1, "tenant": "t", "queue": "q", "task": "A", "priority": 0, "status": "succeeded", "run_at": NOON, "input": {}, "attempts": 1,
        "max_attempts": 4, "created_at": NOON, "finished_at": NOON,
    }  # fmt: skip
    app.db.write(lambda c: c.execute(insert(jobs_done), [row, {**row, "id": 1}]))
    assert [job.id for job in app.jobs.find()] == [2**63 - 1, 1]
    assert app.jobs.count() == 2
    assert [app.jobs.find(below=below) for below in (1, 0, -5)] == [[], [], []]


def test_a_look_that_stopped_says_how_far_back_it_came_though_jobs_were_pruned(
    app: Duly, history: Callable[[JobFilter], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "FIRST", 21)
    page = app.db.snapshot(lambda c: look(c, JobFilter(task="nobody's"), 5, None, 0.0))
    assert page.is_cut and page.below is not None
    assert page.back_to is not None and at(page.below) <= page.back_to <= at(page.below + 1)


# --- Indexes -----------------------------------------------------------------------------------------------------------


@contextmanager
def plans(app: Duly) -> Iterator[list[str]]:
    """What the database says of how it finds what the body asks for."""
    asked: list[tuple[str, Any]] = []
    out: list[str] = []
    note = lambda conn, cursor, statement, given, context, many: asked.append((statement, given))  # noqa: E731
    engines = {id(one): one for one in (app.db.engine, app.db._reader) if one is not None}
    for one in engines.values():
        event.listen(one, "before_cursor_execute", note)
    try:
        yield out
    finally:
        for one in engines.values():
            event.remove(one, "before_cursor_execute", note)

    def explain(c: Connection) -> None:
        if not app.db.is_sqlite:
            c.exec_driver_sql("SET LOCAL enable_seqscan = off")
        word = "EXPLAIN QUERY PLAN " if app.db.is_sqlite else "EXPLAIN "
        for statement, given in asked:
            if statement.lstrip().upper().startswith(("SELECT", "WITH")) and "set_config" not in statement:
                out.extend(str(row[-1]) for row in c.exec_driver_sql(word + statement, given))

    app.db.read(explain)


@pytest.mark.parametrize(
    ("f", "index"),
    [
        (JobFilter(status=["cancelled"]), "ix_jobs_done_cancelled"),
        (JobFilter(status=["failed"]), "ix_jobs_done_failed"),
        (JobFilter(key="k7", status=["succeeded"]), "ix_jobs_done_key"),
        (JobFilter(error="OSError", status=["failed"]), "ix_jobs_done_failures"),
        (JobFilter(since=NOON), "ix_jobs_done_finished"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_few_jobs_can_fit_is_found_by_an_index(
    app: Duly, history: Callable[[JobFilter], list[int]], f: JobFilter, index: str
) -> None:
    app.db.write(lambda c: c.execute(text("ANALYZE")))
    with plans(app) as said:
        app.db.read(lambda c: look(c, replace(f, tenant="t1"), 50))
    assert any(index in line for line in said), said


def test_publications_and_runs_are_found_among_other_jobs_by_an_index(
    app: Duly, history: Callable[[JobFilter], list[int]]
) -> None:
    with plans(app) as said:
        assert app.workflows.list() == []
        assert app.db.read(lambda c: PublicationStore(app.db).find(c, PublicationFilter(), 50)) == []
    for index in ("ix_jobs_runs", "ix_jobs_done_runs", "ix_jobs_publications", "ix_jobs_done_publications"):
        assert any(index in line for line in said), (index, said)


def test_the_pace_of_late_is_counted_by_an_index_that_needs_no_vacuum(
    app: Duly, history: Callable[[JobFilter], list[int]]
) -> None:
    with plans(app) as said:
        app.db.read(lambda c: pace(c, NOON, timedelta(minutes=5), 3))
    assert any("ix_jobs_done_finished" in line for line in said), said
    assert not any("Bitmap" in line or "Seq Scan" in line for line in said), said
