"""The application: the API, and behind the same gate the dashboard and the REST door of publications."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from typing import Any

from fastapi import Depends, FastAPI, Request, Security
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from duly._version import __version__
from duly.accounts.account import Forbidden, Identity, Role
from duly.accounts.door import Accounts
from duly.app import Duly
from duly.idempotency.http import IdempotencyMiddleware
from duly.kernel.errors import InvalidArgument
from duly.web.api import ROUTERS, bulk
from duly.web.bulk import BulkActs
from duly.web.dashboard import mount
from duly.web.gate import Gate, path_of
from duly.web.identity import checked, identity_of
from duly.web.problems import documented, problem
from duly.web.publishing import ACTING, router

#: The shortest token of the setting web_token, in characters.
SHORTEST = 16
#: Says in the description that routes take a token; ``Gate`` looks at it.
BEARER = (Security(HTTPBearer(auto_error=False)),)


def create(
    app: Duly, token: str = "", *, tenant: str | None = None, most: int | None = None, local: bool = False, hosts: Iterable[str] = ()
) -> FastAPI:  # fmt: skip
    """The application. Who comes in needs a token or a login of ``Accounts(app)``.

    ``token``: one that needs no account and may do everything, at least 16 characters of ASCII. ``local``: as long as there is no account, and
    without a token, everybody is let in; only for an address that nobody else can reach. ``tenant``: whose publications the publishing door
    shows. ``most``: the longest body in bytes, else four times the setting ``max_payload``. ``hosts``: more names of a local door.
    Raises InvalidArgument.
    """
    if token and (len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token):
        raise InvalidArgument("web_token", f"is not a token of at least {SHORTEST} printable ASCII characters.", "Make one with `openssl rand -hex 32`.")  # fmt: skip
    accounts = Accounts(app)
    made = FastAPI(title="Duly", version=__version__, docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    acts = BulkActs(app, accounts)
    made.include_router(bulk.routes(app, acts), dependencies=BEARER)  # before /jobs/{id}
    for routes in ROUTERS:
        made.include_router(routes(app), dependencies=BEARER)
    published = tenant or app.settings.tenant
    made.include_router(
        router(app, tenant=tenant), dependencies=[*BEARER, Depends(_publishes(published))], responses=documented(401, 403, 413)
    )  # fmt: skip
    mount(made, app, accounts, acts)
    made.add_exception_handler(HTTPException, _told)
    made.add_middleware(Once, store=lambda: app.reservations, name="api", tenant=_tenant_of, identity=_caller_of)  # type: ignore[arg-type]  # what it returns is an application, whatever its class
    most = most or 4 * app.settings.max_payload
    made.add_middleware(Gate, accounts=accounts, most=most, is_local=_WithoutAccounts(accounts, local, token), token=token, hosts=hosts)  # fmt: skip
    return made


@cache
def _publishes(tenant: str) -> Callable[[Request], Awaitable[Identity]]:
    """Publications of one tenant are shown here: to who sees that one."""

    async def ask(request: Request) -> Identity:
        who = identity_of(request)
        role = Role.VIEWER if request.method == "GET" else Role.OPERATOR
        if who.tenant not in (None, tenant):
            raise HTTPException(404, "There are no publications here.")
        if not checked(who, "publishing", role).sees_payloads:
            raise Forbidden(f"posts are shown whole here, and {who.actor} may not see payloads.")
        ACTING.set(who.actor)
        return who

    return ask


class Once:
    """The ``Idempotency-Key`` header, but where an answer holds a secret: of those none is kept."""

    def __init__(self, app: ASGIApp, **options: Any) -> None:
        self.app, self.once = app, IdempotencyMiddleware(app, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        secret = scope["type"] == "http" and not path_of(scope).startswith(("/api/", "/fp-publisher/"))
        secret = secret or (scope["type"] == "http" and path_of(scope).startswith(("/api/v1/tokens", "/api/v1/users")))
        await (self.app if secret else self.once)(scope, receive, send)


def _tenant_of(scope: object) -> str:
    who = _identity(scope)
    return "everybody" if who is None or who.tenant is None else f"tenant {who.tenant}"


def _caller_of(scope: object) -> str | None:
    """Who a recorded answer belongs to: nobody else, and not the same one with fewer rights, is given it."""
    who = _identity(scope)
    return None if who is None else f"{who.key} {who.role.word} {' '.join(sorted(who.scopes))}"


def _identity(scope: object) -> Identity | None:
    assert isinstance(scope, dict)
    found: Identity | None = scope.get("state", {}).get("identity")
    return found


class _WithoutAccounts:
    """Is everybody let in? As long as nobody can log in and no token was given out; once there is an account, never again."""

    def __init__(self, accounts: Accounts, local: bool, token: str) -> None:
        self.accounts, self.open = accounts, local and not token

    def __call__(self) -> bool:
        if self.open and self.accounts.exist():
            self.open = False
        return self.open


def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, str(error.detail), headers=error.headers)
