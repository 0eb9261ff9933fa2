"""Robust settings for Celery: what is set, what stays, what is refused. R004-12, T004-c, T004-e."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from duly.integrations.celery import apply_robust_settings
from duly.kernel.errors import InvalidArgument
from duly.kernel.events import PROCESS


def in_force(app: Celery) -> dict[str, Any]:
    conf = app.conf
    return {
        "acks_late": conf.task_acks_late,
        "reject_on_worker_lost": conf.task_reject_on_worker_lost,
        "prefetch": conf.worker_prefetch_multiplier,
        "limits": (conf.task_soft_time_limit, conf.task_time_limit),
        "visible": (
            conf.broker_transport_options["visibility_timeout"],
            conf.result_backend_transport_options["visibility_timeout"],
            conf.visibility_timeout,
        ),
        "cancel": conf.worker_cancel_long_running_tasks_on_connection_loss,
        "retry": conf.broker_connection_retry_on_startup,
    }


ROBUST = {
    "acks_late": True, "reject_on_worker_lost": True, "prefetch": 1, "limits": (270, 300), "visible": (3600, 3600, 3600),
    "cancel": True, "retry": True,
}  # fmt: skip


def test_the_settings_of_the_specification_are_set_and_told() -> None:  # R004-12
    app = Celery("shop", broker="memory://")
    told = apply_robust_settings(app)
    assert in_force(app) == ROBUST
    assert told["task_acks_late"] is told["task_reject_on_worker_lost"] is True
    assert (told["worker_prefetch_multiplier"], told["task_time_limit"]) == (1, 300)
    assert {name: app.conf[name] for name in told} == told


def test_once_more_changes_nothing() -> None:
    app = Celery("shop", broker="memory://")
    assert apply_robust_settings(app) == apply_robust_settings(app)


class Modern:
    task_time_limit = 60
    worker_prefetch_multiplier = 8
    broker_transport_options: ClassVar = {"visibility_timeout": 7200, "socket_keepalive": True}


class Spaced:
    CELERY_TASK_TIME_LIMIT = 60
    CELERY_WORKER_PREFETCH_MULTIPLIER = 8
    CELERY_BROKER_TRANSPORT_OPTIONS: ClassVar = {"visibility_timeout": 7200, "socket_keepalive": True}


class Old:
    CELERYD_TASK_TIME_LIMIT = 60
    CELERYD_PREFETCH_MULTIPLIER = 8
    BROKER_TRANSPORT_OPTIONS: ClassVar = {"visibility_timeout": 7200, "socket_keepalive": True}


@pytest.mark.parametrize(("source", "options"), [(Modern, {}), (Spaced, {"namespace": "CELERY"}), (Old, {})])
def test_however_an_application_was_configured_laxer_settings_give_way_and_stricter_ones_stay(
    source: type, options: dict[str, str]
) -> None:
    app = Celery("shop", broker="memory://")
    app.config_from_object(source, **options)
    apply_robust_settings(app)
    assert in_force(app) == {**ROBUST, "limits": (54, 60), "visible": (7200, 7200, 7200)}
    assert app.conf.broker_transport_options["socket_keepalive"] is True


def test_tasks_made_before_and_after_have_the_settings() -> None:
    app = Celery("shop", broker="memory://")

    def work() -> None: ...

    before = app.task(work, name="before")
    apply_robust_settings(app)
    after = app.task(work, name="after")
    assert [(t.acks_late, t.reject_on_worker_lost) for t in (before, after)] == [(True, True)] * 2


@pytest.mark.parametrize(
    ("conf", "wishes", "field"),
    [
        ({}, {"time_limit": 3600}, "visibility_timeout"),
        ({}, {"visibility_timeout": 300}, "visibility_timeout"),
        ({}, {"visibility_timeout": 60}, "visibility_timeout"),
        ({}, {"soft_time_limit": 300}, "soft_time_limit"),
        ({}, {"soft_time_limit": 400}, "soft_time_limit"),
        ({}, {"lock_ttl": 300}, "lock_ttl"),
        ({}, {"time_limit": 0}, "time_limit"),
        ({}, {"time_limit": None}, "time_limit"),
        ({}, {"time_limit": True}, "time_limit"),
        ({}, {"visibility_timeout": float("inf")}, "visibility_timeout"),
        ({}, {"visibility_timeout": float("nan")}, "visibility_timeout"),
        ({}, {"lock_ttl": "ten"}, "lock_ttl"),
    ],
)  # fmt: skip
def test_wishes_that_contradict_each_other_are_refused_and_nothing_is_set(
    conf: dict[str, Any], wishes: dict[str, Any], field: str
) -> None:  # T004-c
    app = Celery("shop", broker="memory://")
    app.conf.update(conf)
    with pytest.raises(InvalidArgument) as refused:
        apply_robust_settings(app, **wishes)
    assert refused.value.field == field
    assert refused.value.problem
    assert (app.conf.task_acks_late, app.conf.task_time_limit) == (False, conf.get("task_time_limit"))


def test_a_lock_that_outlives_every_task_is_fine() -> None:
    assert "lock_ttl" not in apply_robust_settings(Celery("shop", broker="memory://"), lock_ttl=360)


def test_what_is_no_celery_application_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="of type dict"):
        apply_robust_settings({})


seconds = st.one_of(st.none(), st.integers(1, 10_000), st.floats(0.5, 10_000))


@given(theirs=st.tuples(seconds, seconds, seconds, seconds, seconds), wished=st.tuples(st.integers(1, 5_000), seconds))
def test_whatever_stands_there_the_numbers_end_in_order(
    theirs: tuple[float | None, ...], wished: tuple[int, float | None]
) -> None:
    hard, soft, broker, backend, visible = theirs
    app = Celery("shop", broker="memory://")
    app.conf.update(task_time_limit=hard, task_soft_time_limit=soft)
    if broker is not None:
        app.conf.broker_transport_options = {"visibility_timeout": broker}
    if backend is not None:
        app.conf.result_backend_transport_options = {"visibility_timeout": backend}
    if visible is not None:
        app.conf.visibility_timeout = visible
    time_limit, soft_limit = wished
    wishes = {} if soft_limit is None else {"soft_time_limit": soft_limit}
    try:
        told = apply_robust_settings(app, time_limit=time_limit, **wishes)
    except InvalidArgument as refused:
        assert refused.field in ("soft_time_limit", "visibility_timeout")
        return
    assert 0 < told["task_soft_time_limit"] < told["task_time_limit"] < told["visibility_timeout"]
    assert told["task_time_limit"] == min(time_limit, hard or time_limit)
    assert told["task_soft_time_limit"] <= (soft or time_limit)
    assert told["visibility_timeout"] == max(3600, broker or 0, backend or 0, visible or 0)


CHECK = """
import warnings
warnings.simplefilter("error")
from types import SimpleNamespace
from celery import Celery
from duly.integrations.celery import apply_robust_settings

