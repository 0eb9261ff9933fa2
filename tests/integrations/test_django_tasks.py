"""Django's tasks, and Duly's in a Django project, on a Duly worker (issue 8, ADR 0030)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integrations.django_scene import Project

LATER = {"MODULES": ["shop.later"]}


@pytest.fixture
def project(tmp_path: Path, db_url: str) -> Project:
    made = Project(tmp_path / "project", db_url, duly=LATER)
    made.migrate()
    return made


def test_tasks_of_duly_run_with_the_orm_and_jobs_they_make_join_its_transactions(project: Project) -> None:
    project.program("""
order = Order.objects.create(item="a")
tasks.twice.enqueue(order.pk)
tasks.greet.enqueue("ada")
tasks.half.enqueue(order.pk)
""")
    project.work(1)
    assert project.program("""
tell(sorted(Line.objects.values_list("said", flat=True)), Order.objects.get().confirmed)
tell(sorted((job.task, str(job.status)) for job in app.jobs.find()))
""") == [
        [["first", "hello ada"], True],
        [["confirm", "succeeded"], ["greet", "succeeded"], ["half", "failed"], ["twice", "succeeded"]],
    ]  # fmt: skip


def test_a_task_of_django_is_enqueued_in_the_transaction_and_its_result_is_read(project: Project) -> None:
    ids = project.program("""
from shop.later import pack, post
backend = pack.get_backend()
tell(backend.supports_defer, backend.supports_async_task, backend.supports_get_result, backend.supports_priority)
try:
    with transaction.atomic():
        gone = pack.enqueue(1)
        tell(pack.get_result(gone.id).status)        # seen by the transaction that made it
        raise KeyError
except KeyError:
    pass
try:
    pack.get_result(gone.id)
except Exception as error:
    tell(type(error).__name__)
with transaction.atomic():
    made = pack.enqueue(7, gift=True)
tell(made.status, made.args, made.kwargs, made.attempts, made.is_finished, made.enqueued_at is not None, made.started_at)
from asgiref.sync import async_to_sync
other = async_to_sync(post.aenqueue)(8)
job = app.jobs.get(int(other.id))
tell(job.task, job.queue, job.priority, job.input)
tell([made.id, other.id])
""")
    assert ids[:-1] == [
        [True] * 4,
        "READY",
        "TaskResultDoesNotExist",
        ["READY", [7], {"gift": True}, 0, False, True, None],
        ["shop.later.post", "mail", 10, {"args": [8], "kwargs": {}}],
    ]
    project.work()
    assert project.program(f"""
from shop.later import pack, post
made, other = pack.get_result({ids[-1][0]!r}), post.get_result({ids[-1][1]!r})
tell(made.status, made.return_value, made.attempts, len(made.worker_ids), made.errors, made.is_finished)
tell(made.enqueued_at <= made.started_at == made.last_attempted_at <= made.finished_at)
tell(other.status, other.return_value, other.task.priority, other.task.queue_name, other.task.run_after)
tell(sorted(Line.objects.values_list("said", flat=True)))
from asgiref.sync import async_to_sync
async_to_sync(made.arefresh)()
tell(made.return_value)
try:
    post.get_result(made.id)
except Exception as error:
    tell(type(error).__name__)
for no in ("0", "nonsense", str(10**30), str(tasks.confirm.enqueue(1).job.id)):
    try:
        pack.get_backend().get_result(no)
    except Exception as error:
        tell(type(error).__name__)
""") == [
        ["SUCCESSFUL", {"order": 7, "gift": True}, 1, 1, [], True],
        True,
        ["SUCCESSFUL", None, 10, "mail", None],
        ["packed 7 True", "posted 8"],
        {"order": 7, "gift": True},
        "TaskResultMismatch",
        *["TaskResultDoesNotExist"] * 4,
    ]  # fmt: skip


def test_attempts_and_errors_of_a_task_are_on_record(project: Project) -> None:
    ids = project.program("""
from shop.later import broken, count
tell(count.enqueue(3).id)
tell(broken.enqueue().id)
tell(count.enqueue(9).id)
""")
    project.work(1)
    assert project.program(f"""
from shop.later import broken, count
good, bad, ugly = count.get_result({ids[0]!r}), broken.get_result({ids[1]!r}), count.get_result({ids[2]!r})
tell(good.status, good.return_value, good.attempts, good.started_at < good.last_attempted_at)
tell([error.exception_class.__name__ for error in good.errors], "OutOfStock: not yet" in good.errors[0].traceback)
tell(bad.status, bad.attempts, [error.exception_class_path for error in bad.errors])
tell(ugly.status, ugly.attempts, [error.exception_class_path for error in ugly.errors])
try:
    bad.return_value
except ValueError as error:
    tell(str(error))
said = [line for line in Line.objects.values_list("said", flat=True) if line.endswith(f"of {{good.id}}")]
tell(said)
""") == [
        ["SUCCESSFUL", 3, 3, True],
        [["OutOfStock", "OutOfStock"], True],
        ["FAILED", 1, ["duly.kernel.errors.PermanentError"]],
        ["FAILED", 4, ["shop.later.OutOfStock"] * 4],
        "Task failed",
        [f"attempt {n} of {ids[0]}" for n in (1, 2, 3)],
    ]  # fmt: skip


def test_run_after_priority_and_queue_of_a_call_win(project: Project) -> None:
    assert project.program("""
