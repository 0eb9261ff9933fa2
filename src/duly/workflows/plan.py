"""What comes of something that a workflow asked for, given what is on record. Pure.

The order of the questions for each: is the record of the same kind and name; is it final; if it waits, has what it waits for come,
and if not, is its time over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from duly.kernel.backoff import Backoff
from duly.kernel.errors import InvalidArgument
from duly.workflows.identity import Fingerprints, different
from duly.workflows.step import LIFECYCLE, UNSTORABLE, Ahead, Changed, Kind, Signal, Status, Step

#: How the names of decisions begin.
DECISION = "approve:"


@dataclass(frozen=True, slots=True)
class Child:
    """How a child job stands. ``status``: of the job; None when its row is gone."""

    status: str | None
    output: Any = None
    error: Any = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when a run looks at what it waits for."""

    now: datetime
    #: Signals that nobody has taken, the oldest first.
    signals: Sequence[Signal] = ()
    #: By job id: the children that are waited for.
    children: Mapping[int, Child] | None = None


def check_same(
    record: Step, kind: Kind, name: str, arguments: Fingerprints | None = None, history: Mapping[int, Step] = MappingProxyType({})
) -> None:  # fmt: skip
    """Raise Changed where the code asks for something else than it did, or with other arguments. A record without arguments is of a time
    before these were kept. Raises Ahead where the run has passed a guard that this code does not have: newer code took it there."""
    if record.kind is not kind or record.name != name:
        if record.kind is Kind.PATCH:
            raise _ahead(record)
        raise Changed(
            f"step {record.position} of this run is on record as {record.kind} {record.name!r}, and the code now asks for {kind} {name!r} there. "
            "Give the changed workflow a new version, or let it ask `await ctx.patched(…)` first; then replay the run."
        )
    if record.arguments is None or arguments is None:
        return
    if differ := different(record.arguments, arguments):
        raise Changed(_other_arguments(record, differ, arguments, history))


def _other_arguments(
    record: Step, differ: Sequence[tuple[str, str | None, str | None]], asked: Fingerprints, history: Mapping[int, Step]
) -> str:
    said = [
        f"{name} ({'not given' if before is None else before} on record, {'not given' if now is None else now} now)"
        for name, before, now in differ[:5]
    ]
    more = f" and {len(differ) - 5} more" if len(differ) > 5 else ""
    twin = next(
        (s for p, s in sorted(history.items()) if p > 0 and s.kind is record.kind and s.arguments == asked), None
    )
    there = "" if twin is None else f" What is asked for now is on record as step {twin.position} {twin.name!r}."
    return (
        f"step {record.position} of this run is on record as {record.kind} {record.name!r} with other arguments than the code now gives it: "
        f"{', '.join(said)}{more}; these are fingerprints.{there} Nothing was done for it. Take arguments from the input and from answers, and go "
        "through sets in a sorted order. Give a changed workflow a new version, or let it ask `await ctx.patched(…)` first; then replay the run."
    )


def called_off(words: str, undone: Sequence[str], stays: Sequence[str]) -> str:
    """What became of a run that an operator called off. ``undone``: what was to be undone, in the order in which it was done."""
    failed = set(undone) & set(stays)
    done = [name for name in reversed(undone) if name not in failed]
    kept = [f"{name} (undoing it failed)" if name in failed else name for name in dict.fromkeys(stays)]
    return f"{words}. Undone: {_listed(done)}. What stays: {_listed(kept)}."


def _listed(names: Sequence[str]) -> str:
    return (", ".join(names[:20]) or "nothing") + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def labels(history: Mapping[int, Step]) -> dict[int, str]:
    """How each step is called where steps are listed: by its name, and its position where the run has several of that name."""
    own = {p: s.name for p, s in sorted(history.items()) if p > 0 and s.kind in (Kind.STEP, Kind.TASK, Kind.START)}
    several = {name for name, count in Counter(own.values()).items() if count > 1}
    return {p: f"{name} (step {p})" if name in several else name for p, name in own.items()}


def _ahead(record: Step) -> Ahead:
    return Ahead(
        f"step {record.position} of this run is the guard `ctx.patched({record.name!r})`, which the code here does not ask for. Newer code "
        "has taken the run past it; a worker with that code goes on with it. If there is none, bring the guard back.",
        record.name,
    )


def left_behind(history: Mapping[int, Step], answered: Collection[int]) -> list[Step]:
    """What is on record and the code has not asked for, in order."""
    return [step for position, step in sorted(history.items()) if position > 0 and position not in answered]


