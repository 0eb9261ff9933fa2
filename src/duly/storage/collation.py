"""Texts that are keys, names and tokens are compared as bytes: COLLATE "C" (PostgreSQL).

A database sorts texts by the C library of its machine. When that changes (another image, another release), indexes that were sorted by the
old one no longer find what is in them: a unique key is taken twice, a queue's jobs are not found. So no index of Duly's tables is sorted by
the database's collation. Migrations need not think of it: after each of them the catalog is asked what is left, table by table.

A large table's indexes are first built anew beside the old ones, which blocks nobody, and then put in their place; the column takes them
over as they are. Source: case C003, ADR 0048.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, exc, text

from duly.storage.qualified import quoted

#: Bytes from which a table's indexes are built anew beside the old ones; below, that takes a moment.
LARGE = 32 << 20
#: Seconds for which building beside others waits for transactions that are older. Nobody stands behind it meanwhile.
LONG = 30
#: Text columns of indexes, sorted by the database's collation: of a table, or of all in a list.
_LEFT = text("""
    SELECT DISTINCT c.relname, t.attname
      FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid
      JOIN pg_attribute t ON t.attrelid = c.oid AND t.attnum = ANY(x.indkey)
     WHERE c.oid = ANY(CAST(:tables AS regclass[])) AND t.atttypid = CAST('text' AS regtype) AND t.attcollation = CAST('pg_catalog."default"' AS regcollation)
     ORDER BY c.relname, t.attname""")
_ROWS = text("SELECT reltuples FROM pg_class WHERE oid = CAST(:table AS regclass)")
_SIZE = text("SELECT pg_table_size(CAST(:table AS regclass))")
_INDEXES = text("""
    SELECT i.relname, am.amname, x.indisunique, pg_get_expr(x.indpred, x.indrelid), array_to_string(i.reloptions, ', '), k.conname, k.contype,
           (SELECT json_agg(json_build_array(pg_get_indexdef(x.indexrelid, n, false), x.indoption[n - 1], x.indkey[n - 1] = ANY(:numbers), x.indkey[n - 1] <> 0) ORDER BY n)
              FROM generate_series(1, x.indnkeyatts) AS n),
           x.indnatts > x.indnkeyatts
      FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_am am ON am.oid = i.relam
      LEFT JOIN pg_constraint k ON k.conindid = x.indexrelid AND k.contype IN ('p', 'u')
     WHERE x.indrelid = CAST(:table AS regclass) AND x.indisvalid AND CAST(x.indkey AS int2[]) && CAST(:numbers AS int2[])""")
_NUMBERS = text("SELECT attnum FROM pg_attribute WHERE attrelid = CAST(:table AS regclass) AND attname = ANY(:columns)")
#: Views that read these columns of a table, with what is needed to make them again.
_VIEWS = text("""
    SELECT DISTINCT v.oid, CAST(CAST(v.oid AS regclass) AS text), pg_get_viewdef(v.oid), array_to_string(v.reloptions, ', '), quote_ident(pg_get_userbyid(v.relowner)),
           (SELECT array_agg(format('GRANT %s ON %s TO %s', g.privilege_type, CAST(v.oid AS regclass), CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END))
              FROM aclexplode(v.relacl) AS g WHERE g.grantee <> v.relowner)
      FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = CAST('pg_rewrite' AS regclass) JOIN pg_class v ON v.oid = r.ev_class
     WHERE d.refclassid = CAST('pg_class' AS regclass) AND d.refobjid = CAST(:table AS regclass) AND v.relkind = 'v'
     ORDER BY v.oid""")
_VALID = text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")


@dataclass(frozen=True, slots=True)
class Left:
    """A table with columns that are yet to be compared as bytes. ``name``: as SQL writes it."""

    schema: str
    table: str
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.table)}"


def left(connection: Connection, schema: str, tables: Sequence[str]) -> list[Left]:
    """The tables, of these, in whose indexes a text is sorted by the database's collation."""
    found: dict[str, list[str]] = {}
    for table, column in connection.execute(_LEFT, {"tables": list(tables)}):
        found.setdefault(table, []).append(column)
    return [Left(schema, table, tuple(columns)) for table, columns in found.items()]


def is_large(connection: Connection, one: Left) -> bool:
    return int(connection.execute(_SIZE, {"table": one.name}).scalar_one()) > LARGE


def _beside(index: str) -> str:
    """The name of an index that is built to take another one's place."""
    return f"duly_c_{hashlib.blake2b(index.encode(), digest_size=10).hexdigest()}"


