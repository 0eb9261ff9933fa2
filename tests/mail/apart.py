"""Processes that send what is ready, and die at one step of it. For each line of stdin, a JSON list of the arguments of ``main``, one is
forked off this program, which has read everything already; how it ended is written to stdout.

The steps are put around Duly's own functions from outside.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import datetime
from typing import Any

from duly import Duly
from duly.mail import Mail
from duly.mail.handler import Sending
from duly.mail.providers.resend import ResendProvider
from duly.mail.providers.smtp import SmtpProvider
from duly.testing import ManualClock, drain

#: Step → the functions behind which it stands.
BEHIND: dict[str, list[tuple[Any, str]]] = {
    "ahead": [(Sending, "_ahead")],
    "accepted": [(SmtpProvider, "send"), (ResendProvider, "send")],
    "written": [(Sending, "_written")],
}


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        original(*args, **named)
        die()

    return call


def later_die(original: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **named: Any) -> Any:
        await original(*args, **named)
        die()

    return call


def main(url: str, instant: str, step: str, *settings: str) -> None:
    app = Duly(url, clock=ManualClock(datetime.fromisoformat(instant)), **dict(s.split("=", 1) for s in settings))
    Mail(app)
    for home, name in BEHIND.get(step, ()):
        setattr(home, name, (later_die if name == "send" else then_die)(getattr(home, name)))
    drain(app)


def serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = 1
            try:
                main(*json.loads(line))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
