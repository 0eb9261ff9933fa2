"""``Automations(app)``: what programs and people do with automations, sessions and the slot.

Making one defines the task that runs sessions. Nothing here asks an AI: workers of the queue ``automations`` do (``executor.py``). Whatever
changes what could be due is followed by a pass over the slots (R001-14). Its parts: ``editing.py``, ``executing.py``, ``looking.py``,
``equipment.py``, ``duty.py``; what they stand on: ``ground.py``. Source: R001, T001.
"""

from __future__ import annotations

from typing import Any

from duly.automations.controller import AI_SESSION, QUEUE
from duly.automations.duty import Duty
from duly.automations.executing import WANTED, Requested
from duly.automations.executor import Running, run_session
from duly.automations.host import Host
from duly.automations.looking import Looking
from duly.jobs.run import INJECT, Context
from duly.kernel.owned import OnePer

__all__ = ["WANTED", "Automations", "Requested"]

#: The room of each application, which holds it (``join``).
_made = OnePer["Automations"]()


class Automations(Looking, Duty):
    """The automations of an application. An application has one: ``Automations(app)`` makes it, and later gives the same one."""

    def __new__(cls, app: Host) -> Automations:
        return _made.get(app) or super().__new__(cls)

    def __init__(self, app: Host) -> None:
        if _made.get(app) is self:
            return
        super().__init__(app)

        async def ai_session(session: int, activation: str, reason: str = "", context: Context = INJECT) -> dict[str, Any]:  # fmt: skip
            running = Running(app, self.controller, self.tools, self.provider, self.cost)
            return await run_session(running, context, session, activation, reason)

        app.task(AI_SESSION, queue=QUEUE, max_attempts=1)(ai_session)
        app.join(self)
        app.events.listen(self._hear)
        _made.keep(app, self)

    @classmethod
    def of(cls, app: Host) -> Automations:
        """The automations of an application, as ``Automations(app)``."""
        return cls(app)
