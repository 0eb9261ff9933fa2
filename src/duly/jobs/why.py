"""Why does this job not run? Every condition in order, met or not, each with its remedy. Pure: facts in, answers out.

The queue's conditions come from ``kernel.gate``, the very function that the claim asks, so this page cannot say one thing
and the worker do another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from duly.jobs.job import Job, Status
from duly.kernel.gate import Hold, HoldReason, QueueFacts, gate


@dataclass(frozen=True, slots=True)
class Check:
    """One condition: its name, whether it is met, what is the case, and what to do if it is not met."""

    name: str
    met: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker as it last said it was."""

    name: str
    queues: frozenset[str]
    tasks: frozenset[str]
    state: str
    #: Seconds since it was seen.
    age: float


#: What waits for longer for a worker whose code can go on with it, while nothing comes before it, waits for code that is not there.
UNCLAIMED = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """The job that has an idempotency key now, and until when: its scope, and the instant if it has one."""

    job_id: int
    scope: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class WhyFacts:
    """Everything that bears on one job."""

    job: Job
    now: datetime
    queue: QueueFacts
    workers: Sequence[WorkerFacts]
    #: The jobs that fill the queue's limit, a few of them.
    limit_held_by: Sequence[int] = ()
    #: Running jobs with the same concurrency key, and how many are allowed.
    key_held_by: Sequence[int] = ()
    key_limit: int | None = None
    #: How many ready jobs of the queue come first.
    ahead: int = 0
    open_children: int = 0
    #: Who has the job's idempotency key; None when it has no key, or the key is free.
    key_owner: KeyOwner | None = None
    #: What a worker must know beside the task, such as a version of a workflow; None for nothing.
    needs: str | None = None

    @property
    def key_lost(self) -> KeyOwner | None:
        """The other job that has taken this job's key. A replay is refused then."""
        owner = self.key_owner
        return owner if owner is not None and owner.job_id != self.job.id else None


def why(f: WhyFacts) -> list[Check]:
    """The conditions in the order in which a claim meets them. All met: it will be claimed in a moment."""
    job = f.job
    if job.is_final:
        ended = f"it ended as {job.status}" + (f" at {_at(job.finished_at)}" if job.finished_at else "")
        if f.key_lost is not None:
            return [Check("ended", False, ended), _uniqueness(f)]
        return [Check("ended", False, ended, _replay(job))]
    if job.status is Status.RUNNING:
        return [_running(job, f.now)]
    if job.waits_for_children:
        waits = f"its handler is done; {f.open_children} of its children have not ended"
        return [Check("children", False, waits, f"duly jobs list --parent {job.id}")]
    return [
        _due(f), _gate(f, HoldReason.GATE), _gate(f, HoldReason.PAUSED), _gate(f, HoldReason.HELD), _gate(f, HoldReason.BLACKOUT),
        _gate(f, HoldReason.LIMIT), _gate(f, HoldReason.RATE), _concurrency_key(f), _worker(f), *_code(f), _attempts(job), _uniqueness(f), _turn(f),
    ]  # fmt: skip


def _at(instant: datetime | None) -> str:
    return instant.isoformat(timespec="seconds").replace("+00:00", "Z") if instant else "?"


