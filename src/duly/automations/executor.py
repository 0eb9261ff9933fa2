"""The rounds of a session: the handler of the task AI_SESSION.

Each turn reads what stands on record, decides (``turn.next_turn``), and does one thing: make a call, end the session, ask the model, or rest. So
there is nothing to remember between two turns, and a job that takes the session up after a crash goes on where the record ends. Nothing is
retried from within: a question that gets no answer puts the job down for a while, with nothing added and no stack that grows (T001-p).
Every write is fenced (``fence``); who finds the slot lost stops, and what it brings is discarded (T001-q).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from typing import Any

from sqlalchemy import Connection

from duly.automations.automation import Automation
from duly.automations.calls import Allowed, CallMaker
from duly.automations.controller import SessionController
from duly.automations.fence import Fence
from duly.automations.host import Host
from duly.automations.plan import Limits, exhausted
from duly.automations.protocol import FINISH_SPEC, meaning, opening
from duly.automations.providers.base import Answer, Message, Provider, Question, Role, ToolCall, Usage
from duly.automations.records import Said
from duly.automations.session import RoundReason, Session, SessionEndReason, SessionType, Status
from duly.automations.store import SlotLost
from duly.automations.tools import Toolbox
from duly.automations.turn import (
    Acknowledge,
    Again,
    Ask,
    Complete,
    MakeCall,
    Rest,
    after_refusal,
    next_turn,
    round_reason,
    rounds_since_person,
)
from duly.jobs.run import Context, LeaseLost, clean
from duly.kernel.errors import Cancel, DatabaseError, InvalidArgument, PermanentError, Snooze, brief
from duly.kernel.localtime import instant_on, local_date, zone
from duly.kernel.payload import check_value
from duly.kernel.recurrence import CivilSchedule
from duly.kernel.verdict import Refusal

#: Seconds between two writes of what is being said.
SHOWN_EVERY = 0.25
NO_PRICES = "its costs are not known, so its bound in cents cannot be held: set ai_price_input and ai_price_output, or take limits.max_cents away"
NO_NETWORK = "the network is not there"
#: What the handler answers where the session lost its slot.
LOST = {"slot": "lost"}


@dataclass(slots=True)
class Running:
    """What the rounds of an application's sessions need."""

    app: Host
    controller: SessionController
    tools: Toolbox
    #: A provider by its name; None: the one of the settings. Raises InvalidArgument.
    provider: Callable[[str | None], Provider]


async def run_session(
    running: Running, context: Context, session: int, activation: str, reason: str = ""
) -> dict[str, Any]:
    """Run the rounds of a session until it ends, waits, or rests. ``activation``: of the slot that the job was made for. ``reason``: why the
    session goes on (a RoundReason); empty where it begins.

    Raises Snooze and Settled where it waits, LeaseLost, Cancel, DatabaseUnavailable. Anything else that goes wrong ends the session: ERROR.
    """
    rounds = Rounds(running, Fence(running.controller, session, activation), RoundReason(reason) if reason else None)
    try:
        try:
            ended = await rounds.run()
        except (SlotLost, LeaseLost, Cancel, Snooze, DatabaseError):
            raise
        except Exception as error:  # a session that hangs would hold the slot
            await rounds.fence.end(SessionEndReason.ERROR, brief(error))
            ended = {"end": SessionEndReason.ERROR.value}
    except SlotLost:
        ended = dict(LOST)
    await rounds.fence.settle()
    if ended.get("end") == SessionEndReason.ERROR.value:
        # what was said stands in the session alone
        raise PermanentError(f"session {session} ended with ERROR; duly automations show {session} says why")
    return ended


@dataclass(frozen=True, slots=True)
class State:
    """A session as it stands at the beginning of a turn."""

    session: Session
    said: list[Said]
    automation: Automation | None

    @property
    def messages(self) -> list[Message]:
        return [one.message for one in self.said]

    @property
    def last(self) -> int:
        """The position of the last message."""
        return self.said[-1].position if self.said else 0

    @property
    def answered(self) -> int:
        """The position of the last message that is not of a person."""
        return next((one.position for one in reversed(self.said) if one.message.role is not Role.USER), 0)

    @property
    def limits(self) -> Limits | None:
        """None for a chat: its person sees what it does."""
        return None if self.automation is None else self.automation.definition.limits

    def option(self, name: str) -> Any:
        """What the automation says, or the options of a chat: tools, provider, model."""
        if self.automation is not None:
            return getattr(self.automation.definition, name)
        return (self.session.options or {}).get(name)

    @property
    def allowed(self) -> Allowed:
        return Allowed(tuple(self.option("tools") or ()), None if self.limits is None else self.limits.max_calls)


