"""An application of a module, on another database for the length of a test."""

from __future__ import annotations

import runpy
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duly import Duly, Every, InvalidArgument
from duly.mail import Mail
from duly.testing import ManualClock, assert_enqueued, drain, sandbox

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def app(tmp_path: Path) -> Duly:
    return Duly(f"sqlite:///{tmp_path / 'own.db'}", max_attempts=7)


def test_what_happens_in_a_sandbox_stays_there(app: Duly) -> None:
    @app.task
    def note(text: str) -> None: ...

    note.enqueue("outside")
    with sandbox(app) as inside:
        assert inside is app
        note.enqueue("inside")
        assert [job.input for job in assert_enqueued(app, note)] == [{"text": "inside"}]
        assert drain(app).succeeded == 1
    assert [job.input for job in assert_enqueued(app, note, count=1, status="queued")] == [{"text": "outside"}]


def test_a_sandbox_has_its_clock_and_keeps_other_settings(app: Duly) -> None:
    @app.task
    def note(text: str) -> None: ...

    clock = ManualClock(NOON)
    with sandbox(app, clock=clock, tenant="acme"):
        job = note.using(run_in=60).enqueue("later").job
        assert (job.run_at, job.tenant, job.max_attempts) == (NOON + timedelta(minutes=1), "acme", 7)
        assert drain(app).claimed == 0
        clock.advance(60)
        assert drain(app).claimed == 1
    assert app.settings.tenant == "default"


def test_a_sandbox_ends_however_its_block_ends(app: Duly, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), sandbox(app, f"sqlite:///{tmp_path / 'other.db'}"):
        app.open()
        raise ZeroDivisionError
    assert app.settings.database_url.endswith("own.db")
    assert (tmp_path / "other.db").exists()


def test_a_sandbox_that_cannot_be_made_changes_nothing(app: Duly) -> None:
    with pytest.raises(InvalidArgument), sandbox(app, lease=-1):
        pass
    assert app.settings.database_url.endswith("own.db")


def test_a_sandbox_on_postgresql(app: Duly, pg_url: str) -> None:
    @app.task
    def note(text: str) -> None: ...

    with sandbox(app, pg_url, clock=ManualClock(NOON)):
        assert note.enqueue("there").job.created_at == NOON
        assert drain(app).succeeded == 1


def test_what_code_declares_counts_from_the_beginning_of_a_sandbox(app: Duly) -> None:
    ran: list[int] = []

    @app.task
    def count() -> None:
        ran.append(1)

    app.schedule("hourly", Every("1h"), count)
    clock = ManualClock(NOON)
    with sandbox(app, clock=clock):
        clock.advance(timedelta(hours=1))
        assert drain(app).succeeded == 1
        clock.advance(timedelta(minutes=59))
        assert drain(app).claimed == 0
    with sandbox(app, clock=clock):
        assert drain(app).claimed == 0  # another database: it counts from now on
    assert len(ran) == 1


def test_a_task_that_a_test_defines_goes_with_its_sandbox_and_a_room_s_stays(app: Duly, tmp_path: Path) -> None:
    module = tmp_path / "late.py"
    module.write_text("def late() -> None: ...\n")
    with sandbox(app):
        app.task(runpy.run_path(str(module))["late"])
        Mail(app)
    for _ in range(2):  # the next test may define one of that name
        with sandbox(app):
            runs: list[int] = []

            @app.task
            def counted() -> None:
                runs.append(1)

            counted.enqueue()
            assert drain(app).succeeded == 1
            assert runs == [1]
        assert app.engine.tasks.keys() == {"late", "EMAIL_SEND"}
