"""Transports: how messages leave. One function, one file for each way; what they need is an extra of the package.

========  ====================================================  ==================
duly      a job in another (or the same) database of Duly       no extra
celery    a Celery task                                         ``duly[celery]``
webhook   an HTTP POST, signed, as a CloudEvent                 ``duly[webhook]``
redis     an entry of a Redis or Valkey stream                  ``duly[redis]``
rabbitmq  an AMQP message, confirmed by the broker              ``duly[rabbitmq]``
========  ====================================================  ==================

Anything with a ``send`` is a transport, so one of your own is a class of ten lines. One that knows the names behind
the colon offers them as ``targets``; a message to another name is warned of when it is published.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from duly.outbox.message import Message


@runtime_checkable
class Transport(Protocol):
    """Hands messages to somewhere else. Called from several threads at once."""

    def send(self, message: Message) -> None:
        """Hand the message over; return once the other side has it.

        Blocks, and should give up by itself after some seconds. Raises ``PermanentError`` for what is wrong with this message (it is
        parked at once), and ``DestinationUnavailable`` when nothing can be handed over now: the destination is held, no attempt is used,
        and it is probed. An OSError means the same. ``Retry(after=…)`` holds it for so many seconds. TypeError, ValueError and the like
        use an attempt of the message. Anything else holds the destination, too, unless other messages get through meanwhile.
        """
        ...