def check_all_asked_for(history: Mapping[int, Step], answered: Collection[int]) -> None:
    """Raise Changed where the code ended without asking for all that is on record; Ahead where a guard comes first there."""
    left = left_behind(history, answered)
    if left and left[0].kind is Kind.PATCH:
        raise _ahead(left[0])
    if left:
        raise Changed(
            f"this run has {left[0].kind} {left[0].name!r} on record as step {left[0].position}, and the code ended after {left[0].position - 1} "
            "without asking for it. Give the changed workflow a new version, or let it ask `await ctx.patched(…)` first; then replay the run."
        )


def cut_short(history: Mapping[int, Step], left: Sequence[Step], words: str) -> Changed:
    """The error of a run whose code failed before it had come to where the run was: what undoes the steps behind is known to nobody then,
    so none is undone, and each that stands is named."""
    stand = standing(history)
    more = f" and {len(stand) - 10} more" if len(stand) > 10 else ""
    return Changed(
        f"the code failed before it had come to where this run was: {left[0].kind} {left[0].name!r} is on record as step {left[0].position}, and "
        f"before it asked for that it raised {words!r}. Done and not undone: {', '.join(stand[:10]) or 'nothing'}{more}. "
        "Mend the code, then replay the run: it goes on from where it was."
    )


def standing(history: Mapping[int, Step], started: Mapping[int, Child] = MappingProxyType({})) -> list[str]:
    """What a run has done and not undone, its steps and children, in order (``labels``). ``started``: how the jobs stand that it made and has not seen end; one that was cancelled or failed has done nothing that stands."""
    found, called = [], labels(history)
    for position, step in sorted(history.items()):
        child = None if step.child_id is None else started.get(step.child_id)
        if position > 0 and _stands(history, step):
            found.append(called[position])
        elif child is not None and step.kind is Kind.START and child.status not in ("cancelled", "failed"):
            found.append(f"{step.name} (job {step.child_id}, {child.status or 'no longer there'})")
        elif child is not None and step.status is Status.WAITING and child.status == "succeeded":
            found.append(called[position])  # the run has not seen it any more
    return found


def _stands(history: Mapping[int, Step], step: Step) -> bool:
    undo = history.get(-step.position)
    return step.has_effect and (undo is None or undo.status is not Status.DONE)


def look(waiting: Sequence[Step], facts: Facts) -> tuple[list[Step], list[tuple[int, int]]]:
    """Of steps that wait, those that wait no more, as they are to be recorded; and (signal, position) for the signals they take."""
    ended: list[Step] = []
    taken: list[tuple[int, int]] = []
    left = list(facts.signals)
    for step in waiting:
        moved = None
        if step.kind in (Kind.EVENT, Kind.APPROVAL):
            signal = next((s for s in left if s.name == signal_name(step.kind, step.name, step.position)), None)
            # a signal that was sent in time counts, even if it is found late
            if signal is not None and (step.due_at is None or signal.sent_at <= step.due_at):
                left.remove(signal)
                taken.append((signal.id, step.position))
                moved = _moved(step, "do", facts.now, output=signal.payload)
            elif step.due_at is not None and facts.now >= step.due_at:
                moved = _moved(step, "time_out", facts.now)
        elif step.kind is Kind.SLEEP:
            if step.due_at is not None and facts.now >= step.due_at:
                moved = _moved(step, "do", facts.now)
        elif step.kind is Kind.TASK and step.child_id is not None:
            moved = _child(step, (facts.children or {}).get(step.child_id), facts.now)
        if moved is not None:
            ended.append(moved)
    return ended, taken


def _child(step: Step, child: Child | None, now: datetime) -> Step | None:
    if child is None:
        return None
    if child.status == "succeeded" and isinstance(child.error, dict) and child.error.get("type") == UNSTORABLE:
        return _moved(step, "fail", now, error=child.error)  # the work is done, and its answer is lost
    if child.status == "succeeded":
        return _moved(step, "do", now, output=child.output)
    if child.status in ("queued", "running"):
        return None
    if child.status is None:
        error = {
            "type": "ChildGone",
            "message": "the row of this child is gone: it was pruned before the run saw its end",
        }
    else:
        error = (
            child.error
            if isinstance(child.error, dict)
            else {"type": "Cancelled", "message": f"the child was {child.status}"}
        )
    return _moved(step, "fail", now, error=error)


def signal_name(kind: Kind, name: str, position: int) -> str:
    """Under which name a signal is kept: a decision of a person answers the one question that was asked, and never an event."""
    return f"{DECISION}{position}:{name}" if kind is Kind.APPROVAL else name


def asked_at(name: str) -> int:
    """The position of the question that a decision answers, by the name under which it is kept."""
    return int(name.removeprefix(DECISION).split(":", 1)[0])


