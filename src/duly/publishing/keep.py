"""What workers do for the room besides running its jobs: ends that no run reports, and what channels say of their queues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from duly.audit.store import record
from duly.jobs.declarations import is_behind, is_late, living, mark
from duly.kernel.errors import DulyError, WrongState, brief
from duly.kernel.events import Event
from duly.kernel.localtime import resolve, tz_version
from duly.kernel.verdict import Refusal
from duly.publishing.admin import PublicationAdmin
from duly.publishing.attempt import TOLD, Running
from duly.publishing.channel import Channel, declared_by
from duly.publishing.channels import Channels
from duly.publishing.connectors.base import Ends
from duly.publishing.enqueue import LOCAL, ZONE, ZONE_DATA
from duly.publishing.host import Host
from duly.publishing.read import PublicationReader, settled
from duly.publishing.view import COMMENT, TYPES, Status

#: Audit action: other zone data moved a post that waits.
RETIMED = "PUBLISH_RETIMED"
#: Seconds between two looks at the zone data of posts; posts that are looked at at a time.
LOOK_EVERY, PORTION = 3600.0, 1000
#: Seconds between two questions for the end of a channel's access; between two tries of a paused channel, at first and at the most.
ASK_EVERY, REVIVE_EVERY, REVIVE_MOST = 43_200.0, 60.0, 21_600.0


def _newer(row: Any) -> tuple[datetime, str] | None:
    """(instant, release of the zone data) of a post whose instant older zone data gave; None where it stands, or cannot be told."""
    meta = row.meta or {}
    local, tz, was = meta.get(LOCAL), meta.get(ZONE), meta.get(ZONE_DATA)
    if not (isinstance(local, str) and isinstance(tz, str) and isinstance(was, str)):
        return None
    try:
        version = tz_version(tz)
        if version == "unknown" or version <= was:
            return None
        return resolve(datetime.fromisoformat(local), tz)[0], version
    except (DulyError, ValueError):
        return None  # this machine does not know the zone: another may


def _declaration(channel: str) -> str:
    """What a worker's row calls a channel that its code declares."""
    return f"channel:{channel}"


