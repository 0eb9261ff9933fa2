"""What the routers of ``/api/v1`` share: kinds of values, pages and their cursors, versions and their tags, whose things one sees."""

from __future__ import annotations

import base64
import binascii
import hashlib
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Header, Path, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from starlette.convertors import Convertor, register_url_convertor

from duly.accounts.account import Forbidden, Identity
from duly.kernel.duration import REMEDY, parse_duration
from duly.kernel.errors import InvalidArgument, NotFound
from duly.kernel.payload import MOST_ID, check_name, check_text
from duly.kernel.recurrence.reading import read_instant
from duly.web.problems import Stale, StrictRoute, documented

T = TypeVar("T")

PREFIX = "/api/v1"


class AnyName(Convertor[str]):
    """What stands for a name in a path, ``{name:any}``: everything, so that one with a line break is refused as a name and not lost as a path."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", AnyName())


#: An instant that is given: with its zone; one without is refused, not guessed.
InstantIn = Annotated[
    datetime,
    BeforeValidator(lambda value: _instant(value)),
    WithJsonSchema({"type": "string", "format": "date-time", "description": "With a time zone."}),
]
#: An instant that is told: UTC.
Instant = Annotated[
    datetime,
    PlainSerializer(
        lambda value: value.astimezone(UTC).isoformat().replace("+00:00", "Z"), return_type=str, when_used="json"
    ),
]
#: A duration that is given, in seconds: a number of them, or a text such as ``5m``.
SecondsIn = Annotated[
    float,
    BeforeValidator(lambda value: _seconds(value)),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}], "description": "Seconds, or a text such as 5m, 1h30m or PT5M."}),
]  # fmt: skip
#: Text that a database can store.
Words = Annotated[str, AfterValidator(lambda value: check_text(value, "text"))]
Name = Annotated[Words, Field(min_length=1, max_length=200)]
Reason = Annotated[Words, Field(max_length=2000, description="Why, for those who look at it later.")]
Ident = Annotated[int, Path(ge=1, le=MOST_ID)]
#: A name in the path.
Named = Annotated[str, Path(min_length=1, max_length=200), AfterValidator(lambda value: check_name(value, "name"))]

IdentIn = Annotated[int, Field(ge=1, le=MOST_ID)]
#: A class of errors, as the matrix of failures tells them apart. Blanks are part of it.
ErrorIn = Annotated[Words, Field(min_length=1, max_length=500, description="The class of the error, such as `Timeout`; `(none)`: one that names none. Without a status: of jobs that failed.")]  # fmt: skip
Limit = Annotated[int, Query(ge=1, le=500, description="At most so many.")]
Cursor = Annotated[str | None, Query(max_length=500, description="`next` of the page before.")]
#: For those who see every tenant: only this one's. Others see their own, and nothing else.
TenantIn = Annotated[
    Name | None, Query(description="Only of this tenant. Who belongs to one need not name it, and finds no other: 404.")
]
#: Of an answer's body, as of its header.
ETAG = "Into If-Match of a change of it."
IfMatch = Annotated[str | None, Header(description="The ETag that was looked at: 412 where it is another by now.")]


class Strict(BaseModel):
    """A body in which nothing is guessed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Act(Strict):
    """Why something is done."""

    reason: Reason = ""


def router(area: str, *statuses: int) -> APIRouter:
    """A router under ``/api/v1/…`` whose errors are problems (RFC 9457)."""
    return APIRouter(prefix=PREFIX, tags=[area], route_class=StrictRoute, responses=documented(401, 403, 422, 503, *statuses))  # fmt: skip


def whose(who: Identity, tenant: str | None = None) -> str | None:
    """Whose things are meant: of who belongs to a tenant, that one's; None is everybody's.

    Raises NotFound for another tenant than one's own: as far as one can tell, there is none of that name. (One's own instead of it would be
    worse: an act would hit what was not meant.)
    """
    if who.tenant is not None and tenant not in (None, who.tenant):
        raise NotFound("tenant", repr(tenant))
    return who.tenant if who.tenant is not None else tenant


