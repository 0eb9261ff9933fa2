"""Where a run keeps its things, and how people name them here. Knows no jobs and no letters."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from letter import Unusable
from sqlalchemy.engine import URL


def make_folder(folder: Path, fresh: bool) -> Path:
    """The run folder, made if it is not there. ``fresh``: the first of folder, folder-2, folder-3 … that is not."""
    wanted, n = folder, 1
    while fresh and wanted.exists():
        n += 1
        wanted = folder.with_name(f"{folder.name}-{n}")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unusable(f"{wanted} cannot be the run folder: {error.strerror}.") from None
    return wanted


def sqlite_url(folder: Path) -> str:
    return URL.create("sqlite", database=str(folder / "duly.db")).render_as_string()


def again(target: str, arguments: list[str]) -> str:
    """How to run this again from here: by `make`, or as it was run now."""
    line = shlex.join(arguments)
    if "MAKELEVEL" in os.environ:
        return f"make {target} ARGS={shlex.quote(line)}" if line else f"make {target}"
    return f"{short(Path(sys.executable))} {short(Path(sys.argv[0]))} {line}".rstrip()


def short(path: Path) -> str:
    """The path as one would type it here."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def program(name: str) -> str:
    """How to call a program that was installed beside this Python."""
    beside = Path(sys.executable).with_name(name)
    return name if shutil.which(name) == str(beside) or not beside.exists() else short(beside)
