"""What the example says in words: before the letters go out, when they are out, and what to try then."""

from __future__ import annotations

import os
import shlex
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from places import again, program, short
from progress import Burst
from rich.console import Console
from rich.text import Text

from duly import Duly, Job, Status

#: So many lines, duplicates and refusals are shown one by one.
SHOWN = 12


@dataclass(slots=True)
class Put:
    """What became of the lines of the recipients' file."""

    campaign: str
    #: Mailboxes that got a job now, and those that got one in an earlier run.
    new: int = 0
    before: int = 0
    #: Lines whose mailbox stands in an earlier line already.
    duplicates: list[int] = field(default_factory=list)
    #: Lines that nothing can be sent to, and why.
    bad: list[tuple[int, str]] = field(default_factory=list)


class Teller:
    """Says things on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._first = True

    def line(self, *parts: str | tuple[str, str] | Text) -> None:
        # never wrapped: a folded path or command cannot be copied
        self.console.print(Text.assemble(*parts), soft_wrap=True)

    def writing(self, lines: int) -> AbstractContextManager[object]:
        return self.console.status(f"Writing {lines:,} letters …") if self.console.is_terminal else nullcontext()

    def enqueued(self, put: Put, app: Duly, seconds: float) -> None:
        """What was read and what was put into the database."""
        self.line()
        if put.bad:
            self.line((f"{_count(len(put.bad), 'line')} cannot be used; the rest goes on:", "yellow"))
            for number, problem in put.bad[:SHOWN]:
                self.line(f"  line {number:<4}  ", (problem, "dim"))
            if len(put.bad) > SHOWN:
                self.line((f"  and {len(put.bad) - SHOWN:,} more", "dim"))
        if put.duplicates:
            shown = ", ".join(str(n) for n in put.duplicates[:SHOWN]) + (" …" if len(put.duplicates) > SHOWN else "")
            self.line(f"{_count(len(put.duplicates), 'duplicate')} skipped ", (f"(lines {shown})", "dim"))
        if put.before:
            self.line(f"{_count(put.before, 'letter')} of the campaign {put.campaign!r} enqueued by an earlier run")
        if put.new:
            self.line(
                (f"{_count(put.new, 'letter')} enqueued", "bold"), (f" in one transaction, {seconds:.2f} s", "dim")
            )
        else:
            self.line(("nothing new to enqueue", "bold"))

    def started(self, app: Duly, folder: Path, address: str) -> None:
        """Where things are, and what is to be known if this run does not end well."""
        left = app.jobs.count(queue="mail", status=(Status.RUNNING,))
        if left:
            wait = f"{app.settings.lease:g} seconds"
            self.line(
                (f"{_count(left, 'letter')} in the hands of another worker; ", "yellow"),
                (f"if it was killed, they are taken over within about {wait}", "yellow"),
            )
        self.line((f"mail server on {address}, worker in process {os.getpid()}", "dim"))
        self.line((f"should it be killed, go on with: {again('newsletter', _where(app, folder))}", "dim"))
        self.line()

    def interrupted(self) -> None:
        self.line("Stopped. Nothing is lost: run it again.")

    def out(self, app: Duly, put: Put, burst: Burst, folder: Path, *, serving: bool) -> None:
        """What was done since nothing waited last; the first time with everything there is to look at."""
        speed = f" in {burst.seconds:.1f} s, {burst.sent / burst.seconds:.0f} per second" if burst.sent else ""
        again = f", {_count(burst.retries, 'retry', 'retries')}" if burst.retries else ""
        if not self._first:
            self.line((f"{burst.sent:,} more sent", "bold green"), (f"{speed}{again}", "dim"))
            return
        self._first = False
        self.line()
        waiting = burst.waiting
        if waiting:
            self.line((f"Stopped, and nothing is lost: {_count(waiting, 'letter')} still to be sent.", "bold yellow"))
        elif burst.ended:
            self.line(("The newsletter is out.", "bold green"))
        else:
            self.line(("Nothing to send: everybody has it.", "bold green"))
        self.line()
        self.line("  sent        ", (f"{burst.sent:,}", "bold"), (f"{speed}{again}", "dim"))
        if put.before:
            self.line("  known       ", (f"{put.before:,}", "bold"), (" from an earlier run, not sent twice", "dim"))
        self._refusals(app)
        self.line("  duplicates  ", (f"{len(put.duplicates):,}", "bold"), (" skipped", "dim"))
        self.line("  bad lines   ", (f"{len(put.bad):,}", "bold"), (" left out", "dim"))
        self.line()
        self.line(
            "  messages    ", f"{short(folder / 'mail' / 'new')}", (" (a Maildir; every file is a message)", "dim")
        )
        self.line("  database    ", app.db.shown_url)
        self._next(app, folder, serving=serving and not waiting, waiting=bool(waiting))

    def _refusals(self, app: Duly) -> None:
        total = app.jobs.count(queue="mail", status=(Status.FAILED,))
        self.line("  refused     ", (f"{total:,}", "bold"), (" for good" if total else "", "dim"))
        for job in reversed(_failed(app)):
            reason = (job.error or {}).get("message", "")
            self.line(f"              job {job.id:<5} {job.input['to']:<26} ", (reason, "red"))
        if total > SHOWN:
            self.line((f"              and {total - SHOWN:,} more", "dim"))

    def _next(self, app: Duly, folder: Path, *, serving: bool, waiting: bool) -> None:
        duly = program("duly")
        here = _where(app, folder)
        failed = _failed(app)
        self.line()
        self.line((f"Look around{' in another terminal' if serving else ''}:", "bold"))
        self.line(f"  export DULY_DATABASE_URL={shlex.quote(app.db.shown_url)}")
        self.line(f"  {duly} jobs list --status failed")
        if failed:
            self.line(f"  {duly} why {failed[-1].id}")
        self.line(f"  {duly} audit verify")
        tries = [(here, "the rest is sent, and nothing twice" if waiting else "again: nothing is sent twice")]
        if serving:
            tries = [([*here, "--enqueue-only", "--campaign", "winter"], "in another terminal: it is sent from here")]
        if app.db.is_sqlite:
            tries += [(["--fresh", "--latency", "2"], "kill -9 its process half-way, and go on as it says")]
        self.line(("Try next:", "bold"))
        for arguments, what in tries:
            self.line(f"  {again('newsletter', arguments)}", (f"   {what}", "dim"))


def _where(app: Duly, folder: Path) -> list[str]:
    """The options that lead back to this folder and this database."""
    here = [] if folder == Path("var/newsletter") else ["--folder", short(folder)]
    return here if app.db.is_sqlite else [*here, "--database-url", app.db.shown_url]


def _failed(app: Duly) -> list[Job]:
    return app.jobs.find(queue="mail", status=(Status.FAILED,), limit=SHOWN)


def _count(n: int, noun: str, nouns: str = "") -> str:
    return f"{n:,} {noun if n == 1 else nouns or noun + 's'}"
