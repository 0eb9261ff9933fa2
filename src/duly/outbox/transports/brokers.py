"""What a connection to a kind of broker needs, so that a message is either known to be there, or an error is raised in time.

The options are kombu's, by the driver's type. "Sent" is true only where the broker confirms (AMQP), and nobody waits for ever
for one that takes connections and does not answer (T004-q).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CAREFUL: Mapping[str, Mapping[str, Any]] = {
    "amqp": {"confirm_publish": True, "read_timeout": 15, "write_timeout": 15},
    "redis": {"socket_timeout": 15, "socket_connect_timeout": 5},
}
