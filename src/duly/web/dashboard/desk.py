"""What every page has: who looks, the frame around it, the answer after an act, and errors that people can read.

A page is a GET that anybody with the scope may ask; what it says is made from doors. An act is a POST with a form: who may is checked, then
whether the page that was sent is one of ours (its CSRF field), then the door is asked, and a redirect leads back to a page that says what was
done. So nothing is sent twice by a reload.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import itertools
import re
import time
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import jinja2
import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse, RedirectResponse

from duly._version import __version__
from duly.accounts.account import Forbidden, Identity, Role
from duly.accounts.door import Accounts
from duly.app import Duly
from duly.kernel.errors import DulyError, InvalidArgument, NotFound
from duly.kernel.payload import MOST_ID, check_text
from duly.monitoring.redact import visible
from duly.web.api.common import whose
from duly.web.bulk import BulkActs
from duly.web.dashboard import words
from duly.web.dashboard.moved import moved, path_within, root_of
from duly.web.gate import CSRF_FIELD
from duly.web.identity import checked, identity_of
from duly.web.problems import of_error, of_validation

T = TypeVar("T")

FLASH = "duly_flash"
#: Fields of one form, and characters of what a flash says.
MOST_FIELDS, MOST_SAID = 12_000, 600
#: The longest reason.
MOST_REASON = 2_000


@dataclass(frozen=True, slots=True)
class Link:
    """A page as the navigation names it. ``whole``: it is about the whole system, so who belongs to one tenant has no use for it."""

    path: str
    label: str
    area: str
    whole: bool = False


NAVIGATION = (
    ("Work", (
        Link("/", "Overview", "jobs"), Link("/jobs", "Jobs", "jobs"), Link("/failures", "Failures", "jobs"), Link("/queues", "Queues & gate", "queues"),
        Link("/schedules", "Schedules", "schedules"), Link("/calendar", "Calendar", "schedules"), Link("/automations", "Automations", "automations"),
        Link("/workflows", "Workflows", "workflows"), Link("/publishing", "Publishing", "publishing"), Link("/rounds", "Rounds", "rounds"),
        Link("/keys", "Keys", "jobs"), Link("/outbox", "Outbox", "outbox"),
    )),
    ("Record", (Link("/audit", "Audit", "audit"), Link("/alerts", "Alerts", "alerts", whole=True))),
)  # fmt: skip


@cache
def _environment() -> jinja2.Environment:
    """What the templates share, whatever the application: each is compiled once in a process."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("duly.web.dashboard"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.globals.update(
        state=words.state, kind=words.kind_of, moment=words.when, mark=words.mark, when=words.when, ago=words.ago, countdown=words.countdown, exactly=words.exactly, span=words.span, between=words.between, count=words.count, depth=words.depth,
        plural=words.plural, document=words.document, line=words.line, problem_of=words.problem_of, sparkline=words.sparkline,
        version=__version__, csrf_field=CSRF_FIELD, query=query, relative=words.relative,
    )  # fmt: skip
    return made


