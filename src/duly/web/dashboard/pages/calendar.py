"""``/calendar``: a week or a month of schedules, publications and blackouts; and what a blackout would hold, before anybody sets it.

Days are those of a zone: the one that is named, else the viewer's, which a script leaves in a cookie, else UTC. What happens too often for a
calendar stands in a list beneath it.
"""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from itertools import islice
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Cookie, Query, Request, Response
from sqlalchemy import Connection

from duly.accounts.account import Identity, Role
from duly.calendars.blackout import Blackout
from duly.jobs.impact import LONGEST, SPAN
from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import instant_on, zone
from duly.kernel.payload import check_name, check_text
from duly.kernel.windows import Calendar, Stretch, Window
from duly.publishing.agenda import agenda
from duly.publishing.read import PublicationReader
from duly.schedules.read import between
from duly.schedules.schedule import Occurrence, Schedule
from duly.web.api.common import whose
from duly.web.dashboard.agenda import WIDTH, Dark, Mark, days, monday, month_grid
from duly.web.dashboard.desk import Desk, query, sees, whole
from duly.web.dashboard.pages.schedules import address, in_words
from duly.web.dashboard.words import line

Viewer: TypeAlias = Annotated[Identity, sees("schedules")]
Holder: TypeAlias = Annotated[Identity, sees("queues")]
Text: TypeAlias = Annotated[str, Query(max_length=200)]
Zone: TypeAlias = Annotated[str, Cookie(alias="duly_zone")]
#: Schedules and blackouts that are drawn, stretches of one blackout, publications, and rows of the ledger.
SCHEDULES, BLACKOUTS, STRETCHES, POSTS, LEDGER = 100, 100, 100, 400, 4_000
#: What happens more often than this in a week, or in a month, is not drawn instant by instant.
OFTEN = {"week": 28, "month": 60}
#: Lines of a day.
LINES = {"week": 40, "month": 4}
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
SCOPES = ("all", "queue", "channel", "schedule")


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    def drawn(who: Identity, view: str, first: date, count: int, tz: str, now: datetime) -> dict[str, Any]:
        """What happens in some days, as far as who looks may see it."""
        mine, often = whose(who), OFTEN[view]
        app.open()
        start, end = instant_on(first, time(0), tz), instant_on(first + timedelta(days=count), time(0), tz)
        posts, holds = who.may("publishing", Role.VIEWER), who.may("queues", Role.VIEWER)

        def look(c: Connection, known: list[Schedule]) -> dict[str, Any]:
            blackouts = [one for one in app.engine.calendars.all(c) if one.enabled][:BLACKOUTS]
            calendar = Calendar([one.counts for one in blackouts])
            marks, busy = schedule_marks(known[:SCHEDULES], calendar, start, end, often)
            calm = [one for one in known[:SCHEDULES] if one not in busy]
            by_number = {one.id: one for one in calm}
            marks += [ledger_mark(by_number[one.schedule_id], one) for one in between(c, list(by_number), start, end, LEDGER)]  # fmt: skip
            if posts:
                found = PublicationReader(app).many(c, agenda(c, start, end, mine, POSTS))
                marks += [mark for one in found if start <= (mark := post_mark(one, who.sees_payloads)).at < end]
            return {
                "days": days(first, count, tz, marks, darks(blackouts, start, end) if holds else []), "more": len(known) > SCHEDULES,
                "often": [{"s": one, "when": in_words(one), "next": one.next_at} for one in busy],
            }  # fmt: skip

        def ask() -> dict[str, Any]:
            known = app.schedules.all(tenant=mine, limit=SCHEDULES + 1)
            return app.db.read(lambda c: look(c, known))

        key = ("calendar", mine, posts, holds, who.sees_payloads, view, first, tz)
        found: dict[str, Any] = desk.lately(key, ask)
        return found

    @made.get("/calendar")
    def show(request: Request, who: Viewer, view: Text = "week", day: Text = "", tz: Text = "", cookie: Zone = "") -> Response:  # fmt: skip
        if view not in OFTEN:
            raise InvalidArgument("view", f"is {view[:40]!r}.", "Use week or month.")
        now, (place, chosen) = desk.now(), zone_of(tz, cookie)
        today = now.astimezone(zone(place)).date()
        at = read_day(day, "day") if day else today
        first, count = (monday(at), 7) if view == "week" else month_grid(at)
        step = timedelta(days=7)
        before, behind = (at - step, at + step) if view == "week" else (at.replace(day=1) - timedelta(days=1), (at.replace(day=1) + timedelta(days=32)).replace(day=1))  # fmt: skip

        def to(view: str = view, day: date | None = None) -> str:
            return query("/calendar", view=view if view != "week" else None, day=day, tz=chosen)

        return desk.page(
            request, "calendar.html", "Calendar", **drawn(who, view, first, count, place, now), view=view, at=at, first=first, today=today, tz=place, chosen=chosen,
            now=now, to=to, before=to(day=before) if before.year >= 1971 else None, behind=to(day=behind) if behind.year < 2200 else None, lines=LINES[view],
            width=WIDTH, whole=who.tenant is None and who.may("queues", Role.VIEWER), several=whose(who) is None, address=address,
            cookie=cookie, local=zone(place),
        )  # fmt: skip

    def homes() -> dict[str, str]:
        """The pages of schedules, by their names: what an impact knows of them."""
        return {one.name: address(one) for one in reversed(app.schedules.all(limit=1_000))}

    @made.get("/calendar/impact")
    def impact(request: Request, who: Holder, cookie: Zone = "") -> Response:
        """What a blackout would hold. Nothing is written."""
        whole(who)
        given, problem, found, window = _given(request), "", None, None
        place, _ = zone_of("", cookie)
        now = desk.now()
        if given:
            try:
                window = read_window(given)
                stop = ends_after(window, given, now)
                found = desk.lately(("impact", window, now.replace(second=0, microsecond=0)), lambda: app.calendars.impact(window, now, stop))  # fmt: skip
            except InvalidArgument as error:
                problem = str(error)
        return desk.page(
            request, "calendar_impact.html", "What a blackout would hold", 422 if problem else 200, given=given, problem=problem, found=found, window=window,
            now=now, scopes=SCOPES, weekdays=WEEKDAYS, tz=place, command=command(window) if window else "", queues=sorted(app.queues.all()), homes=homes() if found else {},
        )  # fmt: skip

    @made.get("/calendar/blackout")
    def blackout(request: Request, who: Holder, name: Text = "") -> Response:
        """One blackout: when it holds, who set it and why, and what it holds of what is known now."""
        found = app.calendars.get(check_name(name, "name"))
        now = desk.now()
        held = desk.lately(("impact", found.counts, now.replace(second=0, microsecond=0)), lambda: app.calendars.impact(found.counts, now)) if who.tenant is None else None  # fmt: skip
        return desk.page(request, "calendar_blackout.html", f"Blackout {found.name}", b=found, found=held, homes=homes() if held else {}, now=now, command=command(found.window) if found.window else "")  # fmt: skip

    return made


