"""``manage.py duly …``: Duly's command line, about this project. ``manage.py duly worker``, ``manage.py duly jobs list``."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):  # type: ignore[misc]
    help = "Duly's command line, about this project: `duly worker` runs its jobs, `duly --help` lists the rest."
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Hand everything behind ``duly`` to Duly's own command line, also what Django would take for options of its own."""
        self._run(argv[2:])

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("arguments", nargs="*", help="A command of Duly, and what belongs to it.")

    def handle(self, *_: Any, arguments: Sequence[str], **__: Any) -> None:
        self._run(arguments)

    @staticmethod
    def _run(arguments: Sequence[str]) -> None:
        os.environ.setdefault("DULY_APP", "duly.integrations.django.project")
        sys.argv = ["duly", *arguments]
        runpy.run_module("duly", run_name="__main__", alter_sys=True)