class Keeper:
    """The room's duty, and what it does about events."""

    def __init__(
        self, app: Host, channels: Channels, reader: PublicationReader, admin: PublicationAdmin, running: Running
    ) -> None:  # fmt: skip
        self._app, self._channels, self._reader, self._admin, self._running = app, channels, reader, admin, running
        #: When posts were looked at for other zone data last (monotonic).
        self._looked: float | None = None
        #: When channels were asked for the end of their access last (monotonic); how often a channel was revived, and when it may be tried again.
        self._asked: float | None = None
        self._tried: dict[str, tuple[int, float]] = {}

    def keep(self) -> int:
        """Complete failed and cancelled jobs whose publication is there, and tell of those of which nobody knows. Returns how many it completed."""
        db, store = self._app.engine.db, self._reader.store
        done = 0
        for ident in db.read(store.published_but_failed):
            try:
                db.write(lambda c, i=ident: self._admin.complete(c, i))  # type: ignore[misc]
                done += 1
            except WrongState:
                continue  # somebody else was faster
        for ident, channel, cancelled in db.write(lambda c: store.untold(c, TOLD)):
            reason = "it was cancelled after it may have been sent" if cancelled else "the worker was lost"
            self._running.tell_unknown(ident, channel, reason)
        return done

    def retime(self) -> int:
        """Move posts that wait to what the wall clock's time means by newer zone data than gave their instant. Returns how many it moved.

        Zone data change with a process, so each looks when it begins, and every hour for posts that a process with older data has planned.
        """
        clock, engine = self._app.engine.clock.monotonic(), self._app.engine
        if self._looked is not None and clock - self._looked < LOOK_EVERY:
            return 0
        self._looked = clock
        store, above, moved = self._reader.store, 0, list[int]()
        while True:
            rows = engine.db.read(lambda c, a=above: store.planned_by_clock(c, a, PORTION))  # type: ignore[misc]
            late = [(row, found) for row in rows if (found := _newer(row)) is not None]
            if late:
                moved += engine.db.write(lambda c, part=late: self._move(c, part))  # type: ignore[misc]
            if len(rows) < PORTION:
                break
            above = rows[-1].id
        if moved:
            self._app.events.emit("posts_retimed", "warning", count=len(moved), jobs=moved[:20])
            engine.db.bells.ring()
        return len(moved)

    def _move(self, connection: Connection, late: Sequence[tuple[Any, tuple[datetime, str]]]) -> list[int]:
        moved = []
        for row, (at, version) in late:
            meta = {**row.meta, ZONE_DATA: version}
            if self._reader.store.retime(connection, row.id, row.due_at, at, meta) and at != row.due_at:
                moved.append(row.id)
                record(
                    self._app.engine.db, connection, actor="publishing", action=RETIMED, entity="job", entity_id=row.id, tenant=row.tenant,
                    meta={"was": row.due_at.isoformat(), "run_at": at.isoformat(), "local": row.meta[LOCAL], "tz": row.meta[ZONE]},
                )  # fmt: skip
        return moved

    def tokens(self) -> None:
        """Ask twice a day when the access of each channel ends, for the alert ``publish_token_ending``."""
        clock = self._app.engine.clock.monotonic()
        if self._asked is not None and clock - self._asked < ASK_EVERY:
            return
        self._asked = clock
        for name, channel in self._channels.all().items():
            if not isinstance(channel.connector, Ends):
                continue
            try:
                ends_at = asyncio.run(channel.connector.ends())
            except Refusal:
                continue  # its posts will say so
            except Exception as error:
                self._app.events.emit("publish_check_failed", "warning", channel=name, error=brief(error))
                continue
            self._app.engine.db.write(lambda c, n=name, at=ends_at: self._reader.store.token_ends(c, n, at))  # type: ignore[misc]

    def revive(self) -> list[str]:
        """Try channels that publishing has paused: their secret may have been replaced. Returns those that go on again.

        A channel whose posts are refused again soon after is tried ever more seldom: its check says less than a post does.
        """
        app, now = self._app, self._app.engine.clock.monotonic()
        paused = [
            name
            for name in app.engine.db.read(self._reader.store.paused_by_us)
            if now >= self._tried.get(name, (0, 0.0))[1]
        ]
        if not paused:
            return []
        self._channels.reload()
        out = []
        for name in paused:
            times = self._tried.get(name, (0, 0.0))[0]
            self._tried[name] = (times, now + REVIVE_EVERY)
            channel = self._channels.known(name)
            if channel is None:
                continue
            try:
                asyncio.run(channel.connector.check())
            except Exception:  # noqa: S112  # it stays paused, and the alert says so
                continue
            self._tried[name] = (times + 1, now + min(REVIVE_EVERY * 4.0 ** (times + 1), REVIVE_MOST))
            app.queues.resume(name, actor="publishing")
            app.events.emit("publish_resumed", "info", channel=name)
            out.append(name)
        return out

    def heard(self, event: Event) -> None:
        """A worker of a channel begins: what the channel says becomes the queue's limit and rate. A post or a first comment has failed: it is told."""
        if event.name == "job_failed" and event.facts.get("task") in TYPES:
            self._failed(event.facts["job"])
        elif event.name == "jobs_rescued":
            for ident in event.facts.get("ended", ()):
                self._failed(ident)
        elif event.name == "worker_started":
            for name in event.facts.get("queues", ()):
                self._limit(name)

    def _limit(self, name: str) -> None:
        """What a channel says becomes its queue's limit and rate, unless somebody else has set them, and its blackouts. All in one transaction, with
        what is declared locked: of two processes that start together the older one overwrites nothing (E2)."""

        def write(connection: Connection) -> bool | None:
            if not self._declares(connection, channel):
                return None
            self._blackouts(connection, channel)
            queues, store = self._app.engine.queues, self._reader.store
            ours = store.set_by_us(connection, channel.name, lock=True)  # before the queue's row, as the breaker does
            there = queues.get(connection, channel.name, lock=True)
            wanted = settled(channel, there, ours)
            changed = wanted != (there.limit, there.rate)
            if changed:
                queues.set(connection, channel.name, "publishing", limit=wanted[0], rate=wanted[1])
            # somebody who sets what is declared leaves it to the declaration again
            mine = (
                wanted[0] if wanted[0] == channel.limit else ours[0],
                wanted[1] if wanted[1] == channel.rate else ours[1],
            )
            if mine != ours:
                store.remember_set(connection, channel.name, *mine)
            return changed

        try:
            found = self._channels.known(name)  # a worker that names its queues has not read the file yet
            if found is None:
                return
            channel = found
            changed = self._app.engine.db.write(write)
            if changed is None:
                self._app.events.emit("publish_definition_old", "warning", channel=name)
            elif changed:
                self._app.engine.db.bells.ring()
                self._app.engine.db.controls.ring()
        except Exception as error:
            self._app.events.emit("publish_limit_failed", "warning", queue=name, error=brief(error))

    def declarations(self) -> dict[str, str]:
        """What this process declares, for a worker's row: name → a mark of the definition."""
        try:
            return {_declaration(name): mark(channel.definition) for name, channel in self._channels.all().items()}
        except DulyError:
            return {}  # the file cannot be read: it declares nothing, and its queues say so

    def _declares(self, connection: Connection, channel: Channel) -> bool:
        """Does what this process declares of a channel count? Not where newer code has replaced it (E2)."""
        store, own = self._reader.store, mark(channel.definition)
        db, (order, at) = self._app.engine.db, store.declaration(connection, channel.name)
        lives = living(db, connection).get(_declaration(channel.name), ())
        if is_behind(own, order, lives, is_late(db.present(connection), at)):
            return False
        if not order or order[-1] != own:
            store.declare(connection, channel.name, declared_by(order, own))
        return True

    def catch_up(self) -> None:
        """Look again at channels of which another definition counts: where no worker with newer code lives any more, this one does."""
        engine, store = self._app.engine, self._reader.store
        there, lives, now = engine.db.read(
            lambda c: (store.declarations(c), living(engine.db, c), engine.db.present(c))
        )
        for name, channel in self._channels.all().items():
            own, (order, at) = mark(channel.definition), there.get(name, ((), None))
            if (
                order
                and order[-1] != own
                and not is_behind(own, order, lives.get(_declaration(name), ()), is_late(now, at))
            ):
                self._limit(name)

    def _blackouts(self, connection: Connection, channel: Channel) -> None:
        """The windows that stand beside a channel become its blackouts; those that no longer stand there are removed (R002-24)."""
        calendars, source = self._app.engine.calendars, f"channel.{channel.name}"
        there = {b.name: b for b in calendars.all(connection) if b.source == source}
        if {n: b.window for n, b in there.items()} != {w.name: w for w in channel.blackouts}:
            calendars.replace_all(connection, source, channel.blackouts, "publishing", "declared beside the channel")

    def _failed(self, ident: int) -> None:
        """A post or a first comment has failed for good: subscribers are told. A comment's parent stands as it is (R002-20)."""
        try:
            found = self._app.engine.db.read(lambda c: self._reader.get(c, ident, None))
        except DulyError:
            return
        if found.type == TYPES[COMMENT] and found.status is Status.FAILED:
            self._running.tell_comment_error(found, found.parent_id, found.error or "it failed")
        elif found.status is Status.FAILED:
            self._running.tell_failed(found)
