"""``duly workflows``: runs of workflows, what they have done and wait for; telling them things, and acting on them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import ID, Group, actor, complain, state
from duly.cli.enqueue import _object
from duly.cli.times import INSTANT, SPAN, relative, span, stamp

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.workflows.document import Document
    from duly.workflows.door import Branch, Workflows
    from duly.workflows.step import Run, Step

#: Layers of jobs below a run that are drawn: runs may each start their successor, a thousand in a row.
DEEPEST = 30
STATUSES = ("queued", "running", "succeeded", "failed", "cancelled")


@click.group(cls=Group)
def workflows() -> None:
    """Runs of workflows: look, tell, approve, replay, cancel."""


def _door() -> Workflows:
    return state().open().workflows


def _tenant(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--tenant", metavar="NAME", help="Only if it is this tenant's.")(command)


def _reason(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--reason", default="", help="Why, for those who look at it later.")(command)


class _Step(click.ParamType):  # type: ignore[type-arg]
    """A step's position or its name."""

    name = "step"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value)
        return ID.convert(text, param, ctx) if text.isascii() and text.isdigit() else text


STEP = _Step()


# ---------------------------------------------------------------------- list, show


@workflows.command("list")
@click.option("--workflow", "-w", metavar="NAME", help="Of this workflow.")
@click.option("--status", "-s", multiple=True, type=click.Choice(STATUSES), help="In this status; may be given again.")
@click.option("--tenant", metavar="NAME", help="Of this tenant; else of all.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, metavar="N", help="At most so many."
)
@click.option("--below", type=ID, metavar="ID", help="The page behind: only ids below this one.")
def list_(workflow: str | None, status: Sequence[str], tenant: str | None, limit: int, below: int | None) -> None:
    """List runs, newest first."""
    door = _door()
    found = door.list(workflow, status=status, tenant=tenant, limit=limit, below=below)
    if state().json:
        show.as_json(found)
        return
    now = door._app.engine.clock.now()
    several = len({run.tenant for run in found}) > 1
    show.table(
        f"!#run {'tenant ' if several else ''}workflow #version !state !made took waits_for",
        (
            (
                run.id, *((run.tenant,) if several else ()), run.workflow, run.version, run.state, relative(run.created_at, now),
                _took(run.created_at, run.finished_at), _waits(run),
            )
            for run in found
        ),
        empty="No such runs.",
    )  # fmt: skip


def _took(begin: datetime | None, end: datetime | None) -> str:
    return "" if begin is None or end is None else span((end - begin).total_seconds())


def _waits(run: Run) -> str:
    """What a run waits for: ``event paid, approval budget``; of many, the first two and how many more."""
    said = [f"{wait['kind']} {wait['name']}" for wait in run.waits]
    return ", ".join(said[:2]) + (f" and {len(said) - 2} more" if len(said) > 2 else "")


@workflows.command("show")
@click.argument("run", type=ID)
@click.option("--mermaid", is_flag=True, help="Print a Mermaid flowchart of it instead.")
@click.option(
    "--last", "-n", type=click.IntRange(1, 10_000), default=100, show_default=True, metavar="N", help="So many steps."
)
@_tenant
def show_(run: int, mermaid: bool, last: int, tenant: str | None) -> None:
    """Show a run: its steps, children and times."""
    door = _door()
    found, steps, tree = door.get(run, tenant), door.history(run, tenant), door.tree(run, tenant)
    if state().json:
        show.as_json({**asdict(found), "steps": steps, "jobs": tree})
        return
    if mermaid:
        from duly.workflows.mermaid import of_run

        click.echo(of_run(found, steps, tree), nl=False)
        return
    now = door._app.engine.clock.now()
    _facts(found, now)
    if not steps:
        show.say("\nNothing is on record yet." if found.finished_at is None else "\nIt ended without a step.")
        return
    settings = door._app.settings
    if len(steps) >= settings.workflow_steps_warn and found.finished_at is None:
        show.say(
            f"\nThis run has {len(steps):,} steps on record; it may have {settings.workflow_steps_max:,}. Each turn goes through all of them: let the "
            "workflow begin anew with ctx.continue_as_new."
        )
    shown = steps[-last:]
    if len(shown) < len(steps):
        show.say(f"\nThe last {last} of {show.count(len(steps), 'step')}; --last shows more.")
    show.say("\nSteps")
    _print_tree(found, shown, tree)
    show.say("\nTimeline")
    _timeline(shown, now)


