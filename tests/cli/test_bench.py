"""``duly bench``: a measure that leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from cli.hands import Run
from duly import DatabaseUnavailable, Duly
from duly.cli import bench as module
from fronts import on_both


@on_both("it measures in a schema on one and in a file on the other")
def test_a_database_is_measured_and_nothing_is_left(on: Run, app: Duly, db_url: str) -> None:
    before = places(app)
    said = on("bench", "--jobs", "600", "--commits", "20", "--json")
    assert said.code == 0, said.err
    for name in ("commit_p50", "commit_p95", "commits_per_second", "enqueued_per_second", "drained_per_second"):
        assert said.json[name] > 0, name
    assert places(app) == before
    assert app.jobs.count() == 0
    told = on("bench", "--jobs", "100", "--commits", "10")
    assert "run by one worker" in told.out


@on_both("it measures in a schema on one and in a file on the other")
def test_nothing_is_left_when_the_measure_fails(on: Run, app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise DatabaseUnavailable("the database went away")

    before = places(app)
    monkeypatch.setattr(module, "_enqueue", breaks)
    said = on("bench", "--jobs", "100", "--commits", "10")
    assert (said.code, said.err) == (1, "duly: the database went away\n")
    assert places(app) == before


def places(app: Duly) -> set[str]:
    """Where things could be left: the schemas of the server, the files beside the database."""
    if app.db.is_sqlite:
        folder = Path(app.db.url.database or "").parent
        return {f.name for f in folder.iterdir() if "-wal" not in f.name and "-shm" not in f.name}
    names = "SELECT schema_name FROM information_schema.schemata"
    return set(app.db.read(lambda c: c.execute(text(names)).scalars().all()))