def for_whom(who: Identity, tenant: str | None, usual: str) -> str:
    """Whose a thing is that is made. Raises InvalidArgument for another tenant than one's own."""
    if who.tenant is not None and tenant not in (None, who.tenant):
        raise InvalidArgument("tenant", f"is {tenant!r}, and you act for {who.tenant!r}.", "Leave it out.")
    return who.tenant or tenant or usual


def overall(who: Identity, what: str) -> None:
    """Raise Forbidden for who belongs to a tenant: ``what`` is everybody's, such as ``a queue``."""
    if who.tenant is not None:
        raise Forbidden(f"{what} is everybody's, and {who.actor} belongs to the tenant {who.tenant!r}.")


def cursor(*values: Any) -> str:
    """The cursor of the page behind: opaque, so that what is in it may change."""
    return base64.urlsafe_b64encode(orjson.dumps(values)).decode().rstrip("=")


def below(given: str | None) -> int | None:
    """The id that a cursor goes on from. Raises InvalidArgument."""
    found = behind(given, int)
    if found is None:
        return None
    if not 1 <= found[0] <= MOST_ID:
        raise not_given_out()
    ident: int = found[0]
    return ident


def behind(given: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """What a cursor of values of these kinds goes on from. Raises InvalidArgument."""
    if given is None:
        return None
    try:
        found = orjson.loads(base64.b64decode(given + "=" * (-len(given) % 4), b"-_", validate=True))
    except (ValueError, binascii.Error):
        raise not_given_out() from None
    if (
        not isinstance(found, list)
        or [type(value) for value in found] != list(kinds)
        or any("\x00" in str(v) for v in found)
    ):
        raise not_given_out()
    return tuple(found)


def not_given_out() -> InvalidArgument:
    """What a cursor is refused with."""
    return InvalidArgument("cursor", "is none that was given out.", "Take `next` of the page before, or leave it out.")


def page(found: Sequence[T], limit: int, ident: Callable[[T], int]) -> tuple[Sequence[T], str | None]:
    """(what goes on this page, the cursor of the next) of up to limit + 1 things."""
    if len(found) <= limit:
        return found, None
    kept = found[:limit]
    return kept, cursor(ident(kept[-1]))


#: For how long an answer looks for what no index answers: seconds.
LOOK = 0.5


def tag(version: object) -> str:
    """The ETag of a version."""
    return f'"v{version}"'


def tag_of(*fields: object) -> str:
    """The ETag of what has no version of its own, or may be made anew under its name: of these fields of it, in this order."""
    return tag(hashlib.sha256(orjson.dumps(fields)).hexdigest()[:16])


def check_tag(given: str | None, current: str) -> None:
    """Raise Stale where If-Match names another ETag than the current one."""
    if given is None or given.strip() == "*":
        return
    if current not in [one.strip().removeprefix("W/") for one in given.split(",")]:
        raise Stale(f"it was changed meanwhile: it is at {current} by now. Look at it again.")


def at_first_use(make: Callable[[], T]) -> Callable[[], T]:
    """A function that makes something when it is called first, once, and gives the same from then on."""
    lock, made = threading.Lock(), list[T]()

    def give() -> T:
        with lock:
            if not made:
                made.append(make())
            return made[0]

    return give


def number_or_name(text: str) -> Any:
    """What a path names a thing by: its number (int), or its name (str). One of digits alone is a number, as far as numbers go."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    return number if 0 < number <= MOST_ID else text


def name_in(value: str, field: str) -> str:
    check_name(value, field)
    return value


def _seconds(value: object) -> float:
    try:
        return parse_duration(value).total_seconds()
    except ValueError:
        raise ValueError(f"is no duration. {REMEDY}") from None


def _instant(value: object) -> datetime:
    try:
        return read_instant(value, "instant")
    except InvalidArgument as error:
        remedy = "Write an instant with its offset, such as 2026-07-27T09:00:00Z."
        raise InvalidArgument("instant", error.problem, remedy) from None
