"""Before any route: how long a body may be, who asks, whether a browser was tricked into it, and what every answer carries.

Who asks is found out once, from ``Authorization: Bearer …`` or the login cookie, and stands in ``scope["state"]["identity"]``; what they may is
asked by each route (``identity.needs``). A *local* door (an embedded database on loopback, and no account yet) lets everybody in as ``local``,
but for pages of other origins: their requests carry another ``Host``, ``Origin`` or ``Sec-Fetch-Site``. Source: ADR 0029, X8.
"""

from __future__ import annotations

import hmac
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duly.accounts.account import Identity, Role
from duly.accounts.door import Accounts
from duly.kernel.errors import DulyError
from duly.web.problems import of_error, problem

COOKIE, CSRF_HEADER, CSRF_FIELD = "duly_login", "x-csrf-token", "csrf"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOCAL = Identity("local", Role.ADMIN, None, key="local")
#: Cookies of one name that are looked at.
MOST_COOKIES = 4
#: Headers that a request has once; and those by which a proxy says that it is one.
ALONE = (b"host", b"origin", b"authorization", b"sec-fetch-site", b"content-length")
FORWARDED = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip")
#: Where nobody has to be known: whether the process lives, and the pages by which one logs in.
PROBES = ("/livez", "/readyz")
OPEN = (*PROBES, "/login", "/static/", "/api/v1/mail/webhooks/")  # webhooks bring a signature

#: Scripts, styles and pictures of this origin, and nothing else: what is stored cannot run (case B081).
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


