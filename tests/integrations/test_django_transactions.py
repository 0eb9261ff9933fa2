"""What Django enqueues lives and dies with the ORM's transaction (issue 8, ADR 0030)."""

from __future__ import annotations

from pathlib import Path

import pytest

from integrations.django_scene import Project


@pytest.fixture
def project(tmp_path: Path, empty_url: str) -> Project:
    made = Project(tmp_path / "project", empty_url)
    made.migrate()
    return made


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database in which nothing has been made, on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    url: str = request.getfixturevalue("empty_pg_url")
    return url


def test_a_job_is_committed_or_rolled_back_with_the_orm(project: Project) -> None:
    assert project.program("""
class Stop(Exception): ...

with transaction.atomic():
    order = Order.objects.create(item="book")
    job = tasks.confirm.enqueue(order.pk).job.id
    tell("inside, others see", jobs())
tell("committed", jobs() == [job])

try:
    with transaction.atomic():
        Order.objects.create(item="pen")
        tasks.confirm.enqueue(0)
        app.enqueue("elsewhere", {"n": 1}, key="once")
        app.enqueue_many("elsewhere", [{"n": 2}, {"n": 3}])
        raise Stop
except Stop:
    tell("rolled back", jobs() == [job], Order.objects.count())

tell("the key is free", app.enqueue("elsewhere", {"n": 1}, key="once").created)
""") == [
        ["inside, others see", []],
        ["committed", True],
        ["rolled back", True, 1],
        ["the key is free", True],
    ]  # fmt: skip


def test_without_autocommit_a_job_goes_with_the_transaction_or_is_refused(project: Project, empty_url: str) -> None:
    told = project.program("""
from duly import UnsafeSession

def attempt(name):
    try:
        return tasks.confirm.using(key=name).enqueue(0).job.id
    except UnsafeSession as error:
        return str(error)

connection.ensure_connection()
transaction.set_autocommit(False)
first = attempt("first")
transaction.rollback()
with transaction.atomic(), transaction.atomic():
    second = attempt("second")
transaction.rollback()
transaction.set_autocommit(True)
tell(first, second, len(jobs()))
with transaction.atomic(), transaction.atomic():
    attempt("third")
tell(len(jobs()))
""")
    (first, second, left), *after = told
    assert (left, after) == (0, [1])
    if empty_url.startswith("sqlite"):
        assert first == second
        assert "enqueue inside of transaction.atomic()" in first
    else:
        assert isinstance(first, int)
        assert isinstance(second, int)


def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along(project: Project) -> None:
    assert project.program("""
class Stop(Exception): ...

def tried(name, fail):
    try:
        with transaction.atomic():
            app.enqueue(name)
            if fail: raise Stop
    except Stop:
        pass

with transaction.atomic():
    tried("lost first", True)         # before anything was written outside of the savepoint
    app.enqueue("outer")
    tried("kept", False)
    tried("lost", True)
    with transaction.atomic(savepoint=False):
        app.enqueue("no savepoint", key="k")
    sid = transaction.savepoint()
    app.enqueue("by hand", key="h")
    transaction.savepoint_rollback(sid)
    app.enqueue("last")
tell(sorted(job.task for job in app.jobs.find()))

try:
    with transaction.atomic():
        tried("kept, then lost", False)
        raise Stop
except Stop:
    pass
tell(len(jobs()))
""") == [["kept", "last", "no savepoint", "outer"], 4]  # fmt: skip


def test_without_a_transaction_a_job_has_one_of_its_own(project: Project) -> None:
    assert project.program("""
tell(tasks.confirm.enqueue(1).created, len(jobs()), connection.in_atomic_block, connection.get_autocommit())
tell(app.enqueue("x", key="a").created, app.enqueue("x", key="a").created)
from duly import InvalidArgument, KeyConflict
for options in ({"parent": 10**6}, {"key": "a", "on_conflict": "raise"}):
    try:
        app.enqueue("x", {"other": 1}, **options)
    except (InvalidArgument, KeyConflict) as error:
        tell(type(error).__name__)
tell(len(app.enqueue_many("y", [{"n": n} for n in range(300)])), len(jobs()))
tell(connection.in_atomic_block, connection.get_autocommit(), Order.objects.create(item="a").pk)
""") == [
        [True, 1, False, True],
        [True, False],
        "InvalidArgument",
        "KeyConflict",
        [300, 302],
        [False, True, 1],
    ]  # fmt: skip