# ---------------------------------------------------------------------- what happens


def schedule_marks(
    known: Sequence[Schedule], blackouts: Calendar, start: datetime, end: datetime, often: int
) -> tuple[list[Mark], list[Schedule]]:
    """(the planned instants of a range that are not decided yet, the schedules with too many of them for a calendar). Pure."""
    marks, busy = [], []
    spans: dict[tuple[str, ...], list[Stretch]] = {}
    for one in known:
        spec = one.spec
        if spec is None:
            continue
        first, stop = max(start, spec.starts_at or start), min(end, spec.ends_at or end)
        planned = list(spec.recurrence.occurrences(first, stop, often + 1)) if first < stop else []
        if len(planned) > often:
            busy.append(one)
            continue
        coming = [at for at in planned if at > one.decided_until]
        if coming and spec.scopes not in spans:
            spans[spec.scopes] = list(blackouts.applying_to(*spec.scopes).spans(start, end))
        for at in coming:
            word, said = "planned", "is planned"
            if one.paused_at is not None:
                word, said = "paused", "is skipped while it is paused"
            elif covered(spans[spec.scopes], at):
                skips = spec.policies.blackout == "skip"
                word, said = (
                    ("skipped", "is skipped: a blackout") if skips else ("deferred", "waits for the end of a blackout")
                )
            marks.append(Mark(at, "schedule", word, one.name, address(one), f"{one.tenant}/{one.name}", said))
    return marks, busy


def covered(spans: Sequence[Stretch], at: datetime) -> bool:
    """Does one of these stretches, which are in order, hold at an instant?"""
    place = bisect_right(spans, at, key=lambda one: one.start)
    return place > 0 and at < spans[place - 1].end


def ledger_mark(s: Schedule, one: Occurrence) -> Mark:
    said = f"{one.status.value}{f' ({one.reason})' if one.reason else ''}"
    return Mark(one.due_at, "schedule", one.status.value, s.name, address(s), f"{s.tenant}/{s.name}", said)


