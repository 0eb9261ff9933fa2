"""``duly jobs``: looking at jobs and acting on them, one by one or by filter.

A bulk act always finds its jobs first and says how many of what. Beyond BULK jobs it wants a yes: on a terminal it
asks, elsewhere it wants ``--yes`` and ends with 2 without it. Jobs named by id are meant as they are and never asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import BULK, ID, Group, actor, complain, state
from duly.cli.times import PAST, SPAN, before, relative, span, stamp

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.jobs.filter import JobFilter
    from duly.jobs.job import Job
    from duly.jobs.survey import Bunch

STATUSES = ("queued", "running", "succeeded", "failed", "cancelled")
#: How many jobs one call of a bulk act handles, between two steps of the progress bar.
STEP = 1000


@click.group(cls=Group)
def jobs() -> None:
    """Look at jobs; cancel, replay and prune them."""


# ---------------------------------------------------------------------- filters


def filtered(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose jobs. All that are given must hold."""
    for option in reversed((
        click.option("--status", "-s", multiple=True, type=click.Choice(STATUSES), help="May be repeated."),
        click.option("--queue", "-q", help="Of this queue."),
        click.option("--task", "-t", help="Of this task."),
        click.option("--tenant", help="Of this tenant."),
        click.option("--key", help="With this idempotency key."),
        click.option("--parent", type=ID, metavar="ID", help="Children of this job."),
        click.option("--error", metavar="CLASS", help="With an error of this class, such as Timeout; (none): one that names none. Without --status: of jobs that failed; cancel: of live ones."),
        click.option("--since", type=PAST, metavar="WHEN", help="Ended (live ones: made) since: 15min, 14d, or an instant."),
        click.option("--before", type=PAST, metavar="WHEN", help="Ended (live ones: made) before."),
    )):  # fmt: skip
        command = option(command)
    return command


_CHOICES = ("status", "queue", "task", "tenant", "key", "parent", "error", "since", "before")


def _filter(app: Duly, given: dict[str, Any], event: str = "") -> JobFilter:
    """What the options mean. ``event``: for which act; live jobs are cancelled, whatever they have failed with before."""
    from duly.jobs.filter import JobFilter, of_error
    from duly.jobs.job import Status

    now = app.engine.clock.now()
    wanted = JobFilter(
        tenant=given["tenant"], status=[Status(s) for s in given["status"]], queue=given["queue"], task=given["task"], key=given["key"],
        parent_id=given["parent"], since=before(now, given["since"]), before=before(now, given["before"]), error=given["error"],
    )  # fmt: skip
    return wanted if event == "cancel" else of_error(wanted)


# ---------------------------------------------------------------------- looking


def job_dict(job: Job, now: datetime) -> dict[str, Any]:
    """A job for programs: its fields, and the label that people see."""
    return {**asdict(job), "label": job.label(now)}


@jobs.command("list")
@filtered
@click.option(
    "--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N", help="At most so many."
)
@click.option("--below", type=ID, metavar="ID", help="The page behind: only ids below this one.")
def list_(limit: int, below: int | None, **given: Any) -> None:
    """List jobs, newest first."""
    asked = state()
    app = asked.open()
    wanted = _filter(app, given)
    found = app.db.snapshot(lambda c: app.engine.reader.find(c, wanted, limit, below))
    now = app.engine.clock.now()
    if asked.json:
        show.as_json([job_dict(job, now) for job in found])
        return
    tenants = len({job.tenant for job in found}) > 1
    heads = "!#id task queue !status !#attempts !when" + (" tenant" if tenants else "") + " key what"
    show.table(
        heads,
        (
            [job.id, job.task, job.queue, job.label(now), f"{job.attempts}/{job.max_attempts}", _when(job, now)]
            + ([job.tenant] if tenants else [])
            + [job.key, _short_error(job.error) if job.status != "succeeded" else ""]
            for job in found
        ),
        empty="No such jobs.",
    )
    if len(found) == limit:
        click.echo(f"There may be more: --below {found[-1].id}", err=True)


