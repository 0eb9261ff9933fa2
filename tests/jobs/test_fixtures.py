"""The fixtures of `duly.testing.fixtures`, in a project such as a user has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHOP = """
from duly import Duly

app = Duly("sqlite:///shop.db", max_attempts=7)

@app.task(queue="mail")
def remind(order: int) -> str:
    return f"reminded {order}"
"""
SWITCH = """
import pytest

pytest_plugins = ["duly.testing.fixtures"]
"""
BORROW = """
import shop

@pytest.fixture
def duly_original():
    return shop.app
"""
TESTS = """
from datetime import UTC, datetime, timedelta

import pytest
import shop
from duly.testing import assert_enqueued, drain

@pytest.mark.parametrize("order", [1, 2])
def test_it_is_the_application_itself_and_each_test_begins_with_nothing(duly_app, duly_clock, duly_url, order):
    assert duly_app is shop.app
    assert (duly_app.settings.database_url, duly_app.settings.max_attempts) == (duly_url, 7)
    assert duly_clock.now() == datetime(2026, 1, 1, tzinfo=UTC)

    shop.remind.using(key="once", run_in=timedelta(days=3)).enqueue(order)
    [job] = assert_enqueued(duly_app, shop.remind, count=1, input={"order": order})
    assert job.run_at == datetime(2026, 1, 4, tzinfo=UTC)
    assert drain(duly_app).claimed == 0
    duly_clock.advance(timedelta(days=3))
    assert drain(duly_app).succeeded == 1

def test_that_fails(duly_app):
    raise ZeroDivisionError

def test_it_is_put_back(tmp_path):
    assert shop.app.settings.database_url == "sqlite:///shop.db"
    assert not list(tmp_path.iterdir())
"""


def project(folder: Path, **files: str) -> None:
    (folder / "pytest.ini").write_text("[pytest]\n")  # so that it is a project of its own, wherever the folder lies
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run its tests as its user would. Returns the exit code and what was said."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DULY_", "PYTEST_", "COV_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--basetemp", str(folder / "tmp"), *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_project_borrows_its_application_for_each_test_and_gets_it_back(tmp_path: Path) -> None:
    project(tmp_path, shop=SHOP, conftest=SWITCH + BORROW, test_shop=TESTS)
    code, said = run(tmp_path)
    assert (code, "1 failed, 3 passed" in said) == (1, True), said
    assert said.count("ZeroDivisionError") > 0
    assert not (tmp_path / "shop.db").exists()


def test_another_database_takes_the_place_of_the_file(tmp_path: Path, db_url: str) -> None:
    ours = f"\n@pytest.fixture\ndef duly_url():\n    return {db_url!r}\n"
    project(tmp_path, shop=SHOP, conftest=SWITCH + BORROW + ours, test_shop=TESTS)
    code, said = run(tmp_path, "-k", "itself and 1 or put_back")
    assert (code, "2 passed" in said) == (0, True), said


def test_without_an_application_there_is_a_new_one(tmp_path: Path) -> None:
    tests = """
from duly.testing import drain

def test_a_task_of_a_test_stays_in_it(duly_app, duly_url):
    assert duly_app.settings.database_url == duly_url
    @duly_app.task
    def note(text: str) -> None: ...

    note.enqueue("hello")
    assert drain(duly_app).succeeded == 1
"""
    project(tmp_path, conftest=SWITCH, test_new=tests, test_other=tests)
    code, said = run(tmp_path)
    assert (code, "2 passed" in said) == (0, True), said


def test_the_helpers_need_no_pytest() -> None:
    """Only who switches the fixtures on imports it."""
    asked = "import sys, duly.testing, duly.testing.connectors, duly.testing.providers; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
