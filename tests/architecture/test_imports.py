"""Imports point down only. The layers are declared in pyproject.toml; import-linter judges them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_imports_point_down_only() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    judged = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert judged.returncode == 0, judged.stdout + judged.stderr
