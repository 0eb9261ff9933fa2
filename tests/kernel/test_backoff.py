"""How long to wait before trying again: never an error, never negative, never above the cap."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duly.kernel.backoff import Backoff
from duly.kernel.errors import InvalidArgument

positive = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
backoffs = st.builds(
    Backoff, base=positive, factor=st.floats(1, allow_infinity=False, allow_nan=False), max=positive, jitter=positive
)
dice = st.floats(0, 1, exclude_max=True)


def test_the_default_waits_10_20_40_seconds() -> None:  # R003-5, T003-b
    assert [Backoff().delay(n) for n in (1, 2, 3)] == [10, 20, 40]


def test_the_default_is_capped_at_an_hour() -> None:  # T003-b
    assert Backoff().delay(9) == 2560
    assert Backoff().delay(10) == 3600


@given(backoff=backoffs, failures=st.integers(1, 2**31), u=dice)
@example(backoff=Backoff(base=5e-324, factor=1e300, max=1e308), failures=3, u=0.0)
@example(backoff=Backoff(base=10, factor=100, max=3600), failures=200, u=0.0)  # B031
def test_a_delay_is_a_finite_number_between_zero_and_the_cap(backoff: Backoff, failures: int, u: float) -> None:  # B031
    delay = backoff.delay(failures, u)
    assert math.isfinite(delay)
    assert 0 <= delay <= backoff.max


def test_ten_thousand_failures_give_a_valid_next_instant() -> None:  # B031
    backoff = Backoff(base=10, factor=2, max=3600)
    now = datetime(2026, 3, 2, tzinfo=UTC)
    for failures in range(1, 10_001):
        delay = backoff.delay(failures)
        assert now < now + timedelta(seconds=delay) <= now + timedelta(hours=1)
        assert delay == (10 * 2 ** (failures - 1) if failures < 10 else 3600)


@given(backoff=backoffs, failures=st.integers(1, 5000))
def test_a_later_failure_never_waits_less(backoff: Backoff, failures: int) -> None:
    assert backoff.delay(failures + 1) >= backoff.delay(failures) * (1 - 1e-9)


@given(u=dice, failures=st.integers(1, 8))
def test_jitter_adds_at_most_its_own_length(u: float, failures: int) -> None:  # R002-11, T002-n
    without, with_jitter = Backoff(), Backoff(jitter=5)
    assert without.delay(failures) <= with_jitter.delay(failures, u) <= without.delay(failures) + 5


def test_jitter_never_lifts_a_delay_above_the_cap() -> None:  # R002-11
    assert Backoff(base=10, max=12, jitter=100).delay(1, 0.99) == 12


def test_the_same_dice_give_the_same_delay() -> None:  # T002-n
    backoff = Backoff(base=60, jitter=30)
    assert backoff.delay(1, 0.5) == backoff.delay(1, 0.5) == 75


def test_a_base_of_zero_retries_at_once() -> None:
    assert Backoff(base=0).delay(7) == 0


@pytest.mark.parametrize("failures", [0, -1])
def test_there_is_no_delay_before_the_first_failure(failures: int) -> None:
    with pytest.raises(InvalidArgument, match="failures"):
        Backoff().delay(failures)


@pytest.mark.parametrize(
    ("field", "value"),
    [("base", -1), ("base", math.nan), ("factor", 0.5), ("factor", math.inf), ("max", -0.1), ("jitter", math.inf)],
)
def test_a_backoff_that_makes_no_sense_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Backoff(**{field: value})
    assert refused.value.field == f"Backoff.{field}"
