"""``duly schedules``: recurring work, what is planned, and what became of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import click

from duly.cli import recurrences, show
from duly.cli.command import Group, actor, state
from duly.cli.enqueue import _object
from duly.cli.recurrences import local
from duly.cli.scheduled import (
    changed,
    definition,
    described,
    following,
    last_words,
    ledger_table,
    occurrence_dict,
    preview_table,
    previewed_dict,
    say_special,
    schedule_dict,
    state_words,
    tz_of,
    when_words,
)
from duly.cli.times import INSTANT, PAST, before, relative, stamp

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.jobs.job import Job
    from duly.schedules.door import Previewed
    from duly.schedules.schedule import Schedule, Spec


@click.group(cls=Group)
def schedules() -> None:
    """Recurring work: what is planned, and what became of it."""


def _tenant(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--tenant", metavar="NAME", help="Of this tenant; else the setting tenant.")(command)


def _acting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of what is audited."""
    for option in reversed((
        click.option("--tenant", metavar="NAME", help="Of this tenant; else the setting tenant."),
        click.option("--reason", default="", help="Why, for those who look at it later."),
        click.option("--actor", "by", metavar="NAME", help="Who asks, for the audit trail; else cli:<user>."),
    )):  # fmt: skip
        command = option(command)
    return command


def _by(given: str | None) -> str:
    from duly.kernel.payload import check_name

    return actor() if given is None else check_name(given, "actor")


# ---------------------------------------------------------------------- list, show


@schedules.command("list")
@click.option("--tenant", metavar="NAME", help="Of this tenant; else of all.")
def list_(tenant: str | None) -> None:
    """List schedules: when they run, what came last, and how they stand."""
    from duly.schedules.read import latest

    asked = state()
    app = asked.open()
    found = app.schedules.all(tenant=tenant)
    last = app.db.read(lambda c: latest(c, tenant))
    jobs = _jobs(app, last.values())
    if asked.json:
        show.as_json([{**schedule_dict(s), "last": occurrence_dict(last.get(s.id), jobs)} for s in found])
        return
    now = app.engine.clock.now()
    several = len({s.tenant for s in found}) > 1
    show.table(
        f"!schedule {'tenant ' if several else ''}what next in last !state",
        (
            (
                s.name, *((s.tenant,) if several else ()), when_words(s), local(s.next_at, tz_of(s)), relative(s.next_at, now),
                last_words(last.get(s.id), jobs, now), s.state,
            )
            for s in found
        ),
        empty="There is no schedule.",
    )  # fmt: skip
    for s in found:
        if s.state != "active" or s.left is not None:
            show.say(f"{s.name} {state_words(s, now)}.")
    gone = set(app.schedules.undeclared())
    for s in found:
        if (s.tenant, s.name) in gone:
            show.say(
                f"{s.name} is not declared by the code of any living worker; it goes on until you pause or remove it."
            )


def _jobs(app: Duly, occurrences: Any) -> dict[int, Job]:
    idents = [o.job_id for o in occurrences if o.job_id is not None]
    return app.db.read(lambda c: app.engine.reader.get_many(c, idents)) if idents else {}


@schedules.command("show")
@click.argument("name")
@_tenant
@click.option(
    "--next", "n", type=click.IntRange(1, 100), default=3, show_default=True, metavar="N", help="So many to come."
)
def show_(name: str, tenant: str | None, n: int) -> None:
    """Show a schedule: its definition, what comes next, what came last."""
    asked = state()
    app = asked.open()
    s = app.schedules.get(name, tenant=tenant)
    coming = app.schedules.preview(name, n, tenant=tenant) if s.spec else []
    last = app.schedules.ledger(name, tenant=tenant, limit=5)
    jobs = _jobs(app, last)
    if asked.json:
        show.as_json(
            {
                **schedule_dict(s),
                "next": [previewed_dict(p) for p in coming],
                "last": [occurrence_dict(o, jobs) for o in last],
            }
        )
        return
    now = app.engine.clock.now()
    facts = [("schedule", s.name), ("state", state_words(s, now).removeprefix("is ")), ("when", when_words(s, now))]
    spec = s.spec
    if spec is not None:
        policies = spec.policies
        attempts = f", {spec.max_attempts} attempts" if spec.max_attempts else ""
        facts += [
            ("task", spec.task), ("input", show.pretty(definition(spec)["input"])), ("queue", f"{spec.queue}, priority {spec.priority}{attempts}"),
            ("policies", f"catch-up {policies.catch_up_text}, overlap {policies.overlap}, blackout {policies.blackout}"),
            ("from", stamp(spec.starts_at)), ("until", stamp(spec.ends_at)),
        ]  # fmt: skip
    show.facts([*facts, ("version", f"{s.version}, {stamp(s.updated_at)} by {s.updated_by}"), ("tenant", s.tenant)])
    if coming:
        show.say("\nTo come")
        preview_table(coming, now, tz_of(s))
    if last:
        show.say("\nLately")
        ledger_table(last, tz_of(s))


