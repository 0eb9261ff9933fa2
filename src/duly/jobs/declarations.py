"""Which of two definitions that code declares counts: the newer one, not that of the process that started last.

Rooms whose definitions stand in code and in the database (schedules, channels) ask here, so that there is one rule. Workers say in their rows
what their code declares; a definition that newer code has replaced is left alone while a worker with that newer code lives.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import orjson
from sqlalchemy import Connection, select

from duly.jobs.tables import workers
from duly.storage.database import Database

#: Workers that were seen so many seconds ago, or later, are alive.
LIVES = 120.0


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


def is_behind(own: str, order: Sequence[str], lives: Collection[str]) -> bool:
    """Has newer code replaced this definition, and does a worker with that newer code live?

    ``order``: marks as code declared them, one after the other; the last one counts now. Of two definitions the one that was declared first
    later is the newer one. ``lives``: marks that living workers declare. Where nobody has the newer one any more, the code was rolled back.
    """
    if own not in order:
        return False
    counts = order[-1]
    return order.index(own) < order.index(counts) and counts in lives
