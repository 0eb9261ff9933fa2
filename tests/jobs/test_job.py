"""What a job can answer about itself, and every move it can make."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.jobs.job import ENDED, LIFECYCLE, LIVE, Job, Status
from duly.kernel.errors import WrongState

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
SOON = NOW + timedelta(seconds=1)


def job(status: Status = Status.QUEUED, **facts: Any) -> Job:
    return Job(id=1, tenant="t", queue="q", task="x", status=status, **facts)


def test_there_are_exactly_five_states_and_three_are_final() -> None:  # R003-1, T003-e
    assert {str(s) for s in LIFECYCLE.states} == {"queued", "running", "succeeded", "failed", "cancelled"}
    assert LIFECYCLE.final == set(ENDED)
    assert set(LIVE) | set(ENDED) == set(Status)


@pytest.mark.parametrize(
    ("source", "event"),
    [(Status.SUCCEEDED, "retry"), (Status.FAILED, "succeed"), (Status.CANCELLED, "succeed"), (Status.RUNNING, "claim"), (Status.QUEUED, "retry"),
     (Status.RUNNING, "replay"), (Status.QUEUED, "replay"), (Status.FAILED, "cancel"), (Status.SUCCEEDED, "cancel")],
)  # fmt: skip
def test_no_other_move_is_allowed(source: Status, event: str) -> None:  # R003-1
    with pytest.raises(WrongState):
        LIFECYCLE.target(source, event)


@pytest.mark.parametrize(
    ("status", "attempts", "retries"),
    [(Status.QUEUED, 0, 0), (Status.RUNNING, 1, 0), (Status.QUEUED, 1, 1), (Status.RUNNING, 2, 1), (Status.QUEUED, 3, 3),
     (Status.RUNNING, 4, 3), (Status.FAILED, 4, 3), (Status.SUCCEEDED, 1, 0), (Status.CANCELLED, 0, 0)],
)  # fmt: skip
def test_retries_are_attempts_beyond_the_first_and_count_when_they_are_decided(
    status: Status, attempts: int, retries: int
) -> None:  # R003-5, X2
    assert job(status, attempts=attempts).retry_count == retries


def test_a_parent_that_waits_for_its_children_has_not_been_retried() -> None:  # X2
    assert job(attempts=1, waits_for_children=True).retry_count == 0


def test_the_specifications_words_say_the_same() -> None:  # R003-6, X2
    j = job(max_attempts=4)
    assert (j.job_type, j.tenant_id, j.max_retries) == ("x", "t", 3)


def test_a_job_is_due_from_its_instant_on() -> None:  # R003-4
    assert job().is_due(NOW)
    assert job(due_at=NOW).is_due(NOW)
    assert not job(due_at=SOON).is_due(NOW)
    assert not job(Status.RUNNING).is_due(NOW)


@pytest.mark.parametrize(
    ("facts", "label"),
    [
        ({}, "queued"),
        ({"due_at": SOON}, "scheduled"),
        ({"due_at": SOON, "attempts": 1, "next_retry_at": SOON}, "retrying"),
        ({"due_at": SOON, "attempts": 1}, "snoozed"),
        ({"waits_for_children": True, "due_at": SOON}, "waiting for children"),
        ({"status": Status.RUNNING}, "running"),
        ({"status": Status.RUNNING, "cancel_requested": True}, "cancelling"),
        ({"status": Status.FAILED}, "failed"),
    ],
)
def test_a_job_has_a_word_for_people(facts: dict[str, Any], label: str) -> None:
    assert job(**facts).label(NOW) == label


def test_attempts_left_are_never_negative() -> None:
    assert job(attempts=1, max_attempts=4).attempts_left == 3
    assert job(attempts=5, max_attempts=4).attempts_left == 0


def test_the_specifications_table_shows_every_job_under_its_own_names() -> None:  # R003-10, X1
    job = Job(
        id=7,
        tenant="acme",
        queue="mail",
        task="EMAIL_SEND",
        status=Status.QUEUED,
        input=None,
        attempts=2,
        max_attempts=4,
    )
    record = job.record()
    assert (record["tenant_id"], record["job_type"], record["status"]) == ("acme", "EMAIL_SEND", "queued")
    assert (record["input"], record["output"], record["error"], record["cost_cents"]) == ({}, {}, {}, 0)
    assert (record["retry_count"], record["max_retries"]) == (2, 3)  # X2
    assert list(record)[-4:] == ["next_retry_at", "started_at", "finished_at", "created_at"]
