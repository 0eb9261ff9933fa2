"""The statements about running work: claim, settle, renew, rescue, promote. Every write names the lease token.

A write that matches no row is an ordinary answer: the lease was lost, somebody else owns the job now, and nothing
changed. Callers turn it into an event, never into an error.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, func, insert, literal, select, update

from duly.audit.store import record_many
from duly.jobs.handover import never_begun
from duly.jobs.job import Status
from duly.jobs.run import LeaseLost
from duly.jobs.settle import CANCELLED, FINAL, Claimed, Policy, Settlement, apart, settle
from duly.jobs.sql import dialect
from duly.jobs.tables import COMMON, job_keys, job_waits, jobs, jobs_done
from duly.kernel.errors import Cancel
from duly.kernel.outcome import Outcome, OutcomeKind
from duly.storage.database import Database
from duly.storage.qualified import text
from duly.storage.rows import at, encode, plus_seconds, relation
from duly.storage.types import Instant

#: The due_at of a parent that waits for its children.
FAR = datetime(9999, 12, 31, tzinfo=UTC)
#: What a parent that waits does at the end of the children it waits for: its handler runs again.
RESUME = "resume"


#: The live jobs that a job waits for, the newest first: that one is likely to end last.
_AWAITED = (
    select(jobs.c.id).join(job_waits, job_waits.c.job_id == jobs.c.id)
    .where(job_waits.c.waiter_id == bindparam("waiter")).order_by(job_waits.c.job_id.desc()).limit(1)
)  # fmt: skip
#: A running job, as long as it is held under this token.
#: What is asked of a running job that is taken from whoever held it.
_LAPSED = (
    jobs.c.id, jobs.c.tenant, jobs.c.queue, jobs.c.task, jobs.c.attempts, jobs.c.max_attempts, jobs.c.priority, jobs.c.worker,
    jobs.c.key, jobs.c.key_scope, jobs.c.parent_id, jobs.c.lease_token, jobs.c.cancel_requested,
)  # fmt: skip
_MINE = and_(jobs.c.id == bindparam("b_id"), jobs.c.status == "running", jobs.c.lease_token == bindparam("b_token"))
_HOLD = select(jobs.c.cancel_requested).where(_MINE).with_for_update(key_share=True)
_COUNT_AFRESH = update(jobs).where(_MINE).values(attempts=1)
_PARENTS = (
    select(jobs.c.id, jobs.c.task, jobs.c.on_child_failure, jobs.c.waits_for_children)
    .where(jobs.c.id.in_(bindparam("ids", expanding=True))).order_by(jobs.c.id).with_for_update()
)  # fmt: skip
_ANY_WAITS = text(
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM jobs WHERE status = 'queued' AND due_at >= :far) OR EXISTS (SELECT 1 FROM job_waits)"
).bindparams(bindparam("far", FAR, Instant))
_place = itemgetter(Claimed._fields.index("run_at"), Claimed._fields.index("id"))
_rank = itemgetter(Claimed._fields.index("priority"))


def _stands_alone(s: Settlement) -> bool:
    """Is this the end of a job from which nothing else follows?"""
    return s.event in FINAL and s.record is None and s.parent_id is None and s.key_scope not in ("done", "start")


class JobStore:
    """Claim, settle, renew, rescue, promote."""

    def __init__(self, db: Database, policy: Callable[[str], Policy]) -> None:
        self.db = db
        #: What a task says about the end of its runs, by its name.
        self.policy = policy
        #: What is known here beside tasks: a job that needs something is claimed only where it is among these.
        self.abilities: frozenset[str] = frozenset()
        self.sql = dialect(db)
        s = db.is_sqlite
        held = "jobs.id = r.id AND jobs.status = 'running' AND jobs.lease_token = r.token"
        now = at(s)
        due = (
            f"CASE WHEN r.waits AND r.until IS NULL THEN {at(s, 'far')} WHEN r.until IS NOT NULL AND r.until > {now} THEN r.until "
            f"WHEN r.wait > 0 THEN {plus_seconds(s, now, 'r.wait')} END"
        )
        columns = {
            "id": "bigint", "token": "bigint", "wait": "float8", "until": "timestamptz", "waits": "boolean", "retry": "boolean",
            "uncount": "int", "afresh": "boolean", "output": "text", "error": "text", "cost": "int", "remote": "text", "policy": "text", "outcome": "text",
        }  # fmt: skip
        json = "" if s else "::json"
        self._requeue = self._text(
            f"""
            UPDATE jobs SET status = 'queued', lease_token = NULL, lease_until = NULL, attempts = CASE WHEN r.afresh THEN 0 ELSE jobs.attempts - r.uncount END,
                   due_at = {due}, next_retry_at = CASE WHEN r.retry THEN {due} END,
                   error = coalesce(r.error{json}, jobs.error), output = coalesce(r.output{json}, jobs.output),
                   cost_cents = coalesce(r.cost, jobs.cost_cents), remote_id = coalesce(r.remote, jobs.remote_id),
                   waits_for_children = r.waits, on_child_failure = r.policy
              FROM {relation(s, columns)} WHERE {held} RETURNING jobs.id, jobs.cancel_requested, jobs.waits_for_children""",
            "now",
            "far",
        )
        self._attempts = self._text(
            f"""
            INSERT INTO attempts (job_id, tenant, attempt, worker, started_at, ended_at, outcome, error)
            SELECT jobs.id, jobs.tenant, jobs.attempts, jobs.worker, jobs.started_at, {now}, r.outcome, r.error{json}
              FROM {relation(s, columns)} JOIN jobs ON {held}{"" if s else " FOR UPDATE OF jobs"}""",
            "now",
        )
        self._renew = self._text(
            f"""
            UPDATE jobs SET lease_until = {plus_seconds(s, now, ":lease")}
              FROM {relation(s, {"id": "bigint", "token": "bigint"})} WHERE {held} RETURNING jobs.id, jobs.cancel_requested""",
            "now",
        )
        skip = "" if s else " FOR UPDATE SKIP LOCKED"
        due_ids = f"SELECT id FROM jobs WHERE status = 'queued' AND due_at <= {now} ORDER BY due_at LIMIT :n{skip}"
        self._promote = self._text(
            f"UPDATE jobs SET due_at = NULL, waits_for_children = false WHERE id {f'IN ({due_ids})' if s else f'= ANY(ARRAY({due_ids}))'} RETURNING queue",
            "now",
        )

    def _text(self, sql: str, *instants: str) -> Any:
        statement = text(sql)
        return (
            statement.bindparams(*(bindparam(n, type_=Instant) for n in instants)) if self.db.is_sqlite else statement
        )

    # ------------------------------------------------------------------ claim

    def within_abilities(self) -> ColumnElement[bool]:
        """The condition of jobs that need nothing that is not known here, in SQL."""
        return jobs.c.needs.is_(None) | jobs.c.needs.in_(sorted(self.abilities))

    def set_needs(self, connection: Connection, ident: int, needs: str | None) -> None:
        """Say what a worker must know to claim a live job, beside its task. None: nothing."""
        connection.execute(update(jobs).where(jobs.c.id == ident).values(needs=needs))

    def claim(
        self,
        connection: Connection,
        queues: Mapping[str, int],
        tasks: Sequence[str],
        token: int,
        lease: float,
        worker: str,
    ) -> list[Claimed]:
        """Take ready jobs of queues that nothing governs; ``queues`` says how many of each. In order of priority, run_at, id."""
        rows: list[Claimed] = self.sql.claim(
            connection,
            dict(queues),
            tasks,
            token,
            lease,
            worker,
            self.db.stamp(),
            self.db.prepares,
            tuple(self.abilities),
        )
        self._after_claim(connection, rows)
        return rows

    def take(self, connection: Connection, ids: Sequence[int], token: int, lease: float, worker: str) -> list[Claimed]:
        """Take exactly these jobs, those of them that are still ready."""
        rows: list[Claimed] = self.sql.take(connection, ids, token, lease, worker, self.db.stamp(), self.db.prepares)
        self._after_claim(connection, rows)
        return rows

    def _after_claim(self, connection: Connection, rows: list[Claimed]) -> None:
        started = [r.id for r in rows if r.key_scope == "start"]
        if started:
            connection.execute(delete(job_keys).where(job_keys.c.job_id.in_(started), job_keys.c.scope == "start"))
        rows.sort(key=_place)
        if any(r.priority != rows[0].priority for r in rows):
            rows.sort(key=_rank, reverse=True)  # a stable sort: the order of places is kept

    # ------------------------------------------------------------------ settle

    def settle(self, connection: Connection, batch: Sequence[Settlement], actor: str) -> set[int]:
        """Write settlements. Returns the ids that were still held; the others' leases are lost and nothing of them changed."""
        now = self.db.stamp()
        if all(map(_stands_alone, batch)):  # as most do
            return set(self.sql.finish(connection, batch, actor, now, self.db.prepares))
        recorded = [s for s in batch if s.record is not None]
        if recorded:
            connection.execute(self._attempts, {"rows": self._encode(recorded), "now": now})
        final = [s for s in batch if s.final]
        held: set[int] = set()
        if final:
            held.update(self.sql.finish(connection, final, actor, now, self.db.prepares))
            freed = [s.id for s in final if s.key_scope in ("done", "start") and s.id in held]
            if freed:
                connection.execute(
                    delete(job_keys).where(job_keys.c.job_id.in_(freed), job_keys.c.scope.in_(("done", "start")))
                )
        parents = {s.parent_id for s in final if s.parent_id is not None}
        back = [s for s in batch if not s.final]
        if back:
            rows = connection.execute(self._requeue, {"rows": self._encode(back), "now": now, "far": FAR}).all()
            held.update(r.id for r in rows)
            unwanted = [r.id for r in rows if r.cancel_requested]
            if unwanted:
                self.archive(connection, unwanted, Status.CANCELLED, actor, CANCELLED, "warning")
            parents.update(r.id for r in rows if r.waits_for_children and not r.cancel_requested)
        if parents:
            self.end_parents(connection, parents, actor)
        return held

    def settles_alone(self, batch: Iterable[Settlement]) -> bool:
        """Does the batch need one statement only? (Then PostgreSQL is spared BEGIN and COMMIT.)"""
        return not self.db.is_sqlite and all(map(_stands_alone, batch))

    def _encode(self, batch: Iterable[Settlement]) -> str:
        dumps = orjson.dumps
        return encode(self.db.is_sqlite, (
            {
                "id": s.id, "token": s.token, "wait": s.wait, "until": s.until, "waits": s.event == "wait" or s.on_child_failure == RESUME, "retry": s.event in ("retry", "rescue"),
                "uncount": 0 if s.counted else 1, "afresh": s.afresh, "output": s.output, "error": None if s.error is None else dumps(s.error).decode(),
                "cost": s.cost_cents, "remote": s.remote_id, "policy": s.on_child_failure, "outcome": s.record,
            }
            for s in batch
        ))  # fmt: skip

    # ------------------------------------------------------------------ leases

    def hold(self, connection: Connection, claimed: Claimed, afresh: bool = False) -> None:
        """In a transaction that writes for a running job: hold the job until it ends. ``afresh``: its attempts are counted from one.

        Raises LeaseLost where it is somebody else's, Cancel where an operator asked it to stop.
        """
        mine = {"b_id": claimed.id, "b_token": claimed.token}
        if self.hold_lease(connection, claimed):
            raise Cancel("an operator cancelled the job")
        if afresh and claimed.attempts > 1:
            connection.execute(_COUNT_AFRESH, mine)

    def hold_lease(self, connection: Connection, claimed: Claimed) -> bool:
        """As ``hold``, also where an operator asked it to stop. Returns whether one did. Raises LeaseLost."""
        held = connection.execute(_HOLD, {"b_id": claimed.id, "b_token": claimed.token}).first()
        if held is None:
            raise LeaseLost(f"job {claimed.id} belongs to another worker by now")
        return bool(held.cancel_requested)

    def renew(self, connection: Connection, held: Iterable[tuple[int, int]], lease: float) -> dict[int, bool]:
        """Renew leases given as (id, token). Returns {id: cancel requested?} of those still held."""
        rows = encode(self.db.is_sqlite, ({"id": ident, "token": token} for ident, token in held))
        answer = connection.execute(self._renew, {"rows": rows, "lease": lease, "now": self.db.stamp()})
        return {ident: bool(cancelled) for ident, cancelled in answer}

    def cancels(self, connection: Connection, held: Sequence[int]) -> list[int]:
        """Which of these running jobs an operator asked to stop."""
        out: list[int] = []
        for start in range(0, len(held), 500):
            part = held[start : start + 500]
            out += connection.execute(select(jobs.c.id).where(jobs.c.id.in_(part), jobs.c.cancel_requested)).scalars()
        return out

    def rescue(self, connection: Connection, attempted_at: str, actor: str, limit: int = 500) -> list[Settlement]:
        """Take jobs whose lease has lapsed from whoever held them (T003-c). Looks at a job's own lease and at nothing else.

        The rows are locked while they are looked at, so a holder that renews at this moment either is seen or waits. Jobs
        that one worker lost together come back apart from each other (``settle.apart``).
        """
        query = (
            select(*_LAPSED)
            .where(jobs.c.status == "running", jobs.c.lease_until <= self.db.now())
            .order_by(jobs.c.lease_until).limit(limit).with_for_update(skip_locked=True)
        )  # fmt: skip
        batch, lapsed = [], connection.execute(query).all()
        together = Counter(r.worker for r in lapsed)
        for r in lapsed:
            error: dict[str, str] | None = {
                "type": "WorkerLost", "attempted_at": attempted_at,
                "message": f"the lease lapsed: worker {r.worker} died, hung, or was cut off while it ran this job",
            }  # fmt: skip
            kind = OutcomeKind.CANCELLED if r.cancel_requested else OutcomeKind.LOST
            if kind is OutcomeKind.LOST and never_begun(r.worker):
                kind, error = OutcomeKind.RELEASED, None  # held for somebody else, and begun by nobody
            after = apart(r.attempts, r.max_attempts, together[r.worker], random.random())  # noqa: S311
            batch.append(settle(_as_claimed(r), Outcome(kind, error=error, after=after), self.policy(r.task)))
        if batch:
            self.settle(connection, batch, actor)
        return batch

    def unclaim(self, connection: Connection, token: int, worker: str) -> int:
        """Give back the jobs of a claim whose answer never arrived: nobody has begun them. Returns how many there were."""
        query = select(*_LAPSED).where(
            jobs.c.status == "running", jobs.c.worker == worker, jobs.c.lease_token == jobs.c.id + token
        )
        batch = [
            settle(_as_claimed(r), Outcome(OutcomeKind.RELEASED), self.policy(r.task))
            for r in connection.execute(query)
        ]
        if batch:
            self.settle(connection, batch, worker)
        return len(batch)

    # ------------------------------------------------------------------ the mover

    def promote(self, connection: Connection, limit: int = 1000) -> int:
        """Make jobs whose moment has come claimable. Returns how many."""
        return len(connection.execute(self._promote, {"now": self.db.stamp(), "n": limit}).all())

    def next_due(self, connection: Connection) -> float | None:
        """Seconds until the next job becomes due (0 or less: one is), None when none waits."""
        nearest = (
            select(func.min(jobs.c.due_at))
            .where(jobs.c.status == "queued", jobs.c.due_at.is_not(None))
            .scalar_subquery()
        )
        due, now = connection.execute(
            select(nearest, self.db.now() if not self.db.is_sqlite else literal(self.db.clock.now(), Instant))
        ).one()
        if due is None or due.year == FAR.year:
            return None
        return float((due - now).total_seconds())

    # ------------------------------------------------------------------ ends that no worker reports

    def archive(
        self,
        connection: Connection,
        ids: Sequence[int],
        status: Status,
        actor: str,
        action: str | None,
        level: str = "info",
        meta: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """End queued jobs: cancelled by an operator, or parents whose children have ended. Returns the ids it ended.

        ``action`` None: not audited.
        """
        query = select(jobs.c.id, jobs.c.tenant, jobs.c.parent_id, jobs.c.key_scope, jobs.c.on_child_failure).where(
            jobs.c.id.in_(ids), jobs.c.status == "queued"
        )
        rows = connection.execute(query.order_by(jobs.c.id).with_for_update()).all()
        ended = [r.id for r in rows]
        if not ended:
            return []
        kept = [c for c in COMMON if c != "status"]
        connection.execute(
            insert(jobs_done).from_select(
                ["id", "status", "finished_at", *kept],
                select(jobs.c.id, literal(str(status)), self.db.now(), *(jobs.c[c] for c in kept)).where(
                    jobs.c.id.in_(ended)
                ),
            )
        )
        connection.execute(delete(jobs).where(jobs.c.id.in_(ended)))
        waiters = [r.id for r in rows if r.on_child_failure == RESUME]
        if waiters:
            connection.execute(delete(job_waits).where(job_waits.c.waiter_id.in_(waiters)))
        freed = [r.id for r in rows if r.key_scope in ("done", "start")]
        if freed:
            connection.execute(
                delete(job_keys).where(job_keys.c.job_id.in_(freed), job_keys.c.scope.in_(("done", "start")))
            )
        if action is not None:
            entries = [(r.id, r.tenant) for r in rows]
            record_many(self.db, connection, entries, actor=actor, action=action, entity="job", level=level, meta=meta)
        parents = {r.parent_id for r in rows if r.parent_id is not None}
        if parents:
            self.end_parents(connection, parents, actor)
        return ended

    def end_parents(self, connection: Connection, ids: Iterable[int], actor: str) -> None:
        """End waiting parents whose last child has ended, and wake those that wait for certain children (``RESUME``).

        A parent's row is locked before its children are counted, also while its handler still runs. Of two transactions that
        end the last two children at once, or the last child and the handler, the second waits for the first and then, reading
        afresh, finds no child left and a parent that waits: exactly one ends the parent.
        """
        for parent in connection.execute(_PARENTS, {"ids": list(set(ids))}).all():
            if not parent.waits_for_children:
                continue
            if parent.on_child_failure == RESUME:
                if connection.execute(_AWAITED, {"waiter": parent.id}).first() is None:
                    self.wake(connection, parent.id)
                continue
            if connection.execute(select(jobs.c.id).where(jobs.c.parent_id == parent.id).limit(1)).first() is not None:
                continue
            bad = (
                select(jobs_done.c.id)
                .where(jobs_done.c.parent_id == parent.id, jobs_done.c.status != "succeeded")
                .limit(1)
            )
            if parent.on_child_failure == "fail" and connection.execute(bad).first() is not None:
                error = {"type": "ChildFailed", "message": "a child of this job did not succeed"}
                connection.execute(update(jobs).where(jobs.c.id == parent.id).values(error=error))
                self.archive(connection, [parent.id], Status.FAILED, actor, "JOB_CHILD_FAILED", "error")
            else:
                policy = self.policy(parent.task)
                action = policy.completed_action if policy.audit_success else None
                self.archive(connection, [parent.id], Status.SUCCEEDED, actor, action)

    def wait_for(self, connection: Connection, ident: int, children: Sequence[int]) -> None:
        """Note which children a job waits for, in the transaction that settles it with the policy ``RESUME``."""
        connection.execute(delete(job_waits).where(job_waits.c.waiter_id == ident))
        if children:
            rows = [{"waiter_id": ident, "job_id": child} for child in children]
            connection.execute(insert(job_waits), rows)

    def wake(self, connection: Connection, ident: int) -> bool:
        """Let a job that waits go on at once. False where it does not wait: it runs, has ended, is claimable already, or waits for its next
        attempt, which nobody hastens."""
        there = update(jobs).where(
            jobs.c.id == ident, jobs.c.status == "queued", jobs.c.due_at.is_not(None), jobs.c.next_retry_at.is_(None)
        )
        queue = connection.execute(there.values(due_at=None, waits_for_children=False).returning(jobs.c.queue)).scalar()
        if queue is None:
            return False
        connection.execute(delete(job_waits).where(job_waits.c.waiter_id == ident))
        if not self.db.is_sqlite and self.db.settings.notify:
            self.sql.ring(connection, [queue])
        return True

    def any_waits(self, connection: Connection) -> bool:
        """Does a job wait for others? Where none does, there is nothing to sweep."""
        return connection.execute(_ANY_WAITS).first() is not None

    def sweep_parents(self, connection: Connection, actor: str, limit: int = 200) -> None:
        """Behind the counters: end waiting parents that have no live child, and wake those that wait for none any more.

        Finds nothing unless a crash came in between.
        """
        child, waits = jobs.alias("child"), job_waits.alias("waits")
        any_child = select(child.c.id).where(child.c.parent_id == jobs.c.id)
        childless = select(jobs.c.id).where(
            jobs.c.waits_for_children, jobs.c.status == "queued", jobs.c.due_at >= FAR, ~any_child.exists()
        )
        # found by what they wait for: they may be due before, and those that are due some day are many
        awaited = (
            select(child.c.id)
            .join(waits, waits.c.job_id == child.c.id)
            .where(waits.c.waiter_id == job_waits.c.waiter_id)
        )
        resting = jobs.c.id == job_waits.c.waiter_id, jobs.c.waits_for_children, jobs.c.status == "queued"
        woken = (
            select(job_waits.c.waiter_id)
            .distinct()
            .where(~awaited.exists(), select(jobs.c.id).where(*resting).exists())
        )
        stuck = [ident for query in (childless, woken) for ident in connection.execute(query.limit(limit)).scalars()]
        if stuck:
            self.end_parents(connection, stuck, actor)


def _as_claimed(r: Any) -> Claimed:
    """A row of ``_LAPSED``, as far as its end is concerned."""
    return Claimed(
        r.id, r.tenant, r.queue, r.task, "", r.attempts, r.max_attempts, r.priority, None, None, 0.0, r.key, r.key_scope,
        None, r.parent_id, None, r.lease_token,
    )  # fmt: skip
