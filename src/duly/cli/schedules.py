"""``duly schedules``: recurring work, what is planned, and what became of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import Group, actor, state
from duly.cli.times import INSTANT, PAST, SPAN, before, relative, span, stamp

if TYPE_CHECKING:
    from duly.kernel.recurrence import Schedule as Recurrence
    from duly.schedules.door import Previewed
    from duly.schedules.schedule import Occurrence, Schedule, Spec

_TENANT = click.option("--tenant", metavar="NAME", help="Of this tenant; else the setting tenant.")
_REASON = click.option("--reason", default="", help="Why, for those who look at it later.")


@click.group(cls=Group)
def schedules() -> None:
    """Recurring work: what is planned, and what became of it."""


# ---------------------------------------------------------------------- saying when


def _when(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed((
        click.option("--cron", metavar="EXPR", help="Five fields or a nickname: '30 2 * * *', @daily. Needs --tz."),
        click.option("--every", metavar="SPAN", help="A fixed interval of elapsed time: 15m, 6h."),
        click.option("--daily", is_flag=True, help="Every day. Needs --at and --tz."),
        click.option("--weekly", metavar="DAYS", help="On days of the week: mon,thu or mon-fri. Needs --at and --tz."),
        click.option("--monthly", metavar="DAY", help="On a day of the month: 1, last, 'second tue'. Needs --at and --tz."),
        click.option("--once", metavar="INSTANT", help="At one instant: 2026-12-01T10:00:00+01:00."),
        click.option("--rrule", metavar="RULE", help="A calendar rule of RFC 5545. Needs --start and --tz."),
        click.option("--when", metavar="JSON", help="A recurrence as JSON; @FILE reads a file, - stdin."),
        click.option("--at", multiple=True, metavar="HH:MM", help="A local time of day; may be repeated."),
        click.option("--tz", metavar="ZONE", help="The IANA time zone whose clock is meant, such as Europe/Paris."),
        click.option("--start", metavar="LOCAL", help="With --rrule: the first local time, 2026-01-05T09:00."),
        click.option("--gap", metavar="RULE", help="A local time that a clock put forward leaves out: after or skip."),
        click.option("--fold", metavar="RULE", help="A local time that a clock put back shows twice: first, last, both."),
        click.option("--jitter", type=SPAN, metavar="SPAN", help="Spread the starts over so long, never early."),
    )):  # fmt: skip
        command = option(command)
    return command


_KINDS = ("cron", "every", "daily", "weekly", "monthly", "once", "rrule", "when")


def _said(given: dict[str, Any]) -> bool:
    return any(given.get(kind) for kind in _KINDS)


def _recurrence(given: dict[str, Any]) -> Recurrence:
    """The recurrence that the options say. Raises UsageError or InvalidArgument."""
    from duly.kernel.recurrence import schedule_from_json

    said = [kind for kind in _KINDS if given.get(kind)]
    if len(said) != 1:
        problem = f"{' and '.join(f'--{kind}' for kind in said)} are given." if said else "It is not said when."
        raise click.UsageError(f"{problem} Use one of {', '.join(f'--{kind}' for kind in _KINDS)}.")
    [kind] = said
    at = list(given["at"]) or None
    civil = {"tz": given["tz"], "gap": given["gap"], "fold": given["fold"]}
    spread = {"jitter": given["jitter"].total_seconds() if given["jitter"] else None}
    local = ("cron", "daily", "weekly", "monthly", "rrule")
    goes_with = {
        "at": ("daily", "weekly", "monthly"),
        "start": ("rrule",),
        "tz": local,
        "gap": local,
        "fold": local,
        "jitter": (*local, "every"),
    }
    for name, kinds in goes_with.items():
        if given[name] and kind not in kinds:
            raise click.UsageError(f"--{name} does not go with --{kind}.")
    if kind == "when":
        return schedule_from_json(_document(given["when"]), "when")
    own: dict[str, dict[str, Any]] = {
        "cron": {"expression": given["cron"]}, "every": {"duration": given["every"]}, "daily": {"at": at},
        "weekly": {"days": given["weekly"], "at": at}, "monthly": {"day": _month_day(given["monthly"] or ""), "at": at},
        "once": {"instant": given["once"]}, "rrule": {"rule": given["rrule"], "start": given["start"]},
    }  # fmt: skip
    shared = {**civil, **spread} if kind in local else spread if kind == "every" else {}
    return schedule_from_json({"kind": kind, **own[kind], **shared}, "when")


def _month_day(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else text


def _document(text: str) -> Any:
    """JSON from the line, from a file (@name) or from stdin (-)."""
    import orjson

    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--when: {error}") from None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise click.UsageError(f"--when is no JSON: {error}.") from None


# ---------------------------------------------------------------------- list, show


@schedules.command("list")
@_TENANT
def list_(tenant: str | None) -> None:
    """List schedules: when they run, and how they stand."""
    asked = state()
    app = asked.open()
    found = app.schedules.all(tenant=tenant)
    if asked.json:
        show.as_json([_as_dict(s) for s in found])
        return
    now, store = app.engine.clock.now(), app.scheduler().store
    last = app.db.read(lambda c: {s.id: _last(store.ledger(c, s.id, limit=1)) for s in found})
    show.table(
        "!schedule tenant when task next in last state",
        ((s.name, s.tenant, _words(s), s.spec.task if s.spec else "", _local(s, s.next_at), relative(s.next_at, now), last[s.id], _state(s)) for s in found),
        empty="There is no schedule.",
    )  # fmt: skip


def _words(s: Schedule) -> str:
    return s.spec.recurrence.describe() if s.spec else ""


def _local(s: Schedule, instant: datetime | None) -> str:
    """An instant by the clock of the schedule's zone, its offset behind it."""
    if instant is None:
        return ""
    if s.spec is None or s.spec.tz is None:
        return stamp(instant)
    return _in_zone(instant, s.spec.tz)


