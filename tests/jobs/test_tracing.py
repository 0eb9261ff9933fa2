"""A trace goes with the work: from who enqueues to the handler, and to what the handler enqueues."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import INJECT, Context, Duly, tracing
from duly.testing import adrain, drain

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def app(sqlite_url: str) -> Iterator[Duly]:
    app = Duly(sqlite_url)
    yield app
    app.close()


@pytest.mark.parametrize(
    ("header", "good"),
    [
        (TRACE, True),
        (TRACE.replace("00-", "cc-", 1), True),
        (TRACE + "-what-a-later-version-adds", True),
        (TRACE.replace("00-", "ff-", 1), False),
        (TRACE.upper(), False),
        ("00-" + "0" * 32 + "-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01", False),
        (TRACE + "-" + "x" * 300, False),
        (TRACE + "\n", False),
        ("", False),
        (None, False),
        (7, False),
    ],
)
def test_only_a_traceparent_is_taken_for_one(header: object, good: bool) -> None:  # W3C Trace Context 3.2
    assert (tracing.checked(header) is not None) == good
    with tracing.carried(header):
        assert tracing.traceparent() == (header if good else None)
    assert tracing.traceparent() is None


@given(st.text(max_size=80))
def test_no_text_from_outside_breaks_anything(text: str) -> None:
    with tracing.carried(text):
        assert tracing.trace_id() is None or len(tracing.trace_id() or "") == 32


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_job_runs_in_the_trace_that_enqueued_it_and_hands_it_on(app: Duly, kind: str) -> None:
    seen: list[str | None] = []

    if kind == "async":

        @app.task("outer")
        async def outer(context: Context = INJECT) -> None:
            await asyncio.sleep(0)
            seen.append(tracing.trace_id())
            await inner.using(parent=context.job).aenqueue()
    else:

        @app.task("outer")
        def outer(context: Context = INJECT) -> None:
            seen.append(tracing.trace_id())
            inner.using(parent=context.job).enqueue()

    @app.task
    async def inner() -> None:
        seen.append(tracing.trace_id())

    with tracing.carried(TRACE):
        app.enqueue("outer")
    app.enqueue("inner")
    drain(app)
    assert sorted(map(str, seen)) == ["0af7651916cd43dd8448eb211c80319c"] * 2 + ["None"]


def test_jobs_that_share_an_asyncio_task_do_not_share_a_trace(app: Duly) -> None:
    seen: dict[int, str | None] = {}

    @app.task
    async def look(n: int) -> None:
        seen[n] = tracing.trace_id()

    for n in range(9):
        with tracing.carried((TRACE, OTHER, None)[n % 3]):
            look.enqueue(n)
    asyncio.run(adrain(app))
    app.worker().run(until_idle=True)
    expected = ["0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c", None]
    assert seen == {n: expected[n % 3] for n in range(9)}


def test_a_trace_of_the_callers_own_choice_stays(app: Duly) -> None:
    with tracing.carried(TRACE):
        job = app.enqueue("x", meta={"traceparent": OTHER, "a": 1}).job
    assert job.meta == {"traceparent": OTHER, "a": 1}


def test_without_a_trace_nothing_is_written(app: Duly) -> None:
    assert app.enqueue("x").job.meta is None


def test_the_current_span_of_opentelemetry_is_the_trace() -> None:
    code = (
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from duly import tracing\n"
        "tracer = TracerProvider().get_tracer('t')\n"
        "assert tracing.traceparent() is None\n"
        "with tracer.start_as_current_span('s') as span:\n"
        "    assert tracing.trace_id() == f'{span.get_span_context().trace_id:032x}'\n"
        "    assert tracing.checked(tracing.traceparent())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
