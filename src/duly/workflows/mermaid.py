"""Runs and documents as Mermaid flowcharts. Pure: histories and documents in, text out, which any page that knows Mermaid draws."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from duly.kernel.recurrence.words import span_words
from duly.workflows.document import CONTINUE, Approve, Await, Document, DocumentStep, Email, Fork, Sleep, TaskCall
from duly.workflows.expressions import in_words
from duly.workflows.step import Kind, Run, Status, Step

if TYPE_CHECKING:
    from duly.workflows.door import Branch

#: More steps or jobs than these are drawn as "… more": nobody reads such a chart, and Mermaid draws no more than 500 edges.
MOST = 150
#: Characters of a label's line.
_WIDE = 60

#: Kind of a step → what its node is drawn between.
_SHAPES = {
    "step": ("[", "]"), "task": ("[[", "]]"), "start": ("[[", "]]"), "email": ("[[", "]]"), "sleep": ("([", "])"), "wait": ("([", "])"), "event": (">", "]"),
    "approval": ("{{", "}}"), "approve": ("{{", "}}"), "branch": ("{", "}"), "now": ("(", ")"), "patch": ("(", ")"), "undo": ("[/", "/]"),
}  # fmt: skip
_CLASSES = (
    "classDef done fill:#e6f4ea,stroke:#34a853,color:#111",
    "classDef failed fill:#fce8e6,stroke:#d93025,color:#111",
    "classDef waiting fill:#fef7e0,stroke:#f9ab00,color:#111,stroke-dasharray:4 3",
    "classDef timed_out fill:#f1f3f4,stroke:#5f6368,color:#111",
)
_JOB_CLASS = {"succeeded": "done", "failed": "failed", "cancelled": "timed_out", "queued": "waiting", "running": "waiting"}  # fmt: skip
_SIGNS = {"&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", "`": "#96;"}


def _line(text: str) -> str:
    """A line of a label, in which nothing is Mermaid's or HTML's."""
    flat = re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in text)).strip()
    short = flat if len(flat) <= _WIDE else flat[: _WIDE - 1] + "…"
    return "".join(_SIGNS.get(c, c) for c in short)


def _node(ident: str, kind: str, lines: Iterable[str], css: str = "") -> str:
    opening, closing = _SHAPES[kind]
    label = "<br/>".join(_line(one) for one in lines if one)
    return f'    {ident}{opening}"{label}"{closing}' + (f":::{css}" if css else "")


# ---------------------------------------------------------------------- runs


def of_run(run: Run, steps: Sequence[Step], tree: Sequence[Branch] = ()) -> str:
    """A flowchart of what a run has on record (as ``app.workflows.history`` gives it) and of the jobs below it (``.tree``).

    What was asked for at once stands side by side; children hang on dotted lines; what was undone comes last.
    """
    version = f", version {run.version}" if run.version is not None else ""
    out = ["flowchart TD", f'    start(["{_line(run.workflow + version)}<br/>{_line(f"run {run.id}, {run.state}")}"])']
    done = [step for step in steps if step.position > 0]
    undone = [step for step in steps if step.position < 0]
    before, drawn = ["start"], set[str]()
    for group in _cut(_groups(done)):
        names = [f"n{step.position}" for step in group] if not isinstance(group, int) else ["more"]
        if isinstance(group, int):
            out.append(f'    more["… {group:,} more"]')
        else:
            out += [_step(name, step) for name, step in zip(names, group, strict=True)]
            drawn.update(names)
        if len(before) > 1 and len(names) > 1:
            join = f"before_{names[0]}"
            out.append(f"    {join}(( ))")
            out += [f"    {one} --> {join}" for one in before]
            before = [join]
        out += [f"    {one} --> {name}" for one in before for name in names]
        before = names
    for step in sorted(undone[:MOST], key=lambda s: s.position):
        name = f"undo{-step.position}"
        out.append(_step(name, step))
        if f"n{-step.position}" in drawn:
            out.append(f"    {name} -.->|undoes| n{-step.position}")
    if run.finished_at is not None:
        css = _JOB_CLASS.get(run.state, "")
        out.append(f'    stop(["{_line(run.state)}"])' + (f":::{css}" if css else ""))
        out += [f"    {one} --> stop" for one in before]
    out += _children(run, done, drawn, tree)
    return "\n".join([*out, *(f"    {one}" for one in _CLASSES)]) + "\n"


def _step(name: str, step: Step) -> str:
    words = [step.kind.value, (step.status or Status.WAITING).value.replace("_", " ")]
    if step.attempts > 1:
        words.append(f"{step.attempts} attempts")
    lines = [f"{abs(step.position)} · {step.name}", ", ".join(words)]
    if step.status is Status.WAITING and step.due_at is not None:
        lines.append(f"until {step.due_at:%Y-%m-%d %H:%M:%S}Z")
    elif step.started_at is not None and step.finished_at is not None and step.kind not in (Kind.NOW, Kind.PATCH):
        lines.append(_took(step.finished_at - step.started_at))
    return _node(name, step.kind.value, lines, (step.status or Status.WAITING).value)


def _took(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{max(seconds, 0) * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else span_words(timedelta(seconds=round(seconds)))  # fmt: skip


def _groups(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that were asked for at once, together."""
    groups: list[list[Step]] = []
    for step in steps:
        last = groups[-1] if groups else None
        if last is not None and _beside(last[0], last[-1], step):
            last.append(step)
        else:
            groups.append([step])
    return groups


