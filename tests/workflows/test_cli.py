"""``duly workflows`` on both databases."""

from __future__ import annotations

import itertools
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text

from cli.hands import Run, Said
from duly import Duly
from duly.cli.main import cli
from duly.cli.workflows import _print_tree
from duly.testing import drain
from duly.workflows import Branch
from duly.workflows import Run as WorkflowRun

SHOP = """
from datetime import timedelta
from duly import Duly, PermanentError
from duly.workflows import WorkflowContext

app = Duly(sqlite_synchronous="NORMAL")
broken = [True]

@app.task("EMAIL_SEND", queue="mail")
def send(to: str, text: str) -> dict:
    return {"ok": True}

@app.workflow("onboarding")
async def onboarding(ctx: WorkflowContext, email: str, plan: str = "free") -> str:
    await ctx.using(compensate=lambda answer: None).step("account", lambda: 7)
    await ctx.enqueue("EMAIL_SEND", to=email, text="hello")
    await ctx.wait_event("confirmed", timeout=timedelta(days=3))
    said = await ctx.approve("budget")
    await ctx.step("charge", charge)
    return said.by

def charge():
    if broken:
        raise PermanentError("the card was refused, and the bank says so in a sentence that is much too long for one line of a terminal")

@app.workflow("other", version=2)
async def other(ctx: WorkflowContext) -> None: ...
"""
_numbers = itertools.count(1)
DOCUMENT = """\
name: welcome
input: {email: string}
steps:
  - name: letter
    email: {to: "{{ input.email }}", text: hello}
  - name: charge
    task: CHARGE
"""


