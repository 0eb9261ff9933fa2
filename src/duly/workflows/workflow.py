"""What a workflow is: a function with a name and a version, whose runs are jobs of type ENGINE_RUN."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import orjson

from duly.jobs.codec import Arguments, Codec
from duly.jobs.job import Enqueued
from duly.jobs.task import Options, _options
from duly.kernel.binding import signature_of
from duly.kernel.errors import InvalidArgument, InvalidPayload
from duly.kernel.payload import check_name, check_whole
from duly.workflows import ENGINE_RUN

if TYPE_CHECKING:
    from duly.workflows.door import Workflows

#: The queue of runs.
QUEUE = "workflows"


@dataclass(frozen=True)
class Workflow:
    """A durable function. ``start`` makes a run of it.

    A run goes on with the version that it began with. Keep the old version's function for as long as runs of it live, or guard the
    change with ``ctx.patched``.
    """

    name: str
    fn: Callable[..., Any]
    version: int = 1
    queue: str = QUEUE
    max_attempts: int | None = None
    priority: int = 0
    #: Of one that is written as a document (YAML): the document. A run keeps the one that it began with.
    document: Mapping[str, Any] | None = None
    door: Workflows | None = field(default=None, repr=False, compare=False)
    codec: Codec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name, "workflow name")
        check_whole(self.version, "version", 1, 2**31 - 1)
        check_name(self.queue, "queue")
        if inspect.isasyncgenfunction(self.fn):
            raise InvalidArgument(
                f"workflow {self.name}",
                "is an asynchronous generator, which nobody would go through.",
                "Return a list instead of yielding.",
            )
        if not inspect.iscoroutinefunction(self.fn):
            raise InvalidArgument(f"workflow {self.name}", "is not an async function.", "Define it with `async def`.")
        parameters = list(signature_of(self.fn).parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise InvalidArgument(
                f"workflow {self.name}", "takes no context.", "Let its first parameter be `ctx: WorkflowContext`."
            )
        if not _takes_context(self.fn, parameters[0].name):
            raise InvalidArgument(
                f"workflow {self.name}",
                f"takes no context: its first parameter, {parameters[0].name}, is annotated as something else.",
                "Let its first parameter be `ctx: WorkflowContext`.",
            )
        object.__setattr__(self, "codec", Codec(self.fn, self.name, {parameters[0].name: "ctx"}, "workflow"))
        for attribute in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(self.fn, attribute):
                object.__setattr__(self, attribute, getattr(self.fn, attribute))

    def decode(self, input: Any) -> Arguments:
        """A run's input as arguments. Raises InvalidArgument where it no longer fits the function."""
        try:
            text = orjson.dumps(input).decode()
        except TypeError as error:  # of a run that was made before such numbers were refused
            raise InvalidPayload("input", f"cannot be carried: {error}.", "Send long integers as text.") from None
        return self.codec.decode(text)

    def start(self, *args: Any, **kwargs: Any) -> Enqueued:
        """Make a run with these arguments, typed as the function's. Returns (job, created); the job is the run.

        Raises InvalidArgument or InvalidPayload naming the parameter.
        """
        return self.using().start(*args, **kwargs)

    async def astart(self, *args: Any, **kwargs: Any) -> Enqueued:
        """As ``start``, for callers on an event loop."""
        return await self.using().astart(*args, **kwargs)

    def using(self, **options: Any) -> WorkflowCall:
        """This workflow with options for one run: those of ``Task.using`` (key, tenant, run_at, run_in, priority, queue, session …)."""
        return WorkflowCall(self, _options(options))


@dataclass(frozen=True, slots=True)
class WorkflowCall:
    """A workflow and the options of one run."""

    task: Workflow
    options: Options

    @property
    def name(self) -> str:
        return self.task.name

    def using(self, **options: Any) -> WorkflowCall:
        """The same with more options, or others."""
        return WorkflowCall(self.task, replace(self.options, **options).checked())

    def start(self, *args: Any, **kwargs: Any) -> Enqueued:
        """Make a run. With a session it exists once that commits; without, when this returns."""
        return self._door().begin(self.task, self.task.codec.bind(args, kwargs), self.options)

    async def astart(self, *args: Any, **kwargs: Any) -> Enqueued:
        """As ``start``, for callers on an event loop and for asynchronous sessions."""
        return await self._door().abegin(self.task, self.task.codec.bind(args, kwargs), self.options)

    def _door(self) -> Workflows:
        if self.task.door is None:
            raise InvalidArgument(
                f"workflow {self.task.name}", "belongs to no application.", "Define it with @app.workflow."
            )
        return self.task.door


def _takes_context(fn: Callable[..., Any], parameter: str) -> bool:
    """Can a parameter be a WorkflowContext? Without an annotation, or with one that says little (a protocol, a type variable), it can."""
    try:
        kind = get_type_hints(fn).get(parameter, Any)
    except (NameError, TypeError):  # the codec says so of an annotation that cannot be resolved
        return True
    return _can_be_context(kind)


def _can_be_context(kind: Any) -> bool:
    from duly.workflows.context import WorkflowContext

    if get_origin(kind) in (Union, UnionType):
        return any(map(_can_be_context, get_args(kind)))
    kind = get_origin(kind) or kind
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return issubclass(WorkflowContext, kind) or issubclass(kind, WorkflowContext)


def run_input(workflow: str, encoded: str, version: int | None = None) -> str:
    """The input of the job of a run, as JSON text. ``encoded``: the workflow's own input, JSON text."""
    known: dict[str, Any] = {"workflow": workflow, "input": orjson.Fragment(encoded)}
    if version is not None:
        known["version"] = version
    return orjson.dumps(known).decode()


__all__ = ["ENGINE_RUN", "QUEUE", "Workflow", "WorkflowCall", "run_input"]
