"""The raw limit on SQLite at synchronous=FULL: one storage thread settles a batch and claims the next in one transaction."""

import sqlite3
import time
from collections.abc import Callable
from typing import Any

from bench import marks
from bench.contenders.raw_pg import BATCH, TOKEN, Shape

TABLES = """
create table jobs(id integer primary key autoincrement, tenant text default 'default', queue text, task text, priority int default 0,
  status int default 0, run_at int, input text, attempts int default 0, max_attempts int default 4, key text, lease_token int,
  lease_until int, worker text, created_at int, started_at int);
create index jobs_ready on jobs(queue, priority desc, run_at, id) where status=0;
create index jobs_lease on jobs(lease_until) where status=1;
create table jobs_done(id integer primary key, tenant text, queue text, task text, priority int, status int, run_at int, input text,
  output text, attempts int, max_attempts int, key text, worker text, created_at int, started_at int, finished_at int);
create table audit_log(id integer primary key autoincrement, at int, tenant text, actor text, level int, action text, entity text,
  entity_id int, meta text);
"""
HELD = f"status=1 and lease_token={TOKEN}"
MOVE = f"""insert into jobs_done select j.id,j.tenant,j.queue,j.task,j.priority,r.value->>1,j.run_at,j.input,r.value->>2,j.attempts,
  j.max_attempts,j.key,j.worker,j.created_at,j.started_at,? from json_each(?) r join jobs j on j.id=r.value->>0
  where j.status=1 and j.lease_token={TOKEN}"""
AUDIT = f"""insert into audit_log(at,tenant,actor,level,action,entity,entity_id,meta) select ?,tenant,'w',1,task||'_COMPLETED','job',id,'{{}}'
  from jobs where id in (select value from json_each(?)) and {HELD}"""
DELETE = f"delete from jobs where id in (select value from json_each(?)) and {HELD}"
CLAIM = f"""update jobs set status=1,attempts=attempts+1,lease_token={TOKEN},lease_until=?,worker='w',started_at=? where id in
  (select id from jobs where status=0 and queue='q' and run_at<=? order by priority desc,run_at,id limit ?)
  returning id,input,attempts,max_attempts"""


def path() -> str:
    return marks.TARGET.removeprefix("sqlite:///")


def connect() -> sqlite3.Connection:
    c = sqlite3.connect(path(), isolation_level=None, check_same_thread=False, timeout=10)
    c.execute("pragma journal_mode=wal")
    c.execute("pragma synchronous=full")
    return c


def microseconds() -> int:
    return time.time_ns() // 1000


def prepare(n: int) -> None:
    c, now = connect(), microseconds()
    c.executescript(TABLES)
    c.execute("begin")
    c.executemany(
        "insert into jobs(queue,task,run_at,input,created_at) values('q','t',?,?,?)",
        ((now, f'{{"i":{i}}}', now) for i in range(n)),
    )
    c.execute("commit")
    c.close()


def work() -> None:
    shape, c = Shape(), connect()
    marks.gate()

    def storage() -> None:
        while True:
            batch, now = shape.gathered(wait=shape.free < BATCH, timeout=1), microseconds()
            c.execute("begin immediate")
            if batch:
                ids, rows = shape.dumps([b[0] for b in batch]).decode(), shape.dumps(batch).decode()
                c.execute(MOVE, (now, rows))
                c.execute(AUDIT, (now, ids))
                c.execute(DELETE, (ids,))
                shape.release(len(batch))
            n = min(BATCH, shape.free)
            claimed = c.execute(CLAIM, (now + 30_000_000, now, now, n)).fetchall() if n else []
            c.execute("commit")
            if claimed:
                shape.take(len(claimed))
                shape.loop.call_soon_threadsafe(shape.start, claimed)
            elif not batch:
                time.sleep(0.005)

    shape.forever(storage)


def recorded(scalar: Callable[[str], Any], after: int) -> int:
    return scalar(f"select count(*) from jobs_done where id > {after}")