@pytest.fixture
def shop(db_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of an application's module; the command line finds it by DULY_APP."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DULY_DATABASE_URL", db_url)
    module = f"onboarding{next(_numbers)}"
    monkeypatch.setenv("DULY_APP", f"{module}.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{module}.py").write_text(SHOP)
    names = runpy.run_path(f"{module}.py")
    names["app"].open()
    yield names
    names["app"].close()
    sys.modules.pop(module, None)


@pytest.fixture
def app(shop: dict[str, Any]) -> Duly:
    made: Duly = shop["app"]
    return made


@pytest.fixture
def run(app: Duly) -> Run:
    def call(*args: str, input: Any = None) -> Said:
        done = CliRunner().invoke(cli, ["workflows", *args], input=input, prog_name="duly")
        return Said(done.exit_code, done.stdout, done.stderr)

    return call


def ok(said: Said) -> str:
    assert said.code == 0, said.err
    return said.out


def started(run: Run, app: Duly) -> str:
    """A run that has been worked on as far as it comes."""
    ident = str(run("start", "onboarding", '{"email": "ann@example.org"}', "--json").json["id"])
    drain(app)
    return ident


def actions(app: Duly, run: str) -> list[tuple[str, str]]:
    query = text("SELECT action, actor FROM audit_log WHERE entity = 'run' AND entity_id = :run ORDER BY id")
    return [
        (row.action, row.actor.partition(":")[0]) for row in app.db.read(lambda c: c.execute(query, {"run": run}).all())
    ]


def test_a_run_from_the_command_line(run: Run, app: Duly, shop: dict[str, Any]) -> None:
    assert (
        ok(run("start", "onboarding", '{"email": "ann@example.org"}', "--key", "k"))
        == "Run 1 of workflow onboarding waits for a worker.\n"
    )
    assert (
        ok(run("start", "onboarding", '{"email": "ann@example.org"}', "--key", "k"))
        == "Key k has run 1 already (queued). Nothing was written.\n"
    )
    drain(app)
    assert "waiting" in ok(run("list"))
    assert ok(run("signal", "1", "confirmed", '{"by": "link"}', "--key", "once")) == "Run 1 is told confirmed.\n"
    assert "taken before" in ok(run("signal", "1", "confirmed", "--key", "once"))
    drain(app)
    assert "AWAITING_HUMAN" in ok(run("list", "-w", "onboarding", "-s", "queued"))
    assert ok(run("approve", "1", "--reason", "fine")).startswith("Approved by cli:")
    drain(app)
    said = ok(run("show", "1"))
    assert "error     WorkflowFailed: charge: PermanentError: the card was refused" in said
    shop["broken"].clear()
    assert ok(run("replay", "1", "--reason", "mended")) == "Run 1 of workflow onboarding goes on again.\n"
    drain(app)
    # what was undone is done again with all behind it, and people are asked anew
    assert run("show", "1", "--json").json["state"] == "AWAITING_HUMAN"
    ok(run("approve", "1"))
    drain(app)
    assert run("show", "1", "--json").json["state"] == "succeeded"
    assert ok(run("fork", "1", "--from", "charge")).endswith("of workflow onboarding is made, forked from 1.\n")
    assert run("list", "--json").json[0]["forked_from"] == 1
    assert [a for a, _ in actions(app, "1")] == [
        "WORKFLOW_SIGNALLED", "WORKFLOW_APPROVED", "WORKFLOW_REPLAYED", "WORKFLOW_APPROVED",
    ]  # fmt: skip
    assert {by for _, by in actions(app, "1")} == {"cli"}


def test_a_run_is_shown_as_facts_a_tree_and_a_timeline(run: Run, app: Duly) -> None:
    ident = started(run, app)
    said = ok(run("show", ident))
    assert "workflow   onboarding, version 1" in said
    assert "waits for  event confirmed until 20" in said
    tree = said.partition("Steps\n")[2].partition("\nTimeline")[0].splitlines()
    assert [line.rstrip() for line in tree] == [
        f"run {ident} onboarding: waiting", "├── 1 step account: done", "├── 2 task EMAIL_SEND: done",
        f"│   └── job {int(ident) + 1} EMAIL_SEND: succeeded", "└── 3 event confirmed: waiting",
    ]  # fmt: skip
    timeline = said.partition("Timeline\n")[2].splitlines()
    assert timeline[0].split() == ["began", "took", "step", "what", "came", "of", "it"]
    assert "event confirmed  waits until 20" in timeline[3]
    assert "in 3 d" in timeline[3]
    told = run("show", ident, "--json").json
    assert [s["name"] for s in told["steps"]] == ["account", "EMAIL_SEND", "confirmed"]
    assert [j["status"] for j in told["jobs"]] == ["succeeded"]


def test_the_timeline_of_a_run_can_be_read_on_eighty_columns(
    run: Run, app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    ident = started(run, app)
    ok(run("signal", ident, "confirmed"))
    drain(app)
    ok(run("approve", ident))
    drain(app)
    monkeypatch.setattr("duly.cli.show.terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    said = ok(run("show", ident))
    timeline = said.partition("Timeline\n")[2].splitlines()
    assert max(len(line) for line in timeline) <= 80
    assert len(timeline) > 8  # folded, not cut
    assert "too long" in said
    assert "└── undo account: done" in said


def test_of_a_long_run_the_last_steps_are_shown(run: Run, app: Duly) -> None:
    ident = started(run, app)
    said = ok(run("show", ident, "-n", "1"))
    assert "The last 1 of 3 steps" in said
    assert "account" not in said.partition("Steps\n")[2]


def test_a_run_is_drawn_as_a_mermaid_flowchart(run: Run, app: Duly) -> None:
    said = ok(run("show", started(run, app), "--mermaid"))
    assert said.startswith("flowchart TD\n")
    assert 'n1["1 · account<br/>step, done' in said


def test_a_person_says_no_and_a_run_is_cancelled(run: Run, app: Duly) -> None:
    first, second = started(run, app), started(run, app)
    not_asked = run("approve", first)
    assert (not_asked.code, not_asked.err) == (
        1,
        f"duly: run {first} is not waiting for a person, so it cannot approve.\n",
    )
    for ident in (first, second):
        ok(run("signal", ident, "confirmed", "-", input="[1]"))
    drain(app)
    assert ok(run("approve", first, "budget", "--no", "--reason", "no")).startswith("Rejected by cli:")
    stays = ", ".join(app.workflows.standing(int(second)))
    assert ok(run("cancel", second, "--reason", "gone")) == (
        f"Run {second} of workflow onboarding is cancelled.\nDone and not undone: {stays}.\n"
    )
    assert run("cancel", second).code == 1
    assert actions(app, first)[-1][0] == "WORKFLOW_REJECTED"
    assert actions(app, second)[-1][0] == "WORKFLOW_CANCELLED"


def test_a_run_that_is_cancelled_with_undo_is_undone_by_a_worker(run: Run, app: Duly) -> None:  # C044
    ident = started(run, app)
    said = ok(run("cancel", ident, "--undo", "--reason", "gone"))
    assert said == f"Run {ident} of workflow onboarding is undone by a worker, and then cancelled.\n"
    drain(app)
    said = ok(run("show", ident))
    assert "cancelled" in said and "What stays:" in said and ": gone. Undone:" in said


def test_what_belongs_to_another_tenant_is_not_there(run: Run, app: Duly) -> None:
    ident = str(run("start", "other", "--tenant", "acme", "--json").json["id"])
    for command in (
        ["show", ident],
        ["signal", ident, "x"],
        ["cancel", ident],
        ["replay", ident],
        ["fork", ident],
        ["approve", ident],
    ):
        said = run(*command, "--tenant", "default")
        assert (said.code, said.err) == (1, f"duly: there is no run {ident}.\n"), command
    assert [r["id"] for r in run("list", "--tenant", "acme", "--json").json] == [int(ident)]
    assert ok(run("list", "--tenant", "default")) == "No such runs.\n"


WRONG = [
    (["show", "x"], "'RUN'"), (["start"], "Name a workflow, or a --file"), (["start", "onboarding", "{"], "input: is not JSON"),
    (["start", "onboarding"], "email: is required"), (["start", "onboarding", '{"email": "a@example.org", "mail": 1}'], "mail: is not a parameter"),
    (["signal", "1", "paid", "text"], "payload: is not JSON"), (["list", "--status", "waiting"], "'--status'"),
    (["replay", "1", "--from", "0"], "'--from'"), (["check"], "FILE"), (["start", "--file", "none.yaml"], "none.yaml"),
    (["check", "doc.txt"], "ends in .yaml"),
]  # fmt: skip


def test_wrong_usage_is_told_by_its_field(run: Run) -> None:
    for args, names in WRONG:
        said = run(*args)
        assert (said.code, said.out) == (2, ""), said
        assert names in said.err, args


def test_a_workflow_that_the_application_does_not_define_is_noted_and_started(run: Run) -> None:
    said = run("start", "onbording")
    assert (said.code, 'No workflow is called "onbording". Did you mean "onboarding"?' in said.err) == (0, True)


def test_what_the_application_defines_is_listed(run: Run, app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(d["workflow"], d["version"], d["written_as"], d["input"]) for d in run("definitions", "--json").json] == [
        ("onboarding", 1, "code", ["email: str", "plan: str = 'free'"]), ("other", 2, "code", []),
    ]  # fmt: skip
    monkeypatch.delenv("DULY_APP")
    assert "defines no workflow" in ok(run("definitions"))


def test_a_document_is_checked_and_started(run: Run, app: Duly, tmp_path: Path) -> None:
    (tmp_path / "welcome.yaml").write_text(DOCUMENT)
    said = run("check", "welcome.yaml")
    assert (said.code, said.out) == (0, "welcome.yaml: workflow welcome, version 1, 2 steps, input email.\n")
    assert "defines no task 'CHARGE'" in said.err
    assert ok(run("check", "welcome.yaml", "--mermaid")).startswith("flowchart TD\n")
    wrong = run("start", "other", '{"email": "ann@example.org"}', "--file", "welcome.yaml")
    assert (wrong.code, "is workflow welcome, not other" in wrong.err) == (2, True)
    ident = run("start", "--file", "welcome.yaml", '{"email": "ann@example.org"}', "--json").json["id"]
    drain(app)  # this application has not loaded it
    assert app.workflows.get(ident).state == "waiting"
    assert app.workflows.history(ident)[0].output == {"ok": True}


def test_a_wrong_document_is_told_line_by_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(DOCUMENT.replace("email: {to", "emial: {to") + "  - name: x\n    wait: soon\n")
    (tmp_path / "good.yaml").write_text(DOCUMENT)
    said = run("check", "bad.yaml", "good.yaml")
    assert said.code == 1
    lines = [line for line in said.err.splitlines() if line.startswith("duly: bad")]
    assert lines == [
        "duly: bad.yaml:4:5: steps[0] does nothing. Give it exactly one of email, wait, task, approve, branch.",
        "duly: bad.yaml:5:5: steps[0].emial is not known here. Did you mean email?",
        "duly: bad.yaml:9:11: steps[2].wait is 'soon'. Give seconds, a timedelta, or a text such as 30s, 5m, 1h30m, 2d or PT5M.",
    ]  # fmt: skip
    assert "good.yaml: workflow welcome" in said.out
    told = run("check", "bad.yaml", "--json")
    assert (told.code, [p["line"] for p in told.json[0]["problems"]]) == (1, [4, 5, 9])


def test_of_a_thousand_runs_that_each_started_the_next_the_first_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    chain = [Branch(n + 1, n, n, "ENGINE_RUN", "succeeded", "loop") for n in range(1, 1201)]
    _print_tree(WorkflowRun(1, "default", "loop", 1, "succeeded"), [], chain)
    shown = capsys.readouterr().out
    assert "run 31 loop: succeeded" in shown
    assert "… and more below: duly workflows show 31" in shown
    assert "run 32 " not in shown
