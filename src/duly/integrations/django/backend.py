"""A backend for Django's tasks: each task is one of Duly's, named by its module and function, and its results are Duly's jobs.

::

    TASKS = {"default": {"BACKEND": "duly.integrations.django.backend.DulyBackend", "QUEUES": ["default", "mail"], "OPTIONS": {"max_attempts": 3}}}

``django.tasks`` came with Django 6.0. On Django 5.2 the package ``django-tasks`` has the same, under the name ``django_tasks``.

Django's words: READY is a queued job (also one that waits for its next attempt), RUNNING a running one, SUCCESSFUL one that succeeded, FAILED one
that failed or was cancelled. The signals ``task_started`` and ``task_finished`` are sent by the worker, the latter only when no attempt follows.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from traceback import format_exception
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.utils import timezone
from django.utils.module_loading import import_string

from duly.integrations.django.application import DjangoDuly, application
from duly.jobs.job import Attempt, Job, Status
from duly.jobs.run import INJECT, Context
from duly.jobs.task import Task as DulyTask
from duly.kernel import errors as duly_errors
from duly.kernel.backoff import Backoff
from duly.kernel.errors import Cancel, NotFound, PermanentError, Snooze
from duly.kernel.exception_group import decisive

if django.VERSION >= (6, 0):
    _PACKAGE, _JSON = "django.tasks", "django.utils.json"
else:
    _PACKAGE, _JSON = "django_tasks", "django_tasks.utils"
try:
    _base = import_module(f"{_PACKAGE}.base")
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "Django's tasks come with Django 6.0; for Django 5.2 install the package django-tasks.", name=_error.name
    ) from None
_signals = import_module(f"{_PACKAGE}.signals")
_exceptions = import_module(f"{_PACKAGE}.exceptions")
_backends: Any = import_module(f"{_PACKAGE}.backends.base")
_normalize_json: Any = import_module(_JSON).normalize_json

Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist

_STATUS = {
    Status.QUEUED: TaskResultStatus.READY,
    Status.RUNNING: TaskResultStatus.RUNNING,
    Status.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
}
#: Attempts in all; seconds before the second; seconds that one may take.
_OPTIONS = {"max_attempts", "backoff", "timeout"}
#: The key under which a job keeps what its function returned.
_VALUE = "return_value"


class DulyBackend(_backends.BaseTaskBackend):  # type: ignore[misc]
    """Tasks of Django as jobs of Duly."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.app: DjangoDuly = application()
        self.app.extra_queues |= self.queues

    def check(self, **_: Any) -> list[CheckMessage]:
        """Said by ``manage.py check``."""
        found: list[CheckMessage] = []
        if unknown := sorted(set(self.options) - _OPTIONS):
            found.append(
                Error(
                    f"TASKS[{self.alias!r}]['OPTIONS'] has {', '.join(unknown)}; known are max_attempts, backoff and timeout.",
                    id="duly.E003",
                )
            )
        if not apps.is_installed("duly.integrations.django"):
            found.append(
                Error(
                    "'duly.integrations.django' is not in INSTALLED_APPS, so workers do not find tasks.", id="duly.E004"
                )
            )
        return found

    # ------------------------------------------------------------------ tasks

    def validate_task(self, task: Any) -> None:
        """Called by Django when a task is defined, and with each ``using()``. From here on workers of this process know it."""
        super().validate_task(task)
        name = task.module_path
        if name not in self.app.engine.tasks:
            self.app.add(self._as_duly(task, found=not apps.ready))

    def _as_duly(self, task: Any, found: bool) -> DulyTask[Any, Any]:
        backend = self
        if inspect.iscoroutinefunction(task.func):

            async def run_async(args: list[Any], kwargs: dict[str, Any], context: Context = INJECT) -> Any:
                run = _Run(backend, task, context, args, kwargs)
                await run.signal("task_started").asend(type(backend), task_result=run.result)
                try:
                    value = await task.func(*run.arguments, **kwargs)
                except BaseException as error:
                    if run.failed(error):
                        await run.signal("task_finished").asend(type(backend), task_result=run.result)
                    raise
                output = run.succeeded(value)
                await run.signal("task_finished").asend(type(backend), task_result=run.result)
                return output

            fn: Any = run_async
        else:

            def run_plain(args: list[Any], kwargs: dict[str, Any], context: Context = INJECT) -> Any:
                run = _Run(backend, task, context, args, kwargs)
                run.signal("task_started").send(type(backend), task_result=run.result)
                try:
                    value = task.func(*run.arguments, **kwargs)
                except BaseException as error:
                    if run.failed(error):
                        run.signal("task_finished").send(type(backend), task_result=run.result)
                    raise
                output = run.succeeded(value)
                run.signal("task_finished").send(type(backend), task_result=run.result)
                return output

            fn = run_plain
        fn.__doc__, fn.found = task.func.__doc__, found
        o = self.options
        return DulyTask(
            task.module_path, fn, queue=task.queue_name, max_attempts=o.get("max_attempts"), timeout=o.get("timeout"), app=self.app,
            backoff=Backoff(base=o["backoff"]) if "backoff" in o else Backoff(),
        )  # fmt: skip

    # ------------------------------------------------------------------ enqueue

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A job, in the ORM's transaction if one is open. Raises InvalidTask for a task that no worker would find."""
        self.validate_task(task)
        if not getattr(self.app.engine.tasks[task.module_path].fn, "found", True):
            raise InvalidTask(
                f"{task.module_path} was defined after Django was set up, so workers would not find it. Define it in a module `tasks` of an "
                f"installed app, or add {task.func.__module__!r} to DULY['MODULES']."
            )
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        made = self.app.enqueue(
            task.module_path, {"args": _normalize_json(args), "kwargs": _normalize_json(kwargs)}, queue=task.queue_name,
            priority=task.priority, run_at=run_at, max_attempts=self.options.get("max_attempts"),
        )  # fmt: skip
        result = self._result(task, made.job, [])
        _signals.task_enqueued.send(type(self), task_result=result)
        return result

    # ------------------------------------------------------------------ results

    def get_result(self, result_id: str) -> Any:
        """What has become of a task, as the ORM's transaction sees it. Raises TaskResultDoesNotExist."""
        if not (str(result_id).isascii() and str(result_id).isdigit()):
            raise TaskResultDoesNotExist(result_id)
        try:
            job, tried = self.app.look(int(result_id))
        except NotFound:
            raise TaskResultDoesNotExist(result_id) from None
        try:
            task = import_string(job.task)
        except ImportError:
            task = None
        if not isinstance(task, Task):  # a job of one of Duly's own tasks
            raise TaskResultDoesNotExist(result_id)
        planned = job.run_at is not None and job.created_at is not None and job.run_at > job.created_at
        run_after = job.run_at if planned else None
        return self._result(task.using(priority=job.priority, queue_name=job.queue, run_after=run_after), job, tried)

    def _result(self, task: Any, job: Job, tried: Sequence[Attempt]) -> Any:
        workers = [attempt.worker or "" for attempt in tried]
        if len(workers) < job.attempts and job.worker is not None:
            workers.append(job.worker)
        errors = [attempt.error for attempt in tried if attempt.error]
        if job.status in (Status.FAILED, Status.CANCELLED) and job.error and job.error not in errors:
            errors.append(job.error)
        starts = [attempt.started_at for attempt in tried if attempt.started_at] + (
            [job.started_at] if job.started_at else []
        )
        result = TaskResult(
            task=task, id=str(job.id), status=_STATUS[job.status], enqueued_at=_said(job.created_at),
            started_at=_said(min(starts, default=None)), finished_at=_said(job.finished_at),
            last_attempted_at=_said(max(starts, default=None)), args=job.input["args"], kwargs=job.input["kwargs"], backend=self.alias,
            errors=[TaskError(exception_class_path=_path(error), traceback=_told(error)) for error in errors], worker_ids=workers,
        )  # fmt: skip
        if job.status is Status.SUCCEEDED:
            _set(result, "_return_value", (job.output or {}).get(_VALUE))
        return result