def _moved(step: Step, move: str, now: datetime, **values: Any) -> Step:
    return replace(step, status=LIFECYCLE.target(step.status, move), finished_at=now, **values)


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often a step is tried, and how long it waits in between."""

    most: int = 4
    backoff: Backoff = field(default_factory=Backoff)


def failed_attempt(
    step: Step, error: dict[str, Any], attempts: Attempts, now: datetime, *, final: bool = False, after: float | None = None, counts: bool = True,
    u: float = 0.0,
) -> Step:  # fmt: skip
    """A step whose function raised. ``final``: another attempt would not help. ``after``: seconds that it asked for. ``counts``: False
    where it only asked to be called later. ``u``: the dice for the backoff's jitter, in [0, 1)."""
    made = step.attempts + (1 if counts else 0)
    if final or (counts and made >= attempts.most):
        return replace(
            step, status=LIFECYCLE.target(step.status, "fail"), error=error, attempts=made, due_at=None, finished_at=now
        )
    wait = after if after is not None else attempts.backoff.delay(max(made, 1), u)
    return replace(
        step, status=LIFECYCLE.target(step.status, "wait"), error=error if counts else step.error, attempts=made, due_at=now + timedelta(seconds=wait)
    )  # fmt: skip


def again(history: Mapping[int, Step], since: int | None, blamed: Collection[int] = ()) -> list[int]:
    """Which of an ended run's steps are forgotten so that it can go on again: those from ``since`` on, or without it those in ``blamed``,
    whose failure has ended the run, where nothing has been done behind them.

    What was undone has to be done again, so it is forgotten with everything behind it. Raises InvalidArgument where ``since`` would leave
    an undone step on record as done, or is missing where a step would be done again that could not be undone.
    """
    own, undone = {p: step for p, step in history.items() if p > 0}, _undone(history, since)
    if since is not None:
        return [position for position in own if position >= since]
    if undone is None:
        if lost := [own[p] for p in sorted(own) if p in blamed and own[p].has_effect]:
            raise InvalidArgument(
                "since",
                f"is missing: step {lost[0].position} ({lost[0].name}) was done, only its answer could not be stored; it would be done again.",
                f"Give {lost[0].position} where that is what you want.",
            )
        return [position for position in own if position in blamed]
    stuck = [p for p in own if p > undone and -p in history and history[-p].status is not Status.DONE]
    if stuck:
        raise InvalidArgument(
            "since",
            f"is missing: step {undone} ({own[undone].name}) was undone and step {stuck[0]} ({own[stuck[0]].name}) behind it was not.",
            f"Give {undone} (or one before) where all from there on may be done again.",
        )
    return [position for position in own if position >= undone]


def fork_point(history: Mapping[int, Step], since: int | None) -> int:
    """Before which position a fork takes over what is on record: all of it without ``since``, and nothing that was undone.

    Raises InvalidArgument where ``since`` lies behind an undone step.
    """
    undone = _undone(history, since)
    first = since if since is not None else undone
    return first if first is not None else max((p for p in history if p > 0), default=0) + 1


def _undone(history: Mapping[int, Step], since: int | None) -> int | None:
    """The first step that was undone; None for none. Raises InvalidArgument where it lies before ``since``, and would be left standing."""
    first = min((-p for p, step in history.items() if p < 0 and step.status is Status.DONE), default=None)
    if first is not None and since is not None and first < since:
        name = history[first].name
        raise InvalidArgument(
            "since",
            f"is step {since}, and step {first} ({name}) before it was undone.",
            f"Give {first}, or one before.",
        )
    return first


def wakes(waiting: Sequence[Step]) -> datetime | None:
    """The instant at which there is something to look at again; None where only somebody else can bring news."""
    return min((step.due_at for step in waiting if step.due_at is not None), default=None)


def still_waits(waits: Sequence[Mapping[str, Any]], due_at: datetime | None, never: datetime) -> bool:
    """Does a queued run still wait for what it noted when it was put down? As long as its job is due when these say: news make it due at
    once, and another attempt, or a worker that does not know it, at another instant. ``never``: when a job is due that waits for news only."""
    if not waits or due_at is None:
        return False
    ends = [datetime.fromisoformat(wait["until"]) for wait in waits if wait.get("until")]
    return due_at == min(ends) if ends else due_at.year == never.year


def state(job_status: str, waits: Sequence[Mapping[str, Any]]) -> str:
    """A run's state for people, from the status of its job and what it waits for (``still_waits``)."""
    if job_status != "queued" or not waits:
        return job_status
    kinds = {wait["kind"] for wait in waits}
    if Kind.APPROVAL in kinds:
        return "AWAITING_HUMAN"
    if kinds & {Kind.EVENT, Kind.TASK}:
        return "waiting"
    return "sleeping" if Kind.SLEEP in kinds else "retrying"
