"""Every statement of the workflows room. What a run writes is fenced by its job's lease token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import (
    Connection,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    update,
)

from duly.audit.store import record
from duly.jobs.look import Found, Stream, below_of, walk
from duly.jobs.settle import Claimed
from duly.jobs.store import JobStore
from duly.jobs.tables import job_waits, jobs, jobs_done
from duly.storage.database import Database
from duly.storage.rows import by_index, insert_into
from duly.storage.types import Encoded, Instant, Json
from duly.workflows import ENGINE_RUN
from duly.workflows.plan import DECISION, Child, asked_at, standing
from duly.workflows.step import Ahead, Kind, Signal, Status, Step
from duly.workflows.tables import RUNS, workflow_runs, workflow_signals, workflow_steps

_STEP_COLUMNS = (
    "kind",
    "name",
    "status",
    "output",
    "error",
    "attempts",
    "child_id",
    "due_at",
    "started_at",
    "finished_at",
    "arguments",
)
_IN = 500


_INSERT = insert(workflow_steps)
_UPDATE = update(workflow_steps).where(
    workflow_steps.c.run_id == bindparam("b_run"), workflow_steps.c.position == bindparam("b_position")
).values({c: bindparam(c) for c in _STEP_COLUMNS})  # fmt: skip
_HISTORY = (
    select(workflow_steps.c.position, *(cast(workflow_steps.c[c], Text).label(c) if c in ("output", "error", "arguments") else workflow_steps.c[c] for c in _STEP_COLUMNS))
    .where(workflow_steps.c.run_id == bindparam("b_run")).order_by(workflow_steps.c.position)
)  # fmt: skip
_STEP = _HISTORY.where(workflow_steps.c.position == bindparam("b_position"))
_RUN = select(
    workflow_runs.c.id, workflow_runs.c.tenant, workflow_runs.c.workflow, workflow_runs.c.version, workflow_runs.c.definition,
    workflow_runs.c.news, workflow_runs.c.failing, workflow_runs.c.rested, workflow_runs.c.forked_from,
    workflow_runs.c.updated_at,
).where(workflow_runs.c.id == bindparam("b_id"))  # fmt: skip
_STANDS = select(workflow_runs.c.failing.is_not(None), workflow_runs.c.news).where(
    workflow_runs.c.id == bindparam("b_id")
)
_REST = (
    update(workflow_runs).where(workflow_runs.c.id == bindparam("b_id"), workflow_runs.c.news == bindparam("b_news"))
    .values(waits=bindparam("b_waits", type_=Json), heard=bindparam("b_news"), rested=bindparam("b_mark"), updated_at=bindparam("b_now", type_=Instant))
)  # fmt: skip
_RISE = (
    update(workflow_runs)
    .where(workflow_runs.c.id == bindparam("b_id"), workflow_runs.c.rested.is_not(None))
    .values(rested=null(), waits=null())
)
_RUN_LOCKED = _RUN.with_for_update()
_CHILDREN = [
    select(table.c.id, table.c.status, cast(table.c.output, Text).label("output"), table.c.error).where(table.c.id.in_(bindparam("ids", expanding=True)))
    # the live ones twice: a child that is replayed at this moment moves back
    for table in (jobs, jobs_done, jobs)
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kept:
    """A run's own row."""

    id: int
    tenant: str
    workflow: str
    #: None: it has not begun, but was sent a signal.
    version: int | None
    definition: Any
    news: int
    failing: dict[str, Any] | None
    rested: str | None = None
    forked_from: int | None = None
    updated_at: datetime | None = None


_KINDS, _STATUSES = frozenset(Kind), frozenset(Status)


