"""What people do to publications: replay and cancel, one by one or by filter. What is there by what is on record ends as completed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from duly.jobs.admin import JobAdmin
from duly.jobs.job import Status as JobStatus
from duly.kernel.errors import DulyError, InvalidArgument, WrongState
from duly.kernel.payload import check_text
from duly.publishing.host import Host
from duly.publishing.read import PublicationReader
from duly.publishing.state import State
from duly.publishing.view import ENGINE, REPLAYED, Bulk, Publication, PublicationFilter, Status

#: How many are acted on in one transaction.
PORTION = 200


class PublicationAdmin:
    """Acts on publications. ``actor`` is who asks, as it will stand in the audit trail."""

    def __init__(self, app: Host, reader: PublicationReader) -> None:
        self._app, self._reader = app, reader

    def replay(
        self, connection: Connection, ident: int, actor: str, reason: str, tenant: str | None, fit: tuple[Status, ...] = REPLAYED
    ) -> Publication:  # fmt: skip
        """Run a failed or cancelled one again (R002-16), a cancelled one at its planned instant; one that is there by what is on record ends as
        completed (T002-h). Raises NotFound, WrongState."""
        found = self._reader.get(connection, ident, tenant)
        if found.status not in fit:
            raise WrongState(f"publication {ident}", found.status, "replay", fit)
        try:
            JobAdmin(self._app.engine).replay_in(connection, ident, actor, reason)
        except WrongState as error:
            raise _wrong(ident, error, "replay", REPLAYED) from None
        trace = self._reader.store.traces(connection, [ident]).get(ident)
        if trace is not None and trace.state is State.PUBLISHED:
            self._complete(connection, ident, actor)
        return self._reader.get(connection, ident, tenant)

    def complete(self, connection: Connection, ident: int) -> None:
        """End one as completed that failed or was cancelled although it is there. Raises WrongState when somebody else was faster."""
        JobAdmin(self._app.engine).replay_in(connection, ident, "publishing", "it is published")
        self._complete(connection, ident, "publishing")

    def _complete(self, connection: Connection, ident: int, actor: str) -> None:
        """End a job that waits as completed: what it was to publish is there."""
        engine = self._app.engine
        self._reader.store.settle_remote(connection, ident)
        job = engine.reader.get(connection, ident)
        engine.store.archive(
            connection, [ident], JobStatus.SUCCEEDED, actor, engine.policy(job.task).completed_action, meta={"found": True}
        )  # fmt: skip

    def cancel(self, ident: int, actor: str, reason: str, tenant: str | None) -> None:
        """Cancel one that has not ended. Raises WrongState."""
        try:
            JobAdmin(self._app.engine).cancel(ident, actor, tenant, reason)
        except WrongState as error:
            raise _wrong(ident, error, "cancel", ("pending", "running")) from None

    def replay_many(self, filter: PublicationFilter, actor: str, reason: str, limit: int) -> Bulk:
        """Replay those that fit and have failed. What a person cancelled is replayed by its id, never by a filter (R002-25)."""
        check_text(reason, "reason")
        if Status.CANCELLED in filter.status and not filter.ids:
            raise InvalidArgument(
                "status", "names cancelled publications, and a filter never replays those.", "Replay a cancelled one by its id."
            )  # fmt: skip

        # asked again where it is acted on: a person may have cancelled it since it was found
        fit = REPLAYED if filter.ids else (Status.FAILED,)

        def act(connection: Connection, ident: int) -> object:
            return self.replay(connection, ident, actor, reason, filter.tenant, fit)

        return self._act(filter, fit, limit, act)

    def cancel_many(self, filter: PublicationFilter, actor: str, reason: str, limit: int) -> Bulk:
        """Cancel those that fit and have not ended."""
        check_text(reason, "reason")
        admin = JobAdmin(self._app.engine)

        def act(connection: Connection, ident: int) -> None:
            admin.cancel_in(connection, [ident], actor, reason)

        return self._act(filter, (Status.PENDING, Status.RUNNING), limit, act)

    def _act(
        self, filter: PublicationFilter, fit: Sequence[Status], limit: int, act: Callable[[Connection, int], object]
    ) -> Bulk:  # fmt: skip
        if not filter.narrow:
            raise InvalidArgument(
                "filter", "names nothing that narrows it down.", "Give a channel, a type, a key, a time or ids."
            )
        wanted = [s for s in (filter.status or fit) if s in fit]
        if not wanted:
            return Bulk()
        given = {name: getattr(filter, name) for name in filter.__dataclass_fields__} | {"status": tuple(wanted)}
        db, store = self._app.engine.db, self._reader.store
        ids = sorted(db.read(lambda c: store.find(c, PublicationFilter(**given), limit)))
        out = Bulk()
        for start in range(0, len(ids), PORTION):
            done, refused = db.write(lambda c, part=ids[start : start + PORTION]: _each(c, part, act))  # type: ignore[misc]
            out.done.extend(done)
            out.refused.update(refused)
        db.bells.ring()
        return out


def _each(
    connection: Connection, part: Sequence[int], act: Callable[[Connection, int], object]
) -> tuple[list[int], dict[int, str]]:
    """Act on each on its own feet. Returns (those it did, those it could not do and why)."""
    good, bad = list[int](), dict[int, str]()
    for ident in part:
        try:
            with connection.begin_nested():
                act(connection, ident)
            good.append(ident)
        except DulyError as error:
            bad[ident] = str(error)
    return good, bad


def _wrong(ident: int, error: WrongState, event: str, allowed: tuple[str, ...]) -> WrongState:
    """An engine's refusal in the words of this door."""
    words = {str(job): str(here) for here, states in ENGINE.items() for job in states}
    return WrongState(f"publication {ident}", words.get(error.current, error.current), event, allowed)
