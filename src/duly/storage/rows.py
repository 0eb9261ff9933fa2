"""A batch of rows as one parameter: JSON text that the database opens as a table.

``relation`` gives the SQL of that table for either database, ``encode`` the parameter. Column types are PostgreSQL's
names; SQLite takes the values as they are. Instants travel as each database keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import orjson

from duly.kernel.clock import to_micros


def relation(sqlite: bool, columns: Mapping[str, str], alias: str = "r") -> str:
    """``FROM``-able SQL over the parameter ``:rows``."""
    if sqlite:
        picked = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in columns)
        return f"(SELECT {picked} FROM json_each(:rows)) AS {alias}"
    typed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    return f"json_to_recordset(CAST(:rows AS json)) AS {alias}({typed})"


def encode(sqlite: bool, rows: Iterable[Mapping[str, Any]]) -> str:
    """The parameter for ``relation``."""

    def default(value: Any) -> Any:
        raise TypeError(f"{type(value).__name__} in a batch")

    def prepared(value: Any) -> Any:
        return to_micros(value) if sqlite and isinstance(value, datetime) else value

    return orjson.dumps([{k: prepared(v) for k, v in row.items()} for row in rows], default=default).decode()


def plus_seconds(sqlite: bool, instant: str, seconds: str) -> str:
    """SQL for an instant moved by a number of seconds."""
    if sqlite:
        return f"({instant} + CAST({seconds} * 1000000 AS INTEGER))"
    return f"({instant} + ({seconds}) * interval '1 second')"


def at(sqlite: bool, name: str = "now") -> str:
    """SQL for the parameter ``:name`` as an instant; null means the server's clock on PostgreSQL."""
    return f":{name}" if sqlite else f"coalesce(CAST(:{name} AS timestamptz), now())"
