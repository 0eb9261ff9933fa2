"""May it run now? The gate's one answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.gate import Admit, Hold, HoldReason, QueueFacts, Rate, gate, read_gate

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=3)


@pytest.mark.parametrize("value", [None, "true", "TRUE", "1", "on", "yes", " true ", '"true"'])
def test_the_gate_is_open_for_a_missing_row_and_for_a_yes(value: str | None) -> None:  # T003-f
    assert read_gate(value) is True


@pytest.mark.parametrize(
    "value", ["false", "False", "0", "off", "no", '"false"', "", " ", "garbage", "{}", "truee", "2"]
)
def test_the_gate_is_closed_for_a_no_and_for_what_cannot_be_read(value: str) -> None:  # T003-f
    assert read_gate(value) is False


def test_a_queue_that_nothing_governs_admits_any_number() -> None:
    assert gate(QueueFacts("q")) == Admit(None)


@pytest.mark.parametrize(
    ("facts", "reason", "until"),
    [
        (QueueFacts("q", online=False), HoldReason.GATE, None),
        (QueueFacts("q", paused_at=NOW, paused_reason="audit"), HoldReason.PAUSED, None),
        (QueueFacts("q", held_until=LATER, held_reason="quota"), HoldReason.HELD, LATER),
        (QueueFacts("q", blackout_until=LATER), HoldReason.BLACKOUT, LATER),
        (QueueFacts("q", limit=2, running=2), HoldReason.LIMIT, None),
        (QueueFacts("q", limit=2, running=5), HoldReason.LIMIT, None),
        (QueueFacts("q", rate=Rate(3, 60), started=3, rate_frees_at=LATER), HoldReason.RATE, LATER),
    ],
)
def test_each_reason_holds_by_itself(facts: QueueFacts, reason: HoldReason, until: datetime | None) -> None:
    answer = gate(facts)
    assert isinstance(answer, Hold)
    assert (answer.reason, answer.until) == (reason, until)


def test_a_pause_tells_its_reason() -> None:
    answer = gate(QueueFacts("mail", paused_at=NOW, paused_reason="provider is down"))
    assert isinstance(answer, Hold)
    assert answer.detail == "queue mail is paused: provider is down"


@given(
    limit=st.none() | st.integers(1, 50),
    running=st.integers(0, 60),
    count=st.none() | st.integers(1, 50),
    started=st.integers(0, 60),
)
def test_admitted_work_never_exceeds_limit_or_rate(
    limit: int | None, running: int, count: int | None, started: int
) -> None:
    facts = QueueFacts("q", limit=limit, running=running, rate=(count and Rate(count, 1.0)) or None, started=started)
    answer = gate(facts)
    if isinstance(answer, Hold):
        assert (limit is not None and running >= limit) or (count is not None and started >= count)
        return
    assert answer.room is None or answer.room > 0
    if limit is not None:
        assert answer.room is not None and running + answer.room <= limit
    if count is not None:
        assert answer.room is not None and started + answer.room <= count


def test_of_several_reasons_the_first_in_order_is_named() -> None:
    closed = QueueFacts("q", online=False, paused_at=NOW, blackout_until=LATER, limit=1, running=1)
    answer = gate(closed)
    assert isinstance(answer, Hold)
    assert answer.reason is HoldReason.GATE
