"""Workflows that are written as documents: what is refused and where, and what a run of one does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly import Duly, Every, PermanentError
from duly.kernel.errors import InvalidArgument
from duly.kernel.source import InvalidDocument, read_json, read_yaml
from duly.testing import ManualClock, drain
from duly.workflows import Kind, WorkflowContext
from duly.workflows.expressions import ABSENT, AllOf, AnyOf, Not, NoValue, Test, filled, holds, look_up, paths_in
from duly.workflows.interpret import workflow_of
from duly.workflows.mermaid import of_document
from duly.workflows.reading import load

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

WELCOME = """\
name: welcome
version: 3
input:
  email: string
  name: {type: string, default: you}
  plan: {type: string, one_of: [free, pro], default: free}
steps:
  - name: letter
    email: {to: "{{ input.email }}", subject: "Welcome, {{ input.name }}", html: "<p>{{ input.name }}</p>"}
  - name: pause
    wait: 2d
  - name: confirmed
    wait: {event: confirmed, timeout: 3d, timed_out: []}
  - name: known
    branch:
      when: {value: "{{ steps.confirmed.answer }}", present: true}
      then:
        - name: charge
          task: {name: CHARGE, input: {plan: "{{ input.plan }}", by: "{{ steps.confirmed.answer.by }}"}}
      else:
        - name: reminder
          email: {to: ["{{ input.email }}"], subject: Please confirm, text: "Run {{ run.id }} waits."}
output: {confirmed: "{{ steps.confirmed.answer }}", charge: "{{ steps.charge.status }}"}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(text: str, name: str = "doc.yaml") -> Path:
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        return file

    return make


def sent(app: Duly, task: str = "EMAIL_SEND") -> list[Any]:
    return [job.input for job in sorted(app.jobs.find(task=task), key=lambda job: job.id)]


def state(app: Duly, run: int) -> tuple[str, Any]:
    found = app.workflows.get(run)
    return found.state, found.output if found.state != "failed" else found.error["message"]


def loaded(app: Duly, *steps: Any, **more: Any) -> Any:
    return app.workflows.load({"name": "d", "steps": list(steps), **more})


@pytest.fixture
def letters(app: Duly) -> list[dict[str, Any]]:
    """What EMAIL_SEND was asked to send."""
    made: list[dict[str, Any]] = []

    @app.task("EMAIL_SEND", queue="mail")
    def send(**fields: Any) -> dict[str, Any]:
        made.append(fields)
        return {"sent": len(made)}

    return made


# --- Running -----------------------------------------------------------------------------------------------------------


def test_a_document_is_a_workflow_whose_steps_are_asked_of_ctx(
    app: Duly, clock: ManualClock, write: Callable[..., Path], letters: list[dict[str, Any]]
) -> None:  # workflow_steps: email, wait, task, branch
    @app.task("CHARGE")
    def charge(plan: str, by: str) -> dict[str, Any]:
        return {"paid": plan, "by": by}

    welcome = app.workflows.load(write(WELCOME))
    assert (welcome.name, welcome.version) == ("welcome", 3)
    run = welcome.start(email="ann@example.org", name="Ann & <b>", plan="pro").job.id
    drain(app)
    assert letters == [{"to": "ann@example.org", "subject": "Welcome, Ann & <b>", "html": "<p>Ann &amp; &lt;b&gt;</p>"}]
    assert app.workflows.get(run).state == "sleeping"
    clock.advance(2 * DAY)
    drain(app)
    app.workflows.signal(run, "confirmed", {"by": "ann"})
    drain(app)
    assert state(app, run) == ("succeeded", {"confirmed": {"by": "ann"}, "charge": "done"})
    assert [(s.kind, s.name) for s in app.workflows.history(run)] == [
        (Kind.TASK, "letter"), (Kind.SLEEP, "pause"), (Kind.EVENT, "confirmed"), (Kind.TASK, "charge"),
    ]  # fmt: skip

    late = welcome.start(email="bob@example.org").job.id
    for _ in range(3):
        drain(app)
        clock.advance(3 * DAY)
    drain(app)
    assert state(app, late) == ("succeeded", {"confirmed": None, "charge": "skipped"})
    assert letters[-1] == {"to": ["bob@example.org"], "subject": "Please confirm", "text": f"Run {late} waits."}
    assert letters[-2]["subject"] == "Welcome, you"


