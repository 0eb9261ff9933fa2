"""A job's life as steps, and how values are shown; pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from duly.audit.read import Entry
from duly.jobs.job import Attempt, Job, Status
from duly.web.dashboard import words
from duly.web.dashboard.desk import local_path, query, read_flash
from duly.web.dashboard.rail import Step, steps

AT = datetime(2026, 3, 27, 9, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


JOB = Job(7, "default", "mail", "send", Status.QUEUED, created_at=AT, run_at=AT, attempts=0, max_attempts=4)


def names(job: Job, *attempts: Attempt, trail: tuple[Entry, ...] = (), now: float = 100) -> list[str]:
    return [step.name for step in steps(job, attempts, trail, after(now))]


def attempt(number: int, start: float, end: float, outcome: str = "failed") -> Attempt:
    return Attempt(7, number, "w", after(start), after(end), outcome, {"type": "OSError", "message": "away"})


def test_a_life_is_told_in_order_with_times_and_durations() -> None:
    job = replace(JOB, status=Status.SUCCEEDED, attempts=2, started_at=after(30), finished_at=after(33))
    found = steps(job, [attempt(1, 2, 5)], [], after(100))
    assert [(step.name, step.at) for step in found] == [
        ("Enqueued", AT), ("Attempt 1: failed", after(2)), ("Attempt 2: done", after(30)), ("Succeeded", after(33)),
    ]  # fmt: skip
    assert [step.took and step.took.total_seconds() for step in found] == [None, 3, 3, None]
    assert [step.after and step.after.total_seconds() for step in found] == [None, 2, 25, None]


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({}, "Waits to be claimed"),
        ({"due_at": after(200), "run_at": after(200)}, "Due"),
        ({"due_at": after(200), "next_retry_at": after(200), "attempts": 1}, "Attempt 2 is due"),
        ({"waits_for_children": True}, "Waits for its children"),
        ({"status": Status.RUNNING, "attempts": 1, "started_at": after(3)}, "Attempt 1: running"),
        ({"status": Status.FAILED, "attempts": 4, "finished_at": after(9)}, "Failed"),
        ({"status": Status.CANCELLED, "finished_at": after(9)}, "Cancelled"),
    ],
)
def test_the_rail_ends_with_how_it_stands(changes: dict[str, object], last: str) -> None:
    assert names(replace(JOB, **changes))[-1] == last  # type: ignore[arg-type]


def test_what_people_did_stands_between() -> None:
    replayed = Entry(1, after(20), "default", "user:ann", "info", "JOB_REPLAYED", "job", "7", {"reason": "again"})
    found = steps(JOB, [attempt(1, 2, 5)], [replayed], after(100))
    assert [step.name for step in found] == ["Enqueued", "Attempt 1: failed", "Replayed", "Waits to be claimed"]
    assert found[2].detail == "by user:ann: again"


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=6), st.integers(0, 1_000))
def test_steps_that_are_past_are_in_order_and_no_wait_is_negative(spans: list[tuple[int, int]], now: int) -> None:
    made = [attempt(n + 1, start, start + long) for n, (start, long) in enumerate(spans)]
    found: list[Step] = steps(JOB, made, [], after(now))
    moments = [step.at for step in found if step.at is not None]
    assert moments == sorted(moments)
    assert all(step.after is None or step.after > timedelta(0) for step in found)


@given(st.text())
def test_no_text_becomes_markup(text: str) -> None:  # B081
    for shown in (
        words.state(text),
        words.state("failed", said=text),
        words.when(None, text),
        words.sparkline([1], said=text),
    ):
        assert isinstance(shown, Markup)
        assert str(Markup.escape(text)) in shown or text in ("", "failed")


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_every_document_can_be_shown(value: object) -> None:
    assert isinstance(words.document(value), str)
    assert "\n" not in words.line(value)
    assert isinstance(words.problem_of(value), str)


@given(st.text())
def test_a_path_to_go_back_to_is_one_of_this_site(text: str) -> None:
    found = local_path(text)
    assert found.startswith("/")
    assert not found.startswith(("//", "/\\"))
    assert found.isprintable()


@given(st.text() | st.binary().map(lambda raw: raw.hex()))
def test_a_flash_that_somebody_made_up_is_not_read(text: str) -> None:
    found = read_flash(text)
    assert found is None or found[0] in ("good", "bad", "warn")


def test_addresses_leave_out_what_is_not_given() -> None:
    assert (
        query("/jobs", queue="a b", task=None, key="", status=["failed", "cancelled"])
        == "/jobs?queue=a+b&status=failed&status=cancelled"
    )


def test_numbers_and_spans_are_in_words() -> None:
    assert [words.span(one) for one in (0.004, 3.21, 59, 600, 7_300, 400_000)] == [
        "4 ms",
        "3.2 s",
        "59 s",
        "10 min",
        "2 h",
        "5 d",
    ]
    assert (words.count(1_234), words.count(10_000, 10_000)) == ("1,234", "10,000+")
    assert words.relative(after(-5), AT) == "5.0 s ago"
    assert words.relative(AT.replace(year=9_999), AT) == "when it is told"
    assert (words.plural(1, "job"), words.plural(2, "job")) == ("1 job", "2 jobs")
