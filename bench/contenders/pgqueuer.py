"""pgqueuer on asyncpg. Default: batch 10 on one connection. Best: batch 500 and uvloop (50 to 1000 were tried)."""

import asyncio
from collections.abc import Callable
from typing import Any

from bench import marks

CHUNK = 1000


def prepare(n: int) -> None:
    import asyncpg
    from pgqueuer import AsyncpgDriver, Queries

    async def go() -> None:
        c = await asyncpg.connect(marks.TARGET)
        queries = Queries(AsyncpgDriver(c))
        await queries.install()
        for k in range(0, n, CHUNK):
            m = min(n, k + CHUNK) - k
            await queries.enqueue(["noop"] * m, [b'{"i":%d}' % i for i in range(k, k + m)], [0] * m)
        await c.close()

    asyncio.run(go())


def work() -> None:
    import asyncpg
    from pgqueuer import AsyncpgDriver, PgQueuer

    if marks.OPTIONS.get("uvloop"):
        import uvloop

        uvloop.install()
    marks.gate()

    async def go() -> None:
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(marks.TARGET)))

        @queuer.entrypoint("noop")
        async def noop(job: Any) -> None:
            marks.mark()

        batch = {"batch_size": marks.OPTIONS["batch"]} if "batch" in marks.OPTIONS else {}
        await queuer.qm.run(**batch)

    asyncio.run(go())


def recorded(scalar: Callable[[str], Any], after: int) -> int:
    return scalar("select count(*) from pgqueuer_log where status='successful'")
