"""To RabbitMQ, through kombu: ``rabbitmq:<routing key>``. Needs ``duly[rabbitmq]``.

A message is published as persistent JSON, with ``message_id``, ``timestamp`` and the headers as AMQP properties, and counts as
sent once the broker has confirmed it. With ``mandatory`` (the default) a message that no queue would get is returned by
the broker, which is a failure. The exchange must exist; the default one ("") delivers to the queue of the routing key's
name.
"""

from __future__ import annotations

from collections import deque
from importlib import import_module
from typing import Any

from duly.kernel.errors import InvalidArgument, PermanentError
from duly.outbox.message import Message
from duly.outbox.transports.brokers import CAREFUL, meaning

#: Seconds until an attempt to reach the broker, or to hear its confirmation, is given up.
TIMEOUT = 10.0


class RabbitTransport:
    """Publishes to ``exchange`` with the destination's target as the routing key (``routing_key`` where it names none)."""

    def __init__(self, url: str, exchange: str = "", *, routing_key: str = "", mandatory: bool = True) -> None:
        if not isinstance(url, str) or "://" not in url:
            raise InvalidArgument("url", "is not a URL.", "Write amqp://user@host/vhost.")
        self._kombu: Any = import_module("kombu")
        self._connection = self._kombu.Connection(url, connect_timeout=TIMEOUT, transport_options=dict(CAREFUL["amqp"]))
        #: Open connections with a channel each, that no thread uses at this moment.
        self._idle: deque[tuple[Any, Any]] = deque()
        self._exchange, self._routing_key, self._mandatory = exchange, routing_key, mandatory

    def send(self, message: Message) -> None:
        """Publish and wait for the confirmation. Raises DestinationUnavailable when the broker refuses or is not there, PermanentError for
        what cannot be encoded, and what kombu raises otherwise.
        """
        routing_key = message.target or self._routing_key
        if not routing_key and not self._exchange:
            raise PermanentError("the destination names no routing key: write rabbitmq:<routing key>")
        with meaning():
            self._send(message, routing_key)

    def _send(self, message: Message, routing_key: str) -> None:
        connection, channel = self._take()
        try:
            self._publish(channel, message, routing_key)
        except BaseException:
            # A confirmation that comes late must not be taken for the next message's; and what broke this connection is
            # likely to have broken the others.
            connection.collect()
            self.close()
            raise
        self._idle.append((connection, channel))

    def _take(self) -> tuple[Any, Any]:
        try:
            return self._idle.pop()
        except IndexError:
            connection = self._connection.clone()
            connection.connect()  # tries once; the relay tries again
            return connection, connection.channel()

    def _publish(self, channel: Any, message: Message, routing_key: str) -> None:
        properties: dict[str, Any] = {"message_id": message.message_id}
        if message.created_at is not None:
            properties["timestamp"] = int(message.created_at.timestamp())
        self._kombu.Producer(channel, auto_declare=False).publish(
            message.payload, exchange=self._exchange, routing_key=routing_key, serializer="json", delivery_mode=2, mandatory=self._mandatory,
            headers=dict(message.headers), retry=False, timeout=TIMEOUT, confirm_timeout=TIMEOUT, **properties,
        )  # fmt: skip

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while True:
            try:
                connection, _ = self._idle.pop()
            except IndexError:
                return
            connection.collect()
