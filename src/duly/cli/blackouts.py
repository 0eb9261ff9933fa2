"""``duly blackouts``: when work is held, in local time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import Group, actor, state
from duly.cli.times import INSTANT, relative, stamp

if TYPE_CHECKING:
    from duly.calendars.blackout import Blackout
    from duly.jobs.impact import Impact
    from duly.kernel.windows import Window

_REASON = click.option("--reason", default="", help="Why, for those who look at it later.")


@click.group(cls=Group)
def blackouts() -> None:
    """Hold work in windows of local time."""


def _window(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say a window."""
    for option in (
        click.option(
            "--scope",
            default="all",
            metavar="SCOPE",
            show_default=True,
            help="What it holds: all, queue:NAME, channel:NAME or schedule:NAME.",
        ),
        click.option(
            "--date", "dates", multiple=True, metavar="DATE[..DATE]", help="Dates on which it starts; may be repeated."
        ),
        click.option("--days", metavar="DAYS", help="Days of the week on which it starts: wed, mon-fri, sat,sun."),
        click.option("--tz", metavar="ZONE", required=True, help="The zone whose clock is meant: Europe/Rome."),
        click.option("--end", default="24:00", metavar="TIME", show_default=True, help="The local time of its end."),
        click.option(
            "--start", default="00:00", metavar="TIME", show_default=True, help="The local time of its beginning."
        ),
    ):
        command = option(command)
    return command


def _made(name: str | None, said: dict[str, Any]) -> Window:
    from duly.kernel.windows import Window

    dates = [tuple(one.split("..", 1)) if ".." in one else one for one in said["dates"]]
    return Window(
        days=said["days"], start=said["start"], end=said["end"], tz=said["tz"], dates=dates or None, name=name,
        scope=said["scope"],
    )  # fmt: skip


@blackouts.command("set")
@click.argument("name")
@_window
@click.option("--disabled", is_flag=True, help="Keep it without holding anything.")
@_REASON
def set_(name: str, disabled: bool, reason: str, **said: Any) -> None:
    """Hold work in a window; one that is there by this name is replaced.

    An end at or before the start is on the next day. Running jobs go on; new ones are accepted and wait.
    """
    _tell(state().open(make=True).calendars.set(_made(name, said), reason, actor(), enabled=not disabled))


@blackouts.command("list")
def list_() -> None:
    """List blackouts: what they hold, and when next."""
    asked = state()
    app = asked.open()
    found = list(app.calendars.all().values())
    if asked.json:
        show.as_json([b.to_json() for b in found])
        return
    now = app.engine.clock.now()
    show.table(
        "!name scope when holds reason",
        ((b.name, b.scope, b.describe(), _holds(b, now), b.reason) for b in found),
        empty="There are no blackouts.",
    )


@blackouts.command("show")
@click.argument("name")
def show_(name: str) -> None:
    """Show one blackout: its window, who set it and why."""
    asked = state()
    app = asked.open()
    found = app.calendars.get(name)
    if asked.json:
        show.as_json(found.to_json())
        return
    said = found.to_json()
    rows = [
        ("scope", found.scope),
        ("when", found.describe()),
        ("holds", _holds(found, app.engine.clock.now())),
        ("from", stamp(said["holds_from"])),
        ("until", stamp(said["holds_until"]) or ("" if said["holds_from"] is None else "no end is in sight")),
        ("reason", found.reason or ""),
        ("imported as", found.source or ""),
        ("set", f"{stamp(found.updated_at)} by {found.updated_by}"),
    ]
    show.table(f"!{found.name} what", [row for row in rows if row[1]])


@blackouts.command()
@click.argument("name")
@_REASON
def enable(name: str, reason: str) -> None:
    """Let a blackout hold again."""
    _tell(state().open().calendars.enable(name, reason, actor()))


@blackouts.command()
@click.argument("name")
@_REASON
def disable(name: str, reason: str) -> None:
    """Keep a blackout without holding anything."""
    _tell(state().open().calendars.disable(name, reason, actor()))


