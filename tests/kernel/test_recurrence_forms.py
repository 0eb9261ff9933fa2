"""Schedules as JSON: there and back, and what a door answers to anything else."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.kernel.recurrence import (
    Cron,
    Daily,
    Every,
    Moments,
    Monthly,
    Once,
    OnDates,
    RRule,
    Schedule,
    Weekly,
    Yearly,
    schedule_from_json,
)
from duly.kernel.recurrence.forms import KINDS

zones = st.sampled_from(["UTC", "Europe/Paris", "Australia/Lord_Howe", "Etc/GMT+5"])
times = st.lists(st.times().map(lambda at: at.replace(microsecond=0)), min_size=1, max_size=4)
names = st.none() | st.text(min_size=1, max_size=20).filter(str.isprintable)
jitters = st.sampled_from([0, 0.25, 30, 3600])
days = st.lists(st.sampled_from(["mon", "tue", "wed-fri", "Sunday"]), min_size=1, max_size=3)
month_days = st.lists(
    st.integers(1, 31) | st.sampled_from(["last", "second tue", "last weekday"]), min_size=1, max_size=3
)
dates = st.lists(st.dates(datetime(1970, 1, 1).date(), datetime(2200, 12, 31).date()), min_size=1, max_size=3)
instants = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
local_times = instants.map(lambda at: at.replace(tzinfo=None, microsecond=0))
year_days = st.lists(
    st.dates(date(2000, 1, 1), date(2000, 12, 31)).map(lambda day: f"{day:%m-%d}"), min_size=1, max_size=4
)
civil = {
    "tz": zones,
    "gap": st.sampled_from([None, "after"]),
    "fold": st.sampled_from([None, "first", "last", "both"]),
    "jitter": jitters,
    "name": names,
}
bounds = {
    "start_date": st.none() | st.dates(date(1970, 1, 1), date(2026, 1, 1)),
    "end_date": st.none() | st.dates(date(2035, 1, 1), date(2200, 12, 31)).map(date.isoformat),
}
durations = st.timedeltas(timedelta(seconds=1), timedelta(days=36_525))
schedules: st.SearchStrategy[Schedule] = st.one_of(
    st.builds(Cron, st.sampled_from(["*/5 * * * *", "@daily", "30 2 29 feb *", "H H * * *"]), **civil),
    st.builds(Every, durations, anchor=instants, jitter=jitters, name=names),
    st.builds(Every, durations),
    st.builds(Daily, times, **civil, **bounds),
    st.builds(Yearly, year_days, times, **civil, **bounds),
    st.builds(Moments, st.lists(local_times, min_size=1, max_size=5), **civil),
    st.builds(Weekly, days, times, **civil, **bounds),
    st.builds(Monthly, month_days, times, **civil),
    st.builds(OnDates, dates, times, **civil),
    st.builds(Once, instants),
    st.builds(
        RRule,
        st.sampled_from(["FREQ=DAILY;COUNT=3", "RRULE:FREQ=MONTHLY;BYDAY=-1FR"]),
        start=instants.map(lambda at: at.replace(tzinfo=None, microsecond=0)),
        **civil,
    ),
)


@given(schedules)
def test_a_schedule_comes_back_as_it_was(schedule: Schedule) -> None:
    said = json.loads(json.dumps(schedule.to_json()))
    back = schedule_from_json(said)
    assert back == schedule
    assert type(back) is type(schedule)
    assert back.to_json() == said
    assert said["kind"] in KINDS


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (
            Cron("@daily", tz="Europe/Paris", gap="skip", jitter=30),
            {"kind": "cron", "expression": "0 0 * * *", "tz": "Europe/Paris", "gap": "skip", "jitter": 30.0},
        ),
        (Every("15m"), {"kind": "every", "duration": 900}),
        (Every(1.5, anchor="2026-01-01T00:00Z"), {"kind": "every", "duration": 1.5, "anchor": "2026-01-01T00:00:00Z"}),
        (Daily("18:00", tz="UTC"), {"kind": "daily", "at": ["18:00"], "tz": "UTC"}),
        (Weekly("mon-tue", "8:00:30", tz="UTC"), {"kind": "weekly", "days": ["mon", "tue"], "at": ["08:00:30"], "tz": "UTC"}),
        (Monthly([1, "Last"], "8:00", tz="UTC"), {"kind": "monthly", "day": [1, "last"], "at": ["08:00"], "tz": "UTC"}),
        (OnDates("2026-12-24", "8:00", tz="UTC"), {"kind": "on_dates", "dates": ["2026-12-24"], "at": ["08:00"], "tz": "UTC"}),
        (Once("2026-07-27T11:00+02:00"), {"kind": "once", "instant": "2026-07-27T09:00:00Z"}),
        (
            RRule("freq=daily", start="2026-01-01T09:00", tz="UTC", name="x"),
            {"kind": "rrule", "rule": "FREQ=DAILY", "start": "2026-01-01T09:00", "tz": "UTC", "name": "x"},
        ),
    ],
)  # fmt: skip
def test_the_form_is_plain_and_short(schedule: Schedule, said: dict[str, Any]) -> None:
    assert schedule.to_json() == said


def test_what_people_write_by_hand_is_taken() -> None:
    assert schedule_from_json({"kind": "daily", "at": "18:00", "tz": "UTC", "gap": None}) == Daily("18:00", tz="UTC")
    assert schedule_from_json({"kind": "every", "duration": "15m"}) == Every("15m")
    assert schedule_from_json({"kind": "weekly", "days": "mon-fri", "at": "9:00", "tz": "UTC"}) == Weekly(
        "mon-fri", "9:00", tz="UTC"
    )


@pytest.mark.parametrize(
    ("value", "field", "said"),
    [
        (None, "schedule", "Give an object with a kind: cron, every"),
        ("30 2 * * *", "schedule", "Give an object"),
        ([], "schedule", "Give an object"),
        ({}, "schedule.kind", "is missing"),
        ({"kind": None}, "schedule.kind", "is None"),
        ({"kind": "hourly"}, "schedule.kind", "Use one of cron"),
        ({"kind": ["cron"]}, "schedule.kind", "Use one of"),
        ({"kind": "cron", "expression": "* * * * *"}, "schedule.tz", "is missing"),
        ({"kind": "cron", "tz": "UTC"}, "schedule.expression", "is missing"),
        ({"kind": "cron", "expression": "* * * * *", "tz": None}, "schedule.tz", "is missing"),
        ({"kind": "cron", "expression": "* * * * *", "tz": "America/New_Yrok"}, "schedule.tz", "New_York"),  # B010
        ({"kind": "cron", "expression": "* * * * *", "tz": "UTC+3"}, "schedule.tz", "Etc/GMT-3"),  # B010
        ({"kind": "cron", "expression": "* * * * *", "tz": ""}, "schedule.tz", "is empty"),  # B010
        ({"kind": "cron", "expression": "* * * *", "tz": "UTC"}, "schedule.expression", "4 fields"),
        ({"kind": "cron", "expression": "0 0 30 2 *", "tz": "UTC"}, "schedule.expression", "no month"),
        ({"kind": "cron", "expression": 5, "tz": "UTC"}, "schedule.expression", "of type int"),
        ({"kind": "cron", "expression": "* * * * *", "tz": "UTC", "timezone": "UTC"}, "schedule.timezone", "no field"),
        ({"kind": "cron", "expression": "* * * * *", "tz": "UTC", "gap": "later"}, "schedule.gap", "Use 'after'"),
        ({"kind": "cron", "expression": "* * * * *", "tz": "UTC", "fold": ["first"]}, "schedule.fold", "Use 'first'"),
        ({"kind": "cron", "expression": "* * * * *", "tz": "UTC", "jitter": "x"}, "schedule.jitter", "seconds"),
        ({"kind": "cron", "expression": "* * * * *", "tz": "UTC", "name": 5}, "schedule.name", "text"),
        ({"kind": "daily", "at": ["08:00", "25:00"], "tz": "UTC"}, "schedule.at[1]", "no clock"),
        ({"kind": "daily", "at": {"hour": 8}, "tz": "UTC"}, "schedule.at", "Give a time of day"),
        ({"kind": "daily", "at": [[]], "tz": "UTC"}, "schedule.at[0]", "HH:MM"),
        ({"kind": "weekly", "days": ["mon", 3], "at": "8:00", "tz": "UTC"}, "schedule.days[1]", "English"),
        ({"kind": "monthly", "day": {"n": 1}, "at": "8:00", "tz": "UTC"}, "schedule.day", "day of the month"),
        ({"kind": "monthly", "day": 1.0, "at": "8:00", "tz": "UTC"}, "schedule.day", "day of the month"),
        ({"kind": "on_dates", "dates": "24.12.2026", "at": "8:00", "tz": "UTC"}, "schedule.dates", "YYYY-MM-DD"),
        ({"kind": "once", "instant": "2026-07-27T09:00"}, "schedule.instant", "time zone"),
        ({"kind": "once", "instant": {}}, "schedule.instant", "Write an instant"),
        ({"kind": "once", "instant": "2026-07-27T09:00Z", "tz": "UTC"}, "schedule.tz", "no field"),
        ({"kind": "every", "duration": {}}, "schedule.duration", "Give seconds"),
        ({"kind": "every", "duration": 1e308}, "schedule.duration", "seconds"),
        ({"kind": "rrule", "rule": "FREQ=DAILY", "start": [], "tz": "UTC"}, "schedule.start", "local time"),
        ({"kind": "rrule", "rule": {}, "start": "2026-01-01", "tz": "UTC"}, "schedule.rule", "text"),
        ({"kind": "rrule", "rule": "FREQ=DAILY", "tz": "UTC"}, "schedule.start", "is missing"),
        ({"kind": "once", "x" * 5000: 1}, None, "no field"),
        ({"kind": "once", 5: 1}, "schedule.5", "no field"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_path_with_what_to_do(value: Any, field: str | None, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as refused:
        schedule_from_json(value)
    assert field is None or refused.value.field == field
    assert refused.value.problem
    assert refused.value.remedy or field == "schedule.name"
    assert len(str(refused.value)) < 600


def test_a_path_can_be_another_one() -> None:
    with pytest.raises(InvalidArgument, match=r"^body\.schedules\[3\]\.tz: "):
        schedule_from_json({"kind": "daily", "at": "8:00", "tz": "x"}, "body.schedules[3]")


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
fields = sorted({field for _, required, optional in KINDS.values() for field in (*required, *optional)})


@settings(max_examples=100)
@given(schedules.map(lambda schedule: schedule.to_json()), st.sampled_from(["kind", *fields]), json_values)
def test_any_value_in_any_field_makes_a_schedule_or_an_error_that_names_it(
    said: dict[str, Any], field: str, value: Any
) -> None:
    try:
        made = schedule_from_json(said | {field: value})
    except InvalidArgument as error:
        # A change of kind, or of what else must fit together, may show in another field.
        assert error.field.startswith("schedule.")
        return
    assert schedule_from_json(made.to_json()) == made
