"""Events reach every listener and can harm nobody."""

from __future__ import annotations

import gc
import logging

import pytest

from duly.kernel.events import PROCESS, Emitter, Event


def test_every_listener_hears_an_event_with_its_facts() -> None:
    emitter, first, second = Emitter(), list[Event](), list[Event]()
    emitter.listen(first.append)
    emitter.listen(second.append)
    emitter.emit("job_failed", "error", job=7)
    assert first == second == [Event("job_failed", "error", {"job": 7})]


def test_a_listener_that_was_removed_hears_nothing_more() -> None:
    emitter, heard = Emitter(), list[Event]()
    remove = emitter.listen(heard.append)
    remove()
    remove()
    emitter.emit("x")
    assert heard == []


def test_a_listener_that_raises_harms_neither_the_work_nor_the_others() -> None:
    emitter, heard = Emitter(), list[Event]()

    def broken(event: Event) -> None:
        raise RuntimeError("no")

    emitter.listen(broken)
    emitter.listen(heard.append)
    emitter.emit("job_failed")
    assert [e.name for e in heard] == ["listener_failed", "job_failed"]
    assert heard[0].facts["event"] == "job_failed"


def test_a_listener_may_remove_itself_while_it_hears() -> None:
    emitter, heard = Emitter(), list[str]()

    def once(event: Event) -> None:
        heard.append(event.name)
        remove()

    remove = emitter.listen(once)
    emitter.emit("first")
    emitter.emit("second")
    assert heard == ["first"]


def test_an_application_that_is_gone_hears_no_more_and_keeps_nobody_quiet(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("duly"), "propagate", True)  # whatever other tests made of logging
    monkeypatch.setattr(logging.getLogger("duly"), "disabled", False)
    caplog.set_level(logging.DEBUG, logger="duly")
    process, emitter, heard = type(PROCESS)(), Emitter(), list[Event]()
    process.join(emitter)
    process.emit("trouble", "warning", n=1)
    assert [record.getMessage() for record in caplog.records] == ["trouble n=1"]
    emitter.listen(heard.append)
    process.emit("trouble", "warning", n=2)
    assert [event.facts for event in heard] == [{"n": 2}]
    del emitter
    gc.collect()
    process.emit("trouble", "error", n=3)
    assert len(heard) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    process.emit("news", "info")
    assert len(caplog.records) == 2
