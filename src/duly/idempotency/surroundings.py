"""Where a call happens: in a Duly job, in a Celery task, or anywhere. It says who calls, and how to have it called again.

The owner must be the same when the same work is delivered again, and another one for any other call. Celery is not
imported: whoever runs in a Celery task has imported it.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

from duly.idempotency.default import default_store
from duly.idempotency.store import Store
from duly.jobs.run import CURRENT, repeats
from duly.kernel.errors import Cancel, Retry, Snooze
from duly.kernel.exception_group import decisive, leaves
from duly.tracing import checked


class Surroundings:
    """A plain call: nobody delivers it again, so it is told to its caller."""

    #: Is a call that is told to come later really made again?
    comes_again = False
    tenant: str | None = None
    #: The ``traceparent`` that the call brought along, where it is not known otherwise.
    traceparent: str | None = None
    #: A person has it done again on purpose, though it succeeded.
    again = False
    #: Has the body asked to be called again, and gone on to its end?
    asked_again = False
    #: Where reservations belong here, if a function names no store.
    store: Callable[[], Store] = staticmethod(default_store)

    def __init__(self) -> None:
        self.owner = f"call:{uuid.uuid4().hex}"

    def later(self, why: Snooze) -> NoReturn:
        """The body must not run now: have the call made again, in ``why.after`` seconds."""
        raise why


class InJob(Surroundings):
    """A Duly job: the worker understands Snooze, which uses no attempt."""

    comes_again = True

    def __init__(self, job_id: int, tenant: str, app: Any, repeat: int) -> None:
        self.again, self.tenant = repeat > 0, tenant
        self.owner = f"job:{job_id}:again-{repeat}" if repeat else f"job:{job_id}"
        if app is not None:
            self.store = lambda: app.reservations  # the database that the job is in


class InCelery(Surroundings):
    """A Celery task: it is sent again under the same id, so the duplicate is never acknowledged and dropped (T004-d)."""

    comes_again = True

    def __init__(self, task: Any) -> None:
        self.task = task
        request = task.request
        self.owner = f"celery:{request.id}"
        self.traceparent = checked(getattr(request, "traceparent", None) or (request.headers or {}).get("traceparent"))
        _watch_retries(task)
        self._request, self._retries = request, getattr(request, _RETRIES, 0)

    @property
    def asked_again(self) -> bool:  # type: ignore[override]
        return getattr(self._request, _RETRIES, 0) > self._retries

    def later(self, why: Snooze) -> NoReturn:
        task = self.task
        request = task.request
        if request.is_eager:
            raise why
        # As Task.retry does, with the count of retries as it was: what did not run uses none of the task's own.
        again = task.signature_from_request(
            request, countdown=why.after, retries=request.retries, ignore_result=task.ignore_result
        )
        try:
            again.apply_async()
        except Exception as error:
            # the broker does not take it: it is given back instead of being acknowledged as a failure
            raise sys.modules["celery.exceptions"].Reject(str(why), requeue=True) from error
        raise sys.modules["celery.exceptions"].Retry(message=str(why), when=why.after, sig=again)


#: Where a request keeps how often its task was asked to be retried.
_RETRIES = "duly_retries"


def _watch_retries(task: Any) -> None:
    """``self.retry(throw=False)`` sends the task again and leaves nothing to see of it: count what it sends, once for each task."""
    plain = task.retry
    if getattr(plain, "counts_retries", False):
        return

    @functools.wraps(plain)
    def retry(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        try:
            answer = plain(*args, **kwargs)
        except sys.modules["celery.exceptions"].Retry:
            setattr(request, _RETRIES, getattr(request, _RETRIES, 0) + 1)
            raise
        setattr(request, _RETRIES, getattr(request, _RETRIES, 0) + 1)
        return answer

    retry.counts_retries = True  # type: ignore[attr-defined]
    task.retry = retry


def surroundings() -> Surroundings:
    """Where this call happens."""
    run = CURRENT.get()
    if run is not None:
        claimed = run.claimed
        return InJob(
            claimed.id,
            claimed.tenant,
            getattr(getattr(run, "task", None), "app", None),
            repeats(claimed.id, claimed.meta),
        )
    celery = sys.modules.get("celery")
    if celery is not None:
        task = celery.current_task
        # a proxy: false outside any task; without an id when the task is called as a function
        if task and task.request.id and not task.request.called_directly:
            return InCelery(task._get_current_object() if hasattr(task, "_get_current_object") else task)
    return Surroundings()


def caller() -> object:
    """Who is calling here: the running asyncio task, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        task = None
    return threading.current_thread() if task is None else task


def is_control(error: BaseException) -> bool:
    """Does the body ask for another run, or for none, instead of having failed (T004-f)?"""
    if isinstance(decisive(error), Retry | Snooze | Cancel):
        return True
    exceptions = sys.modules.get("celery.exceptions")
    asks = () if exceptions is None else (exceptions.Retry, exceptions.Ignore, exceptions.Reject)
    return any(isinstance(leaf, asks) for leaf in leaves(error))