def _facts(run: Run, now: datetime) -> None:
    def at(instant: datetime | None) -> str:
        return f"{stamp(instant)} ({relative(instant, now)})" if instant else ""

    show.facts([
        ("run", run.id),
        ("workflow", run.workflow + (f", version {run.version}" if run.version is not None else "")),
        ("state", run.state),
        ("waits for", "\n".join(_wait_words(wait, now) for wait in run.waits[:10])),
        ("tenant", run.tenant if run.tenant != "default" else ""),
        ("parent", run.parent_id),
        ("forked from", run.forked_from),
        ("made", at(run.created_at)),
        ("ended", at(run.finished_at)),
        ("took", _took(run.created_at, run.finished_at)),
        ("input", show.pretty(run.input) if run.input else ""),
        ("output", show.pretty(run.output) if run.state == "succeeded" else ""),
        ("error", _error(run.error) if run.state != "succeeded" else ""),
    ])  # fmt: skip


def _wait_words(wait: dict[str, Any], now: datetime) -> str:
    until = datetime.fromisoformat(wait["until"]) if wait.get("until") else None
    limit = f" until {stamp(until)} ({relative(until, now)})" if until else ""
    return f"{wait['kind']} {wait['name']}{limit}"


def _error(error: Any) -> str:
    if not isinstance(error, dict) or not error:
        return ""
    return ": ".join(str(error[name]) for name in ("type", "message") if error.get(name))


def _came(step: Step, now: datetime) -> str:
    """What came of a step, in words."""
    status = str(step.status).replace("_", " ")
    words = [f"waits until {stamp(step.due_at)} ({relative(step.due_at, now)})" if step.due_at else "waits"] if status == "waiting" else [status]  # fmt: skip
    if step.attempts > 1:
        words.append(f"{step.attempts} attempts")
    said = ", ".join(words)
    return f"{said}: {_error(step.error)}" if step.error else said


def _print_tree(run: Run, steps: Sequence[Step], jobs: Sequence[Branch]) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    from duly.monitoring.redact import visible

    def label(name: str, status: str) -> Text:
        style = show._STYLES.get({"done": "succeeded", "timed_out": "cancelled", "waiting": "running"}.get(status, status), "")  # fmt: skip
        return Text.assemble(visible(name, keep=""), ": ", (status.replace("_", " "), style))

    root = Tree(label(f"run {run.id} {run.workflow}", run.state), guide_style="dim")
    below: dict[int, list[Branch]] = {}
    for job in jobs:
        below.setdefault(job.parent_id, []).append(job)

    def hang(parent: Tree, job: Branch) -> None:
        left = [(parent, job)]
        while left:
            parent, job = left.pop()
            branch = parent.add(label(f"{'run' if job.name else 'job'} {job.id} {job.name or job.task}", job.status))
            inner = below.get(job.id, [])
            if inner and job.depth >= DEEPEST:
                branch.add(f"… and more below: duly workflows show {job.id}" if job.name else "… and more below")
            else:
                left += [(branch, one) for one in reversed(inner)]

    undone = {-step.position: step for step in steps if step.position < 0}
    loose = {job.id: job for job in below.get(run.id, ())}
    for step in steps:
        if step.position < 0:
            continue
        branch = root.add(label(f"{step.position} {step.kind} {step.name}", str(step.status)))
        if step.child_id in loose:
            hang(branch, loose.pop(step.child_id))
        if step.position in undone:
            branch.add(label(f"undo {step.name}", str(undone[step.position].status)))
    for job in loose.values():
        hang(root, job)
    width = None if show.terminal() else 500
    Console(file=sys.stdout, highlight=False, width=width).print(root)


def _timeline(steps: Sequence[Step], now: datetime) -> None:
    show.table(
        "!began !took !#step what came_of_it",
        (
            (
                stamp(step.started_at), span(((step.finished_at or now) - step.started_at).total_seconds()) if step.started_at else "",
                step.position, f"{step.kind} {step.name}", _came(step, now),
            )
            for step in steps
        ),
    )  # fmt: skip


# ---------------------------------------------------------------------- start


