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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time
from typing import Any

from sqlalchemy import Connection

from duly.automations.automation import Automation, NoCall
from duly.automations.calls import Allowed, CallMaker
from duly.automations.context import fit, next_limit, size
from duly.automations.controller import SessionController
from duly.automations.fence import Fence
from duly.automations.host import Host
from duly.automations.plan import Limits, exhausted
from duly.automations.prices import Cost
from duly.automations.protocol import (
    FINISH_SPEC,
    NO_CALL,
    NO_CALL_TWICE,
    SAID_NOTHING,
    meaning,
    opening,
    said_nothing,
    uncut,
)
from duly.automations.providers.base import (
    Answer,
    Message,
    Owner,
    Provider,
    Question,
    Refused,
    Role,
    Stop,
    ToolCall,
    Usage,
)
from duly.automations.records import Said
from duly.automations.session import RoundReason, Session, SessionEndReason, SessionType, Status
from duly.automations.store import SlotLost
from duly.automations.tools import Toolbox
from duly.automations.turn import (
    PASSING,
    Acknowledge,
    Again,
    Ask,
    Complete,
    GiveUp,
    MakeCall,
    Rest,
    Shorten,
    after_refusal,
    next_turn,
    round_reason,
    rounds_since_person,
    same_failures,
    stuck,
)
from duly.jobs.run import Context, LeaseLost, UnreadableInput, clean
from duly.kernel.errors import Cancel, DatabaseError, InvalidArgument, PermanentError, Snooze, brief
from duly.kernel.localtime import instant_on, local_date, zone
from duly.kernel.payload import check_value
from duly.kernel.recurrence import CivilSchedule
from duly.kernel.verdict import Kind, Refusal, Verdict
from duly.kernel.words import is_known

