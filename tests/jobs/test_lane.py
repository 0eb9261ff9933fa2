"""How much a worker claims: never more than can start soon."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duly.jobs.claim import AHEAD, HORIZON, Lane

lanes = st.builds(
    Lane,
    name=st.just("q"),
    concurrency=st.integers(1, 100),
    batch=st.integers(1, 500),
    running=st.integers(0, 100),
    outstanding=st.integers(0, 3000),
    pace=st.floats(0, 100_000),
    governed=st.booleans(),
)


def test_an_idle_lane_asks_for_its_free_slots() -> None:
    lane = Lane("q", concurrency=10, batch=500)
    assert lane.room() == 10
    lane.running = 4
    assert lane.room() == 6
    lane.running = 10
    assert lane.room() == 0


@given(lanes)
def test_a_claim_is_never_larger_than_a_batch_nor_than_what_can_start_soon(lane: Lane) -> None:
    room = lane.room()
    soon = max(0, lane.concurrency - lane.running) + max(1, int(lane.pace * HORIZON))
    assert 0 <= room <= min(lane.batch, soon)


@given(lanes)
def test_a_limited_lane_never_asks_for_more_than_its_free_slots(lane: Lane) -> None:  # B036
    lane.tight = True
    assert lane.room() <= max(0, lane.concurrency - lane.running)


@given(lanes)
def test_a_lane_with_free_slots_and_nothing_unsettled_always_asks(lane: Lane) -> None:
    lane.outstanding = 0
    if lane.running < lane.concurrency:
        assert lane.room() > 0


def test_a_line_of_unsettled_jobs_stops_the_claims() -> None:
    lane = Lane("q", concurrency=10, batch=100, outstanding=10 + AHEAD * 100)
    assert lane.room() == 0


def test_a_lane_that_works_off_short_jobs_is_given_more_than_its_slots() -> None:
    lane = Lane("q", concurrency=10, batch=500)
    for second in range(1, 20):
        lane.ended += 1000
        lane.look(float(second))
    assert lane.room() > 50


def test_a_lane_whose_jobs_become_long_stops_holding_work_back() -> None:
    lane = Lane("q", concurrency=10, batch=500, pace=5000.0, running=10)
    for tick in range(1, 40):
        lane.look(tick * 0.1)
    assert lane.room() == 0


def test_a_long_job_that_ends_a_moment_after_the_last_look_is_no_pace() -> None:
    """Else the next long job would be fetched and held behind the one that runs, where no other worker can take it."""
    lane = Lane("q", concurrency=1, batch=500)
    lane.look(1.0)
    lane.ended, lane.running = 1, 1
    lane.look(1.03)
    assert lane.room() == 0
    lane.look(1.2)
    assert lane.room() == 0
