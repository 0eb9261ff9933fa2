"""What the processes of the crash tests of documents run: a worker that knows a document and has places to die."""

from __future__ import annotations

from typing import Any

from crash.program import Here, Plan, enter_process, write
from duly import Duly
from duly.workflows.advance import Advance
from duly.workflows.store import WorkflowStore

DOCUMENT: dict[str, Any] = {
    "name": "five", "input": {"first": "string"},
    "steps": [
        {"name": "one", "task": {"name": "CHILD", "input": {"name": "{{ input.first }}"}}},
        {"name": "pause", "wait": 0.2},
        {"name": "go", "wait": {"event": "go", "timeout": "1h"}},
        {"name": "way", "branch": {
            "when": {"value": "{{ steps.go.answer }}", "equals": "left"},
            "then": [{"name": "left", "task": {"name": "CHILD", "input": {"name": "{{ steps.go.answer }}"}}}],
            "else": [{"name": "right", "task": {"name": "CHILD", "input": {"name": "right"}}}],
        }},
        {"name": "letter", "email": {"to": "a@example.org", "text": "after {{ steps.left.answer }}"}},
    ],
    "output": ["{{ steps.one.answer }}", "{{ steps.left.answer }}", "{{ steps.right.status }}", "{{ steps.letter.answer }}"],
}  # fmt: skip


def define(app: Duly) -> Duly:
    @app.task("CHILD", queue="children")
    async def child(name: str) -> str:
        write("effect", name=name)
        return name

    @app.task("EMAIL_SEND", queue="children")
    async def send(to: str, text: str) -> str:
        write("effect", name=text)
        return "sent"

    app.workflows.load(DOCUMENT)
    return app


def run_worker(plan: Plan) -> None:
    """Work until somebody ends it, or until the place to die is reached."""
    enter_process(plan)
    app = define(Here.app)
    die = Here.die_at
    die._around(WorkflowStore, "write", None, "step.written")
    die._around(WorkflowStore, "rest", "rest.before", "rest.noted")
    die._around(Advance, "_got_on", None, "step.recorded")
    app.worker({"workflows": 5, "children": 5}, name=plan.name).run(until_idle=plan.until_idle)
