"""``/api/v1/keys``: the keys of idempotent functions and HTTP requests that are kept in the database, and forgetting one; ``/api/v1/keys/jobs``:
the same for keys that jobs hold.

Nothing that a call was given or returned is shown. Source: R004-8.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Path, Query, Response
from pydantic import AfterValidator, BaseModel, Field

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.idempotency.keys import Key as Known
from duly.jobs.keys import JobKey as KnownOfJob
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import read_duration
from duly.kernel.rooms import is_of_a_room
from duly.kernel.rooms import whose as whose_task
from duly.web.api.common import (
    Cursor,
    IfMatch,
    Instant,
    Limit,
    Name,
    Reason,
    SecondsIn,
    Strict,
    TenantIn,
    check_tag,
    name_in,
    router,
    tag_of,
    whose,
)
from duly.web.identity import needs
from duly.web.problems import documented

Viewer: TypeAlias = Annotated[Identity, needs("jobs")]
Operator: TypeAlias = Annotated[Identity, needs("jobs", Role.OPERATOR)]
State = Literal["in_progress", "succeeded", "failed"]
Which = Annotated[str, Path(min_length=1, max_length=500), AfterValidator(lambda value: name_in(value, "key"))]


class Key(BaseModel):
    """A key as it stands."""

    tenant: str
    key: str = Field(description="A hash: nothing that a call was given is in it.")
    task: str
    state: State
    owner: str = Field(description="The job, the Celery task or the call that has it, or had it.")
    attempts: int
    since: Instant
    seen_at: Instant = Field(description="The last sign of life.")
    locked_until: Instant | None = Field(description="Of a key in progress: until when its owner keeps others out.")
    kept_until: Instant
    result_size: int | None = Field(description="Bytes of the recorded result.")


class KeyPage(BaseModel):
    keys: list[Key]
    next: str | None = Field(description="The cursor of the next page; null on the last one.")


class ForgetKeyIn(Strict):
    reason: Annotated[Reason, Field(min_length=1)]
    force: bool = Field(
        False, description="Also one in progress whose owner may be alive: the body may then run twice at once."
    )


class JobKey(BaseModel):
    """A key that a job was enqueued with, and that is taken."""

    tenant: str
    queue: str
    key: str
    job_id: int
    task: str | None = Field(description="Null where the job is gone and its task was not noted.")
    status: str | None = Field(description="The status of the job, or its last one.")
    pruned: bool = Field(description="The job is gone; the key is remembered.")
    scope: Literal["start", "done", "forever", "until"] = Field(description="What frees the key.")
    until: Instant | None
    since: Instant


class JobKeyPage(BaseModel):
    keys: list[JobKey]
    next: str | None = Field(description="The cursor of the next page; null on the last one.")


class ForgetJobKeyIn(Strict):
    key: Annotated[str, Field(min_length=1, max_length=500)]
    queue: Name = "default"
    reason: Annotated[Reason, Field(min_length=1)]
    job_id: int | None = Field(None, description="Only while this job holds the key.")
    force: bool = Field(
        False, description="Also the key of a job that has not ended: a second job may then run beside it."
    )


def routes(app: Duly) -> Any:
    made = router("jobs")

    @made.get("/keys", response_model=KeyPage)
    def find_keys(
        who: Viewer,
        task: Annotated[Name | None, Query()] = None,
        state: Annotated[State | None, Query()] = None,
        older_than: Annotated[SecondsIn | None, Query(description="Nothing was heard of it for so long.")] = None,
        tenant: TenantIn = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> KeyPage:
        """List the keys of idempotent functions and requests, in the order of tenant and key."""
        found, following = app.keys.find(
            limit, cursor, tenant=whose(who, tenant), task=task, state=state,
            older_than=None if older_than is None else read_duration(older_than, "older_than"),
        )  # fmt: skip
        return KeyPage(keys=[_shown(one) for one in found], next=following)

    # before those of one key: every key of a function is a hash, and none is called jobs
    @made.get("/keys/jobs", response_model=JobKeyPage)
    def find_job_keys(
        who: Viewer,
        queue: Annotated[Name | None, Query()] = None,
        task: Annotated[Name | None, Query()] = None,
        key: Annotated[str | None, Query(max_length=500)] = None,
        tenant: TenantIn = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> JobKeyPage:
        """List the keys that jobs hold, newest job first. With ``task``, a page may hold fewer keys than ``limit`` and others behind it."""
        found, following = app.keys.jobs.find(limit, cursor, tenant=whose(who, tenant), queue=queue, task=task, key=key)
        return JobKeyPage(keys=[_of_job(one) for one in found], next=following)

    @made.post("/keys/jobs/forget", response_model=JobKey, responses=documented(404, 409))
    def forget_job_key(given: ForgetJobKeyIn, who: Operator, tenant: TenantIn = None) -> JobKey:
        """Forget a key that a job holds, so that the next enqueue under it makes a job. Answers how it stood.

        Keys of jobs that a room of Duly makes itself, such as publications, are refused here: ``duly keys forget --jobs`` forgets them.
        """
        at = whose(who, tenant) or app.settings.tenant
        held = app.keys.jobs.get(given.key, given.queue, at)
        check_key_of(held)
        return _of_job(
            app.keys.jobs.forget(
                given.key, given.reason, who.actor, queue=given.queue, tenant=at, force=given.force,
                job_id=held.job_id if given.job_id is None else given.job_id,
            )
        )  # fmt: skip

    @made.get("/keys/{key}", response_model=Key, responses=documented(404))
    def show_key(key: Which, who: Viewer, response: Response, tenant: TenantIn = None) -> Key:
        """One key: who has it or had it, since when, and until when."""
        found = app.keys.get(key, whose(who, tenant) or app.settings.tenant)
        response.headers["ETag"] = _tag(found)
        return _shown(found)

    @made.post("/keys/{key}/forget", response_model=Key, responses=documented(404, 409, 412))
    def forget_key(
        key: Which, given: ForgetKeyIn, who: Operator, tenant: TenantIn = None, if_match: IfMatch = None
    ) -> Key:
        """Forget a key, so that the next call runs the body again and repeats its effects. Answers how it stood."""
        at, token = whose(who, tenant) or app.settings.tenant, None
        if if_match is not None:
            found = app.keys.get(key, at)
            check_tag(if_match, _tag(found))
            token = found.token
        return _shown(app.keys.forget(key, given.reason, who.actor, at, given.force, token))

    return made


def check_key_of(held: KnownOfJob) -> None:
    """May somebody who acts on jobs forget this key? Raises InvalidArgument for one of a room: its work reaches further than jobs."""
    if held.task is not None and is_of_a_room(held.task):
        raise InvalidArgument(
            "key", f"belongs to a job of {whose_task(held.task)}.", "Forget it with `duly keys forget --jobs`."
        )


def _of_job(key: KnownOfJob) -> JobKey:
    return JobKey(**{name: getattr(key, name) for name in JobKey.model_fields})


def _tag(key: Known) -> str:
    return tag_of(key.tenant, key.key, key.token, key.state.value)


def _shown(key: Known) -> Key:
    return Key(**{name: getattr(key, name) for name in Key.model_fields if name != "state"}, state=key.state.value)