class Desk:
    """The dashboard of an application."""

    def __init__(self, app: Duly, accounts: Accounts, bulk: BulkActs) -> None:
        self.app, self.accounts, self.bulk = app, accounts, bulk
        self.env = _environment()
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    # ------------------------------------------------------------------ showing

    def page(self, request: Request, template: str, title: str, /, status: int = 200, **facts: Any) -> HTMLResponse:
        """A page within the frame. ``facts``: what its template is made of."""
        who: Identity | None = getattr(request.state, "identity", None)
        facts.setdefault("now", self.now())
        refreshed = "hx-request" in request.headers
        said = None if refreshed else read_flash(request.cookies.get(FLASH))
        path = path_within(request)
        numbers = itertools.count(1)
        text = self.env.get_template(template).render(
            serial=lambda: next(numbers), who=who, title=title, flash=said, path=path, here=path + (f"?{request.url.query}" if request.url.query else ""),
            navigation=[(group, [link for link in links if who is not None and _shown(link, who)]) for group, links in NAVIGATION],
            may=lambda area, role="operator": who is not None and who.may(area, Role[role.upper()]), **facts,
        )  # fmt: skip
        answer = HTMLResponse(text, status)
        if said is not None:
            answer.delete_cookie(FLASH, path=root_of(request) or "/")
        return answer

    def now(self) -> datetime:
        self.app.open()
        return self.app.db.read(self.app.db.present)

    def done(self, request: Request, to: str, said: str, kind: str = "good") -> Response:
        """What was done is said on the page that somebody is led to, and is seen there."""
        self._kept.clear()
        answer = RedirectResponse(to, status_code=303)
        packed = base64.urlsafe_b64encode(orjson.dumps([kind, said[:MOST_SAID]])).decode()
        answer.set_cookie(FLASH, packed, max_age=60, path=root_of(request) or "/", httponly=True, samesite="lax", secure=request.url.scheme == "https")  # fmt: skip
        return answer

    def lately(self, key: Hashable, ask: Callable[[], T]) -> T:
        """What was found out a moment ago, where finding it out is slow: kept for twenty times as long as it took, so that many viewers of a
        deep backlog do not add to it."""
        kept = self._kept.get(key)
        begun = time.monotonic()
        if kept is not None and begun < kept[0]:
            found: T = kept[1]
            return found
        found = ask()
        took = time.monotonic() - begun
        if len(self._kept) > 100:
            self._kept.clear()
        if took > 0.05:
            self._kept[key] = (time.monotonic() + 20 * took, found)
        else:
            self._kept.pop(key, None)
        return found

    # ------------------------------------------------------------------ routes

    def router(self) -> APIRouter:
        return APIRouter(route_class=self._route(), include_in_schema=False, default_response_class=HTMLResponse)

    def _route(self) -> type[APIRoute]:
        desk = self

        class PageRoute(APIRoute):
            """A route whose errors are pages, or, after an act, are said on the page that it was asked from."""

            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                inner = super().get_route_handler()

                async def handle(request: Request) -> Response:
                    return moved(request, await answered(request))

                async def answered(request: Request) -> Response:
                    try:
                        return await inner(request)
                    except RequestValidationError as error:
                        told = of_validation(error)
                    except DulyError as error:
                        if request.method == "POST" and not isinstance(error, Forbidden | NotFound):
                            back = getattr(request.state, "back", "/")
                            return desk.done(request, back, visible(str(error)), "bad")
                        told = of_error(error)
                    return desk.trouble(request, told.status_code, orjson.loads(bytes(told.body)))

                return handle

        return PageRoute

    def trouble(self, request: Request, status: int, told: dict[str, Any]) -> Response:
        return self.page(request, "trouble.html", told["title"], status, told=told)


#: For how long a page looks for what no index answers: seconds.
LOOK = 0.05


def sees(area: str, role: Role = Role.VIEWER) -> Any:
    """A dependency: who looks, if they may see an area, or look as those of a role do. Raises Forbidden, HTTPException 401."""

    def ask(request: Request) -> Identity:
        return checked(identity_of(request), area, role)

    return Depends(ask)


def sees_all(area: str) -> Any:
    """The same for what is about the whole system and no tenant's."""

    def ask(request: Request) -> Identity:
        return whole(checked(identity_of(request), area, Role.VIEWER))

    return Depends(ask)


def whole(who: Identity) -> Identity:
    """Who sees every tenant. Raises Forbidden."""
    if who.tenant is not None:
        raise Forbidden(f"this is about every tenant, and {who.actor} belongs to {who.tenant!r}.")
    return who


