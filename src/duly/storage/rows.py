"""A batch of rows as one parameter: JSON text that the database opens as a table.

``relation`` gives the SQL of that table for either database, ``encode`` the parameter. Column types are PostgreSQL's
names; SQLite takes the values as they are. Instants travel as each database keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection

from duly.kernel.clock import to_micros
from duly.storage.qualified import quoted, schema_of, text

#: PostgreSQL's present instant: that of the statement. ``now()`` is the begin of the transaction, which may be long ago, and
#: ``clock_timestamp()`` another one for each row, by which no index can be read.
PRESENT = "statement_timestamp()"
#: Characters of JSON that are parsed at once.
PIECE = 8192


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


def insert_into(sqlite: bool) -> Any:
    """The database's own ``insert``, whose statements can say ON CONFLICT. The other database's dialect stays unloaded."""
    if sqlite:
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
    return insert


def by_index(connection: Connection) -> None:
    """For the rest of a transaction that reads: rows are looked for along indexes, in their order.

    PostgreSQL takes rows for evenly spread, and knows nothing of a table that it has not analysed yet: it would read and sort all of it for
    the few rows at one end.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_BY_INDEX)


_BY_INDEX = "SELECT " + ", ".join(
    f"set_config('enable_{one}', 'off', true)" for one in ("seqscan", "bitmapscan", "sort")
)


def as_one(columns: str, relation: str) -> str:
    """SQLite's SQL for many rows as one text, a JSON array on each line, null for none; ``read`` opens it. ``relation``: what stands behind FROM.

    The module gives up the interpreter's lock once per row it fetches, and a busy event loop may keep it for milliseconds
    each time: five hundred rows as one text are five hundred times less waiting.
    """
    return f"SELECT group_concat(json_array({columns}), char(10)) FROM {relation}"


def read(text: str | None) -> Iterator[list[Any]]:
    """The rows of such a text.

    Parsed in pieces, because the parser takes a dozen times the length of its text: what it takes in one piece of a
    megabyte the process keeps for good.
    """
    if text is None:
        return
    lines = text.split("\n")  # inside a JSON text a new line is escaped
    step = max(1, PIECE * len(lines) // len(text))
    for start in range(0, len(lines), step):
        yield from orjson.loads(f"[{','.join(lines[start : start + step])}]")


def any_row(connection: Connection, table: str, where: str = "") -> bool:
    """Is there a row in a table (SQL of ours) at all? For those who ask for a room that is loaded when there is one."""
    schema = schema_of(connection.dialect)  # said here, because the room may not be loaded
    those = f"{quoted(schema)}.{table}" if schema else table
    those = f"{those} WHERE {where}" if where else those
    return connection.execute(text(f"SELECT 1 FROM {those} LIMIT 1")).first() is not None


def plus_seconds(sqlite: bool, instant: str, seconds: str) -> str:
    """SQL for an instant moved by a number of seconds."""
    if sqlite:
        return f"({instant} + CAST({seconds} * 1000000 AS INTEGER))"
    return f"({instant} + ({seconds}) * interval '1 second')"


def at(sqlite: bool, name: str = "now") -> str:
    """SQL for the parameter ``:name`` as an instant; null means the server's clock on PostgreSQL."""
    return f":{name}" if sqlite else f"coalesce(CAST(:{name} AS timestamptz), {PRESENT})"
