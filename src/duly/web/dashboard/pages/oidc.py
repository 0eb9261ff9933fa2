"""Logging in through a provider: ``/login/oidc`` sends a browser there, and ``/login/oidc/callback`` is where it comes back.

The cookie of a flow is for these two addresses and ten minutes. It is ``SameSite=Lax``, so it comes along when the provider leads the browser
back, and with no request that a page of another site makes. What goes wrong is said on the login page, in words, and never with what was sent.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from duly.accounts.account import LoginRefused, ProviderFailed
from duly.accounts.oidc.flow import LIFE, Flow
from duly.accounts.oidc.options import CALLBACK, Options
from duly.web.dashboard.desk import Desk, local_path
from duly.web.dashboard.moved import root_of
from duly.web.dashboard.pages.login import cookies, kept, let_in, login_page

FLOW = "duly_oidc"
START = "/login/oidc"
STALE = "This login was begun too long ago, in another browser, or has been used already. Begin once more."
#: Where a refusal is something else than 403.
STATUSES = {"name_taken": 409}


def routes(desk: Desk) -> APIRouter:
    from duly.accounts.oidc.door import SignOn, ready

    made, options = desk.router(), ready(desk.app.settings)
    if options is None:
        return made
    sign_on = SignOn(desk.app, options)

    def failed(request: Request, to: str, error: ProviderFailed) -> Response:
        desk.app.events.emit("oidc_failed", "warning", reason=error.told)
        words = "does not answer as it should. Try again later" if error.away else "gave an answer that cannot be believed. An administrator finds the reason in the log"  # fmt: skip
        return _over(request, login_page(desk, to, wrong=f"The identity provider {words}.", status=503 if error.away else 502, after=30 if error.away else 0))  # fmt: skip

    @made.get(START)
    async def begin(request: Request) -> Response:
        to = local_path(request.query_params.get("next", "/"))
        secret = await run_in_threadpool(sign_on.begin)
        try:
            address = await sign_on.provider.address(Flow(secret), _redirect_url(request, options))
        except ProviderFailed as error:
            return failed(request, to, error)
        answer = RedirectResponse(address, status_code=303)
        answer.set_cookie(FLOW, _packed(secret, to), **_cookie(request), max_age=int(LIFE.total_seconds()))
        return answer

    @made.get(CALLBACK)
    async def come_back(request: Request) -> Response:
        given = _once(request)
        held = [_unpacked(one) for one in cookies(request, FLOW)]
        secret, to = next((one for one in held if Flow(one[0]).began(given.get("state", ""))), ("", ""))
        if not secret:
            to = held[0][1] if held else "/"
            return login_page(desk, to, wrong=STALE, status=400)  # somebody else's, maybe: ours goes on
        resumed = await run_in_threadpool(sign_on.resume, secret)
        if resumed is None:
            return _over(request, login_page(desk, to, wrong=STALE, status=400))
        flow, now = resumed
        try:
            if "error" in given:
                return _over(request, _turned_back(desk, to, given["error"]))
            _check_issuer(given, await sign_on.provider.discover(), options)
            claims = await sign_on.provider.claims(flow, given.get("code", ""), _redirect_url(request, options), now)
            # not before: until the provider stands for somebody anybody may be asking, and nothing is written for them
            if not await run_in_threadpool(sign_on.take, secret):
                return _over(request, login_page(desk, to, wrong=STALE, status=400))
            session = await run_in_threadpool(sign_on.enter, claims)
        except ProviderFailed as error:
            return failed(request, to, error)
        except LoginRefused as refused:
            return _over(request, login_page(desk, to, wrong=str(refused), status=STATUSES.get(refused.reason, 403)))
        return _over(request, await let_in(desk, request, session, to))

    return made


def _turned_back(desk: Desk, to: str, word: str) -> Response:
    """The provider sent the browser back without a code (OAuth 2.0, 4.1.2.1)."""
    if word in ("access_denied", "login_required", "consent_required", "interaction_required", "account_selection_required"):  # fmt: skip
        return login_page(desk, to, wrong="You did not log in at the identity provider, or it did not let you.", status=403)  # fmt: skip
    away = word in ("server_error", "temporarily_unavailable")
    known = word if word.isascii() and word.replace("_", "").isalnum() and len(word) <= 60 else "an error"
    desk.app.events.emit("oidc_failed", "warning", reason=f"sent a browser back with {known}.")
    words = "cannot log anybody in at this moment. Try again later" if away else "refused the request. An administrator finds the reason in the log"  # fmt: skip
    return login_page(desk, to, wrong=f"The identity provider {words}.", status=503 if away else 502, after=30 if away else 0)  # fmt: skip


def _check_issuer(given: dict[str, str], found: Any, options: Options) -> None:
    """Is it the provider that the browser was sent to? (RFC 9207.) Raises ProviderFailed."""
    named = given.get("iss")
    if named != options.issuer and (named is not None or found.names_itself):
        raise ProviderFailed("is not the one that sent the browser back (iss).")


def _redirect_url(request: Request, options: Options) -> str:
    return options.redirect_url or f"{request.url.scheme}://{request.url.netloc}{root_of(request)}{CALLBACK}"


def _once(request: Request) -> dict[str, str]:
    """What came back in the address; what is there twice is not there."""
    pairs = request.query_params.multi_items()
    names = [name for name, _ in pairs]
    return {name: value for name, value in pairs if names.count(name) == 1}


def _cookie(request: Request) -> dict[str, Any]:
    return {**kept(request), "path": root_of(request) + START}


def _over(request: Request, answer: Response) -> Response:
    """The same, and the flow is forgotten by the browser too."""
    answer.delete_cookie(FLOW, **_cookie(request))
    return answer


def _packed(secret: str, to: str) -> str:
    return f"{secret}.{base64.urlsafe_b64encode(to.encode()).decode().rstrip('=')}"


def _unpacked(cookie: str) -> tuple[str, str]:
    """(secret, where somebody wanted to go) of a cookie; nothing of it is believed, so a path leads nowhere else."""
    secret, _, packed = cookie.partition(".")
    try:
        to = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)).decode()
    except (binascii.Error, ValueError):
        to = "/"
    return secret, local_path(to)
