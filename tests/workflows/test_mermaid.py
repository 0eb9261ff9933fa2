"""Flowcharts of runs and documents."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from duly.workflows import Branch, Kind, Run, Status, Step
from duly.workflows.mermaid import MOST, of_document, of_run
from duly.workflows.reading import load

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
SECOND = timedelta(seconds=1)
#: Every line that a flowchart here can have.
LINE = re.compile(
    r'flowchart TD|    (\w+)(\[\[|\[/|\[|\(\[|\(\(|\(|\{\{|\{|>)("[^"<>`]*(<br/>[^"<>`]*)*"| )(\]\]|/\]|\]|\]\)|\)\)|\)|\}\}|\})(:::\w+)?'
    r'|    \w+ (-->|-\.->)(\|"?[^"|]*"?\|)? \w+|    classDef \w+ [\w#:,\- ]+'
)  # fmt: skip


def run(**more: Any) -> Run:
    return Run(7, "default", "onboarding", 1, more.pop("state", "waiting"), **more)


def step(position: int, began: float = 0, took: float | None = 1, kind: Kind = Kind.STEP, **more: Any) -> Step:
    """A step that began so many seconds after the start."""
    begin = START + began * SECOND
    end = None if took is None else begin + took * SECOND
    status = more.pop("status", Status.WAITING if took is None else Status.DONE)
    return Step(7, position, kind, more.pop("name", f"s{position}"), status, started_at=begin, finished_at=end, **more)


def edges(chart: str) -> list[tuple[str, str]]:
    return re.findall(r"^    (\w+) (?:-->|-\.->)(?:\|[^|]*\|)? (\w+)$", chart, re.MULTILINE)


def check(chart: str) -> None:
    """Each line is one that Mermaid knows, and each edge leads from a node to a node."""
    lines = chart.splitlines()
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    nodes = {
        m[1]
        for line in lines
        if not re.match(r"    \w+ -", line) and (m := re.match(r"    (\w+)\W", line)) and "classDef" not in line
    }
    assert {name for edge in edges(chart) for name in edge} <= nodes


def test_steps_follow_each_other_and_say_what_came_of_them() -> None:
    chart = of_run(
        run(finished_at=START + 9 * SECOND, state="failed"),
        [
            step(1),
            step(2, 1, 0.012, attempts=3),
            step(3, 2, 1, status=Status.FAILED),
            step(-1, 4, kind=Kind.UNDO, name="s1"),
        ],
    )
    check(chart)
    assert edges(chart) == [("start", "n1"), ("n1", "n2"), ("n2", "n3"), ("undo1", "n1"), ("n3", "stop")]
    assert 'n2["2 · s2<br/>step, done, 3 attempts<br/>12 ms"]:::done' in chart
    assert ":::failed" in chart


def test_what_is_waited_for_says_until_when_and_a_live_run_has_no_end() -> None:
    chart = of_run(run(), [step(1, took=None, kind=Kind.EVENT, name="paid", due_at=START + timedelta(days=2))])
    check(chart)
    assert 'n1>"1 · paid<br/>event, waiting<br/>until 2026-03-04 09:00:00Z"]:::waiting' in chart
    assert "stop" not in chart


def test_what_was_asked_for_at_once_stands_side_by_side() -> None:
    steps = [step(1, 0, 1), step(2, 1, 5), step(3, 1, 2), step(4, 6, 1), step(5, 6, 3), step(6, 9, 1)]
    chart = of_run(run(), steps)
    check(chart)
    assert edges(chart) == [
        ("start", "n1"), ("n1", "n2"), ("n1", "n3"), ("n2", "before_n4"), ("n3", "before_n4"), ("before_n4", "n4"), ("before_n4", "n5"),
        ("n4", "n6"), ("n5", "n6"),
    ]  # fmt: skip


def test_what_nobody_waits_for_stands_beside_nothing_that_came_later() -> None:
    chart = of_run(
        run(),
        [step(1, took=None, kind=Kind.TASK, name="X", child_id=9), step(2, 1), step(3, 2, took=None, kind=Kind.SLEEP)],
    )
    assert edges(chart) == [("start", "n1"), ("n1", "n2"), ("n2", "n3")]


def test_children_hang_on_their_steps_and_theirs_on_them() -> None:
    steps = [
        step(1, kind=Kind.TASK, name="ENGINE_RUN", child_id=20),
        step(2, 1, took=None, kind=Kind.TASK, name="X", child_id=21),
    ]
    tree = [
        Branch(20, 7, 1, "ENGINE_RUN", "succeeded", "inner"), Branch(21, 7, 1, "X", "running", ""), Branch(22, 7, 1, "LOOSE", "failed", ""),
        Branch(23, 20, 2, "Y", "cancelled", ""),
    ]  # fmt: skip
    chart = of_run(run(), steps, tree)
    check(chart)
    assert edges(chart)[2:] == [("n1", "job20"), ("n2", "job21"), ("start", "job22"), ("job20", "job23")]
    assert "job 20: inner<br/>succeeded" in chart


def test_of_many_steps_the_beginning_and_the_end_are_drawn() -> None:
    chart = of_run(run(), [step(n, n) for n in range(1, 1001)])
    check(chart)
    assert "… 850 more" in chart
    assert len(edges(chart)) == MOST + 1
    assert ("n75", "more") in edges(chart)
    assert ("more", "n926") in edges(chart)
    tree = [Branch(n, 7, 1, "X", "queued", "") for n in range(100, 1100)]
    check(of_run(run(), [], tree))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(Kind), st.sampled_from(Status), st.text(min_size=1), st.floats(0, 9), st.floats(0, 9)
        ),
        max_size=9,
    )
)
def test_no_name_and_no_history_breaks_a_chart(said: list[tuple[Kind, Status, str, float, float]]) -> None:
    steps = [
        step(n, began, None if status is Status.WAITING else took, kind, name=name, status=status)
        for n, (kind, status, name, began, took) in enumerate(said, 1)
    ]
    check(of_run(run(), steps))


DOCUMENT: dict[str, Any] = {
    "name": "welcome", "input": {"plan": "string"},
    "steps": [
        {"name": "letter", "email": {"to": "a@example.org", "subject": 'Say "hi" <now>', "text": "x"}},
        {"name": "later", "wait": {"until": {"at": "18:00", "tz": "Europe/Paris"}}},
        {"name": "paid", "wait": {"event": "paid", "timeout": "3d", "timed_out": [{"name": "remind", "task": "REMIND"}]}},
        {"name": "budget", "approve": {"timeout": "1d", "approved": [{"name": "buy", "task": "BUY"}]}},
        {"name": "big", "branch": {
            "when": {"all": [{"value": "{{ input.plan }}", "equals": "pro"}, {"not": {"value": "{{ steps.buy.status }}", "in": ["skipped"]}}]},
            "then": [{"name": "call", "task": "CALL"}],
        }},
    ],
}  # fmt: skip


def test_a_document_is_drawn_with_the_ways_it_can_take() -> None:
    chart = of_document(load(DOCUMENT))
    check(chart)
    assert set(edges(chart)) == {
        ("start", "s1"), ("s1", "s2"), ("s2", "s3"), ("s3", "s4"), ("s3", "s5"), ("s4", "s5"), ("s5", "s6"), ("s5", "fails"), ("s6", "s7"),
        ("s7", "s8"), ("s7", "stop"), ("s8", "stop"),
    }  # fmt: skip
    assert 's5 -->|"no"| fails' in chart
    assert "Say #quot;hi#quot; #lt;now#gt;" in chart
    assert 's7{"big<br/>input.plan is pro and (not steps.buy.status is in [#quot;skipped…"}' in chart
    assert "wait until 18:00 Europe/Paris" in chart
