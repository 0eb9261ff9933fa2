"""``duly automations``: AI sessions on a slot: what they are, when they run, what is said in them, and talking oneself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli import recurrences, show
from duly.cli.command import ID, Group, actor, complain, state
from duly.cli.enqueue import _object
from duly.cli.recurrences import local
from duly.cli.times import SPAN, relative, span, stamp

if TYPE_CHECKING:
    from duly.automations.automation import Automation
    from duly.automations.door import Automations, Requested
    from duly.automations.session import Session


@click.group(cls=Group)
def automations() -> None:
    """AI sessions on a slot: when they run, what they do."""


def door(make: bool = False) -> Automations:
    """The automations of the application, or of a bare one on the database. ``make``: as ``State.open``."""
    from duly.automations.door import Automations

    return Automations.of(state().open(make))


def _tenant(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--tenant", metavar="NAME", help="Of this tenant; else the setting tenant.")(command)


def _reason(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--reason", default="", help="Why, for those who look at it later.")(command)


class _Which(click.ParamType):  # type: ignore[type-arg]
    """A session by its number, or an automation by its name."""

    name = "session or automation"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value)
        return ID.convert(text, param, ctx) if text.isascii() and text.isdigit() else text


WHICH = _Which()

# ---------------------------------------------------------------------- list, show


@automations.command("list")
@click.option("--tenant", metavar="NAME", help="Of this tenant; else of all.")
def list_(tenant: str | None) -> None:
    """List automations: when they run, and their last session."""
    made = door()
    found = sorted(made.list(tenant=tenant, limit=10_000), key=lambda a: (a.tenant, a.name))
    now = made._app.engine.clock.now()
    coming = made.next_runs(found)
    last = {a.id: s for a in found if (s := made.last_session(a)) is not None}
    if state().json:
        show.as_json([{**document(a), "next_run": coming[a.id], "last": _session(last.get(a.id))} for a in found])
        return
    several = len({a.tenant for a in found}) > 1
    show.table(
        f"!automation {'tenant ' if several else ''}when next in last !state",
        (
            (
                a.name, *((a.tenant,) if several else ()), _when(a), local(coming[a.id], _tz(a)), relative(coming[a.id], now), _last(last.get(a.id), now),
                _state(a),
            )
            for a in found
        ),
        empty="There is no automation. Make one: duly automations create NAME --prompt TEXT --daily 08:00 --tz ZONE",
    )  # fmt: skip


def _state(a: Automation) -> str:
    return "broken" if a.error else "on" if a.is_enabled else "off"


def _when(a: Automation) -> str:
    d = a.definition
    said = [] if d.schedule is None else [d.schedule.describe()]
    if d.triggers:
        said.append(f"on {', '.join(d.triggers)}")
    return "; ".join(said) or "by hand"


def _tz(a: Automation) -> str | None:
    return getattr(a.definition.schedule, "tz", None)


def _last(s: Session | None, now: datetime) -> str:
    if s is None:
        return ""
    at = s.ended_at or s.started_at or s.created_at
    return f"{s.id} {ending(s)} {relative(at, now)}"


def ending(s: Session) -> str:
    """How a session stands, in words."""
    if s.is_active:
        return "waits for the network" if s.is_waiting_for_network else "has the slot"
    if str(s.status) == "queued":
        return "waits for the slot"
    if s.end_reason is None:
        return "lost its worker"
    return {"NETWORK_ERROR": "lost the network", "SUSPENDED": "paused"}.get(s.end_reason.value, s.end_reason.value.lower())  # fmt: skip


def document(a: Automation) -> dict[str, Any]:
    from duly.automations.automation import definition_json

    return {
        "id": a.id, "tenant": a.tenant, **definition_json(a.definition), "is_enabled": a.is_enabled, "version": a.version, "error": a.error,
        "last_execution_id": a.last_execution_id, "execution_history": list(a.execution_history), "created_at": a.created_at, "updated_at": a.updated_at,
    }  # fmt: skip


def _session(s: Session | None) -> dict[str, Any] | None:
    if s is None:
        return None
    return {
        "id": s.id, "tenant": s.tenant, "type": s.type.value, "status": s.status.value, "trigger": s.trigger, "automation_id": s.automation_id,
        "title": s.title, "slot": s.slot, "scheduled_at": s.scheduled_at, "started_at": s.started_at, "ended_at": s.ended_at,
        "end_reason": s.end_reason, "end_detail": s.end_detail, "is_waiting_for_network": s.is_waiting_for_network, "rounds": s.rounds,
        "calls": s.calls, "tokens_used": s.tokens_used, "cost_cents": s.cost_micros / 1e6, "provider": s.provider, "last_activity_at": s.last_activity_at,
        "resume_at": s.resume_at,
    }  # fmt: skip


@automations.command("show")
@click.argument("which", type=WHICH, metavar="NAME|SESSION")
@click.option("--last", "-n", type=click.IntRange(1, 10_000), default=200, show_default=True, metavar="N", help="So many messages.")  # fmt: skip
@_tenant
def show_(which: int | str, last: int, tenant: str | None) -> None:
    """Show an automation, or a session by its number."""
    made = door()
    if isinstance(which, int):
        _show_session(made, which, last, tenant)
        return
    a = made.get(which, tenant)
    past, left_out = made.sessions(10, automation=a.id), made.skips(a.id)
    next_run, now = made.next_run(a.id), made._app.engine.clock.now()
    if state().json:
        skips = [
            {"first": one.first_at, "last": one.last_at, "count": one.count, "reason": one.reason} for one in left_out
        ]
        show.as_json({**document(a), "next_run": next_run, "sessions": [_session(s) for s in past], "skips": skips})
        return
    d = a.definition
    window = d.catch_up_window
    show.facts([
        ("automation", a.name), ("state", _state(a) + (f": {a.problem}" if a.problem else "")), ("when", _when(a)),
        ("next", f"{local(next_run, _tz(a))} ({relative(next_run, now)})" if next_run else ""), ("slot", d.slot),
        ("provider", " ".join(filter(None, (d.provider, d.model))) or "of the settings"), ("tools", ", ".join(d.tools) or "none"),
        ("missed runs", ("only the latest" if d.dismiss_older_instances else "all, one after the other")
         + (f", not older than {span(window.total_seconds())}" if window else "")),
        ("limits", _limits(a)), ("asked", _asked(a)), ("tenant", a.tenant if a.tenant != "default" else ""), ("version", f"{a.version}, changed {relative(a.updated_at, now)}"),
        ("prompt", d.messages[-1].text),
    ])  # fmt: skip
    if past:
        show.say("\nSessions")
        _sessions(past, now)
    if left_out:
        show.say("\nLeft out")
        show.table(
            "!first last !#how_many why",
            (
                (stamp(one.first_at), stamp(one.last_at) if one.count > 1 else "", one.count, one.reason)
                for one in left_out
            ),
        )


def _limits(a: Automation) -> str:
    limits = a.definition.limits
    said = [f"{limits.max_rounds} questions", f"{limits.max_calls} calls"]
    for most, words in (
        (limits.max_tokens, "tokens"), (limits.max_cents, "cents"), (limits.max_tokens_per_day, "tokens a day"),
        (limits.max_cents_per_day, "cents a day"),
    ):  # fmt: skip
        if most is not None:
            said.append(f"{most:,g} {words}")
    return ", ".join(said)


def _asked(a: Automation) -> str:
    """How it is asked, where that is not as usual."""
    from duly.automations.automation import asking_json

    return ", ".join(f"{name} {value}" for name, value in asking_json(a.definition).items())


def _sessions(found: Sequence[Session], now: datetime) -> None:
    show.table(
        "!#session what why planned !#rounds !#calls !#tokens took how_it_stands",
        (
            (
                s.id, s.title or s.type.value.lower(), (s.trigger or s.type).value.lower(), stamp(s.scheduled_at) if s.scheduled_at else "",
                s.rounds, s.calls, f"{s.tokens_used:,}",
                span(((s.ended_at or now) - s.started_at).total_seconds()) if s.started_at else "", _how(s),
            )
            for s in found
        ),
        empty="There is no session.",
    )  # fmt: skip


def _how(s: Session) -> str:
    words = ending(s)
    return f"{words}: {s.end_detail}" if s.end_detail and s.end_detail != words and not s.is_active else words


@automations.command()
@click.option("--automation", "-a", metavar="NAME", help="Of this automation.")
@click.option("--status", "-s", multiple=True, type=click.Choice(["queued", "active", "interrupted", "ended"]), help="In this state; may be given again.")  # fmt: skip
@click.option("--tenant", metavar="NAME", help="Of this tenant; else of all.")
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N", help="At most so many.")  # fmt: skip
@click.option("--below", type=ID, metavar="ID", help="The page behind: only ids below this one.")
def sessions(automation: str | None, status: Sequence[str], tenant: str | None, limit: int, below: int | None) -> None:
    """List sessions, newest first."""
    made = door()
    found = made.sessions(limit, below, automation=automation, tenant=tenant, status=status)
    if state().json:
        show.as_json([_session(s) for s in found])
    else:
        _sessions(found, made._app.engine.clock.now())


def _show_session(made: Automations, ident: int, last: int, tenant: str | None) -> None:
    s, said, calls, rounds = made.session(ident, tenant), made.transcript(ident), made.calls(ident), made.rounds(ident)
    if state().json:
        show.as_json({
            **(_session(s) or {}),
            "messages": [{"position": one.position, "role": one.message.role, "text": one.message.text, "round": one.round,
                          "calls": [{"id": c.id, "tool": c.name, "arguments": c.arguments} for c in one.message.calls],
                          "call_id": one.message.call_id, "at": one.created_at} for one in said],
            "tool_calls": [{"number": c.number, "round": c.round, "tool": c.tool, "arguments": c.arguments, "status": c.status, "result": c.result,
                            "job_id": c.job_id, "asked_at": c.asked_at, "finished_at": c.finished_at} for c in calls],
            "rounds": rounds,
        })  # fmt: skip
        return
    now = made._app.engine.clock.now()
    show.facts([
        ("session", s.id), ("what", s.title or s.type.value.lower()), ("why", (s.trigger or s.type).value.lower()), ("state", _how(s)),
        ("planned", stamp(s.scheduled_at) if s.scheduled_at else ""),
        ("began", f"{stamp(s.started_at)} ({relative(s.started_at, now)})" if s.started_at else ""),
        ("goes on", f"{stamp(s.resume_at)} ({relative(s.resume_at, now)})" if s.resume_at else ""), ("slot", s.slot), ("job", s.job_id),
        ("provider", s.provider), ("used", f"{s.rounds} questions, {s.calls} calls, {s.tokens_used:,} tokens" + (f", {s.cost_micros / 1e6:.4g} cents" if s.cost_micros else "")),
        ("last error", next((r.error for r in reversed(rounds) if r.error), "") if not s.rounds or rounds[-1].error else ""),
    ])  # fmt: skip
    shown = said[-last:]
    if len(shown) < len(said):
        show.say(f"\nThe last {last} of {show.count(len(said), 'message')}; --last shows more.")
    for one in shown:
        who = {"user": "you", "assistant": "AI", "tool": "result", "system": "system"}[one.message.role.value]
        show.say(f"\n{who}  {stamp(one.created_at)}")
        if one.message.text:
            show.say("\n".join(f"  {line}" for line in one.message.text.splitlines()))
        for call in one.message.calls:
            show.say(f"  calls {call.name}({', '.join(f'{k}={show.pretty(v)}' for k, v in call.arguments.items())})")
    if s.partial:
        show.say(f"\nAI  (at this moment)\n  {s.partial}")


# ---------------------------------------------------------------------- create, update, delete


def _defining(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed((
        click.option("--prompt", metavar="TEXT", help="What the AI is to do; - is stdin."),
        click.option("--file", "-f", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
                     help="The definition as YAML or JSON; options go before it."),
        click.option("--trigger", "triggers", multiple=True, metavar="EVENT", help="An event that runs it; may be repeated."),
        click.option("--tool", "tools", multiple=True, metavar="NAME", help="A tool or task that it may call; may be repeated."),
        click.option("--provider", metavar="NAME", help="Which AI: openai, anthropic, scripted, …; none: the setting."),
        click.option("--model", metavar="NAME", help="Which model of it; none: the setting."),
        click.option("--slot", metavar="NAME", help="The slot that it needs; one session at a time has it."),
        click.option("--latest-only/--all-missed", "dismiss", default=None, help="Of several missed runs: only the latest, or all."),
        click.option("--catch-up-window", type=SPAN, metavar="SPAN", help="Missed runs older than this are left out: 2h."),
        click.option("--limit", "limits", multiple=True, metavar="NAME=N", help="max_rounds, max_calls, max_tokens, max_cents, …_per_day."),
        click.option("--max-tokens", metavar="N", help="The longest answer, in tokens; none: the setting."),
        click.option("--temperature", metavar="N", help="From 0 to 2; none: that of the provider."),
        click.option("--no-call", type=click.Choice(["wait", "ask", "complete"]),
                     help="What an answer without a call means: wait for a person, ask once more, or the work is done."),
        click.option("--max-unanswered", metavar="N", help="End after this many answers in a row that broke off; none: the setting."),
        recurrences.options,
        _tenant,
    )):  # fmt: skip
        command = option(command)
    return command


@automations.command()
@click.argument("name")
@click.option("--off", is_flag=True, help="Make it, but do not switch it on.")
@_defining
def create(name: str, off: bool, tenant: str | None, **given: Any) -> None:
    """Make an automation. Nothing that was planned before now runs."""
    from duly.automations.automation import read_definition

    made = door(make=True)
    said = {"name": name, **_definition(given, None)}
    a = made.create(read_definition(said), enabled=not off, tenant=tenant, actor=actor())
    _tell(made, a, "made")


@automations.command()
@click.argument("name")
@click.option("--name", "new_name", metavar="NAME", help="Call it so from now on.")
@_defining
def update(name: str, new_name: str | None, tenant: str | None, **given: Any) -> None:
    """Change an automation.

    Only a change of when it runs leaves out what was planned before now.
    """
    made = door()
    known = made.get(name, tenant)
    changes = _definition(given, known)
    if new_name is not None:
        changes["name"] = new_name
    if not changes:
        raise click.UsageError("Say what to change.")
    a = made.update(known.id, changes, version=known.version, tenant=tenant, actor=actor())
    _tell(made, a, "changed" if a.definition != known.definition else "as it was")


def _definition(given: dict[str, Any], known: Automation | None) -> dict[str, Any]:
    """What the options say, as JSON."""
    when = recurrences.taken(given)
    said: dict[str, Any] = {}
    if given["file"] is not None:
        said |= _file(given["file"])
    if given["prompt"] is not None:
        said.pop("messages", None)
        said["prompt"] = _stdin("--prompt") if given["prompt"] == "-" else given["prompt"]
    for name in ("triggers", "tools"):
        if given[name]:
            said[name] = [] if tuple(given[name]) == ("none",) else list(given[name])
    for name in ("provider", "model"):
        if given[name] is not None:
            said[name] = None if given[name] == "none" else given[name]
    if given["slot"] is not None:
        said["slot"] = given["slot"]
    for name in ("max_tokens", "temperature", "max_unanswered"):
        if given[name] is not None:
            said[name] = _limit(f"{name}={given[name]}")[1]
    if given["no_call"] is not None:
        said["no_call"] = given["no_call"]
    if given["dismiss"] is not None:
        said["dismiss_older_instances"] = given["dismiss"]
    if given["catch_up_window"] is not None:
        said["catch_up_window"] = given["catch_up_window"].total_seconds() or None
    if given["limits"]:
        named = said.get("limits", {})
        # what is no mapping is refused where all limits are
        said["limits"] = (
            {**named, **dict(_limit(text) for text in given["limits"])} if isinstance(named, Mapping) else named
        )
    if when:
        found = recurrences.recurrence(when, None if known is None else known.definition.schedule)
        assert found is not None
        said["schedule"] = found.to_json()
    return said


def _stdin(option: str) -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"what came on stdin is not UTF-8: {error.reason} at byte {error.start}.", param_hint=f"'{option}'") from None  # fmt: skip


def _limit(text: str) -> tuple[str, Any]:
    name, _equals, number = text.partition("=")
    if number == "none":
        return name, None
    try:
        return name, int(number) if number.isdigit() else float(number)
    except ValueError:
        raise click.BadParameter(f"{text!r}: write NAME=N, such as max_tokens=20000, or NAME=none.", param_hint="'--limit'") from None  # fmt: skip


def _file(path: Path) -> dict[str, Any]:
    from duly.kernel.errors import InvalidArgument
    from duly.kernel.source import read

    found = read(path).value
    if not isinstance(found, Mapping):
        raise InvalidArgument(str(path), "holds no mapping.", "Write the fields of an automation: name, prompt, schedule, …")  # fmt: skip
    return {name: value for name, value in found.items() if name != "name"}


def _tell(made: Automations, a: Automation, what: str) -> None:
    next_run, now = made.next_run(a.id), made._app.engine.clock.now()
    for note in made.notes(a):
        complain(f"note: {note}")
    if state().json:
        show.as_json({**document(a), "next_run": next_run})
        return
    show.say(f"Automation {a.name} is {what}: {_when(a)}.")
    if next_run is not None:
        show.say(f"It runs next at {local(next_run, _tz(a))}, {relative(next_run, now)}.")
    _note_worker(made)


def _note_worker(made: Automations) -> None:
    if not workers(made):
        complain("note: no worker that runs sessions is alive; start one with `duly up`.")


def workers(made: Automations) -> list[str]:
    """Workers that run sessions."""
    from duly.automations.controller import QUEUE
    from duly.jobs.ask import WORKER_GONE

    app = made._app
    found = app.engine.db.read(lambda c: app.engine.reader.live_workers(c, WORKER_GONE))
    return [worker["name"] for worker in found if QUEUE in worker["queues"]]


def _switch(name: str, on: bool, tenant: str | None) -> None:
    made = door()
    a = (made.enable if on else made.disable)(name, tenant=tenant, actor=actor())
    if state().json:
        show.as_json({**document(a), "next_run": made.next_run(a.id)})
    elif on:
        _tell(made, a, "on")
    else:
        show.say(f"Automation {a.name} is off: nothing of it starts or goes on.")
        for ident in made.unended(a.id):
            if made.session(ident).is_active:
                show.say(f"Session {ident} of it has the slot and keeps it; duly automations stop {ident} ends it.")


@automations.command()
@click.argument("name")
@_tenant
def enable(name: str, tenant: str | None) -> None:
    """Switch an automation on. What was planned while it was off does not run."""
    _switch(name, True, tenant)


@automations.command()
@click.argument("name")
@_tenant
def disable(name: str, tenant: str | None) -> None:
    """Switch an automation off."""
    _switch(name, False, tenant)


@automations.command()
@click.argument("name")
@_tenant
def delete(name: str, tenant: str | None) -> None:
    """Remove an automation. Its sessions that have not ended are cancelled; all stay to be looked at."""
    a = door().delete(name, tenant=tenant, actor=actor())
    if state().json:
        show.as_json(document(a))
    else:
        show.say(f"Automation {a.name} is removed.")


# ---------------------------------------------------------------------- run, stop, pause, resume


@automations.command()
@click.argument("name")
@click.option("--key", help="Once per key: the same again is the same session.")
@_tenant
def run(name: str, key: str | None, tenant: str | None) -> None:
    """Execute an automation now, also one that is off. It waits for the slot where that is held."""
    made = door()
    _requested(made, [made.run(name, key=key, tenant=tenant, actor=actor())])


@automations.command()
@click.argument("event")
@click.argument("payload", required=False, metavar="[JSON]")
@click.option("--key", help="Once per key: the same again is the same session.")
@_tenant
def fire(event: str, payload: str | None, key: str | None, tenant: str | None) -> None:
    """Say that an event has happened: automations with that trigger run. JSON may be - for stdin."""
    made = door()
    told = _object(sys.stdin.read() if payload == "-" else payload)
    found = made.fire(event, told, key=key, tenant=tenant, actor=actor())
    if not found and not state().json:
        show.say(f"No automation that is on has the trigger {event}.")
        return
    _requested(made, found)


def _requested(made: Automations, found: Sequence[Requested]) -> None:
    if state().json:
        show.as_json([{**(_session(one.session) or {}), "control": one.control, "created": one.created} for one in found])  # fmt: skip
        return
    for one in found:
        s = one.session
        if not one.created:
            show.say(f"That key has session {s.id} already ({ending(s)}). Nothing was written.")
        elif s.is_active:
            show.say(f"Session {s.id} of {s.title} has the slot.")
        else:
            show.say(f"Session {s.id} of {s.title} waits for the slot{_held_by(made, s.slot)}.")
    _note_worker(made)


def _held_by(made: Automations, slot: str) -> str:
    found = next((one for one in made.slots() if one.name == slot), None)
    if found is not None and found.busy is not None:
        return f", which is kept: {found.busy.words}"
    return "" if found is None or found.session_id is None else f", which session {found.session_id} has"


def _each(which: int | str, tenant: str | None, of: str, act: str) -> tuple[Automations, list[int]]:
    """The sessions that are meant: one by its number, or those of an automation in a state."""
    from duly.kernel.errors import NotFound

    made = door()
    if isinstance(which, int):
        return made, [which]
    found = [made.session(ident) for ident in made.unended(which, tenant)]
    chosen = [s.id for s in found if of == "any" or str(s.status) == of]
    if not chosen:
        raise NotFound("session of automation", f"{which} that could be {act}")
    return made, chosen


def _acted(found: Sequence[Session], words: str) -> None:
    if state().json:
        show.as_json([_session(s) for s in found])
        return
    for s in found:
        show.say(f"Session {s.id} {words.format(when='' if s.is_active else ' when it gets the slot')}")


@automations.command()
@click.argument("which", type=WHICH, metavar="NAME|SESSION")
@_reason
@_tenant
def stop(which: int | str, reason: str, tenant: str | None) -> None:
    """End a session, or all of an automation.

    They end CANCELLED, with what their calls have begun.
    """
    made, chosen = _each(which, tenant, "any", "stopped")
    _acted([made.stop(ident, reason, tenant=tenant, actor=actor()) for ident in chosen], "is stopped.")


@automations.command()
@click.argument("which", type=WHICH, metavar="NAME|SESSION")
@click.option(
    "--for", "length", type=SPAN, metavar="SPAN", help="Resume no earlier than this long from now, such as 2h."
)
@click.option(
    "--now", is_flag=True, help="Cancel a call of an async tool that is under way instead of letting it finish."
)
@_reason
@_tenant
def pause(which: int | str, length: timedelta | None, now: bool, reason: str, tenant: str | None) -> None:
    """Take the slot from an automation for a while. It goes on later exactly where it was, when nothing else wants the slot.

    A tool that is under way finishes first; nobody gets the slot before it has.
    """
    made, chosen = _each(which, tenant, "active", "paused")
    found = [made.pause(i, reason, span=length, now=now, tenant=tenant, actor=actor()) for i in chosen]
    is_on = all(made.get(s.automation_id).is_enabled for s in found if s.automation_id is not None)
    sooner = (
        "duly automations resume has it go on sooner"
        if is_on
        else "its automation is off: it goes on when that is enabled"
    )
    _acted(found, f"is paused; {sooner}.")


@automations.command()
@click.argument("which", type=WHICH, metavar="NAME|SESSION")
@_tenant
def resume(which: int | str, tenant: str | None) -> None:
    """Let a paused session go on now, as soon as it gets the slot."""
    made, chosen = _each(which, tenant, "interrupted", "resumed")
    _acted([made.resume(ident, tenant=tenant, actor=actor()) for ident in chosen], "goes on{when}.")


@automations.command()
@click.argument("name")
@_tenant
def why(name: str, tenant: str | None) -> None:
    """Say why an automation does not start.

    Every condition is shown, met or not, with its remedy.
    """
    made = door()
    checks = made.why(name, tenant)
    fine = all(check.met for check in checks)
    if state().json:
        show.as_json({"automation": name, "starts": fine, "checks": checks})
    else:
        show.table("!met condition what_is_the_case what_to_do",
                   (("yes" if c.met else "no", c.name, c.detail, "" if c.met else c.remedy) for c in checks))  # fmt: skip
        show.say("It starts at the next pass." if fine else "It does not start now.")


@automations.command()
@click.argument("provider", required=False)
def check(provider: str | None) -> None:
    """Ask an AI provider whether it could be asked.

    Its address, key and model are tried. Without a name: the one of the setting ai_provider.
    """
    import asyncio

    from duly.automations.door import Automations
    from duly.kernel.verdict import Refusal

    found = Automations.of(state().duly()).provider(provider)
    try:
        said = asyncio.run(found.check())
    except Refusal as refused:
        raise click.ClickException(f"{found.name}: {refused.verdict.reason}") from None
    if state().json:
        show.as_json({"provider": found.name, "says": said})
    else:
        show.say(f"{found.name}: {said}")


# ---------------------------------------------------------------------- chat


@automations.command()
@click.argument("text", required=False)
@click.option("--provider", metavar="NAME", help="Which AI; else the setting ai_provider.")
@click.option("--model", metavar="NAME", help="Which model of it.")
@click.option("--tool", "tools", multiple=True, metavar="NAME", help="A tool that it may call; may be repeated.")
@click.option("--slot", default="default", show_default=True, metavar="NAME", help="The slot.")
@_tenant
def chat(text: str | None, **options: Any) -> None:
    """Talk with the AI: TEXT and its answer, or line by line.

    It waits while an automation has the slot; stop or pause that to go first. Ctrl-D ends it. Where no worker that runs sessions is alive, this
    process is one as long as the chat lasts.
    """
    from duly.cli.chat import talk

    if state().json:
        raise click.UsageError(
            "A chat prints what is said, and no JSON. Afterwards: duly --json automations show SESSION."
        )
    made = door(make=True)
    for problem in made.tools.problems(options["tools"]):
        complain(f"note: {problem}")
    sys.exit(talk(made, text, options, lambda: bool(workers(made))))
