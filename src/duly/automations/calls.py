"""Making one call of a tool, so that it has its effect once whoever dies when.

How far a call has come is written before the next thing is done, and a call and its result are closed in one transaction, in which the
model's message of it is written too. What a tool raises is a result: the model reads it and goes on. Nothing of arguments or results is in
events and audit rows. Calls of one answer are made one after the other.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, select

from duly.automations.controller import ACTOR
from duly.automations.fence import Fence
from duly.automations.host import Host
from duly.automations.protocol import INTERRUPTED
from duly.automations.providers.base import Message, Role, ToolCall
from duly.automations.records import Call
from duly.automations.session import CallStatus, Session
from duly.automations.store import SlotLost
from duly.automations.tools import FunctionTool, TaskTool, Toolbox, ToolError
from duly.automations.turn import MOST_SAME
from duly.jobs.calling import called, own, with_session
from duly.jobs.codec import Arguments, encode_output
from duly.jobs.job import LIVE, Job
from duly.jobs.job import Status as JobStatus
from duly.jobs.run import LeaseLost, Settled, causing, clean, is_unawaited
from duly.jobs.settle import Settlement
from duly.jobs.store import FAR, RESUME
from duly.jobs.tables import job_keys
from duly.kernel.binding import is_async
from duly.kernel.errors import Cancel, DatabaseError, InvalidArgument
from duly.kernel.exception_group import decisive, leaves, others
from duly.kernel.masking import masked
from duly.kernel.rooms import is_of_a_room, whose

#: Audit action.
TOOL_CALLED = "TOOL_CALLED"
#: Seconds between two looks at a job that does not wake this one when it ends: it was made by the job that a crash took away.
LOOK_EVERY = 2.0
#: The longest message of an error that is told, in characters.
LONGEST_ERROR = 2_000
#: The most elements of a list or dict that are looked at for work that nobody has done.
MOST_LOOKED_AT = 1_000


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a session may call: names, and how many calls in all (None for no bound)."""

    names: Sequence[str] = ()
    max_calls: int | None = None


