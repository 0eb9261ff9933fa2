"""The driver's side of a contender: start its processes, measure a drain.

A drain starts at the first handler call and ends when every job is executed *and* recorded as done in the database. A worker is
one process of the library's own worker. Everything before the first handler call (imports, connecting) is left out.
"""

import contextlib
import importlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from bench import machine, marks, venvs
from bench.postgres import Server

ROOT = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """A contender's process failed; the message carries the end of what it said."""


@dataclass(frozen=True)
class Contender:
    #: as printed
    name: str
    #: module below `bench`
    path: str
    #: "pg" or "sqlite"
    database: str
    #: as printed: what the worker takes at once
    batch: str
    #: queue depth as a share of the one asked for: the slow ones would take minutes
    share: float = 1.0
    #: environment under `.bench/venvs/`; None is the interpreter that runs the benchmark
    venv: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.name} {venvs.version(self.venv)}" if self.venv else self.name

    def depth(self, jobs: int) -> int:
        return max(200, int(jobs * self.share))

    @property
    def code(self) -> Any:
        return importlib.import_module("bench." + self.path)


@dataclass(frozen=True)
class Drain:
    """One drain. `rate` in jobs per second; CPU in microseconds per job; memory in MiB at its highest."""

    rate: float
    seconds: float
    jobs: int
    worker_us: float | None
    server_us: float | None
    rss: float | None
    others: float
    #: the longest time in which no handler started, in milliseconds
    pause_ms: float
    #: the time limit passed before all jobs were done: `rate` is what was done until then
    stopped: bool = False

    @property
    def disturbed(self) -> bool:
        return self.others > machine.QUIET


