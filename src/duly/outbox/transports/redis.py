"""To a stream of Redis or Valkey: ``redis:<stream>``. Needs ``duly[redis]``.

An entry has the fields ``id`` (the message id: the same at every delivery), ``payload`` and ``headers`` (JSON), ``created_at``
(ISO 8601, UTC), and ``key`` and ``ordering_key`` where there is one.
"""

from __future__ import annotations

from typing import Any

import orjson

from duly.kernel.errors import DestinationUnavailable, InvalidArgument, PermanentError
from duly.outbox.message import Message
from duly.outbox.transports.brokers import meaning

#: Seconds until an attempt to reach the server is given up, where the client is made here.
TIMEOUT = 10.0


class RedisStreamTransport:
    """Adds entries to streams.

    ``client``: a URL, or a client of redis-py (with timeouts of its own). ``stream``: for destinations that name none.
    ``maxlen``: the stream is trimmed to about so many entries; ``approximate=False`` trims exactly, for a price.
    """

    def __init__(
        self, client: Any, stream: str | None = None, *, maxlen: int | None = None, approximate: bool = True
    ) -> None:
        if maxlen is not None and (isinstance(maxlen, bool) or not isinstance(maxlen, int) or maxlen < 1):
            raise InvalidArgument("maxlen", f"is {maxlen!r}; it must be a whole number, at least 1.")
        if isinstance(client, str):
            from redis import Redis

            try:
                client = Redis.from_url(client, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT)
            except ValueError:
                # what was written is not repeated: it may hold a password in a place where nobody can tell
                raise InvalidArgument(
                    "client",
                    "is a URL that cannot be used.",
                    "Write redis://:password@host:6379/0, with %2F for a / in the password.",
                ) from None
        if not callable(getattr(client, "xadd", None)):
            raise InvalidArgument("client", f"is a {type(client).__name__}.", "Give a URL or a client of redis-py.")
        self._client, self._stream, self._maxlen, self._approximate = client, stream, maxlen, approximate

    def send(self, message: Message) -> None:
        """Add the entry. Raises DestinationUnavailable when the server cannot be reached, refuses us, or has something else under the name
        of the stream; otherwise what the client raises.
        """
        from redis.exceptions import ResponseError

        stream = message.target or self._stream
        if not stream:
            raise PermanentError("the destination names no stream: write redis:<stream>")
        fields = {
            "id": message.message_id,
            "payload": orjson.dumps(message.payload),
            "headers": orjson.dumps(dict(message.headers)),
            "created_at": message.created_at.isoformat() if message.created_at else "",
            **{name: value for name in ("key", "ordering_key") if (value := getattr(message, name)) is not None},
        }
        try:
            with meaning():
                self._client.xadd(stream, fields, maxlen=self._maxlen, approximate=self._approximate)
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                # every message of this destination would meet it
                raise DestinationUnavailable(f"{stream} is no stream", attention=True) from error
            raise

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()
