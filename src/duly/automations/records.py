"""Every statement about what is said and done in sessions: messages, calls of tools, rounds.

What a running session writes here stands behind ``SessionStore.touch`` in the same transaction, so that nobody writes who does not have the
slot. Numbers of calls and rounds count from 1, without gaps; positions of messages from 1, with a gap where one moved behind an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, func, insert, literal, null, or_, select, update

from duly.automations.plan import Spent
from duly.automations.protocol import unanswered
from duly.automations.providers.base import Message, Original, Role, ToolCall, Usage
from duly.automations.session import CALL_LIFECYCLE, CallStatus, RoundReason
from duly.automations.tables import ai_calls, ai_messages, ai_rounds, ai_sessions, automation_skips
from duly.jobs.store import FAR
from duly.kernel.words import word_of
from duly.storage.database import Database

M, C, R = ai_messages.c, ai_calls.c, ai_rounds.c


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool as its row says. ``number`` counts within the session; the two are the key of its effect."""

    session_id: int
    number: int
    round: int
    call_id: str
    tool: str
    arguments: dict[str, Any]
    status: CallStatus
    result: str | None = None
    job_id: int | None = None
    asked_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def key(self) -> str:
        """The idempotency key of the effect of this call."""
        return f"session-{self.session_id}-call-{self.number}"

    @property
    def is_open(self) -> bool:
        """Is its result not there yet?"""
        return self.status in (CallStatus.ASKED, CallStatus.CALLED, CallStatus.WAITING)


@dataclass(frozen=True, slots=True)
class Said:
    """A message with its place."""

    position: int
    message: Message
    round: int | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Round:
    """A question and its answer, as its row says."""

    session_id: int
    number: int
    reason: RoundReason
    activation: str
    started_at: datetime
    answered_at: datetime | None
    input_tokens: int
    output_tokens: int
    cost_micros: int
    error: str | None
    #: How many answers to this question broke off in a row.
    unanswered: int = 0


