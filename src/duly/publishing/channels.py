"""The channels of an application: declared in code, or read from the file that the setting ``publish_channels`` names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_name, read_seconds
from duly.kernel.source import InvalidDocument
from duly.kernel.source import read as read_source
from duly.publishing.channel import (
    Channel,
    Unknown,
    backoff_of,
    read_backoff,
    read_blackouts,
    read_breaker,
    read_channels,
    read_rate,
)
from duly.publishing.connectors.base import Connector
from duly.publishing.function import FunctionConnector, Run
from duly.publishing.host import Host
from duly.storage.database import parse_url


class Channels:
    """Every channel that is known, by name. The file is read when one is first asked for, and again until it could be read."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._declared: dict[str, Channel] = {}
        self._read_file = False
        self._from_file: frozenset[str] = frozenset()

    def declare(
        self, name: str, connector: str | Connector | Callable[[Run], Any], limit: int | None = 1, rate: Any = None, max_attempts: int | None = None,
        backoff: Any = None, unknown: Unknown = "hold", breaker: Any = None, apart: Duration = 60.0, blackouts: Any = None, **options: Any,
    ) -> Channel:  # fmt: skip
        """Declare a channel, or replace one. Raises InvalidArgument naming the field."""
        made = self._made(
            name, connector, limit, rate, max_attempts, backoff, unknown, breaker, apart, blackouts, options
        )
        self._declared[name] = made
        return made

    def _made(
        self, name: str, connector: object, limit: int | None, rate: Any, max_attempts: int | None, backoff: Any, unknown: Unknown, breaker: Any,
        apart: Duration, blackouts: Any, options: Mapping[str, Any],
    ) -> Channel:  # fmt: skip
        settings = self._app.settings
        check_name(name, "channel")
        default = backoff_of(
            settings.publish_backoff_base, settings.publish_backoff_factor, settings.publish_backoff_max
        )
        attempts = settings.publish_max_attempts if max_attempts is None else max_attempts
        told: Any = None  # what is wrong with the channel is said before its connector is made
        made = Channel(
            name, told, limit, read_rate(rate), attempts, read_backoff(backoff, default), unknown, read_breaker(breaker),
            read_seconds(apart, "apart", 0),
            read_blackouts(blackouts, name),
        )  # fmt: skip
        return replace(made, connector=self._connector(connector, options))

    def _connector(self, given: object, options: Mapping[str, Any]) -> Connector:
        if isinstance(given, str):
            from duly.publishing.connectors import registry

            settings, engine = self._app.settings, self._app.engine
            return registry.make(
                given, options, clock=engine.clock, enqueue=self._app.aenqueue, beside=_folder(settings.database_url)
            )
        if options:
            raise InvalidArgument(
                next(iter(options)), "is not an option of a channel.", "Options of a connector go with its name."
            )
        if hasattr(given, "publish") and hasattr(given, "reconcile"):
            return given  # type: ignore[return-value]  # what it lacks, its first use says
        if callable(given):
            return FunctionConnector(given)
        raise InvalidArgument(
            "connector", f"is of type {type(given).__name__}.", "Give a name, a connector or a function."
        )

    def all(self) -> dict[str, Channel]:
        """Every channel, by name, in the order of declaration; those of the file come last. Raises InvalidDocument."""
        self._load()
        return dict(self._declared)

    def known(self, name: str) -> Channel | None:
        """A channel; None where there is none. Raises InvalidDocument."""
        self._load()
        return self._declared.get(name)

    def get(self, name: object) -> Channel:
        """A channel. Raises InvalidArgument, InvalidDocument."""
        check_name(name, "channel")  # type: ignore[arg-type]
        found = self.known(str(name))
        if found is None:
            known = ", ".join(self._declared) or "none"
            raise InvalidArgument("channel", f"is {name!r}, and no channel is called so.", f"Known are: {known}.")
        return found

    def reload(self) -> None:
        """Read the file again, with the environment and the files of secrets as they are now. What cannot be read stays as it was read last."""
        if self._read_file:
            fresh = Channels(self._app)
            fresh._declared = {name: one for name, one in self._declared.items() if name not in self._from_file}
            try:
                fresh._load()
            except InvalidDocument:
                return
            self._declared, self._from_file = fresh._declared, fresh._from_file

    def _load(self) -> None:
        file = self._app.settings.publish_channels
        if self._read_file or not file:
            return
        found: dict[str, Channel] = {}

        def make(name: str, fields: Mapping[str, Any]) -> None:
            given = dict(fields)
            options = given.pop("options", None) or {}
            if not isinstance(options, Mapping):
                raise InvalidArgument("options", f"is of type {type(options).__name__}.", "Give a mapping.")
            if not isinstance(given["connector"], str):
                raise InvalidArgument("connector", f"is {given['connector']!r}.", "Give the name of a connector.")
            taken = [o for o in options if o in given or o == "name"]
            if taken:
                raise InvalidArgument(f"options.{taken[0]}", "is a field of the channel.")
            if name not in self._declared:  # what code declares goes before
                said = {
                    "limit": 1,
                    "rate": None,
                    "max_attempts": None,
                    "backoff": None,
                    "unknown": "hold",
                    "breaker": None,
                    "apart": 60.0,
                    "blackouts": None,
                }
                found[name] = self._made(name, **said | given, options={str(o): v for o, v in options.items()})  # fmt: skip

        read_channels(read_source(file), os.environ, make)
        # all of them or none: half a file is no file
        self._declared |= found
        self._read_file, self._from_file = True, frozenset(found)


def _folder(database_url: str) -> Path | None:
    """The folder of an SQLite file; None where the database is none."""
    url = parse_url(database_url)
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    return Path(url.database).expanduser().parent
