"""The hash chain over the trail: sealing it behind the hot path, and finding the first link that is broken.

A seal covers the rows that came since the last one. It keeps, for each, its id and a digest of its text, and the hash
of all that together with the hash before it. So a changed row, a removed row, a row slipped in later and a changed seal
are each found and named. What is not sealed yet (the last seconds) is not protected yet.

Ids are given out before transactions commit, so a row with a smaller id can appear after a larger one was sealed (the
trap of case B043). A seal therefore notes the gaps that are open as it is made: those in its own range, and those of the
seal before that nobody has filled yet. A row that turns up in a gap is taken into the next seal, if no sealer has looked there an hour
or more after the gap was noted: the first who does closes it, with a seal of no rows if there are none.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import Connection, func, insert, select

from duly.audit.tables import audit_log, audit_seals
from duly.kernel.clock import to_micros
from duly.storage.database import Database
from duly.storage.qualified import qualified, schema_of, text
from duly.storage.rows import as_one, read

#: How long a gap is watched for rows that commit late.
LATE = timedelta(hours=1)
#: The most gaps that are watched: two busy workers leave hundreds for a moment, rollbacks one each for an hour.
MOST_GAPS = 10_000
#: Rows read at once.
PORTION = 500
_ENTRY = 24  # 8 bytes of id, 16 of digest
_START = b"\x00" * 32
#: A range of ids that was not there: first, last, and when that was noted (microseconds since 1970).
Gap = tuple[int, int, int]


def digest(body: str) -> bytes:
    """16 bytes that change when anything in the row's text does."""
    return hashlib.sha256(body.encode()).digest()[:16]


def bodies(connection: Connection, where: str, **numbers: int) -> list[tuple[int, str]]:
    """(id, text) of rows, in order of id. ``where`` is SQL of ours, with ``{name}`` where one of ``numbers`` stands.

    The text is the same on both databases; each column stands behind its length, so no two rows share a text. It is made
    by the database and fetched from the driver itself, because sealing runs beside busy workers. The numbers are parameters:
    drivers keep what they are asked, and of many statements that differ in a number they would keep hundreds.
    """
    sqlite = connection.dialect.name == "sqlite"
    where = where.format(**{name: f":{name}" if sqlite else f"%({name})s" for name in numbers})
    at = "at" if sqlite else "CAST(extract(epoch FROM at) * 1000000 AS bigint)"
    columns = ["tenant", "actor", "level", "action", "entity", "entity_id", "meta" if sqlite else "CAST(meta AS text)"]
    body = " || ".join([f"id || ':' || {at}", *(f"'|' || length({c}) || ':' || {c}" for c in columns)])
    driver: Any = connection.connection.driver_connection
    query = f"SELECT id, {body} AS body FROM audit_log WHERE {where}"
    if sqlite:
        return [
            (ident, one) for ident, one in read(driver.execute(as_one("id, body", f"({query})"), numbers).fetchone()[0])
        ]
    rows: list[tuple[int, str]] = driver.execute(qualified(query, schema_of(connection.dialect)), numbers).fetchall()
    return rows


def packed(rows: Sequence[tuple[int, str]]) -> bytes:
    """The entries of rows, as a seal keeps them."""
    return b"".join([ident.to_bytes(8, "big") + digest(body) for ident, body in rows])


def link(
    previous: bytes, first_id: int, last_id: int, sealed_at: datetime, gaps: Sequence[Gap], entries: bytes
) -> bytes:
    """The hash of one seal, over everything that stands in it."""
    head = orjson.dumps([first_id, last_id, to_micros(sealed_at), gaps])
    return hashlib.sha256(previous + head + entries).digest()


