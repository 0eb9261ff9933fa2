"""The onboarding example does what its page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples import programs

EXAMPLE = Path(__file__).parents[2] / "examples" / "onboarding"


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [programs.PYTHON, EXAMPLE / "run.py", *arguments], cwd=folder, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_five_people_sign_up_and_what_fails_is_undone(tmp_path: Path) -> None:
    said = run(tmp_path, "--mermaid")
    assert "onboarding dan               failed (confirmed did not come in time.)" in said
    assert "onboarding eve               failed (activate: PermanentError: gold is sold out)" in said
    assert "checkup ada                  AWAITING_HUMAN, approval call" in said
    assert "8 runs, 11 letters, 9 restarts of the application." in said
    assert "undo3 -.->|undoes|" in said or "-.->|undoes| n1" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_it_is_the_same_on_postgresql(tmp_path: Path, pg_url: str) -> None:
    assert "8 runs, 11 letters" in run(tmp_path, "--database-url", pg_url)


def test_the_document_of_the_example_is_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "duly", "workflows", "check", str(EXAMPLE / "checkup.yaml")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.partition(": ")[2]) == (
        0,
        "workflow checkup, version 1, 6 steps, input email, plan.\n",
    )
