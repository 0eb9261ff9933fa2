"""Which errors jobs failed with lately, for people. Nothing decides by these numbers; readers never lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, literal, literal_column, select

from duly.jobs.tables import error_class, jobs_done

#: Classes that are told apart, those that did not fail lately included.
CLASSES = 300


@dataclass(frozen=True, slots=True)
class Count:
    """How many jobs failed; where they were counted no further, at least so many."""

    number: int
    capped: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """Failed jobs whose errors are of one class."""

    error: str
    #: Within each span.
    counts: tuple[Count, ...]
    #: When the last of them failed.
    last: datetime


def failures(
    connection: Connection, now: datetime, spans: Sequence[timedelta], tenant: str | None = None, cap: int = 1_000
) -> tuple[list[Failed], bool]:
    """How many jobs failed within each span up to now (ascending), by the class of their error, the class that failed most often lately first; and
    whether there are more classes than were looked at.

    Between two spans ``cap`` rows of a class are read at the most, and of an index: it has the classes in order, so one hops from each to the next.
    """
    c: Any = jobs_done.c
    kind, failed = error_class(c.error), c.status == literal_column("'failed'")  # a constant, as the index has it
    edges = [now - span for span in spans]
    out: list[Failed] = []
    name: str | None = ""
    for _ in range(CLASSES):
        name = connection.execute(select(func.min(kind)).where(failed, kind > name)).scalar()
        if name is None:
            break
        its = [failed, kind == name, *([c.tenant == tenant] if tenant is not None else [])]
        parts: list[Any] = [
            select(func.count())
            .select_from(
                select(literal(1)).where(*its, c.finished_at >= low, *([c.finished_at < high] if high is not None else [])).limit(cap).subquery()
            )
            .scalar_subquery()
            for low, high in zip(edges, [None, *edges], strict=False)
        ]  # fmt: skip
        last = select(c.finished_at).where(*its, c.finished_at >= edges[-1]).order_by(c.finished_at.desc()).limit(1)
        *numbers, at = connection.execute(select(*parts, last.scalar_subquery())).one()
        if at is not None:
            out.append(Failed(name, _summed(numbers, cap), at))
    return sorted(out, key=lambda one: ([-count.number for count in one.counts], one.error)), name is not None


def _summed(numbers: Sequence[int], cap: int) -> tuple[Count, ...]:
    total, capped, out = 0, False, []
    for number in numbers:
        total, capped = total + number, capped or number >= cap
        out.append(Count(total, capped))
    return tuple(out)