def _when(job: Job, now: datetime) -> str:
    """The instant that matters most in its state."""
    if job.is_final:
        return relative(job.finished_at, now)
    if job.status == "running":
        return f"for {span((now - job.started_at).total_seconds())}" if job.started_at else ""
    if job.waits_for_children:
        return ""
    return relative(job.due_at or job.run_at, now)


def _short_error(error: Any, width: int = 60) -> str:
    """Type and first line."""
    if not isinstance(error, dict):
        return ""
    first = (str(error.get("message") or "").splitlines() or [""])[0]
    text = f"{error.get('type', '')}: {first}".strip(": ")
    return text if len(text) <= width else text[: width - 1] + "…"


@jobs.command("show")
@click.argument("job", type=ID)
@click.option("--tenant", help="Only if it is this tenant's.")
def show_(job: int, tenant: str | None) -> None:
    """Show one job in full.

    Its input and output, the attempts that failed, its children, and what the audit trail says of it.
    """
    from duly.audit.read import TrailFilter, find

    asked = state()
    app = asked.open()
    reader = app.engine.reader
    found = app.jobs.get(job, tenant)
    attempts = app.db.read(lambda c: reader.attempts_of(c, job))
    children = app.db.read(lambda c: reader.children_of(c, job))[::-1]
    trail = app.db.read(lambda c: find(c, TrailFilter(entity="job", entity_id=str(job)), 1000))[::-1]
    now = app.engine.clock.now()
    if asked.json:
        show.as_json(
            {
                **job_dict(found, now),
                "failed_attempts": attempts,
                "children": [job_dict(c, now) for c in children],
                "audit": trail,
            }
        )
        return
    _page(found, now)
    if attempts:
        _head("Attempts that did not succeed")
        show.table(
            "!#attempt !outcome !started !took worker error",
            (
                (
                    a.attempt, a.outcome, stamp(a.started_at), span((a.ended_at - a.started_at).total_seconds()) if a.started_at else "",
                    a.worker, _short_error(a.error, 200),
                )
                for a in attempts
            ),
        )  # fmt: skip
    if children:
        _head("Children")
        show.table(
            "!#id task queue !status !when", ((c.id, c.task, c.queue, c.label(now), _when(c, now)) for c in children)
        )
    if trail:
        _head("Audit trail")
        show.table("!#id !at actor action meta", ((e.id, stamp(e.at), e.actor, e.action, _meta(e.meta)) for e in trail))


def _head(text: str) -> None:
    click.echo(f"\n{text}")


def _page(job: Job, now: datetime) -> None:
    def at(instant: datetime | None) -> str:
        return f"{stamp(instant)} ({relative(instant, now)})" if instant else ""

    planned_later = job.run_at is not None and job.created_at is not None and job.run_at > job.created_at
    pairs: list[tuple[str, Any]] = [
        ("job", job.id),
        ("task", job.task),
        ("status", job.label(now)),
        ("queue", job.queue),
        ("tenant", job.tenant if job.tenant != "default" else ""),
        ("key", job.key),
        ("concurrency key", job.concurrency_key),
        ("priority", job.priority or ""),
        ("parent", job.parent_id),
        ("attempts", f"{job.attempts} of {job.max_attempts}"),
        ("created", at(job.created_at)),
        ("planned for", at(job.run_at) if planned_later else ""),
        ("due", at(job.due_at) if not job.waits_for_children else ""),
        ("started", at(job.started_at)),
        ("finished", at(job.finished_at)),
        ("worker", job.worker),
        ("lease until", at(job.lease_until)),
        ("cost", f"{job.cost_cents} cents" if job.cost_cents else ""),
        ("remote id", job.remote_id),
        ("meta", show.pretty(job.meta) if job.meta else ""),
        ("input", show.pretty(job.input)),
        ("output", show.pretty(job.output) if job.output not in (None, {}) else ""),
        ("error", _error_text(job.error)),
    ]
    show.facts(pairs)


def _error_text(error: Any) -> str:
    if not isinstance(error, dict):
        return "" if error is None else str(error)
    text = f"{error.get('type', '')}: {error.get('message', '')}".strip(": ")
    return "\n".join([text, *(f"  {frame}" for frame in error.get("trace", ()))])


