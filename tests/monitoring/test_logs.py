"""Events as log lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from duly.kernel.events import Emitter, Event
from duly.monitoring.logs import EventLog, adopt_logging, event_log, lines
from duly.settings import Settings

SETTLED = {"worker": "w", "jobs": [("mail", "SEND", "succeed", 0.0123), ("mail", "SEND", "retry", 2.0)]}
CLAIMED = {"worker": "w", "count": 2, "lags": [("mail", "SEND", 0.5), ("default", "X", 0.0)]}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def settings(**given: Any) -> Settings:
    return Settings.load({}, **given)


def logged(event: Event, out: io.StringIO | None = None, **given: Any) -> list[dict[str, Any]]:
    out = out or io.StringIO()
    event_log(settings(**given), out)(event)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_facts() -> None:
    (line,) = logged(Event("job_failed", "error", {"job": 7, "task": "SEND", "wait": 1.5, "queues": {"mail": 3}}))
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert line["timestamp"].endswith("Z")
    del line["timestamp"]
    assert line == {
        "level": "error",
        "event": "job_failed",
        "job": 7,
        "task": "SEND",
        "wait": 1.5,
        "queues": {"mail": 3},
    }


@pytest.mark.parametrize(
    ("level", "heard"),
    [("debug", ["debug", "info", "warning", "error"]), ("info", ["info", "warning", "error"]), ("error", ["error"])],
)
def test_what_is_below_the_level_is_not_logged(level: str, heard: list[str]) -> None:
    out = io.StringIO()
    log = event_log(settings(log_level=level), out)
    for each in ("debug", "info", "warning", "error"):
        log(Event("something", each))  # type: ignore[arg-type]
    assert [json.loads(line)["level"] for line in out.getvalue().splitlines()] == heard


def test_nothing_is_formatted_below_the_level() -> None:
    class Untouched:
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("looked at")

        __str__ = __repr__ = __iter__  # type: ignore[assignment]

    log = EventLog(None, "info")
    log(Event("jobs_settled", "debug", {"jobs": Untouched()}))


def test_a_batch_is_a_line_per_job_when_debug_is_on() -> None:
    told = logged(Event("jobs_settled", "debug", SETTLED), log_level="debug")
    assert [(t["event"], t["task"], t["outcome"], t["seconds"], t["worker"]) for t in told] == [
        ("job_settled", "SEND", "succeed", 0.0123, "w"), ("job_settled", "SEND", "retry", 2.0, "w"),
    ]  # fmt: skip
    told = logged(Event("jobs_claimed", "debug", CLAIMED), log_level="debug")
    assert [(t["event"], t["queue"], t["lag"]) for t in told] == [
        ("job_claimed", "mail", 0.5),
        ("job_claimed", "default", 0.0),
    ]
    assert logged(Event("jobs_settled", "debug", SETTLED)) == []


def test_the_facts_of_an_event_are_not_changed_by_reading_them() -> None:
    event = Event("jobs_settled", "debug", SETTLED)
    assert list(lines(event)) == list(lines(event))


def test_a_fact_that_bears_the_name_of_a_field_is_kept_beside_it() -> None:
    (line,) = logged(Event("listener_failed", "error", {"event": "jobs_settled", "error": "x", "level": "high"}))
    assert (line["event"], line["event_"], line["level"], line["level_"]) == (
        "listener_failed",
        "jobs_settled",
        "error",
        "high",
    )


def test_a_password_never_reaches_a_log() -> None:
    secret = "connection to postgresql://ada:topsecret@db/x failed"
    out = io.StringIO()
    event_log(settings(log_format="console"), out)(Event("loop_failed", "error", {"error": secret}))
    (line,) = logged(Event("loop_failed", "error", {"error": secret}))
    assert "topsecret" not in out.getvalue() + str(line)
    assert "ada:***@db" in line["error"]


def test_the_console_cannot_be_steered_by_a_name() -> None:
    out = Terminal()
    event_log(settings(), out)(Event("x", "info", {"task": "evil\x1b[2J\r\nfake line"}))
    assert "\x1b[2J" not in out.getvalue()
    assert len(out.getvalue().splitlines()) == 1


def test_the_format_follows_the_terminal_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    event = Event("worker_started", "info", {"worker": "w"})

    def written(out: io.StringIO, log_format: str) -> str:
        event_log(settings(log_format=log_format), out)(event)
        return out.getvalue()

    assert written(io.StringIO(), "auto").startswith("{")
    assert "\x1b[" in written(Terminal(), "auto")
    assert written(Terminal(), "json").startswith("{")
    plain = written(io.StringIO(), "console")
    assert "worker_started" in plain
    assert "\x1b[" not in plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in written(Terminal(), "auto")


def test_structlog_is_left_as_the_application_configured_it() -> None:
    import structlog

    before = structlog.get_config()
    logged(Event("x"))
    assert structlog.get_config() == before


@contextmanager
def bare_root() -> Iterator[logging.Logger]:
    """The root logger as a program finds it, put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        yield root
    finally:
        root.handlers[:], root.level = handlers, level


def test_handlers_own_log_lines_get_the_same_form() -> None:
    out = io.StringIO()
    with bare_root():
        adopt_logging(settings(), out)
        logging.getLogger("shop").info("sent %d", 3)
        logging.getLogger("shop").debug("not this")
        logging.getLogger("alembic").info("nor this")
        try:
            raise ValueError("no luck at postgresql://a:topsecret@h/x")
        except ValueError:
            logging.getLogger("shop").exception("failed at postgresql://a:topsecret@h/x")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["level"], first["event"], first["logger"]) == ("info", "sent 3", "shop")
    assert "ValueError: no luck at" in second["exception"]
    assert "topsecret" not in out.getvalue()


def test_logging_that_is_set_up_already_is_left_alone() -> None:
    with bare_root() as root:
        root.addHandler(mine := logging.NullHandler())
        adopt_logging(settings(), io.StringIO())
        assert root.handlers == [mine]


def test_it_listens_to_an_emitter() -> None:
    out, emitter = io.StringIO(), Emitter()
    remove = emitter.listen(event_log(settings(), out))
    emitter.emit("gate_changed", "warning", online=False)
    remove()
    emitter.emit("gate_changed", "warning", online=True)
    assert [json.loads(line)["online"] for line in out.getvalue().splitlines()] == [False]
