"""``/rounds``: groups with their own clocks: who has a round open, when the next one drops, what was said in those that are over.

Taking part is here as it is over REST: an operator writes for a member. What members wrote is a payload: hidden from viewers unless granted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AfterValidator
from sqlalchemy import Connection

from duly.accounts.account import Identity, Role
from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import zone
from duly.kernel.payload import check_text, read_duration
from duly.rounds import read
from duly.rounds.group import Channel, Group, read_drop_time
from duly.rounds.plan import HOUR_PASSED, INACTIVE, NO_ELIGIBLE_PROMPT, UNPLANNED, Upcoming
from duly.rounds.round import OPEN_FOR, Round, Status, takes_part
from duly.rounds.rounds import SCHEDULES, Rounds
from duly.web.api.common import Cursor, Ident, at_first_use, below, for_whom, number_or_name, page, whose
from duly.web.dashboard.desk import Act, Desk, acts, query, sees, where
from duly.web.dashboard.words import plural

Viewer: TypeAlias = Annotated[Identity, sees("rounds")]
Operator: TypeAlias = Annotated[Act, acts("rounds", Role.OPERATOR)]
Everywhere: TypeAlias = Annotated[Act, acts("rounds", Role.OPERATOR, everywhere=True)]
Which: TypeAlias = Annotated[str, Path(min_length=1, max_length=200), AfterValidator(lambda text: check_text(text, "group"))]  # fmt: skip
Tenant: TypeAlias = Annotated[str, Query(max_length=200)]
#: Groups, open rounds and closed rounds of one page; members, prompts and submissions that are shown; passes of the ticks.
GROUPS, OPEN, PAST, SHOWN, PASSES = 60, 50, 30, 200, 6
#: Of a band, in its own units: four minutes to each.
WIDTH = 360
REASONS = {
    NO_ELIGIBLE_PROMPT: "no active prompt",
    INACTIVE: "paused",
    UNPLANNED: "nothing plans it",
    HOUR_PASSED: "planning comes too late for its hour",
}


@dataclass(frozen=True, slots=True)
class Band:
    """A day of a group as its own clock shows it, in units from 0 to ``WIDTH``."""

    #: Where its clock stands, and where rounds open.
    now: float
    drop: float
    #: Of the round that is open: what has passed, and what is left. (from, how much).
    gone: tuple[tuple[float, float], ...] = ()
    left: tuple[tuple[float, float], ...] = ()


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app
    room = at_first_use(lambda: Rounds.of(app))

    def ask(fn: Any) -> Any:
        app.open()
        return app.db.read(fn)

    # ------------------------------------------------------------------ looking

    @made.get("/rounds")
    def show(request: Request, who: Viewer, cursor: Cursor = None, groups: Annotated[str | None, Query(max_length=500)] = None) -> Response:  # fmt: skip
        mine, now, door = whose(who), desk.now(), room()
        after = below(groups) or 0
        found = door.groups.all(GROUPS + 1, after, mine)
        kept, more = page(found, GROUPS, lambda one: one.id)
        coming = door.next(tenant=mine, limit=GROUPS, after=after) if kept else []
        past, following = page(door.list(status=Status.CLOSED, limit=PAST + 1, below=below(cursor), tenant=mine), PAST, lambda one: one.id)  # fmt: skip

        def look(c: Connection) -> dict[str, Any]:
            opened = read.open_rounds(c, mine, OPEN)
            rounds = [*opened, *past]
            return {
                "standing": read.standing(c, now, mine), "live": read.live(c, [one.id for one in kept]), "opened": opened,
                "tallies": read.tallies(c, [one.id for one in rounds]), "known": read.groups_by_number(c, {one.group_id for one in rounds}),
            }  # fmt: skip

        facts = ask(look)
        live: dict[int, Round] = facts.pop("live")
        outlook = {one.group_id: one for one in coming}
        usual = app.settings.rounds_drop_time
        rows = sorted((row(one, live.get(one.id), outlook.get(one.id), usual, now) for one in kept), key=lambda one: (one["minute"], one["group"].name))  # fmt: skip
        return desk.page(
            request, "rounds.html", "Rounds", **facts, rows=rows, past=past, now=now, several=mine is None, width=WIDTH, address=address, home=home,
            drop=next_drop(facts["standing"].due_at, coming),
            ticks=[tick for kind in SCHEDULES for tick in door.ticks(kind, 1)] if mine is None else None, drop_usual=usual,
            following=query("/rounds", cursor=following, groups=groups) if following else None, first=query("/rounds", groups=groups) if cursor else None,
            further=query("/rounds", groups=more) if more else None, begin="/rounds" if groups else None,
        )  # fmt: skip

    @made.get("/rounds/groups/{group}")
    def group(request: Request, group: Which, who: Viewer, tenant: Tenant = "", cursor: Cursor = None) -> Response:
        at, now, door = where(who, tenant, "group"), desk.now(), room()
        found = door.groups.get(number_or_name(group), at)
        here = found.tenant
        past, following = page(door.list(found.id, status=Status.CLOSED, limit=PAST + 1, below=below(cursor), tenant=here), PAST, lambda one: one.id)  # fmt: skip
        facts = ask(lambda c: {"live": read.live(c, [found.id]).get(found.id), "tallies": read.tallies(c, [one.id for one in past])})  # fmt: skip
        (coming,) = door.next(found.id, tenant=here)
        usual = app.settings.rounds_drop_time
        return desk.page(
            request, "round_group.html", f"Group {found.name}", g=found, row=row(found, facts.pop("live"), coming, usual, now), **facts, now=now,
            members=door.members.all(found.id, here, limit=SHOWN), prompts=door.prompts.all(found.id, here, limit=SHOWN), past=past, width=WIDTH,
            channels=list(Channel), usual=usual, usual_rest=app.settings.rounds_cooldown, shown=SHOWN, address=address,
            following=home(found, cursor=following) if following else None, first=home(found) if cursor else None,
        )  # fmt: skip

    @made.get("/rounds/{id}")
    def one(request: Request, id: Ident, who: Viewer, tenant: Tenant = "") -> Response:
        at, now, door = where(who, tenant, "round"), desk.now(), room()
        found = door.show(id, tenant=at)
        said = found.submissions[:SHOWN]
        comments: dict[int, list[Any]] = {}
        for comment in found.comments[: SHOWN * 5]:
            comments.setdefault(comment.submission_id, []).append(comment)
        wrote = {one.member_id for one in said} | {one.member_id for of in comments.values() for one in of}
        facts = ask(lambda c: {"names": read.names(c, wrote), "group": read.groups_by_number(c, [found.round.group_id])[found.round.group_id]})  # fmt: skip
        members = [one for one in door.members.all(found.round.group_id, found.round.tenant, limit=SHOWN) if one.is_active]  # fmt: skip
        votes = {one.id: found.votes_for(one.id) for one in said}
        return desk.page(
            request, "round.html", f"Round {id}", r=found.round, **facts, said=sorted(said, key=lambda one: (-votes[one.id], one.id)), comments=comments,
            votes=votes, members=members, now=now, takes_part=takes_part(found.round, now), home=home, counted=(len(found.submissions), len(found.comments), len(found.votes)),
            steps=steps(found.round, now), most=SHOWN,
        )  # fmt: skip

    # ------------------------------------------------------------------ acts: groups

    def of(form: Act, which: str) -> Group:
        return room().groups.get(number_or_name(which), where(form.who, form.text("tenant"), "group"))

    @made.post("/rounds/groups")
    def make(request: Request, form: Operator) -> Response:
        at = for_whom(form.who, form.text("tenant") or None, app.settings.tenant)
        added = room().groups.add(
            form.text("name"), form.text("zone"), drop_time=form.text("drop_time") or None, tenant=at, actor=form.who.actor
        )  # fmt: skip
        return desk.done(
            request, home(added), f"Group {added.name} is made. It has a round as soon as it has a prompt."
        )

    @made.post("/rounds/groups/{group}/change")
    def change(request: Request, group: Which, form: Operator) -> Response:
        was = of(form, group)
        rest = form.text("cooldown")
        now = room().groups.set(
            was.id, name=form.text("name") or was.name, zone=form.text("zone") or was.zone, drop_time=form.text("drop_time") or None,
            cooldown=read_duration(rest, "cooldown") if rest else None, notifications=bool(form.text("notifications")), tenant=was.tenant,
            actor=form.who.actor, reason=form.reason,
        )  # fmt: skip
        return desk.done(request, home(now), f"Group {now.name} is changed. A round that is open stays as it is.")

    @made.post("/rounds/groups/{group}/active")
    def active(request: Request, group: Which, form: Operator) -> Response:
        was = of(form, group)
        on = form.text("on") == "yes"
        now = room().groups.set(was.id, is_active=on, tenant=was.tenant, actor=form.who.actor, reason=form.reason)
        said = "has rounds again." if on else "is paused: no round is planned or opened; one that is open goes on."
        return desk.done(request, home(now), f"Group {now.name} {said}")

    @made.post("/rounds/groups/{group}/members")
    def add_member(request: Request, group: Which, form: Operator) -> Response:
        g = of(form, group)
        added = room().members.add(
            g.id, form.text("name"), email=form.text("email") or None, webhook=form.text("webhook") or None, channels=form.many("channels"),
            tenant=g.tenant, actor=form.who.actor,
        )  # fmt: skip
        return desk.done(request, home(g), f"{added.name} is in group {g.name}.")

    @made.post("/rounds/groups/{group}/members/{member}")
    def change_member(request: Request, group: Which, member: Which, form: Operator) -> Response:
        g = of(form, group)
        given: dict[str, Any] = {}
        if form.text("stays"):
            given["is_active"] = form.text("stays") == "yes"
        else:
            given["channels"] = form.many("channels")
            given |= {name: form.text(name) for name in ("email", "webhook") if form.text(name)}
        changed = room().members.set(g.id, number_or_name(member), **given, tenant=g.tenant, actor=form.who.actor, reason=form.reason)  # fmt: skip
        return desk.done(
            request, home(g), f"{changed.name} is {'changed' if changed.is_active else 'out of the group'}."
        )

    @made.post("/rounds/groups/{group}/prompts")
    def add_prompt(request: Request, group: Which, form: Operator) -> Response:
        g = of(form, group)
        room().prompts.add(g.id, form.text("text"), tenant=g.tenant, actor=form.who.actor)
        return desk.done(request, home(g), "The prompt can be chosen from now on.")

    @made.post("/rounds/prompts/{id}/change")
    def change_prompt(request: Request, id: Ident, form: Operator) -> Response:
        at = where(form.who, form.text("tenant"), "prompt")
        given: dict[str, Any] = (
            {"is_active": form.text("on") == "yes"} if form.text("on") else {"text": form.text("text")}
        )
        room().prompts.set(id, **given, tenant=at, actor=form.who.actor, reason=form.reason)
        return desk.done(request, form.back, "The prompt is changed. Rounds that have opened keep its text.")

    @made.post("/rounds/prompts/{id}/remove")
    def remove_prompt(request: Request, id: Ident, form: Operator) -> Response:
        room().prompts.remove(id, tenant=where(form.who, form.text("tenant"), "prompt"), actor=form.who.actor, reason=form.reason)  # fmt: skip
        return desk.done(request, form.back, "The prompt is removed. Rounds that have opened keep its text.")

    # ------------------------------------------------------------------ acts: taking part

    @made.post("/rounds/{id}/submissions")
    def submit(request: Request, id: Ident, form: Operator) -> Response:
        at = where(form.who, form.text("tenant"), "round")
        room().submit(id, _member(form), form.text("text"), tenant=at, actor=form.who.actor)
        return desk.done(request, form.back, "The answer is in.")

    @made.post("/rounds/submissions/{id}/edit")
    def edit(request: Request, id: Ident, form: Operator) -> Response:
        at = where(form.who, form.text("tenant"), "submission")
        room().edit_submission(id, _member(form), form.text("text"), tenant=at)
        return desk.done(request, form.back, "The answer is changed.")

    @made.post("/rounds/submissions/{id}/comments")
    def comment(request: Request, id: Ident, form: Operator) -> Response:
        at = where(form.who, form.text("tenant"), "submission")
        room().comment(id, _member(form), form.text("text"), tenant=at, actor=form.who.actor)
        return desk.done(request, form.back, "The comment is in.")

    @made.post("/rounds/comments/{id}/edit")
    def edit_comment(request: Request, id: Ident, form: Operator) -> Response:
        at = where(form.who, form.text("tenant"), "comment")
        room().edit_comment(id, _member(form), form.text("text"), tenant=at)
        return desk.done(request, form.back, "The comment is changed.")

    @made.post("/rounds/submissions/{id}/votes")
    def vote(request: Request, id: Ident, form: Operator) -> Response:
        room().vote(id, _member(form), tenant=where(form.who, form.text("tenant"), "submission"), actor=form.who.actor)
        return desk.done(request, form.back, "The vote is in. A second one would move it.")

    @made.post("/rounds/ticks")
    def tick(request: Request, form: Everywhere) -> Response:
        reports = room().tick(actor=form.who.actor)
        failed = sum(one.failed for one in reports)
        words = {"plan": "planned", "open": "opened", "close": "closed"}
        said = ", ".join(f"{one.done:,} {words[one.kind]}" for one in reports)
        return desk.done(request, "/rounds", f"{said}{f', {failed:,} failed' if failed else ''}.", "warn" if failed else "good")  # fmt: skip

    return made


def home(g: Group, **more: Any) -> str:
    """The page of a group."""
    return query(f"/rounds/groups/{g.id}", tenant=g.tenant, **more)


def address(r: Round) -> str:
    return query(f"/rounds/{r.id}", tenant=r.tenant)


def next_drop(due_at: datetime | None, coming: Iterable[Upcoming]) -> tuple[datetime | None, bool]:
    """(when a round opens next, whether it is planned already). ``due_at``: of those that are planned, in all groups. Pure."""
    foreseen = min((one.at for one in coming if one.at is not None and not one.planned), default=None)
    if foreseen is None or (due_at is not None and due_at <= foreseen):
        return due_at, True
    return foreseen, False


def row(g: Group, live: Round | None, coming: Upcoming | None, usual: str, now: datetime) -> dict[str, Any]:
    """A group as it stands: its clock, its round, what comes next. Pure."""
    try:
        local = now.astimezone(zone(g.zone))
        drop = read_drop_time((live.drop_time if live is not None else g.drop_time) or usual)
        drop_at, problem = drop.hour * 60 + drop.minute, g.error or ""
    except InvalidArgument as error:
        local, drop_at, problem = now.astimezone(UTC), 0, str(error)
    label = "" if live is None else live.label(now)
    reason = coming.reason if coming is not None and coming.at is None else ""
    return {
        "group": g, "round": live, "label": label, "kind": "warn" if label == "over" else None, "local": local, "minute": local.hour * 60 + local.minute,
        "drop_time": (live.drop_time if live is not None else g.drop_time) or usual, "band": band(local, drop_at, live, now), "problem": problem,
        "next": None if coming is None else coming.at, "planned": coming is not None and coming.planned, "why": REASONS.get(reason, reason),
        "closes": live.close_at if live is not None and live.status is Status.OPEN else None,
    }  # fmt: skip


def band(local: datetime, drop: int, live: Round | None, now: datetime) -> Band:
    """Where things stand on a day of 24 hours. ``local``: what the group's clock shows; ``drop``: minutes from midnight. Pure.

    A round is open for 24 hours, so what has passed and what is left of it go once around the clock. On a day on which clocks change they are
    drawn an hour longer or shorter than the clock shows.
    """
    unit = WIDTH / 1440
    stands, drops = (local.hour * 60 + local.minute) * unit, drop * unit
    if live is None or live.status is not Status.OPEN or live.open_at is None:
        return Band(round(stands, 1), round(drops, 1))
    share = min(max((now - live.open_at) / OPEN_FOR, 0.0), 1.0)
    gone, left = share * WIDTH, (1 - share) * WIDTH
    return Band(round(stands, 1), round(drops, 1), _around(stands - gone, gone), _around(stands, left))


def _around(start: float, length: float) -> tuple[tuple[float, float], ...]:
    """A stretch on a clock as one bar, or two where it goes over midnight."""
    if length < 0.5:
        return ()
    start %= WIDTH
    first = min(length, WIDTH - start)
    parts = [(start, first), (0.0, length - first)]
    return tuple((round(x, 1), round(wide, 1)) for x, wide in parts if wide >= 0.5)


def steps(r: Round, now: datetime) -> list[dict[str, Any]]:
    """A round's life, and what is to come. Pure."""
    out: list[dict[str, Any]] = [{"kind": "wait", "name": "Planned", "at": r.created_at, "said": f"for {r.scheduled_for:%A, %d %B %Y}"}]  # fmt: skip
    if r.opened_at is None:
        waits = r.due_at is not None and r.due_at < now - timedelta(minutes=10)
        said = "when its group is active again" if r.due_at is None else f"{r.drop_time} there"
        return [*out, {"kind": "warn" if waits else "wait", "name": "Opens", "at": r.due_at, "said": said}]
    late = "" if not r.late or r.late < 1 else f"{plural(round(r.late), 'second')} after it was due"
    out.append({"kind": "good", "name": "Opened", "at": r.opened_at, "said": late})
    if r.closed_at is None:
        over = not takes_part(r, now)
        return [*out, {"kind": "warn" if over else "busy", "name": "Was over" if over else "Closes", "at": r.close_at, "said": "the closing tick is to come" if over else ""}]  # fmt: skip
    return [*out, {"kind": "off", "name": "Closed", "at": r.closed_at, "said": "24 hours after it opened"}]


def _member(form: Act) -> int | str:
    which: int | str = number_or_name(form.text("member"))
    return which