def test_the_input_of_a_document_is_checked_at_the_start_like_typed_arguments(app: Duly) -> None:
    document = loaded(
        app, {"name": "pause", "wait": 0},
        input={"n": "integer", "at": {"type": "instant", "default": None}, "kind": {"one_of": ["a", "b"], "default": "a"}, "day": {"type": "date", "default": "2026-01-02"}},
        output={"n": "{{ input.n }}", "at": "{{ input.at }}", "day": "{{ input.day }}"},
    )  # fmt: skip
    with pytest.raises(InvalidArgument, match=r"^n: is required"):
        document.start()
    with pytest.raises(InvalidArgument, match=r"^n: "):
        document.start(n="many")
    with pytest.raises(InvalidArgument, match=r"^kind: "):
        document.start(n=1, kind="c")
    with pytest.raises(InvalidArgument, match=r"^more: is not a parameter"):
        app.workflows.start("d", {"n": 1, "more": 2})
    with pytest.raises(InvalidArgument, match=r"^at: "):
        document.start(n=1, at="2026-01-01T00:00:00")
    run = document.start(n="7", at="2026-01-01T00:00:00+01:00").job.id
    drain(app)
    assert state(app, run) == ("succeeded", {"n": 7, "at": "2026-01-01T00:00:00+01:00", "day": "2026-01-02"})


def test_a_document_waits_until_an_instant_until_a_clock_shows_a_time_and_for_a_span_that_is_filled_in(
    app: Duly, clock: ManualClock
) -> None:
    run = loaded(
        app,
        {"name": "one", "wait": {"until": "2026-03-02T10:00:00Z"}},
        {"name": "two", "wait": {"until": {"at": "18:00", "tz": "Europe/Paris"}}},  # 17:00Z
        {"name": "three", "wait": {"until": {"at": "18:00", "tz": "Europe/Paris"}}},  # the next day
        {"name": "four", "wait": {"until": {"at": "2026-03-29T02:30", "tz": "Europe/Paris"}}},  # no clock shows it: 01:00Z
        {"name": "five", "wait": {"for": "{{ input.long }}"}},
        {"name": "six", "wait": {"until": "{{ input.end }}"}},
        input={"long": "string", "end": "instant"},
    ).start(long="1h30m", end="2026-04-01T00:00:00Z").job.id  # fmt: skip
    woken = []
    while app.workflows.get(run).state not in ("succeeded", "failed"):
        drain(app)
        due = app.jobs.get(run).due_at if app.workflows.get(run).state == "sleeping" else None
        if due is not None:
            woken.append(f"{due:%m-%dT%H:%M}")
            clock.set(due)
    assert woken == ["03-02T10:00", "03-02T17:00", "03-03T17:00", "03-29T01:00", "03-29T02:30", "04-01T00:00"]


@pytest.mark.parametrize(("said", "answer"), [(True, "paid"), (False, "refused"), (None, "late")])
def test_what_follows_a_question_depends_on_the_answer_and_on_whether_there_is_one(
    app: Duly, clock: ManualClock, said: bool | None, answer: str
) -> None:
    @app.task("NOTE")
    def note(what: str) -> str:
        return what

    def noted(what: str) -> list[Any]:
        return [{"name": what, "task": {"name": "NOTE", "input": {"what": what}}}]

    approve = {"timeout": "1d", "approved": noted("paid"), "rejected": noted("refused"), "timed_out": noted("late")}
    output = {
        "by": "{{ steps.budget.answer }}",
        **{what: f"{{{{ steps.{what}.status }}}}" for what in ("paid", "refused", "late")},
    }
    run = loaded(app, {"name": "budget", "approve": approve}, output=output).start().job.id
    drain(app)
    assert app.workflows.get(run).state == "AWAITING_HUMAN"
    if said is None:
        clock.advance(DAY)
    else:
        app.workflows.approve(run, approved=said, actor="ann", reason="because")
    drain(app)
    found, output = state(app, run)
    assert found == "succeeded"
    assert [what for what in ("paid", "refused", "late") if output[what] == "done"] == [answer]
    if said is not None:
        assert output["by"] == {"approved": said, "by": "ann", "reason": "because", "at": "2026-03-02T09:00:00+00:00"}


