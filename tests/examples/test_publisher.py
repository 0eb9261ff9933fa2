"""The publisher example does what its page says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import programs

EXAMPLE = Path(__file__).parents[2] / "examples" / "publisher"


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [programs.PYTHON, EXAMPLE / "run.py", *arguments], cwd=folder, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_week_is_published_once_and_not_at_night(tmp_path: Path) -> None:
    # B055, B057: an answer that is lost, a window that crosses midnight, a night in which clocks change
    said = run(tmp_path, "--folder", "notes")
    lines = said.splitlines()
    assert lines[0] == "Week 13, 23 March to 29 March 2026, Europe/Rome"
    assert lines[1] == "On Sun 29 the clock goes from 02:00 to 03:00."
    assert said.count("posts made") == 1
    for words in (
        "Wed 07:00 CET  site   Frost          completed: 2",
        "Pears          completed in run 2: 3",
        "Quinces        completed in run 3: 4",
        "Fri 09:30 CET  site   Opening hours  completed: 5",
        "Sun 07:00 CEST  notes  Summer time    completed",
        "6 posts on the site with 3 pictures, 6 in the folder, each once, none at night.",
    ):
        assert words in said, said
    (blossom,) = (tmp_path / "notes").glob("blossom-*/index.md")
    assert "The first apple trees bloom." in blossom.read_text()
    assert len(list(blossom.parent.glob("*.png"))) == 1


@pytest.mark.soak
def test_it_is_the_same_on_postgresql(tmp_path: Path, pg_url: str) -> None:
    assert "each once, none at night" in run(tmp_path, "--database-url", pg_url)
    assert list(tmp_path.iterdir()) == []


def test_its_plan_is_one_for_the_command_line(tmp_path: Path) -> None:
    channels = {"DULY_PUBLISH_CHANNELS": str(EXAMPLE / "channels.yaml"), "SITE_URL": "http://127.0.0.1:9", "SITE_PASSWORD": "x", "NOTES_FOLDER": "notes"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "duly", "publish", "plan", EXAMPLE / "week.yaml", "--dry-run"],
        cwd=tmp_path, env=os.environ | channels, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Would make 12 posts. Nothing was written." in done.stdout
    assert list(tmp_path.iterdir()) == []
