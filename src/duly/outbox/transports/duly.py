"""To a queue of Duly, in another database or the same: ``duly:<task>``.

The job's key is made of the message id, so however often a message is handed over there is one job: delivered at least
once, made once. The payload is the job's input, an object of argument names to values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from duly.kernel.errors import (
    DatabaseError,
    DatabaseUnavailable,
    DestinationUnavailable,
    InvalidArgument,
    PermanentError,
    UnknownName,
    UsageError,
)
from duly.outbox.message import Message


class Enqueueing(Protocol):
    """What is needed of the application that takes the jobs."""

    def enqueue(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> Any: ...


class DulyTransport:
    """Makes jobs in ``app``. ``queue``: for all of them, instead of their task's; ``options`` as for ``app.enqueue``."""

    def __init__(self, app: Enqueueing, queue: str | None = None, **options: Any) -> None:
        if not callable(getattr(app, "enqueue", None)):
            raise InvalidArgument("app", f"is a {type(app).__name__}.", "Give a Duly application.")
        for name in ("key", "session", "tenant"):
            if name in options:
                raise InvalidArgument(name, "is decided by the message.", "Leave it out.")
        self._app, self._options = app, {**options, **({"queue": queue} if queue is not None else {})}

    def send(self, message: Message) -> None:
        """Make the job, or find that it is there. Raises PermanentError for a message that can never be a job, DestinationUnavailable where
        the database is away, has no tables, or does not know the task or the queue (``strict_names``).
        """
        if not message.target:
            raise PermanentError("the destination names no task: write duly:<task>")
        if not isinstance(message.payload, dict):
            raise PermanentError(
                "the payload is not an object of argument names to values, so it cannot be a job's input"
            )
        key = f"outbox:{message.message_id}"
        try:
            self._app.enqueue(message.target, message.payload, key=key, tenant=message.tenant, **self._options)
        except DatabaseUnavailable as error:
            raise DestinationUnavailable(f"the database of the jobs cannot be reached: {error}") from error
        except (DatabaseError, UnknownName) as error:
            raise DestinationUnavailable(str(error), attention=True) from error
        except UsageError as error:
            raise PermanentError(f"the job is refused: {error}") from error