def test_a_no_and_a_time_out_are_failures_where_the_document_does_not_say_what_follows(
    app: Duly, clock: ManualClock
) -> None:
    run = loaded(app, {"name": "budget", "approve": None}).start().job.id
    drain(app)
    app.workflows.approve(run, approved=False, actor="ann", reason="too much")
    drain(app)
    assert state(app, run) == ("failed", "Rejected: budget was rejected by ann: too much.")
    late = (
        app.workflows.load({"name": "e", "steps": [{"name": "paid", "wait": {"event": "paid", "timeout": "1h"}}]})
        .start()
        .job.id
    )
    drain(app)
    clock.advance(HOUR)
    drain(app)
    assert state(app, late) == ("failed", "paid did not come in time.")


def test_a_step_that_fails_stops_the_run_or_lets_it_go_on_as_the_document_says(
    app: Duly, letters: list[dict[str, Any]]
) -> None:
    @app.task("BROKEN", max_attempts=1)
    def broken() -> None:
        raise PermanentError("no")

    steps = [
        {"name": "broken", "task": "BROKEN"},
        {"name": "absent", "task": {"name": "X", "input": {"x": "{{ steps.broken.answer }}"}}},
        {
            "name": "tell",
            "email": {"to": "a@example.org", "text": "{{ steps.broken.error }} {{ steps.broken.status }}"},
        },
    ]
    stopped = loaded(app, *steps).start().job.id
    drain(app)
    assert state(app, stopped) == ("failed", "broken: PermanentError: no")
    assert letters == []
    on = app.workflows.load({"name": "e", "on_failure": "continue", "steps": steps}).start().job.id
    drain(app)
    assert state(app, on)[0] == "succeeded"
    assert letters == [{"to": "a@example.org", "text": "broken: PermanentError: no failed"}]
    # a step may say otherwise than the document, and an arm takes after its step
    branch = {
        "when": {"value": 1, "equals": 1},
        "then": [steps[0], {"name": "last", "task": "BROKEN", "on_failure": "stop"}],
    }
    both = (
        app.workflows.load({"name": "f", "steps": [{"name": "b", "on_failure": "continue", "branch": branch}]})
        .start()
        .job.id
    )
    drain(app)
    assert state(app, both)[0] == "failed"
    assert len(app.workflows.history(both)) == 2


def test_an_input_that_a_task_refuses_stops_the_run_in_words_and_tells_no_value(app: Duly) -> None:
    @app.task("CHARGE")
    def charge(amount: int) -> None: ...

    step = {"name": "charge", "task": {"name": "CHARGE", "input": {"amount": "s3cret"}}}
    run = loaded(app, step, on_failure="continue").start().job.id
    drain(app)
    found, message = state(app, run)
    assert (found, "task CHARGE refuses its input: amount:" in message, "s3cret" in message) == ("failed", True, False)


# --- Texts that change -------------------------------------------------------------------------------------------------


def test_a_run_goes_on_by_the_text_that_it_began_with_and_new_ones_take_the_new_text(
    app: Duly, db_url: str, clock: ManualClock, write: Callable[..., Path]
) -> None:
    text = "name: d\nsteps:\n  - {name: pause, wait: 1h}\noutput: %s\n"
    told: list[Any] = []
    app.listen(told.append)
    old = app.workflows.load(write(text % "old")).start().job.id
    drain(app)
    new = app.workflows.load(write(text % "new")).start().job.id
    assert [(e.level, e.facts) for e in told if e.name == "workflow_changed"] == [
        ("warning", {"workflow": "d", "version": 1})
    ]
    drain(app)
    # another program that has only the next version, and of this one the newest text
    other = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL")
    heard: list[Any] = []
    other.listen(heard.append)
    other.workflows.load(write(text % "new"))
    other.workflows.load(write("version: 2\n" + text % "newest"))
    clock.advance(HOUR)
    drain(other)
    assert (state(app, old), state(app, new)) == (("succeeded", "old"), ("succeeded", "new"))
    assert len([e for e in heard if e.name == "workflow_changed"]) == 1
    assert app.workflows.get(old).version == 1
    other.close()


