"""What tests of several routers share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import sleep
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from duly.web.bulk import BulkActs


def problem(answer: Any, status: int) -> dict[str, Any]:
    """What an answer says that is a problem (RFC 9457) of this status."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    said: dict[str, Any] = answer.json()
    assert said["status"] == status
    return said


def begin_now(desks: Sequence[BulkActs]) -> None:
    """Let acts on many that wait begin, and wait until they are over."""
    for act in [one for desk in desks for one in desk._acts.values() if one.over_at is None]:
        act.undone.set()
        while act.over_at is None:
            sleep(0.01)


#: For tests that ``wander``: what nobody thinks of (a NUL, a number of twenty digits) is refused by PostgreSQL where SQLite takes it. So each
#: run asks there, a little; a soak asks both, much more.
wandering = pytest.mark.parametrize(
    "db_url",
    [
        pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.hypothesis]),
        pytest.param("sqlite", marks=pytest.mark.soak),
    ],
    indirect=True,
)


def wander(made: FastAPI, client: TestClient, path_regex: str, count: int, max_examples: int = 3) -> None:
    """Ask every operation below a path what schemathesis can think of: no answer is a 5xx, and each is as the description says.

    ``count``: how many operations there are, so that none is left out unseen. A soak thinks of more (DULY_SEEDS times as much, 20 at most).
    """
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    authorized = {"Authorization": client.headers["authorization"]}
    schema = schemathesis.openapi.from_asgi("/openapi.json", made, headers=authorized)
    found: Any = schema.include(path_regex=path_regex).get_all_operations()
    operations = [one.ok() for one in found]
    max_examples *= min(20, int(os.environ.get("DULY_SEEDS", "1")))
    assert len(operations) == count, [f"{one.method} {one.path}" for one in operations]
    for operation in operations:

        @settings(
            max_examples=max_examples,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            database=None,
            deadline=None,
        )
        @given(operation.as_strategy())
        def ask(case: Any) -> None:
            answer = case.call(headers=authorized)
            assert answer.status_code < 500, answer.text
            # what is not there fits the description, and is refused
            case.validate_response(answer, excluded_checks=[positive_data_acceptance])

        ask()
