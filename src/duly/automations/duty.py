"""What a worker does for the room: a pass when one is due, and what events have asked for."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import Connection

from duly.automations.controller import ACTOR, AI_SESSION, QUEUE
from duly.automations.editing import Editing
from duly.automations.executing import HEARD, MOST_QUEUED, Executing
from duly.automations.host import Host
from duly.automations.looking import OWN
from duly.kernel.errors import DatabaseUnavailable, DulyError, brief
from duly.kernel.events import Event

#: Seconds between two looks at whether somebody else has changed a definition or a session has lost its worker.
LOOK_EVERY = 2.0
#: Seconds between two looks at what retention forgets, and sessions forgotten at once.
PRUNE_EVERY, PRUNED = 60.0, 200
#: What the budget of a day is summed from is kept, however short the retention.
SHORTEST_KEPT = timedelta(days=2)


class Duty(Editing, Executing):
    """The duty of workers: they call ``keep`` every ``every`` seconds."""

    name, every = "automations", 0.5

    def __init__(self, app: Host) -> None:
        super().__init__(app)
        #: The instant of the next pass; when the last one was.
        self._look_at: datetime | None = None
        self._ticked_at: datetime | None = None
        #: When somebody looked last (monotonic).
        self._looked, self._pruned = float("-inf"), float("-inf")
        self._mark: tuple[object, ...] | None = None
        self._heard_of: list[tuple[str, Mapping[str, Any], str]] = []

    def queues(self) -> set[str]:
        return {QUEUE}

    def keep(self) -> None:
        """Called twice a second in every worker: does a pass over the slots when one is due, and runs what events have asked for."""
        self._run_what_was_heard()
        clock = self._app.engine.clock
        if clock.monotonic() - self._looked >= LOOK_EVERY:
            self._looked = clock.monotonic()
            self._look()
        now = clock.now()
        every = timedelta(seconds=self._app.settings.automation_tick)
        late = self._ticked_at is None or not self._ticked_at <= now < self._ticked_at + every
        asked = self._asked.is_set() or self.controller.moved.is_set()
        if late or asked or (self._look_at is not None and self._look_at <= now):
            self._asked.clear()
            self.controller.moved.clear()
            self._ticked_at = now
            try:
                self._look_at = self.controller.tick()
            except BaseException:
                self._asked.set()
                raise
        if clock.monotonic() - self._pruned >= PRUNE_EVERY:
            self._pruned = clock.monotonic()
            self._prune()
            self.catch_up()

    def tick(self) -> None:
        """A pass over every slot, now: the watchdog, the queue, the scheduler (R001-2)."""
        self._app.open()
        self.controller.tick()

    def _look(self) -> None:
        """Has somebody elsewhere changed a definition, or has a session lost its worker?"""

        def look(c: Connection) -> tuple[tuple[object, ...], bool, frozenset[str]]:
            store = self.controller.store
            return store.mark(c), store.any_lost(c), frozenset(self._definitions.triggers(c))

        mark, lost, self._triggers = self._db.read(look)
        if lost or mark != self._mark:
            self._mark = mark
            self._asked.set()

    def _prune(self) -> None:
        keep = self._app.settings.automation_retention
        if keep:
            self._db.write(lambda c: self.controller.records.prune(c, self._db.present(c) - max(timedelta(seconds=keep), SHORTEST_KEPT), PRUNED))  # fmt: skip

    # ------------------------------------------------------------------ events that run automations

    def _hear(self, event: Event) -> None:
        """On the thread that tells it: only note it."""
        if event.name not in self._triggers or _is_own(event):
            return
        if len(self._heard_of) < MOST_QUEUED:
            self._heard_of.append((event.name, event.facts, secrets.token_hex(8)))
        elif event.name != "automation_not_run":
            self._app.events.emit(
                "automation_not_run", "warning", event=event.name, error="too many events wait to be looked at"
            )

    def _run_what_was_heard(self) -> None:
        while self._heard_of:
            name, facts, mark = self._heard_of.pop(0)
            try:
                told = orjson.loads(orjson.dumps(dict(facts), default=str, option=orjson.OPT_NON_STR_KEYS))
                self._fire_everywhere(name, told, mark)
            except DatabaseUnavailable:
                self._heard_of.insert(0, (name, facts, mark))
                raise
            except (DulyError, TypeError, ValueError) as error:
                self._app.events.emit("automation_not_run", "warning", event=name, error=brief(error))

    def _fire_everywhere(self, name: str, facts: Mapping[str, Any], mark: str) -> None:
        """What is told of a job is its tenant's; what belongs to no tenant runs automations of all. ``mark``: once per event and automation."""
        whose: str | None = facts.get("tenant")
        job = facts.get("job")
        if whose is None and isinstance(job, int):
            whose = self._db.read(lambda c: self._app.engine.reader.get(c, job)).tenant
        tenants = {a.tenant for a in self._db.read(lambda c: self._definitions.triggered(c, name, whose))}
        for tenant in sorted(tenants):
            cause = job if isinstance(job, int) else None
            self._fire(name, facts, f"{HEARD}{mark}", tenant, None, ACTOR, cause=cause, is_heard=True)


def _is_own(event: Event) -> bool:
    """Is it told of this room, or of the jobs that run sessions? Such an event runs nothing, so that nothing runs itself. Nor does one that is told
    of many jobs at once: they may be of many tenants."""
    own = event.name.startswith(OWN) or event.facts.get("task") == AI_SESSION
    return own or isinstance(event.facts.get("jobs"), list | tuple)