class WorkflowStore:
    """Runs, their histories and signals."""

    def __init__(self, db: Database, jobs: JobStore) -> None:
        self.db, self.jobs = db, jobs

    # ------------------------------------------------------------------ a run's own row

    def begin(
        self, connection: Connection, claimed: Claimed, workflow: str, version: int, definition: Any = None
    ) -> None:
        """Note with which version a run begins, and make its row where it has none."""
        if not self.make(connection, claimed.id, claimed.tenant, workflow, version, definition):
            r = workflow_runs.c
            fresh = update(workflow_runs).where(r.id == claimed.id, r.version.is_(None))
            connection.execute(fresh.values(version=version, definition=definition))
        # a document goes with its run; code is known by those who have it
        self.jobs.set_needs(connection, claimed.id, needs(workflow, version) if definition is None else None)

    def make(
        self, connection: Connection, ident: int, tenant: str, workflow: str, version: int | None, definition: Any = None,
        forked_from: int | None = None,
    ) -> bool:  # fmt: skip
        """Make the row of a run. False where it is there."""
        now = self.db.present(connection)
        values = {"id": ident, "tenant": tenant, "workflow": workflow, "version": version, "definition": definition, "created_at": now,
                  "updated_at": now, "forked_from": forked_from}  # fmt: skip
        made = insert_into(self.db.is_sqlite)(workflow_runs).values(**values).on_conflict_do_nothing()
        return connection.execute(made).rowcount == 1

    def run(self, connection: Connection, ident: int, lock: bool = False) -> Kept | None:
        """A run's own row; None where nobody has looked at it yet. ``lock``: until this transaction ends nobody sends it a signal."""
        row: Any = connection.execute(_RUN_LOCKED if lock else _RUN, {"b_id": ident}).first()
        return None if row is None else Kept(*row)

    def begun(self, connection: Connection, last: int = 2_000) -> set[str]:
        """The workflows of the last runs that have begun: some worker has had their code."""
        r = workflow_runs.c
        rows = select(r.workflow).where(r.version.is_not(None)).order_by(r.id.desc()).limit(last)
        return set(connection.execute(rows).scalars())

    def waits(self, connection: Connection, ident: int) -> Sequence[Mapping[str, Any]]:
        """What a run has noted that it waits for, last."""
        return connection.execute(select(workflow_runs.c.waits).where(workflow_runs.c.id == ident)).scalar() or ()

    def set_failing(self, connection: Connection, ident: int, error: dict[str, Any] | None) -> None:
        """What ended the run, while its steps are being undone."""
        connection.execute(
            update(workflow_runs).where(workflow_runs.c.id == ident).values(failing=null() if error is None else error)
        )

    def call_off(self, connection: Connection, ident: int, error: dict[str, Any]) -> None:
        """Have a live run, whose row is locked, undo what it has done: at once, or when the step ends that it is at."""
        r, j = workflow_runs.c, jobs.c
        connection.execute(
            update(workflow_runs).where(r.id == ident).values(failing=error, news=r.news + 1, waits=null())
        )
        waits = update(jobs).where(j.id == ident, j.status == "queued")
        queue = connection.execute(
            waits.values(due_at=None, next_retry_at=None, waits_for_children=False).returning(j.queue)
        ).scalar()
        if queue is not None and not self.db.is_sqlite and self.db.settings.notify:
            self.jobs.sql.ring(connection, [queue])
        connection.execute(delete(job_waits).where(job_waits.c.waiter_id == ident))

    def renew(
        self, connection: Connection, ident: int, input: str, workflow: str, version: int, definition: Any = None
    ) -> int:
        """Have a run begin anew with another input: its history is forgotten, signals that nobody has taken stay. Returns how many steps it had."""
        s, g, r = workflow_steps.c, workflow_signals.c, workflow_runs.c
        count = connection.execute(delete(workflow_steps).where(s.run_id == ident)).rowcount
        old = or_(g.used_by.is_not(None), g.name.startswith(DECISION, autoescape=True))
        connection.execute(delete(workflow_signals).where(g.run_id == ident, old))
        fresh = {
            "version": version,
            "definition": null() if definition is None else definition,
            "waits": null(),
            "rested": null(),
            "failing": null(),
        }
        connection.execute(
            update(workflow_runs).where(r.id == ident).values(**fresh, updated_at=self.db.present(connection))
        )
        values = {"input": Encoded(input), "needs": None if definition is not None else needs(workflow, version)}
        connection.execute(update(jobs).where(jobs.c.id == ident).values(**values))
        return count

    # ------------------------------------------------------------------ the fence

    def fence(self, connection: Connection, claimed: Claimed) -> tuple[bool, int]:
        """Hold the run's job until this transaction ends, and count its attempts from one. Answers whether the run is to be undone, and how
        many signals it was sent: all of these can be read from here on. Raises LeaseLost where it is somebody else's, Cancel where an operator
        asked it to stop."""
        self.jobs.hold(connection, claimed, afresh=True)
        row = connection.execute(_STANDS, {"b_id": claimed.id}).first()
        return (False, 0) if row is None else (bool(row[0]), row[1])

    # ------------------------------------------------------------------ history

    def history(self, connection: Connection, ident: int) -> dict[int, Step]:
        """All that a run has on record, by position."""
        return {row.position: _step(ident, row) for row in connection.execute(_HISTORY, {"b_run": ident})}

    def step(self, connection: Connection, ident: int, position: int) -> Step | None:
        """One record of a run; None where there is none."""
        row = connection.execute(_STEP, {"b_run": ident, "b_position": position}).first()
        return None if row is None else _step(ident, row)

    def write(self, connection: Connection, steps: Sequence[Step], known: Mapping[int, Step]) -> None:
        """Record steps; ``known``: those that have a row already."""
        rows = [_row(step) for step in steps]
        new = [row for row in rows if row["position"] not in known]
        old = [
            {**row, "b_run": row.pop("run_id"), "b_position": row.pop("position")}
            for row in rows
            if row["position"] in known
        ]
        if new:
            connection.execute(_INSERT, new)
        if old:
            connection.execute(_UPDATE, old)

    def forget(self, connection: Connection, ident: int, positions: Sequence[int]) -> int:
        """Take back what is on record at some positions, and what was undone. Signals that those steps took are there again; decisions
        of people are not: they are asked anew.

        Returns how many steps were forgotten.
        """
        s, g = workflow_steps.c, workflow_signals.c
        count = connection.execute(delete(workflow_steps).where(s.run_id == ident, s.position < 0)).rowcount
        for start in range(0, len(positions), _IN):
            part = positions[start : start + _IN]
            count += connection.execute(delete(workflow_steps).where(s.run_id == ident, s.position.in_(part))).rowcount
            used = g.run_id == ident, g.used_by.in_(part)
            connection.execute(delete(workflow_signals).where(*used, g.name.startswith(DECISION, autoescape=True)))
            # nor those that nobody has taken yet: they answer a question that is not asked any more
            sent = select(g.id, g.name).where(
                g.run_id == ident, g.used_by.is_(None), g.name.startswith(DECISION, autoescape=True)
            )
            gone = set(part)
            stale = [row.id for row in connection.execute(sent).all() if asked_at(row.name) in gone]
            if stale:
                connection.execute(delete(workflow_signals).where(g.id.in_(stale)))
            connection.execute(update(workflow_signals).where(*used).values(used_by=None))
        kept = update(workflow_runs).where(workflow_runs.c.id == ident)
        connection.execute(
            kept.values(failing=null(), waits=null(), rested=null(), updated_at=self.db.present(connection))
        )
        return count

    def copy(self, connection: Connection, ident: int, to: int, below: int) -> int:
        """Give another run the final steps of one, those before a position. Returns how many."""
        s = workflow_steps.c
        names = [c.name for c in workflow_steps.c if c.name != "run_id"]
        query = select(literal(to), *(s[n] for n in names)).where(
            s.run_id == ident, s.position > 0, s.position < below, s.status != Status.WAITING.value
        )
        return connection.execute(insert(workflow_steps).from_select(["run_id", *names], query)).rowcount

    # ------------------------------------------------------------------ what is waited for

    def children(self, connection: Connection, idents: Sequence[int]) -> dict[int, Child]:
        """How child jobs stand, by id; those that are gone have no status. Their answers are JSON text, as everything in a history that code
        may change: each time it is asked for it is read afresh."""
        found: dict[int, Child] = {}
        for start in range(0, len(idents), _IN):
            part = list(idents[start : start + _IN])
            for query in _CHILDREN:
                found |= {
                    row.id: Child(row.status, _as_text(row.output), row.error)
                    for row in connection.execute(query, {"ids": part})
                }
        return {ident: found.get(ident, Child(None)) for ident in idents}

    def standing(self, connection: Connection, history: Mapping[int, Step]) -> list[str]:
        """The names of what a run has done and not undone, with the jobs that it started."""
        open_ones = (s for s in history.values() if s.kind is Kind.START or s.status is Status.WAITING)
        idents = [s.child_id for s in open_ones if s.child_id is not None]
        return standing(history, self.children(connection, idents))

    def signals(self, connection: Connection, ident: int) -> list[Signal]:
        """Signals that nobody has taken, the oldest first; their payloads as JSON text."""
        g = workflow_signals.c
        query = select(g.id, g.run_id, g.name, cast(g.payload, Text).label("payload"), g.sent_at, g.sent_by, g.used_by)
        return [
            Signal(row.id, row.run_id, row.name, _as_text(row.payload), row.sent_at, row.sent_by, row.used_by)
            for row in connection.execute(query.where(g.run_id == ident, g.used_by.is_(None)).order_by(g.id))
        ]

    def take(self, connection: Connection, taken: Sequence[tuple[int, int]]) -> None:
        """Note which position took which signal."""
        if taken:
            g = workflow_signals.c
            rows = [{"b_id": signal, "b_position": position} for signal, position in taken]
            connection.execute(
                update(workflow_signals).where(g.id == bindparam("b_id")).values(used_by=bindparam("b_position")), rows
            )

    def rest(
        self, connection: Connection, ident: int, waits: Sequence[Mapping[str, Any]], news: int, mark: str
    ) -> bool:
        """Note what a run waits for, and who put it down. False where signals have come since it looked: then it has to look again."""
        now = self.db.present(connection)
        values = {"b_id": ident, "b_news": news, "b_waits": list(waits), "b_mark": mark, "b_now": now}
        return connection.execute(_REST, values).rowcount == 1

    def rise(self, connection: Connection, ident: int) -> None:
        """A run that goes on is known to nobody else any more."""
        connection.execute(_RISE, {"b_id": ident})

    def send(self, connection: Connection, run: Kept, name: str, payload: str, key: str | None, by: str) -> bool:
        """Keep a signal for a run, whose row is locked, and wake it. False where a signal with that key was sent before."""
        g = workflow_signals.c
        if (
            key is not None
            and connection.execute(select(g.id).where(g.run_id == run.id, g.key == key)).first() is not None
        ):
            return False
        row = {
            "run_id": run.id,
            "name": name,
            "payload": Encoded(payload),
            "key": key,
            "sent_at": self.db.present(connection),
            "sent_by": by,
        }
        connection.execute(insert(workflow_signals).values(**row))
        connection.execute(
            update(workflow_runs).where(workflow_runs.c.id == run.id).values(news=workflow_runs.c.news + 1)
        )
        if run.rested is not None:  # one that has not begun, or waits for another attempt, goes on when it is time
            self.jobs.wake(connection, run.id)
        return True

    # ------------------------------------------------------------------ behind the counters

    def sweep(self, connection: Connection, limit: int = 200) -> int:
        """Wake runs that wait although they were sent something since. Finds nothing unless a crash came in between."""
        r = workflow_runs.c
        query = (
            select(r.id)
            .join(jobs, jobs.c.id == r.id)
            .where(r.news > r.heard, r.rested.is_not(None), jobs.c.status == "queued", jobs.c.due_at.is_not(None))
        )
        found = list(connection.execute(query.where(jobs.c.attempts == 0).limit(limit)).scalars())
        return sum(self.jobs.wake(connection, ident) for ident in found)

    def ease(self, connection: Connection, limit: int = 200) -> int:
        """Have runs that are past a guard claimed by any worker that knows their version: those that have the guard may not have met it since
        they started, and then do not know that they have."""
        j = jobs.c
        query = (
            select(j.id, j.needs).where(literal_column(RUNS), j.status == "queued", j.needs.contains(PAST)).limit(limit)
        )
        found = connection.execute(query).all()
        for ident, wanted in found:
            self.jobs.set_needs(connection, ident, wanted.rpartition(PAST)[0])
        return len(found)

    def prune(self, connection: Connection, limit: int = 500) -> int:
        """Forget what is on record of runs whose job is gone. Returns how many."""
        r = workflow_runs.c
        there = or_(exists().where(jobs.c.id == r.id), exists().where(jobs_done.c.id == r.id))
        gone = list(connection.execute(select(r.id).where(~there).limit(limit)).scalars())
        if gone:
            connection.execute(delete(workflow_steps).where(workflow_steps.c.run_id.in_(gone)))
            connection.execute(delete(workflow_signals).where(workflow_signals.c.run_id.in_(gone)))
            connection.execute(delete(workflow_runs).where(r.id.in_(gone)))
        return len(gone)

    def prune_waits(self, connection: Connection, limit: int = 500) -> int:
        """Forget what jobs waited for that have ended: a run that is due by a time-out may end before it waits again. Returns how many."""
        live = exists().where(jobs.c.id == job_waits.c.waiter_id)
        gone = list(connection.execute(select(job_waits.c.waiter_id).distinct().where(~live).limit(limit)).scalars())
        if gone:
            connection.execute(delete(job_waits).where(job_waits.c.waiter_id.in_(gone)))
        return len(gone)

    # ------------------------------------------------------------------ looking

    def find(
        self, connection: Connection, *, tenant: str | None, workflow: str | None, statuses: Sequence[str], ended: bool | None, limit: int,
        below: int | None, ident: int | None = None, until: float | None = None,
    ) -> Found[Any]:  # fmt: skip
        """Rows of runs with their jobs, the newest first: the run's columns (null where nobody has looked at it yet) and the job's.

        For no longer than ``until`` (monotonic; None: to the end). The connection as for ``jobs.look``.
        """
        if ident is None:
            by_index(connection)
        parts = []
        r = workflow_runs.c
        for table in (jobs, jobs_done):
            if ended is not None and ended is (table is jobs):
                continue
            j = table.c
            due = (jobs.c.due_at if table is jobs else null()).label("due_at")
            finished = (jobs_done.c.finished_at if table is jobs_done else null()).label("finished_at")
            query = select(
                j.id, j.tenant, j.status, j.input, j.output, j.error, j.attempts, j.parent_id, j.created_at, due, finished,
                r.workflow, r.version, r.waits, r.forked_from, r.failing,
            ).outerjoin(workflow_runs, r.id == j.id)  # fmt: skip
            runs = [literal_column(RUNS), *([j.id == ident] if ident is not None else [])]
            rest = [j.tenant == tenant] if tenant is not None else []
            if workflow is not None:
                # one that nobody has looked at yet is known by its input
                said = self._said(table) == workflow
                rest.append(or_(r.workflow == workflow, and_(r.workflow.is_(None), said)))
            if statuses:
                rest.append(j.status.in_(statuses))
            parts.append(Stream(table, query, runs, rest) if ident is None else Stream(table, query, [*runs, *rest]))
        return walk(connection, parts, limit, below_of(below), until)

    def _said(self, table: Table) -> Any:
        """The workflow that the input of a run's job names, as an expression."""
        if self.db.is_sqlite:
            return func.json_extract(table.c.input, "$.workflow")
        return literal_column(f"{table.name}.input ->> 'workflow'", Text)

    def layers(self, connection: Connection, ident: int) -> list[list[int]]:
        """The live jobs below a job: its children, theirs, and so on, each layer in order of id."""
        found: list[list[int]] = []
        # ended jobs may have live ones below them, so all are walked
        above = [ident]
        while above:
            below: list[int] = []
            live: list[int] = []
            for start in range(0, len(above), _IN):
                part = above[start : start + _IN]
                for table, into in ((jobs, live), (jobs_done, below)):
                    into += connection.execute(select(table.c.id).where(table.c.parent_id.in_(part))).scalars()
            found.append(sorted(live))
            above = [*live, *below]
        return found

    def hold_tree(self, connection: Connection, ident: int) -> list[list[int]]:
        """Lock a job and all live jobs below it, so that none of them makes a child until this transaction ends. Returns ``layers``.

        What lies deepest is locked first, in the order in which the ends of children lock them and their parents: locked from above, a child
        that ends at this moment and this transaction would wait for each other. So a run may have made children between the look and the
        locks. Those are locked where nobody holds them; otherwise all locks are given up and taken again, in order.
        """
        while True:
            layers = self.layers(connection, ident)
            attempt = connection.begin_nested()
            for layer in reversed([[ident], *layers]):
                self._lock(connection, layer)
            held = {ident, *(one for layer in layers for one in layer)}
            while True:
                layers = self.layers(connection, ident)
                new = sorted({one for layer in layers for one in layer} - held)
                if not new:
                    attempt.commit()
                    return layers
                got = self._lock(connection, new, skip_locked=True)
                held.update(got)
                if len(got) < len(new):
                    break
            attempt.rollback()

    @staticmethod
    def _lock(connection: Connection, idents: Sequence[int], skip_locked: bool = False) -> list[int]:
        found: list[int] = []
        for start in range(0, len(idents), _IN):
            query = select(jobs.c.id).where(jobs.c.id.in_(idents[start : start + _IN])).order_by(jobs.c.id)
            found += connection.execute(query.with_for_update(skip_locked=skip_locked)).scalars()
        return found

    def tree(self, connection: Connection, ident: int, most: int) -> list[Any]:
        """All jobs that a job has below it, parents before children, at most so many: rows of id, parent_id, task, status and the name of
        the workflow, for runs."""
        found: list[Any] = []
        layer = [ident]
        while layer and len(found) < most:
            below: dict[int, Any] = {}
            for start in range(0, len(layer), _IN):
                part = layer[start : start + _IN]
                for table in (jobs, jobs_done):
                    j = table.c
                    named = case((j.task == ENGINE_RUN, self._said(table)), else_=null()).label("workflow")
                    query = select(j.id, j.parent_id, j.task, j.status, named).where(j.parent_id.in_(part))
                    # by id, as one that ends at this moment may be found twice
                    below |= {row.id: row for row in connection.execute(query.order_by(j.id).limit(most))}
            layer = sorted(below)
            found += [below[child] for child in layer]
        return found[:most]

    def audit(self, connection: Connection, ident: int, tenant: str, actor: str, action: str, **meta: Any) -> None:
        """An act on a run, without payloads."""
        record(self.db, connection, actor=actor, action=action, entity="run", entity_id=ident, tenant=tenant, meta=meta)


