"""``duly up`` and ``duly worker``: running jobs until a signal, or until nothing is left.

On stdout stands what a person or a program keeps (where the database is, the summary); the stream of events goes to
stderr, as JSON lines when that is no terminal. Neither needs the other.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli.command import Command, complain, state
from duly.cli.times import SPAN, relative

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.jobs.loops import Loop
    from duly.jobs.worker import Tally, Worker
    from duly.kernel.events import Event
    from duly.monitoring.http import Monitor
    from duly.web.serve import Beside


class _Lane(click.ParamType):  # type: ignore[type-arg]
    name = "name[=n]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int | None]:
        if isinstance(value, tuple):
            return value
        name, equals, number = str(value).rpartition("=")
        if not equals:
            return str(value), None
        if not (number.isascii() and number.isdigit()) or int(number) < 1:
            self.fail(f"{value!r}: behind = stands how many jobs of this queue run at once, at least 1.", param, ctx)
        return name, int(number)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed((
        click.argument("target", required=False, metavar="[MODULE:NAME]"),
        click.option("--queue", "-q", "queues", multiple=True, type=_Lane(), metavar="NAME[=N]",
                     help="Serve this queue, with N jobs at once; may be repeated. Default: the queues of all tasks."),
        click.option("--concurrency", "-c", type=click.IntRange(min=1), metavar="N",
                     help="Jobs at once in each queue that names no number of its own."),
        click.option("--until-idle", is_flag=True, help="End by itself once nothing is left to run; with 1 where jobs failed."),
        click.option("--patience", type=SPAN, metavar="SPAN",
                     help="With --until-idle: wait for jobs that are due so soon, such as retries. 30, 5min."),
        click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT",
                     help="Answer /metrics, /livez, /readyz and /health on 127.0.0.1 (0: any free port)."),
        click.option("--name", metavar="NAME", help="This worker's name in lists and in the audit trail."),
    )):  # fmt: skip
        command = option(command)
    return command


@click.command(cls=Command)
@_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Where the dashboard is served, and nowhere else (0: any free port).",
)
@click.option("--no-web", is_flag=True, help="Without the dashboard and the API.")
def up(no_web: bool, port: int | None, **options: Any) -> int:
    """Run everything in one process.

    A worker for all queues of the application, on its database: an embedded one (SQLite) is made if it is not there. A relay for each outbox with
    transports that the application's module defines. And the dashboard with the API on 127.0.0.1, port 8787 or the next one that is free, where
    the extra `web` is installed. Ctrl-C stops in good order.
    """
    web = not no_web and not options["until_idle"]
    if port is not None and not web:
        raise click.UsageError("--port is where the dashboard is served, and it is not with --no-web or --until-idle.")
    return _run(**options, relays=True, web=web, port=port)


@click.command(cls=Command)
@_options
def worker(**options: Any) -> int:
    """Run a worker.

    It claims jobs of its queues, runs them, and stops in good order on SIGTERM or Ctrl-C: running jobs may finish
    (setting grace). A second signal does not wait for them; they are given back and run again elsewhere.
    """
    return _run(**options)


def _run(
    target: str | None,
    queues: Sequence[tuple[str, int | None]],
    concurrency: int | None,
    until_idle: bool,
    patience: timedelta | None,
    metrics_port: int | None,
    name: str | None,
    relays: bool = False,
    web: bool = False,
    port: int | None = None,
) -> int:
    from duly.monitoring.logs import adopt_logging, event_log, for_people
    from duly.schedules.watch import any_schedule

    if patience is not None and not until_idle:
        raise click.UsageError("--patience goes with --until-idle.")
    asked = state()
    duly = asked.duly(target, tasks=True)
    settings = duly.settings
    lanes = _lanes(queues, concurrency or settings.concurrency)
    made = duly.worker(lanes, concurrency=concurrency, name=_checked(name))
    told: list[int] = []
    posts = Relays() if relays else None

    def heard(number: int, _frame: object) -> None:
        told.append(number)
        made.stop()
        if posts:
            posts.ask()

    # while the worker runs it hears signals itself: this is for those that come before, and for the last moment of a process that was told
    before = signal.signal(signal.SIGTERM, heard) if threading.current_thread() is threading.main_thread() else None
    removers: list[Callable[[], None]] = [duly.listen(lambda event: told.append(0) if event.name == "signal" else None)]
    if posts:
        posts.open()
    people = for_people(settings.log_format, sys.stderr) and not asked.json
    adopt_logging(settings, sys.stderr)
    log: Any = event_log(settings, sys.stderr)
    stream = None
    if people and settings.log_level == "info":
        from duly.cli.stream import Stream

        log = stream = Stream(log, sys.stderr, settings.grace)
    removers.append(duly.listen(log))
    if posts:
        posts.stop_worker = lambda: made.stop()
        removers.append(duly.listen(posts.hear))
    monitor = _monitor(duly, made, metrics_port, removers, posts)
    site, unserved = _site(duly, port) if web else (None, "")
    if not asked.json:
        _banner(duly, made, monitor, until_idle, posts, site, unserved)
    begun = time.monotonic()
    try:
        if posts and not until_idle:
            posts.start()
        if site is not None and not told:
            site.start()
        if until_idle and not told:
            if duly.db.read(any_schedule):
                duly.schedules._made().tick()  # what is due now belongs to what is left to run
            duly.keep_rooms()
        tally = made.run(until_idle=patience.total_seconds() if until_idle and patience else until_idle)
        while posts and until_idle and not told and not posts.asked and posts.empty():
            # what was sent may have made jobs, and jobs may publish
            made = duly.worker(lanes, concurrency=concurrency)
            if told:  # a signal that came meanwhile was told to the one before
                made.stop()
            tally = _sum(tally, made.run(until_idle=True))
    finally:
        if site is not None:
            site.stop()
        if posts:
            posts.stop()
        if monitor is not None:
            monitor.close()
        if stream is not None:
            stream.close()
        for remove in removers:
            remove()
        if before is not None and not told:
            signal.signal(signal.SIGTERM, before)
    return _finish(tally, time.monotonic() - begun, asked.json, until_idle)


class Relays:
    """The relays of the outboxes that the application's module has made, each supervised on a thread of its own."""

    def __init__(self) -> None:
        box = sys.modules.get("duly.outbox.box")  # whoever has an outbox has imported it
        self.boxes: list[Any] = box.made_here() if box is not None else []
        self._running: list[tuple[Any, Loop]] = []
        self._handlers: dict[signal.Signals, Any] = {}
        #: Ends the worker beside them.
        self.stop_worker: Callable[[], None] = lambda: None
        #: They were told to end.
        self.asked = False

    def __bool__(self) -> bool:
        return bool(self.boxes)

    def open(self) -> None:
        """Check that the tables are there. Raises SchemaMissing."""
        for box in self.boxes:
            box.open()

    def start(self) -> None:
        """Start them. One that fails, because its database is away, is started again."""
        from duly.jobs.loops import Loop

        if threading.current_thread() is threading.main_thread():
            # while the worker lives it catches signals; when it has ended they come here
            self._handlers = {number: signal.signal(number, self._heard) for number in (signal.SIGTERM, signal.SIGINT)}
        for box in self.boxes:
            relay = box.relay()
            loop = Loop("outbox-relay", relay.run, relay.emitter)
            self._running.append((relay, loop))
            if self.asked:  # before it began: it does not
                return
            loop.start()

    def _heard(self, *_: object) -> None:
        self.ask()
        self.stop_worker()  # one that has not begun will not; one that lives hears signals itself

    def unready(self) -> list[str]:
        """Why messages do not leave here; empty when they do."""
        failed = [f"relay {relay.name}: {loop.problem}" for relay, loop in self._running if not loop.ready]
        return failed or [f"relay {relay.name}: a loop fails" for relay, _ in self._running if not relay.ready]

    def empty(self) -> bool:
        """Relay until nothing is due, or a signal. Was anything sent, and does it go on?"""
        sent = 0
        for box in self.boxes:
            relay = box.relay()
            sent += relay.run(until_idle=True).sent
            self.asked |= relay.asked
            if self.asked:
                return False
        return sent > 0

    def hear(self, event: Event) -> None:
        """A signal that the worker was given is one for the relays too."""
        if event.name == "signal":
            self.ask()

    def ask(self) -> None:
        """Have them begin to end. The second time they do not wait for what is being sent."""
        self.asked = True
        for relay, loop in self._running:
            loop.stop()
            relay.stop()

    def stop(self) -> None:
        """Wait for their end."""
        if not self.asked:
            self.ask()
        for relay, loop in self._running:
            loop.join(relay.options.grace + 10)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def _sum(one: Tally, other: Tally) -> Tally:
    return type(one)(**{name: value + getattr(other, name) for name, value in asdict(one).items()})


