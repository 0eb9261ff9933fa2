"""What the processes of the tests of idempotent jobs run: a worker, with a place to die between every two steps of a call.

The steps are put around the store's own doors from outside: ``reserve`` is the look at a key with all it writes,
``record`` the write of a success. An effect is a line of the journal: nobody can take it back.
"""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from crash.idempotent_apart import idempotent_apart
from crash.program import SOON, Here, Plan, enter_process, write
from duly import INJECT, Duly, Job
from duly.idempotency import SqlStore, idempotent_task
from duly.idempotency.store import Holding
from duly.jobs.worker import Worker
from duly.kernel.events import PROCESS, Event

#: A lock of 6 s; a dead holder's own next self waits 1.5 s.
QUICK: dict[str, Any] = {"time_limit": 4, "margin": 2, "heartbeat": 0.5}


@idempotent_task(**QUICK)
def on_a_thread(tag: str, job: Job = INJECT) -> dict[str, Any]:
    return body(tag, job)


@idempotent_task(**QUICK)
async def on_the_loop(tag: str, job: Job = INJECT) -> dict[str, Any]:
    return body(tag, job)


def body(tag: str, job: Job) -> dict[str, Any]:
    write("begin", tag=tag, job=job.id)
    Here.die_at("body.started")
    write("effect", tag=tag, job=job.id)
    Here.die_at("body.effect")
    return {"job": job.id, "attempt": job.attempts}


@idempotent_task(**QUICK)
def in_a_transaction(tag: str, session: Session, job: Job = INJECT) -> dict[str, Any]:
    write("begin", tag=tag, job=job.id)
    Here.die_at("body.started")
    session.execute(text("INSERT INTO bookings VALUES (:tag)"), {"tag": tag})
    Here.die_at("body.effect")
    return {"job": job.id, "attempt": job.attempts}


def define(app: Duly) -> Duly:
    app.task("IN_A_TRANSACTION", backoff=SOON)(in_a_transaction)
    app.task("ON_A_THREAD", backoff=SOON)(on_a_thread)
    app.task("ON_THE_LOOP", backoff=SOON)(on_the_loop)
    app.task("IDEMPOTENT_APART", run_in="process", backoff=SOON)(idempotent_apart.fn)
    return app


def run_idempotent_worker(plan: Plan) -> None:
    """Be a worker until somebody ends it."""
    os.environ["CRASH_DATABASE"] = plan.url
    enter_process(plan)
    PROCESS.listen(_hear)
    app = define(Here.app)
    worker: Worker = app.worker(plan.queues, name=plan.name)
    Here.die_at.lurk(app, worker)
    Here.die_at._around(SqlStore, "reserve", "reserve.before", "reserve.after")
    Here.die_at._around(Holding, "succeed", "record.before", "record.after")
    write("working")
    worker.run(until_idle=plan.until_idle)
    app.close()


def _hear(event: Event) -> None:
    write("told", event=event.name, **{f"_{k}": v for k, v in event.facts.items() if k != "idempotency_key"})
