"""Showing: tables for people, JSON for programs.

A table on a terminal is drawn to its width and folds what is too long; in a pipe it is plain columns, as wide as they
need to be. Either way no id is ever cut. What came from outside (names, keys, reasons) is shown with its control
characters made visible, so that it cannot steer the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from duly.monitoring.redact import visible


def terminal() -> bool:
    return sys.stdout.isatty()


def say(text: str = "") -> None:
    """A line for people on stdout."""
    click.echo(visible(text))


def as_json(value: Any) -> None:
    """One JSON document on stdout: indented on a terminal, on one line in a pipe. Instants are ISO 8601 in UTC."""
    import orjson

    option = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    if terminal():
        option |= orjson.OPT_INDENT_2
    click.echo(orjson.dumps(value, default=_plain, option=option).decode(), nl=False)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset | set):
        return sorted(value)
    return str(value)


def pretty(value: Any) -> str:
    """JSON for people to read, as part of a page: on one line when it is short."""
    import json

    short = json.dumps(value, default=_plain, ensure_ascii=False)
    return short if len(short) <= 80 else json.dumps(value, default=_plain, ensure_ascii=False, indent=2)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its head, and whether it holds numbers (set to the right)."""

    head: str
    right: bool = False
    #: Never folded, on however narrow a terminal: ids.
    whole: bool = False


def columns(text: str) -> list[Column]:
    """Columns from a line of heads; ``#`` before one means a number, ``!`` that it must stay in one piece."""
    return [
        Column(word.lstrip("#!").replace("_", " "), word.startswith(("#", "!#")), word.startswith("!"))
        for word in text.split()
    ]


#: Words that carry a colour on a terminal, wherever they stand alone in a cell.
_STYLES = {
    "succeeded": "green", "ok": "green", "yes": "green", "online": "green",
    "running": "cyan", "retrying": "yellow", "warn": "yellow", "warning": "yellow", "cancelling": "yellow", "unready": "yellow",
    "failed": "red", "fail": "red", "error": "red", "offline": "red", "no": "red", "cancelled": "magenta",
}  # fmt: skip


def table(heads: str, rows: Iterable[Sequence[Any]], empty: str = "") -> None:
    """Print rows under their heads (see ``columns``); ``empty`` is what to say when there are none."""
    cols = columns(heads)
    cells = [[visible("" if cell is None else str(cell), keep="") for cell in row] for row in rows]
    if not cells:
        if empty:
            click.echo(empty)
        return
    if terminal():
        _drawn(cols, cells)
    else:
        _plain_columns(cols, cells)


def _drawn(cols: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    widths = _widths(cols, cells)
    needed = sum(w if col.whole else min(w, 12) for w, col in zip(widths, cols, strict=True)) + 2 * len(cols)
    if needed > console.width:
        _plain_columns(cols, cells)  # the terminal breaks the lines; folded any further they could not be read
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for col, width in zip(cols, widths, strict=True):
        least = width if col.whole else None
        drawn.add_column(
            col.head, justify="right" if col.right else "left", no_wrap=col.whole, overflow="fold", min_width=least
        )
    for row in cells:
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console.print(drawn)


def _widths(cols: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(col.head), *(len(row[i]) for row in cells)) for i, col in enumerate(cols)]


def _plain_columns(cols: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    widths = _widths(cols, cells)
    for row in ([col.head for col in cols], *cells):
        line = "  ".join(
            cell.rjust(width) if col.right else cell.ljust(width)
            for cell, width, col in zip(row, widths, cols, strict=True)
        )
        click.echo(line.rstrip())


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values under each other; pairs without a value are left out."""
    kept = [(name, str(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        first, *rest = visible(value).splitlines() or [""]
        click.echo(f"{name.ljust(width)}  {first}")
        for line in rest:
            click.echo(f"{'':{width}}  {line}")


def count(n: int, noun: str) -> str:
    """``1 job``, ``1,234 jobs``."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")
