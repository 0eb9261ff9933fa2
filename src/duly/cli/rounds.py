"""``duly rounds``: groups, their members and prompts; the ticks by hand; rounds and what members put into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import ID, Group, actor, complain, state
from duly.cli.times import SPAN, relative, span, stamp

if TYPE_CHECKING:
    from duly.rounds.group import Group as RoundGroup
    from duly.rounds.group import Member, Prompt
    from duly.rounds.round import Round
    from duly.rounds.rounds import Rounds
    from duly.rounds.tick import TickReport

CHANNELS = ("email", "webhook", "log")


@click.group(cls=Group)
def rounds() -> None:
    """Rounds of groups: plan, open, close, take part."""


def _rounds(make: bool = False) -> Rounds:
    """The rounds of the application; of a bare one on the database where none is named. ``make``: as in ``State.open``."""
    from duly.rounds.rounds import Rounds

    return Rounds.of(state().open(make))


class _Named(click.ParamType):  # type: ignore[type-arg]
    """A number or a name."""

    name = "name|id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value)
        return ID.convert(text, param, ctx) if text.isascii() and text.isdigit() else text


NAMED = _Named()


def _reason(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--reason", default="", help="Why, for those who look at it later.")(command)


def _tenant(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--tenant", help="The group's tenant, where it is not the application's.")(command)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


# ---------------------------------------------------------------------- ticks


@rounds.command()
@click.argument("kind", type=click.Choice(["plan", "open", "close", "all"]))
def tick(kind: Any) -> None:
    """Plan, open or close what is due now.

    Can be run at any time and as often as one likes, beside workers that do the same. Ends with 1 when a group failed.
    """
    made = _rounds()
    reports: list[TickReport] = made.tick(kind=None if kind == "all" else kind, actor=actor())
    if state().json:
        show.as_json([{**asdict(r), "per_minute": r.per_minute} for r in reports])
    else:
        show.table(
            "!tick #done #skipped #failed took !late",
            ((r.kind, r.done, r.skipped, r.failed, span(r.seconds), _late(r.most_late)) for r in reports),
        )
    failed = sum(r.failed for r in reports)
    if failed:
        complain(f"{show.count(failed, 'group')} failed; `duly rounds groups list` says why.")
        click.get_current_context().exit(1)


def _late(seconds: float | None) -> str:
    return "" if seconds is None else f"at most {span(seconds)}"


@rounds.command()
@click.option("--kind", type=click.Choice(["plan", "open", "close"]), help="Of this tick only.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 10_000), default=20, show_default=True, metavar="N", help="At most so many."
)
def ticks(kind: Any, limit: int) -> None:
    """List the passes of the ticks, newest first."""
    asked = state()
    made = _rounds()
    found = made.ticks(kind, limit)
    if asked.json:
        show.as_json(found)
        return
    now = made._app.engine.clock.now()
    show.table(
        "!tick !when #done #skipped #failed took !late",
        (
            (t.kind, relative(t.started_at, now), t.done, t.skipped, t.failed, span(t.seconds), _late(t.most_late))
            for t in found
        ),
        empty="No tick has run. `duly rounds tick all` runs them once; Rounds(app).schedule() for good.",
    )


# ---------------------------------------------------------------------- looking


@rounds.command("list")
@click.option("--group", "-g", type=NAMED, help="Of this group.")
@click.option("--status", "-s", type=click.Choice(["scheduled", "open", "closed"]), help="In this state.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N", help="At most so many."
)
@click.option("--below", type=ID, metavar="ID", help="The page behind: only ids below this one.")
@_tenant
def list_(group: int | str | None, status: str | None, limit: int, below: int | None, tenant: str | None) -> None:
    """List rounds, newest first."""
    asked = state()
    made = _rounds()
    found = made.list(group, status=status, limit=limit, below=below, tenant=tenant)
    now = made._app.engine.clock.now()
    if asked.json:
        show.as_json([_as_dict(r, now) for r in found])
        return
    names = {ident: made.groups.get(ident, at).name for ident, at in {(r.group_id, r.tenant) for r in found}}
    show.table(
        "!#id !group !for !state opens !when prompt",
        (
            (r.id, names[r.group_id], r.scheduled_for, r.label(now), stamp(r.open_at or r.planned_at), _when(r, now), r.prompt_text)
            for r in found
        ),
        empty="No such rounds.",
    )  # fmt: skip


def _as_dict(r: Round, now: datetime) -> dict[str, Any]:
    return {**asdict(r), "label": r.label(now)}


def _when(r: Round, now: datetime) -> str:
    """The instant that matters most in its state."""
    if r.status == "scheduled":
        return "waits for its group" if r.due_at is None else f"opens {relative(r.due_at, now)}"
    return f"{'closed' if r.label(now) != 'open' else 'closes'} {relative(r.close_at, now)}"


@rounds.command("show")
@click.argument("round", type=ID)
@_tenant
def show_(round: int, tenant: str | None) -> None:
    """Show one round with its submissions, comments and votes."""
    asked = state()
    made = _rounds()
    archive = made.show(round, tenant=tenant)
    r, now = archive.round, made._app.engine.clock.now()
    if asked.json:
        show.as_json({**asdict(archive), "round": _as_dict(r, now)})
        return
    group = made.groups.get(r.group_id, r.tenant)
    people = {m.id: m.name for m in made.members.all(r.group_id, r.tenant)}

    def at(instant: datetime | None) -> str:
        return f"{stamp(instant)} ({relative(instant, now)})" if instant else ""

    show.facts([
        ("round", r.id),
        ("group", group.name),
        ("for", f"{r.scheduled_for} {r.drop_time}, {r.zone}"),
        ("state", r.label(now)),
        ("planned for", at(r.planned_at)),
        ("open from", at(r.open_at)),
        ("open until", at(r.close_at)),
        ("opened", at(r.opened_at)),
        ("late", span(r.late) if r.late else ""),
        ("closed", at(r.closed_at)),
        ("prompt", r.prompt_text or (f"{r.prompt_id}, chosen" if r.prompt_id else "")),
    ])  # fmt: skip
    if archive.submissions:
        show.say()
        show.table(
            "!#id !member #votes submission",
            ((s.id, people.get(s.member_id), archive.votes_for(s.id), s.text) for s in archive.submissions),
        )
    if archive.comments:
        show.say()
        show.table(
            "!#id !member !#about comment", ((c.id, people.get(c.member_id), c.submission_id, c.text) for c in archive.comments)
        )  # fmt: skip


@rounds.command("next")
@click.argument("group", type=NAMED, required=False)
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="At most so many groups.",
)
@_tenant
def next_(group: int | str | None, limit: int, tenant: str | None) -> None:
    """Say when the next round of each group opens, or why none does."""
    asked = state()
    made = _rounds()
    found = made.next(group, tenant=tenant, limit=limit)
    if asked.json:
        show.as_json(found)
        return
    named = made.groups.all(limit, tenant=tenant) if group is None else [made.groups.get(group, tenant)]
    groups = {one.id: one for one in named}
    now = made._app.engine.clock.now()
    show.table(
        "!group !zone !for !opens !when !state",
        (
            (
                groups[u.group_id].name, groups[u.group_id].zone, u.scheduled_for, stamp(u.at), relative(u.at, now),
                u.reason or ("planned" if u.planned else "foreseen"),
            )
            for u in found
        ),
        empty="There are no groups.",
    )  # fmt: skip


# ---------------------------------------------------------------------- groups


@rounds.group()
def groups() -> None:
    """Groups: zone, local time, cooldown."""


def _tell(group: RoundGroup) -> None:
    if state().json:
        show.as_json(group)
        return
    at = group.drop_time or "the usual time"
    words = [
        "active" if group.is_active else "not active",
        "tells its members" if group.notifications else "tells nobody",
    ]
    show.say(f"Group {group.name} ({group.id}): {group.zone}, {at}, {', '.join(words)}.")


@groups.command("add")
@click.argument("name")
@click.option("--zone", required=True, metavar="ZONE", help="An IANA time zone, such as Europe/Paris.")
@click.option("--drop-time", metavar="HH:MM", help="When rounds open, local time; else the setting rounds_drop_time.")
@click.option("--cooldown", type=SPAN, help="From the end of a round until the next may be planned; else the setting.")
@click.option("--inactive", is_flag=True, help="Plan nothing for it yet.")
@click.option("--quiet", is_flag=True, help="Tell its members nothing.")
@_tenant
def add_group(
    name: str, zone: str, drop_time: str | None, cooldown: timedelta | None, inactive: bool, quiet: bool, tenant: str | None
) -> None:  # fmt: skip
    """Make a group."""
    _tell(
        _rounds(make=True).groups.add(
            name, zone, drop_time=drop_time, cooldown=cooldown, is_active=not inactive, notifications=not quiet, tenant=tenant,
            actor=actor(),
        )
    )  # fmt: skip


@groups.command("list")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="At most so many.",
)
@click.option("--after", type=ID, metavar="ID", help="The page behind: only ids above this one.")
@_tenant
def list_groups(limit: int, after: int | None, tenant: str | None) -> None:
    """List groups."""
    found = _rounds().groups.all(limit, after or 0, tenant)
    if state().json:
        show.as_json(found)
        return
    show.table(
        "!#id !group !zone !time cooldown state error",
        (
            (
                g.id, g.name, g.zone, g.drop_time or "usual", "usual" if g.cooldown is None else span(g.cooldown),
                "active" if g.is_active else "not active", g.error,
            )
            for g in found
        ),
        empty="There are no groups.",
    )  # fmt: skip


@groups.command("show")
@click.argument("group", type=NAMED)
@_tenant
def show_group(group: int | str, tenant: str | None) -> None:
    """Show one group in full."""
    made = _rounds()
    found = made.groups.get(group, tenant)
    if state().json:
        show.as_json(found)
        return
    (upcoming,) = made.next(found.id)
    now = made._app.engine.clock.now()
    show.facts([
        ("group", found.id),
        ("name", found.name),
        ("tenant", found.tenant if found.tenant != "default" else ""),
        ("zone", found.zone),
        ("time", found.drop_time or "the usual one"),
        ("cooldown", "the usual one" if found.cooldown is None else span(found.cooldown)),
        ("state", "active" if found.is_active else "not active"),
        ("tells members", "yes" if found.notifications else "no"),
        ("next", f"{stamp(upcoming.at)} ({relative(upcoming.at, now)})" if upcoming.at else upcoming.reason),
        ("members", len(made.members.all(found.id))),
        ("prompts", len(made.prompts.all(found.id))),
        ("error", found.error),
        ("failures", found.failures or ""),
    ])  # fmt: skip


@groups.command("set")
@click.argument("group", type=NAMED)
@click.option("--name", metavar="NAME", help="Another name.")
@click.option("--zone", metavar="ZONE", help="Another time zone.")
@click.option("--drop-time", metavar="HH:MM", help="Another local time; 'usual' for the setting's.")
@click.option("--cooldown", metavar="SPAN", help="Another wait; 'usual' for the setting's.")
@click.option("--active/--inactive", default=None, help="Plan and open rounds, or do not.")
@click.option("--notify/--quiet", default=None, help="Tell its members of openings, or do not.")
@_reason
@_tenant
def set_group(
    group: int | str, name: str | None, zone: str | None, drop_time: str | None, cooldown: str | None, active: bool | None,
    notify: bool | None, reason: str, tenant: str | None,
) -> None:  # fmt: skip
    """Change a group.

    A round that is not open yet follows; an open one stays as it is. What is not named stays.
    """
    changes = _given(name=name, zone=zone, drop_time=drop_time, is_active=active, notifications=notify)
    if drop_time == "usual":
        changes["drop_time"] = None
    if cooldown is not None:
        changes["cooldown"] = None if cooldown == "usual" else SPAN.convert(cooldown, None, click.get_current_context())
    if not changes:
        raise click.UsageError("Nothing to change: give --zone, --drop-time, --cooldown, --active, --notify or --name.")
    _tell(_rounds().groups.set(group, **changes, tenant=tenant, actor=actor(), reason=reason))


# ---------------------------------------------------------------------- members


@rounds.group()
def members() -> None:
    """Members of groups, and how they are told."""


def _tell_members(found: Sequence[Member]) -> None:
    if state().json:
        show.as_json(found)
        return
    show.table(
        "!#id !member channels state",
        ((m.id, m.name, ", ".join(m.channels), "" if m.is_active else "has left") for m in found),
        empty="The group has no members.",
    )


@members.command("add")
@click.argument("group", type=NAMED)
@click.argument("name")
@click.option("--email", metavar="ADDRESS", help="Where e-mail goes.")
@click.option("--webhook", metavar="URL", help="Where posts go.")
@click.option(
    "--channel", "-c", "channels", multiple=True, type=click.Choice(CHANNELS), help="Tell him so. May be repeated."
)
@_tenant
def add_member(
    group: int | str, name: str, email: str | None, webhook: str | None, channels: Sequence[str], tenant: str | None
) -> None:
    """Add a member to a group."""
    made = _rounds().members.add(
        group, name, email=email, webhook=webhook, channels=channels, tenant=tenant, actor=actor()
    )
    _tell_members([made])


@members.command("list")
@click.argument("group", type=NAMED)
@_tenant
def list_members(group: int | str, tenant: str | None) -> None:
    """List the members of a group. Addresses are shown with --json only."""
    _tell_members(_rounds().members.all(group, tenant))


@members.command("set")
@click.argument("group", type=NAMED)
@click.argument("member", type=NAMED)
@click.option("--email", metavar="ADDRESS", help="Where e-mail goes.")
@click.option("--webhook", metavar="URL", help="Where posts go.")
@click.option(
    "--channel", "-c", "channels", multiple=True, type=click.Choice(CHANNELS), help="Tell him so, and no other way."
)
@click.option("--no-channels", is_flag=True, help="Do not tell him.")
@click.option("--active/--left", default=None, help="Is he in the group?")
@_reason
@_tenant
def set_member(
    group: int | str, member: int | str, email: str | None, webhook: str | None, channels: Sequence[str], no_channels: bool,
    active: bool | None, reason: str, tenant: str | None,
) -> None:  # fmt: skip
    """Change a member. What is not named stays."""
    changes = _given(email=email, webhook=webhook, is_active=active)
    if channels and no_channels:
        raise click.UsageError("--channel and --no-channels are both given.")
    if channels or no_channels:
        changes["channels"] = channels
    if not changes:
        raise click.UsageError(
            "Nothing to change: give --email, --webhook, --channel, --no-channels, --active or --left."
        )
    _tell_members([_rounds().members.set(group, member, **changes, tenant=tenant, actor=actor(), reason=reason)])


# ---------------------------------------------------------------------- prompts


@rounds.group()
def prompts() -> None:
    """Prompts of groups: the questions of rounds."""


def _tell_prompts(found: Sequence[Prompt]) -> None:
    if state().json:
        show.as_json(found)
        return
    show.table(
        "!#id !state prompt",
        ((p.id, "active" if p.is_active else "not active", p.text) for p in found),
        empty="The group has no prompts, so no round can be planned.",
    )


@prompts.command("add")
@click.argument("group", type=NAMED)
@click.argument("text", nargs=-1, required=True)
@_tenant
def add_prompts(group: int | str, text: Sequence[str], tenant: str | None) -> None:
    """Add prompts to a group."""
    _tell_prompts(_rounds().prompts.add(group, *text, tenant=tenant, actor=actor()))


@prompts.command("list")
@click.argument("group", type=NAMED)
@_tenant
def list_prompts(group: int | str, tenant: str | None) -> None:
    """List the prompts of a group."""
    _tell_prompts(_rounds().prompts.all(group, tenant))


@prompts.command("set")
@click.argument("prompt", type=ID)
@click.option("--text", metavar="TEXT", help="Other words.")
@click.option("--active/--inactive", default=None, help="May it be chosen?")
@_reason
@_tenant
def set_prompt(prompt: int, text: str | None, active: bool | None, reason: str, tenant: str | None) -> None:
    """Change a prompt. Rounds that have opened keep its text."""
    changes = _given(text=text, is_active=active)
    if not changes:
        raise click.UsageError("Nothing to change: give --text, --active or --inactive.")
    _tell_prompts([_rounds().prompts.set(prompt, **changes, tenant=tenant, actor=actor(), reason=reason)])


@prompts.command("remove")
@click.argument("prompt", type=ID)
@_reason
@_tenant
def remove_prompt(prompt: int, reason: str, tenant: str | None) -> None:
    """Take a prompt away. Rounds that have opened keep its text."""
    _rounds().prompts.remove(prompt, tenant=tenant, actor=actor(), reason=reason)
    show.as_json({"removed": prompt}) if state().json else show.say(f"Prompt {prompt} is removed.")


# ---------------------------------------------------------------------- taking part


def _done(made: Any, said: str) -> None:
    show.as_json(made) if state().json else show.say(said)


@rounds.command()
@click.argument("round", type=ID)
@click.argument("member", type=NAMED)
@click.argument("text")
@click.option("--edit", is_flag=True, help="Change the submission that he has made.")
@_tenant
def submit(round: int, member: int | str, text: str, edit: bool, tenant: str | None) -> None:
    """Hand in a member's answer to an open round."""
    made = _rounds()
    if edit:
        archive = made.show(round, tenant=tenant)
        ident = next((m.id for m in made.members.all(archive.round.group_id, tenant) if member in (m.id, m.name)), None)
        mine = next((s for s in archive.submissions if s.member_id == ident), None)
        if mine is None:
            raise click.ClickException(f"{member} has submitted nothing to round {round}.")
        changed = made.edit_submission(mine.id, member, text, tenant=tenant, actor=actor())
        _done(changed, f"Submission {changed.id} is changed.")
        return
    submission = made.submit(round, member, text, tenant=tenant, actor=actor())
    _done(submission, f"Submission {submission.id} is in round {round}.")


@rounds.command()
@click.argument("submission", type=ID)
@click.argument("member", type=NAMED)
@click.argument("text")
@_tenant
def comment(submission: int, member: int | str, text: str, tenant: str | None) -> None:
    """Comment a submission, as a member, while its round is open."""
    made = _rounds().comment(submission, member, text, tenant=tenant, actor=actor())
    _done(made, f"Comment {made.id} is with submission {submission}.")


@rounds.command("edit-comment")
@click.argument("comment", type=ID)
@click.argument("member", type=NAMED)
@click.argument("text")
@_tenant
def edit_comment(comment: int, member: int | str, text: str, tenant: str | None) -> None:
    """Change a member's own comment while the round is open."""
    made = _rounds().edit_comment(comment, member, text, tenant=tenant, actor=actor())
    _done(made, f"Comment {made.id} is changed.")


@rounds.command()
@click.argument("submission", type=ID)
@click.argument("member", type=NAMED)
@_tenant
def vote(submission: int, member: int | str, tenant: str | None) -> None:
    """Vote for a submission, as a member. A second vote moves the first."""
    made = _rounds().vote(submission, member, tenant=tenant, actor=actor())
    _done(made, f"{member} votes for submission {submission} in round {made.round_id}.")
