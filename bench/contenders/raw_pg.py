"""The raw limit on PostgreSQL: synchronous storage threads, handlers on the event loop, nothing else.

Every job is claimed with a lease token, its handler awaited as a task of its own, its result encoded, and settled: moved to a
history table with an audit row, one statement per batch. No retries, limits, timeouts, events or logs: a product pays for those.
"""

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from bench import marks

BATCH = 500
SLOTS = 2 * BATCH
TOKEN = 7

TABLES = """
create table jobs(id bigint generated always as identity primary key, tenant text not null default 'default', queue text not null,
  task text not null, priority smallint not null default 0, status smallint not null default 0, run_at timestamptz not null default now(),
  input jsonb not null default '{}', attempts smallint not null default 0, max_attempts smallint not null default 4, key text,
  lease_token bigint, lease_until timestamptz, worker text, created_at timestamptz not null default now(),
  started_at timestamptz) with (fillfactor=70);
create index jobs_ready on jobs(queue, priority desc, run_at, id) where status=0;
create index jobs_lease on jobs(lease_until) where status=1;
create table jobs_done(id bigint primary key, tenant text, queue text, task text, priority smallint, status smallint,
  run_at timestamptz, input jsonb, output jsonb, attempts smallint, max_attempts smallint, key text, worker text,
  created_at timestamptz, started_at timestamptz, finished_at timestamptz);
create table audit_log(id bigint generated always as identity primary key, at timestamptz not null default now(), tenant text,
  actor text, level smallint, action text, entity text, entity_id bigint, meta jsonb);
"""
CLAIM = f"""update jobs set status=1, attempts=attempts+1, lease_token={TOKEN}, lease_until=now()+interval '30 s', worker='w', started_at=now()
  where id=any(array(select p.id from unnest(%(queues)s::text[]) q(name) cross join lateral (select id from jobs
    where queue=q.name and status=0 and task=any(%(tasks)s) and run_at<=now()
    order by priority desc, run_at, id limit %(n)s for update skip locked) p limit %(n)s))
  returning id, input::text, attempts, max_attempts"""
SETTLE = f"""with o as materialized (select * from unnest(%(ids)s::bigint[], %(statuses)s::smallint[], %(outputs)s::text[]) as o(id,status,output)),
  d as (delete from jobs where id=any(%(ids)s) and status=1 and lease_token={TOKEN} returning *),
  h as (insert into jobs_done select d.id,d.tenant,d.queue,d.task,d.priority,o.status,d.run_at,d.input,o.output::jsonb,d.attempts,
          d.max_attempts,d.key,d.worker,d.created_at,d.started_at,now() from d join o using(id) returning id, tenant, task)
  insert into audit_log(tenant,actor,level,action,entity,entity_id,meta)
    select tenant,'w',1,task||'_COMPLETED','job',id,'{{}}' from h"""


def connect() -> Any:
    import psycopg

    return psycopg.connect(marks.TARGET, autocommit=True)


def prepare(n: int) -> None:
    with connect() as c:
        c.execute(TABLES)
        with c.cursor().copy("copy jobs(queue,task,input) from stdin") as copy:
            for i in range(n):
                copy.write_row(("q", "t", f'{{"i":{i}}}'))


async def handler(i: int) -> dict[str, int]:
    marks.mark()
    return {"ok": i}


class Shape:
    """The loop, the hand-over of finished jobs, and the count of free places."""

    def __init__(self) -> None:
        import orjson

        self.dumps, self.loads = orjson.dumps, orjson.loads
        self.loop = asyncio.new_event_loop()
        self.finished: queue.SimpleQueue[tuple[int, int, str]] = queue.SimpleQueue()
        self.lock, self.wake, self.free = threading.Lock(), threading.Event(), SLOTS

    async def run(self, row: tuple[Any, ...]) -> None:
        try:
            output, status = self.dumps(await handler(self.loads(row[1])["i"])).decode(), 2
        except Exception as e:
            output, status = self.dumps({"error": str(e)}).decode(), 3
        self.finished.put((row[0], status, output))

    def start(self, rows: list[tuple[Any, ...]]) -> None:
        for row in rows:
            self.loop.create_task(self.run(row))

    def gathered(self, *, wait: bool, timeout: float | None = None) -> list[tuple[int, int, str]]:
        """What finished while the last statement ran; `wait` for at least one."""
        batch = []
        try:
            if wait:
                batch.append(self.finished.get(timeout=timeout))
            while len(batch) < BATCH:
                batch.append(self.finished.get_nowait())
        except queue.Empty:
            pass
        return batch

    def take(self, n: int) -> None:
        with self.lock:
            self.free -= n

    def release(self, n: int) -> None:
        with self.lock:
            self.free += n
        self.wake.set()

    def forever(self, *threads: Callable[[], None]) -> None:
        """Run the storage threads and the loop until the process is killed; a failure of either ends it."""

        def guarded(body: Callable[[], None]) -> None:
            try:
                body()
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)

        for body in threads:
            threading.Thread(target=guarded, args=(body,), daemon=True).start()
        self.loop.run_forever()


def work() -> None:
    shape = Shape()
    claiming, settling = connect(), connect()
    marks.gate()

    def claimer() -> None:
        cursor = claiming.cursor(binary=True)
        while True:
            n = min(BATCH, shape.free)
            if n < BATCH // 4:
                shape.wake.wait(0.05)
                shape.wake.clear()
                continue
            rows = cursor.execute(CLAIM, {"queues": ["q"], "tasks": ["t"], "n": n}, prepare=True).fetchall()
            if not rows:
                time.sleep(0.005)
                continue
            shape.take(len(rows))
            shape.loop.call_soon_threadsafe(shape.start, rows)

    def settler() -> None:
        cursor = settling.cursor(binary=True)
        while True:
            ids, statuses, outputs = (list(x) for x in zip(*shape.gathered(wait=True), strict=True))
            cursor.execute(SETTLE, {"ids": ids, "statuses": statuses, "outputs": outputs}, prepare=True)
            shape.release(len(ids))

    shape.forever(claimer, settler)


def listen() -> None:
    """The floor of the pick-up time: LISTEN wakes a claim, the claimed job starts on the event loop."""
    shape = Shape()
    listening, claiming = connect(), connect()
    listening.execute("listen jobs")

    def start(rows: list[tuple[Any, ...]]) -> None:
        for row in rows:
            marks.probe(shape.loads(row[1])["t"])

    def listener() -> None:
        cursor = claiming.cursor(binary=True)
        cursor.execute(CLAIM, {"queues": ["q"], "tasks": ["t"], "n": 10}, prepare=True)
        for _ in listening.notifies():
            rows = cursor.execute(CLAIM, {"queues": ["q"], "tasks": ["t"], "n": 10}, prepare=True).fetchall()
            shape.loop.call_soon_threadsafe(start, rows)

    marks.gate()
    shape.forever(listener)


def recorded(scalar: Callable[[str], Any], after: int) -> int:
    return scalar(f"select count(*) from jobs_done where id > {after}")
