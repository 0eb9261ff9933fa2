"""The tools that sessions may call: functions that are registered here, and Duly tasks by their names.

A function with a parameter that takes a session has its effects in our database exactly once: effect and record are one commit. Any
other function is called at most once for each call of a model; where a crash came in between, the model is told that nobody knows, unless
the function may be called again (``repeat``). A task becomes a job, under a key of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from duly.automations.host import Host
from duly.automations.protocol import FINISH
from duly.automations.providers.base import ToolSpec
from duly.jobs.calling import session_parameter
from duly.jobs.codec import Codec
from duly.jobs.task import check_callable, injected_parameters
from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument
from duly.kernel.names import nearest
from duly.kernel.payload import check_name, read_seconds
from duly.kernel.rooms import check_task, is_of_a_room

R = TypeVar("R")
#: The longest description that a model is told, in characters.
LONGEST = 4_000
#: The arguments of a task of which only the name is known here.
ANYTHING: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}


class ToolError(Exception):
    """Raise it in a tool to say what the AI is told, in these words and no others: ``raise ToolError("There is no order 17.")``."""


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that sessions may call."""

    name: str
    fn: Callable[..., Any]
    codec: Codec
    spec: ToolSpec
    #: After a crash in its middle it is called again; else nobody knows what it did, and the model is told so.
    repeat: bool = False
    #: Seconds; None for no limit of its own.
    timeout: float | None = None
    #: The parameter that takes a session, and of which kind.
    session: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class TaskTool:
    """A Duly task that sessions may call; ``is_known``: it is defined in this application."""

    name: str
    spec: ToolSpec
    is_known: bool = True