@dataclass(frozen=True, slots=True)
class Act:
    """A form that somebody sent who may."""

    who: Identity
    fields: dict[str, list[str]]
    #: The page that it was sent from.
    back: str

    def text(self, name: str, usual: str = "") -> str:
        """A field, without blanks around it."""
        return check_text(self.fields.get(name, [usual])[-1].strip(), name)

    def many(self, name: str) -> list[str]:
        return self.fields.get(name, [])

    @property
    def reason(self) -> str:
        found = self.text("reason")
        if len(found) > MOST_REASON:
            raise InvalidArgument("reason", f"has {len(found)} characters; at most {MOST_REASON} are allowed.")
        return found


def acts(area: str, role: Role = Role.OPERATOR, everywhere: bool = False) -> Any:
    """A dependency: the form of somebody who may act so. ``everywhere``: what is done reaches every tenant. Raises Forbidden."""

    async def ask(request: Request) -> Act:
        fields = await read_form(request)
        who = identity_of(request)
        check_csrf(who, fields)
        request.state.back = back = local_path(fields.get("back", [""])[-1])
        checked(who, area, role)
        return Act(whole(who) if everywhere else who, fields, back)

    return Depends(ask)


async def read_form(request: Request) -> dict[str, list[str]]:
    """The fields of a form. Raises InvalidArgument for one that is none."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise Forbidden("this is no form of these pages.")
    try:
        pairs = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise InvalidArgument("form", "cannot be read.") from None
    out: dict[str, list[str]] = {}
    for name, value in pairs:
        out.setdefault(name, []).append(value.replace("\r\n", "\n"))
    return out


def check_csrf(who: Identity | None, fields: dict[str, list[str]]) -> None:
    """Was it sent by a page of ours? Who comes in without a login is judged by where the request comes from (the gate). Raises Forbidden."""
    if who is None or who.csrf is None:
        return
    given = fields.get(CSRF_FIELD, [""])[-1]
    if not hmac.compare_digest(given.encode(), who.csrf.encode()):
        raise Forbidden("the form does not come from this login. Load the page again, and send it once more.")


def local_path(given: str) -> str:
    """A path of this site; anything else is the overview, so that nobody is led away from here."""
    fine = given.startswith("/") and given.isprintable() and "\\" not in given and len(given) <= 2_000
    # a browser goes up at two dots, however they are written, and out of where this is mounted
    steps = re.split("[?#]", given, maxsplit=1)[0].lower().replace("%2e", ".").split("/")[1:]
    fine = fine and not {".", ".."} & set(steps) and "" not in steps[:-1]
    return given if fine else "/"


def read_flash(packed: str | None) -> tuple[str, str] | None:
    """(kind, words) of what was done a moment ago."""
    if not packed or len(packed) > 4_000:
        return None
    try:
        kind, said = orjson.loads(base64.urlsafe_b64decode(packed))
    except (ValueError, binascii.Error, TypeError):
        return None
    return (kind, said) if kind in ("good", "bad", "warn") and isinstance(said, str) else None


def query(path: str, **given: Any) -> str:
    """A path with parameters; those without a value are left out."""
    pairs = [(name, one) for name, value in given.items() for one in (value if isinstance(value, list | tuple) else [value])]  # fmt: skip
    text = urlencode([(name, str(value)) for name, value in pairs if value not in (None, "")])
    return f"{path}?{text}" if text else path


def where(who: Identity, tenant: str, what: str) -> str | None:
    """The tenant that is meant: of who belongs to one, that one. Raises NotFound for another than one's own."""
    if who.tenant is not None and tenant not in ("", who.tenant):
        raise NotFound(f"{what} of the tenant", f"{tenant!r} that you may see: you belong to {who.tenant!r}")
    return whose(who, check_text(tenant, "tenant") or None)


def number(text: str, field: str) -> int:
    """A number that a row may have. Raises InvalidArgument."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 1 <= int(text) <= MOST_ID):
        raise InvalidArgument(field, f"is {text[:40]!r}, which is no number of one.")
    return int(text)


def _shown(link: Link, who: Identity) -> bool:
    return who.may(link.area, Role.VIEWER) and not (link.whole and who.tenant is not None)
