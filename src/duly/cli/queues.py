"""``duly queues``, ``duly gate`` and ``duly why``: what holds work, and letting it go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import ID, Command, Group, actor, state
from duly.cli.times import parse_span, relative, span, stamp

if TYPE_CHECKING:
    from datetime import datetime

    from duly.app import Duly
    from duly.jobs.queues import QueueSettings
    from duly.jobs.survey import Depth


class _Rate(click.ParamType):  # type: ignore[type-arg]
    name = "n/span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        count, slash, per = str(value).partition("/")
        try:
            if not slash or not (count.isascii() and count.strip().isdigit()):
                raise ValueError("it is a number, a slash and a span")
            # "10/s" reads as one second
            seconds = parse_span(per if per.strip()[:1].isdigit() else f"1{per.strip()}").total_seconds()
            if int(count) < 1 or seconds <= 0:
                raise ValueError("both must be positive")
        except ValueError as error:
            self.fail(f"{value!r}: {error}. Write 50/86400, 10/s or 100/15min.", param, ctx)
        return int(count), seconds


# ---------------------------------------------------------------------- queues


@click.group(cls=Group)
def queues() -> None:
    """Look at queues; pause, resume and limit them."""


@queues.command("list")
def list_() -> None:
    """List queues: what waits, runs and governs them."""
    from duly.jobs.survey import Depth, depths

    asked = state()
    app = asked.open()
    settings = app.queues.all()
    stands = {one.queue: one for one in app.db.read(lambda c: depths(c, app.db.present(c)))}
    served = Counter(name for w in app.db.read(_workers(app)) for name in w["queues"])
    dark, now = app.db.read(_blackouts(app)), app.db.read(app.db.present)
    rows = [
        {
            **_numbers(stands.get(name, Depth(name))),
            "workers": served[name],
            **_as_dict(name, settings.get(name), now),
            **dark(name),
        }
        for name in sorted({*settings, *stands, *served})
    ]
    if asked.json:
        show.as_json(rows)
        return
    show.table(
        "!queue #ready #running #later oldest #workers #limit #per_key rate fair state",
        (
            (
                r["queue"], *(f"{r[kind]}+" if kind in r["at_least"] else r[kind] for kind in ("ready", "running", "later")), relative(r["oldest_ready"], now), r["workers"], r["limit"], r["key_limit"], _rate(r["rate"]),
                "yes" if r["fair"] else "", _paused(r),
            )
            for r in rows
        ),
        empty="No queue has a job, a worker or a setting.",
    )  # fmt: skip


def _numbers(one: Depth) -> dict[str, Any]:
    return {
        "ready": one.ready, "later": one.later, "running": one.running, "at_least": sorted(one.at_least), "oldest_ready": one.oldest,
    }  # fmt: skip


def _workers(app: Duly) -> Callable[[Any], list[dict[str, Any]]]:
    from duly.jobs.ask import WORKER_GONE

    return lambda connection: app.engine.reader.live_workers(connection, WORKER_GONE)


def _blackouts(app: Duly) -> Callable[[Any], Callable[[str], dict[str, Any]]]:
    """What holds a queue now, by its name."""

    from duly.calendars.tables import queue_scopes

    def look(connection: Any) -> Callable[[str], dict[str, Any]]:
        calendar, now = app.engine.calendars.calendar(connection), app.db.present(connection)

        def of(name: str) -> dict[str, Any]:
            covered = calendar.applying_to(*queue_scopes(name)).covering(now)
            if covered is None:
                return {"blackout": None, "blackout_until": None}
            return {"blackout": ", ".join(covered.names), "blackout_until": covered.until}

        return of

    return look


def _as_dict(name: str, s: QueueSettings | None, now: datetime) -> dict[str, Any]:
    rate = s.rate if s else None
    held = s is not None and s.is_held(now)
    return {
        "queue": name, "limit": s.limit if s else None, "key_limit": s.key_limit if s else None,
        "rate": {"count": rate.count, "seconds": rate.seconds} if rate else None, "fair": s.fair if s else False,
        "paused_at": s.paused_at if s else None, "paused_reason": s.paused_reason if s else None, "paused_by": s.paused_by if s else None,
        "held_until": s.held_until if s and held else None, "held_reason": s.held_reason if s and held else None,
    }  # fmt: skip


def _rate(rate: dict[str, Any] | None) -> str:
    return f"{rate['count']} in {span(rate['seconds'])}" if rate else ""


def _paused(row: dict[str, Any]) -> str:
    if row["paused_at"] is None:
        if row["held_until"] is not None:
            return f"held until {stamp(row['held_until'])}" + (f": {row['held_reason']}" if row["held_reason"] else "")
        if row.get("blackout") is None:
            return "open"
        until = f"until {stamp(row['blackout_until'])}" if row["blackout_until"] else "without an end in sight"
        return f"in the blackout {row['blackout']} {until}"
    return f"paused by {row['paused_by']}" + (f": {row['paused_reason']}" if row["paused_reason"] else "")


def _tell(after: QueueSettings) -> None:
    """What is set for a queue now."""
    app = state().open()
    row = _as_dict(after.name, after, app.db.read(app.db.present))
    if state().json:
        show.as_json(row)
        return
    governed = [
        f"at most {after.limit} at once" if after.limit is not None else "",
        f"{after.key_limit} per concurrency key" if after.key_limit is not None else "",
        _rate(row["rate"]),
        "tenants take turns" if after.fair else "",
    ]
    limits = ", ".join(g for g in governed if g) or "no limits"
    show.say(f"Queue {after.name} is {_paused(row)} ({limits}).")


@queues.command()
@click.argument("name")
@click.option("--reason", default="", help="Why, for those who look at it later.")
def pause(name: str, reason: str) -> None:
    """Stop claims on a queue.

    Running jobs go on; new ones are accepted and wait.
    """
    _tell(state().open(make=True).queues.pause(name, reason, actor()))


@queues.command()
@click.argument("name")
def resume(name: str) -> None:
    """Let claims on a queue go on."""
    _tell(state().open().queues.resume(name, actor()))


@queues.command()
@click.argument("name")
def release(name: str) -> None:
    """End a hold before its instant.

    A queue is held when the other side has had enough for now, or does not answer; it opens by itself.
    """
    _tell(state().open().queues.release(name, actor()))


@queues.command()
@click.argument("name")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Jobs of this queue at once, in all workers together."
)
@click.option("--no-limit", is_flag=True, help="Take that limit away.")
@click.option(
    "--key-limit", type=click.IntRange(min=1), metavar="N", help="Jobs with the same concurrency key at once."
)
@click.option("--no-key-limit", is_flag=True, help="Take that limit away.")
@click.option("--rate", type=_Rate(), metavar="N/SPAN", help="Starts in any window: 50/86400, 10/s, 100/15min.")
@click.option("--no-rate", is_flag=True, help="Take the rate away.")
@click.option("--fair/--no-fair", default=None, help="At equal priority, tenants take turns.")
def limit(
    name: str,
    limit: int | None,
    no_limit: bool,
    key_limit: int | None,
    no_key_limit: bool,
    rate: tuple[int, float] | None,
    no_rate: bool,
    fair: bool | None,
) -> None:
    """Set or take away what limits a queue.

    What is not named stays as it is.
    """
    changes: dict[str, Any] = {}
    for field, value, none in (
        ("limit", limit, no_limit),
        ("key_limit", key_limit, no_key_limit),
        ("rate", rate, no_rate),
    ):
        option = field.replace("_", "-")
        if value is not None and none:
            raise click.UsageError(f"--{option} and --no-{option} are both given.")
        if value is not None or none:
            changes[field] = value
    if fair is not None:
        changes["fair"] = fair
    if not changes:
        raise click.UsageError(
            "Nothing to change: give --limit, --key-limit, --rate, --fair or one of their opposites."
        )
    _tell(state().open(make=True).queues.set(name, actor=actor(), **changes))


# ---------------------------------------------------------------------- the gate


@click.command(cls=Command)
@click.argument("position", required=False, metavar="[online|offline]", type=click.Choice(["online", "offline"]))
@click.option("--reason", default="", help="Why, for those who look at it later.")
@click.option(
    "--scope", multiple=True, type=click.Choice(["jobs", "outbox"]), help="Move the gate for this alone. May be repeated. Default: all."
)  # fmt: skip
def gate(position: str | None, reason: str, scope: tuple[str, ...]) -> None:
    """Show the online gate, or move it.

    While it is offline no worker claims anything, and no relay of Duly's own outbox sends anything. Running jobs go on; new jobs and
    messages are accepted and wait.
    """
    from duly.monitoring.examine import gate_facts

    asked = state()
    app = asked.open(make=position is not None)
    if position == "online":
        app.gate.online(reason, actor(), scope or None)
    elif position == "offline":
        app.gate.offline(reason, actor(), scope or None)
    elif reason or scope:
        raise click.UsageError(
            f"--{'reason' if reason else 'scope'} is given, but not where to move the gate: online or offline."
        )
    g = app.db.read(lambda c: gate_facts(app.engine, c))
    if asked.json:
        facts = {
            "online": g.online,
            "since": g.since,
            "by": g.by or None,
            "reason": g.reason or None,
            "outbox": g.outbox,
        }
        show.as_json(facts)
        return
    since = f" since {stamp(g.since)}" if g.since else ""
    show.say(
        f"{'online' if g.online else 'offline'}{since}{f', by {g.by}' if g.by else ''}{f': {g.reason}' if g.reason else ''}"
    )
    if g.outbox != g.online:
        show.say(f"The outbox is {'online' if g.outbox else 'offline'}.")


# ---------------------------------------------------------------------- why


@click.command(cls=Command)
@click.argument("job", type=ID)
@click.option("--tenant", help="Only if it is this tenant's.")
def why(job: int, tenant: str | None) -> None:
    """Say why a job does not run.

    Every condition in order, met or not, and what to do about it.
    """
    asked = state()
    app = asked.open()
    checks = app.why(job, tenant)
    if asked.json:
        show.as_json(checks)
        return
    show.table("!condition !met what", ((c.name, "yes" if c.met else "no", c.detail) for c in checks))
    unmet = [c for c in checks if not c.met]
    show.say()
    if not unmet:
        running = len(checks) == 1 and checks[0].name == "running"
        show.say(f"Job {job} {'is running' if running else 'will be claimed in a moment'}.")
    for c in unmet:
        if c.remedy:
            show.say(f"{c.name}: {c.remedy}")
