"""Most applications have no schedule, and their workers load nothing for them. Then one is made."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import event

from contract.hands import wait_until, working
from duly import Duly, Every
from duly.schedules.watch import Watch

EACH_SECOND = Every(1, anchor=datetime(2026, 1, 1, tzinfo=UTC))


def test_a_worker_that_began_without_schedules_fires_the_first_one_that_somebody_else_makes(db_url: str) -> None:
    ours, theirs = Duly(db_url, poll=0.1), Duly(db_url)
    ours.task("tick")(lambda: None)
    worker = ours.worker()
    assert "schedules" not in vars(ours), "a worker needs no schedules"
    with working(worker):
        theirs.schedules.set(theirs.schedules.spec("first", EACH_SECOND, "tick"))
        wait_until(lambda: len(theirs.schedules.ledger("first")) >= 2)
        wait_until(lambda: any(job.status == "succeeded" for job in theirs.jobs.find(task="tick")))
    ours.close()
    theirs.close()


def test_a_worker_without_schedules_asks_whether_there_is_one_and_nothing_else(db_url: str) -> None:
    app = Duly(db_url)
    app.open()
    made: list[Any] = []
    watch = Watch(app.db, made.append)
    asked: list[str] = []
    engine = app.db._reader
    event.listen(engine, "before_cursor_execute", lambda _c, _cursor, statement, *_: asked.append(statement))
    watch.bell.ring()  # nobody waits
    watch.step()
    watch.keep()
    assert made == []
    looks = [one.replace('"public".', "") for one in asked if not one.startswith("BEGIN")]
    assert looks == ["SELECT 1 FROM schedules LIMIT 1"] * 2
    app.close()


def test_what_code_declares_is_there_when_its_worker_begins(db_url: str) -> None:
    app = Duly(db_url, poll=0.1)
    app.schedule("each", EACH_SECOND, app.task("tick")(lambda: None))
    with working(app.worker()):
        wait_until(lambda: bool(app.schedules.ledger("each")))
    app.close()


@pytest.mark.parametrize("removed", [False, True])
def test_the_history_of_removed_schedules_is_pruned_too(db_url: str, removed: bool) -> None:
    app = Duly(db_url)
    app.task("tick")(lambda: None)
    app.schedules.set(app.schedules.spec("each", EACH_SECOND, "tick"))
    if removed:
        app.schedules.remove("each")
    kept: list[str] = []

    class Kept:
        def keep(self) -> None:
            kept.append("kept")

    Watch(app.db, lambda _bell: Kept()).keep()  # type: ignore[arg-type, return-value]
    assert kept == ["kept"]
    app.close()
