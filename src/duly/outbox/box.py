"""The outbox: messages that leave if, and only if, a transaction commits.

::

    outbox = Outbox(app, transports={"duly": DulyTransport(warehouse), "webhook": WebhookTransport(url, secret=…)})

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.publish(session, "webhook:billing", {"order": 17}, key="order-17", ordering_key="customer-4")

    outbox.relay().run()  # in a process of its own, or in several

The table may lie in Duly's own database or in any other (``Outbox(engine)``): it must be the one that the transaction
commits to. This file writes no SQL and sends nothing; it checks, and hands on.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine

from duly.audit.store import record_many
from duly.jobs.names import Names
from duly.jobs.session import borrowed
from duly.jobs.task import Options as When
from duly.kernel.backoff import Backoff
from duly.kernel.binding import is_async
from duly.kernel.clock import Clock
from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument, NotFound, WrongState
from duly.kernel.events import Listener
from duly.kernel.payload import check_name, check_text, read_seconds
from duly.outbox.home import Application, Home
from duly.outbox.message import (
    LIFECYCLE,
    PARKED,
    PARKED_BY_HAND,
    REDRIVEN,
    Destination,
    Message,
    NewMessage,
    Published,
    Status,
    checked_headers,
)
from duly.outbox.options import Options
from duly.outbox.plain import encode_payload
from duly.outbox.plan import OnParked, Policy
from duly.outbox.read import MessageFilter, OutboxReader, Standing
from duly.outbox.relay import Relay
from duly.outbox.store import OutboxStore
from duly.outbox.transports import Transport
from duly.storage.database import Database
from duly.storage.guest import table_sql
from duly.storage.wake import Bells
from duly.tracing import traceparent

#: Messages removed in one transaction.
PRUNE_STEP = 1000


class Outbox:
    """An outbox in one database.

    ``place``: a Duly application, an engine of SQLAlchemy, or a database's URL. ``transports``: by the name that stands
    before the colon of a destination; needed where a relay runs, and where they are given no other destination can be
    published to. ``table`` and ``schema``: where the table is called otherwise (never for Duly's own). ``max_attempts``,
    ``backoff`` and ``on_parked`` as in ``Policy``, everything else as in ``Options``. Opens nothing until it is used.

    Raises InvalidArgument naming the argument.
    """

    def __init__(
        self, place: Application | Engine | Any, *, transports: Mapping[str, Transport] | None = None, tenant: str = "default",
        table: str = "outbox", schema: str | None = None, max_attempts: int = 5, backoff: Backoff | None = None,
        on_parked: OnParked = "hold", clock: Clock | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.options = Options.of(settings)
        self.policy = Policy(max_attempts, backoff or Policy().backoff, on_parked)
        self.tenant = check_name(tenant, "tenant")
        self.transports = _checked_transports(transports)
        self._home = Home(place, table, schema, clock)
        self.app, self.db, self.events, self.table = self._home.app, self._home.db, self._home.events, self._home.table
        self._names = Names(self.db, self.events)
        self.store = OutboxStore(self.db, self.table, on_parked)
        self.reader = OutboxReader(self.db, self.table)
        #: Rung in this process when messages were made due by hand.
        self.bells = Bells()
        _made.add(self)

    # ------------------------------------------------------------------ publish

    def publish(
        self, session: Any, destination: str | Destination, payload: Any, *, key: str | None = None, ordering_key: str | None = None,
        headers: Mapping[str, str] | None = None, run_in: Duration | None = None, run_at: datetime | None = None,
        tenant: str | None = None,
    ) -> Published:  # fmt: skip
        """Write a message in the transaction of ``session`` (a Session or Connection): it is sent if that commits.

        ``payload``: any JSON value; UUIDs, dates, times, decimals, enumerations, dataclasses and pydantic models are written as such.
        ``key``: at most one message per tenant, destination and key; a second one is not
        written, and the first one's message id is returned with ``created=False``. ``ordering_key``: messages of one
        destination with the same one are sent in the order of their commits. ``headers``: names to texts, carried along;
        the present trace context is added. ``run_in`` (seconds, a timedelta, or a text such as 5m) or ``run_at`` (aware): not before.

        On PostgreSQL, transactions that publish with the same destination and ordering key wait for each other's end.
        Raises InvalidArgument or InvalidPayload naming the argument, also for a session of another database; UnsafeSession for an SQLite session whose savepoints
        do not hold.
        """
        new = self._new(destination, payload, key, ordering_key, headers, run_in, run_at, tenant)
        return self._write(_synchronous(session, self.db, "apublish"), [new])[0]

    async def apublish(self, session: Any, destination: str | Destination, payload: Any, **options: Any) -> Published:
        """As ``publish``, for an AsyncSession or AsyncConnection (and for the others)."""
        new = self._new(destination, payload, **{**_NONE, **options})
        return (await self._awrite(session, [new]))[0]

    def publish_many(
        self, session: Any, destination: str | Destination, payloads: Iterable[Any], *, ordering_key: str | None = None,
        headers: Mapping[str, str] | None = None, run_in: Duration | None = None, run_at: datetime | None = None,
        tenant: str | None = None, keys: Iterable[str | None] | None = None,
    ) -> list[Published]:  # fmt: skip
        """Write many messages of one destination, in order. ``keys``: one for each. Otherwise as ``publish``."""
        new = self._many(destination, payloads, keys, ordering_key, headers, run_in, run_at, tenant)
        return self._write(_synchronous(session, self.db, "apublish_many"), new)

    async def apublish_many(
        self, session: Any, destination: str | Destination, payloads: Iterable[Any], *, keys: Iterable[str | None] | None = None,
        **options: Any,
    ) -> list[Published]:  # fmt: skip
        """As ``publish_many``, for an AsyncSession or AsyncConnection (and for the others)."""
        chosen = {**_NONE, **options}
        if chosen.pop("key") is not None:
            raise InvalidArgument("key", "is given for many messages.", "Give keys=, one for each.")
        return await self._awrite(session, self._many(destination, payloads, keys, **chosen))

    def _many(
        self, destination: str | Destination, payloads: Iterable[Any], keys: Iterable[str | None] | None, ordering_key: str | None,
        headers: Mapping[str, str] | None, run_in: Duration | None, run_at: datetime | None, tenant: str | None,
    ) -> list[NewMessage]:  # fmt: skip
        all_payloads = list(payloads)
        all_keys = list(keys) if keys is not None else [None] * len(all_payloads)
        if len(all_keys) != len(all_payloads):
            raise InvalidArgument(
                "keys", f"are {len(all_keys)} for {len(all_payloads)} payloads.", "Give one for each."
            )
        return [
            self._new(destination, payload, key, ordering_key, headers, run_in, run_at, tenant)
            for payload, key in zip(all_payloads, all_keys, strict=True)
        ]

    def _new(
        self, destination: str | Destination, payload: Any, key: str | None, ordering_key: str | None, headers: Mapping[str, str] | None,
        run_in: Duration | None, run_at: datetime | None, tenant: str | None,
    ) -> NewMessage:  # fmt: skip
        to = destination if isinstance(destination, Destination) else Destination.parse(destination)
        if self.transports and to.transport not in self.transports:
            raise InvalidArgument(
                "destination", f"is {str(to)!r}, and there is no transport {to.transport!r}.",
                f"Transports are: {', '.join(sorted(self.transports))}.",
            )  # fmt: skip
        targets = getattr(self.transports.get(to.transport), "targets", None)
        if targets is not None:
            remedy = "The message waits, and its destination is held, until there is such an endpoint."
            self._names.check(f"{to.transport} endpoint", to.target, targets, remedy=remedy)
        for name, value in (("ordering_key", ordering_key), ("key", key), ("tenant", tenant)):
            if value is not None:
                check_name(value, name)
        when = When(run_at=run_at, run_in=run_in).checked()
        carried = checked_headers(headers)
        trace = traceparent()
        if trace is not None:
            carried.setdefault("traceparent", trace)
        encoded = encode_payload(payload, self.options.max_payload)
        return NewMessage(
            str(uuid.uuid4()), tenant or self.tenant, str(to), encoded, carried, key, ordering_key, run_at, when.delay()
        )

    def _write(self, connection: Connection, new: Sequence[NewMessage]) -> list[Published]:
        self._home.check(connection)
        if not new:
            return []
        return [Published(*made) for made in self.store.publish(connection, new, self.options.notify)]

    async def _awrite(self, session: Any, new: Sequence[NewMessage]) -> list[Published]:
        if not hasattr(session, "run_sync"):
            return self._write(borrowed(session, self.db, asynchronous=False), new)
        made: list[Published] = await session.run_sync(
            lambda s: self._write(borrowed(s, self.db, asynchronous=True), new)
        )
        return made

    # ------------------------------------------------------------------ relay

    def relay(self, name: str | None = None) -> Relay:
        """A relay: ``run()`` until it is stopped, or ``run_once()``. ``name``: what it is called in lists and in the trail."""
        return Relay(self, None if name is None else check_name(name, "name"))

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Hear every event of the application, or of the process where there is none; returns a function that stops it."""
        return self.events.listen(listener)  # an application hears what happens in the process too

    # ------------------------------------------------------------------ look

    def status(self, sent: bool = True, tenant: str | None = None) -> Standing:
        """How it stands: counts, what is in flight and parked, and the age of the oldest message, in all and by destination.

        ``sent=False`` does not count what was sent, for those who ask often. ``tenant``: of its messages only.
        """
        self.open()

        def look(connection: Connection) -> Standing:
            standing = self.reader.standing(connection, sent, tenant)
            return standing.with_holds(self.store.holds(connection)) if self._home.is_own else standing

        return self.db.read(look)

    def get(self, ident: int | str, tenant: str | None = None) -> Message:
        """One message, by its number or its message id. Raises NotFound, also when it is another tenant's than ``tenant``."""
        if isinstance(ident, int) and not 0 < ident < 2**63:
            raise NotFound("message", ident)
        self.open()
        return self.db.read(lambda c: self.reader.get(c, ident, tenant))

    def find(self, limit: int = 50, below: int | None = None, **filters: Any) -> list[Message]:
        """Messages, newest first. Filters are the fields of ``MessageFilter``; ``below`` is the last id of the page before."""
        self.open()
        return self.db.read(lambda c: self.reader.find(c, MessageFilter(**filters), limit, below))

    # ------------------------------------------------------------------ operators

    def redrive(
        self, *idents: int | str, reason: str = "", actor: str = "code", tenant: str | None = None, force: bool = False
    ) -> list[Message]:
        """Have parked messages sent again: same message id, attempts from 0, due now. Audited as OUTBOX_REDRIVEN.

        ``force``: sent ones too. All or none: raises NotFound, or WrongState for one that is pending (or sent, without
        ``force``).
        """
        able = {Status.PARKED, Status.SENT} if force else {Status.PARKED}

        def act(connection: Connection) -> list[int]:
            found = self._able(connection, idents, tenant, "redrive", able)
            moved = self.store.redrive(connection, found)
            self._record(connection, moved, actor, REDRIVEN, "info", reason)
            return found

        return self._act(act, reason)

    def redrive_where(
        self,
        reason: str = "",
        actor: str = "code",
        limit: int | None = None,
        status: Status = Status.PARKED,
        **filters: Any,
    ) -> int:
        """The same for all parked messages that fit, but for those that an operator put aside (``park``): these are named by their ids. Filters
        are the fields of ``MessageFilter``. Returns how many."""

        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise InvalidArgument("limit", f"is {limit!r}; it must be a whole number of at least 1.")

        def act(connection: Connection) -> list[int]:
            LIFECYCLE.target(Status(status), "redrive")
            # what an operator put aside is sent by its id only
            own = None if Status(status) is not Status.PARKED else False
            found = self.reader.ids(connection, MessageFilter(status=Status(status), discarded=own, **filters), limit)
            moved = self.store.redrive(connection, found) if found else []
            self._record(connection, moved, actor, REDRIVEN, "info", reason)
            return [ident for ident, _ in moved]

        check_text(reason, "reason")
        self.open()
        moved = self.db.write(act)
        self.bells.ring()
        return len(moved)

    def park(self, *idents: int | str, reason: str, actor: str = "code", tenant: str | None = None) -> list[Message]:
        """Put pending messages aside, with a reason. Audited as OUTBOX_PARKED.

        A message that is being sent at this moment may arrive all the same. All or none: raises NotFound, or WrongState
        for one that is not pending.
        """

        def act(connection: Connection) -> list[int]:
            found = self._able(connection, idents, tenant, "park", {Status.PENDING})
            moved = self.store.park(connection, found, {"message": reason, "type": PARKED_BY_HAND, "by": actor})
            self._record(connection, [(ident, owner) for ident, owner, _ in moved], actor, PARKED, "warning", reason)
            return found

        return self._act(act, reason)

    def _able(
        self, connection: Connection, idents: Sequence[int | str], tenant: str | None, event: str, able: set[Status]
    ) -> list[int]:
        """The numbers of messages that can make a move; raises for the first that cannot."""
        found = [self.reader.get(connection, ident, tenant) for ident in dict.fromkeys(idents)]
        for message in found:
            if message.status not in able:
                raise WrongState(f"message {message.id}", message.status, event, tuple(sorted(able)))
        return [message.id for message in found]

    def _act(self, act: Any, reason: str) -> list[Message]:
        if not isinstance(reason, str):
            raise InvalidArgument("reason", f"is of type {type(reason).__name__}; it must be a text.")
        check_text(reason, "reason")
        self.open()
        ids: list[int] = self.db.write(act)
        self.bells.ring()
        return self.db.read(lambda c: [self.reader.get(c, ident) for ident in ids])

    def _record(
        self, connection: Connection, moved: Sequence[tuple[int, str]], actor: str, action: str, level: str, reason: str
    ) -> None:
        if self.audited:
            record_many(
                self.db,
                connection,
                moved,
                actor=actor,
                action=action,
                entity="message",
                level=level,
                meta={"reason": reason},
            )

    def prune(self, older: Duration | None = None) -> int:
        """Remove messages that were sent more than ``older`` seconds ago (default: ``keep``), their keys with them. Returns how many.

        Relays do this by themselves. Pending and parked messages are never removed.
        """
        age = self.options.keep if older is None else read_seconds(older, "older")
        if age is None:
            return 0
        if not 0 <= age < 1e10:
            raise InvalidArgument("older", f"is {older}; it must be a number of seconds, at least 0.")
        self.open()
        gone = 0
        while True:
            removed = self.db.write(lambda c: self.store.prune(c, age, PRUNE_STEP))
            gone += removed
            if removed < PRUNE_STEP:
                break
        if gone:
            self.events.emit("outbox_pruned", "info", count=gone)
        return gone

    # ------------------------------------------------------------------ database

    @property
    def is_own(self) -> bool:
        """Is the table Duly's own, so that held destinations are written down beside it, and Duly's gate holds its relays?"""
        return self._home.is_own

    @property
    def audited(self) -> bool:
        """Is the database Duly's own, so that there is an audit trail? Known once it was opened."""
        return self._home.audited

    def open(self) -> None:
        """Check once that the table is there. Raises SchemaMissing saying how it is made."""
        self._home.open()

    def create_table(self) -> bool:
        """Make the table in a database that is not Duly's own, unless it is there. Returns whether it was made."""
        return self._home.create_table()

    def sql(self, dialect: str | None = None) -> str:
        """The statements that make the table, for people who migrate by hand. ``dialect``: sqlite or postgresql."""
        return table_sql(self.table, dialect or self.db.name)

    def close(self) -> None:
        """Close the connections that it opened itself."""
        self._home.close()


_made: weakref.WeakSet[Outbox] = weakref.WeakSet()


def made_here() -> list[Outbox]:
    """The outboxes of this process that a relay can work for: those with transports."""
    return sorted((box for box in _made if box.transports), key=lambda box: box.db.shown_url)


_NONE: Mapping[str, Any] = dict.fromkeys(("key", "ordering_key", "headers", "run_in", "run_at", "tenant"))


def _synchronous(session: Any, db: Database, twin: str) -> Connection:
    if hasattr(session, "run_sync"):
        raise InvalidArgument("session", "is asynchronous.", f"Use `await outbox.{twin}(…)`.")
    return borrowed(session, db, asynchronous=False)


def _checked_transports(given: Mapping[str, Transport] | None) -> dict[str, Transport]:
    out: dict[str, Transport] = {}
    if given is not None and not isinstance(given, Mapping):
        raise InvalidArgument(
            "transports", f"are of type {type(given).__name__}.", "Give a mapping of names to transports."
        )
    for name, transport in (given or {}).items():
        if Destination.parse(name).target or not callable(getattr(transport, "send", None)):
            raise InvalidArgument(
                f"transports[{name}]",
                f"is a {type(transport).__name__}.",
                "Give a plain name and something with send(message).",
            )
        if is_async(transport.send):
            raise InvalidArgument(
                f"transports[{name}]",
                "has an asynchronous send, which a relay's thread cannot await.",
                "Let send block.",
            )
        out[name] = transport
    return out
