"""The pure scheduler: which session is next, computed from schedules and history. R001-3 … R001-8, T001-i … T001-m, T001-r, T001-w."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly import Cron, Daily, Every
from duly.automations.plan import (
    AutomationFacts,
    AutomationScheduler,
    Create,
    Holder,
    Incomplete,
    Limits,
    Nothing,
    Resume,
    Skipped,
    Spent,
    Stopped,
    Waiting,
    Watch,
    exhausted,
    gives_way,
    next_in_queue,
    next_look,
    should_stop_inactive_session,
)
from duly.automations.session import (
    ENDED,
    LIFECYCLE,
    RESUMABLE,
    ExecutionTrigger,
    RoundReason,
    SessionEndReason,
    SessionType,
    Status,
    read_end_reason,
)

DAY = datetime(2026, 3, 2, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
next_session = AutomationScheduler().get_next_session


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return DAY.replace(hour=hour, minute=minute, second=second)


def daily(ident: int, *times: str, reference: datetime = DAY - timedelta(days=2), **more: object) -> AutomationFacts:
    return AutomationFacts(ident, Daily(list(times), tz="UTC"), reference, **more)  # type: ignore[arg-type]


def test_an_occurrence_is_due_at_its_very_instant() -> None:  # R001-5
    facts = [daily(1, "09:55", reference=at(0))]
    assert next_session(facts, at(9, 54, 59)) == Nothing()
    assert next_session(facts, at(9, 55)) == Create(1, at(9, 55))


def test_what_was_due_first_comes_first_whatever_the_order_of_the_facts() -> None:  # R001-7, scenario 7
    facts = [daily(n, when, reference=at(0)) for n, when in enumerate(("09:30", "09:10", "09:20"), 1)]
    for order in permutations(facts):
        assert next_session(order, at(10)) == Create(2, at(9, 10))


def test_at_the_same_instant_one_that_goes_on_comes_before_a_new_one_and_then_the_lower_id() -> None:  # R001-7
    stopped = Incomplete(70, at(9), ended_at=at(9, 1))
    goes_on = daily(9, "09:00", reference=at(0), incomplete=[stopped])
    new = [daily(3, "09:00", reference=at(0)), daily(2, "09:00", reference=at(0))]
    assert next_session([*new, goes_on], at(10)) == Resume(70, 9, at(9), RoundReason.AUTOMATION_RESUME_CRASH)
    assert next_session(new, at(10)) == Create(2, at(9))


def test_an_automation_with_an_incomplete_session_makes_no_new_one() -> None:  # R001-4
    waits = Incomplete(70, at(8), SessionEndReason.SUSPENDED, at(8, 5), resume_at=at(11))
    facts = [daily(1, "09:00", reference=at(0), incomplete=[waits])]
    assert next_session(facts, at(10)) == Nothing()
    assert next_session(facts, at(11)) == Resume(70, 1, at(8), RoundReason.AUTOMATION_RESUME_SUSPENDED)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (None, RoundReason.AUTOMATION_RESUME_CRASH),
        (SessionEndReason.NETWORK_ERROR, RoundReason.AUTOMATION_RESUME_NETWORK),
        (SessionEndReason.SUSPENDED, RoundReason.AUTOMATION_RESUME_SUSPENDED),
    ],
)
def test_why_a_session_goes_on_is_told_by_why_it_had_stopped(reason: SessionEndReason | None, told: RoundReason) -> None:  # fmt: skip
    found = next_session([AutomationFacts(1, None, DAY, incomplete=[Incomplete(7, at(9), reason, at(9, 5))])], at(10))
    assert found == Resume(7, 1, at(9), told)  # R001-16


def test_every_end_reason_is_either_resumable_or_ended() -> None:  # R001-6, T001-l
    assert frozenset(SessionEndReason) == RESUMABLE | ENDED
    assert not RESUMABLE & ENDED
    assert read_end_reason("INTERRUPTED") is None
    assert read_end_reason(None) is None
    assert all(read_end_reason(reason.value) is reason for reason in ENDED)
    assert LIFECYCLE.final == {Status.ENDED, Status.SEED}


def test_what_was_planned_before_the_automation_was_made_or_changed_is_not_run() -> None:  # T001-i, B076
    made_at_noon = [daily(1, "09:00", reference=at(12))]
    assert next_session(made_at_noon, at(13)) == Nothing()
    assert next_session(made_at_noon, at(9) + timedelta(days=1)) == Create(1, at(9) + timedelta(days=1))


def test_after_downtime_all_missed_runs_come_oldest_first_or_only_the_latest() -> None:  # T001-k, B075
    half_hours = Every(timedelta(minutes=30), anchor=DAY)
    now, done = at(14, 10), at(8)
    slots = []
    while True:
        found = next_session([AutomationFacts(1, half_hours, DAY, done)], now)
        if isinstance(found, Nothing):
            break
        assert isinstance(found, Create)
        slots.append(found.scheduled_for)
        done = found.scheduled_for
    assert slots == [at(8, 30) + n * timedelta(minutes=30) for n in range(12)]
    latest = next_session([AutomationFacts(1, half_hours, DAY, at(8), dismiss_older_instances=True)], now)
    assert isinstance(latest, Create)
    assert latest.scheduled_for == at(14)
    (left_out,) = latest.skips
    assert (left_out.first_at, left_out.last_at, left_out.count, left_out.reason) == (
        at(8, 30),
        at(13, 30),
        11,
        "dismissed",
    )
    after = [AutomationFacts(1, half_hours, DAY, at(14), dismiss_older_instances=True)]
    assert next_session(after, now) == Nothing()
    assert next_look(after, now) == at(14, 30)


def test_a_catch_up_window_bounds_how_far_back_missed_runs_reach() -> None:  # T001-k
    hours = Every(timedelta(hours=1), anchor=DAY)
    window = timedelta(hours=2)
    found = next_session([AutomationFacts(1, hours, DAY, at(3), catch_up_window=window)], at(12, 30))
    assert isinstance(found, Create)
    assert found.scheduled_for == at(11)
    assert [(s.first_at, s.last_at, s.count, s.reason) for s in found.skips] == [(at(4), at(10), 7, "catch_up_window")]
    only_old = [daily(1, "03:00", reference=at(0), catch_up_window=window)]
    assert next_session(only_old, at(12)) == Nothing()
    assert next_look(only_old, at(12)) == at(3) + timedelta(days=1)


def test_a_session_that_waits_for_the_network_lets_others_go_first_and_alone_goes_on_at_once() -> (
    None
):  # T001-m, R001-18
    offline = Incomplete(7, at(8), SessionEndReason.NETWORK_ERROR, ended_at=at(9, 30))
    stuck = daily(1, "08:00", reference=at(0), incomplete=[offline])
    assert next_session([stuck, daily(2, "09:00", reference=at(0))], at(9, 30)) == Create(2, at(9))
    # another one that comes due later waits its turn
    assert next_session([stuck, daily(2, "09:45", reference=at(0))], at(9, 50)) == Resume(
        7, 1, at(8), RoundReason.AUTOMATION_RESUME_NETWORK
    )
    assert next_session([stuck], at(9, 30)) == Resume(7, 1, at(8), RoundReason.AUTOMATION_RESUME_NETWORK)


def test_of_several_incomplete_sessions_the_oldest_goes_on_or_the_latest_alone() -> None:  # T001-r
    three = [Incomplete(n, at(8 + n), ended_at=at(8 + n, 5)) for n in (3, 1, 2)]
    assert next_session([daily(1, "09:00", incomplete=three)], at(20)) == Resume(1, 1, at(9), RoundReason.AUTOMATION_RESUME_CRASH)  # fmt: skip
    found = next_session([daily(1, "09:00", incomplete=three, dismiss_older_instances=True)], at(20))
    assert found == Resume(3, 1, at(11), RoundReason.AUTOMATION_RESUME_CRASH, cancels=(1, 2))


def test_a_local_time_in_a_gap_runs_once_after_it_and_in_a_fold_on_its_first_pass() -> None:  # T001-w
    rome = Daily("02:30", tz="Europe/Rome")
    before = datetime(2026, 3, 28, 12, tzinfo=UTC)
    found = next_session([AutomationFacts(1, rome, before)], datetime(2026, 3, 29, 6, tzinfo=UTC))
    assert found == Create(1, datetime(2026, 3, 29, 1, tzinfo=UTC))
    assert next_session([AutomationFacts(1, rome, before, datetime(2026, 3, 29, 1, tzinfo=UTC))], datetime(2026, 3, 29, 20, tzinfo=UTC)) == Nothing()  # fmt: skip
    before = datetime(2026, 10, 24, 12, tzinfo=UTC)
    first_pass = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert next_session([AutomationFacts(1, rome, before)], datetime(2026, 10, 25, 6, tzinfo=UTC)) == Create(1, first_pass)  # fmt: skip
    assert next_session([AutomationFacts(1, rome, before, first_pass)], datetime(2026, 10, 25, 6, tzinfo=UTC)) == Nothing()  # fmt: skip


def test_two_times_in_one_gap_run_once_and_the_other_is_on_record() -> None:  # B4
    twice = Cron("15,45 2 * * *", tz="Europe/Rome")
    found = next_session([AutomationFacts(1, twice, datetime(2026, 3, 28, 12, tzinfo=UTC))], datetime(2026, 3, 29, 6, tzinfo=UTC))  # fmt: skip
    once = datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert found == Create(1, once, (Skipped(once, once, 1, "gap=02:15,02:45"),))


@st.composite
def _automations(draw: st.DrawFn) -> list[AutomationFacts]:
    found = []
    for ident in range(1, draw(st.integers(1, 5)) + 1):
        every = draw(st.sampled_from([1, 2, 3, 5, 7, 30, 60]))
        reference = DAY + draw(st.integers(0, 200)) * MINUTE
        completed = draw(st.none() | st.integers(0, 240).map(lambda m: DAY + m * MINUTE))
        incomplete = []
        for n in range(draw(st.integers(0, 2))):
            ended = draw(st.integers(0, 240))
            incomplete.append(Incomplete(
                ident * 10 + n, DAY + draw(st.integers(0, 240)) * MINUTE,
                draw(st.sampled_from([None, SessionEndReason.NETWORK_ERROR, SessionEndReason.SUSPENDED])), DAY + ended * MINUTE,
                draw(st.none() | st.integers(0, 300).map(lambda m: DAY + m * MINUTE)),
            ))  # fmt: skip
        schedule = draw(st.none() | st.just(Every(every * MINUTE, anchor=DAY)))
        window = draw(st.none() | st.integers(1, 120).map(lambda m: m * MINUTE))
        found.append(AutomationFacts(ident, schedule, reference, completed, incomplete, draw(st.booleans()), window))
    return found


def _by_brute_force(facts: list[AutomationFacts], now: datetime) -> tuple[str, int, datetime] | None:
    """Walk every minute of the day; keep every candidate; take the least."""
    candidates = []
    for each in facts:
        if each.incomplete:
            ready = [i for i in each.incomplete if i.resume_at is None or i.resume_at <= now]
            if ready:
                order = sorted(ready, key=lambda i: (i.scheduled_at, i.session_id))
                one = order[-1 if each.dismiss_older_instances else 0]
                when = one.ended_at if one.end_reason is SessionEndReason.NETWORK_ERROR else one.scheduled_at
                candidates.append((when, 0, each.id, "resume", one.session_id, one.scheduled_at))
        elif isinstance(each.schedule, Every):
            due, minute = [], DAY
            step = timedelta(seconds=each.schedule.duration.total_seconds() if isinstance(each.schedule.duration, timedelta) else float(each.schedule.duration))  # fmt: skip
            while minute <= now:
                fresh = minute > each.reference_at and (each.completed_until is None or minute > each.completed_until)
                near = each.catch_up_window is None or minute >= now - each.catch_up_window
                if fresh and near and (minute - DAY) % step == timedelta(0):
                    due.append(minute)
                minute += MINUTE
            if due:
                wanted = due[-1] if each.dismiss_older_instances else due[0]
                candidates.append((wanted, 1, each.id, "create", each.id, wanted))
    least = min(candidates, default=None)
    return None if least is None else (least[3], least[4], least[5])


@settings(max_examples=100, deadline=None)
@given(_automations(), st.integers(0, 300))
def test_the_scheduler_agrees_with_a_brute_force_model(facts: list[AutomationFacts], minutes: int) -> None:
    now = DAY + minutes * MINUTE
    found = next_session(facts, now)
    wanted = _by_brute_force(facts, now)
    if isinstance(found, Nothing):
        assert wanted is None
    elif isinstance(found, Resume):
        assert wanted == ("resume", found.session_id, found.scheduled_for)
    else:
        assert wanted == ("create", found.automation_id, found.scheduled_for)
    assert next_session(list(reversed(facts)), now) == found  # the same facts, the same answer (R001-3)
    look = next_look(facts, now)
    assert look is None or look > now


# ---------------------------------------------------------------------- the watchdog


def held(minutes: float, type: SessionType = SessionType.AUTOMATION, **more: object) -> Holder:
    return Holder(type, at(12) - timedelta(minutes=minutes), **more)  # type: ignore[arg-type]


def test_the_watchdog_keeps_a_session_at_exactly_its_limit_and_ends_it_behind() -> None:  # R001-9, B072
    watch = Watch()
    assert should_stop_inactive_session(held(10), watch, at(12)) is None
    stopped = should_stop_inactive_session(held(10 + 1e-4), watch, at(12))
    assert stopped is not None
    assert stopped.end_reason is SessionEndReason.TIMEOUT


def test_the_watchdog_tells_waiting_for_the_network_from_silence() -> None:  # R001-9, B073
    stopped = should_stop_inactive_session(held(11, is_waiting_for_network=True), Watch(), at(12))
    assert stopped is not None
    assert stopped.end_reason is SessionEndReason.NETWORK_ERROR


def test_a_chat_never_ends_by_time_alone_and_gives_way_after_five_minutes() -> None:  # R001-10, R001-11
    for minutes in (0, 5, 6, 180, 100_000):
        assert should_stop_inactive_session(held(minutes, SessionType.CHAT), Watch(), at(12)) is None
    assert not gives_way(held(5, SessionType.CHAT), Watch(), at(12))
    assert gives_way(held(5.001, SessionType.CHAT), Watch(), at(12))
    assert not gives_way(held(60), Watch(), at(12))


def test_a_clock_that_was_set_back_makes_nobody_inactive() -> None:  # T001-v
    assert should_stop_inactive_session(held(-60), Watch(), at(12)) is None
    assert not gives_way(held(-60, SessionType.CHAT), Watch(), at(12))


def test_a_session_whose_worker_is_lost_goes_on_three_times_in_a_row_and_then_ends() -> None:  # T001-z, B070
    for crashes in range(3):
        stopped = should_stop_inactive_session(held(0, is_run=False, crashes=crashes), Watch(), at(12))
        assert stopped == Stopped(None, "its worker was lost")
    stopped = should_stop_inactive_session(held(0, is_run=False, crashes=3), Watch(), at(12))
    assert stopped is not None
    assert (stopped.end_reason, stopped.detail) == (SessionEndReason.ERROR, "its worker was lost 4 times in a row")


def test_a_session_whose_job_an_operator_cancelled_is_cancelled() -> None:
    stopped = should_stop_inactive_session(held(0, is_run=False, is_cancelled=True), Watch(), at(12))
    assert stopped is not None
    assert stopped.end_reason is SessionEndReason.CANCELLED


# ---------------------------------------------------------------------- the queue


def test_a_chat_comes_before_what_people_run_and_each_in_its_turn() -> None:  # R001-13, scenario 5, flow 6
    automation, chat = SessionType.AUTOMATION, SessionType.CHAT
    waiting = [Waiting(1, automation, at(10, 1)), Waiting(2, chat, at(10, 3)), Waiting(3, chat, at(10, 2)), Waiting(4, automation, at(10))]  # fmt: skip
    order = []
    while waiting:
        head = next_in_queue(waiting)
        assert head is not None
        order.append(head.session_id)
        waiting = [one for one in waiting if one is not head]
    assert order == [3, 2, 4, 1]
    assert next_in_queue([]) is None


# ---------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("limits", "spent", "named"),
    [
        (Limits(max_rounds=20), Spent(rounds=20), "max_rounds"),
        (Limits(max_tokens=1000), Spent(tokens=1000), "max_tokens"),
        (Limits(max_cents=5), Spent(cost_micros=5_000_000), "max_cents"),
        (Limits(max_tokens_per_day=10), Spent(tokens_today=11), "max_tokens_per_day"),
        (Limits(max_cents_per_day=0.5), Spent(cost_micros_today=500_000), "max_cents_per_day"),
    ],
)
def test_no_question_is_asked_beyond_a_bound_and_the_bound_is_named(limits: Limits, spent: Spent, named: str) -> None:
    reason = exhausted(limits, spent)  # T001-n
    assert reason is not None
    assert f"limits.{named})" in reason
    assert exhausted(Limits(), Spent(19, 99, 10**9, 10**12, 10**9, 10**12)) is None


def test_manual_runs_are_told_by_their_trigger() -> None:
    assert Incomplete(1, DAY).trigger is ExecutionTrigger.SCHEDULED
    assert next_session([AutomationFacts(1, Cron("0 9 * * *", tz="UTC"), at(0))], at(8)) == Nothing()
