"""The kiosk does what its page says, as a program of its own in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import programs

EXAMPLE = Path(__file__).parents[2] / "examples" / "django"


@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.soak])]
)
def test_an_order_and_its_jobs_are_one(tmp_path: Path, database: str, request: pytest.FixtureRequest) -> None:
    arguments = [] if database == "sqlite" else ["--database", request.getfixturevalue("empty_pg_url")]
    done = subprocess.run(
        [programs.PYTHON, EXAMPLE / "run.py", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert "  CommandError: The card was declined." in said
    before, _, after = said.partition("$ manage.py duly worker --until-idle")
    assert "  Order 1: tea\n  2 jobs wait.\n" in before
    assert "2 succeeded" in after
    assert "  Order 1: tea, brewed, receipt R0001\n  No job waits.\n" in after
    assert "kiosk.tasks.send_receipt" in after
    assert list(tmp_path.iterdir()) == []


def test_the_view_takes_orders_too(tmp_path: Path) -> None:
    program = """
import django
django.setup()
from django.core.management import call_command
from django.test import Client
call_command("migrate", "--run-syncdb", verbosity=0)
client = Client(headers={"host": "127.0.0.1"})
for card in ("good", "stolen"):
    answer = client.post("/orders", {"item": "tea", "card": card})
    print(answer.status_code, answer.content.decode().strip())
call_command("orders")
"""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "kiosk.settings", "PYTHONPATH": str(EXAMPLE)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "201 Order 1: tea\n402 The card was declined.\nOrder 1: tea\n2 jobs wait.\n"
