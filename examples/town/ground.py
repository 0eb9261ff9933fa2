"""Where a town lies: which one a run goes on with, and what becomes of one that was not made to its end. Knows no jobs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from places import short

from duly import UsageError

FIRST = Path("var/town")
#: The file with the names of the groups whose rounds turn. Yesterday leaves it: a town without it was not made to its end.
MADE = "made"
#: What that file is called until then. It is put into empty folders only, so whatever else lies there came later.
BEGUN = "begun"
#: What this program may have put beside it before the town was made.
OURS = re.compile(
    rf"{BEGUN}|duly\.db(-wal|-shm|-journal)?|calendar\.yaml|events\.log|mail(/(tmp|new|cur))?|mail/(tmp|new|cur)/\d+\.M\d+P\d+Q\d+\.[^/]+"
    r"|posts|posts/(gazette|board)|posts/(gazette|board)/(\.duly-\w+|[\w.-]+-[0-9a-f]{16})(/index\.md)?"
)


def place(wanted: Path | None) -> Path:
    """The folder of the town that a run goes on with or makes. ``wanted``: what --folder says, if it does."""
    first = wanted or FIRST
    if wanted is not None and (finished(first) or free(first)):
        return first
    beside = [one for one in first.parent.glob("*") if re.fullmatch(rf"{re.escape(first.name)}-\d+", one.name)]
    towns = [one for one in (first, *beside) if finished(one)]
    if towns:  # the newest, so that a run goes on with what --fresh has made
        return max(towns, key=lambda one: (one / MADE).stat().st_mtime_ns)
    one, n = first, 1
    while not free(one):
        n += 1
        one = first.with_name(f"{first.name}-{n}")
    return one


def arguments(folder: Path) -> list[str]:
    """What a run has to be called with to go on with that town."""
    return [] if place(None).absolute() == folder else ["--folder", short(folder)]


def finished(folder: Path) -> bool:
    return (folder / MADE).is_file()


def free(folder: Path) -> bool:
    """Whether a town can be made there: there is none, or one that was not made to its end and nothing else."""
    return not (folder / "duly.db").exists() or (not finished(folder) and only_ours(folder))


def only_ours(folder: Path) -> bool:
    """Whether the folder was empty when this program began there, and holds nothing that somebody else has put there."""
    found = list(folder.rglob("*"))
    return (folder / BEGUN).is_file() and all(
        OURS.fullmatch(one.relative_to(folder).as_posix()) and not one.is_symlink() for one in found
    )


@contextmanager
def begin(folder: Path) -> Iterator[bool]:
    """Make the ground ready for a town, and keep it from other runs inside the block. Says whether half a town was there.

    What is left of a town that was not made to its end is removed. Raises UsageError where another run is making it.
    """
    if not any(folder.iterdir()):
        (folder / BEGUN).touch()
    if not (folder / BEGUN).is_file():
        yield False  # it lies among what is somebody else's
        return
    with (folder / BEGUN).open("a") as mark:
        if not alone(mark.fileno()) or finished(folder):  # the other one may just have made it
            raise UsageError(
                f"{short(folder)} is being made by another run. Wait for that one, or make another town with --fresh."
            )
        half = (folder / "duly.db").exists()
        if half:
            clear(folder)
        yield half


def clear(folder: Path) -> None:
    """Remove half a town. What is somebody else's stays, and the mark goes last, so that this too can be interrupted."""
    if not only_ours(folder):
        raise UsageError(f"{short(folder)} holds what is not of the town. Make another town with --fresh.")
    for name in ("mail", "posts"):
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    # the database last: without it the folder would not be looked through again
    for name in ("calendar.yaml", "events.log", "duly.db-wal", "duly.db-shm", "duly.db-journal", "duly.db"):
        (folder / name).unlink(missing_ok=True)


def finish(folder: Path, groups: Sequence[str]) -> None:
    """Say that the town is made, all at once: a mark that is there is whole."""
    mark = folder / BEGUN
    mark.write_text("\n".join(groups) + "\n", encoding="utf-8")
    mark.replace(folder / MADE)


def alone(file: int) -> bool:
    """Keep the file to this process until it is closed. False: another one has it."""
    with suppress(ImportError):  # where there are no such locks, two runs at once are not noticed
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
