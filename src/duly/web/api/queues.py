"""``/api/v1/queues``, ``/blackouts`` and ``/gate``: what holds work, and letting it go.

Queues, blackouts and the gate are everybody's. Who belongs to a tenant may look at them, with the counts of that tenant's jobs, and changes
none. Source: R003-8, R002-8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field, computed_field
from sqlalchemy import Connection

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.calendars.blackout import Blackout as KnownBlackout
from duly.calendars.tables import queue_scopes
from duly.jobs.ask import WORKER_GONE
from duly.jobs.queues import LONGEST_WINDOW, QueueSettings
from duly.jobs.survey import Counted, Depth, depths
from duly.kernel.errors import InvalidArgument, NotFound
from duly.kernel.gate import Rate as KnownRate
from duly.kernel.windows import Window, window_from_json
from duly.monitoring.examine import gate_facts
from duly.web.api.common import (
    ETAG,
    Act,
    Cursor,
    IfMatch,
    Instant,
    InstantIn,
    Limit,
    Name,
    Named,
    Reason,
    SecondsIn,
    Strict,
    behind,
    check_tag,
    overall,
    router,
    tag_of,
    whose,
)
from duly.web.api.common import cursor as cursor_of
from duly.web.identity import needs
from duly.web.problems import Stale, documented

Viewer: TypeAlias = Annotated[Identity, needs("queues")]
Operator: TypeAlias = Annotated[Identity, needs("queues", Role.OPERATOR)]
Admin: TypeAlias = Annotated[Identity, needs("queues", Role.ADMIN)]
#: As far as the jobs of a queue are counted.
CAP = 10_000


class Rate(BaseModel):
    count: int
    seconds: float


class Queue(BaseModel):
    """A queue: what stands in it, who serves it, what governs it. Instants are UTC."""

    name: str
    ready: int = Field(description="Jobs that could be claimed if nothing held the queue.")
    later: int = Field(description="Jobs that are not due yet.")
    running: int
    at_least: list[Counted] = Field(
        description="Numbers that were not counted to the end. With `later`, queues may be missing whose jobs are all for later."
    )
    oldest: Instant | None = Field(description="The earliest instant that one of the ready was planned for.")
    workers: int = Field(description="Living workers that serve it.")
    limit: int | None
    key_limit: int | None
    rate: Rate | None
    fair: bool
    paused_at: Instant | None
    paused_reason: str | None
    paused_by: str | None
    held_until: Instant | None
    held_reason: str | None
    blackout: str | None = Field(description="The blackouts that hold it now, by name.")
    blackout_until: Instant | None = Field(description="Null without one, and while no end is in sight.")

    @computed_field(description="Of its limits. Into If-Match of a change of them.")  # type: ignore[prop-decorator]
    @property
    def etag(self) -> str:
        rate = (self.rate.count, self.rate.seconds) if self.rate is not None else None
        return limits_tag(self.limit, self.key_limit, rate, self.fair)


def limits_tag(limit: int | None, key_limit: int | None, rate: tuple[int, float] | None, fair: bool) -> str:
    """The ETag of what limits a queue. Pauses and holds come and go without it."""
    return tag_of(limit, key_limit, None if rate is None else (rate[0], float(rate[1])), fair)


class QueuePage(BaseModel):
    queues: list[Queue]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


class RateIn(Strict):
    count: int = Field(ge=1, le=2**31 - 1)
    seconds: SecondsIn = Field(gt=0, le=LONGEST_WINDOW)


class LimitsIn(Strict):
    """What limits a queue. All of it is replaced: what is left out, or null, is no limit."""

    limit: int | None = Field(None, ge=1, le=2**31 - 1, description="Jobs at once, in all workers together.")
    key_limit: int | None = Field(None, ge=1, le=2**31 - 1, description="Jobs with the same concurrency key at once.")
    rate: RateIn | None = Field(None, description="At most so many starts in any window of so many seconds.")
    fair: bool = Field(False, description="At equal priority, tenants take turns.")
    reason: Reason = ""


class HoldIn(Strict):
    until: InstantIn
    reason: Reason = ""


class Span(BaseModel):
    """Dates from one to another, both included."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    first: str = Field(alias="from", max_length=40)
    last: str = Field(alias="to", max_length=40)


class WindowIn(Strict):
    """A window of local time. An end at or before the start is on the next day; both at 00:00 are whole days."""

    tz: Name = Field(description="The IANA zone whose clock is meant.")
    start: Annotated[str, Field(max_length=40)] = "00:00"
    end: Annotated[str, Field(max_length=40)] = "24:00"
    days: list[Annotated[str, Field(max_length=40)]] | None = Field(None, max_length=100, description="Days of the week on which it starts: wed, mon-fri. Null: every day.")  # fmt: skip
    dates: list[Annotated[str, Field(max_length=40)] | Span] | None = Field(None, max_length=1000, description="Dates on which it starts. Null: every date.")  # fmt: skip
    scope: Name = Field("all", description="What it holds: all, queue:NAME, channel:NAME or schedule:NAME.")


