"""The matrix of failures: which errors, how many, how long ago; and the jobs that each number leads to."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest
from sqlalchemy import Connection, event, text
from starlette.testclient import TestClient

from duly import Duly, PermanentError
from duly.jobs.failures import CLASSES, Count, failures
from duly.jobs.filter import JobFilter
from duly.jobs.tables import NO_CLASS, jobs_done
from duly.testing import ManualClock, drain
from duly.web.dashboard.pages.failures import SPANS
from fronts import on_both
from web.dashboard.conftest import Person
from web.dashboard.scene import START

HOURS = [timedelta(hours=1), timedelta(hours=6), timedelta(days=7)]


@pytest.fixture
def broken(app: Duly, time: ManualClock) -> Duly:
    """Failures of three classes, some minutes, some hours and some days old."""

    @app.task("break", max_attempts=1)
    def break_(kind: str) -> None:
        raise {"os": OSError, "value": ValueError, "no": PermanentError}[kind]("it does not work")

    for back, kinds, tenant in (
        (timedelta(days=8), ["os"], "default"), (timedelta(days=2), ["os", "no"], "default"), (timedelta(hours=3), ["os"], "acme"),
        (timedelta(minutes=10), ["value", "value", "os"], "default"),
    ):  # fmt: skip
        time.set(NOW - back)
        for kind in kinds:
            break_.using(tenant=tenant).enqueue(kind)
        drain(app)
    time.set(NOW)
    return app


NOW = START + timedelta(days=10)


def numbers(counts: tuple[Count, ...]) -> list[int]:
    return [count.number for count in counts]


def test_failures_are_counted_by_class_and_span(broken: Duly) -> None:  # issue 8
    found, more = broken.db.read(lambda c: failures(c, NOW, HOURS))
    assert {one.error: numbers(one.counts) for one in found} == {"ValueError": [2, 2, 2], "OSError": [1, 2, 3], "PermanentError": [0, 0, 1]}  # fmt: skip
    assert [one.error for one in found] == ["ValueError", "OSError", "PermanentError"]  # what fails now stands on top
    assert not more
    assert found[0].last == NOW - timedelta(minutes=10)
    mine, _ = broken.db.read(lambda c: failures(c, NOW, HOURS, "acme"))
    assert {one.error: numbers(one.counts) for one in mine} == {"OSError": [0, 1, 1]}


def test_a_number_that_was_counted_no_further_says_so(broken: Duly) -> None:
    found, _ = broken.db.read(lambda c: failures(c, NOW, HOURS, cap=2))
    assert {one.error: one.counts for one in found}["ValueError"] == (Count(2, True),) * 3
    assert not any(count.capped for one in found if one.error != "ValueError" for count in one.counts)


def test_classes_that_were_not_looked_at_are_told(
    broken: Duly, local: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.jobs.failures.CLASSES", 2)
    found, more = broken.db.read(lambda c: failures(c, NOW, HOURS))
    assert more and {one.error for one in found} == {"OSError", "PermanentError"}  # by their names
    assert "There are more classes" in local.get("/failures").text


def test_every_number_leads_to_the_jobs_that_it_counts(broken: Duly, local: TestClient) -> None:
    page = local.get("/failures").text
    cells = re.findall(r'<td class="num shade-\d"><a href="([^"]+)"[^>]*>([\d,]+)', page)
    assert len(cells) == 12  # fifteen, of which three are none
    for to, number in cells:
        jobs = local.get(to.replace("&amp;", "&")).text
        assert f"{number} fit" in jobs, to
        assert jobs.count("data-row>") == int(number)
    assert "7 fit" in local.get("/jobs?status=failed").text  # one of them is too old for the matrix
    totals = re.findall(r'<td class="num"><a href="[^"]+">([\d,]+)', page)
    assert totals == ["3", "4", "4", "6", "6"] and len(SPANS) == 5


def test_errors_without_a_class_and_with_endless_ones_have_a_cell_too(broken: Duly, local: TestClient) -> None:
    long = "E" * 5_000
    c = jobs_done.c

    def damage(connection: Connection) -> None:
        ids = [
            row[0]
            for row in connection.execute(jobs_done.select().with_only_columns(c.id).order_by(c.id.desc()).limit(3))
        ]
        for ident, error in zip(ids, ({"message": "no type"}, None, {"type": long}), strict=True):
            connection.execute(jobs_done.update().where(c.id == ident).values(error=error))

    broken.db.write(damage)
    page = local.get("/failures").text
    assert NO_CLASS in page and "E" * 200 in page and "E" * 201 not in page
    for error, number in ((NO_CLASS, 2), ("E" * 200, 1)):
        assert f"{number} fit" in local.get("/jobs", params={"status": "failed", "error": error, "since": "1h"}).text
    assert "0 fit" in local.get("/jobs", params={"status": "succeeded", "error": NO_CLASS}).text


@on_both("each reads the class of an error out of JSON in its own way")
def test_blanks_at_the_edge_of_a_class_are_part_of_it(broken: Duly, local: TestClient) -> None:
    odd = [" Odd ", "Odd\u2028"]

    def damage(connection: Connection) -> None:
        rows = connection.execute(jobs_done.select().with_only_columns(jobs_done.c.id).order_by(jobs_done.c.id.desc()).limit(2))  # fmt: skip
        for ident, error in zip(rows.scalars().all(), odd, strict=True):
            connection.execute(jobs_done.update().where(jobs_done.c.id == ident).values(error={"type": error}))

    broken.db.write(damage)
    cells = re.findall(r'<a href="(/jobs\?status=failed[^"]*Odd[^"]*since=1h)"', local.get("/failures").text)
    assert len(cells) == 2
    for to in cells:
        assert "1 fit" in local.get(unescape(to)).text, to


def test_what_is_no_json_stands_under_no_class(broken: Duly, local: TestClient) -> None:
    # on SQLite: PostgreSQL takes nothing else than JSON
    broken.db.write(
        lambda c: c.execute(text("UPDATE jobs_done SET error = 'not JSON' WHERE id = (SELECT max(id) FROM jobs_done)"))
    )
    assert NO_CLASS in local.get("/failures").text


def test_a_tenant_counts_its_own_failures(broken: Duly, person: Callable[..., Person]) -> None:
    theirs = person("viewer", tenant="acme").get("/failures").text
    assert "OSError" in theirs
    assert "ValueError" not in theirs
    assert "No job has failed" in person("admin", tenant="other").get("/failures").text


def test_all_that_fit_an_error_can_be_replayed(broken: Duly, local: TestClient) -> None:
    asked = local.get("/jobs/act?event=replay&error=ValueError").text
    assert "Replay 2 jobs" in asked and "error ValueError" in asked
    wanted = JobFilter(error="ValueError", status=("failed",))
    assert len(broken.jobs.admin.matching(wanted, "replay")) == 2  # and no other is acted on
    assert broken.jobs.admin.matching(JobFilter(error="ValueError"), "cancel") == []


@on_both("each has a plan of its own")
def test_counting_reads_the_index_and_not_the_jobs(broken: Duly) -> None:
    """However many jobs there are: each class is a stretch of one index, and so are the jobs behind a number."""
    asked: list[tuple[str, object]] = []

    def plans(connection: object) -> str:
        engine = connection.engine  # type: ignore[attr-defined]
        note = lambda conn, cursor, statement, given, context, many: asked.append((statement, given))  # noqa: E731
        event.listen(engine, "before_cursor_execute", note)
        try:
            failures(connection, NOW, HOURS)  # type: ignore[arg-type]
        finally:
            event.remove(engine, "before_cursor_execute", note)
        if not broken.db.is_sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # type: ignore[attr-defined]
        explain = "EXPLAIN QUERY PLAN " if broken.db.is_sqlite else "EXPLAIN "
        rows = [row for one in asked for row in connection.exec_driver_sql(explain + one[0], one[1])]  # type: ignore[attr-defined]
        return "\n".join(str(row[-1]) for row in rows)

    said = broken.db.read(plans)
    assert 2 <= len(asked) <= 2 * CLASSES
    assert said.count("ix_jobs_done_failures") >= 4
    assert "Seq Scan" not in said and "SCAN jobs_done\n" not in said
