"""Making publications: a post is read, checked, and becomes a job, unless its key has one already."""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sqlalchemy import Connection

from duly.audit.store import record
from duly.jobs.enqueue import NewJob
from duly.jobs.job import Enqueued as EnqueuedJob
from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import tz_version
from duly.kernel.payload import check_text
from duly.kernel.verdict import Refusal
from duly.publishing import preflight
from duly.publishing.channels import Channels
from duly.publishing.connectors.base import Connector, Refuses
from duly.publishing.host import Host
from duly.publishing.keys import OLD, PREFIX
from duly.publishing.post import Post, read_post
from duly.publishing.read import PublicationReader
from duly.publishing.state import State
from duly.publishing.view import PUBLISH, Enqueued, publication

if TYPE_CHECKING:
    from duly.publishing.plan import Plan

#: Audit action of a preflight that somebody overrode.
OVERRIDDEN = "PUBLISH_OVERRIDDEN"

#: Facts of a post of a plan in its job's ``meta``: the wall clock's time and zone, the release of the zone data that gave its instant, and the
#: name of its plan.
LOCAL, ZONE, ZONE_DATA, PLAN = "local", "tz", "tz_version", "plan"
#: What two posts under one key of the first version may differ in.
_TEXTS = ("title", "link", "ig_first_comment", "options", "assets")


class Item(NamedTuple):
    """A post that is to be made. ``also``, ``old_key``: see ``keys.Keys``."""

    place: str
    channel: str
    payload: Mapping[str, Any]
    run_at: datetime | None
    key: str | None
    also: tuple[str, ...] = ()
    old_key: str = ""
    meta: Mapping[str, Any] | None = None


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


def item(planned: Planned) -> Item:
    """A post of a plan, as it is made."""
    place = planned.place or f"{planned.channel} at {planned.run_at:%Y-%m-%d %H:%M}Z"
    local, tz, plan = (getattr(planned, name, None) for name in ("local", "tz", "plan"))
    facts = {LOCAL: local, ZONE: tz, ZONE_DATA: tz_version(tz) if tz else None, PLAN: plan or None}
    meta = {name: value for name, value in facts.items() if value is not None}
    also, old = getattr(planned, "also", ()), getattr(planned, "old_key", "")
    return Item(place, planned.channel, planned.payload, planned.run_at, planned.key, also, old, meta or None)