app = Celery("shop", broker="memory://")
told = apply_robust_settings(app)
told.update({more})

def work(): ...

app.task(work, name="work").bind(app)
app.finalize()
app.prepare_config(SimpleNamespace(**told))  # what Celery says about a configuration that it loads
assert not app.conf.maybe_warn_deprecated_settings()
"""


def test_nothing_of_it_is_deprecated() -> None:
    done = subprocess.run([sys.executable, "-c", CHECK.format(more={})], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(Celery("x").Task, "acks_on_timeout"), reason="Celery 5.6 has nothing to try it with")
def test_a_deprecated_setting_would_have_been_noticed() -> None:
    more = {"task_acks_on_failure_or_timeout": False}
    done = subprocess.run([sys.executable, "-c", CHECK.format(more=more)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "task_acks_on_failure_or_timeout" in done.stderr


def test_numbers_that_an_application_wrote_as_text_are_read_or_refused_in_words() -> None:  # R004-12
    app = Celery("a", set_as_current=False)
    app.conf.update(broker_transport_options={"visibility_timeout": "7200"}, task_time_limit=-5)
    assert apply_robust_settings(app)["visibility_timeout"] == 7200
    assert in_force(app)["limits"] == (270, 300)
    wrong = Celery("b", set_as_current=False)
    wrong.conf.update(broker_transport_options={"visibility_timeout": "soon"})
    with pytest.raises(InvalidArgument, match="visibility_timeout"):
        apply_robust_settings(wrong)


# --- Tasks with limits of their own -----------------------------------------------------------------------------------------


def nothing() -> None: ...


def ready(app: Celery) -> list[dict[str, Any]]:
    """What a worker of this application is told when it has loaded its tasks."""
    told: list[dict[str, Any]] = []
    remove = PROCESS.listen(lambda event: told.append({"name": event.name, "level": event.level, **event.facts}))
    try:
        app.WorkController(pool="solo")
    finally:
        remove()
    return told


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"time_limit": 7200}, "may run for 7200 s (its time_limit), and visibility_timeout is 3600 s"),
        ({"time_limit": 0, "soft_time_limit": 4000}, "may run for 4000 s (its soft_time_limit)"),
    ],
)
def test_a_task_that_outlives_the_visibility_timeout_is_told_by_name_when_a_worker_has_loaded_it(
    limits: dict[str, Any], says: str
) -> None:
    app = Celery("shop", broker="redis://nowhere")
    apply_robust_settings(app)

    @app.task(name="shop.quick", shared=False)
    def quick() -> None: ...

    @app.task(name="shop.long", shared=False, **limits)
    def long() -> None: ...

    [told] = ready(app)
    assert (told["name"], told["level"], told["task"]) == ("celery_task_too_long", "error", "shop.long")
    assert says in told["problem"]
    assert "deliver it again" in told["problem"]


def test_a_task_that_is_known_and_too_long_is_refused_by_name() -> None:
    app = Celery("shop", broker="redis://nowhere")

    @app.task(name="shop.long", shared=False, time_limit=900)
    def long() -> None: ...

    app.finalize()
    with pytest.raises(InvalidArgument, match=r"task shop.long: may run for 900 s .* lock_ttl is 600 s"):
        apply_robust_settings(app, lock_ttl=600)
    apply_robust_settings(app)
    assert ready(app) == []


def test_a_broker_without_a_visibility_timeout_lets_tasks_be_long() -> None:
    for broker in ("amqp://nowhere", "amqps://a;amqps://b", None):
        app = Celery("shop", broker=broker)
        apply_robust_settings(app)
        app.task(name="shop.long", shared=False, time_limit=7200)(nothing)
        assert ready(app) == []


def test_applications_are_not_mixed_up() -> None:
    strict, other = Celery("shop", broker="redis://nowhere"), Celery("other", broker="redis://nowhere")
    apply_robust_settings(strict)
    other.task(name="long", shared=False, time_limit=7200)(nothing)
    assert ready(other) == []
