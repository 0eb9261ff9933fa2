"""Whose fault an HTTP answer of somebody's endpoint is: one table for webhooks. Pure.

It reads statuses only, because nothing else is agreed between a webhook's two sides. What is not listed goes to the cautious side:
it says nothing against the message, so the message waits. Source: R004-19; RFC 9110, RFC 6585; Standard Webhooks ("operational
considerations"); Cloudflare's 520 to 530.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Owner(StrEnum):
    """Whose fault an answer is, and with that what follows from it."""

    #: It was taken.
    NOBODY = "nobody"
    #: This message: repeating it would not help, and another one may well be taken.
    MESSAGE = "message"
    #: The endpoint, its address, or what we log in with: nothing will be taken before somebody has acted.
    ENDPOINT = "endpoint"
    #: The way to it, or its present load: it passes by itself.
    NETWORK = "network"
    #: It cannot be told from the answer: the message's if others are taken meanwhile.
    UNCLEAR = "unclear"


#: Every status that a receiver is known to send. Ranges stand in ``owner_of``.
ANSWERS: Mapping[int, Owner] = {
    400: Owner.MESSAGE, 401: Owner.ENDPOINT, 402: Owner.ENDPOINT, 403: Owner.ENDPOINT, 404: Owner.ENDPOINT, 405: Owner.ENDPOINT,
    406: Owner.ENDPOINT, 407: Owner.ENDPOINT, 408: Owner.NETWORK, 409: Owner.MESSAGE, 410: Owner.ENDPOINT, 411: Owner.ENDPOINT,
    412: Owner.ENDPOINT, 413: Owner.MESSAGE, 414: Owner.ENDPOINT, 415: Owner.ENDPOINT, 421: Owner.NETWORK, 422: Owner.MESSAGE,
    423: Owner.NETWORK, 425: Owner.NETWORK, 426: Owner.ENDPOINT, 429: Owner.NETWORK, 431: Owner.MESSAGE, 451: Owner.ENDPOINT,
    500: Owner.UNCLEAR, 501: Owner.ENDPOINT, 502: Owner.NETWORK, 503: Owner.NETWORK, 504: Owner.NETWORK, 505: Owner.ENDPOINT,
    507: Owner.NETWORK, 508: Owner.ENDPOINT, 509: Owner.NETWORK, 511: Owner.NETWORK, 520: Owner.NETWORK, 521: Owner.NETWORK,
    522: Owner.NETWORK, 523: Owner.NETWORK, 524: Owner.NETWORK, 525: Owner.NETWORK, 526: Owner.ENDPOINT, 527: Owner.NETWORK,
    529: Owner.NETWORK, 530: Owner.NETWORK,
}  # fmt: skip


def owner_of(status: int) -> Owner:
    """Return whose fault the answer ``status`` is. 2xx is nobody's, a redirect the endpoint's; an unlisted one is cautious."""
    if 200 <= status < 300:
        return Owner.NOBODY
    known = ANSWERS.get(status)
    if known is not None:
        return known
    return Owner.UNCLEAR if status >= 500 else Owner.ENDPOINT
