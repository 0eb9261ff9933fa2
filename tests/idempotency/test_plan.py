"""Who may run the body: the pure decision, and a machine of owners, deaths and clocks held against what must hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from duly import InvalidArgument
from duly.idempotency import MemoryStore
from duly.idempotency.plan import Admit, Busy, Done, Mismatch, come_again, decide
from duly.idempotency.reservation import LIFECYCLE, Ask, Reservation, State, Terms
from duly.idempotency.store import Holding
from duly.testing import ManualClock

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
TERMS = Terms(lock=timedelta(seconds=60), heartbeat=timedelta(seconds=10), keep=timedelta(hours=24))
SECOND = timedelta(seconds=1)


def ask(owner: str = "job:1", fingerprint: str = "same", terms: Terms = TERMS) -> Ask:
    return Ask("default", "k", "t", owner, fingerprint, terms)


def admitted(found: Reservation | None, asked: Ask, now: datetime) -> Reservation:
    decision = decide(found, asked, now)
    assert isinstance(decision, Admit)
    return decision.reservation


def test_the_first_is_admitted_and_keeps_others_out_until_its_lock_lapses() -> None:  # R004-9, T004-c
    first = admitted(None, ask(), NOON)
    assert first.state is State.IN_PROGRESS
    assert first.locked_until == NOON + timedelta(seconds=60)
    assert decide(first, ask("job:2"), NOON) == Busy(first, first.locked_until)
    assert isinstance(decide(first, ask("job:2"), first.locked_until - timedelta(microseconds=1)), Busy)
    second = decide(first, ask("job:2"), first.locked_until)
    assert isinstance(second, Admit)
    assert second.took_over
    assert second.reservation.token > first.token
    assert second.reservation.attempts == 2


def test_a_redelivery_of_the_same_owner_takes_over_after_three_missed_heartbeats() -> None:  # T004-d
    first = admitted(None, ask(), NOON)
    again = decide(first, ask(), NOON + timedelta(seconds=29))
    assert again == Busy(first, NOON + timedelta(seconds=30))
    assert isinstance(decide(first, ask(), NOON + timedelta(seconds=30)), Admit)


def test_a_redelivery_while_the_first_delivery_lives_is_kept_out() -> None:  # T004-d, a short visibility timeout
    now, held = NOON, admitted(None, ask(), NOON)
    for _ in range(20):
        now += timedelta(seconds=10)
        held = held.renewed(TERMS, now)
        assert isinstance(decide(held, ask(), now + timedelta(seconds=9)), Busy)


def test_a_failure_is_tried_again_at_once_and_a_success_is_given_back() -> None:  # R004-13, B052
    first = admitted(None, ask(), NOON)
    failed = first.failed(TERMS, NOON + SECOND, '{"type":"ValueError"}')
    assert isinstance(decide(failed, ask("job:2"), NOON + SECOND), Admit)
    done = first.succeeded(TERMS, NOON + SECOND, "7")
    assert decide(done, ask("job:2"), NOON + SECOND) == Done(done)
    assert isinstance(decide(done, ask("job:2"), done.kept_until - timedelta(microseconds=1)), Done)
    assert isinstance(decide(done, ask("job:2"), done.kept_until), Admit)


def test_a_success_is_remembered_for_a_day_however_short_the_lock_is() -> None:  # T004-e
    done = admitted(None, ask(), NOON).succeeded(Terms(lock=30 * SECOND, heartbeat=SECOND), NOON, None)
    assert done.kept_until == NOON + timedelta(hours=24)


def test_a_failed_key_takes_corrected_arguments(  # R004-13
) -> None:
    failed = admitted(None, ask(), NOON).failed(TERMS, NOON, None)
    decision = decide(failed, ask("job:2", "corrected"), NOON + SECOND)
    assert isinstance(decision, Admit)
    assert (decision.reservation.fingerprint, decision.took_over) == ("corrected", False)


@pytest.mark.parametrize("state", [State.IN_PROGRESS, State.SUCCEEDED])
def test_other_arguments_under_one_key_are_an_error_unless_it_failed(state: State) -> None:  # B053
    found = admitted(None, ask(), NOON)
    if state is State.SUCCEEDED:
        found = found.succeeded(TERMS, NOON, None)
    assert decide(found, ask("job:2", "other"), NOON + SECOND) == Mismatch(found)
    assert decide(found, ask("job:1", "other"), NOON + SECOND) == Mismatch(found)


def test_a_token_rises_even_where_the_clock_went_back() -> None:
    first = admitted(None, ask(), NOON)
    later = admitted(first.failed(TERMS, NOON, None), ask(), NOON - timedelta(days=1))
    assert later.token == first.token + 1


def test_a_token_rises_over_what_was_forgotten() -> None:
    first = admitted(None, ask(), NOON)
    assert admitted(None, ask(), NOON + timedelta(microseconds=1)).token > first.token


def test_states_move_one_way() -> None:
    assert LIFECYCLE.sources("succeed") == LIFECYCLE.sources("fail") == {"in_progress"}
    assert not LIFECYCLE.allows(State.SUCCEEDED, "fail")


@pytest.mark.parametrize(
    ("field", "value"),
    [("lock", timedelta(0)), ("heartbeat", -SECOND), ("keep", 3600), ("lock", 20 * SECOND), ("keep", timedelta.max)],
)
def test_terms_that_contradict_each_other_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Terms(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


class Owners(RuleBasedStateMachine):
    """Three owners on one key, any of which may fall silent, and a clock that moves between their steps."""

    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock(NOON)
        self.store = MemoryStore(self.clock)
        self.holdings: list[tuple[str, Holding, datetime]] = []
        self.token, self.released = 0, False
        self.done: tuple[str, datetime] | None = None
        self.n = 0

    def _current(self) -> tuple[str, Holding, datetime] | None:
        return self.holdings[-1] if self.holdings else None

    @rule(owner=st.sampled_from(["a", "b", "c"]))
    def reserve(self, owner: str) -> None:
        now, current = self.clock.now(), self._current()
        decision = self.store.reserve(ask(owner))
        if self.done is not None and now < self.done[1]:
            assert isinstance(decision, Done)
            assert decision.reservation.result == self.done[0]
            return
        if current is not None and current[1].held:
            silent = now - current[2]
            free = silent >= (TERMS.missed if current[0] == owner else TERMS.lock)
            assert isinstance(decision, Admit) == free
            if not free:
                assert isinstance(decision, Busy)
                assert decision.until > now
                return
        assert isinstance(decision, Admit)
        # what its holder let go of is as new: nobody is left whom a token would have to keep out
        assert self.released or decision.reservation.token > self.token
        self.token, self.done, self.released = decision.reservation.token, None, False
        self.holdings.append((owner, Holding(self.store, decision.reservation, TERMS), now))

    @precondition(lambda self: self.holdings)
    @rule(data=st.data(), what=st.sampled_from(["renew", "succeed", "fail", "release"]))
    def write(self, data: st.DataObject, what: str) -> None:
        at = data.draw(st.integers(0, len(self.holdings) - 1))
        owner, holding, seen = self.holdings[at]
        if self.clock.now() - seen >= TERMS.lock + TERMS.keep:
            return  # silent for so long that it may have been forgotten
        was_held, newest = holding.held, at == len(self.holdings) - 1
        self.n += 1
        if what == "renew":
            wrote = holding.renew()
        elif what == "release":
            wrote = holding.release()
        else:
            wrote = (holding.succeed if what == "succeed" else holding.fail)(str(self.n))
        assert wrote == (was_held and newest), "only the newest holder may write, and once it has ended nobody"
        if not wrote:
            return
        if what == "renew":
            self.holdings[at] = (owner, holding, self.clock.now())
        self.released = what == "release"
        if what == "succeed":
            self.done = (str(self.n), self.clock.now() + TERMS.keep)

    @rule(seconds=st.sampled_from([0.000001, 1, 9, 10, 29, 30, 31, 59, 60, 61, 3600, 86_399, 86_400, 200_000]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def prune(self) -> None:
        self.store.prune()


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_duplicate_asks_again_after_as_long_as_the_first_has_been_running() -> None:  # T004-d
    first = admitted(None, ask(), NOON)
    for ran, wait in ((0, 1), (0.5, 1), (3, 3), (9, 9), (40, 10), (3600, 10)):
        held = first.renewed(TERMS, NOON + ran * SECOND)
        assert come_again(Busy(held, held.locked_until), 0.0) == pytest.approx(wait)
        assert come_again(Busy(held, held.locked_until), 1.0) == pytest.approx(1.5 * wait)
    soon = first.renewed(TERMS, NOON + 40 * SECOND)
    assert come_again(Busy(soon, soon.seen_at + 4 * SECOND), 0.0) == 4
