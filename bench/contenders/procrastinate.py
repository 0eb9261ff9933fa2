"""procrastinate at its best here: concurrency 30, pool of 30, uvloop, log at WARNING (1, 10, 30 and 100 were tried)."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from bench import marks

CONCURRENCY = 30


def application() -> Any:
    import procrastinate

    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=marks.TARGET, min_size=4, max_size=CONCURRENCY)
    )

    @app.task(name="noop")
    async def noop(i: int) -> None:
        marks.mark()

    app.noop = noop
    return app


def prepare(n: int) -> None:
    async def go() -> None:
        app = application()
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            for k in range(0, n, 1000):
                await app.noop.batch_defer_async(*[{"i": i} for i in range(k, min(n, k + 1000))])

    asyncio.run(go())


def work() -> None:
    import uvloop

    app = application()
    logging.getLogger("procrastinate").setLevel(logging.WARNING)
    uvloop.install()
    marks.gate()

    async def go() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY)

    asyncio.run(go())


def recorded(scalar: Callable[[str], Any], after: int) -> int:
    return scalar("select count(*) from procrastinate_jobs where status='succeeded'")