# ---------------------------------------------------------------------- set, remove


@schedules.command("set")
@click.argument("name")
@click.option("--task", metavar="NAME", help="The task whose jobs it makes.")
@recurrences.options
@click.option("--input", "input_", metavar="JSON", help="Its arguments, as a JSON object; - is stdin.")
@click.option("--catch-up", metavar="POLICY", help="Late ones: latest (the default), all, none, or 'within(2h)'.")
@click.option(
    "--overlap", metavar="POLICY", help="While an earlier job lives: allow (the default), skip, queue, replace."
)
@click.option("--blackout", metavar="POLICY", help="Within a blackout: defer (the default), run_after, skip.")
@click.option("--starts-at", type=INSTANT, metavar="INSTANT", help="Nothing before this instant.")
@click.option("--no-starts-at", is_flag=True, help="Take that away.")
@click.option("--ends-at", type=INSTANT, metavar="INSTANT", help="Nothing from this instant on.")
@click.option("--no-ends-at", is_flag=True, help="Take that away.")
@click.option("--queue", "-q", metavar="NAME", help="The queue of its jobs; else the task's, or `default`.")
@click.option("--priority", type=click.IntRange(-(2**31), 2**31 - 1), metavar="N", help="Higher runs first.")
@click.option("--max-attempts", type=click.IntRange(1, 2**31 - 1), metavar="N", help="How often each may run in all.")
@_tenant
@click.option("--actor", "by", metavar="NAME", help="Who asks, for the audit trail; else cli:<user>.")
@click.option("--dry-run", is_flag=True, help="Say what it would be, with the next instants. Write nothing.")
def set_(name: str, tenant: str | None, by: str | None, dry_run: bool, **given: Any) -> None:
    """Make a schedule, or a new version of the one of that name.

    Of one that is there, what is not named stays as it is; what it had due until now is decided by its old version. What code declares
    and a person changes stays changed until the code declares something else.
    """
    when = recurrences.taken(given)
    asked = state()
    app, there = _app(make=not dry_run)
    spec = _spec(app, name, _there(app, name, tenant) if there else None, tenant, when, given)
    if dry_run:
        coming = _previewed(app, there, spec, 5, app.engine.clock.now())
        if asked.json:
            show.as_json({"schedule": definition(spec), "next": [previewed_dict(p) for p in coming]})
            return
        now = app.engine.clock.now()
        show.say(f"{name} would run {spec.task}: {spec.recurrence.describe(since=now)}. Nothing was written.")
        preview_table(coming, now, spec.tz)
        return
    schedule, change = app.schedules.set(spec, actor=_by(by))
    if asked.json:
        show.as_json({"change": change, **schedule_dict(schedule)})
        return
    told = {"created": "is made", "changed": f"is at version {schedule.version} now", "unchanged": "is as it was"}
    show.say(
        f"Schedule {name} {told[change]}: {spec.task}, {spec.recurrence.describe()}. {following(schedule, app.engine.clock.now())}"
    )


def _app(make: bool = False) -> tuple[Duly, bool]:
    """The application, and whether its database is there; ``make``: one that is not is made."""
    from duly.kernel.errors import SchemaMissing
    from duly.storage.migrate import require

    app = state().duly()
    if not make:
        try:
            require(app.db)
        except SchemaMissing:
            return app, False
    app.open()
    return app, True


