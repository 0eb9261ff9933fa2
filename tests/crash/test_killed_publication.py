"""A worker is killed between every two steps of a publication: one post comes of it, and one comment (T002-c, T002-i, B055, B065)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import nursery
from crash import publish_apart as program
from crash.publish_apart import BEHIND, instagram
from duly import Duly
from duly.publishing import Publishing
from duly.testing import ManualClock, drain
from publishing.servers import Meta, serving

AT = datetime(2026, 6, 1, 10, 0, tzinfo=UTC)
POST = {"caption": "Plums", "assets": [{"url": "https://example.org/plums.jpg"}], "ig_first_comment": "First!"}


@pytest.fixture
def meta() -> Iterator[Meta]:
    with serving(Meta()) as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(AT)


@pytest.fixture
def room(db_url: str, clock: ManualClock, meta: Meta) -> Iterator[Publishing]:
    app = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL")
    app.open()
    yield instagram(app, meta.graph)
    app.close()


def apart(url: str, step: str, graph: str) -> int:
    """Publish what is ready, in a process of its own. Returns how it ended."""
    return nursery.ended(program.die, url, AT.isoformat(), step, graph)


@pytest.mark.parametrize("step", BEHIND)
def test_one_post_and_one_comment_come_of_it_whenever_the_worker_is_killed(
    room: Publishing, db_url: str, meta: Meta, clock: ManualClock, step: str
) -> None:
    # T002-c, T002-i, B055, B065; killed after the claim, after the container, after the publish
    ident = room.enqueue("ig", POST, key="k").job.id
    assert apart(db_url, step, meta.graph) == -signal.SIGKILL
    for _ in range(3):
        clock.advance(4000)
        drain(room._app)  # type: ignore[arg-type]
        room.keep()
    seen = room.get(ident)
    assert (seen.status, len(meta.media)) == ("completed", 1), seen.error
    if seen.remote_id is None:
        # the container says that it was published, and not under which id: a success, and nothing to comment on (T002-i)
        assert step == "published"
        assert seen.children == ()
        return
    [child] = seen.children
    assert (seen.remote_id, room.get(child).status) == (meta.media[0].id, "completed"), room.get(child).error
    assert [c["text"] for c in meta.media[0].comments] == ["First!"]
    assert seen.attempts == (1 if step.startswith("child") or step == "commented" else 2)


def test_a_process_that_is_not_killed_publishes(room: Publishing, db_url: str, meta: Meta) -> None:
    ident = room.enqueue("ig", POST).job.id
    assert apart(db_url, "none", meta.graph) == 0
    assert (room.get(ident).status, len(meta.media), len(meta.media[0].comments)) == ("completed", 1, 1)


def test_a_limit_of_one_holds_across_processes(db_url: str, tmp_path: Path) -> None:
    # T002-f, R002-9
    app, journal = Duly(db_url), tmp_path / "journal"
    room = Publishing(app)
    room.process("slow")(print)
    ids = [room.enqueue("slow", {"caption": str(n)}).job.id for n in range(30)]
    app.queues.set("slow", limit=1)
    journal.touch()
    workers = [
        threading.Thread(target=lambda: codes.append(nursery.ended(program.serve, db_url, str(journal))))
        for _ in range(2)
    ]
    codes: list[int] = []
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert codes == [0, 0]
    lines = [line for line in journal.read_text().splitlines() if line != "ready"]
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    assert all(begin.replace("begin", "end") == end for begin, end in pairs)  # never two at once
    assert [begin for begin, _ in pairs] == [f"begin {n}" for n in range(30)]
    assert {(room.get(i).status, room.get(i).attempts) for i in ids} == {("completed", 1)}
    app.close()
