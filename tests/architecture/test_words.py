"""What is written in the repository holds on every machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Paths that exist on one machine only, and hosts that a mirror or a lock file left behind. Written with brackets, so
#: that this file does not find itself.
OF_ONE_MACHINE = re.compile(
    r"(?<![\w./-])/(?:[w]ork|[r]oot|[h]ome/(?!duly\b)\w+|[U]sers/\w+)/"
    r"|[p]ypi\.org/simple|[f]iles\.pythonhosted\.org|[r]egistry\.npmjs\.org|[p]roxy\.golang\.org"
)

#: Lines that may stay, by file, each with a reason.
ALLOWED: dict[str, set[str]] = {}


def tracked_files() -> list[Path]:
    if not (shutil.which("git") and (ROOT / ".git").exists()):
        pytest.skip("this is not a clone, so nothing is tracked")
    # Git refuses a folder that belongs to somebody else, which is how CI often mounts it; reading is harmless.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_path_of_one_machine_or_a_package_registry() -> None:
    found = []
    for file in tracked_files():
        name = str(file.relative_to(ROOT))
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if OF_ONE_MACHINE.search(line) and line.strip() not in ALLOWED.get(name, set()):
                found.append(f"{name}:{number}: {line.strip()[:200]}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "of_one_machine"),
    [
        ("see /" + "work/main/README.md", True),
        ("HOME=/" + "root/duly", True),
        ("cd '/" + "home/ada/duly'", True),
        ("resolved https://files." + "pythonhosted.org/packages/x", True),
        ("/var/lib/duly/duly.db", False),
        ("WorkingDirectory=/home/duly/app", False),
        ("https://example.org/work/today", False),
        ("docs/work/flow.md", False),
    ],
)
def test_a_path_of_one_machine_is_told_from_others(line: str, of_one_machine: bool) -> None:
    assert bool(OF_ONE_MACHINE.search(line)) is of_one_machine


def test_every_link_in_the_documentation_leads_somewhere() -> None:
    checked = subprocess.run([sys.executable, ROOT / "docs" / "check_links.py"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
