"""The command line in an empty folder, as a newcomer meets it."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import fronts
from cli.hands import SHOP, Run, Said
from duly import Duly
from duly.cli.main import cli

_numbers = itertools.count(1)

db_url = fronts.db_url


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, no settings in the environment, and the imports of this test forgotten after it."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for name in [n for n in os.environ if n.startswith("DULY_") and not n.startswith("DULY_TEST")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield here
    for name in set(sys.modules) - known:
        if str(here) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def run(folder: Path) -> Run:
    """Run ``duly`` with arguments, in this process. Unset: DULY_DATABASE_URL, so the database is ./duly.db."""

    def call(*args: str, input: str | bytes | None = None) -> Said:
        done = CliRunner().invoke(cli, args, input=input, prog_name="duly")
        return Said(done.exit_code, done.stdout, done.stderr)

    return call


@pytest.fixture
def ready(run: Run, folder: Path, migrated_file: Path) -> Run:
    """The same beside a migrated ./duly.db."""
    shutil.copyfile(migrated_file, folder / "duly.db")
    return run


@pytest.fixture
def on(run: Run, db_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same on a migrated database."""
    monkeypatch.setenv("DULY_DATABASE_URL", db_url)
    return run


@pytest.fixture
def app(on: Run, db_url: str) -> Iterator[Duly]:
    """The database that the command line is on, from the inside."""
    made = Duly(db_url)
    yield made
    made.close()


@pytest.fixture
def shop(folder: Path) -> str:
    """A file with an application, under a name of its own: ``--app`` takes it."""
    name = f"shop{next(_numbers)}.py"
    (folder / name).write_text(SHOP)
    return name


@pytest.fixture
def write(folder: Path) -> Callable[[str], str]:
    """Write an application; returns its file name."""

    def make(source: str) -> str:
        name = f"shop{next(_numbers)}.py"
        (folder / name).write_text(source)
        return name

    return make


@pytest.fixture
def spawn(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``duly`` in a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "duly", *args],
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
