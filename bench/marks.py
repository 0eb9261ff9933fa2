"""Signs that a worker process leaves for the driver: ready, executed so many, started that late.

Standard library only: this runs inside the peers' environments. `BENCH_RUN` names the folder of one run, `BENCH_TARGET` the
database, `BENCH_OPTIONS` the contender's options as JSON.
"""

import json
import mmap
import os
import struct
import threading
import time

RUN = os.environ.get("BENCH_RUN", "")
TARGET = os.environ.get("BENCH_TARGET", "")
OPTIONS = json.loads(os.environ.get("BENCH_OPTIONS", "{}"))

#: first start, last start (seconds since the epoch), executions
SHAPE = struct.Struct("<ddQ")
_TAIL = struct.Struct("<dQ")

_lock = threading.Lock()
_map: mmap.mmap | None = None
_count = 0
_probes = -1


def mark() -> None:
    """Count one execution; called by every no-op handler. About half a microsecond, the same for all contenders."""
    global _map, _count
    with _lock:
        if _map is None:
            with open(os.path.join(RUN, f"mark.{os.getpid()}"), "w+b") as f:
                f.write(SHAPE.pack(time.time(), 0.0, 0))
                f.flush()
                _map = mmap.mmap(f.fileno(), SHAPE.size)
        _count += 1
        _TAIL.pack_into(_map, 8, time.time(), _count)


def probe(sent_at: float) -> None:
    """Record how long a job took from just before its enqueue call to the start of its handler."""
    global _probes
    late = time.time() - sent_at
    if _probes < 0:
        _probes = os.open(os.path.join(RUN, f"probe.{os.getpid()}"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(_probes, b"%.6f\n" % late)


def gate() -> None:
    """Say that everything is imported and connected, and wait until the driver opens the gate."""
    if not RUN:
        return
    with open(os.path.join(RUN, f"ready.{os.getpid()}"), "w"):
        pass
    while not os.path.exists(os.path.join(RUN, "go")):
        time.sleep(0.003)


# ------------------------------------------------------------------ the driver's side


def ready(run: str) -> int:
    return sum(name.startswith("ready.") for name in os.listdir(run))


def open_gate(run: str) -> None:
    with open(os.path.join(run, "go"), "w"):
        pass


def executions(run: str) -> tuple[float | None, float | None, int]:
    """First handler start, last handler start, executions so far, over all worker processes of a run."""
    first, last, count = [], [], 0
    for name in os.listdir(run):
        if name.startswith("mark."):
            with open(os.path.join(run, name), "rb") as f:
                data = f.read(SHAPE.size)
            if len(data) == SHAPE.size:
                a, z, n = SHAPE.unpack(data)
                if n:
                    first.append(a)
                    last.append(z)
                    count += n
    return min(first, default=None), max(last, default=None), count


def probes(run: str) -> list[float]:
    """Delays recorded so far, in milliseconds."""
    found: list[float] = []
    for name in os.listdir(run):
        if name.startswith("probe."):
            with open(os.path.join(run, name)) as f:
                found += [float(x) * 1e3 for x in f.read().split()]
    return found