def _there(app: Duly, name: str, tenant: str | None) -> Spec | None:
    """The definition of a schedule; None where there is none, or where it cannot be read."""
    from duly.kernel.errors import NotFound

    try:
        return app.schedules.get(name, tenant=tenant).spec
    except NotFound:
        return None


def _spec(
    app: Duly, name: str, old: Spec | None, tenant: str | None, when: dict[str, Any], given: dict[str, Any]
) -> Spec:
    """The definition that the options say, on top of the one that is there. Raises InvalidArgument."""
    import orjson

    from duly.kernel.errors import InvalidArgument

    recurrence = recurrences.recurrence(when, old.recurrence if old else None)
    if recurrence is None:
        raise click.UsageError(
            f"It is not said when {name} is to run. Use --cron, --every, --daily or another of its kind."
        )
    task = given["task"] or (old.task if old else None)
    if task is None:
        raise InvalidArgument("--task", "is missing.", f"Say which task's jobs {name} is to make.")
    options: dict[str, Any] = {}
    if old is not None:
        policies = old.policies
        options = {
            "catch_up": policies.catch_up, "overlap": policies.overlap, "blackout": policies.blackout, "starts_at": old.starts_at,
            "ends_at": old.ends_at, "priority": old.priority, "max_attempts": old.max_attempts,
        }  # fmt: skip
        if task == old.task:
            options["queue"] = old.queue
    for option in ("catch_up", "overlap", "blackout", "starts_at", "ends_at", "queue", "priority", "max_attempts"):
        if given.get(f"no_{option}"):
            if given[option] is not None:
                raise click.UsageError(f"--{option.replace('_', '-')} is given, and taken away.")
            options[option] = None
        elif given[option] is not None:
            options[option] = given[option]
    text = sys.stdin.read() if given["input_"] == "-" else given["input_"]
    arguments = _object(text) if text is not None or old is None else orjson.loads(old.input)
    return app.schedules.spec(
        name, recurrence, task, arguments, tenant=tenant, **{n: v for n, v in options.items() if v is not None}
    )


@schedules.command()
@click.argument("name")
@_acting
def remove(name: str, tenant: str | None, reason: str, by: str | None) -> None:
    """Let a schedule fire no more.

    Jobs that it has made go on. What waits is skipped, on record; its ledger stays in the database. One that code declares comes back when
    that code changes it.
    """
    state().open().schedules.remove(name, tenant=tenant, actor=_by(by), reason=reason)
    show.as_json({"removed": name}) if state().json else show.say(f"Schedule {name} is removed.")


# ---------------------------------------------------------------------- acts


@schedules.command()
@click.argument("name")
@_acting
def pause(name: str, tenant: str | None, reason: str, by: str | None) -> None:
    """Skip what is planned, on record, until it is resumed."""
    app = state().open()
    _tell(app, app.schedules.pause(name, reason, tenant=tenant, actor=_by(by)))


@schedules.command()
@click.argument("name")
@_acting
def resume(name: str, tenant: str | None, reason: str, by: str | None) -> None:
    """Let a paused schedule fire again, from now on."""
    app = state().open()
    _tell(app, app.schedules.resume(name, reason, tenant=tenant, actor=_by(by)))


def _tell(app: Duly, s: Schedule) -> None:
    if state().json:
        show.as_json(schedule_dict(s))
        return
    now = app.engine.clock.now()
    coming = "" if s.paused_at is not None else f" {following(s, now)}"
    show.say(f"Schedule {s.name} {state_words(s, now)}.{coming}")


@schedules.command()
@click.argument("name")
@_acting
def run(name: str, tenant: str | None, reason: str, by: str | None) -> None:
    """Make its job now.

    Whether it is due or not, paused or not; it stands in the ledger as run by hand, and no planned instant is used up.
    """
    done = state().open().schedules.run(name, tenant=tenant, actor=_by(by), reason=reason)
    show.as_json(done) if state().json else show.say(f"Job {done.job_id} of schedule {name} is made.")


