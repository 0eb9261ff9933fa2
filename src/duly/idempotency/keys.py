"""Looking at keys and forgetting them: for people, after a mistake. Arguments and results are never shown.

Source: R004-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from duly.audit.store import record
from duly.idempotency.reservation import Reservation, State
from duly.idempotency.sql import SqlStore
from duly.idempotency.store import ROUNDS, KeyFilter, Store
from duly.jobs.keys import JobKeys
from duly.kernel.errors import InvalidArgument, NotFound, StoreUnavailable, WrongState
from duly.kernel.payload import check_text, check_whole
from duly.storage.database import Database

FORGOTTEN = "IDEMPOTENCY_KEY_FORGOTTEN"


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it stands. ``token`` rises with each owner."""

    tenant: str
    key: str
    task: str
    state: State
    owner: str
    attempts: int
    since: datetime
    seen_at: datetime
    #: Of a key in progress: until when its owner keeps others out.
    locked_until: datetime | None
    kept_until: datetime
    #: Bytes of the recorded result.
    result_size: int | None
    #: The type of the error of a body that failed.
    error: str | None
    token: int


class Keys:
    """``app.keys``: the keys of ``@idempotent_task`` and of ``IdempotencyMiddleware``. ``at``: the same in another store, such as a RedisStore.

    ``jobs``: the keys of ``enqueue(key=…)``.
    """

    def __init__(self, db: Database, store: Store) -> None:
        self.db, self.store, self.jobs = db, store, JobKeys(db)

    def at(self, store: Store) -> Keys:
        """The keys of another store. What is forgotten there is audited in this application's database."""
        return Keys(self.db, store)

    def find(
        self, limit: int = 50, cursor: str | None = None, *, tenant: str | None = None, task: str | None = None,
        state: State | str | None = None, older_than: timedelta | None = None,
    ) -> tuple[list[Key], str | None]:  # fmt: skip
        """Keys, and the cursor of the next page; None on the last one. In no order of time.

        ``older_than``: those of which nothing was heard for so long. A page of Redis may hold fewer keys than ``limit``, even none, and others behind it.
        Raises InvalidArgument, StoreUnavailable.
        """
        check_whole(limit, "limit", 1, 10_000)
        try:
            wanted = None if state is None else State(state)
        except ValueError:
            raise InvalidArgument("state", f"is {state!r}.", f"Use {', '.join(State)}.") from None
        found, following = self.store.find(KeyFilter(tenant, task, wanted, older_than), limit, cursor)
        return [_shown(one) for one in found], following

    def get(self, key: str, tenant: str = "default") -> Key:
        """One key. Raises NotFound, StoreUnavailable."""
        found = self.store.look(check_text(tenant, "tenant"), check_text(key, "key"))
        if found is None:
            raise NotFound("key", repr(key))
        return _shown(found)

    def forget(
        self, key: str, reason: str, actor: str = "code", tenant: str = "default", force: bool = False, token: int | None = None
    ) -> Key:  # fmt: skip
        """Forget a key, so that the next call runs the body, and return it as it stood. Audited with who and why.

        ``force``: also one in progress whose owner may be alive: its body may then run twice at once, and its end is not recorded. ``token``: only
        while this owner has it. Raises NotFound, WrongState, StoreUnavailable.
        """
        if not reason.strip():
            raise InvalidArgument("reason", "is empty.", "Say why; it stands in the audit trail.")
        check_text(reason, "reason")
        store, db = self.store, self.db
        told = (check_text(tenant, "tenant"), check_text(key, "key"), force, token)

        def written(connection: Connection, found: Reservation) -> Reservation:
            record(
                db, connection, actor=actor, action=FORGOTTEN, entity="key", entity_id=key, tenant=tenant, level="warning",
                meta={"reason": reason, "task": found.task, "was": found.state.value, "owner": found.owner, "forced": force},
            )  # fmt: skip
            return found

        if isinstance(store, SqlStore) and store.db is db:
            gone = db.write(lambda c: written(c, _forgotten(store.within(c), *told)))
        else:
            forgotten = _forgotten(store, *told)
            gone = db.write(lambda c: written(c, forgotten))
        return _shown(gone)


def _forgotten(store: Store, tenant: str, key: str, force: bool, token: int | None) -> Reservation:
    for _ in range(ROUNDS):
        found, now = store.read(tenant, key)
        if found is None or not found.lives(now):
            raise NotFound("key", repr(key))
        if token is not None and found.token != token:
            raise WrongState(f"key {key!r}", f"held by another owner by now ({found.owner})", "be forgotten")
        if found.state is State.IN_PROGRESS and now < found.locked_until and not force:
            raise WrongState(
                f"key {key!r}",
                f"in progress until {found.locked_until:%Y-%m-%d %H:%M:%S} UTC (owner {found.owner}, last heard of at {found.seen_at:%H:%M:%S})",
                "be forgotten without force: the body may run twice at once",
            )
        if store.replace(found, None):
            return found
    raise StoreUnavailable("the key kept changing hands")


def _shown(r: Reservation) -> Key:
    return Key(
        r.tenant, r.key, r.task, r.state, r.owner, r.attempts, r.created_at, r.seen_at,
        r.locked_until if r.state is State.IN_PROGRESS else None, r.kept_until,
        None if r.result is None else len(r.result.encode()), r.error, r.token,
    )  # fmt: skip
