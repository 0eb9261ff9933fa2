"""Which databases a rule is judged on, where each look at it costs processes that are killed.

``make test`` looks once, on SQLite; ``make soak`` also on PostgreSQL. What depends on the database is judged in ``contract/`` on both.
"""

from __future__ import annotations

from typing import Any

import pytest

#: A parameter for PostgreSQL that is for `make soak`.
POSTGRES = pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.soak])


def sqlite_first() -> Any:
    """A fixture for a module or a folder, to be called ``db_url`` there: as the root's, with PostgreSQL left to `make soak`."""

    @pytest.fixture(name="db_url", params=["sqlite", POSTGRES])
    def db_url(request: pytest.FixtureRequest) -> str:
        url: str = request.getfixturevalue({"sqlite": "sqlite_url", "postgres": "pg_url"}[request.param])
        return url

    return db_url
