"""Settings under which a lost Celery worker loses no task, and no task is run twice for want of a setting (R004-12).

The rules behind the numbers: a message is acknowledged when its task has ended, so it survives its worker; a worker
takes no message that it cannot start; no task outlives its time limit; and the broker waits for longer than that before it
takes a message for lost. Checked against Celery 5.6 and 5.7; nothing here is deprecated in either.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

from celery.signals import worker_init

from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument
from duly.kernel.events import PROCESS
from duly.kernel.payload import read_seconds
from duly.outbox.transports.brokers import CAREFUL

#: What every robust worker wants, whatever its numbers are.
ALWAYS: Mapping[str, Any] = {
    # acknowledged at the end, and given back when the process that ran it is gone
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    # a worker takes what it can start: nothing waits behind a long task while another worker is idle
    "worker_prefetch_multiplier": 1,
    # what a lost connection gives to another worker must not go on here beside it
    "worker_cancel_long_running_tasks_on_connection_loss": True,
    "broker_connection_retry_on_startup": True,
}
#: The soft limit lies so many seconds before the hard one, or a tenth of it where that is less.
SOFT_BEFORE = 30.0
#: Where a visibility timeout is looked for. Celery wants it in all of them; brokers without one ignore it.
_OPTIONS = ("broker_transport_options", "result_backend_transport_options")


def apply_robust_settings(
    app: Any,
    *,
    time_limit: Duration = 300,
    soft_time_limit: Duration | None = None,
    visibility_timeout: Duration = 3600,
    lock_ttl: Duration | None = None,
) -> dict[str, Any]:
    """Give a Celery application settings that lose no task. Returns what is in force now: {setting: value}. All four are durations.

    ``time_limit``: seconds after which a task's process is killed. ``soft_time_limit``: seconds after which the task is
    told (SoftTimeLimitExceeded); by default a little before. Both work in the prefork pool only. ``visibility_timeout``:
    seconds after which Redis or SQS delivers a message again that nobody has acknowledged. ``lock_ttl``: seconds for which
    idempotent tasks keep their lock, if you set that yourself; it is checked, nothing is set.

    What the application has already stays where it is stricter: a shorter time limit, a longer visibility timeout, other
    transport options. What is laxer gives way. Connections to the broker, and to results in Redis, get socket timeouts where they have none. Call it after the application was configured; twice does no harm.

    Raises InvalidArgument for numbers that contradict each other: a soft limit that is not below the hard one, a
    visibility timeout or a lock that a task can outlive. A task may have a longer limit of its own. Tasks that are known
    by now are looked at now; those that come later when a worker has loaded them all, and what contradicts is then told by
    the event ``celery_task_too_long`` (error): no worker is kept from starting by it.
    """
    conf = getattr(app, "conf", None)
    if conf is None or not hasattr(app, "send_task"):
        raise InvalidArgument("app", f"is of type {type(app).__name__}.", "Give a Celery application.")
    asked, kept = _seconds("time_limit", time_limit), None if lock_ttl is None else _seconds("lock_ttl", lock_ttl)
    hard = _shorter(asked, conf.task_time_limit)
    soft = _soft(soft_time_limit, hard, asked, conf.task_soft_time_limit)
    places = {name: dict(conf.get(name) or {}) for name in _OPTIONS}
    # nobody waits for ever for a broker that takes connections and says nothing (T004-q)
    places[_OPTIONS[0]] = {**_timeouts(conf), **places[_OPTIONS[0]]}
    theirs = [options.get("visibility_timeout") for options in places.values()] + [conf.get("visibility_timeout")]
    known = [_seconds("visibility_timeout", _number(v)) for v in theirs if v is not None]
    visible = max([_seconds("visibility_timeout", visibility_timeout), *known])
    if visible <= hard:
        raise InvalidArgument(
            "visibility_timeout",
            f"is {visible:g} s, and tasks may run for {hard:g} s: the broker would deliver a task again that still runs.",
            "Make it several times the time limit.",
        )
    if kept is not None and kept <= hard:
        raise InvalidArgument(
            "lock_ttl",
            f"is {kept:g} s, and tasks may run for {hard:g} s: the lock would be free while its task still runs.",
            "Make it longer than the time limit by a margin, such as a minute.",
        )
    settings: dict[str, Any] = {
        **ALWAYS,
        "task_time_limit": _whole(hard),
        "task_soft_time_limit": _whole(soft),
        **{name: {**options, "visibility_timeout": _whole(visible)} for name, options in places.items()},
        "visibility_timeout": _whole(visible),
    }
    if str(conf.result_backend or "").startswith(("redis", "sentinel")):
        careful = CAREFUL["redis"]
        settings |= {
            "redis_socket_timeout": _shorter(careful["socket_timeout"], conf.redis_socket_timeout),
            "redis_socket_connect_timeout": _shorter(
                careful["socket_connect_timeout"], conf.redis_socket_connect_timeout
            ),
        }
    bounds = {"visibility_timeout": visible if _redelivers(conf) else math.inf, "lock_ttl": kept or math.inf}
    if app.finalized:
        for task, problem in _too_long(app, bounds):
            raise InvalidArgument(f"task {task}", problem, "Give it a shorter limit, or raise the other number.")
    for name, value in settings.items():
        _put(conf, name, value)
    _watch(app, bounds)
    return settings


# ---------------------------------------------------------------------- tasks with limits of their own


def _timeouts(conf: Any) -> Mapping[str, Any]:
    """The socket timeouts of the broker's kind; none for a kind that is not known."""
    urls = conf.broker_write_url or conf.broker_url or "amqp://"
    first = str(urls.split(";")[0] if isinstance(urls, str) else next(iter(urls), ""))
    kinds = {
        "redis": "redis",
        "rediss": "redis",
        "sentinel": "redis",
        "valkey": "redis",
        "amqp": "amqp",
        "amqps": "amqp",
        "pyamqp": "amqp",
    }
    return CAREFUL.get(kinds.get(first.partition(":")[0], ""), {})


