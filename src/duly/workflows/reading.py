"""Documents, read and checked: everything that is wrong with one is found before anything is written, each with its place and a remedy."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import AwareDatetime, TypeAdapter, ValidationError

from duly.jobs.task import FARTHEST
from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import zone
from duly.kernel.payload import check_name, check_value, check_whole, read_duration
from duly.kernel.recurrence.reading import quoted, read_instant, read_local, read_time
from duly.kernel.source import InvalidDocument, Problem, Reading, Source, Steps, kind_words, path_of, read
from duly.workflows.document import (
    CONTINUE,
    NONE,
    STOP,
    TYPES,
    Approve,
    Await,
    Document,
    DocumentStep,
    Email,
    Fork,
    Input,
    Sleep,
    TaskCall,
    What,
)
from duly.workflows.expressions import OPERATORS, AllOf, AnyOf, Condition, Not, Test, as_written, paths_in

#: Steps of a document in all.
MOST_STEPS = 1000
_NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
_KINDS = ("email", "wait", "task", "approve", "branch")
_MAIL = (
    "to", "cc", "bcc", "subject", "text", "html", "reply_to", "headers", "attachments", "from", "template", "data",
)  # fmt: skip
#: What can be asked of a step that is over.
STEP_FACTS = ("answer", "status", "error")
#: What can be asked of the run itself.
RUN_FACTS = ("id", "tenant", "workflow", "version")
_MISSING: Any = object()


def load(document: str | Path | Mapping[str, Any]) -> Document:
    """A document from a file's name or a mapping. Raises InvalidDocument with all that is wrong with it, InvalidArgument for the file."""
    return checked(read(document))


def checked(source: Source) -> Document:
    """A document from what was read. Raises InvalidDocument."""
    try:
        check_value(source.value, "")
    except InvalidArgument as error:
        problem = Problem(error.field, error.problem, error.remedy, file=source.file)
        raise InvalidDocument(source.file or "the document", (problem,)) from None
    reading = _Reading(replace(source, value=orjson.loads(orjson.dumps(source.value))))
    document = reading.document()
    reading.refuse_if_wrong()
    assert document is not None
    return document


def kind_of(field: Input) -> Any:
    """The Python type that checks an input."""
    plain: dict[str, Any] = {
        "string": str, "integer": int, "number": float, "boolean": bool, "date": date, "instant": AwareDatetime, "list": list[Any],
        "mapping": dict[str, Any], "any": Any,
    }  # fmt: skip
    if field.one_of:
        kind: Any = Literal[field.one_of]
    else:
        kind = plain[field.type]
    return kind | None if field.default is None and kind is not Any else kind


