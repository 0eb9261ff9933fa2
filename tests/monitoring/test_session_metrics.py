"""Sessions of AIs as numbers (R001-50)."""

from __future__ import annotations

from duly.kernel.events import Emitter
from duly.monitoring.metrics import Metrics


def test_ends_tokens_and_cents_are_counted_by_automation() -> None:  # R001-50
    metrics, emitter = Metrics(), Emitter()
    emitter.listen(metrics)
    for reason in ("COMPLETED", "ERROR", "ERROR"):
        emitter.emit("session_ended", "info", session=1, automation=1, automation_name="briefing", reason=reason)
    emitter.emit(
        "session_round", "debug", session=1, automation_name="briefing", input_tokens=100, output_tokens=20, cents=0.5
    )
    emitter.emit("session_round", "debug", session=2, automation_name=None, input_tokens=7, output_tokens=3)
    value = metrics.registry.get_sample_value
    assert value("duly_sessions_ended_total", {"automation": "briefing", "reason": "ERROR"}) == 2
    assert value("duly_session_tokens_total", {"automation": "briefing", "side": "input"}) == 100
    assert value("duly_session_tokens_total", {"automation": "chat", "side": "output"}) == 3
    assert value("duly_session_cents_total", {"automation": "briefing"}) == 0.5
