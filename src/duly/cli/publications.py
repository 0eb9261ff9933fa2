"""``duly publish list``, ``show``, ``replay``, ``cancel``: publications that are there. Part of ``publish.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import BULK, ID, Command, actor, complain, state
from duly.cli.times import INSTANT, relative, stamp

if TYPE_CHECKING:
    from duly.publishing.door import Publishing
    from duly.publishing.view import Bulk, Publication, PublicationFilter

STATUSES, TYPES = ("pending", "running", "completed", "failed", "cancelled"), ("publish", "ig_first_comment")
#: So many are acted on by filter at most.
MOST = 10_000


def _door() -> Publishing:
    from duly.publishing.door import Publishing

    return Publishing.of(state().open())


def _filtered(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed((
        click.option("--channel", "-c", metavar="NAME", help="On this channel."),
        click.option("--status", "-s", multiple=True, type=click.Choice(STATUSES), help="In this state; may be given again."),
        click.option("--type", "type_", type=click.Choice(TYPES), help="Posts, or first comments."),
        click.option("--key", help="With this idempotency key."),
        click.option("--from", "run_from", type=INSTANT, help="To run at or after this instant."),
        click.option("--until", "run_until", type=INSTANT, help="To run before this instant."),
        click.option("--tenant", help="Of this tenant; else of all."),
    )):  # fmt: skip
        command = option(command)
    return command


def _filter(
    channel: str | None, status: Sequence[str], type_: str | None, key: str | None, run_from: datetime | None, run_until: datetime | None,
    tenant: str | None,
) -> PublicationFilter:  # fmt: skip
    from duly.publishing.view import PublicationFilter

    return PublicationFilter(
        tenant=tenant,
        channel=channel,
        status=tuple(status),
        type=type_,
        key=key,
        run_from=run_from,
        run_until=run_until,
    )


# ---------------------------------------------------------------------- looking


@click.command("list", cls=Command)
@_filtered
@click.option(
    "--limit", "-n", type=click.IntRange(1, MOST), default=50, show_default=True, metavar="N", help="At most so many."
)
@click.option("--below", type=ID, metavar="ID", help="The page behind: only ids below this one.")
def list_(limit: int, below: int | None, **given: Any) -> None:
    """List publications, newest first."""
    publishing = _door()
    found = publishing.list(_filter(**given), limit, below)
    if state().json:
        show.as_json([one.record() for one in found])
        return
    now = publishing._app.engine.clock.now()
    several = len({one.tenant for one in found}) > 1
    show.table(
        f"!#id {'tenant ' if several else ''}!channel type !status #attempts !run_at !when remote_id text",
        (
            (
                one.id, *((one.tenant,) if several else ()), one.channel, one.type, str(one.status), f"{one.attempts}/{one.max_attempts}",
                stamp(one.run_at), relative(one.finished_at or one.run_at, now), one.remote_id, _text(one),
            )
            for one in found
        ),
        empty="No such publications.",
    )  # fmt: skip


def label(payload: Mapping[str, Any]) -> str:
    """The first words of a post, or of a comment."""
    words = next((str(payload[name]) for name in ("title", "caption", "text", "link") if payload.get(name)), "")
    text = " ".join(words.split())
    return text if len(text) <= 40 else f"{text[:39]}…"


def _text(one: Publication) -> str:
    """What went wrong, else the first words."""
    return one.error.splitlines()[0][:60] if one.error else label(one.payload)


@click.command("show", cls=Command)
@click.argument("publication", type=ID)
@click.option("--tenant", help="Only if it is this tenant's.")
def show_(publication: int, tenant: str | None) -> None:
    """Show one publication: payload, state, comments, audit trail."""
    from duly.audit.read import TrailFilter, find

    asked = state()
    publishing = _door()
    one = publishing.get(publication, tenant)
    children = [publishing.get(ident, tenant) for ident in one.children[:100]]
    trail = publishing._app.engine.db.read(lambda c: find(c, TrailFilter(entity="job", entity_id=str(one.id)), 1000))[
        ::-1
    ]
    if asked.json:
        show.as_json({**one.record(), "comments": [child.record() for child in children], "audit": trail})
        return
    now = publishing._app.engine.clock.now()

    def at(instant: datetime | None) -> str:
        return f"{stamp(instant)} ({relative(instant, now)})" if instant else ""

    show.facts([
        ("publication", one.id),
        ("channel", one.channel),
        ("type", one.type),
        ("status", f"{one.status}{', and nobody knows whether it is there' if one.unknown else ''}"),
        ("tenant", one.tenant if one.tenant != "default" else ""),
        ("key", one.idempotency_key),
        ("attempts", f"{one.attempts} of {one.max_attempts}"),
        ("run at", at(one.run_at)),
        ("created", at(one.created_at)),
        ("started", at(one.started_at)),
        ("finished", at(one.finished_at)),
        ("remote id", one.remote_id),
        ("url", one.url),
        ("progress", one.progress and str(one.progress)),
        ("beneath", one.parent_id),
        ("error", one.error),
        *((f"payload.{name}", value if isinstance(value, str) else show.pretty(value)) for name, value in one.payload.items()),
    ])  # fmt: skip
    if children:
        show.say("\nFirst comments")
        show.table("!#id !status !when text", ((c.id, str(c.status), relative(c.finished_at or c.run_at, now), _text(c)) for c in children))  # fmt: skip
    if trail:
        show.say("\nAudit trail")
        show.table("!#id !at actor action", ((e.id, stamp(e.at), e.actor, e.action) for e in trail))


# ---------------------------------------------------------------------- acting


def _acts(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed((
        click.argument("ids", nargs=-1, type=ID, metavar="[ID]..."),
        _filtered,
        click.option("--limit", "-n", type=click.IntRange(1, MOST), default=MOST, metavar="N", help="At most so many."),
        click.option("--reason", default="", help="Why, for the audit trail."),
        click.option("--dry-run", is_flag=True, help="List them, and change nothing."),
        click.option("--yes", "-y", is_flag=True, help=f"Do not ask (more than {BULK} by filter are asked for)."),
    )):  # fmt: skip
        command = option(command)
    return command


@click.command(cls=Command)
@_acts
def replay(**given: Any) -> int:
    """Run failed publications again, by id or by filter.

    Same key, attempts from 0, due now. What is published by what is on record ends as completed and is not published again.
    A cancelled publication is replayed only by its id, and goes back to its planned time.
    """
    return _act("replay", ("failed",), **given)


@click.command(cls=Command)
@_acts
def cancel(**given: Any) -> int:
    """Cancel publications, by id or by filter.

    A pending one is cancelled at once. A running one is asked to stop: what it has sent by then may be there, and it says so in the end.
    """
    return _act("cancel", ("pending", "running"), **given)


def _act(
    event: str,
    fit: Sequence[str],
    ids: tuple[int, ...],
    limit: int,
    reason: str,
    dry_run: bool,
    yes: bool,
    **given: Any,
) -> int:
    chosen = [name for name, value in given.items() if value not in (None, ()) and name != "tenant"]
    if ids and chosen:
        raise click.UsageError("Give ids or filters, not both.")
    if not ids and not set(chosen) - {"status"}:
        raise click.UsageError("Which publications? Give ids, or filters such as --channel.")
    publishing = _door()
    if event == "replay" and "cancelled" in given["status"]:
        raise click.UsageError(
            "A filter never replays cancelled publications. Replay them by id: duly publish replay ID..."
        )
    if ids:
        if dry_run:
            return _foretold(event, [publishing.get(one, given["tenant"]) for one in dict.fromkeys(ids)], 0, publishing)
        return _report(event, _by_id(publishing, event, ids, reason, given["tenant"]), publishing)
    given["status"] = [one for one in given["status"] or fit if one in fit]
    if not given["status"]:
        raise click.UsageError(f"Only {' and '.join(fit)} publications can be {_past(event)}.")
    wanted = _filter(**given)
    found = publishing.list(wanted, limit)
    left_out = len(publishing.list(_filter(**given | {"status": ["cancelled"]}), limit)) if event == "replay" else 0
    if dry_run:
        return _foretold(event, found, left_out, publishing)
    _tell_left_out(left_out)
    if len(found) > BULK and not yes:
        what = f"{event} {show.count(len(found), 'publication')}"
        if not sys.stdin.isatty():
            raise click.UsageError(f"This would {what}. Add --yes to do it, or --dry-run to see which.")
        click.confirm(f"{what.capitalize()}?", abort=True, err=True)
    act = publishing.replay_many if event == "replay" else publishing.cancel_many
    return _report(event, act(wanted, actor(), reason, limit), publishing)


def _foretold(event: str, found: Sequence[Publication], left_out: int, publishing: Publishing) -> int:
    """Say which publications an act would reach, and what became of those that were cancelled. Nothing is changed."""
    from duly.publishing.view import REPLAYED

    able = REPLAYED if event == "replay" else ("pending", "running")
    meant = [one for one in found if one.status in able]
    if state().json:
        show.as_json({f"would_{event}": [one.id for one in meant], "left_out_cancelled": left_out,
                      "cancelled": {str(one.id): one.error for one in meant if one.status == "cancelled"}})  # fmt: skip
        return 0
    now = publishing._app.engine.clock.now()

    def then(one: Publication) -> str:
        early = event == "replay" and one.run_at is not None and one.run_at > now
        return stamp(one.run_at) if early else "now"

    show.table("!#id !channel type !status !at text", ((p.id, p.channel, p.type, str(p.status), then(p), p.error if p.status == "cancelled" else _text(p)) for p in meant))  # fmt: skip
    for one in found:
        if one not in meant:
            complain(f"publication {one.id} is {one.status} and cannot be {_past(event)}.")
    _tell_left_out(left_out)
    show.say(f"Would {event} {show.count(len(meant), 'publication')}. Nothing was changed.")
    return 0


def _tell_left_out(number: int) -> None:
    if number and not state().json:
        complain(f"{show.count(number, 'cancelled publication')} left out: a cancelled one is replayed by its id.")


def _by_id(publishing: Publishing, event: str, ids: Sequence[int], reason: str, tenant: str | None) -> Bulk:
    from duly.kernel.errors import DatabaseError, DulyError
    from duly.publishing.view import Bulk

    out = Bulk()
    act = publishing.replay if event == "replay" else publishing.cancel
    for ident in dict.fromkeys(ids):
        try:
            act(ident, actor(), reason, tenant)
            out.done.append(ident)
        except DatabaseError:
            raise
        except DulyError as error:
            out.refused[ident] = str(error)
    return out


def _past(event: str) -> str:
    return {"cancel": "cancelled", "replay": "replayed"}[event]


def _report(event: str, bulk: Bulk, publishing: Publishing) -> int:
    running = _running(publishing, bulk.done) if event == "cancel" else []
    if state().json:
        refused = {str(ident): why for ident, why in bulk.refused.items()}
        show.as_json(
            {_past(event): bulk.done, "refused": refused} | ({"running": running} if event == "cancel" else {})
        )
    elif bulk.done:
        ended = [ident for ident in bulk.done if ident not in set(running)]
        if ended:
            show.say(f"{_past(event).capitalize()} {_which(ended)}.")
        if running:
            show.say(
                f"Asked {_which(running)} to stop, which {'runs' if len(running) == 1 else 'run'}: a post that is on its way may still appear "
                "(duly publish show)."
            )
    elif not bulk.refused:
        show.say("No publication fits.")
    for why in list(bulk.refused.values())[:10]:
        complain(why)
    if len(bulk.refused) > 10:
        complain(f"and {len(bulk.refused) - 10:,} more were refused.")
    return 1 if bulk.refused else 0


def _which(ids: Sequence[int]) -> str:
    return f"publication {ids[0]}" if len(ids) == 1 else show.count(len(ids), "publication")


def _running(publishing: Publishing, ids: Sequence[int]) -> list[int]:
    """Which of them run still."""
    from duly.publishing.view import PublicationFilter

    return sorted(p.id for p in publishing.list(PublicationFilter(ids=ids, status="running"), MOST)) if ids else []
