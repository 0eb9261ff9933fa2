"""Why an automation does not start, or when it will. Pure: facts in, conditions out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from duly.automations.automation import Automation
from duly.automations.plan import AutomationFacts, AutomationScheduler, Create, Watch, inactivity, upcoming
from duly.automations.session import Session, SessionEndReason, SessionType
from duly.automations.store import Busy
from duly.jobs.why import Check
from duly.kernel.gate import Hold


@dataclass(frozen=True, slots=True)
class WhyFacts:
    """Everything that bears on the next execution of one automation."""

    automation: Automation
    now: datetime
    #: What the scheduler knows of it; None where it is off or its schedule cannot be read.
    facts: AutomationFacts | None
    #: Who has the slot. Of another tenant: only that it is held.
    holder: Session | None
    watch: Watch
    #: How many come first: sessions that wait for the slot, and automations that were due before it.
    before: int = 0
    #: Its own sessions that wait for the slot, and those that were interrupted.
    own_queued: Collection[int] = ()
    interrupted: Collection[int] = ()
    #: Why its provider cannot be asked; empty where nothing is known against it.
    provider_problem: str = ""
    #: Does a gate, a pause or a hold keep sessions from being run?
    hold: Hold | None = None
    #: Workers alive that serve the queue of sessions.
    workers: Collection[str] = ()
    #: What keeps the slot although nobody has it: a call of the session before.
    busy: Busy | None = None


def next_planned(automation: Automation, facts: AutomationFacts | None, now: datetime) -> datetime | None:
    """The planned instant that is executed next; in the past where it is due."""
    if facts is None or facts.schedule is None or not automation.is_enabled:
        return None
    due = AutomationScheduler().get_next_session([facts], now)
    if isinstance(due, Create):
        return due.scheduled_for
    return upcoming(facts, now)


def why(f: WhyFacts) -> list[Check]:
    """The conditions in the order in which a pass meets them. All met: it starts at the next pass."""
    a = f.automation
    named = f"{a.name!r}" if " " in a.name else a.name
    on = Check("enabled", a.is_enabled, "it is on" if a.is_enabled else "it is off", f"duly automations enable {named}")
    if not a.is_enabled and f.own_queued:
        on = Check("enabled", True, "it is off; what was asked for by hand runs all the same")
    elif not a.is_enabled and f.interrupted:
        waits = f"session {min(f.interrupted)} was interrupted, and goes on when it is on again"
        on = Check("enabled", False, f"it is off; {waits}", on.remedy)
    checks = [on]
    if a.error is not None:
        checks.append(Check("schedule", False, f"its schedule cannot be read: {a.error}", f"duly automations update {named} --schedule …"))  # fmt: skip
    if a.left is not None:
        checks.append(Check("schedule", False, f"its schedule cannot be read here, and is left to other workers: {a.left}", "Update the zone data of this machine, or its code."))  # fmt: skip
    checks += [_due(f), _slot(f), _turn(f), _provider(f)]
    hold = f.hold
    checks.append(
        Check("gate", True, "nothing holds sessions back")
        if hold is None
        else Check("gate", False, hold.detail, "duly why of the session's job says more")
    )
    if f.workers:
        checks.append(Check("worker", True, f"{len(f.workers)} worker(s) run sessions: {', '.join(sorted(f.workers)[:3])}"))  # fmt: skip
    else:
        checks.append(Check("worker", False, "no worker that runs sessions is alive", "duly up"))
    return checks


def _due(f: WhyFacts) -> Check:
    a, facts = f.automation, f.facts
    if f.own_queued:
        return Check("due", True, f"session {min(f.own_queued)} waits for the slot")
    ready = (
        [] if facts is None else [one for one in facts.incomplete if one.resume_at is None or one.resume_at <= f.now]
    )
    if facts is not None and facts.incomplete:
        one = (ready or sorted(facts.incomplete, key=lambda i: (i.scheduled_at, i.session_id)))[0]
        stopped = {
            SessionEndReason.SUSPENDED: "was paused",
            SessionEndReason.NETWORK_ERROR: "waited for the network",
        }.get(one.end_reason, "lost its worker") if one.end_reason is not None else "lost its worker"  # fmt: skip
        if ready:
            return Check("due", True, f"session {one.session_id} {stopped} and goes on first")
        assert one.resume_at is not None
        detail = f"session {one.session_id} {stopped} and goes on at {_at(one.resume_at)}"
        return Check("due", False, detail, f"duly automations resume {one.session_id}")
    if not a.is_enabled:
        return Check("due", False, "it is off, so nothing of it is due", "duly automations enable, or run")
    if a.definition.schedule is None:
        how = (
            "only people run it"
            if not a.definition.triggers
            else f"only people and these events run it: {', '.join(a.definition.triggers)}"
        )
        return Check("due", False, f"it has no schedule; {how}", "duly automations run, or give it a schedule")
    following = next_planned(a, facts, f.now)
    if following is None:
        return Check("due", False, "its schedule has no planned instant any more", "give it another schedule")
    if following <= f.now:
        return Check("due", True, f"due since {_at(following)}")
    return Check("due", False, f"it is not due until {_at(following)}", "wait, or duly automations run")


def _slot(f: WhyFacts) -> Check:
    slot, held = f.automation.definition.slot, f.holder
    if held is None and f.busy is not None:
        waits = "wait for its end; what it does cannot be stopped from here"
        return Check("slot", False, f"slot {slot!r} is kept: {f.busy.words}", waits)
    if held is None:
        return Check("slot", True, f"slot {slot!r} is free")
    if held.tenant != f.automation.tenant:
        return Check("slot", False, f"slot {slot!r} is held by somebody else", "wait")
    idle = inactivity(held.last_activity_at or f.now, f.now)
    if held.automation_id == f.automation.id and held.type is SessionType.AUTOMATION:
        return Check("slot", False, f"it has slot {slot!r} itself: session {held.id}", "wait for its end")
    if held.type is SessionType.CHAT:
        span = f.watch.chat_eviction if held.job_id is None else max(f.watch.chat_eviction, f.watch.max_inactivity)
        if idle > span:
            return Check("slot", True, f"slot {slot!r} is held by chat {held.id}, which nobody uses: it gives way")
        left = span - idle
        return Check("slot", False, f"slot {slot!r} is held by chat {held.id}; it gives way when nobody uses it for {_span(left)} more",
                     f"duly automations stop {held.id}")  # fmt: skip
    since = "" if held.started_at is None else f" since {_at(held.started_at)}"
    return Check("slot", False, f"slot {slot!r} is held by session {held.id} ({held.title}){since}",
                 f"wait, or duly automations stop {held.id}, or pause {held.id}")  # fmt: skip


def _turn(f: WhyFacts) -> Check:
    if f.before:
        return Check(
            "turn",
            False,
            f"{f.before} other session(s) come first",
            "wait; duly automations sessions -s queued shows who waits",
        )
    return Check("turn", True, "it is next")


def _provider(f: WhyFacts) -> Check:
    if f.provider_problem:
        return Check("provider", False, f.provider_problem, "mend its configuration; duly automations check")
    return Check("provider", True, f"provider {f.automation.definition.provider or 'of the settings'}")


def _at(instant: datetime) -> str:
    return instant.isoformat(timespec="seconds").replace("+00:00", "Z")


def _span(span: timedelta) -> str:
    seconds = max(0, round(span.total_seconds()))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
