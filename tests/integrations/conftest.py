"""Scenes for tests with a Celery fleet, gone with all their processes when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from integrations.celery_scene import Scene


@pytest.fixture
def make_scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Scene]]:
    """Scenes on a database and a broker of the test's choice."""
    from integrations.celery_scene import Scene

    made: list[Scene] = []

    def make(url: str, broker: str, **settings: Any) -> Scene:
        made.append(Scene(url, broker, tmp_path, **settings))
        monkeypatch.setenv("FLEET_JOURNAL", str(made[-1].journal_file))
        return made[-1]

    yield make
    for scene in made:
        scene.close()


@pytest.fixture
def scene(db_url: str, redis_url: str, make_scene: Callable[..., Scene]) -> Scene:
    """A database (the test runs once on each kind) and an empty Valkey, and nobody at work yet."""
    return make_scene(db_url, redis_url)
