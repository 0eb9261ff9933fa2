"""``/api/v1/keys``: the keys of idempotent functions and HTTP requests that are kept in the database, and forgetting one.

Nothing that a call was given or returned is shown. Source: R004-8.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Path, Query, Response
from pydantic import AfterValidator, BaseModel, Field

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.idempotency.keys import Key as Known
from duly.kernel.payload import read_duration
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


def _tag(key: Known) -> str:
    return tag_of(key.tenant, key.key, key.token, key.state.value)


def _shown(key: Known) -> Key:
    return Key(**{name: getattr(key, name) for name in Key.model_fields if name != "state"}, state=key.state.value)
