"""``DULY`` in Django's settings: what it says, what is wrong with it, tables, and Django's own tests (issue 8, ADR 0030)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integrations.django_scene import Project

POSTGRES = "postgresql://nobody@127.0.0.1:1/none"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project", f"sqlite:///{tmp_path / 'shop.db'}")


def bare(project: Project) -> None:
    """Leave out the tasks: they are defined with the application, so that the first of them would raise before anything is checked."""
    (project.folder / "shop" / "tasks.py").write_text("")
    (project.folder / "shop" / "urls.py").write_text("urlpatterns = []")


WRONG: list[tuple[Any, str]] = [
    ([], "DULY is of type list. Make it a dictionary."),
    ({"LEASES": 3}, "DULY['LEASES'] is not known. Keys are DATABASE, DATABASE_URL, MODULES, MIGRATE"),
    ({"LEASE": -1}, "lease: is -1; the least allowed is 0.5."),
    ({"DATABASE": "other"}, "DULY['DATABASE'] is 'other', and there is no such alias in DATABASES."),
    ({"MODULES": "shop.later"}, "DULY['MODULES'] must be a list of names of modules."),
    ({"DATABASE_URL": "mysql://x"}, "mysql is not supported."),
]


def test_a_setting_that_cannot_be_used_is_named(project: Project) -> None:
    told = project.program(f"""
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from duly.integrations.django.checks import check_settings
from duly.integrations.django.config import Config
for value in {[value for value, _ in WRONG]!r}:
    with override_settings(DULY=value):
        (found,) = check_settings()
        try:
            Config.read()
        except ImproperlyConfigured as error:
            tell(found.id, str(error) == found.msg, found.msg)
""")
    assert [(ident, alike) for ident, alike, _ in told] == [("duly.E001", True)] * len(WRONG)
    assert [said for (_, said), (*_, message) in zip(WRONG, told, strict=True) if said not in message] == []


def test_a_setting_that_cannot_be_used_is_said_by_check_and_by_use(project: Project) -> None:
    bare(project)
    project.configure(duly={"LEASES": 3})
    assert "?: (duly.E001) DULY['LEASES'] is not known." in project.manage("check", code=1)
    (project.folder / "shop" / "tasks.py").write_text("from duly.integrations.django import app")
    assert "ImproperlyConfigured: DULY['LEASES'] is not known." in project.manage(
        "shell", "-c", "import shop.tasks", code=1
    )


def test_a_database_that_duly_cannot_use_is_said(project: Project) -> None:
    bare(project)
    for database, code, said in (
        ({"ENGINE": "django.db.backends.dummy"}, 1, "duly.E001"),
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": "file:x.db?mode=rw"}, 1, "duly.E001"),
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, 0, "duly.W002"),
        (project.database({}), 0, "duly.W003"),
        (project.database() | {"AUTOCOMMIT": False}, 0, "duly.W004"),
        (project.database(), 0, "no issues"),
        (Project.database(type("", (), {"url": POSTGRES})()), 0, "no issues"),  # type: ignore[arg-type]
    ):
        project.configure(databases={"default": database})
        assert said in project.manage("check", code=code), database


def test_models_with_the_names_of_dulys_tables_are_said(project: Project) -> None:
    models = project.folder / "shop" / "models.py"
    models.write_text(
        models.read_text() + "\n\nclass User(models.Model):\n    class Meta:\n        db_table = 'users'\n"
    )
    said = project.manage("check", code=1)
    assert "shop.User: (duly.E002) The table 'users' of shop.User has the name of one of Duly's." in said
    models.write_text(models.read_text().replace("db_table = 'users'", "db_table = 'users'\n        managed = False"))
    assert "no issues" in project.manage("check")


def test_options_of_the_backend_that_are_not_known_are_said(project: Project) -> None:
    backend = {"BACKEND": "duly.integrations.django.backend.DulyBackend", "OPTIONS": {"retries": 3}}
    project.configure(tasks={"default": backend}, duly={"MODULES": ["shop.later"]})
    later = project.folder / "shop" / "later.py"
    later.write_text(later.read_text().replace('@task(queue_name="mail", priority=10)', "@task"))
    said = project.program("""
from importlib import import_module
from shop.later import task
backend = import_module(task.__module__.rpartition(".")[0]).task_backends["default"]
tell([message.id for message in backend.check()])
""")
    assert said == [["duly.E003"]]


def test_a_url_says_what_django_says(project: Project) -> None:
    assert project.program("""
from types import SimpleNamespace
from duly.integrations.django.config import url_of

def url(**said):
    settings = {"NAME": "shop", "USER": "", "PASSWORD": "", "HOST": "", "PORT": "", "OPTIONS": {}, **said}
    return url_of("default", SimpleNamespace(vendor="postgresql", settings_dict=settings))

