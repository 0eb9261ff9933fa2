"""How schedules and their occurrences are shown: in words, as rows, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from duly.cli import show
from duly.cli.recurrences import local
from duly.cli.times import relative, span, stamp

if TYPE_CHECKING:
    from duly.jobs.job import Job
    from duly.schedules.door import Previewed
    from duly.schedules.schedule import Occurrence, Schedule, Spec


def when_words(s: Schedule, since: datetime | None = None) -> str:
    return s.spec.recurrence.describe(since=since) if s.spec else ""


def tz_of(s: Schedule) -> str | None:
    return s.spec.tz if s.spec else None


def state_words(s: Schedule, now: datetime) -> str:
    """How it stands, and why, as the rest of a sentence."""
    if s.state == "paused":
        reason = f": {s.paused_reason}" if s.paused_reason else ""
        since = relative(s.paused_at, now)
        return f"is paused by {s.paused_by}{'' if since == 'now' else f', {since}'}{reason}"
    if s.state == "broken":
        again = f" (looked at again {relative(s.look_at, now)})" if s.error_at and s.look_at else ""
        return f"is broken{again}: {(s.error or '').rstrip('.')}"
    if s.state == "ended":
        over = s.spec is not None and s.spec.ends_at is not None
        return f"has ended: {f'its time was over at {stamp(s.spec.ends_at)}' if over and s.spec else 'nothing of it is to come'}"
    if s.left is not None:
        return f"is active, and cannot be read here: {s.problem}"
    return "is active"


def last_words(o: Occurrence | None, jobs: dict[int, Job], now: datetime) -> str:
    """What became of an occurrence and of its job, in a few words."""
    if o is None:
        return ""
    job = jobs.get(o.job_id) if o.job_id is not None else None
    became = job.label(now) if job is not None else o.status.value
    why = f" ({o.reason})" if job is None and o.reason else ""
    return f"{became} {relative(o.due_at, now)}{why}"


def following(s: Schedule, now: datetime) -> str:
    """When it runs next."""
    if s.next_at is None:
        return "Nothing of it is to come."
    return f"Next: {local(s.next_at, tz_of(s))}, {relative(s.next_at, now)}."


def schedule_dict(s: Schedule) -> dict[str, Any]:
    said: dict[str, Any] = {
        "id": s.id, "name": s.name, "tenant": s.tenant, "version": s.version, "state": s.state, "next_at": s.next_at,
        "next_local": s.next_at.astimezone(_place(s)).isoformat() if s.next_at and tz_of(s) else None, "decided_until": s.decided_until,
        "paused_at": s.paused_at, "paused_by": s.paused_by, "paused_reason": s.paused_reason, "error": s.error, "error_at": s.error_at,
        "created_at": s.created_at, "updated_at": s.updated_at, "updated_by": s.updated_by,
    }  # fmt: skip
    return said | ({"when": when_words(s), **definition(s.spec)} if s.spec is not None else {})


def _place(s: Schedule) -> Any:
    from duly.kernel.localtime import zone

    return zone(tz_of(s) or "UTC")


def definition(spec: Spec) -> dict[str, Any]:
    import orjson

    return {**spec.to_json(), "input": orjson.loads(spec.input)}


def occurrence_dict(o: Occurrence | None, jobs: dict[int, Job] | None = None) -> dict[str, Any] | None:
    if o is None:
        return None
    said = {**asdict(o), "late": max(0.0, (o.acted_at - o.due_at).total_seconds())}
    if jobs is not None:
        job = jobs.get(o.job_id) if o.job_id is not None else None
        said["job_status"] = job.status if job is not None else None
    return said


def preview_table(coming: Sequence[Previewed], now: datetime, tz: str | None) -> None:
    rows, said = [], None
    for p in coming:
        special = p.special if p.special != said else None  # a day is remarked on once
        said = p.special
        remark = "; ".join(filter(None, (special, _dark(p))))
        utc = (local(p.due_at, None),) if tz else ()
        rows.append((local(p.due_at, tz), *utc, relative(p.due_at, now), p.effect, remark))
    show.table(f"!planned {'!utc ' if tz else ''}in effect remark", rows)


def _dark(p: Previewed) -> str:
    if p.effect == "fires":
        return ""
    names = f" {', '.join(p.blackout)}" if p.blackout else ""
    return f"blackout{names}" + (f" until {local(p.blackout_until, None)}" if p.blackout_until else ", no end in sight")


def say_special(spec: Spec, coming: Sequence[Previewed], now: datetime) -> None:
    """Days within the preview on which clocks change and none of its rows can say so: nothing runs on them."""
    from duly.schedules.door import clock_changes

    told = {p.special for p in coming}
    for day in clock_changes(spec.recurrence, coming, now):
        if day not in told:
            show.say(f"{day}.")


def previewed_dict(p: Previewed) -> dict[str, Any]:
    return {
        "due_at": p.due_at, "local": p.local.isoformat() if p.local else None, "effect": p.effect, "special": p.special,
        "blackout": p.blackout, "blackout_until": p.blackout_until,
    }  # fmt: skip


def ledger_table(found: Sequence[Occurrence], tz: str | None) -> None:
    show.table(
        "!planned acted late status reason policy !#job",
        (
            (local(o.due_at, tz), stamp(o.acted_at), _late(o), o.status.value, o.reason, o.policy, o.job_id)
            for o in found
        ),
        empty="Nothing of it was due yet.",
    )


def _late(o: Occurrence) -> str:
    late = (o.acted_at - o.due_at).total_seconds()
    return span(late) if late > 0 else ""


def described(definition: dict[str, Any]) -> str:
    from duly.kernel.errors import InvalidArgument
    from duly.kernel.recurrence import schedule_from_json

    try:
        when = schedule_from_json(definition["recurrence"]).describe()
    except (InvalidArgument, KeyError):
        when = "when cannot be read here"
    return f"{definition.get('task')}, {when}"


def changed(now: dict[str, Any], was: dict[str, Any] | None) -> str:
    """The fields that another version had otherwise, and what the policies became."""
    if was is None:
        return ""
    names = [name for name in {**was, **now} if now.get(name) != was.get(name)]
    short = ("catch_up", "overlap", "blackout", "queue", "priority", "max_attempts", "starts_at", "ends_at")
    return ", ".join(f"{name} {now.get(name, 'none')}" if name in short else name for name in names)
