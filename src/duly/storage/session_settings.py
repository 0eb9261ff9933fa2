"""What Duly's statements rely on in a session of PostgreSQL, and which databases it can work in at all.

Roles, databases, clusters and the environment (``PGCLIENTENCODING``, ``ALTER DATABASE … SET datestyle``) may each set something else.
Duly's own connections set what they rely on when they are opened: one statement. A connection that somebody lends is not changed; the driver
knows its settings without asking, and one that would give wrong answers is refused in words. An encoding other than UTF8 cannot carry every
text, so such a database is refused before anything is written. Source: cases C002, C049; issue 16, G5 and H1.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event, text

from duly.kernel.errors import UnsafeSession, UnsuitableDatabase
from duly.storage.qualified import bind

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


def keep(engine: Engine, settings: dict[str, str], place: Place | None) -> None:
    """Set these on each connection that an engine opens, and let its statements name the schema of Duly's tables."""
    said = "SELECT " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())

    @event.listens_for(engine, "connect")
    def tell(connection: Any, _record: object) -> None:
        before, connection.autocommit = connection.autocommit, True  # one round trip, no transaction
        try:
            cursor = connection.cursor()
            cursor.execute(said)
            if place is not None:
                if place.schema is None:
                    place.schema = found(cursor)
                bind(engine.dialect, place.schema)
            cursor.close()
        finally:
            connection.autocommit = before


def check_lent(connection: Connection) -> None:
    """Raise UnsafeSession where a connection of somebody's would give wrong answers to Duly's statements. Asks the driver, not the server."""
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
