"""Saying when on a command line: the options of a recurrence, and what comes out of them.

Errors name the option. Where a schedule is there already, what is not said stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli.times import SPAN

if TYPE_CHECKING:
    from duly.kernel.recurrence import Schedule as Recurrence

_EXAMPLE = "Name the IANA time zone whose clock is meant, such as Europe/Paris."

_OPTIONS = (
    click.option("--cron", metavar="EXPR", help="Five fields or a nickname: '30 2 * * *', @daily. Needs --tz."),
    click.option("--every", metavar="SPAN", help="A fixed interval of elapsed time: 15m, 6h."),
    click.option("--daily", metavar="TIMES", help="At local times of every day: 18:00, or 09:00,18:00. Needs --tz."),
    click.option("--weekly", metavar="DAYS", help="On days of the week: mon,thu or mon-fri. Needs --at and --tz."),
    click.option("--monthly", metavar="DAYS", help="On days of the month: 1, last, 'second tue'. Needs --at and --tz."),
    click.option("--dates", metavar="DATES", help="On local dates: 2026-12-24,2026-12-31. Needs --at and --tz."),
    click.option("--yearly", metavar="DAYS", help="On days of the year: 12-24, or 12-24,02-29. Needs --at and --tz."),
    click.option(
        "--moments", metavar="LOCALS", help="At local dates and times: 2026-12-24T18:00,2027-01-06T09:30. Needs --tz."
    ),
    click.option("--once", metavar="INSTANT", help="At one instant: 2026-12-01T10:00+01:00."),
    click.option("--rrule", metavar="RULE", help="A calendar rule of RFC 5545. Needs --start and --tz."),
    click.option("--json-recurrence", metavar="FILE", help="A recurrence as JSON, in a file; - is stdin."),
    click.option("--at", metavar="TIMES", help="Local times of day, such as 09:00 or 09:00,18:00."),
    click.option("--tz", metavar="ZONE", help="The IANA time zone whose clock is meant, such as Europe/Paris."),
    click.option("--start", metavar="LOCAL", help="With --rrule: the local time it counts from, 2026-01-05T09:00."),
    click.option(
        "--start-date", metavar="DATE", help="The first local date that counts, 2027-01-01; `none` for no bound."
    ),
    click.option(
        "--end-date", metavar="DATE", help="The last local date that counts, 2027-03-31; `none` for no bound."
    ),
    click.option("--anchor", metavar="INSTANT", help="With --every: an instant of its grid; else 1970-01-01T00:00Z."),
    click.option(
        "--gap",
        type=click.Choice(["after", "skip", "rule"]),
        help="A local time that a clock put forward leaves out; `rule` is what it would be by itself.",
    ),
    click.option(
        "--fold",
        type=click.Choice(["first", "both", "last", "rule"]),
        help="A local time that a clock put back shows twice; `rule` as above.",
    ),
    click.option(
        "--jitter", type=SPAN, metavar="SPAN", help="Spread the starts over so long, never early; 0 does not."
    ),
)

#: option → (kind, the field that it says)
_KINDS = {
    "cron": ("cron", "expression"), "every": ("every", "duration"), "daily": ("daily", "at"), "weekly": ("weekly", "days"),
    "monthly": ("monthly", "day"), "dates": ("on_dates", "dates"), "yearly": ("yearly", "dates"),
    "moments": ("moments", "moments"), "once": ("once", "instant"), "rrule": ("rrule", "rule"),
}  # fmt: skip
#: Options that say a field of some kinds.
_FIELDS = ("at", "tz", "start", "start_date", "end_date", "anchor", "gap", "fold", "jitter")
#: Fields that a change of kind leaves as they are: a zone, times of day, bounds, and policies of clock changes.
_OUTLIVE = ("tz", "at", "start_date", "end_date", "gap", "fold", "jitter", "name")
NAMES = (*_KINDS, "json_recurrence", *_FIELDS)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say when."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def taken(given: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that say when and were given, taken out of ``given``."""
    return {name: value for name in NAMES if (value := given.pop(name)) is not None}


