"""Who sends what is registered for after a commit: a Duly application, a Celery application, or any function.

The sender is the process's, and is chosen when a task is registered: he is asked at once whether he could send it, so that a
wrong argument is refused where it was written and not after the commit, when nobody can mend it any more. This file knows
no sessions and no transactions.

Source: R004-5, T004-q.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from duly.jobs.task import Task
from duly.kernel.binding import is_async
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_number
from duly.outbox.transports.brokers import be_careful
from duly.storage.deadline import WITHIN, Deadline
from duly.tracing import traceparent

S = TypeVar("S", bound="Sender | None")


class DulyApp(Protocol):
    """What is used of ``duly.Duly``."""

    def find_task(self, name: str) -> Task[Any, Any]: ...

    def prepare(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> Any: ...

    def enqueue_prepared(self, prepared: Sequence[Any]) -> object: ...


class CeleryApp(Protocol):
    """What is used of ``celery.Celery``."""

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any: ...


#: Who sends: a Duly application, a Celery application, or a plain function ``sender(task_name, args, kwargs, options)``,
#: whose ``options`` hold what was given of ``queue`` (a text) and ``countdown`` (seconds). What it returns is ignored.
Sender: TypeAlias = Callable[[str, tuple[Any, ...], dict[str, Any], dict[str, Any]], object] | DulyApp | CeleryApp

_sender: Sender | None = None
_deadline = Deadline()


def set_post_commit_sender(sender: Sender | None, *, within: float = WITHIN) -> Sender | None:
    """Choose who sends for this process, and return who did before. None: nobody.

    ``within``: the longest that a commit waits for the sends it has caused, in seconds (default 5). What takes longer, because a broker
    does not answer, goes on by itself on a thread of its own; its result is told when it is known. A Celery application is given socket
    timeouts where it has none, so that it is known in the end.

    Calls that are registered already keep the sender that they were registered with. Raises InvalidArgument for what
    cannot send.
    """
    global _sender, _deadline
    check_number(within, "within", "a number of seconds, more than 0", 0, 3600, above=True)
    before, _sender = _sender, _checked_sender(sender)
    _deadline = Deadline(within)
    return before


@contextmanager
def post_commit_sender(sender: S) -> Iterator[S]:
    """Within: ``sender`` sends what is registered, in the whole process. For tests, mostly.

    The whole process, not the thread alone: a web framework's test client runs the application on another thread.
    """
    before = set_post_commit_sender(sender)
    try:
        yield sender
    finally:
        set_post_commit_sender(before)


def _checked_sender(sender: Sender | None) -> Sender | None:
    if sender is None or _is_celery(sender) or _is_duly(sender):
        return sender
    remedy = "Give a Duly application, a Celery application, or a function of (task_name, args, kwargs, options)."
    if not callable(sender):
        raise InvalidArgument("sender", f"is of type {type(sender).__name__}.", remedy)
    if is_async(sender):
        raise InvalidArgument("sender", "is asynchronous, and a commit cannot wait for it.", "Give a plain function.")
    return sender


# Asked of the class: a Mock has every attribute and is meant to be called, and celery.current_app says whom it stands for.
def _is_celery(sender: object) -> bool:
    return hasattr(sender.__class__, "send_task")


def _is_duly(sender: object) -> bool:
    return hasattr(sender.__class__, "enqueue_prepared")


# --- What is to be sent -------------------------------------------------------------------------------------------------


def prepared(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
) -> tuple[Callable[[], object], Deadline | None]:
    """What is to be called after the commit, and its deadline. Whatever can be refused is refused here, with InvalidArgument.

    ``options``: what was given of ``queue`` and ``countdown`` (seconds).
    """
    sender = _sender
    if sender is None:
        raise InvalidArgument(
            "sender", "is not set, so nobody would send the task.", "Call set_post_commit_sender(app) when you start."
        )
    if _is_celery(sender):
        celery, (args, kwargs) = cast("CeleryApp", sender), _copied(args, kwargs)
        _check_encodes(celery, args, kwargs)
        if (trace := traceparent()) is not None:
            options["headers"] = {"traceparent": trace}
        # celery.current_app means another one on another thread
        celery = getattr(celery, "_get_current_object", lambda: celery)()
        be_careful(celery)
        around: Any = getattr(getattr(celery, "current_worker_task", None), "request", None)
        if isinstance(getattr(around, "id", None), str):
            options |= {"root_id": getattr(around, "root_id", None) or around.id, "parent_id": around.id}
        return lambda: celery.send_task(name, args, kwargs, **options), _deadline
    if _is_duly(sender):
        app = cast("DulyApp", sender)
        if "countdown" in options:
            options["run_in"] = options.pop("countdown")
        job = app.prepare(name, _by_name(app, name, args, kwargs), **options)
        # one connection for everybody, which who commits may hold: nothing is waited for there but this process itself
        in_memory = getattr(getattr(app, "db", None), "memory", False)
        return lambda: app.enqueue_prepared([job]), None if in_memory is True else _deadline
    function, (args, kwargs) = cast("Callable[..., object]", sender), _copied(args, kwargs)
    return lambda: function(name, args, kwargs, options), _deadline


def _check_encodes(celery: CeleryApp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse what the application's serializer would not encode after the commit, naming the argument."""
    serializer = getattr(getattr(celery, "conf", None), "task_serializer", None)
    if not isinstance(serializer, str):
        return
    from kombu.serialization import dumps

    named = [(f"args[{position}]", value) for position, value in enumerate(args)]
    for path, value in (*named, *kwargs.items()):
        try:
            dumps([value], serializer=serializer)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise InvalidArgument(
                path, f"cannot be encoded by Celery's serializer {serializer!r} ({type(error).__name__}).",
                "Give plain values: ids, texts, numbers, lists.",
            ) from None  # fmt: skip


def _by_name(app: DulyApp, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A job's input has names only. Those of positional arguments are known where the task is."""
    if not args:
        return kwargs
    try:
        task = app.find_task(name)
    except LookupError:
        raise InvalidArgument(
            "args", f"have no names, and task {name} is not defined here to tell them.", "Give them as keywords."
        ) from None
    return task.codec.bind(args, kwargs)


def _copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    same: dict[int, Any] = {}

    def copied(value: Any, path: str) -> Any:
        try:
            return copy.deepcopy(value, same)
        except Exception as error:
            raise InvalidArgument(
                path, f"cannot be copied ({type(error).__name__}).", "Give plain values: ids, texts, numbers, lists."
            ) from None

    return (
        tuple(copied(value, f"args[{position}]") for position, value in enumerate(args)),
        {name: copied(value, name) for name, value in kwargs.items()},
    )
