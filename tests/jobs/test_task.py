"""Defining a task, and the options of one call: what cannot work is refused at once, by name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Optional

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from duly import Backoff, Context, Duly, InvalidArgument, Job, UnknownTask
from duly.jobs.task import Options, Task, check_callable, injected_parameters

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def plain(x: int) -> int:
    """Double it."""
    return 2 * x


async def coroutine(x: int) -> int:
    return x


@pytest.fixture
def app() -> Duly:
    return Duly("sqlite://")


def test_a_task_is_still_the_function_it_decorates(app: Duly) -> None:
    task = app.task("double")(plain)
    assert task(21) == 42
    assert [getattr(task, a) for a in ("__name__", "__doc__", "__wrapped__")] == ["plain", "Double it.", plain]


def test_a_task_is_named_after_its_function_unless_it_is_named(app: Duly) -> None:
    assert app.task(plain).name == "plain"
    assert app.task()(coroutine).name == "coroutine"
    assert app.task("EMAIL_SEND")(lambda: None).name == "EMAIL_SEND"
    assert app.find_task("EMAIL_SEND").name == "EMAIL_SEND"


def test_two_functions_cannot_share_a_name_but_one_may_be_defined_again(app: Duly) -> None:
    app.task("x")(plain)
    app.task("x")(plain)  # a module that is imported twice
    with pytest.raises(InvalidArgument, match="is defined twice"):
        app.task("x")(coroutine)


def test_a_function_that_another_makes_anew_is_the_same_unless_it_knows_other_values(app: Duly) -> None:
    def make(region: str, log: list[str]) -> Callable[..., Any]:
        @app.task
        def sync() -> None:
            log.append(region)

        return sync

    log: list[str] = []
    make("eu", log)
    make("".join(["e", "u"]), log)  # equal, and another object
    for region, other in (("us", log), ("eu", [])):
        with pytest.raises(InvalidArgument, match=r"sync: is defined twice by .*make.<locals>.sync, with other values"):
            make(region, other)


def test_two_lambdas_are_two_functions(app: Duly) -> None:
    for _ in range(2):
        app.task("x")(lambda: 1)
    with pytest.raises(InvalidArgument, match="is defined twice: by two lambdas"):
        app.task("x")(lambda: 1)


def test_a_session_is_of_the_kind_that_its_function_can_use(app: Duly) -> None:
    async def waits(session: Session) -> None: ...

    def blocks(session: AsyncSession) -> None: ...

    def both(one: Session, other: Session) -> None: ...

    for fn, match in ((waits, "is async, and session"), (blocks, "is a plain function, and session"), (both, "asks for two sessions, one and other")):  # fmt: skip
        with pytest.raises(InvalidArgument, match=match):
            app.task("x")(fn)


def test_an_object_that_is_called_is_async_where_its_call_is() -> None:
    class Books:
        async def __call__(self, session: AsyncSession) -> None: ...

    for fn in (Books(), functools.partial(Books())):
        injected = injected_parameters(fn)
        assert injected == {"session": "async_session"}
        check_callable(fn, "tool x", injected)


def test_what_the_worker_fills_in_may_be_annotated_as_optional() -> None:
    def fn(n: int, job: Job | None = None, run: Optional[Context] = None, db: Session | None = None) -> None: ...  # noqa: UP045

    task = Task("x", fn)
    assert task.injected == {"job": "job", "run": "context", "db": "session"}
    assert [p.name for p in task.codec.parameters] == ["n"]


def test_an_unknown_task_is_told_with_the_known_ones(app: Duly) -> None:
    app.task("known")(plain)
    with pytest.raises(UnknownTask, match=r"no task is called .other.\. Known tasks: known\."):
        app.find_task("other")


def test_a_coroutine_runs_on_the_loop_and_a_plain_function_on_a_thread() -> None:
    assert Task("a", coroutine).run_in == "loop"
    assert Task("b", plain).run_in == "thread"
    assert Task("c", plain, run_in="process").run_in == "process"


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("task name", {"name": ""}),
    ("task name", {"name": "a\x00"}),
    ("queue", {"queue": ""}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": "3"}),
    ("priority", {"priority": 2**31}),
    ("priority", {"priority": 1.5}),
    ("timeout", {"timeout": 0}),
    ("timeout", {"timeout": -1}),
    ("timeout", {"timeout": math.nan}),
    ("timeout", {"timeout": "soon"}),
    ("backoff", {"backoff": 10}),
    ("run_in", {"run_in": "moon"}),
    ("wait_for_children", {"wait_for_children": "yes"}),
    ("audit_action", {"audit_action": ""}),
]


@pytest.mark.parametrize(("field", "wrong"), WRONG, ids=[f"{f}-{w}" for f, w in WRONG])
def test_a_definition_that_cannot_work_is_refused_by_name(field: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Task(**{"name": "t", "fn": plain, **wrong})
    assert refused.value.field == field


def test_an_unknown_option_of_a_task_is_refused(app: Duly) -> None:
    with pytest.raises(InvalidArgument, match="retries"):
        app.task("t", retries=3)(plain)


def in_process(job: Job) -> None: ...


@pytest.mark.parametrize("fn", [coroutine, in_process])
def test_what_a_process_cannot_run_is_refused_at_definition(fn: Callable[..., Any]) -> None:
    with pytest.raises(InvalidArgument, match="process"):
        Task("t", fn, run_in="process")


def test_what_the_worker_hands_in_is_known_by_annotation() -> None:
    def a(x: int, me: Context, j: Job, db: Session) -> None: ...

    async def b(db: AsyncSession) -> None: ...

    assert Task("a", a).injected == {"me": "context", "j": "job", "db": "session"}
    assert Task("a", a).transactional == "db"
    assert Task("b", b).injected == {"db": "async_session"}
    assert Task("c", plain).transactional is None


def test_a_bare_parameter_called_session_is_handed_in_by_name() -> None:
    def a(x, session): ...  # type: ignore[no-untyped-def]

    async def b(session): ...  # type: ignore[no-untyped-def]

    def c(session: str) -> None: ...

    def d(session=None): ...  # type: ignore[no-untyped-def]

    assert Task("a", a).injected == {"session": "session"}
    assert Task("b", b).injected == {"session": "async_session"}
    assert Task("c", c).injected == Task("d", d).injected == {}


def test_a_success_is_audited_under_the_tasks_own_action() -> None:  # R003-7
    assert Task("EMAIL_SEND", plain, audit_action="EMAIL_SENT").completed_action == "EMAIL_SENT"
    assert Task("REPORT", plain).completed_action == "REPORT_COMPLETED"


def test_the_defaults_are_the_specifications() -> None:  # R003-6, T003-b
    task = Task("t", plain)
    assert task.backoff == Backoff(10, 2, 3600, 0)
    assert Duly("sqlite://").settings.max_attempts == 4


# --- Options of one call -----------------------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any]]] = [
    ("queue", {"queue": ""}),
    ("queue", {"queue": 7}),
    ("tenant", {"tenant": "t" * 201}),
    ("key", {"key": "k\x00"}),  # B038
    ("key", {"key": ""}),
    ("concurrency_key", {"concurrency_key": "\ud800"}),
    ("run_at", {"run_at": NOW, "run_in": 5}),
    ("run_at", {"run_at": datetime(2026, 3, 2)}),
    ("run_at", {"run_at": "2026-03-02T12:00:00Z"}),
    ("run_at", {"run_at": datetime.max.replace(tzinfo=UTC)}),
    ("run_at", {"run_at": datetime.min.replace(tzinfo=UTC)}),
    ("run_in", {"run_in": math.inf}),
    ("run_in", {"run_in": math.nan}),
    ("run_in", {"run_in": "5 moons"}),
    ("run_in", {"run_in": timedelta(days=999_999)}),
    ("priority", {"priority": 2**31}),
    ("priority", {"priority": "high"}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": 2.5}),
    ("unique_until", {"unique_until": "done"}),
    ("unique_until", {"key": "k", "unique_until": "never"}),
    ("unique_until", {"key": "k", "unique_until": timedelta(0)}),
    ("unique_until", {"key": "k", "unique_until": timedelta(days=999_999)}),
    ("on_conflict", {"key": "k", "on_conflict": "explode"}),
    ("parent", {"parent": "7"}),
    ("meta", {"meta": "trace"}),
    ("meta.trace", {"meta": {"trace": object()}}),
    ("retries", {"retries": 3}),
]


@pytest.mark.parametrize(("field", "wrong"), BAD, ids=[f"{f}-{n}" for n, (f, _) in enumerate(BAD)])
def test_an_option_that_cannot_work_is_refused_by_name_and_nothing_is_made(
    app: Duly, field: str, wrong: dict[str, Any]
) -> None:
    task = app.task("double")(plain)
    doors: list[Callable[[], object]] = [
        lambda: task.using(**wrong).enqueue(1),
        lambda: app.enqueue("elsewhere", {"x": 1}, **wrong),
    ]
    for enqueue in doors:
        with pytest.raises(InvalidArgument) as refused:
            enqueue()
        assert refused.value.field == field
    assert app.jobs.count() == 0


def test_options_of_a_call_can_be_refined() -> None:
    call = Task("t", plain).using(queue="a", priority=3).using(priority=5)
    assert (call.options.queue, call.options.priority) == ("a", 5)


def test_a_task_without_an_application_cannot_enqueue() -> None:
    with pytest.raises(InvalidArgument, match="belongs to no application"):
        Task("t", plain).enqueue(1)


def test_seconds_and_timedelta_mean_the_same_delay() -> None:
    assert Options(run_in=90).delay() == Options(run_in=timedelta(seconds=90)).delay() == 90
    assert Options(run_at=NOW).delay() is Options().delay() is None


# --- Workers -----------------------------------------------------------------------------------------------------------


def test_a_worker_serves_the_queues_it_is_given(app: Duly) -> None:
    app.task("a", queue="mail")(plain)
    assert {n: lane.concurrency for n, lane in app.worker({"mail": 3, "x": 1}).lanes.items()} == {"mail": 3, "x": 1}
    assert {n: lane.concurrency for n, lane in app.worker(["mail"], concurrency=5).lanes.items()} == {"mail": 5}
    assert list(app.worker("mail").lanes) == ["mail"]
    assert list(app.worker().lanes) == ["default", "mail"]


@pytest.mark.parametrize("queues", [{}, {"mail": 0}, []])
def test_a_worker_that_could_do_nothing_is_refused(app: Duly, queues: Any) -> None:
    app.task("a")(plain)
    with pytest.raises(InvalidArgument, match="queues"):
        app.worker(queues)


def test_a_worker_without_tasks_is_refused(app: Duly) -> None:
    with pytest.raises(InvalidArgument, match="has no tasks to run"):
        app.worker()
