"""What workers do for the room besides running its jobs: ends that no run reports, and what channels say of their queues."""

from __future__ import annotations

from sqlalchemy import Connection

from duly.kernel.errors import DulyError, WrongState, brief
from duly.kernel.events import Event
from duly.publishing.admin import PublicationAdmin
from duly.publishing.attempt import TOLD, Running
from duly.publishing.channels import Channels
from duly.publishing.host import Host
from duly.publishing.read import PublicationReader, settled
from duly.publishing.view import COMMENT, TYPES, Status


class Keeper:
    """The room's duty, and what it does about events."""

    def __init__(
        self, app: Host, channels: Channels, reader: PublicationReader, admin: PublicationAdmin, running: Running
    ) -> None:  # fmt: skip
        self._app, self._channels, self._reader, self._admin, self._running = app, channels, reader, admin, running

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

    def heard(self, event: Event) -> None:
        """A worker of a channel begins: what the channel says becomes the queue's limit and rate. A first comment has failed: it is told."""
        if event.name == "job_failed" and event.facts.get("task") == COMMENT:
            self._comment_failed(event.facts["job"])
        elif event.name == "jobs_rescued":
            for ident in event.facts.get("ended", ()):
                self._comment_failed(ident)
        elif event.name == "worker_started":
            for name in event.facts.get("queues", ()):
                self._limit(name)

    def _limit(self, name: str) -> None:
        """What a channel says becomes its queue's limit and rate, unless somebody else has set them."""

        def write(connection: Connection) -> bool:
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
            if self._app.engine.db.write(write):
                self._app.engine.db.bells.ring()
                self._app.engine.db.controls.ring()
        except Exception as error:
            self._app.events.emit("publish_limit_failed", "warning", queue=name, error=brief(error))

    def _comment_failed(self, ident: int) -> None:
        """A first comment has failed for good. The parent stands as it is (R002-20)."""
        try:
            found = self._app.engine.db.read(lambda c: self._reader.get(c, ident, None))
        except DulyError:
            return
        if found.type == TYPES[COMMENT] and found.status is Status.FAILED:
            self._running.tell_comment_error(found, found.parent_id, found.error or "it failed")