#: Stands between a version and the guard that its code must have.
PAST = " past "


def needs(workflow: str, version: int | None = None, least: int = 0, past: str = "") -> str:
    """What a worker must know to go on with a run: a version of its workflow; to begin it, any version or one from ``least`` on. ``past``:
    the guard that the run has passed, where code without it has had the run in hand."""
    if version is not None:
        return f"{workflow}:{version}" + (f"{PAST}{past}" if past else "")
    return f"{workflow}>={least}" if least else workflow


def _step(run_id: int, row: Any) -> Step:
    """Raises Ahead for a record that newer code has written."""
    if row.kind not in _KINDS or row.status not in _STATUSES:
        raise Ahead(
            f"step {row.position} of run {run_id} is a {row.kind} that is {row.status}, which this version of Duly does not know. "
            "A worker with the newer version goes on with the run."
        )
    return Step(
        run_id, row.position, Kind(row.kind), row.name, Status(row.status), _as_text(row.output),
        orjson.loads(row.error) if row.error is not None else None, row.attempts, row.child_id, row.due_at, row.started_at, row.finished_at,
        orjson.loads(row.arguments) if row.arguments is not None else None,
    )  # fmt: skip


def _as_text(column: str | None) -> Encoded | None:
    return None if column is None else Encoded(column)


def value_of(output: Any) -> Any:
    """An output as a plain value, which nobody else has in hand."""
    return orjson.loads(str(output)) if isinstance(output, Encoded) else output


def _row(step: Step) -> dict[str, Any]:
    assert step.status is not None
    return {
        "run_id": step.run_id, "position": step.position, "kind": step.kind.value, "name": step.name, "status": step.status.value,
        "output": step.output, "error": step.error, "attempts": step.attempts, "child_id": step.child_id, "due_at": step.due_at,
        "started_at": step.started_at, "finished_at": step.finished_at, "arguments": step.arguments,
    }  # fmt: skip