def _in_zone(instant: datetime, tz: str) -> str:
    from duly.kernel.localtime import zone

    return instant.astimezone(zone(tz)).isoformat(sep=" ", timespec="seconds")


def _state(s: Schedule) -> str:
    if s.state == "paused":
        return f"paused by {s.paused_by}" + (f": {s.paused_reason}" if s.paused_reason else "")
    return f"broken: {s.error}" if s.state == "broken" else s.state


def _last(found: list[Occurrence]) -> str:
    return f"{found[0].status.value}{f' ({found[0].reason})' if found[0].reason else ''}" if found else ""


def _as_dict(s: Schedule) -> dict[str, Any]:
    said: dict[str, Any] = {
        "id": s.id, "name": s.name, "tenant": s.tenant, "version": s.version, "state": s.state, "next_at": s.next_at, "decided_until": s.decided_until,
        "paused_at": s.paused_at, "paused_by": s.paused_by, "paused_reason": s.paused_reason, "error": s.error, "error_at": s.error_at,
        "created_at": s.created_at, "updated_at": s.updated_at, "updated_by": s.updated_by,
    }  # fmt: skip
    if s.spec is not None:
        said |= {"when": _words(s), **_definition(s.spec)}
    return said


def _definition(spec: Spec) -> dict[str, Any]:
    import orjson

    return {**spec.to_json(), "input": orjson.loads(spec.input)}


@schedules.command("show")
@click.argument("name")
@_TENANT
@click.option(
    "--next",
    "n",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    metavar="N",
    help="So many of the instants to come.",
)
def show_(name: str, tenant: str | None, n: int) -> None:
    """Show a schedule: its definition, what comes next, what came last."""
    asked = state()
    app = asked.open()
    s = app.schedules.get(name, tenant=tenant)
    coming = app.schedules.preview(name, n, tenant=tenant) if s.spec else []
    last = app.schedules.ledger(name, tenant=tenant, limit=5)
    if asked.json:
        show.as_json({**_as_dict(s), "next": [_coming(p) for p in coming], "last": last})
        return
    now = app.engine.clock.now()
    spec = s.spec
    show.facts([
        ("schedule", s.name), ("state", _state(s)), ("when", spec.recurrence.describe(since=now) if spec else ""), ("task", spec.task if spec else ""),
        ("input", show.pretty(_definition(spec)["input"]) if spec else ""), ("queue", spec.queue if spec else ""),
        ("policies", f"catch_up {spec.policies.catch_up_text}, overlap {spec.policies.overlap}, blackout {spec.policies.blackout}" if spec else ""),
        ("from", stamp(spec.starts_at) if spec else ""), ("until", stamp(spec.ends_at) if spec else ""),
        ("version", f"{s.version}, {stamp(s.updated_at)} by {s.updated_by}"), ("tenant", s.tenant),
    ])  # fmt: skip
    if coming:
        show.say("\nTo come")
        _preview_table(coming, now)
    if last:
        show.say("\nLately")
        _ledger_table(last, spec.tz if spec else None)


