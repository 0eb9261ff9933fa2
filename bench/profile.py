"""Where a worker's time goes: a filled queue drained in one process, under cProfile on every thread or a sampler.

cProfile counts every call and slows Python down several times: read its *shares*, not its seconds. The sampler (`--sample`) looks
at all threads every few milliseconds: it disturbs little, sees whole stacks, and cannot tell waiting for the database from work,
so its figures leave out threads that sit in a wait. Processor time per thread is printed either way, measured by the kernel.
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
from bench.machine import HERTZ

TOP = 25
#: Seconds between two looks of the sampler.
EVERY = 0.002
#: Innermost functions in which a thread only waits.
WAITS = {"wait", "select", "poll", "get", "acquire", "join", "sleep", "epoll", "_wait_for_tstate_lock"}


def run(bench: Bench, database: str, *, jobs: int, sample: bool) -> str:
    """Fill a fresh database, drain it under a profiler, answer the report."""
    contender = DULY_PG if database == "pg" else DULY_SQLITE
    target = bench.fresh(contender)
    bench.call(contender, target, "prepare", jobs)
    bench.settle(target)
    run_folder = bench.scratch / "profile"
    run_folder.mkdir(exist_ok=True)
    asked = variant(contender, contender.name, path="profile", options={"sample": sample})
    marks.open_gate(str(run_folder))
    return str(bench.call(asked, target, "drain", jobs, run=str(run_folder)))


# ------------------------------------------------------------------ in the profiled process


def drain(n: int) -> str:
    from bench.contenders import duly

    app = duly.application()
    watch: Sampler | Profiler = Sampler() if marks.OPTIONS["sample"] else Profiler()
    threads: dict[str, float] = {}
    with watch:
        start = time.perf_counter()
        keeper = threading.Thread(target=_note_threads, args=(threads,), daemon=True, name="bench")
        keeper.start()
        app.worker().run(until_idle=True)
        took = time.perf_counter() - start
    done = marks.executions(marks.RUN)[2]
    busy = "\n".join(
        f"  {name:<28} {1e6 * s / n:6.1f} µs/job  {100 * s / took:5.1f} % of one core"
        for name, s in sorted(threads.items(), key=lambda x: -x[1])
        if name != "bench"
    )
    return f"{done:,} of {n:,} jobs in {took:.2f} s ({done / took:,.0f}/s, profiled)\n\nprocessor time by thread\n{busy}\n\n{watch.report(n)}"


def _note_threads(found: dict[str, float]) -> None:
    """Keep the processor time of every thread by name; a thread that ends keeps its last figure."""
    while True:
        for thread in threading.enumerate():
            try:
                with open(f"/proc/self/task/{thread.native_id}/stat") as f:
                    fields = f.read().rsplit(")", 1)[1].split()
                found[thread.name] = (int(fields[11]) + int(fields[12])) / HERTZ
            except OSError:
                pass
        time.sleep(0.02)


class Profiler:
    """cProfile on this thread and on every thread started while it is on."""

    def __init__(self) -> None:
        self.all: list[cProfile.Profile] = []
        self.own = cProfile.Profile()

    def __enter__(self) -> "Profiler":
        original, keep = threading.Thread.run, self.all

        def profiled(thread: threading.Thread) -> None:
            if thread.name == "bench":
                return original(thread)
            profile = cProfile.Profile()
            keep.append(profile)
            return profile.runcall(original, thread)

        self._original = original
        threading.Thread.run = profiled  # type: ignore[method-assign]
        self.own.enable()
        return self

    def __exit__(self, *_: object) -> None:
        self.own.disable()
        threading.Thread.run = self._original  # type: ignore[method-assign]

    def report(self, n: int) -> str:
        out = io.StringIO()
        stats: Any = pstats.Stats(self.own, stream=out)
        for profile in self.all:
            profile.create_stats()
            if profile.stats:  # type: ignore[attr-defined]
                stats.add(profile)
        rows = [
            (own, calls, cumulative, where)
            for where, (_, calls, own, cumulative, _) in stats.stats.items()
            if not _is_wait(where)
        ]
        total = sum(r[0] for r in rows)
        lines = [
            f"own time by function, waits left out, of {total:.2f} s",
            "   share   µs/job  calls/job  cumulative µs/job  function",
        ]
        for own, calls, cumulative, where in sorted(rows, key=lambda r: -r[0])[:TOP]:
            lines.append(
                f"  {100 * own / total:5.1f} %  {1e6 * own / n:6.2f}  {calls / n:9.2f}  {1e6 * cumulative / n:17.2f}  {_place(where)}"
            )
        return "\n".join(lines)


def _is_wait(where: tuple[str, int, str]) -> bool:
    words = where[2].replace("'", " ").replace(">", " ").replace(".", " ").split()
    return where[0] == "~" and any(w in WAITS for w in words)


def _place(where: tuple[str, int, str]) -> str:
    path, line, name = where
    return name if path == "~" else f"{_short(path)}:{line} {name}"


def _short(path: str) -> str:
    """The end of a path: from the package on."""
    for mark in ("site-packages/", "src/", f"python3.{sys.version_info.minor}/"):
        if mark in path:
            return path.split(mark)[-1]
    return "/".join(path.split("/")[-2:])


class Sampler:
    """Looks at every thread's stack from a thread of its own."""

    def __init__(self) -> None:
        self.own: Counter[str] = Counter()
        self.inside: Counter[str] = Counter()
        self.looks = self.stacks = 0

    def __enter__(self) -> "Sampler":
        self._stop = threading.Event()
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0005)
        self._thread = threading.Thread(target=self._look, daemon=True, name="bench")
        self._thread.start()
        return self

    def _look(self) -> None:
        me = threading.get_ident()
        names = {me}
        while not self._stop.wait(EVERY):
            names |= {t.ident for t in threading.enumerate() if t.name == "bench" and t.ident}
            self.looks += 1
            for ident, frame in sys._current_frames().items():
                if ident in names or frame.f_code.co_name in WAITS:
                    continue
                self.stacks += 1
                self.own[f"{_short(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"] += 1
                seen, at = set(), frame
                while at:
                    seen.add(f"{_short(at.f_code.co_filename)} {at.f_code.co_name}")
                    at = at.f_back  # type: ignore[assignment]
                self.inside.update(seen)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def report(self, n: int) -> str:
        parts = [f"{self.looks:,} looks, {self.stacks:,} stacks not waiting"]
        for heading, counter in (("innermost line", self.own), ("anywhere on the stack", self.inside)):
            parts.append(f"\n{heading}")
            parts += [f"  {100 * c / max(1, self.stacks):5.1f} %  {what}" for what, c in counter.most_common(TOP)]
        return "\n".join(parts)
