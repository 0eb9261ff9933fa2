"""Deciding: tables of facts, and what holds for every sequence of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import InvalidArgument
from duly.monitoring.alerts.alert import (
    LIFECYCLE,
    MOST_SUBJECTS,
    Alert,
    Facts,
    Reading,
    Rule,
    Sample,
    Severity,
    State,
    shown,
)
from duly.monitoring.alerts.judge import FORGOTTEN, judge
from duly.monitoring.alerts.rules import every_rule, rules_of
from duly.monitoring.alerts.store import _after
from duly.settings import Settings

NOON = datetime(2026, 7, 27, 12, tzinfo=UTC)
RULE = Rule(
    "hot",
    "jobs",
    "queue",
    "s",
    100.0,
    50.0,
    Severity.WARNING,
    "{subject} waits {value}",
    "cool it",
    hold=60,
    calm=120,
    samples=10,
)
AT_ONCE = replace(RULE, hold=0)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


class Table:
    """The open alerts, as a store would keep them."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = {rule.name: rule for rule in rules}
        self.open: dict[tuple[str, str], Alert] = {}
        self.cleared: list[Alert] = []

    def look(self, seconds: float, reading: Reading) -> list[str]:
        """Judge one reading of the rule ``hot``; the events without notes."""
        facts = Facts(at(seconds), {"hot": reading})
        events = []
        for change in judge(self.rules.values(), facts, self.open.values(), facts.now):
            key = change.rule, change.subject
            if change.event == "pass":
                del self.open[key]
            else:
                after = _after(change, self.rules.get(change.rule), facts.now)
                self.open[key] = after
                if after.state is State.CLEARED:
                    self.cleared.append(self.open.pop(key))
            if change.event != "note":
                events.append(change.event)
        return events

    def value(self, seconds: float, value: float | None, samples: int = 10) -> list[str]:
        return self.look(seconds, Reading() if value is None else Reading.of([Sample("mail", value, samples)]))

    @property
    def state(self) -> State | None:
        found = self.open.get(("hot", "mail"))
        return found.state if found else None


def test_the_threshold_itself_is_fine() -> None:
    table = Table(AT_ONCE)
    assert table.value(0, 100.0) == []
    assert table.value(1, 100.000001) == ["raise"]


def test_it_is_raised_once_it_has_held_for_as_long_as_the_rule_asks() -> None:
    table = Table(RULE)
    assert table.value(0, 200) == ["suspect"]
    assert table.value(59.999, 200) == []
    assert table.state is State.PENDING
    assert table.value(60, 150) == ["raise"]
    assert table.open["hot", "mail"].since == NOON


def test_a_suspicion_that_passes_leaves_nothing() -> None:
    table = Table(RULE)
    table.value(0, 200)
    assert table.value(30, 99) == ["pass"]
    assert table.state is None
    assert table.value(70, 200) == ["suspect"]  # it begins anew


def test_it_is_cleared_only_below_the_lower_mark_and_only_after_the_calm() -> None:
    table = Table(AT_ONCE)
    table.value(0, 200)
    assert table.value(10, 51) == []  # no longer beyond the threshold, and not below the mark
    assert table.value(1000, 51) == []
    assert table.value(1001, 50) == []
    assert table.value(1120.9, 50) == []
    assert table.value(1121, 50) == ["clear"]
    assert table.state is None
    assert table.cleared[0].cleared_at == at(1121)


def test_a_value_that_hovers_does_not_flap() -> None:
    table = Table(AT_ONCE)
    events = [event for n in range(100) for event in table.value(n * 30, 101 if n % 2 else 99)]
    assert events == ["raise"]
    events = [event for n in range(100, 200) for event in table.value(n * 30, 101 if n % 2 else 10)]
    assert events == []  # fine for one look is not calm


def test_while_it_calms_down_the_words_stay_those_of_the_trouble() -> None:
    table = Table(AT_ONCE)
    table.value(0, 200)
    table.value(10, 20)
    alert = table.open["hot", "mail"]
    assert (alert.detail, alert.value, alert.fine_since) == ("mail waits 3.3 min", 20, at(10))


def test_too_few_samples_are_not_judged() -> None:  # T000-p
    table = Table(AT_ONCE)
    assert table.value(0, 1000, samples=9) == []
    assert table.value(1, 1000, samples=10) == ["raise"]
    assert [table.value(n * 60, 0, samples=9) for n in range(1, 20)] == [[]] * 19  # nor do they clear
    assert table.state is State.RAISED


def test_what_cannot_be_read_raises_nothing_and_clears_nothing() -> None:
    table = Table(AT_ONCE)
    table.value(0, 200)
    for n in range(1, 100):
        assert table.look(n * 60, Reading.unknown("no right to read")) == []
    assert table.state is State.RAISED
    assert Table(AT_ONCE).look(0, Reading.unknown("")) == []


def test_a_subject_that_is_gone_is_fine() -> None:
    table = Table(AT_ONCE)
    table.value(0, 200)
    assert table.value(10, None) == []
    assert table.value(130, None) == ["clear"]


def test_a_subject_that_no_longer_fits_into_the_reading_is_not_taken_for_fine() -> None:
    table = Table(AT_ONCE)
    table.value(0, 200)
    many = Reading.of([Sample(f"q{n}", 500 + n, 10) for n in range(MOST_SUBJECTS + 5)])
    assert not many.complete
    assert len(many.samples) == MOST_SUBJECTS
    table.look(10, many)
    table.look(1000, many)
    assert table.state is State.RAISED


