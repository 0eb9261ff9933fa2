"""Which names exist: those that this application defines, and those that a living worker or a job that has run makes known.

Asked where a job is enqueued by name, a schedule is set, a message addressed. A name that this application defines costs
nothing; others are looked up at most once in a while. Nothing decides by it unless ``strict_names`` is set: a worker that
defines the name may start later.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from duly.jobs.tables import jobs, jobs_done, queues, workers
from duly.kernel.errors import DatabaseError, UnknownName
from duly.kernel.events import Emitter
from duly.kernel.names import nearest, notice, unknown
from duly.kernel.rooms import is_of_a_room
from duly.storage.database import Database

#: Seconds for which names that were looked up are believed, and after which a name that was not found is looked up again.
KEEP, AGAIN = 60.0, 2.0
#: Workers that were seen so many seconds ago, or later, are alive.
ALIVE = 120.0
#: So many of the last jobs are looked at.
LAST = 2_000
#: Names that Duly's own rooms and workers define.
OWN = ("EMAIL_SEND", "ENGINE_RUN", "DULY_ALERT")
#: Queues that a command serves for itself, and no worker.
OWN_QUEUES = ("mail-now",)

Elsewhere = Callable[[Connection], Iterable[str]]


class Names:
    """Names as one application sees them."""

    def __init__(self, db: Database, emitter: Emitter) -> None:
        self.db, self.emitter = db, emitter
        #: What is looked up → (until when it is believed, when it was looked up, the names), on the monotonic clock.
        self._found: dict[str, tuple[float, float, frozenset[str]]] = {}
        #: When each unknown name was last told as an event.
        self._told: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def task(self, name: str, here: Collection[str]) -> str:
        """Warn of a task that nobody defines. See ``check``."""
        if name in here or name in OWN or is_of_a_room(name):
            return ""
        return self.check(
            "task",
            name,
            here,
            elsewhere=self._tasks,
            hint=_ran,
            remedy="The job waits until a worker that defines it starts.",
        )

    def queue(self, name: str, here: Collection[str]) -> str:
        """Warn of a queue that nobody works on. See ``check``."""
        if name in here or name in OWN_QUEUES:
            return ""
        return self.check(
            "queue",
            name,
            here,
            elsewhere=self._queues,
            remedy="The job waits until a worker that serves this queue starts.",
        )

    def acted_on(self, name: str, here: Collection[str], remedy: str) -> str:
        """Warn of a queue that somebody sets something for, or serves, that nothing uses, and whose name is near one in use.

        One may be set up before it is used, so a name like no other is no mistake. Never refuses: a pause must hold.
        """
        if name in here or name in OWN_QUEUES:
            return ""
        return self.check("queue", name, here, elsewhere=self._used, remedy=remedy, refuse=False, far=False)

    def check(
        self,
        what: str,
        name: str,
        here: Collection[str],
        *,
        elsewhere: Elsewhere | None = None,
        hint: Elsewhere | None = None,
        remedy: str = "",
        refuse: bool = True,
        far: bool = True,
    ) -> str:
        """Warn of a name that does not exist, or refuse it; returns the sentence, "" where the name is known.

        ``here``: the names that this application defines. ``elsewhere``: asks the database for those of others; ``hint``: for
        more that are known and are not offered. ``remedy``: the last sentence of the warning. ``far``: warn also where no name is near. ``refuse``: raise UnknownName where the
        setting ``strict_names`` is on. On a running event loop, and without ``strict_names``, a name that has to be looked up is
        looked up on a thread: nobody waits, and the answer is "".
        """
        if name in here:
            return ""
        strict = refuse and self.db.settings.strict_names
        if not strict and elsewhere is not None and not self._fresh(what, name) and _on_a_loop():
            act = contextvars.copy_context().run
            late = threading.Thread(
                target=act,
                args=(self._warn, what, name, here, elsewhere, hint, remedy, strict, far),
                daemon=True,
                name="duly-names",
            )
            with contextlib.suppress(RuntimeError):  # no more threads: nobody is told, and nothing is lost
                late.start()
            return ""
        return self._warn(what, name, here, elsewhere, hint, remedy, strict, far)

    def _warn(
        self, what: str, name: str, here: Collection[str], elsewhere: Elsewhere | None, hint: Elsewhere | None, remedy: str,
        strict: bool,
        far: bool,
    ) -> str:  # fmt: skip
        known = set(here)
        try:
            if elsewhere is not None:
                known |= self._looked_up(what, name, elsewhere)
            if name in known or (hint is not None and name in self._looked_up(f"{what} that ran", name, hint)):
                return ""
        except (DatabaseError, SQLAlchemyError):
            return ""  # what else the caller wants of the database will say what is wrong with it
        if not far and nearest(name, known) is None:
            return ""
        if strict:
            said = unknown(what, name, known)
            raise UnknownName(what, name, f"{said} Correct it, or turn strict_names off.")
        said = f"{unknown(what, name, known)} {remedy}".strip()
        self._tell(what, name, known)
        notice(said)
        return said

    def _tell(self, what: str, name: str, known: Collection[str]) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._told.get((what, name), -KEEP) < KEEP:
                return
            if len(self._told) > LAST:
                self._told.clear()
            self._told[what, name] = now
        self.emitter.emit("unknown_name", "warning", what=what, unknown=name[:200], nearest=nearest(name, known))

    def _fresh(self, what: str, name: str) -> bool:
        """Can it be answered without the database?"""
        until, at, names = self._found.get(what, (0.0, 0.0, frozenset()))
        now = time.monotonic()
        return now < until and (name in names or now - at < AGAIN)

    def _looked_up(self, what: str, name: str, ask: Elsewhere) -> frozenset[str]:
        if not self._fresh(what, name):
            db = self.db
            if db.is_sqlite and not db.memory and not db.is_there:
                return frozenset()
            found = frozenset(db.read(lambda c: {one for one in ask(c) if isinstance(one, str)}))
            now = time.monotonic()
            self._found[what] = now + KEEP, now, found
        return self._found[what][2]

    def _alive(self, connection: Connection, column: Any) -> set[str]:
        """The names in a column of the rows of living workers."""
        since = self.db.present(connection) - timedelta(seconds=ALIVE)
        rows = connection.execute(select(column).where(workers.c.seen_at >= since)).scalars()
        return {name for row in rows for name in row or ()}

    def _tasks(self, connection: Connection) -> Iterable[str]:
        return self._alive(connection, workers.c.tasks)

    def _queues(self, connection: Connection) -> Iterable[str]:
        return self._alive(connection, workers.c.queues) | set(connection.execute(select(queues.c.name)).scalars())

    def _used(self, connection: Connection) -> Iterable[str]:
        """The queues that workers serve, that something is set for, and that the last jobs are in."""
        last = [select(t.c.queue).order_by(t.c.id.desc()).limit(LAST) for t in (jobs, jobs_done)]
        return {*self._queues(connection), *(name for one in last for name in connection.execute(one).scalars())}


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _ran(connection: Connection) -> Iterable[str]:
    """The tasks of jobs that have begun: a name that was mistyped before is none. They may be another tenant's, so they are not offered."""
    done = select(jobs_done.c.task).where(jobs_done.c.attempts > 0).order_by(jobs_done.c.id.desc()).limit(LAST)
    live = select(jobs.c.task).where(jobs.c.attempts > 0).order_by(jobs.c.id.desc()).limit(LAST)
    return {*connection.execute(done).scalars(), *connection.execute(live).scalars()}