class Checked(NamedTuple):
    """Posts that were checked: their jobs, by number what is wrong with them and where they stand, and who makes them all the same, and why."""

    items: Sequence[Item]
    new: Sequence[NewJob]
    wrong: Mapping[int, tuple[str, preflight.Report]]
    override: str | None
    actor: str

    def without(self, numbers: Collection[int]) -> Checked:
        """The same without some of them, by number."""
        left = [n for n in range(len(self.items)) if n not in numbers]
        wrong = {at: self.wrong[n] for at, n in enumerate(left) if n in self.wrong}
        return self._replace(items=[self.items[n] for n in left], new=[self.new[n] for n in left], wrong=wrong)


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
        given = list(items)
        for number, one in enumerate(given):
            new.append(self._new(one, tenant))
            report = self.report(one.channel, one.payload)
            if not report.ok:
                wrong[number] = (one.place, report)
        return Checked(given, new, wrong, override, actor)

    def report(self, channel: str, payload: Mapping[str, Any]) -> preflight.Report:
        """What is to be said of a post, the files that it names on this machine included."""
        post = read_post(channel, payload)
        return report(self._channels.get(channel).connector, post, preflight.look(post))

    def make(self, connection: Connection, given: Checked) -> list[Enqueued]:
        """Make them, in order. One whose key is taken is given as it stands, whatever is wrong with the post by now (R002-2, R002-17)."""
        self._known_otherwise(connection, given)
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
        self._take_other_keys(connection, given, done)
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

    def owners(self, connection: Connection, items: Sequence[Item], tenant: str | None) -> list[int | None]:
        """The job of each post that is there already, under whichever of its keys."""
        whose, store = tenant or self._app.settings.tenant, self._reader.store
        keys = {(one.channel, key) for one in items for key in (one.key, *one.also, one.old_key) if key}
        owned = store.owners(connection, whose, keys)
        found: list[int | None] = []
        for one in items:
            there = next((owned[one.channel, k] for k in (one.key, *one.also) if k and (one.channel, k) in owned), None)
            found.append(there if there is not None else owned.get((one.channel, one.old_key)))
        old = {n for n, one in enumerate(items) if found[n] is not None and found[n] == owned.get((one.channel, one.old_key))
               and all((one.channel, k) not in owned for k in (one.key, *one.also) if k)}  # fmt: skip
        jobs = self._app.engine.reader.get_many(connection, [found[n] or 0 for n in old])
        for n in old:  # its key says nothing of its other texts
            job = jobs.get(found[n] or 0)
            if job is not None and job.input is not None and not _same(items[n].payload, job.input):
                found[n] = None
        return found

    def collisions(self, connection: Connection, items: Sequence[Item], tenant: str | None) -> dict[int, str]:
        """By number of the post, with which other post it collides: one of the same list, or one that is there (R002-23)."""
        owners, out = self.owners(connection, items, tenant), dict[int, str]()
        numbers: dict[str, list[int]] = {}
        for n, one in enumerate(items):
            if one.run_at is not None and self._channels.get(one.channel).apart:
                numbers.setdefault(one.channel, []).append(n)
        for name, mine in numbers.items():
            apart = timedelta(seconds=self._channels.get(name).apart)
            at = {n: items[n].run_at or datetime.max.replace(tzinfo=UTC) for n in mine}
            there = self._reader.store.near(connection, name, min(at.values()) - apart, max(at.values()) + apart)
            ours = {owners[n] for n in mine}
            taken = [(then, f"publication {ident}") for ident, then in there if ident not in ours]
            taken += [(at[n], items[n].place) for n in mine]
            taken.sort(key=lambda one: one[0])
            instants = [then for then, _ in taken]
            for n in mine:
                low, high = bisect_right(instants, at[n] - apart), bisect_left(instants, at[n] + apart)
                others = [what for _, what in taken[low:high] if what != items[n].place]
                if others and owners[n] is None:
                    out[n] = others[0]
        return out

    def withdrawn(self, connection: Connection, plan: Plan, items: Sequence[Item], tenant: str | None) -> list[int]:
        """The posts that wait, were made by this plan, and are no longer in it.

        Which plan made a post stands on its job. One that was made before that was written down is taken for the plan's where brand and channel
        are the plan's and its instant lies between the first and the last of the plan.
        """
        whose = tenant or self._app.settings.tenant
        owned = set(self.owners(connection, items, whose))
        instants = [one.run_at for one in items if one.run_at is not None]
        out = []
        for row in self._waiting(connection, whose, begun=False):
            payload, meta = row.input, row.meta or {}
            if row.id in owned or not (row.key or "").startswith((PREFIX, OLD)) or payload.get("brand") != plan.brand:
                continue
            named, at = meta.get(PLAN), row.due_at or row.run_at
            within = row.queue in plan.channels and instants and min(instants) <= at <= max(instants)
            if named == plan.name if named else within:
                out.append(row.id)
        return out

    def begun(self, connection: Connection, plan: Plan, items: Sequence[Item], tenant: str | None) -> dict[int, int]:
        """By number of a new post, the one of this plan that stood at its time, is no longer in the plan, and has begun, gone out, or may have:
        the same post in other words."""
        store, whose, out = self._reader.store, tenant or self._app.settings.tenant, dict[int, int]()
        owners = self.owners(connection, items, tenant)
        new = [n for n, one in enumerate(items) if owners[n] is None and one.run_at is not None]
        # one that waits to be asked for again has left its time in the queue
        doubtful = (
            [(row.id, row.queue, row.run_at) for row in self._waiting(connection, whose, begun=True)] if new else []
        )
        for n in new:
            channel, at = items[n].channel, items[n].run_at or datetime.max.replace(tzinfo=UTC)
            apart = timedelta(seconds=self._channels.get(channel).apart)
            there = store.near(connection, channel, at - apart, at + apart)
            there += [(ident, then) for ident, queue, then in doubtful if queue == channel]
            near = [i for i, then in there if i not in owners and (then == at or abs(then - at) < apart)]
            jobs = self._app.engine.reader.get_many(connection, near)
            ours = [i for i in near if i in jobs and (jobs[i].meta or {}).get(PLAN) == plan.name and (jobs[i].input or {}).get("brand") == plan.brand]  # fmt: skip
            if ours:
                out[n] = ours[0]
        return out

    def _waiting(self, connection: Connection, tenant: str, *, begun: bool) -> list[Any]:
        """Posts that wait: those that may be there already (``begun``), or those that are not."""
        store = self._reader.store
        rows = store.waiting_of(connection, tenant)
        traces = store.traces(connection, [row.id for row in rows])
        return [row for row in rows if begun is (row.id in traces and traces[row.id].state is not State.PREPARING)]

    def follow(self, connection: Connection, items: Sequence[Item], tenant: str | None) -> None:
        """Posts that wait under this plan's keys bear its name, its clock and its zone from now on, also where their instant is the same."""
        store, whose = self._reader.store, tenant or self._app.settings.tenant
        there = {row.id: row for row in store.waiting_of(connection, whose)}
        for one, owner in zip(items, self.owners(connection, items, tenant), strict=True):
            row = there.get(owner or 0)
            if row is None or row.due_at is None or row.due_at != one.run_at:
                continue
            meta = {**(row.meta or {}), **(one.meta or {})}
            if any(meta.get(name) != (row.meta or {}).get(name) for name in (LOCAL, ZONE, PLAN)):
                store.retime(connection, row.id, row.due_at, row.due_at, meta)

    def _known_otherwise(self, connection: Connection, given: Checked) -> None:
        """Give posts that are there under another of their keys that key, so that they are found by it."""
        asked = [n for n, one in enumerate(given.items) if one.also or one.old_key]
        for start in range(0, len(asked), 1000):
            part = asked[start : start + 1000]
            tenant = given.new[part[0]].tenant
            items = [given.items[n] for n in part]
            owners = self.owners(connection, items, tenant)
            store = self._reader.store
            for n, one, owner in zip(part, items, owners, strict=True):
                if owner is None:
                    continue
                for key in (one.key, *one.also, one.old_key):
                    if key and store.owner(connection, tenant, one.channel, key) == owner:
                        given.new[n].key = key
                        break

    def _take_other_keys(self, connection: Connection, given: Checked, done: Sequence[EnqueuedJob]) -> None:
        """A post that was made takes the other keys under which it may be named, too; those that are taken stay where they are."""
        maker = self._app.engine.maker
        for one, new, made in zip(given.items, given.new, done, strict=True):
            for key in (*one.also, one.old_key) if made.created else ():
                if key:
                    maker.key_owner(connection, made.job.id, replace(new, key=key), take=True)

    def _new(self, one: Item, tenant: str | None) -> NewJob:
        chosen, payload, key = self._channels.get(one.channel), one.payload, one.key
        read_post(one.channel, payload)  # what is wrong with it is said here
        if payload.get("preview"):
            raise InvalidArgument(
                "payload.preview", "is true, and a preview is not published.", "Ask for it with preview()."
            )
        if key is not None and not key.strip():
            raise InvalidArgument("key", f"is {key!r}: a blank key would make one post of all.", "Give a key, or none.")
        given = {name: value for name, value in payload.items() if name != "preview" and value is not None}
        return self._app.prepare(
            PUBLISH, given, queue=one.channel, key=str(uuid.uuid4()) if key is None else key, unique_until="forever", run_at=one.run_at,
            max_attempts=chosen.max_attempts, tenant=tenant, meta=one.meta,
        )  # fmt: skip


def report(
    connector: Connector, post: Post, files: Mapping[str, preflight.File | None] | None = None
) -> preflight.Report:
    """What is to be said of a post for a channel's connector: by the channel's rules, and by what the connector refuses by itself."""
    found = preflight.check(post, connector.rules, files)
    if isinstance(connector, Refuses):
        try:
            connector.refuses(post)
        except Refusal as error:
            return found.with_refusal(error.verdict.reason)
    return found


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Do two payloads of one caption and the same media say the same? Paths count as names of files: a plan may have moved."""

    def told(payload: Mapping[str, Any], name: str) -> Any:
        value = payload.get(name) or None
        return [asset.get("alt") or "" for asset in value] if name == "assets" and value else value

    return all(told(one, name) == told(other, name) for name in _TEXTS)
