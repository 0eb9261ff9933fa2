"""oban (the Python port) at its best here: queue limit 1000 and uvloop (50 to 1000 were tried)."""

import asyncio
from collections.abc import Callable
from typing import Any

from bench import marks

LIMIT = 1000


def task() -> Any:
    from oban import job

    @job(queue="default")
    async def noop(i: int) -> None:
        marks.mark()

    return noop


def prepare(n: int) -> None:
    async def go() -> None:
        from oban import Oban
        from oban.schema import install

        pool = await Oban.create_pool(marks.TARGET)
        await install(pool)
        noop = task()
        async with Oban(pool=pool) as oban:
            for k in range(0, n, 1000):
                await oban.enqueue_many([noop.new(i) for i in range(k, min(n, k + 1000))])
        await pool.close()

    asyncio.run(go())


def work() -> None:
    import uvloop
    from oban import Oban

    task()
    uvloop.install()
    marks.gate()

    async def go() -> None:
        pool = await Oban.create_pool(marks.TARGET)
        async with Oban(pool=pool, queues={"default": LIMIT}):
            await asyncio.sleep(86400)

    asyncio.run(go())


def recorded(scalar: Callable[[str], Any], after: int) -> int:
    return scalar("select count(*) from oban_jobs where state='completed'")