def _beside(first: Step, last: Step, step: Step) -> bool:
    """Was a step begun before the one ahead of it had ended, and not because nobody waits for that one?"""
    if step.started_at is None or last.started_at is None:
        return False
    if last.finished_at is not None and last.finished_at <= step.started_at:
        return False
    return step.started_at == first.started_at or (last.finished_at is not None and Kind.STEP in (step.kind, last.kind))


def _cut(groups: Sequence[list[Step]]) -> list[list[Step] | int]:
    """At most MOST steps: those at the beginning and at the end, and how many were left out between them."""
    count = sum(len(group) for group in groups)
    if count <= MOST:
        return list(groups)
    steps = [step for group in groups for step in group]
    half = MOST // 2
    return [*_groups(steps[:half]), count - 2 * half, *_groups(steps[-half:])]


def _children(run: Run, steps: Sequence[Step], drawn: set[str], tree: Sequence[Branch]) -> list[str]:
    out = []
    of_step = {step.child_id: f"n{step.position}" for step in steps if step.child_id is not None}
    known = {run.id: "start"}
    for branch in tree[:MOST]:
        name = f"job{branch.id}"
        above = of_step.get(branch.id, known.get(branch.parent_id, "start")) if branch.depth == 1 else known.get(branch.parent_id)  # fmt: skip
        if above is None or (above.startswith("n") and above not in drawn):
            continue
        known[branch.id] = name
        css = _JOB_CLASS.get(branch.status, "")
        out.append(_node(name, "task", [f"job {branch.id}: {branch.name or branch.task}", branch.status], css))
        out.append(f"    {above} -.-> {name}")
    if len(tree) > MOST:
        out.append(f'    jobs["… {len(tree) - MOST:,} more jobs"]')
        out.append("    start -.-> jobs")
    return out


# ---------------------------------------------------------------------- documents


def of_document(document: Document) -> str:
    """A flowchart of a document: its steps, and which way follows when."""
    return _Chart(document).text()


class _Chart:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.out = ["flowchart TD"]
        self.names = {step.name: f"s{n}" for n, step in enumerate(document.every_step(), 1)}
        self.fails = False

    def text(self) -> str:
        d = self.document
        given = f"input: {', '.join(one.name for one in d.input)}" if d.input else ""
        label = "<br/>".join(_line(one) for one in (f"{d.name}, version {d.version}", given) if one)
        self.out.append(f'    start(["{label}"])')
        for name, words in self.steps(d.steps, [("start", "")]):
            self.edge(name, words, "stop")
        self.out.append('    stop(["succeeded"])')
        if self.fails:
            self.out.append('    fails(["failed"])')
        return "\n".join(self.out) + "\n"

    def edge(self, before: str, words: str, name: str) -> None:
        self.out.append(f'    {before} -->|"{_line(words)}"| {name}' if words else f"    {before} --> {name}")

    def steps(self, steps: Sequence[DocumentStep], before: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Draw steps behind some ends. Returns the ends: (node, what its edge says)."""
        for step in steps:
            name = self.names[step.name]
            self.out.append(_node(name, step.kind, [step.name, *_words(step)]))
            for one, words in before:
                self.edge(one, words, name)
            before = self.ends(step, name)
        return before

    def ends(self, step: DocumentStep, name: str) -> list[tuple[str, str]]:
        what = step.what
        ways: list[tuple[str, tuple[DocumentStep, ...] | None]]
        if isinstance(what, Fork):
            ways = [("yes", what.then), ("no", what.otherwise)]
        elif isinstance(what, Approve):
            ways = [("yes", what.approved), ("no", what.rejected)]
            ways += [("no answer", what.timed_out)] if what.timeout is not None else []
        elif isinstance(what, Await) and what.timeout is not None:
            ways = [("", ()), ("did not come", what.timed_out)]
        else:
            return [(name, "")]
        ends: list[tuple[str, str]] = []
        for words, steps in ways:
            if steps is None and step.on_failure != CONTINUE:
                self.fails = True
                self.edge(name, words, "fails")
            else:
                ends += self.steps(steps or (), [(name, words)])
        return ends


def _words(step: DocumentStep) -> list[str]:
    """What a step does, in a few words."""
    what = step.what
    if isinstance(what, Email):
        return ["email", str(what.fields.get("subject") or what.fields.get("template") or "")]
    if isinstance(what, TaskCall):
        return [f"task {what.task}"]
    if isinstance(what, Await):
        return [f"wait for {what.event}", _within(what.timeout)]
    if isinstance(what, Approve):
        return ["ask a person", _within(what.timeout)]
    if isinstance(what, Fork):
        return [in_words(what.when)]
    assert isinstance(what, Sleep)
    if what.span is not None:
        return [f"wait {_plain(what.span)}"]
    return [f"wait until {_plain(what.until if what.until is not None else what.local)}{f' {what.tz}' if what.tz else ''}"]  # fmt: skip


def _within(timeout: Any) -> str:
    return "" if timeout is None else f"for at most {_plain(timeout)}"


def _plain(value: Any) -> str:
    if isinstance(value, timedelta):
        return span_words(value)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}" + ("Z" if value.tzinfo is not None else "")
    if isinstance(value, time):
        return f"{value:%H:%M}"
    return str(value).replace("{{ ", "").replace(" }}", "")
