"""``duly publish``: plans of posts, previews and checks, channels, the week as a calendar, and the REST door."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import Group, actor, complain, state
from duly.cli.publications import cancel, label, list_, replay, show_
from duly.cli.times import INSTANT, relative, stamp

if TYPE_CHECKING:
    from duly.kernel.windows import Calendar
    from duly.publishing.calendar import Entry, Line
    from duly.publishing.door import Publishing
    from duly.publishing.plan import Plan, Planned
    from duly.publishing.preflight import Report
    from duly.publishing.view import Enqueued, Publication, Synced

#: A post of a plan that is due so much before now is told of: it would be published at once.
LATE = timedelta(minutes=5)


@click.group(cls=Group)
def publish() -> None:
    """Posts on channels: plan, look, replay, preview."""


def door(make: bool = False, database: bool = True) -> Publishing:
    """The publications of the application, or of a bare one with the channels of the setting publish_channels. ``make``: as ``State.open``."""
    from duly.kernel.errors import InvalidArgument
    from duly.publishing.door import Publishing

    made = Publishing.of(state().open(make) if database else state().duly())
    if not made.channels:
        remedy = "Name a file of channels in DULY_PUBLISH_CHANNELS, or an application with --app."
        raise InvalidArgument("publish_channels", "is not set, so there are no channels.", remedy)
    return made


# ---------------------------------------------------------------------- plans


@publish.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check it and print what would be made and cancelled; write nothing.")
@click.option("--sync", is_flag=True, help="Cancel the posts of this plan that wait and are no longer in the file.")
@click.option("--override", metavar="REASON", help="Make them although checks fail, and say why; it is audited.")
@click.option("--skip-past", is_flag=True, help="Leave out what was due before now.")
@click.option("--tenant", help="The tenant, where it is not the application's.")
def plan(file: Path, dry_run: bool, sync: bool, override: str | None, skip_past: bool, tenant: str | None) -> None:
    """Make the posts of a plan (YAML or JSON).

    The same plan twice makes nothing twice. Nothing at all is made when something in it is wrong, or a check fails.
    A post that was changed in the file is a new one: --sync cancels the one it takes the place of. --sync knows the posts of
    a plan by its field name, or without one by the name of its file.
    """
    from duly.publishing.plan import load

    read = load(file)
    publishing, there = _if_there() if dry_run else (door(make=True), True)
    now = publishing._app.engine.clock.now()
    items = [one for one in read.items if not skip_past or one.run_at >= now]
    from duly.publishing.view import Synced

    gone: list[Publication] = []
    kept: Mapping[int, int] = {}
    if dry_run:
        shown = Synced([], [], publishing.collisions(items, tenant) if there else {}, {})
        if sync and there:
            shown = publishing.sync_plan(read, items, tenant=tenant, override="dry run", dry_run=True)
        _foretold(publishing, there, read, items, override, tenant, now, shown)
        return
    if sync:
        made, gone, close, kept = publishing.sync_plan(read, items, tenant=tenant, override=override, actor=actor())
    else:
        close = publishing.collisions(items, tenant)
        made = publishing.enqueue_plan(items, tenant=tenant, override=override, actor=actor())
    _late(one for one, (_, created) in zip(items, made, strict=True) if created and one.run_at < now - LATE)
    if state().json:
        show.as_json({
            "brand": read.brand, "made": sum(created for _, created in made), "there": sum(not created for _, created in made),
            "skipped": len(read.items) - len(items), "cancelled": [one.id for one in gone],
            "jobs": [{**job.record(), "created": created, "place": one.place, "collision": close.get(n), "kept": n in kept} for n, (one, (job, created)) in enumerate(zip(items, made, strict=True))],
        })  # fmt: skip
        return
    _tell_made(items, made, now)
    _collide(items, close, sync)
    _keep(items, kept)
    told = f"{show.count(sum(c for _, c in made), 'post')} made, {sum(not c for _, c in made):,} there already"
    cancelled = f", {len(gone):,} cancelled" if sync else ""
    show.say(f"{told}{cancelled}{_skipped(len(read.items) - len(items))}.")
    if gone:
        _tell_gone(gone, now)


def _collide(items: Sequence[Planned], close: Mapping[int, str], sync: bool) -> None:
    for n, other in close.items():
        remedy = "" if sync else " If it takes the place of that post, run the plan with --sync, or cancel that post."
        complain(f"{items[n].place} is on {items[n].channel} at the same time as {other}.{remedy}")


def _keep(items: Sequence[Planned], kept: Mapping[int, int]) -> None:
    for n, ident in kept.items():
        complain(
            f"{items[n].place} is not made: publication {ident} of this plan has begun or gone out at that time, in other words. "
            "To publish both, give this one another time."
        )  # fmt: skip


def _tell_gone(gone: Sequence[Publication], now: datetime) -> None:
    show.table(
        "!#id !channel !at !when state text",
        ((p.id, p.channel, stamp(p.run_at), relative(p.run_at, now), "no longer in the plan", label(p.payload)) for p in gone),
    )  # fmt: skip


def _if_there() -> tuple[Publishing, bool]:
    """(the door, is there a database): without one nothing has been made yet, and that is an answer too. None is made."""
    from duly.kernel.errors import SchemaMissing

    try:
        return door(), True
    except SchemaMissing:
        return door(database=False), False


def _late(items: Iterable[Planned]) -> None:
    late = list(items)
    if late:
        complain(
            f"{show.count(len(late), 'post')} of the plan {'lies' if len(late) == 1 else 'lie'} in the past and {'is' if len(late) == 1 else 'are'} "
            "due at once (--skip-past leaves out what was due before now)."
        )  # fmt: skip


def _skipped(number: int) -> str:
    return f", {number:,} left out" if number else ""


def _tell_made(items: Sequence[Planned], made: Sequence[Enqueued], now: datetime) -> None:
    show.table(
        "!#id !channel !at !when state text",
        (
            (job.id, one.channel, stamp(one.run_at), relative(one.run_at, now), str(job.status) if created else f"{job.status}, there already", label(one.payload))
            for one, (job, created) in zip(items, made, strict=True)
        ),
    )  # fmt: skip


def _foretold(
    publishing: Publishing, database: bool, read: Plan, items: Sequence[Planned], override: str | None, tenant: str | None, now: datetime,
    shown: Synced,
) -> None:  # fmt: skip
    from duly.publishing.preflight import PreflightFailed

    reports = [_report(publishing, one.channel, one.payload) for one in items]
    there = publishing.there(items, tenant) if database else [None] * len(items)
    gone, close, kept = shown.cancelled, shown.collisions, shown.kept
    failing = [(one.place, report) for one, report in zip(items, reports, strict=True) if not report.ok]
    if state().json:
        show.as_json({
            "brand": read.brand, "would_make": sum(one is None for one in there) - len(kept), "ok": not failing, "skipped": len(read.items) - len(items),
            "would_cancel": [one.id for one in gone],
            "posts": [
                {
                    "channel": one.channel, "run_at": one.run_at, "key": one.key, "place": one.place, "payload": one.payload,
                    "existing": old.record() if old else None, "preflight": report.to_json(),
                    "collision": close.get(n), "kept": n in kept,
                }
                for n, (one, report, old) in enumerate(zip(items, reports, there, strict=True))
            ],
        })  # fmt: skip
    else:
        show.table(
            "!channel !at !when state #score text",
            (
                (one.channel, stamp(one.run_at), relative(one.run_at, now), f"{old.status} ({old.id})" if old else f"not made ({kept[n]})" if n in kept else "new", report.score, label(one.payload))
                for n, (one, report, old) in enumerate(zip(items, reports, there, strict=True))
            ),
        )  # fmt: skip
        _findings((one.place, report) for one, report in zip(items, reports, strict=True))
        _collide(items, close, bool(gone))
        _keep(items, kept)
        if gone:
            _tell_gone(gone, now)
        left = [one for n, (one, old) in enumerate(zip(items, there, strict=True)) if old is None and n not in kept]
        new = show.count(len(left), "post")
        cancel = f" and cancel {show.count(len(gone), 'post')}" if gone else ""
        show.say(f"Would make {new}{cancel}{_skipped(len(read.items) - len(items))}. Nothing was written.")
        _late(one for one in left if one.run_at < now - LATE)
    if failing and override is None:
        raise PreflightFailed(failing)


def _report(publishing: Publishing, channel: str, payload: Mapping[str, Any]) -> Report:
    from duly.publishing import preflight
    from duly.publishing.enqueue import report

    post = publishing.post(channel, payload)
    return report(publishing.channels[channel].connector, post, preflight.look(post))


def _findings(reports: Iterable[tuple[str, Report]]) -> None:
    for place, report in reports:
        for finding in report.findings:
            show.say(f"  {finding.severity}: {f'{place}: ' if place else ''}{finding}")


# ---------------------------------------------------------------------- looking ahead


@publish.command()
@click.argument("source", metavar="FILE|JSON|-")
@click.option("--channel", "-c", metavar="NAME", help="On this channel; for a plan: only on this one.")
def preview(source: str, channel: str | None) -> None:
    """Show what a plan or a payload would publish.

    Nothing is asked of the other side, and nothing is written.
    """
    publishing = door(database=False)
    found = [
        (name, at, place, _previewed(publishing, name, payload), _report(publishing, name, payload))
        for name, at, place, payload in _posts(source, channel)
    ]
    if state().json:
        show.as_json([
            {"channel": name, "run_at": at, "place": place, "preview": said, "preflight": report.to_json()}
            for name, at, place, said, report in found
        ])  # fmt: skip
        return
    for n, (name, at, place, said, report) in enumerate(found):
        if n:
            show.say()
        facts = {key: value for key, value in said.items() if key not in ("channel", "extra")} | (
            said.get("extra") or {}
        )
        show.facts([
            ("channel", name), ("at", stamp(at)), ("from", place), *((key, _plain(value)) for key, value in facts.items()),
            ("score", f"{report.score} of 100"),
        ])  # fmt: skip
        _findings([("", report)])


def _previewed(publishing: Publishing, channel: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    from duly.kernel.errors import InvalidArgument
    from duly.kernel.verdict import Refusal

    try:
        return dict(publishing.preview(channel, payload))
    except Refusal as error:
        raise InvalidArgument("payload", f"cannot be shown by {channel}: {error.verdict.reason}.") from None


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else "" if value in (None, [], {}, False) else show.pretty(value)


def _posts(source: str, channel: str | None) -> list[tuple[str, datetime | None, str, Mapping[str, Any]]]:
    """(channel, instant, place, payload) of what is to be previewed."""
    from duly.kernel.errors import InvalidArgument

    inline = source == "-" or source.lstrip().startswith("{")
    if not inline and not source.endswith(".json"):
        return _planned(Path(source), channel)
    try:
        text = sys.stdin.read() if source == "-" else source if inline else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            "payload", f"{source} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from None
    value = _object(text)
    if "slots" in value and not inline:
        return _planned(Path(source), channel)
    if channel is None:
        raise click.UsageError("Which channel? A payload needs --channel.")
    return [(channel, None, "", value)]


def _planned(file: Path, channel: str | None) -> list[tuple[str, datetime | None, str, Mapping[str, Any]]]:
    from duly.publishing.plan import load

    return [(i.channel, i.run_at, i.place, i.payload) for i in load(file).items if channel in (None, i.channel)]


def _object(text: str) -> dict[str, Any]:
    from duly.kernel.errors import InvalidArgument
    from duly.kernel.payload import read_json

    value = read_json(text.encode("utf-8", "surrogateescape"), "payload")
    if not isinstance(value, dict):
        raise InvalidArgument("payload", "is not a JSON object.")
    return value


@publish.command()
@click.argument("channel")
@click.option("--payload", metavar="JSON|-", help="What would be published; - for stdin.")
@click.option("--run-at", type=INSTANT, help="When; without it now.")
@click.option("--key", help="An idempotency key: is it taken?")
@click.option("--tenant", help="The tenant, where it is not the application's.")
def test(channel: str, payload: str | None, run_at: datetime | None, key: str | None, tenant: str | None) -> int:
    """Say what would become of a post. Nothing is written.

    Ends with 1 when it would not run then: when checks fail, in a blackout, beyond a limit, or with a key that is taken.
    """
    given = None if payload is None else _object(sys.stdin.read() if payload == "-" else payload)
    publishing = door()
    answer = publishing.test(channel, given, run_at, key, tenant)
    if state().json:
        existing = answer.existing.record() if answer.existing else None
        show.as_json({"outcome": answer.outcome, "detail": answer.detail, "until": answer.until, "existing": existing})
    else:
        until = f" Until {stamp(answer.until)}." if answer.until else ""
        show.say(f"{answer.outcome}: {answer.detail.rstrip('.')}.{until}")
    return 0 if answer.outcome == "ok" else 1


@publish.command()
@click.option("--check", is_flag=True, help="Ask each connector whether its configuration works.")
def channels(check: bool) -> int:
    """List channels: connector, limits, what waits.

    With --check each connector is asked whether its configuration works, without publishing; ends with 1 when one does not.
    """
    publishing = door()
    app = publishing._app
    runnable = publishing.get_runnable_jobs(limit=1000)
    rows: list[dict[str, Any]] = []
    for name, channel in publishing.channels.items():
        queue = app.queues.get(name)
        held = queue.paused_reason or ("paused" if queue.paused_at else None)
        if held is None and queue.is_held(app.engine.clock.now()):
            held = f"held until {stamp(queue.held_until)}: {queue.held_reason or ''}".rstrip(": ")
        found: dict[str, Any] = {
            "channel": name, "connector": channel.connector.name, "limit": publishing.limit(name)[0],
            "max_attempts": channel.max_attempts, "runnable": sum(one.channel == name for one in runnable), "held": held,
        }  # fmt: skip
        if check:
            found["check"], found["works"], found["ends_at"] = _checked(channel.connector, app.engine.clock.now())
        rows.append(found)
    for name in publishing.undeclared:
        complain(
            f"channel {name} is no longer declared here: its posts wait until a worker declares it (duly publish cancel --channel {name} ends them)."
        )
    if state().json:
        show.as_json(rows)
    else:
        show.table(
            "!channel connector #limit #attempts #runnable held" + (" check" if check else ""),
            (tuple(value for key, value in row.items() if key not in ("works", "ends_at")) for row in rows),
        )
    return 0 if all(row.get("works", True) for row in rows) else 1


def _checked(connector: Any, now: datetime) -> tuple[str, bool, datetime | None]:
    """(what a connector says of its configuration, does it work, when its access ends)."""
    import asyncio

    from duly.kernel.verdict import Refusal
    from duly.publishing.connectors.base import Ends

    async def ask() -> tuple[str, datetime | None]:
        return await connector.check(), await connector.ends() if isinstance(connector, Ends) else None

    try:
        said, ends_at = asyncio.run(ask())
    except Refusal as error:
        return error.verdict.reason, False, None
    told = f"; the access ends {stamp(ends_at)} ({relative(ends_at, now)})" if ends_at else ""
    return said + told, True, ends_at


# ---------------------------------------------------------------------- the week


class _Day(click.ParamType):  # type: ignore[type-arg]
    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        if isinstance(value, date):
            return value
        try:
            found = date.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no date; write one like 2026-03-27.", param, ctx)
        if not 1970 < found.year < 2200:
            self.fail(f"{value!r} is too far away.", param, ctx)
        return found


@publish.command()
@click.option("--week", type=_Day(), metavar="DATE", help="The week of this day; else the present one.")
@click.option("--tz", metavar="ZONE", help="Whose clock: Europe/Rome. Else that of the plan, else UTC.")
@click.option("--channel", "-c", "only", multiple=True, metavar="NAME", help="Only this channel; may be given again.")
@click.option("--plan", "file", type=click.Path(path_type=Path), help="Draw a plan that is not made yet, too.")
@click.option("--tenant", help="Of this tenant; else of all.")
def calendar(week: date | None, tz: str | None, only: tuple[str, ...], file: Path | None, tenant: str | None) -> None:
    """Draw a week: posts, and blackouts shaded."""
    from duly.publishing import calendar as drawing
    from duly.publishing.plan import load

    publishing, database = _if_there() if file is not None else (door(), True)
    read = load(file) if file is not None else None
    zone = tz or (read.timezone if read else None) or "UTC"
    now = publishing._app.engine.clock.now()
    first = drawing.monday(week or _today(zone, now))
    found, blackouts = _entries(publishing, database, read, *drawing.bounds(first, zone), tenant)
    names = only or tuple(publishing.channels)
    drawn = drawing.week(first, zone, [one for one in found if not only or one.channel in only], blackouts, names)
    if state().json:
        show.as_json({
            "week": first, "tz": zone, "changes": drawn.changes, "posts": [
                {"at": e.at, "channel": e.channel, "status": e.status, "id": e.id, "label": e.label, "waits_until": until}
                for e, until in zip(drawn.entries, drawn.waits, strict=True)
            ],
            "blackouts": [{"start": s.start, "end": s.end, "channel": name} for name in names for s in _spans(blackouts, name, first, zone)],
        })  # fmt: skip
        return
    _draw(drawing.lines(drawn, _width()))


def _today(zone: str, now: datetime) -> date:
    from duly.kernel.localtime import local_date

    return local_date(now, zone)


def _spans(blackouts: Calendar, channel: str, first: date, zone: str) -> Iterable[Any]:
    from duly.publishing.calendar import bounds

    return blackouts.applying_to(f"channel:{channel}", f"queue:{channel}").spans(*bounds(first, zone))


def _entries(
    publishing: Publishing, database: bool, read: Plan | None, start: datetime, end: datetime, tenant: str | None
) -> tuple[list[Entry], Calendar]:  # fmt: skip
    """What stands in the database and in a plan, from an instant until another, and the blackouts."""
    from duly.kernel.windows import Calendar
    from duly.publishing.calendar import Entry
    from duly.publishing.view import PublicationFilter

    found: list[Publication] = []
    blackouts = Calendar([])
    if database:
        wanted = PublicationFilter(tenant=tenant, type="publish", run_from=start, run_until=end)
        found = publishing.list(wanted, limit=10_000)
        blackouts = publishing._app.engine.db.read(publishing._app.engine.calendars.calendar)
    keys = {one.idempotency_key for one in found}
    entries = [
        Entry(one.run_at, one.channel, str(one.status), label(one.payload), one.id) for one in found if one.run_at
    ]
    if read is not None:
        entries += [
            Entry(one.run_at, one.channel, "planned", label(one.payload)) for one in read.items if one.key not in keys
        ]
    return entries, blackouts


def _width() -> int:
    import shutil

    return min(shutil.get_terminal_size((80, 24)).columns, 110) if show.terminal() else 80


_STYLES = {
    "head": "bold", "dim": "bright_black", "blackout": "bright_black", "pending": "yellow", "running": "cyan", "completed": "green",
    "failed": "red", "cancelled": "bright_black", "planned": "blue",
}  # fmt: skip
#: For terminals that cannot show it better.
_ASCII = str.maketrans({"▒": "#", "░": ":", "│": "|", "…": "~"})


def _draw(lines: Iterable[Line]) -> None:
    rows = [[(_shown(text), ink) for text, ink in line] for line in lines]
    if not show.terminal():
        for row in rows:
            click.echo("".join(text for text, _ in row).rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    for row in rows:
        console.print(Text.assemble(*((text, _STYLES.get(ink, "")) for text, ink in row)), no_wrap=True, crop=False)


def _shown(text: str) -> str:
    from duly.monitoring.redact import visible

    text = visible(text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII)
    return text


# ---------------------------------------------------------------------- the REST door


@publish.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8787, show_default=True, metavar="PORT", help="0: any free port."
)
@click.option("--allow-remote", is_flag=True, help="Listen where other machines can reach it.")
@click.option("--tenant", help="Whose publications, where it is not the application's.")
def serve(host: str, port: int, allow_remote: bool, tenant: str | None) -> None:
    """Serve the REST door, until Ctrl-C.

    It asks for the token of DULY_WEB_TOKEN, and does not start without one.
    """
    from duly.web.serve import run

    app = state().open(make=True)
    door()
    run(
        app, app.settings.web_token, host=host, port=port, allow_remote=allow_remote, tenant=tenant,
        told=lambda url: show.say(f"REST at {url}/fp-publisher/v1, described at {url}/openapi.json. Ctrl-C stops it."),
    )  # fmt: skip


for command in (list_, show_, replay, cancel):
    publish.add_command(command)
