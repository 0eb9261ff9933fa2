"""``duly dispatch``: handing jobs to a fleet that runs them, on as many machines as it has."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli.command import Command, state
from duly.cli.times import SPAN, span
from duly.cli.work import _checked, _Lane, _lanes, _monitor, where

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.integrations.celery import Dispatcher


@click.command(cls=Command)
@click.argument("target", required=False, metavar="[MODULE:NAME]")
@click.option("--to", type=click.Choice(["celery"]), default="celery", show_default=True, help="Who runs the jobs.")
@click.option(
    "--celery",
    "celery_target",
    metavar="MODULE:NAME",
    required=True,
    help="The Celery application of the fleet, such as fleet:app.",
)
@click.option(
    "--queue",
    "-q",
    "queues",
    multiple=True,
    type=_Lane(),
    metavar="NAME[=N]",
    help="Hand over jobs of this queue, at most N that are not finished; may be repeated. Default: the queues of all tasks.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="At most so many jobs handed over and not finished, in all queues together.",
)
@click.option("--celery-queue", metavar="NAME", help="Send to this Celery queue; else where its routes say.")
@click.option(
    "--handover-timeout",
    type=SPAN,
    default="5min",
    show_default=True,
    metavar="SPAN",
    help="Take a job back that nobody has begun for so long: its message may be lost.",
)
@click.option("--until-idle", is_flag=True, help="End by itself once nothing is left to run.")
@click.option("--patience", type=SPAN, metavar="SPAN", help="With --until-idle: wait for jobs that are due so soon.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Answer /metrics, /livez, /readyz and /health on 127.0.0.1 (0: any free port).",
)
@click.option("--name", metavar="NAME", help="This dispatcher's name in lists; 'handover:' stands before it.")
def dispatch(
    target: str | None,
    to: str,
    celery_target: str,
    queues: Sequence[tuple[str, int | None]],
    limit: int,
    celery_queue: str | None,
    handover_timeout: timedelta,
    until_idle: bool,
    patience: timedelta | None,
    metrics_port: int | None,
    name: str | None,
) -> None:
    """Hand jobs to a Celery fleet.

    It claims jobs as a worker does (the gate, limits, rates, pauses and turns hold) and runs none: it sends a message for
    each, and a Celery worker whose application has called install_executor takes the job over and runs it. On SIGTERM or
    Ctrl-C it takes back what nobody has begun; what the fleet runs goes on.
    """
    from duly.monitoring.logs import adopt_logging, event_log

    if patience is not None and not until_idle:
        raise click.UsageError("--patience goes with --until-idle.")
    asked = state()
    duly = asked.duly(target, tasks=True)
    celery_app = _celery_application(celery_target)
    duly.open()
    adopt_logging(duly.settings, sys.stderr)
    made = _dispatcher(duly, celery_app, _lanes(queues, limit), limit, celery_queue, handover_timeout, _checked(name))
    removers: list[Callable[[], None]] = [duly.listen(event_log(duly.settings, sys.stderr))]
    made.house.add("alerts", duly.settings.alerts_every, lambda: duly.alerts.duty(made.name))
    monitor = _monitor(duly, made, metrics_port, removers)
    if not asked.json:
        _banner(duly, made, celery_target, celery_app, until_idle, monitor)
    begun = time.monotonic()
    try:
        tally = made.run(until_idle=patience.total_seconds() if until_idle and patience else until_idle)
    finally:
        if monitor is not None:
            monitor.close()
        for remove in removers:
            remove()
    _finish(made.handed, tally, time.monotonic() - begun, asked.json)


def _celery_application(target: str) -> Any:
    """The Celery application. Raises InvalidArgument when Celery or the application is not there."""
    from duly.kernel.errors import InvalidArgument

    try:
        from celery import Celery
        from celery.app.utils import find_app
    except ImportError:
        raise InvalidArgument("to", "celery is not installed.", "Install duly[celery].") from None
    from duly.cli.loading import _on_path

    _on_path(Path())
    try:
        found = find_app(target)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument("celery", f"{target} cannot be found: {error}.", "Name it as module:name.") from error
    if not isinstance(found, Celery):
        raise InvalidArgument("celery", f"{target} is of type {type(found).__name__}, not a Celery application.")
    return found


def _dispatcher(
    duly: Duly,
    celery_app: Any,
    queues: dict[str, int] | None,
    limit: int,
    celery_queue: str | None,
    timeout: timedelta,
    name: str | None,
) -> Dispatcher:
    from duly.integrations.celery import Dispatcher

    if queues is None:
        names = {"default", *(task.queue for task in duly.engine.tasks.values())}
        queues = dict.fromkeys(sorted(names), limit)
    return Dispatcher(
        duly.engine,
        celery_app,
        queues,
        limit=limit,
        celery_queue=celery_queue,
        handover_timeout=timeout.total_seconds(),
        name=name,
    )


def _banner(duly: Duly, made: Dispatcher, celery_target: str, celery_app: Any, until_idle: bool, monitor: Any) -> None:
    from duly._version import __version__
    from duly.cli import show

    tasks = duly.engine.task_names
    listed = ", ".join(tasks[:8]) + (f" and {len(tasks) - 8} more" if len(tasks) > 8 else "")
    show.say(f"Duly {__version__}, dispatcher {made.name}")
    show.facts([
        ("  database", where(duly)),
        ("  tasks", listed),
        ("  queues", ", ".join(made.lanes)),
        ("  limit", f"{made.limit} handed over and not finished"),
        ("  to", f"{celery_target} over {celery_app.connection_for_write().as_uri().replace('://:**@', '://')}"),
        ("  metrics", f"{monitor.url}/metrics, /livez, /readyz, /health" if monitor else ""),
    ])  # fmt: skip
    show.say("It ends when nothing is left to run." if until_idle else "Ctrl-C stops it in good order.")
    sys.stdout.flush()


def _finish(handed: int, tally: Any, seconds: float, as_json: bool) -> None:
    from duly.cli import show

    counts = {"handed_over": handed, "taken_back": tally.released, "cancelled": tally.cancelled}
    if as_json:
        show.as_json({**counts, "seconds": round(seconds, 3)})
        return
    told = [f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n]
    show.say(f"{', '.join(told) or 'Nothing was handed over'} in {span(seconds)}.")
