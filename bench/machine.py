"""What the machine is doing: processes, CPU seconds, memory, and whether others leave it alone.

Linux only (/proc). Elsewhere the figures that need /proc are None and nothing waits.
"""

import os
import platform
import sqlite3
import sys
import time

HERTZ = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
HAS_PROC = os.path.exists("/proc/self/stat")

#: Cores that other people's processes may use before a repetition waits.
QUIET = 0.25


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    pids = [pid]
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as f:
                for child in f.read().split():
                    pids += tree(int(child))
    except OSError:
        pass
    return pids


def _stat(pid: int | str) -> tuple[str, list[str]]:
    with open(f"/proc/{pid}/stat") as f:
        head, tail = f.read().rsplit(")", 1)
    return head.split("(", 1)[1], tail.split()


def cpu_seconds(pids: list[int]) -> float | None:
    """User and system time used so far, that of reaped children included."""
    if not HAS_PROC:
        return None
    total = 0
    for pid in pids:
        try:
            fields = _stat(pid)[1]
        except OSError:
            continue
        total += sum(int(x) for x in fields[11:15])
    return total / HERTZ


def rss_mib(pids: list[int], *, peak: bool = False) -> float | None:
    """Resident memory now, or at its highest."""
    if not HAS_PROC:
        return None
    wanted, total = "VmHWM:" if peak else "VmRSS:", 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/status") as f:
                total += sum(int(line.split()[1]) for line in f if line.startswith(wanted))
        except OSError:
            pass
    return round(total / 1024, 1)


def _foreign(spare: tuple[str, ...]) -> dict[str, float]:
    """CPU seconds so far of every process that this run did not start, kernel threads and `spare` names left out."""
    ours, found = set(tree(os.getpid())), {}
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) in ours:
            continue
        try:
            name, fields = _stat(pid)
        except OSError:
            continue
        if name.startswith(spare) or fields[1] in ("0", "2") or fields[0] == "Z":
            continue
        found[pid] = (int(fields[11]) + int(fields[12])) / HERTZ
    return found


class Neighbours:
    """How many cores other people's processes used since this object was made.

    `spare` names processes that work for us without being our children: a PostgreSQL server named by its URL.
    """

    def __init__(self, spare: tuple[str, ...] = ()) -> None:
        self.spare, self.since = spare, time.monotonic()
        self.before = _foreign(spare) if HAS_PROC else {}

    def cores(self) -> float:
        if not HAS_PROC:
            return 0.0
        used = sum(max(0.0, v - self.before.get(pid, 0.0)) for pid, v in _foreign(self.spare).items())
        return round(used / max(0.1, time.monotonic() - self.since), 2)


def wait_until_quiet(patience: float, spare: tuple[str, ...] = ()) -> None:
    """Start a repetition only when others leave the machine alone; after `patience` seconds start all the same."""
    give_up = time.monotonic() + patience
    while time.monotonic() < give_up:
        watch = Neighbours(spare)
        time.sleep(0.5)
        if watch.cores() < QUIET:
            return


def filesystem(path: str) -> str:
    """The type of the file system that holds `path`: on a memory file system an fsync costs nothing and proves nothing."""
    best, kind = "", "unknown"
    try:
        with open("/proc/self/mounts") as f:
            for line in f:
                _, at, this, *_ = line.split()
                if os.path.realpath(path).startswith(at) and len(at) >= len(best):
                    best, kind = at, this
    except OSError:
        pass
    return kind


def facts(scratch: str) -> dict[str, object]:
    """What a reader needs to know of the machine before comparing figures."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "sqlite": sqlite3.sqlite_version,
        "filesystem": filesystem(scratch),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "taken": time.strftime("%Y-%m-%d %H:%M"),
    }
