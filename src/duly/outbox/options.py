"""Every setting of an outbox and its relays, once: name, unit, default, reason."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_whole, read_seconds


@dataclass(frozen=True, slots=True)
class Options:
    """Settings with their values. Times are seconds."""

    #: How long a relay holds a message without renewing. A relay that died is noticed within this plus ten seconds.
    lease: float = 60.0
    #: How often an idle relay looks when no wake-up comes. Wake-ups are hints, polling is the rule.
    poll: float = 1.0
    #: The most messages taken at once.
    batch: int = 100
    #: Threads that send, for all destinations together.
    concurrency: int = 32
    #: Of each destination, so many messages (or lines of an ordering key) are on their way at once.
    per_destination: int = 4
    #: How long a stopping relay waits for what is being sent.
    grace: float = 25.0
    #: How long sent messages, and with them their keys, are kept. None keeps them for ever.
    keep: float | None = 7 * 86_400.0
    #: The largest payload, in bytes, encoded.
    max_payload: int = 262_144
    #: On PostgreSQL, tell relays at once what was published.
    notify: bool = True

    def __post_init__(self) -> None:
        for name, low in (("lease", 0.5), ("poll", 0.01), ("grace", 0.0), ("keep", 0.0)):
            value = getattr(self, name)
            if value is None and name == "keep":
                continue
            object.__setattr__(self, name, read_seconds(value, name, low))
        for name, low, high in (
            ("batch", 1, 10_000),
            ("concurrency", 1, 1_000),
            ("per_destination", 1, 1_000),
            ("max_payload", 256, 2**30),
        ):
            check_whole(getattr(self, name), name, low, high)
        if not isinstance(self.notify, bool):
            raise InvalidArgument("notify", f"is {self.notify!r}.", "Use True or False.")

    @classmethod
    def of(cls, given: dict[str, Any]) -> Options:
        """From keywords; those that are None keep their default. Raises InvalidArgument naming the setting."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise InvalidArgument(name, "is not a setting of an outbox.", f"Settings are: {', '.join(known)}.")
        return cls(**given)
