"""Every error Duly raises, as one tree.

::

    DulyError
    ├── UsageError                  the caller can mend it: a value, a name, a session
    │   ├── InvalidArgument         one field is wrong (ValueError too)
    │   │   ├── InvalidPayload      a value inside a job's input cannot be carried
    │   │   └── UnreadableHere      this process cannot read it, and another may: newer code
    │   │       └── UnknownZone     an IANA time zone of which this machine has no data
    │   ├── UnknownName             no task, queue, workflow, destination, … has this name
    │   │   └── UnknownTask         no task of this name is defined here
    │   ├── UnsafeSession           an SQLite session whose savepoints would not hold
    │   └── KeyConflict             the idempotency key is taken by another job
    ├── NotFound                    there is no such job, queue, worker
    ├── WrongState                  the move is not in the lifecycle
    ├── DestinationUnavailable      a transport cannot hand anything over now: the outbox holds the destination
    ├── DatabaseError
    │   ├── DatabaseUnavailable     the database does not answer; trying again may help
    │   │   ├── DatabaseConflict    it answers: the transaction collided with another one and was rolled back
    │   │   └── DatabaseBusy        it answers: somebody else is writing in the SQLite file, and nothing was written
    │   ├── SchemaMissing           the tables are not there yet: run `duly migrate`
    │   ├── SchemaTooNew            the database was migrated by a newer Duly
    │   └── UnsuitableDatabase      the encoding of the database is not UTF8
    └── Signal                      raised by a handler to say how its run ended
        ├── PermanentError          failed, and trying again would not help
        │   ├── AlreadyDone         an idempotent function was called again and was told to raise then
        │   └── PayloadMismatch     an idempotency key was used for other arguments
        ├── Retry                   failed, try again after a delay of the handler's choice
        ├── Snooze                  not now: ask again later, no attempt used
        │   ├── InProgress          somebody else is doing what an idempotency key names
        │   └── StoreUnavailable    the store of idempotency keys does not answer
        └── Cancel                  stop: this job is not wanted any more

Messages are sentences that say what to do next; the data stands on the error, so nobody parses a message.
"""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta
from typing import Any

from duly.kernel.duration import REMEDY, Duration, parse_duration
from duly.kernel.masking import masked


def brief(error: BaseException) -> str:
    """An error in one line for logs: its type and the first line of its text.

    The lines after the first are where databases quote the row they refuse, and a log holds no data of jobs.
    """
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = ["(its text cannot be made)"]
    return masked(f"{type(error).__name__}: {lines[0] if lines else ''}"[:300])


class DulyError(Exception):
    """The root of every error Duly raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses take arguments of their own, which the default way of unpickling does not know.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[DulyError], args: tuple[Any, ...], facts: dict[str, Any]) -> DulyError:
    """An error as it was in the process that raised it."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class UsageError(DulyError):
    """The caller can mend this."""


class InvalidArgument(UsageError, ValueError):
    """One field has a value that cannot be used.

    ``field`` is its name as the caller wrote it, ``problem`` what is wrong with it, ``remedy`` what to do (may be empty).
    """

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        self.field, self.problem, self.remedy = field, problem, remedy
        super().__init__(f"{field}: {problem}" + (f" {remedy}" if remedy else ""))


class InvalidPayload(InvalidArgument):
    """A value inside a job's input cannot be carried; ``field`` is its path, such as ``items[2].price``."""


class UnreadableHere(InvalidArgument):
    """A definition that this process cannot read, and another one may: it was written by newer code. Whoever finds it leaves it to others."""

    def at(self, field: str) -> UnreadableHere:
        """The same about a field that is called otherwise."""
        return type(self)(field, self.problem, self.remedy)


class UnknownZone(UnreadableHere):
    """An IANA time zone of which this machine has no data. Other machines may have it, so what needs it is left to them."""


class UnknownName(UsageError, LookupError):
    """Nothing has this name, and the setting ``strict_names`` refuses such names. ``what``: the kind of thing, such as ``task``."""

    def __init__(self, what: str, name: str, message: str) -> None:
        self.what, self.name = what, name
        super().__init__(message)


