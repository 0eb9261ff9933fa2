"""Sessions by hand: a model that answers what a test says, and what happens to sessions and the slot, by the controller alone.

``Room`` makes automations, executions and chats. ``Model`` is a provider: it is given answers, refusals, or functions
that answer, one for each question, and keeps the questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import select

from duly import Duly
from duly.audit.tables import audit_log
from duly.automations import Automations
from duly.automations.automation import read_definition
from duly.automations.controller import Pass
from duly.automations.protocol import FINISH
from duly.automations.providers.base import Answer, Message, Prices, Question, Role, ToolCall, Usage
from duly.automations.records import Call, Round
from duly.automations.session import ExecutionTrigger, Session, SessionEndReason, SessionType, Status
from duly.kernel.events import Event
from duly.testing import drain


def call(name: str, /, *, ident: str = "", **arguments: Any) -> ToolCall:
    return ToolCall(ident or f"id-{name}", name, arguments)


def says(text: str = "", *calls: ToolCall, tokens: tuple[int, int] = (100, 10), **more: Any) -> Answer:
    return Answer(text, calls, Usage(*tokens), **more)


def finish(summary: str = "all done") -> Answer:
    return says("", call(FINISH, completed=True, summary=summary))


class Model:
    """A provider that answers what it was given, in order."""

    name, prices = "model", Prices(input=2, output=10)

    def __init__(self, *answers: Any) -> None:
        self.answers: list[Any] = list(answers)
        self.questions: list[Question] = []
        self.is_there, self.looks = True, 0

    async def is_reachable(self) -> bool:
        self.looks += 1
        return self.is_there

    async def ask(self, question: Question, say: Callable[[str], None]) -> Answer:
        self.questions.append(question)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        found: Answer = await answer(question, say) if callable(answer) else answer
        return found

    async def check(self) -> str:
        return "a model of a test"


class Room:
    """One application with a slot."""

    def __init__(self, app: Duly, *answers: Any) -> None:
        self.app, self.db = app, app.db
        self.model = Model(*answers)
        self.door = Automations(app)
        self.door.use("model", self.model)
        self.controller, self.tools = self.door.controller, self.door.tools
        self.store, self.records = self.controller.store, self.controller.records
        self.events: list[Event] = []
        app.listen(self.events.append)
        app.open()

    # ------------------------------------------------------------------ acting

    def start(self, *, name: str = "briefing", prompt: str = "Do it.", **fields: Any) -> int:
        """Make an automation and execute it. Returns the session."""
        d = read_definition({"name": name, "prompt": prompt, "provider": "model", **fields})

        def act(c: Any) -> tuple[int, Pass]:
            now, done, tenant = self.db.present(c), Pass(), self.app.settings.tenant
            ident = self.controller.definitions.add(c, tenant, d, True, now, "test")
            made = self.controller.definitions.get(c, ident)
            assert made is not None
            session = self.store.add(
                c, Status.QUEUED, tenant=tenant, slot=d.slot, type=SessionType.AUTOMATION, now=now, title=name, trigger=ExecutionTrigger.MANUAL,
                automation_id=ident, scheduled_at=now,
            )  # fmt: skip
            self.records.copy_seed(c, made.seed_session_id, session, now)
            self.controller.request_session_control(c, session, done)
            return session, done

        return self._act(act)

    def chat(self, text: str, *, tools: Sequence[str] = ()) -> int:
        """Begin a chat in which something is said. Returns the session."""

        def act(c: Any) -> tuple[int, Pass]:
            now, done = self.db.present(c), Pass()
            session = self.store.add(
                c, Status.QUEUED, tenant=self.app.settings.tenant, slot="default", type=SessionType.CHAT, now=now, title="chat",
                options={"provider": "model", "tools": list(tools)},
            )  # fmt: skip
            self.records.say(c, session, [Message(Role.USER, text)], now)
            self.controller.request_session_control(c, session, done)
            return session, done

        return self._act(act)

    def say(self, session: int, text: str) -> None:
        def act(c: Any) -> tuple[None, Pass]:
            done = Pass()
            found = self.controller.lock(c, session)
            self.records.say(c, session, [Message(Role.USER, text)], self.db.present(c))
            self.controller.ensure_run(c, found, done)
            return None, done

        self._act(act)

    def stop(self, session: int, reason: SessionEndReason = SessionEndReason.CANCELLED) -> None:
        """What ends the activation of a session."""

        def act(c: Any) -> tuple[None, Pass]:
            done = Pass()
            found = self.controller.lock(c, session)
            self.controller.close_active_session(c, found, reason, "somebody wanted it", done, "test")
            return None, done

        self._act(act)

    def pause(self, session: int) -> None:
        self.door.pause(session)

    def resume(self, session: int) -> None:
        self.door.resume(session)

    def tick(self) -> None:
        self.controller.tick()

    def drain(self) -> None:
        drain(self.app)

    def _act(self, act: Callable[[Any], tuple[Any, Pass]]) -> Any:
        answer, done = self.db.write(act)
        self.controller.announce(done)
        return answer

    # ------------------------------------------------------------------ looking

    def session(self, ident: int) -> Session:
        found = self.db.read(lambda c: self.store.session(c, ident))
        assert found is not None
        return found

    def messages(self, session: int) -> list[Message]:
        return self.db.read(lambda c: self.records.messages(c, session))

    def results(self, session: int) -> list[str]:
        """What the model was told of its calls."""
        return [message.text for message in self.messages(session) if message.role is Role.TOOL]

    def calls(self, session: int) -> list[Call]:
        return self.db.read(lambda c: self.records.calls(c, session))

    def rounds(self, session: int) -> list[Round]:
        return self.db.read(lambda c: self.records.rounds(c, session))

    def told(self, event: str) -> list[dict[str, Any]]:
        return [dict(one.facts) for one in self.events if one.name == event]

    def trail(self, action: str) -> list[dict[str, Any]]:
        query = select(audit_log.c.meta).where(audit_log.c.action == action).order_by(audit_log.c.id)
        return self.db.read(lambda c: [dict(row.meta) for row in c.execute(query)])
