"""A process that publishes.

``die``: run what is ready on a channel of Instagram, whose API is at GRAPH, and die at one step of it. The steps are put around Duly's
own functions from outside. ``serve``: a worker of a channel whose posts take a moment, until nothing is left; the journal says when
each began and ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from duly import Duly
from duly.publishing import Publishing, Run
from duly.publishing.comments import Commenting
from duly.publishing.connectors.instagram import InstagramConnector
from duly.publishing.handler import Attempt
from duly.publishing.handler import Publishing as OneRun
from duly.publishing.hooks import Hooks
from duly.testing import ManualClock, drain
from publishing.servers import IG, TOKEN

#: Step → (home, function, on how manieth call), in the order of a life.
BEHIND: dict[str, tuple[Any, str, int]] = {
    "begun": (Attempt, "begin", 1),
    "container": (InstagramConnector, "_made", 1),
    "ahead": (Attempt, "ahead", 1),
    "published": (InstagramConnector, "publish", 1),
    "written": (OneRun, "_write_down", 1),
    "told": (Hooks, "wanted", 2),
    "child begun": (Attempt, "begin", 2),
    "child ahead": (Attempt, "ahead", 2),
    "commented": (InstagramConnector, "comment", 1),
    "child written": (Commenting, "_there", 1),
}


def instagram(app: Duly, graph: str) -> Publishing:
    room = Publishing(app)
    room.channel("ig", InstagramConnector(account=IG, token=TOKEN, url=graph, poll_interval=0.01))
    return room


def then_die(original: Callable[..., Any], call: int) -> Callable[..., Any]:
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)

    async def later(*args: Any, **named: Any) -> Any:
        out = await original(*args, **named)
        count()
        return out

    def now(*args: Any, **named: Any) -> Any:
        out = original(*args, **named)
        count()
        return out

    return later if asyncio.iscoroutinefunction(original) else now


def die(url: str, instant: str, step: str, graph: str) -> None:
    app = Duly(url, clock=ManualClock(datetime.fromisoformat(instant)))
    instagram(app, graph)
    if step in BEHIND:
        home, name, call = BEHIND[step]
        setattr(home, name, then_die(getattr(home, name), call))
    drain(app)


def serve(url: str, journal: str) -> None:
    app = Duly(url, poll=0.02)
    room = Publishing(app)
    file = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def write(line: str) -> None:
        os.write(file, f"{line}\n".encode())

    @room.process("slow", limit=1)
    async def slow(run: Run) -> None:
        while Path(journal).read_text().count("ready") < 2:
            await asyncio.sleep(0.02)  # the other one is not there yet
        write(f"begin {run.post.caption}")
        await asyncio.sleep(0.02)
        write(f"end {run.post.caption}")

    app.listen(lambda event: write("ready") if event.name == "worker_started" else None)
    app.worker({"slow": 5}).run(until_idle=True)
