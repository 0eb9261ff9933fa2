"""The rounds example does what it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from examples import programs

RUN = Path(__file__).parents[2] / "examples" / "rounds" / "run.py"


def run(*arguments: str) -> str:
    done = subprocess.run([programs.PYTHON, RUN, *arguments], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rounds_example_lives_through_the_day_on_which_clocks_change() -> None:
    # B012: 24 hours also when the day has 23
    said = run()
    assert "Paris     open at Sat 18:00 CET" in said
    assert "Paris     closed at Sun 19:00 CEST" in said
    # free again on Monday at 19:00, it waits for its hour (R000-24)
    assert "Paris     open at Mon" not in said
    assert "next: Paris     Tue 31 March 16:00Z" in said
    # a group that was made in the evening has its first round at its own hour (R000-25)
    assert "New York  open at Fri" not in said
    assert "8 rounds, 21 notices, 4 late submissions refused" in said
    assert "(0 groups failed)" in said


@pytest.mark.soak
def test_the_rounds_example_can_begin_on_another_day_in_another_database(pg_url: str) -> None:
    said = run("--date", "2026-04-04", "--days", "2", "--database-url", pg_url)
    assert "Lord Howe open at" in said
    assert "next: Kathmandu" in said
