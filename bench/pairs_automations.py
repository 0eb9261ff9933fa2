"""Sessions of automations, one after the other in their slot, and passes over many automations. Answers are seconds per side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench import marks
from bench.pairs import _timed

#: Automations that a pass looks at, none of them due, and passes that are timed.
MANY, PASSES = 1_000, 20


def slot_pg(n: int) -> dict[str, Any]:
    """``n`` sessions of one question each, of an AI that answers at once; then passes over a thousand automations of which none is due."""
    return _slot(n)


def slot_sqlite(n: int) -> dict[str, Any]:
    return _slot(n)


def _slot(n: int) -> dict[str, Any]:
    from duly import Daily, Duly
    from duly.automations import Answer, Automations, Question, ToolCall

    class AtOnce:
        name, prices = "at once", None

        async def is_reachable(self) -> bool:
            return True

        async def ask(self, question: Question, say: Callable[[str], None]) -> Answer:
            return Answer("", (ToolCall("1", "finish", {"completed": True}),))

        async def check(self) -> str:
            return "answers at once"

    app = Duly(marks.TARGET)
    app.migrate()
    room, answer = Automations(app), dict[str, Any]()
    room.use("at once", AtOnce())
    ident = room.create({"name": "one", "prompt": "Go.", "provider": "at once"}).id

    def drain(count: int) -> None:
        for _ in range(count):
            room.run(ident)
        with _timed(answer, "sessions"):
            app.worker().run(until_idle=True)

    drain(20)  # warm
    answer.clear()
    drain(n)
    ended = room.sessions(n + 100, automation=ident, end_reason="COMPLETED")
    assert len(ended) == n + 20, len(ended)

    for number in range(MANY):
        schedule = Daily("03:00", tz="Europe/Paris").to_json()
        room.create({"name": f"a{number}", "prompt": "Go.", "schedule": schedule}, enabled=False)
    from sqlalchemy import update

    from duly.automations.tables import automations

    app.db.write(lambda c: c.execute(update(automations).values(is_enabled=True)))
    room.tick()
    with _timed(answer, "passes"):
        for _ in range(PASSES):
            room.tick()
    app.close()
    return answer
