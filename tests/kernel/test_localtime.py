"""Which local time? Zones, transitions, and what a local time means on the days on which clocks change."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time, timedelta, timezone
from importlib.resources import files
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
import tzdata
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel import localtime
from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import instant_on, local_date, resolve, transitions, tz_version, zone
from kernel.wallclock import HOUR, ZONES, Wall, different_changes, every_change

DAY = timedelta(days=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text: str) -> datetime:
    return datetime.fromisoformat(text)


# --- What a local time means ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tz", "shown", "first", "last"),
    [
        ("Europe/Paris", "2026-07-01T18:00", "2026-07-01T16:00", "2026-07-01T16:00"),
        ("Europe/Paris", "2026-10-25T02:30", "2026-10-25T00:30", "2026-10-25T01:30"),  # T000-g
        ("Europe/Paris", "2026-10-25T01:59", "2026-10-24T23:59", "2026-10-24T23:59"),
        ("Europe/Paris", "2026-10-25T03:00", "2026-10-25T02:00", "2026-10-25T02:00"),
        ("America/New_York", "2026-11-01T01:30", "2026-11-01T05:30", "2026-11-01T06:30"),  # B002
        ("Australia/Lord_Howe", "2026-04-05T01:45", "2026-04-04T14:45", "2026-04-04T15:15"),  # half an hour
        ("Asia/Kathmandu", "2026-01-01T00:00", "2025-12-31T18:15", "2025-12-31T18:15"),
        ("Europe/Dublin", "2026-10-25T01:30", "2026-10-25T00:30", "2026-10-25T01:30"),  # "negative" daylight saving
        ("Antarctica/Troll", "2026-10-25T01:30", "2026-10-24T23:30", "2026-10-25T01:30"),  # two hours
        ("Africa/Monrovia", "1971-06-01T12:00", "1971-06-01T12:44:30", "1971-06-01T12:44:30"),  # seconds
    ],
)
def test_a_repeated_local_time_has_two_instants_and_an_ordinary_one_has_one(
    tz: str, shown: str, first: str, last: str
) -> None:
    assert resolve(local(shown), tz) == (utc(first),)
    assert resolve(local(shown), tz, fold="last") == (utc(last),)
    assert resolve(local(shown), tz, fold="both") == tuple(dict.fromkeys([utc(first), utc(last)]))


@pytest.mark.parametrize(
    ("tz", "left_out", "after"),
    [
        ("Europe/Paris", "2026-03-29T02:30", "2026-03-29T01:00"),  # T000-g, B013
        ("Europe/Paris", "2026-03-29T02:00", "2026-03-29T01:00"),
        ("Europe/Paris", "2026-03-29T02:59:59", "2026-03-29T01:00"),
        ("America/New_York", "2026-03-08T02:30", "2026-03-08T07:00"),  # B001
        ("Africa/Cairo", "2026-04-24T00:30", "2026-04-23T22:00"),  # T000-g: gaps at midnight
        ("America/Santiago", "2026-09-06T00:00", "2026-09-06T04:00"),
        ("Asia/Beirut", "2026-03-29T00:59", "2026-03-28T22:00"),
        ("Australia/Lord_Howe", "2026-10-04T02:15", "2026-10-03T15:30"),
        ("Pacific/Apia", "2011-12-30T12:00", "2011-12-30T10:00"),  # a whole date
        ("Africa/Casablanca", "2026-03-22T02:30", "2026-03-22T02:00"),  # after Ramadan
    ],
)
def test_a_local_time_in_a_gap_means_the_first_instant_after_it_or_nothing(tz: str, left_out: str, after: str) -> None:
    for fold in ("first", "last", "both"):
        assert resolve(local(left_out), tz, fold=fold) == (utc(after),)
        assert resolve(local(left_out), tz, gap="skip", fold=fold) == ()


def test_every_minute_around_every_change_of_every_zone_means_what_the_clock_on_the_wall_shows() -> None:
    changes = different_changes()
    assert len(changes) > 300
    for change in changes:
        wall = Wall(change.zone, change.at - 4 * HOUR, change.at + 4 * HOUR)
        for shown, instants in wall.shown.items():
            if change.at - HOUR <= instants[-1] and instants[0] < change.at + HOUR:
                assert resolve(shown, change.zone, "skip", "both") == tuple(instants), (change, shown)
                assert resolve(shown, change.zone) == (instants[0],), (change, shown)
                assert resolve(shown, change.zone, fold="last") == (instants[-1],), (change, shown)
        for left_out, after in wall.left_out:
            assert resolve(left_out, change.zone, "after", "both") == (after,), (change, left_out)
            assert resolve(left_out, change.zone, "skip", "both") == (), (change, left_out)


def test_every_change_of_every_zone_is_found() -> None:
    by_zone: dict[str, list[tuple[datetime, timedelta, timedelta]]] = {name: [] for name in ZONES}
    for change in every_change():
        by_zone[change.zone].append((change.at, change.before, change.after))
    for name, expected in by_zone.items():
        found = transitions(name, utc("2024-01-01"), utc("2031-01-01"))
        assert [(change.at, change.before, change.after) for change in found] == expected, name


@given(st.sampled_from(ZONES), st.datetimes(datetime(1970, 1, 2), datetime(2200, 12, 30)))
def test_what_a_clock_shows_at_an_instant_means_that_instant(tz: str, naive: datetime) -> None:
    instant = naive.replace(tzinfo=UTC)
    shown = instant.astimezone(ZoneInfo(tz)).replace(tzinfo=None)
    assert instant in resolve(shown, tz, "skip", "both")


@given(
    st.sampled_from([change for change in different_changes() if change.after > change.before]),
    st.floats(0, 1, exclude_max=True),
)
def test_no_clock_has_shown_a_gap_before_its_end_and_all_have_passed_it_then(change, part: float) -> None:
    left_out = change.at.replace(tzinfo=None) + change.before + part * (change.after - change.before)
    assert resolve(left_out, change.zone) == (change.at,)


def test_a_half_open_range_has_the_change_at_its_start_and_not_the_one_at_its_end() -> None:
    spring, autumn = utc("2026-03-29T01:00"), utc("2026-10-25T01:00")
    assert [change.at for change in transitions("Europe/Paris", spring, autumn)] == [spring]
    assert transitions("Europe/Paris", spring + timedelta(microseconds=1), autumn) == ()
    assert transitions("UTC", utc("1970-01-01"), utc("2100-01-01")) == ()


def test_a_transition_says_which_local_times_it_touches() -> None:
    (spring, autumn) = transitions("Europe/Paris", utc("2026-01-01"), utc("2027-01-01"))
    assert (spring.is_gap, spring.starts, spring.ends) == (True, local("2026-03-29T02:00"), local("2026-03-29T03:00"))
    assert (autumn.is_gap, autumn.starts, autumn.ends) == (False, local("2026-10-25T02:00"), local("2026-10-25T03:00"))


def explicit_changes(name: str) -> list[tuple[int, int, int]]:
    """The changes of the offset since 1970 that a compiled file of the wheel lists: (seconds since 1970, before, after)."""
    data = files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    isut, isstd, leap, timecnt, typecnt, charcnt = struct.unpack(">6l", data[20:44])
    at = 44 + timecnt * 5 + typecnt * 6 + charcnt + leap * 8 + isstd + isut  # the block of the first version
    isut, isstd, leap, timecnt, typecnt, charcnt = struct.unpack(">6l", data[at + 20 : at + 44])
    at += 44
    instants = struct.unpack(f">{timecnt}q", data[at : at + 8 * timecnt])
    kinds = data[at + 8 * timecnt : at + 9 * timecnt]
    at += 9 * timecnt
    offsets = [struct.unpack(">l", data[at + 6 * kind : at + 6 * kind + 4])[0] for kind in range(typecnt)]
    found, before = [], offsets[0]
    for instant, kind in zip(instants, kinds, strict=True):
        if offsets[kind] != before and instant >= 0:
            found.append((instant, before, offsets[kind]))
        before = offsets[kind]
    return found


def wheel_zones() -> list[str]:
    """The zones of the wheel, without those that are another one's copy."""
    folder = files("tzdata").joinpath("zoneinfo")
    names = files("tzdata").joinpath("zones").read_text().split()
    return list({folder.joinpath(*name.split("/")).read_bytes(): name for name in names}.values())


