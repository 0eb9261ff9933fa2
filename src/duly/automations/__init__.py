"""Automations: AI sessions on a single slot, scheduled from history, resumed as if nothing had happened. See ``door.Automations``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.automations.automation import Automation, Definition, NoCall
    from duly.automations.door import Automations, Requested
    from duly.automations.plan import AutomationScheduler, Limits
    from duly.automations.providers.base import (
        Answer,
        Message,
        Prices,
        Provider,
        Question,
        Role,
        Stop,
        ToolCall,
        ToolSpec,
        Usage,
    )
    from duly.automations.session import (
        ExecutionTrigger,
        Session,
        SessionControl,
        SessionEndReason,
        SessionType,
        Status,
    )
    from duly.automations.tools import ToolError

__all__ = [
    "Answer",
    "Automation",
    "AutomationScheduler",
    "Automations",
    "Definition",
    "ExecutionTrigger",
    "Limits",
    "Message",
    "NoCall",
    "Prices",
    "Provider",
    "Question",
    "Requested",
    "Role",
    "Session",
    "SessionControl",
    "SessionEndReason",
    "SessionType",
    "Status",
    "Stop",
    "ToolCall",
    "ToolError",
    "ToolSpec",
    "Usage",
]

#: Where these names live; each module is imported when a name of it is first asked for.
_HOMES = {
    "Answer": "providers.base",
    "Automation": "automation",
    "AutomationScheduler": "plan",
    "Automations": "door",
    "Definition": "automation",
    "ExecutionTrigger": "session",
    "Limits": "plan",
    "Message": "providers.base",
    "NoCall": "automation",
    "Prices": "providers.base",
    "Provider": "providers.base",
    "Question": "providers.base",
    "Requested": "door",
    "Role": "providers.base",
    "Session": "session",
    "SessionControl": "session",
    "SessionEndReason": "session",
    "SessionType": "session",
    "Status": "session",
    "Stop": "providers.base",
    "ToolCall": "providers.base",
    "ToolError": "tools",
    "ToolSpec": "providers.base",
    "Usage": "providers.base",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
