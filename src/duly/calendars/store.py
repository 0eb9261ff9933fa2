"""Keeping blackouts, and answering those who must obey them. Every statement about the table is here.

Two kinds of questions are asked. Claims ask, at every batch and in their own statement, whether a queue is held now; they read
one column, ``holds_from`` (``tables.held``). Everybody else (``duly why``, schedules, people) asks the ``Calendar``.

``holds_from`` is what the window says, worked out beforehand: the start of the stretch that covers the present, or of the next
one. From that instant on the claim holds, whoever looks and whatever any worker believes. When the stretch has ended, a worker
moves the row to the next (``advance``), and only that lets work go again. So whatever fails on the way (nobody there to move it,
a row written by hand, a zone that this machine does not know) ends in silence and not in a text at night. An edit writes
the row and its stretch in one transaction: the next claim obeys it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Connection, Text, bindparam, cast, delete, func, select, update

from duly.audit.store import record
from duly.calendars.blackout import Blackout, read_window, written
from duly.calendars.plan import hold
from duly.calendars.stretch import OFF, Hold
from duly.calendars.tables import blackouts
from duly.kernel.errors import InvalidArgument, NotFound, UnreadableHere
from duly.kernel.events import Emitter
from duly.kernel.payload import check_name, check_text
from duly.kernel.windows import MOST_WINDOWS, Calendar, Coverage, Window
from duly.storage.database import Database
from duly.storage.qualified import text
from duly.storage.types import Instant

_COLUMNS = [c for c in blackouts.c if c.name != "definition"]


class Leaves(Protocol):
    """Who remembers what is left to others."""

    def note(self, what: str, name: str, error: UnreadableHere) -> None: ...

    def turn(self, what: str) -> None: ...


class CalendarStore:
    """Blackouts in a database."""

    def __init__(self, db: Database, emitter: Emitter, leaves: Leaves) -> None:
        """``leaves``: told of a blackout that this process cannot read and another one may."""
        self.db, self.emitter, self._leaves = db, emitter, leaves
        #: Rows that cannot be read and were told of: (name, definition).
        self._told: set[tuple[str, str]] = set()
        #: Those that another process can read, as they were read last: only that one moves them.
        self.left: set[str] = set()

    # ------------------------------------------------------------------ reading

    def all(self, connection: Connection) -> list[Blackout]:
        """Every blackout, by name, those that are off or cannot be read too."""
        return self._find(connection)

    def get(self, connection: Connection, name: str) -> Blackout:
        """One blackout. Raises NotFound."""
        found = self._find(connection, blackouts.c.name == name)
        if not found:
            raise NotFound("blackout", name)
        return found[0]

    def calendar(self, connection: Connection) -> Calendar:
        """The windows that count now: all enabled ones, and one without an end for each that cannot be read.

        Read afresh each time (an unchanged row costs no parsing), so what was written a moment ago, also by hand, is in it.
        """
        return Calendar([window for b in self._find(connection, blackouts.c.enabled) for window in b.windows])

    def covering(self, connection: Connection, *scopes: str, at: datetime | None = None) -> Coverage | None:
        """What holds one of ``scopes`` (``all`` included) at an aware instant or now, and until when; None if nothing does."""
        at = at if at is not None else self.db.present(connection)
        return self.calendar(connection).applying_to(*scopes).covering(at)

    def _find(self, connection: Connection, *where: Any, lock: bool = False) -> list[Blackout]:
        query = select(*_COLUMNS, cast(blackouts.c.definition, Text).label("said")).where(*where)
        query = query.order_by(blackouts.c.name)
        rows = connection.execute(query.with_for_update(skip_locked=True) if lock else query)
        return [self._blackout(row) for row in rows]

    def _blackout(self, row: Any) -> Blackout:
        window, problem, left = read_window(row.said, row.name, row.scope)
        if left is not None:
            self.left.add(row.name)
            self._leaves.note("blackout", row.name, left)
        else:
            self.left.discard(row.name)
            if problem:
                self._tell(row.name, row.scope, row.said, problem)
        return Blackout(
            row.name, row.scope, window, problem, row.said, bool(row.enabled), row.version, Hold(row.holds_from, row.holds_until),
            row.reason, row.source, row.created_at, row.updated_at, row.updated_by, left,
        )  # fmt: skip

    # ------------------------------------------------------------------ changing

    def set(
        self,
        connection: Connection,
        window: Window,
        actor: str,
        reason: str = "",
        *,
        enabled: bool = True,
        source: str | None = None,
    ) -> Blackout:
        """Keep a window under its name; one that is there by this name is replaced. Audited as BLACKOUT_SET.

        In force when the transaction commits: the next claim obeys. Raises InvalidArgument.
        """
        if not isinstance(window, Window):
            raise InvalidArgument("window", f"is of type {type(window).__name__}.", "Give a Window.")
        if window.name is None:
            raise InvalidArgument("window.name", "is missing.", "Give the window a name: it is found by it again.")
        check_text(reason, "reason")
        check_text(window.scope, "window.scope")
        if source is not None:
            check_name(source, "source")
        before = None if self._make(connection, window) else self.locked(connection, window.name)
        values = {"scope": window.scope, "definition": written(window), "source": source}
        self._write(connection, window.name, window, enabled, actor, reason, before.version if before else 0, **values)
        meta = {"reason": reason, "scope": window.scope, "window": window.describe(), "enabled": enabled}
        if before is not None:
            meta |= {"was": before.describe(), "was_scope": before.scope}
        self._record(connection, "BLACKOUT_SET", window.name, actor, meta)
        return self.get(connection, window.name)

    def switch(self, connection: Connection, name: str, on: bool, actor: str, reason: str = "") -> Blackout:
        """Let a blackout hold, or not, and keep it. Audited as BLACKOUT_ENABLED or BLACKOUT_DISABLED. Raises NotFound."""
        check_text(reason, "reason")
        before = self.locked(connection, name)
        if before.enabled is not on:
            kept = reason or before.reason or ""
            self._write(connection, name, before.window, on, actor, kept, before.version)
            action = "BLACKOUT_ENABLED" if on else "BLACKOUT_DISABLED"
            self._record(connection, action, name, actor, {"reason": reason, "scope": before.scope})
        return self.get(connection, name)

    def remove(self, connection: Connection, name: str, actor: str, reason: str = "") -> Blackout:
        """Take a blackout away and return what it was. Audited as BLACKOUT_REMOVED. Raises NotFound."""
        check_text(reason, "reason")
        before = self.locked(connection, name)
        connection.execute(delete(blackouts).where(blackouts.c.name == name))
        meta = {"reason": reason, "scope": before.scope, "window": before.describe()}
        self._record(connection, "BLACKOUT_REMOVED", name, actor, meta)
        return before

    def replace_all(
        self, connection: Connection, source: str, windows: Sequence[Window], actor: str, reason: str = ""
    ) -> list[Blackout]:
        """Keep the windows of an import, and remove what an earlier one of that name left. In the caller's transaction.

        Raises InvalidArgument when a name belongs to a blackout that came from elsewhere.
        """
        names = {window.name for window in windows}
        there = {b.name: b for b in self._find(connection)}
        for window in windows:
            found = there.get(window.name or "")
            if found is not None and found.source != source:
                raise InvalidArgument(
                    "name",
                    f"would replace the blackout {found.name}, which is not from this import.",
                    "Choose another name for the import, or remove that blackout.",
                )
        for gone in [b.name for b in there.values() if b.source == source and b.name not in names]:
            self.remove(connection, gone, actor, reason or f"not in {source} any more")
        return [self.set(connection, window, actor, reason, source=source) for window in windows]

    def _make(self, connection: Connection, window: Window) -> bool:
        """Make the row of a window's name, locked and without its window yet. False if it is there."""
        statement = text(
            "INSERT INTO blackouts (name, scope, definition, enabled, version, created_at, updated_at, updated_by) "
            "VALUES (:name, :scope, '{}', false, 0, :now, :now, '') ON CONFLICT (name) DO NOTHING"
        ).bindparams(bindparam("now", type_=Instant))
        values = {"name": window.name, "scope": window.scope, "now": self.db.present(connection)}
        if not connection.execute(statement, values).rowcount:
            return False
        if connection.execute(select(func.count()).select_from(blackouts)).scalar_one() > MOST_WINDOWS:
            raise InvalidArgument(
                "name",
                f"would be one more than the {MOST_WINDOWS} blackouts that there may be.",
                "Remove what is over, or join windows by their dates.",
            )
        return True

    def locked(self, connection: Connection, name: str) -> Blackout:
        """One blackout, which nobody else changes until the transaction ends. Raises NotFound."""
        connection.execute(select(blackouts.c.name).where(blackouts.c.name == name).with_for_update())
        return self.get(connection, name)

    def _write(
        self,
        connection: Connection,
        name: str,
        window: Window | None,
        enabled: bool,
        actor: str,
        reason: str,
        version: int,
        **values: Any,
    ) -> None:
        now = self.db.present(connection)
        # what was known of another window says nothing of this one
        stretch = hold(window, now, Hold()) if enabled else OFF
        connection.execute(
            update(blackouts).where(blackouts.c.name == name)
            .values(enabled=enabled, version=version + 1, holds_from=stretch.since, holds_until=stretch.until,
                    reason=reason or None, updated_at=now, updated_by=actor, **values)
        )  # fmt: skip

    def _record(self, connection: Connection, action: str, name: str, actor: str, meta: dict[str, Any]) -> None:
        record(
            self.db,
            connection,
            actor=actor,
            action=action,
            entity="blackout",
            entity_id=name,
            level="warning",
            meta=meta,
        )
        self.db.announce(connection)

    # ------------------------------------------------------------------ the mover

    def outdated(self, connection: Connection) -> list[str]:
        """The names of rows whose stretch is over, or is not what their window says (edited by hand, other zone data)."""
        self._leaves.turn("blackout")
        now, found = self.db.present(connection), self._find(connection)
        return [b.name for b in found if self._next(b, now) != b.hold]

    def advance(self, connection: Connection, names: Collection[str]) -> int:
        """Move these rows to the stretch that their windows say. Returns how many it moved.

        Rows that somebody else is moving or editing at this moment are left to him.
        """
        found = self._find(connection, blackouts.c.name.in_(names), lock=True)
        now = self.db.present(connection)
        moved = [(b.name, stretch) for b in found if (stretch := self._next(b, now)) != b.hold]
        if moved:
            statement = (
                update(blackouts).where(blackouts.c.name == bindparam("of"))
                .values(holds_from=bindparam("since"), holds_until=bindparam("until"))
            )  # fmt: skip
            connection.execute(statement, [{"of": n, "since": s.since, "until": s.until} for n, s in moved])
        return len(moved)

    def _next(self, b: Blackout, now: datetime) -> Hold:
        if not b.enabled:
            return OFF
        if b.left is not None and b.hold.since is not None:
            return b.hold  # it holds when it is to; only who can read it lets it go again
        try:
            return hold(b.window, now, b.hold)
        except (
            Exception
        ) as error:  # a window that makes no sense in some way that nobody thought of: it holds, others go on
            self._tell(b.name, b.scope, b.definition, f"{type(error).__name__}: {error}")
            return hold(None, now, b.hold)

    def _tell(self, name: str, scope: str, definition: str, problem: str) -> None:
        if (name, definition) not in self._told:
            self._told.add((name, definition))
            self.emitter.emit("blackout_unreadable", "error", blackout=name, scope=scope, problem=problem[:500])