def post_mark(post: Any, sees: bool) -> Mark:
    """A publication. ``at``: when it is planned for; of one that has begun, when it did."""
    caption = post.payload.get("caption") if sees else None
    label = f"{post.channel}: {line(joined(caption), 48)}" if isinstance(caption, str) and caption else post.channel
    at = post.started_at if post.started_at is not None and str(post.status) != "pending" else post.run_at or post.created_at  # fmt: skip
    return Mark(at, "post", str(post.status), label, f"/publishing/{post.id}", str(post.id), str(post.status))


def joined(text: str) -> str:
    """A text of several lines on one."""
    return " ".join(text.split())


def darks(blackouts: Sequence[Blackout], start: datetime, end: datetime) -> list[Dark]:
    out = []
    for one in blackouts:
        for stretch in islice(Calendar([one.counts]).spans(start, end), STRETCHES):
            out.append(Dark(stretch.start, stretch.end, one.name, one.scope, query("/calendar/blackout", name=one.name)))  # fmt: skip
    return out


# ---------------------------------------------------------------------- what is asked for


def zone_of(tz: str, cookie: str) -> tuple[str, str | None]:
    """(whose clock is meant, the zone if it was named). Raises InvalidArgument for one that is named and is none."""
    named = check_text(tz.strip(), "tz")
    if named:
        zone(named, "tz")
        return named, named
    try:
        zone(cookie[:100], "tz")
    except InvalidArgument:
        return "UTC", None
    return cookie, None


def read_day(text: str, field: str) -> date:
    """A date that calendars have. Raises InvalidArgument."""
    try:
        found = date.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(field, f"is {text[:40]!r}.", "Write a date such as 2026-03-27.") from None
    if not 1971 <= found.year < 2200:
        raise InvalidArgument(field, f"is {text[:40]!r}, which is too far away.", "Choose one from 1971 to 2199.")
    return found


def _given(request: Request) -> dict[str, Any]:
    """The form of an impact as it was sent; nothing where it was not."""
    params = request.query_params
    out: dict[str, Any] = {}
    for name in ("scope", "of", "first", "last", "start", "end", "tz"):
        out[name] = check_text(params.get(name, "").strip(), name)
        if len(out[name]) > 200:
            raise InvalidArgument(name, "has more than 200 characters.")
    out["days"] = [one for one in params.getlist("days") if one in WEEKDAYS]
    return out if any(out.values()) else {}


def read_window(given: dict[str, Any]) -> Window:
    """The window that a form means. Raises InvalidArgument."""
    kind = given["scope"] or "all"
    if kind not in SCOPES:
        raise InvalidArgument("scope", f"is {kind[:40]!r}.", f"Use one of {', '.join(SCOPES)}.")
    if kind != "all" and not given["of"]:
        raise InvalidArgument("of", "is empty.", f"Name the {kind}.")
    dates = None
    if given["first"] or given["last"]:
        first = read_day(given["first"] or given["last"], "first")
        dates = [(first, read_day(given["last"], "last") if given["last"] else first)]
    return Window(
        days=given["days"] or None, start=given["start"] or "00:00", end=given["end"] or "24:00", tz=given["tz"] or "UTC", dates=dates,
        scope=kind if kind == "all" else f"{kind}:{given['of']}",
    )  # fmt: skip


def ends_after(window: Window, given: dict[str, Any], now: datetime) -> datetime:
    """Until when is looked: behind the last date, else seven days. Raises InvalidArgument for dates that are over, or too far away."""
    if window.dates is None:
        return now + SPAN
    last = read_day(given["last"] or given["first"], "last")
    stop = instant_on(last + timedelta(days=2), time(0), window.tz)
    if stop <= now:
        raise InvalidArgument("last", "lies behind us.", "A blackout that is over holds nothing.")
    if stop > now + LONGEST:
        raise InvalidArgument("last", "is more than 400 days away.", "Choose a date that is nearer.")
    return stop


def command(window: Window) -> str:
    """The command that sets a window."""
    said = window.to_json()
    parts = ["duly", "blackouts", "set", window.name or "NAME", "--tz", window.tz, "--start", window.start, "--end", window.end]  # fmt: skip
    if window.scope != "all":
        parts += ["--scope", window.scope]
    if "days" in said:
        parts += ["--days", ",".join(window.days or ())]
    for one in said.get("dates", ()):
        parts += ["--date", one if isinstance(one, str) else f"{one['from']}..{one['to']}"]
    return shlex.join(str(part) for part in parts)
