"""What the processes of the crash tests run: a worker whose model asks for three kinds of effects, and that has places to die."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from crash.program import Here, Plan, enter_process, write
from duly import INJECT, Duly
from duly.automations import Automations, calls
from duly.automations.fence import Fence
from duly.automations.protocol import FINISH
from duly.automations.providers.base import Answer, Question, Role, ToolCall, Usage
from keeper import until

TABLE = "CREATE TABLE effects (name TEXT NOT NULL)"
EFFECT = "INSERT INTO effects (name) VALUES (:name)"
AWAITED = "SELECT 1 FROM job_waits"
#: Beside these, every commit of a round and the moment before it: ``written`` and ``committed``, by their number.
STEPS = ("model.asked", "tool.effect", "session.effect", "session.committed", "task.effect", "end.committed")
TOOLS = ["note", "book", "FILE"]


class Model:
    """Answers by what it is told: a question that is asked again gets the same answer."""

    name, prices = "model", None

    async def is_reachable(self) -> bool:
        return True

    async def ask(self, question: Question, say: Callable[[str], None]) -> Answer:
        told = hashlib.sha256(repr(question.messages).encode()).hexdigest()
        round = sum(message.role is Role.ASSISTANT for message in question.messages)
        write("asked", round=round, told=told)
        Here.die_at("model.asked")
        if round == 0:
            return Answer("I do it.", tuple(ToolCall(name, name, {}) for name in TOOLS), Usage(10, 5))
        return Answer("", (ToolCall("end", FINISH, {"completed": True, "summary": "done"}),), Usage(20, 5))

    async def check(self) -> str:
        return "a model of a test"


def define(app: Duly) -> Automations:
    automations = Automations(app)
    automations.use("model", Model())

    async def note() -> str:
        write("noted")
        Here.die_at("tool.effect")
        return "noted"

    def book(session: Session) -> str:
        session.execute(text(EFFECT), {"name": "book"})
        Here.die_at("session.effect")
        return "booked"

    def file(session: Session = INJECT) -> str:
        # the session has put its job down by then, whoever was quicker
        assert until(lambda: Here.app.db.read(lambda c: c.execute(text(AWAITED)).first()), 20)
        session.execute(text(EFFECT), {"name": "file"})
        Here.die_at("task.effect")
        return "filed"

    automations.tool(note)
    automations.tool(book)
    app.task("FILE", queue="files", max_attempts=5)(file)
    return automations


def run_worker(plan: Plan) -> None:
    """Work until somebody ends it, or until the place to die is reached."""
    enter_process(plan)
    define(Here.app)
    die = Here.die_at

    def around(owner: Any, name: str, after: str) -> None:
        real = getattr(owner, name)

        @functools.wraps(real)
        async def passed(*args: Any, **kwargs: Any) -> Any:
            answer = await real(*args, **kwargs)
            die(after)
            return answer

        setattr(owner, name, passed)

    real = Fence.write

    async def write_and_die(self: Fence, act: Callable[..., Any], **kwargs: Any) -> Any:
        def acted(*args: Any) -> Any:
            answer = act(*args)
            die("written")
            return answer

        answer = await real(self, acted, **kwargs)
        die("committed")
        return answer

    Fence.write = write_and_die  # type: ignore[method-assign, assignment]
    around(Fence, "end", "end.committed")
    around(calls, "with_session", "session.committed")
    Here.app.worker(plan.queues, name=plan.name).run(until_idle=plan.until_idle)
