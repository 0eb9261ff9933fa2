"""Errors carry data, say what to do, and survive the way from one process to another."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest

from duly.kernel.errors import (
    Cancel,
    InvalidArgument,
    KeyConflict,
    NotFound,
    PermanentError,
    Retry,
    Snooze,
    UnknownTask,
    WrongState,
)

LATER = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    "error",
    [
        Snooze(after=5),
        Snooze("later", until=LATER),
        Retry(after=timedelta(minutes=2)),
        Retry("again"),
        Cancel("not wanted"),
        PermanentError("no such address"),
        InvalidArgument("key", "is empty.", "Name it."),
        KeyConflict("k", "q", 7),
        KeyConflict("k", "q", 7, replayed=3),
        NotFound("job", 7),
        WrongState("job 7", "running", "replay", ("failed",)),
        UnknownTask("x", ("y",)),
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_error_is_the_same_on_the_other_side_of_a_process(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_snooze_needs_exactly_one_end() -> None:
    for wrong in ({}, {"until": LATER, "after": 5}):
        with pytest.raises(InvalidArgument, match="exactly one"):
            Snooze(**wrong)  # type: ignore[arg-type]


def test_a_snooze_until_a_naive_instant_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refused:
        Snooze(until=datetime(2026, 3, 2))
    assert refused.value.field == "Snooze.until"


def test_durations_may_be_given_as_seconds_or_as_timedelta() -> None:
    assert Retry(after=timedelta(minutes=2)).after == Retry(after=120).after == 120
    assert Snooze(after=timedelta(minutes=2)).after == 120


def test_an_error_says_field_problem_and_remedy_in_one_sentence() -> None:
    assert str(InvalidArgument("key", "is empty.", "Name it.")) == "key: is empty. Name it."
    assert isinstance(InvalidArgument("key", "is empty."), ValueError)
