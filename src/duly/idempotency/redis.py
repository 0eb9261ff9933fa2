"""Reservations in Redis or Valkey (extra ``redis``).

A reservation is one JSON text under one key with a time to live, so nothing stays for ever. A new one is written by ``SET NX
PX``, one command; everything else by a script that sets the new text where exactly the old one stands. The clock is the
server's. The server must not evict (``maxmemory-policy noeviction``) and is as durable as its configuration: what must not
be done twice even if it forgets belongs into the SQL store (T004-h).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import orjson

from duly.idempotency.reservation import Reservation, State
from duly.idempotency.store import KeyFilter, Store, unknown_cursor
from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument, StoreUnavailable
from duly.kernel.events import PROCESS
from duly.kernel.payload import read_seconds

_SWAP = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
"""
#: Options that a pool makes for its own connections.
_MADE_BY_POOLS = ("orig_", "maint_notifications_pool_handler", "himport_registry")
#: Names that one page of a list looks at.
SCANNED = 20_000
_INSTANTS = ("locked_until", "seen_at", "kept_until", "created_at")


class RedisStore(Store):
    """Reservations in Redis. ``server``: a URL, or a ``redis.Redis`` client.

    ``prefix``: the beginning of every key. ``timeout``: seconds after which a server that is silent does not answer; a client whose
    ``socket_timeout`` is set keeps its own. Raises InvalidArgument when the extra is missing.
    """

    def __init__(self, server: Any, *, prefix: str = "duly:idempotency:", timeout: Duration = 2.0) -> None:
        timeout = read_seconds(timeout, "timeout", 0, above=True)
        try:
            import redis
        except ImportError:
            raise InvalidArgument(
                "store", "is Redis, and its client is not installed.", "Install duly[redis]."
            ) from None
        self._errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        self._refusals: tuple[type[Exception], ...] = (redis.ResponseError,)
        self._client: Any = server
        if isinstance(server, str):
            try:
                self._client = redis.Redis.from_url(server, socket_timeout=timeout, socket_connect_timeout=timeout)
            except ValueError:
                # what was written is not repeated: it may hold a password in a place where nobody can tell
                raise InvalidArgument(
                    "store",
                    "has a URL that cannot be used.",
                    "Write redis://:password@host:6379/0, with %2F for a / in the password.",
                ) from None
        else:
            self._client = _bounded(server, timeout)
        self._prefix = prefix
        self._evicts: bool | None = None
        self._swap = self._client.register_script(_SWAP)

    @property
    def evicts(self) -> bool:
        """Is the server set to drop keys when its memory is full, so that a call may run twice (T004-h)? Asked once.

        False also where it does not say. Raises StoreUnavailable.
        """
        if self._evicts is None:
            try:
                told = self._client.info("memory")
            except self._refusals:
                told = {}  # INFO is not allowed here
            except self._errors as error:
                raise StoreUnavailable(f"{type(error).__name__}: {error}") from error
            self._evicts = bool(told.get("maxmemory")) and told.get("maxmemory_policy", "noeviction") != "noeviction"
            if self._evicts:
                PROCESS.emit("idempotency_store_evicts", "warning", policy=told["maxmemory_policy"])
        return self._evicts

    def read(self, tenant: str, key: str) -> tuple[Reservation | None, datetime]:
        def ask() -> Any:
            pipe = self._client.pipeline(transaction=False)
            pipe.get(self._name(tenant, key))
            pipe.time()
            return pipe.execute()

        text, (seconds, micros) = self._asked(ask)
        self.evicts  # noqa: B018 (told once)
        now = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=micros)
        return (None if text is None else _decoded(text)), now

    def insert(self, new: Reservation) -> bool:
        name, text = self._name(new.tenant, new.key), _encoded(new)
        return bool(self._asked(lambda: self._client.set(name, text, nx=True, px=_ttl(new))))

    def replace(self, old: Reservation, new: Reservation | None) -> bool:
        arguments = [_encoded(old), b"" if new is None else _encoded(new), 0 if new is None else _ttl(new)]
        return bool(self._asked(lambda: self._swap(keys=[self._name(old.tenant, old.key)], args=arguments)))

    def replace_many(self, pairs: Sequence[tuple[Reservation, Reservation]]) -> list[bool]:
        def swap() -> Any:
            pipe = self._client.pipeline(transaction=False)
            for old, new in pairs:
                self._swap(
                    keys=[self._name(old.tenant, old.key)], args=[_encoded(old), _encoded(new), _ttl(new)], client=pipe
                )
            return pipe.execute()

        return [bool(written) for written in self._asked(swap)]

    def find(self, wanted: KeyFilter, limit: int, cursor: str | None = None) -> tuple[list[Reservation], str | None]:
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 20):
            raise unknown_cursor()
        place, found, looked = int(cursor or 0), list[Reservation](), 0
        beginning = "" if wanted.tenant is None else f"{len(wanted.tenant)}:{wanted.tenant}:"
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", self._prefix + beginning) + "*"
        seconds, micros = self._asked(self._client.time)
        now = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=micros)
        while len(found) < limit and looked < SCANNED:
            # never more at a time than the page still takes, as far as the server follows that
            count = max(10, limit - len(found))
            place, names = self._asked(partial(self._client.scan, place, pattern, count))
            looked += count
            texts = self._asked(partial(self._client.mget, names)) if names else []
            found += [r for one in texts if one is not None and wanted.fits(r := _decoded(one), now)]
            if place == 0:
                return found, None
        return found, str(place)

    def close(self) -> None:
        self._client.close()

    def _name(self, tenant: str, key: str) -> str:
        # the length keeps tenant and key apart whatever is in them
        return f"{self._prefix}{len(tenant)}:{tenant}:{key}"

    def _asked(self, fn: Any) -> Any:
        try:
            return fn()
        except self._errors as error:
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from error


def _bounded(client: Any, timeout: float) -> Any:
    """The client on connections of its own that give up soon: what a call, or a commit, waits for has an end.

    redis-py tries a server that is silent ten times. Here it is tried once more at the most, within the client's own ``socket_timeout`` where
    it has one. Pools of other kinds (Sentinel, clusters) are left as they are.
    """
    from redis import BlockingConnectionPool, ConnectionPool
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    pool: Any = getattr(client, "connection_pool", None)
    if type(pool) not in (ConnectionPool, BlockingConnectionPool):
        return client
    options = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_MADE_BY_POOLS)}
    for name in ("socket_timeout", "socket_connect_timeout"):
        if options.get(name) is None:
            options[name] = timeout
    made = type(pool)(connection_class=pool.connection_class, **{**options, "retry": Retry(NoBackoff(), 1)})
    return type(client)(connection_pool=made)


def _ttl(r: Reservation) -> int:
    """Milliseconds for which the record is worth keeping, counted from its last change."""
    until = max(r.kept_until, r.locked_until)
    return max(1, (until - r.seen_at) // timedelta(milliseconds=1))


def _encoded(r: Reservation) -> bytes:
    """One text per record, always the same: the script compares it."""
    facts = {name: getattr(r, name) for name in Reservation.__dataclass_fields__}
    facts |= {name: getattr(r, name).isoformat() for name in _INSTANTS}
    return orjson.dumps(facts)


def _decoded(text: bytes | str) -> Reservation:
    facts = orjson.loads(text)
    facts |= {name: datetime.fromisoformat(facts[name]) for name in _INSTANTS}
    return Reservation(**{**facts, "state": State(facts["state"])})
