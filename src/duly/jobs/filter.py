"""Which jobs: a filter, its conditions on the two tables of jobs, and the rows that a job is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Select, literal, literal_column, null, select

from duly.jobs.job import Job, Status
from duly.jobs.tables import LONGEST_CLASS, NO_CLASS, error_class, jobs, jobs_done
from duly.kernel.errors import InvalidArgument
from duly.storage.types import Instant

_FIELDS = [
    "id", "tenant", "queue", "task", "status", "priority", "input", "key", "concurrency_key", "parent_id", "created_at", "run_at",
    "attempts", "max_attempts", "worker", "started_at", "output", "error", "cost_cents", "remote_id", "meta",
]  # fmt: skip
_LIVE_ONLY = ["due_at", "next_retry_at", "lease_until", "waits_for_children", "cancel_requested"]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs. Everything given must hold."""

    tenant: str | None = None
    #: One status or several.
    status: Sequence[str] = ()
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    parent_id: int | None = None
    #: Only jobs that ended (or, for live ones, were made) at or after / before these instants.
    since: datetime | None = None
    before: datetime | None = None
    ids: Sequence[int] = ()
    #: The class of its error, such as ``Timeout``; ``NO_CLASS``: an error that names none.
    error: str | None = None

    def __post_init__(self) -> None:
        given = (self.status,) if isinstance(self.status, str) else self.status
        for name in given:
            if name not in set(Status):
                raise InvalidArgument("status", f"is {name!r}.", f"Use one of: {', '.join(Status)}.")
        object.__setattr__(self, "status", tuple(Status(name) for name in given))


def of_error(f: JobFilter) -> JobFilter:
    """The same; where a class of errors is given and no status, of jobs that failed: these are found by an index."""
    return replace(f, status=(Status.FAILED,)) if f.error is not None and not f.status else f


def live_rows() -> Select[Any]:
    """The columns of a job, of the table of live ones."""
    return select(
        *(jobs.c[n] for n in _FIELDS), *(jobs.c[n] for n in _LIVE_ONLY), null().cast(Instant).label("finished_at")
    )


def done_rows() -> Select[Any]:
    """The same of the table of ended ones."""
    none: dict[str, Any] = {n: null().cast(Instant).label(n) for n in ("due_at", "next_retry_at", "lease_until")}
    none |= {n: literal(False).label(n) for n in ("waits_for_children", "cancel_requested")}
    return select(*(jobs_done.c[n] for n in _FIELDS), *(none[n] for n in _LIVE_ONLY), jobs_done.c.finished_at)


def to_job(row: Any) -> Job:
    """A job of either table's row."""
    values = dict(row._mapping)
    values["status"] = Status(values["status"])
    values["waits_for_children"] = bool(values["waits_for_children"])
    values["cancel_requested"] = bool(values["cancel_requested"])
    return Job(**values)


def conditions(table: Any, f: JobFilter, *, class_by_index: bool = True) -> list[Any]:
    """The WHERE of a filter on one of the two tables. ``class_by_index``: may a class of errors be looked for in its index?"""
    c, out = table.c, []
    for name in ("tenant", "queue", "task", "key", "parent_id"):
        value = getattr(f, name)
        if value is not None:
            out.append(c[name] == value)
    if f.status in ((Status.FAILED,), (Status.CANCELLED,), (Status.RUNNING,)):
        # a constant: SQLite takes a partial index for nothing less
        out.append(c.status == literal_column(f"'{f.status[0]}'"))
    elif f.status:
        out.append(c.status.in_([str(s) for s in f.status]))
    if f.ids:
        out.append(c.id.in_(f.ids))
    if f.error is not None:
        if f.error == NO_CLASS:
            out.append(c.error.is_not(None) | (c.status == "failed"))
        elif table is jobs:  # few have an error; an index knows which
            out.append(c.error.is_not(None))
        named = error_class(c.error)
        out.append((named if class_by_index else named.concat("")) == f.error[:LONGEST_CLASS])
    moment = c.finished_at if "finished_at" in c else c.created_at
    if f.since is not None:
        out.append(moment >= f.since)
    if f.before is not None:
        out.append(moment < f.before)
    return out
