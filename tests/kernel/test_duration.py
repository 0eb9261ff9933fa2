"""One grammar of durations, at every parameter of the public surface that takes one (B5)."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly import Backoff, Duly, InvalidArgument, Retry, Snooze
from duly.automations import Automations
from duly.cli.times import parse_span
from duly.idempotency.decorator import idempotent_task
from duly.jobs.task import Options
from duly.kernel.duration import parse_duration
from duly.kernel.errors import DestinationUnavailable
from duly.kernel.payload import read_seconds
from duly.kernel.recurrence import Every
from duly.outbox import post_commit
from duly.outbox.options import Options as OutboxOptions
from duly.outbox.transports.webhook import WebhookTransport
from duly.rounds.group import read_cooldown
from duly.settings import Settings
from duly.testing import ManualClock
from duly.web.api.common import SecondsIn
from duly.workflows.context import WorkflowContext, _span

FIVE = [
    300,
    300.0,
    "300",
    "300s",
    "5m",
    "5 min",
    "5minutes",
    "PT5M",
    "pt300s",
    "0h5m",
    "PT4M60S",
    timedelta(minutes=5),
]


@pytest.mark.parametrize("said", FIVE)
def test_five_minutes_may_be_written_in_many_ways(said: Any) -> None:
    assert parse_duration(said) == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("90s", 90), ("1h30m", 5_400), ("1h 30m", 5_400), ("1.5h", 5_400), ("500ms", 0.5), ("2d", 172_800), ("1w", 604_800), ("P1DT2H", 93_600),
     ("P2W", 1_209_600), ("PT1.5S", 1.5), ("0", 0)],
)  # fmt: skip
def test_what_a_duration_means(said: str, seconds: float) -> None:
    assert parse_duration(said).total_seconds() == seconds


@pytest.mark.parametrize(
    "said", ["", "soon", "5 apples", "P1M", "P1Y", "P", "PT", "1h30", "m", "5m!", "1e3", "nan", True, None, b"5m", [5], "9" * 200, float("nan")]
)  # fmt: skip
def test_what_is_no_duration_is_refused_in_words_that_say_what_is_allowed(said: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=r"timeout: is .*Give seconds, a timedelta, or a text such as 30s, 5m, 1h30m, 2d or PT5M"
    ):
        read_seconds(said, "timeout")


def _task(value: Any) -> Any:
    app = Duly("sqlite://")
    try:
        return app.task("T", timeout=value)(lambda: None).timeout
    finally:
        app.close()


def _idempotent(**given: Any) -> Any:
    @idempotent_task(name="x", **given)
    def body(order: int) -> None:
        """Do nothing."""

    return 300.0


#: Every public parameter that takes a duration: its name, and a function that gives what was understood, in seconds.
TAKES: dict[str, Callable[[Any], Any]] = {
    "Options.run_in": lambda v: Options(run_in=v).checked().delay(),
    "task.timeout": _task,
    "Retry.after": lambda v: Retry(after=v).after,
    "Snooze.after": lambda v: Snooze(after=v).after,
    "Backoff.base": lambda v: Backoff(base=v).base,
    "Backoff.max": lambda v: Backoff(max=v).max,
    "Backoff.jitter": lambda v: Backoff(jitter=v).jitter,
    "Every.duration": lambda v: Every(v).to_json()["duration"],
    "Every.jitter": lambda v: Every("1h", jitter=v).to_json()["jitter"],
    "sleep.span": lambda v: _seconds(_span(v, "span")),
    "OutboxOptions.lease": lambda v: OutboxOptions(lease=v).lease,
    "OutboxOptions.poll": lambda v: OutboxOptions(poll=v).poll,
    "OutboxOptions.grace": lambda v: OutboxOptions(grace=v).grace,
    "OutboxOptions.keep": lambda v: OutboxOptions(keep=v).keep,
    "WebhookTransport.timeout": lambda v: WebhookTransport("https://example.org", secret="s" * 32, timeout=v)._timeout,
    "cooldown": read_cooldown,
    "idempotent_task.time_limit": lambda v: _idempotent(time_limit=v),
    "idempotent_task.margin": lambda v: _idempotent(margin=v),
    "idempotent_task.heartbeat": lambda v: _idempotent(heartbeat=v, time_limit=900),
    "idempotent_task.keep": lambda v: _idempotent(keep=v),
    "idempotent_task.wait_timeout": lambda v: _idempotent(wait_timeout=v),
    "rest": lambda v: __import__("pydantic").TypeAdapter(SecondsIn).validate_python(v),
    "cli": lambda v: parse_span(str(v)).total_seconds(),
}  # fmt: skip


def _seconds(span: timedelta | None) -> float:
    assert span is not None
    return span.total_seconds()


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("said", [300, "5m", "PT5M", timedelta(minutes=5)])
def test_every_parameter_that_takes_a_duration_takes_all_of_its_forms(name: str, said: Any) -> None:
    if name == "cli" and isinstance(said, timedelta):
        return
    assert TAKES[name](said) == 300


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Settings) if f.metadata["unit"] == "s"])
def test_every_setting_in_seconds_takes_all_forms_of_a_duration(name: str) -> None:
    low, high = (Settings.__dataclass_fields__[name].metadata[bound] for bound in ("low", "high"))
    whole = max(low or 0, 3_600 if high is None else min(high, 3_600))
    for said in (f"{whole}", f"{whole:g}s", f"PT{whole:g}S", timedelta(seconds=whole)):
        assert getattr(Settings.load({}, **{name: said}), name) == whole


#: Where a parameter is called as durations are, and is none.
NONE = {"margin": "pixels"}
NAMES = (
    "timeout",
    "run_in",
    "after",
    "span",
    "cooldown",
    "lease",
    "jitter",
    "countdown",
    "grace",
    "keep",
    "wait_timeout",
    "heartbeat",
    "older",
)


@pytest.mark.parametrize(
    "public",
    [Retry.__init__, Snooze.__init__, DestinationUnavailable.__init__, idempotent_task, post_commit.enqueue_task_after_commit, WorkflowContext.sleep, WorkflowContext.using, WebhookTransport.__init__,
     Automations.tool],
    ids=lambda fn: fn.__qualname__,
)  # fmt: skip
def test_parameters_that_are_called_like_durations_are_annotated_as_durations(public: Any) -> None:
    parameters = inspect.signature(public).parameters.values()
    found = [p for p in parameters if p.name in NAMES]
    assert all("Duration" in str(p.annotation) for p in found), [f"{p.name}: {p.annotation}" for p in found]


def test_a_clock_of_tests_and_a_destination_that_is_away_take_durations_as_everything_does() -> None:  # B5
    clock = ManualClock(datetime(2026, 5, 1, tzinfo=UTC))
    assert clock.advance("1h30m") == datetime(2026, 5, 1, 1, 30, tzinfo=UTC)
    assert DestinationUnavailable("away", after="5m").after == 300
    with pytest.raises(InvalidArgument, match=r"DestinationUnavailable\.after"):
        DestinationUnavailable("away", after="soon")
