"""A key and the transaction of the session that the body writes with: one commit where they are in one database.

**The rule.** The end of a key is written where the effect is, or after the effect.

*Where it is:* by the session, in the very transaction or savepoint that it was in when the call began, if the body has ended none of
them and if there is no other database that the session might have written to. Whatever becomes of that transaction then becomes of
both. Nothing has to be known about it: what is heard later only frees the key of a rollback earlier than its lock would, and a
mistake there changes nothing, since only a key that is still in progress under our own token is changed.

*After it:* everywhere else (Redis, another database or schema, several of them, a follower, another isolation level, a body that
has committed or rolled back). Whoever waits for the end of the transaction is told from the beginning of the call on
(``storage/session_end.py``), so that what the body itself ends is known too. What is durable is recorded at once, even when its
reservation has gone; what is pending is recorded when the outermost transaction around it is committed, and freed when it is rolled
back. Signs of life go on until then. A process that dies between the two leaves a key that lapses: the body may then run again.

**One writer.** The store makes reservations in transactions of its own. On SQLite that is not possible while the session's transaction
keeps the file: then the reservation is made in there as well. If the body ends that transaction, the reservation is made again at
that moment, before the body can go on.

**Lost.** If somebody else has taken over meanwhile, nothing is recorded and the call is told to come later, so that what its
body wrote is rolled back with the session.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Transaction, event
from sqlalchemy.orm import Session, SessionTransaction

from duly.idempotency.keeper import KEEPER
from duly.idempotency.pending import ROLLED_BACK
from duly.idempotency.plan import Admit
from duly.idempotency.reservation import Ask, State
from duly.idempotency.sql import SqlStore
from duly.idempotency.store import End, Holding, Store
from duly.idempotency.telling import Teller
from duly.kernel.errors import brief
from duly.storage.joined import End as SessionEnd
from duly.storage.joined import innermost, is_aborted, is_autocommit, is_begun
from duly.storage.older import binds_of, connections_of
from duly.storage.session_end import beside, orm_session, when_over

#: Levels of isolation at which a change that was committed beside the transaction can be changed in there.
_PLAIN = frozenset({"READ COMMITTED", "READ UNCOMMITTED"})


@dataclass(slots=True)
class _Course:
    """What is known of a session in whose calls somebody is interested."""

    #: Calls whose bodies are running, and of these the ones that wait for the session's next transaction, because it is in none.
    running: list[_Watch] = field(default_factory=list)
    next: list[_Watch] = field(default_factory=list)
    #: Keys whose ends are written in the transaction that it is in.
    written: set[tuple[str, str]] = field(default_factory=set)
    #: How often it has committed, be it in somebody else's transaction.
    commits: int = 0


_courses: weakref.WeakKeyDictionary[Session, _Course] = weakref.WeakKeyDictionary()


class Together:
    """The session that one call's body is given, and the store that the call's key is in. ``later``: has the call made again."""

    def __init__(self, session: Session, store: Store, ask: Ask, tell: Teller, later: Callable[[], None]) -> None:
        self.session, self.store, self.ask, self.tell, self.later = session, store, ask, tell, later
        #: The reservation, too, is made in the session's transaction.
        self.inside = False
        self._course = _courses.setdefault(session, _Course())
        self._watch: _Watch | None = None

    # ------------------------------------------------------------------ before the body

    def place(self) -> Store:
        """Where to ask for the key: beside the session's transaction, or in there if it has to be."""
        self.inside = False
        store = self.store
        if not isinstance(store, SqlStore):
            return store
        found = next((c for c in self._connections() if self._keeps_file(c) and not _translates(c)), None)
        if found is not None:
            self.inside = True
            return store.within(self._same(found))
        if (self.ask.tenant, self.ask.key) in self._course.written:
            found = next((c for c in self._connections() if store.shares(c)), None)
            self.inside = found is not None
        return store if found is None else store.within(self._same(found))

    def watch(self, holding: Holding) -> None:
        """The body begins: from now on it is known what becomes of the session's transactions."""
        self._watch = _Watch(self, holding)
        self._course.running.append(self._watch)
        self._watch.attach(self.session)

    # ------------------------------------------------------------------ after it

    def abandon(self) -> None:
        """The body was thrown away: its key is seen to elsewhere."""
        if self._watch is not None:
            self._watch.leave()
            self._watch.disarm()

    def end(self, holding: Holding, end: End) -> bool | None:
        """Write the end of the key in the session's transaction where that is right, or let it wait for that one's commit.

        False when there is nothing to wait for, None when somebody else had taken over. Raises what the session says to what the body
        has left for it to flush, if it has to be flushed now.
        """
        watch = self._watch
        assert watch is not None
        watch.end, watch.running = end, False
        try:
            if watch.void:
                return None if end.state is State.SUCCEEDED else True
            if end.state is not State.SUCCEEDED:
                return self._failed(watch)
            try:
                watch.firm = self._flushed() or watch.firm
            except Exception:
                watch.undone()
                if not self._failed(watch):
                    watch.ended("lost")
                raise
            return self._succeeded(watch)
        finally:
            watch.leave()

    def _flushed(self) -> bool:
        """Have what the body left written, where a commit of the session need not come. Is it durable already?"""
        auto = any(map(is_autocommit, self._connections()))
        sound = self.session.is_active and not any(map(is_aborted, self._connections()))
        if sound and (auto or isinstance(self.session.bind, Connection) or binds_of(self.session)):
            self.session.flush()
            auto = any(map(is_autocommit, self._connections()))
        return auto

    def _succeeded(self, watch: _Watch) -> bool | None:
        if not watch.waits:  # nothing is pending
            lost = watch.is_undone and not watch.firm
            if not lost and not watch.inside and self._kept() is None:
                return False
            watch.ended("lost" if lost else "committed")
            return True
        if watch.firm:
            return self._at_once(watch)
        connection = self._carrier(watch)
        if connection is not None:
            if is_autocommit(connection):
                self.session.flush()
                watch.firm = True
                return self._at_once(watch)
            if watch.write_in(connection):
                return True
            if watch.void:
                return None
        watch.keep()
        return True

    def _failed(self, watch: _Watch) -> bool:
        """The key is free at once, unless the session's transaction keeps others from writing that."""
        kept = self._kept()
        if kept is None and not watch.inside:
            watch.disarm()
            return False
        if kept is not None:
            watch.write_in(kept)  # for whoever tries again in there
        if not watch.waits:
            watch.ended("lost")
        return True

    def _at_once(self, watch: _Watch) -> bool:
        if self._kept() is not None:
            watch.keep()  # nobody else writes in this file until that transaction has ended
            return True
        watch.disarm()
        return False

    # ------------------------------------------------------------------ connections

    def _connections(self) -> list[Connection]:
        """What the session has taken, or will join: sound ones."""
        root = self.session.get_transaction()
        taken: Any = () if root is None else connections_of(root)
        if not taken:
            taken = [b for b in (self.session.bind, *binds_of(self.session)) if isinstance(b, Connection)]
        return [c for c in taken if not c.closed and not c.invalidated]

    def _keeps_file(self, connection: Connection) -> bool:
        """Is it in a transaction that keeps others from writing to the store's file?"""
        sqlite = isinstance(self.store, SqlStore) and connection.dialect.name == "sqlite"
        return sqlite and is_begun(connection) and self.store.shares(connection)  # type: ignore[attr-defined]

    def _kept(self) -> Connection | None:
        return next((c for c in self._connections() if self._keeps_file(c)), None)

    def _same(self, connection: Connection) -> Connection:
        """As the session gives it: with the savepoints that it has asked for. It is not made to begin, which the body may want to."""
        root = self.session.get_transaction()
        if root is None:
            return connection
        bind = connection.engine if connection in connections_of(root) else connection
        return self.session.connection(bind_arguments={"bind": bind})

    def _carrier(self, watch: _Watch) -> Connection | None:
        """The connection on which the end of the key shares the fate of all that the body wrote with the session, if there is one."""
        session, store = self.session, self.store
        root = session.get_transaction()
        if root is None or watch.began is None or not session.is_active or not isinstance(store, SqlStore):
            return None
        if binds_of(session) or type(session).get_bind is not Session.get_bind or len(connections_of(root)) > 1:
            return None  # what is still to be flushed may go elsewhere
        if (session.get_nested_transaction() or root) is not watch.began():
            return None
        try:
            connection = session.connection()
            if set(connections_of(root)) != {connection} or not store.shares(connection):
                return None
        except Exception:
            return None  # it leads elsewhere, or nowhere
        if (
            innermost(connection) is not watch.places.get(connection)
            or is_aborted(connection)
            or _translates(connection)
        ):
            return None
        return connection if connection.dialect.name == "sqlite" or _level(connection) in _PLAIN else None


