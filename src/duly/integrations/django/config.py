"""``DULY = {...}`` in Django's settings: which database, which modules define tasks, and Duly's own settings by their names in capitals.

::

    DULY = {
        "DATABASE": "default",           # the alias of the database whose transactions jobs join
        "MODULES": ["shop.jobs"],        # where tasks are defined besides the modules `tasks` of installed apps
        "MAX_ATTEMPTS": 3, "LEASE": 60,  # any setting of `duly doctor --settings`
    }

Without ``DATABASE_URL``, jobs live in Django's own database. With it they live where it says, outside of the ORM's transactions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from sqlalchemy.engine import URL

from duly.kernel.errors import InvalidArgument
from duly.settings import Settings
from duly.storage.database import parse_url

#: Duly's tables of a database in memory are Duly's alone: its other connections cannot open it.
MEMORY = "sqlite:///:memory:"
#: Options of Django's PostgreSQL backend that are not libpq's.
_NOT_LIBPQ = {
    "assume_role", "autocommit", "client_encoding", "context", "cursor_factory", "isolation_level", "pool", "prepare_threshold",
    "row_factory", "server_side_binding",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Config:
    """What ``DULY`` says."""

    #: The alias of the database.
    alias: str = "default"
    #: Where jobs live, if not in Django's database.
    database_url: str | None = None
    modules: tuple[str, ...] = ()
    #: Does ``manage.py migrate`` make Duly's tables too?
    migrate: bool = True
    #: Duly's own settings, by name.
    duly: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shared(self) -> bool:
        """Do jobs live in Django's database, and join its transactions?"""
        return self.database_url is None

    @classmethod
    def read(cls) -> Config:
        """What Django's settings say. Raises ImproperlyConfigured with the first thing that is wrong."""
        given = getattr(settings, "DULY", {})
        if not isinstance(given, Mapping):
            raise ImproperlyConfigured(f"DULY is of type {type(given).__name__}. Make it a dictionary.")
        left = dict(given)
        alias, url = left.pop("DATABASE", "default"), left.pop("DATABASE_URL", None)
        modules, migrate = left.pop("MODULES", ()), left.pop("MIGRATE", True)
        if alias not in connections.settings:
            raise ImproperlyConfigured(f"DULY['DATABASE'] is {alias!r}, and there is no such alias in DATABASES.")
        if isinstance(modules, str) or not all(isinstance(m, str) for m in modules):
            raise ImproperlyConfigured("DULY['MODULES'] must be a list of names of modules.")
        known = {f.name.upper(): f.name for f in fields(Settings)}
        for key in left:
            if key not in known:
                raise ImproperlyConfigured(
                    f"DULY[{key!r}] is not known. Keys are DATABASE, DATABASE_URL, MODULES, MIGRATE, and Duly's settings in capitals, "
                    "such as MAX_ATTEMPTS (`duly doctor --settings` lists them)."
                )
        made = cls(alias, url, tuple(modules), bool(migrate), {known[key]: value for key, value in left.items()})
        try:
            parse_url(Settings.load(database_url=made.url(), **made.duly).database_url)
        except InvalidArgument as error:
            raise ImproperlyConfigured(f"DULY cannot be used: {error}") from None
        return made

    def url(self) -> str:
        """Where jobs live, for Duly's own connections. While Django tests, that is the test database.

        Raises ImproperlyConfigured for a database that Duly cannot use.
        """
        return self.database_url if self.database_url is not None else url_of(self.alias, connections[self.alias])


def url_of(alias: str, wrapper: Any) -> str:
    """A database of Django's as a URL. Raises ImproperlyConfigured unless it is PostgreSQL or SQLite."""
    said = wrapper.settings_dict
    if wrapper.vendor == "sqlite":
        name = str(said["NAME"])
        if wrapper.is_in_memory_db():
            return MEMORY
        if name.startswith("file:"):
            raise ImproperlyConfigured(
                f"DATABASES[{alias!r}]['NAME'] is a URI, which Duly does not read. Name the file."
            )
        return URL.create("sqlite", database=str(Path(name).expanduser())).render_as_string()
    if wrapper.vendor != "postgresql":
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] is {wrapper.display_name}, and Duly keeps its jobs in PostgreSQL or SQLite. Name another alias with "
            "DULY['DATABASE'], or another database with DULY['DATABASE_URL']."
        )
    options = said["OPTIONS"]
    query = {name: str(value) for name, value in options.items() if name not in _NOT_LIBPQ}
    if role := options.get("assume_role"):
        query["options"] = f"{query.get('options', '')} -c role={role}".strip()
    host = str(said["HOST"] or "")
    if host.startswith("/"):  # the folder of a socket
        query["host"] = host
    return URL.create(
        "postgresql", said["USER"] or None, said["PASSWORD"] or None, None if host.startswith("/") else host or None,
        int(said["PORT"]) if said["PORT"] else None, said["NAME"] or None, query,
    ).render_as_string(hide_password=False)  # fmt: skip
