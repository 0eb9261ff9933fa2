"""Looking at sessions, slots, and why an automation does not start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias, TypeVar

from sqlalchemy import Connection

from duly.automations.automation import Automation
from duly.automations.controller import QUEUE
from duly.automations.equipment import Equipment
from duly.automations.plan import AutomationFacts, Skipped, queue
from duly.automations.providers.base import TellsMissing
from duly.automations.records import Call, Round, Said
from duly.automations.session import Session, SessionType, Status
from duly.automations.store import Busy, Slot
from duly.automations.why import WhyFacts, next_planned, why
from duly.jobs.ask import WORKER_GONE
from duly.jobs.why import Check
from duly.kernel.errors import InvalidArgument
from duly.kernel.gate import Hold, gate
from duly.kernel.payload import check_id

R = TypeVar("R")
Checks: TypeAlias = list[Check]
Notes: TypeAlias = list[str]
#: How the events begin that this room tells of itself. They run nothing, so that nothing runs itself.
OWN = ("session_", "automation_")


class Looking(Equipment):
    """Nothing here changes anything."""

    def session(self, session_id: int, tenant: str | None = None) -> Session:
        """A session. Raises NotFound."""
        check_id(session_id, "session")
        return self._read(lambda c: self._session(c, session_id, tenant))

    def last_session(self, automation: Automation) -> Session | None:
        """The last execution of an automation, where it is still kept."""
        ident = automation.last_execution_id
        return None if ident is None else self._read(lambda c: self.controller.store.session(c, ident))

    def sessions(
        self, limit: int = 50, below: int | None = None, *, automation: int | str | None = None, tenant: str | None = None,
        type: SessionType | str | None = None, status: Sequence[str] = (), slot: str | None = None, end_reason: str | None = None,
    ) -> Sequence[Session]:  # fmt: skip
        """Sessions, the newest first; ``below`` an id goes on from there."""

        def ask(c: Connection) -> Sequence[Session]:
            of = None if automation is None else self._find(c, automation, tenant).id
            return self.controller.store.find(
                c, limit, below, tenant=tenant, automation=of, type=None if type is None else SessionType(type).value, status=status, slot=slot,
                end_reason=end_reason,
            )  # fmt: skip

        return self._read(ask)

    def transcript(self, session_id: int, after: int = 0, tenant: str | None = None) -> Sequence[Said]:
        """What was said in a session behind a position, in order. Raises NotFound."""
        return self._of(session_id, tenant, lambda c: self.controller.records.said(c, session_id, after))

    def calls(self, session_id: int, tenant: str | None = None) -> Sequence[Call]:
        """The calls of tools of a session, in order."""
        return self._of(session_id, tenant, lambda c: self.controller.records.calls(c, session_id))

    def rounds(self, session_id: int, tenant: str | None = None) -> Sequence[Round]:
        """The questions of a session, in order."""
        return self._of(session_id, tenant, lambda c: self.controller.records.rounds(c, session_id))

    def next_runs(self, found: Sequence[Automation]) -> dict[int, datetime | None]:
        """The next planned instants of many automations, by id."""

        def ask(c: Connection) -> dict[int, datetime | None]:
            now = self._db.present(c)
            known = {
                facts.id: facts
                for slot in {a.definition.slot for a in found}
                for facts in self.controller.store.facts(c, slot)[0]
            }
            return {a.id: next_planned(a, known.get(a.id), now) for a in found}

        return self._read(ask)

    def next_run(self, automation: int | str, tenant: str | None = None) -> datetime | None:
        """The next planned instant of an automation, aware, in UTC; in the past where it is due. None: none, or it is off."""

        def ask(c: Connection) -> datetime | None:
            found = self._find(c, automation, tenant)
            return next_planned(found, self._facts(c, found)[0], self._db.present(c))

        return self._read(ask)

    def why(self, automation: int | str, tenant: str | None = None) -> Checks:
        """Why an automation does not start, or when it will: every condition, met or not, each with its remedy. Raises NotFound."""

        def ask(c: Connection) -> WhyFacts:
            found, now = self._find(c, automation, tenant), self._db.present(c)
            mine, all_of_slot = self._facts(c, found)
            store, name = self.controller.store, found.definition.slot
            slot = next((one for one in store.slots(c) if one.name == name), None)
            busy = None if slot is None else store.busy_with(c, slot, now)
            holder = None if slot is None or slot.session_id is None else store.session(c, slot.session_id)
            unended = set(store.unended(c, found.id))
            waiting = [one.session_id for one in queue(store.waiting(c, name))]
            own = [ident for ident in waiting if ident in unended]
            interrupted = [
                s.id for s in store.find(c, 10, None, automation=found.id, status=[Status.INTERRUPTED.value])
            ]
            running = None if holder is None else holder.automation_id
            due = [
                at.automation_id
                for at in self.controller.scheduler.in_order(all_of_slot, now)
                if at.automation_id != running
            ]
            workers = [
                worker["name"]
                for worker in self._app.engine.reader.live_workers(c, WORKER_GONE)
                if QUEUE in worker["queues"]
            ]
            queues = self._app.engine.queues
            held = gate(queues.facts(c, queues.get(c, QUEUE)))
            return WhyFacts(
                found, now, mine, holder if holder is not None and holder.is_active else None, self.controller.watch, _before(found.id, own, waiting, due), own,
                interrupted, self.provider_problem(found), held if isinstance(held, Hold) else None, workers, busy,
            )  # fmt: skip

        return why(self._read(ask))

    def _facts(self, c: Connection, found: Automation) -> tuple[AutomationFacts | None, Sequence[AutomationFacts]]:
        """(what the scheduler knows of an automation, what it knows of all of its slot)."""
        all_of_slot, _ = self.controller.store.facts(c, found.definition.slot)
        return next((one for one in all_of_slot if one.id == found.id), None), all_of_slot

    def provider_problem(self, found: Automation) -> str:
        """Why the provider of an automation could not be asked here: it is not known, or not set up. Empty where nothing is known against it."""
        try:
            provider = self.provider(found.definition.provider)
        except InvalidArgument as error:
            return str(error)
        return provider.missing(found.definition.model) if isinstance(provider, TellsMissing) else ""

    def notes(self, found: Automation) -> Notes:
        """What people should know of a definition, a sentence each. None of it is an error: it may be otherwise where it runs, or later."""
        problem, d = self.provider_problem(found), found.definition
        own = [
            f"{name} is told of this room, and runs nothing by itself; `fire` of that name does"
            for name in d.triggers
            if name.startswith(OWN)
        ]
        return [*self.tools.problems(d.tools), *own, *([problem] if problem else self._price_problem(found))]

    def _price_problem(self, found: Automation) -> list[str]:
        """Why its bound in cents cannot be held here; empty where it can."""
        d = found.definition
        try:
            known = not d.limits.bounds_cents or self.cost(self.provider(d.provider), d.model) is not None
        except InvalidArgument as error:
            return [str(error)]
        return (
            []
            if known
            else ["the price of its model is not known here, so its bound in cents ends each run: set ai_prices"]
        )

    def slots(self, tenant: str | None = None) -> Sequence[Slot]:
        """Every slot: who has it, and since when. ``tenant``: those that it has something to do with, and whose holder is another's is not told."""

        def ask(c: Connection) -> Sequence[Slot]:
            store, now = self.controller.store, self._db.present(c)
            return [replace(one, busy=_whose(store.busy_with(c, one, now), c)) for one in store.slots(c, tenant)]

        def _whose(busy: Busy | None, c: Connection) -> Busy | None:
            if busy is None or tenant is None or busy.session_id is None:
                return busy
            return busy if self.controller.store.session(c, busy.session_id, tenant) else Busy("")

        return self._read(ask)

    def skips(self, automation: int | str, limit: int = 10, tenant: str | None = None) -> Sequence[Skipped]:
        """The planned instants of an automation that were left out, by the stretch, the latest first."""
        return self._read(lambda c: self.controller.store.skips(c, self._find(c, automation, tenant).id, limit))

    def _of(self, session_id: int, tenant: str | None, fn: Callable[[Connection], R]) -> R:
        self.session(session_id, tenant)
        return self._db.read(fn)


def _before(ident: int, own: Sequence[int], waiting: Sequence[int], due: Sequence[int]) -> int:
    """How many come before an automation. ``waiting``: the queue, ``own`` its sessions in it; behind it come those that are ``due``."""
    if own:
        return waiting.index(own[0])
    return len(waiting) + (due.index(ident) if ident in due else len(due))
