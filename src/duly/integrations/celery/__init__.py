"""Celery: the distributed engine for those who outgrow one machine (R004-12).

Two things, which need not go together:

* ``apply_robust_settings(celery_app)`` gives a Celery application the settings under which a lost worker loses no task.
* ``install_executor(celery_app, duly_app)`` and ``duly dispatch --to celery`` let a Celery fleet run Duly's jobs::

      Duly's database ──claim──▶ dispatcher ──message──▶ RabbitMQ, Redis or Valkey ──▶ Celery worker: executor
             ▲                        │ renews while the job waits                          │ takes the lease over,
             └────────────────────────┴──────────────── settles ◀────────────────────────────┘ renews, runs

The database decides who has a job; the broker only says where there is work. So a message may be lost, late or delivered
twice, and each job is still run by whoever holds its lease, and by nobody else.

Files: ``settings`` (the robust settings) · ``dispatcher`` (claims and hands over) · ``executor`` (takes over and runs) ·
``task`` (the Celery task between the two).
"""

from duly.integrations.celery.dispatcher import Dispatcher
from duly.integrations.celery.settings import apply_robust_settings
from duly.integrations.celery.task import install_executor

__all__ = ["Dispatcher", "apply_robust_settings", "install_executor"]
