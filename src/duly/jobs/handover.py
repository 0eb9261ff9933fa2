"""Handing claimed jobs over: who claims a job is not always who runs it.

A *dispatcher* claims jobs as a worker does (gate, limits, pauses, rates and turns apply) and sends word of each to somebody who has
room, perhaps on another machine. From the claim until that one begins, the dispatcher holds the lease and renews it. The one who
begins *takes the lease over*: one guarded statement puts a token of its own in the place of the dispatcher's. From there on the
dispatcher's renewals match nothing, and it lets go of the job; whoever took it renews, settles, or is rescued from.

What can happen to the word that was sent, and why it cannot hurt: it is *lost*, then nobody takes the lease over, and after a
while the dispatcher gives the job back; it comes *twice*, then the second finds another token; it comes *late*, after the job
was given back or rescued, then it finds another token too, or none. A word with a wrong token does nothing.

A job whose dispatcher died was not begun by anybody, so its rescue costs no attempt (``never_begun``). In the row this is told by the
name of the holder. This file knows no broker; ``integrations`` do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sqlalchemy import Connection, bindparam, select

from duly.calendars.tables import held
from duly.jobs.job import LIFECYCLE, Status
from duly.jobs.settle import Claimed, Settlement
from duly.jobs.sql import dialect
from duly.jobs.tables import jobs, jobs_done
from duly.storage.database import Database
from duly.storage.qualified import text
from duly.storage.rows import at, plus_seconds
from duly.storage.types import Instant

#: How the name of a worker begins that holds jobs for others and runs none.
HOLDER = "handover:"

#: Why a job is not taken over: its queue is paused or in a blackout, or the gate is closed, and the lease is as it was; it is queued again; it runs
#: under another lease; it has ended; there is no such job in this database.
Refusal = Literal["held", "queued", "elsewhere", "ended", "unknown"]


def never_begun(holder: str | None) -> bool:
    """Did the holder of a lease only keep the job for somebody who has not come?"""
    return holder is not None and holder.startswith(HOLDER)


def given_back(ident: int, token: int, wait: float | None = None) -> Settlement:
    """The settlement that returns a job nobody has begun: no attempt is used. ``wait``: seconds until it is due again."""
    event = "release" if wait is None else "snooze"
    return Settlement(ident, token, event, LIFECYCLE.target(Status.RUNNING, event), wait=wait, counted=False)


class Taken(NamedTuple):
    """A job as it was taken over, and whether an operator has asked meanwhile to stop it."""

    job: Claimed
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of jobs that were handed over, seen from the dispatcher."""

    #: Begun by somebody else since the last look: {id: the new token}.
    begun: Mapping[int, int]
    #: Of those that waited: gone without having been seen to run (they ended in between, or were rescued).
    gone: Collection[int]
    #: Of those that ran elsewhere: over.
    ended: Collection[int]


def follow(waiting: Mapping[int, int], begun: Mapping[int, int], running: Mapping[int, int]) -> Followed:
    """Compare what a dispatcher knows with what the database says. All three map ids to tokens.

    ``waiting``: under the dispatcher's own lease at the last look. ``begun``: seen running under another lease then. ``running``:
    the leases of all these jobs now. A job may stand in both of the first: it ran elsewhere, came back, and was claimed here again.
    """
    now_begun, gone = dict[int, int](), list[int]()
    for ident, token in waiting.items():
        current = running.get(ident)
        if current is None:
            gone.append(ident)
        elif current != token:
            now_begun[ident] = current
    return Followed(now_begun, gone, [ident for ident, token in begun.items() if running.get(ident) != token])


#: What a take-over gives, on SQLite: the columns of ``Claimed``.
_SQLITE = (
    "id, tenant, queue, task, input, attempts, max_attempts, priority, run_at, created_at, "
    "(started_at - max(run_at, coalesce(next_retry_at, run_at))) / 1e6, "
    "key, key_scope, concurrency_key, parent_id, meta, lease_token"
)


class HandoverStore:
    """The statements of a hand-over."""

    def __init__(self, db: Database) -> None:
        self.db = db
        s, sql = db.is_sqlite, dialect(db)
        statement = text(
            f"""
            UPDATE jobs SET worker = :worker, lease_token = :fresh + id, lease_until = {plus_seconds(s, at(s), ":lease")}, started_at = {at(s)}
             WHERE id = :id AND lease_token = :token AND status = 'running'
               AND {sql.GATE_OPEN} AND NOT EXISTS (SELECT 1 FROM queues q WHERE q.name = jobs.queue AND (q.paused_at IS NOT NULL OR q.held_until > {at(s)}))
               AND NOT {held(s, "jobs.queue", at(s))}
            RETURNING {_SQLITE if s else sql.CLAIMED}, cancel_requested"""
        )
        self._take_over = statement.bindparams(bindparam("now", type_=Instant)) if s else statement

    def take_over(
        self, connection: Connection, ident: int, token: int, fresh: int, lease: float, worker: str
    ) -> Taken | None:
        """Take a job over from whoever holds it under ``token``; None when nobody does, or when its queue is held.

        ``fresh``: a random number below 2**62; the new token is made of it. ``lease``: seconds. The run counts from now.
        """
        row = connection.execute(
            self._take_over,
            {"id": ident, "token": token, "fresh": fresh, "lease": lease, "worker": worker, "now": self.db.stamp()},
        ).first()
        return None if row is None else Taken(Claimed._make(row[:-1]), bool(row[-1]))

    def why_not(self, connection: Connection, ident: int, token: int) -> Refusal:
        """Why a job could not be taken over, as things stand now. For people; nothing decides by it but "held"."""
        query = select(jobs.c.status, jobs.c.lease_token).where(jobs.c.id == ident)
        row = connection.execute(query).first()
        if row is None:
            ended = connection.execute(select(jobs_done.c.id).where(jobs_done.c.id == ident)).first()
            return "unknown" if ended is None else "ended"
        if row.status != "running":
            return "queued"
        return "held" if row.lease_token == token else "elsewhere"

    def leases(self, connection: Connection, idents: Collection[int]) -> dict[int, int]:
        """The present leases of jobs, {id: token}; those that do not run are left out."""
        out: dict[int, int] = {}
        wanted = list(idents)
        for start in range(0, len(wanted), 500):
            query = select(jobs.c.id, jobs.c.lease_token).where(
                jobs.c.id.in_(wanted[start : start + 500]), jobs.c.status == "running"
            )
            out.update((row[0], row[1]) for row in connection.execute(query))
        return out