def test_an_atomic_block_that_is_broken_takes_no_job(project: Project) -> None:
    assert project.program("""
from django.db import IntegrityError
from django.db.transaction import TransactionManagementError

with transaction.atomic():
    transaction.set_rollback(True)
    try:
        tasks.confirm.enqueue(1)
    except TransactionManagementError as error:
        tell("as a query would be refused")
tell(jobs())

# a refused write is Django's error, and leaves Django its transaction
with transaction.atomic():
    from duly.jobs.tables import jobs as table
    try:
        with transaction.atomic(), app.guest.join() as c:
            c.execute(table.insert().values(id=1, tenant=None))
    except IntegrityError as error:
        tell(type(error).__module__)
    Order.objects.create(item="after")
    tasks.confirm.enqueue(1)
tell(len(jobs()), Order.objects.count())
""") == ["as a query would be refused", [], "django.db.utils", [1, 1]]  # fmt: skip


def test_planned_instants_are_the_same_whatever_django_thinks_of_zones(tmp_path: Path, empty_url: str) -> None:
    project = Project(tmp_path / "project", empty_url, use_tz=False)
    project.migrate()
    assert project.program("""
from datetime import UTC, datetime, timedelta
from duly import InvalidArgument
if connection.vendor == "postgresql":       # whatever the session thinks of zones
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Asia/Tokyo'")
at = datetime(2027, 10, 31, 0, 30, tzinfo=UTC)     # half past two in Paris, for the first time that night
one = app.enqueue("x", run_at=at, key="k")
two = app.enqueue("x", key="k")
three = app.enqueue("x", run_at=at + timedelta(hours=1))
tell(one.job.run_at == two.job.run_at == at, three.job.run_at == at + timedelta(hours=1))
with transaction.atomic():
    job, _ = app.look(one.job.id)
tell(job.run_at == at, str(job.created_at.tzinfo))
tell(abs((app.enqueue("x").job.created_at - datetime.now(UTC)).total_seconds()) < 60)
""") == [[True, True], [True, "UTC"], True]  # fmt: skip


def test_views_enqueue_plain_and_async(project: Project) -> None:
    assert project.program("""
from django.test import Client, AsyncClient
client = Client(raise_request_exception=False)
tell(client.get("/order").status_code, len(jobs()), Order.objects.count())
tell(client.get("/order?fail").status_code, len(jobs()), Order.objects.count())

from asgiref.sync import async_to_sync, sync_to_async
async def visit():
    answer = await AsyncClient().get("/hello")
    return answer.status_code
tell(async_to_sync(visit)(), len(jobs()))

@sync_to_async
def both(fail):
    with transaction.atomic():
        Order.objects.create(item="async")
        tasks.confirm.enqueue(1)
        async_to_sync(tasks.greet.aenqueue)("from within")
        if fail: raise KeyError

async def lost():
    await both(False)
    try:
        await both(True)
    except KeyError:
        pass
async_to_sync(lost)()
tell(len(jobs()), Order.objects.count())

from django.core.exceptions import SynchronousOnlyOperation
async def wrong():
    try:
        tasks.confirm.enqueue(1)
    except SynchronousOnlyOperation as error:
        return "aenqueue" in str(error)
tell(async_to_sync(wrong)())
""") == [[200, 1, 1], [500, 1, 1], [200, 2], [4, 2], True]  # fmt: skip


def test_threads_have_transactions_of_their_own(project: Project) -> None:
    assert project.program("""
from concurrent.futures import ThreadPoolExecutor
from django.db import connections

def one(n):
    try:
        with transaction.atomic():
            Order.objects.create(item=str(n))
            app.enqueue("x", {"n": n}, key=str(n) if n % 3 else None)
            if n % 2: raise KeyError
    except KeyError:
        pass
    finally:
        connections.close_all()

with ThreadPoolExecutor(6) as pool:
    list(pool.map(one, range(60)))
tell(len(jobs()), sorted(job.input["n"] for job in app.jobs.find()) == list(range(0, 60, 2)), Order.objects.count())
""") == [[30, True, 30]]  # fmt: skip


