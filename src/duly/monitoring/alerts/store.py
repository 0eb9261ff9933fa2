"""Alerts in the database: who has the turn to judge, what was decided, what people said.

A judgement is one transaction. It begins with a guarded statement on the one row of ``alert_watch``: whoever moves its instant on
goes on, everybody else has nothing to do. The lock of that row makes judgements one after the other, and facts that are older
than those of the last judgement (of a process that was stopped in the middle) are refused. So two never raise the same alert.

A process that hangs in the middle of its own judgement must not keep the others from theirs, for it is just what they should see. On
PostgreSQL they pass the locked row by, and the server ends a judgement that stands still after ``STANDS_STILL``. On SQLite a process
that is stopped while it writes keeps everybody from writing, here as everywhere; the others are not ready then, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select, update

from duly.audit.store import record
from duly.kernel.errors import InvalidArgument, NotFound, WrongState
from duly.kernel.payload import check_text
from duly.monitoring.alerts.alert import ACKED, CLEARED, LIFECYCLE, RAISED, Alert, Facts, Rule, Severity, State
from duly.monitoring.alerts.judge import Change, judge
from duly.monitoring.alerts.tables import alert_watch, alerts
from duly.storage.database import Database
from duly.storage.qualified import text
from duly.storage.rows import insert_into

_NAMES = [f.name for f in fields(Alert)]
_COLUMNS = [alerts.c[name] for name in _NAMES]
#: Seconds after which the server ends a judgement whose process does not go on (PostgreSQL).
STANDS_STILL = 10
#: A judgement dated further than this in the future, in seconds, is one by a clock that was ahead: it keeps nobody from judging.
AHEAD = 3_600
#: The longest text that is kept of an alert.
LONGEST = 2_000


@dataclass(frozen=True, slots=True)
class AlertFilter:
    """Which alerts. Everything given must hold."""

    state: Sequence[State] = ()
    rule: str | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """The last judgement."""

    at: datetime
    by: str
    #: By rule: value by subject, or the problem.
    readings: Mapping[str, Mapping[str, float] | str] = field(default_factory=dict)

    @property
    def unknown(self) -> dict[str, str]:
        return {name: found for name, found in self.readings.items() if isinstance(found, str)}


@dataclass(frozen=True, slots=True)
class Moved:
    """An alert after its move, and the move: ``suspect``, ``raise`` or ``clear``."""

    event: str
    alert: Alert
    threshold: float


#: Makes the jobs that tell people, in the transaction of the move. Returns the ids of alerts that people are told of.
Notice = Callable[[Connection, Sequence[Moved], datetime], Iterable[int]]


class Busy(Exception):
    """Somebody is judging at this very moment."""


class AlertStore:
    """Every statement about alerts."""

    def __init__(self, db: Database) -> None:
        self.db = db

    # ------------------------------------------------------------------ reading

    def standing(self, connection: Connection) -> list[Alert]:
        """Alerts that are pending or raised, the worst first."""
        query = select(*_COLUMNS).where(alerts.c.state != State.CLEARED)
        found = [_alert(row) for row in connection.execute(query)]
        return sorted(
            found, key=lambda a: (a.state is not State.RAISED, a.severity is not Severity.CRITICAL, a.since, a.id)
        )

    def find(self, connection: Connection, f: AlertFilter, limit: int = 50, below: int | None = None) -> list[Alert]:
        """Alerts, newest first. ``below``: only ids below this one, the last of the page before."""
        if not 1 <= limit <= 10_000:
            raise InvalidArgument("limit", f"is {limit}; it must be between 1 and 10,000.")
        query = select(*_COLUMNS)
        if f.state:
            query = query.where(alerts.c.state.in_([str(s) for s in f.state]))
        for name in ("rule", "subject"):
            if getattr(f, name) is not None:
                query = query.where(alerts.c[name] == getattr(f, name))
        if below is not None:
            query = query.where(alerts.c.id < below)
        return [_alert(row) for row in connection.execute(query.order_by(alerts.c.id.desc()).limit(limit))]

    def get(self, connection: Connection, ident: int, lock: bool = False) -> Alert:
        """One alert. Raises NotFound."""
        query = select(*_COLUMNS).where(alerts.c.id == ident)
        row = connection.execute(query.with_for_update() if lock else query).first()
        if row is None:
            raise NotFound("alert", ident)
        return _alert(row)

    def judged(self, connection: Connection) -> Judged | None:
        """The last judgement; None when nobody has judged yet."""
        row = connection.execute(select(alert_watch)).first()
        return None if row is None else Judged(row.judged_at, row.judged_by, row.readings)

    # ------------------------------------------------------------------ judging

    def take_turn(self, connection: Connection, facts: Facts, by: str, every: float) -> bool:
        """Move the last judgement on to these facts. False when somebody judged less than ``every`` seconds before them, or later.

        Raises Busy when somebody is at it (PostgreSQL).
        """
        if not self.db.is_sqlite:
            limit = f"SELECT set_config('idle_in_transaction_session_timeout', '{STANDS_STILL}s', true)"
            connection.execute(text(limit))
            free = select(alert_watch.c.id).with_for_update(skip_locked=True)
            if connection.execute(free).first() is None and connection.execute(select(alert_watch.c.id)).first():
                raise Busy
        values = {"judged_at": facts.now, "judged_by": by, "readings": _readings(facts)}
        before = facts.now - timedelta(seconds=every)
        earlier = alert_watch.c.judged_at <= before if every > 0 else alert_watch.c.judged_at < facts.now
        # judged in what is the future now: the clock was ahead for a while
        earlier = or_(earlier, alert_watch.c.judged_at > facts.now + timedelta(seconds=AHEAD))
        if connection.execute(update(alert_watch).where(alert_watch.c.id == 1, earlier).values(**values)).rowcount:
            return True
        if connection.execute(select(alert_watch.c.id)).first() is not None:
            return False
        first = (
            insert_into(self.db.is_sqlite)(alert_watch)
            .values(id=1, **values)
            .on_conflict_do_nothing()
            .returning(alert_watch.c.id)
        )
        return connection.execute(first).first() is not None

    def apply(
        self,
        connection: Connection,
        rules: Sequence[Rule],
        facts: Facts,
        by: str,
        every: float,
        notice: Notice | None = None,
    ) -> list[Moved] | None:
        """Judge and write, in the caller's transaction. Returns the moves; None when it was somebody else's turn."""
        if not self.take_turn(connection, facts, by, every):
            return None
        changes = judge(rules, facts, self.standing(connection), facts.now)
        moved = self._write(connection, {rule.name: rule for rule in rules}, changes, facts.now)
        for move in moved:
            if move.event != "suspect":
                self._record(connection, move, by)
        if notice is not None and moved:
            told = sorted(set(notice(connection, moved, facts.now)))
            if told:
                connection.execute(update(alerts).where(alerts.c.id.in_(told)).values(noticed_at=facts.now))
        return moved

    def _write(
        self, connection: Connection, rules: Mapping[str, Rule], changes: Sequence[Change], now: datetime
    ) -> list[Moved]:
        moved: list[Moved] = []
        updates: list[dict[str, Any]] = []
        gone: list[int] = []
        for change in changes:
            if change.event == "pass":
                assert change.alert is not None
                gone.append(change.alert.id)
                continue
            rule = rules.get(change.rule)
            after = _after(change, rule, now)
            if change.alert is None:
                values = {name: getattr(after, name) for name in _NAMES if name != "id"}
                ident = connection.execute(insert(alerts).values(**values).returning(alerts.c.id)).scalar_one()
                after = replace(after, id=ident)
            else:
                updates.append({"b_id": after.id, **{name: getattr(after, name) for name in _CHANGES}})
            if change.event != "note":
                moved.append(Moved(change.event, after, rule.threshold if rule else 0.0))
        if gone:
            connection.execute(delete(alerts).where(alerts.c.id.in_(gone), alerts.c.state == State.PENDING))
        if updates:
            values = {name: bindparam(name) for name in _CHANGES}
            connection.execute(update(alerts).where(alerts.c.id == bindparam("b_id")).values(**values), updates)
        return moved

    def _record(self, connection: Connection, move: Moved, by: str) -> None:
        alert, raised = move.alert, move.event == "raise"
        level = "info" if not raised else "error" if alert.severity is Severity.CRITICAL else "warning"
        meta = {"rule": alert.rule, "subject": alert.subject, "value": alert.value, "threshold": move.threshold}
        record(
            self.db, connection, actor=by, action=RAISED if raised else CLEARED, entity="alert", entity_id=alert.id, level=level,
            meta=meta,
        )  # fmt: skip

    # ------------------------------------------------------------------ people

    def ack(self, connection: Connection, ident: int, actor: str, reason: str = "") -> tuple[Alert, bool]:
        """Take note of an alert that is raised, audited as ALERT_ACKED. Returns it, and whether it was new: a second note changes
        nothing. Raises NotFound, or WrongState when it is not raised."""
        check_text(reason, "reason")
        found = self.get(connection, ident, lock=True)
        if found.state is not State.RAISED:
            raise WrongState("alert", str(found.state), "ack", (str(State.RAISED),))
        if found.is_acked:
            return found, False
        after = replace(
            found, acked_at=self.db.present(connection), acked_by=actor, ack_reason=reason[:LONGEST] or None
        )
        values = {"acked_at": after.acked_at, "acked_by": after.acked_by, "ack_reason": after.ack_reason}
        connection.execute(update(alerts).where(alerts.c.id == ident).values(**values))
        record(
            self.db, connection, actor=actor, action=ACKED, entity="alert", entity_id=ident,
            meta={"rule": found.rule, "subject": found.subject, "reason": reason[:LONGEST]},
        )  # fmt: skip
        return after, True

    def told_lately(self, connection: Connection, since: datetime) -> int:
        """Of how many alerts people were told since an instant."""
        found: int = connection.execute(
            select(func.count()).select_from(alerts).where(alerts.c.noticed_at > since)
        ).scalar_one()
        return found

    def prune(self, connection: Connection, before: datetime) -> int:
        """Forget alerts that were cleared before an instant. Returns how many."""
        gone: int = connection.execute(delete(alerts).where(alerts.c.cleared_at < before)).rowcount
        return gone


#: What a look may change of an alert that is there.
_CHANGES = ("state", "severity", "last_seen", "value", "detail", "raised_at", "fine_since", "cleared_at")


def _after(change: Change, rule: Rule | None, now: datetime) -> Alert:
    """The alert after a change."""
    was = change.alert
    severity = rule.severity if rule is not None else was.severity if was is not None else Severity.WARNING
    state = was.state if was is not None else None
    if change.event != "note":
        state = LIFECYCLE.target(state, change.event)
    assert state is not None
    if was is None:
        was = Alert(0, change.rule, change.subject, state, severity, change.since, now, change.value, "")
    return replace(
        was, state=state, severity=severity, last_seen=now, value=change.value, detail=change.detail[:LONGEST],
        raised_at=now if change.event == "raise" else was.raised_at, fine_since=change.fine_since,
        cleared_at=now if change.event == "clear" else was.cleared_at,
    )  # fmt: skip


def _readings(facts: Facts) -> dict[str, Any]:
    return {
        name: {s.subject: round(s.value, 6) for s in reading.samples} if reading.known else reading.problem
        for name, reading in facts.readings.items()
    }


def _alert(row: Any) -> Alert:
    values = dict(row._mapping)
    return Alert(**values | {"state": State(values["state"]), "severity": Severity(values["severity"])})