@schedules.command()
@click.argument("name")
@click.option(
    "--from", "start", type=PAST, required=True, metavar="WHEN", help="From this instant on, or so long ago: 14d."
)
@click.option("--until", "end", type=PAST, metavar="WHEN", help="Until before this instant; else until now.")
@_acting
@click.option("--dry-run", is_flag=True, help="Say which ones, and make nothing.")
def backfill(
    name: str, start: datetime | timedelta, end: datetime | timedelta | None, tenant: str | None, reason: str, by: str | None, dry_run: bool
) -> None:  # fmt: skip
    """Fire what was planned in a range and has not fired.

    Each occurrence once: those that were skipped or missed, and those from before the schedule was made. Where the schedule allows no
    overlap they run one after the other.
    """
    asked = state()
    app = asked.open()
    now = app.engine.clock.now()
    first, last = before(now, start), before(now, end) or now
    assert first is not None
    done = app.schedules.backfill(name, first, last, tenant=tenant, actor=_by(by), reason=reason, dry_run=dry_run)
    if asked.json:
        show.as_json(done)
        return
    new = [*done.fired, *done.deferred]
    if not new:
        left = f": {show.count(len(done.left), 'occurrence')} fired before, or wait" if done.left else ""
        show.say(f"Nothing is to be done from {stamp(first)} until {stamp(last)}{left}.")
        return
    tz = tz_of(app.schedules.get(name, tenant=tenant))
    verb = "would fire" if dry_run else "fired" if done.fired else "will fire, one after the other"
    of = local(new[0], tz) + (f" to {local(new[-1], tz)}" if len(new) > 1 else "")
    left = f"; {len(done.left)} fired before, or wait" if done.left else ""
    show.say(f"{show.count(len(new), 'occurrence')} {verb}, planned for {of}{left}.")


@schedules.command()
def sync() -> None:
    """Write the schedules that the application declares.

    A worker does the same when it starts. What a person has changed since stays until the code declares something else.
    """
    done = state().duly(tasks=True).schedules.sync()
    if state().json:
        show.as_json(done)
    else:
        show.table("!schedule change", done.items(), empty="The application declares no schedule.")


@schedules.command()
def tick() -> None:
    """Decide what is due now, once.

    What a running worker does all the time; for a cron of the system that drives Duly, and for trying. What the application declares is written
    first, and what has outlived its retention is removed.
    """
    asked = state()
    app = asked.open(make=bool(asked.app or os.environ.get("DULY_APP")))
    changed = app.schedules.sync()
    scheduler = app.scheduler()
    scheduler.retime()
    report = scheduler.tick()
    pruned = scheduler.prune()
    if asked.json:
        show.as_json({**asdict(report), "pruned": pruned, "sync": changed})
        return
    counts = [f"{n:,} {word}" for word in ("fired", "skipped", "missed", "deferred") if (n := getattr(report, word))]
    show.say(f"{', '.join(counts) or 'Nothing was due'}.")
    if report.broken:
        show.say(f"{show.count(report.broken, 'schedule')} could not be planned; duly schedules list says why.")


# ---------------------------------------------------------------------- preview, ledger, versions


