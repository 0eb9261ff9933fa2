"""A workflow as a document: its nouns. Reading one is ``reading.py``'s, running one ``interpret.py``'s.

::

    name: welcome                     version: 1            description: for people
    input:       {name: type}, or {name: {type, default, one_of, description}}
    on_failure:  stop | continue      output: what a run answers with
    steps:       - name, on_failure, and one of
        email:   the fields of EMAIL_SEND
        wait:    {for} | {until} | {event, timeout, timed_out}
        task:    {name, input}
        approve: {timeout, approved, rejected, timed_out}
        branch:  {when, then, else}

Source: "static workflows" of the specification's ``workflow_steps`` (email, wait, task, approve, branch).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from typing import Any, TypeAlias

from duly.workflows.expressions import Condition

#: The task of an email step.
EMAIL_TASK = "EMAIL_SEND"
#: What an input can be, in a document's words.
TYPES = ("string", "integer", "number", "boolean", "date", "instant", "list", "mapping", "any")
STOP, CONTINUE = "stop", "continue"
#: A text with placeholders, filled in when the step is reached.
Later: TypeAlias = str
NONE: Any = object()


@dataclass(frozen=True, slots=True)
class Input:
    """Something that a run is given when it starts. ``default``: NONE where it has to be given."""

    name: str
    type: str
    default: Any = NONE
    one_of: tuple[Any, ...] = ()
    description: str = ""


@dataclass(frozen=True, slots=True)
class Email:
    """A child of the task EMAIL_SEND, with these fields."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sleep:
    """A wait for a span, or until an instant, or until a clock in ``tz`` shows a local time: the next one where it has no date."""

    span: timedelta | Later | None = None
    until: datetime | Later | None = None
    local: datetime | time | Later | None = None
    tz: str | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """A wait for a signal. ``timed_out``: the steps that follow where it did not come; None where that is a failure."""

    event: str
    timeout: timedelta | Later | None = None
    timed_out: tuple[DocumentStep, ...] | None = None


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A child of a task, by its name."""

    task: str
    input: Any


@dataclass(frozen=True, slots=True)
class Approve:
    """A question to a person, and what follows. A no, or no answer in time, is a failure where nothing is said to follow."""

    timeout: timedelta | Later | None = None
    approved: tuple[DocumentStep, ...] = ()
    rejected: tuple[DocumentStep, ...] | None = None
    timed_out: tuple[DocumentStep, ...] | None = None


@dataclass(frozen=True, slots=True)
class Fork:
    """One of two ways on."""

    when: Condition
    then: tuple[DocumentStep, ...]
    otherwise: tuple[DocumentStep, ...] = ()


What: TypeAlias = Email | Sleep | Await | TaskCall | Approve | Fork


@dataclass(frozen=True, slots=True)
class DocumentStep:
    """A step as it is written. ``kind``: email, wait, task, approve or branch."""

    name: str
    kind: str
    what: What
    on_failure: str = STOP

    def arms(self) -> Iterator[tuple[str, tuple[DocumentStep, ...]]]:
        """(name, steps) of what follows in one case or the other; an arm that is left out is left out here."""
        what = self.what
        named: tuple[tuple[str, tuple[DocumentStep, ...] | None], ...] = ()
        if isinstance(what, Fork):
            named = (("then", what.then), ("else", what.otherwise))
        elif isinstance(what, Approve):
            named = (("approved", what.approved), ("rejected", what.rejected), ("timed_out", what.timed_out))
        elif isinstance(what, Await):
            named = (("timed_out", what.timed_out),)
        for name, steps in named:
            if steps is not None:
                yield name, steps


@dataclass(frozen=True, slots=True)
class Document:
    """A workflow as it is written, checked. ``mapping``: as it was read; a run keeps that."""

    name: str
    version: int
    steps: tuple[DocumentStep, ...]
    input: tuple[Input, ...] = ()
    description: str = ""
    output: Any = None
    mapping: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def every_step(self) -> Iterator[DocumentStep]:
        """All steps, also those within arms, in their order."""
        yield from _every(self.steps)


def _every(steps: tuple[DocumentStep, ...]) -> Iterator[DocumentStep]:
    for step in steps:
        yield step
        for _, inner in step.arms():
            yield from _every(inner)