class BlackoutIn(WindowIn):
    enabled: bool = Field(True, description="False keeps it without holding anything.")
    reason: Reason = ""


class ImpactIn(WindowIn):
    since: InstantIn | None = Field(None, description="The beginning of the time that is looked at; else now.")
    until: InstantIn | None = Field(None, description="Its end; else seven days later, and 400 at most.")


class Blackout(BaseModel):
    """A window that holds work, under a name."""

    name: str
    scope: str
    window: dict[str, Any] | None = Field(description="Null if it cannot be read: then it holds until it is mended.")
    problem: str | None
    description: str
    enabled: bool
    version: int
    holds_from: Instant | None = Field(description="The present stretch or the next one.")
    holds_until: Instant | None
    reason: str | None
    source: str | None = Field(description="The import it came from.")
    created_at: Instant
    updated_at: Instant
    updated_by: str

    @computed_field(description=ETAG)  # type: ignore[prop-decorator]
    @property
    def etag(self) -> str:
        return tag_of(self.name, self.version, self.created_at)


class Blackouts(BaseModel):
    blackouts: list[Blackout]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


class Stretch(BaseModel):
    start: Instant
    end: Instant


class HeldJob(BaseModel):
    id: int
    task: str
    at: Instant


class HeldQueue(BaseModel):
    queue: str
    count: int
    at_least: bool = Field(description="There may be more: they were not counted to the end.")
    first: list[HeldJob]


class HeldSchedule(BaseModel):
    schedule: str
    count: int
    first: list[Instant]


class Impact(BaseModel):
    """What a window would hold, the first of each named."""

    start: Instant
    end: Instant
    stretches: list[Stretch] = Field(description="When it holds: the first hundred.")
    queues: list[HeldQueue]
    schedules: list[HeldSchedule]


class GateIn(Act):
    """Why the gate is moved, and for what."""

    scope: list[Literal["jobs", "outbox"]] | None = Field(
        None, min_length=1, description="For these alone; all when left out."
    )


class Gate(BaseModel):
    """While it is offline no worker claims anything and no relay of the outbox sends anything; running jobs go on, new ones are accepted
    and wait."""

    online: bool
    outbox: bool = Field(description="Whether the relays of Duly's own outbox may send.")
    since: Instant | None
    by: str | None
    reason: str | None