def _meta(meta: Any) -> str:
    return (
        ", ".join(f"{k}: {v}" for k, v in meta.items() if v not in (None, "")) if isinstance(meta, dict) else str(meta)
    )


# ---------------------------------------------------------------------- acting


def _acts(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed((
        click.argument("ids", nargs=-1, type=ID, metavar="[ID]..."),
        filtered,
        click.option("--limit", "-n", type=click.IntRange(min=1), metavar="N", help="At most so many, the oldest first."),
        click.option("--reason", default="", help="Why, for the audit trail."),
        click.option("--dry-run", is_flag=True, help="Say how many of what, and change nothing."),
        click.option("--yes", "-y", is_flag=True, help=f"Do not ask (more than {BULK} by filter are asked for)."),
    )):  # fmt: skip
        command = option(command)
    return command


@jobs.command()
@_acts
@click.option("--children", is_flag=True, help="Their live children too (with ids).")
def cancel(ids: tuple[int, ...], children: bool, **given: Any) -> int:
    """Cancel jobs, by id or by filter.

    A waiting job ends now; a running one is asked to stop.
    """
    if children and not ids:
        raise click.UsageError("--children goes with ids.")
    return _act("cancel", ids, children=children, **given)


@jobs.command()
@_acts
@click.option("--force", is_flag=True, help="Jobs that succeeded, too: their effects are repeated.")
@click.option(
    "--now", "at_once", is_flag=True, help="Due now, also a job that was cancelled before its planned time (with ids)."
)
def replay(ids: tuple[int, ...], force: bool, at_once: bool, **given: Any) -> int:
    """Run ended jobs again, by id or by filter.

    Same id, input and key, attempts from 0, due now. A filter takes failed jobs, with --force also those that succeeded. A cancelled job is
    replayed by its id, and goes back to its planned time.
    """
    if at_once and not ids:
        raise click.UsageError("--now goes with ids.")
    return _act("replay", ids, force=force, at_once=at_once, **given)


def _act(
    event: str,
    ids: tuple[int, ...],
    *,
    limit: int | None,
    reason: str,
    dry_run: bool,
    yes: bool,
    force: bool = False,
    children: bool = False,
    at_once: bool = False,
    **given: Any,
) -> int:
    chosen = [name for name in _CHOICES if given[name] not in (None, ())]
    if ids and set(chosen) - {"tenant"}:
        raise click.UsageError(f"Give ids or filters, not both (--{chosen[0]}).")
    if not ids and not chosen:
        raise click.UsageError(
            f"Which jobs? Give ids, or filters such as --status {'queued' if event == 'cancel' else 'failed'}."
        )
    asked = state()
    app = asked.open()
    if ids:
        if dry_run:
            return _foretell_ids(app, event, list(dict.fromkeys(ids)), given["tenant"], force)
        return _act_on_ids(app, event, list(dict.fromkeys(ids)), reason, given["tenant"], force, children, at_once)
    bunches = _meant(app, event, given, force)
    left_out = _cancelled(app, event, given)
    total = sum(b.count for b in bunches)
    todo = min(total, limit) if limit is not None else total
    if dry_run or not asked.json:
        _foretell(event, bunches, todo, dry_run, left_out)
    if dry_run or not todo:
        if asked.json and not dry_run:
            _report(app, event, [], {})
        return 0
    if todo > BULK and not yes:
        _confirm(f"{event} {show.count(todo, 'job')}")
    done, refused = _in_steps(app, event, given, todo, reason, force)
    return _report(app, event, done, refused)


#: What a replay by force does.
REPEATED = "it succeeded: its effects will be repeated, those of an idempotent task too"


def _foretell_ids(app: Duly, event: str, ids: list[int], tenant: str | None, force: bool) -> int:
    """Say what an act on these jobs would do, and who cancelled those that were cancelled. Nothing is changed."""
    from duly.jobs.admin import able
    from duly.jobs.job import Status

    found = [app.jobs.get(one, tenant) for one in ids]
    states = able(event, force, named=True)
    meant = [one for one in found if one.status in states]
    cancelled = [one.id for one in meant if one.status is Status.CANCELLED]
    by = app.db.read(lambda c: app.engine.reader.cancelled_by(c, cancelled))
    told = {one: f"it was cancelled by {who}{f': {why}' if why else ''}" for one, (who, why) in by.items()}
    repeated = [one.id for one in meant if one.status is Status.SUCCEEDED]
    if state().json:
        more = {"would_repeat_effects_of": repeated} if repeated else {}
        show.as_json({
            f"would_{event}": [one.id for one in meant], "cancelled": {str(k): v for k, v in told.items()}, **more,
        })  # fmt: skip
        return 0
    told |= dict.fromkeys(repeated, REPEATED)
    show.table("!#id task queue status more", ((one.id, one.task, one.queue, str(one.status), told.get(one.id, "")) for one in meant))  # fmt: skip
    for one in found:
        if one not in meant:
            complain(f"job {one.id} is {one.status} and cannot be {_past(event)}.")
    click.echo(f"\nWould {event} {show.count(len(meant), 'job')}. Nothing was changed.")
    return 0


def _act_on_ids(
    app: Duly, event: str, ids: list[int], reason: str, tenant: str | None, force: bool, children: bool, at_once: bool
) -> int:
    from duly.kernel.errors import DulyError

    if not children:
        bulk = app.jobs.admin.act_on(event, ids, actor(), reason, tenant, force, at_once=at_once)
        return _report(app, event, bulk.done, bulk.refused)
    done: list[int] = []
    refused: dict[int, str] = {}
    for ident in ids:
        try:
            app.jobs.cancel(ident, reason, actor(), tenant, children=True)
            done.append(ident)
        except DulyError as error:
            refused[ident] = str(error)
    return _report(app, event, done, refused)


def _meant(app: Duly, event: str, given: dict[str, Any], force: bool) -> list[Bunch]:
    """What the filter means, counted: of the jobs that fit it, those that can make the move."""
    from dataclasses import replace

    from duly.jobs.admin import able
    from duly.jobs.job import Status
    from duly.jobs.survey import bunches

    able_ = able(event, force)
    wanted = _filter(app, given, event)
    if event == "replay" and Status.CANCELLED in wanted.status:
        raise click.UsageError("A filter never replays cancelled jobs. Replay them by id: duly jobs replay ID...")
    states = [s for s in (wanted.status or able_) if s in able_]
    if not states:
        hint = " (--force replays succeeded ones)" if event == "replay" and Status.SUCCEEDED in wanted.status else ""
        raise click.UsageError(f"No job of status {', '.join(wanted.status)} can be {_past(event)}{hint}.")
    return app.db.read(lambda c: bunches(c, replace(wanted, status=states)))


def _past(event: str) -> str:
    return {"cancel": "cancelled", "replay": "replayed"}[event]


def _cancelled(app: Duly, event: str, given: dict[str, Any]) -> int:
    """How many cancelled jobs fit a filter that replays, which leaves them out. 0 where the filter names a status."""
    from dataclasses import replace

    from duly.jobs.job import Status
    from duly.jobs.survey import bunches

    wanted = _filter(app, given, event)
    if event != "replay" or wanted.status:
        return 0
    return sum(b.count for b in app.db.read(lambda c: bunches(c, replace(wanted, status=(Status.CANCELLED,)))))


def _foretell(event: str, bunches: Sequence[Bunch], todo: int, dry_run: bool, left_out: int) -> None:
    total = sum(b.count for b in bunches)
    if state().json:
        show.as_json({f"would_{event}": todo, "of": bunches, "left_out_cancelled": left_out})
        return
    if left_out:
        were = "was" if left_out == 1 else "were"
        complain(
            f"{show.count(left_out, 'job')} that {were} cancelled left out: a cancelled job is replayed by its id."
        )
    if not total:
        click.echo("No job fits.")
    elif dry_run:
        show.table("#count task queue status", ((f"{b.count:,}", b.task, b.queue, str(b.status)) for b in bunches))
        first = "the first " if todo < total else ""
        click.echo(f"\nWould {event} {first}{show.count(todo, 'job')}. Nothing was changed.")


def _confirm(what: str) -> None:
    """Ask on a terminal; elsewhere say that --yes is missing."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"This would {what}. Add --yes to do it, or --dry-run to see which.")
    click.confirm(f"{what[:1].upper()}{what[1:]}?", abort=True, err=True)


def _in_steps(
    app: Duly, event: str, given: dict[str, Any], todo: int, reason: str, force: bool
) -> tuple[list[int], dict[int, str]]:
    """Find and act in turns, until nothing is left that has not been tried; what comes in meanwhile is left alone."""
    admin = app.jobs.admin
    wanted = _filter(app, given, event)
    done: list[int] = []
    refused: dict[int, str] = {}
    ids = admin.matching(wanted, event, limit=todo, force=force)
    with _progress(event, len(ids)) as step:
        for start in range(0, len(ids), STEP):
            part = ids[start : start + STEP]
            bulk = admin.act_on(event, part, actor(), reason, given["tenant"], force, wanted)
            done += bulk.done
            refused |= bulk.refused
            step(len(bulk.done) + len(bulk.refused))
    return done, refused


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, on a terminal and for long work only."""
    if total <= STEP or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=total, label=title, file=sys.stderr) as bar:
        yield bar.update


