"""A number that a reader of JSON would change in silence is refused by every front, with its path. C017, H9."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.hands import Run
from duly import Duly, InvalidArgument, InvalidPayload
from duly.automations.providers.shared import call
from duly.jobs.codec import encode_output
from duly.kernel.payload import read_json
from duly.outbox.reconcile import Shape, read_jsonl
from duly.testing import drain
from duly.web.dashboard.pages.schedule_form import input_of

#: What stands behind ``{"a": [0, `` and before ``]}``, and what is said of it.
BAD = {
    "18446744073709551616": "is an integer of more than 64 bits",
    "-9223372036854775809": "is an integer of more than 64 bits",
    "1" * 5_000: "is an integer of more than 64 bits",
    "1e400": "is not finite",
    "NaN": "JSON cannot carry",
    "-Infinity": "JSON cannot carry",
    '{"n": 1, "n": 2}': "has the name 'n' twice",
}
LONG = "18446744073709551616"


def bad(what: str) -> str:
    return f'{{"a": [0, {what}]}}'


@pytest.mark.parametrize(("what", "says"), BAD.items(), ids=[w[:22] for w in BAD])
def test_the_decoder_refuses_with_the_path(what: str, says: str) -> None:
    with pytest.raises(InvalidPayload, match=says) as refused:
        read_json(bad(what).encode(), "input")
    assert refused.value.field == "input.a[1]"


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=12))  # fmt: skip
def test_the_decoder_reads_everything_else_as_it_stands(value: Any) -> None:
    assert read_json(json.dumps(value), "input") == value


@pytest.mark.parametrize("text", ["", "{", "nul", b"\xff", "[" * 100_000])
def test_what_is_no_json_is_refused_in_words(text: str | bytes) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_json(text, "input")
    assert not isinstance(refused.value, InvalidPayload)


@pytest.mark.parametrize("what", [LONG, "1e400", '{"n": 1, "n": 2}'])
def test_every_command_that_takes_json_refuses(run: Run, shop: str, tmp_path: Path, what: str) -> None:
    text = bad(what)
    workflow = tmp_path / "w.yaml"
    workflow.write_text(
        "workflow: w\nversion: 1\ninput: {a: list}\nsteps:\n  - name: s\n    wait: {event: e, timeout: 1d, timed_out: []}\n"
    )
    for command in (
        ["enqueue", "hello", text],
        ["schedules", "set", "s", "--task", "hello", "--every", "1h", "--input", text],
        ["workflows", "start", "w", text],
        ["workflows", "signal", "1", "e", text],
        ["publish", "test", "blog", text],
        ["automations", "fire", "e", text],
    ):
        said = run(*command, "--app", shop)
        assert (said.code, "a[1]" in said.err) != (0, False), (command, said)
        assert said.code in (1, 2), (command, said)
    said = run(
        "enqueue",
        "--file",
        "-",
        "--app",
        shop,
        input=f'{{"task": "hello", "input": {text}}}\n{{"task": "x", "input": {{}}}}',
    )
    assert (said.code, "line 1: input.a[1]" in said.err) == (1, True)


def test_readers_of_files_forms_and_models_refuse() -> None:
    assert "input.a[1]" in str(next(read_jsonl(iter([f'{{"key": "k", "input": {bad(LONG)}}}']), Shape("{key}")))[1])  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload, match=r"input\.a\[1\]"):
        input_of({"input": bad(LONG)}, None)
    assert "arguments.a[1]" in call("1", "pay", bad(LONG)).problem
    assert call("1", "pay", '{"cents": 9007199254740993}').arguments == {"cents": 9007199254740993}


def test_a_handler_that_returns_such_a_number_has_done_its_work_and_the_job_says_what_was_lost(tmp_path: Path) -> None:
    app = Duly(f"sqlite:///{tmp_path}/duly.db")

    @app.task
    def give(what: str) -> dict[Any, Any]:
        return {"rows": [1, 2**64 if what == "long" else float(what)], 7: None}

    long, wild = give.enqueue("long").job.id, give.enqueue("nan").job.id
    drain(app)
    first, second = app.jobs.get(long), app.jobs.get(wild)
    assert (first.status, first.output) == ("succeeded", {})
    assert "the result.rows[1] is an integer of more than 64 bits" in first.error["message"]
    assert (second.status, second.output) == ("succeeded", {"rows": [1, None], "7": None})
    assert second.error["message"] == "the result.rows[1] is not finite, and was stored as null."
    app.close()
    assert encode_output({"at": datetime(2026, 1, 1, tzinfo=UTC), "n": None, 2: 2**64 - 1}, 1_000)[1] is None
