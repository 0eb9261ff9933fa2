"""A chat at the terminal: what is typed goes into the session, and what the AI says appears as it says it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from duly.cli.command import actor, complain
from duly.kernel.errors import DulyError, InvalidArgument, WrongState
from duly.monitoring.redact import visible

if TYPE_CHECKING:
    from duly.automations.door import Automations
    from duly.automations.session import Session

#: Seconds between two looks at what is being said, and at a slot that is held.
LOOK, WAIT = 0.1, 1.0
#: Seconds after which an answer that nobody works on is told.
NOBODY = 5.0
#: Seconds that a second Ctrl-C has to wait for.
PATIENT = 2.0


def talk(made: Automations, text: str | None, options: Mapping[str, Any], is_served: Callable[[], bool]) -> int:
    """One chat, from its beginning to its end. ``is_served``: does a worker run sessions? It is asked again while the chat waits: one that died
    counts as alive for a while. Returns the exit code: 1 where an answer did not come."""
    with _Server(made, is_served) as server, _Signals() as signals:
        server.look()
        requested = made.chat(actor=actor(), **options)
        return _Talk(made, requested.session, server.look, signals.rest).run(text)


class _Signals:
    """A terminal that is closed, or a request to end, ends the chat as Ctrl-C does: one that nobody is at would keep the slot.

    It comes between while the chat rests (``rest``), and not into the middle of a write: the one that closes the chat would wait for that.
    """

    def __init__(self) -> None:
        self._came: int | None = None
        self._at = 0.0
        self._rests = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            kinds = [getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGTERM") if hasattr(signal, name)]
            # what is ignored stays so (nohup)
            self._before = {
                kind: signal.signal(kind, self._hear) for kind in kinds if signal.getsignal(kind) is not signal.SIG_IGN
            }
        return self

    def __exit__(self, *_: object) -> None:
        for kind, handler in self._before.items():
            signal.signal(kind, handler)

    @contextlib.contextmanager
    def rest(self) -> Iterator[None]:
        """Here a signal ends the chat, also one that came before. Raises KeyboardInterrupt, SystemExit."""
        self._rests = True
        try:
            self._leave()
            yield
        finally:
            self._rests = False

    def _hear(self, number: int, frame: object) -> None:
        if self._came is None:
            self._came, self._at = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._at > PATIENT:
            # whoever presses Ctrl-C again does not want to wait; a key that is held down must not come into the giving back of the slot
            raise KeyboardInterrupt
        if self._rests:
            self._rests = False
            self._leave()

    def _leave(self) -> None:
        if self._came == signal.SIGINT:
            raise KeyboardInterrupt
        if self._came is not None:
            raise SystemExit(128 + self._came)


class _Server(contextlib.ExitStack):
    """Sees to it that a worker runs sessions: where there is none, this process is one."""

    def __init__(self, made: Automations, is_served: Callable[[], bool]) -> None:
        super().__init__()
        self.made, self.is_served = made, is_served
        self.is_one, self.looked = False, float("-inf")

    def look(self) -> None:
        """Called often; looks every ``WAIT`` seconds."""
        if self.is_one or time.monotonic() - self.looked < WAIT:
            return
        self.looked = time.monotonic()
        if not self.is_served():
            self.is_one = True
            self.enter_context(_own_worker(self.made))


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


@contextlib.contextmanager
def _there(made: Automations, session: int) -> Iterator[None]:
    """Say that a person is there for as long as the chat lasts, also while they think. A program that is killed says no more, and its chat gives
    way to another one."""
    from duly.automations.executing import WANTED

    over = threading.Event()

    def say() -> None:
        while not over.wait(WANTED / 3):
            with contextlib.suppress(DulyError):
                made.wanted(session)

    thread = threading.Thread(target=say, name="chat-presence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


class _Talk:
    """A chat under way."""

    def __init__(
        self,
        made: Automations,
        session: Session,
        look: Callable[[], None] = lambda: None,
        rest: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """``look``: called while somebody is waited for; ``rest``: around every wait."""
        self.made, self.id, self.look, self.rest = made, session.id, look, rest
        #: The last message that was shown, and how much of the one that is being said.
        self.position, self.shown = 0, ""
        self.people = sys.stdin.isatty() and sys.stdout.isatty()
        self.failed = False
        #: Something was said, and is not answered.
        self.waits = False

    def run(self, text: str | None) -> int:
        with _there(self.made, self.id):
            return self._run(text)

    def _run(self, text: str | None) -> int:
        try:
            if not self._wait_for_slot():
                return 1
            if text is not None:
                self._ask(text)
            else:
                for line in self._lines():
                    if not self._heard(line):
                        break
        except KeyboardInterrupt:
            click.echo()
            self.failed = self.failed or self.waits
        finally:
            self._close()
        return 1 if self.failed else 0

    def _heard(self, line: str) -> bool:
        """Say a line, unless there is nothing in it or it cannot be said. False: the chat is over."""
        try:
            return not line.strip() or self._ask(line)
        except InvalidArgument as error:
            complain(f"that was not said: {error}")
            return True

    def _lines(self) -> Iterator[str]:
        if self.people:
            click.echo("Talk with the AI. Ctrl-D ends the chat.", err=True)
        while True:
            with self.rest():
                try:
                    line = input("\nyou  ") + "\n" if self.people else sys.stdin.readline()
                except EOFError:
                    click.echo()
                    return
            if not line:
                return
            yield line.rstrip("\n")

    def _wait_for_slot(self) -> bool:
        told = False
        while True:
            s = self.made.wanted(self.id)
            if s.is_active:
                return True
            if str(s.status) != "queued":
                return self._over(s)
            if not told:
                told = True
                click.echo(f"Waiting for the slot; Ctrl-C gives up.{self._held_by(s)}", err=True)
            self.look()
            self._sleep(WAIT)

    def _held_by(self, s: Session) -> str:
        """Who has the slot, and what can be done about it: a chat cannot be paused."""
        held = next((one.session_id for one in self.made.slots() if one.name == s.slot), None)
        if held is None:
            return ""
        pause = "" if self.made.session(held).type.value == "CHAT" else f", or pause {held}"
        return f" It is held by session {held}: duly automations stop {held}{pause}."

    def _over(self, s: Session) -> bool:
        """The chat has ended, and not by its person."""
        complain(f"the chat is over: {str(s.end_detail or s.end_reason).rstrip('.')}.")
        self.failed = True
        return False

    def _ask(self, text: str) -> bool:
        """Say something, and show what is answered. False where the chat is over."""
        try:
            self.made.say(self.id, text, actor=actor())
        except WrongState:
            return self._over(self.made.session(self.id))
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
                return self._over(s)
            if s.job_id is None:
                self._show_said()
                return self._ended()
            if not told and s.last_activity_at is not None and not s.partial and time.monotonic() - since > NOBODY:
                told = self._tell_waiting(s)
            self.look()
            self._sleep(LOOK)

    def _sleep(self, seconds: float) -> None:
        with self.rest():
            time.sleep(seconds)

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
        error = rounds[-1].error if rounds else None  # of one that was held back, too
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