class Rounds:
    """The rounds of one activation of a session."""

    def __init__(self, running: Running, fence: Fence, resumed: RoundReason | None = None) -> None:
        self.running, self.fence, self.resumed = running, fence, resumed
        self.controller, self.db = running.controller, fence.db
        self.store, self.records = self.controller.store, self.controller.records
        self.settings = self.controller.engine.settings
        self.calls = CallMaker(running.app, fence, running.tools)

    async def run(self) -> dict[str, Any]:
        """Turn after turn."""
        while True:
            state = await self.db.arun(self.db.read, self._read)
            turn = next_turn(state.messages, state.session.type)
            over: dict[str, Any] | None = None
            if isinstance(turn, MakeCall):
                await self._call(state, turn)
            elif isinstance(turn, Acknowledge):
                await self._acknowledge(state, turn)
            elif isinstance(turn, Complete):
                over = await self._end(SessionEndReason.COMPLETED, turn.summary)
            elif isinstance(turn, Ask):
                over = await self._ask(state)
            else:
                assert isinstance(turn, Rest)
                over = await self._rest(state)
            if over is not None:
                return over

    def _read(self, connection: Connection) -> State:
        session = self.store.session(connection, self.fence.session_id)
        if session is None or session.status is not Status.ACTIVE or session.activation != self.fence.activation:
            raise SlotLost(f"session {self.fence.session_id} does not have the slot any more")
        automation = None
        if session.automation_id is not None:
            automation = self.controller.definitions.get(connection, session.automation_id, removed=True)
        return State(session, self.records.said(connection, session.id), automation)

    async def _end(self, reason: SessionEndReason, detail: str) -> dict[str, Any]:
        await self.fence.end(reason, detail)
        return {"end": reason.value}

    async def _rest(self, state: State) -> dict[str, Any] | None:
        """No job is wanted any more, unless something has been said meanwhile."""

        def act(connection: Connection, now: datetime) -> bool:
            return self._put_away(connection, state)

        rests = await self.fence.write(act, happened=False)
        return {"rests": True} if rests else None

    def _put_away(self, connection: Connection, state: State) -> bool:
        """The session's row is held, so whoever says something does so before this or finds that no job is there."""
        if self.records.last_position(connection, state.session.id) > state.last:
            return False
        self.store.touch(connection, self.fence.session_id, self.fence.activation, job_id=None, partial=None)
        return True

    # ------------------------------------------------------------------ calls

    async def _call(self, state: State, turn: MakeCall) -> None:
        answer = state.said[turn.message]
        assert answer.round is not None

        def read(connection: Connection) -> Any:
            return self.records.calls(connection, state.session.id, answer.round)[turn.row]

        call = await self.db.arun(self.db.read, read)
        await self.calls.make(
            state.session, call, answer.message.calls[turn.place], state.allowed, after=state.answered
        )

    async def _acknowledge(self, state: State, turn: Acknowledge) -> None:
        answer = state.said[turn.message]
        said = Message(Role.TOOL, turn.result, call_id=turn.call.id)

        def act(connection: Connection, now: datetime) -> None:
            self.records.reply(connection, state.session.id, said, now, answer.round or 0, state.answered)

        await self.fence.write(act)

    # ------------------------------------------------------------------ a question

    async def _ask(self, state: State) -> dict[str, Any] | None:
        """Ask the model, and put its answer on record. None: go on with it."""
        bound = await self.db.arun(self.db.read, lambda c: self._bound(c, state))
        is_chat = state.session.type is SessionType.CHAT
        if bound is not None:
            return await self._unanswered(state, bound) if is_chat else await self._end(SessionEndReason.ERROR, bound)
        try:
            provider = self.running.provider(state.option("provider"))
        except InvalidArgument as error:
            return await self._end(SessionEndReason.ERROR, str(error))
        limits = state.limits
        if limits is not None and limits.bounds_cents and provider.prices is None:
            return await self._end(SessionEndReason.ERROR, NO_PRICES)
        if not await provider.is_reachable():
            if is_chat:
                return await self._unanswered(state, NO_NETWORK)
            await self._wait(state, NO_NETWORK, self.settings.automation_network_retry)
        number, reason, stood_at = await self._begin(state)
        began = self.db.clock.monotonic()
        try:
            answer = await self._listen(provider, self._question(state))
        except Refusal as refused:
            verdict = refused.verdict
            why = verdict.reason or f"the AI refused ({verdict.kind.value})"
            next = after_refusal(
                verdict, state.session.type, self.db.clock.now(), self.settings.automation_network_retry
            )
            if isinstance(next, Again):
                await self._wait(state, why, next.after, number, last_activity_at=stood_at)
            if is_chat:
                return await self._unanswered(state, why)

            def note(connection: Connection, now: datetime) -> None:
                self.records.end_round(connection, state.session.id, number, now=None, error=why)

            await self.fence.end(SessionEndReason.ERROR, why, note)
            return {"end": SessionEndReason.ERROR.value}
        seconds = self.db.clock.monotonic() - began
        over = await self._answered(state, number, answer, provider)
        self.controller.engine.emitter.emit(
            "session_round", "debug", session=state.session.id, round=number, reason=reason.value, seconds=seconds,
            input_tokens=answer.usage.input_tokens, output_tokens=answer.usage.output_tokens,
            automation_name=state.session.title if state.automation is not None else None,
        )  # fmt: skip
        return over

    def _bound(self, connection: Connection, state: State) -> str | None:
        """Why no further question is asked (T001-n)."""
        if state.automation is None:
            most = Limits().max_rounds
            if rounds_since_person(state.messages) < most:
                return None
            return f"it has asked {most} questions since the person spoke last, and may ask no more"
        automation, now = state.automation, self.db.present(connection)
        since = midnight(automation, now)
        spent = self.records.spent(connection, state.session.id, automation.id, since)
        return exhausted(automation.definition.limits, spent)

    def _question(self, state: State) -> Question:
        tools = self.running.tools.specs(state.allowed.names)
        if state.session.type is SessionType.AUTOMATION:
            tools = (*tools, FINISH_SPEC)
        label = state.session.title if state.automation is None else state.automation.name
        messages = (opening(state.session.type, planned_for(state)), *state.messages)
        return Question(messages, tools, label, state.option("model"))

    async def _begin(self, state: State) -> tuple[int, RoundReason, datetime | None]:
        """A question is about to be asked. To ask again after a wait is no activity: the watchdog counts from before it (T001-o). Returns the
        round, why it is begun, and the instant from which the watchdog counts."""
        number, again = state.session.rounds + 1, state.session.is_waiting_for_network

        def act(connection: Connection, now: datetime) -> tuple[int, RoundReason, datetime | None]:
            return number, self._begun(connection, now, state, number), state.session.last_activity_at if again else now

        return await self.fence.write(act, happened=not again, partial=None)

    def _begun(self, connection: Connection, now: datetime, state: State, number: int) -> RoundReason:
        session = state.session
        mine = self.records.rounds(connection, session.id, self.fence.activation)
        begun = mine[-1].reason if mine and mine[-1].number == number else self.resumed if not mine else None
        last = state.said[-1].message.role if state.said else None
        reason = round_reason(session.type, begun, session.rounds, last)
        self.records.begin_round(
            connection, session.id, number, session.automation_id, reason, self.fence.activation, now
        )
        return reason

    async def _listen(self, provider: Provider, question: Question) -> Answer:
        """Ask, and show what is said while it is said. Where that cannot be written the question is given up at once.

        Whatever arrives is activity, text or not (case B072). Where the answer does not come to its end ``_wait`` takes that back: a stream
        that is cut each time would keep a session from the watchdog for ever (T001-o).
        """
        heard = Heard()
        asking = asyncio.ensure_future(provider.ask(question, heard.say))
        showing = asyncio.ensure_future(self._show(heard))
        try:
            await asyncio.wait((asking, showing), return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                showing.result()  # it ends before the answer only by an error
            return await asking
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait((asking,))
            # what it is just writing is written before the answer is
            heard.end()
            await asyncio.wait((showing,))
            for done in (asking, showing):
                if not done.cancelled():
                    done.exception()  # whoever waits has it already

    async def _show(self, heard: Heard) -> None:
        while not heard.ended.is_set():
            await heard.news.wait()
            heard.news.clear()
            if heard.ended.is_set():
                return
            await self.fence.write(lambda *_: None, partial=clean(heard.text) or None)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(heard.ended.wait(), SHOWN_EVERY)

    async def _answered(self, state: State, number: int, answer: Answer, provider: Provider) -> dict[str, Any] | None:
        """Put an answer on record with its calls and what it cost, in one transaction; one with which it cannot go on ends an automation."""
        limits = state.limits
        bounded = limits is not None and limits.bounds_use
        session, usage = state.session, counted(answer, self._question(state), bounded)
        answer = storable(answer)
        meant = meaning(answer, session.type)
        cost = 0 if provider.prices is None else provider.prices.micros(usage)
        values: dict[str, Any] = {
            "rounds": number, "input_tokens": session.input_tokens + usage.input_tokens, "output_tokens": session.output_tokens + usage.output_tokens,
            "cost_micros": session.cost_micros + cost, "crashes": 0, "partial": None, "is_waiting_for_network": False, "provider": provider.name,
        }  # fmt: skip
        asked = () if meant.error is not None else answer.calls
        message = Message(Role.ASSISTANT, answer.text, asked)

        def act(connection: Connection, now: datetime) -> None:
            self.records.reply(connection, session.id, message, now, number, state.last)
            if asked:
                self.records.ask_calls(connection, session.id, number, meant.calls, now)
            self.records.end_round(
                connection, session.id, number, now=now, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens,
                cost_micros=cost, error=meant.error,
            )  # fmt: skip

        if meant.error is not None and session.type is SessionType.AUTOMATION:
            await self.fence.end(SessionEndReason.ERROR, meant.error, act, **values)
            return {"end": SessionEndReason.ERROR.value}
        await self.fence.write(act, **values)
        return None

    # ------------------------------------------------------------------ no answer

    async def _wait(self, state: State, why: str, seconds: float, number: int | None = None, **values: Any) -> None:
        """Put the job down; then the same question is asked again. Raises Snooze. ``number``: of the round that got no answer; ``values``: of the
        session's row."""

        def act(connection: Connection, now: datetime) -> None:
            if number is not None:
                self.records.end_round(connection, state.session.id, number, now=None, error=why)

        await self.fence.write(act, happened=False, is_waiting_for_network=True, partial=None, **values)
        if not state.session.is_waiting_for_network:
            self._tell_waits(state, why)
        raise Snooze(why, after=seconds)

    async def _unanswered(self, state: State, why: str) -> dict[str, Any] | None:
        """A chat gets no answer: its person is told why, and nothing is tried again by itself (R001-17)."""
        number = state.session.rounds + 1

        def act(connection: Connection, now: datetime) -> bool:
            if not self._put_away(connection, state):
                return False
            self._begun(connection, now, state, number)
            self.records.end_round(connection, state.session.id, number, now=None, error=why)
            return True

        if not await self.fence.write(act, happened=False, partial=None):
            return None
        self._tell_waits(state, why)
        return {"unanswered": why}

    def _tell_waits(self, state: State, why: str) -> None:
        self.controller.engine.emitter.emit("session_waits", "warning", session=state.session.id, reason=why)


class Heard:
    """What the model has said so far of one answer."""

    def __init__(self) -> None:
        self.text = ""
        self.news, self.ended = asyncio.Event(), asyncio.Event()

    def say(self, piece: str) -> None:
        self.text += piece
        self.news.set()

    def end(self) -> None:
        self.ended.set()
        self.news.set()


#: More tokens than this are said by nobody who counts.
MOST_TOKENS = 2**31 - 1


def counted(answer: Answer, question: Question, bounded: bool) -> Usage:
    """What an answer used. What its provider does not tell, of either side, is guessed from the texts, four characters a token: a bound in tokens
    or cents holds all the same. ``bounded``: there is such a bound, so that "none" is not believed."""
    u, believed = answer.usage, answer.usage.is_complete and not bounded

    def side(told: int, characters: int) -> int:
        return min(max(0, told), MOST_TOKENS) if told > 0 or believed else -(-characters // 4)

    asked = sum(len(m.text) + sum(len(str(c.arguments)) for c in m.calls) for m in question.messages)
    said = len(answer.text) + sum(len(c.name) + len(str(c.arguments)) for c in answer.calls)
    return Usage(
        side(u.input_tokens, asked),
        side(u.output_tokens, said),
        believed or (u.is_complete and u.input_tokens > 0 < u.output_tokens),
    )


def planned_for(state: State) -> datetime | None:
    """The instant that an execution is for, as the clock of its schedule's zone shows it (UTC without one)."""
    if state.automation is None or state.session.scheduled_at is None:
        return None
    tz = getattr(state.automation.definition.schedule, "tz", None) or "UTC"
    return state.session.scheduled_at.astimezone(zone(tz))


def midnight(automation: Automation, now: datetime) -> datetime:
    """When the day of an automation began: in the zone of its schedule, else in UTC. Aware, in UTC."""
    schedule = automation.definition.schedule
    tz = schedule.tz if isinstance(schedule, CivilSchedule) else "UTC"
    return instant_on(local_date(now, tz), time(), tz).astimezone(UTC)


def storable(answer: Answer) -> Answer:
    """An answer as both databases store it: a call with arguments that neither does is one whose arguments are wrong."""
    calls = tuple(_storable(call) for call in answer.calls)
    return replace(answer, text=clean(answer.text), calls=calls)


def _storable(call: ToolCall) -> ToolCall:
    ident, name, problem = clean(call.id), clean(call.name), clean(call.problem)
    try:
        check_value(dict(call.arguments), "")
    except InvalidArgument as error:
        return ToolCall(ident, name, {}, problem or clean(str(error)))
    return replace(call, id=ident, name=name, problem=problem)
