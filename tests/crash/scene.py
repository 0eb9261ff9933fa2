"""The test's side: processes at work on one database, what they wrote down, and the books afterwards.

``Scene.check`` is the heart of it: what must be true of every job, whoever died when.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import text

import nursery
from crash import program
from crash.program import Plan
from duly import Duly, Job, Status
from duly.jobs.job import Attempt
from keeper import until

start_nursery = nursery.start
#: So many times the seconds that an idle machine takes at most are waited: beside a load of ten on each core a test is slow, and not red.
PATIENCE = 8


class Actor:
    """One process."""

    def __init__(self, scene: Scene, plan: Plan, role: Callable[..., None], **more: Any) -> None:
        self.scene, self.plan, self.name = scene, plan, plan.name
        self._process = nursery.CONTEXT.Process(target=role, args=(plan,), kwargs=more, name=plan.name)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def signal(self, number: int) -> float:
        """Send a signal. Returns the monotonic instant."""
        assert self.alive, f"{self.name} has ended by itself: {self._process.exitcode} {self.log}"
        os.kill(self.pid, number)
        return time.monotonic()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def ended(self, within: float = 30) -> int:
        """Wait for the end: its exit code, the signal's number below zero."""
        self._process.join(within * PATIENCE)
        code = self._process.exitcode
        assert code is not None, f"{self.name} did not end within {within * PATIENCE:g} s:\n{self.log}"
        return code

    @property
    def log(self) -> str:
        """What it wrote to stdout and stderr."""
        path = self.plan.folder / f"{self.name}.log"
        return path.read_text() if path.exists() else ""

    def discard(self) -> None:
        if self._process.is_alive():
            os.kill(self.pid, signal.SIGCONT)
            self._process.kill()
        self._process.join(10)
        self._process.close()


