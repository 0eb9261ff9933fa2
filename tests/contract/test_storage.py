"""What storage promises the rooms above it, on both databases."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from contract.hands import AT_ONCE, Hand, Later, rows, run_sql, together, wait_until, working
from duly import Duly, InvalidArgument, Status
from duly.storage import rows as storage_rows
from duly.testing import ManualClock, drain, enqueued


def insert(n: int) -> partial[Any]:
    return partial(lambda n, c: c.execute(text("INSERT INTO notes VALUES (:n)"), {"n": n}).rowcount, n)


@pytest.fixture
def notes(app: Duly) -> Duly:
    run_sql(app, "CREATE TABLE notes (n integer PRIMARY KEY)")
    return app


def test_a_write_that_raises_leaves_nothing_behind(notes: Duly) -> None:
    def act(connection: Any) -> None:
        insert(1)(connection)
        raise KeyError("no")

    with pytest.raises(KeyError):
        notes.db.write(act)
    assert rows(notes, "SELECT n FROM notes") == []
    assert notes.db.write(insert(2)) == 1


def test_writes_that_share_a_commit_stand_on_their_own_feet(notes: Duly) -> None:
    began, go = threading.Event(), threading.Event()

    def slow(connection: Any) -> None:
        began.set()
        assert go.wait(30)

    def bad(connection: Any) -> None:
        insert(99)(connection)
        raise KeyError("mine alone")

    first = Later(lambda: notes.db.write(slow))
    assert began.wait(30)
    others = [Later(partial(notes.db.write, bad if n == 5 else insert(n))) for n in range(10)]
    if notes.db.is_sqlite:
        assert notes.db._writer is not None
        wait_until(lambda: len(notes.db._writer._line) == 10)  # type: ignore[union-attr]
    go.set()
    first.result()
    for n, other in enumerate(others):
        if n == 5:
            with pytest.raises(KeyError, match="mine alone"):
                other.result()
        else:
            assert other.result() == 1
    assert {row[0] for row in rows(notes, "SELECT n FROM notes")} == set(range(10)) - {5}


@pytest.mark.parametrize("piece", [1, 40, 10**6])
def test_rows_fetched_as_one_text_come_back_as_they_were(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(storage_rows, "PIECE", piece)
    kept = [
        [1, "plain"],
        [2, 'a "quote", a\nnew line,\r\n\t\\ and ]['],
        [3, None],
        [4, ""],
        [5, "é 漢 🙂"],
        [6, "x" * 500],
    ]
    app = Duly(sqlite_url)
    app.open()
    one = storage_rows.as_one("n, said", "(SELECT * FROM notes ORDER BY n)")
    run_sql(app, "CREATE TABLE notes (n integer PRIMARY KEY, said text)")
    for n, said in kept:
        run_sql(app, "INSERT INTO notes VALUES (:n, :said)", n=n, said=said)
    assert list(storage_rows.read(app.db.read(lambda c: c.execute(text(one)).scalar_one()))) == kept
    run_sql(app, "DELETE FROM notes")
    assert list(storage_rows.read(app.db.read(lambda c: c.execute(text(one)).scalar_one()))) == []


@pytest.mark.parametrize("column", ["input", "output", "error", "meta"])
def test_a_document_that_is_no_json_is_shown_as_it_stands_and_hides_no_row_beside_it(
    sqlite_url: str, column: str
) -> None:
    """PostgreSQL refuses such a text; into SQLite somebody may write it by hand."""
    app = Duly(sqlite_url)
    job, other = app.enqueue("X", run_in=60).job, app.enqueue("X").job
    run_sql(app, f"UPDATE jobs SET {column} = 'no {{json' WHERE id = {job.id}")
    found = {one.id: one for one in app.jobs.find()}
    assert getattr(found[job.id], column) == "no {json"
    assert found[other.id].input == {}
    app.close()


def test_a_write_inside_a_write_is_refused_on_the_file_that_has_one_writer(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    app.open()
    with pytest.raises(RuntimeError, match="hand the connection on"):
        app.db.write(lambda c: app.db.write(lambda d: None))
    assert app.enqueue("X").created  # and the writer goes on
    app.close()


def test_a_read_cannot_write(notes: Duly) -> None:
    if not notes.db.is_sqlite:
        notes.db.read(insert(1))  # PostgreSQL lets it, and rolls it back
    else:
        with pytest.raises(Exception, match="readonly"):
            notes.db.read(insert(1))
    assert rows(notes, "SELECT n FROM notes") == []


def test_a_keyed_job_never_exists_before_its_queue_is_looked_at_closely(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(app.engine.maker, "_govern", broken)
    app.task("X")(lambda: None)
    for key in (None, "k"):
        with pytest.raises(RuntimeError, match="power cut"):
            app.enqueue("X", concurrency_key="c", key=key)
    assert app.jobs.count() == 0


def test_the_first_jobs_of_a_concurrency_key_keep_their_limit_too(app: Duly) -> None:
    task = app.task("X")(lambda: None)
    claimed: list[int] = []
    stop = threading.Event()

    def claim() -> None:
        hand = Hand(app, "w")
        while not stop.is_set():
            claimed.extend(j.id for j in hand.claim(n=5))

    claimer = Later(claim)
    together(*[partial(task.using(concurrency_key="c").enqueue)] * 8)
    wait_until(lambda: claimed)
    stop.set()
    claimer.result()
    assert len(claimed) == 1


def test_behind_a_transaction_pooler_nothing_is_prepared_and_everything_works(pg_url: str, clock: ManualClock) -> None:
    app = Duly(pg_url, clock=clock, pooler="transaction")
    app.task("X", max_attempts=2, backoff=AT_ONCE)(lambda n: 1 // n)
    app.enqueue_many("X", [{"n": n} for n in range(40)])
    tally = drain(app)
    assert (tally.succeeded, tally.retried, tally.failed) == (39, 1, 1)
    assert app.db.listener(lambda e: None) is None
    with app.db.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar() == 0
    app.close()


def test_without_notifications_polling_finds_the_work(pg_url: str) -> None:  # HOUSE decision 12
    app = Duly(pg_url, notify=False, poll=0.05)
    app.task("X")(lambda: None)
    with working(app.worker(name="w")):
        job = app.enqueue("X").job
        wait_until(lambda: app.jobs.get(job.id).status is Status.SUCCEEDED)
    app.close()


def test_one_notification_is_sent_per_queue_and_transaction(pg: Duly) -> None:  # HOUSE decision 12
    import psycopg

    with psycopg.connect(pg.db.url.render_as_string(hide_password=False), autocommit=True) as ear:
        ear.execute("LISTEN duly_jobs")
        pg.open()
        pg.enqueue_many("X", [{}] * 30, queue="mail")
        pg.enqueue("X", queue="other")
        heard = [(n.channel, n.payload) for n in ear.notifies(timeout=5, stop_after=2)]
        assert heard == [("duly_jobs", "mail"), ("duly_jobs", "other")]
        assert list(ear.notifies(timeout=0.1)) == []


def test_a_database_in_memory_serves_a_whole_program() -> None:
    app = Duly("sqlite://", poll=0.05)
    runs: list[int] = []

    @app.task("X", backoff=AT_ONCE)
    def x(n: int) -> None:
        runs.append(n)
        if runs.count(n) == 1:
            raise ValueError

    x.enqueue_many([{"n": n} for n in range(5)])
    app.queues.set("default", limit=2)
    tally = app.worker().run(until_idle=True)
    assert (tally.succeeded, tally.retried) == (5, 5)
    assert [j.status for j in enqueued(app)] == [Status.SUCCEEDED] * 5
    app.close()


def test_an_application_can_be_used_again_after_it_was_closed(app: Duly) -> None:
    first = app.enqueue("X").job
    app.close()
    app.close()
    assert app.jobs.get(first.id).task == "X"
    assert app.enqueue("X").created


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite:////nowhere/at/all/duly.db", "not a url"])
def test_a_url_that_cannot_be_used_is_refused_when_the_application_is_made(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Duly(url)
    assert refused.value.field == "database_url"