def test_changes_of_one_zone_are_more_than_the_step_of_the_search_apart() -> None:
    for name in wheel_zones():
        changes = explicit_changes(name)
        for (one, _, _), (other, before, after) in pairwise(changes):
            # A local time is touched by one change at most, and a search by steps meets one at a time.
            assert other - one > localtime._STEP.total_seconds(), (name, other)
            assert other - one > 2 * abs(after - before), (name, other)


def test_every_change_since_1970_that_the_database_lists_is_found() -> None:
    for name in wheel_zones():
        with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
            place = ZoneInfo.from_file(file, name)
        expected = [change for change in explicit_changes(name) if change[0] < 2_114_380_800]  # 2037
        end = datetime(2037, 1, 1, tzinfo=UTC)
        found = list(localtime._transitions(place, utc("1970-01-01"), end))
        seen = [
            (int(c.at.timestamp()), c.before // timedelta(seconds=1), c.after // timedelta(seconds=1)) for c in found
        ]
        # Rules without an end are not listed one by one.
        last = expected[-1][0] if expected else 0
        assert [change for change in seen if change[0] <= last] == expected, name


# --- Dates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tz", "now", "drop", "day", "opens"),
    [
        ("Pacific/Auckland", "2026-06-30T13:05", "09:00", "2026-07-01", "2026-06-30T21:00"),
        ("America/Los_Angeles", "2026-07-01T05:00", "21:30", "2026-06-30", "2026-07-01T04:30"),
        ("Pacific/Kiritimati", "2026-07-01T05:00", "21:30", "2026-07-01", "2026-07-01T07:30"),
    ],
)
def test_the_date_is_the_one_on_the_wall_of_the_zone(
    tz: str, now: str, drop: str, day: str, opens: str
) -> None:  # B015
    today = local_date(utc(now), tz)
    assert today == date.fromisoformat(day)
    assert instant_on(today, time.fromisoformat(drop), tz) == utc(opens)


