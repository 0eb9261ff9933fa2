"""What ``celery -A integrations.celery_idempotent worker`` runs in these tests: idempotent functions as Celery tasks.

Its surroundings say on which broker, and where reservations are kept: ``FLEET_STORE`` is the URL of a Valkey, or absent, and
then it is the database of the Duly application. Everything a body does is a line of the journal.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.exceptions import Ignore, Reject

from duly import Duly
from duly.idempotency import RedisStore, idempotent_task
from duly.integrations.celery import apply_robust_settings
from duly.kernel.events import PROCESS
from duly.tracing import traceparent
from integrations.celery_tasks import goes_on, hear, write

#: The application made last keeps reservations; a forked child of the pool opens it for itself.
duly_app = Duly(**json.loads(os.environ["FLEET_DULY"]))
PROCESS.listen(hear)
app = Celery("idempotent", broker=os.environ["FLEET_BROKER"], backend=os.environ["FLEET_BROKER"])
app.conf.update(
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    broker_connection_max_retries=None,
)
apply_robust_settings(app, **json.loads(os.environ.get("FLEET_SETTINGS", "{}")))

store = RedisStore(os.environ["FLEET_STORE"]) if "FLEET_STORE" in os.environ else None
#: A lock of 6 s; a dead holder's own next self waits 1.5 s.
QUICK: dict[str, Any] = {"store": store, "time_limit": 4, "margin": 2, "heartbeat": 0.5}
#: A dead holder's own next self waits 10.5 s. Celery looks every 5 s whether a process of its pool has died.
DEADLY: dict[str, Any] = {"store": store, "time_limit": 10, "margin": 2, "heartbeat": 3.5}
#: A lock that outlives any stop of the store in these tests.
LONG: dict[str, Any] = {"store": store, "time_limit": 100, "margin": 20, "heartbeat": 0.5}


def begin(task: Any, tag: str) -> None:
    write("begin", task=task.name, tag=tag, id=task.request.id, retries=task.request.retries)


def first(tag: str) -> bool:
    """Is this asked for the first time, by whichever process?"""
    try:
        Path(f"{os.environ['FLEET_JOURNAL']}.{tag}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_until_told() -> None:
    while not goes_on():
        time.sleep(0.02)


@signals.worker_ready.connect
def ready(**_: Any) -> None:
    write("ready")


@signals.task_retry.connect
def again(sender: Any, request: Any, reason: Any, **_: Any) -> None:
    write("again", task=sender.name, id=request.id, retries=request.retries, reason=str(reason))


# --- Tasks --------------------------------------------------------------------------------------------------------------


@app.task(name="wait", bind=True, max_retries=0)
@idempotent_task(**QUICK)
def wait(self: Any, tag: str) -> dict[str, str]:
    """End when the test says so."""
    begin(self, tag)
    wait_until_told()
    return {"by": self.request.id}


@app.task(name="wait_long", bind=True, max_retries=0)
@idempotent_task(**LONG)
def wait_long(self: Any, tag: str) -> dict[str, str]:
    begin(self, tag)
    wait_until_told()
    return {"by": self.request.id}


@app.task(name="fail_first", bind=True, max_retries=0)
@idempotent_task(**QUICK)
def fail_first(self: Any, tag: str) -> dict[str, str]:
    """The first run fails, when the test says so."""
    begin(self, tag)
    if first(tag):
        wait_until_told()
        raise ValueError("not the first time")
    return {"by": self.request.id}


@app.task(name="named", bind=True)
@idempotent_task(**QUICK)
def named(celery: Any, tag: str) -> dict[str, str]:
    """The task is not called ``self`` here."""
    begin(celery, tag)
    return {"by": celery.request.id}


@app.task(name="unbound")
@idempotent_task(**QUICK)
def unbound(tag: str) -> str:
    write("begin", task="unbound", tag=tag)
    return tag.upper()


def die_first(self: Any, tag: str) -> dict[str, str]:
    """The process of the first run is killed before it has had its effect."""
    begin(self, tag)
    if first(tag):
        os.kill(os.getpid(), signal.SIGKILL)
    write("effect", tag=tag)
    return {"by": self.request.id}


app.task(name="die", bind=True, max_retries=0)(idempotent_task(**DEADLY)(die_first))
#: Its message is acknowledged before it runs, so nobody delivers it again.
app.task(name="die_unheard", bind=True, max_retries=0, acks_late=False)(
    idempotent_task(**QUICK, name="die_unheard")(die_first)
)


@app.task(name="retry", bind=True, max_retries=1)
@idempotent_task(**QUICK)
def retry(self: Any, tag: str) -> int:
    begin(self, tag)
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@app.task(name="retry_quietly", bind=True, max_retries=1)
@idempotent_task(**QUICK)
def retry_quietly(self: Any, tag: str) -> str:
    begin(self, tag)
    if self.request.retries == 0:
        self.retry(countdown=0, throw=False)
        return "later"
    return "done"


@app.task(name="traced", bind=True)
@idempotent_task(**QUICK)
def traced(self: Any, tag: str) -> str | None:
    begin(self, tag)
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return traceparent()


@app.task(
    name="auto", bind=True, autoretry_for=(ValueError,), retry_backoff=False, default_retry_delay=0, max_retries=2
)
@idempotent_task(**QUICK)
def auto(self: Any, tag: str) -> int:
    begin(self, tag)
    if self.request.retries < 2:
        raise ValueError("not yet")
    return int(self.request.retries)


@app.task(name="ignore", bind=True)
@idempotent_task(**QUICK)
def ignore(self: Any, tag: str) -> str:
    begin(self, tag)
    if first(tag):
        raise Ignore
    return "done"


@app.task(name="reject", bind=True)
@idempotent_task(**QUICK)
def reject(self: Any, tag: str) -> str:
    begin(self, tag)
    if first(tag):
        raise Reject("not here", requeue=False)
    return "done"


@app.task(name="requeue", bind=True)
@idempotent_task(**QUICK)
def requeue(self: Any, tag: str) -> str:
    begin(self, tag)
    if first(tag):
        raise Reject("not now", requeue=True)
    return "done"


@app.task(name="slow", bind=True, soft_time_limit=1)
@idempotent_task(**LONG)
def slow(self: Any, tag: str) -> str:
    begin(self, tag)
    if first(tag):
        time.sleep(60)
    return "done"
