"""What is decided about occurrences: the pure plan, policy by policy, and random lives of a schedule."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.kernel.recurrence import Cron, Daily, Every, Once, Recurring
from duly.kernel.windows import Calendar, Window
from duly.schedules.plan import LOOK_AGAIN, LOOK_BLACKOUT, Decision, Facts, Plan, Waiting, checked, plan
from duly.schedules.schedule import Policies, Spec, Status, read_catch_up

START = datetime(2026, 5, 1, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
HOURLY = Cron("0 * * * *", tz="UTC")
FIRED, SKIPPED, MISSED, DEFERRED = Status.FIRED, Status.SKIPPED, Status.MISSED, Status.DEFERRED


def at(hours: float) -> datetime:
    return START + timedelta(hours=hours)


def facts(**given: Any) -> Facts:
    policies = Policies(**{n: given.pop(n) for n in ("catch_up", "overlap", "blackout") if n in given})
    return Facts(given.pop("recurrence", HOURLY), policies, given.pop("decided_until", START), **given)


def said(made: Plan) -> list[tuple[float, str, str | None]]:
    """(hours since START, status, reason) of each decision."""
    return [((d.due_at - START) / HOUR, d.status.value, d.reason) for d in made.decisions]


BLACKOUT = Calendar([Window(start="02:00", end="04:30", tz="UTC", name="quiet")])


# --- due, and in time -------------------------------------------------------------------------------------------------


def test_nothing_is_decided_before_it_is_due() -> None:
    made = plan(facts(), at(1) - timedelta(microseconds=1))
    assert made == Plan((), START, at(1), at(1))


def test_an_occurrence_fires_at_its_planned_instant() -> None:
    made = plan(facts(), at(1))
    assert said(made) == [(1, "fired", None)]
    assert made.decisions[0].start_at == at(1)
    assert (made.decided_until, made.next_at, made.look_at) == (at(1), at(2), at(2))


def test_jitter_moves_the_start_of_the_job_and_not_the_planned_instant() -> None:
    spread = Cron("0 * * * *", tz="UTC", jitter=600, name="n")
    [decision] = plan(facts(recurrence=spread), at(1)).decisions
    assert decision.due_at == at(1)
    assert decision.start_at is not None
    assert at(1) <= decision.start_at < at(1) + timedelta(seconds=600)


@pytest.mark.parametrize(
    ("catch_up", "fired"),
    [("none", []), ("latest", [180]), ("all", list(range(1, 181))), (timedelta(minutes=2), [179, 180])],
)
def test_after_an_outage_what_is_caught_up_is_what_the_policy_says(catch_up: Any, fired: list[int]) -> None:  # B023
    now = START + timedelta(hours=3, seconds=30)
    made = plan(facts(recurrence=Cron("* * * * *", tz="UTC"), catch_up=catch_up), now)
    assert [round((d.due_at - START) / MINUTE) for d in made.decisions if d.status is FIRED] == fired
    assert len(made.decisions) == 180  # each occurrence has its row
    assert {d.reason for d in made.decisions if d.status is MISSED} <= {"late"}
    assert made.next_at == START + timedelta(hours=3, minutes=1)  # and it goes on


def test_what_is_found_within_the_grace_is_not_late() -> None:
    for catch_up in ("none", "latest", "all"):
        made = plan(facts(recurrence=Every(5, anchor=START), catch_up=catch_up), START + timedelta(seconds=14))
        assert [d.status for d in made.decisions] == [FIRED, FIRED]


def test_what_is_exactly_as_late_as_the_policy_allows_is_caught_up() -> None:
    for late, status in ((timedelta(0), "fired"), (timedelta(microseconds=1), "missed")):
        made = plan(facts(catch_up=HOUR / 2), at(1.5) + late)
        assert [d.status.value for d in made.decisions] == [status]


def test_the_latest_of_late_ones_fires_however_late_it_is() -> None:
    assert said(plan(facts(), at(2.9))) == [(1, "missed", "late"), (2, "fired", None)]


def test_the_record_names_the_policies_that_were_applied() -> None:
    made = plan(facts(catch_up="all", overlap="queue", calendar=BLACKOUT), at(4.6))
    assert [d.policy for d in made.decisions] == [
        "catch_up=all overlap=queue", "overlap=queue", "overlap=queue", "overlap=queue",
    ]  # fmt: skip
    assert [d.policy for d in plan(facts(), at(1)).decisions] == [""]
    [slept] = [d for d in plan(facts(calendar=BLACKOUT), at(4.6)).decisions if d.status is FIRED]
    assert slept.policy == "catch_up=latest blackout=defer"


def test_a_long_outage_is_worked_off_in_portions_and_ends_the_same() -> None:
    now, known = at(10.5), facts(catch_up="latest")
    whole = plan(known, now)
    parts: list[Decision] = []
    while True:
        made = plan(known, now, most=3)
        parts += made.decisions
        if made.look_at is None or made.look_at > now:
            break
        known = replace(known, decided_until=made.decided_until)
    assert tuple(parts) == whole.decisions
    assert (made.next_at, made.decided_until) == (whole.next_at, whole.decided_until)


def test_a_schedule_counts_from_its_start_and_until_before_its_end() -> None:
    made = plan(facts(catch_up="all", starts_at=at(2), ends_at=at(4)), at(9))
    assert said(made) == [(2, "fired", None), (3, "fired", None)]
    assert (made.next_at, made.look_at) == (None, None)
    early = plan(facts(starts_at=at(2)), at(1))
    assert (early.decisions, early.next_at) == ((), at(2))


def test_the_latest_of_an_ended_schedule_is_its_last_one() -> None:
    assert said(plan(facts(ends_at=at(3)), at(9))) == [(1, "missed", "late"), (2, "fired", None)]


def test_once_fires_once() -> None:
    made = plan(facts(recurrence=Once(at(2))), at(5))
    assert said(made) == [(2, "fired", None)]
    assert made.look_at is None


# --- paused -----------------------------------------------------------------------------------------------------------


def test_what_a_pause_leaves_out_stands_on_record() -> None:
    made = plan(facts(paused=True), at(2.5))
    assert said(made) == [(1, "skipped", "paused"), (2, "skipped", "paused")]


def test_what_waits_when_a_schedule_is_paused_is_skipped_unless_an_operator_wanted_it() -> None:
    waiting = (Waiting(at(1), "overlap"), Waiting(at(2), "blackout"), Waiting(at(0.5), "backfill"))
    made = plan(facts(paused=True, decided_until=at(2), waiting=waiting, overlap="queue"), at(2.5))
    assert said(made) == [(0.5, "fired", "backfill"), (1, "skipped", "paused"), (2, "skipped", "paused")]


# --- blackout ---------------------------------------------------------------------------------------------------------


def test_a_deferred_occurrence_fires_when_the_blackout_ends() -> None:
    made = plan(facts(calendar=BLACKOUT, decided_until=at(1)), at(2))
    assert said(made) == [(2, "deferred", "blackout")]
    assert made.look_at == at(2) + LOOK_BLACKOUT  # somebody may end it sooner
    waiting = (Waiting(at(2), "blackout"), Waiting(at(3), "blackout"), Waiting(at(4), "blackout"))
    known = facts(calendar=BLACKOUT, decided_until=at(4), waiting=waiting)
    assert [d.status for d in plan(known, at(4.5) - timedelta(microseconds=1)).decisions] == [DEFERRED] * 3
    assert plan(known, at(4.5) - timedelta(seconds=5)).look_at == at(4.5)
    over = plan(known, at(4.5))
    assert said(over) == [(2, "fired", "blackout"), (3, "fired", "blackout"), (4, "fired", "blackout")]


def test_what_waited_for_an_earlier_job_is_no_part_of_a_blackout_that_comes_meanwhile() -> None:
    waiting = (Waiting(at(1), "overlap"), Waiting(at(1.5), "overlap"))
    known = facts(calendar=BLACKOUT, blackout="run_after", overlap="queue", decided_until=at(1.5), waiting=waiting)
    within = plan(known, at(2.2))
    assert said(within) == [(1, "deferred", "overlap"), (1.5, "deferred", "overlap"), (2, "deferred", "blackout")]
    assert [d.same for d in within.decisions] == [True, True, False]  # and for these two there is nothing to write


def test_while_there_are_more_that_wait_somebody_looks_again_soon() -> None:
    known = facts(ends_at=at(1), decided_until=at(1), waiting=(Waiting(at(0.5), "blackout"),), more_waiting=True)
    made = plan(known, at(2))
    assert said(made) == [(0.5, "fired", "blackout")]
    assert made.look_at == at(2) + LOOK_AGAIN


def test_what_an_operator_wanted_again_is_not_held_by_a_blackout() -> None:
    made = plan(
        facts(calendar=BLACKOUT, decided_until=at(3), waiting=(Waiting(at(0.5), "backfill"),), overlap="queue"), at(3.5)
    )
    assert said(made) == [(0.5, "fired", "backfill")]


def test_under_run_after_only_the_last_of_a_blackout_fires() -> None:
    given = {"calendar": BLACKOUT, "blackout": "run_after"}
    within = plan(facts(**given, decided_until=at(2), waiting=(Waiting(at(2), "blackout"),)), at(3))
    assert said(within) == [(2, "skipped", "blackout"), (3, "deferred", "blackout")]
    over = plan(facts(**given, decided_until=at(4), waiting=(Waiting(at(4), "blackout"),)), at(4.5))
    assert said(over) == [(4, "fired", "blackout")]


def test_under_run_after_one_fires_for_each_blackout_of_an_outage() -> None:
    now = at(24 * 3 + 5)
    made = plan(facts(calendar=BLACKOUT, catch_up="all", blackout="run_after"), now)
    fired = [d.due_at for d in made.decisions if d.status is FIRED and BLACKOUT.covers(d.due_at)]
    assert fired == [at(24 * day + 4) for day in range(4)]
    # and where it ends in the next one, those of the former wait beside the last of this
    within = plan(facts(calendar=BLACKOUT, catch_up="all", blackout="run_after"), at(24 + 3.5))
    waits = [d.due_at for d in within.decisions if d.status is DEFERRED and BLACKOUT.covers(d.due_at)]
    assert waits == [at(4), at(24 + 3)]


def test_under_run_after_one_fires_for_a_blackout_of_more_portions_than_one() -> None:
    known = facts(recurrence=Cron("* * * * *", tz="UTC"), catch_up="all", blackout="run_after", calendar=BLACKOUT)
    assert [d.due_at for d in slept(known, at(5), 20) if BLACKOUT.covers(d.due_at)] == [at(4.5) - MINUTE]
    # what waited since before the outage is followed by what is wanted only; where nothing is, it runs itself
    waiting = replace(known, decided_until=at(2), waiting=(Waiting(at(2), "blackout"),))
    for wants, last in (("latest", at(2)), (HOUR, at(4.5) - MINUTE), ("none", at(2)), ("all", at(4.5) - MINUTE)):
        late = replace(waiting, policies=Policies(catch_up=wants, blackout="run_after"))
        fired = [d.due_at for d in slept(late, at(5), 20) if BLACKOUT.covers(d.due_at)]
        assert fired == [last], wants


def test_under_run_after_what_was_planned_before_a_blackout_and_found_late_in_it_runs_besides() -> None:
    made = plan(facts(calendar=BLACKOUT, catch_up="all", blackout="run_after"), at(3.5))
    assert said(made) == [(1, "deferred", "blackout"), (2, "skipped", "blackout"), (3, "deferred", "blackout")]


def test_a_blackout_that_was_slept_through_is_dealt_with_afterwards() -> None:
    now = at(4.5) + timedelta(seconds=1)
    for rule, expected in (
        ("defer", [(2, "fired", None), (3, "fired", None), (4, "fired", None)]),
        ("run_after", [(2, "skipped", "blackout"), (3, "skipped", "blackout"), (4, "fired", None)]),
        ("skip", [(2, "skipped", "blackout"), (3, "skipped", "blackout"), (4, "skipped", "blackout")]),
    ):
        assert said(plan(facts(calendar=BLACKOUT, catch_up="all", blackout=rule, decided_until=at(1)), now)) == expected


def test_an_occurrence_found_late_within_a_blackout_waits_for_its_end() -> None:
    made = plan(facts(calendar=BLACKOUT, blackout="skip"), at(2.5) - HOUR / 4)
    assert said(made) == [(1, "missed", "late"), (2, "skipped", "blackout")]
    late = plan(facts(calendar=BLACKOUT, blackout="skip", catch_up="all"), at(2.2))
    assert said(late) == [(1, "deferred", "blackout"), (2, "skipped", "blackout")]


def test_an_endless_blackout_is_looked_at_again() -> None:
    always = Calendar([Window(tz="UTC")])
    assert plan(facts(calendar=always), at(1)).look_at == at(1) + LOOK_BLACKOUT


# --- overlap ----------------------------------------------------------------------------------------------------------


def test_allowed_overlaps_fire_whatever_is_alive() -> None:
    assert said(plan(facts(alive=7), at(1))) == [(1, "fired", None)]


def test_skipped_overlaps_stand_on_record() -> None:
    assert said(plan(facts(overlap="skip", alive=1), at(1))) == [(1, "skipped", "overlap")]
    made = plan(facts(overlap="skip", catch_up="all"), at(3))
    assert said(made) == [(1, "fired", None), (2, "skipped", "overlap"), (3, "skipped", "overlap")]


def test_queued_overlaps_fire_one_after_the_other_in_order() -> None:
    made = plan(facts(overlap="queue", alive=1), at(1))
    assert said(made) == [(1, "deferred", "overlap")]
    assert made.look_at == at(1) + LOOK_AGAIN
    waiting = (Waiting(at(1), "overlap"), Waiting(at(2), "overlap"))
    made = plan(facts(overlap="queue", decided_until=at(2), waiting=waiting), at(3))
    assert said(made) == [(1, "fired", "overlap"), (2, "deferred", "overlap"), (3, "deferred", "overlap")]


def test_a_replacing_occurrence_fires_when_the_replaced_job_is_gone() -> None:
    made = plan(facts(overlap="replace", alive=1), at(1))
    assert said(made) == [(1, "deferred", "overlap")]
    assert made.replaces
    known = facts(overlap="replace", decided_until=at(1), waiting=(Waiting(at(1), "overlap"),))
    assert said(plan(known, at(1.5))) == [(1, "fired", "overlap")]
    # a newer one takes the place of one that waits
    newer = plan(replace(known, alive=1), at(2))
    assert said(newer) == [(1, "skipped", "replaced"), (2, "deferred", "overlap")]


def test_what_an_operator_wanted_again_waits_behind_what_is_due_by_itself() -> None:
    waiting = (Waiting(at(0.5), "backfill"), Waiting(at(0.7), "backfill"))
    for rule in ("skip", "queue", "replace"):
        made = plan(facts(overlap=rule, waiting=waiting), at(1))
        assert said(made) == [(0.5, "deferred", "backfill"), (0.7, "deferred", "backfill"), (1, "fired", None)]
        assert not made.replaces
        alone = plan(facts(overlap=rule, waiting=waiting, decided_until=at(1)), at(1.5))
        assert said(alone) == [(0.5, "fired", "backfill"), (0.7, "deferred", "backfill")]
        assert not plan(facts(overlap=rule, waiting=waiting, decided_until=at(1), alive=1), at(1.5)).replaces


# --- definitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "read"),
    [("latest", "latest"), ("all", "all"), ("none", "none"), ("within(2h)", 2 * HOUR), ("within(7200)", 2 * HOUR), (HOUR, HOUR)],
)  # fmt: skip
def test_a_catch_up_policy_is_read(given: Any, read: Any) -> None:
    assert read_catch_up(given) == read
    assert read_catch_up(Policies(catch_up=given).catch_up_text) == read


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=3650)))
def test_a_catch_up_policy_is_read_back_as_it_was_written(span: timedelta) -> None:
    # R000-7: rows keep the text; one that was cut to six digits could not be read, and its schedule was broken
    assert read_catch_up(Policies(catch_up=span).catch_up_text) == span


@pytest.mark.parametrize(
    "given",
    [
        "",
        "newest",
        "within()",
        "within(-1)",
        "within(soon)",
        "within(1e999)",
        timedelta(0),
        -HOUR,
        None,
        3,
        "within(" + "9" * 400 + ")",
    ],
)
def test_another_catch_up_policy_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_catch_up(given)
    assert refused.value.field == "catch_up"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"overlap": "wait"}, "overlap"), ({"blackout": "run"}, "blackout"), ({"catch_up": "some"}, "catch_up")],
)
def test_another_policy_is_refused(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Policies(**wrong)
    assert refused.value.field == field


def test_a_schedule_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="ends_at"):
        Spec("n", HOURLY, "t", "{}", "q", "x", starts_at=at(2), ends_at=at(2))
    with pytest.raises(InvalidArgument, match="starts_at"):
        Spec("n", HOURLY, "t", "{}", "q", "x", starts_at=datetime(2026, 1, 1))


# --- random lives -----------------------------------------------------------------------------------------------------


@dataclass
class Life:
    """A schedule, looked at again and again: its ledger, and its jobs."""

    facts: Facts
    ledger: dict[datetime, Decision] = field(default_factory=dict)
    #: When each job began (the tick that made it) and when it ends.
    jobs: list[tuple[datetime, datetime]] = field(default_factory=list)
    fired: list[tuple[datetime, datetime]] = field(default_factory=list)
    #: When somebody is to look again.
    look_at: datetime | None = None

    def look(self, now: datetime, duration: timedelta, most: int = 500) -> None:
        alive = [job for job in self.jobs if job[1] > now]
        waiting = [Waiting(d.due_at, d.reason or "") for _, d in sorted(self.ledger.items()) if d.status is DEFERRED]
        known = replace(self.facts, waiting=waiting, alive=len(alive))
        made = checked(plan(known, now, most))
        self.look_at = made.look_at
        if made.replaces:
            self.jobs = [(began, min(ends, now)) for began, ends in self.jobs]
        for d in made.decisions:
            assert d.known == (d.due_at in self.ledger)
            if d.known:
                assert self.ledger[d.due_at].status is DEFERRED
            self.ledger[d.due_at] = d
            if d.status is FIRED:
                self.jobs.append((now, now + duration))
                self.fired.append((d.due_at, now))
        assert made.decided_until >= self.facts.decided_until
        assert made.next_at is None or made.next_at > now or most < 500 or len(made.decisions) >= most
        if any(d.status is DEFERRED for d in self.ledger.values()):
            assert made.look_at is not None
        self.facts = replace(self.facts, decided_until=made.decided_until)


def slept(known: Facts, now: datetime, most: int = 500) -> list[Decision]:
    """What fires when somebody looks again and again at one instant, at so many at once, until there is nothing to look at."""
    fired: list[Decision] = []
    waiting = {each.due_at: each.reason for each in known.waiting}
    while True:
        held = [Waiting(due_at, reason) for due_at, reason in sorted(waiting.items())]
        made = checked(plan(replace(known, waiting=held), now, most))
        for d in made.decisions:
            waiting.pop(d.due_at, None)
            if d.status is DEFERRED:
                waiting[d.due_at] = d.reason or ""
            elif d.status is FIRED:
                fired.append(d)
        known = replace(known, decided_until=made.decided_until)
        if made.look_at is None or made.look_at > now:
            return fired


def lived(known: Facts, looks: list[datetime], most: int = 500) -> set[datetime]:
    """The planned instants that fire when somebody looks at these instants."""
    life = Life(known)
    for now in looks:
        while True:
            life.look(now, timedelta(0), most)
            if life.look_at is None or life.look_at > now:
                break
    fired = {due_at for due_at, _ in life.fired}
    assert len(fired) == len(life.fired)
    return fired


several = st.sampled_from(
    [
        BLACKOUT,
        Calendar([Window(start="02:00", end="04:30", tz="UTC"), Window(start="04:30", end="05:00", tz="UTC")]),
        Calendar([Window(start="22:00", end="07:00", tz="Europe/Paris"), Window(start="12:05", end="12:50", tz="UTC")]),
        Calendar([Window(start="01:00", end="01:30", tz="UTC"), Window(start="01:20", end="03:00", tz="UTC")]),
    ]
)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.integers(1, 900), max_size=6),
    st.sampled_from([HOURLY, Cron("*/20 * * * *", tz="UTC"), Every("7m", anchor=START), Cron("* * * * *", tz="UTC")]),
    st.sampled_from(["defer", "skip", "run_after"]),
    several,
    st.sampled_from([7, 500]),
)
def test_when_everything_is_caught_up_the_same_fires_however_seldom_somebody_looks(
    looks: list[int], recurrence: Recurring, blackout: Any, calendar: Calendar, most: int
) -> None:
    known = facts(recurrence=recurrence, catch_up="all", blackout=blackout, calendar=calendar)
    seldom = [at(3) + MINUTE * sum(looks[: n + 1]) for n in range(len(looks))]
    end = calendar.free_from(seldom[-1] if seldom else at(30))
    assert end is not None
    seldom.append(end)
    every_minute = [START + MINUTE * n for n in range(1, round((end - START) / MINUTE) + 1)]
    assert lived(known, seldom, most) == lived(known, every_minute)


steps = st.lists(st.tuples(st.integers(1, 400), st.booleans(), st.integers(0, 300)), min_size=1, max_size=25)
recurrences = st.sampled_from(
    [HOURLY, Cron("*/20 * * * *", tz="UTC"), Every("7m", anchor=START), Cron("30 2 * * *", tz="Europe/Paris")]
)
catch_ups: Any = st.sampled_from(["latest", "all", "none", timedelta(minutes=90)])
windows = st.sampled_from(
    [Calendar(), BLACKOUT, Calendar([Window(days="fri-sat", start="22:00", end="06:10", tz="Europe/Paris")])]
)


@settings(max_examples=100)
@given(
    steps,
    recurrences,
    catch_ups,
    st.sampled_from(["allow", "skip", "queue", "replace"]),
    st.sampled_from(["defer", "skip", "run_after"]),
    windows,
)
def test_every_occurrence_that_was_due_has_one_outcome_whatever_the_policies(
    life: list[tuple[int, bool, int]],
    recurrence: Recurring,
    catch_up: Any,
    overlap: Any,
    blackout: Any,
    calendar: Calendar,
) -> None:
    made = Life(facts(recurrence=recurrence, catch_up=catch_up, overlap=overlap, blackout=blackout, calendar=calendar))
    now = START
    for minutes, paused, duration in life:
        now += timedelta(minutes=minutes)
        before = len(made.fired)
        made.facts = replace(made.facts, paused=paused)
        made.look(now, timedelta(minutes=duration))
        for due_at, _ in made.fired[before:]:
            assert not paused or made.ledger[due_at].reason == "backfill"
            on_time = now - due_at <= made.facts.grace and not calendar.covers(due_at)
            assert on_time or not calendar.covers(now)
        if overlap != "allow":
            assert sum(ends > now for _, ends in made.jobs) <= 1 or duration == 0
            assert len(made.fired) - before <= 1
    # each planned instant stands there once, and no other does
    assert sorted(made.ledger) == list(
        recurrence.occurrences(START + timedelta(microseconds=1), now + timedelta(microseconds=1))
    )
    assert len({due for due, _ in made.fired}) == len(made.fired)
    for due_at, decision in made.ledger.items():
        assert decision.status is not MISSED or catch_up != "all"
    if overlap == "queue":
        assert [due for due, _ in made.fired] == sorted(due for due, _ in made.fired)
    # in the end, when all is free, nothing waits for ever
    made.facts = replace(made.facts, calendar=Calendar(), paused=False, ends_at=now)
    for _ in range(len(made.ledger) + 1):
        now += timedelta(days=1)
        made.look(now, timedelta(0))
    assert not [d for d in made.ledger.values() if d.status is DEFERRED]


@pytest.mark.parametrize(
    ("recurrence", "policy"),
    [
        (Daily(["02:15", "02:45"], tz="Europe/Rome"), "gap=02:15,02:45"),
        (Daily(["02:15", "03:00"], tz="Europe/Rome"), "gap=02:15,03:00"),
        (Cron("0,20,40 2 * * *", tz="Europe/Rome"), "gap=02:00,02:20,02:40"),
        (Daily("02:30", tz="Europe/Rome"), ""),
        (Daily(["02:15", "02:45"], tz="Europe/Rome", gap="skip"), None),
    ],
)
def test_two_times_in_one_gap_run_once_and_the_ledger_says_so(recurrence: Recurring, policy: str | None) -> None:
    # B4
    before = datetime(2026, 3, 28, 23, tzinfo=UTC)
    made = plan(Facts(recurrence, Policies(), before), datetime(2026, 3, 29, 1, tzinfo=UTC))
    fired = [d for d in made.decisions if d.due_at == datetime(2026, 3, 29, 1, tzinfo=UTC)]
    assert [d.policy for d in fired] == ([] if policy is None else [policy])
