"""``Publishing(app)``: channels in an application, and what programs and people do with publications.

Making one defines the tasks of the room. Nothing here publishes: workers of the channels do (``handler.py``). What stands behind each part of
the door: ``channels.py``, ``enqueue.py``, ``read.py``, ``admin.py``, ``keep.py``. Source: R002, T002.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sqlalchemy import Connection

from duly.jobs.admin import JobAdmin
from duly.jobs.look import Found, until_of
from duly.jobs.run import INJECT, Context
from duly.jobs.session import borrowed
from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument
from duly.kernel.gate import Rate
from duly.kernel.owned import OnePer
from duly.kernel.payload import check_name, check_text
from duly.publishing.admin import PublicationAdmin
from duly.publishing.attempt import Running
from duly.publishing.channel import Channel, Unknown
from duly.publishing.channels import Channels
from duly.publishing.comments import commenting
from duly.publishing.connectors.base import Connector
from duly.publishing.enqueue import Checked, Item, Planned, PublicationMaker, item
from duly.publishing.function import Run
from duly.publishing.handler import publishing
from duly.publishing.hooks import Hooks
from duly.publishing.host import Host
from duly.publishing.keep import Keeper
from duly.publishing.post import Post, read_post
from duly.publishing.read import PublicationReader
from duly.publishing.view import (
    COMMENT,
    PUBLISH,
    Bulk,
    Enqueued,
    Publication,
    PublicationFilter,
    Status,
    Synced,
    TestAnswer,
)
from duly.storage.database import Database

if TYPE_CHECKING:
    from duly.publishing.plan import Plan

R = TypeVar("R")
# ``list`` is a method of the door
Publications: TypeAlias = list[Publication]
Batch: TypeAlias = list[Enqueued]

#: Why ``sync_plan`` cancels a post, with the plan's name behind.
SYNCED = "it is no longer in the plan"
#: Audit actions: of a publication and of a first comment that is there.
PUBLISHED, COMMENTED = "PUBLISHED", "FIRST_COMMENT_PUBLISHED"

#: The publications of each application, which holds them (``join``).
_made = OnePer["Publishing"]()


class Publishing:
    """The publications of an application. Channels are declared with ``channel``, or in the file of the setting ``publish_channels``.

    An application has one: ``Publishing(app)`` makes it, and later gives the same one.
    """

    #: As workers call its duty, and every how many seconds it is done.
    name, every = "publications", 15.0

    def __new__(cls, app: Host) -> Publishing:
        # a second one would have the tasks, and the channels and subscribers of the first would be dead
        return _made.get(app) or super().__new__(cls)

    def __init__(self, app: Host) -> None:
        if _made.get(app) is self:
            return
        self._app = app
        self._channels = Channels(app)
        self.hooks = Hooks(app.events)
        self._running = Running(app, self._channels.known, self.hooks)
        self._reader = PublicationReader(app)
        self._maker = PublicationMaker(app, self._channels, self._reader)
        self._admin = PublicationAdmin(app, self._reader)
        self._keeper = Keeper(app, self._channels, self._reader, self._admin, self._running)
        self._define()
        app.join(self)
        app.events.listen(self._keeper.heard)
        _made.keep(app, self)

    @classmethod
    def of(cls, app: Host) -> Publishing:
        """The publications of an application, as ``Publishing(app)``."""
        return cls(app)

    def _define(self) -> None:
        running = self._running

        async def publish(context: Context = INJECT, **payload: Any) -> dict[str, Any]:
            return await publishing(running, context, payload)

        async def ig_first_comment(media_id: str, text: str, context: Context = INJECT) -> dict[str, Any]:
            return await commenting(running, context, media_id, text)

        self._app.task(PUBLISH, audit_action=PUBLISHED)(publish)
        self._app.task(COMMENT, audit_action=COMMENTED)(ig_first_comment)

    # ------------------------------------------------------------------ channels

    def channel(
        self, name: str, connector: str | Connector | Callable[[Run], Any], *, limit: int | None = 1, rate: Any = None,
        max_attempts: int | None = None, backoff: Any = None, unknown: Unknown = "hold", breaker: Any = None, apart: Duration = 60.0,
        blackouts: Any = None, **options: Any,
    ) -> Channel:  # fmt: skip
        """Declare a channel, or replace one.

        ``connector``: its name (found by entry points, made with ``options``), an object that is one (``connectors.base.Connector``), or a
        function that is called with a ``Run``. ``limit``: publications at once in the whole cluster, None for any number; ``rate``:
        (count, seconds). Both are set on the queue when a worker begins, unless somebody else has set them since. ``max_attempts``, ``backoff`` (Backoff):
        else the settings ``publish_max_attempts`` and ``publish_backoff_…``. ``unknown``: "hold" or "retry" a post of which nobody can say
        whether it is there. ``breaker``: (failures, seconds). ``apart``: the duration that two posts are apart at the least; closer ones collide
        (``test``, ``collisions``), 0 for none. ``blackouts``: Windows, or mappings ``{days, start, end, tz, dates, name}``, in which nothing of
        the channel is published; kept when a worker begins. Raises InvalidArgument naming the field.
        """
        return self._channels.declare(
            name, connector, limit, rate, max_attempts, backoff, unknown, breaker, apart, blackouts, **options
        )  # fmt: skip

    def process(self, name: str, **options: Any) -> Callable[[Callable[[Run], R]], Callable[[Run], R]]:
        """Declare a channel whose posts the decorated function publishes. ``options`` as for ``channel``."""

        def declare(fn: Callable[[Run], R]) -> Callable[[Run], R]:
            self.channel(name, fn, **options)
            return fn

        return declare

    @property
    def channels(self) -> Mapping[str, Channel]:
        """Every channel, by name, in the order of declaration; those of the file come last. Raises InvalidDocument."""
        return self._channels.all()

    @property
    def undeclared(self) -> list[str]:
        """Channels that processes have declared before and this application does not: their posts wait, and their queues stay as they are."""
        known = self._channels.all()
        return sorted(name for name in self._read(self._store.declarations) if name not in known)

    def limit(self, channel: str) -> tuple[int | None, Rate | None]:
        """(limit, rate) of a channel: as they stand on its queue, or as the next worker that begins will set them."""
        chosen = self._channels.get(channel)
        return self._read(lambda c: self._reader.limit(c, chosen))

    # ------------------------------------------------------------------ hooks

    def on(self, name: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
        """Subscribe: ``@publishing.on("published") def told(publication, facts): …``, plain (on a thread) or async.

        ``process_job``: a run begins; ``published``: it is there (told again when a worker dies right after it was told);
        ``failed``: a post has failed for good, ``facts["error"]`` says why and ``facts["unknown"]`` whether it may be there all the same;
        ``ig_first_comment_error``: a first comment could not be made or failed for good, ``facts["error"]`` says why. What a subscriber
        raises is told as an event and harms nothing. Raises InvalidArgument for another name.
        """
        return self.hooks.on(name)

    # ------------------------------------------------------------------ enqueue

    def enqueue(
        self, channel: str, payload: Mapping[str, Any], *, run_at: datetime | None = None, key: str | None = None,
        tenant: str | None = None, session: Any = None, override: str | None = None, actor: str = "code",
    ) -> Enqueued:  # fmt: skip
        """Make a publication. Returns (publication, created): the one that has the key, unchanged, when it is taken (R002-2, R002-17).

        ``run_at``: aware; None is now. ``key``: without one, a UUID. ``session``: it is written in that transaction. The post is checked
        before, as those of a plan; ``override`` and ``actor`` as there. Raises InvalidArgument naming the field, PreflightFailed.
        """
        given = self._maker.check([Item("", channel, payload, run_at, key)], tenant, override, actor)
        return self._made_in(session, given)[0]

    async def aenqueue(
        self, channel: str, payload: Mapping[str, Any], *, run_at: datetime | None = None, key: str | None = None,
        tenant: str | None = None, session: Any = None, override: str | None = None, actor: str = "code",
    ) -> Enqueued:  # fmt: skip
        """As ``enqueue``, for callers on an event loop and for asynchronous sessions."""
        # on a thread: it looks at the files of the post
        one = Item("", channel, payload, run_at, key)
        given = await asyncio.to_thread(self._maker.check, [one], tenant, override, actor)
        if session is None:
            return (await self._db.arun(self._made_in, None, given))[0]
        if hasattr(session, "run_sync"):
            made: Batch = await session.run_sync(
                lambda s: self._maker.make(borrowed(s, self._db, asynchronous=True), given)
            )
            return made[0]
        return self._made_in(session, given)[0]

    def enqueue_plan(
        self, items: Sequence[Planned], *, tenant: str | None = None, session: Any = None, override: str | None = None, actor: str = "code"
    ) -> Batch:  # fmt: skip
        """Make the publications of a plan, all in one transaction, in order. The same plan twice gives the same ones, ``created`` False.

        Every post that is not there yet is checked before (``preflight``); with errors none is made. ``override``: a reason to make them all
        the same, audited (PUBLISH_OVERRIDDEN). Raises InvalidArgument, PreflightFailed.
        """
        return self._made_in(session, self._maker.check([item(one) for one in items], tenant, override, actor))

    def collisions(self, items: Sequence[Planned], tenant: str | None = None) -> dict[int, str]:
        """By number in the plan, what a new post collides with: another post of its channel less than ``apart`` seconds away (R002-23)."""
        given = [item(one) for one in items]
        return self._read(lambda c: self._maker.collisions(c, given, tenant))

    def there(self, items: Sequence[Planned], tenant: str | None = None) -> Sequence[Publication | None]:
        """The publication of each post of a plan that is there already; None for a new one."""
        given = [item(one) for one in items]

        def look(connection: Connection) -> Sequence[Publication | None]:
            owners = self._maker.owners(connection, given, tenant)
            found = {p.id: p for p in self._reader.many(connection, [one for one in owners if one is not None])}
            return [None if one is None else found.get(one) for one in owners]

        return self._read(look)

    def sync_plan(
        self, plan: Plan, items: Sequence[Planned] | None = None, *, tenant: str | None = None, override: str | None = None,
        actor: str = "code", dry_run: bool = False,
    ) -> Synced:  # fmt: skip
        """Make the database say what a plan says: cancel its posts that wait and are no longer in it, and make the new ones, in one transaction.

        ``items``: those of the plan that are to be made, if not all. What has begun or ended stays. A post that an earlier sync cancelled and
        that is in the plan again is replayed; one that a person cancelled stays cancelled. A post whose time one of this plan has taken already,
        in other words, is not made (``Synced.kept``). Raises as ``enqueue_plan``.
        """
        wanted = [item(one) for one in (plan.items if items is None else items)]
        every = [item(one) for one in plan.items]
        given = self._maker.check(wanted, tenant, override, actor)

        def act(connection: Connection) -> Synced:
            gone = self._maker.withdrawn(connection, plan, every, tenant)
            old = self._reader.many(connection, gone)
            leaving = {f"publication {ident}" for ident in gone}
            kept = {
                n: ident
                for n, ident in self._maker.begun(connection, plan, wanted, tenant).items()
                if ident not in gone
            }
            close = {
                n: other
                for n, other in self._maker.collisions(connection, wanted, tenant).items()
                if n not in kept and other not in leaving
            }
            if dry_run:
                return Synced([], old, close, kept)
            admin = JobAdmin(self._app.engine)
            admin.cancel_in(connection, gone, actor, f"{SYNCED} {plan.name}")
            self._maker.follow(connection, wanted, tenant)
            made = self._maker.make(connection, given.without(kept))
            back = [one.job.id for one in made if one.job.status is Status.CANCELLED]
            by = self._app.engine.reader.cancelled_by(connection, back)
            for ident in back:
                if by.get(ident, ("", ""))[1].startswith(SYNCED):
                    self._admin.replay(connection, ident, actor, f"it is in the plan {plan.name} again", tenant)
            again = {p.id: p for p in self._reader.many(connection, back)}
            jobs = [Enqueued(again.get(job.id, job), created) for job, created in made]
            stands = {p.id: p for p in self._reader.many(connection, [*kept.values()])}
            for n in sorted(kept):
                jobs.insert(n, Enqueued(stands[kept[n]], False))
            return Synced(jobs, old, close, kept)

        return self._read(act) if dry_run else self._write(act)

    def _made_in(self, session: Any, given: Checked) -> Batch:
        if session is not None:
            return self._maker.make(borrowed(session, self._db, asynchronous=False), given)
        return self._write(lambda c: self._maker.make(c, given))

    # ------------------------------------------------------------------ looking

    def get(self, ident: int, tenant: str | None = None) -> Publication:
        """One publication as it stands now. Raises NotFound, also when it is another tenant's than ``tenant``."""
        return self._read(lambda c: self._reader.get(c, ident, tenant))

    def list(
        self, filter: PublicationFilter | None = None, limit: int = 50, below: int | None = None
    ) -> Publications:  # fmt: skip
        """Publications, newest first. ``limit``: from 1 to 10,000. ``below``: only ids below this one, the last of the page before."""
        return self.look(filter, limit, below).rows

    def look(
        self, filter: PublicationFilter | None = None, limit: int = 50, below: int | None = None, seconds: float | None = None
    ) -> Found[Publication]:  # fmt: skip
        """The same for those who wait: it stops after so many seconds, and says how far it came."""
        wanted = filter or PublicationFilter()
        until = until_of(seconds)

        def look(connection: Connection) -> Found[Publication]:
            found: Found[int] = self._store.look(connection, wanted, limit, below, until)
            return found.told(lambda ids: self._reader.many(connection, ids))

        self._app.open()
        return self._db.snapshot(look)

    def get_runnable_jobs(self, channel: str | None = None, limit: int = 100) -> Publications:
        """What claims would take now, without taking it: pending and due, in channels that nothing holds, within their limits (R002-7).

        At most ``limit`` of each channel, so that none hides another; all of them by run_at and id.
        """
        wanted = [self._channels.get(channel)] if channel is not None else [*self.channels.values()]
        return self._read(lambda c: self._reader.runnable(c, wanted, limit))

    def test(
        self, channel: str, payload: Mapping[str, Any] | None = None, run_at: datetime | None = None, key: str | None = None,
        tenant: str | None = None,
    ) -> TestAnswer:  # fmt: skip
        """What would become of a publication at an instant (aware; None is now), by what is known now. Nothing is written (R002-13).

        A pause and the gate have no end: they count for a later instant too. Raises InvalidArgument.
        """
        chosen = self._channels.get(channel)
        report = None if payload is None else self._maker.report(channel, payload)
        if run_at is not None and (not isinstance(run_at, datetime) or run_at.tzinfo is None):
            raise InvalidArgument("run_at", f"is {run_at!r}; it must be a datetime with a time zone.")
        if key is not None:
            check_name(key, "key")
        whose = tenant or self._app.settings.tenant

        def look(connection: Connection) -> TestAnswer:
            taken = None if key is None else self._reader.collision(connection, whose, channel, key)
            if taken is not None:
                return taken
            if report is not None and not report.ok:
                return TestAnswer("preflight", "; ".join(str(finding) for finding in report.errors))
            return self._reader.foretell(connection, chosen, run_at, whose)

        return self._read(look)

    def preview(self, channel: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """What would be published, for people. Nothing is asked of the other side and nothing is written (R002-15)."""
        chosen = self._channels.get(channel)
        return chosen.connector.preview(read_post(channel, payload))

    def post(self, channel: str, payload: Mapping[str, Any]) -> Post:
        """A payload, checked. Raises InvalidArgument naming the field."""
        return read_post(self._channels.get(channel).name, payload)

    # ------------------------------------------------------------------ acting

    def replay(self, ident: int, actor: str = "code", reason: str = "", tenant: str | None = None) -> Publication:
        """Run a failed or cancelled publication again: attempts from 0, due now, same key (R002-16). One that was cancelled before its planned
        instant goes back to it. One that is there by what is on record ends as completed, without a call (T002-h). Of two replays at once one
        wins. Raises NotFound, WrongState when it has neither failed nor been cancelled.
        """
        check_text(reason, "reason")
        return self._write(lambda c: self._admin.replay(c, ident, actor, reason, tenant))

    def cancel(self, ident: int, actor: str = "code", reason: str = "", tenant: str | None = None) -> Publication:
        """Cancel a publication that has not ended. A pending one is cancelled at once; a running one is asked to stop, and what it has sent by then
        may be there: ``keep`` completes it, or tells that nobody knows. Raises NotFound, WrongState.
        """
        self.get(ident, tenant)
        self._admin.cancel(ident, actor, reason, tenant)
        return self.get(ident, tenant)

    def replay_many(
        self, filter: PublicationFilter, actor: str = "code", reason: str = "", limit: int = 10_000
    ) -> Bulk:  # fmt: skip
        """Replay the failed publications that fit the filter, each on its own feet. A cancelled one is replayed only where the filter names its
        id (R002-25). Raises InvalidArgument for a filter that names nothing, or the status cancelled without ids.
        """
        self._app.open()
        return self._admin.replay_many(filter, actor, reason, limit)

    def cancel_many(
        self, filter: PublicationFilter, actor: str = "code", reason: str = "", limit: int = 10_000
    ) -> Bulk:  # fmt: skip
        """Cancel the publications that fit the filter and have not ended, each on its own feet. Raises InvalidArgument as ``replay_many``."""
        self._app.open()
        return self._admin.cancel_many(filter, actor, reason, limit)

    # ------------------------------------------------------------------ what workers do

    def queues(self) -> set[str]:
        """The queues of the channels: a worker without queues of its own serves them. Raises InvalidDocument."""
        return set(self.channels)

    def wanted(self) -> set[str]:
        """Tasks of other rooms whose jobs the channels make: somebody has to run them. Raises InvalidDocument."""
        return {task for one in self.channels.values() for task in getattr(one.connector, "tasks", ())}

    def declarations(self) -> dict[str, str]:
        """What this process declares of channels, for a worker's row: name → a mark of the definition."""
        return self._keeper.declarations()

    def keep(self) -> int:
        """Complete failed and cancelled jobs whose publication is there, and tell of those of which nobody knows. Returns how many it completed.

        Both come from a worker that was lost in its job's last run, or from a run that was cancelled in its middle.
        """
        self._app.open()
        self._keeper.retime()
        self._keeper.tokens()
        self._keeper.revive()
        self._keeper.catch_up()
        return self._keeper.keep()

    # ------------------------------------------------------------------ the database

    @property
    def _db(self) -> Database:
        return self._app.engine.db

    @property
    def _store(self) -> Any:
        return self._reader.store

    def _read(self, fn: Callable[[Connection], R]) -> R:
        self._app.open()
        return self._db.read(fn)

    def _write(self, fn: Callable[[Connection], R]) -> R:
        self._app.open()
        out = self._db.write(fn)
        self._db.bells.ring()
        return out
