"""A job enqueued by itself, by the server's own clock: on PostgreSQL one statement past SQLAlchemy and the driver's cursor."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from contract.hands import rows, run_sql
from duly import Duly
from duly.storage.postgres import Statement

STRANGE = 'it\'s "quoted" \\ %s :x {} $1 é \U0001f600'


def test_a_job_is_answered_as_it_is_stored_and_stored_as_it_was_sent(live: Duly) -> None:
    @live.task("send", queue="mail", priority=-(2**31), max_attempts=2**31 - 1)
    def send(text: str, n: int = 0) -> None: ...

    before = datetime.now(UTC)
    for made in (
        send.enqueue(STRANGE, n=2**63 - 1),
        send.using(tenant=STRANGE, queue=STRANGE, priority=2**31 - 1, max_attempts=1, meta={"a": STRANGE}).enqueue("x"),
        live.enqueue("elsewhere", {"b": STRANGE}),
        send.using(run_in=0).enqueue("now"),
        send.using(run_in=3600).enqueue("later"),
        send.using(run_at=before - timedelta(days=1)).enqueue("past"),
    ):
        assert made.created
        assert live.jobs.get(made.job.id) == made.job
        assert made.job.created_at is not None
        assert abs(made.job.created_at - before) < timedelta(minutes=1)
    first, second = (live.jobs.find(task="send", limit=10)[n] for n in (-1, -2))
    assert (first.input, first.queue, first.priority, first.max_attempts) == ({"text": STRANGE, "n": 2**63 - 1}, "mail", -(2**31), 2**31 - 1)  # fmt: skip
    assert (second.tenant, second.queue, second.priority, second.max_attempts) == (STRANGE, STRANGE, 2**31 - 1, 1)
    assert second.meta == {"a": STRANGE}
    assert (first.run_at, first.due_at) == (first.created_at, None)


def test_a_job_knows_whether_its_queue_was_fair_when_it_was_made(live: Duly) -> None:
    live.queues.set("limited", limit=5)
    wanted = {}
    for fair in (False, True, False):
        if fair or wanted:
            live.queues.set("mail", fair=fair)
        wanted[live.enqueue("X", queue="mail").job.id] = fair
        assert bool(rows(live, "SELECT fair FROM jobs ORDER BY id DESC LIMIT 1")[0][0]) is fair
        live.enqueue("X", queue="limited")
        assert not rows(live, "SELECT fair FROM jobs ORDER BY id DESC LIMIT 1")[0][0]


def test_a_connection_that_the_server_has_closed_is_replaced_and_nobody_is_told(pg_url: str) -> None:
    ours, theirs = Duly(pg_url), Duly(pg_url)
    idents = [ours.enqueue("X").job.id]
    for _ in range(3):
        killed = run_sql(theirs, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()")  # fmt: skip
        assert killed
        theirs.db.read(lambda c: c.execute(text("SELECT pg_sleep(0.1)")))  # until it has hung up
        idents += [ours.enqueue("X").job.id for _ in range(2)]
    assert sorted(job.id for job in ours.jobs.find(task="X")) == idents
    ours.close()
    theirs.close()


def test_whoever_is_interrupted_while_a_statement_is_prepared_can_go_on(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Duly(pg_url)
    app.open()
    real, asked = Statement.answer, []

    def answer(pooled: Any) -> Any:
        found = real(pooled)
        asked.append(True)
        if len(asked) == 1:  # Ctrl-C, when the server has prepared it and nobody knows
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Statement, "answer", staticmethod(answer))
    with pytest.raises(KeyboardInterrupt):
        app.enqueue("X")
    assert app.jobs.count() == 0
    for _ in range(3):
        app.enqueue("X")
    assert app.jobs.count() == 3
    app.close()
