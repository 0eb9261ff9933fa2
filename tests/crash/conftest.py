"""A scene for each test, gone with all its processes when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crash.scene import Scene, start_nursery
from soaking import sqlite_first

db_url = sqlite_first()


@pytest.fixture(scope="session", autouse=True)
def nursery() -> None:
    start_nursery()


@pytest.fixture
def make_scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Scenes on a database of the test's choice."""
    made: list[Scene] = []

    def make(url: str, **settings: Any) -> Scene:
        folder = tmp_path / f"scene{len(made)}"
        folder.mkdir()
        made.append(Scene(url, folder, **settings))
        return made[-1]

    yield make
    for scene in made:
        scene.close()


@pytest.fixture
def scene(db_url: str, make_scene: Callable[..., Scene]) -> Scene:
    """A database and nobody at work on it yet. The test runs once on each kind."""
    return make_scene(db_url)
