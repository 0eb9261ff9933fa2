"""What people see while letters go out.

On a terminal a few lines that redraw themselves; in a pipe plain lines, one after the other. The numbers come from the
events of the worker in this process (sent, failed) and from the database (what still waits, whoever put it there).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from duly import DatabaseUnavailable, Duly
from duly.kernel.events import Event

STYLES = {"info": "dim", "warning": "yellow", "error": "red"}
#: Events shown below the bar.
SHOWN = 6


@dataclass(slots=True)
class Burst:
    """The letters between two moments at which nothing waited."""

    started: float = field(default_factory=time.monotonic)
    sent: int = 0
    failed: int = 0
    retries: int = 0
    #: Jobs of the queue that have not ended: ready, running, and waiting for another attempt.
    ready: int = 0
    running: int = 0
    later: int = 0
    #: (when, how many had ended), for the rate of the last seconds.
    pace: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=30))

    @property
    def ended(self) -> int:
        return self.sent + self.failed

    @property
    def waiting(self) -> int:
        return self.ready + self.running + self.later

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def rate(self) -> float:
        """Letters per second, lately."""
        now = time.monotonic()
        self.pace.append((now, self.ended))
        then, before = self.pace[0]
        return (self.ended - before) / (now - then) if now > then else 0.0


class Progress:
    """Shows the work of one queue, inside ``with``. ``done(burst)`` is called when nothing waits any more."""

    def __init__(self, app: Duly, queue: str, console: Console, done: Callable[[Burst], None]) -> None:
        self._app, self._queue, self._console, self._done = app, queue, console, done
        self._burst: Burst | None = Burst()
        self._recent: deque[Text] = deque(maxlen=SHOWN)
        self._live: Live | None = None
        self._said = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._deaf = self._app.listen(self._hear)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._deaf()
        self._look()
        self._close()

    # ------------------------------------------------------------------ what happens

    def _hear(self, event: Event) -> None:
        burst = self._burst
        if event.name == "jobs_settled" and burst is not None:
            for queue, _task, how, _seconds in event.facts["jobs"]:
                if queue == self._queue:
                    burst.sent += how == "succeed"
                    burst.failed += how in ("fail", "cancel")
                    burst.retries += how == "retry"
        if event.level != "debug":
            line = Text.assemble(
                f"{datetime.now():%H:%M:%S}  ", (f"{event.name:<16}", STYLES[event.level]), in_words(event)
            )
            line.rstrip()
            self._recent.append(line)
            if not self._console.is_terminal:
                self._console.print(line, soft_wrap=True)

    def _look(self) -> None:
        try:
            tally = self._app.db.read(self._app.engine.reader.tally)
        except DatabaseUnavailable:
            return  # the worker tells, and tries again
        mine = next((t for t in tally if t["queue"] == self._queue), {"ready": 0, "running": 0, "later": 0})
        if self._burst is None and sum(mine[n] for n in ("ready", "running", "later")):
            self._burst = Burst()
        if self._burst is not None:
            self._burst.ready, self._burst.running, self._burst.later = mine["ready"], mine["running"], mine["later"]

    # ------------------------------------------------------------------ what is shown

    def _watch(self) -> None:
        quiet = 0
        while not self._end.wait(0.1):
            self._look()
            if self._burst is None:
                continue
            self._show()
            # twice: the worker tells of a settlement a moment after the database has it
            quiet = quiet + 1 if self._burst.waiting == 0 else 0
            if quiet >= 2:
                self._close()

    def _show(self) -> None:
        burst = self._burst
        assert burst is not None
        if not self._console.is_terminal:
            if burst.seconds - self._said >= 2:
                self._said = burst.seconds
                self._console.print(numbers(burst).plain.strip(), soft_wrap=True)
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(picture(burst, self._recent), refresh=True)

    def _close(self) -> None:
        burst, self._burst = self._burst, None
        if burst is None:
            return
        if self._live is not None:
            self._live.update(picture(burst, self._recent), refresh=True)
            self._live.stop()
            self._live = None
        self._recent.clear()
        self._said = 0.0
        self._done(burst)


def picture(burst: Burst, recent: deque[Text]) -> RenderableType:
    """The lines that redraw themselves."""
    total = burst.ended + burst.waiting
    bar = Table.grid(padding=(0, 2))
    bar.add_row(ProgressBar(total or 1, burst.ended, width=50, complete_style="green"), f"{burst.ended} of {total}")
    return Padding(Group(bar, numbers(burst), Text(), *list(recent)), (1, 2))


def numbers(burst: Burst) -> Text:
    """One line: how it goes."""
    parts = [
        ("sent", burst.sent, "bold green"),
        ("retrying", burst.later, "yellow"),
        ("failed", burst.failed, "red"),
        ("waiting", burst.ready + burst.running, ""),
    ]
    text = Text()
    for name, count, style in parts:
        text.append(f"{name} ", "dim").append(f"{count:<6}", style if count else "dim")
    return text.append(f"{burst.rate():.0f} per second", "dim")


def in_words(event: Event) -> str:
    """The facts of an event, for people."""
    facts = dict(event.facts)
    for name in ("worker", "task", "queue", "error" if event.name.startswith("job_") else ""):
        facts.pop(name, None)
    parts = []
    if "job" in facts:
        parts.append(f"job {facts.pop('job')}")
    if "attempt" in facts:
        parts.append(f"attempt {facts.pop('attempt')} of {facts.pop('max_attempts', '?')}")
    if "wait" in facts:
        parts.append(f"again in {facts.pop('wait'):g} s")
    for name, value in facts.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        parts.append(f"{name} {shown}")
    return " · ".join(parts)
