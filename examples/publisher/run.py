"""A week of posts on a folder and on a site, in some seconds: `python examples/publisher/run.py`.

The clock is the program's own and jumps half an hour at a time; everything else is real: a database, a plan and channels in YAML, workers,
files, and a site on this machine that speaks WordPress's REST API, loses an answer, is away, and asks us to wait. Nights are blackouts,
and in the last one Rome puts its clocks forward. The plan is made anew every day, as a cron job would. Afterwards it looks whether
everything is there once and nothing came at night, and ends with 1 if not.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from website import PASSWORD, Site

from duly import Duly
from duly.kernel.windows import Window
from duly.publishing import Publication, Publishing
from duly.publishing.calendar import Entry, lines, week
from duly.publishing.plan import load
from duly.testing import ManualClock, drain

HERE = Path(__file__).parent
ROME = ZoneInfo("Europe/Rome")
MONDAY = date(2026, 3, 23)
STEP = timedelta(minutes=30)
NIGHT = Window(start="22:00", end="07:00", tz="Europe/Rome", name="night")
#: Title → what the site does when that post is to become public, request by request.
MOODS = {"Pears": ["lost"], "Quinces": ["away", "away"], "Opening hours": ["wait"]}


class Week:
    """The application, its clock, and what it publishes."""

    def __init__(self, database_url: str) -> None:
        self.clock = ManualClock(datetime(2026, 3, 22, 23, tzinfo=UTC))
        self.app = Duly(
            database_url, clock=self.clock, publish_channels=str(HERE / "channels.yaml"), sqlite_synchronous="NORMAL"
        )
        self.publishing = Publishing(self.app)
        self.app.calendars.set(NIGHT, "people sleep")
        self.plan = load(HERE / "week.yaml")
        self.seen: dict[int, tuple[str, int]] = {}
        self.published: dict[int, list[datetime]] = {}

        @self.publishing.on("published")
        def told(job: Publication, facts: Mapping[str, Any]) -> None:
            self.published.setdefault(job.id, []).append(self.clock.now())

    def draw(self) -> None:
        entries = [Entry(one.run_at, one.channel, "planned", one.payload["title"]) for one in self.plan.items]
        calendar = self.app.db.read(self.app.engine.calendars.calendar)
        for line in lines(week(MONDAY, "Europe/Rome", entries, calendar, self.plan.channels)):
            print("".join(text for text, _ in line).rstrip())

    def live(self) -> None:
        """Let the week pass."""
        end = self.clock.now() + timedelta(days=7)
        while self.clock.now() < end:
            if self.wall().hour == 8 and self.wall().minute == 0:
                self.make()
            drain(self.app, queues=list(self.publishing.channels))
            self.look()
            self.clock.advance(STEP)

    def make(self) -> None:
        """The plan, again: what is there stays as it is."""
        made = self.publishing.enqueue_plan(self.plan.items)
        new = sum(created for _, created in made)
        if new:
            self.say(f"the plan: {new} posts made")

    def look(self) -> None:
        """Say what has changed since the last look."""
        for job in reversed(self.publishing.list(limit=100)):
            now = (str(job.status), job.attempts)
            if self.seen.get(job.id) == now or (job.status == "pending" and not job.attempts):
                continue
            self.seen[job.id] = now
            what = job.remote_id if job.status == "completed" else job.error
            runs = f" in run {job.attempts}" if job.attempts > 1 else ""
            self.say(f"{job.channel:<6} {job.payload['title']:<14} {job.status}{runs}: {what}")

    def wall(self) -> datetime:
        return self.clock.now().astimezone(ROME)

    def say(self, what: str) -> None:
        print(f"{self.wall():%a %H:%M %Z}  {what}")

    # ------------------------------------------------------------------ afterwards

    def problems(self, site: Site, notes: Path) -> list[str]:
        """What is not as it should be."""
        out = []
        wanted = {
            name: [i.payload["title"] for i in self.plan.items if i.channel == name] for name in self.plan.channels
        }
        if site.published != wanted["site"]:
            out.append(f"the site has {site.published} instead of {wanted['site']}")
        folders = Counter(file.parent.name.rpartition("-")[0] for file in notes.glob("*/index.md"))
        if sorted(folders) != sorted(title.lower().replace(" ", "-") for title in wanted["notes"]) or set(
            folders.values()
        ) != {1}:
            out.append(f"the folder has {dict(folders)} instead of {wanted['notes']}")
        pictures = [one for one in self.plan.items if one.channel == "site" and one.payload.get("assets")]
        if len(site.media) != len(pictures):
            out.append(f"{len(site.media)} uploads of {len(pictures)} pictures")
        for job in self.publishing.list(limit=100):
            at = self.published.get(job.id, [])
            if job.status != "completed" or len(at) != 1:
                out.append(
                    f"{job.payload['title']} on {job.channel} is {job.status}, published {len(at)} times: {job.error}"
                )
            elif NIGHT.covers(at[0]):
                out.append(f"{job.payload['title']} on {job.channel} came at night, at {at[0]}")
        return out


def main() -> int:
    p = argparse.ArgumentParser(description="A week of posts, in some seconds.")
    p.add_argument("--database-url", help="an empty database; without it one that goes when it ends")
    p.add_argument("--folder", type=Path, help="keep the posts of the folder here")
    o = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="publisher-") as temporary, Site(MOODS) as site:
        notes = (o.folder or Path(temporary) / "notes").resolve()
        os.environ.update(SITE_URL=site.url, SITE_PASSWORD=PASSWORD, NOTES_FOLDER=str(notes))
        made = Week(o.database_url or f"sqlite:///{Path(temporary) / 'publisher.db'}")
        made.draw()
        print()
        made.live()
        problems = made.problems(site, notes)
        there = len(site.published), sum(1 for _ in notes.glob("*/index.md"))
        well = "" if problems else ", each once, none at night"
        print(f"\n{there[0]} posts on the site with {len(site.media)} pictures, {there[1]} in the folder{well}.")
        made.app.close()
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
