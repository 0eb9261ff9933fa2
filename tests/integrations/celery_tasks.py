"""The tasks that a fleet runs in these tests, and the journal in which it says what it did.

A line of JSON per fact, appended by the kernel in one piece: what stands there was done, whatever became of its process.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from duly import INJECT, Backoff, Context, Duly, Job, PermanentError, Snooze
from duly.kernel.events import Event

#: For tests that count attempts and not seconds.
SOON = Backoff(base=0.05, factor=1)


def write(what: str, **facts: Any) -> None:
    """Add a line to the journal, if this process keeps one."""
    journal = os.environ.get("FLEET_JOURNAL")
    if journal is None:
        return
    line = json.dumps({"what": what, "pid": os.getpid(), "at": time.monotonic(), **facts}, default=str) + "\n"
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


def hear(event: Event) -> None:
    write("event", event=event.name, level=event.level, facts=dict(event.facts))


def goes_on() -> bool:
    """Has the test said that those who wait may go on?"""
    return Path(os.environ["FLEET_JOURNAL"] + ".go").exists()


def work(seconds: float = 0, job: Job = INJECT) -> dict[str, Any]:
    """On a thread: begin, have an effect, take a while, end."""
    write("begin", job=job.id, attempt=job.attempts)
    time.sleep(seconds)
    write("end", job=job.id, attempt=job.attempts)
    return {"by": job.worker, "attempt": job.attempts}


async def wait(job: Job) -> dict[str, Any]:
    """On the loop: begin, and end when the test says so."""
    write("begin", job=job.id, attempt=job.attempts)
    while not goes_on():
        await asyncio.sleep(0.02)
    write("end", job=job.id, attempt=job.attempts)
    return {"attempt": job.attempts}


async def linger(job: Job) -> None:
    """On the loop, for ever."""
    write("begin", job=job.id, attempt=job.attempts)
    try:
        await asyncio.sleep(600)
    finally:
        write("interrupted", job=job.id)


def stubborn(job: Job) -> None:
    """On a thread, for ever, without a look at anything."""
    write("begin", job=job.id, attempt=job.attempts)
    threading.Event().wait(600)


def fail_once(job: Job) -> str:
    write("begin", job=job.id, attempt=job.attempts)
    if job.attempts == 1:
        raise ValueError("not the first time")
    return "the second time"


def refuse(job: Job) -> None:
    write("begin", job=job.id, attempt=job.attempts)
    raise PermanentError("never")


def snooze_once(run: Context) -> None:
    job = run.job
    write("begin", job=job.id, attempt=job.attempts)
    if not goes_on():
        Path(os.environ["FLEET_JOURNAL"] + ".go").touch()
        raise Snooze("a little later", after=0.2)
    run.cost_cents = 7


def book(job: Job, session: Session) -> None:
    """Its effect is in our own database, and one commit with its settlement."""
    write("begin", job=job.id, attempt=job.attempts)
    note = (
        "INSERT INTO system_state (key, value, updated_at) SELECT 'booked', 'yes', started_at FROM jobs WHERE id = :id"
    )
    session.execute(text(note), {"id": job.id})


def define(app: Duly, without: str = "") -> Duly:
    """Give an application the tasks; ``without`` names one that is left out."""
    from integrations.celery_apart import apart

    for name, options, fn in (
        ("WORK", {}, work), ("WAIT", {}, wait), ("LINGER", {"timeout": 0.3, "max_attempts": 1}, linger), ("LINGER_ON", {"max_attempts": 1}, linger),
        ("STUBBORN", {"max_attempts": 1}, stubborn), ("FAIL_ONCE", {}, fail_once), ("REFUSE", {}, refuse), ("SNOOZE_ONCE", {}, snooze_once),
        ("BOOK", {}, book), ("APART", {"run_in": "process"}, apart),
    ):  # fmt: skip
        if name != without:
            app.task(name, backoff=SOON, **options)(fn)
    return app
