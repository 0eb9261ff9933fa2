"""``duly web``: the API and the dashboard, without a worker."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from duly.cli import show
from duly.cli.command import Command, state

if TYPE_CHECKING:
    from duly.web.ending import Ending


@click.command(cls=Command)
@click.argument("target", required=False, metavar="[MODULE:NAME]")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8787, show_default=True, metavar="PORT", help="0: any free port."
)
@click.option("--allow-remote", is_flag=True, help="Listen where other machines can reach it.")
@click.option(
    "--root-path", default="", metavar="PATH", help="Where a proxy shows it, such as /duly; it takes that off."
)
def web(target: str | None, host: str, port: int, allow_remote: bool, root_path: str) -> None:
    """Serve the dashboard and the API, until Ctrl-C.

    On an embedded database, on loopback, and as long as there is no account, everybody on this machine is let in. Anything else needs accounts
    (`duly users create`, `duly tokens create`) or DULY_WEB_TOKEN, and is refused without.
    """
    from duly.web.ending import Ending

    with Ending() as ending:
        _serve(ending, target, host, port, allow_remote, root_path)


def _serve(ending: Ending, target: str | None, host: str, port: int, allow_remote: bool, root_path: str) -> None:
    from duly.monitoring.logs import adopt_logging, event_log
    from duly.web import serve

    asked = state()
    app = asked.duly(target)
    app.open()
    app.find_rooms()
    token = app.settings.web_token
    opened = serve.is_local(app, token, host)
    adopt_logging(app.settings, sys.stderr)
    unheard = app.listen(event_log(app.settings, sys.stderr))

    def told(url: str) -> None:
        if asked.json:
            show.as_json({"url": url, "api": f"{url}/api/v1", "local": opened})
            return
        if root_path:
            show.say(f"Listening at {url}, for a proxy that shows it below {root_path} and takes that off.")
        else:
            show.say(f"Dashboard at {url}, API at {url}/api/v1 (described at {url}/openapi.json).")
        if opened:
            show.say("There is no account: everybody on this machine may do everything. duly users create makes one.")
        show.say("Ctrl-C stops it.")

    try:
        serve.run(
            app, token, host=host, port=port, allow_remote=allow_remote, told=told, local=True, root_path=root_path,
            ending=ending,
        )  # fmt: skip
    finally:
        unheard()