def test_a_day_of_24_hours_is_not_a_day_on_the_wall() -> None:  # B012, R000-11
    for day, opens, closes_local in [("2026-10-24", "16:00", "17:00"), ("2026-03-28", "17:00", "19:00")]:
        open_at = instant_on(date.fromisoformat(day), time(18), "Europe/Paris")
        assert open_at == utc(f"{day}T{opens}")
        assert (open_at + DAY).astimezone(zone("Europe/Paris")).time() == time.fromisoformat(closes_local)


def test_a_drop_time_in_a_gap_is_reached_when_the_gap_ends() -> None:  # B013
    planned = instant_on(date(2026, 3, 29), time(2, 30), "Europe/Paris")
    assert planned == utc("2026-03-29T01:00")
    assert planned.astimezone(zone("Europe/Paris")).time() == time(3)
    assert planned + DAY == utc("2026-03-30T01:00")


# --- Zones ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tz", "remedy"),
    [
        ("America/New_Yrok", "Did you mean America/New_York?"),  # B010
        ("UTC+3", "Etc/GMT-3"),  # B010
        ("", "Europe/Paris"),  # B010
        ("   ", "Europe/Paris"),
        ("+02:00", "Etc/GMT-2"),
        ("-0530", "Name the place"),
        ("GMT-3", "Etc/GMT+3"),
        ("+00:00", "Or UTC"),
        ("local", "Europe/Paris"),
        ("localtime", "Europe/Paris"),
        ("europe/paris", "Did you mean Europe/Paris?"),
        ("new york", "Did you mean America/New_York?"),
        ("Paris", "Did you mean Europe/Paris?"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "IANA"),
        ("EST5XDT", "IANA"),
        ("PST", "IANA"),
        ("America", "IANA"),
        ("../../etc/passwd", "IANA"),
        ("/etc/localtime", "IANA"),
        ("posix/Europe/Paris", "Did you mean Europe/Paris?"),
        ("right/Europe/Paris", "Did you mean Europe/Paris?"),
        ("Europe/Paris\x00", "Did you mean Europe/Paris?"),
        ("zone.tab", "IANA"),
        ("x" * 100_000, "IANA"),
    ],
)
def test_what_is_no_iana_zone_is_refused_with_what_to_write(tz: str, remedy: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        zone(tz)
    assert refused.value.field == "tz"
    assert remedy in refused.value.remedy
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("tz", [None, 5, UTC, ZoneInfo("Europe/Paris"), b"UTC"])
def test_a_zone_that_is_no_text_is_refused(tz: object) -> None:
    with pytest.raises(InvalidArgument, match="tz: is of type"):
        zone(tz)


def test_every_iana_zone_is_known() -> None:
    for tz in (*ZONES, "Etc/GMT+12", "EST5EDT", "GMT+0"):
        assert zone(tz) is ZoneInfo(tz)


def test_the_release_of_the_database_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    assert len(tz_version()) == 5 or tz_version() == "unknown"
    for folder, file, said, expected in [
        ("a", "tzdata.zi", "# version 2031c\n# more", "2031c"),
        ("b", "+VERSION", "2030a\n", "2030a"),
        ("c", "readme", "", "unknown"),
        ("d", "tzdata.zi", "no version", "unknown"),
    ]:
        (tmp_path / folder / "Etc").mkdir(parents=True)
        (tmp_path / folder / "Etc" / "UTC").touch()
        (tmp_path / folder / file).write_text(said)
        monkeypatch.setattr("zoneinfo.TZPATH", (str(tmp_path / folder),))
        tz_version.cache_clear()
        assert tz_version("Etc/UTC") == expected
        assert tz_version("Europe/Paris") == tzdata.IANA_VERSION  # not in that folder, so of the wheel
    tz_version.cache_clear()


# --- What is refused --------------------------------------------------------------------------------------------------


def test_an_aware_local_time_and_a_naive_instant_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="local"):
        resolve(utc("2026-01-01"), "Europe/Paris")
    with pytest.raises(InvalidArgument, match="local"):
        resolve("2026-01-01", "Europe/Paris")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"instant: .* without a time zone"):
        local_date(local("2026-01-01"), "Europe/Paris")
    with pytest.raises(InvalidArgument, match="start"):
        transitions("Europe/Paris", local("2026-01-01"), utc("2026-01-01"))
    with pytest.raises(InvalidArgument, match="end"):
        transitions("Europe/Paris", utc("2026-01-01"), "tomorrow")  # type: ignore[arg-type]


def test_an_instant_that_utc_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="instant"):
        local_date(datetime.min.replace(tzinfo=timezone(HOUR)), "UTC")
    with pytest.raises(InvalidArgument, match="instant"):
        local_date(datetime.max.replace(tzinfo=UTC), "Pacific/Kiritimati")


def test_transitions_are_looked_for_in_the_years_that_are_known() -> None:
    always = transitions("Europe/Paris", datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
    assert (always[0].at.year, always[-1].at.year) == (1976, 2200)
    assert len(always) == 2 * (2200 - 1975)


@pytest.mark.parametrize("year", [1, 1969, 2201, 9999])
def test_years_that_are_not_known_are_refused(year: int) -> None:
    with pytest.raises(InvalidArgument, match="1970 to 2200"):
        resolve(datetime(year, 6, 1), "Europe/Paris")


@pytest.mark.parametrize("value", ["before", "", None, True, ["after"]])
def test_an_unknown_rule_for_gaps_or_folds_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match="gap"):
        resolve(local("2026-01-01"), "UTC", gap=value)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="fold"):
        resolve(local("2026-01-01"), "UTC", fold=value)  # type: ignore[arg-type]
