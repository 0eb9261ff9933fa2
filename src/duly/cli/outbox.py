"""``duly outbox``: how it stands, relaying, having messages sent again, putting them aside, and catching up without one.

The outbox is an ``Outbox`` object in the application's module (``--app shop.py``, or ``shop.py:outbox`` when there are several).
Looking and acting needs no transports, so without one the table in the application's database is meant; with ``--table``,
a table in a database that is not Duly's own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import BULK, ID, Group, actor, complain, state
from duly.cli.jobs import _confirm, _error_text, _progress, _short_error
from duly.cli.reconcile import reconcile
from duly.cli.times import SPAN, relative, span, stamp
from duly.monitoring.redact import visible

if TYPE_CHECKING:
    from duly.monitoring.http import Monitor
    from duly.outbox.box import Outbox
    from duly.outbox.message import Message
    from duly.outbox.read import MessageFilter
    from duly.outbox.relay import Report

#: Messages acted on in one step of the progress bar.
STEP = 500


@click.group(cls=Group)
def outbox() -> None:
    """Look at the outbox, relay its messages, and catch up."""


# ---------------------------------------------------------------------- which outbox


def _table(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--table",
        metavar="NAME",
        help="A table of this name in a database that is not Duly's own (with --database-url).",
    )(command)


def _box(
    table: str | None = None, target: str | None = None, relays: bool = False, looks: bool = True
) -> Outbox:  # fmt: skip
    """The outbox that a command is about. ``relays``: one without transports will not do. ``looks``: its database is asked.

    Raises InvalidArgument, and SchemaMissing where Duly's own database is not there.
    """
    from duly.kernel.errors import InvalidArgument
    from duly.outbox.box import Outbox

    asked = state()
    target = target or asked.app or os.environ.get("DULY_APP")
    if table is not None:
        if target or relays:
            raise click.UsageError("--table goes with --database-url, not with an application.")
        found = Outbox(asked.database_url or os.environ.get("DULY_DATABASE_URL") or "sqlite:///duly.db", table=table)
    elif target is not None:
        found = _in_module(target, asked.database_url, relays)
    elif relays:
        raise InvalidArgument(
            "app",
            "is not named, so there are no transports.",
            "Name the module that defines an Outbox, such as app.py, or set DULY_APP.",
        )
    else:
        found = Outbox(asked.duly())
    if found.app is not None and looks and not relays:
        from duly.storage.migrate import require

        require(found.db)
    click.get_current_context().call_on_close(found.close)
    if found.app is not None:
        click.get_current_context().call_on_close(found.app.db.close)
    return found


def _in_module(target: str, database_url: str | None, relays: bool) -> Outbox:
    """The outbox of a module: the one that is named, or the only one, or (for looking) one on the application's database."""
    from duly.app import Duly
    from duly.cli import loading
    from duly.kernel.errors import InvalidArgument
    from duly.outbox.box import Outbox

    if database_url is not None:
        os.environ["DULY_DATABASE_URL"] = database_url
    module, where, name = loading.located(target)
    meant: Any = module
    for part in name.split(".") if name else ():
        meant = getattr(meant, part, None)
    boxes = {n: box for n, box in vars(module).items() if isinstance(box, Outbox)}
    if isinstance(meant, Duly):
        boxes = {n: box for n, box in boxes.items() if box.app is meant}
    elif name and not isinstance(meant, Outbox):
        problem = f"has no {name!r}" if meant is None else f"has {name!r}, but that is of type {type(meant).__name__}"
        raise InvalidArgument("app", f"{where} {problem}.", _named(boxes))
    if isinstance(meant, Outbox):
        found = meant
    elif len({id(box) for box in boxes.values()}) > 1:
        choices = " or ".join(f"{where}:{n}" for n in boxes)
        raise InvalidArgument("app", f"{where} defines several Outbox objects.", f"Say which: {choices}.")
    elif boxes:
        found = next(iter(boxes.values()))
    elif relays:
        raise InvalidArgument(
            "app", f"{where} defines no Outbox object.", "Write outbox = Outbox(app, transports={…}) in it."
        )
    else:
        found = Outbox(meant if isinstance(meant, Duly) else loading._pick(module, where, ""))
    if relays and not found.transports:
        raise InvalidArgument(
            "app", f"the Outbox in {where} has no transports.", "Give it some: transports={'duly': …}."
        )
    if database_url is not None:
        loading._agree(found, target, database_url)  # type: ignore[arg-type]
    return found