class Scene:
    """One database, the processes that work on it, and their journal."""

    def __init__(self, url: str, folder: Path, **settings: Any) -> None:
        self.url, self.folder, self.settings = url, folder, settings
        (folder / "journal").touch()
        self.app = program.define(Duly(url, **settings))
        self.actors: list[Actor] = []
        self._read, self._lines = 0, list[dict[str, Any]]()

    def close(self) -> None:
        for actor in self.actors:
            actor.discard()
        self.app.close()

    # ------------------------------------------------------------------ acting

    def worker(self, name: str, queues: Mapping[str, int] | None = None, *, wait: bool = True, **more: Any) -> Actor:
        """Start a worker. ``more``: fields of Plan, or settings. Returns once it works, unless told not to ``wait``."""
        actor = self.act(name, program.run_worker, queues=queues or {"default": 5}, **more)
        if wait:
            self.wait(lambda: self.told(name, "ready") or not actor.alive, 30, f"{name} to start")
        return actor

    def act(self, name: str, role: Callable[..., None], queues: Any = None, args: Any = None, **more: Any) -> Actor:
        fields = {n: more.pop(n) for n in ("kill_at", "kill_after", "until_idle") if n in more}
        plan = Plan(name, self.url, self.folder, settings={**self.settings, **more}, **fields)
        if queues is not None:
            plan = Plan(**{**plan.__dict__, "queues": dict(queues)})
        self.actors.append(Actor(self, plan, role, **(args or {})))
        return self.actors[-1]

    def enqueue(self, task: str, queue: str = "default", options: Mapping[str, Any] | None = None, **input: Any) -> Job:
        return self.app.enqueue(task, input, queue=queue, **(options or {})).job

    def sql(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """What a SELECT says."""
        return self.app.db.read(lambda c: [tuple(row) for row in c.execute(text(statement), parameters)])

    def change(self, statement: str, **parameters: Any) -> None:
        self.app.open()
        self.app.db.write(lambda c: c.execute(text(statement), parameters))

    # ------------------------------------------------------------------ looking

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        assert until(condition, seconds * PATIENCE), (
            f"waited {seconds * PATIENCE:g} s in vain for {what}\n{self.report()}"
        )

    def wait_for_end(self, jobs: Iterable[int] | None = None, seconds: float = 30) -> None:
        """Wait until these jobs, or all there are, have ended."""
        if jobs is None:
            self.wait(lambda: self.sql("SELECT count(*) FROM jobs") == [(0,)], seconds, "the end of all jobs")
        else:
            numbers = ", ".join(map(str, jobs))
            query = f"SELECT count(*) FROM jobs WHERE id IN ({numbers})"
            self.wait(lambda: self.sql(query) == [(0,)], seconds, f"the end of jobs {numbers}")

    def journal(self) -> list[dict[str, Any]]:
        """All that was written down so far, in order."""
        with (self.folder / "journal").open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        self._lines += [json.loads(line) for line in whole.splitlines()]
        return self._lines

    def lines(self, what: str, **facts: Any) -> list[dict[str, Any]]:
        return [x for x in self.journal() if x["what"] == what and all(x.get(k) == v for k, v in facts.items())]

    def told(self, who: str, what: str, **facts: Any) -> list[dict[str, Any]]:
        return self.lines(what, who=who, **facts)

    def events(self, name: str, **facts: Any) -> list[dict[str, Any]]:
        return self.lines("event", event=name, **facts)

    def errors(self) -> list[dict[str, Any]]:
        """Everything that was logged as an error."""
        return self.lines("event", level="error") + self.lines("raised")

    def report(self) -> str:
        """For a failure: the last lines, and what the processes said."""
        last = "\n".join(json.dumps(x, default=str) for x in self.journal()[-25:])
        said = "\n".join(f"--- {a.name}:\n{a.log[-2000:]}" for a in self.actors if a.log)
        return f"{last}\n{said}"

    def is_ready(self, who: str) -> bool:
        lines = self.told(who, "ready")
        return bool(lines) and lines[-1]["ready"]

    # ------------------------------------------------------------------ the books

    def attempts(self, job: int) -> list[Attempt]:
        return self.app.db.read(lambda c: self.app.engine.reader.attempts_of(c, job))

    def effects(self, job: int) -> list[int]:
        """The numbers of the attempts that had an effect outside, in order."""
        return [x["attempt"] for x in self.lines("effect", job=job)]

    def check(self, jobs: Iterable[int], most: int = 2) -> list[str]:
        """Everything that is wrong with these jobs, which should all have succeeded, each with at most ``most`` effects."""
        wanted = set(jobs)
        done = {
            r[0]: r[1:] for r in self.sql("SELECT id, task, status, attempts, queue, key, key_scope FROM jobs_done")
        }
        live = Counter(r[0] for r in self.sql("SELECT id FROM jobs"))
        trail: dict[int, list[str]] = {}
        for ident, action in self.sql("SELECT entity_id, action FROM audit_log WHERE entity = 'job' ORDER BY id"):
            trail.setdefault(int(ident), []).append(action)
        history: dict[int, list[tuple[int, str]]] = {}
        for ident, attempt, outcome in self.sql("SELECT job_id, attempt, outcome FROM attempts ORDER BY id"):
            history.setdefault(ident, []).append((attempt, outcome))
        keys = {(q, k): owner for q, k, owner in self.sql("SELECT queue, key, job_id FROM job_keys")}
        effects: dict[int, list[int]] = {}
        for line in self.lines("effect"):
            effects.setdefault(line["job"], []).append(line["attempt"])

        wrong = []
        for ident in sorted(wanted):
            say = [f"job {ident}"]
            if ident not in done or live[ident]:
                wrong.append(f"job {ident} is lost" if not live[ident] else f"job {ident} has not ended")
                continue
            task, status, attempts, queue, key, scope = done[ident]
            if status != Status.SUCCEEDED:
                say.append(f"is {status}")
            if trail.get(ident) != [f"{task}_COMPLETED"]:
                say.append(f"has the trail {trail.get(ident)}")
            lost = history.get(ident, [])
            if [a for a, _ in lost] != list(range(1, attempts)):
                say.append(f"made {attempts} attempts and has the history {lost}")
            if key is not None and keys.get((queue, key)) != (ident if scope == "forever" else None):
                say.append(f"has the key {key} ({scope}), which belongs to {keys.get((queue, key))}")
            seen = effects.get(ident, [])
            odd = not 1 <= len(seen) <= most or len(set(seen)) != len(seen) or seen[-1] != attempts
            if task not in program.ELSEWHERE and odd:
                say.append(f"had effects in attempts {seen} of {attempts}")
            if len(say) > 1:
                wrong.append(", ".join(say))
        return wrong