class CallMaker:
    """Makes the calls of one session."""

    def __init__(self, app: Host, fence: Fence, tools: Toolbox) -> None:
        self.app, self.fence, self.tools = app, fence, tools
        self.controller = fence.controller
        self.db, self.engine, self.records = fence.db, self.controller.engine, self.controller.records

    async def make(
        self, session: Session, call: Call, asked: ToolCall, allowed: Allowed, after: int, failures: int = 0
    ) -> None:
        """Bring a call on: to its end, or to where its job is waited for (Settled). ``asked``: the same as the model asked for it.
        ``after``: what people have said behind this position moves behind the result. ``failures``: how often the same call has failed before.

        Raises SlotLost, LeaseLost, Cancel, DatabaseUnavailable.
        """
        close = partial(self._close, session, call, after)
        if call.status is CallStatus.WAITING:
            await self._wait(session, call, after)
            return
        tool = self.tools.find(asked.name)
        if call.status is CallStatus.CALLED and not (isinstance(tool, FunctionTool) and tool.repeat):
            await close("lose", INTERRUPTED)
            return
        refused = "fail" if call.status is CallStatus.CALLED else "refuse"
        problem = self._problem(call, asked, tool, allowed)
        if problem is None and failures >= MOST_SAME:
            problem = f"this very call has failed {failures} times and is not made again: change the arguments, or go on without it"
        if problem is not None:
            written = f" (you wrote: {asked.written[:LONGEST_ERROR]})" if asked.written else ""
            await close(refused, f"refused: {problem}{written}")
            return
        try:
            if isinstance(tool, FunctionTool):
                text = tool.codec.encode(asked.arguments, self.engine.settings.max_payload)
                with causing(self.fence.job.claimed.id):  # what the function enqueues is known to come from here
                    await self._function(session, call, tool, tool.codec.decode(text), after)
                return
            assert isinstance(tool, TaskTool)
            own = self.fence.job.claimed.id
            with causing(own):
                new = self.app.prepare(tool.name, asked.arguments, tenant=session.tenant, parent=own, key=call.key)
            new.on_conflict = "apart"  # whatever job holds the key of a call, the call is made
        except InvalidArgument as wrong:
            await close(refused, f"refused: {clean(str(wrong))[:LONGEST_ERROR]}")
            return

        def act(connection: Connection, now: datetime) -> None:
            made = self.engine.maker.make_in(connection, [new])[0]
            self.records.move_call(connection, call, "enqueue", now, job_id=made.job.id)

        await self.fence.write(act, calls=session.calls + 1)
        self.db.bells.ring()

    def _problem(
        self, call: Call, asked: ToolCall, tool: FunctionTool | TaskTool | None, allowed: Allowed
    ) -> str | None:
        """Why a call is not made."""
        if asked.name not in allowed.names:
            return "this tool is not among those that you may call"
        if is_of_a_room(asked.name):  # an automation may be older than the rule
            return f"this is {whose(asked.name)}"
        if tool is None:
            return "this tool is not defined where this runs"
        if allowed.max_calls is not None and call.number > allowed.max_calls:
            return f"{allowed.max_calls} calls may be made in a run (limits.max_calls), and they have been"
        return asked.problem or None

    # ------------------------------------------------------------------ functions

    async def _function(
        self, session: Session, call: Call, tool: FunctionTool, arguments: Arguments, after: int
    ) -> None:
        fn = partial(tool.fn, *arguments.args, **arguments.kwargs)
        limit = self.engine.settings.max_payload
        if tool.session is not None:

            def record(connection: Connection, answer: Any) -> None:
                now = self.db.present(connection)
                self.fence.hold_to_finish(connection, calls=session.calls + 1)
                self._closed(connection, now, session, call, after, "do", result_text(finished(answer), limit))

            await self.fence.write(lambda c, now: self.records.begin_call(c, call, now, tool.timeout))
            try:
                await self._to_its_end(with_session(self.db, fn, *tool.session, tool.timeout, record), tool)
            except (DatabaseError, SlotLost, LeaseLost, Cancel, GeneratorExit):
                raise
            except BaseException as error:  # SystemExit too: the call fails, the worker goes on
                if isinstance(error, asyncio.CancelledError) and self.fence.is_interrupted():
                    raise
                await self._close(session, call, after, "fail", failure(own(error), tool.timeout, undone=True))
                return
            self._tell(session, call, CallStatus.DONE)
            return

        def ahead(connection: Connection, now: datetime) -> Call:
            self.records.begin_call(connection, call, now, tool.timeout)
            return self.records.move_call(connection, call, "call", now)

        made, behind = session.calls + 1 if call.status is CallStatus.ASKED else session.calls, len(self.fence.left)
        call = await self.fence.write(ahead, calls=made)
        event = "do"
        try:
            async with asyncio.timeout(tool.timeout):
                result = result_text(finished(await self._to_its_end(called(fn, tool.fn, None), tool)), limit)
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and self.fence.is_interrupted():
                raise
            event, result = "fail", failure(own(error), tool.timeout)
        await self._close(session, call, after, event, result, goes_on=len(self.fence.left) > behind)

    async def _to_its_end(self, work: Coroutine[Any, Any, Any], tool: FunctionTool) -> Any:
        """Wait for a function. A plain one on its thread cannot be stopped: where the session lost its slot it is waited for all the same, so
        that its result is on record, and the slot free when it has ended; after its timeout it goes on behind this (``Fence.left``)."""
        if is_async(tool.fn):
            return await work
        going = asyncio.ensure_future(outcome(work))
        try:
            answer, error = await asyncio.shield(going)
        except asyncio.CancelledError:
            if self.fence.job.reason != "cancel":
                self.fence.left.append(going)
                raise
            answer, error = await going
        if error is not None:
            raise error
        return answer

    # ------------------------------------------------------------------ tasks

    async def _wait(self, session: Session, call: Call, after: int) -> None:
        """Take the answer of a call's job; while there is none, put this job down until that one ends. No worker is held meanwhile."""
        assert call.job_id is not None
        claimed, jobs = self.fence.job.claimed, self.engine.store

        def act(connection: Connection, now: datetime) -> Settlement | CallStatus:
            assert call.job_id is not None
            job = self.engine.reader.get_many(connection, {call.job_id}).get(call.job_id)
            if job is None or job.status not in LIVE:
                jobs.wait_for(connection, claimed.id, ())  # it may have been due before
                ended = self._ended(connection, call.job_id) if job is None else None
                event, result = of_job(job, self.engine.settings.max_payload, ended)
                self.controller.store.touch(
                    connection, self.fence.session_id, self.fence.activation, last_activity_at=now
                )
                return self._closed(connection, now, session, call, after, event, result)
            jobs.wait_for(connection, claimed.id, [job.id])
            # the end of a child wakes its parent; one that an earlier job of this session made has another
            until = FAR if job.parent_id == claimed.id else now + timedelta(seconds=LOOK_EVERY)
            settlement = Settlement(
                claimed.id, claimed.token, "snooze", JobStatus.QUEUED, until=until, counted=False, afresh=True, on_child_failure=RESUME,
                parent_id=claimed.parent_id, key_scope=claimed.key_scope,
            )  # fmt: skip
            if not jobs.settle(connection, [settlement], ACTOR):
                raise LeaseLost(f"job {claimed.id} belongs to another worker by now")
            return settlement

        came = await self.fence.write(act, happened=False)
        if isinstance(came, Settlement):
            raise Settled(came)
        self._tell(session, call, came)

    def _ended(self, connection: Connection, job_id: int) -> JobStatus | None:
        """How a job ended whose row is gone: its key's row may know."""
        known = select(job_keys.c.ended).where(job_keys.c.job_id == job_id, job_keys.c.ended.is_not(None))
        ended = connection.execute(known).scalars().first()
        return None if ended is None else JobStatus(ended)

    # ------------------------------------------------------------------ its end

    async def _close(
        self, session: Session, call: Call, after: int, event: str, result: str, goes_on: bool = False
    ) -> None:
        """``goes_on``: its function was given up after its timeout, and its thread goes on: that keeps the slot, too (R001-54)."""

        def act(connection: Connection, now: datetime) -> CallStatus:
            if goes_on:
                self.records.note_left(connection, call)
            return self._closed(connection, now, session, call, after, event, result)

        self._tell(session, call, await self.fence.finish(act))

    def _closed(
        self, connection: Connection, now: datetime, session: Session, call: Call, after: int, event: str, result: str
    ) -> CallStatus:
        """Write what came of a call, and tell the model, in the transaction of ``connection``, which is fenced."""
        # the record of the call keeps the whole for people
        status = self.records.move_call(connection, call, event, now, result=result).status
        told = bounded(result, self.engine.settings.ai_max_tool_result)
        said = Message(Role.TOOL, told, call_id=call.call_id)
        self.records.reply(connection, session.id, said, now, call.round, after)
        level = "info" if status is CallStatus.DONE else "warning"
        shown = {"tool": self._shown(call.tool), "number": call.number, "status": status.value}
        self.controller.store.audit(connection, session, ACTOR, TOOL_CALLED, level, **shown)
        return status

    def _tell(self, session: Session, call: Call, status: CallStatus) -> None:
        self.engine.emitter.emit(
            "session_call", "info", session=session.id, tool=self._shown(call.tool), status=status.value
        )

    def _shown(self, name: str) -> str:
        """A tool's name for the trail; one that the model made up is something that it said."""
        return name if is_of_a_room(name) or self.tools.find(name) is not None else "(unknown)"


