"""Which of two definitions that code declares counts: the newer one, not that of the process that started last.

Rooms whose definitions stand in code and in the database (schedules, channels) ask here, so that there is one rule. Workers say in their rows
what their code declares; a definition that newer code has replaced is left alone while a worker with that newer code lives.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import Connection, select

from duly.jobs.tables import workers
from duly.storage.database import Database

#: Workers that were seen so many seconds ago, or later, are alive.
LIVES = 120.0
#: What code declared within so many seconds counts as that of a living worker: a worker declares when it starts, and has its row a moment later.
LATELY = 30.0


def mark(definition: Any) -> str:
    """A mark of a definition (plain values), by which it is known again."""
    return hashlib.sha256(orjson.dumps(definition, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def living(db: Database, connection: Connection) -> Mapping[str, set[str]]:
    """What the code of living workers declares: name → the marks of its definitions. Empty where no worker says what it declares."""
    since = db.present(connection) - timedelta(seconds=LIVES)
    out: dict[str, set[str]] = defaultdict(set)
    for said in connection.execute(select(workers.c.declares).where(workers.c.seen_at >= since)).scalars():
        for name, declared in (said or {}).items():
            out[name].add(declared)
    return out


def is_late(now: datetime, at: datetime | None) -> bool:
    """Was something declared a moment ago? Whoever did so may have no row yet."""
    return at is not None and abs((now - at).total_seconds()) < LATELY


def is_behind(own: str, order: Sequence[str], lives: Collection[str], late: bool = False) -> bool:
    """Has newer code replaced this definition, and does a worker with that newer code live?

    ``order``: marks as code declared them, one after the other; the last one counts now. Of two definitions the one that was declared first
    later is the newer one. ``lives``: marks that living workers declare; ``late``: the one that counts was declared a moment ago (``is_late``).
    Where nobody has the newer one any more, the code was rolled back. Who writes a definition asks in the transaction that writes it, with
    what is declared locked: of two that start together the newer one is not overwritten.
    """
    if own not in order:
        return False
    counts = order[-1]
    return order.index(own) < order.index(counts) and (late or counts in lives)


def is_ahead(own: str, order: Sequence[str]) -> bool:
    """Did older code put its definition back, although this one is newer? So a program does that does not know the rule."""
    return own in order and order.index(own) > order.index(order[-1])