def _lanes(queues: Sequence[tuple[str, int | None]], each: int) -> dict[str, int] | None:
    from duly.kernel.errors import InvalidArgument
    from duly.kernel.payload import check_name

    if not queues:
        return None
    out: dict[str, int] = {}
    for name, number in queues:
        if name in out:
            raise InvalidArgument("queue", f"{name} is given twice.")
        out[check_name(name, "queue")] = number or each
    return out


def _checked(name: str | None) -> str | None:
    from duly.kernel.payload import check_name

    return None if name is None else check_name(name, "name")


def _monitor(
    duly: Duly, made: Worker, port: int | None, removers: list[Callable[[], None]], posts: Relays | None = None
) -> Monitor | None:
    if port is None:
        return None
    from duly.monitoring.alerts.beside import AlertMetrics, Beside
    from duly.monitoring.http import serve
    from duly.monitoring.metrics import Metrics

    metrics = Metrics(made)
    removers.append(duly.listen(metrics))
    beside = Beside(duly.alerts, made.name)
    metrics.registry.register(AlertMetrics(beside))
    if posts:
        from duly.monitoring.outbox import OutboxMetrics

        outboxes = OutboxMetrics(posts.boxes)
        metrics.registry.register(outboxes)
        removers.extend(box.listen(outboxes) for box in posts.boxes)
        metrics.also = posts.unready
    return serve(port, metrics, beside)