def _level(connection: Connection) -> str:
    return str(connection.get_execution_options().get("isolation_level") or connection.default_isolation_level).upper()


def _translates(connection: Connection) -> bool:
    """Does it write the store's table into another schema?"""
    return None in (connection.get_execution_options().get("schema_translate_map") or {})


def _savepoint(connection: Connection) -> contextlib.AbstractContextManager[Any]:
    """A statement that fails within takes nothing along. On SQLite none does anyway."""
    return contextlib.nullcontext() if connection.dialect.name == "sqlite" else connection.begin_nested()


class _Watch:
    """What becomes of one call's effect, and with it of its key. It leads back to no session."""

    def __init__(self, call: Together, holding: Holding) -> None:
        self.holding, self.tell, self.store, self.ask, self.later = holding, call.tell, call.store, call.ask, call.later
        session = call.session
        self.session, self.place = weakref.ref(session), (call.ask.tenant, call.ask.key)
        self.end = ROLLED_BACK
        #: The reservation was made in the session's transaction, and went with it if that was rolled back.
        self.inside = call.inside
        #: The body has not ended.
        self.running = True
        #: Somebody will tell how the transaction ends that all pending work of the body is in.
        self.waits = False
        #: Something is durable, whatever the session's transaction comes to.
        self.firm = False
        #: What the session had committed within somebody else's transaction was rolled back with that one.
        self.is_undone = False
        #: The end was written in the session's transaction.
        self.written = False
        #: Somebody else has the key.
        self.void = False
        self.commits = _courses[session].commits
        #: What the body began in, or the first that began after it; and what its statements are part of, by connection.
        self.began: weakref.ref[SessionTransaction] | None = None
        self.places: dict[Connection, Transaction | None] = {}
        #: Whose transactions may still be open when somebody tells that they have ended.
        self._connections = [weakref.ref(c) for c in call._connections()]

    # ------------------------------------------------------------------ what the session does

    def attach(self, session: Session) -> None:
        """Be told how the session's present transaction ends, or the next one if it is in none."""
        if session.get_transaction() is None:
            _courses[session].next.append(self)
        else:
            self.waits = True
            if self.began is None:
                begun = session.get_nested_transaction() or session.get_transaction()
                assert begun is not None
                self.began = weakref.ref(begun)
                self.places = {c: innermost(c) for c in connections_of(begun)}
            when_over(session, _over, self)

    def leave(self) -> None:
        """The body has ended."""
        self.running, session = False, self.session()
        self.places.clear()
        if session is not None:
            for calls in (_courses[session].running, _courses[session].next):
                if self in calls:
                    calls.remove(self)

    def taken(self, transaction: SessionTransaction, connection: Connection) -> None:
        """The session has taken a connection."""
        if self.began is not None and transaction is self.began():
            self.places[connection] = innermost(connection)
        self._connections.append(weakref.ref(connection))

    def over(self, how: SessionEnd) -> None:
        self.waits = False
        if self.running:
            self._midway(how)
        elif not self.void:
            self.ended(how)

    def _midway(self, how: SessionEnd) -> None:
        """The body itself has ended what it was called in."""
        session = self.session()
        if how != "lost":
            self.firm = True
        elif session is not None and _courses[session].commits > self.commits:
            self.is_undone = True
        if session is None:
            return
        self.attach(session)
        if self.inside and not self._is_open():
            self.inside = False
            beside(self._again)

    def _again(self) -> None:
        """The body goes on, and its reservation was committed or has gone with what was rolled back: see that it is there."""
        mine = self.holding.reservation
        found = self.store.look(mine.tenant, mine.key)
        if found is None or (found.token, found.owner) != (mine.token, mine.owner):
            decision = self.store.reserve(self.ask)
            found = decision.reservation if isinstance(decision, Admit) else None
        if found is not None:
            self.holding.again(self.store, found)
            KEEPER.keep(self.holding)
            return
        self.void = True
        self.tell.emit("idempotency_lost", "warning")
        if not self.firm:
            self.later()

    def _is_open(self) -> bool:
        """Is a transaction of the session's connections still open? Then others may be kept from writing, or their writes from being seen."""
        there = (ref() for ref in self._connections)
        return any(c is not None and not c.closed and (c.in_transaction() or is_begun(c)) for c in there)

    # ------------------------------------------------------------------ the end of the key

    def disarm(self) -> None:
        """Nothing is to be done when the transaction ends."""
        self.void = True

    def undone(self) -> None:
        """The transaction cannot be committed, or was not."""
        self.end = ROLLED_BACK

    def keep(self) -> None:
        """Give signs of life until the transaction has ended: nothing is written in there that others would wait for."""
        session = self.session()
        if not self.inside and self.holding.held and session is not None:
            around = session.bind if isinstance(session.bind, Connection) else session
            KEEPER.keep(self.holding, weakref.ref(around))

    def write_in(self, connection: Connection) -> bool:
        """Write the end in the transaction. False: it has to be written after that one; or somebody else has the key (``void``)."""
        holding, session = self.holding, self.session()
        assert isinstance(self.store, SqlStore)
        assert session is not None
        self._connections.append(weakref.ref(connection))
        twin = holding.through(self.store.within(connection))
        found: bool | None = None
        try:
            with _savepoint(connection):
                found = self.written = self.end.write(twin)
        except Exception:
            self.written = False
        except BaseException:
            self.undone()
            raise
        finally:
            if not self.written:
                holding.resume()
        if self.written:
            _courses[session].written.add(self.place)
        if found is False and not self.inside and not self._is_mine():
            self.void = True
        return self.written

    def _is_mine(self) -> bool:
        """Does the reservation stand where others look for it? Then the transaction could not see it."""
        mine = self.holding.reservation
        try:
            found = self.store.look(mine.tenant, mine.key)
        except Exception:
            return True  # it will be seen when the end is written
        return found is not None and found.token == mine.token and found.state is State.IN_PROGRESS

    def ended(self, how: SessionEnd) -> None:
        """What the body wrote is durable or gone."""
        session = self.session()
        if session is not None:
            _courses[session].written.discard(self.place)
        KEEPER.let_go(self.holding)
        was_written, self.written = self.written, False
        if how == "lost" and not self.firm and self.end.state is State.SUCCEEDED:
            self.undone()
        elif was_written and how != "lost":
            self._told()
            return
        if was_written:
            self.holding.resume()
        self.holding.store = self.store
        if self._is_open() or (session is not None and session.in_transaction()):
            # a savepoint was given up, or the ROLLBACK comes only now: until then others may be kept from writing
            self._write_later()
        else:
            beside(lambda: KEEPER.within(self.holding, self.write, self._write_later))

    def write(self) -> None:
        """Write the end at the store, now or as soon as it takes it."""
        self.holding.store = self.store
        try:
            self._write()
        except Exception as error:
            self.tell.emit("idempotency_store_failed", "error", error=brief(error))
            self._write_later()

    def _write_later(self) -> None:
        KEEPER.end_later(self.holding, self._write)

    def _write(self) -> bool:
        """Whatever was heard of the transaction: only what is in progress under our token is changed, and what is durable is recorded."""
        if self.end.write(self.holding):
            self._told()
            return True
        mine = self.holding.reservation
        found = self.store.look(mine.tenant, mine.key)
        if found is not None and (found.token, found.owner) == (mine.token, mine.owner):
            # what was taken for lost was committed after all
            self.end = End(found.state, self.end.write)
            self._told()
            return True
        if self.end.state is State.SUCCEEDED:  # its reservation is gone
            decision = self.store.reserve(self.ask)
            if isinstance(decision, Admit) and self.end.write(
                Holding(self.store, decision.reservation, self.ask.terms)
            ):
                self._told()
                return True
        elif found is None and self.inside:
            self._told()  # it went with the transaction
            return True
        self.tell.emit("idempotency_lost", "warning")
        return False

    def _told(self) -> None:
        if self.end.state is not None:
            self.tell.emit("idempotency_state", state=self.end.state.value)


def _after_create(session: Session, transaction: SessionTransaction) -> None:
    course = _courses.get(session)
    if course is not None and transaction.parent is None:
        waiting, course.next = course.next, []
        for watch in waiting:
            watch.attach(session)


def _after_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    course = _courses.get(session)
    for watch in () if course is None else course.running:
        watch.taken(transaction, connection)


def _after_commit(session: Session) -> None:
    course = _courses.get(session)
    if course is not None and session.get_nested_transaction() is None:
        course.commits += 1


for _name, _listener in (
    ("after_transaction_create", _after_create),
    ("after_begin", _after_begin),
    ("after_commit", _after_commit),
):
    event.listen(Session, _name, _listener, insert=True)


def _over(watches: list[_Watch], how: SessionEnd) -> None:
    for watch in watches:
        watch.over(how)


def session_of(given: Any) -> Session | None:
    """The Session behind what a body is given as one; None for anything else."""
    return orm_session(given)