def recurrence(said: Mapping[str, Any], old: Recurrence | None = None) -> Recurrence | None:
    """The recurrence that the options say; ``old`` with what they change. None when they say nothing and there is none.

    Raises UsageError or InvalidArgument, which names the option.
    """
    from duly.kernel.errors import InvalidArgument
    from duly.kernel.recurrence import schedule_from_json

    kinds = [name for name in (*_KINDS, "json_recurrence") if name in said]
    if len(kinds) > 1:
        raise click.UsageError(f"{' and '.join(map(_option, kinds))} are given; one of them says when.")
    if kinds == ["json_recurrence"]:
        with_it = [_option(name) for name in _FIELDS if name in said]
        if with_it:
            raise click.UsageError(f"{with_it[0]} does not go with --json-recurrence, which says everything.")
        return schedule_from_json(_document(said["json_recurrence"]), "recurrence")
    if not said:
        return old
    document: dict[str, Any] = dict(old.to_json()) if old is not None else {}
    if kinds:
        kind, field = _KINDS[kinds[0]]
        known = _fields_of(kind)
        kept = {name: value for name, value in document.items() if name in _OUTLIVE}
        if kind == document.get("kind") == "rrule":
            kept["start"] = document["start"]
        document = {n: v for n, v in kept.items() if n in known} | {"kind": kind, field: _value(field, said[kinds[0]])}
    if not document:
        raise click.UsageError(
            f"{_option(next(iter(said)))} does not say when. Use one of {', '.join(map(_option, _KINDS))}."
        )
    kind = document["kind"]
    known = _fields_of(kind)
    for name in _FIELDS:
        if name not in said:
            continue
        if name not in known or (name == "at" and "daily" in said):
            raise click.UsageError(f"{_option(name)} does not go with {_spoken(kind)}.")
        document[name] = _value(name, said[name])
    for name, remedy in (
        ("tz", _EXAMPLE),
        ("at", "Say at what time, such as --at 09:00."),
        ("start", "Say from when it counts."),
    ):
        if name in known and document.get(name) is None:
            raise InvalidArgument(_option(name), f"is missing; {_spoken(kind)} needs it.", remedy)
    try:
        return schedule_from_json({n: v for n, v in document.items() if v is not None}, "")
    except InvalidArgument as error:
        raise InvalidArgument(_named(error.field.lstrip("."), kind), error.problem, error.remedy) from None


def _fields_of(kind: str) -> tuple[str, ...]:
    from duly.kernel.recurrence.forms import KINDS

    return (*KINDS[kind][1], *KINDS[kind][2])


def _value(name: str, value: Any) -> Any:
    """What an option says, as it stands in JSON."""
    if name == "jitter":
        return value.total_seconds()
    if name in ("gap", "fold"):
        return None if value == "rule" else value
    if name in ("start_date", "end_date"):
        return None if value == "none" else value
    if name in ("at", "dates", "day", "moments"):
        parts: list[Any] = [part.strip() for part in value.split(",")]
        if name == "day":
            parts = [int(part) if part.isascii() and part.isdigit() and len(part) < 4 else part for part in parts]
        return parts[0] if len(parts) == 1 else parts
    return value


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _spoken(kind: str) -> str:
    """The option that a kind is said by."""
    return next(_option(option) for option, (own, _) in _KINDS.items() if own == kind)


def _named(field: str, kind: str) -> str:
    """The option that says a field: ``at[1]`` of a daily one is part of --daily."""
    name, bracket, rest = field.partition("[")
    option = next((o for o, (k, f) in _KINDS.items() if k == kind and f == name), name)
    return f"{_option(option)}{bracket}{rest}"


def _document(file: str) -> Any:
    from duly.kernel.errors import InvalidArgument
    from duly.kernel.payload import read_json

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidArgument("--json-recurrence", f"{file} cannot be read: {problem}.") from None
    return read_json(text, "--json-recurrence")


def local(instant: datetime | None, tz: str | None) -> str:
    """An instant as the clock of a zone shows it, to the minute where it is whole: ``2026-03-29 03:00 CEST``. Without a zone: UTC, Z."""
    from duly.kernel.localtime import zone

    if instant is None:
        return ""
    shown = instant.astimezone(zone(tz or "UTC"))
    whole = "minutes" if not shown.second and not shown.microsecond else "seconds"
    letters = "Z" if tz is None else f" {shown.tzname()}"
    return shown.replace(tzinfo=None).isoformat(sep=" ", timespec=whole) + letters
