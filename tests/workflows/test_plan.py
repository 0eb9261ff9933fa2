"""What comes of what a workflow asked for: pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import Backoff
from duly.kernel.errors import InvalidArgument
from duly.workflows.plan import (
    Attempts,
    Child,
    Facts,
    again,
    check_same,
    failed_attempt,
    look,
    signal_name,
    state,
    still_waits,
    wakes,
)
from duly.workflows.step import FINAL, LIFECYCLE, Changed, Kind, Signal, Status, Step

NOW = datetime(2026, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
moments = st.integers(-100, 100).map(lambda n: NOW + n * SECOND)
names = st.sampled_from(["a", "b"])


def step(position: int, kind: Kind, name: str = "a", **more: Any) -> Step:
    return Step(1, position, kind, name, Status.WAITING, **more)


@st.composite
def waiting(draw: st.DrawFn) -> list[Step]:
    steps = []
    for position in range(1, draw(st.integers(0, 6)) + 1):
        kind = draw(st.sampled_from([Kind.EVENT, Kind.APPROVAL, Kind.SLEEP, Kind.TASK]))
        due = draw(moments) if kind is Kind.SLEEP else draw(st.none() | moments) if kind is not Kind.TASK else None
        steps.append(
            step(position, kind, draw(names), due_at=due, child_id=position * 10 if kind is Kind.TASK else None)
        )
    return steps


@st.composite
def sent(draw: st.DrawFn) -> list[Signal]:
    instants = sorted(draw(st.lists(moments, max_size=8)))
    return [
        Signal(
            n + 1,
            1,
            signal_name(draw(st.sampled_from([Kind.EVENT, Kind.APPROVAL])), draw(names), draw(st.integers(1, 6))),
            n,
            at,
            "x",
        )
        for n, at in enumerate(instants)
    ]


children = st.dictionaries(
    st.integers(1, 6).map(lambda n: n * 10),
    st.sampled_from(["queued", "running", "succeeded", "failed", "cancelled", None]).map(
        lambda s: Child(s, 1, {"type": "E", "message": "m"})
    ),
)


@given(waiting(), sent(), children)
def test_what_waits_is_ended_by_what_it_waits_for_and_by_nothing_else(
    steps: list[Step], signals: list[Signal], kids: dict[int, Child]
) -> None:
    ended, taken = look(steps, Facts(NOW, signals, kids))
    assert all(e.status in FINAL for e in ended)
    by_position = {e.position: e for e in ended}
    # a signal is taken once, by one of its name, and was sent in time
    assert max(Counter(signal for signal, _ in taken).values(), default=1) == 1
    sent_by_id = {s.id: s for s in signals}
    for ident, position in taken:
        asked = steps[position - 1]
        assert sent_by_id[ident].name == signal_name(asked.kind, asked.name, asked.position)
        assert asked.due_at is None or sent_by_id[ident].sent_at <= asked.due_at
        assert (by_position[position].status, by_position[position].output) == (Status.DONE, sent_by_id[ident].payload)
    used = {ident for ident, _ in taken}
    for asked in steps:
        found = by_position.get(asked.position)
        if asked.kind is Kind.SLEEP:
            assert asked.due_at is not None
            assert (found is not None) == (asked.due_at <= NOW)
        elif asked.kind is Kind.TASK:
            kid = kids.get(asked.position * 10)
            assert (found is not None) == (kid is not None and kid.status not in ("queued", "running"))
            if found is not None and kid is not None:
                assert (found.status is Status.DONE) == (kid.status == "succeeded")
        else:
            wanted = [
                s for s in signals if s.name == signal_name(asked.kind, asked.name, asked.position) and s.id not in used
            ]
            if found is None:  # nothing of its name is left over that came in time, and its time is not over
                assert not [s for s in wanted if asked.due_at is None or s.sent_at <= asked.due_at]
                assert asked.due_at is None or asked.due_at > NOW
            elif found.status is Status.TIMED_OUT:
                assert asked.due_at is not None
                assert asked.due_at <= NOW
    assert wakes(steps) == min((s.due_at for s in steps if s.due_at is not None), default=None)


@given(st.integers(1, 6), st.lists(st.sampled_from(["fail", "final", "later"]), max_size=12), st.floats(0, 0.999))
def test_a_step_is_tried_as_often_as_it_may_be_and_waits_in_between(most: int, ends: list[str], u: float) -> None:
    attempts, now = Attempts(most, Backoff(base=10, factor=2, max=3600)), NOW
    made = Step(1, 1, Kind.STEP, "a")
    counted = 0
    for end in ends:
        before = made
        made = failed_attempt(
            made,
            {"type": "E"},
            attempts,
            now,
            final=end == "final",
            counts=end != "later",
            after=5.0 if end == "later" else None,
            u=u,
        )
        counted += end != "later"
        assert LIFECYCLE.allows(before.status, "fail" if made.status is Status.FAILED else "wait")
        assert made.attempts == counted
        if made.status is Status.FAILED:
            assert end == "final" or counted == most
            assert made.due_at is None
            return
        assert counted < most
        assert made.due_at is not None
        assert made.due_at - now == timedelta(seconds=5 if end == "later" else min(3600, 10 * 2 ** (counted - 1)))
        now = made.due_at


def test_the_code_is_told_where_it_differs_from_the_record() -> None:
    check_same(step(3, Kind.STEP, "charge"), Kind.STEP, "charge")
    for kind, name in ((Kind.STEP, "ship"), (Kind.TASK, "charge")):
        with pytest.raises(
            Changed, match="step 3 of this run is on record as step 'charge', and the code now asks for"
        ):
            check_same(step(3, Kind.STEP, "charge"), kind, name)


def done(position: int, status: Status = Status.DONE, started: int = 0, finished: int = 0) -> Step:
    return replace(
        step(position, Kind.STEP, f"s{position}"),
        status=status,
        started_at=NOW + started * SECOND,
        finished_at=NOW + finished * SECOND,
    )


def test_what_has_ended_the_run_is_done_anew_and_nothing_else_is_forgotten() -> None:
    caught = done(1, Status.FAILED, 0, 1)
    together = [done(3, Status.FAILED, 5, 6), done(4, Status.DONE, 5, 7), done(5, Status.FAILED, 5, 8)]
    history = {s.position: s for s in [caught, done(2, started=2, finished=3), *together]}
    assert again(history, None, [3, 5]) == [3, 5]
    assert again(history, None) == []
    assert again(history, 2, [3, 5]) == [2, 3, 4, 5]
    assert again({1: done(1), 2: step(2, Kind.SLEEP)}, None) == []


def test_what_was_undone_is_done_again_and_cannot_be_left_standing() -> None:
    history = {
        1: done(1),
        2: done(2),
        3: done(3),
        4: done(4, Status.FAILED),
        -2: replace(done(-2), kind=Kind.UNDO),
        -3: replace(done(-3), kind=Kind.UNDO),
    }
    assert again(history, None) == [2, 3, 4]
    assert again(history, 1) == [1, 2, 3, 4]
    with pytest.raises(InvalidArgument, match=r"step 2 \(s2\) before it was undone"):
        again(history, 4)


def test_what_could_not_be_undone_is_done_again_only_where_that_is_said() -> None:
    undo = {p: replace(done(-p, status), kind=Kind.UNDO) for p, status in ((1, Status.DONE), (2, Status.FAILED))}
    history = {1: done(1), 2: done(2), 3: done(3, Status.FAILED), **{-p: s for p, s in undo.items()}}
    with pytest.raises(InvalidArgument, match=r"step 1 \(s1\) was undone and step 2 \(s2\) behind it was not"):
        again(history, None, [3])
    assert again(history, 1, [3]) == [1, 2, 3]
    del history[-1]
    assert again(history, None, [3]) == [3]


@pytest.mark.parametrize(
    ("status", "kinds", "expected"),
    [
        ("running", [], "running"), ("queued", [], "queued"), ("queued", ["sleep"], "sleeping"), ("queued", ["sleep", "event"], "waiting"),
        ("queued", ["task"], "waiting"), ("queued", ["event", "approval"], "AWAITING_HUMAN"), ("queued", ["step"], "retrying"),
        ("queued", ["undo"], "retrying"), ("succeeded", ["approval"], "succeeded"),
    ],
)  # fmt: skip
def test_a_state_is_told_from_the_job_and_from_what_is_waited_for(status: str, kinds: list[str], expected: str) -> None:
    assert state(status, [{"kind": kind} for kind in kinds]) == expected


def test_a_run_waits_for_what_it_noted_as_long_as_it_is_due_when_that_says() -> None:
    until, never = NOW + 60 * SECOND, datetime(9999, 12, 31, tzinfo=UTC)
    sleep, asked = {"kind": "sleep", "until": until.isoformat()}, {"kind": "approval", "until": None}
    assert still_waits([asked], never, never)
    assert still_waits([sleep, asked], until, never)
    assert not still_waits([sleep, asked], NOW, never)  # another attempt
    assert not still_waits([asked], until, never)
    assert not still_waits([asked], None, never)  # news have come
    assert not still_waits([], never, never)