class _Run:
    """One attempt, as Django's signals and contexts are told of it."""

    def __init__(
        self, backend: DulyBackend, task: Any, context: Context, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        self._job = context.job
        # who tried before is on record; here only how often counts, and no query is made for it
        worker = self._job.worker or ""
        self.result = backend._result(task, self._job, [])
        _set(self.result, "worker_ids", [worker] * self._job.attempts)
        self.arguments = [TaskContext(task_result=self.result), *args] if task.takes_context else args

    @staticmethod
    def signal(name: str) -> Any:
        return getattr(_signals, name)

    def succeeded(self, value: Any) -> dict[str, Any] | None:
        """What the job keeps of a returned value."""
        try:
            value = _normalize_json(value)
        except (TypeError, ValueError):
            pass  # the work is done; the worker keeps what it can of it, or says that it cannot
        self._end(TaskResultStatus.SUCCESSFUL)
        _set(self.result, "_return_value", value)
        return None if value is None else {_VALUE: value}

    def failed(self, error: BaseException) -> bool:
        """Note the error. Is it the end?"""
        kind = type(error)
        self.result.errors.append(
            TaskError(
                exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
                traceback="".join(format_exception(error)),
            )
        )
        asked = decisive(error)
        last = self._job.attempts >= self._job.max_attempts or isinstance(asked, PermanentError | Cancel)
        if not last or isinstance(asked, Snooze) or not isinstance(error, Exception):
            return False
        self._end(TaskResultStatus.FAILED)
        return True

    def _end(self, status: Any) -> None:
        _set(self.result, "status", status)
        _set(self.result, "finished_at", timezone.now())


def _set(result: Any, name: str, value: Any) -> None:
    object.__setattr__(result, name, value)


def _said(instant: datetime | None) -> datetime | None:
    """An instant as Django says it: naive where USE_TZ is false."""
    if instant is None or settings.USE_TZ:
        return instant
    naive: datetime = timezone.make_naive(instant, timezone.get_default_timezone())
    return naive


def _path(error: Mapping[str, Any]) -> str:
    """The full name of the class of an error on record."""
    if path := error.get("path"):
        return str(path)
    name = str(error.get("type") or "Exception")
    if hasattr(builtins, name):
        return f"builtins.{name}"
    if name == "Timeout":
        return "builtins.TimeoutError"
    if hasattr(duly_errors, name):
        return f"duly.kernel.errors.{name}"
    return "duly.kernel.errors.DulyError"  # what a worker says itself, such as WorkerLost


def _told(error: Mapping[str, Any]) -> str:
    """What is kept of a traceback, with the error behind it."""
    lines = [f"  {line}" for line in error.get("trace", ())]
    return "\n".join((*lines, f"{error.get('type', 'Error')}: {error.get('message', '')}")) + "\n"
