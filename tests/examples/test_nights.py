"""The nights example does what its page says, as a program of its own in an empty folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from examples import programs

EXAMPLE = Path(__file__).parents[2] / "examples" / "nights" / "run.py"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs.PYTHON, str(EXAMPLE), *arguments], cwd=folder, capture_output=True, text=True, timeout=400
    )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.soak])])
def arguments(request: pytest.FixtureRequest) -> list[str]:
    return [] if request.param == "sqlite" else ["--database", request.getfixturevalue("pg_url")]


def test_each_schedule_ran_when_the_page_says(tmp_path: Path, arguments: list[str]) -> None:
    done = run(tmp_path, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    ran = {
        task: [(r["due_at"][8:16], r["ran_at"][8:16]) for r in said["ran"] if r["task"] == task]
        for task in ("report", "reorder", "newsletter", "count_stock")
    }
    assert ran["report"] == [("28T01:30", "28T01:30"), ("29T01:00", "29T01:00"), ("30T00:30", "30T00:30")]
    assert ran["reorder"] == [
        ("28T18:00", "28T21:30"), ("28T20:00", "28T21:30"), ("29T17:00", "29T18:00"), ("29T19:00", "29T19:00"),
    ]  # fmt: skip
    assert ran["newsletter"] == [("29T14:00", "29T14:00")]
    stock = dict(ran["count_stock"])
    assert "28T19:00" not in stock  # missed
    assert stock["28T21:00"] == "28T21:30"  # caught up
    assert not [due for due in stock if "29T04:00" <= due < "29T18:00"]  # skipped
    assert [p for p in said["problems"] if "[4].when.at" in p and "26:30" in p]
    assert list(tmp_path.iterdir()) == []


def test_the_ledger_is_told_in_words(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "report  at 02:30 every day, Paris time; 29 March 2026 runs at 03:00" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [
        "Sat",
        "28",
        "Mar",
        "20:00",
        "Sat",
        "19:00",
        "Sat",
        "21:30",
        "missed",
        "late",
        "catch_up=within(7200)",
    ] in lines
    assert sum("skipped" in line for line in lines) == 7
    assert all(len(line) <= 110 for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("text", "said"), [(None, "No such file"), ("[{", "nights: "), ('[{"name": "x"}]', "[0].when")]
)
def test_a_file_that_is_no_file_of_schedules_is_told(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "s.json"
    if text is not None:
        file.write_text(text)
    done = run(tmp_path, "--schedules", str(file))
    assert said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
