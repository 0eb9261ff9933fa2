"""Once per key: canonical keys, and functions whose effect happens once however often they are called.

``idempotent_task`` and ``canonical_task_key`` are what most programs need; ``IdempotencyMiddleware`` does the same for HTTP
requests. Stores are ``MemoryStore`` (tests), ``SqlStore`` (the default, in a Duly application's database) and ``RedisStore``
(extra ``redis``).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.idempotency.decorator import idempotent_task
    from duly.idempotency.default import set_default_store
    from duly.idempotency.http import IdempotencyMiddleware
    from duly.idempotency.redis import RedisStore
    from duly.idempotency.sql import SqlStore
    from duly.idempotency.store import MemoryStore, Store
    from duly.kernel.canonical import canonical_task_key

__all__ = [
    "IdempotencyMiddleware",
    "MemoryStore",
    "RedisStore",
    "SqlStore",
    "Store",
    "canonical_task_key",
    "idempotent_task",
    "set_default_store",
]

#: Where these names live; each module is imported when a name of it is first asked for.
_HOMES = {
    "IdempotencyMiddleware": "duly.idempotency.http",
    "MemoryStore": "duly.idempotency.store",
    "RedisStore": "duly.idempotency.redis",
    "SqlStore": "duly.idempotency.sql",
    "Store": "duly.idempotency.store",
    "canonical_task_key": "duly.kernel.canonical",
    "idempotent_task": "duly.idempotency.decorator",
    "set_default_store": "duly.idempotency.default",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found
    raise AttributeError(f"module 'duly.idempotency' has no attribute {name!r}")