@blackouts.command()
@click.argument("name")
@_REASON
def remove(name: str, reason: str) -> None:
    """Take a blackout away.

    What it held may start at once.
    """
    asked = state()
    gone = asked.open().calendars.remove(name, reason, actor())
    if asked.json:
        show.as_json(gone.to_json())
        return
    show.say(f"Blackout {gone.name} is removed: {gone.describe()}.")


@blackouts.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", required=True, help="What its windows are called: NAME, NAME-2, …")
@click.option("--scope", default="all", metavar="SCOPE", show_default=True, help="What they hold.")
@click.option("--tz", metavar="ZONE", help="The zone of days and times that the file gives without one.")
@click.option("--from", "start", type=INSTANT, help="What happens before this instant is left out; else now.")
@click.option("--until", "end", type=INSTANT, help="What begins after it is left out; else 400 days later.")
@click.option("--dry-run", is_flag=True, help="Show what would be set.")
@_REASON
def import_(
    file: Path,
    name: str,
    scope: str,
    tz: str | None,
    start: datetime | None,
    end: datetime | None,
    dry_run: bool,
    reason: str,
) -> None:
    """Set the events of a calendar file (.ics) as blackouts.

    What an import of the same name set before is replaced. Needs duly[ical].
    """
    from duly.calendars.ical import MOST_BYTES, read_ical

    asked = state()
    app = asked.open(make=not dry_run)
    with file.open("rb") as opened:
        data = opened.read(MOST_BYTES + 1)
    found = read_ical(data, name, scope=scope, tz=tz, start=start or app.engine.clock.now(), end=end, file=file.name)
    if not dry_run:
        app.calendars.replace(name, found.windows, reason, actor())
    if asked.json:
        show.as_json(
            {
                "events": found.events,
                "occurrences": found.occurrences,
                "left_out": found.left_out,
                "dry_run": dry_run,
                "windows": [w.to_json() for w in found.windows],
            }
        )
        return
    show.table("!name when", ((w.name, w.describe()) for w in found.windows), empty="Nothing of it holds in this time.")
    for left in found.left_out[:20]:
        show.say(f"Left out: {left}")
    would = "would be" if dry_run else "are"
    show.say(
        f"{found.occurrences} occurrences of {found.events} events {would} held by {len(found.windows)} blackouts."
    )


@blackouts.command()
@_window
@click.option("--from", "since", type=INSTANT, help="The beginning of the time that is looked at; else now.")
@click.option("--until", type=INSTANT, help="Its end; else seven days later.")
def impact(since: datetime | None, until: datetime | None, **said: Any) -> None:
    """Say what a window would hold, without setting it.

    Waiting jobs by queue, and planned occurrences of schedules.
    """
    asked = state()
    found = asked.open().calendars.impact(_made(None, said), since, until)
    if asked.json:
        show.as_json(found)
        return
    _show_impact(found)


def _show_impact(found: Impact) -> None:
    show.table(
        "!holds_from !until",
        ((stamp(s.start), stamp(s.end)) for s in found.stretches[:20]),
        empty="It does not hold in this time.",
    )
    if not found.stretches:
        return
    rows: list[tuple[object, ...]] = [
        (
            f"queue {q.queue}",
            f"{q.count}+" if q.at_least else q.count,
            f"job {q.first[0].id} at {stamp(q.first[0].at)}" if q.first else "",
        )
        for q in found.queues
    ]
    rows += [(f"schedule {s.schedule}", s.count, stamp(s.first[0])) for s in found.schedules]
    show.say()
    show.table("!held #how_many the_first", rows, empty="Nothing that is known of now would be held.")


def _holds(b: Blackout, now: datetime) -> str:
    if not b.enabled:
        return "disabled"
    if b.hold.is_on(now) and not b.hold.is_over(now):
        return "now, " + (f"until {stamp(b.hold.until)}" if b.hold.until is not None else "and no end is in sight")
    if b.hold.since is None or b.hold.is_over(now):
        return "a worker is to look"
    return "never again" if b.hold.since.year == 9999 else relative(b.hold.since, now)


def _tell(b: Blackout) -> None:
    asked = state()
    if asked.json:
        show.as_json(b.to_json())
        return
    now = asked.open().engine.clock.now()
    show.say(f"Blackout {b.name} holds {b.scope}: {b.describe()} ({_holds(b, now)}).")
