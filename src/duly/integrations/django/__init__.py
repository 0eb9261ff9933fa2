"""Duly in a Django project: one application made of its settings, jobs in the ORM's transaction, Django's tasks on a Duly worker.

Put ``duly.integrations.django`` into ``INSTALLED_APPS``, run ``manage.py migrate``, and define tasks in the modules ``tasks`` of your apps::

    from duly.integrations.django import app

    @app.task(queue="mail")
    def confirm(order: int) -> None: ...

What is enqueued inside of ``transaction.atomic()`` is committed or rolled back with it. ``manage.py duly worker`` runs the jobs.
Settings stand in ``DULY`` (``config.py``), the backend for Django's tasks in ``backend.py``.

Source: ADR 0030.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duly.integrations.django.config import Config

if TYPE_CHECKING:
    from duly.integrations.django.application import DjangoDuly

    #: The application of this process, made when it is first asked for.
    app: DjangoDuly

__all__ = ["Config", "app"]


def __getattr__(name: str) -> Any:
    if name == "app":
        from duly.integrations.django.application import application

        return application()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
