"""What people do to jobs: cancel, replay, prune. Each act is guarded by the lifecycle, audited, and done in portions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, false, func, insert, literal, null, select, text, update

from duly.audit.store import record
from duly.jobs.engine import Engine
from duly.jobs.job import LIFECYCLE, LIVE, Job, Status
from duly.jobs.read import JobFilter
from duly.jobs.settle import CANCELLED
from duly.jobs.tables import COMMON, attempts, job_keys, jobs, jobs_done, queues
from duly.kernel.errors import DulyError, InvalidArgument, KeyConflict, WrongState

PORTION = 1000


@dataclass(frozen=True, slots=True)
class Bulk:
    """What a bulk act did: the jobs it changed, and those it left alone with the reason."""

    done: list[int]
    refused: dict[int, str]


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

        def act(connection: Connection) -> Job:
            job = self.engine.reader.get(connection, ident, tenant)
            LIFECYCLE.target(job.status, "cancel")
            if children:
                for child in self.engine.reader.find(connection, JobFilter(parent_id=ident, status=LIVE), 10_000):
                    self._cancel(connection, child.id, actor, f"parent {ident} was cancelled")
            self._cancel(connection, ident, actor, reason)
            return self.engine.reader.get(connection, ident)

        job = self.db.write(act)
        self.db.bells.ring()
        return job

    def _cancel(self, connection: Connection, ident: int, actor: str, reason: str) -> None:
        if self.engine.store.archive(
            connection, [ident], Status.CANCELLED, actor, CANCELLED, "warning", {"reason": reason}
        ):
            return
        asked = update(jobs).where(jobs.c.id == ident, jobs.c.status == "running").values(cancel_requested=True)
        if connection.execute(asked).rowcount:
            meta = {"reason": reason}
            record(
                self.db,
                connection,
                actor=actor,
                action="JOB_CANCEL_REQUESTED",
                entity="job",
                entity_id=ident,
                level="warning",
                meta=meta,
            )

    # ------------------------------------------------------------------ replay

    def replay(self, ident: int, actor: str, tenant: str | None = None, reason: str = "", force: bool = False) -> Job:
        """Run an ended job again: same id, same input, same key, attempts from 0, due now.

        Of two replays at once one wins; the other raises WrongState. ``force`` allows a job that succeeded.
        Raises KeyConflict when its key was freed and another job has taken it.
        """

        def act(connection: Connection) -> Job:
            job = self.engine.reader.get(connection, ident, tenant)
            if job.status in LIVE or (job.status is Status.SUCCEEDED and not force):
                raise WrongState(f"job {ident}", str(job.status), "replay", ("failed", "cancelled"))
            self._replay(connection, ident, actor, reason)
            return self.engine.reader.get(connection, ident)

        job = self.db.write(act)
        self.db.bells.ring()
        return job

    def _replay(self, connection: Connection, ident: int, actor: str, reason: str) -> None:
        locked = connection.execute(select(jobs_done).where(jobs_done.c.id == ident).with_for_update()).first()
        if locked is None:
            raise WrongState(f"job {ident}", "queued", "replay", ("failed", "cancelled"))
        if locked.key is not None and locked.key_scope in ("done", "start", "until"):
            self._retake_key(connection, locked)
        now = self.db.now()
        renewed = {
            "status": literal("queued"),
            "attempts": literal(0),
            "run_at": now,
            "output": null(),
            "error": null(),
            "worker": null(),
            "started_at": null(),
        }
        columns = ["id", *COMMON]
        picked: list[Any] = [renewed.get(c, jobs_done.c[c]) for c in columns]
        fair = select(queues.c.fair).where(queues.c.name == locked.queue).scalar_subquery()
        source = select(*picked, func.coalesce(fair, false())).where(jobs_done.c.id == ident)
        connection.execute(insert(jobs).from_select([*columns, "fair"], source))
        connection.execute(delete(jobs_done).where(jobs_done.c.id == ident))
        meta = {"reason": reason, "was": locked.status}
        record(
            self.db,
            connection,
            actor=actor,
            action="JOB_REPLAYED",
            entity="job",
            entity_id=ident,
            tenant=locked.tenant,
            meta=meta,
        )
        if not self.db.is_sqlite and self.db.settings.notify:
            self.engine.maker.sql.ring(connection, [locked.queue])

    def _retake_key(self, connection: Connection, row: Any) -> None:
        where = [job_keys.c.tenant == row.tenant, job_keys.c.queue == row.queue, job_keys.c.key == row.key]
        owner = connection.execute(select(job_keys.c.job_id, job_keys.c.until).where(*where)).first()
        now = self.db.clock.now()
        if owner is not None and owner.job_id != row.id and (owner.until is None or owner.until > now):
            raise KeyConflict(row.key, row.queue, owner.job_id)
        if owner is None:
            connection.execute(
                insert(job_keys).values(
                    tenant=row.tenant,
                    queue=row.queue,
                    key=row.key,
                    job_id=row.id,
                    payload_hash="",
                    scope=row.key_scope,
                    created_at=now,
                )
            )

    # ------------------------------------------------------------------ in bulk

    def matching(self, f: JobFilter, event: str, limit: int = 100_000, force: bool = False) -> list[int]:
        """The ids of jobs that fit the filter and could make the move, oldest first. What a dry run shows."""
        if event == "cancel":
            states: Sequence[Status] = LIVE
        elif event == "replay":
            states = (Status.FAILED, Status.CANCELLED, *((Status.SUCCEEDED,) if force else ()))
        else:
            raise InvalidArgument("event", f"is {event!r}; it must be cancel or replay.")
        states = [s for s in (f.status or states) if s in states]
        if not states:
            return []
        wanted = JobFilter(f.tenant, states, f.queue, f.task, f.key, f.parent_id, f.since, f.before, f.ids)
        from duly.jobs.read import conditions

        table = jobs if event == "cancel" else jobs_done
        query = select(table.c.id).where(*conditions(table, wanted)).order_by(table.c.id).limit(limit)
        return self.db.read(lambda c: list(c.execute(query).scalars()))

    def act_on(
        self,
        event: str,
        ids: Sequence[int],
        actor: str,
        reason: str = "",
        tenant: str | None = None,
        force: bool = False,
    ) -> Bulk:
        """Cancel or replay many jobs, in transactions of up to 200, each job on its own feet."""
        done: list[int] = []
        refused: dict[int, str] = {}

        def one(connection: Connection, ident: int) -> None:
            job = self.engine.reader.get(connection, ident, tenant)
            if event == "cancel":
                LIFECYCLE.target(job.status, "cancel")
                self._cancel(connection, ident, actor, reason)
            else:
                if job.status in LIVE or (job.status is Status.SUCCEEDED and not force):
                    raise WrongState(f"job {ident}", str(job.status), "replay", ("failed", "cancelled"))
                self._replay(connection, ident, actor, reason)

        for start in range(0, len(ids), 200):

            def portion(
                connection: Connection, part: Sequence[int] = ids[start : start + 200]
            ) -> tuple[list[int], dict[int, str]]:
                good: list[int] = []
                bad: dict[int, str] = {}
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

    # ------------------------------------------------------------------ prune

    def prune(self, older_than: datetime, statuses: Sequence[Status] = (), dry_run: bool = False) -> int:
        """Remove jobs that ended before an instant, with their attempts. Keys stay (T002-p). Returns how many."""
        where = [jobs_done.c.finished_at < older_than]
        if statuses:
            where.append(jobs_done.c.status.in_([str(s) for s in statuses]))
        if dry_run:
            count = select(func.count()).select_from(jobs_done).where(*where)
            return self.db.read(lambda c: c.execute(count).scalar_one())
        total = 0
        while True:

            def portion(connection: Connection) -> int:
                query = select(jobs_done.c.id).where(*where).limit(PORTION).with_for_update(skip_locked=True)
                ids = list(connection.execute(query).scalars())
                if ids:
                    self._remember_until(connection, ids)
                    connection.execute(delete(attempts).where(attempts.c.job_id.in_(ids)))
                    connection.execute(delete(jobs_done).where(jobs_done.c.id.in_(ids)))
                return len(ids)

            n = self.db.write(portion)
            total += n
            if n < PORTION:
                return total

    def _remember_until(self, connection: Connection, ids: Sequence[int]) -> None:
        """Give the keys of jobs that are removed their end, if keys have one."""
        keep = self.engine.settings.key_retention
        if keep > 0:
            until = self.db.clock.now() + timedelta(seconds=keep)
            connection.execute(
                update(job_keys).where(job_keys.c.job_id.in_(ids), job_keys.c.until.is_(None)).values(until=until)
            )

    def prune_expired(self) -> int:
        """What housekeeping removes: jobs past their retention, keys past theirs."""
        now, s = self.engine.clock.now(), self.engine.settings
        gone = self.prune(now - timedelta(seconds=s.retention)) if s.retention > 0 else 0
        # a key whose instant has passed may be taken over anyway; after a day it is only litter
        litter = delete(job_keys).where(job_keys.c.until.is_not(None), job_keys.c.until < now - timedelta(days=1))
        self.db.write(lambda c: c.execute(litter))
        return gone
