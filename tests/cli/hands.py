"""What the tests of the command line hold in their hands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: An application such as a newcomer writes.
SHOP = """
import asyncio, time
from duly import Duly, PermanentError
app = Duly()

@app.task
def hello(name: str) -> dict:
    return {"greeting": f"Hello {name}"}

@app.task("SEND", queue="mail")
async def send(to: str, copies: int = 1): ...

@app.task(max_attempts=1)
def fails():
    raise ValueError("no luck\\nsecond line")

@app.task(queue="slow")
async def nap(seconds: float):
    open("napping", "w").close()
    await asyncio.sleep(seconds)
"""


@dataclass
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> list[str]:
        """The lines on stderr, without warnings of names that nobody defines."""
        return [line for line in self.err.splitlines() if not line.startswith("duly: warning: No ")]

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Said]