def _redelivers(conf: Any) -> bool:
    """Does the broker give a message again after the visibility timeout? RabbitMQ does not, and it is what no broker means."""
    urls = conf.broker_read_url or conf.broker_url or "amqp://"
    each = urls.split(";") if isinstance(urls, str) else urls
    return any(not str(url).startswith(("amqp", "pyamqp")) for url in each)


def _too_long(app: Any, bounds: Mapping[str, float]) -> list[tuple[str, str]]:
    """(task, what is wrong) of the task that outlives each bound the most; nothing where none does."""
    found: list[tuple[float, str, str]] = []
    for task in app.tasks.values():
        # the hard limit ends it; without one the soft one is all there is
        name = "time_limit" if task.time_limit else "soft_time_limit"
        found.append((float(_number(getattr(task, name) or 0)), task.name, name))
    longest, task_name, limit = max(found, default=(0.0, "", ""))
    return [
        (task_name, f"may run for {longest:g} s (its {limit}), and {bound} is {seconds:g} s: {_THEN[bound]}")
        for bound, seconds in bounds.items()
        if longest >= seconds
    ]


_THEN = {
    "visibility_timeout": "the broker would deliver it again while it still runs.",
    "lock_ttl": "the lock would be free while it still runs.",
}
#: What each application's tasks are held against.
_bounds: weakref.WeakKeyDictionary[Any, Mapping[str, float]] = weakref.WeakKeyDictionary()


def _watch(app: Any, bounds: Mapping[str, float]) -> None:
    _bounds[app] = bounds
    worker_init.connect(_look, dispatch_uid="duly: tasks that are too long")


def _look(sender: Any = None, **_: Any) -> None:
    """A worker has loaded its tasks."""
    for task, problem in _too_long(sender.app, _bounds.get(sender.app, {})):
        PROCESS.emit("celery_task_too_long", "error", task=task, problem=problem)


def _put(conf: Any, name: str, value: Any) -> None:
    """Set one setting, so that it counts also where the application was configured with a namespace."""
    conf[name] = value
    prefix = getattr(conf, "prefix", None)
    if prefix and conf.get(name) != value:
        # Celery 5.6 looks at CELERY_TASK_TIME_LIMIT before task_time_limit, wherever the two stand
        key = prefix + name
        conf[key.upper() if prefix.isupper() else key.lower()] = value


def _soft(wanted: Duration | None, hard: float, asked: float, theirs: float | None) -> float:
    """The soft limit: below ``hard``, and the application's own where that is shorter."""
    if wanted is None:
        soft = hard - min(SOFT_BEFORE, hard / 10)
    else:
        soft = _seconds("soft_time_limit", wanted)
        if soft >= asked:
            raise InvalidArgument(
                "soft_time_limit", f"is {soft:g} s and the time limit {asked:g} s.", "Make it shorter than that."
            )
        if soft >= hard:  # the application's own hard limit is shorter than the one asked for
            soft = hard - min(SOFT_BEFORE, hard / 10)
    return _shorter(soft, theirs)


def _shorter(seconds: float, theirs: float | None) -> float:
    theirs = None if theirs is None else float(_number(theirs))
    return seconds if not theirs or theirs < 0 else min(seconds, theirs)


def _number(value: Any) -> Any:
    """A number that an application wrote as text (from an environment variable, say)."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _seconds(field: str, value: object) -> float:
    seconds = read_seconds(value, field, 0, above=True)
    return float(value) if isinstance(value, int | float) else seconds  # a timedelta rounds to microseconds


def _whole(seconds: float) -> float:
    """Without a fraction where there is none: 300, not 300.0."""
    return int(seconds) if seconds == int(seconds) else seconds