def test_threads_that_django_knows_nothing_of_leave_no_connection_of_it_behind(project: Project) -> None:
    assert project.program("""
import threading
from django.db import connections
Order.objects.create(item="a")          # here there is a connection
said = []

def apart():
    app.enqueue("x")
    app.enqueue("x", key="k")
    ident = app.enqueue_many("x", [{}, {}])[-1].job.id
    said.append((app.look(ident)[0].task, connection.connection is None))
    with transaction.atomic():          # and here from now on
        app.enqueue("y")
        transaction.set_rollback(True)
    said.append((connection.connection is None, app.enqueue("z").created))

thread = threading.Thread(target=apart)
thread.start()
thread.join()
tell(said, sorted(job.task for job in app.jobs.find()))
""") == [[[["x", True], [False, True]], ["x", "x", "x", "x", "z"]]]  # fmt: skip


def test_a_connection_that_was_lost_is_one_for_the_next_job_too(project: Project) -> None:
    assert project.program("""
from django.db import close_old_connections
app.enqueue("x")
if connection.vendor == "postgresql":
    from django.db import OperationalError
    with connection.cursor() as c:
        c.execute("SELECT pg_backend_pid()")
        pid = c.fetchone()[0]
    with app.db.engine.connect() as other:
        other.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")
    try:
        app.enqueue("x")
    except OperationalError:
        tell("Django's error")
    close_old_connections()
else:
    connection.close()
    tell("Django's error")
app.enqueue("x")
tell(len(jobs()))
""") == ["Django's error", 2]  # fmt: skip


@pytest.mark.postgres
def test_server_side_binding_and_pools_of_django_are_no_different(tmp_path: Path, empty_pg_url: str) -> None:
    project = Project(
        tmp_path / "project", empty_pg_url, options={"server_side_binding": True, "application_name": "shop"}
    )
    project.migrate()
    assert project.program("""
with transaction.atomic():
    tell(app.enqueue("x", key="k", concurrency_key="c", parent=app.enqueue("y").job.id).created)
tell(len(jobs()), app.db.url.query["application_name"], "server_side_binding" in app.db.url.query)
""") == [True, [2, "shop", False]]  # fmt: skip


def test_jobs_in_another_database_keep_out_of_the_orm_and_a_check_says_so(tmp_path: Path) -> None:
    project = Project(
        tmp_path / "project",
        f"sqlite:///{tmp_path / 'shop.db'}",
        duly={"DATABASE_URL": f"sqlite:///{tmp_path / 'jobs.db'}"},
    )
    project.migrate()
    assert "duly.W001" in project.manage("check")
    assert project.program("""
try:
    with transaction.atomic():
        Order.objects.create(item="a")
        tasks.confirm.enqueue(1)
        raise KeyError
except KeyError:
    tell(len(jobs()), Order.objects.count())
""") == [[1, 0]]  # fmt: skip


def test_another_alias_is_another_transaction(tmp_path: Path) -> None:
    first = Project(tmp_path / "first", f"sqlite:///{tmp_path / 'first.db'}")
    two = {"default": first.database(), "jobs": {**first.database(), "NAME": str(tmp_path / "jobs.db")}}
    first.configure(databases=two, duly={"DATABASE": "jobs", "MAX_ATTEMPTS": 2})
    first.migrate()
    first.manage("migrate", "--database", "jobs")
    assert first.program("""
try:
    with transaction.atomic(), transaction.atomic(using="jobs"):
        Order.objects.create(item="a")
        app.enqueue("lost")
        raise KeyError
except KeyError:
    pass
try:
    with transaction.atomic():
        Order.objects.create(item="a")
        app.enqueue("kept")
        raise KeyError
except KeyError:
    pass
tell([(job.task, job.max_attempts) for job in app.jobs.find()], Order.objects.count())
""") == [[[["kept", 2]], 0]]  # fmt: skip


