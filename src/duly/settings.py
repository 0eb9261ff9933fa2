"""Every setting, once: its name, variable, unit, default and reason.

A setting ``lease`` is read from ``DULY_LEASE``. Arguments of ``Duly(...)`` win over the environment, the environment wins
over the default. ``duly doctor --settings`` prints this table, and the reference in the docs is made from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from duly.kernel.errors import InvalidArgument

PREFIX = "DULY_"


def _setting(default: Any, unit: str, reason: str, *, low: float | None = None, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"unit": unit, "reason": reason, "low": low, "choices": choices})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings with their values. Times are seconds unless the unit says otherwise."""

    database_url: str = _setting(
        "sqlite:///duly.db", "URL", "An SQLite file to begin with, a postgresql:// URL when that is outgrown."
    )
    lease: float = _setting(
        30.0,
        "s",
        "How long a worker holds a job without renewing. A crash is noticed within this plus one pass.",
        low=0.5,
    )
    grace: float = _setting(
        25.0, "s", "How long a stopping worker lets running jobs finish before it cancels them.", low=0
    )
    poll: float = _setting(
        1.0,
        "s",
        "How often an idle worker looks for work when no wake-up comes. Wake-ups are hints, polling is the rule.",
        low=0.01,
    )
    concurrency: int = _setting(
        20, "jobs", "How many jobs of one queue a worker runs at once, unless the queue is given its own number.", low=1
    )
    claim_batch: int = _setting(500, "jobs", "The most jobs taken in one claim.", low=1)
    max_attempts: int = _setting(4, "attempts", "How often a job may run in all: 3 retries are 4 attempts.", low=1)
    max_payload: int = _setting(262_144, "bytes", "The largest input or output of a job, encoded.", low=256)
    retention: float = _setting(
        14 * 86_400.0,
        "s",
        "How long finished jobs are kept before the worker prunes them. 0 keeps them for ever.",
        low=0,
    )
    schedule_grace: float = _setting(
        15.0,
        "s",
        "An occurrence of a schedule that is found within this span of its planned instant is not late.",
        low=0,
    )
    schedule_retention: float = _setting(
        400 * 86_400.0,
        "s",
        "How long the ledger keeps occurrences of schedules. 0 keeps them for ever.",
        low=0,
    )
    key_retention: float = _setting(
        0.0,
        "s",
        "How long the idempotency key of a finished job is remembered. 0 remembers it for ever.",
        low=0,
    )
    sqlite_synchronous: str = _setting(
        "FULL",
        "",
        "FULL survives a power cut; NORMAL may lose the last commits, but is never corrupt.",
        choices=("FULL", "NORMAL", "EXTRA"),
    )
    busy_timeout: float = _setting(
        30.0, "s", "How long a write waits for another process that is writing to the same SQLite file.", low=0
    )
    pool_size: int = _setting(
        10, "connections", "The most PostgreSQL connections this process opens, besides the listener.", low=3
    )
    session_pool: int = _setting(
        10,
        "connections",
        "The most PostgreSQL connections for transactional handlers and sessions of app.db.session_engine.",
        low=1,
    )
    pooler: str = _setting(
        "none",
        "",
        "'transaction' behind PgBouncer in transaction mode: no prepared statements, no LISTEN.",
        choices=("none", "transaction"),
    )
    notify: bool = _setting(
        True,
        "",
        "Send one NOTIFY per enqueueing transaction and queue on PostgreSQL, so that idle workers wake at once.",
    )
    audit_success: bool = _setting(
        True,
        "",
        "Write an audit row for each job that succeeds. Failures and operators' acts are always audited.",
    )
    tenant: str = _setting("default", "", "The tenant of jobs that name none.")
    log_level: str = _setting(
        "info", "", "The least important events that are logged.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = _setting(
        "auto", "", "json, console, or auto: console on a terminal.", choices=("auto", "json", "console")
    )

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **given: Any) -> Settings:
        """Settings from arguments, then the environment, then defaults.

        Raises InvalidArgument naming the setting or the variable.
        """
        environ = os.environ if environ is None else environ
        hints = get_type_hints(cls)
        values: dict[str, Any] = {}
        for f in fields(cls):
            variable = PREFIX + f.name.upper()
            if given.get(f.name) is not None:
                source, raw = f.name, given.pop(f.name)
            elif variable in environ:
                given.pop(f.name, None)
                source, raw = variable, environ[variable]
            else:
                given.pop(f.name, None)
                continue
            values[f.name] = _parse(f.name, source, raw, hints[f.name], f.metadata)
        if given:
            known = ", ".join(f.name for f in fields(cls))
            raise InvalidArgument(next(iter(given)), "is not a setting of Duly.", f"Settings are: {known}.")
        return cls(**values)

    @classmethod
    def describe(cls) -> list[dict[str, Any]]:
        """One entry per setting: name, variable, unit, default, reason."""
        return [
            {
                "name": f.name,
                "variable": PREFIX + f.name.upper(),
                "unit": f.metadata["unit"],
                "default": f.default,
                "reason": f.metadata["reason"],
            }
            for f in fields(cls)
        ]


def _parse(name: str, source: str, raw: Any, kind: Any, meta: Mapping[str, Any]) -> Any:
    choices, low = meta["choices"], meta["low"]
    if isinstance(raw, str) and choices:
        matches = [c for c in choices if c.lower() == raw.strip().lower()]
        if not matches:
            raise InvalidArgument(source, f"is {raw!r}.", f"Choose one of: {', '.join(choices)}.")
        return matches[0]
    try:
        value = TypeAdapter(kind).validate_python(raw.strip() if isinstance(raw, str) else raw)
    except ValidationError as error:
        raise InvalidArgument(source, f"is {raw!r}: {error.errors()[0]['msg']}.") from None
    if low is not None and not value >= low:
        raise InvalidArgument(source, f"is {value:g}; the least allowed is {low:g}.")
    return value
