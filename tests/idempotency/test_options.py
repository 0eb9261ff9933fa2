"""Options of ``@idempotent_task`` about what belongs to a key, and who else looks at its parameters (R004-18)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery

from duly import Duly, InvalidArgument
from duly.idempotency import MemoryStore, idempotent_task
from duly.kernel.errors import InvalidPayload, PayloadMismatch
from duly.monitoring.metrics import ProcessMetrics
from duly.testing import drain


class Client:
    """Something that has no canonical form."""


def test_datetimes_without_a_zone_are_meant_in_the_one_that_is_named() -> None:  # F7
    runs: list[datetime] = []

    @idempotent_task(name="f", store=MemoryStore(), naive_zone="Europe/Paris")
    def f(at: datetime) -> None:
        runs.append(at)

    f(datetime(2026, 7, 1, 12))
    f(datetime(2026, 7, 1, 10, tzinfo=UTC))  # the same instant
    f(datetime(2026, 7, 1, 10))
    assert len(runs) == 2
    with pytest.raises(InvalidArgument, match="naive_zone"):
        idempotent_task(name="g", naive_zone="Europe/Pari")(f)


def test_parameters_that_are_left_out_tell_no_two_calls_apart() -> None:  # F7
    runs: list[int] = []

    @idempotent_task(name="f", store=MemoryStore(), ignore=["client"])
    def f(order: int, client: Client) -> None:
        runs.append(order)

    f(1, Client())
    f(1, client=Client())
    f(2, Client())
    assert runs == [1, 2]
    with pytest.raises(InvalidArgument, match="clent"):
        idempotent_task(name="g", ignore=["clent"])(lambda client: None)


def test_what_is_left_out_is_no_mismatch_under_a_key_of_ones_own() -> None:  # F7
    @idempotent_task(name="f", store=MemoryStore(), key=lambda order, client, kind: order, ignore=["client"])
    def f(order: int, client: Client, kind: str = "a") -> None: ...

    f(1, Client())
    f(1, Client())
    with pytest.raises(PayloadMismatch):
        f(1, Client(), kind="b")


def test_a_key_function_is_given_the_defaults() -> None:  # F15
    store = MemoryStore()

    @idempotent_task(name="f", store=store, key=lambda a, b: f"{a}-{b}")
    def f(a: int, b: int = 2) -> None: ...

    assert f.idempotency_key(1) == f.idempotency_key(1, 2) == f.idempotency_key(a=1, b=2)  # type: ignore[attr-defined]
    assert f.idempotency_key(1, 3) != f.idempotency_key(1)  # type: ignore[attr-defined]

    @idempotent_task(name="g", store=store, key=lambda a: a)
    def g(a: int, b: int = 2) -> None: ...

    assert g.idempotency_key(5)  # type: ignore[attr-defined]


def test_arguments_that_cannot_be_part_of_a_key_fail_a_job_at_once(sqlite_url: str) -> None:  # F7, T003-d
    app = Duly(sqlite_url)

    @app.task(max_attempts=4)
    @idempotent_task
    def f(at: datetime) -> None: ...

    job = app.enqueue("f", {"at": "2026-01-01T00:00:00"}).job
    drain(app)
    found = app.jobs.get(job.id)
    assert (str(found.status), found.attempts) == ("failed", 1)
    assert "naive_zone" in str(found.error)
    with pytest.raises(InvalidPayload):
        f.fn(datetime(2026, 1, 1))
    app.close()


def test_celery_checks_the_arguments_of_an_idempotent_task() -> None:  # F10
    celery = Celery("x", broker="memory://")

    @celery.task(bind=True)
    @idempotent_task(name="a", store=MemoryStore())
    def a(self: Any, x: int, y: int) -> None: ...

    with pytest.raises(TypeError, match="y"):
        a.delay(1)
    a.delay(1, y=2)


def test_the_results_of_sends_after_a_commit_are_counted_from_the_start() -> None:  # F13, R004-17
    [family] = [f for f in ProcessMetrics().collect() if f.name == "postcommit_enqueue"]
    assert {s.labels["result"]: s.value for s in family.samples} == {"enqueued": 0, "rolled_back": 0, "skipped": 0}
