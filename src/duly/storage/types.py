"""Column types that mean the same on both databases.

* ``Instant``: an aware UTC instant; ``timestamptz`` on PostgreSQL, integer microseconds since 1970 on SQLite (they sort,
  compare and index as numbers; no text to parse).
* ``Json``: a JSON document; type ``json`` on PostgreSQL (not ``jsonb``: the text comes back as it was sent, with the
  order of its keys), text on SQLite. Python sees the decoded value; an ``Encoded`` text is passed through as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import TIMESTAMP, BigInteger, Dialect, Integer, Text, literal_column, types
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

from duly.kernel.clock import from_micros, to_micros

#: 64-bit keys; SQLite only numbers rows by itself in a column declared INTEGER.
Id = BigInteger().with_variant(Integer, "sqlite")


class Instant(types.TypeDecorator[datetime]):
    """An aware instant, UTC in Python whatever the server's zone. A naive one is refused."""

    impl = TIMESTAMP(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> types.TypeEngine[Any]:
        return dialect.type_descriptor(BigInteger() if dialect.name == "sqlite" else TIMESTAMP(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a naive datetime reached the database: {value!r}")
        return to_micros(value) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if dialect.name == "sqlite":
            return from_micros(value)
        out: datetime = value.astimezone(UTC)
        return out


class Encoded(str):
    """JSON text that is encoded already."""

    __slots__ = ()


class _AsJson(FunctionElement[Any]):
    """``CAST(x AS json)`` on PostgreSQL, ``x`` itself on SQLite (where such a cast would make a number of it)."""

    inherit_cache = True
    name = "as_json"


@compiles(_AsJson)
def _plain(element: _AsJson, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(_AsJson, "postgresql")
def _cast_json(element: _AsJson, compiler: Any, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS json)"


class _AsText(FunctionElement[Any]):
    inherit_cache = True
    name = "as_text"


@compiles(_AsText)
def _plain_text(element: _AsText, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(_AsText, "postgresql")
def _cast_text(element: _AsText, compiler: Any, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS text)"


class _JsonText(FunctionElement[str]):
    inherit_cache = True
    name = "json_text"
    type = Text()


@compiles(_JsonText)
def _json_text(element: _JsonText, compiler: Any, **kw: Any) -> str:
    document, name = (compiler.process(one, **kw) for one in element.clauses)
    return f"{document} ->> {name}"  # without brackets, as the database itself tells an index that is made of it


@compiles(_JsonText, "sqlite")
def _json_text_on_sqlite(element: _JsonText, compiler: Any, **kw: Any) -> str:
    document, name = (compiler.process(one, **kw) for one in element.clauses)
    return f"(CASE WHEN json_valid({document}) THEN json_extract({document}, '$.' || {name}) END)"


def json_text(document: ColumnElement[Any], name: str) -> ColumnElement[str]:
    """A member of a JSON document as text, in SQL; null where there is none, and of what is no JSON."""
    return _JsonText(document, literal_column(f"'{name}'"))


class Json(types.UserDefinedType[Any]):
    """A JSON document."""

    cache_ok = True

    def get_col_spec(self, **kw: Any) -> str:
        return "JSON"

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        def process(value: Any) -> Any:
            if value is None or isinstance(value, Encoded):
                return value if value is None else str(value)
            return orjson.dumps(value).decode()

        return process

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        return _AsJson(bindvalue)

    def column_expression(self, column: Any) -> ColumnElement[Any]:
        expression = _AsText(column)
        expression.type = self  # so that results are decoded
        return expression

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        def process(value: Any) -> Any:
            if value is None or not isinstance(value, str | bytes):
                return value
            try:
                return orjson.loads(value)
            except orjson.JSONDecodeError:
                # written by hand, into SQLite: whoever looks sees what stands there, and the rows beside it
                return value

        return process


@compiles(Json, "sqlite")
def _json_on_sqlite(type_: Json, compiler: Any, **kw: Any) -> str:
    return "TEXT"