class Toolbox:
    """The tools of an application."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._functions: dict[str, FunctionTool] = {}
        #: Tasks that are defined elsewhere.
        self._elsewhere: dict[str, TaskTool] = {}

    # ------------------------------------------------------------------ registering

    def tool(self, fn: Callable[..., R] | None = None, /, **options: Any) -> Any:
        """``@tools.tool`` or ``@tools.tool(repeat=True)``: let sessions call a function, which stays the function. See ``add``."""
        if fn is not None:
            self.add(fn)
            return fn

        def register(inner: Callable[..., R]) -> Callable[..., R]:
            self.add(inner, **options)
            return inner

        return register

    def add(
        self, fn: Callable[..., Any], *, name: str | None = None, description: str | None = None, repeat: bool = False, timeout: Duration | None = None
    ) -> FunctionTool:  # fmt: skip
        """Let sessions call a function, plain or async. The model is told its name, its docstring (or ``description``) and its parameters.

        Arguments are checked by the annotations before the call. ``repeat``: it may be called again when a crash came in its middle, because it
        only reads or because calling it twice is calling it once. ``timeout``: seconds; a plain function goes on behind it, unheard. A parameter
        annotated with a Session (of a plain function) or AsyncSession (of an async one) of SQLAlchemy gets one, whose commit also records the call.

        Raises InvalidArgument.
        """
        called = name if name is not None else getattr(fn, "__name__", "")
        check_task(check_name(called, "name"), "name")
        if called == FINISH:
            raise InvalidArgument("name", f"is {FINISH}, by which a model says that it is done.", "Choose another.")
        if called in self._functions and self._functions[called].fn is not fn:
            raise InvalidArgument("name", f"is {called!r}, and there is a tool of that name.", "Choose another.")
        injected = injected_parameters(fn)
        others = [parameter for parameter, kind in injected.items() if not kind.endswith("session")]
        if others:
            raise InvalidArgument(f"tool {called}", f"takes {others[0]}, and a tool is no job.", "Make it a task.")
        if inspect.isgeneratorfunction(inspect.unwrap(fn)) or inspect.isgeneratorfunction(type(fn).__call__):
            raise InvalidArgument(
                f"tool {called}", "is a generator, which nobody would go through.", "Return a list instead of yielding."
            )
        check_callable(fn, f"tool {called}", injected)
        session = session_parameter(fn)
        if timeout is not None:
            timeout = read_seconds(timeout, "timeout", 0, above=True)
            if session is not None and session[1] == "session":
                raise InvalidArgument(
                    "timeout", "cannot be held for a plain function with a session.", "Make it async, or leave it out."
                )
        codec = Codec(fn, called, injected, "tool")
        text = description if description is not None else inspect.getdoc(fn) or ""
        try:
            spec = ToolSpec(called, text[:LONGEST], schema(codec))
        except (PydanticInvalidForJsonSchema, PydanticUserError) as error:
            problem = f"has a parameter that no model can be told of: {str(error).splitlines()[0]}"
            raise InvalidArgument(f"tool {called}", problem, "Use plain types.") from None
        made = self._functions[called] = FunctionTool(called, fn, codec, spec, repeat, timeout, session)
        return made

    def add_task(self, name: str, description: str = "", parameters: Mapping[str, Any] | None = None) -> TaskTool:
        """Let sessions call a task that is defined elsewhere. ``parameters``: a JSON schema of its arguments; without it, any object."""
        check_task(check_name(name, "name"), "name")
        if name == FINISH:
            raise InvalidArgument("name", f"is {name}, which is no tool.", "Choose another.")
        spec = ToolSpec(name, description[:LONGEST], dict(ANYTHING if parameters is None else parameters))
        made = self._elsewhere[name] = TaskTool(name, spec, is_known=False)
        return made

    # ------------------------------------------------------------------ looking

    def find(self, name: str) -> FunctionTool | TaskTool | None:
        """A tool by its name: a function, else a task. None where there is none, and for a task whose jobs a room makes itself."""
        if name == FINISH or is_of_a_room(name):
            return None
        function = self._functions.get(name)
        if function is not None:
            return function
        task = self._app.engine.tasks.get(name)
        if task is None:
            return self._elsewhere.get(name)
        try:
            parameters: Mapping[str, Any] = schema(task.codec)
        except (PydanticInvalidForJsonSchema, PydanticUserError):
            parameters = ANYTHING
        return TaskTool(name, ToolSpec(name, (inspect.getdoc(task.fn) or "")[:LONGEST], parameters))

    def names(self) -> list[str]:
        """The functions that are registered, and the tasks of the application and those told of with ``add_task``."""
        known = {*self._functions, *self._app.engine.tasks, *self._elsewhere}
        return sorted(name for name in known if not is_of_a_room(name))

    def functions(self) -> list[str]:
        """The functions that are registered."""
        return sorted(self._functions)

    def specs(self, allowed: Iterable[str]) -> tuple[ToolSpec, ...]:
        """What a model is told of the tools that it may call, in that order. Names of none are left out."""
        found = (self.find(name) for name in dict.fromkeys(allowed))
        return tuple(tool.spec for tool in found if tool is not None)

    def problems(self, allowed: Sequence[str]) -> list[str]:
        """What is wrong with an allow-list, a sentence for each name. It is no error: a tool may be defined elsewhere, or later, and a list may be
        older than the rule that refuses the tasks of rooms."""
        return [
            f"{name} is a task whose jobs a room of Duly makes itself: a call of it is refused"
            if is_of_a_room(name)
            else f"{name} is neither a tool nor a task of this application{self._meant(name)}: a call of it is refused where nobody defines it"
            for name in dict.fromkeys(allowed)
            if self.find(name) is None
        ]

    def _meant(self, name: str) -> str:
        near = nearest(name, self.names())
        return f" (did you mean {near}?)" if near else ""


def schema(codec: Codec) -> dict[str, Any]:
    """The JSON schema of a function's arguments, without the titles that pydantic makes up, and with the defaults of the function itself."""
    made: dict[str, Any] = _untitled(codec.model.model_json_schema(by_alias=True))
    properties = made.setdefault("properties", {})
    for name, parameter in codec.visible.parameters.items():
        if "default" in properties.get(name, {}):  # of all that may be left out
            del properties[name]["default"]
            if isinstance(parameter.default, str | int | float):
                properties[name]["default"] = parameter.default
    return made


def _untitled(part: Any, named: bool = False) -> Any:
    """``named``: its keys are names that somebody chose, not words of JSON schema."""
    if isinstance(part, list):
        return [_untitled(one) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _untitled(value, not named and key in ("properties", "$defs"))
        for key, value in part.items()
        if named or key != "title" or not isinstance(value, str)
    }
