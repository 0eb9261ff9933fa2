"""What every part of the door (``Automations``) stands on: the application, its controller, and how its acts are written and read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Connection

from duly.automations.automation import Automation, Definition
from duly.automations.controller import AI_SESSION, Pass, SessionController
from duly.automations.definitions import DefinitionStore
from duly.automations.host import Host
from duly.automations.session import Session, SessionEndReason, SessionType, Status, resume_reason
from duly.jobs.enqueue import NewJob
from duly.jobs.run import uncaused
from duly.kernel.errors import NotFound
from duly.kernel.payload import check_id, check_text
from duly.storage.database import Database

R = TypeVar("R")


class Ground:
    """``_asked``: a pass is wanted now. ``_triggers``: the events that some automation is run by, as last looked at."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._controller: SessionController | None = None
        self._asked, self._triggers = threading.Event(), frozenset[str]()
        self._asked.set()
        #: What code declares (``ensure``), by (tenant, name), and those of it that newer code has replaced.
        self._declared: dict[tuple[str, str], Definition] = {}
        self.behind = set[tuple[str, str]]()

    def _prepare(self, session: Session, activation: str) -> NewJob:
        given = {"session": session.id, "activation": activation}
        if session.status is Status.INTERRUPTED:
            given["reason"] = resume_reason(session.end_reason).value
        new = self._app.prepare(AI_SESSION, given, tenant=session.tenant, max_attempts=1)
        # whoever makes a pass is no cause of the session that gets the slot by it: what has caused that stands in its row
        return replace(new, meta=uncaused(new.meta))

    @property
    def controller(self) -> SessionController:
        """The one who gives and takes slots, on the database that the application has at this moment."""
        found, engine = self._controller, self._app.engine
        if found is None or found.engine is not engine:
            found = self._controller = SessionController(engine, self._prepare)
        return found

    @property
    def _db(self) -> Database:
        return self._app.engine.db

    @property
    def _definitions(self) -> DefinitionStore:
        return self.controller.definitions

    def _tenant(self, tenant: str | None) -> str:
        return check_text(tenant, "tenant") if tenant else self._app.settings.tenant

    def _find(self, c: Connection, automation: int | str, tenant: str | None, lock: bool = False) -> Automation:
        if tenant is not None:
            check_text(tenant, "tenant")
        if isinstance(automation, str):
            check_text(automation, "automation")
            ident = self._definitions.named(c, automation, self._tenant(tenant))
            if ident is None:
                raise NotFound("automation", repr(automation))
        else:
            check_id(automation, "automation")
            ident = automation
        found: Automation | None = self._definitions.get(c, ident, tenant, lock)
        if found is None:
            raise NotFound("automation", automation)
        return found

    def _locked(
        self, c: Connection, automation: int | str, tenant: str | None, slots: Callable[[Automation], Iterable[str]] = lambda found: (found.definition.slot,)
    ) -> Automation:  # fmt: skip
        """An automation under the locks of its slot and its row. ``slots``: all that are needed."""
        ident = self._find(c, automation, tenant).id
        self.controller.store.hold_slots(c, lambda: slots(self._find(c, ident, tenant)))
        return self._find(c, ident, tenant, lock=True)

    def _known(self, c: Connection, ident: int, tenant: str | None = None) -> Automation:
        return self._find(c, ident, tenant)

    def _session(self, c: Connection, ident: int, tenant: str | None = None) -> Session:
        found = self.controller.store.session(c, ident, tenant)
        if found is None or found.type is SessionType.SEED:
            raise NotFound("session", ident)
        return found

    def _stop(self, c: Connection, found: Session, reason: str, done: Pass, actor: str) -> None:
        if found.is_active:
            self.controller.close_active_session(c, found, SessionEndReason.CANCELLED, reason, done, actor)
        elif found.status is not Status.ENDED:
            self.controller.end_waiting(c, found, reason, done, actor)

    def _changed(self, act: Callable[[Connection], Automation], done: Pass | None = None) -> Automation:
        """Change a definition, then look what is due (R001-14). ``done``: what ``act`` notes to be told."""
        self._app.open()

        def anew(c: Connection) -> Automation:  # a transaction that is tried again tells nothing twice
            if done is not None:
                done.events.clear()
            return act(c)

        found = self._db.write(anew)
        if done is not None:
            self.controller.announce(done)
        self._triggers = frozenset(self._db.read(self._definitions.triggers))
        self.controller.tick()
        self._asked.set()
        return found

    def _act(self, act: Callable[[Connection], tuple[R, Pass]]) -> R:
        self._app.open()
        answer, done = self._db.write(act)
        self._after(done)
        return answer

    def _after(self, done: Pass) -> None:
        self.controller.announce(done)
        self._asked.set()

    def _read(self, fn: Callable[[Connection], R]) -> R:
        self._app.open()
        return self._db.read(fn)
