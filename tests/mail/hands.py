"""Looking at jobs, the trail, and what was sent."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from duly import Duly, Job
from duly.kernel.events import Event
from duly.testing import drain

#: For tables of inputs and answers. What they lead to in a database is proved on both kinds elsewhere.
ON_ONE = pytest.mark.parametrize("db_url", ["sqlite"], indirect=True)


def put(app: Duly, **fields: Any) -> int:
    """A job of EMAIL_SEND as other programs make it. ``from_`` is the field ``from``."""
    given = {"to": "ada@example.org", "subject": "Hi", "text": "Hello"} | {n.rstrip("_"): v for n, v in fields.items()}
    return app.enqueue("EMAIL_SEND", {n: v for n, v in given.items() if v is not None}).job.id


def run(app: Duly, **fields: Any) -> Job:
    """Make a job, run what is ready, and look at it."""
    ident = put(app, **fields)
    drain(app)
    return app.jobs.get(ident)


def message_of(job: Job) -> str:
    return str((job.error or {}).get("message"))


def actions(app: Duly, ident: object) -> list[str]:
    query = text("SELECT action FROM audit_log WHERE entity_id = :id ORDER BY id")
    return list(app.db.read(lambda c: c.execute(query, {"id": str(ident)}).scalars()))


def states(app: Duly, ident: int) -> list[str]:
    query = text("SELECT state FROM mail_deliveries WHERE job_id = :id ORDER BY state")
    return list(app.db.read(lambda c: c.execute(query, {"id": ident}).scalars()))


def read(content: bytes) -> EmailMessage:
    return message_from_bytes(content, _class=EmailMessage, policy=policy.default)


def files(folder: Path) -> list[EmailMessage]:
    return [read(file.read_bytes()) for file in sorted((folder / "new").glob("*"))]


class Ear:
    """Hears the events of an application."""

    def __init__(self, app: Duly) -> None:
        self.events: list[Event] = []
        app.events.listen(self.events.append)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [dict(e.facts) for e in self.events if e.name == name]
