"""A store of each kind, so that one contract judges them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from duly import Duly
from duly.idempotency import MemoryStore, RedisStore, SqlStore, Store

KINDS = [
    "memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "valkey",
    "guest", pytest.param("guest-postgres", marks=pytest.mark.postgres),
]  # fmt: skip


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """The contract is the same for each."""
    kind, app = request.param, None
    if kind == "memory":
        made: Store = MemoryStore()
    elif kind == "valkey":
        made = RedisStore(request.getfixturevalue("redis_url"))
    elif kind.startswith("guest"):
        url = request.getfixturevalue("empty_pg_url") if kind != "guest" else f"sqlite:///{tmp_path / 'guest.db'}"
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        made = SqlStore(engine)
        made.create_table()
    else:
        app = Duly(request.getfixturevalue("pg_url" if kind == "postgres" else "sqlite_url"))
        made = SqlStore(app.db)
    yield made
    made.close()
    if app is not None:
        app.close()
