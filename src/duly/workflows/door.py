"""``app.workflows``: defining workflows, starting runs, telling them things, looking at them, and acting on them.

Every act on a run is audited in its transaction, with who did it and why, and without payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import orjson
from sqlalchemy import Connection

from duly.jobs.admin import JobAdmin
from duly.jobs.codec import encode_plain
from duly.jobs.enqueue import NewJob
from duly.jobs.host import Host as AnyHost
from duly.jobs.job import ENDED, LIVE, Enqueued
from duly.jobs.job import Status as JobStatus
from duly.jobs.look import Found, until_of
from duly.jobs.run import CURRENT, UnreadableInput
from duly.jobs.run import Run as JobRun
from duly.jobs.store import FAR
from duly.jobs.task import Call, Options, Task
from duly.jobs.why import Check
from duly.kernel.errors import InvalidArgument, NotFound, Snooze, UnreadableHere, WrongState
from duly.kernel.names import nearest, notice
from duly.kernel.payload import check_id, check_name, check_size, check_text
from duly.workflows import ENGINE_RUN
from duly.workflows.advance import Advance, Memory, WorkflowFailed
from duly.workflows.context import Renewed, WorkflowContext
from duly.workflows.plan import DECISION, again, fork_point, signal_name, state, still_waits
from duly.workflows.step import (
    APPROVED,
    CANCELLED,
    FORKED,
    REJECTED,
    REPLAYED,
    SIGNALLED,
    Ahead,
    Kind,
    Run,
    Status,
    Step,
    UnknownWorkflow,
)
from duly.workflows.store import Kept, WorkflowStore, needs, value_of
from duly.workflows.workflow import QUEUE, Workflow, WorkflowCall, run_input

if TYPE_CHECKING:
    pass

R = TypeVar("R")

#: Seconds after which a run that this worker cannot take further is looked at again, by any worker: at first, and at most.
AHEAD_WAIT, AHEAD_MOST = 0.1, 30.0
#: A run that was not left for so many seconds is left for the first time: it has gone on in between.
LEFT_AGAIN = 180.0
#: Versions up to this one are counted one by one, 1, 2, 3; higher ones may be dates.
COUNTED = 30
#: Jobs of a tree that are shown.
TREE = 10_000


#: In a run's meta: the version that the code knew which started it. A worker begins the run with this version or a later one.
VERSION_META = "workflow_version"


class Host(AnyHost, Protocol):
    """What an application offers here besides."""

    def prepare(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> NewJob: ...

    def warn_unknown(self, what: str, name: str, known: Collection[str], **more: Any) -> str: ...

    def _of_task(self, task: Task[Any, Any], arguments: Mapping[str, Any], o: Options) -> NewJob: ...

    def _new(self, name: str, queue: str, text: str, priority: int, max_attempts: int | None, o: Options) -> NewJob: ...

    def _put(self, new: list[NewJob], options: Options) -> Sequence[Enqueued]: ...

    async def _aput(self, new: list[NewJob], options: Options) -> Sequence[Enqueued]: ...


@dataclass(frozen=True, slots=True)
class Branch:
    """A job below a run. ``name``: of its workflow, for those that are runs too."""

    id: int
    parent_id: int
    depth: int
    task: str
    status: str
    name: str


class Workflows:
    """Workflows of an application."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._known: dict[str, dict[int, Workflow]] = {}
        self._kept_store: WorkflowStore | None = None
        self._memory = Memory()
        #: Documents that were told to have changed: (name, version).
        self._told: set[tuple[str, int]] = set()
        #: How often this process has left a run to others.
        self._times_left: dict[int, tuple[int, float, float]] = {}

    # ------------------------------------------------------------------ definitions

    def define(self, workflow: Workflow) -> Workflow:
        """Take up a definition, and the task ENGINE_RUN with the first one. Raises InvalidArgument for a version that is taken."""
        versions = self._known.setdefault(workflow.name, {})
        known = versions.get(workflow.version)
        if known is not None and (known.fn.__module__, known.fn.__qualname__) != (
            workflow.fn.__module__,
            workflow.fn.__qualname__,
        ):
            raise InvalidArgument(
                f"workflow {workflow.name}",
                f"is defined twice in version {workflow.version}.",
                "Give the changed one a higher version.",
            )
        made = replace(workflow, door=self)
        versions[workflow.version] = made
        # to begin a run that was started by code of an earlier version is allowed, as far as these are counted one by one
        mine = {needs(made.name), needs(made.name, made.version)}
        mine |= {needs(made.name, least=n) for n in (*range(1, min(made.version, COUNTED) + 1), made.version)}
        self._app.engine.store.abilities |= mine
        if ENGINE_RUN not in self._app.engine.tasks:
            self._app.task(ENGINE_RUN, queue=QUEUE)(self._task())
        return made

    def load(self, document: str | Path | Mapping[str, Any]) -> Workflow:
        """Define a workflow that is written as a document: the name of a file (.yaml, .yml or .json), or a mapping.

        Another text under a version that is known is taken for new runs, and told as ``workflow_changed``; runs that have begun keep the
        text that they began with. Raises InvalidDocument with all that is wrong with it, before anything is defined.
        """
        from duly.workflows.interpret import workflow_of
        from duly.workflows.reading import load

        made = workflow_of(load(document))
        check_size(
            len(orjson.dumps(made.document)), self._app.settings.max_payload, f"the document of workflow {made.name}"
        )
        known = self._known.get(made.name, {}).get(made.version)
        defined = self.define(made)
        if known is not None and known.document != made.document:
            self._tell_changed(made.name, made.version)
        return defined

    def _as_begun(self, kept: Kept | None) -> Workflow | None:
        """The workflow of the document that a run began with, whatever is known by its name here now. None for a run of code."""
        if kept is None or kept.definition is None or kept.version is None:
            return None
        from duly.workflows.interpret import as_begun

        known = self._known.get(kept.workflow, {}).get(kept.version)
        if known is not None and known.document == kept.definition:
            return known
        if known is not None:
            self._tell_changed(kept.workflow, kept.version)
        return as_begun(kept.definition)

    def _tell_changed(self, name: str, version: int) -> None:
        if (name, version) not in self._told:
            self._told.add((name, version))
            self._app.events.emit("workflow_changed", "warning", workflow=name, version=version)

    def _task(self) -> Callable[..., Any]:
        async def engine_run(workflow: str, input: dict[str, Any] | None = None, version: int | None = None) -> Any:
            return await self._run(workflow, input or {}, version)

        return engine_run

    def queues(self) -> set[str]:
        """The queues of the workflows defined here, and the one in which runs lie that were started elsewhere, by name."""
        own = {workflow.queue for versions in self._known.values() for workflow in versions.values()}
        return own | {QUEUE} if own else own

    def names(self) -> dict[str, tuple[int, ...]]:
        """The workflows defined here: versions by name."""
        return {name: tuple(sorted(versions)) for name, versions in sorted(self._known.items())}

    def find(self, name: str, version: int | None = None) -> Workflow:
        """A workflow defined here, its newest version without ``version``. Raises UnknownWorkflow."""
        versions = self._known.get(name, {})
        wanted = max(versions, default=None) if version is None else version
        if wanted is None or wanted not in versions:
            raise UnknownWorkflow(
                name, version, tuple(f"{n} ({', '.join(map(str, v))})" for n, v in self.names().items())
            )
        return versions[wanted]

    # ------------------------------------------------------------------ runs

    def start(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> Enqueued:
        """Make a run by the workflow's name, also of one that is defined elsewhere. ``options`` as for ``Task.using``.

        The input of a workflow known here is checked by its annotations; of others it is carried as plain JSON, and their runs lie in the
        queue ``workflows``, whatever queue they have where they are defined: workers that know any workflow serve that one too.
        """
        workflow = self._known.get(check_name(name, "name"))
        if workflow is not None:
            found = workflow[max(workflow)]
            return self.begin(found, dict(input or {}), found.using(**options).options)
        self._warn_unknown(name)
        o = WorkflowCall(Workflow(name, _nothing), Options()).using(**options).options
        return self._app._put(
            [self._job(name, encode_plain(dict(input or {}), "input", self._app.settings.max_payload), o)], o
        )[0]

    def begin(self, workflow: Workflow, arguments: Mapping[str, Any], o: Options) -> Enqueued:
        new = self._prepared(workflow, arguments, o)
        if workflow.document is not None and o.session is None:
            return self._write(lambda c: self._with_its_document(c, workflow, new))
        return self._app._put([new], o)[0]

    def _with_its_document(self, connection: Connection, workflow: Workflow, new: NewJob) -> Enqueued:
        """A run that has its document from the start, so that workers need not have loaded it."""
        made = self._app.engine.maker.make_in(connection, [new])[0]
        if made.created:
            self._store.make(
                connection, made.job.id, made.job.tenant, workflow.name, workflow.version, workflow.document
            )
        return made

    async def abegin(self, workflow: Workflow, arguments: Mapping[str, Any], o: Options) -> Enqueued:
        if workflow.document is not None and o.session is None:
            return await self._app.engine.db.arun(self.begin, workflow, arguments, o)
        return (await self._app._aput([self._prepared(workflow, arguments, o)], o))[0]

    def _prepared(self, workflow: Workflow, arguments: Mapping[str, Any], o: Options) -> NewJob:
        text = workflow.codec.encode(arguments, self._app.settings.max_payload)
        return self._job(workflow.name, text, o, workflow)

    def _job(
        self, name: str, text: str, o: Options, workflow: Workflow | None = None, version: int | None = None
    ) -> NewJob:
        queue, priority, most = (
            (QUEUE, 0, None) if workflow is None else (workflow.queue, workflow.priority, workflow.max_attempts)
        )
        if workflow is not None and version is None and workflow.version > 1:
            # an older worker, which knows an earlier version only, must not begin it
            o = replace(o, meta={**(o.meta or {}), VERSION_META: workflow.version})
        return self._app._new(ENGINE_RUN, queue, run_input(name, text, version), priority, most, o)

    def prepared(self, input: Mapping[str, Any], o: Options) -> NewJob | None:
        """The job of a run that is made by its task's name: ``app.enqueue("ENGINE_RUN", {"workflow": "nightly", "input": {…}})``, or a
        schedule. It is as ``start`` makes it. None where the input is none of a run. Raises InvalidArgument, InvalidPayload."""
        if not isinstance(input, Mapping) or not set(input) <= {"workflow", "input", "version"}:
            return None
        name, given, version = input.get("workflow"), input.get("input") or {}, input.get("version")
        if not isinstance(name, str) or not isinstance(given, Mapping) or not isinstance(version, int | None):
            return None
        workflow, limit = self._said(input), self._app.settings.max_payload
        if workflow is None:
            if name not in self._known:
                self._warn_unknown(name)
            return self._job(check_name(name, "workflow"), encode_plain(dict(given), "input", limit), o, None, version)
        return self._job(name, workflow.codec.encode(given, limit), o, workflow, version)

    def _warn_unknown(self, name: str) -> None:
        """Warn of a workflow that neither this application nor any run that has begun knows. Raises UnknownName with ``strict_names``."""
        self._app.warn_unknown(
            "workflow", name, self._known, elsewhere=lambda c: self._store.begun(c), remedy="The run waits until a worker that defines it starts."
        )  # fmt: skip

    def attempts(self, input: Mapping[str, Any] | None) -> int | None:
        """The attempts that a known workflow gives its runs; None for what the settings say."""
        workflow = self._said(input or {})
        return None if workflow is None else workflow.max_attempts

    def _said(self, input: Mapping[str, Any]) -> Workflow | None:
        """The workflow that the input of a run's job names, where it is known here."""
        name, version = input.get("workflow"), input.get("version")
        versions = self._known.get(name, {}) if isinstance(name, str) and isinstance(version, int | None) else {}
        return versions.get(max(versions, default=0) if version is None else version)

    async def _run(self, name: str, input: dict[str, Any], version: int | None) -> Any:
        """The handler of ENGINE_RUN."""
        run = CURRENT.get()
        assert isinstance(run, JobRun)
        claimed, engine, store = run.claimed, self._app.engine, self._store
        kept = await engine.db.arun(engine.db.read, lambda c: store.run(c, claimed.id))
        try:
            workflow = self._as_begun(kept) or self.find(
                name, version if kept is None or kept.version is None else kept.version
            )
            if (kept is None or kept.version is None) and version is None and workflow.version < _least(claimed.meta):
                raise UnknownWorkflow(name, _least(claimed.meta), (f"{name} ({workflow.version})",))
        except UnknownWorkflow as error:
            engine.emitter.emit("workflow_unknown", "warning", run=claimed.id, workflow=name, error=str(error))
            begun = None if kept is None else kept.version
            least = _least(claimed.meta) if name in self._known else 0
            wanted = needs(name, version if begun is None else begun, least)
            if least <= COUNTED and wanted not in engine.store.abilities:  # from now on only those claim it who know it
                await engine.db.arun(engine.db.write, lambda c: engine.store.set_needs(c, claimed.id, wanted))
            raise self._left(claimed.id, "its workflow is not known here") from None
        if kept is None or kept.version is None:
            await engine.db.arun(
                engine.db.write, lambda c: store.begin(c, claimed, name, workflow.version, workflow.document)
            )
            kept = Kept(claimed.id, claimed.tenant, name, workflow.version, workflow.document, 0, None)
        advance = Advance(engine, store, self._child, self._anew, self._memory)
        try:
            workflow.decode(input)
        except InvalidArgument as error:  # newer code may be able to read it
            raise UnreadableInput(error.field, error.problem, error.remedy) from None
        try:
            return await advance.run(kept, workflow.fn, partial(workflow.decode, input))
        except Ahead as error:
            engine.emitter.emit("workflow_ahead", "warning", run=claimed.id, workflow=name, error=str(error))
            wanted = needs(name, workflow.version, past=error.guard)
            if error.guard and wanted not in engine.store.abilities:
                await engine.db.arun(engine.db.write, lambda c: engine.store.set_needs(c, claimed.id, wanted))
            raise self._left(claimed.id, "newer code has taken it further") from None

    def _left(self, run: int, why: str) -> Snooze:
        """A run that is left to another worker: no attempt is used, and it can be claimed again at once, then after longer and longer."""
        now, settings = self._app.engine.clock.monotonic(), self._app.engine.settings
        count, first, last = self._times_left.pop(run, (0, now, now))
        if now - last > LEFT_AGAIN:
            count, first = 0, now
        self._times_left[run] = count + 1, first, now
        if now - first > settings.alerts_code:  # during a deploy it is soon over
            self._app.engine.left.note(
                "run", str(run), UnreadableHere(f"run {run}", f"{why}.", "Start workers with that code.")
            )
        while len(self._times_left) > 10_000:
            self._times_left.pop(next(iter(self._times_left)))
        return Snooze(why, after=min(AHEAD_WAIT * 2 ** min(count, 10), AHEAD_MOST))

    def _anew(self, ctx: WorkflowContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Renewed:
        """The new beginning of a run, with the newest version of its workflow."""
        found = self.find(ctx.workflow)
        text = found.codec.encode(found.codec.bind(args, kwargs), self._app.settings.max_payload)
        return Renewed(run_input(found.name, text), found.version, found.document)

    def _child(self, ctx: WorkflowContext, what: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        """The job of a child."""
        o = getattr(what, "options", Options())
        for name in ("key", "session", "parent"):
            if getattr(o, name) is not None:
                raise InvalidArgument(
                    name, "is no option of a child: each is made once, in the run's own transaction, below the run."
                )
        o = replace(o, parent=ctx.run_id, tenant=o.tenant or ctx.tenant)
        if isinstance(what, str):
            if args:
                raise InvalidArgument("args", f"are given to task {what} in their places.", "Give them by name.")
            return self._app.prepare(what, kwargs, parent=ctx.run_id, tenant=ctx.tenant)
        known = what.task if isinstance(what, Call | WorkflowCall) else what
        if isinstance(known, Workflow):
            return self._prepared(known, known.codec.bind(args, kwargs), o)
        if isinstance(known, Task):
            return self._app._of_task(known, known.codec.bind(args, kwargs), o)
        raise InvalidArgument(
            "task", f"is of type {type(what).__name__}.", "Give a task, a workflow, or a task's name."
        )

    # ------------------------------------------------------------------ telling a run something

    def signal(
        self, run: int, name: str, payload: Any = None, *, key: str | None = None, tenant: str | None = None, actor: str = "code"
    ) -> bool:  # fmt: skip
        """Tell a run something it waits for, or will. Kept until the run asks for an event of that name; each is taken once.

        ``payload``: plain JSON. ``key``: a signal with the same key is taken once; then this returns False. Audited as
        WORKFLOW_SIGNALLED. Raises NotFound, and WrongState when the run has ended.
        """
        check_name(name, "name")
        if name.startswith(DECISION):
            raise InvalidArgument("name", f"is {name!r}, which reads as a decision.", "Use `approve`.")
        if key is not None:
            check_name(key, "key")
        text = encode_plain(payload, "payload", self._app.settings.max_payload)
        sent = self._tell(run, name, text, key, tenant, actor, SIGNALLED, {"name": name})
        self._warn_unasked(run, name)
        return sent

    def _warn_unasked(self, run: int, name: str) -> None:
        """Warn of a signal that a run does not wait for, where it waits for others: it is kept, and perhaps misspelt. One that comes before
        its run waits for anything is ordinary."""
        waits = self._read(lambda c: self._store.waits(c, run))
        asked = {str(wait["name"]) for wait in waits if wait.get("kind") == Kind.EVENT}
        if not asked or name in asked:
            return
        near = nearest(name, asked)
        notice(
            f'Run {run} does not wait for "{name}"; it waits for {", ".join(sorted(asked)[:8])}. '
            + (f'Did you mean "{near}"? ' if near else "")
            + "The signal is kept until the run asks for it."
        )
        self._app.events.emit("unknown_name", "warning", what="signal", unknown=name[:200], nearest=near)

    def approve(
        self, run: int, name: str | None = None, approved: bool = True, *, reason: str = "", tenant: str | None = None, actor: str = "code"
    ) -> None:  # fmt: skip
        """Answer yes (or no, with ``approved=False``) to a run that waits for a person. ``name``: which of its questions, if it has several.

        Audited as WORKFLOW_APPROVED or WORKFLOW_REJECTED. Raises NotFound, WrongState when it waits for no person, InvalidArgument when
        ``name`` is none of its questions, or is missing where there are several.
        """
        check_text(reason, "reason")
        if not isinstance(approved, bool):
            raise InvalidArgument("approved", f"is {approved!r}; it must be true or false.")

        def answer(connection: Connection, kept: Kept) -> tuple[str, str]:
            now = self._app.engine.db.present(connection)
            sent = {s.name for s in self._store.signals(connection, run)}
            questions = [
                step for step in self._store.history(connection, run).values()
                if step.kind is Kind.APPROVAL and step.status is Status.WAITING and (step.due_at is None or now <= step.due_at)
                and signal_name(step.kind, step.name, step.position) not in sent
            ]  # fmt: skip
            if not questions:
                raise WrongState(f"run {run}", "not waiting for a person", "approve")
            # several of one name are answered in the order in which they were asked
            asked = {step.name: step.position for step in sorted(questions, key=lambda s: s.position, reverse=True)}
            asked = dict(reversed(asked.items()))
            if name is None and len(asked) > 1:
                raise InvalidArgument("name", f"is missing; the run asks for {', '.join(asked)}.")
            if name is not None and name not in asked:
                raise InvalidArgument("name", f"is {name!r}; the run asks for {', '.join(asked)}.")
            said = {"approved": approved, "by": actor, "reason": reason, "at": now.isoformat()}
            which = name or next(iter(asked))
            return signal_name(Kind.APPROVAL, which, asked[which]), orjson.dumps(said).decode()

        meta = {"reason": reason}
        self._tell(run, answer, None, None, tenant, actor, APPROVED if approved else REJECTED, meta)

    def _tell(
        self,
        run: int,
        what: Any,
        text: str | None,
        key: str | None,
        tenant: str | None,
        actor: str,
        action: str,
        meta: dict[str, Any],
    ) -> bool:
        def act(connection: Connection) -> bool:
            kept = self._locked(connection, run, tenant)
            name, payload = (what, text or "null") if text is not None else what(connection, kept)
            sent = self._store.send(connection, kept, name, payload, key, actor)
            if sent:
                self._store.audit(connection, run, kept.tenant, actor, action, **meta, workflow=kept.workflow)
            return sent

        return self._write(act)

    def _locked(self, connection: Connection, run: int, tenant: str | None) -> Kept:
        """A live run's own row, locked; made where nobody has looked at the run yet. Raises NotFound, WrongState."""
        row = self._row(connection, run, tenant)
        kept = self._store.run(connection, run, lock=True)
        if kept is None:
            self._store.make(connection, run, row.tenant, _named(row.input), None)
            kept = self._store.run(connection, run, lock=True)
            assert kept is not None
        # asked again under the lock
        row = self._row(connection, run, tenant)
        if row.status not in LIVE:
            raise WrongState(f"run {run}", str(row.status), "signal")
        return kept

    # ------------------------------------------------------------------ looking

    def get(self, run: int, tenant: str | None = None) -> Run:
        """A run as it stands. Raises NotFound."""
        return self._read(lambda c: self._run_of(self._row(c, run, tenant)))

    def list(
        self, workflow: str | None = None, *, status: Sequence[str] = (), tenant: str | None = None, limit: int = 50, below: int | None = None
    ) -> list[Run]:  # fmt: skip
        """Runs, the newest first. ``status``: of the job (queued, running, succeeded, failed, cancelled). ``below``: the next page."""
        return self.look(workflow, status=status, tenant=tenant, limit=limit, below=below).rows

    def look(
        self, workflow: str | None = None, *, status: Sequence[str] = (), tenant: str | None = None, limit: int = 50, below: int | None = None,
        seconds: float | None = None,
    ) -> Found[Run]:  # fmt: skip
        """The same for those who wait: it stops after so many seconds, and says how far it came."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 10_000:
            raise InvalidArgument("limit", f"is {limit!r}.", "Give a number from 1 to 10,000.")
        for one in status:
            if one not in set(JobStatus):
                raise InvalidArgument("status", f"is {one!r}.", f"Use one of {', '.join(JobStatus)}.")
        ended = (
            None
            if not status
            else False
            if all(s in LIVE for s in status)
            else True
            if all(s in ENDED for s in status)
            else None
        )
        until = until_of(seconds)
        self._app.open()
        found = self._app.engine.db.snapshot(
            lambda c: self._store.find(
                c,
                tenant=tenant,
                workflow=workflow,
                statuses=[*status],
                ended=ended,
                limit=limit,
                below=below,
                until=until,
            )
        )
        return found.told(lambda rows: [self._run_of(row) for row in rows])

    def history(self, run: int, tenant: str | None = None) -> Sequence[Step]:
        """What a run has on record, in the order in which its code asked for it; what undid it comes last. Raises NotFound."""

        def look(connection: Connection) -> Sequence[Step]:
            self._row(connection, run, tenant)
            found = self._store.history(connection, run)
            order = [*sorted(p for p in found if p > 0), *sorted(p for p in found if p < 0)]
            return [replace(found[p], output=value_of(found[p].output)) for p in order]

        return self._read(look)

    def tree(self, run: int, tenant: str | None = None) -> Sequence[Branch]:
        """All jobs below a run, children after their parents, at most 10,000. Raises NotFound."""

        def look(connection: Connection) -> Sequence[Branch]:
            self._row(connection, run, tenant)
            depth, branches = {run: 0}, []
            for job in self._store.tree(connection, run, TREE):
                depth[job.id] = depth.get(job.parent_id, 0) + 1
                branches.append(Branch(job.id, job.parent_id, depth[job.id], job.task, job.status, job.workflow or ""))
            return branches

        return self._read(look)

    def _row(self, connection: Connection, run: int, tenant: str | None) -> Any:
        check_id(run, "run")
        found = self._store.find(
            connection, tenant=tenant, workflow=None, statuses=(), ended=None, limit=1, below=None, ident=run
        )
        if not found.rows:
            raise NotFound("run", run)
        return found.rows[0]

    def _run_of(self, row: Any) -> Run:
        said = row.input if isinstance(row.input, dict) else {}
        waits = row.waits or []
        if row.status != "queued" or not still_waits(waits, row.due_at, FAR):
            waits = []
        shown = state(row.status, waits)
        return Run(
            row.id, row.tenant, row.workflow or _named(row.input), row.version, shown, said.get("input"), row.output, row.error,
            waits, row.parent_id, row.forked_from, row.created_at, row.finished_at, row.attempts,
        )  # fmt: skip

    def why(self, run: int) -> Check | None:
        """What a run waits for, as a condition of its job; None where it waits for nothing."""
        found = self.get(run)
        if found.state in ("queued", *ENDED, "running"):
            return None
        said, remedies = [], []
        for wait in found.waits:
            until = f" until {wait['until']}" if wait.get("until") else ""
            said.append(f"{wait['kind']} {wait['name']}{until}")
            if wait["kind"] == Kind.APPROVAL:
                remedies.append(f"Answer it: `duly workflows approve {run} {wait['name']}`.")
            elif wait["kind"] == Kind.EVENT:
                remedies.append(f"Send it: `duly workflows signal {run} {wait['name']}`.")
        more = f" and {len(said) - 5} more" if len(said) > 5 else ""
        return Check("due", False, f"the run waits: {', '.join(said[:5])}{more}", " ".join(remedies[:3]))

    # ------------------------------------------------------------------ acts

    def replay(
        self, run: int, since: int | str | None = None, *, reason: str = "", tenant: str | None = None, actor: str = "code"
    ) -> Run:  # fmt: skip
        """Have an ended run go on again from a step (its position, or its name): that step and all behind it are forgotten and done anew.

        Without ``since`` nothing is forgotten but the step whose failure has ended the run, where it is the last thing on record; or, where
        steps were undone, everything from the first of these. Audited as WORKFLOW_REPLAYED. Raises NotFound, WrongState for a live run,
        InvalidArgument for a step that it does not have or that would leave undone ones behind it, and without ``since`` where a step would be
        done again that could not be undone.
        """
        check_text(reason, "reason")

        def act(connection: Connection) -> None:
            row = self._row(connection, run, tenant)
            if row.status in LIVE:
                raise WrongState(f"run {run}", str(row.status), "replay", tuple(map(str, ENDED)))
            history = self._store.history(connection, run)
            positions = again(history, None if since is None else self._position(history, since), _blamed(row))
            count = self._store.forget(connection, run, positions)
            position = min(positions, default=None)
            JobAdmin(self._app.engine).replay_in(connection, run, actor, reason)
            self._store.audit(
                connection, run, row.tenant, actor, REPLAYED, reason=reason, since=position, forgotten=count
            )

        self._write(act)
        return self.get(run, tenant)

    def _position(self, history: Mapping[int, Step], since: int | str) -> int:
        """The position that is meant."""
        own = {position: step for position, step in history.items() if position > 0}
        if isinstance(since, str):
            named = [p for p, step in own.items() if step.name == since]
            if not named:
                raise InvalidArgument("since", f"is {since!r}, and the run has no step of that name on record.")
            return min(named)
        if isinstance(since, bool) or not 1 <= since <= max(own, default=0) + 1:
            raise InvalidArgument("since", f"is {since!r}; the run has the steps 1 to {max(own, default=0)} on record.")
        return since

    def fork(
        self, run: int, since: int | str | None = None, *, reason: str = "", tenant: str | None = None, actor: str = "code"
    ) -> Run:  # fmt: skip
        """Make another run with the same input, and with what this one has done before a step (all of it, without ``since``). This one stays
        as it is, live or ended. Audited as WORKFLOW_FORKED. Raises NotFound, InvalidArgument."""
        check_text(reason, "reason")

        def act(connection: Connection) -> int:
            row = self._row(connection, run, tenant)
            kept = self._store.run(connection, run)
            if kept is None:
                raise WrongState(f"run {run}", "not begun", "fork")
            history = self._store.history(connection, run)
            position = fork_point(history, None if since is None else self._position(history, since))
            if row.status in LIVE and kept.failing is not None and not kept.failing.get("over") and position > 1:
                # what it will undo must not stand in another run as done, and be undone there too
                raise WrongState(f"run {run}", "being undone", "be forked")
            job = self._app.engine.reader.get(connection, run)
            new = NewJob(
                row.tenant, job.queue, ENGINE_RUN, orjson.dumps(job.input).decode(), job.max_attempts, job.priority,
                meta=None if job.meta is None else orjson.dumps(job.meta).decode(),
            )  # fmt: skip
            ident = self._app.engine.maker.make_in(connection, [new])[0].job.id
            self._store.make(connection, ident, row.tenant, kept.workflow, kept.version, kept.definition, run)
            copied = self._store.copy(connection, run, ident, position)
            self._store.audit(
                connection, ident, row.tenant, actor, FORKED, reason=reason, of=run, since=position, copied=copied
            )
            return ident

        ident = self._write(act)
        return self.get(ident, tenant)

    def standing(self, run: int, tenant: str | None = None) -> Sequence[str]:
        """The names of the steps and children of a run that are done and not undone: what stays when it is cancelled. Raises NotFound."""

        def look(connection: Connection) -> Sequence[str]:
            self._row(connection, run, tenant)
            return self._store.standing(connection, self._store.history(connection, run))

        return self._read(look)

    def cancel(
        self, run: int, *, undo: bool = False, reason: str = "", tenant: str | None = None, actor: str = "code"
    ) -> Run:  # fmt: skip
        """Cancel a run and everything below it. What waits ends now, what runs is asked to stop.

        With ``undo`` what the run has done is undone first, by a worker, the last step first (``compensate``); so are runs below it. A step
        that runs at this moment is finished and then undone. The run then ends as cancelled, and its error names what was undone and what
        stays. Without ``undo`` nothing is undone: ``standing`` names what stays. Audited as WORKFLOW_CANCELLED. Raises NotFound, WrongState
        when it has ended.
        """
        check_text(reason, "reason")

        def act(connection: Connection) -> None:
            self._row(connection, run, tenant)
            admin, below = JobAdmin(self._app.engine), 0
            layers = self._store.hold_tree(connection, run)
            row = self._row(connection, run, tenant)  # asked again under the lock
            if row.status not in LIVE:
                raise WrongState(f"run {run}", str(row.status), "cancel", tuple(map(str, LIVE)))
            for layer in reversed(layers):
                below += len(layer)
                if undo:
                    layer = [one for one in layer if not self._call_off(connection, one, actor, reason)]
                for start in range(0, len(layer), 500):
                    _, running = admin.cancel_waiting(connection, layer[start : start + 500], actor, reason, None)
                    admin.cancel_in(connection, running, actor, reason)
            if not undo or not self._call_off(connection, run, actor, reason):
                admin.cancel_in(connection, [run], actor, reason)
            self._store.audit(connection, run, row.tenant, actor, CANCELLED, reason=reason, below=below, undo=undo)

        self._write(act)
        return self.get(run, tenant)

    def _call_off(self, connection: Connection, run: int, actor: str, reason: str) -> bool:
        """Have a run undo what it has done, and end as cancelled. False where it has nothing on record: then it can end at once."""
        kept = self._store.run(connection, run, lock=True)
        if kept is None or kept.version is None:
            return False
        history = self._store.history(connection, run)
        row = self._row(connection, run, None)
        if not history and row.status == JobStatus.QUEUED:
            return False
        undone_already = kept.failing is not None and not kept.failing.get("over")
        if not undone_already:
            message = f"cancelled by {actor}" + (f": {reason}" if reason else "")
            self._store.call_off(
                connection,
                run,
                {"type": "PermanentError", "message": message, "steps": [], "over": False, "called_off": True},
            )
        return True

    # ------------------------------------------------------------------ housekeeping

    def keep(self) -> None:
        """Wake runs that slept through their news, and forget what is on record of runs that are gone."""
        db, store = self._app.engine.db, self._store
        self._app.engine.left.turn("run")  # those that are still left are noted again
        woken = db.write(store.sweep)
        if woken:
            self._app.events.emit("workflows_woken", "warning", count=woken)
            db.bells.ring()
        db.write(store.ease)
        while db.write(store.prune):
            pass
        while db.write(store.prune_waits):
            pass

    # ------------------------------------------------------------------ beneath

    @property
    def _store(self) -> WorkflowStore:
        engine = self._app.engine
        if self._kept_store is None or self._kept_store.db is not engine.db:
            self._kept_store, self._memory = WorkflowStore(engine.db, engine.store), Memory()
        return self._kept_store

    def _read(self, fn: Callable[[Connection], R]) -> R:
        self._app.open()
        return self._app.engine.db.read(fn)

    def _write(self, fn: Callable[[Connection], R]) -> R:
        self._app.open()
        out = self._app.engine.db.write(fn)
        self._app.engine.db.bells.ring()
        return out


async def _nothing(ctx: WorkflowContext) -> None:
    """Stands for the function of a workflow that is defined elsewhere."""


def _blamed(row: Any) -> list[int]:
    """The steps whose failure has ended a run. Not those of one that was ended otherwise while it was being undone."""
    ended = (
        row.status == JobStatus.FAILED
        and isinstance(row.error, dict)
        and row.error.get("type") == WorkflowFailed.__name__
    )
    return list(row.failing.get("steps", ())) if ended and row.failing is not None else []


def _least(meta: str | None) -> int:
    """The version of the workflow that the code knew which started the run; 0 where nothing is said of it."""
    said = orjson.loads(meta) if meta is not None else {}
    version = said.get(VERSION_META) if isinstance(said, dict) else None
    return version if isinstance(version, int) else 0


def _named(input: Any) -> str:
    """The workflow that a run's input names."""
    return str(input.get("workflow", "")) if isinstance(input, dict) else ""
