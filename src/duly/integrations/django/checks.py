"""What ``manage.py check`` says about Duly."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

from duly.integrations.django.config import MEMORY, Config


def check_settings(**_: Any) -> list[CheckMessage]:
    """Can ``DULY`` be used, and does its database suit workers?"""
    try:
        config = Config.read()
        url = config.url()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="duly.E001")]
    if not config.shared:
        return [
            Warning(
                "DULY['DATABASE_URL'] puts jobs outside of Django's database: what is enqueued in transaction.atomic() stays when it is "
                "rolled back.",
                hint="Leave it out to have jobs in the ORM's transactions, or silence duly.W001.",
                id="duly.W001",
            )
        ]
    if connections[config.alias].vendor != "sqlite":
        return []
    if url == MEMORY:
        return [
            Warning(
                f"DATABASES[{config.alias!r}] is in memory, where no worker finds its jobs.",
                hint="Name a file.",
                id="duly.W002",
            )
        ]
    return _check_sqlite(config.alias)


def _check_sqlite(alias: str) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if not connections[alias].settings_dict["AUTOCOMMIT"]:
        found.append(
            Warning(
                f"DATABASES[{alias!r}] is SQLite with autocommit off. Its savepoints do not hold then, and jobs are not enqueued.",
                hint='Leave "AUTOCOMMIT" out, and enqueue inside of transaction.atomic().',
                id="duly.W004",
            )
        )
    mode = str(connections[alias].settings_dict["OPTIONS"].get("transaction_mode") or "DEFERRED").upper()
    if mode == "DEFERRED":
        found.append(
            Warning(
                f"Transactions of DATABASES[{alias!r}] begin deferred. Beside a worker, one that reads before it writes fails at once with "
                "'database is locked', whatever the timeout.",
                hint='Set "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30}.',
                id="duly.W003",
            )
        )
    return found


def check_tables(**_: Any) -> list[CheckMessage]:
    """Does a model of the project have the name of one of Duly's tables?"""
    from duly.storage.migrate import all_metadata
    from duly.storage.qualified import VERSION_TABLE

    try:
        config = Config.read()
    except ImproperlyConfigured:
        return []  # said already
    if not config.shared:
        return []
    ours = {table.name for table in all_metadata().tables.values()} | {VERSION_TABLE}
    return [
        Error(
            f"The table {model._meta.db_table!r} of {model._meta.label} has the name of one of Duly's.",
            hint="Give the model another db_table, or put Duly into another database with DULY['DATABASE'].",
            obj=model,
            id="duly.E002",
        )
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed and model._meta.db_table in ours and router.allow_migrate_model(config.alias, model)
    ]
