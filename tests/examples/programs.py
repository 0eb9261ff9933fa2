"""What runs a program of the examples.

``PYTHON`` forks it from a process that has imported what they import (``forked.py``): a start that costs milliseconds. ``REAL`` is the interpreter,
as a user would have it: each example is run by it at least once, and where a test looks at what becomes of processes.
"""

from __future__ import annotations

import sys

REAL = sys.executable
PYTHON = REAL

#: What the examples import, so that it is imported once.
IMPORTED = (
    "aiosmtpd.smtp", "aiosmtplib", "django.core.management", "duly.automations", "duly.cli.automations", "duly.cli.work", "duly.idempotency",
    "duly.integrations.django", "duly.jobs.survey", "duly.mail.mail", "duly.monitoring.logs", "duly.outbox.transports.duly",
    "duly.outbox.transports.webhook", "duly.publishing.calendar", "duly.publishing.view", "duly.schedules.door", "duly.testing", "duly.web.app",
    "duly.workflows.mermaid", "fastapi", "http.server", "httpx2", "jinja2", "rich.file_proxy", "rich.live", "rich.progress_bar", "rich.text",
    "sqlalchemy.orm", "uvicorn", "uvicorn.protocols.http.h11_impl", "yaml",
)  # fmt: skip