@workflows.command()
@click.argument("name", required=False)
@click.argument("input", required=False, metavar="[JSON]")
@click.option("--file", "-f", type=click.Path(exists=True, dir_okay=False), help="A document: the run is of this one.")
@click.option("--key", help="The idempotency key: at most one run per tenant, queue and key.")
@click.option("--run-at", type=INSTANT, metavar="INSTANT", help="Not before this instant: 2026-07-27T09:00:00Z.")
@click.option("--run-in", type=SPAN, metavar="SPAN", help="Not before so long from now: 90, 15min, 1h30m.")
@click.option("--priority", type=click.IntRange(-(2**31), 2**31 - 1), metavar="N", help="Higher runs first.")
@click.option("--tenant", metavar="NAME", help="Whose run it is.")
def start(name: str | None, input: str | None, file: str | None, **options: Any) -> None:
    """Start a run of a workflow.

    With an application (--app) that defines it, the JSON object is checked by its parameters; without one, it travels as it is. JSON may
    be - for stdin. With --file the document says the name, and the run carries the document: any worker of workflows can run it.
    """
    given = {name: value for name, value in options.items() if value is not None}
    app = state().duly()
    if file is not None:
        if input is None:
            name, input = None, name
        document = app.workflows.load(file)
        if name is not None and name != document.name:
            raise click.UsageError(f"{file} is workflow {document.name}, not {name}.")
        started = document.using(**given).start(**_read(input))
    else:
        if name is None:
            raise click.UsageError("Name a workflow, or a --file.")
        started = app.workflows.start(name, _read(input), **given)
    run, created = app.workflows.get(started.job.id), started.created
    if state().json:
        show.as_json({"id": run.id, "created": created, "workflow": run.workflow, "version": run.version, "state": run.state})  # fmt: skip
    elif created:
        show.say(f"Run {run.id} of workflow {run.workflow} waits for a worker.")
    else:
        show.say(f"Key {started.job.key} has run {run.id} already ({run.state}). Nothing was written.")


def _read(text: str | None) -> dict[str, Any]:
    return _object(sys.stdin.read() if text == "-" else text)


# ---------------------------------------------------------------------- tell


@workflows.command()
@click.argument("run", type=ID)
@click.argument("name")
@click.argument("payload", required=False, metavar="[JSON]")
@click.option("--key", help="A signal with the same key is taken once.")
@_tenant
def signal(run: int, name: str, payload: str | None, key: str | None, tenant: str | None) -> None:
    """Tell a run something it waits for, or will. JSON may be - for stdin."""
    taken = _door().signal(run, name, _value(payload), key=key, tenant=tenant, actor=actor())
    if state().json:
        show.as_json({"run": run, "name": name, "taken": taken})
    else:
        show.say(f"Run {run} is told {name}." if taken else f"A signal with key {key} was taken before. Nothing was written.")  # fmt: skip


def _value(text: str | None) -> Any:
    from duly.kernel.payload import read_json

    if text is None:
        return None
    said = sys.stdin.read() if text == "-" else text
    return read_json(said.encode("utf-8", "surrogateescape"), "payload", "A text is written as '\"text\"'.")


@workflows.command()
@click.argument("run", type=ID)
@click.argument("name", required=False)
@click.option("--no", is_flag=True, help="Say no.")
@_reason
@_tenant
def approve(run: int, name: str | None, no: bool, reason: str, tenant: str | None) -> None:
    """Say yes, or no, to a run that asks a person. NAME: which of its questions, if it asks several."""
    _door().approve(run, name, not no, reason=reason, tenant=tenant, actor=actor())
    if state().json:
        show.as_json({"run": run, "approved": not no, "by": actor()})
    else:
        show.say(f"{'Rejected' if no else 'Approved'} by {actor()}; run {run} goes on.")


# ---------------------------------------------------------------------- act


@workflows.command()
@click.argument("run", type=ID)
@click.option(
    "--from", "since", type=STEP, help="From this step on, by its number or name; else from the failure that ended it."
)
@_reason
@_tenant
def replay(run: int, since: int | str | None, reason: str, tenant: str | None) -> None:
    """Have an ended run go on again.

    From a step: that one and all behind it are forgotten and done anew. Without --from only the failure that ended the run is, if nothing
    was done after it; or, where steps were undone, everything from the first of these; otherwise nothing.
    """
    _tell(_door().replay(run, since, reason=reason, tenant=tenant, actor=actor()), "goes on again")


@workflows.command()
@click.argument("run", type=ID)
@click.option("--from", "since", type=STEP, help="It has done what comes before this step; else everything so far.")
@_reason
@_tenant
def fork(run: int, since: int | str | None, reason: str, tenant: str | None) -> None:
    """Make another run with the same beginning.

    It has the same input, and has done what this one had before a step. This one stays as it is.
    """
    _tell(_door().fork(run, since, reason=reason, tenant=tenant, actor=actor()), f"is made, forked from {run}")


