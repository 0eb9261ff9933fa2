"""Every statement of the mail room."""

from __future__ import annotations

import hashlib
import secrets
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import Connection, delete, exists, select, update

from duly.audit.store import record
from duly.audit.tables import audit_log
from duly.jobs.tables import jobs, jobs_done, system_state
from duly.kernel.hold import Hold
from duly.kernel.verdict import Kind
from duly.mail.address import without_addresses
from duly.mail.plan import RELEASED, Delivery, State
from duly.mail.tables import mail_deliveries as deliveries
from duly.mail.tables import mail_events as events
from duly.mail.tables import mail_holds as holds
from duly.mail.tables import mail_suppressions as suppressions
from duly.storage.database import Database
from duly.storage.rows import insert_into

#: The row of system_state that tells this database from others: part of keys, Message-IDs and fingerprints.
MARK_KEY = "mail_mark"
#: Rows removed in one pass of ``prune``.
PRUNED = 5_000
#: The kind of an event: a job's message was taken for nobody, without its fault.
DECLINED = "declined"
#: Recipients named in one statement.
PORTION = 1_000


@dataclass(frozen=True, slots=True)
class Suppression:
    """Somebody who is not written to."""

    tenant: str
    address: str = field(repr=False)
    reason: str | None
    created_at: datetime
    created_by: str
    #: What put it there, such as ``bounce:resend``; None: a person or a program.
    source: str | None = None


def fingerprint(mark: str, address: str) -> str:
    """A normalised address as it stands in tables and in the trail: 32 hex digits that cannot be guessed without the mark."""
    return hashlib.blake2b(address.encode(), key=mark.encode(), digest_size=16).hexdigest()


def _portions(values: Iterable[str]) -> Iterator[list[str]]:
    """No statement may have more parameters than a database takes (65,535 on PostgreSQL)."""
    left = iter(values)
    while portion := list(islice(left, PORTION)):
        yield portion


#: The marks of databases that were asked for here.
_marks: weakref.WeakKeyDictionary[Database, str] = weakref.WeakKeyDictionary()


