"""What a channel is: a queue whose jobs are publications, the connector that publishes them, and how it is treated.

A channel's limit, rate, pause and blackouts are those of its queue; what stands here are its defaults. Channels are declared in code
(``Publishing.channel``) or read from the file that the setting ``publish_channels`` names. Source: R002-7, R002-10, R002-11.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from duly.kernel.backoff import Backoff
from duly.kernel.errors import InvalidArgument
from duly.kernel.gate import Rate
from duly.kernel.payload import check_name, check_number, check_whole, read_seconds
from duly.kernel.source import InvalidDocument, Problem, Source, path_of
from duly.kernel.windows import Window, window_from_json
from duly.publishing.connectors.base import Connector

#: What is done about a post of which nobody can say whether it is there: ``hold`` fails the job and says so, ``retry`` publishes again.
Unknown = Literal["hold", "retry"]
#: The longest that a circuit breaker holds a channel, in seconds.
LONGEST_COOL_DOWN = 3600.0
#: Fields of a channel in a file, beside its connector's.
FIELDS = (
    "connector",
    "limit",
    "rate",
    "max_attempts",
    "backoff",
    "unknown",
    "breaker",
    "apart",
    "blackouts",
    "options",
)
#: How many definitions of a channel are remembered.
MOST_PAST = 20
V = TypeVar("V")
_FILE = re.compile(r"\$\{file:([^}]+)\}")
_WINDOW = ("days", "start", "end", "tz", "dates", "name")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Breaker:
    """After ``failures`` in a row the channel is held for ``seconds``, then one publication is tried; each time it fails the hold doubles.

    0 failures: it never holds.
    """

    failures: int = 5
    seconds: float = 300.0

    def __post_init__(self) -> None:
        check_whole(self.failures, "breaker.failures", 0)
        object.__setattr__(self, "seconds", read_seconds(self.seconds, "breaker.seconds", 0, above=True))

    def cool_down(self, trips: int) -> float:
        """Seconds for which it holds the ``trips``-th time in a row, 1 for the first."""
        # bounded before the power is taken
        return min(self.seconds * 2.0 ** min(max(0, trips - 1), 30), max(self.seconds, LONGEST_COOL_DOWN))


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel. Made by ``Publishing.channel``."""

    name: str
    connector: Connector = field(repr=False)
    #: How many of its publications run at once in the whole cluster, unless its queue says otherwise.
    limit: int | None = 1
    rate: Rate | None = None
    #: Runs in all (R002-10).
    max_attempts: int = 5
    backoff: Backoff = field(default_factory=lambda: backoff_of(60.0, 2.0, 3600.0))
    unknown: Unknown = "hold"
    breaker: Breaker = field(default_factory=Breaker)
    #: Seconds that two posts of the channel are apart at the least; closer ones collide, and people are told. 0: none collide.
    apart: float = 60.0
    #: Windows of local time in which nothing of the channel is published, declared beside it (R002-24).
    blackouts: tuple[Window, ...] = ()

    @property
    def definition(self) -> list[Any]:
        """What stands in the database of it, as plain values: its connector is left out."""
        rate = None if self.rate is None else [self.rate.count, self.rate.seconds]
        return [self.limit, rate, [one.to_json() for one in self.blackouts]]

    def __post_init__(self) -> None:
        check_name(self.name, "channel")
        if self.limit is not None:
            check_whole(self.limit, "limit")
        check_whole(self.max_attempts, "max_attempts")
        object.__setattr__(self, "apart", read_seconds(self.apart, "apart", 0))
        for name, value, kind in (("backoff", self.backoff, Backoff), ("breaker", self.breaker, Breaker)):
            if not isinstance(value, kind):
                raise InvalidArgument(name, f"is of type {type(value).__name__}.", f"Give a {kind.__name__}.")
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise InvalidArgument("rate", f"is {self.rate!r}.", "Give (count, seconds).")
        if self.unknown not in ("hold", "retry"):
            raise InvalidArgument("unknown", f"is {self.unknown!r}.", "Use 'hold' or 'retry'.")


def declared_by(order: tuple[str, ...], mark: str) -> tuple[str, ...]:
    """Marks of the definitions of a channel in the order in which code declared them first, and behind them the one that counts, once this
    one does."""
    known = tuple(dict.fromkeys(order))
    return (*(known if mark in known else (*known, mark))[-MOST_PAST:], mark)


def agreed(declared: V | None, stands: V | None, ours: V | None) -> V | None:
    """What a queue's limit or rate is to be: what the channel declares, unless somebody else has set what ``stands`` there.

    ``ours``: what publishing has set there last. What stands otherwise is somebody's, also when they have taken it away.
    """
    return declared if stands == ours else stands


def backoff_of(base: float, factor: float, most: float) -> Backoff:
    """The backoff of R002-11: up to half the base is added at random, and no delay is longer than ``most``."""
    return Backoff(base=base, factor=factor, max=most, jitter=base / 2)


def read_rate(value: object, field: str = "rate") -> Rate | None:
    """``Rate``, (count, seconds), or ``{count, seconds}``. Raises InvalidArgument."""
    if value is None or isinstance(value, Rate):
        return value
    if isinstance(value, Mapping) and set(value) == {"count", "seconds"}:
        value = (value["count"], value["seconds"])
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InvalidArgument(field, f"is {value!r}.", "Give (count, seconds), for example (50, 86400).")
    seconds = read_seconds(value[1], f"{field}.seconds", 0, above=True)
    return Rate(check_whole(value[0], f"{field}.count"), seconds)


