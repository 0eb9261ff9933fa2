"""Fixtures for pytest: a clock that you move, an empty database and your application on both, for each test.

Switch them on in the ``conftest.py`` at the top of your tests, and say there which application is yours::

    pytest_plugins = ["duly.testing.fixtures"]

    @pytest.fixture
    def duly_original():
        return shop.app

    def test_a_reminder_goes_out(duly_app, duly_clock):
        ...

Each can be replaced by one of the same name in a ``conftest.py``: ``duly_url`` for example by the URL of another database.
This is the one module of ``duly.testing`` that needs pytest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from duly.app import Duly
from duly.testing import ManualClock, sandbox

__all__ = ["duly_app", "duly_clock", "duly_original", "duly_url"]


@pytest.fixture
def duly_clock() -> ManualClock:
    """A clock that stands at 2026-01-01 00:00 UTC until the test moves it."""
    return ManualClock()


@pytest.fixture(scope="session")
def _duly_migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file that was migrated and holds nothing: a copy is made faster than another one."""
    file = tmp_path_factory.mktemp("duly-migrated") / "duly.db"
    made = Duly(f"sqlite:///{file}")
    try:
        made.migrate()
    finally:
        made.close()
    return file


@pytest.fixture
def duly_url(_duly_migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of an SQLite file of the test's own, migrated and empty."""
    file = tmp_path_factory.mktemp("duly") / "duly.db"
    shutil.copyfile(_duly_migrated, file)
    return f"sqlite:///{file}"


@pytest.fixture
def duly_original() -> Duly | None:
    """The application that ``duly_app`` borrows. Replace it by one that returns yours; here it is None, and a new one is made."""
    return None


@pytest.fixture
def duly_app(duly_original: Duly | None, duly_url: str, duly_clock: ManualClock) -> Iterator[Duly]:
    """The application of ``duly_original`` itself, on ``duly_url`` and by ``duly_clock`` as long as the test lasts.

    Its tasks, listeners and settings stay, and so does every name of it; afterwards it is where it was. Without a
    ``duly_original``, a new application without tasks.
    """
    if duly_original is not None:
        with sandbox(duly_original, duly_url, clock=duly_clock) as app:
            yield app
        return
    app = Duly(duly_url, clock=duly_clock)
    try:
        yield app
    finally:
        app.close()
