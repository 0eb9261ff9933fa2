"""A store of each kind, so that one contract judges them all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from duly import Duly
from duly.idempotency import MemoryStore, RedisStore, SqlStore, Store

KINDS = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "valkey"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """The contract is the same for each."""
    kind, app = request.param, None
    if kind == "memory":
        made: Store = MemoryStore()
    elif kind == "valkey":
        made = RedisStore(request.getfixturevalue("redis_url"))
    else:
        app = Duly(request.getfixturevalue("pg_url" if kind == "postgres" else "sqlite_url"))
        made = SqlStore(app.db)
    yield made
    made.close()
    if app is not None:
        app.close()
