"""Executions and chats: asked for, spoken in, stopped, paused, gone on with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from sqlalchemy import Connection

from duly.automations.automation import Automation, check_tools, read_span
from duly.automations.controller import CAUSES, REQUESTED, Pass
from duly.automations.equipment import Equipment
from duly.automations.protocol import event_message
from duly.automations.providers.base import Message, Role
from duly.automations.session import ExecutionTrigger, Session, SessionControl, SessionEndReason, SessionType, Status
from duly.jobs.codec import encode_plain
from duly.jobs.run import CURRENT
from duly.jobs.session import borrowed
from duly.kernel.errors import InvalidArgument, WrongState
from duly.kernel.payload import check_id, check_name, check_text

Ids: TypeAlias = list[int]

UNPAUSED, SAID = "SESSION_UNPAUSED", "SESSION_SAID"
#: Executions of one automation that may wait for the slot.
MOST_QUEUED = 1_000
#: How the keys begin of executions that an event of Duly's own has asked for.
HEARD = "event-"
#: Seconds for which a queued chat is wanted after its person was heard of last.
WANTED = 30.0


@dataclass(frozen=True, slots=True)
class Requested:
    """The answer to who asks for an execution: its session, whether it has the slot (None: it has ended), and whether it was made now (or was,
    under its key)."""

    session: Session
    control: SessionControl | None
    created: bool = True


class Executing(Equipment):
    """What gives sessions the slot, and takes it."""

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

        What a session of an automation has caused does not run that automation again (``automation_not_run`` says so): nothing runs itself.
        """
        run = CURRENT.get()
        return self._fire(event, payload, key, tenant, session, actor, cause=None if run is None else run.claimed.id)

    def _fire(
        self, event: str, payload: Mapping[str, Any] | None, key: str | None, tenant: str | None, session: Any, actor: str, *,
        cause: int | None, is_heard: bool = False,
    ) -> tuple[Requested, ...]:  # fmt: skip
        """``cause``: the job that it is told of, or in which it is said. ``is_heard``: it is an event of Duly's own, of which an automation is run
        only so often (``limits.max_event_runs_per_hour``)."""
        check_name(event, "event")
        text = encode_plain(dict(payload or {}), "payload", self._app.settings.max_payload)
        where = self._tenant(tenant)

        def act(c: Connection, passes: bool = True) -> tuple[tuple[Requested, ...], Pass]:
            done, made = Pass(), []
            held = self.controller.store.hold_slots(
                c, lambda: {each.slot for each in self._definitions.triggered(c, event, where)}
            )
            said = event_message(event, text)
            causes = set() if cause is None else self.controller.causes(c, cause)
            for each in self._definitions.triggered(c, event, where):
                if each.slot not in held:
                    continue  # it came after what has happened
                known = self._find(c, each.id, where, lock=True)
                try:
                    self._check_cause(c, known, causes, is_heard)
                    one = self._request(
                        c,
                        known,
                        ExecutionTrigger.EVENT,
                        (said,),
                        key,
                        done,
                        actor,
                        passes,
                        event,
                        causes=sorted(causes),
                    )
                except WrongState as full:  # nothing was written of it; the others are run all the same
                    done.tell("automation_not_run", "warning", event=event, automation=known.id, error=str(full))
                else:
                    made.append(one)
            return tuple(made), done

        if session is None:
            return self._act(act)
        made, _ = act(borrowed(session, self._db, asynchronous=False), passes=False)
        return made

    def _check_cause(self, c: Connection, known: Automation, causes: Collection[int], is_heard: bool) -> None:
        """Raises WrongState where an event must not run an automation: what it has caused itself, or one event too many."""
        name, limits = f"automation {known.name}", known.definition.limits
        if known.id in causes:
            raise WrongState(name, "what has caused this event", "be run by it: nothing runs itself")
        most = limits.max_event_runs_per_hour
        if not is_heard or most is None:
            return
        hour = self._db.present(c) - timedelta(hours=1)
        if self.controller.store.count_events(c, known.id, HEARD, hour) >= most:
            raise WrongState(
                name, f"run {most} times by events within an hour", "be run again (limits.max_event_runs_per_hour)"
            )

    def _request(
        self, c: Connection, known: Automation, trigger: ExecutionTrigger, messages: Sequence[Message], key: str | None, done: Pass, actor: str,
        passes: bool = True, event: str | None = None, reason: str = "", causes: Sequence[int] = (),
    ) -> Requested:  # fmt: skip
        store = self.controller.store
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
            automation_id=known.id, scheduled_at=now, key=key, options={CAUSES: [*causes]} if causes else None,
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
        check_tools(tools)
        if model is not None:
            check_name(model, "model")
        if provider is not None:
            self.provider(check_name(provider, "provider"))
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

    def say(self, session_id: int, text: str, *, tenant: str | None = None, actor: str = "code") -> Session:
        """Say something in a chat. It is answered as soon as the chat has the slot. That it was said is audited (SESSION_SAID), not what.

        Raises NotFound, WrongState, InvalidArgument.
        """
        check_text(text, "text")
        if not text.strip():
            raise InvalidArgument("text", "is empty.", "Say something.")

        def act(c: Connection) -> tuple[Session, Pass]:
            done = Pass()
            found = self._chat(c, session_id, tenant, "say")
            now = self._db.present(c)
            self.controller.records.say(c, found.id, [Message(Role.USER, text)], now)
            self.controller.store.audit(c, found, actor, SAID)
            if found.is_active:
                assert found.activation is not None
                self.controller.store.touch(c, found.id, found.activation, last_activity_at=now)
                self.controller.ensure_run(c, found, done)
            else:
                self.controller.store.want(c, found.id, now + timedelta(seconds=WANTED))
            return self._session(c, found.id), done

        return self._act(act)

    def wanted(self, session_id: int, *, tenant: str | None = None) -> Session:
        """Somebody still waits for a queued chat, or is there in an active one. Returns it as it stands.

        An active chat in which nobody has been there for ``WANTED`` seconds gives way to another chat when nobody has used it for
        ``chat_max_inactivity_before_automation_eviction``, as it does to an automation in any case.
        """

        def act(c: Connection) -> Session:
            found = self._session(c, session_id, tenant)
            if found.type is SessionType.CHAT and found.status in (Status.QUEUED, Status.ACTIVE):
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
            over = f" ({found.end_detail})" if found.end_detail else ""
            raise WrongState(f"chat {session_id}", f"{found.status}{over}", event, ("active", "queued"))
        return found

    # ------------------------------------------------------------------ STOP, PAUSE, resume

    def stop(self, session_id: int, reason: str = "", *, tenant: str | None = None, actor: str = "code") -> Session:
        """End a session: CANCELLED. What an AI answers afterwards is discarded (case B078). Raises NotFound, WrongState where it has ended."""
        check_id(session_id, "session")
        check_text(reason, "reason")

        def act(c: Connection) -> tuple[Session, Pass]:
            done = Pass()
            found = self.controller.lock(c, session_id, tenant)
            if found.status is Status.ENDED:
                raise WrongState(f"session {session_id}", f"ended ({found.end_reason})", "be stopped")
            self._stop(c, found, reason or "stopped", done, actor)
            return self._session(c, session_id), done

        return self._act(act)

    def pause(
        self, session_id: int, reason: str = "", *, span: timedelta | str | float | None = None, now: bool = False, tenant: str | None = None,
        actor: str = "code",
    ) -> Session:  # fmt: skip
        """Take the slot from an automation for a while: SUSPENDED. It goes on with nothing added, at a later pass, when the queue is empty (R001-20).

        A call of a tool that is under way is finished first, and its result is on record; the slot is free when it has ended (R001-54). ``now``:
        an async function is cancelled instead; a plain one cannot be, and is waited for.
        ``span``: not before so long from now (seconds, a timedelta, or a text such as 2h); without it, when another session has had the slot
        and left it, or after ``automation_tick`` (5 minutes). ``resume`` makes it sooner.
        Raises NotFound, WrongState for a chat and for one that has not the slot.
        """
        check_id(session_id, "session")
        check_text(reason, "reason")
        length = None if span is None else read_span(span, "span")

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
                c, found, SessionEndReason.SUSPENDED, reason or "paused", done, actor, resume_at=until, resumes_early=length is None,
                lets_finish=not now,
            )  # fmt: skip
            return self._session(c, session_id), done

        return self._act(act)

    def resume(self, session_id: int, reason: str = "", *, tenant: str | None = None, actor: str = "code") -> Session:
        """Let a session go on now that was paused, or had lost the network or its worker: as soon as the slot is free and its turn comes.

        Raises NotFound, WrongState; also where its automation is off: it goes on when that is on again, also one that was run by hand (T001-s).
        """
        check_id(session_id, "session")
        check_text(reason, "reason")

        def act(c: Connection) -> tuple[Session, Pass]:
            found = self.controller.lock(c, session_id, tenant)
            if found.status is not Status.INTERRUPTED:
                raise WrongState(f"session {session_id}", str(found.status), "be resumed", ("interrupted",))
            assert found.automation_id is not None, "a chat is not interrupted"
            if not self._find(c, found.automation_id, tenant).is_enabled:
                raise WrongState(
                    f"session {session_id}",
                    f"of automation {found.title}, which is off",
                    "go on before that is enabled",
                )
            self.controller.store.ready(c, found.id)
            self.controller.store.audit(c, found, actor, UNPAUSED, reason=reason)
            done = self.controller.tick_in(c, found.slot)
            return self._session(c, session_id), done

        return self._act(act)

    def unended(self, automation: int | str, tenant: str | None = None) -> Ids:
        """The sessions of an automation that have not ended: ids, the oldest first."""
        return self._read(lambda c: self.controller.store.unended(c, self._find(c, automation, tenant).id))
