"""Calling a function from inside a run: async ones on the loop, plain ones on threads like those of plain handlers, and those that take a
session so that their effects and what is recorded of them are one commit.

The threads are daemons. A worker that stops leaves a plain function alone that does not end, as it does with plain handlers: the job is
given back, and what the thread writes later is refused by the fence. An executor's threads would keep the program alive instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, literal, select
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from duly.jobs.forgotten import all_awaited
from duly.jobs.loops import Threads
from duly.jobs.task import injected_parameters
from duly.kernel.binding import is_async
from duly.storage.database import Database

T = TypeVar("T")

#: The most plain functions that are called at once in a process, whatever the concurrency of queues.
MOST_THREADS = 64


class _Pool:
    def __init__(self) -> None:
        self.make()
        os.register_at_fork(after_in_child=self.make)

    def make(self) -> None:
        self.threads = Threads(MOST_THREADS)


_pool = _Pool()


async def on_a_thread(fn: Callable[[], Any]) -> Any:
    """What a plain function answers; raises what it raises."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def tell(answer: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((answer, error))

    def call() -> None:
        answer: Any = None
        raised: BaseException | None = None
        try:
            answer = fn()
        except BaseException as error:
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop has gone: nobody waits for it any more
            loop.call_soon_threadsafe(tell, answer, raised)

    _pool.threads.submit(contextvars.copy_context().run, call)
    answer, error = await ended
    if error is not None:
        raise error
    return answer


async def called(fn: Callable[[], Any], of: Callable[..., Any] | None, timeout: float | None) -> Any:
    """What a function answers. ``of``: the function itself, which says whether it is async. ``timeout``: seconds for an async one.

    Raises PermanentError where it has asked Duly for something and never awaited it."""
    with all_awaited():
        return await _called(fn, of, timeout)


async def _called(fn: Callable[[], Any], of: Callable[..., Any] | None, timeout: float | None) -> Any:
    if of is not None and is_async(of):
        async with asyncio.timeout(timeout):
            return await fn()
    answer = await on_a_thread(fn)
    if asyncio.iscoroutine(answer):  # a lambda around an async function is a plain one that answers so
        async with asyncio.timeout(timeout):
            return await answer
    return answer


def own(error: BaseException) -> BaseException:
    """What a function has raised: StopIteration cannot leave a coroutine, and arrives in a RuntimeError."""
    return error.__cause__ if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration) else error


def session_parameter(fn: Callable[..., Any]) -> tuple[str, str] | None:
    """The parameter of a function that gets a session, and of which kind (``session`` or ``async_session``)."""
    try:
        found = injected_parameters(fn)
    except ValueError:  # a built-in function shows no parameters
        return None
    return next(((name, kind) for name, kind in found.items() if kind.endswith("session")), None)


async def with_session(
    db: Database, fn: Callable[..., Any], parameter: str, kind: str, timeout: float | None, record: Callable[[Connection, Any], T]
) -> T:  # fmt: skip
    """What ``record`` makes of a function's answer: the function's effects in our database and that record are one commit.

    ``timeout``: seconds for an async one. Raises what either raises, and then nothing is written; DatabaseUnavailable where our database
    has gone away meanwhile.
    """
    if kind == "async_session":
        from sqlalchemy.ext.asyncio import AsyncSession

        async with AsyncSession(db.async_engine) as session:
            try:
                with all_awaited():
                    async with asyncio.timeout(timeout):
                        answer = await fn(**{parameter: session})
                recorded: T = await session.run_sync(lambda s: record(s.connection(), answer))
                await session.commit()
                return recorded
            except DBAPIError as error:
                lost = error  # its name is gone when the block ends
                await session.run_sync(lambda s: _raise_if_lost(db, s, lost))
                raise

    def call() -> T:
        from sqlalchemy.orm import Session

        with Session(db.session_engine) as session:
            try:
                with all_awaited():
                    answer = fn(**{parameter: session})
                done = record(session.connection(), answer)
                session.commit()
                return done
            except DBAPIError as error:
                _raise_if_lost(db, session, error)
                raise

    done: T = await on_a_thread(call)
    return done


def _raise_if_lost(db: Database, session: Any, error: DBAPIError) -> None:
    """Raise DatabaseUnavailable where our database has gone away under a function's session. Errors of a database of its own are its
    failures."""
    if error.connection_invalidated:
        try:
            lost = not session.in_transaction() or session.connection().invalidated
        except SQLAlchemyError:
            lost = True
        if lost:
            raise db.translated(error) from error
    elif isinstance(error, OperationalError | InterfaceError):
        db.read(lambda c: c.execute(select(literal(1))))
