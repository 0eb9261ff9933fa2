"""``Automations(app)``: what programs and people do with automations, sessions and the slot.

Making one defines the task that runs sessions. Nothing here asks an AI: workers of the queue ``automations`` do (``executor.py``). Whatever
changes what could be due is followed by a pass over the slots (R001-14). Source: R001, T001.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypeVar, overload

import orjson
from sqlalchemy import Connection

from duly.automations.automation import Automation, Definition, read_definition
from duly.automations.controller import ACTOR, AI_SESSION, QUEUE, REQUESTED, Pass, SessionController
from duly.automations.definitions import DefinitionStore
from duly.automations.executor import Running, run_session
from duly.automations.host import Host
from duly.automations.plan import AutomationFacts, AutomationScheduler, Nothing
from duly.automations.protocol import event_message
from duly.automations.providers.base import Message, Provider, Role
from duly.automations.records import Call, Round, Said
from duly.automations.session import (
    ExecutionTrigger,
    Session,
    SessionControl,
    SessionEndReason,
    SessionType,
    Status,
    resume_reason,
)
from duly.automations.store import Slot
from duly.automations.tools import Toolbox
from duly.automations.why import WhyFacts, next_planned, why
from duly.jobs.ask import WORKER_GONE
from duly.jobs.codec import encode_plain
from duly.jobs.enqueue import NewJob
from duly.jobs.run import INJECT, Context
from duly.jobs.session import borrowed
from duly.jobs.why import Check
from duly.kernel.errors import DatabaseUnavailable, DulyError, InvalidArgument, NotFound, WrongState, brief
from duly.kernel.events import Event
from duly.kernel.gate import Hold, gate
from duly.kernel.payload import check_id, check_name, check_text
from duly.kernel.recurrence.reading import read_duration
from duly.storage.database import Database

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
# ``list`` is a method of the door
Many: TypeAlias = list[Automation]
Ids: TypeAlias = list[int]
Checks: TypeAlias = list[Check]

CREATED, CHANGED, REMOVED = "AUTOMATION_CREATED", "AUTOMATION_CHANGED", "AUTOMATION_REMOVED"
ENABLED, DISABLED, UNPAUSED = "AUTOMATION_ENABLED", "AUTOMATION_DISABLED", "SESSION_UNPAUSED"
#: Executions of one automation that may wait for the slot.
MOST_QUEUED = 1_000
#: Seconds between two looks at whether somebody else has changed a definition or a session has lost its worker.
LOOK_EVERY = 2.0
#: Seconds for which a queued chat is wanted after its person was heard of last.
WANTED = 30.0
#: Seconds between two looks at what retention forgets, and sessions forgotten at once.
PRUNE_EVERY, PRUNED = 60.0, 200
#: What the budget of a day is summed from is kept, however short the retention.
SHORTEST_KEPT = timedelta(days=2)
#: How the events begin that this room tells of itself.
OWN = ("session_", "automation_")

#: The room of each application. The application holds it; held from here, both would live for ever.
_made: weakref.WeakKeyDictionary[Any, weakref.ref[Automations]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Requested:
    """The answer to who asks for an execution: its session, whether it has the slot (None: it has ended), and whether it was made now (or was,
    under its key)."""

    session: Session
    control: SessionControl | None
    created: bool = True


class Automations:
    """The automations of an application. An application has one: ``Automations(app)`` makes it, and later gives the same one."""

    #: As workers call its duty, and every how many seconds it is done.
    name, every = "automations", 0.5

    def __new__(cls, app: Host) -> Automations:
        return _known(app) or super().__new__(cls)

    def __init__(self, app: Host) -> None:
        if _known(app) is self:
            return
        self._app = app
        self._controller: SessionController | None = None
        self.tools = Toolbox(app)
        self._providers: dict[str, Provider] = {}
        #: A pass is wanted now; the instant of the next one; when somebody looked last (monotonic).
        self._asked, self._look_at, self._ticked_at = threading.Event(), None, None
        self._looked, self._pruned = float("-inf"), float("-inf")
        self._mark: tuple[object, ...] | None = None
        self._triggers: frozenset[str] = frozenset()
        self._heard_of: list[tuple[str, Mapping[str, Any], str]] = []
        self._asked.set()

        async def ai_session(session: int, activation: str, reason: str = "", context: Context = INJECT) -> dict[str, Any]:  # fmt: skip
            running = Running(app, self.controller, self.tools, self.provider)
            return await run_session(running, context, session, activation, reason)

        app.task(AI_SESSION, queue=QUEUE, max_attempts=1)(ai_session)
        app.join(self)
        app.events.listen(self._hear)
        _made[app] = weakref.ref(self)

    _look_at: datetime | None
    _ticked_at: datetime | None

    @classmethod
    def of(cls, app: Host) -> Automations:
        """The automations of an application, as ``Automations(app)``."""
        return cls(app)

    def _prepare(self, session: Session, activation: str) -> NewJob:
        given = {"session": session.id, "activation": activation}
        if session.status is Status.INTERRUPTED:
            given["reason"] = resume_reason(session.end_reason).value
        return self._app.prepare(AI_SESSION, given, tenant=session.tenant, max_attempts=1)

    # ------------------------------------------------------------------ providers and tools

    @overload
    def tool(self, fn: F, /) -> F: ...

    @overload
    def tool(self, /, **options: Any) -> Callable[[F], F]: ...

    def tool(self, fn: Any = None, /, **options: Any) -> Any:
        """Let sessions call a function: ``@automations.tool def look_up(order: int) -> dict: …``. See ``Toolbox.add``."""
        if fn is not None:
            self.tools.add(fn)
            return fn

        def register(inner: F) -> F:
            self.tools.add(inner, **options)
            return inner

        return register

    def use(self, name: str, provider: Provider) -> Provider:
        """Name a provider made in code; automations ask it by that name. It goes before one found by entry points."""
        check_name(name, "provider")
        self._providers[name] = provider
        return provider

    def provider(self, name: str | None = None) -> Provider:
        """A provider by name; None: the one of the setting ``ai_provider``. Raises InvalidArgument."""
        wanted = name or self._app.settings.ai_provider
        found = self._providers.get(wanted)
        if found is None:
            from duly.automations.providers import registry

            found = self._providers[wanted] = registry.named(wanted, self._app.settings)
        return found

    # ------------------------------------------------------------------ definitions

    def create(
        self, definition: Definition | Mapping[str, Any], *, enabled: bool = True, tenant: str | None = None, actor: str = "code"
    ) -> Automation:  # fmt: skip
        """Make an automation. Nothing that was planned before this moment runs (T001-i).

        Raises InvalidArgument naming the field, also for a name that is taken.
        """
        d = definition if isinstance(definition, Definition) else read_definition(definition)
        where = self._tenant(tenant)

        def act(c: Connection) -> Automation:
            self.controller.store.hold_slot(c, d.slot)
            if self._definitions.named(c, d.name, where) is not None:
                raise InvalidArgument("name", f"is {d.name!r}, and there is an automation of that name.", "Choose another, or change that one.")  # fmt: skip
            ident = self._definitions.add(c, where, d, enabled, self._db.present(c), actor)
            self._definitions.audit(c, ident, where, actor, CREATED, name=d.name)
            return self._known(c, ident, where)

        return self._changed(act)

    def ensure(
        self, definition: Definition | Mapping[str, Any], *, tenant: str | None = None, actor: str = "code"
    ) -> Automation:
        """Make the automation of this name, or change it to this definition where it differs; it stays as enabled as it is."""
        d = definition if isinstance(definition, Definition) else read_definition(definition)
        where = self._tenant(tenant)
        self._app.open()
        known = self._db.read(lambda c: self._definitions.named(c, d.name, where))
        if known is None:
            try:
                return self.create(d, tenant=where, actor=actor)
            except InvalidArgument:  # somebody made it at this moment
                known = self._db.read(lambda c: self._definitions.named(c, d.name, where))
                if known is None:
                    raise
        found = self.get(known, where)
        return found if found.definition == d else self.update(known, d, tenant=where, actor=actor)

    def update(
        self, automation: int | str, changes: Definition | Mapping[str, Any], *, version: int | None = None, tenant: str | None = None,
        actor: str = "code",
    ) -> Automation:  # fmt: skip
        """Change an automation. Only a change of its schedule moves what is wanted of it to from now on (T001-i, case B076).

        ``version``: the one that was looked at; where it is another by now, WrongState. Raises NotFound, InvalidArgument.
        """

        def act(c: Connection) -> Automation:
            known = self._locked(c, automation, tenant)
            if version is not None and version != known.version:
                raise WrongState(
                    f"automation {known.id}", f"at version {known.version}", f"be changed from version {version}"
                )
            base = known.definition
            d = changes if isinstance(changes, Definition) else read_definition(changes, base)
            if d.slot != known.definition.slot:
                self.controller.store.hold_slot(c, d.slot)
                if self.controller.store.unended(c, known.id):
                    raise WrongState(f"automation {known.name}", "in its slot, or about to be", "change its slot")
            other = self._definitions.named(c, d.name, known.tenant)
            if other not in (None, known.id):
                raise InvalidArgument("name", f"is {d.name!r}, and there is another automation of that name.")
            now = self._db.present(c)
            moved = d.schedule != known.definition.schedule
            self._definitions.change(c, known, d, now, actor, reference_at=now if moved else None)
            fields = [name for name in Definition.__slots__ if getattr(d, name) != getattr(base, name)]
            self._definitions.audit(c, known.id, known.tenant, actor, CHANGED, fields=fields)
            return self._known(c, known.id)

        return self._changed(act)

    def enable(
        self, automation: int | str, *, tenant: str | None = None, actor: str = "code", reason: str = ""
    ) -> Automation:
        """Switch an automation on: what was planned while it was off does not run; what was interrupted goes on (T001-i, T001-s)."""
        return self._set_enabled(automation, True, tenant, actor, reason)

    def disable(
        self, automation: int | str, *, tenant: str | None = None, actor: str = "code", reason: str = ""
    ) -> Automation:
        """Switch an automation off: nothing of it starts or goes on until it is on again. A session that has the slot keeps it."""
        return self._set_enabled(automation, False, tenant, actor, reason)

    def _set_enabled(
        self, automation: int | str, enabled: bool, tenant: str | None, actor: str, reason: str
    ) -> Automation:
        check_text(reason, "reason")

        def act(c: Connection) -> Automation:
            known = self._locked(c, automation, tenant)
            if known.is_enabled != enabled:
                now = self._db.present(c)
                self._definitions.change(
                    c, known, known.definition, now, actor, enabled=enabled, reference_at=now if enabled else None
                )
                self._definitions.audit(
                    c, known.id, known.tenant, actor, ENABLED if enabled else DISABLED, reason=reason
                )
            return self._known(c, known.id)

        return self._changed(act)

    def delete(
        self, automation: int | str, *, version: int | None = None, tenant: str | None = None, actor: str = "code", reason: str = ""
    ) -> Automation:  # fmt: skip
        """Remove an automation; its sessions that have not ended end CANCELLED (T001-s). Its executions stay to be looked at.

        ``version`` as for ``update``. Raises NotFound, WrongState.
        """
        check_text(reason, "reason")

        def act(c: Connection) -> tuple[Automation, Pass]:
            done = Pass()
            known = self._locked(c, automation, tenant)
            if version is not None and version != known.version:
                raise WrongState(
                    f"automation {known.id}", f"at version {known.version}", f"be removed from version {version}"
                )
            self._definitions.remove(c, known.id, self._db.present(c), actor)
            for ident in self.controller.store.unended(c, known.id):
                self._stop(c, self.controller.lock(c, ident), "its automation was removed", done, actor)
            self._definitions.audit(c, known.id, known.tenant, actor, REMOVED, name=known.name, reason=reason)
            return known, done

        self._app.open()
        known, done = self._db.write(act)
        self._after(done)
        return known

    def get(self, automation: int | str, tenant: str | None = None) -> Automation:
        """An automation by id or name. Raises NotFound."""
        return self._read(lambda c: self._find(c, automation, tenant))

    def list(
        self, *, tenant: str | None = None, enabled: bool | None = None, slot: str | None = None, below: int | None = None, limit: int = 100
    ) -> Many:  # fmt: skip
        """Automations, the newest first; ``below`` an id goes on from there."""
        return self._read(
            lambda c: self._definitions.find(c, tenant=tenant, enabled=enabled, slot=slot, below=below, limit=limit)
        )

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

    # ------------------------------------------------------------------ executions

    def run(
        self, automation: int | str, *, key: str | None = None, tenant: str | None = None, actor: str = "code", reason: str = ""
    ) -> Requested:  # fmt: skip
        """Execute an automation now (``execute_manual``, R001-15): it has the slot at once, or waits for it in the queue.

        Also one that is off. ``key``: once per key and automation; the same again gives the same session, ``created`` False. It eats no
        planned occurrence (T001-j). Raises NotFound, WrongState where too many wait.
        """
        check_text(reason, "reason")

        def act(c: Connection) -> tuple[Requested, Pass]:
            done = Pass()
            known = self._locked(c, automation, tenant)
            return self._request(c, known, ExecutionTrigger.MANUAL, (), key, done, actor, reason=reason), done

        return self._act(act)

    execute_manual = run

    def fire(
        self, event: str, payload: Mapping[str, Any] | None = None, *, key: str | None = None, tenant: str | None = None, session: Any = None,
        actor: str = "code",
    ) -> tuple[Requested, ...]:  # fmt: skip
        """Say that something has happened: every enabled automation of the tenant that names ``event`` among its triggers is executed.

        ``payload`` (JSON) is told to the model as data. ``key``: once per key and automation. ``session``: in that transaction, so that nothing is
        executed for what is rolled back; it has the slot at the next pass. Raises InvalidArgument.
        """
        check_name(event, "event")
        text = encode_plain(dict(payload or {}), "payload", self._app.settings.max_payload)
        where = self._tenant(tenant)

        def act(c: Connection, passes: bool = True) -> tuple[tuple[Requested, ...], Pass]:
            done, made = Pass(), []
            for each in self._definitions.triggered(c, event, where):
                known = self._locked(c, each.id, where)
                if not known.is_enabled or event not in known.definition.triggers:
                    continue
                said = event_message(event, text)
                try:
                    one = self._request(c, known, ExecutionTrigger.EVENT, (said,), key, done, actor, passes, event)
                except WrongState as full:  # nothing was written of it; the others are run all the same
                    done.tell("automation_not_run", "warning", event=event, automation=known.id, error=str(full))
                else:
                    made.append(one)
            return tuple(made), done

        if session is None:
            return self._act(act)
        made, _ = act(borrowed(session, asynchronous=False), passes=False)
        return made

    def _request(
        self, c: Connection, known: Automation, trigger: ExecutionTrigger, messages: Sequence[Message], key: str | None, done: Pass, actor: str,
        passes: bool = True, event: str | None = None, reason: str = "",
    ) -> Requested:  # fmt: skip
        store = self.controller.store
        store.hold_slot(c, known.definition.slot)
        if key is not None:
            check_text(key, "key")
            there = store.keyed(c, known.id, key)
            if there is not None:
                found = self._session(c, there)
                waits = None if found.status is Status.ENDED else SessionControl.QUEUED
                return Requested(found, SessionControl.ACTIVATED if found.is_active else waits, created=False)
        if store.count_waiting(c, known.id) >= MOST_QUEUED:
            raise WrongState(f"automation {known.name}", f"wanted {MOST_QUEUED} times already", "be run again")
        now = self._db.present(c)
        ident = store.add(
            c, Status.QUEUED, tenant=known.tenant, slot=known.definition.slot, type=SessionType.AUTOMATION, now=now, title=known.name, trigger=trigger,
            automation_id=known.id, scheduled_at=now, key=key,
        )  # fmt: skip
        self.controller.records.copy_seed(c, known.seed_session_id, ident, now)
        if messages:
            self.controller.records.say(c, ident, messages, now)
        made = self._session(c, ident)
        store.audit(c, made, actor, REQUESTED, trigger=trigger, automation=known.id, event=event, reason=reason)
        if not passes:
            return Requested(made, SessionControl.QUEUED)
        control = self.controller.request_session_control(c, ident, done)
        return Requested(self._session(c, ident), control)

    # ------------------------------------------------------------------ chats

    def chat(
        self, title: str = "", *, slot: str = "default", tenant: str | None = None, provider: str | None = None, model: str | None = None,
        tools: Sequence[str] = (), actor: str = "code",
    ) -> Requested:  # fmt: skip
        """Begin a chat: it has the slot at once, or waits for it (R001-12); nobody's automation is stopped for it.

        One that waits is kept wanted by ``wanted`` (or ``say``); where nobody has for ``WANTED`` seconds it is given up (T001-y).
        """
        check_name(slot, "slot")
        if title:
            check_text(title, "title")
        for place, name in enumerate(tools):
            check_name(name, f"tools[{place}]")
        if provider is not None:
            self.provider(provider)
        options = {"provider": provider, "model": model, "tools": [*tools]}
        where = self._tenant(tenant)

        def act(c: Connection) -> tuple[Requested, Pass]:
            done = Pass()
            self.controller.store.hold_slot(c, slot)
            now = self._db.present(c)
            ident = self.controller.store.add(
                c, Status.QUEUED, tenant=where, slot=slot, type=SessionType.CHAT, now=now, title=title, options=options,
                wanted_until=now + timedelta(seconds=WANTED),
            )  # fmt: skip
            self.controller.store.audit(c, self._session(c, ident), actor, REQUESTED)
            control = self.controller.request_session_control(c, ident, done)
            return Requested(self._session(c, ident), control), done

        return self._act(act)

    def say(self, session_id: int, text: str, *, tenant: str | None = None) -> Session:
        """Say something in a chat. It is answered as soon as the chat has the slot. Raises NotFound, WrongState, InvalidArgument."""
        check_text(text, "text")
        if not text.strip():
            raise InvalidArgument("text", "is empty.", "Say something.")

        def act(c: Connection) -> tuple[Session, Pass]:
            done = Pass()
            found = self._chat(c, session_id, tenant, "say")
            now = self._db.present(c)
            self.controller.records.say(c, found.id, [Message(Role.USER, text)], now)
            if found.is_active:
                assert found.activation is not None
                self.controller.store.touch(c, found.id, found.activation, last_activity_at=now)
                self.controller.ensure_run(c, found, done)
            else:
                self.controller.store.want(c, found.id, now + timedelta(seconds=WANTED))
            return self._session(c, found.id), done

        return self._act(act)

    def wanted(self, session_id: int, *, tenant: str | None = None) -> Session:
        """Somebody still waits for a queued chat. Returns it as it stands; one that has the slot is left as it is."""

        def act(c: Connection) -> Session:
            found = self._session(c, session_id, tenant)
            if found.status is Status.QUEUED:
                self.controller.store.want(c, found.id, self._db.present(c) + timedelta(seconds=WANTED))
            return found

        self._app.open()
        return self._db.write(act)

    def close(self, session_id: int, *, tenant: str | None = None, actor: str = "code") -> Session:
        """End a chat: COMPLETED, or CANCELLED where it never had the slot."""

        def act(c: Connection) -> tuple[Session, Pass]:
            done = Pass()
            found = self._chat(c, session_id, tenant, "close")
            if found.is_active:
                self.controller.close_active_session(c, found, SessionEndReason.COMPLETED, "closed", done, actor)
            else:
                self.controller.end_waiting(c, found, "closed before it had the slot", done, actor)
            return self._session(c, found.id), done

        return self._act(act)

    def _chat(self, c: Connection, session_id: int, tenant: str | None, event: str) -> Session:
        check_id(session_id, "session")
        found = self.controller.lock(c, session_id, tenant)
        if found.type is not SessionType.CHAT:
            raise WrongState(f"session {session_id}", "an automation", event)
        if found.status not in (Status.ACTIVE, Status.QUEUED):
            raise WrongState(f"chat {session_id}", str(found.status), event, ("active", "queued"))
        return found

    # ------------------------------------------------------------------ STOP, PAUSE, resume

    def stop(self, session_id: int, reason: str = "", *, tenant: str | None = None, actor: str = "code") -> Session:
        """End a session: CANCELLED. What an AI answers afterwards is discarded (case B078). Raises NotFound, WrongState where it has ended."""
        check_id(session_id, "session")
        check_text(reason, "reason") if reason else None

        def act(c: Connection) -> tuple[Session, Pass]:
            done = Pass()
            found = self.controller.lock(c, session_id, tenant)
            if found.status is Status.ENDED:
                raise WrongState(f"session {session_id}", f"ended ({found.end_reason})", "be stopped")
            self._stop(c, found, reason or "stopped", done, actor)
            return self._session(c, session_id), done

        return self._act(act)

    def _stop(self, c: Connection, found: Session, reason: str, done: Pass, actor: str) -> None:
        if found.is_active:
            self.controller.close_active_session(c, found, SessionEndReason.CANCELLED, reason, done, actor)
        elif found.status is not Status.ENDED:
            self.controller.end_waiting(c, found, reason, done, actor)

    def pause(
        self, session_id: int, reason: str = "", *, span: timedelta | str | float | None = None, tenant: str | None = None, actor: str = "code"
    ) -> Session:  # fmt: skip
        """Take the slot from an automation for a while: SUSPENDED. It goes on with nothing added, at a later pass, when the queue is empty (R001-20).

        ``span``: not before so long from now (seconds, a timedelta, or a text such as 2h); without it, when another session has had the slot
        and left it, or after ``automation_tick`` (5 minutes). ``resume`` makes it sooner.
        Raises NotFound, WrongState for a chat and for one that has not the slot.
        """
        check_id(session_id, "session")
        length = None if span is None else read_duration(span, "span")

        def act(c: Connection) -> tuple[Session, Pass]:
            done = Pass()
            found = self.controller.lock(c, session_id, tenant)
            if found.type is not SessionType.AUTOMATION:
                raise WrongState(f"session {session_id}", "a chat", "be paused")
            if not found.is_active:
                raise WrongState(f"session {session_id}", str(found.status), "be paused", ("active",))
            span_or_pass = length or timedelta(seconds=self._app.settings.automation_tick)
            until = self._db.present(c) + span_or_pass
            self.controller.close_active_session(
                c, found, SessionEndReason.SUSPENDED, reason or "paused", done, actor, resume_at=until, resumes_early=length is None
            )  # fmt: skip
            return self._session(c, session_id), done

        return self._act(act)

    def resume(self, session_id: int, reason: str = "", *, tenant: str | None = None, actor: str = "code") -> Session:
        """Let a session go on now that was paused, or had lost the network or its worker: as soon as the slot is free and its turn comes."""
        check_id(session_id, "session")

        def act(c: Connection) -> tuple[Session, Pass]:
            found = self.controller.lock(c, session_id, tenant)
            if found.status is not Status.INTERRUPTED:
                raise WrongState(f"session {session_id}", str(found.status), "be resumed", ("interrupted",))
            self.controller.store.ready(c, found.id)
            self.controller.store.audit(c, found, actor, UNPAUSED, reason=reason)
            done = self.controller.tick_in(c, found.slot)
            return self._session(c, session_id), done

        return self._act(act)

    def unended(self, automation: int | str, tenant: str | None = None) -> Ids:
        """The sessions of an automation that have not ended: ids, the oldest first."""
        return self._read(lambda c: self.controller.store.unended(c, self._find(c, automation, tenant).id))

    # ------------------------------------------------------------------ looking

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

    def why(self, automation: int | str, tenant: str | None = None) -> Checks:
        """Why an automation does not start, or when it will: every condition, met or not, each with its remedy. Raises NotFound."""

        def ask(c: Connection) -> WhyFacts:
            found, now = self._find(c, automation, tenant), self._db.present(c)
            mine, others = self._facts(c, found)
            store, name = self.controller.store, found.definition.slot
            slot = next((one for one in store.slots(c) if one.name == name), None)
            holder = None if slot is None or slot.session_id is None else store.session(c, slot.session_id)
            waiting = store.waiting(c, name)
            own = [one.session_id for one in waiting if one.session_id in set(store.unended(c, found.id))]
            planned = next_planned(found, mine, now) or now
            running = None if holder is None else holder.automation_id
            due = [
                other
                for other in others
                if other.id != running and (at := _planned(other, now)) is not None and at < planned and at <= now
            ]
            workers = [
                worker["name"]
                for worker in self._app.engine.reader.live_workers(c, WORKER_GONE)
                if QUEUE in worker["queues"]
            ]
            queues = self._app.engine.queues
            held = gate(queues.facts(c, queues.get(c, QUEUE)))
            return WhyFacts(
                found, now, mine, holder if holder is not None and holder.is_active else None, self.controller.watch, len(waiting) - len(own), len(due), own,
                self.provider_problem(found), held if isinstance(held, Hold) else None, workers,
            )  # fmt: skip

        return why(self._read(ask))

    def _facts(self, c: Connection, found: Automation) -> tuple[AutomationFacts | None, Sequence[AutomationFacts]]:
        """(what the scheduler knows of an automation, what it knows of the others of its slot)."""
        all_of_slot, _ = self.controller.store.facts(c, found.definition.slot)
        mine = next((one for one in all_of_slot if one.id == found.id), None)
        return mine, [one for one in all_of_slot if one.id != found.id]

    def provider_problem(self, found: Automation) -> str:
        """Why the provider of an automation is not known here; empty where it is."""
        try:
            self.provider(found.definition.provider)
        except InvalidArgument as error:
            return str(error)
        return ""

    def slots(self, tenant: str | None = None) -> Sequence[Slot]:
        """Every slot: who has it, and since when. ``tenant``: those that it has something to do with, and whose holder is another's is not told."""
        return self._read(lambda c: self.controller.store.slots(c, tenant))

    def _of(self, session_id: int, tenant: str | None, fn: Callable[[Connection], R]) -> R:
        self.session(session_id, tenant)
        return self._db.read(fn)

    # ------------------------------------------------------------------ the duty of workers

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
            self.fire(name, facts, key=f"event-{mark}", tenant=tenant, actor=ACTOR)

    # ------------------------------------------------------------------

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
        return tenant or self._app.settings.tenant

    def _find(self, c: Connection, automation: int | str, tenant: str | None, lock: bool = False) -> Automation:
        if isinstance(automation, str):
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

    def _locked(self, c: Connection, automation: int | str, tenant: str | None) -> Automation:
        """An automation under the locks of its slot and its row."""
        found = self._find(c, automation, tenant)
        self.controller.store.hold_slot(c, found.definition.slot)
        return self._find(c, found.id, tenant, lock=True)

    def _known(self, c: Connection, ident: int, tenant: str | None = None) -> Automation:
        return self._find(c, ident, tenant)

    def _session(self, c: Connection, ident: int, tenant: str | None = None) -> Session:
        found = self.controller.store.session(c, ident, tenant)
        if found is None or found.type is SessionType.SEED:
            raise NotFound("session", ident)
        return found

    def _changed(self, act: Callable[[Connection], Automation]) -> Automation:
        """Change a definition, then look what is due (R001-14)."""
        self._app.open()
        found = self._db.write(act)
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


def _known(app: Any) -> Automations | None:
    found = _made.get(app)
    return None if found is None else found()


def _is_own(event: Event) -> bool:
    """Is it told of this room, or of the jobs that run sessions? Such an event runs nothing, so that nothing runs itself. Nor does one that is told
    of many jobs at once: they may be of many tenants."""
    own = event.name.startswith(OWN) or event.facts.get("task") == AI_SESSION
    return own or isinstance(event.facts.get("jobs"), list | tuple)


def _planned(facts: AutomationFacts, now: datetime) -> datetime | None:
    """Since when another automation is due; None where it is not."""
    found = AutomationScheduler().get_next_session([facts], now)
    return None if isinstance(found, Nothing) else found.scheduled_for
