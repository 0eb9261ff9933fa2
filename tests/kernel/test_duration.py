"""One grammar of durations, at every parameter of the public surface that takes one (B5)."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from duly import Backoff, Duly, InvalidArgument, Retry, Snooze
from duly.automations import Automations
from duly.cli.times import parse_span
from duly.idempotency import IdempotencyMiddleware
from duly.idempotency.decorator import idempotent_task
from duly.integrations.celery import apply_robust_settings
from duly.jobs.task import Options
from duly.kernel.duration import parse_duration
from duly.kernel.errors import DestinationUnavailable
from duly.kernel.gate import Rate
from duly.kernel.payload import read_seconds
from duly.kernel.recurrence import Every
from duly.outbox import post_commit
from duly.outbox.options import Options as OutboxOptions
from duly.outbox.transports.webhook import WebhookTransport
from duly.publishing.channel import read_backoff, read_breaker, read_rate
from duly.rounds.group import read_cooldown
from duly.settings import Settings
from duly.testing import ManualClock
from duly.web.api.accounts import TokenIn
from duly.web.api.bulk import JobsBulkIn
from duly.web.api.common import SecondsIn
from duly.web.app import create
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


def _celery(name: str, value: Any) -> Any:
    app = Celery("x")
    limits = {} if name.endswith("time_limit") else {"time_limit": 60}
    found = apply_robust_settings(app, **{"time_limit": 600, **limits, name: value})
    return (
        300
        if name == "lock_ttl"
        else found.get(f"task_{name}", found["visibility_timeout"] if name == "visibility_timeout" else None)
    )


async def _asgi(*_: Any) -> None:
    """Answer nothing."""


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
    "Options.unique_until": lambda v: Options(key="k", unique_until=v).checked().unique(),
    "Rate.seconds": lambda v: Rate(1, v).seconds,
    "channel.rate": lambda v: getattr(read_rate((1, v)), "seconds"),
    "channel.breaker": lambda v: getattr(read_breaker((1, v)), "seconds"),
    "channel.backoff.base": lambda v: read_backoff({"base": v}, Backoff()).base,
    "channel.backoff.max": lambda v: read_backoff({"max": v}, Backoff()).max,
    "IdempotencyMiddleware.lock": lambda v: IdempotencyMiddleware(_asgi, lock=v)._terms.lock.total_seconds(),
    "IdempotencyMiddleware.heartbeat": lambda v: IdempotencyMiddleware(_asgi, lock=900, heartbeat=v)._terms.heartbeat.total_seconds(),
    "IdempotencyMiddleware.keep": lambda v: IdempotencyMiddleware(_asgi, keep=v)._terms.keep.total_seconds(),
    "IdempotencyMiddleware.wait": lambda v: IdempotencyMiddleware(_asgi, wait=v)._wait,
    "rest.expires_in": lambda v: TokenIn.model_validate({"name": "x", "expires_in": v}).expires_in,
    "rest.undo_seconds": lambda v: JobsBulkIn.model_validate({"filter": {}, "undo_seconds": v}).undo_seconds,
    **{f"celery.{name}": (lambda v, name=name: _celery(name, v)) for name in ("time_limit", "soft_time_limit", "visibility_timeout", "lock_ttl")},
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


#: What a span of time is called, and the rooms whose public names are looked through.
CALLED = re.compile(r"(timeout|seconds|span|cooldown|lease|jitter|countdown|grace|keep|heartbeat|older|apart|window|expires_in|run_in|ttl|interval|delay|after|unique_until|catch_up_window)")  # fmt: skip
ROOMS = ("", ".automations", ".rounds", ".publishing", ".mail", ".workflows", ".outbox", ".idempotency", ".accounts", ".schedules", ".integrations.celery")  # fmt: skip
#: Annotated otherwise, by the end of the name: records that Duly makes itself, what is no span, and fields that are read into seconds.
OTHERWISE = {
    "Definition.__init__.catch_up_window",  # what read_definition made of a duration
    "Backoff.__init__.jitter", "Breaker.__init__.seconds", "Channel.__init__.apart", "Task.__init__.timeout", "Group.__init__.cooldown",  # read
    *(f"{one}.__init__.jitter" for one in ("Cron", "Daily", "Every", "Moments", "Monthly", "OnDates", "RRule", "Weekly", "Yearly")),  # read
    "Task.__init__.run_in", "Suppressions.list.after", "Schedules.all.after", "Rounds.next.after",  # a place, and positions in a list
    "Verdict.__init__.after", "Limits.__init__.seconds", "TickReport.__init__.seconds", "Publishing.look.seconds", "Workflows.look.seconds", "Mail.__init__.timeout",  # Duly's own
}  # fmt: skip


def _called_like_spans() -> Iterator[tuple[str, str]]:
    for room in ROOMS:
        module = importlib.import_module(f"duly{room}")
        for name in getattr(module, "__all__", dir(module)):
            public = getattr(module, name)
            if not str(getattr(public, "__module__", "")).startswith("duly") or not callable(public):
                continue
            members = [(f"{name}.{n}", m) for n, m in vars(public).items() if n == "__init__" or not n.startswith("_")] if inspect.isclass(public) else [(name, public)]  # fmt: skip
            for path, member in members:
                if inspect.isfunction(member):
                    for parameter in inspect.signature(member).parameters.values():
                        if CALLED.fullmatch(parameter.name):
                            yield f"{path}.{parameter.name}", str(parameter.annotation)


def test_whatever_public_is_called_like_a_span_of_time_takes_a_duration() -> None:  # B5
    found = dict(_called_like_spans())
    assert len(found) > 30
    takes = ("Duration", "UniqueUntil", "Unset")
    assert not {name: said for name, said in found.items() if not any(t in said for t in takes) and name not in OTHERWISE}  # fmt: skip


def test_every_field_of_rest_that_is_a_span_takes_text() -> None:  # B5
    app = Duly("sqlite://")
    try:
        schemas = create(app).openapi()["components"]["schemas"]
    finally:
        app.close()
    spans = {
        f"{name}.{field}": said for name, schema in schemas.items() if name.endswith("In") for field, said in schema.get("properties", {}).items()
        if CALLED.fullmatch(field.removeprefix("undo_")) and field != "after"
    }  # fmt: skip
    assert {"TokenIn.expires_in", "JobsBulkIn.undo_seconds", "RateIn.seconds"} <= set(spans)
    assert not {name: said for name, said in spans.items() if '"string"' not in json.dumps(said)}
