"""Posts through the publishing room, beside as many jobs that do nothing, in one process. Answers are seconds per side."""

from __future__ import annotations

from typing import Any, NamedTuple

from bench import marks
from bench.pairs import _timed


class _Post(NamedTuple):
    channel: str
    key: str
    payload: dict[str, Any]
    run_at: Any = None
    place: str = "here"


def posts_pg(n: int) -> dict[str, Any]:
    """``n`` jobs of an empty handler, then ``n`` posts of a channel without a limit whose function does nothing; one worker each."""
    return _posts(n)


def posts_sqlite(n: int) -> dict[str, Any]:
    return _posts(n)


def _posts(n: int) -> dict[str, Any]:
    from duly import Duly
    from duly.publishing import Publishing, Run

    app = Duly(marks.TARGET)
    app.migrate()
    room, answer = Publishing(app), dict[str, Any]()

    @app.task("nothing", queue="jobs")
    async def nothing() -> None: ...

    @room.process("posts", limit=None)
    async def posts(run: Run) -> None: ...

    def fill(first: int, count: int) -> None:
        for start in range(first, first + count, 500):
            some = range(start, min(start + 500, first + count))
            nothing.enqueue_many([{}] * len(some))
            room.enqueue_plan([_Post("posts", f"k{i}", {"caption": "Plums"}) for i in some])

    def drain(queue: str) -> None:
        tally = app.worker({queue: 20}).run(until_idle=True)
        assert tally.failed == 0

    fill(0, 100)
    for queue in ("jobs", "posts"):
        drain(queue)  # warm
    fill(100, n)
    for queue in ("jobs", "posts"):
        with _timed(answer, queue):
            drain(queue)
    assert app.jobs.count() == 2 * (n + 100)
    return answer
