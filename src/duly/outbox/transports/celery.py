"""To Celery: ``celery:<task>``. The message id is the task id, so a repetition can be recognised by it.

A payload that is an object becomes the keyword arguments, anything else the only positional one. Needs ``duly[celery]``.
"""

from __future__ import annotations

from typing import Any

from duly.kernel.errors import InvalidArgument, PermanentError
from duly.outbox.message import Message
from duly.outbox.transports.brokers import be_careful, meaning

#: Headers of Celery's own protocol: a message's headers of these names are left out.
_CELERYS = frozenset({
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id", "parent_id",
    "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers", "stamps", "meth",
})  # fmt: skip


class CeleryTransport:
    """Sends tasks with ``app`` (a Celery application). ``options`` as for ``send_task``: ``queue``, ``priority``, ``expires`` …"""

    def __init__(self, app: Any, **options: Any) -> None:
        if not callable(getattr(app, "send_task", None)):
            raise InvalidArgument("app", f"is a {type(app).__name__}.", "Give a Celery application.")
        for name in ("task_id", "args", "kwargs", "headers"):
            if name in options:
                raise InvalidArgument(name, "is decided by the message.", "Leave it out.")
        self._app, self._options = app, options

    def send(self, message: Message) -> None:
        """Publish the task. Raises DestinationUnavailable when the broker cannot be reached, PermanentError for what cannot be encoded.

        Celery tries a few times within a second (``task_publish_retry``), so that a connection which went stale in its
        pool costs no attempt of the message.
        """
        if not message.target:
            raise PermanentError("the destination names no task: write celery:<task>")
        payload: Any = message.payload
        arguments: dict[str, Any] = {"kwargs": payload} if isinstance(payload, dict) else {"args": [payload]}
        headers = {name: value for name, value in message.headers.items() if name.lower() not in _CELERYS}
        be_careful(self._app)
        with meaning():
            self._app.send_task(
                message.target, task_id=message.message_id, headers=headers, **arguments, **self._options
            )