class _Reading(Reading):
    """One look at a workflow's document."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.inputs: frozenset[str] = frozenset()
        #: Of all steps: name → where it stands. And those that are over where we are.
        self.names: dict[str, Steps] = {}
        self.over: set[str] = set()

    # ------------------------------------------------------------------ pieces

    def name(self, value: Any, at: Steps) -> str | None:
        text = self.text(value, at)
        if text is not None and not _NAME.fullmatch(text):
            self.wrong(at, f"is {quoted(text)}.", "Write a letter, then letters, digits, _ or -.")
            return None
        return text

    def placeholders(self, value: Any, at: Steps) -> Any:
        """Note what is wrong with the placeholders in a value. Returns it."""
        if isinstance(value, Mapping):
            for name, inner in value.items():
                self.placeholders(inner, (*at, name))
        elif isinstance(value, list):
            for n, inner in enumerate(value):
                self.placeholders(inner, (*at, n))
        elif isinstance(value, str):
            try:
                paths = paths_in(value)
            except ValueError as error:
                remedy = "A placeholder is a dotted path such as {{ input.name }} or {{ steps.charge.answer }}."
                self.wrong(at, str(error), remedy)
                return value
            for path in paths:
                self.path(path, at)
        return value

    def path(self, path: str, at: Steps) -> None:
        """Note where a path can lead nowhere."""
        root, *rest = path.split(".")
        where = f"has {{{{ {path} }}}}, and"
        if root == "input":
            if not rest or rest[0] in self.inputs:
                return
            near = get_close_matches(rest[0], self.inputs, 1)
            remedy = f"Did you mean input.{near[0]}?" if near else f"Declare it: `input: {{{rest[0]}: string}}`."
            self.wrong(at, f"{where} {rest[0]} is no input.", remedy)
        elif root == "run":
            if len(rest) != 1 or rest[0] not in RUN_FACTS:
                self.wrong(at, f"{where} that is nothing of a run.", f"Known are: {', '.join(f'run.{n}' for n in RUN_FACTS)}.")  # fmt: skip
        elif root == "steps" and rest:
            self.step_path(rest, where, at)
        else:
            self.wrong(at, f"{where} {root} is not known.", "A path begins with input, steps.NAME or run.")

    def step_path(self, rest: list[str], where: str, at: Steps) -> None:
        name = rest[0]
        if name not in self.names:
            near = get_close_matches(name, self.names, 1)
            remedy = f"Did you mean steps.{near[0]}?" if near else f"The steps are: {', '.join(self.names) or 'none'}."
            self.wrong(at, f"{where} no step is called {name}.", remedy)
        elif name not in self.over:
            self.wrong(at, f"{where} step {name} is not over there.", "Ask for a step that stands before, and in no other arm.")  # fmt: skip
        elif len(rest) < 2 or rest[1] not in STEP_FACTS:
            self.wrong(at, f"{where} that is nothing of a step.", f"Known are: {', '.join(f'steps.{name}.{f}' for f in STEP_FACTS)}.")  # fmt: skip

    def duration(self, value: Any, at: Steps) -> Any:
        """A timedelta, or a text that is filled in later."""
        if isinstance(value, str) and "{{" in value:
            return self.placeholders(value, at)
        found = self.argument(lambda: read_duration(value, "duration"), at)
        if found is not None and not 0 <= found.total_seconds() <= FARTHEST:
            self.wrong(at, f"is {quoted(value)}.", "Write a duration from 0 to a hundred years.")
            return None
        return found

    # ------------------------------------------------------------------ the document

    def document(self) -> Document | None:
        known = ("name", "version", "description", "input", "on_failure", "steps", "output")
        value = self.mapping(self.source.value, (), known, ("name", "steps"))
        if value is None:
            return None
        name = self.argument(lambda: check_name(value["name"], "name"), ("name",)) if "name" in value else None
        version = self.argument(lambda: check_whole(value.get("version", 1), "version"), ("version",))
        description = self.text(value.get("description", ""), ("description",))
        inputs = self.read_inputs(value.get("input"))
        self.inputs = frozenset(one.name for one in inputs)
        on_failure = self.on_failure(value, (), STOP)
        self.note_names(value.get("steps"), ("steps",))
        steps = self.steps(value.get("steps"), ("steps",), on_failure) if value.get("steps") is not None else ()
        if steps == () and isinstance(value.get("steps"), list):
            self.wrong(("steps",), "is empty.", "Write a step.")
        output = self.placeholders(value.get("output"), ("output",))
        if self.problems or name is None or version is None or steps is None:
            return None
        return Document(name, version, steps, inputs, description or "", output, dict(value))

    def on_failure(self, value: Mapping[str, Any], at: Steps, otherwise: str) -> str:
        said = value.get("on_failure", otherwise)
        if said not in (STOP, CONTINUE):
            self.wrong((*at, "on_failure"), f"is {quoted(said)}.", f"Write {STOP} or {CONTINUE}.")
            return otherwise
        return str(said)

    def read_inputs(self, value: Any) -> tuple[Input, ...]:
        if value is None:
            return ()
        if not isinstance(value, Mapping):
            self.wrong(("input",), f"is {kind_words(value)}.", "Write a mapping of names to types.")
            return ()
        found = (self.read_input(name, inner, ("input", name)) for name, inner in value.items())
        return tuple(one for one in found if one is not None)

    def read_input(self, name: str, value: Any, at: Steps) -> Input | None:
        if not _NAME.fullmatch(name) or "-" in name or keyword.iskeyword(name):
            self.wrong(at, "cannot be the name of an input.", "Write a letter, then letters, digits or _.", key=True)
        if isinstance(value, str):
            value = {"type": value}
        said = self.mapping(value, at, ("type", "default", "one_of", "description"))
        if said is None:
            return None
        inner = at if "type" not in said or self.source.places.get((*at, "type")) is None else (*at, "type")
        kind = said.get("type", "any")
        if kind not in TYPES:
            self.wrong(inner, f"is {quoted(kind)}.", f"Write one of {', '.join(TYPES)}.")
            return None
        one_of = said.get("one_of", [])
        if not isinstance(one_of, list) or any(not isinstance(one, str | int | bool) for one in one_of):
            self.wrong((*at, "one_of"), "is no list of texts or whole numbers.", "Write what the input may be, as a list.")  # fmt: skip
            return None
        field = Input(name, kind, NONE, tuple(one_of), self.text(said.get("description", ""), (*at, "description")) or "")  # fmt: skip
        if "default" in said:
            field = replace(field, default=said["default"])
            try:
                TypeAdapter(kind_of(field)).validate_python(said["default"])
            except ValidationError as error:
                problem = error.errors(include_url=False, include_input=False)[0]["msg"]
                self.wrong((*at, "default"), f"does not fit: {problem[0].lower()}{problem[1:]}.", f"Give one of type {kind}, or leave it out.")  # fmt: skip
        return field

    # ------------------------------------------------------------------ steps

    def note_names(self, value: Any, at: Steps) -> None:
        """Take down the names of all steps, so that one that comes later is told from one that is not there."""
        for n, step in enumerate(value if isinstance(value, list) else ()):
            if not isinstance(step, Mapping):
                continue
            name, here = step.get("name"), (*at, n)
            if isinstance(name, str):
                if name in self.names:
                    first = path_words(self.source, self.names[name])
                    self.wrong((*here, "name"), f"is {quoted(name)}, as that of {first}.", "Give each step a name of its own.")  # fmt: skip
                self.names.setdefault(name, here)
            for kind in _KINDS:
                if isinstance(step.get(kind), Mapping):
                    for arm in ("then", "else", "approved", "rejected", "timed_out"):
                        self.note_names(step[kind].get(arm), (*here, kind, arm))
        if len(self.names) > MOST_STEPS and at == ("steps",):
            self.wrong(at, f"has {len(self.names):,} steps; at most {MOST_STEPS:,} are read.", "Make parts of it workflows of their own.")  # fmt: skip

    def steps(self, value: Any, at: Steps, on_failure: str) -> tuple[DocumentStep, ...] | None:
        if not isinstance(value, list):
            self.wrong(at, f"is {kind_words(value)}.", "Write a list of steps.")
            return None
        found = [self.step(one, (*at, n), on_failure) for n, one in enumerate(value)]
        return tuple(one for one in found if one is not None)

    def step(self, value: Any, at: Steps, otherwise: str) -> DocumentStep | None:
        said = self.mapping(value, at, ("name", "on_failure", *_KINDS), ("name",))
        if said is None:
            return None
        kinds = [kind for kind in _KINDS if kind in said]
        if len(kinds) != 1:
            has = f"is {' and '.join(kinds)} at once." if kinds else "does nothing."
            self.wrong(at, has, f"Give it exactly one of {', '.join(_KINDS)}.")
            return None
        name = self.name(said["name"], (*at, "name")) if said.get("name") is not None else None
        on_failure = self.on_failure(said, at, otherwise)
        kind = kinds[0]
        readers: dict[str, Callable[[Any, Steps, str, str], What | None]] = {
            "email": self.email, "wait": self.wait, "task": self.task, "approve": self.approve, "branch": self.branch
        }  # fmt: skip
        what = readers[kind](said[kind], (*at, kind), on_failure, name or "")
        if name is not None:
            self.over.add(name)
        return None if name is None or what is None else DocumentStep(name, kind, what, on_failure)

    def email(self, value: Any, at: Steps, on_failure: str, name: str) -> What | None:
        said = self.mapping(value, at, _MAIL)
        if said is None:
            return None
        if not any(said.get(one) for one in ("to", "cc", "bcc")):
            self.wrong(at, "goes to nobody.", "Add `to:`.")
        if not any(said.get(one) is not None for one in ("text", "html", "template")):
            self.wrong(at, "has nothing to send.", "Add `text:`, `html:` or `template:`.")
        for one, inner in said.items():
            here = (*at, one)
            if one in ("to", "cc", "bcc", "reply_to") and not isinstance(inner, str | list):
                self.wrong(here, f"is {kind_words(inner)}.", "Write an address, or a list of them.")
            elif one in ("subject", "text", "html", "from", "template") and not isinstance(inner, str):
                self.wrong(here, f"is {kind_words(inner)}.", "Write a text.")
            elif one in ("headers", "data") and not isinstance(inner, Mapping | str):
                self.wrong(here, f"is {kind_words(inner)}.", "Write a mapping.")
            self.placeholders(inner, here)
        return Email(said)

    def wait(self, value: Any, at: Steps, on_failure: str, name: str) -> What | None:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return Sleep(span=self.duration(value, at))
        said = self.mapping(value, at, ("for", "until", "event", "timeout", "timed_out"))
        if said is None:
            return None
        ways = [way for way in ("for", "until", "event") if said.get(way) is not None]
        if len(ways) != 1:
            self.wrong(at, f"waits for {' and '.join(ways)} at once." if ways else "waits for nothing.", "Give exactly one of for, until and event.")  # fmt: skip
            return None
        if "event" not in said:
            for one in ("timeout", "timed_out"):
                if one in said:
                    self.wrong((*at, one), "goes with event only.", "Leave it out.", key=True)
            if "for" in said:
                return Sleep(span=self.duration(said["for"], (*at, "for")))
            return self.until(said["until"], (*at, "until"))
        event = self.argument(lambda: check_name(said["event"], "event"), (*at, "event"))
        timeout = self.timeout(said, at)
        self.over.add(name)  # what follows may ask what became of it
        (timed_out,) = self.arms(said, at, on_failure, "timed_out")
        return None if event is None else Await(event, timeout, timed_out)

    def until(self, value: Any, at: Steps) -> What | None:
        if isinstance(value, str):
            if "{{" in value:
                return Sleep(until=self.placeholders(value, at))
            try:
                return Sleep(until=read_instant(value, "until"))
            except InvalidArgument as error:
                remedy = 'Write an instant such as 2026-07-27T09:00:00Z, or {at: "09:00", tz: Europe/Paris}.'
                self.wrong(at, error.problem, remedy)
                return None
        said = self.mapping(value, at, ("at", "tz"), ("at", "tz"))
        if said is None or said.get("at") is None or said.get("tz") is None:
            return None
        tz = self.argument(lambda: zone(said["tz"]).key, (*at, "tz"))
        local: Any = said["at"]
        if isinstance(local, str) and "{{" in local:
            local = self.placeholders(local, (*at, "at"))
        else:
            short = isinstance(local, str) and len(local) <= 8
            local = self.argument(lambda: (read_time if short else read_local)(said["at"], "at"), (*at, "at"))
        return Sleep(local=local, tz=tz)

    def timeout(self, said: Mapping[str, Any], at: Steps) -> Any:
        if said.get("timeout") is not None:
            return self.duration(said["timeout"], (*at, "timeout"))
        if "timed_out" in said:
            self.wrong((*at, "timed_out"), "never comes: there is no timeout.", "Add `timeout:`.", key=True)
        return None

    def arms(
        self, said: Mapping[str, Any], at: Steps, on_failure: str, *names: str
    ) -> list[tuple[DocumentStep, ...] | None]:
        """The steps of each arm. What is over within one is not over in those beside it, and may be over after them."""
        before, after = set(self.over), set(self.over)
        found = []
        for name in names:
            self.over = set(before)
            found.append(self.steps(said[name], (*at, name), on_failure) if name in said else None)
            after |= self.over
        self.over = after
        return found

    def task(self, value: Any, at: Steps, on_failure: str, name: str) -> What | None:
        if isinstance(value, str):
            value = {"name": value}
        said = self.mapping(value, at, ("name", "input"), ("name",))
        if said is None or said.get("name") is None:
            return None
        task = self.argument(lambda: check_name(said["name"], "task"), (*at, "name") if "name" in said else at)
        given = said.get("input", {})
        if not isinstance(given, Mapping) and not (isinstance(given, str) and "{{" in given):
            self.wrong(
                (*at, "input"), f"is {kind_words(given)}.", "Write a mapping of the task's parameters to values."
            )
            return None
        self.placeholders(given, (*at, "input"))
        return None if task is None else TaskCall(task, given)

    def approve(self, value: Any, at: Steps, on_failure: str, name: str) -> What | None:
        if value is None:
            value = {}
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return Approve(timeout=self.duration(value, at))
        said = self.mapping(value, at, ("timeout", "approved", "rejected", "timed_out"))
        if said is None:
            return None
        self.over.add(name)  # what follows may ask who said so
        timeout = self.timeout(said, at)
        approved, rejected, timed_out = self.arms(said, at, on_failure, "approved", "rejected", "timed_out")
        return Approve(timeout, approved or (), rejected, timed_out)

    def branch(self, value: Any, at: Steps, on_failure: str, name: str) -> What | None:
        said = self.mapping(value, at, ("when", "then", "else"), ("when", "then"))
        if said is None:
            return None
        when = self.condition(said["when"], (*at, "when")) if said.get("when") is not None else None
        then, otherwise = self.arms(said, at, on_failure, "then", "else")
        return None if when is None else Fork(when, then or (), otherwise or ())

    # ------------------------------------------------------------------ conditions

    def condition(self, value: Any, at: Steps) -> Condition | None:
        known = ("value", *OPERATORS, "all", "any", "not")
        said = self.mapping(value, at, known)
        if said is None:
            return None
        joined = [name for name in ("all", "any", "not") if name in said]
        if joined:
            if len(said) > 1:
                self.wrong(at, f"has {joined[0]} and more beside it.", "Put each condition into a mapping of its own.")
                return None
            return self.joined(joined[0], said[joined[0]], (*at, joined[0]))
        tests = [name for name in OPERATORS if name in said]
        if "value" not in said or not tests:
            lacks = "value" if "value" not in said else "operator"
            self.wrong(at, f"has no {lacks}.", 'Write, for example, {value: "{{ input.plan }}", equals: pro}.')
            return None
        for one in ("value", *tests):
            self.placeholders(said[one], (*at, one))
        if "present" in said and not isinstance(said["present"], bool):
            self.wrong((*at, "present"), f"is {kind_words(said['present'])}.", "Write true or false.")
        if "in" in said and not isinstance(said["in"], list) and not any("{{" in t for t in as_written(said["in"])):
            self.wrong((*at, "in"), f"is {kind_words(said['in'])}.", "Write a list.")
        return Test(said["value"], tuple((name, said[name]) for name in tests))

    def joined(self, name: str, value: Any, at: Steps) -> Condition | None:
        if name == "not":
            inner = self.condition(value, at)
            return None if inner is None else Not(inner)
        if not isinstance(value, list) or not value:
            self.wrong(at, "is no list of conditions.", "Write a list with at least one.")
            return None
        found = [self.condition(one, (*at, n)) for n, one in enumerate(value)]
        conditions = tuple(one for one in found if one is not None)
        return AllOf(conditions) if name == "all" else AnyOf(conditions)


def path_words(source: Source, at: Steps) -> str:
    """Where something stands, for people: its line where there are lines."""
    place = source.places.get(at)
    return f"line {place[0]}" if place else path_of(at)
