"""Yesterday, on a clock of its own: so that a round which lasts 24 hours of real time can end while one looks.

Groups are made, their rounds open at their own local hour, members take part, the bell strikes, the gazette and the board come out, and a job
fails. Everything is done by an application like today's on today's database; only its clock is moved by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from town import Rooms

from duly import Duly
from duly.publishing.plan import Planned
from duly.rounds import Status
from duly.testing import ManualClock, drain

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
#: Groups whose round ends, and whose next one opens, while one looks: the first three whose clocks were not changed since yesterday.
TURNING = (
    ("readers of Paris", "Europe/Paris"),
    ("walkers of New York", "America/New_York"),
    ("cooks of Kathmandu", "Asia/Kathmandu"),
    ("bakers of Tokyo", "Asia/Tokyo"),
    ("singers of Nairobi", "Africa/Nairobi"),
    ("gardeners of Bogotá", "America/Bogota"),
)
#: Groups with an hour of their own.
SETTLED = (("rowers of Auckland", "Pacific/Auckland", "07:30"), ("painters of Lisbon", "Europe/Lisbon", "18:00"))
PROMPTS = (
    "What did you read?",
    "What made you laugh?",
    "Where would you go?",
    "Whom do you miss?",
    "What is for dinner?",
)
MEMBERS = ("ada", "grace", "mary")
#: After so many hours something fails.
FAILURES = (3, 9, 20)


@dataclass(frozen=True, slots=True)
class Founding:
    """A group, and the instant yesterday at which it is made and its first round opens."""

    at: datetime
    name: str
    zone: str

    @property
    def drop_time(self) -> str:
        return f"{self.at.astimezone(ZoneInfo(self.zone)):%H:%M}"


def turning(minute: datetime) -> list[Founding]:
    """Three groups whose clocks show the same at that minute as a day before: 24 hours later it is their hour again."""
    at = minute - DAY
    same = [(name, zone) for name, zone in TURNING if offset(at, zone) == offset(minute, zone)]
    return [Founding(at, name, zone) for name, zone in same[:3]]


def settled(now: datetime) -> list[Founding]:
    """The other groups: each is made when its hour came last."""
    return [Founding(last(now, zone, hour), name, zone) for name, zone, hour in SETTLED]


def offset(at: datetime, zone: str) -> timedelta | None:
    return at.astimezone(ZoneInfo(zone)).utcoffset()


def last(now: datetime, zone: str, hour: str) -> datetime:
    """The last instant before ``now`` at which the zone's clock reached that time."""
    here, at = now.astimezone(ZoneInfo(zone)), time.fromisoformat(hour)
    day = here.date() if here.time() > at else here.date() - DAY
    return datetime.combine(day, at, ZoneInfo(zone)).astimezone(UTC)


def live(
    database_url: str, groups: Sequence[Founding], items: Sequence[Planned], begun: datetime, until: datetime
) -> None:
    """Let a day pass from ``begun`` until ``until``, hour by hour. ``items``: the calendar, which is made when it begins."""
    clock = ManualClock(begun)
    app = Duly(database_url, clock=clock, sqlite_synchronous="NORMAL")
    try:
        rooms = Rooms(app)
        rooms.publishing.enqueue_plan(items, actor="calendar")
        full = begun.replace(minute=0)
        hours = {full + n * HOUR for n in range(1, 26)}
        for instant in sorted(at for at in {begun, *hours, *(g.at for g in groups)} if begun <= at < until):
            clock.set(instant)
            for group in groups:
                if group.at == instant:
                    found(rooms, group)
            if rooms.rounds.plan().done + rooms.rounds.open().done:
                take_part(rooms)
            if (instant - full) // HOUR in FAILURES:
                app.enqueue("TURN_WEATHERCOCK", key=f"weathercock-{instant:%d-%H}")
            drain(app)
    finally:
        app.close()


def found(rooms: Rooms, group: Founding) -> None:
    rooms.rounds.groups.add(group.name, group.zone, drop_time=group.drop_time, cooldown=0)
    rooms.rounds.prompts.add(group.name, *PROMPTS)
    city = group.zone.rpartition("/")[2].lower()
    for member in MEMBERS:
        by_mail = member == "ada"
        email = f"{member}.{city}@example.org" if by_mail else None
        rooms.rounds.members.add(group.name, member, email=email, channels=["email" if by_mail else "log"])


def take_part(rooms: Rooms) -> None:
    """Members answer, talk and vote in rounds that have no answers yet."""
    for found in rooms.rounds.list(status=Status.OPEN):
        if rooms.rounds.show(found.id).submissions:
            continue
        made = [rooms.rounds.submit(found.id, name, f"{name} would rather not say") for name in MEMBERS]
        rooms.rounds.comment(made[0].id, "grace", "Really?")
        for name in MEMBERS:
            rooms.rounds.vote(made[found.id % len(made)].id, name)