def _report(app: Duly, event: str, done: list[int], refused: dict[int, str]) -> int:
    stopping = _running(app, done) if event == "cancel" else set()
    ended = [ident for ident in done if ident not in stopping]
    if state().json:
        more = {"stopping": sorted(stopping)} if event == "cancel" else {}
        show.as_json({_past(event): ended, **more, "refused": {str(ident): why for ident, why in refused.items()}})
    else:
        if ended:
            click.echo(f"{_past(event).capitalize()} {_which(ended)}.")
        if stopping:
            click.echo(f"Asked {_which(sorted(stopping))} to stop.")
    for ident, why in list(refused.items())[:10]:
        complain(why if str(ident) in why else f"job {ident}: {why}")
    if len(refused) > 10:
        complain(f"and {len(refused) - 10:,} more were refused.")
    return 1 if refused else 0


def _which(ids: Sequence[int]) -> str:
    return f"job {ids[0]}" if len(ids) == 1 else show.count(len(ids), "job")


def _running(app: Duly, ids: Sequence[int]) -> set[int]:
    """Of cancelled jobs, those that run: they were asked to stop and have not ended yet."""
    out: set[int] = set()
    for start in range(0, len(ids), 500):
        out |= {job.id for job in app.jobs.find(500, status=["running"], ids=ids[start : start + 500])}
    return out


