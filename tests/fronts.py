"""What tests of a front (web, dashboard, command line, client) share: SQLite below it, sites that cost little, one event loop.

A front has no SQL of its own: what a database decides is judged on both kinds by the tests of the rooms, and a front on SQLite alone. A folder
of tests says so by importing `db_url` into its conftest; a test of it that must see both kinds says why: ``@on_both("...")``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def db_url(request: pytest.FixtureRequest) -> str:
    """A migrated SQLite database of this test's own; of each kind for a test that is marked ``on_both``."""
    kind = getattr(request, "param", "sqlite")
    url: str = request.getfixturevalue({"sqlite": "sqlite_url", "postgres": "pg_url"}[kind])
    return url


def on_both(why: str) -> pytest.MarkDecorator:
    """A test of a front that runs on both kinds of database, and why."""
    assert why
    return pytest.mark.parametrize(
        "db_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
    )


# --- Sites ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="session")
def sites_cost_little() -> Iterator[None]:
    """Each test has a site of its own, with its own application behind it; what FastAPI finds out about its 230 routes is the same each time."""
    from fastapi import routing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing, "_populate_api_route_state", Analyses(routing._populate_api_route_state))
        yield


class Analyses:
    """What FastAPI finds out about a function that is a route: once for each function as it is written, not for each time it is made.

    Nothing of an application is kept: of what is found out, the function itself and who provides overrides are put in anew. A route that is
    described in another way than the last one of its code (other dependencies, other answers, another default) is looked at again.
    """

    def __init__(self, analyse: Callable[..., None]) -> None:
        self._analyse, self._found = analyse, dict[Any, tuple[Any, dict[str, Any]]]()

    def __call__(self, route: Any, path: str, endpoint: Any, **given: Any) -> None:
        code = _written(endpoint)
        if code is None:
            return self._analyse(route, path, endpoint, **given)
        key = (type(route).__qualname__, path, *code)
        provider = given.pop("dependency_overrides_provider", None)
        described = (given, *_defaults(endpoint))
        known = self._found.get(key)
        if known is None or known[0] != described:
            made: Any = SimpleNamespace()
            self._analyse(made, path, endpoint, **given)
            found = {**vars(made), "endpoint": None, "dependant": replace(made.dependant, call=None)}
            known = self._found[key] = (described, found)
        for name, value in known[1].items():
            setattr(route, name, value.copy() if isinstance(value, list | dict | set) else value)
        route.endpoint, route.dependency_overrides_provider = endpoint, provider
        route.dependant = replace(route.dependant, call=endpoint)


def _written(endpoint: Any) -> tuple[Any, ...] | None:
    """The code of a function and of those it wraps; None for what is no function, or calls itself by another signature."""
    out: list[Any] = []
    while endpoint is not None:
        if not isinstance(endpoint, FunctionType) or "__signature__" in vars(endpoint):
            return None
        out += [endpoint.__module__, endpoint.__qualname__, endpoint.__code__]
        endpoint = vars(endpoint).get("__wrapped__")
    return tuple(out)


def _defaults(endpoint: Any) -> tuple[Any, ...]:
    inner = inspect.unwrap(endpoint)
    return inner.__defaults__, inner.__kwdefaults__, inner.__annotations__


# --- One event loop -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="session")
def requests_share_a_loop() -> Iterator[None]:
    """A client that nobody has entered starts a thread and an event loop for each request; here they all use one. An entered one has its own."""
    from anyio.from_thread import BlockingPortal, start_blocking_portal
    from starlette.testclient import TestClient

    with start_blocking_portal() as loop, pytest.MonkeyPatch.context() as patch:

        @contextmanager
        def portal(self: TestClient) -> Iterator[BlockingPortal]:
            yield self.portal or loop

        patch.setattr(TestClient, "_portal_factory", portal)
        yield