class UnknownTask(UnknownName):
    """No task of this name is defined in this application."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        self.known = known
        hint = f" Known tasks: {', '.join(known[:8])}." if known else " No tasks are defined."
        super().__init__("task", name, f"no task is called {name!r}.{hint}")


class BlockingCallWarning(RuntimeWarning):
    """A call that waits for the database was made on a running event loop, which stands still meanwhile."""


class UnknownNameWarning(UserWarning):
    """A name was given that nothing has: a job would wait until a worker that defines its task starts."""


class UnsafeSession(UsageError):
    """A given session or connection cannot carry Duly's statements: SQLite's would lose or keep rows against its savepoints, PostgreSQL's is set
    so that texts, instants or operators mean something else."""


class KeyConflict(UsageError):
    """The idempotency key belongs to another job; ``job_id`` names that job.

    An enqueue raises it when that job is of another ``task``, and, if asked to, when its payload differs. A replay raises it whatever the payload: ``replayed`` is then
    the job that was to run again, else None.
    """

    def __init__(
        self,
        key: str,
        queue: str,
        job_id: int,
        replayed: int | None = None,
        task: str | None = None,
        wanted: str | None = None,
        pruned: str | None = None,
    ) -> None:
        self.key, self.queue, self.job_id, self.replayed, self.task = key, queue, job_id, replayed, task
        if task is not None:
            there = "" if pruned is None else f" ({pruned}, and pruned since)"
            super().__init__(
                f"key {key!r} on queue {queue!r} belongs to job {job_id} of task {task!r}{there}, so no job of task {wanted!r} was enqueued. "
                f"Use another key or another queue; duly keys show --jobs --queue {shlex.quote(queue)} {shlex.quote(key)} shows what holds it."
            )
            return
        if replayed is not None:
            super().__init__(
                f"job {replayed} cannot replay: its key {key!r} on queue {queue!r} is taken by job {job_id}. "
                f"Replay it if job {job_id} lets go of the key, or enqueue its input again under another key."
            )
            return
        super().__init__(
            f"key {key!r} on queue {queue!r} already belongs to job {job_id}, whose input differs. "
            "Use another key, or leave on_conflict at 'return' to be given that job."
        )


class NotFound(DulyError, LookupError):
    """There is no such thing, or it belongs to another tenant."""

    def __init__(self, what: str, ident: object) -> None:
        self.what, self.ident = what, ident
        super().__init__(f"there is no {what} {ident}.")


class WrongState(DulyError):
    """The move is not in the lifecycle: ``current`` is where the thing stands, ``event`` what was asked."""

    def __init__(self, what: str, current: str, event: str, allowed: tuple[str, ...] = ()) -> None:
        self.what, self.current, self.event, self.allowed = what, current, event, allowed
        hint = f" Allowed from: {', '.join(allowed)}." if allowed else ""
        super().__init__(f"{what} is {current}, so it cannot {event}.{hint}")


class DestinationUnavailable(DulyError):
    """Raised by a transport of the outbox that cannot hand over anything now, whatever the message is.

    The outbox holds the destination, uses no attempt, and probes. ``after``: seconds until it is worth asking again, where the
    other side said so. ``attention``: it will not pass by itself (a wrong address, a refused login): an operator must act. ``word``: what
    happened in a word without data (``404``), for events and lists; by default the type of the cause.
    """

    def __init__(self, problem: str, *, after: Duration | None = None, attention: bool = False, word: str = "") -> None:
        self.problem, self.attention, self.word = problem, attention, word
        self.after = None if after is None else _seconds("DestinationUnavailable.after", after)
        super().__init__(problem)


class DatabaseError(DulyError):
    """Something about the database."""


class DatabaseUnavailable(DatabaseError):
    """The database does not answer."""


class DatabaseConflict(DatabaseUnavailable):
    """A transaction collided with another one (a deadlock, or a serialization failure) and was rolled back as a whole.

    Nothing is wrong with the database. Trying again helps, which is why whoever waits for an outage to end does so here.
    """


class DatabaseBusy(DatabaseUnavailable):
    """Somebody else has been writing in the SQLite file for longer than a writer waits. Nothing was written; trying again helps."""


class SchemaMissing(DatabaseError):
    """The tables of Duly are not in this database, or are too old.

    ``database``: the database itself, for who can migrate it; None for tables that a migration does not make. It stays in the process.
    """

    database: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # connections and a password do not travel
        return _rebuilt, (type(self), self.args, {k: v for k, v in self.__dict__.items() if k != "database"})


class UnsuitableDatabase(DatabaseError):
    """The database cannot hold what Duly writes: its encoding is not UTF8. Use another one."""


class SchemaTooNew(DatabaseError):
    """The database was migrated by a newer Duly that this version cannot work beside."""


class Signal(DulyError):
    """How a handler says, by raising, how its run ended."""


class PermanentError(Signal):
    """The job failed and trying again would not help (T003-d). Audited as JOB_FAILED_PERMANENT."""


#: No timedelta is longer than this number of seconds.
_LONGEST = timedelta.max.total_seconds()


def _seconds(field: str, value: object) -> float:
    """Seconds of a duration, as it is written anywhere; the text of a Retry-After header is one, too.

    A provider's absurd number is no mistake of the handler: a number of any size is taken, and capped where the job waits (B067).
    """
    try:
        if isinstance(value, int | float) and value > _LONGEST:
            return _LONGEST
        return parse_duration(value).total_seconds()
    except ValueError:
        raise InvalidArgument(field, f"is {value!r}.", REMEDY) from None


class Retry(Signal):
    """The job failed; try again.

    ``after``: how long to wait (seconds, a timedelta, or a text such as 5m) instead of the task's backoff, for example a provider's Retry-After.
    An attempt is used. Raised on the last attempt, the job ends as failed.
    """

    def __init__(self, message: str = "", *, after: Duration | None = None) -> None:
        self.after = None if after is None else _seconds("Retry.after", after)
        super().__init__(message or "the handler asked for a retry")


class Snooze(Signal):
    """Not now: the job goes back to wait and no attempt is used.

    Exactly one of ``until`` (an aware instant) and ``after`` (seconds, a timedelta, or a text such as 5m).
    """

    def __init__(self, message: str = "", *, until: datetime | None = None, after: Duration | None = None) -> None:
        if (until is None) == (after is None):
            raise InvalidArgument("Snooze", "give exactly one of until= and after=.")
        if until is not None and (not isinstance(until, datetime) or until.tzinfo is None):
            raise InvalidArgument("Snooze.until", f"is {until!r}; it must be a datetime with a time zone.")
        self.until = until
        self.after = None if after is None else _seconds("Snooze.after", after)
        super().__init__(message or "the handler asked to be run later")


class AlreadyDone(PermanentError):
    """What an idempotency key names was done before (``on_duplicate="raise"``); ``result`` is what came of it then."""

    def __init__(self, task: str, result: Any) -> None:
        self.task, self.result = task, result
        super().__init__(f"{task} was done before under this idempotency key.")


class PayloadMismatch(PermanentError):
    """An idempotency key was used for other arguments before; nothing was run."""

    def __init__(self, task: str) -> None:
        self.task = task
        super().__init__(
            f"{task} was called with this idempotency key before, with other arguments. Use another key, or repeat the same call."
        )


class InProgress(Snooze):
    """Somebody else is doing what an idempotency key names; ``after`` says in how many seconds to ask again.

    Inside a job it puts the job back to wait, so the duplicate is neither run nor dropped (T004-d).
    """

    def __init__(self, task: str, after: float) -> None:
        self.task = task
        super().__init__(f"{task} is in progress under this idempotency key.", after=after)


class StoreUnavailable(Snooze):
    """The store of idempotency keys does not answer, so it is not known whether the body may run: it was not (T004-g).

    Inside a job it puts the job back to wait for ``after`` seconds.
    """

    def __init__(self, problem: str, after: float = 10.0) -> None:
        self.problem = problem
        super().__init__(f"the idempotency store does not answer: {problem}", after=after)


class Cancel(Signal):
    """Stop: the job is not wanted any more. It ends as cancelled."""
