"""``duly migrate``, ``duly doctor`` and ``duly audit``: the database, its health, its record."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import ID, Command, Group, complain, state
from duly.cli.times import PAST, before, stamp

if TYPE_CHECKING:
    from duly.settings import Settings


# ---------------------------------------------------------------------- migrate


@click.command(cls=Command)
@click.option("--sql", is_flag=True, help="Print the statements of a fresh install instead of running them.")
@click.option("--dialect", type=click.Choice(["sqlite", "postgresql"]), help="With --sql: for which database.")
def migrate(sql: bool, dialect: str | None) -> None:
    """Bring the database to the schema of this version.

    Safe to run twice, and from several places at once."""
    from duly.storage import migrate as storage

    if dialect and not sql:
        raise click.UsageError("--dialect goes with --sql.")
    asked = state()
    if sql:
        from duly.settings import Settings

        db = None if dialect else asked.unmigrated(anyhow=True).db
        settings = db.settings if db else Settings.load()
        text = storage.sql(dialect or db.name, settings.schema)  # type: ignore[union-attr]
        show.as_json({"sql": text}) if asked.json else click.echo(text, nl=False)
        return
    app = asked.unmigrated(anyhow=True)
    was, now = app.migrate()
    if asked.json:
        show.as_json({"database": app.db.shown_url, "before": was, "after": now})
    elif was == now:
        show.say(f"{app.db.shown_url} is at revision {now} already.")
    else:
        show.say(f"{app.db.shown_url} is at revision {now} now{f' (it was at {was})' if was else ', freshly made'}.")


# ---------------------------------------------------------------------- doctor


@click.command(cls=Command)
@click.option("--settings", is_flag=True, help="Print every setting: its value, where that is from, and what it means.")
def doctor(settings: bool) -> int:
    """Look whether everything is in order.

    This machine, the database and the work; for what is not in order it says what to do. Nothing is made, migrated or changed. Ends with 1 if something fails.
    """
    app = state().unmigrated(anyhow=False)
    if settings:
        _settings(app.settings)
        return 0
    from duly.monitoring.examine import examine
    from duly.monitoring.health import Grade, judge, worst

    findings = judge(examine(app.engine))
    grade = worst(findings)
    if state().json:
        show.as_json({"grade": grade, "findings": findings})
    else:
        show.table("!check !grade what", ((f.check, str(f.grade), f.detail) for f in findings))
        remedies = [f for f in findings if f.remedy]
        if remedies:
            show.say("\nWhat to do")
            show.facts((f"  {f.check}", f.remedy) for f in remedies)
        fails = sum(f.grade is Grade.FAIL for f in findings)
        warns = sum(f.grade is Grade.WARN for f in findings)
        told = [f"{fails} failed" if fails else "", show.count(warns, "warning") if warns else ""]
        show.say(f"\n{', '.join(t for t in told if t) or 'All is well'}.")
    return 1 if grade is Grade.FAIL else 0


#: Settings whose values are nobody else's business: a secret, and a URL that often holds one.
_SECRET = (
    "ai_api_key", "alerts_webhook", "alerts_webhook_secret", "anthropic_api_key", "graph_client_secret", "oidc_client_secret", "resend_api_key", "smtp_url", "web_token",
)  # fmt: skip


def _settings(settings: Settings) -> None:
    from duly.monitoring.redact import bare_url, hide_parts
    from duly.storage.database import parse_url, shown

    rows = []
    for entry in type(settings).describe():
        value = getattr(settings, entry["name"])
        if entry["name"] == "database_url":
            value = hide_parts(shown(parse_url(value)), value)
        elif entry["name"] in _SECRET and value:
            value = "(set)"
        elif entry["unit"] == "URL":
            value = bare_url(value)
        source = "environment" if entry["variable"] in os.environ else "default"
        if source == "default" and getattr(settings, entry["name"]) != entry["default"]:
            source = "application"
        rows.append({"name": entry["name"], "value": value, "source": source, **entry})
    if state().json:
        show.as_json(rows)
        return
    show.table(
        "!setting value unit !from reason",
        ((r["name"], _shown(r["value"]), r["unit"], r["source"], r["reason"]) for r in rows),
    )
    show.say("\nEach has a variable, such as DULY_LEASE, and is an argument of Duly(...).")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return (
        f"{value:g}"
        if isinstance(value, float) and value < 1e6
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )


# ---------------------------------------------------------------------- audit


@click.group(cls=Group)
def audit() -> None:
    """Read the audit trail, and verify it."""


@audit.command("list")
@click.option("--job", type=ID, metavar="ID", help="About this job.")
@click.option("--entity", help="About things of this kind: job, queue, gate.")
@click.option("--action", help="Such as JOB_CANCELLED or QUEUE_PAUSED.")
@click.option("--actor", help="By whom: cli:<user>, or a worker's name.")
@click.option("--level", type=click.Choice(["info", "warning", "error"]))
@click.option("--tenant", help="Of this tenant.")
@click.option("--since", type=PAST, metavar="WHEN", help="Since: 15min, 14d, or an instant.")
@click.option("--before", type=PAST, metavar="WHEN", help="Before.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N", help="At most so many."
)
@click.option("--below", type=ID, metavar="ID", help="The page behind: only ids below this one.")
def list_(job: int | None, limit: int, below: int | None, **given: Any) -> None:
    """List what was done, by whom and to what."""
    from duly.audit.read import TrailFilter, find

    asked = state()
    app = asked.open()
    now = app.engine.clock.now()
    given["since"], given["before"] = before(now, given["since"]), before(now, given["before"])
    if job is not None:
        if given["entity"] not in (None, "job"):
            raise click.UsageError("--job and --entity are about different things.")
        given |= {"entity": "job", "entity_id": str(job)}
    found = app.db.read(lambda c: find(c, TrailFilter(**given), limit, below))
    if asked.json:
        show.as_json(found)
        return
    show.table(
        "!#id !at !level actor action about meta",
        ((e.id, stamp(e.at), e.level, e.actor, e.action, f"{e.entity} {e.entity_id}", _meta(e.meta)) for e in found),
        empty="Nothing was recorded.",
    )
    if len(found) == limit:
        click.echo(f"There may be more: --below {found[-1].id}", err=True)


def _meta(meta: Any) -> str:
    return (
        ", ".join(f"{k}: {v}" for k, v in meta.items() if v not in (None, "")) if isinstance(meta, dict) else str(meta)
    )


@audit.command()
def verify() -> int:
    """Verify the hash chain over the trail.

    Walks it from its start and names the first link that is broken. Ends with 1 if one is.
    """
    from duly.audit.seal import verify as walk

    asked = state()
    app = asked.open()
    if sys.stderr.isatty() and not asked.json:
        verdict = walk(app.db, lambda rows: click.echo(f"\r{rows:,} rows hold", nl=False, err=True))
        click.echo("\r" + " " * 40 + "\r", nl=False, err=True)
    else:
        verdict = walk(app.db)
    if asked.json:
        show.as_json({"holds": verdict.broken is None, **{f.name: getattr(verdict, f.name) for f in fields(verdict)}})
    elif verdict.broken is None:
        tail = f"; {show.count(verdict.unsealed, 'row')} not sealed yet" if verdict.unsealed else ""
        show.say(f"The chain holds: {show.count(verdict.rows, 'row')} in {show.count(verdict.seals, 'seal')}{tail}.")
    if verdict.broken is not None:
        where = f" ({verdict.rows:,} rows before it hold)"
        complain(f"the chain is broken: {verdict.broken}{where}.")
        return 1
    return 0
