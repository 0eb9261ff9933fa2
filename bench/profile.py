"""Where a worker's processor time goes: a filled queue drained in one process, under cProfile on every thread or a sampler.

Both count processor time, not the clock on the wall, so a thread that waits for the database or for the interpreter's lock weighs
nothing. cProfile counts every call and makes Python several times slower: read its shares and its calls per job. The sampler
(`--sample`) looks at all stacks every few milliseconds and gives each the time its thread has used since the last look: it disturbs
little and sees lines, but it looks when a thread lets go of the lock, so calls into C weigh too much.
"""

import cProfile
import io
import pstats
import sys
import threading
import time
from collections import Counter
from typing import Any

from bench import marks
from bench.driver import Bench
from bench.field import DULY_PG, DULY_SQLITE, variant

TOP = 25
#: Seconds between two looks.
EVERY = 0.005
#: Threads of our own, left out of every figure.
OURS = "bench"


def run(bench: Bench, database: str, *, jobs: int, sample: bool) -> str:
    """Fill a fresh database, drain it in another process under a profiler, answer the report."""
    contender = DULY_PG if database == "pg" else DULY_SQLITE
    target = bench.fresh(contender)
    bench.call(contender, target, "prepare", jobs)
    bench.settle(target)
    folder = bench.scratch / f"profile-{database}"
    folder.mkdir()
    asked = variant(contender, contender.name, path="profile", options={"sample": sample})
    return f"── profile-{database} ── " + str(bench.call(asked, target, "drain", jobs, run=str(folder)))


# ------------------------------------------------------------------ in the profiled process


def drain(n: int) -> str:
    from bench.contenders import duly

    app = duly.application()
    worker = app.worker()
    watch: Sampler | Profiler = Sampler() if marks.OPTIONS["sample"] else Profiler()
    with Threads() as threads, watch:
        start = time.perf_counter()
        worker.run(until_idle=True)
        took = time.perf_counter() - start
    done = marks.executions(marks.RUN)[2]
    busy = [f"  {name:<24} {1e6 * s / n:6.1f} µs/job  {100 * s / took:5.1f} % of a core" for name, s in threads.used()]
    head = f"{done:,} of {n:,} jobs in {took:.2f} s ({done / took:,.0f}/s while profiled)"
    return "\n".join([head, "", "  processor time by thread", *busy, "", watch.report(n), ""])


def processor_time(thread: threading.Thread) -> float | None:
    """Seconds that a thread has used, from the scheduler's own books; None when it has ended."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/schedstat") as f:
            return int(f.read().split()[0]) / 1e9
    except OSError:
        return None


class Threads:
    """The processor time of every thread by name; one that ends keeps its last figure."""

    def __enter__(self) -> "Threads":
        self._before = {t.name: processor_time(t) or 0.0 for t in threading.enumerate()}
        self._last: dict[str, float] = {}
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True, name=OURS)
        self._watch.start()
        return self

    def _look(self) -> None:
        while True:
            for thread in threading.enumerate():
                if thread.name != OURS and (used := processor_time(thread)) is not None:
                    self._last[thread.name] = used - self._before.get(thread.name, 0.0)
            if self._over.wait(0.02):
                return

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()

    def used(self) -> list[tuple[str, float]]:
        return sorted(((n, s) for n, s in self._last.items() if s > 0.001), key=lambda x: -x[1])


class Profiler:
    """cProfile on this thread and on every thread started while it is on."""

    def __init__(self) -> None:
        self._profiles: list[cProfile.Profile] = []
        self._own = cProfile.Profile(time.thread_time)

    def __enter__(self) -> "Profiler":
        original, profiles = threading.Thread.run, self._profiles

        def profiled(thread: threading.Thread) -> None:
            if thread.name == OURS:
                return original(thread)
            profile = cProfile.Profile(time.thread_time)
            answer = profile.runcall(original, thread)
            # only of threads that ended: an open call would be closed by another thread's clock
            profiles.append(profile)
            return answer

        self._run = original
        threading.Thread.run = profiled  # type: ignore[method-assign,assignment]
        self._own.enable()
        return self

    def __exit__(self, *_: object) -> None:
        self._own.disable()
        threading.Thread.run = self._run  # type: ignore[method-assign]

    def report(self, n: int) -> str:
        stats: Any = pstats.Stats(self._own, stream=io.StringIO())
        for profile in self._profiles:
            profile.create_stats()
            if getattr(profile, "stats", None):
                stats.add(profile)
        rows = [(own, calls, within, where) for where, (_, calls, own, within, _) in stats.stats.items()]
        total = sum(row[0] for row in rows)
        lines = ["  processor time by function", "   share  µs/job  with callees  calls/job"]
        for own, calls, within, where in sorted(rows, key=lambda r: -r[0])[:TOP]:
            figures = f"{100 * own / total:5.1f} %  {1e6 * own / n:6.2f}  {1e6 * within / n:12.2f}  {calls / n:9.2f}"
            lines.append(f"  {figures}  {_place(*where)}")
        return "\n".join(lines)


def _place(path: str, line: int, name: str) -> str:
    return name if path == "~" else f"{_short(path)}:{line} {name}"


def _short(path: str) -> str:
    """A path from its package on."""
    for mark in ("site-packages/", "/src/", f"/python3.{sys.version_info.minor}/"):
        if mark in path:
            return path.split(mark)[-1]
    return "/".join(path.split("/")[-2:])


class Sampler:
    """Looks at every thread's stack from a thread of its own."""

    def __init__(self) -> None:
        self._lines: Counter[str] = Counter()
        self._functions: Counter[str] = Counter()
        self._looks = 0

    def __enter__(self) -> "Sampler":
        self._over = threading.Event()
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0005)
        self._thread = threading.Thread(target=self._look, daemon=True, name=OURS)
        self._thread.start()
        return self

    def _look(self) -> None:
        before: dict[int, float] = {}
        while not self._over.wait(EVERY):
            self._looks += 1
            stacks = sys._current_frames()
            for thread in threading.enumerate():
                used = processor_time(thread)
                if thread.name == OURS or thread.ident not in stacks or used is None:
                    continue
                weight = used - before.get(thread.ident, used)
                before[thread.ident] = used
                if weight > 0:
                    self._count(stacks[thread.ident], weight)

    def _count(self, frame: Any, weight: float) -> None:
        self._lines[f"{_short(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"] += weight  # type: ignore[assignment]
        seen = set()
        while frame:
            seen.add(f"{_short(frame.f_code.co_filename)} {frame.f_code.co_name}")
            frame = frame.f_back
        for name in seen:
            self._functions[name] += weight  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def report(self, n: int) -> str:
        total = sum(self._lines.values()) or 1
        parts = [f"  {self._looks:,} looks"]
        for heading, counter in (("by innermost line", self._lines), ("anywhere on the stack", self._functions)):
            parts += ["", f"  processor time {heading}"]
            parts += [
                f"  {100 * w / total:5.1f} %  {1e6 * w / n:6.2f} µs/job  {what}" for what, w in counter.most_common(TOP)
            ]
        return "\n".join(parts)