def test_a_run_has_its_text_from_the_start_so_a_worker_need_not_have_loaded_it(
    app: Duly, db_url: str, clock: ManualClock
) -> None:
    run = loaded(app, {"name": "pause", "wait": 0}, output="done").start().job.id
    keyed = [app.workflows.find("d").using(key="k").start() for _ in range(2)]
    assert [made.created for made in keyed] == [True, False]
    other = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL")
    other.workflows.load({"name": "another", "steps": [{"name": "pause", "wait": 0}]})
    drain(other)
    assert state(app, run) == ("succeeded", "done")
    other.close()


def test_a_fork_and_a_replay_of_a_document_keep_its_text(app: Duly, letters: list[dict[str, Any]]) -> None:
    run = loaded(app, {"name": "a", "email": {"to": "a@example.org", "text": "one"}}).start().job.id
    drain(app)
    loaded(app, {"name": "a", "email": {"to": "a@example.org", "text": "two"}})
    app.workflows.replay(run, 1)
    app.workflows.fork(run, 1)
    drain(app)
    assert [letter["text"] for letter in letters] == ["one"] * 3


def test_a_name_and_version_of_code_is_not_taken_by_a_document(app: Duly) -> None:
    @app.workflow("d")
    async def code(ctx: Any) -> None: ...

    with pytest.raises(InvalidArgument, match="defined twice in version 1"):
        loaded(app, {"name": "pause", "wait": 0})


# --- What is refused ---------------------------------------------------------------------------------------------------

