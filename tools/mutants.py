"""Mutation testing of what decides: `make mutants ARGS=src/duly/jobs/settle.py`.

mutmut breaks each function in every way it knows and runs the tests that reach it. A change that no test notices survives: it is a test that
is missing, or code that makes no difference. It works on a copy under `.mutants/`, with one process (`--workers`), and goes on where it was.
Without arguments: the kernel, `jobs/settle.py`, and every `plan.py`. The tests are `tests/<room>/test_<file>.py` where there is one, or all of
the room's; `--tests` names others.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / ".mutants"
DEFAULT = ("src/duly/kernel/*.py", "src/duly/jobs/settle.py", "src/duly/*/plan.py")


def tests_of(path: Path) -> str:
    """The tests that are closest to a file."""
    room = ROOT / "tests" / path.parts[2]
    own = room / f"test_{path.stem}.py"
    return str((own if own.exists() and path.parts[2] != "kernel" else room).relative_to(ROOT))


def prepared(paths: list[Path], tests: list[str]) -> None:
    """The copy, as the tree is now; mutmut's own notes in it are kept."""
    COPY.mkdir(exist_ok=True)
    for name in ("src", "tests"):
        shutil.rmtree(COPY / name, ignore_errors=True)
        shutil.copytree(ROOT / name, COPY / name, ignore=shutil.ignore_patterns("__pycache__"))
    settings = {
        "source_paths": ["src"],
        "only_mutate": [str(path) for path in paths],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "60"],
        "pytest_add_cli_args_test_selection": tests,
    }
    lines = "\n".join(f"{name} = {value!r}" for name, value in settings.items())
    (COPY / "pyproject.toml").write_text(f"{(ROOT / 'pyproject.toml').read_text()}\n[tool.mutmut]\n{lines}\n")


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants ARGS=…", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", help=f"files to break: {' '.join(DEFAULT)}")
    parser.add_argument("--tests", action="append", help="tests to run (may be said again)")
    parser.add_argument("--workers", default="1", help="processes (1)")
    asked = parser.parse_args(given)
    found = [one for pattern in asked.paths or DEFAULT for one in sorted(ROOT.glob(pattern))]
    paths = [one.relative_to(ROOT) for one in found if one.name != "__init__.py"]
    if not paths:
        parser.error(f"no file is called {' or '.join(asked.paths)}; paths are those from the top of the clone")
    tests = asked.tests or sorted({tests_of(path) for path in paths})
    prepared(paths, tests)
    mutmut = [sys.executable, "-m", "mutmut"]
    ran = subprocess.run([*mutmut, "run", "--max-children", asked.workers], cwd=COPY)
    if ran.returncode != 0:
        return ran.returncode
    said = subprocess.run(
        [*mutmut, "results", "--all", "true"], cwd=COPY, capture_output=True, text=True, check=True
    ).stdout
    each = [
        (name.strip(), what.strip()) for name, _, what in (line.partition(": ") for line in said.splitlines()) if what
    ]
    for path in paths:
        module = ".".join(path.with_suffix("").parts[1:])
        mine = [(name, what) for name, what in each if name.startswith(f"{module}.")]
        count = Counter(what for _, what in mine)
        killed = sum(n for what, n in count.items() if what in ("killed", "timeout", "segfault", "suspicious"))
        print(f"{path}: {killed} of {len(mine)} noticed" + (f" ({killed / len(mine):.0%})" if mine else ""))
        for name, what in mine:
            if what not in ("killed", "timeout", "segfault", "suspicious"):
                print(f"  {what}: {name}")
    print("What one of them changes: cd .mutants && ../.venv/bin/python -m mutmut show NAME")
    return 0


if __name__ == "__main__":
    sys.exit(main())