from datetime import timedelta
from django.utils import timezone
from shop.later import pack
at = timezone.now() + timedelta(days=1)
made = pack.using(run_after=at, priority=-5, queue_name="mail").enqueue(1)
job = app.jobs.get(int(made.id))
tell(job.run_at == at, job.priority, job.queue)
again = pack.get_result(made.id)
tell(again.status, again.task.run_after == at, again.task.priority, again.task.queue_name)
for wrong in ({"queue_name": "nowhere"}, {"priority": 1000}, {"run_after": at.replace(tzinfo=None)}):
    try:
        pack.using(**wrong)
    except Exception as error:
        tell(type(error).__name__.removesuffix("Error"))
for value in (object(), {1, 2}):
    try:
        pack.enqueue(value)
    except TypeError as error:
        tell("cannot be carried")
tell(len(jobs()))
""") == [[True, -5, "mail"], ["READY", True, -5, "mail"], *["InvalidTask"] * 3, *["cannot be carried"] * 2, 1]  # fmt: skip


def test_signals_tell_of_each_step(project: Project) -> None:
    (project.folder / "shop" / "later.py").write_text(
        (project.folder / "shop" / "later.py").read_text()
        + """
from importlib import import_module
signals = import_module(task.__module__.rpartition(".")[0] + ".signals")

def hear(name):
    def heard(sender, task_result, **kwargs):
        from asgiref.sync import sync_to_async
        Line.objects.create(said=f"{name} {task_result.task.name} {task_result.status} {len(task_result.errors)} {task_result.attempts}")
    getattr(signals, name).connect(heard, weak=False)

for name in ("task_enqueued", "task_started", "task_finished"):
    hear(name)
"""
    )
    project.program("from shop.later import broken, count, post\ncount.enqueue(2); broken.enqueue(); post.enqueue(1)")
    project.work(1)
    assert project.program("tell(sorted(line for line in Line.objects.values_list('said', flat=True) if line.startswith('task_')))") == [[
        "task_enqueued broken READY 0 0",
        "task_enqueued count READY 0 0",
        "task_enqueued post READY 0 0",
        "task_finished broken FAILED 1 1",
        "task_finished count SUCCESSFUL 0 2",
        "task_finished post SUCCESSFUL 0 1",
        "task_started broken RUNNING 0 1",
        "task_started count RUNNING 0 1",
        "task_started count RUNNING 0 2",
        "task_started post RUNNING 0 1",
    ]]  # fmt: skip


def test_a_task_that_workers_would_not_find_is_refused(tmp_path: Path, sqlite_url: str) -> None:
    project = Project(tmp_path / "project", sqlite_url)
    project.migrate()
    assert project.program("""
from shop.later import pack       # imported too late, and named nowhere
try:
    pack.enqueue(1)
except Exception as error:
    tell(type(error).__name__.removesuffix("Error"), "DULY['MODULES']" in str(error))
tell(jobs())
""") == [["InvalidTask", True], []]  # fmt: skip


def test_handlers_find_living_connections_whatever_became_of_those_before(project: Project) -> None:
    (project.folder / "shop" / "later.py").write_text("""
import asyncio
from asgiref.sync import sync_to_async
from django.db import connection
from duly.integrations.django import app
from shop.models import Line


@app.task(queue="one")
def cut(n: int) -> int:
    Line.objects.create(said=str(n))
    if connection.vendor == "postgresql":
        connection.connection.close()          # as a server does that restarts
    return n


@app.task(queue="one")
async def ask(n: int) -> bool:
    await Line.objects.acreate(said=str(n))
    await asyncio.sleep(0.01)
    return await sync_to_async(lambda: connection.connection is not None)()


@app.task(queue="one")
async def idle(n: int) -> int:
    return n
""")
    project.program("""
from shop import later
for n in range(5):
    later.cut.enqueue(n); later.ask.enqueue(10 + n); later.idle.enqueue(n)
""")
    # one after the other, so that they share a thread
    assert "15 succeeded" in project.manage("duly", "worker", "--until-idle", "--queue", "one=1")
    assert project.program("tell(Line.objects.count(), all(j.output for j in app.jobs.find(task='ask')))") == [
        [10, True]
    ]


def test_the_command_line_of_duly_is_one_of_manage_py(project: Project) -> None:
    project.program("app.enqueue('confirm', {'order': 1}, key='k')")
    assert [job["task"] for job in json.loads(project.manage("duly", "jobs", "list", "--json"))] == ["confirm"]
    assert "duly worker" in project.manage("help", "duly")


def test_the_project_is_an_application_for_duly_itself(project: Project) -> None:
    project.program("tasks.confirm.enqueue(Order.objects.create(item='a').pk)")
    said = project.duly("worker", "duly.integrations.django.project", "--until-idle", "--name", "plain")
    assert "1 succeeded" in said
    assert project.program("tell(Order.objects.get().confirmed, app.jobs.find()[0].worker)") == [[True, "plain"]]
