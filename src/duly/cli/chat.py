"""A chat at the terminal: what is typed goes into the session, and what the AI says appears as it says it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from duly.cli.command import actor, complain
from duly.kernel.errors import DulyError
from duly.monitoring.redact import visible

if TYPE_CHECKING:
    from duly.automations.door import Automations
    from duly.automations.session import Session

#: Seconds between two looks at what is being said, and at a slot that is held.
LOOK, WAIT = 0.1, 1.0
#: Seconds after which an answer that nobody works on is told.
NOBODY = 5.0


def talk(made: Automations, text: str | None, options: Mapping[str, Any], has_worker: bool) -> int:
    """One chat, from its beginning to its end. Returns the exit code: 1 where an answer did not come."""
    with contextlib.ExitStack() as stack:
        if not has_worker:
            stack.enter_context(_own_worker(made))
        requested = made.chat(actor=actor(), **options)
        return _Talk(made, requested.session).run(text)


@contextlib.contextmanager
def _own_worker(made: Automations) -> Iterator[None]:
    """A worker of this process for sessions, as long as the chat lasts."""
    from duly.automations.controller import QUEUE

    app: Any = made._app
    worker = app.worker(queues={QUEUE: 2})
    thread = threading.Thread(target=worker.run, name="chat-worker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(timeout=app.settings.grace + 5)


class _Talk:
    """A chat under way."""

    def __init__(self, made: Automations, session: Session) -> None:
        self.made, self.id = made, session.id
        #: The last message that was shown, and how much of the one that is being said.
        self.position, self.shown = 0, ""
        self.people = sys.stdin.isatty() and sys.stdout.isatty()
        self.failed = False
        #: Something was said, and is not answered.
        self.waits = False

    def run(self, text: str | None) -> int:
        try:
            if not self._wait_for_slot():
                return 1
            if text is not None:
                self._ask(text)
            else:
                for line in self._lines():
                    if line.strip() and not self._ask(line):
                        break
        except KeyboardInterrupt:
            click.echo()
            self.failed = self.failed or self.waits
        finally:
            self._close()
        return 1 if self.failed else 0

    def _lines(self) -> Iterator[str]:
        if not self.people:
            for line in sys.stdin:
                yield line.rstrip("\n")
            return
        click.echo("Talk with the AI. Ctrl-D ends the chat.", err=True)
        while True:
            try:
                yield input("\nyou  ")
            except EOFError:
                click.echo()
                return

    def _wait_for_slot(self) -> bool:
        told = False
        while True:
            s = self.made.wanted(self.id)
            if s.is_active:
                return True
            if str(s.status) != "queued":
                complain(f"the chat is over: {str(s.end_detail or s.end_reason).rstrip('.')}.")
                return False
            if not told:
                told = True
                held = next((one.session_id for one in self.made.slots() if one.name == s.slot), None)
                by = (
                    ""
                    if held is None
                    else f" It is held by session {held}: duly automations stop {held}, or pause {held}."
                )
                click.echo(f"Waiting for the slot; Ctrl-C gives up.{by}", err=True)
            time.sleep(WAIT)

    def _ask(self, text: str) -> bool:
        """Say something, and show what is answered. False where the chat is over."""
        self.made.say(self.id, text, actor=actor())
        self.waits = True
        since = time.monotonic()
        told = False
        if self.people:
            click.echo("\nAI   ", nl=False)
        while True:
            s = self.made.session(self.id)
            self._show_partial(s.partial or "")
            self._show_said()
            if not s.is_active:
                click.echo()
                complain(f"the chat is over: {str(s.end_detail or s.end_reason).rstrip('.')}.")
                self.failed = True
                return False
            if s.job_id is None:
                self._show_said()
                return self._ended()
            if not told and s.last_activity_at is not None and not s.partial and time.monotonic() - since > NOBODY:
                told = self._tell_waiting(s)
            time.sleep(LOOK)

    def _tell_waiting(self, s: Session) -> bool:
        """Say so where nobody works on the answer."""
        assert s.job_id is not None
        reader, job = self.made._app.engine.reader, s.job_id
        with contextlib.suppress(DulyError):  # it has ended at this moment
            if str(self.made._app.engine.db.read(lambda c: reader.get(c, job)).status) == "queued":
                complain(f"nobody answers yet: duly why {job} says why.")
                return True
        return False

    def _ended(self) -> bool:
        """The round is over: was there an answer?"""
        rounds, said = self.made.rounds(self.id), self.made.transcript(self.id)
        error = rounds[-1].error if rounds and rounds[-1].answered_at is None else None
        self.waits = said[-1].message.role.value == "user"
        if self.waits and not error:
            error = "the worker that was to answer was lost, again and again"
        if error:
            click.echo()
            complain(f"no answer: {error.rstrip('.')}.")
            self.failed = True
        return True

    def _show_partial(self, partial: str) -> None:
        if partial.startswith(self.shown) and len(partial) > len(self.shown):
            click.echo(visible(partial[len(self.shown) :]), nl=False)
            sys.stdout.flush()
            self.shown = partial

    def _show_said(self) -> None:
        for one in self.made.transcript(self.id, self.position):
            self.position = one.position
            if one.message.role.value == "assistant":
                text = one.message.text
                rest = text[len(self.shown) :] if text.startswith(self.shown) else f"\n{text}"
                click.echo(visible(rest))
                self.shown = ""
                for call in one.message.calls:
                    click.echo(click.style(f"  calls {visible(call.name)}", dim=True), err=True)

    def _close(self) -> None:
        with contextlib.suppress(DulyError):
            self.made.close(self.id, actor=actor())
