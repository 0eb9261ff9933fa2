"""The hash chain over the trail: sealing it behind the hot path, and finding the first link that is broken.

A seal covers the rows that came since the last one. It keeps, for each, its id and a digest of its text, and the hash
of all that together with the hash before it. So a changed row, a removed row, a row slipped in later and a changed seal
are each found and named. What is not sealed yet (the last seconds) is not protected yet.

Ids are given out before transactions commit, so a row with a smaller id can appear after a larger one was sealed (the
trap of case B043). A seal therefore notes the gaps in its range; rows that turn up in a gap within an hour are taken
into the next seal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, func, insert, select, text

from duly.audit.tables import audit_log, audit_seals
from duly.storage.database import Database

#: How long a gap is watched for rows that commit late.
LATE = timedelta(hours=1)
_ENTRY = 24  # 8 bytes of id, 16 of digest
_START = b"\x00" * 32
#: More than this many missing ids in a row are kept as gaps just the same; gaps are ranges.
Gap = tuple[int, int]


def digest(body: str) -> bytes:
    """16 bytes that change when anything in the row's text does."""
    return hashlib.sha256(body.encode()).digest()[:16]


def bodies(connection: Connection, where: str) -> list[tuple[int, str]]:
    """(id, text) of rows, in order of id. ``where`` is SQL of ours, with numbers only.

    The text is the same on both databases; each column stands behind its length, so no two rows share a text. It is made
    by the database and fetched from the driver itself, because sealing runs beside busy workers.
    """
    sqlite = connection.dialect.name == "sqlite"
    at = "at" if sqlite else "CAST(extract(epoch FROM at) * 1000000 AS bigint)"
    columns = ["tenant", "actor", "level", "action", "entity", "entity_id", "meta" if sqlite else "CAST(meta AS text)"]
    body = " || ".join([f"id || ':' || {at}", *(f"'|' || length({c}) || ':' || {c}" for c in columns)])
    driver: Any = connection.connection.driver_connection
    rows: list[tuple[int, str]] = driver.execute(f"SELECT id, {body} FROM audit_log WHERE {where}").fetchall()
    return rows


def link(previous: bytes, first_id: int, last_id: int, entries: bytes) -> bytes:
    """The hash of one seal."""
    return hashlib.sha256(previous + first_id.to_bytes(8, "big") + last_id.to_bytes(8, "big") + entries).digest()


def gaps_between(first_id: int, last_id: int, present: list[int]) -> list[Gap]:
    """The ranges of ids in [first_id, last_id] that are not in ``present`` (ascending)."""
    out: list[Gap] = []
    expected = first_id
    for ident in present:
        if ident > expected:
            out.append((expected, ident - 1))
        expected = max(expected, ident + 1)
    if expected <= last_id:
        out.append((expected, last_id))
    return out


class Sealer:
    """Writes seals."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def seal(self, limit: int = 5000) -> int:
        """Seal up to ``limit`` rows. Returns how many; 0 when there is nothing new or another process is sealing."""
        newest, last = self.db.read(lambda c: (c.execute(select(func.max(audit_log.c.id))).scalar(), self._last(c)))
        if newest is None or (last is not None and newest <= last.last_id and not self._open_gaps_exist()):
            return 0
        return self.db.write(lambda c: self._seal(c, limit))

    def _open_gaps_exist(self) -> bool:
        return self.db.read(lambda c: bool(self._open_gaps(c)))

    def _last(self, connection: Connection) -> Any:
        return connection.execute(select(audit_seals).order_by(audit_seals.c.id.desc()).limit(1)).first()

    def _open_gaps(self, connection: Connection) -> list[Gap]:
        recent = select(audit_seals.c.gaps).where(audit_seals.c.sealed_at > self.db.clock.now() - LATE)
        return [(a, b) for (gaps,) in connection.execute(recent) for a, b in gaps]

    def _seal(self, connection: Connection, limit: int) -> int:
        if not self.db.is_sqlite:
            locked = connection.execute(text("SELECT pg_try_advisory_xact_lock(hashtext('duly audit seal'))")).scalar()
            if not locked:
                return 0
        last = self._last(connection)
        above, previous = (last.last_id, last.hash) if last is not None else (0, _START)
        rows = bodies(connection, f"id > {above} ORDER BY id LIMIT {int(limit)}")
        late = self._late(connection, above)
        if not rows and not late:
            return 0
        top = rows[-1][0] if rows else above
        first = above + 1
        covered = sorted([*late, *rows])
        entries = b"".join(ident.to_bytes(8, "big") + digest(body) for ident, body in covered)
        connection.execute(
            insert(audit_seals).values(
                sealed_at=self.db.clock.now(), first_id=first, last_id=top, rows=len(covered), entries=entries,
                gaps=gaps_between(first, top, [ident for ident, _ in rows]), previous=previous, hash=link(previous, first, top, entries),
            )
        )  # fmt: skip
        return len(covered)

    def _late(self, connection: Connection, above: int) -> list[tuple[int, str]]:
        """Rows that turned up in the gaps of recent seals and are in none of them yet."""
        gaps = self._open_gaps(connection)
        if not gaps:
            return []
        inside = " OR ".join(f"id BETWEEN {int(a)} AND {int(b)}" for a, b in gaps[-500:])
        rows = bodies(connection, f"id <= {above} AND ({inside}) ORDER BY id")
        if not rows:
            return []
        known: set[int] = set()
        recent = select(audit_seals.c.entries).where(audit_seals.c.sealed_at > self.db.clock.now() - LATE)
        for (entries,) in connection.execute(recent):
            known.update(ident for ident, _ in unpack(entries))
        return [row for row in rows if row[0] not in known]


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

    def broken(why: str, seal: int, row: int | None = None) -> Verdict:
        return Verdict(rows_ok, seals_ok, 0, why, seal, row)

    for seal_id in ids:
        seal = connection.execute(select(audit_seals).where(audit_seals.c.id == seal_id)).one()
        if seal.previous != previous or seal.first_id != above + 1:
            return broken(f"seal {seal_id} does not follow the seal before it: a seal was removed or changed", seal_id)
        if link(previous, seal.first_id, seal.last_id, seal.entries) != seal.hash:
            return broken(f"seal {seal_id} was changed", seal_id)
        entries = dict(unpack(seal.entries))
        if len(entries) != seal.rows:
            return broken(f"seal {seal_id} was changed: it names {len(entries)} rows and claims {seal.rows}", seal_id)
        late = [i for i in entries if i < seal.first_id]
        also = f" OR id IN ({', '.join(map(str, late))})" if late else ""
        found = dict(bodies(connection, f"id BETWEEN {seal.first_id} AND {seal.last_id}{also}"))
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
        old = db.clock.now() - LATE
        sealed_at = dict(connection.execute(select(audit_seals.c.id, audit_seals.c.sealed_at)).tuples().all())
        for ident, seal_id in sorted(strangers.items()):
            if sealed_at[seal_id] < old:
                return broken(f"audit row {ident} was slipped in behind seal {seal_id}", seal_id, ident)
    unsealed = connection.execute(
        select(func.count()).select_from(audit_log).where(audit_log.c.id > above)
    ).scalar_one()
    return Verdict(rows_ok, seals_ok, unsealed + len(strangers))
