"""A Django project's own tests leave no jobs behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from integrations.django_scene import Project

TESTS = """
from django.test import TransactionTestCase

from duly import NotFound
from duly.integrations.django import app
from duly.integrations.django.testing import DulyTransactionTestCase
from duly.testing import drain
from shop.models import Order
from shop.tasks import confirm


class Confirmed:
    reset_sequences = True

    def confirmed(self):
        order = Order.objects.create(item="a")
        made = confirm.using(key=f"confirm-{order.pk}").enqueue(order.pk)
        self.assertTrue(made.created)
        drain(app)
        order.refresh_from_db()
        self.assertTrue(order.confirmed)
        return made.job.id

    def test_1(self):
        self.confirmed()
        app.queues.set("mail", limit=3)

    def test_2(self):
        self.assertEqual(app.jobs.count(), 0)
        self.assertNotIn("mail", [queue.name for queue in app.queues.all() if queue.limit])
        last = self.confirmed()
        with self.assertRaises(NotFound):
            app.look(last - 1)


class Clean(Confirmed, DulyTransactionTestCase):
    pass
"""

STALE = """

class Stale(Confirmed, TransactionTestCase):
    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        app.close()
"""


@pytest.fixture
def project(tmp_path: Path, db_url: str) -> Project:
    made = Project(tmp_path / "project", db_url)
    made.migrate()
    return made


@pytest.fixture
def tested(project: Project, tmp_path: Path) -> Project:
    database = project.database()
    if database["ENGINE"].endswith("sqlite3"):
        database["TEST"] = {"NAME": str(tmp_path / "test.db")}
    project.configure(databases={"default": database})
    return project


def test_a_test_case_of_duly_leaves_no_job_and_no_key_behind(tested: Project) -> None:
    (tested.folder / "shop" / "tests.py").write_text(TESTS)
    assert "Ran 2 tests" in tested.manage("test", "--noinput")


def test_one_of_django_alone_leaves_its_jobs_and_their_keys(tested: Project) -> None:
    """What the test above would look like without it."""
    (tested.folder / "shop" / "tests.py").write_text(TESTS + STALE)
    assert "FAILED (failures=1" in tested.manage("test", "--noinput", "shop.tests.Stale", code=1)


def test_nothing_is_emptied_where_django_does_not_test(project: Project) -> None:
    told = project.program("""
from duly import UsageError
from duly.integrations.django.testing import empty_tables
app.enqueue("confirm", {"order": 1})
try:
    empty_tables()
except UsageError as error:
    tell(str(error))
tell(app.jobs.count())
""")
    assert told == ["empty_tables() is for tests: it removes all jobs. Call it under Django's test runner.", 1]
