"""Logging in and out. A login is a new session each time; the one that the browser had ends."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse

from duly.accounts.account import LONGEST_LOGIN, Throttled
from duly.accounts.oidc.options import LABEL
from duly.web.dashboard.desk import Desk, check_csrf, local_path, read_form
from duly.web.dashboard.moved import root_of
from duly.web.gate import COOKIE, read_cookies
from duly.web.identity import identity_of


def routes(desk: Desk) -> APIRouter:
    made, form = desk.router(), partial(login_page, desk)

    @made.get("/login")
    def show(next: Annotated[str, Query(max_length=2_000)] = "/") -> Response:
        return form(local_path(unquote(next)))

    @made.post("/login")
    async def log_in(request: Request) -> Response:
        fields = await read_form(request)

        def one(name: str) -> str:
            return fields.get(name, [""])[-1]

        to, name = local_path(one("next")), one("name")[:200]
        address = request.client.host if request.client else ""
        try:
            session = await run_in_threadpool(desk.accounts.log_in, name, one("password"), address)
        except Throttled as error:
            return form(to, name, f"Too many wrong passwords. Try again in {_wait(error.after)}.", 429, error.after)
        if session is None:
            return form(to, name, "The name or the password is wrong.", 401)
        return await let_in(desk, request, session, to)

    @made.post("/logout")
    async def log_out(request: Request) -> Response:
        check_csrf(identity_of(request), await read_form(request))
        await _end_logins(desk, request)
        answer = RedirectResponse("/login", status_code=303)
        answer.delete_cookie(COOKIE, **kept(request))
        return answer

    return made


def login_page(desk: Desk, next: str, name: str = "", wrong: str = "", status: int = 200, after: float = 0) -> Response:
    """The page by which one logs in. ``wrong``: why that did not work. ``after``: seconds until it may."""
    settings = desk.app.settings
    text = desk.env.get_template("login.html").render(
        next=next, name=name, wrong=wrong, single=(settings.oidc_label or LABEL) if settings.oidc_issuer else ""
    )
    return HTMLResponse(text, status, {"Retry-After": str(max(1, round(after)))} if after else None)


async def let_in(desk: Desk, request: Request, session: str, to: str) -> Response:
    """The answer to somebody who has logged in. The login that the browser had before ends."""
    await _end_logins(desk, request)
    answer = RedirectResponse(to, status_code=303)
    answer.set_cookie(COOKIE, session, **kept(request), max_age=int(LONGEST_LOGIN.total_seconds()))
    return answer


def kept(request: Request) -> dict[str, Any]:
    """Not read by scripts, not sent along by other sites, and where the connection is secret, sent over such ones only."""
    return {
        "path": root_of(request) or "/",
        "httponly": True,
        "samesite": "lax",
        "secure": request.url.scheme == "https",
    }


def cookies(request: Request, name: str = COOKIE) -> list[str]:
    """Those of a name, in the order of the browser, however many headers they come in."""
    return read_cookies(b"; ".join(one.encode("latin-1") for one in request.headers.getlist("cookie")), name)


async def _end_logins(desk: Desk, request: Request) -> None:
    """Each that the browser names: none of them lets anybody in afterwards."""
    for had in cookies(request):
        await run_in_threadpool(desk.accounts.log_out, had)


def _wait(seconds: float) -> str:
    whole = max(1, round(seconds))
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"
