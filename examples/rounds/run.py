"""Two days of rounds in four time zones, in some seconds: `python examples/rounds/run.py`.

The clock is the program's own and jumps five minutes at a time; everything else is real: a database, the three ticks at the minutes
at which they run in earnest, the jobs that tell members, and members who take part. By default it begins the evening before clocks
change in Europe. Afterwards it looks whether what happened is what should have, and ends with 1 if not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from duly import Duly, WrongState
from duly.kernel.events import Event
from duly.rounds import Round, Rounds, Status
from duly.testing import ManualClock, drain

#: Group → its zone and the local time at which its rounds open.
GROUPS = {
    "Paris": ("Europe/Paris", "18:00"),
    "New York": ("America/New_York", "08:30"),
    "Lord Howe": ("Australia/Lord_Howe", "07:15"),
    "Kathmandu": ("Asia/Kathmandu", "06:45"),
}
PROMPTS = (
    "What did you read?",
    "What made you laugh?",
    "Where would you go?",
    "Whom do you miss?",
    "What is for dinner?",
)
MEMBERS = ("ada", "grace", "mary")
STEP = timedelta(minutes=5)


class Day:
    """The groups, their clock, and what is told of them."""

    def __init__(self, database_url: str, start: datetime) -> None:
        self.clock = ManualClock(start)
        self.app = Duly(database_url, clock=self.clock, sqlite_synchronous="NORMAL")
        self.rounds = Rounds(self.app)
        self.told: Counter[tuple[int, int]] = Counter()
        self.refused = 0
        self.app.listen(self.hear)
        self.before: dict[int, Status] = {}
        for name, (zone, drop_time) in GROUPS.items():
            self.rounds.groups.add(name, zone, drop_time=drop_time)
            self.rounds.prompts.add(name, *PROMPTS)
            for member in MEMBERS:
                self.rounds.members.add(name, member, channels=["log"])

    def hear(self, event: Event) -> None:
        if event.name == "round_notified":
            self.told[event.facts["round"], event.facts["member"]] += 1
        elif event.name == "round_failed":
            self.say(f"group {event.facts['group']} failed: {event.facts['error']}")

    def say(self, what: str) -> None:
        print(f"{self.clock.now():%a %H:%M}Z  {what}")

    # ------------------------------------------------------------------ time

    def live(self, days: int) -> None:
        """Let days pass, tick by tick."""
        end = self.clock.now() + timedelta(days=days)
        while self.clock.now() < end:
            moved = self.rounds.plan().done if self.clock.now().minute == 0 else 0
            moved += self.rounds.open().done + self.rounds.close().done
            if moved:
                drain(self.app)
                self.look()
            self.clock.advance(STEP)

    def look(self) -> None:
        """Say what has changed since the last look, and take part."""
        for found in reversed(self.rounds.list(limit=len(GROUPS) * 2)):
            if self.before.get(found.id) == found.status:
                continue
            self.before[found.id] = found.status
            name = self.rounds.groups.get(found.group_id).name
            if found.status is Status.SCHEDULED:
                self.say(f"{name:<9} planned for {found.scheduled_for}, {self.wall(found, found.planned_at)}")
            elif found.status is Status.OPEN:
                told = sum(1 for (ident, _), count in self.told.items() if ident == found.id and count)
                self.say(
                    f"{name:<9} open at {self.wall(found, found.open_at)}: {found.prompt_text} ({told} members told)"
                )
                self.take_part(found)
            else:
                self.say(f"{name:<9} closed at {self.wall(found, found.close_at)}: {self.winner(found)}")
                self.come_late(found)

    def wall(self, found: Round, instant: datetime | None) -> str:
        """What the group's clock shows."""
        assert instant is not None
        return f"{instant.astimezone(ZoneInfo(found.zone)):%a %H:%M %Z}"

    # ------------------------------------------------------------------ members

    def take_part(self, found: Round) -> None:
        made = [self.rounds.submit(found.id, member, f"{member} says {len(member) * found.id}") for member in MEMBERS]
        self.rounds.comment(made[0].id, "grace", "Really?")
        for member in MEMBERS:
            self.rounds.vote(made[found.id % len(made)].id, member)

    def come_late(self, found: Round) -> None:
        try:
            self.rounds.submit(found.id, MEMBERS[0], "too late")
        except WrongState:
            self.refused += 1

    def winner(self, found: Round) -> str:
        archive = self.rounds.show(found.id)
        best = max(archive.submissions, key=lambda s: archive.votes_for(s.id))
        return f"{archive.votes_for(best.id)} votes for {best.text!r}"

    # ------------------------------------------------------------------ afterwards

    def problems(self) -> list[str]:
        """What is not as it should be."""
        found = self.rounds.list(limit=1000)
        out = []
        for one in found:
            if (
                one.open_at is not None
                and one.close_at is not None
                and one.close_at - one.open_at != timedelta(hours=24)
            ):
                out.append(f"round {one.id} is open for {one.close_at - one.open_at}")
            told = [count for (ident, _), count in self.told.items() if ident == one.id]
            if one.opened_at is not None and told != [1] * len(MEMBERS):
                out.append(f"round {one.id}: members were told {told} times")
        closed = [one for one in found if one.status is Status.CLOSED]
        if self.refused != len(closed):
            out.append(f"{self.refused} of {len(closed)} late submissions were refused")
        for name in GROUPS:
            if not any(one.group_id == self.rounds.groups.get(name).id for one in closed):
                out.append(f"{name} had no round")
        return out


def main() -> int:
    p = argparse.ArgumentParser(description="Rounds in four time zones, in some seconds.")
    p.add_argument(
        "--date", type=date.fromisoformat, default=date(2026, 3, 28), help="where to begin, YYYY-MM-DD (2026-03-28)"
    )
    p.add_argument("--days", type=int, default=3, help="how many days to live (3)")
    p.add_argument("--database-url", help="an empty database; without it one that goes when it ends")
    o = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="rounds-") as folder:
        day = Day(o.database_url or f"sqlite:///{Path(folder) / 'rounds.db'}", datetime.combine(o.date, time(), UTC))
        day.live(o.days)
        problems = day.problems()
        ticks = day.rounds.ticks(limit=10_000)
        print(
            f"\n{len(day.rounds.list(limit=1000))} rounds, {sum(day.told.values())} notices, {day.refused} late submissions refused, "
            f"{len(ticks)} passes of the ticks ({sum(t.failed for t in ticks)} groups failed)."
        )
        for u in day.rounds.next():
            name = day.rounds.groups.get(u.group_id).name
            print(f"next: {name:<9} {u.at:%a %d %B %H:%M}Z" if u.at else f"next: {name:<9} none ({u.reason})")
        day.app.close()
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