#: Seconds between two writes of what is being said.
SHOWN_EVERY = 0.25
NO_PRICES = "the price of {model} at {provider} is not known, so a bound in cents cannot be held: set ai_prices (or ai_price_input and ai_price_output), or take limits.max_cents away"
#: The parts of a definition without which a session is not run.
CONCERNED = frozenset({"messages", "tools", "limits", "asking"})
NEWER = "A worker with newer code runs it."
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
    #: What answers of a model cost; None where nobody knows. Raises InvalidArgument.
    cost: Callable[[Provider, str | None], Cost | None]


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
        except (SlotLost, LeaseLost, Cancel, Snooze, DatabaseError, UnreadableInput):
            raise
        except Exception as error:  # a session that hangs would hold the slot
            told = f"unexpected error: {type(error).__name__}"  # its message may repeat what was said
            await rounds.fence.end(SessionEndReason.ERROR, brief(error), told=told)
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

    @property
    def context(self) -> int | None:
        """How long its conversation may be, in characters, as far as a refusal has shown it."""
        return (self.session.options or {}).get("context")

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
        #: The round whose conversation was shortened last.
        self._shortened = 0

    async def run(self) -> dict[str, Any]:
        """Turn after turn."""
        while True:
            state = await self.db.arun(self.db.read, self._read_all)
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

    def _read_all(self, connection: Connection) -> State:
        """What stands on record. What newer code has written and this program cannot read, or calls with tools that other workers have, is left
        to them: the session is not concerned (E1). Raises UnreadableInput."""
        try:
            state = self._read(connection)
            allowed, _ = state.allowed, state.context
            rounds, calls = (
                self.records.rounds(connection, state.session.id),
                self.records.calls(connection, state.session.id),
            )
            words = [*(one.reason for one in rounds), *(one.status for one in calls)]
            if unread := state.session.unread or next((str(word) for word in words if not is_known(word)), ""):
                raise ValueError(f"the word {unread!r}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problem = f"{self.fence.session_id} holds what this program cannot read: {brief(error)}"
            raise UnreadableInput("session", problem, NEWER) from None
        found = state.automation
        if found is not None and (parts := {name: why for name, why in found.unreadable.items() if name in CONCERNED}):
            name, why = next(iter(parts.items()))
            problem = f"of automation {found.name} holds what this program cannot read: {why}"
            raise UnreadableInput(name, problem, NEWER)
        missing = [name for name in allowed.names if self.running.tools.find(name) is None]
        elsewhere = self.store.defined_elsewhere(connection, missing) if missing else None
        if elsewhere is not None:
            raise UnreadableInput(
                "tools", f"hold {elsewhere!r}, which another worker defines and this one does not.", NEWER
            )
        return state

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
        """No job is wanted any more, unless something has been said meanwhile. What an automation's answer without a call means is its
        definition's (``no_call``)."""
        no_call = NoCall.WAIT if state.automation is None else state.automation.definition.no_call
        answered = state.messages[-1:] and state.messages[-1].role is Role.ASSISTANT
        if answered and no_call is NoCall.COMPLETE:
            return await self._end(SessionEndReason.COMPLETED, state.messages[-1].text)
        if answered and no_call is NoCall.ASK:
            if any(m.role is Role.USER and m.text == NO_CALL for m in state.messages[-2:]):
                return await self._end(SessionEndReason.ERROR, NO_CALL_TWICE)

            def ask(connection: Connection, now: datetime) -> None:
                if self.records.last_position(connection, state.session.id) == state.last:
                    self.records.say(connection, state.session.id, [Message(Role.USER, NO_CALL)], now)

            await self.fence.write(ask)
            return None

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

        every = await self.db.arun(self.db.read, lambda c: self.records.calls(c, state.session.id))
        call = [one for one in every if one.round == answer.round][turn.row]
        failures = same_failures(every, call)
        asked = answer.message.calls[turn.place]
        await self.calls.make(state.session, call, asked, state.allowed, after=state.answered, failures=failures)

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
        limits, model = state.limits, state.option("model")
        try:
            cost = self.running.cost(provider, model)
        except InvalidArgument as error:
            return await self._end(SessionEndReason.ERROR, str(error))
        if limits is not None and limits.bounds_cents and cost is None:
            named = model or getattr(provider, "model", "") or "its model"
            return await self._end(SessionEndReason.ERROR, NO_PRICES.format(model=named, provider=provider.name))
        if not await provider.is_reachable():
            if is_chat:
                return await self._unanswered(state, NO_NETWORK)
            await self._wait(state, NO_NETWORK, self.settings.automation_network_retry)
        question = self._question(state)
        reserved = Billed.of(Usage(guessed(question), self._longest(question)), cost)
        begun = await self._begin(state, reserved)
        began, heard = self.db.clock.monotonic(), Heard()
        try:
            answer = await self._listen(provider, question, heard)
        except Refusal as refused:
            return await self._refused(state, question, begun, refused, heard, reserved, cost)
        seconds = self.db.clock.monotonic() - began
        usage = counted(answer, question, limits is not None)
        used = Billed.of(usage, cost)
        over = await self._answered(state, begun, answer, provider, used, reserved)
        self.controller.engine.emitter.emit(
            "session_round", "debug", session=state.session.id, round=begun.number, reason=begun.reason.value, seconds=seconds,
            input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cents=used.cost / 1e6,
            automation_name=state.session.title if state.automation is not None else None,
        )  # fmt: skip
        return over

    def _longest(self, question: Question) -> int:
        """The most tokens that an answer may have."""
        return question.max_tokens or self.settings.ai_max_tokens

    async def _refused(
        self, state: State, question: Question, begun: Begun, refused: Refusal, heard: Heard, reserved: Billed, cost: Cost | None
    ) -> dict[str, Any] | None:  # fmt: skip
        """A question got no answer: what it has used all the same is counted, and what follows is done. ``told`` is what events, jobs and the audit
        trail say; the provider's own sentence may quote the conversation, and stands in the session alone."""
        verdict, session = refused.verdict, state.session
        told = verdict.reason or f"the AI refused ({verdict.kind.value})"
        if heard.pieces and verdict.kind in PASSING:  # it had begun to answer, and that is billed
            refused = _as_unknown(refused, replace(verdict, kind=Kind.UNKNOWN))
            verdict = refused.verdict
        is_billed = verdict.kind is Kind.UNKNOWN or heard.pieces > 0
        unanswered = begun.unanswered + 1 if is_billed else begun.unanswered
        most = self._most_unanswered(state)
        next = after_refusal(
            refused, session.type, self.db.clock.now(), self.settings.automation_network_retry,
            unanswered=unanswered, most=most, is_short=self._shortened == begun.number,
        )  # fmt: skip
        if isinstance(next, GiveUp) and next.why:
            told = f"{next.why}: {told}"
        said = getattr(refused, "said", "")
        why = f"{told}: {said}" if said else told
        used = Billed.of(broken(refused, heard, reserved.usage) if is_billed else Usage(), cost)

        def note(connection: Connection, now: datetime) -> None:
            off = used.less(reserved)
            self.records.end_round(
                connection, session.id, begun.number, now=None, error=why, unanswered=unanswered, input_tokens=off.usage.input_tokens,
                output_tokens=off.usage.output_tokens, cost_micros=off.cost,
            )  # fmt: skip

        values = used.of_session(session)
        if is_billed:
            self.controller.engine.emitter.emit(
                "session_broke_off", "warning", session=session.id, round=begun.number, times=unanswered, most=most, reason=told,
                after=next.after if isinstance(next, Again) else None, input_tokens=used.usage.input_tokens, output_tokens=used.usage.output_tokens,
                cents=used.cost / 1e6, automation_name=session.title if state.automation is not None else None,
            )  # fmt: skip
        if isinstance(next, Shorten):
            limit = next_limit(question.messages, getattr(refused, "context_limit", None))
            if size(fit(question.messages, limit)) < size(question.messages):
                self._shortened = begun.number
                options = {**(session.options or {}), "context": limit}
                await self.fence.write(lambda c, now: note(c, now), partial=None, options=options, **values)
                self.controller.engine.emitter.emit(
                    "session_shortened", "warning", session=session.id, round=begun.number, characters=limit
                )
                return None
            next = GiveUp()
        if isinstance(next, Again):
            await self._wait(state, told, next.after, note, last_activity_at=begun.stood_at, **values)
        if session.type is SessionType.CHAT:
            await self.fence.write(lambda c, now: note(c, now), happened=False, partial=None, **values)
            return await self._unanswered(state, why, told)
        await self.fence.end(SessionEndReason.ERROR, why, note, told=told, **values)
        return {"end": SessionEndReason.ERROR.value}

    def _most_unanswered(self, state: State) -> int:
        own = None if state.automation is None else state.automation.definition.max_unanswered
        return own or self.settings.automation_max_unanswered

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
        limits = automation.definition.limits
        usual = self.settings.automation_max_tokens_per_day
        if limits.max_tokens_per_day is None and usual and spent.tokens_today >= usual:
            return (
                f"it has used {spent.tokens_today:,} tokens today, and may use {usual:,} "
                "(automation_max_tokens_per_day; limits.max_tokens_per_day of the automation goes before it)"
            )
        return exhausted(limits, spent) or stuck(self.records.calls(connection, state.session.id))

    def _question(self, state: State) -> Question:
        tools = self.running.tools.specs(state.allowed.names)
        if state.session.type is SessionType.AUTOMATION:
            tools = (*tools, FINISH_SPEC)
        label = state.session.title if state.automation is None else state.automation.name
        # an answer that says nothing is told to nobody: APIs refuse the conversation that holds one
        said = (message for message in state.messages if not message.is_empty)
        messages = fit((opening(state.session.type, planned_for(state)), *said), state.context)
        return Question(
            messages, tools, label, state.option("model"), state.option("max_tokens"), state.option("temperature")
        )

    async def _begin(self, state: State, reserved: Billed) -> Begun:
        """A question is about to be asked, and what it may use is counted from here on (R001-50): a crash in its middle leaves it counted. To
        ask again after a wait is no activity: the watchdog counts from before it (T001-o)."""
        session, number, again = state.session, state.session.rounds + 1, state.session.is_waiting_for_network

        def act(connection: Connection, now: datetime) -> Begun:
            reason = self._begun(connection, now, state, number, reserved)
            known = self.records.round(connection, session.id, number)
            return Begun(number, reason, session.last_activity_at if again else now, known.unanswered if known else 0)

        return await self.fence.write(act, happened=not again, partial=None, **reserved.of_session(session))

    def _begun(
        self, connection: Connection, now: datetime, state: State, number: int, reserved: Billed | None = None
    ) -> RoundReason:
        session = state.session
        mine = self.records.rounds(connection, session.id, self.fence.activation)
        begun = mine[-1].reason if mine and mine[-1].number == number else self.resumed if not mine else None
        last = state.said[-1].message.role if state.said else None
        reason = round_reason(session.type, begun, session.rounds, last)
        used = reserved or Billed()
        self.records.begin_round(
            connection,
            session.id,
            number,
            session.automation_id,
            reason,
            self.fence.activation,
            now,
            used.usage,
            used.cost,
        )
        return reason

    async def _listen(self, provider: Provider, question: Question, heard: Heard) -> Answer:
        """Ask, and show what is said while it is said. Where that cannot be written the question is given up at once.

        Whatever arrives is activity, text or not (case B072). Where the answer does not come to its end ``_wait`` takes that back: a stream
        that is cut each time would keep a session from the watchdog for ever (T001-o).
        """
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

    async def _answered(
        self, state: State, begun: Begun, answer: Answer, provider: Provider, used: Billed, reserved: Billed
    ) -> dict[str, Any] | None:
        """Put an answer on record with its calls and what it cost, in one transaction; one with which it cannot go on ends an automation."""
        session, number = state.session, begun.number
        answer = storable(uncut(answer))
        meant = meaning(answer, session.type)
        asked = () if meant.error is not None else answer.calls
        nothing = said_nothing(replace(answer, calls=asked))
        is_held_back = answer.stop is Stop.FILTERED  # it would be again
        again = nothing is not None and not is_held_back and not await self._said_nothing_before(state, number)
        error = nothing if nothing is not None and not is_held_back else meant.error
        values: dict[str, Any] = {
            **used.of_session(session), "rounds": number, "crashes": 0, "partial": None, "is_waiting_for_network": False, "provider": provider.name,
        }  # fmt: skip
        # as the provider sent it, where all of it is on record
        original = answer.original if asked == answer.calls else None
        message = Message(Role.ASSISTANT, answer.text, asked, original=original)

        def act(connection: Connection, now: datetime) -> bool:
            if not message.is_empty:  # nothing empty is stored: it would be sent along from then on
                self.records.reply(connection, session.id, message, now, number, state.last)
            if asked:
                self.records.ask_calls(connection, session.id, number, meant.calls, now)
            off = used.less(reserved)
            self.records.end_round(
                connection, session.id, number, now=now, input_tokens=off.usage.input_tokens, output_tokens=off.usage.output_tokens,
                cost_micros=off.cost, error=error,
            )  # fmt: skip
            silent = nothing is not None and not again and session.type is SessionType.CHAT
            return silent and self._put_away(connection, state)

        if error is not None and not again and session.type is SessionType.AUTOMATION:
            await self.fence.end(SessionEndReason.ERROR, error, act, **values)
            return {"end": SessionEndReason.ERROR.value}
        if await self.fence.write(act, **values) and nothing is not None:
            self._tell_waits(state, error or nothing)
            return {"unanswered": error or nothing}
        return None

    async def _said_nothing_before(self, state: State, number: int) -> bool:
        """Did the last answer hold nothing, too, and has nobody spoken since?"""
        before = await self.db.arun(self.db.read, lambda c: self.records.round(c, state.session.id, number - 1))
        if before is None or not (before.error or "").startswith(SAID_NOTHING):
            return False
        return not state.said or state.said[-1].created_at <= before.started_at

    # ------------------------------------------------------------------ no answer

    async def _wait(
        self, state: State, told: str, seconds: float, note: Callable[[Connection, datetime], None] | None = None, **values: Any
    ) -> None:  # fmt: skip
        """Put the job down; then the same question is asked again. Raises Snooze. ``note``: what is written of the round that got no answer;
        ``values``: of the session's row."""

        def act(connection: Connection, now: datetime) -> None:
            if note is not None:
                note(connection, now)

        await self.fence.write(act, happened=False, is_waiting_for_network=True, partial=None, **values)
        if not state.session.is_waiting_for_network:
            self._tell_waits(state, told)
        raise Snooze(told, after=seconds)

    async def _unanswered(self, state: State, why: str, told: str | None = None) -> dict[str, Any] | None:
        """A chat gets no answer: its person is told why, and nothing is tried again by itself (R001-17). ``told``: what others are told."""
        number = state.session.rounds + 1

        def act(connection: Connection, now: datetime) -> bool:
            if not self._put_away(connection, state):
                return False
            self._begun(connection, now, state, number)
            self.records.end_round(connection, state.session.id, number, now=None, error=why)
            return True

        if not await self.fence.write(act, happened=False, partial=None):
            return None
        self._tell_waits(state, told or why)
        return {"unanswered": told or why}

    def _tell_waits(self, state: State, why: str) -> None:
        self.controller.engine.emitter.emit("session_waits", "warning", session=state.session.id, reason=why)


class Heard:
    """What the model has said so far of one answer."""

    def __init__(self) -> None:
        self.text, self.pieces = "", 0
        self.news, self.ended = asyncio.Event(), asyncio.Event()

    def say(self, piece: str) -> None:
        self.text += piece
        self.pieces += 1
        self.news.set()

    def end(self) -> None:
        self.ended.set()
        self.news.set()

    @property
    def tokens(self) -> int:
        """About how many: four characters each, and at least one for each piece, for a piece may be of something that is no text."""
        return max(self.pieces, -(-len(self.text) // 4))


@dataclass(frozen=True, slots=True)
class Begun:
    """A round that was begun. ``stood_at``: the instant from which the watchdog counts; ``unanswered``: answers that broke off in a row."""

    number: int
    reason: RoundReason
    stood_at: datetime | None
    unanswered: int


@dataclass(frozen=True, slots=True)
class Billed:
    """What was used, and what that cost in millionths of a cent."""

    usage: Usage = field(default_factory=Usage)
    cost: int = 0

    @classmethod
    def of(cls, usage: Usage, cost: Cost | None) -> Billed:
        return cls(usage, 0 if cost is None else cost(usage))

    def less(self, other: Billed) -> Billed:
        mine, theirs = self.usage, other.usage
        off = Usage(mine.input_tokens - theirs.input_tokens, mine.output_tokens - theirs.output_tokens)
        return Billed(off, self.cost - other.cost)

    def of_session(self, session: Session) -> dict[str, Any]:
        """What the row of a session says when this is added."""
        return {
            "input_tokens": session.input_tokens + self.usage.input_tokens, "output_tokens": session.output_tokens + self.usage.output_tokens,
            "cost_micros": session.cost_micros + self.cost,
        }  # fmt: skip


def broken(refused: Refusal, heard: Heard, reserved: Usage) -> Usage:
    """What an answer that broke off is counted as: what was told and heard. One of which nothing was heard counts as the longest that it may
    have been: nobody knows, and a bound that counts less than what is billed is none."""
    told: Usage | None = getattr(refused, "usage", None)
    asked = told.input_tokens if told is not None and told.input_tokens > 0 else reserved.input_tokens
    said = max(heard.tokens, told.output_tokens if told is not None else 0)
    return Usage(asked, min(said or reserved.output_tokens, MOST_TOKENS), False)


def _as_unknown(refused: Refusal, verdict: Verdict) -> Refusal:
    known = getattr(refused, "owner", Owner.SERVER)
    return Refused(verdict, owner=known, said=getattr(refused, "said", ""), usage=getattr(refused, "usage", None))


def guessed(question: Question) -> int:
    """About how many tokens a question has: four characters each, its tools included."""
    tools = sum(len(t.name) + len(t.description) + len(str(t.parameters)) for t in question.tools)
    return -(-(size(question.messages) + tools) // 4)


#: More tokens than this are said by nobody who counts.
MOST_TOKENS = 2**31 - 1


def counted(answer: Answer, question: Question, bounded: bool) -> Usage:
    """What an answer used. What its provider does not tell, of either side, is guessed from the texts, four characters a token: a bound in tokens
    or cents holds all the same. ``bounded``: there is such a bound, so that "none" is not believed."""
    u, believed = answer.usage, answer.usage.is_complete and not bounded

    def side(told: int, characters: int) -> int:
        return min(max(0, told), MOST_TOKENS) if told > 0 or believed else -(-characters // 4)

    said = len(answer.text) + sum(len(c.name) + len(str(c.arguments)) for c in answer.calls)
    return Usage(
        side(u.input_tokens, size(question.messages)),
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
    original = answer.original
    if original is not None:
        try:
            check_value(original.message, "")
        except InvalidArgument:
            original = None
    return replace(answer, text=clean(answer.text), calls=calls, original=original)


def _storable(call: ToolCall) -> ToolCall:
    ident, name, problem = clean(call.id), clean(call.name), clean(call.problem)
    call = replace(call, written=clean(call.written)[:20_000])
    try:
        check_value(dict(call.arguments), "")
    except InvalidArgument as error:
        return ToolCall(ident, name, {}, problem or clean(str(error)), call.written)
    return replace(call, id=ident, name=name, problem=problem)