def routes(app: Duly) -> Any:
    made = router("queues")

    # ------------------------------------------------------------------ queues

    @made.get("/queues", response_model=QueuePage)
    def find(who: Viewer, limit: Limit = 100, cursor: Cursor = None) -> QueuePage:
        """List queues by name: what waits, runs and governs them. Who belongs to a tenant sees those with jobs of that tenant."""
        above = _above(cursor)
        listed = [one for one in app._read(lambda c: _queues(app, c, whose(who))) if one.name > above]
        return QueuePage(queues=listed[:limit], next=_next(listed, limit))

    @made.get("/queues/{name:any}", response_model=Queue, responses=documented(404))
    def show(name: Named, who: Viewer, response: Response) -> Queue:
        """One queue, with the ETag of its limits. 404 where nothing is set for it, nobody serves it and no job stands in it."""
        found = app._read(lambda c: _queues(app, c, whose(who), name))
        if not found:
            raise NotFound("queue", repr(name))
        response.headers["ETag"] = found[0].etag
        return found[0]

    def one(settings: QueueSettings) -> Queue:
        return app._read(lambda c: _queues(app, c, None, settings.name, settings))[0]

    @made.post("/queues/{name:any}/pause", response_model=Queue)
    def pause(name: Named, who: Operator, given: Act | None = None) -> Queue:
        """Stop claims. Running jobs go on, new ones are accepted and wait. Pausing a paused queue changes its reason."""
        overall(who, "a queue")
        return one(app.queues.pause(name, _reason(given), who.actor))

    @made.post("/queues/{name:any}/resume", response_model=Queue)
    def resume(name: Named, who: Operator, given: Act | None = None) -> Queue:
        """Let claims go on. A queue that is not paused stays as it is."""
        overall(who, "a queue")
        return one(app.queues.resume(name, who.actor, _reason(given)))

    @made.post("/queues/{name:any}/hold", response_model=Queue)
    def hold(name: Named, given: HoldIn, who: Operator) -> Queue:
        """Stop claims until an instant; it opens by itself. A hold that lasts longer stays as it is."""
        overall(who, "a queue")
        return one(app.queues.hold(name, given.until, given.reason, who.actor))

    @made.post("/queues/{name:any}/release", response_model=Queue)
    def release(name: Named, who: Operator, given: Act | None = None) -> Queue:
        """End a hold before its instant. A queue that is not held stays as it is."""
        overall(who, "a queue")
        return one(app.queues.release(name, who.actor, _reason(given)))

    @made.put("/queues/{name:any}/limits", response_model=Queue, responses=documented(412))
    def limit(name: Named, given: LimitsIn, who: Operator, response: Response, if_match: IfMatch = None) -> Queue:
        """Set what limits a queue. All of it is replaced. With ``If-Match``, only the limits that were looked at."""
        overall(who, "a queue")
        rate = KnownRate(given.rate.count, given.rate.seconds) if given.rate is not None else None

        def within(c: Connection) -> QueueSettings:
            if if_match is not None:
                s = app.engine.queues.locked(c, name)
                stands = (s.rate.count, s.rate.seconds) if s.rate is not None else None
                check_tag(if_match, limits_tag(s.limit, s.key_limit, stands, s.fair))
            return app.engine.queues.set(
                c, name, who.actor, limit=given.limit, key_limit=given.key_limit, rate=rate, fair=given.fair, reason=given.reason
            )  # fmt: skip

        found = one(app._write(within))
        response.headers["ETag"] = found.etag
        return found

    # ------------------------------------------------------------------ blackouts

    @made.get("/blackouts", response_model=Blackouts)
    def blackouts(who: Viewer, limit: Limit = 100, cursor: Cursor = None) -> Blackouts:
        """List blackouts by name: what they hold, and when next."""
        above = _above(cursor)
        listed = [b for b in sorted(app.calendars.all().values(), key=lambda b: b.name) if b.name > above]
        return Blackouts(blackouts=[_blackout(b) for b in listed[:limit]], next=_next(listed, limit))

    @made.post("/blackouts/impact", response_model=Impact)
    def impact(given: ImpactIn, who: Viewer) -> Impact:
        """Say what a window would hold, without setting it: waiting jobs by queue, and planned occurrences of schedules."""
        overall(who, "what a blackout holds")
        found = app.calendars.impact(_window(given, None), given.since, given.until)
        return Impact(
            start=found.start,
            end=found.end,
            stretches=[Stretch(start=s.start, end=s.end) for s in found.stretches[:100]],
            queues=[
                HeldQueue(
                    queue=q.queue,
                    count=q.count,
                    at_least=q.at_least,
                    first=[HeldJob(id=j.id, task=j.task, at=j.at) for j in q.first],
                )
                for q in found.queues
            ],
            schedules=[HeldSchedule(schedule=s.schedule, count=s.count, first=list(s.first)) for s in found.schedules],
        )

    @made.get("/blackouts/{name:any}", response_model=Blackout, responses=documented(404))
    def blackout(name: Named, who: Viewer, response: Response) -> Blackout:
        """One blackout, with its ETag."""
        return _tagged(app.calendars.get(name), response)

    def change(name: str, if_match: str | None, act: Any) -> KnownBlackout:
        """Do it while nobody else changes the blackout, if it is as it was looked at."""

        def within(c: Connection) -> KnownBlackout:
            if if_match is not None:
                try:
                    check_tag(if_match, _blackout(app.engine.calendars.locked(c, name)).etag)
                except NotFound:
                    raise Stale(f"there is no blackout {name!r} any more.") from None
            done: KnownBlackout = act(app.engine.calendars, c)
            return done

        return app._write(within)

    @made.put("/blackouts/{name:any}", response_model=Blackout, status_code=200, responses=documented(412))
    def put(name: Named, given: BlackoutIn, who: Operator, response: Response, if_match: IfMatch = None) -> Blackout:
        """Hold work in a window; a blackout that is there by this name is replaced. With ``If-Match``, only the version that was looked at."""
        overall(who, "a blackout")
        window = _window(given, name)
        return _tagged(
            change(name, if_match, lambda s, c: s.set(c, window, who.actor, given.reason, enabled=given.enabled)), response
        )  # fmt: skip

    @made.delete("/blackouts/{name:any}", response_model=Blackout, responses=documented(404, 412))
    def remove(
        name: Named, who: Operator, reason: Annotated[Reason, Query()] = "", if_match: IfMatch = None
    ) -> Blackout:
        """Take a blackout away, and say what it was. What it held may start at once."""
        overall(who, "a blackout")
        return _blackout(change(name, if_match, lambda s, c: s.remove(c, name, who.actor, reason)))

    def switch(name: str, on: bool, who: Identity, given: Act | None, if_match: str | None) -> KnownBlackout:
        overall(who, "a blackout")
        return change(name, if_match, lambda s, c: s.switch(c, name, on, who.actor, _reason(given)))

    @made.post("/blackouts/{name:any}/enable", response_model=Blackout, responses=documented(404, 412))
    def enable(
        name: Named, who: Operator, response: Response, given: Act | None = None, if_match: IfMatch = None
    ) -> Blackout:
        """Let a blackout hold again."""
        return _tagged(switch(name, True, who, given, if_match), response)

    @made.post("/blackouts/{name:any}/disable", response_model=Blackout, responses=documented(404, 412))
    def disable(
        name: Named, who: Operator, response: Response, given: Act | None = None, if_match: IfMatch = None
    ) -> Blackout:
        """Keep a blackout without holding anything."""
        return _tagged(switch(name, False, who, given, if_match), response)

    # ------------------------------------------------------------------ the gate

    def gate() -> Gate:
        g = app._read(lambda c: gate_facts(app.engine, c))
        return Gate(online=g.online, outbox=g.outbox, since=g.since, by=g.by or None, reason=g.reason or None)

    @made.get("/gate", response_model=Gate)
    def show_gate(who: Viewer) -> Gate:
        """The online gate: whether it is open, and who moved it last."""
        return gate()

    @made.post("/gate/online", response_model=Gate)
    def online(who: Admin, given: GateIn | None = None) -> Gate:
        """Open the gate for every worker and relay."""
        overall(who, "the gate")
        app.gate.online(_reason(given), who.actor, None if given is None else given.scope)
        return gate()

    @made.post("/gate/offline", response_model=Gate)
    def offline(who: Admin, given: GateIn | None = None) -> Gate:
        """Close the gate for every worker and relay. Running jobs go on; new jobs and messages are accepted and wait."""
        overall(who, "the gate")
        app.gate.offline(_reason(given), who.actor, None if given is None else given.scope)
        return gate()

    return made


