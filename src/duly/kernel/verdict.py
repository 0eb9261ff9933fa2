"""What an answer of a provider means, as a value. Pure.

Each provider has one function that turns an answer into a ``Verdict``; who called it turns that into the end of a run. The classes
are those of the facts about providers: success, transient, permanent, auth, quota, unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

#: Owners of what a provider never saw: the network, and what stands before a site and answers in its place.
NETWORK, FIREWALL = "network", "firewall"


class Kind(StrEnum):
    SENT = "sent"
    #: Not sent; may go better later. An attempt is used.
    TRANSIENT = "transient"
    #: Not sent, because the other side cannot be reached or takes nothing at all now. What is in line waits, one probes; no attempt is used.
    AWAY = "away"
    #: Not sent, because there were too many. No attempt is used.
    THROTTLED = "throttled"
    #: Not sent, and trying again would not help.
    PERMANENT = "permanent"
    #: Not sent, and nothing will be before somebody has mended the configuration: the queue is paused.
    AUTH = "auth"
    #: Not sent, and nothing will be before an instant. No attempt is used.
    QUOTA = "quota"
    #: The same thing is under way, handed over before: what stands on record stays, and it is asked again. No attempt is used.
    BUSY = "busy"
    #: Handed over, and no answer came: it may have been sent.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason`` is a sentence for people; ``after`` seconds to wait, when the other side named them."""

    kind: Kind
    reason: str = ""
    after: float | None = None
    #: The end of a quota. Aware.
    until: datetime | None = None
    #: Whose fault it is, by the table of the provider; empty where no table says.
    owner: str = ""


class Refusal(Exception):
    """Raised where the other side is spoken to: it was not done, or nobody knows (``verdict.kind``)."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.reason)


def refusal(kind: Kind, reason: str, after: float | None = None, until: datetime | None = None) -> Refusal:
    """The error of a verdict."""
    return Refusal(Verdict(kind, reason, after, until))
