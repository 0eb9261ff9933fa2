"""Pages are written as they stand at the root of a host. Where the application is mounted below a path, they are moved there, here and nowhere else."""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

#: What leads somewhere, in the templates' own markup: whatever else stands on a page has its quotation marks escaped.
_LINK = re.compile(rb'(\s(?:href|src|action|formaction|hx-get|hx-post)=")/(?!/)')


def root_of(request: Request) -> str:
    """The path that the application is mounted below, as links and cookies have it; empty at the root."""
    return quote(_mounted(request), safe="/~")


def _mounted(request: Request) -> str:
    found: str = request.scope.get("root_path", "").rstrip("/")
    return found


def path_within(request: Request) -> str:
    """The path that is asked for, within the application."""
    path, root = request.scope["path"], _mounted(request)
    within = path.removeprefix(root) if path == root or path.startswith(f"{root}/") else path
    return quote(within or "/", safe="/~:@!$&'()*+,;=")


def moved(request: Request, answer: Response) -> Response:
    """The same answer, with links and redirections that lead to where the application is."""
    root = root_of(request)
    if not root:
        return answer
    to = answer.headers.get("location", "")
    if to.startswith("/"):
        answer.headers["location"] = root + to
    if isinstance(answer, HTMLResponse):
        answer.body = _LINK.sub(lambda found: found[1] + root.encode() + b"/", bytes(answer.body))
        answer.headers["content-length"] = str(len(answer.body))
    return answer
