"""huey on SQLite, one thread, results off, log at ERROR. `fsync: false` is huey's fastest setting and not durable."""

import logging
from collections.abc import Callable
from typing import Any

from bench import marks


def queue(*, fsync: bool) -> tuple[Any, Any]:
    from huey import SqliteHuey

    # huey's fsync: True is synchronous=FULL, False is synchronous=OFF
    huey = SqliteHuey("bench", filename=marks.TARGET.removeprefix("sqlite:///"), results=False, fsync=fsync)

    @huey.task(name="noop")
    def noop(i: int) -> None:
        marks.mark()

    return huey, noop


def prepare(n: int) -> None:
    _, noop = queue(fsync=False)  # no bulk call; filling is not measured
    for i in range(n):
        noop(i)


def work() -> None:
    huey, _ = queue(fsync=marks.OPTIONS["fsync"])
    logging.getLogger("huey").setLevel(logging.ERROR)
    marks.gate()
    huey.create_consumer(workers=1, worker_type="thread").run()


def recorded(scalar: Callable[[str], Any], after: int) -> int:
    """huey keeps no history: a job leaves its table when it is taken, so an empty table means that none is left."""
    return 0 if scalar("select exists(select 1 from task)") else 10**9