def _named(boxes: dict[str, Outbox]) -> str:
    return f"It has: {', '.join(boxes)}." if boxes else "It defines no Outbox object."


# ---------------------------------------------------------------------- looking


@outbox.command()
@click.option(
    "--check",
    is_flag=True,
    help="End with 1 while something is parked, held, or waits for longer than the setting alerts_outbox.",
)
@_table
def status(check: bool, table: str | None) -> int:
    """Say how the outbox stands.

    What waits and since when, what is being sent, and what is parked, by destination. It is drained when nothing is
    pending. Alerts look at Duly's own database: for an outbox in another one use --check, from cron.
    """
    asked = state()
    box = _box(table)
    standing, most = box.status(), box.db.settings.alerts_outbox
    waits = any(b.hold is not None or b.oldest_age > most for b in standing.destinations)
    bad = check and bool(standing.parked or waits)
    if asked.json:
        show.as_json({**asdict(standing), "drained": standing.drained})
        return int(bad)
    show.table(
        "!destination #pending #due #sending #parked #sent !oldest",
        (
            (b.destination, b.pending, b.due, b.in_flight, b.parked, b.sent, span(b.oldest_age) if b.oldest_at else "")
            for b in standing.destinations
        ),
    )
    if standing.destinations:
        show.say()
    for b in standing.destinations:
        if b.hold is not None:
            now = _box(table).db.now()
            what = "is not reachable" if b.hold.kind == "away" else "refuses everything"
            again = max(0.0, (b.hold.until - now).total_seconds())
            lasts = span(max(0.0, (now - b.hold.since).total_seconds()))
            show.say(f"{b.destination} {what} ({b.hold.problem}) since {lasts}; it is asked again in {span(again)}.")
    kept = f"; {show.count(standing.sent or 0, 'sent message')} kept" if standing.sent else ""
    parked = f", {standing.parked:,} parked" if standing.parked else ""
    if standing.drained:
        show.say(f"Drained: nothing is pending{parked}{kept}.")
    else:
        show.say(f"{standing.pending:,} pending, the oldest for {span(standing.oldest_age)}{parked}{kept}.")
    return int(bad)


