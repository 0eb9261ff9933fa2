"""How it goes, while letters go out: a bar at the foot of a terminal, a plain line now and then in a pipe.

The numbers come from the events of the worker in this process (sent, failed) and from the database (what still waits,
whoever put it there). What happens job by job is told by ``duly up`` itself.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from duly import DatabaseUnavailable, Duly
from duly.jobs.survey import altogether, depths
from duly.kernel.events import Event


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
    #: (when, how many had ended), for the pace of the last seconds.
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
    """Shows the work of one queue, inside ``with``.

    ``out(burst)`` is called at the end; when ``serving``, also whenever nothing waits any more.
    """

    def __init__(self, app: Duly, queue: str, console: Console, out: Callable[[Burst], None], *, serving: bool) -> None:
        self._app, self._queue, self._console, self._out, self._serving = app, queue, console, out, serving
        self._burst: Burst | None = Burst()
        self._said = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._stack = ExitStack()

    def __enter__(self) -> Progress:
        self._stack.callback(self._app.listen(self._hear))
        if self._console.is_terminal:
            self._live = self._stack.enter_context(live(self._console))
        self._stack.callback(self._thread.join)
        self._stack.callback(self._end.set)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._look()
        self._close()

    def _hear(self, event: Event) -> None:
        if event.name != "jobs_settled":
            return
        for queue, _task, how, _seconds in event.facts["jobs"]:
            if queue == self._queue:
                burst = self._burst = self._burst or Burst()
                burst.sent += int(how == "succeed")
                burst.failed += int(how in ("fail", "cancel"))
                burst.retries += int(how == "retry")

    def _look(self) -> None:
        try:
            stands = self._app.db.read(lambda c: depths(c, self._app.db.present(c), queue=self._queue))
        except DatabaseUnavailable:
            return  # the worker tells, and tries again
        mine = altogether(stands)
        if self._burst is None and (mine.ready or mine.running or mine.later):
            self._burst = Burst()
        if self._burst is not None:
            self._burst.ready, self._burst.running, self._burst.later = mine.ready, mine.running, mine.later

    def _watch(self) -> None:
        quiet = 0
        while not self._end.wait(0.1):
            self._look()
            if self._burst is None:
                continue
            self._show(self._burst)
            # twice: the worker tells of a settlement a moment after the database has it
            quiet = quiet + 1 if self._burst.waiting == 0 else 0
            if quiet >= 2 and self._serving:
                self._close()
                if self._console.is_terminal:
                    self._live.update(Text("\nServing whatever is enqueued. Ctrl-C stops.", "bold"), refresh=True)

    def _show(self, burst: Burst) -> None:
        if self._console.is_terminal:
            self._live.update(picture(burst), refresh=True)
        elif burst.seconds - self._said >= 2:
            self._said = burst.seconds
            self._console.print(numbers(burst).plain, soft_wrap=True)

    def _close(self) -> None:
        burst, self._burst = self._burst, None
        if burst is not None:
            self._said = 0.0
            self._out(burst)


class Above(FileProxy):
    """A stream whose lines appear above the bar. Unlike Rich's own it knows its encoding, as Click wants it to."""

    def __init__(self, console: Console, file: TextIO) -> None:
        super().__init__(console, file)
        self._file = file

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._file.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._file.errors


@contextmanager
def live(console: Console) -> Iterator[Live]:
    """Lines at the foot of the terminal, with everything that is written meanwhile above them."""
    foot = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
    with foot, redirect_stdout(Above(console, sys.stdout)), ExitStack() as stack:
        if sys.stderr.isatty():  # one that goes elsewhere is left alone
            stack.enter_context(redirect_stderr(Above(console, sys.stderr)))
        yield foot


def picture(burst: Burst) -> RenderableType:
    """The foot of the terminal."""
    total = burst.ended + burst.waiting
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        ProgressBar(total or 1, burst.ended, width=50, complete_style="green", finished_style="green"),
        f"{burst.ended:,} of {total:,}",
    )
    return Padding(Group(bar, numbers(burst)), (1, 0, 0, 0))


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
        text.append(f"{name} ", "dim").append(f"{count:<6,}", style if count else "dim")
    return text.append(f"{burst.rate():.0f} per second", "dim")