def read_backoff(value: object, default: Backoff) -> Backoff:
    """``Backoff``, or ``{base, factor, max}`` whose missing fields are the default's. Raises InvalidArgument."""
    if value is None:
        return default
    if isinstance(value, Backoff):
        return value
    given = _mapping(value, "backoff", ("base", "factor", "max"))
    numbers = {
        name: check_number(number, "backoff.factor", "a number, not negative", 0)
        if name == "factor"
        else read_seconds(number, f"backoff.{name}", 0)
        for name, number in given.items()
    }
    return backoff_of(numbers.get("base", default.base), numbers.get("factor", default.factor), numbers.get("max", default.max))  # fmt: skip


def read_breaker(value: object) -> Breaker:
    """``Breaker``, (failures, seconds), or ``{failures, seconds}``. Raises InvalidArgument."""
    if value is None:
        return Breaker()
    if isinstance(value, Breaker):
        return value
    if isinstance(value, tuple | list) and len(value) == 2:
        return Breaker(value[0], value[1])
    return Breaker(**_mapping(value, "breaker", ("failures", "seconds")))


def read_blackouts(value: object, channel: str) -> tuple[Window, ...]:
    """Windows, or mappings ``{days, start, end, tz, dates, name}``; each holds this channel and no other. Raises InvalidArgument."""
    if value is None:
        return ()
    if not isinstance(value, tuple | list):
        raise InvalidArgument("blackouts", f"is of type {type(value).__name__}.", "Give a list of windows.")
    windows = []
    for n, one in enumerate(value):
        at = f"blackouts[{n}]"
        window = one if isinstance(one, Window) else window_from_json(_mapping(one, at, _WINDOW), at)
        if isinstance(one, Window) and window.scope not in ("all", f"channel:{channel}"):
            raise InvalidArgument(f"{at}.scope", f"is {window.scope!r}.", f"Leave it out: it holds channel {channel}.")
        name = f"channel.{channel}.{window.name or n + 1}"
        windows.append(replace(window, name=name, scope=f"channel:{channel}"))
    names = [one.name for one in windows]
    if len(set(names)) < len(names):
        raise InvalidArgument("blackouts", "has two windows of one name.", "Give each its own name.")
    return tuple(windows)


def _mapping(value: object, field: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(field, f"is of type {type(value).__name__}.", f"Give a mapping of {', '.join(known)}.")
    for name in value:
        if name not in known:
            raise InvalidArgument(f"{field}.{name}", "is not known.", f"Known are: {', '.join(known)}.")
    return value


def read_channels(
    source: Source, environ: Mapping[str, str], make: Callable[[str, Mapping[str, Any]], None]
) -> None:  # fmt: skip
    """Read a document ``{name: {connector, limit, rate, max_attempts, backoff, unknown, breaker, options}}``.

    ``make(name, fields)`` makes each channel; ``${NAME}`` in a text is the environment variable, and ``${file:/run/secrets/token}`` the content
    of a file, without blanks around it. Raises InvalidDocument with everything
    that is wrong, each with its place.
    """
    problems: list[Problem] = []
    if not isinstance(source.value, Mapping) or not source.value:
        raise InvalidDocument(
            "publish_channels", (source.problem((), "names no channel.", "Write name: {connector: …}."),)
        )
    for name, given in source.value.items():
        at = (name,)
        if not isinstance(given, Mapping):
            problems.append(source.problem(at, "is no mapping.", "Write connector: NAME beneath it."))
            continue
        wrong = [
            source.problem((name, f), "is not a field of a channel.", f"Fields are: {', '.join(FIELDS)}.", key=True)
            for f in given
            if f not in FIELDS
        ]
        if "connector" not in given:
            wrong.append(source.problem(at, "has no connector.", "Write connector: NAME beneath it."))
        fields = {f: _filled(source, (name, f), value, environ, wrong) for f, value in given.items()}
        if not wrong:
            try:
                make(str(name), fields)
            except InvalidArgument as error:
                where = (name, *error.field.split("."))
                wrong.append(replace(source.problem(where, error.problem, error.remedy), path=path_of(where)))
        problems += wrong
    if problems:
        raise InvalidDocument("publish_channels", tuple(problems))


def _filled(source: Source, at: tuple[Any, ...], value: Any, environ: Mapping[str, str], wrong: list[Problem]) -> Any:
    """A value with the environment's variables filled in."""
    if isinstance(value, Mapping):
        return {name: _filled(source, (*at, name), inner, environ, wrong) for name, inner in value.items()}
    if isinstance(value, list):
        return [_filled(source, (*at, n), inner, environ, wrong) for n, inner in enumerate(value)]
    if not isinstance(value, str):
        return value
    for name in _VARIABLE.findall(value):
        if name not in environ:
            wrong.append(source.problem(at, f"names the environment variable {name}, which is not set."))
    whole = _FILE.fullmatch(value)
    if whole is not None:
        try:
            return Path(whole[1]).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            wrong.append(
                source.problem(at, f"names the file {whole[1]}, which cannot be read ({type(error).__name__}).")
            )
            return ""
    return _VARIABLE.sub(lambda match: environ.get(match[1], ""), value)