#: A line to put into the document, and (line, column) with what is said of it.
WRONG = [
    ("naem: x", "1:1: naem is not known here. Did you mean name?"),
    ("steps:\n  - {name: a, wiat: 2d}", "2:15: steps[0].wiat is not known here. Did you mean wait?"),
    ("steps:\n  - {wait: 2d}", "2:5: steps[0] has no name. Add `name:`."),
    ("steps:\n  - {name: a}", "2:5: steps[0] does nothing. Give it exactly one of email, wait, task, approve, branch."),
    ("steps:\n  - {name: a, wait: 2d, task: X}", "2:5: steps[0] is wait and task at once."),
    ("steps:\n  - {name: a, wait: 2x}", "2:21: steps[0].wait is '2x'. Give seconds"),
    ("steps:\n  - {name: a, wait: {for: 2d, event: x}}", "2:21: steps[0].wait waits for for and event at once."),
    ("steps:\n  - {name: a, wait: {until: '2026-01-01T00:00'}}", "2:29: steps[0].wait.until is 2026-01-01T00:00:00, without a time zone."),
    ("steps:\n  - {name: a, wait: {until: {at: '09:00', tz: Europe/Pari}}}", "2:47: steps[0].wait.until.tz is 'Europe/Pari', which is no IANA time zone. Did you mean"),
    ("steps:\n  - {name: a, wait: {event: x, timed_out: []}}", "2:32: steps[0].wait.timed_out never comes: there is no timeout."),
    ("steps:\n  - {name: a, email: {subject: x, text: y}}", "2:22: steps[0].email goes to nobody."),
    ("steps:\n  - {name: a, email: {to: x@example.org, subject: 5, text: y}}", "2:51: steps[0].email.subject is a number. Write a text."),
    ("steps:\n  - {name: a, task: {input: {}}}", "2:21: steps[0].task has no name."),
    ("steps:\n  - {name: a, task: {name: X, input: {n: '{{ input.nam }}'}}}\ninput: {name: string}", "2:42: steps[0].task.input.n has {{ input.nam }}, and nam is no input. Did you mean input.name?"),
    ("steps:\n  - {name: a, task: {name: X, input: {n: '{{ steps.b.answer }}'}}}", "2:42: steps[0].task.input.n has {{ steps.b.answer }}, and no step is called b."),
    ("steps:\n  - {name: a, task: {name: X, input: {n: '{{ steps.b.answer }}'}}}\n  - {name: b, wait: 2d}", "and step b is not over there."),
    ("steps:\n  - {name: a, wait: 2d}\noutput: '{{ steps.a.anwser }}'", "3:9: output has {{ steps.a.anwser }}, and that is nothing of a step."),
    ("steps:\n  - {name: a, wait: 2d}\noutput: 'x {{ input.a | upper }}'", "3:9: output has the placeholder {{ input.a | upper }}, which is no dotted path."),
    ("steps:\n  - {name: a, wait: 2d}\noutput: 'x {{ input'", "3:9: output has {{ that begins no placeholder."),
    ("steps:\n  - {name: a, wait: 2d}\noutput: '{{ env.HOME }}'", "3:9: output has {{ env.HOME }}, and env is not known."),
    ("steps:\n  - {name: a, wait: 2d}\n  - {name: a, wait: 2d}", "3:12: steps[1].name is 'a', as that of line 2."),
    ("steps:\n  - {name: a b, wait: 2d}", "2:12: steps[0].name is 'a b'."),
    ("steps:\n  - {name: a, branch: {then: []}}", "2:23: steps[0].branch has no when."),
    ("steps:\n  - {name: a, branch: {when: {value: 1, is: 1}, then: []}}", "steps[0].branch.when.is is not known here."),
    ("steps:\n  - {name: a, branch: {when: {all: []}, then: []}}", "2:36: steps[0].branch.when.all is no list of conditions."),
    ("steps:\n  - {name: a, branch: {when: {value: 1}, then: []}}", "steps[0].branch.when has no operator."),
    ("steps: []", "1:8: steps is empty. Write a step."),
    ("steps: {name: a}", "1:8: steps is a mapping. Write a list of steps."),
    ("steps:\n  - {name: a, wait: 2d}\non_failure: go", "3:13: on_failure is 'go'. Write stop or continue."),
    ("steps:\n  - {name: a, wait: 2d}\ninput: {n: int}", "3:12: input.n is 'int'. Write one of string,"),
    ("steps:\n  - {name: a, wait: 2d}\ninput: {n: {type: integer, default: many}}", "3:37: input.n.default does not fit:"),
    ("steps:\n  - {name: a, wait: 2d}\ninput: {class: string}", "3:9: input.class cannot be the name of an input."),
    ("steps:\n  - {name: a, wait: 2d}\nversion: 0", "3:10: version is 0; it must be a whole number"),
    ("steps:\n  - {name: a, wait: &x 2d}\n  - {name: b, wait: *x}", "2:21: the document has an anchor or an alias."),
    ("steps:\n  - {name: a, wait: !!python/name:os.system x}", "2:21: the document has the tag"),
    ("steps:\n  - {name: a, name: b, wait: 2d}", "2:15: the document has the key name twice."),
    ("steps:\n  - {name: a, wait: 2d", "the document is not YAML:"),
    ("steps:\n  - a", "2:5: steps[0] is a text. Write a mapping with name"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[said[:60] for _, said in WRONG])
def test_what_is_wrong_with_a_document_is_told_with_its_place_before_anything_is_written(
    write: Callable[..., Path], tmp_path: Path, text: str, said: str
) -> None:
    app = Duly(f"sqlite:///{tmp_path / 'never.db'}")
    file = write(text if text.startswith("naem") else f"{text}\nname: d\n")
    with pytest.raises(InvalidDocument) as caught:
        app.workflows.load(file)
    told = [str(problem) for problem in caught.value.problems]
    assert any(said in one for one in told), told
    assert all(one.startswith(f"{file}:") for one in told)
    assert app.workflows.names() == {}
    assert not (tmp_path / "never.db").exists()


def test_all_that_is_wrong_is_told_at_once_in_the_order_of_the_text(write: Callable[..., Path]) -> None:
    with pytest.raises(InvalidDocument) as caught:
        load(write("name: d\nstesp: 1\nsteps:\n  - {name: a, wait: 2x}\n  - {name: b, task: 5}\n"))
    assert [(p.line, p.column, p.path) for p in caught.value.problems] == [
        (2, 1, "stesp"), (4, 21, "steps[0].wait"), (5, 21, "steps[1].task")
    ]  # fmt: skip


def test_a_step_in_one_arm_is_not_seen_from_the_other_but_from_behind_both() -> None:
    def arms(other: Any, output: Any = None) -> dict[str, Any]:
        branch = {"when": {"value": 1, "equals": 1}, "then": [{"name": "a", "wait": 1}], "else": [other]}
        return {"name": "d", "steps": [{"name": "fork", "branch": branch}], "output": output}

    with pytest.raises(InvalidDocument, match="step a is not over there"):
        load(arms({"name": "b", "task": {"name": "X", "input": {"x": "{{ steps.a.status }}"}}}))
    load(arms({"name": "b", "wait": 1}, "{{ steps.a.status }} {{ steps.b.status }}"))


def test_a_document_as_a_mapping_is_told_by_its_paths_and_one_that_json_cannot_carry_is_refused() -> None:
    with pytest.raises(InvalidDocument, match=r"the document: cannot be used:\n  steps\[0\]\.wait is '2x'"):
        load({"name": "d", "steps": [{"name": "a", "wait": "2x"}]})
    with pytest.raises(InvalidDocument, match=r"steps\[0\]\.wait is of type datetime\.timedelta"):
        load({"name": "d", "steps": [{"name": "a", "wait": DAY}]})
    with pytest.raises(InvalidArgument, match=r"ends in \.yaml"):
        load("doc.txt")
    with pytest.raises(InvalidArgument, match="No such file"):
        load("nowhere.yaml")


def test_the_same_document_as_json_has_the_same_places(write: Callable[..., Path]) -> None:
    text = '{\n  "name": "d",\n  "steps": [\n    {"name": "a", "wait": "2x"},\n    {"name": "é\\u00e9", "wait": -1.5e1}\n  ]\n}\n'
    with pytest.raises(InvalidDocument) as by_json:
        load(write(text, "doc.json"))
    with pytest.raises(InvalidDocument) as by_yaml:
        load(write(text, "doc.yaml"))
    places = [(p.line, p.column, p.path) for p in by_json.value.problems]
    assert places == [(p.line, p.column, p.path) for p in by_yaml.value.problems]
    assert places[0] == (4, 27, "steps[0].wait")
    with pytest.raises(InvalidDocument, match=r"doc\.json:2:3: the document is not JSON"):
        load(write("{\n  name: 1}", "doc.json"))
    with pytest.raises(InvalidDocument, match=r"doc\.json:1:12: the document has the key a twice"):
        load(write('{"a": "x", "a": 1}', "doc.json"))


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20,
)  # fmt: skip


