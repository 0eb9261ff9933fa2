"""Looking for what may be sent, before anything is taken: the reads of a relay, and where it goes on looking.

A look costs the same whatever the backlog: it hops from destination to destination and from ordering key to ordering
key, a bounded number at a time, and remembers where it stopped, so that every key has its turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection

from duly.outbox.store import HOPS, OutboxStore, Waiting


@dataclass(slots=True)
class Look:
    """What a look found."""

    #: Destinations with due messages that have no ordering key.
    loose: list[str] = field(default_factory=list)
    #: Heads that are due, by destination, no more than there is room for.
    heads: dict[str, list[int]] = field(default_factory=dict)
    #: How many units of each of these destinations there is room for.
    rooms: dict[str, int] = field(default_factory=dict)
    #: Seconds until something more will be due, as far as was looked; infinite when nothing is planned.
    wait: float = math.inf

    @property
    def empty(self) -> bool:
        return not self.loose and not self.heads


class Looker:
    """Looks, and remembers where to go on. Used by one thread at a time."""

    def __init__(self, store: OutboxStore, room: Callable[[str], int], mine: Callable[[str], bool]) -> None:
        #: ``room``: how many units of a destination may be taken now. ``mine``: is it for this relay to send?
        self._store, self._room, self._mine = store, room, mine
        self._after, self._after_line = "", ""
        self._after_key: dict[str, str] = {}

    def look(self, connection: Connection, now: datetime | None = None) -> Look:
        """One look. ``wait`` is 0 when it stopped in the middle and found nothing."""
        found = Look()
        self._loose(connection, found, now)
        self._lines(connection, found, now)
        if found.empty and (self._after or self._after_line or self._after_key):
            found.wait = 0.0
        return found

    def _has_room(self, destination: str, found: Look) -> bool:
        if not self._mine(destination):
            return False
        if destination not in found.rooms:
            found.rooms[destination] = self._room(destination)
        return found.rooms[destination] > 0

    def _loose(self, connection: Connection, found: Look, now: datetime | None) -> None:
        rows = self._store.waiting(connection, self._after, now)
        self._after = rows[-1].destination if len(rows) == HOPS else ""
        for row in rows:
            if row.wait is None or not self._has_room(row.destination, found):
                continue
            if row.wait <= 0:
                found.loose.append(row.destination)
            else:
                found.wait = min(found.wait, row.wait)

    def _lines(self, connection: Connection, found: Look, now: datetime | None) -> None:
        names = self._store.lines(connection, self._after_line)
        self._after_line = names[-1] if len(names) == HOPS else ""
        names = [name for name in names if self._has_room(name, found)]
        from_key = {name: self._after_key.pop(name, "") for name in names}
        if not from_key:
            return
        self._heads(self._store.heads(connection, from_key, now), from_key, found)
        # those that began in the middle and came to the end with room left begin again
        again = {
            name: "" for name, key in from_key.items()
            if key and name not in self._after_key and len(found.heads.get(name, ())) < found.rooms[name]
        }  # fmt: skip
        if again:
            self._heads(self._store.heads(connection, again, now), again, found, remember=False)

    def _heads(self, rows: Iterable[Waiting], names: Iterable[str], found: Look, remember: bool = True) -> None:
        by_name: dict[str, list[Waiting]] = {name: [] for name in names}
        for row in rows:
            by_name[row.destination].append(row)
        for name, heads in by_name.items():
            chosen = found.heads.get(name, [])
            for place, head in enumerate(heads):
                if head.wait is None:
                    continue
                if head.wait > 0:
                    found.wait = min(found.wait, head.wait)
                elif head.id not in chosen:
                    chosen.append(head.id)
                if len(chosen) >= found.rooms[name]:
                    if remember and place + 1 < len(heads):
                        self._after_key[name] = head.key
                    break
            else:
                if remember and len(heads) == HOPS:
                    self._after_key[name] = heads[-1].key
            if chosen:
                found.heads[name] = chosen
