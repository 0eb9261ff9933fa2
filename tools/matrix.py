"""The core of the tests on every CPython that is there, with each SQLAlchemy that is supported: `make matrix`.

Each combination has a virtual environment of its own under `.matrix/`, made at first use and kept while `pyproject.toml` is as it was; what
pytest says stands beside it, in a file of the same name. The exit code is 1 where a combination fails or cannot be installed. An interpreter
that is not on this machine is named, and is no failure.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

from bench.venvs import interpreters

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".matrix"
#: What depends on the interpreter and on SQLAlchemy most: the rooms that every user has, on SQLite and on PostgreSQL.
CORE = ["kernel", "contract", "jobs", "idempotency", "outbox", "schedules"]
#: The newest releases of these lines are taken.
LINES = ["2.0", "2.1"]
COUNTED = ("passed", "failed", "error", "skipped")


class Outcome(NamedTuple):
    python: str
    sqlalchemy: str
    counts: dict[str, int]
    seconds: float
    problem: str = ""

    @property
    def good(self) -> bool:
        return not self.problem


def promised(project: str) -> tuple[list[tuple[int, int]], str]:
    """The versions of Python that `pyproject.toml` names, and the oldest SQLAlchemy."""
    about = tomllib.loads(project)["project"]
    versions = re.findall(r"Python :: (3)\.(\d+)", "\n".join(about["classifiers"]))
    [oldest] = re.findall(r"sqlalchemy>=([\d.]+)", "\n".join(about["dependencies"]))
    return [(int(major), int(minor)) for major, minor in versions], oldest


def _version(said: str) -> tuple[int, int]:
    major, minor = said.split(".")
    return int(major), int(minor)


def _after(version: tuple[int, int]) -> tuple[int, int]:
    """The one that is not promised yet is tried where it is."""
    return version[0], version[1] + 1


def installed(python: str, home: Path, sqlalchemy: str, mark: str) -> str:
    """Make the environment unless it is there as it should be. Returns why that cannot be done; empty when it is."""
    stamp = home / "installed"
    if stamp.exists() and stamp.read_text() == mark:
        return ""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    pin = home / "constraint.txt"
    pin.write_text(f"sqlalchemy=={sqlalchemy}{'' if sqlalchemy.count('.') > 1 else '.*'}\n")
    pip = [f"{home}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([python, "-m", "venv", str(home)], [*pip, "--constraint", str(pin), "--editable", f"{ROOT}[dev]"]):
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            said = [line for line in run.stderr.splitlines() if line.startswith("ERROR")] or run.stderr.splitlines()
            return f"cannot be installed: {said[0] if said else f'exit {run.returncode}'}"
    stamp.write_text(mark)
    return ""


def counts(said: str) -> dict[str, int]:
    """What the last line of pytest counts."""
    last = next((line for line in reversed(said.splitlines()) if re.search(r" in [\d.]+s", line)), "")
    return {word: int(n) for n, word in re.findall(rf"(\d+) ({'|'.join(COUNTED)})s?\b", last)}


def log_of(home: Path) -> Path:
    return home.parent / f"{home.name}.log"


def tried(python: str, version: str, sqlalchemy: str, mark: str, pytest: list[str]) -> Outcome:
    home = KEPT / f"{version}-sqlalchemy-{sqlalchemy}"
    began = time.monotonic()
    if problem := installed(python, home, sqlalchemy, mark):
        return Outcome(version, sqlalchemy, {}, time.monotonic() - began, problem)
    here = f"{home}/bin/python"
    exact = subprocess.run(
        [here, "-c", "import platform, sqlalchemy; print(platform.python_version(), sqlalchemy.__version__)"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    print(f"Python {exact[0]}, SQLAlchemy {exact[1]} …", flush=True)
    began = time.monotonic()
    with log_of(home).open("w") as log:
        code = subprocess.run(
            [here, "-m", "pytest", *pytest], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        ).returncode
    found = counts(log_of(home).read_text(errors="replace"))
    problem = "" if code == 0 else f"exit {code}: {home.with_suffix('.log').relative_to(ROOT)}"
    return Outcome(exact[0], exact[1], found, time.monotonic() - began, problem)


def table(outcomes: list[Outcome]) -> str:
    lines = [("Python", "SQLAlchemy", "passed", "failed", "skipped", "time", "")]
    for o in outcomes:
        failed = o.counts.get("failed", 0) + o.counts.get("error", 0)
        numbers = (str(o.counts.get("passed", 0)), str(failed), str(o.counts.get("skipped", 0)))
        lines.append((o.python, o.sqlalchemy, *numbers, f"{o.seconds:.0f} s", o.problem))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def main(given: list[str] | None = None) -> int:
    project = (ROOT / "pyproject.toml").read_text()
    versions, oldest = promised(project)
    parser = argparse.ArgumentParser(prog="make matrix ARGS=…", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", action="append", metavar="3.12", help="only this version (may be said again)")
    parser.add_argument(
        "--sqlalchemy", action="append", metavar="2.0", help="only this line or release (may be said again)"
    )
    parser.add_argument("--workers", default="2", help="processes of pytest (2)")
    parser.add_argument("pytest", nargs="*", help=f"after --, for pytest instead of the core: {' '.join(CORE)}")
    asked = parser.parse_args(given)

    wanted = [_version(one) for one in asked.python or []] or [*versions, _after(versions[-1])]
    there = interpreters(min(wanted), max(wanted))
    missing = [".".join(map(str, one)) for one in wanted if one not in there]
    lines = asked.sqlalchemy or LINES
    pairs = [(one, line) for one in wanted if one in there for line in lines]
    if not asked.sqlalchemy and wanted and wanted[0] in there:
        pairs.insert(0, (wanted[0], oldest))  # the very oldest, once
    pytest = ["-n", asked.workers, "--dist", "worksteal", *(asked.pytest or [f"tests/{room}" for room in CORE])]

    outcomes = []
    for version, line in pairs:
        mark = hashlib.sha256(f"{there[version]}\n{project}".encode()).hexdigest()
        outcomes.append(tried(there[version], ".".join(map(str, version)), line, mark, pytest))
    print(f"\n{table(outcomes)}")
    for name in missing:
        print(
            f"Python {name}: not found on the path, in /usr/bin or /usr/local/bin, or in the folders of pyenv and uv."
        )
    return 0 if outcomes and all(o.good for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