class Bench:
    """One run: its scratch folder, its PostgreSQL (started when first asked for), its patience with neighbours."""

    def __init__(self, *, jobs: int, reps: int, patience: float, quick: bool, peers: bool) -> None:
        self.jobs, self.reps, self.patience, self.quick, self.peers = jobs, reps, patience, quick, peers
        self.scratch = Path(tempfile.mkdtemp(prefix="duly-bench-"))

    @cached_property
    def server(self) -> Server:
        return Server()

    @property
    def started(self) -> bool:
        return "server" in self.__dict__

    @property
    def spare(self) -> tuple[str, ...]:
        return self.server.spare if self.started else ()

    def close(self) -> None:
        if self.started:
            self.server.stop()
        shutil.rmtree(self.scratch, ignore_errors=True)

    # ---------------------------------------------------------------- databases

    def fresh(self, contender: Contender, template: str | None = None) -> str:
        """An empty database for this contender (or a copy of a prepared one); returns its URL."""
        name = "".join(x if x.isalnum() else "_" for x in contender.name)
        if contender.database == "pg":
            return self.server.scratch(name, template)
        folder = self.scratch / "sqlite"
        folder.mkdir(exist_ok=True)
        for suffix in ("", "-wal", "-shm"):
            (folder / f"{name}.db{suffix}").unlink(missing_ok=True)
        return f"sqlite:///{folder / name}.db"

    @contextlib.contextmanager
    def scalars(self, target: str) -> Iterator[Callable[[str], Any]]:
        """A function that answers a one-value query on an open connection."""
        if target.startswith("sqlite"):
            c = sqlite3.connect(target.removeprefix("sqlite:///"), timeout=10, isolation_level=None)
        else:
            c = psycopg.connect(target, autocommit=True)
        try:
            yield lambda sql: c.execute(sql).fetchone()[0]
        finally:
            c.close()

    def settle(self, target: str) -> None:
        """Put everything on disk and the statistics in order, so that no drain pays for its filling or its neighbour's."""
        if target.startswith("sqlite"):
            c = sqlite3.connect(target.removeprefix("sqlite:///"), timeout=10, isolation_level=None)
            c.execute("pragma wal_checkpoint(truncate)")
            c.close()
        else:
            with psycopg.connect(target, autocommit=True) as c:
                c.execute("analyze")
                c.execute("checkpoint")

    # ---------------------------------------------------------------- processes

    def _environment(self, contender: Contender, target: str, run: str) -> dict[str, str]:
        # compiled files are kept, as an installation has them: compiling at the start leaves a worker megabytes larger
        unwanted = ("DULY_BENCH_", "DULY_DATABASE_", "PYTHONDONTWRITEBYTECODE")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
        return (
            inherited
            | contender.environment
            | {
                "BENCH_TARGET": target,
                "BENCH_RUN": run,
                "BENCH_OPTIONS": json.dumps(contender.options),
                "PYTHONPATH": str(ROOT),
                "PYTHONPYCACHEPREFIX": str(ROOT / ".bench" / "pycache"),
            }
        )

    def _command(self, contender: Contender, command: str, *n: int) -> list[str]:
        python = venvs.python_for(contender.venv) if contender.venv else sys.executable
        return [python, "-m", "bench.child", contender.path, command, *map(str, n)]

    def call(
        self, contender: Contender, target: str, command: str, *n: int, run: str = "", timeout: float = 600
    ) -> Any:
        """Run one command of a contender in a process of its own and answer what it returned."""
        done = subprocess.run(
            self._command(contender, command, *n),
            env=self._environment(contender, target, run),
            cwd=self.scratch,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        for line in done.stdout.splitlines():
            if line.startswith("BENCH "):
                return json.loads(line.removeprefix("BENCH "))
        raise Failed(f"{contender.name}: {command} failed: {_last_words(done.stderr)}")

    @contextlib.contextmanager
    def worker(self, contender: Contender, target: str, command: str = "work") -> Iterator["Worker"]:
        run = Path(tempfile.mkdtemp(prefix="run-", dir=self.scratch))
        log = run / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self._command(contender, command),
                env=self._environment(contender, target, str(run)),
                cwd=self.scratch,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        worker = Worker(contender, process, str(run), log)
        try:
            worker.wait_ready()
            yield worker
        finally:
            worker.stop()
            shutil.rmtree(run, ignore_errors=True)

    # ---------------------------------------------------------------- the measurement

    def drain(
        self,
        contender: Contender,
        *,
        jobs: int | None = None,
        target: str | None = None,
        limit: float = 90,
        during: Callable[["Worker"], None] | None = None,
    ) -> Drain:
        """Fill an empty database (unless `target` is a filled one) and let one worker drain it.

        `during` is called every few milliseconds while it runs.
        """
        n = contender.depth(self.jobs) if jobs is None else jobs
        if target is None:
            target = self.fresh(contender)
            self.call(contender, target, "prepare", n)
        with self.scalars(target) as scalar:
            after = scalar("select coalesce(max(id), 0) from jobs_done") if _keeps_ids(contender) else 0
            self.settle(target)
            machine.wait_until_quiet(self.patience, self.spare)
            watch = machine.Neighbours(self.spare)
            with self.worker(contender, target) as worker:
                started = server = None
                worker.go()
                give_up, done, count, moved, pause = time.time() + limit, 0, 0, time.time(), 0.0
                while time.time() < give_up and worker.alive():
                    seen = marks.executions(worker.run)[2]
                    if seen and not count:  # what importing and connecting cost is left out
                        started = machine.cpu_seconds(machine.tree(worker.process.pid))
                        server = self._server_cpu(contender)
                    if seen > count:
                        pause, moved = max(pause, time.time() - moved if count else 0.0), time.time()
                        count = seen
                    if count >= n:
                        done = min(n, contender.code.recorded(scalar, after))
                        if done >= n:
                            break
                    if during:
                        during(worker)
                    time.sleep(0.004)
                end = time.time()
                first, _, executed = marks.executions(worker.run)
                pids = machine.tree(worker.process.pid)
                cpu, rss = machine.cpu_seconds(pids), machine.rss_mib(pids, peak=True)
                served = self._server_cpu(contender)
                if done < n:
                    if not worker.alive():
                        raise Failed(f"{contender.name}: the worker ended: {worker.words()}")
                    done = min(executed, contender.code.recorded(scalar, after))
                if not first or not done:
                    raise Failed(f"{contender.name}: no job done in {limit:.0f} s: {worker.words()}")
            return Drain(
                rate=round(done / (end - first), 1),
                seconds=round(end - first, 3),
                jobs=n,
                worker_us=round((cpu - started) / done * 1e6, 1) if cpu and started is not None else None,
                server_us=round((served - server) / done * 1e6, 1) if served and server is not None else None,
                rss=rss,
                others=watch.cores(),
                pause_ms=round(pause * 1e3),
                stopped=executed < n,
            )

    def _server_cpu(self, contender: Contender) -> float | None:
        if contender.database == "pg" and self.server.process:
            return machine.cpu_seconds(machine.tree(self.server.process.pid))
        return None


def _keeps_ids(contender: Contender) -> bool:
    """Whether the contender counts the rows of a history table above a highest id (Duly and the raw loops)."""
    return contender.venv is None


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1].replace(str(ROOT), ".")[:300] if lines else "(it said nothing)"


@dataclass
class Worker:
    contender: Contender
    process: subprocess.Popen[bytes]
    run: str
    log: Path

    def alive(self) -> bool:
        return self.process.poll() is None

    def words(self) -> str:
        return _last_words(self.log.read_text(errors="replace"))

    def wait_ready(self, patience: float = 30) -> None:
        give_up = time.monotonic() + patience
        while not marks.ready(self.run):
            if not self.alive() or time.monotonic() > give_up:
                words = self.words()
                self.stop()
                raise Failed(f"{self.contender.name}: the worker did not get ready: {words}")
            time.sleep(0.01)

    def go(self) -> None:
        marks.open_gate(self.run)

    def stop(self) -> None:
        """Kill the worker and what it started; its database is thrown away, so nothing needs a clean end."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
