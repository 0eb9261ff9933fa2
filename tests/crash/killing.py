"""Where a process can die: at the named steps between the claim of a job and the last line of its settlement.

The steps are put around Duly's own functions from outside; Duly knows nothing of them. Each is passed in silence by
every process but the one that was told to die there. Steps of a settlement are those of the jobs that the process itself
has run: it also writes the ends of jobs that it rescues.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, event

from duly import Duly
from duly.jobs.settle import Settlement
from duly.jobs.worker import Worker

#: Statements that are steps of their own, told by how they begin.
STATEMENTS = {"INSERT INTO job_keys": "enqueue.key", "UPDATE jobs SET due_at = NULL": "promote.moved"}
#: Of a settlement or a rescue: the name of the act is put in front.
WRITTEN = {"INSERT INTO attempts": ".recorded", "UPDATE jobs SET status = 'queued'": ".requeued"}


class Killer:
    """Kills this process at one step, after having let it pass ``after`` times."""

    def __init__(self, at: str | None, after: int = 0) -> None:
        self.at, self.after = at, after
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._doing = threading.local()
        #: What waits for the commit of a connection. On SQLite one commit may serve several.
        self._to_commit: dict[Connection, list[str]] = {}

    def __call__(self, step: str) -> None:
        if step != self.at:
            return
        with self._lock:
            if self.after > 0:
                self.after -= 1
                return
            os.kill(os.getpid(), signal.SIGKILL)

    # ------------------------------------------------------------------ where to stand

    def lurk_in_enqueue(self, app: Duly) -> None:
        """Stand at every step of making jobs."""
        maker = app.engine.maker
        for insert in ("insert_one", "insert_many", "insert_alike"):
            self._around(maker.sql, insert, None, "enqueue.rows")
        for door in ("make", "make_many", "make_alike"):
            self._around(maker, door, None, "enqueue.done")
        for engine in {app.db.engine, app.db.session_engine}:
            self._hear(engine)

    def lurk(self, app: Duly, worker: Worker) -> None:
        """Stand at every step of a worker."""
        self._worker = worker
        store = app.engine.store
        self._around(store, "claim", "claim.before", "claim.after", has_jobs=bool)
        self._around(worker, "_deliver", "claim.committed", "claim.delivered", concerns=lambda rows, *_: bool(rows))
        self._around(worker, "_start", "run.accepted", None)
        self._around(worker, "_end", "run.returned", None)
        self._around_act(store, "settle", concerns=lambda _, batch, *__: self._is_ours(batch))
        self._around_act(store, "rescue", concerns=lambda *_: True)
        self._around_act(worker.house._sealer, "_seal", concerns=lambda *_: True)
        self._around(store.sql, "finish", None, "settle.moved", concerns=lambda _, batch, *__: self._is_ours(batch))
        self._around(worker, "_end_soon", "settle.transacted", None)
        self._around(worker, "_account", "settle.committed", "settle.forgotten")
        self._around(store, "renew", "renew.before", "renew.after", concerns=lambda _, held, *__, **___: bool(held))
        self._around(store, "promote", "promote.before", "promote.after")
        for engine in {app.db.engine, app.db._vital, app.db.session_engine, app.db.async_engine.sync_engine}:
            self._hear(engine)

    def _around(
        self,
        owner: Any,
        name: str,
        before: str | None,
        after: str | None,
        concerns: Callable[..., bool] = lambda *_, **__: True,
        has_jobs: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(real)
        def passed(*args: Any, **kwargs: Any) -> Any:
            counts = concerns(*args, **kwargs)
            if before is not None and counts:
                self(before)
            result = real(*args, **kwargs)
            if after is not None and counts and has_jobs(result):
                self(after)
            return result

        setattr(owner, name, passed)

    def _around_act(self, owner: Any, name: str, concerns: Callable[..., bool]) -> None:
        """Around what a transaction does: before it, after each of its statements, before its commit."""
        act, real = name.strip("_"), getattr(owner, name)

        @functools.wraps(real)
        def passed(connection: Connection, *args: Any, **kwargs: Any) -> Any:
            if not concerns(connection, *args):
                return real(connection, *args, **kwargs)
            self(f"{act}.before")
            before, self._doing.act = getattr(self._doing, "act", None), act
            try:
                result = real(connection, *args, **kwargs)
            finally:
                self._doing.act = before
            if result:
                self(f"{act}.after")
                self._to_commit.setdefault(connection, []).append(f"{act}.commit")
            return result

        setattr(owner, name, passed)

    def _is_ours(self, batch: Sequence[Settlement]) -> bool:
        return self._worker is not None and any(s.id in self._worker._held for s in batch)

    def _hear(self, engine: Any) -> None:
        event.listen(engine, "after_cursor_execute", self._after_statement)
        event.listen(engine, "commit", self._before_commit)

    def _after_statement(self, _c: Any, _cursor: Any, statement: str, _p: Any, _context: Any, _many: bool) -> None:
        # on PostgreSQL each table stands with its schema
        words, act = (
            " ".join(statement.replace('"public".', "").replace("public.", "").split()),
            getattr(self._doing, "act", None),
        )
        for beginning, step in STATEMENTS.items():
            if words.startswith(beginning):
                self(step)
        for beginning, step in WRITTEN.items():
            if act is not None and words.startswith(beginning):
                self(act + step)

    def _before_commit(self, connection: Connection) -> None:
        self("commit")
        for step in self._to_commit.pop(connection, []):
            self(step)
