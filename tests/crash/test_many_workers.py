"""Many processes on one queue, and many writers on one file."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from sqlalchemy import make_url, text

from crash import program
from crash.scene import Scene
from duly.storage import sqlite


@pytest.mark.parametrize(("many", "count"), [(4, 800), pytest.param(8, 2000, marks=pytest.mark.soak)])
def test_many_workers_on_one_queue_run_each_of_many_jobs_once(
    scene: Scene, many: int, count: int
) -> None:  # R003-2, R003-11
    jobs = [made.job.id for made in scene.app.enqueue_many("WORK", [{}] * count)]
    scene.app.gate.offline()
    workers = [scene.worker(f"w{n}", {"default": 5}, lease=120, pool_size=3, wait=False) for n in range(many)]
    scene.wait(lambda: all(scene.is_ready(w.name) for w in workers), 30, "all workers")
    scene.app.gate.online()
    scene.wait_for_end(seconds=60)
    for worker in workers:
        worker.signal(signal.SIGTERM)
    assert [worker.ended() for worker in workers] == [0] * many
    assert Counter(x["job"] for x in scene.lines("effect")) == dict.fromkeys(jobs, 1)
    assert scene.check(jobs, most=1) == []
    assert scene.sql("SELECT count(*) FROM attempts") == [(0,)]
    assert sum(x["succeeded"] for x in scene.lines("finished")) == count
    assert scene.errors() == []


# --- One SQLite file (B039) --------------------------------------------------------------------------------------------


def test_a_transaction_that_reads_and_then_writes_fails_at_once_unless_it_began_as_a_writer(sqlite_url: str) -> None:
    """B039: what `BEGIN IMMEDIATE` avoids. The timeout of the naive form is five seconds, and it is not waited for."""
    file = str(make_url(sqlite_url).database)

    def naive() -> sqlite3.Connection:
        return sqlite3.connect(file, timeout=5, isolation_level=None, check_same_thread=False)

    a, b = naive(), naive()
    a.execute("BEGIN")
    a.execute("SELECT count(*) FROM queues").fetchone()
    b.execute("INSERT INTO queues (name, governed, fair, updated_at) VALUES ('b', 0, 0, 0)")
    began = time.monotonic()
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        a.execute("UPDATE queues SET governed = 1")
    assert time.monotonic() - began < 4  # and not after its timeout
    a.execute("ROLLBACK")
    a.close()

    # The same steps on an engine of ours: the second writer waits for the first, and both succeed.
    engine = sqlite.make_engine(sqlite_url, busy_timeout=5)
    with engine.connect() as ours:
        ours.execute(text("SELECT count(*) FROM queues")).one()
        insert = "INSERT INTO queues (name, governed, fair, updated_at) VALUES ('c', 0, 0, 0)"
        other = threading.Thread(target=b.execute, args=(insert,))
        other.start()
        assert ours.execute(text("UPDATE queues SET governed = 1")).rowcount == 1
        assert other.is_alive(), "the other writer waits"
        ours.commit()
    other.join(10)
    assert b.execute("SELECT name, governed FROM queues ORDER BY name").fetchall() == [("b", 1), ("c", 0)]
    b.close()
    engine.dispose()


def test_no_writer_on_a_shared_file_is_ever_told_that_it_is_locked(
    sqlite_url: str, make_scene: Callable[..., Scene]
) -> None:
    """B039: two workers, each with eight threads that enqueue, and a third process that inserts meanwhile."""
    scene = make_scene(sqlite_url, lease=120)
    actors = [
        scene.act(name, program.run_enqueuers, queues={"default": 8}, args={"threads": 8, "each": 20}) for name in "ab"
    ]
    refused = list[Exception]()

    def insert() -> None:  # as an API would
        for _ in range(100):
            try:
                scene.app.enqueue("WORK")
            except Exception as error:
                refused.append(error)

    api = threading.Thread(target=insert)
    api.start()
    api.join(60)
    scene.wait(lambda: len(scene.lines("enqueued")) == 2, 60, "all enqueuers")
    scene.wait_for_end(seconds=30)
    (scene.folder / "stop").touch()
    assert [actor.ended() for actor in actors] == [0, 0]
    jobs = [ident for (ident,) in scene.sql("SELECT id FROM jobs_done")]
    assert len(jobs) == 2 * 8 * 20 + 100
    assert Counter(x["job"] for x in scene.lines("effect")) == dict.fromkeys(jobs, 1)
    assert scene.check(jobs, most=1) == []
    assert (refused, scene.lines("refused"), scene.errors()) == ([], [], [])
    assert not [x for x in scene.lines("event") if "locked" in str(x)]