def gaps_between(first_id: int, last_id: int, present: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges of ids in [first_id, last_id] that are not in ``present`` (ascending)."""
    out: list[tuple[int, int]] = []
    expected = first_id
    for ident in present:
        if ident > expected:
            out.append((expected, ident - 1))
        expected = max(expected, ident + 1)
    if expected <= last_id:
        out.append((expected, last_id))
    return out


def still_open(gaps: Sequence[Gap], filled: Sequence[int], since: int) -> list[Gap]:
    """What is left of gaps noted after ``since`` (microseconds) now that the ids ``filled`` (ascending) are there."""
    out: list[Gap] = []
    for first, last, noted in gaps:
        if noted > since:
            inside = filled[bisect_left(filled, first) : bisect_right(filled, last)]
            out += [(a, b, noted) for a, b in gaps_between(first, last, inside)]
    return out


@dataclass(frozen=True, slots=True)
class Fresh:
    """Rows that no seal covers yet, read and digested."""

    #: The seal that they follow; None for the first.
    after: int | None
    first_id: int
    last_id: int
    sealed_at: datetime
    rows: int
    gaps: list[Gap]
    entries: bytes
    previous: bytes


def _watched(last: Any) -> int:
    """Gaps noted after this (microseconds) are watched: counted from the last seal, since nobody has looked for a row after that."""
    return to_micros(last.sealed_at - LATE) if last is not None else 0


class Sealer:
    """Writes seals. Rows are read and digested outside the transaction that writes, so nobody waits for it."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def seal(self, limit: int = 5000) -> int:
        """Seal up to ``limit`` rows. Returns how many; 0 when there is nothing new or another process is sealing."""
        fresh = self.db.read(lambda c: self._gather(c, limit))
        return self.db.write(lambda c: self._seal(c, fresh)) if fresh is not None else 0

    def _last(self, connection: Connection) -> Any:
        c = audit_seals.c  # without its entries, which are many
        query = select(c.id, c.last_id, c.sealed_at, c.gaps, c.hash).order_by(c.id.desc()).limit(1)
        return connection.execute(query).first()

    def _gather(self, connection: Connection, limit: int) -> Fresh | None:
        last = self._last(connection)
        above, previous, gaps = (last.last_id, last.hash, last.gaps) if last is not None else (0, _START, [])
        ids, entries = self._new(connection, above, limit)
        late = self._late(connection, last)
        now = self.db.clock.now()
        expired = any(noted <= to_micros(now - LATE) for _, _, noted in gaps)
        if not ids and not late and not expired:
            return None
        first, top = above + 1, ids[-1] if ids else above
        fresh = [(a, b, to_micros(now)) for a, b in gaps_between(first, top, ids)]
        gaps = [*still_open(gaps, [ident for ident, _ in late], to_micros(now - LATE)), *fresh][-MOST_GAPS:]
        # in order of id: what turned up late stands below everything that is new. Without a row this only closes gaps, so that nothing
        # can be slipped into them on a quiet system
        entries = packed(late) + entries
        count = len(late) + len(ids)
        return Fresh(last.id if last is not None else None, first, top, now, count, gaps, entries, previous)

    def _new(self, connection: Connection, above: int, limit: int) -> tuple[Sequence[int], bytes]:
        """Ids and entries of up to ``limit`` rows above an id, in order of id. They are many: no more than a portion of them is in memory
        as anything but bytes."""
        ids = array("q")
        entries: list[bytes] = []
        while len(ids) < limit:
            portion = min(PORTION, limit - len(ids))
            after = ids[-1] if ids else above
            rows = bodies(connection, "id > {after} ORDER BY id LIMIT {portion}", after=after, portion=portion)
            ids.extend([ident for ident, _ in rows])
            entries.append(packed(rows))
            if len(rows) < portion:
                break
        return ids, b"".join(entries)

    def _seal(self, connection: Connection, fresh: Fresh) -> int:
        if not self.db.is_sqlite:
            locked = connection.execute(text("SELECT pg_try_advisory_xact_lock(hashtext('duly audit seal'))")).scalar()
            if not locked:
                return 0
        if connection.execute(select(func.max(audit_seals.c.id))).scalar() != fresh.after:
            return 0  # another process has sealed these meanwhile
        head = fresh.first_id, fresh.last_id, fresh.sealed_at, fresh.gaps, fresh.entries
        connection.execute(
            insert(audit_seals).values(
                sealed_at=fresh.sealed_at, first_id=fresh.first_id, last_id=fresh.last_id, rows=fresh.rows, entries=fresh.entries,
                gaps=fresh.gaps, previous=fresh.previous, hash=link(fresh.previous, *head),
            )
        )  # fmt: skip
        return fresh.rows

    def _late(self, connection: Connection, last: Any) -> list[tuple[int, str]]:
        """Rows that turned up in gaps of the last seal, in order of id. What stands in an open gap is in no seal yet."""
        gaps = still_open(last.gaps, (), _watched(last)) if last is not None else []
        out: list[tuple[int, str]] = []
        for start in range(0, len(gaps), 400):
            inside = " OR ".join(f"id BETWEEN {int(a)} AND {int(b)}" for a, b, _ in gaps[start : start + 400])
            out += bodies(connection, inside)
        return sorted(out)


def unpack(entries: bytes) -> list[tuple[int, bytes]]:
    """(id, digest) of each row in a seal."""
    return [
        (int.from_bytes(entries[i : i + 8], "big"), entries[i + 8 : i + _ENTRY])
        for i in range(0, len(entries) - _ENTRY + 1, _ENTRY)
    ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification found."""

    #: Rows and seals that hold.
    rows: int
    seals: int
    #: Rows that no seal covers yet.
    unsealed: int
    #: The first broken link, in words; None when the chain holds.
    broken: str | None = None
    seal_id: int | None = None
    row_id: int | None = None


def verify(db: Database, progress: Callable[[int], None] | None = None) -> Verdict:
    """Walk the chain from its start. Stops at the first broken link and names it."""
    return db.read(lambda c: _verify(db, c, progress))


def _verify(db: Database, connection: Connection, progress: Callable[[int], None] | None) -> Verdict:
    previous, above, rows_ok, seals_ok = _START, 0, 0, 0
    strangers: dict[int, int] = {}  # row id → seal whose range it stands in without being covered
    ids = list(connection.execute(select(audit_seals.c.id).order_by(audit_seals.c.id)).scalars())

    def broken(why: str, seal: int | None, row: int | None = None) -> Verdict:
        return Verdict(rows_ok, seals_ok, 0, why, seal, row)

    below = connection.execute(select(func.min(audit_log.c.id))).scalar()
    if below is not None and below < 1:
        return broken(f"audit row {below} was slipped in: ids begin at 1", None, below)

    for seal_id in ids:
        seal = connection.execute(select(audit_seals).where(audit_seals.c.id == seal_id)).one()
        if seal.previous != previous or seal.first_id != above + 1:
            return broken(f"seal {seal_id} does not follow the seal before it: a seal was removed or changed", seal_id)
        if link(previous, seal.first_id, seal.last_id, seal.sealed_at, seal.gaps, seal.entries) != seal.hash:
            return broken(f"seal {seal_id} was changed", seal_id)
        entries = dict(unpack(seal.entries))
        if len(entries) != seal.rows:
            return broken(f"seal {seal_id} was changed: it names {len(entries)} rows and claims {seal.rows}", seal_id)
        late = [i for i in entries if i < seal.first_id]
        also = f" OR id IN ({', '.join(map(str, late))})" if late else ""
        between = f"id BETWEEN {{first}} AND {{last}}{also}"
        found = dict(bodies(connection, between, first=seal.first_id, last=seal.last_id))
        for ident in sorted(entries):
            body = found.get(ident)
            if body is None:
                return broken(f"audit row {ident} was removed", seal_id, ident)
            if digest(body) != entries[ident]:
                return broken(f"audit row {ident} was changed", seal_id, ident)
            strangers.pop(ident, None)
        strangers.update({ident: seal_id for ident in found if ident not in entries})
        previous, above = seal.hash, seal.last_id
        rows_ok += len(entries)
        seals_ok += 1
        if progress is not None:
            progress(rows_ok)
    if strangers:
        last = connection.execute(select(audit_seals).where(audit_seals.c.id == ids[-1])).one()
        waiting = still_open(last.gaps, (), _watched(last))
        for ident, seal_id in sorted(strangers.items()):
            if not any(first <= ident <= end for first, end, _ in waiting):
                return broken(f"audit row {ident} was slipped in behind seal {seal_id}", seal_id, ident)
    unsealed = connection.execute(
        select(func.count()).select_from(audit_log).where(audit_log.c.id > above)
    ).scalar_one()
    return Verdict(rows_ok, seals_ok, unsealed + len(strangers))