tell(url())
tell(url(USER="ada", PASSWORD="p@ss/word", HOST="db.example.org", PORT="5433"))
tell(url(HOST="/run/postgresql", OPTIONS={"sslmode": "require", "pool": True, "isolation_level": 3}))
tell(url(NAME="", OPTIONS={"service": "shop", "assume_role": "owner", "options": "-c search_path=app"}))
""") == [
        "postgresql:///shop",
        "postgresql://ada:p%40ss%2Fword@db.example.org:5433/shop",
        "postgresql:///shop?host=%2Frun%2Fpostgresql&sslmode=require",
        "postgresql://?options=-c+search_path%3Dapp+-c+role%3Downer&service=shop",
    ]


def test_migrate_makes_the_tables_once_and_only_where_they_belong(project: Project) -> None:
    assert "Tables of Duly: none → " in project.migrate()
    assert "Tables of Duly" not in project.migrate()
    (project.folder.parent / "shop.db").unlink()
    project.configure(duly={"MIGRATE": False})
    assert "Tables of Duly" not in project.migrate()
    assert project.program("""
from duly.kernel.errors import SchemaMissing
try:
    with transaction.atomic():
        app.enqueue("x")
except SchemaMissing as error:
    tell(str(error))
""") == ["the tables of Duly are not in the database 'default'. Run `manage.py migrate`."]


TESTS = """
from django.test import TestCase, TransactionTestCase
from duly.integrations.django import app
from duly.testing import drain
from shop.models import Line, Order
from shop.tasks import confirm, greet


class Quick(TestCase):
    def test_a_job_is_seen_and_goes_with_the_test(self):
        with self.captureOnCommitCallbacks() as callbacks:
            made = confirm.enqueue(1)
        job, _ = app.look(made.job.id)
        self.assertEqual((job.task, job.input, callbacks), ("confirm", {"order": 1}, []))

    def test_b_nothing_is_left(self):
        from duly.kernel.errors import NotFound
        for ident in range(1, 50):
            with self.assertRaises(NotFound):
                app.look(ident)


class Whole(TransactionTestCase):
    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        app.close()

    def test_jobs_run(self):
        order = Order.objects.create(item="a")
        confirm.enqueue(order.pk)
        greet.enqueue("ada")
        self.assertEqual(drain(app).succeeded, 2)
        order.refresh_from_db()
        self.assertTrue(order.confirmed)
        self.assertIn("test", str(app.db.url.database))
"""


def test_tests_of_django_have_duly_in_their_own_database(project: Project, tmp_path: Path, empty_url: str) -> None:
    project.url = empty_url
    database = project.database()
    if database["ENGINE"].endswith("sqlite3"):
        database["TEST"] = {"NAME": str(tmp_path / "test.db")}
    project.configure(databases={"default": database})
    project.migrate()
    project.program("app.enqueue('confirm', {'order': 1})")
    (project.folder / "shop" / "tests.py").write_text(TESTS)
    assert "Ran 3 tests" in project.manage("test", "--noinput")
    assert project.program("tell([str(job.status) for job in app.jobs.find()])") == [["queued"]]


def test_tests_in_memory_enqueue_too(project: Project) -> None:
    (project.folder / "shop" / "tests.py").write_text(TESTS.partition("class Whole")[0])
    assert "Ran 2 tests" in project.manage("test")


@pytest.mark.postgres
def test_migrate_names_who_holds_a_table_and_goes_on_when_it_is_free(tmp_path: Path, empty_pg_url: str) -> None:  # C004
    project = Project(tmp_path / "project", empty_pg_url)
    assert project.program("""
import psycopg
from duly.kernel.errors import DatabaseBusy
from duly.storage import locking, migrate
from duly.storage.database import Database
from duly.settings import Settings

locking.WAIT, locking.PAUSES = 0.1, (0.01,)
url = os.environ["OWN_URL"]
db = Database(Settings.load(database_url=url))
db.write(lambda c: migrate._upgrade(c, "0011"))
with psycopg.connect(url, application_name="nightly dump") as reader:
    reader.execute("SELECT count(*) FROM queues")
    try:
        app.guest.migrate()
    except DatabaseBusy as error:
        tell(str(reader.info.backend_pid) in str(error), "application nightly dump" in str(error), db.read(migrate.current))
app.guest.migrate()
tell(db.read(migrate.current) == migrate.HEAD)
""".replace('os.environ["OWN_URL"]', repr(empty_pg_url))) == [[True, True, "0011"], True]  # fmt: skip


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    url: str = request.getfixturevalue("empty_pg_url")
    return url
