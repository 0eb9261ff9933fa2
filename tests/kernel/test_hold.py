"""A destination that is held: who probes, when, and how long it stays held (R004-19)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.backoff import Backoff
from duly.kernel.hold import SHORTEST, Hold, Pace, Step, held, step
from duly.kernel.retry_after import LONGEST
from duly.kernel.verdict import Kind

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
PACE = Pace(Backoff(base=10, factor=2, max=300))


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def again(before: Hold | None, now: datetime, **more: Any) -> Hold:
    return held(before, more.pop("kind", Kind.AWAY), "gone", now, PACE, **more)


def test_waits_grow_with_each_probe_that_fails_and_one_probes_at_a_time() -> None:
    hold, now, waits = None, NOON, list[float]()
    for _ in range(7):
        hold = again(hold, now)
        waits.append((hold.until - now).total_seconds())
        assert step(hold, hold.until - timedelta(seconds=1)) is Step.WAIT
        now = hold.until
        assert step(hold, now) is Step.PROBE
        hold = replace(hold, probing_until=now + timedelta(seconds=60))
        assert step(hold, now) is Step.WAIT
        assert step(hold, now + timedelta(seconds=60)) is Step.PROBE, "a probe that hangs keeps no other back"
    assert waits == [10, 20, 40, 80, 160, 300, 300]
    assert hold is not None
    assert (hold.since, hold.tries) == (NOON, 7)


def test_of_those_that_were_on_their_way_together_one_counts() -> None:
    first = again(None, NOON)
    assert again(first, at(3)) is first
    assert again(first, at(3), after=2.0) is first
    longer = again(first, at(3), after=60.0, kind=Kind.THROTTLED)
    assert (longer.until, longer.tries, longer.kind) == (at(63), 1, Kind.THROTTLED), "of two waits the longer counts"
    assert again(first, at(3), is_probe=True).tries == 2


def test_a_time_that_is_named_is_obeyed_and_none_is_named_by_a_zero() -> None:
    assert again(None, NOON, after=3.0).until == at(10)
    assert again(None, NOON, after=3.0, exact=True).until == at(3)
    assert again(None, NOON, after=0.2, exact=True).until == at(SHORTEST)
    assert again(None, NOON, until=at(-50), exact=True).until == at(SHORTEST)
    assert again(None, NOON, after=1e12).until == at(LONGEST)
    for nothing in (None, 0.0):
        second = again(again(None, NOON, after=nothing, exact=True), at(10), after=nothing, exact=True)
        assert second.until == at(30)


def test_what_named_its_end_needs_no_probe_and_what_a_person_opened_is_tried_at_once() -> None:
    assert step(None, NOON) is Step.GO
    assert step(Hold(NOON, at(5), kind=Kind.QUOTA), at(5)) is Step.GO
    assert step(Hold(NOON, at(5), kind=Kind.AWAY), at(1), opened=True) is Step.PROBE
    assert step(Hold(NOON, at(5), kind="refused"), at(5)) is Step.PROBE


def test_a_share_of_the_outage_bounds_its_waits() -> None:
    pace = Pace(Backoff(base=1, factor=2, max=300), 0.25)
    assert [pace.wait(9, lasted) for lasted in (0, 60, 5000)] == [1, 15, 256]
    assert pace.wait(99, 5000) == 300


@given(st.integers(-10_000, 10_000), st.integers(0, 40), st.none() | st.floats(0, 1e9), st.booleans())
def test_a_clock_that_was_set_back_keeps_nobody_waiting_for_longer_than_was_meant(
    back: int, tries: int, after: float | None, exact: bool
) -> None:
    before = replace(again(None, NOON), tries=tries)
    now = at(back)
    hold = again(before, now, after=after, exact=exact)
    most = max(300.0, min(after or 0, LONGEST))
    assert timedelta() < hold.until - now <= timedelta(seconds=most)
    assert hold.since <= now
    if now < before.since:
        assert step(before, now) is Step.PROBE


@pytest.mark.parametrize("kind", [Kind.AWAY, Kind.THROTTLED, Kind.QUOTA])
def test_another_kind_of_refusal_in_between_does_not_begin_the_waits_again(kind: Kind) -> None:
    hold = again(again(None, NOON), at(10), kind=kind)
    assert (hold.tries, hold.until, hold.since) == (2, at(30), NOON)