@schedules.command()
@click.argument("name", required=False)
@recurrences.options
@click.option("--queue", "-q", metavar="NAME", help="Whose blackouts count, where it is not the schedule's.")
@click.option(
    "--blackout", metavar="POLICY", help="In a blackout: defer, run_after or skip; else the schedule's, or defer."
)
@click.option("-n", "n", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N", help="So many.")
@click.option("--since", type=INSTANT, metavar="INSTANT", help="After this instant; else after now.")
@_tenant
def preview(
    name: str | None, n: int, since: datetime | None, tenant: str | None, queue: str | None, blackout: str | None, **given: Any
) -> None:  # fmt: skip
    """Show the instants to come, made or not.

    With days on which clocks change, and blackouts. Given NAME and options, what the schedule would do if it were changed so.
    """
    when = recurrences.taken(given)
    asked = state()
    app, there = _app()
    found = None
    if name is not None and not (when and (not there or _there(app, name, tenant) is None)):
        found = asked.open().schedules.get(name, tenant=tenant)
    spec = found.spec if found is not None else None
    if when or spec is None or queue or blackout:
        spec = _changed(name, spec, when, queue, blackout)
    now = since or app.engine.clock.now()
    coming = _previewed(app, there, spec, n, now)
    if asked.json:
        show.as_json([previewed_dict(p) for p in coming])
        return
    if not coming:
        show.say("Nothing is to come.")
        return
    preview_table(coming, now, spec.tz)
    say_special(spec, coming, now)
    if found is not None and found.paused_at is not None:
        show.say(f"{name} is paused: these would be skipped. duly schedules resume {name}")


def _changed(name: str | None, old: Spec | None, when: dict[str, Any], queue: str | None, blackout: str | None) -> Spec:
    """The definition as the options of a preview change it. Without a name, none may be needed."""
    from duly.kernel.errors import InvalidArgument
    from duly.schedules.schedule import Policies, Spec

    recurrence = recurrences.recurrence(when, old.recurrence if old else None)
    if recurrence is None:
        raise click.UsageError("Name a schedule, or say when: --cron, --every, --daily and so on.")
    if name is None:
        try:
            recurrence.next_after(datetime.fromtimestamp(0, UTC))
        except InvalidArgument as error:  # hashed by a name that is not there
            raise InvalidArgument("NAME", error.problem, "Give the schedule's name too.") from None
    policies = old.policies if old else Policies()
    if blackout:
        policies = replace(policies, blackout=cast(Any, blackout))  # checked there
    if old is not None:
        return replace(old, recurrence=recurrence, queue=queue or old.queue, policies=policies)
    return Spec(name or "preview", recurrence, "preview", "{}", queue or "default", "default", policies)


def _previewed(app: Duly, there: bool, spec: Spec, n: int, now: datetime) -> list[Previewed]:
    """Instants to come; where there is no database, no blackout holds."""
    from duly.kernel.windows import Calendar
    from duly.schedules.door import preview

    return app.schedules.preview_of(spec, n, since=now) if there else preview(spec, Calendar(), now, n)


@schedules.command()
@click.argument("name")
@click.option(
    "--status",
    "-s",
    "statuses",
    multiple=True,
    type=click.Choice(["fired", "skipped", "missed", "deferred"]),
    help="May be repeated.",
)
@click.option("--since", type=PAST, metavar="WHEN", help="Planned since: 15min, 14d, or an instant.")
@click.option("--until", type=PAST, metavar="WHEN", help="Planned before.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 10_000), default=20, show_default=True, metavar="N", help="At most so many."
)
@click.option("--below", type=INSTANT, metavar="INSTANT", help="The page behind: only what was planned before this.")
@_tenant
def ledger(
    name: str, statuses: tuple[str, ...], since: Any, until: Any, limit: int, below: datetime | None, tenant: str | None
) -> None:
    """Show what became of each planned instant, newest first."""
    asked = state()
    app = asked.open()
    s = app.schedules.get(name, tenant=tenant)
    now = app.engine.clock.now()
    found = app.schedules.ledger(
        name,
        tenant=tenant,
        statuses=statuses,
        since=before(now, since),
        until=before(now, until),
        limit=limit,
        before=below,
    )
    if asked.json:
        show.as_json([occurrence_dict(o) for o in found])
        return
    ledger_table(found, tz_of(s))
    if len(found) == limit:
        click.echo(f"There may be more: --below {found[-1].due_at.isoformat()}", err=True)


@schedules.command()
@click.argument("name")
@_tenant
def versions(name: str, tenant: str | None) -> None:
    """Show the definitions that it has had."""
    asked = state()
    found = asked.open().schedules.versions(name, tenant=tenant)
    if asked.json:
        show.as_json(found)
        return
    older = [v["definition"] for v in found[1:]] + [None]
    show.table(
        "!#version !made by what changed",
        (
            (
                v["version"],
                stamp(v["made_at"]),
                v["made_by"],
                described(v["definition"]),
                changed(v["definition"], was),
            )
            for v, was in zip(found, older, strict=True)
        ),
    )