# ---------------------------------------------------------------------- set, remove


@schedules.command("set")
@click.argument("name")
@click.option("--task", required=True, metavar="NAME", help="The task whose jobs it makes.")
@_when
@click.option("--input", "input_", default="{}", metavar="JSON", help="Its arguments, as a JSON object.")
@click.option(
    "--catch-up",
    default="latest",
    show_default=True,
    metavar="POLICY",
    help="Late ones: latest, all, none, or within(2h).",
)
@click.option(
    "--overlap",
    default="allow",
    show_default=True,
    metavar="POLICY",
    help="While one runs: allow, skip, queue, replace.",
)
@click.option(
    "--blackout", default="defer", show_default=True, metavar="POLICY", help="In a blackout: defer, run_after, skip."
)
@click.option("--starts-at", type=INSTANT, metavar="INSTANT", help="Nothing before this instant.")
@click.option("--ends-at", type=INSTANT, metavar="INSTANT", help="Nothing from this instant on.")
@click.option("--queue", metavar="NAME", help="The queue of its jobs; else the task's.")
@click.option("--priority", type=int, metavar="N", help="Their priority; else the task's.")
@click.option("--max-attempts", type=click.IntRange(min=1), metavar="N", help="How often each may run in all.")
@_TENANT
@click.option("--dry-run", is_flag=True, help="Say what it would be and write nothing.")
def set_(name: str, task: str, input_: str, tenant: str | None, dry_run: bool, **given: Any) -> None:
    """Make a schedule, or a new version of the one of that name.

    What the old version had due until now is decided by the old version.
    """
    import orjson

    from duly.kernel.errors import InvalidArgument

    when = {n: given.pop(n) for n in (*_KINDS, "at", "tz", "start", "gap", "fold", "jitter")}
    try:
        arguments = orjson.loads(input_)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(
            "input", f"is no JSON: {error}.", """Give an object such as '{"to": "a@b.c"}'."""
        ) from None
    if not isinstance(arguments, dict):
        raise InvalidArgument("input", "is no JSON object.", """Give an object such as '{"to": "a@b.c"}'.""")
    recurrence = _recurrence(when)
    asked = state()
    app = asked.open(make=not dry_run)
    options = {n: v for n, v in (*given.items(), ("tenant", tenant)) if v is not None}
    spec = app.schedules.spec(name, recurrence, task, arguments, **options)
    if dry_run:
        coming = app.schedules.preview_of(spec, 5)
        if asked.json:
            show.as_json({"schedule": _definition(spec), "next": [_coming(p) for p in coming]})
            return
        show.say(f"{name} would run {task} {spec.recurrence.describe()}. Nothing was written.")
        _preview_table(coming, app.engine.clock.now())
        return
    schedule, change = app.schedules.set(spec, actor=actor())
    if asked.json:
        show.as_json({"change": change, **_as_dict(schedule)})
        return
    told = {"created": "is made", "changed": f"is at version {schedule.version} now", "unchanged": "is as it was"}[
        change
    ]
    following = f" Next: {_local(schedule, schedule.next_at)}." if schedule.next_at else " Nothing of it is to come."
    show.say(f"Schedule {name} {told}: {task} {spec.recurrence.describe()}.{following}")


@schedules.command()
@click.argument("name")
@_TENANT
@_REASON
def remove(name: str, tenant: str | None, reason: str) -> None:
    """Let a schedule fire no more.

    Jobs that it has made go on. Its ledger stays.
    """
    state().open().schedules.remove(name, tenant=tenant, actor=actor(), reason=reason)
    show.as_json({"removed": name}) if state().json else show.say(f"Schedule {name} is removed.")