# ---------------------------------------------------------------------- pruning


@jobs.command()
@click.option("--older-than", type=SPAN, required=True, metavar="SPAN", help="Ended longer ago than this: 30d, 12h.")
@click.option("--status", "-s", multiple=True, type=click.Choice(STATUSES[2:]), help="Only these; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Say how many, and remove nothing.")
@click.option("--yes", "-y", is_flag=True, help=f"Do not ask (more than {BULK} are asked for).")
def prune(older_than: timedelta, status: Sequence[str], dry_run: bool, yes: bool) -> None:
    """Remove ended jobs and their attempts.

    Keys are remembered, and the audit trail stays.
    """
    from duly.jobs.job import Status

    asked = state()
    app = asked.open()
    moment = before(app.engine.clock.now(), older_than)
    assert moment is not None
    statuses = [Status(s) for s in status]
    admin = app.jobs.admin
    n = admin.prune(moment, statuses, dry_run=True)
    if not dry_run and n > BULK and not yes:
        _confirm(f"remove {show.count(n, 'ended job')}")
    if not dry_run and n:
        n = admin.prune(moment, statuses)
    if asked.json:
        show.as_json({"would_remove" if dry_run else "removed": n})
    else:
        click.echo(f"{'Would remove' if dry_run else 'Removed'} {show.count(n, 'ended job')}.")