@workflows.command()
@click.argument("run", type=ID)
@click.option("--undo", is_flag=True, help="Undo what the run has done first, the last step first (compensate).")
@_reason
@_tenant
def cancel(run: int, undo: bool, reason: str, tenant: str | None) -> None:
    """Cancel a run and everything below it.

    Without --undo nothing is undone, and the steps that stay are printed. With --undo a worker undoes what the run has done; a step that runs
    now is finished first. Then the run ends as cancelled, and its error names what stays.
    """
    door = _door()
    found = door.cancel(run, undo=undo, reason=reason, tenant=tenant, actor=actor())
    if found.state == "cancelled":
        _tell(found, "is cancelled")
    else:
        _tell(found, "is undone by a worker, and then cancelled" if undo else "is asked to stop")
    stays = door.standing(run, tenant)
    if stays and not undo and not state().json:
        more = f" and {len(stays) - 20} more" if len(stays) > 20 else ""
        show.say(f"Done and not undone: {', '.join(stays[:20])}{more}.")


def _tell(run: Run, said: str) -> None:
    show.as_json(run) if state().json else show.say(f"Run {run.id} of workflow {run.workflow} {said}.")


# ---------------------------------------------------------------------- definitions


@workflows.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.option("--mermaid", is_flag=True, help="Print a Mermaid flowchart of each.")
def check(files: Sequence[str], mermaid: bool) -> None:
    """Check documents: workflows written as YAML or JSON.

    Needs no database. With an application (--app), tasks that it does not define are named, too. Ends with 1 when a document is wrong.
    """
    from duly.kernel.source import InvalidDocument
    from duly.workflows.reading import load

    asked = state()
    app = asked.duly() if asked.app or os.environ.get("DULY_APP") else None
    told: list[dict[str, Any]] = []
    wrong = 0
    for file in files:
        try:
            document = load(file)
        except InvalidDocument as error:
            wrong += 1
            told.append({"file": file, "problems": [asdict(one) for one in error.problems]})
            if not asked.json:
                for one in error.problems:
                    complain(str(one))
            continue
        told.append(_checked(file, document, app))
        if not asked.json:
            _say_checked(told[-1], document, mermaid)
    if asked.json:
        show.as_json(told)
    if wrong:
        click.get_current_context().exit(1)


def _checked(file: str, document: Document, app: Duly | None) -> dict[str, Any]:
    from duly.workflows.document import EMAIL_TASK, Email, TaskCall

    steps = list(document.every_step())
    tasks = {EMAIL_TASK if isinstance(s.what, Email) else s.what.task for s in steps if isinstance(s.what, Email | TaskCall)}  # fmt: skip
    unknown = sorted(tasks - set(app.engine.task_names)) if app is not None else []
    return {
        "file": file, "name": document.name, "version": document.version, "steps": len(steps), "input": [one.name for one in document.input],
        "unknown_tasks": unknown, "problems": [],
    }  # fmt: skip


def _say_checked(said: dict[str, Any], document: Document, mermaid: bool) -> None:
    if mermaid:
        from duly.workflows.mermaid import of_document

        click.echo(of_document(document), nl=False)
        return
    given = f", input {', '.join(said['input'])}" if said["input"] else ""
    show.say(f"{said['file']}: workflow {document.name}, version {document.version}, {show.count(said['steps'], 'step')}{given}.")  # fmt: skip
    for task in said["unknown_tasks"]:
        click.echo(f"duly: note: the application defines no task {task!r}.", err=True)


@workflows.command()
def definitions() -> None:
    """List the workflows that the application defines."""
    app = state().duly()
    found = [
        app.workflows.find(name, version) for name, versions in app.workflows.names().items() for version in versions
    ]
    rows: list[dict[str, Any]] = [
        {
            "workflow": one.name, "version": one.version, "written_as": "code" if one.document is None else "document", "queue": one.queue,
            "input": [str(p) for p in one.codec.visible.parameters.values()],
        }
        for one in found
    ]  # fmt: skip
    if state().json:
        show.as_json(rows)
        return
    show.table(
        "!workflow !#version written_as queue input",
        ((r["workflow"], r["version"], r["written_as"], r["queue"], ", ".join(r["input"])) for r in rows),
        empty="The application defines no workflow. Name one with --app.",
    )
