"""The reference in the docs is what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_reference_is_made_from_this_code() -> None:
    command = [sys.executable, ROOT / "docs" / "make_reference.py", "--check"]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
