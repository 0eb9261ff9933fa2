"""Reading jobs: one life seen through two tables. Readers never lock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, select

from duly.audit.read import acts
from duly.jobs.filter import JobFilter, done_rows, live_rows, to_job
from duly.jobs.job import Attempt, Job
from duly.jobs.look import Found, Tally, look, tally
from duly.jobs.settle import CANCEL_REQUESTED, CANCELLED, REPLAYED
from duly.jobs.tables import attempts, jobs, jobs_done, system_state, workers
from duly.kernel.errors import InvalidArgument, NotFound
from duly.storage.database import Database


class JobReader:
    """Every SELECT that shows jobs to people and programs."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def get(self, connection: Connection, ident: int, tenant: str | None = None) -> Job:
        """One job. Raises NotFound, also when it is another tenant's."""
        found = self.get_many(connection, [ident]).get(ident)
        if found is None or (tenant is not None and found.tenant != tenant):
            raise NotFound("job", ident)
        return found

    def get_many(self, connection: Connection, idents: Iterable[int]) -> dict[int, Job]:
        wanted = sorted({i for i in idents if isinstance(i, int) and 0 < i < 2**63})
        out: dict[int, Job] = {}
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            # A job that ends between two reads is found in the second, one that is replayed between them in the third.
            for query, table in ((live_rows(), jobs), (done_rows(), jobs_done), (live_rows(), jobs)):
                part = [ident for ident in part if ident not in out]
                if not part:
                    break
                for row in connection.execute(query.where(table.c.id.in_(part))):
                    out[row.id] = to_job(row)
        return out

    def cancelled_by(self, connection: Connection, idents: Iterable[int]) -> dict[int, tuple[str, str]]:
        """(who, why) of cancelled jobs, as the audit trail has it; a job whose entries were removed is left out."""
        out: dict[int, tuple[str, str]] = {}
        for one in acts(connection, "job", map(str, idents), (CANCEL_REQUESTED, CANCELLED, REPLAYED)):
            ident, meta = int(one.entity_id), one.meta if isinstance(one.meta, dict) else {}
            if one.action == REPLAYED:
                out.pop(ident, None)
            elif (
                "reason" in meta or ident not in out
            ):  # a worker that ends a job as it was asked gives no reason of its own
                out[ident] = (one.actor, str(meta.get("reason") or ""))
        return out

    def find(self, connection: Connection, f: JobFilter, limit: int = 50, below: int | None = None) -> list[Job]:
        """Jobs by filter, newest first. ``below`` is the last id of the page before."""
        return self.look(connection, f, limit, below).rows

    def look(
        self, connection: Connection, f: JobFilter, limit: int, below: int | None = None, seconds: float | None = None
    ) -> Found[Job]:
        """The same for those who wait: it stops after so many seconds, and says how far it came."""
        if not 1 <= limit <= 10_000:
            raise InvalidArgument("limit", f"is {limit}; it must be between 1 and 10,000.")
        return look(connection, f, limit, below, seconds)

    def count(self, connection: Connection, f: JobFilter, cap: int = 100_000) -> int:
        """How many jobs, counted up to ``cap``."""
        return tally(connection, f, cap).count

    def tally(self, connection: Connection, f: JobFilter, cap: int, seconds: float) -> Tally:
        """The same for those who wait: it stops after so many seconds, and says whether it did."""
        return tally(connection, f, cap, seconds)

    def attempts_of(self, connection: Connection, ident: int) -> list[Attempt]:
        """The runs that did not end in success, in order."""
        names = Attempt.__dataclass_fields__
        rows = connection.execute(
            select(*(attempts.c[n] for n in names)).where(attempts.c.job_id == ident).order_by(attempts.c.id)
        )
        return [Attempt(**row._mapping) for row in rows]

    def children_of(self, connection: Connection, ident: int, limit: int = 1000) -> list[Job]:
        return self.find(connection, JobFilter(parent_id=ident), limit)

    def live_workers(self, connection: Connection, within: float) -> list[dict[str, Any]]:
        """Workers seen in the last ``within`` seconds, by the clock that stamps them."""
        rows = [dict(row._mapping) for row in connection.execute(select(workers).order_by(workers.c.name))]
        now = self.db.present(connection)
        return [
            {**row, "age": (now - row["seen_at"]).total_seconds()}
            for row in rows
            if (now - row["seen_at"]).total_seconds() <= within
        ]

    def state(self, connection: Connection, key: str) -> str | None:
        value: str | None = connection.execute(select(system_state.c.value).where(system_state.c.key == key)).scalar()
        return value
