"""For a Django project's own tests: test cases that leave no jobs behind.

Django empties the tables of models after each ``TransactionTestCase``, and knows nothing of Duly's. A job that stays is found by the next
test, and its key with it; with ``reset_sequences`` that test's objects have the numbers of the last one's, so a key made of such a number
answers ``created=False``. A ``TestCase`` needs none of this: its transaction is rolled back, jobs included.
"""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.test import TransactionTestCase
from django.test.utils import _TestState

from duly.audit.tables import audit_log, audit_seals
from duly.integrations.django.application import application
from duly.kernel.errors import UsageError
from duly.storage.migrate import all_metadata

#: What stays: the audit trail, of which nothing can be removed, and the state of the system, which has rows from the beginning.
_STAYS = {audit_log.name, audit_seals.name, "system_state"}


def empty_tables() -> None:
    """Remove everything that Duly has in Django's test database: jobs, keys, schedules, the rows of all rooms. Numbers of jobs go on.

    The audit trail stays, and so does the state of the online gate. Raises UsageError where Django is not testing,
    ImproperlyConfigured where jobs live outside of Django's database.
    """
    app = application()
    if not hasattr(_TestState, "saved_data"):
        raise UsageError("empty_tables() is for tests: it removes all jobs. Call it under Django's test runner.")
    if not app.config.shared:
        raise ImproperlyConfigured(
            "DULY['DATABASE_URL'] is set, so jobs are in no test database. Leave it out of the settings that tests run with."
        )
    with app.guest.join() as connection:
        for table in reversed(all_metadata().sorted_tables):
            if table.name not in _STAYS:
                connection.execute(table.delete())


class DulyTransactionTestCase(TransactionTestCase):  # type: ignore[misc]
    """A TransactionTestCase after which Duly's tables are empty too, as the tables of models are.

    When its class is done, Duly's own connections are closed, so that Django can drop the database.
    """

    @classmethod
    def tearDownClass(cls) -> None:
        super().tearDownClass()
        application().close()

    def _fixture_teardown(self) -> None:
        super()._fixture_teardown()
        empty_tables()
