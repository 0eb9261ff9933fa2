"""The Django app: checks, tables with ``manage.py migrate``, and the modules that define tasks."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate


class DulyConfig(AppConfig):  # type: ignore[misc]
    name = "duly.integrations.django"
    label = "duly"
    verbose_name = "Duly"

    def ready(self) -> None:
        from duly.integrations.django.application import application
        from duly.integrations.django.checks import check_settings, check_tables

        checks.register(check_settings)
        checks.register(check_tables)
        post_migrate.connect(make_tables, sender=self)
        if not check_settings():
            application().discover()
        # else the checks say what is wrong; whoever uses the application is told by an exception


def make_tables(using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Bring Duly's tables along when Django migrates the database they are in."""
    from duly.integrations.django.application import application

    app = application()
    if not (app.config.shared and app.config.migrate and using == app.config.alias):
        return
    before, after = app.guest.migrate()
    if verbosity >= 1 and before != after:
        print(f"  Tables of Duly: {before or 'none'} → {after}", file=stdout)
