"""Serving ``app.create`` until a signal, or on a thread beside a worker: on loopback, unless somebody says otherwise."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import socket
import threading
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from duly.app import Duly
from duly.kernel.errors import InvalidArgument
from duly.monitoring.alerts.beside import Judge
from duly.web.ending import Ending, Streams

if TYPE_CHECKING:
    import uvicorn

#: Where the dashboard is looked for.
HOST, PORT = "127.0.0.1", 8787
#: Ports that are tried, one after the other, where one is taken.
TRIED = 20
#: What the web needs besides Duly: the extra ``web``.
NEEDED = ("fastapi", "uvicorn", "jinja2", "argon2")
_ROOT = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)+")


def run(
    app: Duly, token: str, *, host: str = HOST, port: int = PORT, allow_remote: bool = False, tenant: str | None = None,
    told: Callable[[str], None] = lambda url: None, local: bool = False, root_path: str = "",
    ending: Ending | None = None,
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM. ``told`` is called with the URL once connections are taken.

    ``local``: may it be a door without accounts, where ``is_local`` allows that? ``root_path``: the path below which a proxy shows it, such as
    ``/duly``, and which that proxy takes off. ``ending``: what hears the signals already. Raises InvalidArgument.
    """
    _check(app)
    if root_path and not _ROOT.fullmatch(root_path):
        raise InvalidArgument("root_path", f"is {root_path[:80]!r}.", "Give a path such as /duly, without a slash at its end.")  # fmt: skip
    opened = local and is_local(app, token, host)
    if not opened and not is_guarded(app, token):
        raise InvalidArgument("web_token", "is not set, and nobody is let in without a token or an account.", "Set DULY_WEB_TOKEN, for example to the output of `openssl rand -hex 32`, or make a user: duly users create.")  # fmt: skip
    if not allow_remote and not _is_loopback(host):
        raise InvalidArgument("host", f"is {host}, which other machines can reach.", "Say so with --allow-remote, behind something that speaks TLS.")  # fmt: skip
    with contextlib.nullcontext(ending) if ending is not None else Ending() as ending, _listening(host, port) as listener:  # fmt: skip
        server = _server(app, token, tenant, opened, root_path)
        told(_url(host, listener))
        if ending.serves(server):
            server.run(sockets=[listener])


def is_local(app: Duly, token: str, host: str) -> bool:
    """Is everybody let in? On an embedded database at an address that only this machine reaches, as long as there is no account and no token."""
    from duly.accounts.door import Accounts

    return not token and app.db.is_sqlite and _is_loopback(host) and not Accounts(app).exist()


def is_guarded(app: Duly, token: str) -> bool:
    """Is there somebody who could come in?"""
    from duly.accounts.door import Accounts

    return bool(token) or Accounts(app).exist()


def missing() -> str | None:
    """What is not installed that the web needs; None where all of it is there. Nothing is imported."""
    return next((name for name in NEEDED if importlib.util.find_spec(name) is None), None)


def _check(app: Duly) -> None:
    """Refuse settings of OpenID Connect that nobody could log in by, before anything is served. Raises InvalidArgument."""
    from duly.accounts.oidc.door import ready

    ready(app.settings)


class Beside:
    """The site on a thread of a process that does something else, on loopback. ``url`` is where; it ends with ``stop``, or with the process.

    ``port`` is tried first, then those behind it; with ``exact`` no other one. Raises InvalidArgument where none is free.
    """

    def __init__(self, app: Duly, token: str, port: int = PORT, *, exact: bool = False) -> None:
        _check(app)
        self.local = is_local(app, token, HOST)
        self._app, self._token = app, token
        self._listener = _listening(HOST, port) if exact else _first_free(port)
        self.url = _url(HOST, self._listener)
        self._asked = threading.Event()
        self._server: Any = None
        self._thread = threading.Thread(target=self._run, name="duly web", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        # what it needs is imported here, so that the worker need not wait for it
        if self._asked.is_set():
            return
        with self._listener:
            self._server = _server(self._app, self._token, None, self.local)
            if not self._asked.is_set():
                self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        """Answer what was asked, and end."""
        self._asked.set()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(5)
        self._listener.close()


def _server(app: Duly, token: str, tenant: str | None, local: bool, root_path: str = "") -> uvicorn.Server:
    lacking = missing()
    if lacking is not None:
        raise InvalidArgument("web", f"needs {lacking}, which is not installed.", 'Install it with `pip install "duly[web]"`.')  # fmt: skip
    import uvicorn

    from duly.web.app import create

    class Server(uvicorn.Server):
        """Leaves signals to ``Ending``, and does not wait for streams that nobody would end."""

        def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
            return contextlib.nullcontext()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            streams.end()
            judge.stop()
            await super().shutdown(sockets)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            judge.start()

    judge = Judge(app.alerts, f"web:{socket.gethostname()}:{os.getpid()}")
    streams = Streams(create(app, token, tenant=tenant, local=local))
    config = uvicorn.Config(streams, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3, root_path=root_path)  # fmt: skip
    return Server(config)


def _url(host: str, listener: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidArgument("port", f"{host}:{port} cannot be listened on: {error.strerror or error}.") from None


def _first_free(port: int) -> socket.socket:
    for one in range(port, port + TRIED):
        try:
            return socket.create_server((HOST, one))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise InvalidArgument("port", f"{HOST}:{one} cannot be listened on: {error.strerror or error}.") from None  # fmt: skip
    raise InvalidArgument("port", f"none of {port} to {port + TRIED - 1} is free.", "Run without it: --no-web.")
