"""What Duly's statements rely on in a session of PostgreSQL, and which databases it can work in at all.

Roles, databases, clusters and the environment (``PGCLIENTENCODING``, ``ALTER DATABASE … SET datestyle``) may each set something else.
Duly's own connections set what they rely on when they are opened: one statement. With a ``search_path`` that names ``pg_catalog`` behind another
schema, ``=``, ``now()`` and ``lower()`` are whatever that schema says: Duly's own connections look in ``pg_catalog`` and the schema of its tables
only. A connection that somebody lends is not changed; the driver
knows its settings without asking, and one that would give wrong answers is refused in words. An encoding other than UTF8 cannot carry every
text, so such a database is refused before anything is written. Source: cases C002, C049; issue 16, G5 and H1.
"""

from __future__ import annotations

import re
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event, text

from duly.kernel.errors import UnsafeSession, UnsuitableDatabase
from duly.storage.qualified import bind, quoted

#: For connections that only Duly uses. A limit on the time of a statement or a transaction stays the administrator's to set.
OWN = {
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "standard_conforming_strings": "on",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
}
#: What a pooler in transaction mode carries from one server connection to the next, because the server reports it.
CARRIED = ("DateStyle", "TimeZone", "standard_conforming_strings")
#: For sessions of ``Database.session_engine``, in which handlers write their own rows: what the driver itself needs to read values.
SESSION = {"DateStyle": "ISO", "IntervalStyle": "postgres"}
#: Limits that cut off work, and where they were set: for ``duly doctor``.
LIMITS = ("statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout", "idle_session_timeout")


def own(pooled: bool) -> dict[str, str]:
    """The settings of Duly's own connections. ``pooled``: behind a pooler in transaction mode."""
    return {name: OWN[name] for name in CARRIED} if pooled else OWN


class Place:
    """The schema of Duly's tables: as it is set, or where the first connection finds them, or would make them."""

    def __init__(self, given: str) -> None:
        self.schema: str | None = given or None


#: Where the ``search_path`` that a connection began with finds Duly's tables, or else would make them. A tenant's, set later, does not count.
_FOUND = """
SELECT n.nspname
  FROM (SELECT btrim(part) AS part, number FROM unnest(string_to_array((SELECT reset_val FROM pg_settings WHERE name = 'search_path'), ',')) WITH ORDINALITY AS s(part, number)) AS p
  JOIN pg_namespace n ON n.nspname = CASE WHEN p.part = '"$user"' THEN current_user ELSE btrim(p.part, '"') END
  LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'duly_version'
 ORDER BY c.oid IS NULL, p.number LIMIT 1"""


def found(cursor: Any) -> str | None:
    """The schema of Duly's tables, asked on a cursor of the driver; None where the search path names no schema that is there."""
    cursor.execute(_FOUND)
    row = cursor.fetchone()
    return None if row is None else str(row[0])


_PATH = "pg_catalog.current_setting('search_path')"
_PART = re.compile(r'"(?:[^"]|"")*"|[^,\s]+')


def catalog_first(path: str) -> str | None:
    """A search path in which ``pg_catalog`` is the first as it is by itself, and all else as it was; None where it is the first already."""
    parts = _PART.findall(path)
    catalog = [part for part in parts if part.strip('"').lower() == "pg_catalog"]
    if not catalog or parts[0] in catalog:
        return None
    return ", ".join(part for part in parts if part not in catalog) or "pg_catalog"


def _ahead(path: str) -> list[str]:
    """The schemas that a search path names before ``pg_catalog``."""
    parts = [part.strip('"').replace('""', '"') for part in _PART.findall(path)]
    return parts[: parts.index("pg_catalog")]


def _array(names: list[str]) -> str:
    return "ARRAY[{}]".format(", ".join("'" + name.replace("'", "''") + "'" for name in names))


def _look_in(cursor: Any, path: str) -> None:
    escaped = path.replace("'", "''")
    cursor.execute(f"SELECT pg_catalog.set_config('search_path', '{escaped}', false)")


def keep(
    engine: Engine, settings: dict[str, str], place: Place | None, *, alone: bool = False, pooled: bool = False
) -> None:
    """Set these on each connection that an engine opens, and let its statements name the schema of Duly's tables. ``alone``: nobody but Duly
    uses the connection, so nothing needs to be found by a search path. ``pooled``: behind a pooler in transaction mode, which does not carry a
    search path along; one that is not fit is refused."""
    sets = [f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in settings.items()]
    said = f"SELECT {', '.join([_PATH, *sets])}"

    @event.listens_for(engine, "connect")
    def tell(connection: Any, _record: object) -> None:
        before, connection.autocommit = connection.autocommit, True  # one round trip, no transaction
        try:
            cursor = connection.cursor()
            cursor.execute(said)
            path = str(cursor.fetchone()[0])
            fit = catalog_first(path)
            if pooled and fit is not None:
                cursor.execute(_FOREIGN.format(ahead=_array(_ahead(path))))
                _refuse_foreign(path, cursor.fetchone())
            elif fit is not None:
                _look_in(cursor, fit)
            if place is not None:
                if place.schema is None:
                    place.schema = found(cursor)
                if alone and not pooled and place.schema is not None:
                    _look_in(cursor, quoted(place.schema))
                bind(engine.dialect, place.schema)
            cursor.close()
        finally:
            connection.autocommit = before


