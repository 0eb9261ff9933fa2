"""The test's side: a Celery worker in processes of its own, a dispatcher, and the books afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from celery import Celery
from sqlalchemy import text

import nursery
from contract.hands import working
from duly import Duly, Job
from duly.integrations.celery import Dispatcher
from duly.jobs.job import Attempt
from integrations.celery_tasks import define
from keeper import until

TESTS = Path(__file__).parents[1]


class CeleryWorker:
    """A Celery worker as somebody would start it, in a process group of its own."""

    def __init__(
        self, scene: Scene, name: str, *options: str, without: str = "", program: str = "celery_fleet", **settings: Any
    ) -> None:
        self.log = scene.folder / f"{name}.log"
        self.scene = scene
        environ = {
            **os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "FLEET_DULY": json.dumps({"database_url": scene.url, **scene.settings}), "FLEET_BROKER": scene.broker,
            "FLEET_JOURNAL": str(scene.journal_file), "FLEET_WITHOUT": without, "FLEET_SETTINGS": json.dumps(settings),
        }  # fmt: skip
        arguments = [
            "-A",
            f"integrations.{program}",
            "worker",
            "-n",
            f"{name}@%h",
            "-l",
            "INFO",
            "--without-mingle",
            "--without-gossip",
            *options,
        ]
        ready = len(scene.lines("ready"))
        nursery.start()
        self._process = nursery.CONTEXT.Process(
            target=_celery, args=(str(scene.folder), environ, str(self.log), arguments)
        )
        self._process.start()
        scene.wait(lambda: len(scene.lines("ready")) > ready or not self._process.is_alive(), f"{name} to start")
        assert self._process.is_alive(), self.log.read_text()

    def kill(self) -> None:
        """As a power cut would: every process of it at once."""
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join(10)

    def stop(self) -> int | None:
        """As a deploy would. Returns the exit code."""
        self._process.terminate()
        self._process.join(30)
        return self._process.exitcode


def _celery(folder: str, environ: Mapping[str, str], log: str, arguments: list[str]) -> None:
    """Be ``celery …``, in a process group of its own."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    nothing, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, stream in ((0, nothing), (1, out), (2, out)):
        os.dup2(stream, number)
    # as for a program of its own: signals mean what they mean by themselves
    for received in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(received, signal.default_int_handler if received is signal.SIGINT else signal.SIG_DFL)
    sys.argv = ["celery", *arguments]
    from celery.__main__ import main

    main()


class Scene:
    """One database, one broker, and who is at work on them."""

    def __init__(self, url: str, broker: str, folder: Path, **settings: Any) -> None:
        self.url, self.broker, self.folder = url, broker, folder
        self.settings = {"lease": 6, "poll": 0.05, "grace": 5, **settings}
        self.journal_file = folder / "journal"
        self.journal_file.touch()
        self.app = define(Duly(url, **self.settings))
        self.celery_app = Celery("dispatcher", broker=broker)
        self._fleet: list[CeleryWorker] = []
        self.said: list[tuple[str, Mapping[str, Any]]] = []
        self.app.listen(lambda event: self.said.append((event.name, event.facts)))

    def close(self) -> None:
        for worker in self._fleet:
            worker.kill()
        self.app.close()

    # ------------------------------------------------------------------ acting

    def fleet(self, *options: str, name: str = "fleet", without: str = "", **settings: Any) -> CeleryWorker:
        """Start a Celery worker; returns once it is ready. ``options``: of its command line; ``settings``: its limits and its program."""
        self._fleet.append(CeleryWorker(self, name, *(options or ("-P", "solo")), without=without, **settings))
        return self._fleet[-1]

    def dispatcher(self, queues: Mapping[str, int] | None = None, **options: Any) -> Dispatcher:
        self.app.open()
        return Dispatcher(self.app.engine, self.celery_app, queues or {"default": 100}, **options)

    @contextlib.contextmanager
    def dispatching(self, **options: Any) -> Iterator[Dispatcher]:
        """A dispatcher at work in this process."""
        made = self.dispatcher(**options)
        with working(made):
            yield made

    def enqueue(self, task: str, queue: str = "default", options: Mapping[str, Any] | None = None, **input: Any) -> int:
        return self.app.enqueue(task, input, queue=queue, **(options or {})).job.id

    def go_on(self) -> None:
        """Let those go on who wait."""
        Path(f"{self.journal_file}.go").touch()

    def lapse(self, *jobs: int) -> None:
        """Let the leases of jobs lapse now, so that no test waits for it and no slow machine comes before it."""
        change = text(f"UPDATE jobs SET lease_until = created_at WHERE id IN ({', '.join(map(str, jobs))})")
        assert self.app.db.write(lambda c: c.execute(change).rowcount) == len(jobs)

    # ------------------------------------------------------------------ looking

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 40) -> None:
        assert until(condition, seconds), f"waited {seconds:g} s in vain for {what}\n{self.report()}"

    def wait_for_end(self, *jobs: int) -> None:
        self.wait(lambda: all(self.job(ident).is_final for ident in jobs), f"the end of jobs {jobs}")

    def wait_for(self, what: str, job: int, attempt: int | None = None) -> dict[str, Any]:
        """Wait for a line of the journal about a job."""
        facts = {"job": job} | ({} if attempt is None else {"attempt": attempt})
        self.wait(lambda: self.lines(what, **facts), f"{what} of job {job}")
        return self.lines(what, **facts)[-1]

    def job(self, ident: int) -> Job:
        return self.app.jobs.get(ident)

    def attempts(self, ident: int) -> list[Attempt]:
        return self.app.db.read(lambda c: self.app.engine.reader.attempts_of(c, ident))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        self.app.open()
        return self.app.db.read(lambda c: [tuple(row) for row in c.execute(text(sql))])

    def lines(self, what: str, **facts: Any) -> list[dict[str, Any]]:
        whole = self.journal_file.read_bytes().rpartition(b"\n")[0].splitlines()
        return [x for x in map(json.loads, whole) if x["what"] == what and all(x.get(k) == v for k, v in facts.items())]

    def begun(self, ident: int) -> list[int]:
        """The attempts in which a job was begun: what could be seen of it outside."""
        return [x["attempt"] for x in self.lines("begin", job=ident)]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Facts of the events that the fleet has told."""
        return [x["facts"] for x in self.lines("event", event=name)]

    def told(self, name: str) -> list[Mapping[str, Any]]:
        """Facts of the events that were told in this process."""
        return [facts for said, facts in self.said if said == name]

    def report(self) -> str:
        logs = "\n".join(f"--- {w.log.name}:\n{w.log.read_text()[-3000:]}" for w in self._fleet)
        jobs = "\n".join(map(str, self.rows("SELECT id, task, status, attempts, worker, due_at FROM jobs ORDER BY id")))
        return f"{self.journal_file.read_text()[-3000:]}\n{self.said[-20:]}\n{jobs}\n{logs}"