# ---------------------------------------------------------------------- acts


@schedules.command()
@click.argument("name")
@_TENANT
@_REASON
def pause(name: str, tenant: str | None, reason: str) -> None:
    """Skip what is planned, on record, until it is resumed."""
    _tell(state().open().schedules.pause(name, reason, tenant=tenant, actor=actor()))


@schedules.command()
@click.argument("name")
@_TENANT
@_REASON
def resume(name: str, tenant: str | None, reason: str) -> None:
    """Let a paused schedule fire again, from now on."""
    _tell(state().open().schedules.resume(name, reason, tenant=tenant, actor=actor()))


def _tell(s: Schedule) -> None:
    if state().json:
        show.as_json(_as_dict(s))
    else:
        show.say(f"Schedule {s.name} is {_state(s)}." + (f" Next: {_local(s, s.next_at)}." if s.next_at else ""))


@schedules.command()
@click.argument("name")
@_TENANT
@_REASON
def run(name: str, tenant: str | None, reason: str) -> None:
    """Make its job now.

    Whether it is due or not, paused or not; it stands in the ledger as run by hand.
    """
    done = state().open().schedules.run(name, tenant=tenant, actor=actor(), reason=reason)
    show.as_json(done) if state().json else show.say(f"Job {done.job_id} is made.")


@schedules.command()
@click.argument("name")
@click.option(
    "--from",
    "start",
    type=PAST,
    required=True,
    metavar="INSTANT|SPAN",
    help="From this instant on, or so long ago: 14d.",
)
@click.option("--until", "end", type=PAST, metavar="INSTANT|SPAN", help="Until before this instant; else until now.")
@_TENANT
@_REASON
@click.option("--dry-run", is_flag=True, help="Say which ones and make nothing.")
def backfill(
    name: str, start: datetime | timedelta, end: datetime | timedelta | None, tenant: str | None, reason: str, dry_run: bool
) -> None:  # fmt: skip
    """Fire what was planned in a range and has not fired.

    Each occurrence once, in order: those that were skipped or missed, and those from before the schedule was made.
    """
    asked = state()
    app = asked.open()
    now = app.engine.clock.now()
    first, last = before(now, start), before(now, end) or now
    assert first is not None
    done = app.schedules.backfill(name, first, last, tenant=tenant, actor=actor(), reason=reason, dry_run=dry_run)
    if asked.json:
        show.as_json(done)
        return
    new = [*done.fired, *done.deferred]
    if not new:
        show.say(f"Nothing to do: {show.count(len(done.left), 'occurrence')} in this range, all fired or waiting.")
        return
    verb = "would fire" if dry_run else "fired" if done.fired else "will fire, one after the other"
    show.say(
        f"{show.count(len(new), 'occurrence')} {verb}, planned from {stamp(new[0])} to {stamp(new[-1])}; {len(done.left)} left as they are."
    )


@schedules.command()
@_TENANT
def sync(tenant: str | None) -> None:
    """Write the schedules that the application declares.

    A worker does the same when it starts.
    """
    done = state().duly(tasks=True).schedules.sync()
    if state().json:
        show.as_json(done)
    else:
        show.table("!schedule change", done.items(), empty="The application declares no schedule.")


@schedules.command()
def tick() -> None:
    """Decide once what is due, without a worker.

    For tests, and for a cron of the system that should drive Duly. A running worker does it by itself.
    """
    report = state().open().scheduler().tick()
    if state().json:
        show.as_json(report)
    else:
        show.say(
            f"{report.fired} fired, {report.skipped} skipped, {report.missed} missed, {report.deferred} deferred; "
            f"{show.count(report.broken, 'schedule')} broken."
        )


# ---------------------------------------------------------------------- preview, ledger, versions


