"""Which schema Duly's tables are in, said in every statement.

On PostgreSQL a bare name means whatever the ``search_path`` of a connection finds first, and a connection that is lent (a session, Django's
own) may have that of a tenant. So each statement names the schema: SQLAlchemy's through the dialect of the engine that compiles it, which
costs nothing when a compiled statement is used again; those written as text through ``text`` of this module; those sent past SQLAlchemy
through ``qualified``. A connection that is lent is bound to the schema where it comes in (``storage/lent.py``). SQLite has no schemas.
Source: case C008, ADR 0047.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from sqlalchemy import Dialect, TextClause
from sqlalchemy.ext.compiler import compiles

from duly.kernel.errors import InvalidArgument
from duly.storage.schema import metadata

#: Where a dialect keeps the schema: with what quotes its names.
_KEPT = "duly_schema"
#: A table that migrations make beside those of the rooms.
VERSION_TABLE = "duly_version"
#: Where the metadata keeps the names of a room's views.
VIEWS = "views"


class _Text(TextClause):
    inherit_cache = True


def text(sql: str) -> TextClause:
    """As SQLAlchemy's, for SQL that names tables of Duly's: they are looked for in their schema."""
    return _Text(sql)


@compiles(_Text)
def _said(element: _Text, compiler: Any, **kw: Any) -> str:
    plain: str = compiler.visit_textclause(element, **kw)
    return qualified(plain, getattr(compiler.preparer, _KEPT, None))


def schema_of(dialect: Dialect) -> str | None:
    """The schema that statements compiled by a dialect name; None where they name none."""
    found: str | None = getattr(dialect.identifier_preparer, _KEPT, None)
    return found


def bind(dialect: Dialect, schema: str | None) -> None:
    """From here on, statements that a dialect compiles name this schema for Duly's tables, and for no others.

    Raises InvalidArgument where it is bound to another one: what was compiled is kept by its engine.
    """
    preparer: Any = dialect.identifier_preparer
    before = getattr(preparer, _KEPT, None)
    if schema is None or schema == before:
        return
    if before is not None:
        raise InvalidArgument(
            "schema", f"is {schema!r}, and this engine is used for the tables in {before!r} already.", "Use an engine for each."
        )  # fmt: skip

    def ours(plain: Any) -> Any:
        return lambda thing: schema if getattr(thing, "metadata", None) is metadata else plain(thing)

    translated = preparer._with_schema_translate

    def with_translate(names: Any) -> Any:
        made = translated(names)  # a session's own map is about its own tables
        made.schema_for_object = ours(made.schema_for_object)
        return made

    preparer.schema_for_object = ours(preparer.schema_for_object)
    preparer._with_schema_translate = with_translate
    setattr(preparer, _KEPT, schema)


@lru_cache(maxsize=1024)
def qualified(sql: str, schema: str | None) -> str:
    """SQL with the schema before each of Duly's tables. ``schema`` None: as it is."""
    if schema is None:
        return sql
    before = f"{quoted(schema)}."
    within = before.replace("'", "''")

    def named(found: re.Match[str]) -> str:
        return f"{found[1]}{within if found[1] == chr(39) else before}{found[2]}"

    return _names(len(metadata.tables)).sub(named, sql)


@lru_cache(maxsize=1)
def _names(_count: int) -> re.Pattern[str]:
    """Where a table is named: behind these words, or in quotes as what a name is looked up by. Rooms register theirs when they are loaded."""
    names = "|".join(
        sorted(
            [table.name for table in metadata.tables.values()] + [VERSION_TABLE, *metadata.info.get(VIEWS, ())],
            key=len,
            reverse=True,
        )
    )
    return re.compile(rf"(\b(?:FROM|JOIN|INTO|UPDATE|COPY)\s+|'(?={names}'))({names})\b(?!\.)")


def quoted(name: str) -> str:
    """An identifier as PostgreSQL reads it, whatever it is made of."""
    return '"' + name.replace('"', '""') + '"'