class Gate:
    """ASGI middleware around the whole application.

    ``is_local``: asked for requests without a token or login: is this a door without accounts? ``token``: one more token, of the setting
    ``web_token``, that may do everything. ``most``: the longest body in bytes.
    """

    def __init__(
        self, app: ASGIApp, accounts: Accounts, *, most: int, is_local: Callable[[], bool], token: str = "", hosts: Iterable[str] = ()
    ) -> None:  # fmt: skip
        self.app, self.accounts, self.most, self.is_local = app, accounts, most, is_local
        self._token = token.encode()
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        names = [name.lower() for name, _ in scope["headers"]]
        headers = {name.lower(): value for name, value in scope["headers"]}
        # a server that speaks HTTP/2 may hand cookies on one by one
        headers[b"cookie"] = b"; ".join(value for name, value in scope["headers"] if name.lower() == b"cookie")
        doubled = next((name for name in ALONE if names.count(name) > 1), None)
        carried = _dressed(scope, send)
        if doubled is not None:
            await problem(400, f"The header {doubled.decode()} is there more than once.")(scope, receive, carried)
            return
        try:
            identity = await run_in_threadpool(self._who, headers)
        except DulyError as error:
            if path_of(scope) not in PROBES:  # which say themselves that the database is away
                await of_error(error)(scope, receive, carried)
                return
            identity = None
        path = path_of(scope)
        if identity is None and not path.startswith(OPEN):
            await self._stranger(scope, headers)(scope, receive, carried)
            return
        scope.setdefault("state", {})["identity"] = identity
        refused = self._forged(scope, headers, identity)
        if refused is not None:
            await problem(403, refused)(scope, receive, carried)
            return
        await self._bounded(scope, receive, carried, headers)

    # ------------------------------------------------------------------ who

    def _who(self, headers: dict[bytes, bytes]) -> Identity | None:
        """Who asks. None: nobody that is known. A token that is wrong is not mended by a cookie that is right."""
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind:
            token = given.strip()
            if kind.lower() != b"bearer":
                return None
            if self._token and hmac.compare_digest(token, self._token):
                return Identity("token:web_token", Role.ADMIN, None, key="web_token")
            return self.accounts.by_token(token.decode("latin-1"))
        for cookie in read_cookies(headers.get(b"cookie", b"")):
            found = self.accounts.by_login(cookie)
            if found is not None:
                return found
        # what comes through a proxy comes from who knows where
        direct = not any(name in headers for name in FORWARDED)
        return LOCAL if direct and self.is_local() else None

    def _stranger(self, scope: Scope, headers: dict[bytes, bytes]) -> Any:
        """The answer to somebody unknown: programs are told, browsers are led to the login."""
        wants_page = scope["method"] in ("GET", "HEAD") and b"text/html" in headers.get(b"accept", b"")
        if wants_page and not path_of(scope).startswith(("/api/", "/fp-publisher/")):
            from urllib.parse import quote

            from starlette.responses import RedirectResponse

            root = quote(scope.get("root_path", ""), safe="/~")
            asked = path_of(scope) + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            return RedirectResponse(f"{root}/login?next={quote(asked, safe='')}", status_code=303)
        said = "A token is needed: Authorization: Bearer …"
        return problem(401, said, headers={"WWW-Authenticate": 'Bearer realm="duly"'})

    # ------------------------------------------------------------------ a browser that was tricked

    def _forged(self, scope: Scope, headers: dict[bytes, bytes], identity: Identity | None) -> str | None:
        """Why a request is not believed to be meant; None where it is. A token in a header is never sent by a browser on its own."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if identity is LOCAL and _name(host) not in ("localhost", "127.0.0.1", "::1", *self._hosts):
            return "This door is open to this machine only, under the names localhost, 127.0.0.1 and ::1."
        by_token = identity is not None and identity is not LOCAL and identity.csrf is None
        if scope["method"] in SAFE or by_token:
            return None
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in (b"same-origin", b"none"):
            return "The request comes from a page of another site."
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower() != f"{scope.get('scheme', 'http')}://{host}":
            return "The request comes from a page of another origin."
        # forms of the pages carry it in their body, and the pages look for it there
        by_header = path_of(scope).startswith(("/api/", "/fp-publisher/"))
        if identity is None or identity.csrf is None or not by_header:
            return None
        given = headers.get(CSRF_HEADER.encode(), b"")
        right = hmac.compare_digest(given, identity.csrf.encode())
        return None if right else f"The header {CSRF_HEADER} is missing or wrong."

    # ------------------------------------------------------------------ how much

    async def _bounded(self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.most:
            await self._too_long(scope, receive, send)
            return
        seen, begun = 0, False

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise HTTPException(413, self._words())
            return message

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except HTTPException:
            if begun:
                raise
            await self._too_long(scope, receive, send)
        except Exception:
            if not begun:  # with the headers of every answer; the server logs what it was
                await problem(500, "Something went wrong.")(scope, receive, send)
            raise

    def _words(self) -> str:
        return f"The body has more than {self.most:,} bytes."

    async def _too_long(self, scope: Scope, receive: Receive, send: Send) -> None:
        await problem(413, self._words())(scope, receive, send)


def read_cookies(header: bytes, name: str = COOKIE) -> list[str]:
    """What a Cookie header holds under a name, in its order: that of the longest path first (RFC 6265, 5.4). No more than a few are looked at.

    One that is old, of another place, or that somebody else has left there is no reason not to see the right one.
    """
    pairs = (one.partition(b"=") for one in header.split(b";"))
    found = (value.strip().strip(b'"') for key, _, value in pairs if key.strip() == name.encode())
    return [value.decode("latin-1") for value in itertools.islice(found, MOST_COOKIES)]


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?")


def _name(host: str) -> str:
    """The name in a Host header, without its port; empty for what is none."""
    found = _HOST.fullmatch(host)
    return "" if found is None else found[1] or found[2]


def path_of(scope: Scope) -> str:
    """The path within this application, wherever it is mounted."""
    path, root = scope["path"], scope.get("root_path", "")
    found: str = path[len(root) :] if root and path.startswith(f"{root}/") else path
    return found


def _dressed(scope: Scope, send: Send) -> Send:
    """Send, with the headers that every answer carries."""
    fresh = not path_of(scope).startswith("/static/")

    async def dressed(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            more = [*HEADERS, *([(b"cache-control", b"no-store")] if fresh else [])]
            message = {**message, "headers": [*message["headers"], *((n, v) for n, v in more if n not in there)]}
        await send(message)

    return dressed