#: What the schemas before ``pg_catalog`` have that stands for something of its: one of each kind, in words.
_FOREIGN = """
WITH ahead AS (SELECT n.oid, n.nspname FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) ANY (CAST({ahead} AS pg_catalog.name[]))),
     home AS (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.name)
SELECT ahead.nspname, 'function', p.proname FROM ahead JOIN pg_catalog.pg_proc p ON p.pronamespace OPERATOR(pg_catalog.=) ahead.oid
  JOIN pg_catalog.pg_proc q ON q.proname OPERATOR(pg_catalog.=) p.proname AND q.proargtypes OPERATOR(pg_catalog.=) p.proargtypes
  JOIN home ON q.pronamespace OPERATOR(pg_catalog.=) home.oid
UNION ALL
SELECT ahead.nspname, 'operator', o.oprname FROM ahead JOIN pg_catalog.pg_operator o ON o.oprnamespace OPERATOR(pg_catalog.=) ahead.oid
  JOIN pg_catalog.pg_operator q ON q.oprname OPERATOR(pg_catalog.=) o.oprname AND q.oprleft OPERATOR(pg_catalog.=) o.oprleft
   AND q.oprright OPERATOR(pg_catalog.=) o.oprright JOIN home ON q.oprnamespace OPERATOR(pg_catalog.=) home.oid
UNION ALL
SELECT ahead.nspname, 'type', t.typname FROM ahead JOIN pg_catalog.pg_type t ON t.typnamespace OPERATOR(pg_catalog.=) ahead.oid
  JOIN pg_catalog.pg_type q ON q.typname OPERATOR(pg_catalog.=) t.typname JOIN home ON q.typnamespace OPERATOR(pg_catalog.=) home.oid
LIMIT 1"""
#: Connections of somebody's, by the driver's object: the search path that was looked at, and was fit.
_fit: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _check_path(connection: Connection) -> None:
    """Refuse a connection for which ``=``, ``now()`` or ``text`` is something of a schema's own. Newer servers report the path each time that it
    changes; of others it is asked once for each connection, so as not to cost a round trip each time."""
    driver, told = connection.connection.driver_connection, _reported(connection, "search_path")
    if (known := _fit.get(driver)) is not None and told in (None, known):
        return
    path = told or str(connection.exec_driver_sql(f"SELECT {_PATH}").scalar_one())
    if catalog_first(path) is not None:
        asked = text(_FOREIGN.format(ahead=":ahead"))
        _refuse_foreign(path, connection.execute(asked, {"ahead": _ahead(path)}).first())
    _fit[driver] = path


def _refuse_foreign(path: str, found: Any) -> None:
    if found is None:
        return
    schema, kind, name = found
    raise UnsafeSession(
        f"this connection cannot carry Duly's statements: its search_path is {path!r}, and the schema {schema} has its own {kind} {name}, which "
        "would stand for PostgreSQL's. Leave pg_catalog out of the search_path (it comes first by itself), or put it first."
    )


def check_lent(connection: Connection) -> None:
    """Raise UnsafeSession where a connection of somebody's would give wrong answers to Duly's statements. Asks the driver; the server only once
    for each connection."""
    _check_path(connection)
    style, encoding = (_reported(connection, name) for name in ("DateStyle", "client_encoding"))
    if encoding is not None and encoding.upper().replace("-", "") != "UTF8":
        raise UnsafeSession(
            f"this connection cannot carry Duly's statements: its client encoding is {encoding}, so texts would be stored as other texts. "
            "Set it to UTF8: SET client_encoding = 'UTF8', or remove PGCLIENTENCODING from the environment."
        )
    if style is not None and not style.startswith("ISO"):
        raise UnsafeSession(
            f"this connection cannot carry Duly's statements: its DateStyle is {style!r}, which the driver cannot read. "
            "Set it to ISO: SET datestyle = 'ISO', or ALTER ROLE … SET datestyle = 'ISO'."
        )
    check_encoding(_reported(connection, "server_encoding"), "the database of this connection")


def _reported(connection: Connection, name: str) -> str | None:
    """A setting as the server has reported it to the driver; None where the driver does not tell (asyncpg sets its own)."""
    driver: Any = connection.connection.driver_connection
    info = getattr(driver, "info", None)
    ask = getattr(info, "parameter_status", None) or getattr(driver, "get_parameter_status", None)
    found = ask(name) if ask is not None else None
    return str(found) if found else None


def encoding(connection: Connection) -> str:
    """How a database stores texts."""
    asked = "PRAGMA encoding" if connection.dialect.name == "sqlite" else "SELECT current_setting('server_encoding')"
    return str(connection.execute(text(asked)).scalar_one())


def check_encoding(found: str | None, where: str) -> None:
    """Raise UnsuitableDatabase unless it is UTF-8. None: it is not known."""
    if found is None or found.upper().replace("-", "") == "UTF8":
        return
    make = (
        "open a new file with Duly"
        if found.startswith("UTF-16")
        else "createdb --encoding=UTF8 --template=template0 NAME"
    )
    raise UnsuitableDatabase(
        f"the encoding of {where} is {found}, and Duly needs UTF8: in another encoding texts are refused, or come back as other texts. "
        f"Create a database with it ({make}), and name that one."
    )
