"""What people see: lines as things happen, bars at the foot of a terminal (a plain line now and then in a pipe), the account."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from account import Account, Look
from orders import Problem
from processes import Child
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from till import Slip, Till

#: So many lines and faults are shown one by one.
SHOWN = 12
#: Seconds between lines in a pipe.
PACE = 2.0


class Teller:
    """Says things on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._began = self._said = time.monotonic()

    def line(self, *parts: str | tuple[str, str] | Text) -> None:
        # never wrapped: a folded path or command cannot be copied
        self.console.print(Text.assemble(*parts), soft_wrap=True)

    def read(self, file: Path, orders: int, bad: Sequence[Problem]) -> None:
        """What the file holds."""
        self.line()
        if bad:
            self.line((f"{_count(len(bad), 'line')} of {_short(file)} cannot be read; the rest goes on:", "yellow"))
            self._problems(bad)
        self.line((f"{_count(orders, 'line')} to send", "bold"))

    def started(self, children: Sequence[Child], folder: Path) -> None:
        """Which processes there are, for those who want to kill one."""
        for child in children:
            self.line(f"  {child.name:<8} ", (f"process {child.pid:<8} {child.address}", "dim"))
        self.line((f"  logs in {_short(folder / 'log')}; kill -9 whichever you like", "dim"))
        self.line()

    def happened(self, what: str) -> None:
        """One thing that happened on the way."""
        self.line((f"{time.monotonic() - self._began:5.1f} s  ", "dim"), (what, "yellow"))

    # ------------------------------------------------------------------ on the way

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Bars at the foot of the terminal, within."""
        self._began = self._said = time.monotonic()
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def progress(self, till: Till, look: Look) -> None:
        """How it goes."""
        rows = (
            ("requests answered", till.slip.answered, till.total),
            ("messages sent", look.sent, look.published),
            ("receipts", look.receipts, look.orders),
        )
        if self._live is not None:
            foot = Table.grid(padding=(0, 2))
            for name, done, total in rows:
                bar = ProgressBar(total or 1, done, width=40, complete_style="green", finished_style="green")
                foot.add_row(name, bar, f"{done:,} of {total:,}")
            foot.add_row("", Text(f"{look.in_flight} being sent, {look.retrying} to be tried again", "dim"), "")
            self._live.update(foot, refresh=True)
        elif time.monotonic() - self._said >= PACE:
            self._said = time.monotonic()
            self.line(
                f"{self._said - self._began:5.1f} s  ",
                "  ".join(f"{name} {done:,}/{total:,}" for name, done, total in rows),
            )

    # ------------------------------------------------------------------ at the end

    def account(self, slip: Slip, bad: int, asked_again: int, account: Account) -> None:
        """The table, and whether it balances."""
        counts, box = slip.counts, account.messages
        self.line()
        if slip.problems:
            self.line((f"{_count(len(slip.problems), 'line')} refused or unanswered:", "yellow"))
            self._problems([problem for _, problem in sorted(slip.problems.items())])
            self.line()
        for name, figures in (
            ("orders", (("taken", counts["taken"]), ("repeated", counts["repeated"]), ("refused", counts["refused"]),
                        ("unanswered", counts["unanswered"]), ("unreadable", bad))),
            ("messages", (("published", box.published), ("sent", box.sent), ("attempts", account.attempts), ("parked", box.parked))),
            ("invoices", (("written", len(account.invoices)), ("put off at first", account.refused),
                          ("delivered again", account.redelivered))),
            ("receipts", (("written", len(account.receipts)), ("asked for again", asked_again),
                          ("jobs", account.receipt_jobs), ("failed", account.failed_jobs))),
        ):  # fmt: skip
            self.line((f"{name:<10}", "bold"), *_figures(figures))
        self.line()
        self._verdict("every order billed exactly once", account.wrongly_billed)
        self._verdict("each customer's invoices in the order of the orders", account.out_of_order)
        self._verdict("every order receipted exactly once", account.wrongly_receipted)
        if box.parked:
            self.line((f"{_count(box.parked, 'message')} parked: the other side refused for good, or too often", "red"))

    def after(self, folder: Path, shop: str, jobs: str, again: Sequence[str]) -> None:
        """What to look at and to try, with the databases of the shop and of Duly. ``again``: the options that lead back."""
        duly = _short(Path(sys.executable).with_name("duly"))
        self.line()
        self.line(("Look around:", "bold"))
        self.line(f"  ls {shlex.quote(_short(folder / 'receipts'))}")
        self.line(f"  {duly} outbox list --limit 10 --table outbox --database-url {shlex.quote(shop)}")
        self.line(f"  {duly} jobs list --limit 10 --database-url {shlex.quote(jobs)}")
        self.line(("Try next:", "bold"))
        command = shlex.join([_short(Path(sys.executable)), _short(Path(sys.argv[0])), *again])
        self.line(f"  {command}", ("   again: nothing is billed twice", "dim"))
        if "--database-url" not in again and "--jobs-database-url" not in again:
            self.line(f"  {command} --fresh", ("   and kill -9 one of its processes, or all of them", "dim"))
        self.line()

    def _verdict(self, what: str, faults: Sequence[str]) -> None:
        self.line(f"  {what:<52}", ("no", "bold red") if faults else ("yes", "bold green"))
        for fault in faults[:SHOWN]:
            self.line((f"    {fault}", "red"))
        if len(faults) > SHOWN:
            self.line((f"    and {len(faults) - SHOWN:,} more", "red"))

    def _problems(self, problems: Sequence[Problem]) -> None:
        for problem in problems[:SHOWN]:
            self.line(f"  line {problem.line:<4}  ", (problem.text, "dim"))
        if len(problems) > SHOWN:
            self.line((f"  and {len(problems) - SHOWN:,} more", "dim"))


def _figures(figures: Sequence[tuple[str, int]]) -> Iterator[str | tuple[str, str]]:
    for place, (name, number) in enumerate(figures):
        yield (" " if place else "") + f"{number:,} "
        yield (name if place == len(figures) - 1 else name.ljust(19 - len(f"{number:,} ")), "dim")


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun if n == 1 else noun + 's'}"


def _short(path: Path) -> str:
    """The path as one would type it here."""
    try:
        return os.fspath(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return os.fspath(path)
