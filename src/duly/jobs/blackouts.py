"""The blackouts as one worker sees them: which of its lanes are held, since when, and when that will change.

Claims need none of it: their own statement asks the database. This is for what has been claimed already, and for waking up at
the right moment. A job that was fetched before a blackout and has not started when it begins is given back; lanes know the
instant beforehand (``Lane.closes_at``), so that nothing starts after it, however late this thread comes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from duly.calendars.standing import Standing, any_blackout, standing
from duly.calendars.tables import queue_scopes
from duly.jobs.claim import Lane
from duly.kernel.events import Emitter
from duly.storage.database import Database

if TYPE_CHECKING:
    from duly.calendars.store import CalendarStore


class BlackoutWatch:
    """Looks at the blackouts for a worker, moves those that are over, and keeps its lanes informed."""

    def __init__(
        self, db: Database, store: Callable[[], CalendarStore], emitter: Emitter, lanes: Mapping[str, Lane]
    ) -> None:
        #: ``store``: gives what moves them on, and is asked where there is something to move.
        self.db, self.store, self.emitter, self.lanes = db, store, emitter, lanes
        #: The lanes that are held, as of a moment ago.
        self.held: frozenset[str] = frozenset()
        #: Monotonic instant of the next beginning or end.
        self.turns_at = math.inf
        self._on: dict[str, Standing] = {}
        #: What was read: how things stand, the database's instant, and the monotonic ones before and after the question.
        self._picture: tuple[Sequence[Standing], datetime | None, float, float] = ([], None, 0.0, 0.0)

    def ask(self, connection: Connection) -> None:
        """Read how things stand. Cheap: a few columns of rows that hold or will."""
        asked = time.monotonic()
        found, now = standing(self.db, connection)
        self._picture = found, now, asked, time.monotonic()

    def obey(self) -> tuple[frozenset[str], bool]:
        """Act on what was read. Returns (lanes that are held now and were not, whether any lane was freed)."""
        found, now, *_ = self._picture
        over = [s.name for s in found if now is not None and s.hold.is_over(now)]
        if over and not self.store().left.issuperset(over):
            self.db.write(lambda c: self.store().advance(c, over))
            self.db.read(self.ask)
        found, now, *_ = self._picture
        before, self.turns_at = self.held, math.inf
        if now is None:
            self.held = frozenset()
            for lane in self.lanes.values():
                lane.closes_at = lane.closed_by = math.inf
        else:
            self._look(found, now)
        self._tell(found, now)
        return self.held - before, bool(before - self.held)

    def check(self) -> None:
        """Find rows whose stretch is not what their window says: written by hand, or with other zone data."""
        wrong = self.db.read(lambda c: self.store().outdated(c) if any_blackout(c) else [])
        if wrong:
            self.db.write(lambda c: self.store().advance(c, wrong))

    def _look(self, found: Sequence[Standing], now: datetime) -> None:
        held = set()
        *_, asked, answered = self._picture
        for name, lane in self.lanes.items():
            mine = [s for s in found if s.scope in ("all", *queue_scopes(name))]
            begins = min((s.hold.since for s in mine if s.hold.since is not None and s.hold.since > now), default=None)
            if any(s.hold.is_on(now) for s in mine):
                held.add(name)
                if name not in self.held:
                    lane.closed_by = answered
                    lane.closes_at = min(lane.closes_at, asked)
            else:
                lane.closed_by = self._monotonic(begins, now, answered)
                lane.closes_at = self._monotonic(begins, now, asked)
            for s in mine:
                for at in (s.hold.since, s.hold.until):
                    if at is not None and (at > now or s.hold.is_over(now)):
                        self.turns_at = min(self.turns_at, self._monotonic(at, now, asked))
        self.held = frozenset(held)

    def _monotonic(self, at: datetime | None, now: datetime, asked: float) -> float:
        """When an instant is due by the monotonic clock. A clock that is moved by hand does not tell."""
        if at is None or self.db.clock.manual:
            return math.inf
        return asked + (at - now).total_seconds()

    def _tell(self, found: Sequence[Standing], now: datetime | None) -> None:
        scopes = {"all", *(scope for name in self.lanes for scope in queue_scopes(name))}
        on = {s.name: s for s in found if now is not None and s.scope in scopes and s.hold.is_on(now)}
        for name in on.keys() - self._on.keys():
            self.emitter.emit("blackout_began", blackout=name, scope=on[name].scope, until=on[name].hold.until)
        for name in self._on.keys() - on.keys():
            self.emitter.emit("blackout_ended", blackout=name, scope=self._on[name].scope)
        self._on = on