IDEMPOTENT = """
from django.db import connection
from duly.idempotency import idempotent_task
runs = []

class Stop(Exception): ...

@idempotent_task(name="place")
def place(item):
    runs.append(item)
    return Order.objects.create(item=item).pk

def until(what):
    import time
    for _ in range(400):
        if what():
            return True
        time.sleep(0.05)
"""


def test_an_idempotent_call_is_done_when_django_has_committed_and_free_when_it_has_not(project: Project) -> None:  # F3
    assert project.program(IDEMPOTENT + """
try:
    with transaction.atomic():
        place("lamp")
        raise Stop
except Stop:
    pass
place("lamp")  # the body runs: its row went with the block
tell("again", runs, Order.objects.count())

with transaction.atomic():
    one = place("chair")
    tell("the same transaction is given the same", place("chair") == one, runs[2:])
tell("recorded", place("chair") == one, runs[2:])
""") == [["again", ["lamp", "lamp"], 1], ["the same transaction is given the same", True, ["chair"]], ["recorded", True, ["chair"]]]  # fmt: skip


def test_a_savepoint_that_is_given_up_frees_the_keys_of_the_calls_inside(project: Project) -> None:  # F3
    assert project.program(IDEMPOTENT + """
with transaction.atomic():
    place("kept")
    try:
        with transaction.atomic():
            place("given up")
            raise Stop
    except Stop:
        pass
place("kept")
tell("freed", until(lambda: app.db.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM idempotency WHERE state = 'in_progress'").scalar()) == 0))
place("given up")
tell("runs", runs, Order.objects.count())

@transaction.atomic
def view(fail):
    place("in a view")
    transaction.on_commit(lambda: 1 / 0)
    if fail:
        raise Stop
for fail in (True, False):
    try:
        view(fail)
    except (Stop, ZeroDivisionError):
        pass
place("in a view")
tell("also where another on_commit raises", runs[3:])
""") == [["freed", True], ["runs", ["kept", "given up", "given up"], 2], ["also where another on_commit raises", ["in a view"] * 2]]  # fmt: skip


@pytest.mark.postgres
def test_a_block_that_the_body_does_not_write_in_is_not_waited_for(empty_pg_url: str, tmp_path: Path) -> None:
    """On an SQLite file that Django keeps, the key can only be part of its transaction."""
    project = Project(tmp_path / "project", empty_pg_url)
    project.migrate()
    assert project.program(
        IDEMPOTENT
        + """
@idempotent_task(name="outside")
def outside(n):
    runs.append(n)
    return n
try:
    with transaction.atomic():
        outside(1)
        raise Stop
except Stop:
    pass
outside(1)
tell("once", runs)
"""
    ) == [["once", [1]]]


def test_a_call_behind_a_write_waits_for_nobody(project: Project) -> None:  # F3
    """On SQLite the write has the file for itself, so the key is part of Django's transaction."""
    assert project.program(
        IDEMPOTENT
        + """
for stop in (True, False):
    try:
        with transaction.atomic():
            Order.objects.create(item="first")
            place("lamp")
            place("lamp")
            if stop:
                raise Stop
    except Stop:
        pass
place("lamp")
tell(runs, Order.objects.count())
"""
    ) == [[["lamp", "lamp"], 2]]


def test_a_tenants_search_path_leads_neither_a_job_nor_the_tables_into_the_tenants_schema(
    tmp_path: Path, empty_pg_url: str
) -> None:  # C008
    project = Project(tmp_path / "project", empty_pg_url)
    project.migrate()
    assert project.program("""
from django.apps import apps
from django.db import connection
from duly.integrations.django.apps import make_tables

with connection.cursor() as cursor:
    cursor.execute("CREATE SCHEMA acme")
    cursor.execute("CREATE TABLE acme.jobs (id int)")
    for path in ("acme, public", "acme"):
        cursor.execute(f"SET search_path TO {path}")
        make_tables(using="default", verbosity=0)
        with transaction.atomic():
            tasks.confirm.enqueue(0)
    cursor.execute("SELECT count(*) FROM public.jobs")
    [jobs] = cursor.fetchone()
    cursor.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'acme'")
    [tables] = cursor.fetchone()
tell(jobs, tables)
""") == [[2, 1]]