class MailStore:
    """The statements, on one database."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._insert_into: Any = insert_into(db.is_sqlite)

    # ------------------------------------------------------------------ the mark

    def mark(self, connection: Connection) -> str:
        """The mark of this database, made at first use. For a write transaction."""
        values = {"key": MARK_KEY, "value": secrets.token_hex(8), "updated_at": self.db.present(connection)}
        connection.execute(self._insert_into(system_state).values(**values).on_conflict_do_nothing())
        found: str = connection.execute(select(system_state.c.value).where(system_state.c.key == MARK_KEY)).scalar_one()
        return found

    def kept_mark(self) -> str:
        """The same, in a transaction of its own, and remembered once that is committed."""
        found = _marks.get(self.db)
        if found is None:
            found = _marks[self.db] = self.db.write(self.mark)
        return found

    # ------------------------------------------------------------------ deliveries

    def known(self, connection: Connection, job: int) -> dict[str, Delivery]:
        """What is on record of a job's recipients, by fingerprint."""
        d = deliveries.c
        rows = connection.execute(
            select(d.recipient, d.state, d.holder, d.first_at, d.code, d.provider, d.updated_at).where(d.job_id == job)
        )
        return {
            r.recipient: Delivery(State(r.state), r.holder, r.first_at, r.code, r.provider, r.updated_at) for r in rows
        }

    def holds(self, connection: Connection, job: int, token: int) -> bool:
        """Is the job still running under this lease?"""
        query = select(jobs.c.id).where(jobs.c.id == job, jobs.c.status == "running", jobs.c.lease_token == token)
        return connection.execute(query.with_for_update(read=True)).first() is not None

    def ahead(
        self, connection: Connection, job: int, tenant: str, recipients: Sequence[str], known: Mapping[str, Delivery], *,
        provider: str, holder: str,
    ) -> bool:  # fmt: skip
        """Write down that a message is about to be handed over for these recipients. False, and nothing is written, when another
        run was faster with one of them.
        """
        new = [r for r in recipients if r not in known]
        if new and self._insert(connection, job, tenant, new, State.UNKNOWN, provider, holder) != len(new):
            return False
        values = {"state": State.UNKNOWN.value, "provider": provider, "holder": holder, "code": None}
        return all(self._take(connection, job, r, known[r], values) for r in recipients if r in known)

    def suppress_recipients(
        self, connection: Connection, job: int, tenant: str, recipients: Sequence[str], known: Mapping[str, Delivery], holder: str
    ) -> None:  # fmt: skip
        """Write down that these are left out. A row that another run has taken over stays as it is."""
        new = [r for r in recipients if r not in known]
        self._insert(connection, job, tenant, new, State.SUPPRESSED, "", holder)
        values = {"state": State.SUPPRESSED.value, "provider": "", "holder": holder, "code": None}
        for recipient in recipients:
            if recipient in known:
                self._take(connection, job, recipient, known[recipient], values)

    def _take(
        self, connection: Connection, job: int, recipient: str, was: Delivery, values: Mapping[str, Any]
    ) -> bool:  # fmt: skip
        """Write a row anew. False, and it stays, when it is not what was read. For a recipient that was never unknown a key's day begins."""
        d, now = deliveries.c, self.db.now()
        new = {**values, "updated_at": now} | ({} if was.state is State.UNKNOWN else {"first_at": now})
        mine = (d.job_id == job, d.recipient == recipient, d.state == was.state.value, d.holder == was.holder)
        return connection.execute(update(deliveries).where(*mine).values(**new)).rowcount == 1

    def _insert(
        self, connection: Connection, job: int, tenant: str, recipients: Sequence[str], state: State, provider: str, holder: str
    ) -> int:  # fmt: skip
        """Returns how many rows are new."""
        statement = self._insert_into(deliveries).on_conflict_do_nothing().returning(deliveries.c.recipient)
        now, made = self.db.present(connection), 0
        for recipient in recipients:
            row = {
                "job_id": job, "recipient": recipient, "tenant": tenant, "state": state.value, "provider": provider, "holder": holder,
                "first_at": now, "updated_at": now,
            }  # fmt: skip
            made += connection.execute(statement.values(**row)).first() is not None
        return made

    def answer(
        self, connection: Connection, job: int, tenant: str, states: Mapping[str, tuple[State, int | None]],
        known: Mapping[str, Delivery], *, provider: str, holder: str,
    ) -> None:  # fmt: skip
        """Write down what was answered for recipients, those that were never handed over included. A row that another run has
        taken over stays as it is. ``known``: what was read before.
        """
        d, now = deliveries.c, self.db.present(connection)
        for recipient, (state, code) in states.items():
            statement = self._insert_into(deliveries).values(
                job_id=job, recipient=recipient, tenant=tenant, state=state.value, provider=provider, holder=holder, code=code,
                first_at=now, updated_at=now,
            )  # fmt: skip
            changed = {"state": state.value, "code": code, "holder": holder, "updated_at": now}
            # an answer that comes late is one all the same, unless another run is at it by now
            writers = {holder, RELEASED} | ({known[recipient].holder} if recipient in known else set())
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=[d.job_id, d.recipient], set_=changed, where=d.holder.in_(writers)
                )
            )

    def withdraw(
        self, connection: Connection, job: int, recipients: Iterable[str], known: Mapping[str, Delivery], holder: str
    ) -> None:
        """Forget that a message was about to be handed over for these: it was not taken. Who was released is so again, because a key's
        day goes on.
        """
        d = deliveries.c
        for portion in _portions(recipients):
            released = [r for r in portion if r in known and known[r].holder == RELEASED]
            mine = (d.job_id == job, d.holder == holder, d.state == State.UNKNOWN.value)
            if released:
                again = update(deliveries).where(*mine, d.recipient.in_(released))
                connection.execute(again.values(holder=RELEASED, updated_at=self.db.now()))
            connection.execute(delete(deliveries).where(*mine, d.recipient.in_(portion)))

    def release(self, connection: Connection, job: int, tenant: str, reason: str, actor: str) -> int:
        """Let those be sent to again of whom nobody knows whether they have it. Returns how many; audited when there are any. When they
        were first handed it stays: a provider's memory of a key ends by that.
        """
        d = deliveries.c
        unknown = update(deliveries).where(d.job_id == job, d.state == State.UNKNOWN.value)
        count = connection.execute(unknown.values(holder=RELEASED, updated_at=self.db.now())).rowcount
        if count:
            record(
                self.db, connection, actor=actor, action="EMAIL_RESENT", entity="job", entity_id=job, tenant=tenant, level="warning",
                meta={"recipients": count, "reason": without_addresses(reason)},
            )  # fmt: skip
        return count

    def is_audited(self, connection: Connection, job: int, action: str) -> bool:
        """Is this on record of a job already?"""
        a = audit_log.c
        query = select(a.id).where(a.entity_id == str(job), a.entity == "job", a.action == action).limit(1)
        return connection.execute(query).first() is not None

    def prune(self, connection: Connection, before: datetime) -> int:
        """Remove what is older than ``before`` and belongs to jobs that are gone. Returns how many rows; call it until it is none."""
        d = deliveries.c
        gone = ~exists().where(jobs.c.id == d.job_id) & ~exists().where(jobs_done.c.id == d.job_id)
        old = select(d.job_id).where(d.updated_at < before, gone).distinct().limit(PRUNED)
        connection.execute(delete(events).where(events.c.at < before))
        connection.execute(delete(holds).where(holds.c.until < before))
        return connection.execute(delete(deliveries).where(d.job_id.in_(old.scalar_subquery()))).rowcount

    # ------------------------------------------------------------------ holds

    def hold(self, connection: Connection, queue: str, provider: str) -> Hold | None:
        """The hold of a provider in a queue, which may have passed."""
        h = holds.c
        query = select(h.until, h.reason, h.kind, h.since, h.failures, h.holds_queue, h.probed_until)
        row = connection.execute(query.where(h.queue == queue, h.provider == provider)).first()
        if row is None:
            return None
        return Hold(row.since, row.until, row.reason, Kind(row.kind), row.failures, row.probed_until, row.holds_queue)

    def keep_hold(self, connection: Connection, queue: str, provider: str, hold: Hold) -> None:
        values = {
            "kind": str(hold.kind), "reason": without_addresses(hold.problem), "since": hold.since, "until": hold.until,
            "probed_until": hold.probing_until, "failures": hold.tries, "holds_queue": hold.wide,
        }  # fmt: skip
        statement = self._insert_into(holds).values(queue=queue, provider=provider, **values)
        connection.execute(statement.on_conflict_do_update(index_elements=[holds.c.queue, holds.c.provider], set_=values))  # fmt: skip

    def probe(self, connection: Connection, queue: str, provider: str, seen: Hold, until: datetime) -> bool:
        """Be the one that tries whether the other side is back. False: another message is."""
        h = holds.c
        mine = (h.queue == queue, h.provider == provider, h.until == seen.until)
        free = h.probed_until.is_(None) if seen.probing_until is None else h.probed_until == seen.probing_until
        return connection.execute(update(holds).where(*mine, free).values(probed_until=until)).rowcount == 1

    def end_hold(self, connection: Connection, queue: str, provider: str, seen: Hold) -> bool:
        """The other side has answered. A hold that began meanwhile stays. False: so it was, or another message was faster."""
        h = holds.c
        gone = delete(holds).where(h.queue == queue, h.provider == provider, h.until == seen.until)
        connection.execute(delete(events).where(events.c.kind == DECLINED, events.c.queue == queue))
        return connection.execute(gone).rowcount == 1

    def decline(self, connection: Connection, queue: str, provider: str, job: int, reason: str, *, most: int) -> bool:
        """Write down that a job's message was taken for nobody, without its fault. True: so it is with ``most`` jobs, and no message of
        the queue was answered otherwise in between (``end_hold``).
        """
        self.note(connection, f"{DECLINED}:{queue}:{provider}:{job}", DECLINED, queue=queue, job=job)
        e, now = events.c, self.db.present(connection)
        some = select(e.id).where(e.kind == DECLINED, e.queue == queue).limit(most)
        if len(connection.execute(some).all()) >= most:
            return True
        if (
            self.hold(connection, queue, provider) is None
        ):  # tells those who are answered that there is something to forget
            self.keep_hold(connection, queue, provider, Hold(now, now, reason, Kind.TRANSIENT))
        return False

    # ------------------------------------------------------------------ events

    def note(self, connection: Connection, ident: str, kind: str, *, queue: str | None = None, job: int | None = None) -> bool:  # fmt: skip
        """Write down that something happened. False: it is on record already."""
        values = {"id": ident, "kind": kind, "queue": queue, "job_id": job, "at": self.db.present(connection)}
        statement = self._insert_into(events).values(**values).on_conflict_do_nothing()
        return connection.execute(statement.returning(events.c.id)).first() is not None

    def forget(self, connection: Connection, ident: str) -> None:
        """Take an event off the record."""
        connection.execute(delete(events).where(events.c.id == ident))

    # ------------------------------------------------------------------ suppressions

    def suppressed(self, connection: Connection, tenant: str, addresses: Sequence[str]) -> set[str]:
        """Which of these normalised addresses are not written to."""
        s = suppressions.c
        found = set[str]()
        for portion in _portions(addresses):
            query = select(s.address).where(s.tenant == tenant, s.address.in_(portion))
            found.update(connection.execute(query).scalars())
        return found

    def suppress(
        self,
        connection: Connection,
        tenant: str,
        address: str,
        reason: str | None,
        actor: str,
        source: str | None = None,
    ) -> Suppression | None:
        """Put a normalised address on the list. None when it is there already. Audited by its fingerprint."""
        now = self.db.present(connection)
        values = {"tenant": tenant, "address": address, "reason": reason, "created_at": now, "created_by": actor, "source": source}  # fmt: skip
        statement = self._insert_into(suppressions).values(**values).on_conflict_do_nothing()
        if connection.execute(statement.returning(suppressions.c.address)).first() is None:
            return None
        self._audit(connection, "MAIL_SUPPRESSED", tenant, address, actor, reason, source)
        return Suppression(tenant, address, reason, now, actor, source)

    def wrote_to(self, connection: Connection, mark: str, address: str, job: int | None) -> set[str]:
        """The tenants that a normalised address was written to by, as far as deliveries are kept. ``job``: by this one."""
        d = deliveries.c
        query = select(d.tenant).where(d.recipient == fingerprint(mark, address), d.state.in_(("accepted", "unknown")))
        if job is not None:
            query = query.where(d.job_id == job)
        return set(connection.execute(query.distinct().limit(PORTION)).scalars())

    def unsuppress(self, connection: Connection, tenant: str, address: str, reason: str | None, actor: str) -> bool:
        """Take a normalised address off the list. False when it was not there. Audited by its fingerprint."""
        s = suppressions.c
        gone = connection.execute(delete(suppressions).where(s.tenant == tenant, s.address == address)).rowcount
        if gone:
            self._audit(connection, "MAIL_UNSUPPRESSED", tenant, address, actor, reason)
        return bool(gone)

    def _audit(
        self,
        connection: Connection,
        action: str,
        tenant: str,
        address: str,
        actor: str,
        reason: str | None,
        source: str | None = None,
    ) -> None:
        record(
            self.db, connection, actor=actor, action=action, entity="mailbox", tenant=tenant,
            entity_id=fingerprint(self.mark(connection), address), meta=({"reason": without_addresses(reason)} if reason else {}) | ({"source": source} if source else {}),
        )  # fmt: skip

    def suppressions(
        self, connection: Connection, tenant: str | None, limit: int, after: tuple[str, str] | None = None
    ) -> list[Suppression]:
        """The list, by tenant and address."""
        s = suppressions.c
        query = (
            select(s.tenant, s.address, s.reason, s.created_at, s.created_by, s.source)
            .order_by(s.tenant, s.address)
            .limit(limit)
        )
        if tenant is not None:
            query = query.where(s.tenant == tenant)
        if after is not None:
            query = query.where((s.tenant > after[0]) | ((s.tenant == after[0]) & (s.address > after[1])))
        return [Suppression(*row) for row in connection.execute(query)]
