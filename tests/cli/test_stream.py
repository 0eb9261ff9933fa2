"""What a person at a terminal sees of a worker."""

from __future__ import annotations

import io
from typing import Any

import pytest

from duly.cli import stream as module
from duly.cli.stream import LINES, Stream, summary
from duly.jobs.worker import Tally
from duly.kernel.events import Event


class Screen:
    """A stream on a text, and the events it passed on to the log."""

    def __init__(self) -> None:
        self.out, self.passed = io.StringIO(), list[Event]()
        self.stream = Stream(self.passed.append, self.out, 25.0)

    def tell(self, name: str, **facts: Any) -> None:
        self.stream(Event(name, "info", facts))

    @property
    def lines(self) -> list[str]:
        return [line.split("  ", 1)[1] for line in self.out.getvalue().splitlines()]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)
    return Screen()


def jobs(n: int, event: str = "succeed") -> list[tuple[str, str, str, float]]:
    return [("mail", "SEND", event, 0.012)] * n


def test_a_few_jobs_are_told_one_by_one(screen: Screen) -> None:
    screen.tell("jobs_settled", jobs=[*jobs(1), ("default", "A_LONG_NAME", "snooze", 2.0)])
    assert [line.split() for line in screen.lines] == [
        ["done", "SEND", "mail", "12", "ms"], ["snoozed", "A_LONG_NAME", "default", "2.0", "s"],
    ]  # fmt: skip


def test_of_a_flood_the_first_are_told_and_the_rest_is_counted(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    screen.tell("jobs_settled", jobs=jobs(500))
    screen.tell("jobs_settled", jobs=jobs(700))
    assert len(screen.lines) == LINES
    monkeypatch.setattr(module.time, "monotonic", lambda: 101.0)
    screen.tell("jobs_settled", jobs=jobs(1))
    assert [line.split() for line in screen.lines[LINES:]] == [
        ["and", "more", f"{1200 - LINES:,}", "done"],
        ["done", "SEND", "mail", "12", "ms"],
    ]


def test_an_occurrence_that_fired_is_told_with_its_job_and_its_planned_instant(screen: Screen) -> None:
    screen.tell("schedule_fired", schedule="nightly", due_at="2026-03-29T01:00:00+00:00", job=7)
    assert [line.split() for line in screen.lines] == [
        ["fired", "nightly", "job", "7,", "planned", "for", "2026-03-29", "01:00:00Z"]
    ]
    screen.tell("schedule_missed", schedule="nightly", count=2)
    assert [event.name for event in screen.passed] == ["schedule_missed"]


def test_the_rest_is_told_at_the_end(screen: Screen) -> None:
    screen.tell("jobs_settled", jobs=jobs(LINES + 2))
    screen.stream.close()
    screen.stream.close()
    assert [line.split() for line in screen.lines[LINES:]] == [["and", "more", "2", "done"]]


def test_a_failed_job_is_told_once_with_its_number_and_reason(screen: Screen) -> None:
    screen.tell("job_failed", job=7, task="SEND", queue="mail", attempt=4, max_attempts=4, error="Timeout")
    screen.tell("job_retry", job=8, task="SEND", queue="mail", attempt=1, max_attempts=4, error="OSError", wait=20.0)
    screen.tell("jobs_settled", jobs=[*jobs(1, "fail"), *jobs(1, "retry"), *jobs(1, "cancel")])
    assert [" ".join(line.split()) for line in screen.lines] == [
        "failed SEND mail job 7, attempt 4 of 4: Timeout",
        "retry SEND mail job 8, attempt 1 of 4: OSError, again in 20 s",
    ]


def test_both_signals_are_told_in_words(screen: Screen) -> None:
    screen.tell("signal", signal="SIGINT", effect="drain, then stop")
    screen.tell("signal", signal="SIGINT", effect="stop now")
    first, second = screen.lines
    assert "Running jobs may finish (up to 25 s). Once more stops at once." in first
    assert "now. What still runs is given back" in second


def test_everything_else_goes_to_the_log(screen: Screen) -> None:
    for name in ("worker_started", "lease_lost", "loop_failed", "worker_stopped", "jobs_claimed"):
        screen.tell(name)
    assert [e.name for e in screen.passed] == ["lease_lost", "loop_failed", "jobs_claimed"]
    assert screen.lines == []


def test_a_name_cannot_steer_the_terminal(screen: Screen) -> None:
    screen.tell("jobs_settled", jobs=[("mail", "evil\x1b[2J\n", "succeed", 0.1)])
    assert "evil\\x1b[2J\\n" in screen.out.getvalue()


def test_the_summary_says_what_was_done() -> None:
    assert summary(Tally(), 0.05) == "No job was run in 50 ms."
    assert summary(Tally(claimed=3, succeeded=2, failed=1), 1.5) == "2 succeeded, 1 failed in 1.5 s."
    many = summary(Tally(succeeded=12_000, retried=3, released=2, lost=1), 4.0)
    assert (
        many
        == "12,000 succeeded, 3 to be tried again, 2 given back, 1 lost to another worker in 4.0 s (3,000 a second)."
    )
