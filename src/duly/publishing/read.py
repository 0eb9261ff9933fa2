"""Looking at publications: those there are, those that may run now, and what would become of another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from duly.calendars.tables import queue_scopes
from duly.jobs.job import Job
from duly.jobs.job import Status as JobStatus
from duly.jobs.queues import QueueSettings
from duly.kernel.errors import NotFound
from duly.kernel.gate import Hold, QueueFacts, Rate, gate
from duly.kernel.payload import check_id
from duly.kernel.windows import Calendar
from duly.publishing.channel import Channel, agreed
from duly.publishing.host import Host
from duly.publishing.store import PublicationStore
from duly.publishing.view import TYPES, Publication, TestAnswer, publication


class PublicationReader:
    """Every method reads in the caller's transaction."""

    def __init__(self, app: Host) -> None:
        self._app = app

    @property
    def store(self) -> PublicationStore:
        return PublicationStore(self._app.engine.db)

    def get(self, connection: Connection, ident: int, tenant: str | None) -> Publication:
        """One. Raises NotFound, also when it is another tenant's."""
        check_id(ident, "publication")
        job = self._app.engine.reader.get_many(connection, [ident]).get(ident)
        if job is None or job.task not in TYPES or (tenant is not None and job.tenant != tenant):
            raise NotFound("publication", ident)
        return self.shown(connection, [job])[0]

    def many(self, connection: Connection, ids: Iterable[int]) -> list[Publication]:
        """Those that are there, in the order of their ids as given."""
        wanted = list(ids)
        found = self._app.engine.reader.get_many(connection, wanted)
        return self.shown(connection, [found[i] for i in wanted if i in found])

    def shown(self, connection: Connection, jobs: Sequence[Job]) -> list[Publication]:
        """Jobs as the door shows them."""
        if not jobs:
            return []
        ids = [job.id for job in jobs]
        traces, children = self.store.traces(connection, ids), self.store.children(connection, ids)
        cancelled = [job.id for job in jobs if job.status is JobStatus.CANCELLED]
        ended = self._app.engine.reader.cancelled_by(connection, cancelled) if cancelled else {}
        return [publication(job, traces.get(job.id), children.get(job.id, ()), ended.get(job.id)) for job in jobs]

    def runnable(self, connection: Connection, channels: Iterable[Channel], limit: int) -> list[Publication]:
        """What claims would take now (R002-7): at most ``limit`` of each channel, all of them by run_at and id."""
        ids: list[int] = []
        for channel in channels:
            answer = gate(self._facts(connection, channel))
            room = 0 if isinstance(answer, Hold) else answer.room
            most = limit if room is None else min(room, limit)
            if most > 0:
                ids += self.store.due(connection, channel.name, most)
        found = self.many(connection, ids)
        return sorted(found, key=lambda p: (p.run_at or datetime.max.replace(tzinfo=UTC), p.id))

    def collision(self, connection: Connection, tenant: str, channel: str, key: str) -> TestAnswer | None:
        """The answer where a key is taken."""
        owner = self.store.owner(connection, tenant, channel, key)
        if owner is None:
            return None
        job = self._app.engine.reader.get_many(connection, [owner]).get(owner)
        task = self.store.task_of_owner(connection, tenant, channel, key) if job is None else job.task
        if task is not None and task not in TYPES:
            held = f"the key belongs to job {owner} of task {task}, which publishes nothing: enqueueing is refused"
            return TestAnswer("collision", held)
        existing = next(iter(self.many(connection, [owner])), None)
        stands = f"; it is {existing.status}" if existing else ", whose record was removed after the retention"
        return TestAnswer("collision", f"the key belongs to publication {owner}{stands}", existing=existing)

    def neighbour(self, connection: Connection, channel: Channel, at: datetime, tenant: str) -> TestAnswer | None:
        """The answer where another post of the channel goes out, or went out, less than ``channel.apart`` seconds from an instant (R002-23)."""
        if not channel.apart:
            return None
        apart = timedelta(seconds=channel.apart)
        found = [
            (abs(then - at), ident, then)
            for ident, then in self.store.near(connection, channel.name, at - apart, at + apart)
            if abs(then - at) < apart
        ]
        if not found:
            return None
        away, ident, _ = min(found)
        existing = next((p for p in self.many(connection, [ident]) if p.tenant == tenant), None)
        who = f"publication {ident}, which is {existing.status}" if existing else "a publication of another tenant"
        how = "at that instant" if not away else f"{away.total_seconds():g} s away"
        detail = f"{who}, is on channel {channel.name} {how}; posts of this channel are {channel.apart:g} s apart"
        return TestAnswer("collision", detail, existing=existing)

    def foretell(
        self, connection: Connection, channel: Channel, run_at: datetime | None, tenant: str
    ) -> TestAnswer:  # fmt: skip
        """What would become of a new publication of a channel at an instant, by what is known now."""
        now = self._app.engine.db.present(connection)
        at = now if run_at is None or run_at < now else run_at
        covered = self._app.engine.calendars.covering(connection, *queue_scopes(channel.name), at=at)
        if covered is not None:
            names = ", ".join(covered.names)
            return TestAnswer("blackout", f"channel {channel.name} is in the blackout {names} then", covered.until)
        until = Calendar(channel.blackouts).ends_after(at) if channel.blackouts else None
        if until is not None:  # declared beside the channel, and no worker has begun since
            return TestAnswer("blackout", f"channel {channel.name} is in a blackout that is declared beside it", until)
        other = None if run_at is None else self.neighbour(connection, channel, at, tenant)
        if other is not None:
            return other
        facts = self._facts(connection, channel)
        answer = gate(facts if at == now else _then(facts, at))
        if isinstance(answer, Hold):
            return TestAnswer("limit", answer.detail, answer.until)
        return TestAnswer("ok", "it would run then" if at > now else "it would run in a moment")

    def limit(self, connection: Connection, channel: Channel) -> tuple[int | None, Rate | None]:
        """(limit, rate) of a channel: as they stand on its queue, or as the next worker that begins will set them."""
        there = self._app.engine.queues.get(connection, channel.name)
        return settled(channel, there, self.store.set_by_us(connection, channel.name))

    def _facts(self, connection: Connection, channel: Channel) -> QueueFacts:
        queues = self._app.engine.queues
        set_ = queues.get(connection, channel.name)
        limit, rate = settled(channel, set_, self.store.set_by_us(connection, channel.name))
        settings = QueueSettings(
            set_.name, limit, set_.key_limit, rate, set_.fair, set_.paused_at, set_.paused_reason, set_.paused_by, set_.governed,
            set_.held_until, set_.held_reason,
        )  # fmt: skip
        return queues.facts(connection, settings)


def settled(
    channel: Channel, there: QueueSettings, ours: tuple[int | None, Rate | None]
) -> tuple[int | None, Rate | None]:
    """(limit, rate) of a channel's queue. ``ours``: what publishing has set there last."""
    return agreed(channel.limit, there.limit, ours[0]), agreed(channel.rate, there.rate, ours[1])


def _then(facts: QueueFacts, at: datetime) -> QueueFacts:
    """What is known now of a later instant: what has ended by then, and what frees by itself, does not hold."""
    held = facts.held_until is not None and facts.held_until > at
    full = facts.rate_frees_at is not None and facts.rate_frees_at > at
    return replace(
        facts, held_until=facts.held_until if held else None, held_reason=facts.held_reason if held else None, blackout=None, blackout_until=None,
        limit=None, running=0, rate=facts.rate if full else None,
    )  # fmt: skip
