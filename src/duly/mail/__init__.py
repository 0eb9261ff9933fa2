"""Mail: the task EMAIL_SEND through Microsoft Graph, Resend, SMTP, a maildir or the console.

``Mail(app)`` is the door. ``message.py`` reads an input, ``verdict.py`` and ``plan.py`` decide (pure), ``providers/`` speak to the other
side, ``store.py`` holds every statement, ``handler.py`` is the task. Source: R003-7, T003-d, T003-h.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.kernel.verdict import Kind, Verdict
    from duly.mail.mail import Mail
    from duly.mail.message import Attachment, Letter, Message
    from duly.mail.plan import Standing
    from duly.mail.providers.base import Provider
    from duly.mail.store import Suppression
    from duly.mail.suppressions import Suppressions
    from duly.mail.templates import Rendered
    from duly.mail.verdict import Answer, Owner, Receipt, Undelivered

__all__ = [
    "Answer",
    "Attachment",
    "Kind",
    "Letter",
    "Mail",
    "Message",
    "Owner",
    "Provider",
    "Receipt",
    "Rendered",
    "Standing",
    "Suppression",
    "Suppressions",
    "Undelivered",
    "Verdict",
]

#: Where these names live; each module is imported when a name of it is first asked for.
_HOMES = {
    "Answer": "verdict",
    "Attachment": "message",
    "Kind": "verdict",
    "Letter": "message",
    "Mail": "mail",
    "Message": "message",
    "Owner": "verdict",
    "Provider": "providers.base",
    "Receipt": "verdict",
    "Rendered": "templates",
    "Standing": "plan",
    "Suppression": "store",
    "Suppressions": "suppressions",
    "Undelivered": "verdict",
    "Verdict": "verdict",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(f"duly.mail.{_HOMES[name]}"), name)
        return found
    raise AttributeError(f"module 'duly.mail' has no attribute {name!r}")