@given(_values, st.sampled_from([None, 1, 3]))
def test_json_is_read_as_the_standard_reader_reads_it(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    source = read_json(text, "x.json")
    assert source.value == value
    assert json.dumps(source.value) == json.dumps(value)


@given(_values.filter(lambda v: "\\ud" not in json.dumps(v)))
def test_what_json_says_yaml_says_too(value: Any) -> None:
    assert json.dumps(read_yaml(json.dumps(value), "x.yaml").value) == json.dumps(value)


def test_yaml_is_read_by_the_core_schema_so_that_no_text_becomes_something_else() -> None:
    text = "[yes, no, on, 12:30, 2026-01-01, 0x1F, 1_000, ~, null, true, 010, 1.5, -3, .5, 1e3, 'true']"
    assert read_yaml(text, "x").value == [
        "yes", "no", "on", "12:30", "2026-01-01", "0x1F", "1_000", None, None, True, 10, 1.5, -3, 0.5, 1000.0, "true",
    ]  # fmt: skip


def test_yaml_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, write: Callable[..., Path]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(InvalidArgument, match=r"pip install \"duly\[yaml\]\""):
        load(write(WELCOME))
    load(write('{"name": "d", "steps": [{"name": "a", "wait": 1}]}', "doc.json"))


# --- Values ------------------------------------------------------------------------------------------------------------

SCOPE: dict[str, Any] = {"input": {"n": 5, "s": "<x>", "list": [1, {"a": True}], "none": None, "o": {"k": 1}}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ input.n }}", 5), ("{{input.n}}", 5), ("n is {{ input.n }}!", "n is 5!"), ("{{ input.list.1.a }}", True),
        ("{{ input.list.1.a }} {{ input.o }}", 'true {"k": 1}'), ("{{ input.none }}", None), ("{ input.n }", "{ input.n }"), (["{{ input.n }}"], [5]),
    ],
)  # fmt: skip
def test_a_text_that_is_a_placeholder_is_the_value_and_within_a_text_it_is_written_out(text: Any, value: Any) -> None:
    assert filled(text, SCOPE) == value


