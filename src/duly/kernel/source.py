"""A document's text, read as plain values, with the place of each of them: YAML and JSON.

YAML is read by the core schema of YAML 1.2: ``yes``, ``on`` and ``12:30`` are texts, and only ``true`` and ``false`` are truth values.
Anchors, aliases, tags and keys that stand twice are refused: a document says what it says where it says it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, TypeAlias

from duly.kernel.errors import InvalidArgument

#: Where something stands within a document: ("steps", 2, "email", "to").
Steps: TypeAlias = tuple[str | int, ...]

#: The deepest nesting, and the longest text in characters, of a document.
DEEPEST, LONGEST = 60, 1_000_000
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
#: What plain scalars mean; a longer one is a text.
_CORE: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a document. ``line`` and ``column`` count from 1; None for a document that was no text."""

    path: str
    problem: str
    remedy: str = ""
    line: int | None = None
    column: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        place = [str(p) for p in (self.file, self.line, self.column) if p is not None]
        words = f"{self.path} {self.problem}" if self.path else f"the document {self.problem}"
        return f"{':'.join(place)}: {words}".removeprefix(": ") + (f" {self.remedy}" if self.remedy else "")


class InvalidDocument(InvalidArgument):
    """A document that is not what it should be; ``problems`` says all that is wrong with it, in its order."""

    def __init__(self, name: str, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__(name, "cannot be used:\n" + "\n".join(f"  {one}" for one in problems))


@dataclass(frozen=True, slots=True)
class Source:
    """A document as plain values. ``places``: (line, column) of each value; ``keys``: of the key that it stands under."""

    value: Any
    file: str | None = None
    places: Mapping[Steps, tuple[int, int]] = field(default_factory=dict)
    keys: Mapping[Steps, tuple[int, int]] = field(default_factory=dict)

    def problem(self, at: Steps, problem: str, remedy: str = "", *, key: bool = False) -> Problem:
        """A problem with the value that stands there, or with its key."""
        table = self.keys if key else self.places
        known = table.get(at) or self.places.get(at) or self.keys.get(at)
        while known is None and at and self.places:
            at = at[:-1]
            known = self.places.get(at)
        line, column = known if known else (None, None)
        return Problem(path_of(at), problem, remedy, line, column, self.file)


def path_of(at: Steps) -> str:
    """``steps[2].email.to``."""
    out = ""
    for part in at:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out


def read(document: str | Path | Mapping[str, Any]) -> Source:
    """A file's name (``….yaml``, ``….yml``, ``….json``) or a mapping, read. Raises InvalidDocument, InvalidArgument."""
    if isinstance(document, Mapping):
        return Source(dict(document))
    path = Path(document)
    kinds: dict[str, Callable[[str, str], Source]] = {".yaml": read_yaml, ".yml": read_yaml, ".json": read_json}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise InvalidArgument("document", f"is {str(document)!r}.", "Give a file that ends in .yaml, .yml or .json, or a mapping.")  # fmt: skip
    if path.exists() and not path.is_file():
        raise InvalidArgument("document", f"{path} is no file.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidArgument("document", f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise InvalidArgument("document", f"{path} is not UTF-8.", "Save it as UTF-8.") from None
    if len(text) > LONGEST:
        raise InvalidArgument("document", f"{path} has {len(text):,} characters; at most {LONGEST:,} are read.")
    return kind(text, str(document))


class Reading:
    """One look at a document: each reader answers with what it read, or with None where it noted what is wrong in ``problems``."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Problem] = []

    def wrong(self, at: Steps, problem: str, remedy: str = "", key: bool = False) -> None:
        self.problems.append(self.source.problem(at, problem, remedy, key=key))

    def mapping(
        self, value: Any, at: Steps, known: Sequence[str], needed: Sequence[str] = ()
    ) -> Mapping[str, Any] | None:
        """A mapping with some of the known names and all of those that are needed."""
        if not isinstance(value, Mapping):
            self.wrong(at, f"is {kind_words(value)}.", f"Write a mapping with {', '.join(known)}.")
            return None
        for name in value:
            if name not in known:
                near = get_close_matches(str(name), known, 1)
                remedy = f"Did you mean {near[0]}?" if near else f"Known are: {', '.join(known)}."
                self.wrong((*at, str(name)), "is not known here.", remedy, key=True)
        for name in needed:
            if value.get(name) is None:
                self.wrong(at, f"has no {name}.", f"Add `{name}:`.")
        return value

    def text(self, value: Any, at: Steps) -> str | None:
        if isinstance(value, str):
            return value
        self.wrong(at, f"is {kind_words(value)}.", "Write a text.")
        return None

    def argument(self, fn: Callable[[], Any], at: Steps) -> Any:
        """What another reader answers; its InvalidArgument becomes a problem with this value."""
        try:
            return fn()
        except InvalidArgument as error:
            self.wrong(at, error.problem, error.remedy)
            return None

    def refuse_if_wrong(self) -> None:
        """Raises InvalidDocument with everything that is wrong, in the order of the document."""
        if self.problems:
            found = sorted(self.problems, key=lambda p: (p.line or 0, p.column or 0))
            raise InvalidDocument(self.source.file or "the document", tuple(found))


def kind_words(value: Any) -> str:
    """What a value is, for people: ``a list``."""
    return _KIND_WORDS.get(type(value), "a number")


_KIND_WORDS: dict[type, str] = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false", type(None): "empty"}  # fmt: skip


# ---------------------------------------------------------------------- YAML


def read_yaml(text: str, file: str) -> Source:
    """YAML text as plain values. Raises InvalidDocument; InvalidArgument where PyYAML is not there."""
    try:
        import yaml
    except ImportError:
        remedy = 'Install it with `pip install "duly[yaml]"`, or write the document as JSON.'
        raise InvalidArgument("document", f"{file} is YAML, and PyYAML is not installed.", remedy) from None

    def refuse(mark: Any, problem: str, remedy: str = "") -> InvalidDocument:
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        return InvalidDocument(file, (Problem("", problem, remedy, line, column, file),))

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Composes nodes; what a plain scalar means is said below."""

        yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise refuse(event.start_mark, "has an anchor or an alias.", "Write the value out where it is used.")
            if getattr(event, "tag", None) is not None:
                raise refuse(event.start_mark, f"has the tag {event.tag}.", "Leave it out.")
            return super().compose_node(parent, index)

    places: dict[Steps, tuple[int, int]] = {}
    keys: dict[Steps, tuple[int, int]] = {}

    def plain(node: Any, at: Steps) -> Any:
        mark = node.start_mark
        places[at] = (mark.line + 1, mark.column + 1)
        if len(at) > DEEPEST:
            raise refuse(mark, f"is nested deeper than {DEEPEST} levels.")
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.style is not None else _scalar(node.value)
        if isinstance(node, yaml.SequenceNode):
            return [plain(one, (*at, n)) for n, one in enumerate(node.value)]
        made: dict[str, Any] = {}
        for name, value in node.value:
            here = name.start_mark
            if not isinstance(name, yaml.ScalarNode):
                raise refuse(here, "has a key that is not a text.", "Write a name before the colon.")
            if name.value in made:
                raise refuse(here, f"has the key {name.value} twice.", "Keep one of them.")
            keys[*at, name.value] = (here.line + 1, here.column + 1)
            made[name.value] = plain(value, (*at, name.value))
        return made

    try:
        node = yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        said = ", ".join(str(part) for part in (error.context, error.problem) if part)
        raise refuse(error.problem_mark, f"is not YAML: {said}.") from None
    except yaml.YAMLError as error:
        raise refuse(None, f"is not YAML: {str(error).splitlines()[0]}.") from None
    except RecursionError:
        raise refuse(None, f"is nested deeper than {DEEPEST} levels.") from None
    return Source(None if node is None else plain(node, ()), file, places, keys)


def _scalar(text: str) -> Any:
    """What a scalar without quotes stands for."""
    for pattern, kind in _CORE:
        if len(text) < 100 and pattern.fullmatch(text):
            return kind(text)
    return text


# ---------------------------------------------------------------------- JSON


def read_json(text: str, file: str) -> Source:
    """JSON text as plain values. Raises InvalidDocument."""
    return _Json(text, file).source()


class _Json:
    """A reader that notes where things stand; the standard one does not tell."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file, self.at = text, file, 0
        self.lines = [0, *(m.end() for m in re.finditer("\n", text))]
        self.places: dict[Steps, tuple[int, int]] = {}
        self.keys: dict[Steps, tuple[int, int]] = {}

    def source(self) -> Source:
        try:
            json.loads(self.text)
        except json.JSONDecodeError as error:
            raise self.refuse(f"is not JSON: {error.msg}.", (error.lineno, error.colno)) from None
        except RecursionError:
            raise self.refuse(f"is nested deeper than {DEEPEST} levels.", None) from None
        except ValueError:  # Python reads no integer of more than 4300 digits
            raise self.refuse("has a number that is too long.", None) from None
        return Source(self.value(()), self.file, self.places, self.keys)

    def refuse(self, problem: str, place: tuple[int, int] | None, remedy: str = "") -> InvalidDocument:
        line, column = place or (None, None)
        return InvalidDocument(self.file, (Problem("", problem, remedy, line, column, self.file),))

    def here(self) -> tuple[int, int]:
        """(line, column) of the next sign that means something."""
        while self.text[self.at] in " \t\r\n":
            self.at += 1
        line = bisect_right(self.lines, self.at)
        return line, self.at - self.lines[line - 1] + 1

    def value(self, at: Steps) -> Any:
        # the text is known to be JSON, so nothing is missing here
        self.places[at] = place = self.here()
        if len(at) > DEEPEST:
            raise self.refuse(f"is nested deeper than {DEEPEST} levels.", place)
        sign = self.text[self.at]
        if sign == '"':
            return self.string()
        if sign == "[":
            return self.several(lambda n: self.value((*at, n)), "]")
        if sign == "{":
            return dict(self.several(lambda _: self.pair(at), "}"))
        for word, meant in (("null", None), ("true", True), ("false", False)):
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return meant
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            raise self.refuse("has a number that JSON does not know.", place, "Write digits.")
        self.at = found.end()
        return float(found[0]) if found[1] or found[2] else int(found[0])

    def string(self) -> str:
        text, self.at = scanstring(self.text, self.at + 1, True)
        return str(text)

    def several(self, read_one: Callable[[int], Any], end: str) -> list[Any]:
        found: list[Any] = []
        self.at += 1
        while True:
            self.here()
            if self.text[self.at] == end:
                self.at += 1
                return found
            if self.text[self.at] == ",":
                self.at += 1
                self.here()
            found.append(read_one(len(found)))

    def pair(self, at: Steps) -> tuple[str, Any]:
        place = self.here()
        name = self.string()
        if (*at, name) in self.keys:
            raise self.refuse(f"has the key {name} twice.", place, "Keep one of them.")
        self.keys[*at, name] = place
        self.here()
        self.at += 1  # the colon
        return name, self.value((*at, name))