def _above(given: str | None) -> str:
    """The name behind which a page begins."""
    found = behind(given, str)
    return "" if found is None else str(found[0])


def _next(listed: Sequence[Any], limit: int) -> str | None:
    return cursor_of(listed[limit - 1].name) if len(listed) > limit else None


def _reason(given: Act | None) -> str:
    return given.reason if given is not None else ""


def _queues(
    app: Duly, c: Connection, tenant: str | None, name: str | None = None, settings: QueueSettings | None = None
) -> list[Queue]:  # fmt: skip
    """Queues by name: of a tenant, those with its jobs; else those that something is known of. ``settings``: of one that is shown anyway."""
    engine, now = app.engine, app.db.present(c)
    stands = {one.queue: one for one in depths(c, now, tenant, name, CAP)}
    known = {settings.name: settings} if settings is not None else {s.name: s for s in engine.queues.all(c).values()}
    served = Counter(q for w in engine.reader.live_workers(c, WORKER_GONE) for q in w["queues"])
    calendar = engine.calendars.calendar(c)
    names = set(stands) if tenant is not None else {*stands, *known, *served}
    out = []
    for one in sorted(names if name is None else names & {name}):
        s, d = known.get(one, QueueSettings(one)), stands.get(one, Depth(one))
        covered = calendar.applying_to(*queue_scopes(one)).covering(now)
        held = s.is_held(now)
        out.append(
            Queue(
                name=one, ready=d.ready, later=d.later, running=d.running, at_least=sorted(d.at_least), oldest=d.oldest, workers=served[one],
                limit=s.limit, key_limit=s.key_limit, rate=Rate(count=s.rate.count, seconds=s.rate.seconds) if s.rate else None, fair=s.fair,
                paused_at=s.paused_at, paused_reason=s.paused_reason, paused_by=s.paused_by,
                held_until=s.held_until if held else None, held_reason=s.held_reason if held else None,
                blackout=", ".join(covered.names) if covered else None, blackout_until=covered.until if covered else None,
            )
        )  # fmt: skip
    return out


def _window(given: WindowIn, name: str | None) -> Window:
    said = given.model_dump(include={"tz", "start", "end", "days", "dates", "scope"}, by_alias=True, exclude_none=True)
    try:
        return window_from_json({**said, "name": name}, "")
    except InvalidArgument as error:
        raise InvalidArgument(error.field.removeprefix("."), error.problem, error.remedy) from None


def _blackout(known: KnownBlackout) -> Blackout:
    return Blackout(**known.to_json())


def _tagged(known: KnownBlackout, response: Response) -> Blackout:
    found = _blackout(known)
    response.headers["ETag"] = found.etag
    return found
