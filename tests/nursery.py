"""Processes without the wait: forked from one that has imported everything and done nothing.

In the flow: ``crash/scene.py`` (workers and relays that are killed) and ``integrations/`` (Celery workers, programs of Django). One such process for each process
of tests, started when the first of them is wanted. Refuses to know: what is done in them.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
_TESTS = str(Path(__file__).parent)
#: Everything that is imported before a process is forked. What is missing here is imported in each.
_PRELOAD = [
    "pytest", "crash.program", "celery.bin.celery", "celery.bin.worker", "celery.apps.worker", "celery.concurrency.prefork", "celery.concurrency.solo",
    "celery.worker.consumer", "kombu.transport.redis", "integrations.celery_tasks", "duly.integrations.celery",
    "crash.idempotent_program", "automations.crash_program", "outbox.crash_program", "schedules.crash_program", "workflows.crash_program",
    "workflows.document_program", "crash.publish_apart", "rounds.apart", "duly.storage.sqlite", "duly.storage.postgres", "sqlalchemy.dialects.sqlite.pysqlite",
    "sqlalchemy.dialects.sqlite.aiosqlite", "sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.ext.asyncio", "duly.jobs.worker",
    "duly.jobs.processes", "duly.schedules.door", "duly.rounds", "duly.mail.mail", "duly.publishing", "duly.workflows", "duly.outbox.relay",
    "django.core.management.commands.migrate", "django.db.backends.sqlite3.base", "django.db.backends.postgresql.base", "django.test", "duly.cli.main",
    "duly.storage.migrate", "integrations.django_scene",
]  # fmt: skip


def ended(target: Callable[..., None], *args: Any) -> int:
    """Call a function in a process of its own, and wait for its end: its exit code, a signal's number below zero. It says on stderr what went wrong."""
    start()
    process = CONTEXT.Process(target=target, args=args)
    process.start()
    process.join()
    code = process.exitcode
    process.close()
    assert code is not None
    return code


def start() -> None:
    """Start the process that all others are forked from, where it is not there yet."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([_TESTS, *([before] if before else [])])
    try:
        CONTEXT.set_forkserver_preload(_PRELOAD)
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
