"""The controller: the only one who gives and takes a slot.

A pass (``tick``) is one transaction under the lock of the slot's row: the watchdog, then the queue, then the scheduler (R001-2). So between the end
of one session and the start of the next nobody comes in between (T001-h), whatever is asked for at the same time and in however many processes.
Giving the slot makes the job that runs the session, in the same transaction: its lease says whether the session is alive (T001-b).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from duly.automations.automation import HISTORY
from duly.automations.definitions import DefinitionStore
from duly.automations.plan import (
    AutomationScheduler,
    Create,
    Holder,
    Nothing,
    Resume,
    Skipped,
    Stopped,
    Watch,
    dropped,
    gives_way,
    next_in_queue,
    next_look,
    should_stop_inactive_session,
)
from duly.automations.records import RecordStore
from duly.automations.session import (
    ENDED,
    ExecutionTrigger,
    RoundReason,
    Session,
    SessionControl,
    SessionEndReason,
    SessionType,
    Status,
)
from duly.automations.store import QUEUE as QUEUE
from duly.automations.store import Busy, SessionStore, Slot, SlotLost
from duly.jobs.admin import JobAdmin
from duly.jobs.engine import Engine
from duly.jobs.enqueue import NewJob
from duly.jobs.run import caused_by
from duly.kernel.errors import NotFound, WrongState
from duly.kernel.localtime import TICK

#: The task that runs the rounds of a session.
AI_SESSION = "AI_SESSION"
#: Who moves sessions when nobody else does, for the trail.
ACTOR = "automations"
#: Audit actions.
REQUESTED, STARTED, RESUMED = "SESSION_REQUESTED", "SESSION_STARTED", "SESSION_RESUMED"
#: Why a planned instant is left out: nobody was there in time, or a later one runs in its place …
MISSED = frozenset({"catch_up_window", "dismissed", "undecided"})
#: … or a person decided so.
DISABLED, RESCHEDULED, DROPPED = "disabled", "rescheduled", "removed"
#: Under which a session that an event has run keeps, in its options, the automations that had caused the event.
CAUSES = "caused_by"
#: A job is followed back over so many parents.
MOST_ANCESTORS = 32
#: How soon it is looked again whether a call has ended that keeps a slot.
LOOK_AGAIN = timedelta(seconds=1)
INTERRUPTED, SESSION_ENDED, SKIPPED = "SESSION_INTERRUPTED", "SESSION_ENDED", "AUTOMATION_SKIPPED"


@dataclass(slots=True)
class Pass:
    """What happened in one transaction: the events to tell when it is committed, and when to look again."""

    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    #: A job was made or freed.
    rings: bool = False
    #: When the answer may be another one by itself; None: not by time.
    look_at: datetime | None = None

    def tell(self, name: str, level: str, /, **fields: Any) -> None:
        self.events.append((name, level, {k: v for k, v in fields.items() if v is not None}))


class SessionController:
    """The slots of an engine's database. ``prepare`` makes the job of a session: (session, activation) → NewJob."""

    def __init__(self, engine: Engine, prepare: Callable[[Session, str], NewJob]) -> None:
        self.engine, self.db = engine, engine.db
        self.store, self.records, self.prepare = SessionStore(engine.db), RecordStore(engine.db), prepare
        self.definitions = DefinitionStore(engine.db, self.store, self.records)
        self.scheduler, self.admin = AutomationScheduler(), JobAdmin(engine)
        s = engine.settings
        self.watch = Watch(
            timedelta(seconds=s.automation_max_session_duration), timedelta(seconds=s.chat_max_inactivity_before_automation_eviction),
            s.automation_crash_cap,
        )  # fmt: skip
        self._ticking, self._again = threading.Lock(), threading.Event()
        #: Set when a session has moved: what is due next may be sooner than it was.
        self.moved = threading.Event()

    # ------------------------------------------------------------------ the tick

    def tick(self) -> datetime | None:
        """One pass over every slot (R001-2). Returns when to look again; None: not by time.

        One pass at a time in a process: who comes while one is under way has it done once more, and does not wait for that (T001-f).
        Raises DatabaseUnavailable.
        """
        self._again.set()
        # where another thread is at it: again, soon
        look_at: datetime | None = self.engine.clock.now()
        while self._again.is_set() and self._ticking.acquire(blocking=False):
            try:
                self._again.clear()
                moving, looks = self.db.read(self._moving)
                looks += [self._tick(slot) for slot in sorted(moving)]
                look_at = min((look for look in looks if look is not None), default=None)
            finally:
                self._ticking.release()
        return look_at

    def _moving(self, c: Connection) -> tuple[set[str], list[datetime | None]]:
        """The slots in which there is something to do, and when to look again at the others: what costs a transaction is what moves, however
        many slots there are. What is done is decided anew under the lock of each."""
        moving, now = self.store.moving(c), self.db.present(c)
        self.engine.left.turn("automation")
        looks: list[datetime | None] = []
        for slot, (facts, broken) in self.store.all_facts(c).items():
            due = self.scheduler.get_next_session(facts, now)
            for each in broken:
                if each.left is not None:
                    self.engine.left.note("automation", str(each.automation_id), each.left)
            is_broken = any(each.left is None for each in broken)
            if is_broken or not isinstance(due, Nothing) or self.scheduler.left_out(facts, now):
                moving.add(slot)
            else:
                looks.append(next_look(facts, now))
        return moving, looks

    def _tick(self, slot: str) -> datetime | None:
        done = self.db.write(lambda c: self.tick_in(c, slot))
        self.announce(done)
        return done.look_at

    def tick_in(self, connection: Connection, slot: str) -> Pass:
        """A pass over one slot, in the caller's transaction."""
        done = Pass()
        self._pass(connection, self.store.hold_slot(connection, slot), self.db.present(connection), done)
        return done

    def _pass(self, c: Connection, slot: Slot, now: datetime, done: Pass) -> None:
        held = self._held(c, slot)
        chat: Session | None = None
        if held is None and self._is_busy(c, slot, now, done):
            return
        if held is not None:
            facts = self._holder(c, held, now)
            stopped = self.should_stop_inactive_session(facts, now)
            if stopped is not None:
                if self._release(c, held, stopped, now, done, ACTOR, self._asked_to_wait(c, held, stopped, now)):
                    return
            elif facts.is_run is False:
                self._run_again(c, held, now, done)
                return
            elif gives_way(facts, self.watch, now):
                chat = held
            else:
                done.look_at = self._next_watch(facts)
                return
        for ident in self.store.unwanted(c, slot.name, now):
            gone = self.store.session(c, ident, lock=True)
            if gone is not None and gone.status is Status.QUEUED:
                self._end(c, gone, SessionEndReason.CANCELLED, "nobody waited for it any more", now, done, ACTOR)
        if self.process_next_in_queue(c, slot.name, chat, now, done):
            return
        facts_of, broken = self.store.facts(c, slot.name)
        for automation, skip in self.scheduler.left_out(facts_of, now):
            self.note_skips(c, automation, [skip], now, done)
        for each in broken:
            if each.left is None and self.store.set_error(c, each.automation_id, each.problem):
                done.tell("automation_broken", "error", automation=each.automation_id, error=each.problem)
        next_session = self.scheduler.get_next_session(facts_of, now)
        if isinstance(next_session, Nothing):
            until = None if chat is None else chat.wanted_until
            if chat is not None and (until is None or until < now):
                # what is due goes first, then a chat that waits behind one that nobody is at
                if self.process_next_in_queue(c, slot.name, chat, now, done, to_chats=True):
                    return
                until = None
            looks = next_look(facts_of, now), until
            done.look_at = min((look for look in looks if look is not None), default=None)
            return
        if chat is not None and self._evict(c, chat, now, done):
            return
        if isinstance(next_session, Resume):
            self.resume_session(c, next_session, now, done)
        else:
            self.create_scheduled_session(c, slot.name, next_session, now, done)
        done.look_at = now + self.watch.max_inactivity + TICK

    def _is_busy(self, c: Connection, slot: Slot, now: datetime, done: Pass) -> bool:
        """Is a call of the session that had the slot still under way? Then nobody gets it: one at a time means the work (R001-54)."""
        if slot.busy_job_id is None and slot.busy_session_id is None:
            return False
        if self.store.is_busy(c, slot, now):
            done.look_at = now + LOOK_AGAIN
            return True
        self.store.set_slot(c, slot.name, None, None, now)
        return False

    def should_stop_inactive_session(self, held: Holder, now: datetime) -> Stopped | None:
        """The only watchdog there is (``plan``)."""
        return should_stop_inactive_session(held, self.watch, now)

    def _held(self, c: Connection, slot: Slot) -> Session | None:
        """The session that has the slot. A slot whose session is gone is free."""
        if slot.session_id is None:
            return None
        found = self.store.session(c, slot.session_id, lock=True)
        if found is not None and found.status is Status.ACTIVE and found.activation == slot.activation:
            return found
        return None

    def _holder(self, c: Connection, session: Session, now: datetime) -> Holder:
        last = session.last_activity_at or now
        if session.job_id is None:
            return Holder(session.type, last, session.is_waiting_for_network, None, session.crashes)
        job = self.store.job(c, session.job_id, now)
        if not session.is_waiting_for_network and session.type is SessionType.AUTOMATION:
            # one that no worker takes up is not silent: it was not asked anything; nor is it when one has just taken it, or
            # while a job that it waits for lives, or a function may take its time
            quiet = self.store.quiet_until(c, session.id, now) if job.lives else None
            last = now if job.waits else max(last, job.started_at or last, quiet or last)
        return Holder(session.type, last, session.is_waiting_for_network, job.lives, session.crashes, job.is_cancelled)

    def _asked_to_wait(self, c: Connection, held: Session, stopped: Stopped, now: datetime) -> datetime | None:
        """Until when the other side has asked to be left alone, where a session waits for that: it does not go on before."""
        if stopped.end_reason is not SessionEndReason.NETWORK_ERROR or held.job_id is None:
            return None
        due = self.store.job(c, held.job_id, now).due_at
        longer = timedelta(seconds=self.engine.settings.automation_network_retry)
        return due if due is not None and due - now > longer else None

    def _next_watch(self, held: Holder) -> datetime | None:
        if held.type is SessionType.CHAT:
            span = max(self.watch.chat_eviction, self.watch.max_inactivity) if held.is_run else self.watch.chat_eviction
            return held.last_activity_at + span + TICK
        return held.last_activity_at + self.watch.max_inactivity + TICK

    # ------------------------------------------------------------------ giving the slot

    def request_session_control(
        self, connection: Connection, session_id: int, done: Pass, tenant: str | None = None
    ) -> SessionControl:
        """Ask for the slot for a chat, or for what a person or an event runs; it has been made (``Status.QUEUED``). In the caller's transaction.

        ACTIVATED: it has it. QUEUED: it is in the queue, and gets it when its turn comes. BUSY: what is scheduled does not queue (T001-e).
        Raises NotFound, WrongState.
        """
        found = self._known(connection, session_id, tenant)
        slot = self.store.hold_slot(connection, found.slot)
        session = self._known(connection, session_id, tenant, lock=True)
        if session.status is Status.ACTIVE:
            return SessionControl.ACTIVATED
        if session.trigger is ExecutionTrigger.SCHEDULED:
            return SessionControl.BUSY
        if session.status is not Status.QUEUED:
            raise WrongState(f"session {session_id}", str(session.status), "request", (Status.QUEUED.value,))
        self._pass(connection, slot, self.db.present(connection), done)
        after = self._known(connection, session_id, tenant)
        if after.status is Status.ACTIVE:
            return SessionControl.ACTIVATED
        done.tell("session_queued", "info", session=session_id, slot=found.slot, type=session.type.value)
        return SessionControl.QUEUED

    def process_next_in_queue(
        self, c: Connection, slot: str, chat: Session | None, now: datetime, done: Pass, to_chats: bool = False
    ) -> bool:
        """Give the slot to who is first in the queue (R001-13). ``chat``: one that has it and gives way to an automation; ``to_chats``: nobody is
        there in it any more, and it gives way to another chat, too."""
        waiting = self.store.waiting(c, slot)
        if chat is not None and not to_chats:
            waiting = [one for one in waiting if one.type is SessionType.AUTOMATION]
        head = next_in_queue(waiting)
        if head is None:
            return False
        session = self.store.session(c, head.session_id, lock=True)
        assert session is not None
        if chat is None or not self._evict(c, chat, now, done):
            self._activate(c, session, RoundReason.AUTOMATION_START, now, done)
        return True

    def resume_session(self, c: Connection, next_session: Resume, now: datetime, done: Pass) -> None:
        """Give the slot to a session that goes on (R001-16)."""
        for ident in next_session.cancels:
            older = self.store.session(c, ident, lock=True)
            if older is not None and older.status is Status.INTERRUPTED:
                detail = "a later execution takes its place (dismiss_older_instances)"
                self._end(c, older, SessionEndReason.CANCELLED, detail, now, done, ACTOR)
        session = self.store.session(c, next_session.session_id, lock=True)
        assert session is not None
        self._activate(c, session, next_session.reason, now, done)

    def create_scheduled_session(self, c: Connection, slot: str, create: Create, now: datetime, done: Pass) -> None:
        """Make the session of an occurrence, and give it the slot: it is born with it (T001-e)."""
        found = self.definitions.get(c, create.automation_id)
        assert found is not None
        self.note_skips(c, create.automation_id, create.skips, now, done)
        activation = secrets.token_hex(8)
        ident = self.store.add(
            c, Status.ACTIVE, tenant=found.tenant, slot=slot, type=SessionType.AUTOMATION, now=now, title=found.name,
            trigger=ExecutionTrigger.SCHEDULED, automation_id=found.id, scheduled_at=create.scheduled_for, activation=activation,
        )  # fmt: skip
        self.records.copy_seed(c, found.seed_session_id, ident, now)
        self._given(c, self._known(c, ident), activation, RoundReason.AUTOMATION_START, now, done)

    def note_skips(
        self, c: Connection, automation: int, skips: Sequence[Skipped], now: datetime, done: Pass, actor: str = ACTOR
    ) -> None:
        """Put planned instants that are left out on record: in the ledger, on the trail, and as an event (R001-52)."""
        found = self.definitions.get(c, automation) if skips else None
        if found is None:
            return
        self.store.note_skips(c, automation, skips, now)
        for skip in skips:
            told = {"count": skip.count, "reason": skip.reason, "first": skip.first_at, "last": skip.last_at}
            self.definitions.audit(c, automation, found.tenant, actor, SKIPPED, **told)
            level = "warning" if skip.reason in MISSED else "info"
            done.tell("automation_skipped", level, automation=automation, **told)

    def drop(self, c: Connection, automation: int, reason: str, now: datetime, done: Pass, actor: str) -> None:
        """An automation is switched on or off, removed, or planned anew: what was due and has not run does not run any more, and is on record."""
        facts = self.store.facts_of(c, automation)
        skip = None if facts is None else dropped(facts, now, reason)
        if facts is None and self.store.is_unreadable(c, automation):
            skip = Skipped(now, now, 0, "undecided")  # its schedule cannot be read: nobody knows how many were due
        self.note_skips(c, automation, [] if skip is None else [skip], now, done, actor)

    def _activate(self, c: Connection, session: Session, reason: RoundReason, now: datetime, done: Pass) -> None:
        activation = secrets.token_hex(8)
        self.store.take(c, session, activation, now)
        self._given(c, session, activation, reason, now, done)

    def _given(
        self, c: Connection, session: Session, activation: str, reason: RoundReason, now: datetime, done: Pass
    ) -> None:
        """A session has the slot: its row says so already. The job that runs it is made, unless it is a chat that nobody has said anything in."""
        self.store.set_slot(c, session.slot, session.id, activation, now)
        resumed = session.started_at is not None and session.status is Status.INTERRUPTED
        if session.type is SessionType.AUTOMATION or self.records.is_unanswered(c, session.id):
            self._make_job(c, session, activation, done)
        if session.automation_id is not None:
            self.store.note_execution(c, session.automation_id, session.id, HISTORY)
        self.store.audit(
            c, session, ACTOR, RESUMED if resumed else STARTED, slot=session.slot, automation=session.automation_id,
            trigger=session.trigger, reason=reason.value if resumed else None,
        )  # fmt: skip
        done.tell(
            "session_resumed" if resumed else "session_started", "info", session=session.id, slot=session.slot, type=session.type.value,
            automation=session.automation_id, trigger=session.trigger, reason=reason.value,
            late=max(0.0, (now - session.scheduled_at).total_seconds())
            if session.scheduled_at is not None and session.trigger is ExecutionTrigger.SCHEDULED and not resumed else None,
        )  # fmt: skip

    def _make_job(self, c: Connection, session: Session, activation: str, done: Pass) -> None:
        made = self.engine.maker.make_in(c, [self.prepare(session, activation)])
        self.store.set_job(c, session.id, made[0].job.id)
        done.rings = True

    def ensure_run(self, c: Connection, session: Session, done: Pass) -> None:
        """Have the rounds of a session that has the slot run, if they are not: somebody has said something in it. Its row is locked."""
        if session.activation is not None and session.job_id is None:
            self._make_job(c, session, session.activation, done)

    def _run_again(self, c: Connection, chat: Session, now: datetime, done: Pass) -> None:
        """A worker was lost with a chat: the person still waits, so it is answered again; not for ever (T001-z)."""
        # with an answer whose calls were not all made it is unanswered too
        waits = self.records.is_unanswered(c, chat.id) or bool(self.records.open_calls(c, chat.id))
        again = waits and chat.crashes < self.watch.crash_cap
        if chat.job_id is not None:  # its lease has lapsed, and it may live: it writes no more
            self.admin.cancel_in(c, [chat.job_id], ACTOR, f"session {chat.id} is taken up by another job")
        self.store.set_job(c, chat.id, None, crashes=chat.crashes + 1, partial=None)
        if again:
            assert chat.activation is not None
            self._make_job(c, chat, chat.activation, done)
        done.tell("session_crashed", "warning", session=chat.id, slot=chat.slot, again=again)

    # ------------------------------------------------------------------ taking it

    def _evict(self, c: Connection, chat: Session, now: datetime, done: Pass) -> bool:
        idle = f"nobody used it for more than {self.watch.chat_eviction.total_seconds() / 60:g} min, and an automation is due"
        return self._release(c, chat, Stopped(SessionEndReason.CANCELLED, idle), now, done, ACTOR)

    def causes(self, c: Connection, job_id: int) -> set[int]:
        """The automations whose sessions have caused a job: those among its ancestors, and what had caused these."""
        found, seen, ahead = set[int](), set[int](), [job_id]
        while ahead and len(seen) < MOST_ANCESTORS:
            seen.add(ident := ahead.pop())
            job = self.engine.reader.get_many(c, [ident]).get(ident)
            if job is None:
                continue
            of = job.input.get("session") if job.task == AI_SESSION and isinstance(job.input, dict) else None
            session = self.store.session(c, of) if isinstance(of, int) else None
            if session is not None and session.automation_id is not None:
                found |= {session.automation_id, *(session.options or {}).get(CAUSES, ())}
            # what made it as a child, and the session one of whose tools enqueued it
            ahead += [one for one in (job.parent_id, caused_by(job.meta)) if one is not None and one not in seen]
        return found

    def close_active_session(
        self, connection: Connection, session: Session, end_reason: SessionEndReason, detail: str, done: Pass, actor: str,
        resume_at: datetime | None = None, resumes_early: bool = False, lets_finish: bool = False, is_busy: bool = False,
        told: str | None = None,
    ) -> None:  # fmt: skip
        """Take the slot from a session that has it: reason and release in one transaction (T001-g), the next pass in the same one.

        ``session``: as it stands under the locks of its slot and its row (``lock``). One with a ``resume_at`` to come does not go on in this very pass.
        ``lets_finish``: a call of a tool that is under way is not cancelled. ``is_busy``: something of it goes on after its end. In both cases, and
        where a call cannot be cancelled, nobody gets the slot before that has ended (R001-54).
        """
        now = self.db.present(connection)
        stopped = Stopped(end_reason, detail, told)
        self._release(connection, session, stopped, now, done, actor, resume_at, resumes_early, lets_finish, is_busy)
        self._pass(connection, self.store.hold_slot(connection, session.slot), now, done)

    def lock(self, connection: Connection, session_id: int, tenant: str | None = None) -> Session:
        """A session under the lock of its slot, and its own: it makes no move until the transaction ends. Raises NotFound."""
        found = self._known(connection, session_id, tenant)
        self.store.hold_slot(connection, found.slot)
        return self._known(connection, session_id, tenant, lock=True)

    def lock_active(self, connection: Connection, session_id: int, activation: str) -> Session:
        """The same for the one that has the slot under this activation. Raises SlotLost."""
        try:
            found = self.lock(connection, session_id)
        except NotFound as error:
            raise SlotLost(str(error)) from None
        if found.status is not Status.ACTIVE or found.activation != activation:
            raise SlotLost(f"session {session_id} does not have the slot any more")
        return found

    def end_waiting(self, connection: Connection, session: Session, detail: str, done: Pass, actor: str) -> None:
        """End a session that waits, or that had stopped and would go on later. Locked as for ``lock``."""
        now = self.db.present(connection)
        self._end(connection, session, SessionEndReason.CANCELLED, detail, now, done, actor)

    def _release(
        self, c: Connection, held: Session, stopped: Stopped, now: datetime, done: Pass, actor: str, resume_at: datetime | None = None,
        resumes_early: bool = False, lets_finish: bool = False, is_busy: bool = False,
    ) -> bool:  # fmt: skip
        """Returns whether something of it goes on, so that nobody gets the slot yet."""
        busy = Busy("", held.job_id) if is_busy else self.store.at_work(c, held, now) if actor != _ITSELF else None
        self.store.set_slot(c, held.slot, None, None, now, busy)
        self.store.ready_early(c, held.slot, held.id)
        detail = stopped.detail
        if busy is not None and busy.tool:
            detail += f"; its call of {busy.tool} was under way, and the slot is free when that has ended"
        lets_finish = lets_finish and busy is not None and busy.job_id is not None
        self._end(
            c, held, stopped.end_reason, detail, now, done, actor, resume_at, resumes_early, lets_finish, stopped.told
        )
        if busy is not None:
            done.look_at = now + LOOK_AGAIN
            done.tell("slot_busy", "info", slot=held.slot, session=held.id, tool=busy.tool or None)
        return busy is not None

    def _end(
        self, c: Connection, session: Session, reason: SessionEndReason | None, detail: str, now: datetime, done: Pass, actor: str,
        resume_at: datetime | None = None, resumes_early: bool = False, lets_finish: bool = False, told: str | None = None,
    ) -> None:  # fmt: skip
        self.store.leave(c, session, reason, detail, now, resume_at, resumes_early)
        ended = reason in ENDED
        if ended:  # nobody waits for what it called; the jobs of its calls before its own, in the order in which their ends lock them
            called = [call.job_id for call in self.records.open_calls(c, session.id) if call.job_id is not None]
            if called:
                self.admin.cancel_in(c, called, ACTOR, f"session {session.id} ended")
        if session.job_id is not None and actor != _ITSELF and not lets_finish:
            # whoever runs it hears of it with its next heartbeat; what it writes meanwhile is refused
            self.admin.cancel_in(c, [session.job_id], ACTOR, f"session {session.id} lost the slot")
        level = "info" if reason in (SessionEndReason.COMPLETED, SessionEndReason.SUSPENDED) else "warning"
        if actor == _ITSELF and reason is SessionEndReason.COMPLETED:
            detail = ""  # the summary is something that was said: it stands in the session alone
        elif told is not None:
            detail = told
        self.store.audit(
            c, session, ACTOR if actor == _ITSELF else actor, SESSION_ENDED if ended else INTERRUPTED, level,
            reason="CRASH" if reason is None else reason.value, detail=detail[:500], automation=session.automation_id,
        )  # fmt: skip
        done.tell(
            "session_ended" if ended else "session_interrupted", level, session=session.id, slot=session.slot, type=session.type.value,
            automation=session.automation_id, automation_name=session.title if session.automation_id is not None else None,
            reason="CRASH" if reason is None else reason.value, detail=detail or None,
            seconds=None if session.started_at is None else max(0.0, (now - session.started_at).total_seconds()),
        )  # fmt: skip

    def end_by_itself(
        self, connection: Connection, session: Session, reason: SessionEndReason, detail: str, done: Pass, is_busy: bool = False,
        told: str | None = None,
    ) -> None:  # fmt: skip
        """As ``close_active_session``, from the job that runs the session: it is not cancelled, it ends. ``told``: what events and the trail say
        instead of the detail."""
        self.close_active_session(connection, session, reason, detail, done, _ITSELF, is_busy=is_busy, told=told)

    # ------------------------------------------------------------------

    def _known(self, c: Connection, ident: int, tenant: str | None = None, lock: bool = False) -> Session:
        found = self.store.session(c, ident, tenant, lock)
        if found is None or found.type is SessionType.SEED:
            raise NotFound("session", ident)
        return found

    def announce(self, done: Pass) -> None:
        """Tell what a committed transaction did."""
        if done.events:
            self.moved.set()
        for name, level, fields in done.events:
            self.engine.emitter.emit(name, level, **fields)  # type: ignore[arg-type]
        if done.rings:
            self.db.bells.ring()


#: Stands for the job of a session that ends by itself.
_ITSELF = "session"