def _site(duly: Duly, port: int | None) -> tuple[Beside | None, str]:
    """(the dashboard on a thread; why there is none, where a person can do something about that)."""
    from duly.kernel.errors import InvalidArgument
    from duly.web import serve

    token = duly.settings.web_token
    if serve.missing() is not None:
        return None, ""
    if not serve.is_local(duly, token, serve.HOST) and not serve.is_guarded(duly, token):
        return None, "not served: nobody could come in. duly users create makes somebody who can"
    try:
        return serve.Beside(duly, token, serve.PORT if port is None else port, exact=port is not None), ""
    except InvalidArgument as error:
        if port is not None:
            raise
        # nobody asked for it by name: work goes on without it
        return None, f"not served: {error}"


def _banner(
    duly: Duly, made: Worker, monitor: Monitor | None, until_idle: bool, posts: Relays | None = None, site: Beside | None = None,
    unserved: str = "",
) -> None:  # fmt: skip
    from duly._version import __version__
    from duly.cli import show

    tasks = duly.engine.task_names
    listed = ", ".join(tasks[:8]) + (f" and {len(tasks) - 8} more" if len(tasks) > 8 else "")
    show.say(f"Duly {__version__}, worker {made.name}")
    show.facts([
        ("  database", where(duly)),
        ("  tasks", listed),
        ("  queues", _queues({n: lane.concurrency for n, lane in made.lanes.items()})),
        *(("  outbox", f"{box.db.shown_url}, to {', '.join(sorted(box.transports))}") for box in (posts.boxes if posts else ())),
        ("  schedules", _scheduled(duly)),
        ("  metrics", f"{monitor.url}/metrics, /livez, /readyz, /health" if monitor else ""),
        ("  dashboard", _address(site) if site is not None else unserved),
    ])  # fmt: skip
    show.say("It ends when nothing is left to run." if until_idle else "Ctrl-C stops it in good order.")
    sys.stdout.flush()


def _queues(lanes: dict[str, int]) -> str:
    if len(lanes) > 3 and len(set(lanes.values())) == 1:
        return f"{', '.join(lanes)} ({next(iter(lanes.values()))} at once in each)"
    return ", ".join(f"{name} ({number} at once)" for name, number in lanes.items())


def _address(site: Beside) -> str:
    return f"{site.url} (no account: for everybody on this machine)" if site.local else f"{site.url} (log in)"


def _scheduled(duly: Duly) -> str:
    """How many schedules there are, and when the next one runs by its own clock; empty when there are none."""
    from duly.schedules.watch import any_schedule

    if not duly.db.read(any_schedule):
        return ""
    from duly.cli.recurrences import local
    from duly.schedules.read import standing

    now = duly.engine.clock.now()
    found = duly.db.read(lambda c: standing(c, now))
    if not found.count:
        return ""
    told = [
        f"next: {found.next.name} at {local(found.next.at, found.next.tz)}, {relative(max(found.next.at, now), now)}" if found.next else "",
        f"{found.paused} paused" if found.paused else "",
        f"{len(found.broken)} broken" if found.broken else "",
    ]  # fmt: skip
    more = "; ".join(part for part in told if part)
    return f"{found.count} ({more})" if more else str(found.count)


def where(duly: Duly) -> str:
    """The database, and of a file where it lies."""
    if duly.db.is_sqlite and duly.db.url.database and not duly.db.memory:
        return str(Path(duly.db.url.database).expanduser().resolve())
    return duly.db.shown_url


def _finish(tally: Any, seconds: float, as_json: bool, once: bool) -> int:
    """Say what was done. Returns the exit code: a run that ends by itself has failed where jobs have (case B082)."""
    from duly.cli import show
    from duly.cli.stream import summary

    if as_json:
        show.as_json({**asdict(tally), "seconds": round(seconds, 3)})
    else:
        show.say(summary(tally, seconds))
    if once and tally.unreadable and not as_json:
        complain(
            f"{show.count(tally.unreadable, 'job')} could not be read and wait for another worker: duly jobs list --error Unreadable"
        )
    if not once or not (tally.failed or tally.unreadable):
        return 0
    if not as_json and tally.failed:  # there the lines of stderr are a stream of JSON, and the tally says it
        complain(f"{show.count(tally.failed, 'job')} failed: duly jobs list --status failed")
    return 1
