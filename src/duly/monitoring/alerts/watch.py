"""The actor: looks, has it judged, tells. One per application: ``app.alerts``.

Who judges? Any process that has the turn: the housekeeping of every worker (one of them per interval in the whole cluster), the
process that answers ``/health`` and ``/metrics`` when nobody has judged for two intervals, and ``duly alerts check``, at once. So
what is stuck is judged by something else than itself (T000-o).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from sqlalchemy import Connection

from duly.jobs.engine import Engine
from duly.kernel.errors import DatabaseUnavailable, DulyError, InvalidArgument, brief
from duly.monitoring.alerts import readings
from duly.monitoring.alerts.alert import Alert, Facts, Rule, Severity, State
from duly.monitoring.alerts.notices import Notices
from duly.monitoring.alerts.rules import rules_of
from duly.monitoring.alerts.store import AHEAD, STANDS_STILL, AlertFilter, AlertStore, Busy, Judged, Moved

#: A look happened this long ago at most before a process that is only asked looks itself, in intervals.
LATE = 2.0
#: Seconds between tries of somebody who waits for his turn.
PAUSE = 0.25
#: Seconds after which what was judged last is no picture of the present any more.
FRESH = 300.0
T = TypeVar("T")
#: Cleared alerts past their retention are looked for this often, in seconds.
PRUNE_EVERY = 3600.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How things stand: alerts that are pending or raised (the worst first), and the last judgement."""

    now: datetime
    alerts: tuple[Alert, ...] = ()
    judged: Judged | None = None
    #: Seconds between judgements, as the settings say.
    every: float = 0.0

    @property
    def raised(self) -> tuple[Alert, ...]:
        return tuple(a for a in self.alerts if a.state is State.RAISED)

    @property
    def pending(self) -> tuple[Alert, ...]:
        return tuple(a for a in self.alerts if a.state is State.PENDING)

    @property
    def stale(self) -> str:
        """Why this picture says nothing about the present: it was judged too long ago, or never. Empty while it is fresh."""
        if self.judged is None:
            return "The alerts were never judged: start a worker or `duly web`, or run `duly alerts check`."
        age = (self.now - self.judged.at).total_seconds()
        if age <= max(FRESH, self.every * LATE + FRESH / 5):
            return ""
        return f"The alerts were last judged {age / 60:,.0f} minutes ago, so this is not how things stand: start a worker or `duly web`, or run `duly alerts check`."

    @property
    def unknown(self) -> dict[str, str]:
        """Rules that could not be judged, and why."""
        return self.judged.unknown if self.judged is not None else {}


