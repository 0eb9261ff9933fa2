"""What it costs to do a thing once, and to hand a message over once: Duly and the bare statements in one process, turn about.

As in `pairs`, answers are seconds per side. A function that does nothing is called under `@idempotent_task` with a fresh key each
time (it is allowed) and with a key that is done (it is a duplicate); the bare side writes and updates one small row, or one key of
Valkey, each in a commit or command of its own, as a hand-made check would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from bench import marks
from bench.pairs import BARE_PG, BARE_SQLITE, TURN, _raw_pg, _raw_sqlite, _timed

#: Messages taken and marked at once by the bare relay.
BATCH = 500


def _once(n: int, store: Any, bare: Callable[[int], object]) -> dict[str, Any]:
    from duly.idempotency import idempotent_task

    @idempotent_task(store=store)
    def noop(i: int) -> None: ...

    answer: dict[str, Any] = {}
    for i in range(-TURN, 0):
        bare(i)
        noop(i)
    for k in range(0, n, TURN):
        with _timed(answer, "raw"):
            for i in range(k, k + TURN):
                bare(i)
        with _timed(answer, "fresh"):
            for i in range(k, k + TURN):
                noop(i)
        with _timed(answer, "again"):
            for i in range(k, k + TURN):
                noop(i)
    return answer


def once_memory(n: int) -> dict[str, Any]:
    from duly.idempotency import MemoryStore

    kept: dict[int, str] = {}
    return _once(n, MemoryStore(), lambda i: kept.setdefault(i, "done"))


def once_pg(n: int) -> dict[str, Any]:
    from duly import Duly

    c = _raw_pg()
    c.execute(BARE_PG)
    insert = "insert into bare(queue, task, due_at, input) values('default', 'noop', now(), %s::jsonb) returning id"

    def bare(i: int) -> None:
        (ident,) = c.execute(insert, (f'{{"i":{i}}}',), prepare=True).fetchone()
        c.execute("update bare set task = 'done' where id = %s", (ident,), prepare=True)

    app = Duly(marks.TARGET)
    app.migrate()
    return _once(n, app.reservations, bare)


def once_sqlite(n: int) -> dict[str, Any]:
    from duly import Duly

    c = _raw_sqlite()
    c.execute(BARE_SQLITE)
    insert = "insert into bare(queue, task, due_at, input) values('default', 'noop', ?, ?)"

    def bare(i: int) -> None:
        ident = c.execute(insert, (time.time_ns() // 1000, f'{{"i":{i}}}')).lastrowid
        c.execute("update bare set task = 'done' where id = ?", (ident,))

    app = Duly(marks.TARGET)
    app.migrate()
    return _once(n, app.reservations, bare)


def once_valkey(n: int) -> dict[str, Any]:
    import redis

    from duly.idempotency import RedisStore

    client = redis.Redis.from_url(marks.OPTIONS["valkey"])

    def bare(i: int) -> None:
        client.set(f"bare:{i}", "in_progress", nx=True, px=360_000)
        client.set(f"bare:{i}", "done", px=86_400_000)

    return _once(n, RedisStore(marks.OPTIONS["valkey"]), bare)


# ------------------------------------------------------------------ the relay of the outbox


class _Nowhere:
    """A transport that is as quick as a function call."""

    def send(self, message: Any) -> None: ...


def relay_pg(n: int) -> dict[str, Any]:
    """Messages published in transactions of 100, relayed to nowhere; then the same rows taken and marked by bare statements."""
    return _relay(n)


def relay_sqlite(n: int) -> dict[str, Any]:
    return _relay(n)


def _relay(n: int) -> dict[str, Any]:
    from sqlalchemy import text

    from duly import Duly
    from duly.outbox import Outbox

    app = Duly(marks.TARGET)
    app.migrate()
    box = Outbox(app, transports={"nowhere": _Nowhere()})
    answer: dict[str, Any] = {}
    with _timed(answer, "publish"):
        for k in range(0, n, 100):
            with app.db.session_engine.begin() as connection:
                box.publish_many(connection, "nowhere:x", [{"i": i} for i in range(k, k + 100)])
    relay = box.relay()
    thread = threading.Thread(target=relay.run, daemon=True)
    with _timed(answer, "duly"):
        thread.start()
        while box.status(sent=False).pending:
            time.sleep(0.005)
    relay.stop()
    thread.join(10)
    sent = box.status().sent
    if sent != n:
        answer["error"] = f"{sent} of {n} were sent"
    with app.db.session_engine.begin() as connection:
        connection.execute(text("UPDATE outbox SET status = 'pending', sent_at = NULL"))
    claim = "SELECT id, message_id, destination, payload, headers FROM outbox WHERE status = 'pending' ORDER BY due_at, id LIMIT :n"
    if not app.db.is_sqlite:
        claim += " FOR UPDATE SKIP LOCKED"
    nowhere = _Nowhere()
    with _timed(answer, "raw"):
        while True:
            with app.db.session_engine.begin() as connection:
                rows = connection.execute(text(claim), {"n": BATCH}).all()
                for row in rows:
                    nowhere.send(row)
                if not rows:
                    break
                ids = ",".join(str(row.id) for row in rows)
                connection.execute(text(f"UPDATE outbox SET status = 'sent', attempts = 1 WHERE id IN ({ids})"))
    return answer
