"""Duly with its default settings; `BENCH_OPTIONS` switches single features on."""

from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from typing import Any

from bench import marks

#: Rows per bulk enqueue while a queue is filled (not measured).
CHUNK = 5000


def application() -> Any:
    from duly import Duly

    app = Duly(marks.TARGET)
    sync = marks.OPTIONS.get("sync")

    if sync:

        @app.task("noop")
        def noop(i: int) -> None:
            marks.mark()
    else:

        @app.task("noop")
        async def noop(i: int) -> None:
            marks.mark()

    @app.task("probe")
    async def probe(sent_at: float) -> None:
        marks.probe(sent_at)

    app.bench = {"noop": noop, "probe": probe}
    return app


def task(app: Any, name: str) -> Any:
    return app.bench[name]


def migrate() -> None:
    application().migrate()


def prepare(n: int) -> None:
    app = application()
    app.migrate()
    queue = {k: v for k, v in marks.OPTIONS.items() if k in ("limit", "fair", "rate")}
    if queue:
        app.queues.set("default", **queue)
    fill(n)


def fill(n: int) -> None:
    app = application()
    noop = task(app, "noop")
    if marks.OPTIONS.get("key"):
        _fill_keyed(noop, n)
        return
    for which, count in _shares(n):
        call = noop.using(**which)
        numbers = iter(range(count))
        while chunk := [{"i": i} for i in islice(numbers, CHUNK)]:
            call.enqueue_many(chunk)


def _shares(n: int) -> list[tuple[dict[str, str], int]]:
    """Options and number of jobs: all alike, or spread over tenants one tenant after the other."""
    tenants = marks.OPTIONS.get("tenants")
    return [({"tenant": f"t{t}"}, n // tenants + (t < n % tenants)) for t in range(tenants)] if tenants else [({}, n)]


def _fill_keyed(noop: Any, n: int) -> None:
    """A key belongs to one job, so these are queued one by one, many to a transaction of ours."""
    from sqlalchemy import create_engine

    engine = create_engine(marks.TARGET.replace("postgresql://", "postgresql+psycopg://"))
    for k in range(0, n, CHUNK):
        with engine.begin() as connection:
            for i in range(k, min(n, k + CHUNK)):
                noop.using(key=f"order-{i}", session=connection).enqueue(i)
    engine.dispose()


def future(n: int) -> None:
    """Queue jobs that fall due from tomorrow on."""
    noop = task(application(), "noop")
    for k in range(0, n, CHUNK):
        noop.using(run_in=timedelta(days=1, seconds=k)).enqueue_many([{"i": i} for i in range(k, min(n, k + CHUNK))])


def work() -> None:
    app = application()
    marks.gate()
    app.worker().run()


def recorded(scalar: Callable[[str], Any], after: int) -> int:
    return scalar(f"select count(*) from jobs_done where id > {after}")