def test_one_subject_has_one_alert_however_often_it_was_measured() -> None:
    twice = Reading.of([Sample("a", 1), Sample("a", 300), Sample("b", 2)])
    assert [(s.subject, s.value) for s in twice.samples] == [("a", 300), ("b", 2)]


def test_an_alert_that_nobody_judges_any_more_ends_after_a_day() -> None:
    table = Table(AT_ONCE)
    table.value(0, 200)
    table.rules = {"other": replace(AT_ONCE, name="other")}
    assert table.look(FORGOTTEN.total_seconds(), Reading()) == []
    assert table.look(FORGOTTEN.total_seconds() + 1, Reading()) == ["clear"]


def test_a_value_must_be_a_number() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError):
            Sample("x", value)


# --- For every sequence of looks -----------------------------------------------------------------------------------------

LOOK = st.tuples(
    st.floats(0.1, 200),
    st.one_of(st.none(), st.just("unknown"), st.floats(0, 200), st.sampled_from([50.0, 100.0])),
    st.integers(8, 12),
)


@given(st.lists(LOOK, max_size=60), st.sampled_from([0.0, 60.0]), st.sampled_from([0.0, 120.0]))
def test_alerts_are_raised_and_cleared_by_turns_and_for_a_reason(
    looks: list[tuple[float, object, int]], hold: float, calm: float
) -> None:
    rule = replace(RULE, hold=hold, calm=calm)
    table, now, turns = Table(rule), 0.0, list[str]()
    over_since: float | None = None  # every judged look since then was beyond the threshold
    fine_since: float | None = None
    for step, value, samples in looks:
        now += step
        before = dict(table.open)
        if value == "unknown":
            assert table.look(now, Reading.unknown("?")) == []
            assert table.open == before
            continue
        number = 0.0 if value is None else float(value)  # type: ignore[arg-type]
        events = table.value(now, None if value is None else number, samples)
        if value is not None and samples < rule.samples:
            assert events == []
            assert table.open == before
            continue
        over_since = (over_since if over_since is not None else now) if number > rule.threshold else None
        fine_since = (fine_since if fine_since is not None else now) if number <= rule.mark else None
        if "raise" in events:
            assert over_since is not None
            assert now - over_since >= hold - 1e-3
        if "clear" in events:
            assert fine_since is not None
            assert now - fine_since >= calm - 1e-3
        turns += [event for event in events if event in ("raise", "clear")]
        if over_since is not None and now - over_since >= hold + 1e-3:
            assert table.state is State.RAISED  # and it is not forgotten
    assert turns == ["raise", "clear"] * (len(turns) // 2) + ["raise"] * (len(turns) % 2)
    for alert in table.cleared:
        assert alert.raised_at is not None
        assert alert.cleared_at is not None
        assert alert.since <= alert.raised_at <= alert.cleared_at


@given(st.lists(st.tuples(st.floats(0, 200), st.integers(0, 20)), max_size=10), st.floats(0, 1e4))
def test_the_same_look_twice_moves_nothing(values: list[tuple[float, int]], later: float) -> None:
    table = Table(replace(RULE, calm=0.001))
    reading = Reading.of([Sample(f"q{n}", value, samples) for n, (value, samples) in enumerate(values)])
    table.look(0, reading)
    table.look(later, reading)
    assert table.look(later, reading) == []


# --- The rules -----------------------------------------------------------------------------------------------------------


def test_every_rule_can_be_told_and_mended() -> None:
    rules = every_rule(Settings())
    assert len({rule.name for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.mark <= rule.threshold
        assert rule.remedy
        told = rule.sentence("SUBJECT", rule.threshold, 12)
        assert "{" not in told
        assert bool(rule.noun) is ("SUBJECT" in told), rule.name
        assert rule.setting == "" or hasattr(Settings(), rule.setting)


def test_the_thresholds_are_those_of_the_specification() -> None:  # R000-20, T000-p
    rules = {rule.name: rule for rule in every_rule(Settings())}
    assert (rules["jobs_idle"].threshold, rules["rounds_idle"].threshold) == (3600, 3600)
    assert (rules["rounds_failing"].threshold, rules["rounds_failing"].samples, Settings().alerts_window) == (
        0.1,
        10,
        1800,
    )
    assert rules["rounds_late"].threshold == 300


def test_a_rule_can_be_turned_off_and_a_wrong_name_is_refused() -> None:
    names = [rule.name for rule in rules_of(Settings(alerts_off="queue_paused, gate_offline"))]
    assert "queue_paused" not in names
    assert "gate_offline" not in names
    assert "jobs_idle" in names
    with pytest.raises(InvalidArgument, match=r"alerts_off.*'queue_pauzed'"):
        rules_of(Settings(alerts_off="queue_pauzed"))


def test_the_lifecycle_has_one_end() -> None:
    assert LIFECYCLE.final == {State.CLEARED}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.125, "ratio", "12.5 %"), (1234, "count", "1,234"), (59, "s", "59 s"), (60, "s", "1 min"), (5400, "s", "1.5 h"), (0.5, "s", "0.5 s")],
)  # fmt: skip
def test_values_are_shown_with_their_units(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text  # type: ignore[arg-type]