def _indexes(connection: Connection, one: Left) -> list[tuple[str, str | None, str | None, str]]:
    """(name, constraint, its kind, statement of the one beside it) of each index that is to be built anew."""
    numbers = list(connection.execute(_NUMBERS, {"table": one.name, "columns": list(one.columns)}).scalars())
    out = []
    for index, method, unique, predicate, options, constraint, kind, keys, wider in connection.execute(
        _INDEXES, {"table": one.name, "numbers": numbers}
    ):
        if method != "btree" or wider or index.startswith("duly_c_"):
            continue  # not one of ours: it is rebuilt with its column
        parts = [_key(*key) for key in keys]
        statement = f"CREATE {'UNIQUE ' if unique else ''}INDEX CONCURRENTLY {_beside(index)} ON {one.name} ({', '.join(parts)})"
        statement += f" WITH ({options})" if options else ""
        statement += f" WHERE {predicate}" if predicate else ""
        out.append((index, constraint, kind, statement))
    return out


def _key(written: str, option: int, of_text: bool, plain: bool) -> str:
    """A key of an index, as it is to be: PostgreSQL writes its options as bits (1: descending, 2: nulls first)."""
    key = written if plain else f"({written})"
    order = {0: "", 1: " DESC NULLS LAST", 2: " NULLS FIRST", 3: " DESC"}[option & 3]
    return f'{key} COLLATE pg_catalog."C"{order}' if of_text else f"{key}{order}"


def build(connection: Connection, one: Left) -> None:
    """Build the indexes of a large table beside the old ones. The connection is in no transaction (autocommit)."""
    connection.exec_driver_sql(f"SET lock_timeout = '{LONG}s'")
    connection.exec_driver_sql("SET statement_timeout = 0")
    try:
        for index, _, _, statement in _indexes(connection, one):
            name = f"{quoted(one.schema)}.{_beside(index)}"
            valid = connection.execute(_VALID, {"name": name}).scalar()
            if valid:
                continue
            if valid is False:  # one that was broken off
                connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY {name}")
            connection.exec_driver_sql(statement.replace("%", "%%"))
    finally:
        connection.exec_driver_sql("RESET lock_timeout")
        connection.exec_driver_sql("RESET statement_timeout")


def analyse(connection: Connection, one: Left) -> None:
    """Let the planner know the columns again: a change of their type makes it forget them. Not of an empty table, which it would take for one
    that stays small."""
    if connection.execute(_ROWS, {"table": one.name}).scalar_one() > 0:
        connection.exec_driver_sql(f"ANALYZE {one.name}")


def collate(connection: Connection, one: Left) -> bool:
    """Let the columns of a table be compared as bytes, in the transaction of a connection: a moment, where its indexes were built before.

    Views of these columns are made again, with their rights. False where something else of somebody's depends on such a column: the table
    stays as it is.
    """
    alter = f"ALTER TABLE {one.name} "
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"LOCK TABLE {one.name} IN ACCESS EXCLUSIVE MODE")
            built = [
                (index, constraint, kind)
                for index, constraint, kind, _ in _indexes(connection, one)
                if connection.execute(_VALID, {"name": f"{quoted(one.schema)}.{_beside(index)}"}).scalar()
            ]
            for index, constraint, _ in built:
                connection.exec_driver_sql(
                    f"{alter}DROP CONSTRAINT {quoted(constraint)}" if constraint else f"DROP INDEX {quoted(one.schema)}.{quoted(index)}"
                )  # fmt: skip
            views = connection.execute(_VIEWS, {"table": one.name}).all()
            for _, view, *_ in views:
                connection.exec_driver_sql(f"DROP VIEW {view}")
            changes = [f'ALTER COLUMN {quoted(c)} TYPE text COLLATE pg_catalog."C"' for c in one.columns]
            connection.exec_driver_sql(alter + ", ".join(changes))
            for index, constraint, kind in built:
                of = "PRIMARY KEY" if kind == "p" else "UNIQUE"
                connection.exec_driver_sql(
                    f"{alter}ADD CONSTRAINT {quoted(constraint)} {of} USING INDEX {_beside(index)}"
                    if constraint
                    else f"ALTER INDEX {quoted(one.schema)}.{_beside(index)} RENAME TO {quoted(index)}"
                )
            for _, view, definition, options, owner, grants in views:
                made = f"CREATE VIEW {view}{f' WITH ({options})' if options else ''} AS {definition}"
                for statement in (made, f"ALTER VIEW {view} OWNER TO {owner}", *(grants or ())):
                    connection.exec_driver_sql(statement.replace("%", "%%"))
    except (exc.NotSupportedError, exc.InternalError) as error:
        if getattr(error.orig, "sqlstate", None) not in ("0A000", "2BP01"):
            raise
        return False
    return True