async def outcome(work: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """What a function answers or raises, as values: a task that raises SystemExit ends the loop."""
    try:
        return await work, None
    except BaseException as error:
        return None, error


def finished(answer: Any) -> Any:
    """What a tool answered. Raises TypeError for work that it returned instead of doing it, alone or inside a list or a dict: the model must not
    be told that it is done."""
    found = undone_in(answer)
    if found is not None:
        raise TypeError(
            f"it returned an object of type {type(found).__name__}: work that nobody has done. Await it, or return a list"
        )
    return answer


def undone_in(answer: Any, depth: int = 4) -> Any:
    """The first awaitable, generator or other unfinished work in what a tool answered; None where there is none. A coroutine is closed."""
    if is_unawaited(answer) or inspect.isgenerator(answer) or isinstance(answer, Future):
        return answer
    if depth and isinstance(answer, dict | list | tuple | set | frozenset):
        inner = list(answer.values() if isinstance(answer, dict) else answer)[:MOST_LOOKED_AT]
        return next((found for one in inner if (found := undone_in(one, depth - 1)) is not None), None)
    return None


def result_text(value: Any, limit: int) -> str:
    """What a tool answered, as JSON text of at most about ``limit`` bytes. What cannot be told is told to be so: the work is done."""
    if value is None:
        return "null"
    text, problem = encode_output(value, 1 << 62)
    if text is not None and "null" in text:
        text, problem = encode_output(_numbers(value), 1 << 62)
    return f"done; {problem}" if text is None else bounded(text, limit)


def _numbers(value: Any, depth: int = 32) -> Any:
    """The same with NaN and infinities as texts: JSON has no such numbers, and null would say that there is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not depth:
        return value
    if type(value) is dict:
        return {key: _numbers(inner, depth - 1) for key, inner in value.items()}
    return [_numbers(inner, depth - 1) for inner in value] if type(value) in (list, tuple) else value


def bounded(text: str, limit: int) -> str:
    """A text of at most about ``limit`` bytes, and a sentence on what was left out."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    left = len(encoded) - limit
    said = f"\n(cut: the first {limit:,} of {len(encoded):,} bytes; {left:,} were left out. Ask for less at once, such as one page or one item)"
    return encoded[:limit].decode(errors="ignore") + said


def failure(error: BaseException, timeout: float | None = None, undone: bool = False) -> str:
    """What the model is told of an error of a tool: its type and message, and of a ToolError the message alone. Of an error of a database only
    type and SQLSTATE: its text holds SQL and values of rows. ``undone``: what it wrote in our database was rolled back."""
    group, error = error, decisive(error)
    meant = next((leaf for leaf in leaves(group) if isinstance(leaf, ToolError)), None)
    if meant is not None:
        return f"failed: {masked(clean(str(meant))[:LONGEST_ERROR])}"
    of_database = next((f for leaf in leaves(group) if (f := database_error(leaf)) is not None), None)
    if of_database is not None:
        return f"failed: {of_database}"
    try:
        message = str(error) + others(group, error)
    except BaseException:
        message = "(the error's text cannot be made)"
    if isinstance(error, TimeoutError) and timeout is not None and not message:
        rest = "" if undone else "; it may or may not have done its work"
        return f"failed: it did not end within {timeout:g} s{rest}"
    return f"failed: {type(error).__name__}: {masked(clean(message)[:LONGEST_ERROR])}"


#: Packages whose errors repeat statements and rows.
_DATABASES = frozenset({"sqlalchemy", "psycopg", "psycopg2", "asyncpg", "sqlite3", "aiosqlite", "pymysql", "MySQLdb", "oracledb", "pyodbc"})  # fmt: skip
#: The names of a database's errors (PEP 249), as a job's record tells them.
_OF_DATABASES = frozenset(
    [
        "InterfaceError",
        "DatabaseError",
        "DataError",
        "OperationalError",
        "IntegrityError",
        "InternalError",
        "ProgrammingError",
        "NotSupportedError",
        "DBAPIError",
        "StatementError",
        "UniqueViolation",
        "ForeignKeyViolation",
        "CheckViolation",
        "NotNullViolation",
        "ExclusionViolation",
    ]
)


def database_error(error: BaseException) -> str | None:
    """Type and SQLSTATE of an error of a database, or of one that was raised for it; None for any other error."""
    seen: BaseException | None = error
    for _ in range(20):
        if seen is None:
            return None
        kinds = {kind.__module__.partition(".")[0] for kind in type(seen).__mro__}
        if kinds & _DATABASES or any(kind.__module__ == "django.db.utils" for kind in type(seen).__mro__):
            origin = getattr(seen, "orig", None) or seen.__cause__ or seen
            codes = (getattr(one, name, None) for one in (seen, origin) for name in ("sqlstate", "pgcode"))
            code = next((c for c in codes if isinstance(c, str) and c.isalnum()), "")
            return f"{type(error).__name__} of the database" + (f" (SQLSTATE {code})" if code else "")
        seen = seen.__cause__ if seen.__cause__ is not None and str(seen.__cause__)[:200] in str(seen) else None
    return None


def of_job(job: Job | None, limit: int, ended: JobStatus | None = None) -> tuple[str, str]:
    """(event, result) of a call whose job has ended; None where its row is gone. ``ended``: how it ended, as far as that is known all the same."""
    if (ended if job is None else job.status) is JobStatus.CANCELLED:
        return "fail", "failed: its job was cancelled"
    if job is None:
        if ended is JobStatus.SUCCEEDED:
            return "do", "done; its result is no longer kept"
        if ended is JobStatus.FAILED:
            return "fail", "failed; its error is no longer kept"
        return "fail", "failed: its job is not there any more, and nobody knows what came of it"
    if job.status is JobStatus.SUCCEEDED:
        return "do", result_text(job.output, limit)
    error = job.error or {}
    kind, message = str(error.get("type", "Error")), str(error.get("message", ""))
    if kind.rpartition(".")[2] in _OF_DATABASES or "[SQL:" in message or "\nDETAIL:" in message:
        return "fail", f"failed: {kind} of the database"
    words = message if kind == ToolError.__name__ else f"{kind}: {message}"
    return "fail", f"failed: {clean(words)[:LONGEST_ERROR]}"