def _filtered(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed((
        click.option("--destination", "-d", help="To this destination, such as webhook:billing."),
        click.option("--tenant", help="Of this tenant."),
        click.option("--key", help="With this key."),
        click.option("--ordering-key", metavar="KEY", help="Of this ordering key."),
    )):  # fmt: skip
        command = option(command)
    return command


@outbox.command("list")
@click.option(
    "--status", "-s", multiple=True, type=click.Choice(["pending", "sent", "parked"]), help="May be repeated."
)
@_filtered
@click.option(
    "--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N", help="At most so many."
)
@click.option("--below", type=ID, metavar="ID", help="The page behind: only ids below this one.")
@_table
def list_(status: Sequence[str], limit: int, below: int | None, table: str | None, **given: str | None) -> None:
    """List messages, newest first."""
    from duly.outbox.message import Status

    asked = state()
    box = _box(table)
    found = box.find(limit, below, status=[Status(s) for s in status] or None, **given)
    now = box.db.clock.now()
    if asked.json:
        show.as_json([_as_dict(m, now) for m in found])
        return
    show.table(
        "!#id destination !status !#attempts !when ordering_key key what",
        (
            (m.id, m.destination, m.label(now), m.attempts, _when(m, now), m.ordering_key, m.key, _short_error(m.error) if m.status != "sent" else "")
            for m in found
        ),
        empty="No such messages.",
    )  # fmt: skip
    if len(found) == limit:
        click.echo(f"There may be more: --below {found[-1].id}", err=True)


def _when(m: Message, now: datetime) -> str:
    """The instant that matters most in its state."""
    if m.status != "pending":
        return relative(m.sent_at or m.parked_at, now)
    return relative(m.due_at if m.due_at and m.due_at > now else m.created_at, now)


def _as_dict(m: Message, now: datetime) -> dict[str, Any]:
    """A message for programs: its fields without the lease's token, and the label that people see."""
    fields = {name: value for name, value in asdict(m).items() if name != "token"}
    return {**fields, "label": m.label(now)}


class _MessageId(click.ParamType):  # type: ignore[type-arg]
    """A message's number, or its message id."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value)
        return ID.convert(text, param, ctx) if text.isascii() and text.isdigit() else text


MESSAGE = _MessageId()


@outbox.command("show")
@click.argument("message", type=MESSAGE)
@click.option("--tenant", help="Only if it is this tenant's.")
@_table
def show_(message: int | str, tenant: str | None, table: str | None) -> None:
    """Show one message in full, by its number or its message id."""
    asked = state()
    box = _box(table)
    m = box.get(message, tenant)
    now = box.db.clock.now()
    if asked.json:
        show.as_json(_as_dict(m, now))
        return

    def at(instant: datetime | None) -> str:
        return f"{stamp(instant)} ({relative(instant, now)})" if instant else ""

    show.facts([
        ("message", m.id),
        ("message id", m.message_id),
        ("destination", m.destination),
        ("status", m.label(now)),
        ("tenant", m.tenant if m.tenant != "default" else ""),
        ("key", m.key),
        ("ordering key", m.ordering_key),
        ("attempts", m.attempts),
        ("created", at(m.created_at)),
        ("due", at(m.due_at) if m.status == "pending" and m.due_at != m.created_at else ""),
        ("sent", at(m.sent_at)),
        ("parked", at(m.parked_at)),
        ("relay", m.relay),
        ("lease until", at(m.lease_until)),
        ("headers", show.pretty(m.headers) if m.headers else ""),
        ("payload", show.pretty(m.payload)),
        ("error", _error_text(m.error)),
    ])  # fmt: skip


# ---------------------------------------------------------------------- relaying


@outbox.command()
@click.argument("target", required=False, metavar="[MODULE:NAME]")
@click.option("--once", is_flag=True, help="Send what is due now (one batch) and end.")
@click.option("--until-idle", is_flag=True, help="End by itself once nothing is due.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Answer /metrics, /livez, /readyz and /health on 127.0.0.1 (0: any free port).",
)
@click.option("--name", metavar="NAME", help="This relay's name in lists and in the audit trail.")
def relay(target: str | None, once: bool, until_idle: bool, metrics_port: int | None, name: str | None) -> None:
    """Run a relay.

    It sends the messages of the outbox, several at a time, and stops in good order on SIGTERM or Ctrl-C: what is being
    sent may finish, what was not begun is given back. Any number of relays may run.
    """
    from duly.monitoring.logs import adopt_logging, event_log, for_people

    if once and until_idle:
        raise click.UsageError("--once and --until-idle are both given.")
    asked = state()
    box = _box(target=target, relays=True)
    made = box.relay(name)
    settings = box.db.settings
    adopt_logging(settings, sys.stderr)
    log: Any = event_log(settings, sys.stderr)
    stream = _Stream(log) if for_people(settings.log_format, sys.stderr) and not asked.json else None
    remove = box.listen(stream or log)
    monitor, deaf = _monitor(box, made, metrics_port)
    begun = time.monotonic()
    if not asked.json and not once:
        show.say(f"Relay {made.name}: {', '.join(sorted(box.transports))}")
        if monitor is not None:
            show.say(f"Metrics: {monitor.url}/metrics")
        show.say("It ends when nothing is due." if until_idle else "Ctrl-C stops it in good order.")
        sys.stdout.flush()
    try:
        report = made.run_once() if once else made.run(until_idle=until_idle)
    finally:
        remove()
        deaf()
        if monitor is not None:
            monitor.close()
        if stream is not None:
            stream.close()
    seconds = time.monotonic() - begun
    show.as_json({**asdict(report), "seconds": round(seconds, 3)}) if asked.json else show.say(
        _summary(report, seconds)
    )


def _monitor(box: Outbox, relay: Any, port: int | None) -> tuple[Monitor | None, Callable[[], None]]:
    """A server for metrics, where one is wanted, and a function that ends what listens for it."""
    if port is None:
        return None, lambda: None
    from duly.monitoring.http import serve
    from duly.monitoring.metrics import Metrics
    from duly.monitoring.outbox import OutboxMetrics

    metrics, outboxes = Metrics(), OutboxMetrics([box])
    metrics.registry.register(outboxes)
    metrics.also = lambda: [] if relay.ready else ["a loop of the relay fails"]
    return serve(port, metrics), box.listen(outboxes)


class _Stream:
    """What a person at a terminal sees of a relay: what was sent, a line a second at most, and every trouble as it is logged."""

    def __init__(self, log: Callable[[Any], None]) -> None:
        self._log, self._sent = log, Counter[str]()
        self._lock = threading.Lock()
        self._told = 0.0

    def __call__(self, event: Any) -> None:
        if event.name == "outbox_sent":
            with self._lock:
                self._sent[event.facts["destination"]] += event.facts["count"]
                if time.monotonic() - self._told >= 1:
                    self._tell()
        elif event.name not in ("outbox_relay_started", "outbox_relay_stopped"):  # the page around it says both
            self._log(event)

    def _tell(self) -> None:
        if self._sent:
            told = ", ".join(
                f"{n:,} to {visible(destination, keep='')}" for destination, n in self._sent.most_common(5)
            )
            more = f" and {len(self._sent) - 5:,} other destinations" if len(self._sent) > 5 else ""
            click.echo(f"{time.strftime('%H:%M:%S')}  sent        {told}{more}", err=True)
            self._sent.clear()
            self._told = time.monotonic()

    def close(self) -> None:
        """Tell the rest."""
        with self._lock:
            self._tell()


def _summary(report: Report, seconds: float) -> str:
    words = {
        "sent": "sent", "failed": "failed attempts", "parked": "parked", "released": "given back", "lost": "lost to another relay",
        "rescued": "taken over",
    }  # fmt: skip
    told = [f"{n:,} {said}" for name, said in words.items() if (n := getattr(report, name))]
    return f"{', '.join(told) or 'Nothing was sent'} in {span(seconds)}."


# ---------------------------------------------------------------------- acting


@outbox.command()
@click.argument("messages", nargs=-1, type=MESSAGE, metavar="[ID]...")
@click.option("--parked", is_flag=True, help="All parked messages.")
@click.option("--destination", "-d", help="Parked messages to this destination.")
@click.option("--tenant", help="Parked messages of this tenant; with ids: only if they are this tenant's.")
@click.option("--limit", "-n", type=click.IntRange(min=1), metavar="N", help="At most so many, the oldest first.")
@click.option("--reason", default="", help="Why, for the audit trail.")
@click.option("--force", is_flag=True, help="With ids: messages that were sent, too.")
@click.option("--dry-run", is_flag=True, help="Say how many of what, and change nothing.")
@click.option("--yes", "-y", is_flag=True, help=f"Do not ask (more than {BULK} by filter are asked for).")
@_table
def redrive(
    messages: tuple[int | str, ...], parked: bool, destination: str | None, tenant: str | None, limit: int | None, reason: str, force: bool,
    dry_run: bool, yes: bool, table: str | None,
) -> int:  # fmt: skip
    """Have parked messages sent again, by id or by filter.

    Same message id, attempts from 0, due now. An id is a message's number or its message id. A message that an operator parked is
    redriven by its id only.
    """
    from dataclasses import replace

    from duly.outbox.message import Status
    from duly.outbox.read import MessageFilter

    if messages:
        if parked or destination or limit:
            raise click.UsageError("Give ids or filters, not both.")
        if dry_run:
            raise click.UsageError("--dry-run goes with filters; ids are listed already.")
        box = _box(table)
        return _each(
            messages, "redriven", lambda m: box.redrive(m, reason=reason, actor=actor(), tenant=tenant, force=force)
        )
    if force:
        raise click.UsageError("--force goes with ids.")
    if not (parked or destination or tenant):
        raise click.UsageError("Which messages? Give ids, --parked for all that are, or --destination.")
    box = _box(table)
    box.open()
    wanted = MessageFilter(status=Status.PARKED, destination=destination, tenant=tenant, discarded=False)
    counted = box.db.read(lambda c: box.reader.count(c, wanted))
    left_out = sum(box.db.read(lambda c: box.reader.count(c, replace(wanted, discarded=True))).values())
    if left_out and not state().json:
        complain(
            f"{show.count(left_out, 'message')} that an operator parked left out: redrive such a message by its id."
        )
    todo = min(sum(counted.values()), limit) if limit is not None else sum(counted.values())
    if dry_run:
        _foretell(counted, todo)
        return 0
    if todo > BULK and not yes:
        _confirm(f"redrive {show.count(todo, 'message')}")
    done = _redrive(box, wanted, todo, reason)
    show.as_json({"redriven": done}) if state().json else show.say(
        f"Redrove {show.count(done, 'message')}." if done else "No message fits."
    )
    return 0


def _foretell(counted: dict[tuple[str, str], int], todo: int) -> None:
    if state().json:
        rows = [{"destination": d, "status": s, "count": n} for (d, s), n in counted.items()]
        show.as_json({"would_redrive": todo, "of": rows})
        return
    show.table(
        "#count destination status", ((f"{n:,}", d, s) for (d, s), n in counted.items()), empty="No message fits."
    )
    if counted:
        show.say(f"\nWould redrive {show.count(todo, 'message')}. Nothing was changed.")


def _redrive(box: Outbox, wanted: MessageFilter, todo: int, reason: str) -> int:
    done = 0
    with _progress("redrive", todo) as step:
        while done < todo:
            n = box.redrive_where(
                reason, actor(), min(STEP, todo - done), destination=wanted.destination, tenant=wanted.tenant
            )
            if not n:
                break
            done += n
            step(n)
    return done


@outbox.command()
@click.argument("messages", nargs=-1, required=True, type=MESSAGE, metavar="ID...")
@click.option("--reason", required=True, help="Why, for those who find them parked.")
@click.option("--tenant", help="Only if they are this tenant's.")
@_table
def park(messages: tuple[int | str, ...], reason: str, tenant: str | None, table: str | None) -> int:
    """Put pending messages aside, by id.

    They are not sent until somebody redrives them. One that is being sent at this moment may arrive all the same.
    """
    box = _box(table)
    return _each(messages, "parked", lambda m: box.park(m, reason=reason, actor=actor(), tenant=tenant))


def _each(messages: Sequence[int | str], done_word: str, act: Callable[[int | str], list[Message]]) -> int:
    """Act on messages one by one; what cannot be done is told and keeps nobody else back."""
    from duly.kernel.errors import NotFound, WrongState

    done: list[int] = []
    refused: dict[str, str] = {}
    for message in dict.fromkeys(messages):
        try:
            done += [m.id for m in act(message)]
        except (NotFound, WrongState) as error:
            refused[str(message)] = str(error)
    if state().json:
        show.as_json({done_word: done, "refused": refused})
    elif done:
        show.say(
            f"{done_word.capitalize()}: {f'message {done[0]}' if len(done) == 1 else show.count(len(done), 'message')}."
        )
    for why in list(refused.values())[:10]:
        complain(why)
    return 1 if refused else 0


@outbox.command()
@click.option(
    "--older-than", type=SPAN, metavar="SPAN", help="Sent longer ago than this: 7d, 12h. Default: the outbox's `keep`."
)
@click.option("--dry-run", is_flag=True, help="Say how many, and remove nothing.")
@click.option("--yes", "-y", is_flag=True, help=f"Do not ask (more than {BULK} are asked for).")
@_table
def prune(older_than: timedelta | None, dry_run: bool, yes: bool, table: str | None) -> None:
    """Remove messages that were sent, and their keys with them.

    Relays do this by themselves. Pending and parked messages are never removed.
    """
    from duly.kernel.errors import InvalidArgument
    from duly.outbox.read import MessageFilter

    box = _box(table)
    if older_than is None and box.options.keep is None:
        raise InvalidArgument("older-than", "is not given, and this outbox keeps sent messages for ever.")
    age = older_than if older_than is not None else timedelta(seconds=box.options.keep or 0)
    box.open()
    wanted = MessageFilter(status=["sent"], sent_before=box.db.clock.now() - age)  # type: ignore[list-item]
    n = sum(box.db.read(lambda c: box.reader.count(c, wanted)).values())
    if not dry_run:
        if n > BULK and not yes:
            _confirm(f"remove {show.count(n, 'sent message')}")
        n = box.prune(age) if n else 0
    if state().json:
        show.as_json({"would_remove" if dry_run else "removed": n})
    else:
        show.say(f"{'Would remove' if dry_run else 'Removed'} {show.count(n, 'sent message')}.")


@outbox.command()
@click.option("--dialect", type=click.Choice(["sqlite", "postgresql"]), help="Default: that of the database.")
@_table
def sql(dialect: str | None, table: str | None) -> None:
    """Print the statements that make the table.

    For databases that are not Duly's own and that are migrated by hand; in Duly's, `duly migrate` makes it.
    """
    text = _box(table, looks=False).sql(dialect)
    show.as_json({"sql": text}) if state().json else click.echo(text, nl=False)


outbox.add_command(reconcile)
