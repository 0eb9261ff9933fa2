"""``/api/v1/jobs/cancel``, ``/jobs/replay`` and ``/jobs/acts``: acting on many jobs by filter, at once or so that it can be undone.

An act that can be undone lives in the process that was asked (``web/bulk.py``); the pages show it, too, to who asked for it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Path, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from duly.accounts.account import Identity
from duly.app import Duly
from duly.jobs.filter import JobFilter, of_error
from duly.kernel.errors import InvalidArgument, WrongState
from duly.web.api.common import (
    Act,
    Cursor,
    ErrorIn,
    IdentIn,
    Instant,
    InstantIn,
    Limit,
    Name,
    Reason,
    SecondsIn,
    Strict,
    Words,
    below,
    page,
    router,
    whose,
)
from duly.web.api.jobs import Operator, Status, Viewer
from duly.web.bulk import MOST_JOBS, BulkAct, BulkActs
from duly.web.problems import documented

#: The longest time in which an act can be undone, in seconds.
LONGEST = 300
NamedAct: TypeAlias = Annotated[Words, Path(min_length=1, max_length=40, description="Its `id`.")]


class JobsFilterIn(Strict):
    """Which jobs. Everything given must hold, and something besides the status must be given."""

    status: list[Status] = Field(default=[])
    queue: Name | None = None
    task: Name | None = None
    key: Words | None = None
    parent_id: IdentIn | None = None
    error: ErrorIn | None = None
    since: InstantIn | None = None
    before: InstantIn | None = None
    ids: list[IdentIn] = Field(default=[], max_length=1000)
    tenant: Name | None = None


class JobsBulkIn(Strict):
    filter: JobsFilterIn
    reason: Reason = ""
    limit: int = Field(1000, ge=1, le=MOST_JOBS, description="At most so many, the oldest first.")
    force: bool = Field(
        False,
        description="Replay those that succeeded, too: their effects are repeated, those of idempotent tasks too.",
    )
    dry_run: bool = Field(False, description="Only say which: nothing is done.")
    undo_seconds: SecondsIn = Field(
        0, ge=0, le=LONGEST,
        description="Begin only so many seconds later, on the jobs that fit now: until then it can be undone. 0: at once. Where none fits there is nothing to undo, and the answer is the usual one.",
    )  # fmt: skip


class Acted(BaseModel):
    done: list[int]
    refused: dict[str, str]
    dry_run: bool


class PlannedAct(BaseModel):
    """An act on many jobs that can be undone until it begins. It is there for who asked for it, in the process that was asked."""

    id: str
    event: Literal["cancel", "replay"]
    state: Literal["waits", "runs", "done", "undone", "failed"] = Field(
        description="waits: nothing is done yet, and it can be undone. failed: `problem` says why; what was done by then stays done."
    )
    count: int = Field(description="Jobs that it is about.")
    begins_at: Instant = Field(description="When it begins, or began.")
    done: int = Field(description="Jobs that it has acted on.")
    refused: dict[str, str] = Field(description="Jobs that could not be acted on, by their numbers, and why.")
    problem: str | None
    reason: str


class PlannedActs(BaseModel):
    acts: list[PlannedAct]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


#: What an act on many answers besides ``Acted``.
PLANNED: dict[int | str, dict[str, Any]] = {
    202: {"model": PlannedAct, "description": "It begins later, and can be undone until then.", "headers": {"Location": {"description": "The act.", "schema": {"type": "string"}}}},
    **documented(429),
}  # fmt: skip


def routes(app: Duly, known: BulkActs) -> Any:
    made = router("jobs")

    def do(
        event: Literal["cancel", "replay"], given: JobsBulkIn, who: Identity, request: Request
    ) -> Acted | JSONResponse:
        app.open()
        meant = _meant(event, given, who)
        found = app.jobs.admin.matching(meant, event, given.limit, given.force)
        if given.dry_run:
            return Acted(done=found, refused={}, dry_run=True)
        if given.undo_seconds and found:
            name = known.begin(who, event, found, given.reason, given.force, window=given.undo_seconds, fits=meant)
            planned = shown(known.get(name, who.key)).model_dump(mode="json")
            return JSONResponse(planned, 202, {"Location": request.url_for("duly_act", act=name).path})
        bulk = app.jobs.admin.act_on(event, found, who.actor, given.reason, whose(who), given.force, meant)
        return Acted(done=bulk.done, refused={str(one): why for one, why in bulk.refused.items()}, dry_run=False)

    @made.post("/jobs/cancel", response_model=Acted, responses=PLANNED)
    def cancel_many(given: JobsBulkIn, who: Operator, request: Request) -> Any:
        """Cancel the jobs that fit a filter. With `undo_seconds`, 202 with an act that begins later and can be undone until then."""
        return do("cancel", given, who, request)

    @made.post("/jobs/replay", response_model=Acted, responses=PLANNED)
    def replay_many(given: JobsBulkIn, who: Operator, request: Request) -> Any:
        """Replay the ended jobs that fit a filter. With `undo_seconds`, 202 with an act that begins later and can be undone until then."""
        return do("replay", given, who, request)

    @made.get("/jobs/acts", response_model=PlannedActs)
    def acts(who: Viewer, limit: Limit = 50, cursor: Cursor = None) -> PlannedActs:
        """Your own acts on many jobs, the newest first: those that wait or run, and for ten minutes those that are over, twenty at the most. They are
        known to the process that was asked, and to no other."""
        under = below(cursor)
        found = [one for one in known.of(who.key) if under is None or one.number < under]
        kept, following = page(found, limit, lambda one: one.number)
        return PlannedActs(acts=[shown(one) for one in kept], next=following)

    @made.get("/jobs/acts/{act}", response_model=PlannedAct, responses=documented(404), name="duly_act")
    def act(act: NamedAct, who: Viewer) -> PlannedAct:
        """How far an act of yours on many jobs is. 404 for somebody else's, and ten minutes after it was over. It lives in the process that was
        asked: where that ends before it has begun, nothing is done; what it has done by then stays done."""
        return shown(known.get(act, who.key))

    @made.post("/jobs/acts/{act}/undo", response_model=PlannedAct, responses=documented(404, 409))
    def undo(act: NamedAct, who: Operator, given: Act | None = None) -> PlannedAct:
        """Have an act not done. No job is touched then. One that is undone stays so; 409 where it has begun, or is over."""
        found = known.undo(act, who.key, given.reason if given else "")
        if found.state != "undone":
            stands = {"runs": "begun already", "done": "done"}.get(found.state, "over")
            raise WrongState(f"act {found.name}", stands, "be undone", ("waits",))
        return shown(found)

    return made


def shown(act: BulkAct) -> PlannedAct:
    return PlannedAct(
        id=act.name, event="cancel" if act.event == "cancel" else "replay", state=act.state, count=act.count, begins_at=act.planned_for, done=act.done,  # type: ignore[arg-type]
        refused={str(ident): why for ident, why in list(act.refused.items())}, problem=act.problem or None, reason=act.reason,
    )  # fmt: skip


def _meant(event: str, given: JobsBulkIn, who: Identity) -> JobFilter:
    """Which jobs. Raises InvalidArgument where that is nearly everything."""
    said = given.filter.model_dump(exclude={"status", "tenant"}, exclude_defaults=True)
    if not said:
        raise InvalidArgument(
            "filter", "names nothing besides a status.", "Name a queue, a task, an error, a time or ids."
        )
    wanted = JobFilter(tenant=whose(who, given.filter.tenant), status=tuple(given.filter.status), **said)
    return of_error(wanted) if event == "replay" else wanted
