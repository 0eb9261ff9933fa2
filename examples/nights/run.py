"""A weekend of a small shop, on a clock that runs faster: what its schedules did, and why.

    python examples/nights/run.py [--database URL] [--json]

The schedules stand in ``schedules.json``. The weekend is the one on which Paris puts its clocks forward (28 and 29 March 2026).
On Saturday evening the worker is away for four hours; on Sunday from 06:00 to 20:00 the stock room is closed (a blackout).
Nothing waits: a ManualClock goes on fifteen minutes at a time, the scheduler ticks, and the jobs run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.table import Table

from duly import Duly, Job
from duly.kernel.errors import DulyError, InvalidArgument
from duly.kernel.recurrence import schedule_from_json
from duly.kernel.windows import Window
from duly.testing import ManualClock, drain

HERE = Path(__file__).parent
BEGIN = datetime(2026, 3, 27, 23, tzinfo=UTC)
END = datetime(2026, 3, 30, 8, tzinfo=UTC)
STEP = timedelta(minutes=15)
#: The worker is away: nobody ticks.
AWAY = datetime(2026, 3, 28, 17, 30, tzinfo=UTC), datetime(2026, 3, 28, 21, 30, tzinfo=UTC)
CLOSED = Window(
    name="stock room closed", dates="2026-03-29", start="06:00", end="20:00", tz="Europe/Paris", scope="queue:stock"
)


def define(app: Duly, clock: ManualClock, done: list[dict[str, Any]]) -> None:
    """The tasks of the shop. Each notes when it ran, and for which planned instant."""

    def note(job: Job) -> None:
        meta = job.meta or {}
        done.append({"task": job.task, "due_at": meta["due_at"], "ran_at": clock.now().isoformat()})

    @app.task("report")
    def report(job: Job, shop: str) -> None:
        note(job)

    @app.task("count_stock", queue="stock")
    def count_stock(job: Job) -> None:
        note(job)

    @app.task("reorder", queue="stock")
    def reorder(job: Job) -> None:
        note(job)

    @app.task("newsletter")
    def newsletter(job: Job) -> None:
        note(job)


def read_schedules(app: Duly, path: Path) -> list[str]:
    """Declare what the file says. Returns what is wrong with it; the rest is declared."""
    problems = []
    for place, entry in enumerate(json.loads(path.read_text(encoding="utf-8"))):
        given = dict(entry)
        try:
            recurrence = schedule_from_json(given.pop("when", None), f"[{place}].when")
            app.schedule(given.pop("name"), recurrence, given.pop("task"), given.pop("input", None), **given)
        except InvalidArgument as error:
            problems.append(f"{path.name}: {error}")
    return problems


def run(app: Duly, clock: ManualClock) -> None:
    """Let the weekend pass."""
    scheduler = app.scheduler()
    while clock.now() < END:
        if not AWAY[0] <= clock.now() < AWAY[1]:
            scheduler.tick()
            drain(app)
        clock.advance(STEP)


def tell(app: Duly, problems: list[str]) -> None:
    """What became of every occurrence."""
    console = Console(width=110)
    for problem in problems:
        console.print(f"left out  {problem}", style="yellow", markup=False, highlight=False)
    for schedule in app.schedules.all():
        if schedule.spec is None:
            continue
        words = schedule.spec.recurrence.describe(since=BEGIN, days=3)
        console.print(f"{schedule.name}  {words}", markup=False, highlight=False, soft_wrap=True)
        table = Table(box=None, padding=(0, 2))
        for column in ("planned (local)", "planned (UTC)", "decided (UTC)", "what became of it", "why"):
            table.add_column(column)
        for o in reversed(app.schedules.ledger(schedule.name, limit=1000)):
            local = o.due_at.astimezone(ZoneInfo(schedule.spec.tz or "UTC"))
            why = " ".join(filter(None, (o.reason, o.policy)))
            table.add_row(
                f"{local:%a %d %b %H:%M}", f"{o.due_at:%a %H:%M}", f"{o.acted_at:%a %H:%M}", o.status.value, why
            )
        console.print(table)
        console.print()


def main() -> int:
    p = argparse.ArgumentParser(description="A weekend of schedules on a clock that runs faster.")
    p.add_argument("--database", help="an empty database (default: a new file that goes when this ends)")
    p.add_argument("--schedules", type=Path, default=HERE / "schedules.json", help="another file of schedules")
    p.add_argument("--json", action="store_true", help="print what ran, as JSON")
    options = p.parse_args()
    clock = ManualClock(BEGIN)
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        app = Duly(options.database or f"sqlite:///{folder}/nights.db", clock=clock)
        try:
            define(app, clock, done)
            problems = read_schedules(app, options.schedules)
            app.migrate()
            app.schedules.sync()
            app.calendars.set(CLOSED, reason="stocktaking", actor="example")
            run(app, clock)
            if options.json:
                print(json.dumps({"problems": problems, "ran": done}, indent=1))
            else:
                tell(app, problems)
        except (DulyError, OSError, json.JSONDecodeError) as error:
            print(f"nights: {error}", file=sys.stderr)
            return 1
        finally:
            app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
