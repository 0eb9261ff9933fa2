"""What the tests hold in their hands: an AI that says what it is told to, and looks at sessions, slots and the trail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from duly import Duly
from duly.automations import Automations
from duly.automations.protocol import FINISH
from duly.automations.providers.base import Answer, Prices, Question, Role, ToolCall, Usage
from duly.automations.session import Session
from duly.kernel.events import Event
from duly.kernel.verdict import Kind, refusal
from duly.testing import ManualClock, drain

USED = Usage(100, 20)


def done(summary: str = "") -> Answer:
    """All is done."""
    return Answer("", (ToolCall("end", FINISH, {"completed": True, "summary": summary}),), USED)


def says(text: str) -> Answer:
    """Words, and nothing else."""
    return Answer(text, usage=USED)


def calls(tool: str, **arguments: Any) -> Answer:
    """One call."""
    return Answer("", (ToolCall(f"call-{tool}", tool, arguments),), USED)


class Ai:
    """Answers from a list, then ``done`` for ever. An item may be an answer, an exception, or a function of the question."""

    name = "ai"

    def __init__(self, *script: Any) -> None:
        self.script: list[Any] = [*script]
        self.prices: Prices | None = Prices(100.0, 500.0)
        self.network = True
        self.questions: list[Question] = []

    async def is_reachable(self) -> bool:
        return self.network

    async def ask(self, question: Question, say: Callable[[str], None]) -> Answer:
        self.questions.append(question)
        item = self.script.pop(0) if self.script else done()
        if callable(item):
            item = item(question)
        if isinstance(item, BaseException):
            raise item
        assert isinstance(item, Answer)
        if item.text:
            say(item.text)
        return item

    async def check(self) -> str:
        return "says what it is told to"

    def asked(self) -> list[list[tuple[str, str]]]:
        """What each question held, without what the room says first."""
        return [[(m.role.value, m.text) for m in q.messages if m.role is not Role.SYSTEM] for q in self.questions]


def lost() -> BaseException:
    """It was asked, and no answer came."""
    return refusal(Kind.UNKNOWN, "no answer came")


class Stage:
    """Automations whose time the test moves, and one AI."""

    def __init__(self, app: Duly, clock: ManualClock, ai: Ai) -> None:
        self.app, self.clock, self.ai = app, clock, ai
        self.room = Automations(app)
        self.room.use("ai", ai)
        self.events: list[Event] = []
        app.listen(self.events.append)

    def automation(self, name: str, *times: str, **fields: Any) -> int:
        """An automation that runs daily at times of UTC."""
        schedule = {"kind": "daily", "at": list(times), "tz": "UTC"} if times else None
        made = self.room.create(
            {"name": name, "prompt": f"Do {name}.", "schedule": schedule, "provider": "ai", **fields}
        )
        return made.id

    def at(self, hour: int, minute: int = 0, second: int = 0) -> None:
        """It is so late now, of the present day."""
        wanted = self.clock.now().replace(hour=hour, minute=minute, second=second, microsecond=0)
        assert wanted >= self.clock.now()
        self.clock.set(wanted)

    def pass_(self, **span: float) -> None:
        self.clock.advance(timedelta(**span))

    def tick(self) -> None:
        """A pass, and nothing runs."""
        self.room.tick()

    def work(self) -> None:
        """Let workers do what is ready now."""
        drain(self.app)

    def active(self, slot: str = "default") -> Session | None:
        """Who has the slot."""
        found = self.room.sessions(status=["active"], slot=slot)
        assert len(found) < 2, "two sessions have one slot"  # R001-1
        return found[0] if found else None

    def session(self, ident: int) -> Session:
        return self.room.session(ident)

    def of(self, automation: int) -> list[Session]:
        """The sessions of an automation, the oldest first."""
        return sorted(self.room.sessions(500, automation=automation), key=lambda s: s.id)

    def ends(self, automation: int) -> list[str | None]:
        return [None if s.end_reason is None else s.end_reason.value for s in self.of(automation)]

    def said(self, ident: int) -> list[tuple[str, str]]:
        return [(one.message.role.value, one.message.text) for one in self.room.transcript(ident)]

    def kill(self, ident: int) -> None:
        """The worker that runs a session is gone: what its job's rescue leaves behind."""
        job = self.session(ident).job_id
        assert job is not None
        from duly.jobs.job import Status

        def lose(c: Any) -> None:
            self.app.engine.store.archive(c, [job], Status.FAILED, "test", "JOB_LOST", "error")

        self.app.db.write(lose)

    def told(self, name: str) -> list[Mapping[str, Any]]:
        return [event.facts for event in self.events if event.name == name]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.app.db.read(lambda c: [tuple(row) for row in c.execute(text(sql))])

    def trail(self, ident: int) -> list[str]:
        return [
            row[0]
            for row in self.rows(
                f"SELECT action FROM audit_log WHERE entity = 'session' AND entity_id = '{ident}' ORDER BY id"
            )
        ]
