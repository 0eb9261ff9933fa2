"""Only after the commit: what leaves a transaction for somewhere else, by memory (post-commit) or by table (outbox).

``enqueue_task_after_commit`` sends once the commit is done and is lost with the process; an ``Outbox`` writes the message in
the transaction itself, and a relay sends it. Transports live in ``duly.outbox.transports``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from duly.kernel.errors import DestinationUnavailable

if TYPE_CHECKING:
    from duly.outbox.box import Outbox
    from duly.outbox.message import Message, Published
    from duly.outbox.post_commit import (
        Sender,
        enqueue_task_after_commit,
        post_commit_sender,
        set_post_commit_sender,
    )
    from duly.outbox.relay import Relay
    from duly.outbox.transports import Transport

__all__ = [
    "DestinationUnavailable",
    "Message",
    "Outbox",
    "Published",
    "Relay",
    "Sender",
    "Transport",
    "enqueue_task_after_commit",
    "post_commit_sender",
    "set_post_commit_sender",
]

#: Where these names live; each module is imported when a name of it is first asked for.
_HOMES = {
    "Message": "message",
    "Outbox": "box",
    "Published": "message",
    "Relay": "relay",
    "Sender": "post_commit",
    "Transport": "transports",
    "enqueue_task_after_commit": "post_commit",
    "post_commit_sender": "post_commit",
    "set_post_commit_sender": "post_commit",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(f"duly.outbox.{_HOMES[name]}"), name)
        return found
    raise AttributeError(f"module 'duly.outbox' has no attribute {name!r}")
