"""What the tests of the alerts share: a world that is written as it is wanted, and its alerts judged at instants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert, select, update

from duly import Duly
from duly.audit.tables import audit_log
from duly.jobs.tables import jobs, jobs_done, workers
from duly.kernel.events import Event
from duly.monitoring.alerts.alert import Alert, State
from duly.testing import ManualClock

NOON = datetime(2026, 7, 27, 12, tzinfo=UTC)


@dataclass
class World:
    """An application with a clock that is moved by hand, and rows written as if work had been done."""

    app: Duly
    clock: ManualClock
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.app.open()
        self.app.listen(self.events.append)

    # ------------------------------------------------------------------ the world

    def ago(self, **span: float) -> datetime:
        return self.clock.now() - timedelta(**span)

    def ended(self, status: str, *at: datetime, queue: str = "default") -> None:
        """Jobs that ended at instants."""
        with_ids = self.app.db.read(lambda c: c.execute(select(jobs_done.c.id)).scalars().all())
        first = max(with_ids, default=1_000_000) + 1
        rows = [
            {"id": first + n, "tenant": "default", "queue": queue, "task": "X", "status": status, "run_at": one, "input": {}, "max_attempts": 4,
             "created_at": one, "started_at": one, "finished_at": one}
            for n, one in enumerate(at)
        ]  # fmt: skip
        self.app.db.write(lambda c: c.execute(insert(jobs_done), rows))

    def worker(self, name: str = "w1", *queues: str, state: str = "running", running: int = 0, **ago: float) -> None:
        """A worker that was heard of so long ago (now)."""
        seen = self.ago(**ago) if ago else self.clock.now()
        values: dict[str, Any] = {
            "name": name, "host": "box", "pid": 1, "version": "0", "state": state, "queues": dict.fromkeys(queues or ("default",), 1),
            "tasks": ["X"], "running": running, "started_at": seen, "seen_at": seen,
        }  # fmt: skip

        def say(c: Any) -> None:
            again = {k: v for k, v in values.items() if k != "started_at"}
            if not c.execute(update(workers).where(workers.c.name == name).values(**again)).rowcount:
                c.execute(insert(workers).values(**values))

        self.app.db.write(say)

    def change_job(self, ident: int, **values: Any) -> None:
        self.app.db.write(lambda c: c.execute(update(jobs).where(jobs.c.id == ident).values(**values)))

    # ------------------------------------------------------------------ judging

    def readings(self, rule: str) -> dict[str, float]:
        """What a rule is judged by now: value by subject."""
        reading = self.app.alerts.look().readings[rule]
        assert reading.known, reading.problem
        return {s.subject: s.value for s in reading.samples}

    def judge(self, by: str = "judge") -> list[tuple[str, str, str]]:
        """Judge now: (move, rule, subject) of each."""
        moved = self.app.alerts.judge(by)
        assert moved is not None, "it was somebody else's turn"
        return [(m.event, m.alert.rule, m.alert.subject) for m in moved]

    def later(self, **span: float) -> list[tuple[str, str, str]]:
        """Move the clock and judge."""
        self.clock.advance(timedelta(**span))
        return self.judge()

    def raised(self) -> set[tuple[str, str]]:
        return {(a.rule, a.subject) for a in self.app.alerts.standing().raised}

    def open(self) -> dict[tuple[str, str], Alert]:
        return {(a.rule, a.subject): a for a in self.app.alerts.standing().alerts}

    def only(self, rule: str) -> Alert:
        """The one open alert of a rule."""
        [found] = [a for a in self.app.alerts.standing().alerts if a.rule == rule]
        return found

    def history(self, rule: str) -> list[State]:
        return [a.state for a in self.app.alerts.find(rule=rule)]

    def audit(self) -> list[tuple[str, str, str, Any]]:
        """(actor, action, level, meta) of the rows about alerts, oldest first."""
        query = select(audit_log).where(audit_log.c.entity == "alert").order_by(audit_log.c.id)
        rows = self.app.db.read(lambda c: c.execute(query).all())
        return [(r.actor, r.action, r.level, r.meta) for r in rows]

    def heard(self, name: str) -> list[Event]:
        return [e for e in self.events if e.name == name]


MakeWorld = Callable[..., World]