def _span(delta: timedelta) -> str:
    seconds = max(0, round(delta.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _replay(job: Job) -> str:
    return f"duly jobs replay {job.id}" + (" --force" if job.status is Status.SUCCEEDED else "")


def _running(job: Job, now: datetime) -> Check:
    if job.lease_until is not None and job.lease_until < now:
        detail = f"worker {job.worker} holds it, but its lease lapsed {_span(now - job.lease_until)} ago: it will be rescued at the next pass of any worker"
        return Check("running", False, detail, "start a worker")
    since = f" since {_at(job.started_at)}" if job.started_at else ""
    detail = f"worker {job.worker} runs it{since} (attempt {job.attempts} of {job.max_attempts})"
    return Check("running", True, detail, f"duly jobs cancel {job.id}")


def _due(f: WhyFacts) -> Check:
    job, now = f.job, f.now
    if job.is_due(now):
        return Check("due", True, f"due since {_at(job.run_at)}")
    assert job.due_at is not None
    if job.next_retry_at is not None:
        reason = "waits for its retry"
    elif job.run_at is not None and job.run_at < job.due_at:
        reason = "was put off"
    else:
        reason = "is planned for later"
    detail = f"it {reason}: due at {_at(job.due_at)}, in {_span(job.due_at - now)}"
    # To enqueue it again would make nothing where its key is taken for ever: a replay keeps job and key together.
    remedy = f"wait, or for a run at once: duly jobs cancel {job.id}, then duly jobs replay {job.id} --now (same input and key, attempts from 0)"
    if job.parent_id is not None:
        remedy = f"wait; to cancel and replay it would end it for its parent, job {job.parent_id}"
    elif f.key_lost is not None:
        remedy = f"wait; once cancelled it could not be replayed, because job {f.key_lost.job_id} has its key"
    return Check("due", False, detail, remedy)


_QUESTIONS = {
    HoldReason.GATE: ("gate", "the online gate is open", "duly gate online"),
    HoldReason.PAUSED: ("paused", "the queue is not paused", "duly queues resume {queue}"),
    HoldReason.HELD: ("held", "nothing holds the queue for a time", "wait, or duly queues release {queue}"),
    HoldReason.BLACKOUT: (
        "blackout",
        "no blackout covers this moment",
        "wait for its end, or duly blackouts disable {blackout}",
    ),
    HoldReason.LIMIT: ("limit", "the queue is below its limit", "wait, or duly queues limit {queue} --limit N"),
    HoldReason.RATE: ("rate", "the queue is below its rate", "wait, or duly queues limit {queue} --rate N/SECONDS"),
}


def _gate(f: WhyFacts, reason: HoldReason) -> Check:
    """Ask the gate about one reason alone, so that each condition is shown, not only the first."""
    q = f.queue
    alone = QueueFacts(q.name)
    if reason is HoldReason.GATE:
        alone = replace(alone, online=q.online)
    elif reason is HoldReason.PAUSED:
        alone = replace(alone, paused_at=q.paused_at, paused_reason=q.paused_reason)
    elif reason is HoldReason.HELD:
        alone = replace(alone, held_until=q.held_until, held_reason=q.held_reason)
    elif reason is HoldReason.BLACKOUT:
        alone = replace(alone, blackout=q.blackout, blackout_until=q.blackout_until)
    elif reason is HoldReason.LIMIT:
        alone = replace(alone, limit=q.limit, running=q.running)
    else:
        alone = replace(alone, rate=q.rate, started=q.started, rate_frees_at=q.rate_frees_at)
    name, fine, remedy = _QUESTIONS[reason]
    answer = gate(alone)
    if not isinstance(answer, Hold):
        return Check(name, True, fine)
    detail = answer.detail
    if reason is HoldReason.LIMIT and f.limit_held_by:
        detail += f" (held by jobs {', '.join(map(str, f.limit_held_by))})"
    if reason is HoldReason.BLACKOUT:
        detail += f" until {_at(answer.until)}" if answer.until is not None else ", and no end of it is in sight"
    elif answer.until is not None:
        detail += f"; free again at {_at(answer.until)}"
    return Check(name, False, detail, remedy.format(queue=q.name, blackout=(q.blackout or "NAME").split(", ")[0]))


def _concurrency_key(f: WhyFacts) -> Check:
    key = f.job.concurrency_key
    if key is None:
        return Check("concurrency key", True, "it has none")
    if f.key_limit is not None and len(f.key_held_by) >= f.key_limit:
        held = ", ".join(map(str, f.key_held_by))
        return Check(
            "concurrency key",
            False,
            f"{len(f.key_held_by)} of {f.key_limit} jobs with key {key!r} are running ({held})",
            "wait for them",
        )
    return Check("concurrency key", True, f"key {key!r} is free")


def _worker(f: WhyFacts) -> Check:
    if not f.workers:
        return Check("worker", False, "no worker is alive", "duly worker")
    serving = [w for w in f.workers if f.job.queue in w.queues]
    if not serving:
        return Check("worker", False, f"no worker serves queue {f.job.queue!r}", f"duly worker --queue {f.job.queue}")
    knowing = [w for w in serving if f.job.task in w.tasks]
    if not knowing:
        names = ", ".join(w.name for w in serving[:3])
        return Check(
            "worker",
            False,
            f"no worker of this queue knows task {f.job.task!r} ({names} do not)",
            "deploy the code that defines it",
        )
    ready = [w for w in knowing if w.state == "running"]
    if not ready:
        return Check("worker", False, f"worker {knowing[0].name} is {knowing[0].state}", "duly doctor")
    return Check("worker", True, f"{len(ready)} worker(s) serve it: {', '.join(w.name for w in ready[:3])}")


def _code(f: WhyFacts) -> list[Check]:
    """Of a job that only some workers of its queue can claim."""
    if f.needs is None:
        return []
    only = f"only a worker whose code has {f.needs!r} claims it (a workflow, its version, and the guard that the run has passed)"
    due = f.job.next_retry_at or f.job.due_at or f.job.run_at
    if due is None or f.now - due < UNCLAIMED or f.ahead:
        return [Check("code", True, only)]
    return [Check("code", False, f"{only}, and none has in {_span(f.now - due)}", "start a worker with that code")]


def _attempts(job: Job) -> Check:
    return Check(
        "attempts",
        job.attempts_left > 0,
        f"{job.attempts} of {job.max_attempts} attempts used",
        f"duly jobs cancel {job.id}, then duly jobs replay {job.id}",
    )


def _uniqueness(f: WhyFacts) -> Check:
    """A key never holds a live job. It bars an ended one from a replay when another job has taken it."""
    job, lost = f.job, f.key_lost
    if job.key is None:
        return Check("uniqueness", True, "it has no key")
    if lost is None:
        return Check("uniqueness", True, f"key {job.key!r} is {'its own' if f.key_owner is not None else 'free again'}")
    detail = f"key {job.key!r} belongs to job {lost.job_id} by now"
    if not job.is_final:
        return Check("uniqueness", True, f"{detail}, which does not hold this one")
    if lost.until is not None:
        free = f"wait until {_at(lost.until)}"
    else:
        free = {
            "done": f"wait until job {lost.job_id} has ended",
            "start": f"wait until job {lost.job_id} has started",
        }.get(lost.scope, "")
    anew = "enqueue its input again under another key"
    remedy = f"{free}, then {_replay(job)}; or {anew}" if free else anew
    return Check("uniqueness", False, detail, remedy)


def _turn(f: WhyFacts) -> Check:
    if f.ahead:
        return Check("turn", True, f"{f.ahead} ready job(s) of this queue come first")
    return Check("turn", True, "it is next")