class RecordStore:
    """Messages, calls and rounds."""

    def __init__(self, db: Database) -> None:
        self.db = db

    # ------------------------------------------------------------------ messages

    def said(self, connection: Connection, session_id: int, after: int = 0) -> list[Said]:
        """What was said in a session behind a position, in order."""
        query = (
            select(M.position, M.role, M.text, M.calls, M.call_id, M.round, M.created_at, M.original)
            .where(M.session_id == session_id, M.position > after).order_by(M.position)
        )  # fmt: skip
        return [Said(row.position, _message(row), row.round, row.created_at) for row in connection.execute(query)]

    def messages(self, connection: Connection, session_id: int) -> list[Message]:
        """The conversation of a session, in order."""
        return [one.message for one in self.said(connection, session_id)]

    def is_unanswered(self, connection: Connection, session_id: int) -> bool:
        """Is the model to be asked: has something been said, or were its calls answered, since it spoke last?"""
        query = select(M.role, M.text, M.calls, M.call_id, M.original).where(
            M.session_id == session_id, M.role != Role.SYSTEM.value
        )
        row = connection.execute(query.order_by(M.position.desc()).limit(1)).first()
        return row is not None and unanswered([_message(row)])

    def say(
        self, connection: Connection, session_id: int, messages: Sequence[Message], now: datetime, round: int | None = None
    ) -> int:  # fmt: skip
        """Add messages. Returns the position of the last. The session's row is locked by the caller (or new)."""
        last: int = connection.execute(select(func.coalesce(func.max(M.position), 0)).where(M.session_id == session_id)).scalar_one()  # fmt: skip
        rows = [
            {"session_id": session_id, "position": last + n, "role": m.role.value, "text": m.text.replace("\x00", ""), "calls": _calls(m) if m.calls else null(),
             "call_id": m.call_id, "round": round, "created_at": now,
             "original": null() if m.original is None else {"origin": m.original.origin, "message": m.original.message}}
            for n, m in enumerate(messages, 1)
        ]  # fmt: skip
        for row in rows:
            connection.execute(insert(ai_messages).values(**row))
        return last + len(rows)

    def reply(
        self, connection: Connection, session_id: int, message: Message, now: datetime, round: int, after: int
    ) -> int:  # fmt: skip
        """Add an answer or the result of a call. What people have said behind the position ``after`` was not answered by it, nor does it belong
        between a call and its result: it moves behind. Returns the position of the last message."""
        self.say(connection, session_id, [message], now, round)
        mine = M.session_id == session_id
        answered: int = connection.execute(select(func.max(M.position)).where(mine)).scalar_one()
        query = select(M.position).where(mine, M.position > after, M.position < answered, M.role == Role.USER.value)
        last = answered
        for position in list(connection.execute(query.order_by(M.position)).scalars()):
            last += 1
            connection.execute(update(ai_messages).where(mine, M.position == position).values(position=last))
        return last

    def last_position(self, connection: Connection, session_id: int) -> int:
        """The position of the last message; 0 where there is none."""
        query = select(func.coalesce(func.max(M.position), 0)).where(M.session_id == session_id)
        found: int = connection.execute(query).scalar_one()
        return found

    def copy_seed(self, connection: Connection, seed_id: int, session_id: int, now: datetime) -> None:
        """Give a new session what its automation begins with."""
        kept = [M.position, M.role, M.text, M.calls, M.call_id, M.round]
        query = select(literal(session_id), *kept, literal(now, M.created_at.type)).where(M.session_id == seed_id)
        names = ["session_id", *(column.name for column in kept), "created_at"]
        connection.execute(insert(ai_messages).from_select(names, query))

    def prune(self, connection: Connection, before: datetime, limit: int) -> int:
        """Forget sessions that ended before an instant, with all that was said in them, but the last planned one of each automation: what is
        planned next is computed from it. Returns how many."""
        s, later = ai_sessions.c, ai_sessions.alias().c
        newer = exists().where(
            later.automation_id == s.automation_id, later.trigger == "SCHEDULED", later.status == "ended", later.scheduled_at > s.scheduled_at
        )  # fmt: skip
        spare = or_(s.trigger.is_(None), s.trigger != "SCHEDULED", newer)
        query = select(s.id).where(s.status == "ended", s.ended_at < before, spare).order_by(s.id).limit(limit)
        gone = list(connection.execute(query).scalars())
        if gone:
            for column in (M.session_id, C.session_id, R.session_id, s.id):
                connection.execute(delete(column.table).where(column.in_(gone)))
        k, behind = automation_skips.c, automation_skips.alias().c
        further = exists().where(behind.automation_id == k.automation_id, behind.last_at > k.last_at)
        connection.execute(delete(automation_skips).where(and_(k.acted_at < before, further)))
        return len(gone)

    # ------------------------------------------------------------------ calls

    def calls(self, connection: Connection, session_id: int, round: int | None = None) -> list[Call]:
        """The calls of a session (of one round), in order."""
        query = select(ai_calls).where(C.session_id == session_id).order_by(C.number)
        if round is not None:
            query = query.where(C.round == round)
        return [_call(row) for row in connection.execute(query)]

    def open_calls(self, connection: Connection, session_id: int) -> list[Call]:
        """Calls whose result is not there yet, in order."""
        waiting = [s.value for s in (CallStatus.ASKED, CallStatus.CALLED, CallStatus.WAITING)]
        query = select(ai_calls).where(C.session_id == session_id, C.status.in_(waiting)).order_by(C.number)
        return [_call(row) for row in connection.execute(query)]

    def ask_calls(
        self, connection: Connection, session_id: int, round: int, asked: Sequence[ToolCall], now: datetime
    ) -> list[Call]:
        """Put on record what an answer asks for."""
        last: int = connection.execute(select(func.coalesce(func.max(C.number), 0)).where(C.session_id == session_id)).scalar_one()  # fmt: skip
        status = CALL_LIFECYCLE.target(None, "ask")
        made = []
        for number, call in enumerate(asked, last + 1):
            one = Call(session_id, number, round, call.id, call.name[:200], dict(call.shown), status, asked_at=now)
            connection.execute(insert(ai_calls).values(
                session_id=session_id, number=number, round=round, call_id=one.call_id, tool=one.tool, arguments=one.arguments, status=status.value,
                asked_at=now,
            ))  # fmt: skip
            made.append(one)
        return made

    def begin_call(self, connection: Connection, call: Call, now: datetime, timeout: float | None) -> None:
        """The function of a call is about to be called: until its result is there, the slot is not given to anybody else (R001-54).
        ``timeout``: its own, in seconds; so long it is not taken for silent."""
        until = None if timeout is None else now + timedelta(seconds=timeout)
        mine = C.session_id == call.session_id, C.number == call.number
        connection.execute(update(ai_calls).where(*mine).values(begun_at=now, may_take_until=until))

    def move_call(
        self, connection: Connection, call: Call, event: str, now: datetime, *, result: str | None = None, job_id: int | None = None
    ) -> Call:  # fmt: skip
        """Move a call on; ``result`` is what the model is told. Returns it as it stands then."""
        target = CALL_LIFECYCLE.target(call.status, event)
        values: dict[str, Any] = {"status": target.value}
        if result is not None:
            values |= {"result": result, "finished_at": now}
        if job_id is not None:
            values["job_id"] = job_id
        mine = C.session_id == call.session_id, C.number == call.number, C.status == call.status.value
        if connection.execute(update(ai_calls).where(*mine).values(**values)).rowcount != 1:
            raise RuntimeError(f"call {call.number} of session {call.session_id} is not {call.status}")
        query = select(ai_calls).where(C.session_id == call.session_id, C.number == call.number)
        return _call(connection.execute(query).one())

    def note_left(self, connection: Connection, call: Call) -> None:
        """The function of a call was given up, and goes on on its thread for as long as it likes."""
        mine = C.session_id == call.session_id, C.number == call.number
        connection.execute(update(ai_calls).where(*mine).values(may_take_until=FAR))

    # ------------------------------------------------------------------ rounds

    def rounds(self, connection: Connection, session_id: int, activation: str | None = None) -> list[Round]:
        """The rounds of a session (that were begun last in one activation), in order."""
        query = select(ai_rounds).where(R.session_id == session_id).order_by(R.number)
        if activation is not None:
            query = query.where(R.activation == activation)
        return [
            Round(row.session_id, row.number, word_of(RoundReason, row.reason), row.activation, row.started_at, row.answered_at, row.input_tokens,
                  row.output_tokens, row.cost_micros, row.error, row.unanswered or 0)
            for row in connection.execute(query)
        ]  # fmt: skip

    def begin_round(
        self, connection: Connection, session_id: int, number: int, automation_id: int | None, reason: RoundReason, activation: str, now: datetime,
        reserved: Usage = Usage(), cost_micros: int = 0,
    ) -> None:  # fmt: skip
        """A question is about to be asked. A round that was begun before and got no answer is begun again, under the same number. ``reserved``:
        what it may use is counted from here on, so that a crash in its middle leaves it counted; ``end_round`` puts it right."""
        again = update(ai_rounds).where(R.session_id == session_id, R.number == number)
        used = {
            "input_tokens": R.input_tokens + reserved.input_tokens, "output_tokens": R.output_tokens + reserved.output_tokens,
            "cost_micros": R.cost_micros + cost_micros,
        }  # fmt: skip
        if (
            connection.execute(
                again.values(activation=activation, started_at=now, reason=reason.value, **used)
            ).rowcount
            == 0
        ):
            connection.execute(insert(ai_rounds).values(
                session_id=session_id, number=number, automation_id=automation_id, reason=reason.value, activation=activation, started_at=now,
                input_tokens=reserved.input_tokens, output_tokens=reserved.output_tokens, cost_micros=cost_micros,
            ))  # fmt: skip

    def end_round(
        self, connection: Connection, session_id: int, number: int, *, now: datetime | None, input_tokens: int = 0, output_tokens: int = 0,
        cost_micros: int = 0, error: str | None = None, unanswered: int = 0,
    ) -> None:  # fmt: skip
        """Note the answer of a round, or (``now`` None) why it has none; what it used is added up, as each question is billed, less what was
        reserved for it. ``unanswered``: answers to it that broke off in a row."""
        values = {
            "unanswered": unanswered,
            "answered_at": now, "input_tokens": R.input_tokens + input_tokens, "output_tokens": R.output_tokens + output_tokens,
            "cost_micros": R.cost_micros + cost_micros, "error": error,
        }  # fmt: skip
        connection.execute(update(ai_rounds).where(R.session_id == session_id, R.number == number).values(**values))

    def round(self, connection: Connection, session_id: int, number: int) -> Round | None:
        """One round of a session."""
        return next((one for one in self.rounds(connection, session_id) if one.number == number), None)

    def spent(self, connection: Connection, session_id: int, automation_id: int | None, since: datetime) -> Spent:
        """What a session has used, and all sessions of its automation since an instant (the local midnight)."""
        answered = select(
            func.count(R.answered_at), func.coalesce(func.sum(R.input_tokens + R.output_tokens), 0), func.coalesce(func.sum(R.cost_micros), 0)
        ).where(R.session_id == session_id)  # fmt: skip
        rounds, tokens, cost = connection.execute(answered).one()
        calls = connection.execute(select(func.count()).select_from(ai_calls).where(C.session_id == session_id)).scalar_one()  # fmt: skip
        today, cost_today = 0, 0
        if automation_id is not None:
            of_day = select(
                func.coalesce(func.sum(R.input_tokens + R.output_tokens), 0), func.coalesce(func.sum(R.cost_micros), 0)
            ).where(R.automation_id == automation_id, R.started_at >= since)  # fmt: skip
            today, cost_today = connection.execute(of_day).one()
        return Spent(rounds, calls, int(tokens), int(cost), int(today), int(cost_today))


def _message(row: Any) -> Message:
    calls = tuple(
        ToolCall(c["id"], c["name"], c["arguments"], c.get("problem", ""), c.get("written", ""))
        for c in row.calls or ()
    )
    kept = row.original
    return Message(Role(row.role), row.text, calls, row.call_id, kept and Original(kept["origin"], kept["message"]))


def _calls(message: Message) -> list[dict[str, Any]]:
    return [
        {"id": c.id, "name": c.name, "arguments": dict(c.arguments)}
        | ({"problem": c.problem} if c.problem else {})
        | ({"written": c.written} if c.written else {})
        for c in message.calls
    ]


def _call(row: Any) -> Call:
    return Call(
        row.session_id, row.number, row.round, row.call_id, row.tool, row.arguments, word_of(CallStatus, row.status), row.result, row.job_id, row.asked_at,
        row.finished_at,
    )  # fmt: skip
