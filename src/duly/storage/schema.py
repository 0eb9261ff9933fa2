"""The one MetaData every room's tables hang on, and how constraints are named."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Index, MetaData, Table, Text, UniqueConstraint, text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def ddl(**words: Any) -> dict[str, Any]:
    """For the ``info`` of a table or an index: what one database is to be told when the thing is made (``sqlite_autoincrement=True``).

    Said to SQLAlchemy itself, such a word loads the whole dialect of its database, and a worker needs that of its own only.
    """
    return {"ddl": words}


def where(condition: str) -> dict[str, Any]:
    """For the ``info`` of an index: it is of these rows only."""
    return ddl(postgresql_where=text(condition), sqlite_where=text(condition))


def byte_columns(table: Table) -> list[str]:
    """Columns whose texts are compared as bytes (COLLATE "C"): those of keys, unique constraints and indexes. See ``collation``."""
    groups: list[Any] = [table.primary_key, *table.indexes]
    groups += [one for one in table.constraints if isinstance(one, UniqueConstraint)]
    of_text = {column.name for group in groups for column in group.columns if isinstance(column.type, Text)}
    return [column.name for column in table.columns if column.name in of_text]


def complete(table: Table) -> Table:
    """The same table, as its database is to make it."""
    things: list[Table | Index] = [table, *table.indexes]
    for thing in things:
        for word, value in thing.info.get("ddl", {}).items():
            dialect, _, name = word.partition("_")
            thing.dialect_options[dialect][name] = value
    return table