@schedules.command()
@click.argument("name", required=False)
@_when
@click.option("-n", "n", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N", help="So many.")
@click.option("--since", type=INSTANT, metavar="INSTANT", help="After this instant; else after now.")
@_TENANT
def preview(name: str | None, n: int, since: datetime | None, tenant: str | None, **given: Any) -> None:
    """Show the next instants of a schedule, or of one that is not made yet.

    With days on which clocks change, and blackouts.
    """
    asked = state()
    if name is not None and _said(given):
        raise click.UsageError("Name a schedule or say when, not both.")
    if name is None:
        from duly.schedules.schedule import Spec

        app = asked.open()
        spec = Spec("preview", _recurrence(given), "preview", "{}", "default", app.settings.tenant)
        coming = app.schedules.preview_of(spec, n, since=since)
    else:
        app = asked.open()
        coming = app.schedules.preview(name, n, tenant=tenant, since=since)
    if asked.json:
        show.as_json([_coming(p) for p in coming])
        return
    if not coming:
        show.say("Nothing is to come.")
        return
    _preview_table(coming, since or app.engine.clock.now())


def _coming(p: Previewed) -> dict[str, Any]:
    return {
        "due_at": p.due_at, "local": p.local.isoformat() if p.local else None, "effect": p.effect, "special": p.special,
        "blackout": p.blackout, "blackout_until": p.blackout_until,
    }  # fmt: skip


def _preview_table(coming: list[Previewed], now: datetime) -> None:
    show.table(
        "!planned local in effect remark",
        (
            (
                stamp(p.due_at), p.local.isoformat(sep=" ", timespec="seconds") if p.local else "", relative(p.due_at, now), p.effect,
                "; ".join(filter(None, (p.special, _dark(p)))),
            )
            for p in coming
        ),
    )  # fmt: skip


def _dark(p: Previewed) -> str:
    if p.effect == "fires":
        return ""
    names = f" {', '.join(p.blackout)}" if p.blackout else ""
    return f"blackout{names}" + (f" until {stamp(p.blackout_until)}" if p.blackout_until else ", no end in sight")


@schedules.command()
@click.argument("name")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    metavar="STATUS",
    help="Only fired, skipped, missed or deferred ones; may be repeated.",
)
@click.option("--since", type=PAST, metavar="INSTANT|SPAN", help="Planned since then.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    metavar="N",
    help="At most so many, the newest first.",
)
@click.option("--below", type=INSTANT, metavar="INSTANT", help="Go on behind the last one seen.")
@_TENANT
def ledger(
    name: str, statuses: tuple[str, ...], since: datetime | timedelta | None, limit: int, below: datetime | None, tenant: str | None
) -> None:  # fmt: skip
    """Show what became of each planned instant."""
    asked = state()
    app = asked.open()
    s = app.schedules.get(name, tenant=tenant)
    found = app.schedules.ledger(
        name, tenant=tenant, statuses=statuses, since=before(app.engine.clock.now(), since), limit=limit, before=below
    )
    if asked.json:
        show.as_json(found)
        return
    _ledger_table(found, s.spec.tz if s.spec else None)


def _ledger_table(found: list[Occurrence], tz: str | None) -> None:
    show.table(
        "!planned local status reason policy by #job decided",
        (
            (
                stamp(o.due_at), _in_zone(o.due_at, tz) if tz else "", o.status.value, o.reason, o.policy, o.trigger.value, o.job_id,
                f"{span((o.acted_at - o.due_at).total_seconds())} after" if o.acted_at > o.due_at else "in time",
            )
            for o in found
        ),
        empty="Nothing of it was due yet.",
    )  # fmt: skip


@schedules.command()
@click.argument("name")
@_TENANT
def versions(name: str, tenant: str | None) -> None:
    """Show the definitions that a schedule has had."""
    asked = state()
    found = asked.open().schedules.versions(name, tenant=tenant)
    if asked.json:
        show.as_json(found)
        return
    from duly.kernel.recurrence import schedule_from_json

    show.table(
        "#version made by when task policies",
        (
            (
                v["version"], stamp(v["made_at"]), v["made_by"], schedule_from_json(v["definition"]["recurrence"]).describe(), v["definition"]["task"],
                f"{v['definition']['catch_up']}, {v['definition']['overlap']}, {v['definition']['blackout']}",
            )
            for v in found
        ),
    )  # fmt: skip
