"""Stories on a clock that the test moves: days on which clocks change around the world, an outage, a move, a day that was left out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from itertools import pairwise

import pytest
from sqlalchemy import text

from duly import Duly
from duly.kernel.localtime import instant_on, local_date, transitions, zone
from duly.rounds import Round, Rounds, Status
from duly.storage.types import Instant
from duly.testing import ManualClock, drain, enqueued
from rounds.hands import ready, utc

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)

#: Zone → a local time that the year's transitions hit, where there are any.
AROUND = {
    "Europe/Paris": "02:30",
    "America/New_York": "18:00",
    "Australia/Lord_Howe": "02:15",
    "Africa/Cairo": "00:15",
    "America/Santiago": "00:30",
    "Pacific/Apia": "22:58",
    "Asia/Kathmandu": "06:45",
}


class World:
    """Groups and a clock that jumps to the next tick at which there is something to do, at odd minutes."""

    def __init__(self, url: str, start: str) -> None:
        self.clock = ManualClock(utc(start))
        self.app = Duly(url, clock=self.clock, sqlite_synchronous="NORMAL")
        self.rounds = Rounds(self.app, draw=random.Random(11).random)

    def next_tick(self) -> tuple[datetime, str]:
        """The first tick at or after the moment at which something becomes due: seven past the hour, three past five minutes."""
        found = []
        for kind, sql, step, odd in (
            ("plan", "SELECT min(plan_at) AS at FROM groups WHERE is_active", HOUR, 7 * MINUTE),
            ("open", "SELECT min(due_at) AS at FROM rounds WHERE status = 'scheduled'", 5 * MINUTE, 3 * MINUTE),
            ("close", "SELECT min(close_at) AS at FROM rounds WHERE status = 'open'", 5 * MINUTE, 3 * MINUTE),
        ):
            query = text(sql).columns(at=Instant)
            due = self.app.db.read(lambda c, query=query: c.execute(query).scalar())  # type: ignore[misc]
            if due is not None:
                due = max(due, self.clock.now())
                midnight = due.replace(hour=0, minute=0, second=0, microsecond=0) - DAY + odd
                found.append((midnight + -((midnight - due) // step) * step, kind))
        return min(found)

    def until(self, end: datetime) -> None:
        while (due := self.next_tick())[0] < end:
            self.clock.set(due[0])
            getattr(self.rounds, due[1])()


@pytest.fixture
def world(db_url: str) -> Iterator[World]:
    made = World(db_url, "2026-01-01 00:00")
    yield made
    made.app.close()


def check(found: Round) -> None:
    """What is true of every round, whenever and wherever."""
    planned = instant_on(found.scheduled_for, datetime.strptime(found.drop_time, "%H:%M").time(), found.zone)
    assert found.planned_at == planned
    assert found.open_at is not None
    assert found.close_at is not None
    assert found.close_at - found.open_at == DAY
    assert found.opened_at is not None
    assert found.opened_at >= planned
    assert found.late is not None
    assert 0 <= found.late < 300
    assert local_date(found.created_at, found.zone) == found.scheduled_for
    assert found.open_at in (planned, found.opened_at)


@pytest.mark.parametrize("name", AROUND)
def test_rounds_around_the_world_on_the_days_on_which_clocks_change(world: World, name: str) -> None:
    # R000-5, R000-9 to R000-14, T000-b to T000-g: ticks at odd minutes, a week before and after each change of the year
    year = utc("2026-01-01 00:00"), utc("2027-01-01 00:00")
    changes = [change.at for change in transitions(name, *year)]
    assert len(changes) == (0 if name in ("Pacific/Apia", "Asia/Kathmandu") else 2)
    for n, at in enumerate(changes or [utc("2026-03-29 01:00")]):
        group = f"{name} {n}"
        world.clock.set(at - 8 * DAY)
        ready(world.rounds, group, name, drop_time=AROUND[name], prompts=9, members=1)
        world.until(at + 8 * DAY)
        world.rounds.groups.set(group, is_active=False)
        told = list(reversed(world.rounds.list(group)))
        ended = [r for r in told if r.status is Status.CLOSED]
        assert len(told) - len(ended) <= 1
        assert len(ended) in (7, 8)
        for r in ended:
            check(r)
            assert r.closed_at is not None
            assert r.close_at is not None
            assert timedelta(0) <= r.closed_at - r.close_at < 5 * MINUTE
        for before, after in pairwise(ended):
            assert before.close_at is not None
            assert after.created_at >= before.close_at + DAY
            assert 2 <= (after.scheduled_for - before.scheduled_for).days <= 3
        assert len({r.prompt_id for r in ended}) == len(ended)
        # the hour on the wall is the same on both sides of a change, but for the day on which it is not there
        odd = [r for r in ended if r.planned_at.astimezone(zone(name)).strftime("%H:%M") != r.drop_time]
        assert len(odd) <= (1 if changes else 0)
        assert all(local_date(at, name) == r.scheduled_for for r in odd)
    opened = [r for r in world.rounds.list(limit=1000) if r.opened_at is not None]
    assert len(enqueued(world.app, "ROUNDS_NOTIFY_LOG")) == len(opened)


@pytest.mark.parametrize(("cooldown", "days"), [(None, 2), (timedelta(hours=23), 2), (timedelta(0), 1)])
def test_a_time_just_before_midnight_is_an_hour_like_any_other(
    world: World, cooldown: timedelta | None, days: int
) -> None:
    # R000-24: the pass that comes after midnight plans for the date whose hour has just come
    ready(world.rounds, "a", "UTC", drop_time="23:58", cooldown=cooldown)
    Rounds.of(world.app).schedule()
    world.app.schedules.sync()
    while (now := world.clock.now()) < utc("2026-01-09 00:00"):
        # around midnight at every pass; by day nothing is due, and a pass in the hour is enough
        world.clock.advance((5 if now.hour in (23, 0) else 60) * MINUTE)
        drain(world.app)
    told = [r for r in reversed(world.rounds.list("a")) if r.open_at]
    assert [r.scheduled_for.day for r in told][:4] == [1, 1 + days, 1 + 2 * days, 1 + 3 * days]
    assert all(r.late is not None and r.late < 300 for r in told)


def test_a_day_without_anybody_costs_a_day_and_then_the_hour_is_kept_again(world: World) -> None:
    # T000-f
    ready(world.rounds, "a", "Europe/Paris", drop_time="18:00")
    world.until(utc("2026-01-09 12:00"))
    before = world.rounds.list("a")
    assert [r.open_at for r in before if r.open_at] == [utc(f"2026-01-0{day} 17:00") for day in (7, 5, 3, 1)]
    world.rounds.plan(utc("2026-01-09 17:00"))
    world.clock.set(utc("2026-01-10 16:33"))  # the round of the 9th was planned, and then nobody was there
    world.rounds.tick()
    late = world.rounds.list("a")[0]
    assert (late.scheduled_for, late.open_at, late.close_at) == (
        date(2026, 1, 9),
        utc("2026-01-10 16:33"),
        utc("2026-01-11 16:33"),
    )
    world.until(utc("2026-01-17 00:00"))
    after = [r.open_at for r in reversed(world.rounds.list("a")) if r.id > late.id]
    # the day of waiting is over at 17:33 local time; from the next round on it is 18:00 again
    assert after == [utc("2026-01-12 17:00"), utc("2026-01-14 17:00"), utc("2026-01-16 17:00")]


@pytest.mark.parametrize("hours", [1, 5, 11, 23])
def test_an_outage_moves_one_round_and_not_the_hour(world: World, hours: int) -> None:
    # T000-f: members get their 24 hours, and what follows is at the old hour again
    ready(world.rounds, "a", "UTC", drop_time="08:30")
    world.rounds.plan(utc("2026-01-01 01:00"))
    world.clock.set(utc("2026-01-01 08:30") + hours * HOUR)
    world.rounds.open()
    world.until(utc("2026-01-12 00:00"))
    told = [r.open_at for r in reversed(world.rounds.list("a")) if r.open_at]
    assert told[0] == utc("2026-01-01 08:30") + (hours if hours > 2 else 0) * HOUR
    assert {at.strftime("%H:%M") for at in told[1:]} == {"08:30"}
    assert told[1].day == (3 if hours <= 2 else 4)


def test_a_group_moves_while_a_round_is_open(world: World) -> None:
    # T000-q, R000-21
    ready(world.rounds, "a", "Asia/Tokyo", drop_time="18:00")
    world.until(utc("2026-01-01 12:00"))
    (opened,) = world.rounds.list("a")
    assert opened.open_at == utc("2026-01-01 09:00")
    world.rounds.groups.set("a", zone="America/Los_Angeles")
    world.until(utc("2026-01-06 00:00"))
    second, first = world.rounds.list("a")
    assert (first.zone, first.close_at) == ("Asia/Tokyo", utc("2026-01-02 09:00"))
    assert (second.zone, second.scheduled_for) == ("America/Los_Angeles", date(2026, 1, 3))
    assert second.open_at == utc("2026-01-04 02:00")


def test_apia_has_no_round_for_the_day_it_left_out(db_url: str) -> None:
    # T000-g: never skipped, never opened twice
    world = World(db_url, "2011-12-28 12:00")
    ready(world.rounds, "a", "Pacific/Apia", drop_time="18:00", cooldown=0)
    world.until(utc("2012-01-03 12:00"))
    told = [(str(r.scheduled_for), r.open_at) for r in reversed(world.rounds.list("a")) if r.open_at]
    assert told == [
        ("2011-12-28", utc("2011-12-29 04:00")),
        ("2011-12-29", utc("2011-12-30 04:00")),
        ("2011-12-31", utc("2011-12-31 04:00")),
        ("2012-01-01", utc("2012-01-01 04:00")),
        ("2012-01-02", utc("2012-01-02 04:00")),
        ("2012-01-03", utc("2012-01-03 04:00")),
    ]
    world.app.close()


def test_a_round_a_day_opens_at_its_hour_every_day(app: Duly, clock: ManualClock) -> None:
    rounds = Rounds(app)
    rounds.schedule()
    app.schedules.sync()
    group = ready(rounds, "daily", "Europe/Paris", prompts=20, drop_time="18:00", cooldown=0)
    for day in range(1, 4):
        for at in ("12:00", "15:55", "16:00", "16:05"):
            clock.set(utc(f"2026-06-{day:02} {at}"))
            drain(app)
    opened = sorted((r.opened_at, r.open_at, r.late) for r in rounds.list(group.id) if r.opened_at and r.open_at)
    assert [at for at, _, _ in opened] == [utc(f"2026-06-{day:02} 16:00") for day in range(1, 4)]
    assert all(opened_at == open_at and late == 0 for opened_at, open_at, late in opened)
