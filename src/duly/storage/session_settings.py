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


def keep(engine: Engine, settings: dict[str, str]) -> None:
    """Set these on each connection that an engine opens."""
    said = "SELECT " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())

    @event.listens_for(engine, "connect")
    def tell(connection: Any, _record: object) -> None:
        before, connection.autocommit = connection.autocommit, True  # one round trip, no transaction
        try:
            cursor = connection.cursor()
            cursor.execute(said)
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
