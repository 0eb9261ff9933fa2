"""Making publications: a post is read, checked, and becomes a job, unless its key has one already."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeAlias

from sqlalchemy import Connection

from duly.audit.store import record
from duly.jobs.enqueue import NewJob
from duly.jobs.job import Enqueued as EnqueuedJob
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_text
from duly.publishing import preflight
from duly.publishing.channels import Channels
from duly.publishing.host import Host
from duly.publishing.post import read_post
from duly.publishing.read import PublicationReader
from duly.publishing.view import PUBLISH, Enqueued, publication

#: Audit action of a preflight that somebody overrode.
OVERRIDDEN = "PUBLISH_OVERRIDDEN"

#: (place, channel, payload, run_at, key) of a post that is to be made.
Item: TypeAlias = tuple[str, str, Mapping[str, Any], datetime | None, str | None]


class Planned(Protocol):
    """A post that a plan asks for (``plan.Planned``)."""

    @property
    def channel(self) -> str: ...

    @property
    def run_at(self) -> datetime: ...

    @property
    def key(self) -> str: ...

    @property
    def payload(self) -> Mapping[str, Any]: ...

    @property
    def place(self) -> str: ...


class Checked(NamedTuple):
    """Posts that were checked: their jobs, by number what is wrong with them and where they stand, and who makes them all the same, and why."""

    new: Sequence[NewJob]
    wrong: Mapping[int, tuple[str, preflight.Report]]
    override: str | None
    actor: str


class PublicationMaker:
    """Makes publications. Raises InvalidArgument naming the field, PreflightFailed."""

    def __init__(self, app: Host, channels: Channels, reader: PublicationReader) -> None:
        self._app, self._channels, self._reader = app, channels, reader

    def check(self, items: Iterable[Item], tenant: str | None, override: str | None, actor: str) -> Checked:
        """Read posts and look at what they would become. What is wrong with them is refused by ``make``, where keys are looked at."""
        if override is not None:
            check_text(override, "override")
            if not override.strip():
                raise InvalidArgument("override", "is empty.", "Say why.")
        new, wrong = list[NewJob](), dict[int, tuple[str, preflight.Report]]()
        for number, (place, channel, payload, run_at, key) in enumerate(items):
            new.append(self._new(channel, payload, run_at, key, tenant))
            report = self.report(channel, payload)
            if not report.ok:
                wrong[number] = (place, report)
        return Checked(new, wrong, override, actor)

    def report(self, channel: str, payload: Mapping[str, Any]) -> preflight.Report:
        """What is to be said of a post, the files that it names on this machine included."""
        post = read_post(channel, payload)
        return preflight.check(post, self._channels.get(channel).connector.rules, preflight.look(post))

    def make(self, connection: Connection, given: Checked) -> list[Enqueued]:
        """Make them, in order. One whose key is taken is given as it stands, whatever is wrong with the post by now (R002-2, R002-17)."""
        if given.wrong and given.override is None:
            store, new = self._reader.store, given.new
            blocked = [
                found
                for n, found in given.wrong.items()
                if store.owner(connection, new[n].tenant, new[n].queue, new[n].key or "") is None
            ]
            if blocked:
                raise preflight.PreflightFailed(blocked)
        engine = self._app.engine
        done: Sequence[EnqueuedJob] = engine.maker.make_in(connection, given.new) if given.new else []
        there = {p.id: p for p in self._reader.shown(connection, [e.job for e in done if not e.created])}
        made = [Enqueued(there.get(e.job.id) or publication(e.job), e.created) for e in done]
        if given.actor != "code":
            engine.maker.note(connection, done, given.actor)
        for n, (_, report) in given.wrong.items():
            if made[n].created:
                record(
                    engine.db, connection, actor=given.actor, action=OVERRIDDEN, entity="job", entity_id=made[n].job.id, tenant=made[n].job.tenant,
                    level="warning", meta={"reason": given.override, "findings": len(report.errors)},
                )  # fmt: skip
        return made

    def _new(
        self, channel: str, payload: Mapping[str, Any], run_at: datetime | None, key: str | None, tenant: str | None
    ) -> NewJob:  # fmt: skip
        chosen = self._channels.get(channel)
        read_post(channel, payload)  # what is wrong with it is said here
        if payload.get("preview"):
            raise InvalidArgument(
                "payload.preview", "is true, and a preview is not published.", "Ask for it with preview()."
            )
        given = {name: value for name, value in payload.items() if name != "preview" and value is not None}
        return self._app.prepare(
            PUBLISH, given, queue=channel, key=str(uuid.uuid4()) if key is None else key, unique_until="forever", run_at=run_at,
            max_attempts=chosen.max_attempts, tenant=tenant,
        )  # fmt: skip