class Alerts:
    """``app.alerts``: judging, looking, taking note."""

    def __init__(self, engine: Engine, open: Callable[[], None] = lambda: None) -> None:
        #: ``open``: checks the schema, once.
        self.engine, self.db, self.settings, self._open = engine, engine.db, engine.settings, open
        self.store = AlertStore(engine.db)
        self._rules: tuple[Rule, ...] | None = None
        #: Rules that this process found unknown, so that each is told once.
        self._unknown: dict[str, str] = {}
        self._prune_at: datetime | None = None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that are judged. Raises InvalidArgument when a setting of theirs cannot be used."""
        if self._rules is None:
            self._rules = rules_of(self.settings)
        return self._rules

    # ------------------------------------------------------------------ judging

    def look(self) -> Facts:
        """What the rules are judged by, as of now. Nothing is written. Raises DatabaseUnavailable."""
        return self._read(lambda c: readings.look(self.engine, self.rules, c))

    def judge(self, by: str, every: float = 0.0) -> list[Moved] | None:
        """Look, judge, write, tell. Returns the moves; None when somebody judged less than ``every`` seconds ago.

        ``by``: who judges, for the audit trail. May be called by any number of processes at once. Raises DatabaseUnavailable.
        """
        if every > 0 and not self._is_due(every):
            return None
        facts = self.look()
        notices = Notices(self.engine, self.store)
        problem = ""

        def act(connection: Connection) -> list[Moved] | None:
            nonlocal problem
            problem = ""

            def notice(c: Connection, moved: Sequence[Moved], now: datetime) -> list[int]:
                nonlocal problem
                try:
                    with c.begin_nested():  # an alert that cannot be told of is raised all the same
                        return notices.make(c, moved, now)
                except DulyError as error:
                    problem = brief(error)
                    return []

            return self.store.apply(connection, self.rules, facts, by, every, notice if notices.wanted else None)

        moved = self._in_turn(act, patient=every <= 0)
        if moved is None:
            return None
        self._tell(facts, moved, notices.withheld, problem)
        if moved and notices.wanted:
            self.db.bells.ring()
        self._prune(facts.now)
        return moved

    def _in_turn(self, act: Callable[[Connection], list[Moved] | None], patient: bool) -> list[Moved] | None:
        """Do it when nobody else is at it. Who is asked to judge now is patient; who only has the duty leaves it to the other."""
        tries = int((STANDS_STILL + 5) / PAUSE) if patient else 1
        for left in reversed(range(tries)):
            try:
                return self._write(act)
            except Busy:
                if left:
                    time.sleep(PAUSE)
        if patient:
            raise DatabaseUnavailable("another process has been judging alerts for too long, and nobody else can.")
        return None

    def duty(self, by: str) -> None:
        """What a worker does every few seconds: judge when it is time, whoever of all workers comes first."""
        self.judge(by, self.settings.alerts_every * 0.9)

    def _is_due(self, every: float) -> bool:
        """Asked before anything is looked at; the turn itself is taken by a guarded statement."""

        def ask(connection: Connection) -> bool:
            judged, now = self.store.judged(connection), self.engine.db.present(connection)
            return (
                judged is None
                or judged.at <= now - timedelta(seconds=every)
                or judged.at > now + timedelta(seconds=AHEAD)
            )

        return self._read(ask)

    def _tell(self, facts: Facts, moved: Sequence[Moved], withheld: int, problem: str) -> None:
        emitter = self.engine.emitter
        for move in moved:
            alert = move.alert
            if move.event == "raise":
                level = "error" if alert.severity is Severity.CRITICAL else "warning"
                if level == "error":
                    emitter.emit("alert_raised", "error", rule=alert.rule, subject=alert.subject, alert=alert.id, severity=str(alert.severity), detail=alert.detail)  # fmt: skip
                else:
                    emitter.emit("alert_raised", "warning", rule=alert.rule, subject=alert.subject, alert=alert.id, severity=str(alert.severity), detail=alert.detail)  # fmt: skip
            elif move.event == "clear":
                emitter.emit(
                    "alert_cleared",
                    rule=alert.rule,
                    subject=alert.subject,
                    alert=alert.id,
                    severity=str(alert.severity),
                )
        if withheld:
            emitter.emit("alerts_withheld", "warning", count=withheld, most=self.settings.alerts_most)
        if problem:
            emitter.emit("alert_notice_failed", "error", error=problem)
        unknown = facts.unknown
        for rule in sorted(set(unknown) - set(self._unknown)):
            emitter.emit("alert_unknown", "warning", rule=rule, error=unknown[rule])
        self._unknown = unknown

    def _prune(self, now: datetime) -> None:
        keep = self.settings.alerts_retention
        if not keep or (self._prune_at is not None and now < self._prune_at):
            return
        self._prune_at = now + timedelta(seconds=PRUNE_EVERY)
        self._write(lambda c: self.store.prune(c, now - timedelta(seconds=keep)))

    def _read(self, fn: Callable[[Connection], T]) -> T:
        self._open()
        return self.db.read(fn)

    def _write(self, fn: Callable[[Connection], T]) -> T:
        self._open()
        return self.db.write(fn)

    # ------------------------------------------------------------------ people

    def standing(self) -> Standing:
        """How things stand, as it was judged last; nothing is judged now."""

        def read(connection: Connection) -> Standing:
            now = self.engine.db.present(connection)
            return Standing(
                now, tuple(self.store.standing(connection)), self.store.judged(connection), self.settings.alerts_every
            )

        return self._read(read)

    def seen(self, by: str) -> Standing:
        """The same for somebody who watches from beside: judges first when nobody has for two intervals (T000-o)."""
        self.judge(by, self.settings.alerts_every * LATE)
        return self.standing()

    def find(self, limit: int = 50, below: int | None = None, state: Sequence[str] | str = (), rule: str | None = None, subject: str | None = None) -> list[Alert]:  # fmt: skip
        """Alerts, newest first, also those that were cleared."""
        given = (state,) if isinstance(state, str) else tuple(state)
        for one in given:
            if one not in set(State):
                raise InvalidArgument("state", f"is {one!r}.", f"Use one of: {', '.join(State)}.")
        wanted = AlertFilter(tuple(State(one) for one in given), rule, subject)
        return self._read(lambda c: self.store.find(c, wanted, limit, below))

    def get(self, ident: int) -> Alert:
        """One alert. Raises NotFound."""
        return self._read(lambda c: self.store.get(c, ident))

    def ack(self, ident: int, reason: str = "", actor: str = "code") -> Alert:
        """Take note of a raised alert, and return it. It stays raised until it is fine again. Raises NotFound or WrongState."""
        alert, fresh = self._write(lambda c: self.store.ack(c, ident, actor, reason))
        if fresh:
            self.engine.emitter.emit("alert_acked", rule=alert.rule, subject=alert.subject, alert=alert.id, actor=actor)
        return alert