@pytest.mark.parametrize(
    "text",
    ["{{ input.x }}", "a {{ input.none }}", "{{ input.list.7 }}", "{{ input.s.upper }}", "{{ input.__class__ }}"],
)
def test_a_placeholder_that_leads_nowhere_is_an_error(text: str) -> None:
    with pytest.raises(NoValue):
        filled(text, SCOPE)


def test_what_is_filled_into_html_is_escaped() -> None:
    assert filled("<b>{{ input.s }}</b>", SCOPE, escape=True) == "<b>&lt;x&gt;</b>"
    assert filled("{{ input.s }}", SCOPE, escape=True) == "&lt;x&gt;"


@given(st.text())
def test_no_text_is_more_than_a_text_or_a_path(text: str) -> None:
    try:
        paths = paths_in(text)
    except ValueError:
        return
    assert all(look_up(path, {}) is ABSENT for path in paths)
    if not paths:
        assert filled(text, {}) == text


@pytest.mark.parametrize(
    ("tests", "so"),
    [
        ({"equals": 5}, True), ({"equals": True}, False), ({"in": [1, 5]}, True), ({"greater": 5}, False), ({"greater": 4, "less": 6}, True),
        ({"present": True}, True), ({"present": False}, False), ({"equals": "{{ input.n }}"}, True), ({"equals": "5"}, False),
    ],
)  # fmt: skip
def test_a_condition_compares_values_of_a_kind(tests: dict[str, Any], so: bool) -> None:
    assert holds(Test("{{ input.n }}", tuple(tests.items())), SCOPE) is so


def test_true_is_not_one_and_one_is_one_however_it_is_written() -> None:
    assert not holds(Test(1, (("equals", True),)), {})
    assert not holds(Test(False, (("in", [0, "false"]),)), {})
    assert holds(Test(1, (("equals", 1.0),)), {})


def test_what_is_not_there_is_equal_to_nothing_and_neither_more_nor_less() -> None:
    def test(**tests: Any) -> Test:
        return Test("{{ input.gone }}", tuple(tests.items()))

    assert not holds(test(equals=None), SCOPE)
    assert not holds(AnyOf((test(greater=0), test(less=0), test(present=True))), SCOPE)
    assert holds(AllOf((test(present=False), Not(test(equals=0)))), SCOPE)
    with pytest.raises(NoValue, match="greater compares a number with a text"):
        holds(Test("{{ input.n }}", (("greater", "4"),)), SCOPE)


def test_instants_are_kept_as_texts_in_utc() -> None:
    document = load({"name": "d", "steps": [{"name": "a", "wait": {"until": "2026-01-01T00:00:00+01:00"}}]})
    (step,) = document.steps
    assert step.what.until == datetime(2025, 12, 31, 23, tzinfo=UTC)  # type: ignore[union-attr]


# --- Whatever is written ------------------------------------------------------------------------------------------------

_WORDS = (
    "name", "version", "input", "steps", "output", "on_failure", "email", "wait", "task", "approve", "branch", "for", "until", "event", "timeout",
    "timed_out", "at", "tz", "when", "then", "else", "value", "equals", "in", "present", "all", "any", "not", "approved", "rejected", "type", "default",
    "one_of", "to", "text", "html",
)  # fmt: skip
_TEXTS = (
    "a",
    "2d",
    "stop",
    "continue",
    "string",
    "{{ input.a }}",
    "{{ steps.a.answer }}",
    "{{",
    "Europe/Paris",
    "09:00",
    "2026-01-01T00:00:00Z",
    "",
)
_anything = st.recursive(
    st.sampled_from([None, True, 0, 1, -1, 1.5, 10**12, *_TEXTS]) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS) | st.text(max_size=2), inner, max_size=4),
    max_leaves=30,
)  # fmt: skip
_step = st.fixed_dictionaries(
    {"name": st.sampled_from("abc")},
    optional=dict.fromkeys(("email", "wait", "task", "approve", "branch"), _anything),
)


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(_WORDS[:6]), _anything, max_size=6), st.none() | st.lists(_step, max_size=3))
def test_whatever_is_written_is_a_document_or_told_what_is_wrong(said: dict[str, Any], steps: Any) -> None:
    document = said if steps is None else {"name": "d", **said, "steps": steps}
    try:
        read = load(document)
    except InvalidDocument as error:
        assert error.problems
        assert all(one.problem for one in error.problems)
    else:
        assert of_document(read).startswith("flowchart TD\n")
        assert load(read.mapping) == read
        workflow_of(read)


