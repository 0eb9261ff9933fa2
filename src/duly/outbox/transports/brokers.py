"""What a connection to a kind of broker needs, so that a message is either known to be there, or an error is raised in time; and what
the errors of brokers' clients mean.

The options are kombu's, by the driver's type. "Sent" is true only where the broker confirms (AMQP), and nobody waits for ever
for one that takes connections and does not answer (T004-q).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from duly.kernel.errors import DestinationUnavailable, PermanentError, brief

CAREFUL: Mapping[str, Mapping[str, Any]] = {
    "amqp": {"confirm_publish": True, "read_timeout": 15, "write_timeout": 15},
    "redis": {"socket_timeout": 15, "socket_connect_timeout": 5},
}

#: Errors of brokers' clients by module and name: it cannot be reached, or takes nothing now. Subclasses count.
AWAY = frozenset({
    ("kombu.exceptions", "OperationalError"), ("kombu.exceptions", "ConnectionError"), ("kombu.exceptions", "LimitExceeded"),
    ("kombu.exceptions", "ConnectionLimitExceeded"), ("kombu.exceptions", "ChannelLimitExceeded"), ("kombu.exceptions", "NotBoundError"),
    ("amqp.exceptions", "ConnectionError"), ("amqp.exceptions", "RecoverableChannelError"), ("amqp.exceptions", "MessageNacked"),
    ("redis.exceptions", "ConnectionError"), ("redis.exceptions", "TimeoutError"), ("redis.exceptions", "ReadOnlyError"),
    ("redis.exceptions", "ClusterDownError"), ("redis.exceptions", "MasterDownError"), ("redis.exceptions", "OutOfMemoryError"),
    ("redis.exceptions", "TryAgainError"), ("redis.exceptions", "AskError"),
})  # fmt: skip
#: It refuses us, or lacks what the destination names: an operator must act. Looked at first.
REFUSED = frozenset({
    ("amqp.exceptions", "AccessRefused"), ("amqp.exceptions", "NotAllowed"), ("amqp.exceptions", "NotFound"),
    ("amqp.exceptions", "NoConsumers"), ("amqp.exceptions", "InvalidPath"), ("redis.exceptions", "AuthenticationError"),
    ("redis.exceptions", "AuthorizationError"), ("redis.exceptions", "NoPermissionError"), ("redis.exceptions", "ModuleError"),
})  # fmt: skip
#: The message itself cannot be encoded, or is longer than the broker takes.
MESSAGE = frozenset({
    ("kombu.exceptions", "EncodeError"), ("kombu.exceptions", "SerializationError"), ("kombu.exceptions", "ContentDisallowed"),
    ("amqp.exceptions", "ContentTooLarge"), ("redis.exceptions", "DataError"),
})  # fmt: skip


_lock = threading.Lock()
_careful: weakref.WeakSet[Any] = weakref.WeakSet()


def be_careful(app: Any) -> None:
    """Before the first connection of a Celery application: what it does not say about its broker, so that "sent" is true and nobody waits
    for ever. Once for each; nothing is opened.
    """
    conf, connect = getattr(app, "conf", None), getattr(app, "connection_for_write", None)
    if conf is None or connect is None:
        return
    with _lock:
        try:
            if app in _careful:
                return
            _careful.add(app)
        except TypeError:  # it cannot be remembered: done again, which changes nothing
            pass
        driver = None
        with suppress(Exception), connect() as connection:  # an address that cannot be used is told by the send
            driver = connection.transport.driver_type
        careful = CAREFUL.get(driver, {}) if isinstance(driver, str) else {}
        if careful:
            conf.broker_transport_options = {**careful, **(conf.broker_transport_options or {})}


@contextmanager
def meaning() -> Iterator[None]:
    """Within: what a broker's client raises is raised as what it means; what is not known comes as it is."""
    try:
        yield
    except Exception as error:
        known = [(c.__module__, c.__name__) for c in type(error).__mro__]
        # kombu wraps what the driver raised
        cause = error.__cause__
        if cause is not None:
            known += [(c.__module__, c.__name__) for c in type(cause).__mro__]
        if any(one in REFUSED for one in known):
            raise DestinationUnavailable(f"the broker refuses: {brief(error)}", attention=True) from error
        if any(one in MESSAGE for one in known):
            raise PermanentError(f"the broker does not take this message: {brief(error)}") from error
        if any(one in AWAY for one in known):
            raise DestinationUnavailable(f"the broker cannot be reached: {brief(error)}") from error
        raise
