"""What people do to jobs: cancel, replay, prune. Each act is guarded by the lifecycle, audited, and done in portions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Text, cast, delete, false, func, insert, literal, null, select, update

from duly.audit.store import record
from duly.jobs.engine import Engine
from duly.jobs.enqueue import NewJob
from duly.jobs.filter import JobFilter
from duly.jobs.job import LIFECYCLE, LIVE, Job, Status
from duly.jobs.look import streams
from duly.jobs.prune import prune
from duly.jobs.run import REPEAT, repeats_of
from duly.jobs.settle import CANCEL_REQUESTED, CANCELLED, REPLAYED
from duly.jobs.tables import COMMON, jobs, jobs_done, queues
from duly.kernel.errors import DulyError, InvalidArgument, KeyConflict, WrongState
from duly.kernel.payload import check_id, check_text

PORTION = 1000


@dataclass(frozen=True, slots=True)
class Bulk:
    """What a bulk act did: the jobs it changed, and those it left alone with the reason."""

    done: list[int]
    refused: dict[int, str]


def able(event: str, force: bool = False, named: bool = False) -> tuple[Status, ...]:
    """The statuses from which jobs are cancelled or replayed in bulk. ``named``: each job is named by its id.

    What a person ended is not what failed: a filter never replays a cancelled job (R002-25). Raises InvalidArgument for another event.
    """
    if event == "cancel":
        return tuple(LIVE)
    if event != "replay":
        raise InvalidArgument("event", f"is {event!r}; it must be cancel or replay.")
    return (Status.FAILED, *((Status.CANCELLED,) if named else ()), *((Status.SUCCEEDED,) if force else ()))


def _those(connection: Connection, f: JobFilter, event: str, force: bool, limit: int) -> list[int]:
    """The ids of jobs that fit a filter and could make the move, oldest first, at most so many. Raises InvalidArgument."""
    if event == "replay" and not f.ids and Status.CANCELLED in f.status:
        raise InvalidArgument(
            "status", "names cancelled jobs, and a filter never replays those.", "Replay a cancelled job by its id."
        )
    states = [s for s in able(event, force, bool(f.ids)) if not f.status or s in f.status]
    if not states:
        return []
    found: list[int] = []
    for part in streams(connection, replace(f, status=tuple(states))):
        c = part.table.c
        query = select(c.id).where(*part.base, *part.rest).order_by(c.id).limit(limit)
        found += connection.execute(query).scalars()
    return sorted(found)[:limit]


class JobAdmin:
    """Acts on jobs. ``actor`` is who asks, as it will stand in the audit trail."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.db = engine, engine.db

    # ------------------------------------------------------------------ cancel

    def cancel(
        self, ident: int, actor: str, tenant: str | None = None, reason: str = "", children: bool = False
    ) -> Job:
        """Cancel a job. A queued one ends now; a running one is asked to stop (its handler is interrupted, see ``Context``).

        ``children``: its live children too. Raises NotFound, or WrongState when it has ended.
        """

        check_text(reason, "reason")

        def act(connection: Connection) -> Job:
            check_id(ident, "job")
            kids: Sequence[int] = ()
            if children:
                # locked before the parent, in the order in which a child's end locks them
                query = select(jobs.c.id).where(jobs.c.parent_id == ident).order_by(jobs.c.id).with_for_update()
                kids = list(connection.execute(query).scalars())
            LIFECYCLE.target(self._locked(connection, ident, tenant).status, "cancel")
            self._cancel(connection, ident, actor, reason)
            for kid in kids:
                self._cancel(connection, kid, actor, f"parent {ident} was cancelled")
            return self.engine.reader.get(connection, ident)

        job = self.db.write(act)
        self.db.bells.ring()
        return job

    def cancel_in(self, connection: Connection, idents: Sequence[int], actor: str, reason: str) -> None:
        """Cancel jobs in the caller's transaction, where they are alive and nobody has asked yet."""
        query = select(jobs.c.id).where(jobs.c.id.in_(idents), ~jobs.c.cancel_requested).order_by(jobs.c.id)
        for ident in connection.execute(query.with_for_update()).scalars().all():
            self._cancel(connection, ident, actor, reason)

    def _locked(self, connection: Connection, ident: int, tenant: str | None) -> Job:
        """A job as it stands, its row locked: it makes no move until this transaction has ended. Raises NotFound."""
        check_id(ident, "job")
        connection.execute(select(jobs.c.id).where(jobs.c.id == ident).with_for_update())
        return self.engine.reader.get(connection, ident, tenant)

    def _cancel(self, connection: Connection, ident: int, actor: str, reason: str) -> None:
        query = select(jobs.c.status, jobs.c.tenant).where(jobs.c.id == ident).with_for_update()
        row = connection.execute(query).first()
        if row is None:  # a child that has ended meanwhile
            return
        meta = {"reason": reason}
        if row.status == "queued":
            self.engine.store.archive(connection, [ident], Status.CANCELLED, actor, CANCELLED, "warning", meta)
            return
        connection.execute(update(jobs).where(jobs.c.id == ident).values(cancel_requested=True))
        record(
            self.db, connection, actor=actor, action=CANCEL_REQUESTED, entity="job", entity_id=ident, tenant=row.tenant,
            level="warning", meta=meta,
        )  # fmt: skip

    # ------------------------------------------------------------------ replay

    def replay(
        self, ident: int, actor: str, tenant: str | None = None, reason: str = "", force: bool = False, at_once: bool = False
    ) -> Job:  # fmt: skip
        """Run an ended job again: same id, same input, same key, attempts from 0, due now. A job that was cancelled before its planned instant
        goes back to that instant, or with ``at_once`` is due now. One that succeeded does its work again, the body of an idempotent task too.

        Of two replays at once one wins; the other raises WrongState. ``force`` allows a job that succeeded.
        Raises KeyConflict when its key was freed and another job has taken it.
        """

        check_text(reason, "reason")

        def act(connection: Connection) -> Job:
            job = self.engine.reader.get(connection, ident, tenant)
            if job.status in LIVE or (job.status is Status.SUCCEEDED and not force):
                raise WrongState(f"job {ident}", str(job.status), "replay", ("failed", "cancelled"))
            self.replay_in(connection, ident, actor, reason, at_once)
            return self.engine.reader.get(connection, ident)

        job = self.db.write(act)
        self.db.bells.ring()
        return job

    def replay_in(
        self, connection: Connection, ident: int, actor: str, reason: str, at_once: bool = False
    ) -> None:  # fmt: skip
        """Replay an ended job in the caller's transaction. Raises WrongState when it is live, KeyConflict."""
        locked = connection.execute(select(jobs_done).where(jobs_done.c.id == ident).with_for_update()).first()
        if locked is None:
            raise WrongState(f"job {ident}", "queued", "replay", ("failed", "cancelled"))
        if locked.key is not None and locked.key_scope in ("done", "start", "until"):
            self._retake_key(connection, locked)
        now = self.db.now()
        # a job that was cancelled early keeps its planned instant
        early = not at_once and locked.run_at > self.db.present(connection)
        renewed = {
            "status": literal("queued"),
            "attempts": literal(0),
            "run_at": jobs_done.c.run_at if early else now,
            "output": null(),
            "error": null(),
            "worker": null(),
            "started_at": null(),
        }
        forced = locked.status == Status.SUCCEEDED
        if forced:  # what is idempotent in it is done again
            repeated = {**(locked.meta or {}), REPEAT: f"{ident}:{repeats_of(ident, locked.meta) + 1}"}
            renewed["meta"] = literal(repeated, jobs_done.c.meta.type)
        columns = ["id", *COMMON]
        waits: list[Any] = [jobs_done.c.run_at] if early else []
        picked: list[Any] = [renewed.get(c, jobs_done.c[c]) for c in columns]
        fair = select(queues.c.fair).where(queues.c.name == locked.queue).scalar_subquery()
        source = select(*picked, func.coalesce(fair, false()), *waits).where(jobs_done.c.id == ident)
        connection.execute(insert(jobs).from_select([*columns, "fair", *(["due_at"] if early else [])], source))
        connection.execute(delete(jobs_done).where(jobs_done.c.id == ident))
        meta = {"reason": reason, "was": locked.status, **({"forced": True} if forced else {})}
        record(
            self.db,
            connection,
            actor=actor,
            action=REPLAYED,
            entity="job",
            entity_id=ident,
            tenant=locked.tenant,
            meta=meta,
        )
        if not self.db.is_sqlite and self.db.settings.notify:
            self.engine.maker.sql.ring(connection, [locked.queue])

    def _retake_key(self, connection: Connection, row: Any) -> None:
        """Take the key under which the job was made, unless it was for a duration: that runs on by itself."""
        text: str = connection.execute(
            select(cast(jobs_done.c.input, Text)).where(jobs_done.c.id == row.id)
        ).scalar_one()
        made = NewJob(row.tenant, row.queue, row.task, text, row.max_attempts, key=row.key, unique=row.key_scope)
        owner = self.engine.maker.key_owner(connection, row.id, made, take=row.key_scope != "until")
        if owner not in (None, row.id):
            raise KeyConflict(row.key, row.queue, owner, replayed=row.id)

    # ------------------------------------------------------------------ in bulk

    def matching(self, f: JobFilter, event: str, limit: int = 100_000, force: bool = False) -> list[int]:
        """The ids of jobs that fit the filter and could make the move, oldest first. What a dry run shows."""
        return self.db.read(lambda c: _those(c, f, event, force, limit))

    def act_on(
        self,
        event: str,
        ids: Sequence[int],
        actor: str,
        reason: str = "",
        tenant: str | None = None,
        force: bool = False,
        fits: JobFilter | None = None,
        at_once: bool = False,
    ) -> Bulk:
        """Cancel or replay many jobs, in transactions of up to 200, each job on its own feet. ``fits``: what they were found by, maybe a while
        ago; one that does not fit it any more is refused."""
        check_text(reason, "reason")
        done: list[int] = []
        refused: dict[int, str] = {}

        def fitting(connection: Connection, part: Sequence[int]) -> Sequence[int]:
            if fits is None or not part:
                return part
            states = fits.status or able(event, force, bool(fits.ids))
            return _those(connection, replace(fits, ids=part, status=tuple(states)), event, force, len(part))

        def one(connection: Connection, ident: int) -> None:
            job = self._locked(connection, ident, tenant)
            if not fitting(connection, [ident]):
                allowed = tuple(map(str, fits.status)) if fits is not None else ()
                raise WrongState(
                    f"job {ident}, which fitted what was asked for,", f"{job.status} by now", event, allowed
                )
            if event == "cancel":
                LIFECYCLE.target(job.status, "cancel")
                self._cancel(connection, ident, actor, reason)
            else:
                if job.status in LIVE or (job.status is Status.SUCCEEDED and not force):
                    raise WrongState(f"job {ident}", str(job.status), "replay", ("failed", "cancelled"))
                self.replay_in(connection, ident, actor, reason, at_once)

        for start in range(0, len(ids), 200):

            def portion(
                connection: Connection, part: Sequence[int] = ids[start : start + 200]
            ) -> tuple[list[int], dict[int, str]]:
                good: list[int] = []
                bad: dict[int, str] = {}
                if event == "cancel":
                    good, _ = self.cancel_waiting(connection, fitting(connection, part), actor, reason, tenant)
                    gone = set(good)
                    part = [ident for ident in part if ident not in gone]
                for ident in part:
                    try:
                        with connection.begin_nested():
                            one(connection, ident)
                        good.append(ident)
                    except DulyError as error:
                        bad[ident] = str(error)
                return good, bad

            good, bad = self.db.write(portion)
            done += good
            refused |= bad
        self.db.bells.ring()
        return Bulk(done, refused)

    def cancel_waiting(
        self, connection: Connection, ids: Sequence[int], actor: str, reason: str, tenant: str | None
    ) -> tuple[list[int], list[int]]:
        """Cancel those that wait, all at once. Returns (cancelled, left for a closer look)."""
        mine = select(jobs.c.id).where(jobs.c.id.in_(ids), jobs.c.status == "queued")
        if tenant is not None:
            mine = mine.where(jobs.c.tenant == tenant)
        waiting = list(connection.execute(mine).scalars())
        done = self.engine.store.archive(
            connection, waiting, Status.CANCELLED, actor, CANCELLED, "warning", {"reason": reason}
        )
        gone = set(done)
        return done, [i for i in ids if i not in gone]

    # ------------------------------------------------------------------ prune

    def prune(self, older_than: datetime, statuses: Sequence[Status] = (), dry_run: bool = False) -> int:
        """Remove jobs that ended before an instant, with their attempts; children of a live parent stay. Keys stay (T002-p). Returns how many."""
        return prune(self.db, older_than, statuses, dry_run)