@given(st.text(alphabet="ab:-{}[]'\"&*!|>#%@, \n\t\\é\x00\ud800", max_size=40))
def test_whatever_text_is_read_is_a_document_or_told_what_is_wrong(text: str) -> None:
    for read in (read_yaml, read_json):
        try:
            read(text, "x")
        except InvalidDocument as error:
            assert error.problems


def test_a_document_is_read_in_time_however_long_or_deep_it_is(write: Callable[..., Path]) -> None:
    for text in ("[" * 100_000, "{a: " * 3000, '{"a": ' * 5000, "- " * 5000 + "x", "a: " + "9" * 10_000):
        for name in ("x.yaml", "x.json"):
            with pytest.raises(InvalidDocument):
                load(write(text, name))
    assert len(read_json("[" + "1,\n" * 300_000 + "1]", "x").value) == 300_001  # not in quadratic time
    with pytest.raises(InvalidDocument, match="at most 1,000 are read"):
        load({"name": "d", "steps": [{"name": f"s{n}", "wait": 1} for n in range(1001)]})
    with pytest.raises(InvalidArgument, match="characters; at most"):
        load(write("x" * 1_000_001))


# --- Other ways to begin ------------------------------------------------------------------------------------------------


def test_a_run_can_be_started_from_a_loop_and_in_a_transaction(app: Duly) -> None:
    document = loaded(app, {"name": "pause", "wait": 0}, output="done")
    app.open()
    first = asyncio.run(document.astart()).job.id
    with app.engine.db.engine.begin() as connection:
        second = document.using(session=connection).start().job.id
    drain(app)
    assert (state(app, first), state(app, second)) == (("succeeded", "done"),) * 2


def test_a_workflow_in_code_has_a_document_as_a_child_and_a_schedule_makes_runs_of_one(
    app: Duly, clock: ManualClock
) -> None:
    document = loaded(app, {"name": "pause", "wait": "1h"}, input={"n": "integer"}, output="{{ input.n }}")

    @app.workflow("outer")
    async def outer(ctx: WorkflowContext) -> Any:
        return await ctx.enqueue(document, n=7) + 1

    app.schedule("hourly", Every(HOUR), "ENGINE_RUN", {"workflow": "d", "input": {"n": 3}})
    run = outer.start().job.id
    drain(app)
    clock.advance(HOUR)
    drain(app)
    clock.advance(HOUR)
    drain(app)
    assert state(app, run) == ("succeeded", 8)
    assert {r.output for r in app.workflows.list("d", status=["succeeded"])} == {7, 3}


def test_a_no_or_a_time_out_is_passed_by_where_the_document_goes_on(app: Duly, clock: ManualClock) -> None:
    steps = [
        {"name": "budget", "approve": "1h"},
        {"name": "trip", "approve": "1h"},
        {"name": "paid", "wait": {"event": "paid", "timeout": "1h"}},
    ]
    output = {
        name: [f"{{{{ steps.{name}.status }}}}", f"{{{{ steps.{name}.error }}}}"] for name in ("budget", "trip", "paid")
    }
    run = loaded(app, *steps, on_failure="continue", output=output).start().job.id
    drain(app)
    app.workflows.approve(run, approved=False, actor="ann")
    for _ in range(3):
        drain(app)
        clock.advance(HOUR)
    drain(app)
    assert state(app, run) == ("succeeded", {
        "budget": ["failed", "budget was rejected by ann."], "trip": ["failed", "trip did not come in time."],
        "paid": ["failed", "paid did not come in time."],
    })  # fmt: skip
