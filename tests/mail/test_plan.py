"""Who is sent to, and how a run ends (pure; T003-h)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.mail.plan import RELEASED, Delivery, State, conclude, start

NOW = datetime(2026, 6, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def known(**states: State) -> dict[str, Delivery]:
    return {name: Delivery(state, "x", NOW - HOUR, provider="p") for name, state in states.items()}


def test_who_has_it_or_was_refused_is_not_sent_to_again() -> None:
    plan = start(
        ["a", "b", "c", "d"], known(a=State.ACCEPTED, b=State.REFUSED, c=State.SUPPRESSED), frozenset(),
        provider="p", remembers=0, unknown="resend", now=NOW,
    )  # fmt: skip
    assert plan == (plan.__class__(("d",), (), ()))


@pytest.mark.parametrize(
    ("remembers", "policy", "sent"),
    [(0, "hold", False), (0, "resend", True), (3601, "hold", True), (3600, "hold", False), (3600, "resend", True)],
)
def test_who_may_have_it_is_sent_to_again_only_where_that_is_safe_or_wanted(
    remembers: float, policy: str, sent: bool
) -> None:
    plan = start(["a"], known(a=State.UNKNOWN), frozenset(), provider="p", remembers=remembers, unknown=policy, now=NOW)
    assert (plan.pending, plan.held) == ((("a",), ()) if sent else ((), ("a",)))


def test_a_suppression_does_not_change_a_message_that_was_handed_over() -> None:
    plan = start(
        ["a", "b"], known(a=State.UNKNOWN), frozenset("ab"), provider="p", remembers=1e9, unknown="hold", now=NOW
    )
    assert (plan.pending, plan.suppressed) == (("a",), ("b",))


@pytest.mark.parametrize("state", [State.REFUSED, State.SUPPRESSED])
def test_a_replay_looks_anew_at_who_was_refused_or_left_out_before_it(state: State) -> None:
    # T003-d; a retry does not
    was = {n: replace(d, updated_at=NOW - HOUR) for n, d in known(a=state, b=State.ACCEPTED, c=State.UNKNOWN).items()}
    for since, pending in ((NOW - 2 * HOUR, ()), (NOW - HOUR / 2, ("a",)), (NOW, ("a",))):
        plan = start("abc", was, frozenset(), provider="p", remembers=0, unknown="hold", now=NOW, since=since)
        assert (plan.pending, plan.held) == (pending, ("c",))
    plan = start("abc", was, frozenset("abc"), provider="p", remembers=0, unknown="hold", now=NOW, since=NOW)
    assert (plan.pending, plan.suppressed, plan.held) == ((), ("a",), ("c",))


def test_whom_a_person_has_released_is_sent_to_as_if_never_asked() -> None:
    was = {"a": Delivery(State.UNKNOWN, RELEASED, NOW - HOUR, provider="p")}
    plan = start(["a"], was, frozenset(), provider="p", remembers=0, unknown="hold", now=NOW)
    assert (plan.pending, was["a"].doubtful()) == (("a",), False)


@pytest.mark.parametrize(
    ("states", "kind"),
    [
        ([State.ACCEPTED], "sent"),
        ([State.ACCEPTED, State.REFUSED, State.SUPPRESSED], "sent"),
        ([State.SUPPRESSED, State.SUPPRESSED], "suppressed"),
        ([State.REFUSED, State.SUPPRESSED], "refused"),
        ([State.ACCEPTED, None], "retry"),
        ([State.ACCEPTED, State.UNKNOWN], "unknown"),
        ([State.UNKNOWN, None], "retry"),
    ],
)
def test_how_a_run_ends(states: list[State | None], kind: str) -> None:
    assert conclude(states).kind == kind


_STATE = st.sampled_from(list(State))


@settings(max_examples=50)
@given(
    st.dictionaries(st.integers(0, 9).map(str), _STATE), st.sets(st.integers(0, 9).map(str)), st.sampled_from([0.0, 1e9]),
    st.sampled_from(["hold", "resend"]),
)  # fmt: skip
def test_everybody_is_in_one_place_at_most_and_nobody_who_has_it_is_pending(
    rows: dict[str, State], suppressed: set[str], remembers: float, policy: str
) -> None:
    everybody = [str(n) for n in range(10)]
    plan = start(
        everybody, known(**rows), frozenset(suppressed), provider="p", remembers=remembers, unknown=policy, now=NOW
    )
    placed = [*plan.pending, *plan.suppressed, *plan.held]
    assert len(placed) == len(set(placed))
    assert not {f for f, s in rows.items() if s is not State.UNKNOWN} & set(placed)
    assert {f for f, s in rows.items() if s is State.UNKNOWN} <= set(plan.pending) | set(plan.held)
    assert set(everybody) - set(rows) <= set(plan.pending) | set(plan.suppressed)


@settings(max_examples=50)
@given(st.lists(st.sampled_from([*State, None])), st.integers(0, 30))
def test_a_run_that_got_on_is_no_failure(states: list[State | None], tried: int) -> None:
    # T003-b
    ending = conclude(states, tried)
    assert (ending.kind == "on") == (0 < states.count(None) < tried)
    assert (ending.kind == "retry") == (None in states and states.count(None) >= tried)
