"""Alembic's entry: it is given a connection, or prints SQL for a dialect."""

from __future__ import annotations

from typing import Any

from alembic import context

from duly.storage.migrate import all_metadata
from duly.storage.qualified import VERSION_TABLE

config = context.config
options: dict[str, Any] = {
    "target_metadata": all_metadata(),
    "version_table": VERSION_TABLE,
    "transaction_per_migration": False,
    "compare_server_default": False,
}

if context.is_offline_mode():
    context.configure(
        dialect_name=config.attributes["dialect"], literal_binds=True, dialect_opts={"paramstyle": "named"}, **options
    )
    with context.begin_transaction():
        context.run_migrations()
else:
    context.configure(connection=config.attributes["connection"], **options)
    with context.begin_transaction():
        context.run_migrations()
