"""What a browser takes along to the provider and brings back. Pure.

A flow begins with 256 random bits that only the browser's cookie holds, and with the time, under a seal. Everything else is made of them, so
that nothing has to be kept of a flow before it is taken: ``state`` comes back in the address (was it this browser that began?), ``nonce`` in the ID token (is it for this login?), and the
``verifier`` is shown to the provider with the code (RFC 7636: a code that somebody else got hold of is worth nothing).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import datetime, timedelta

from duly.kernel.clock import from_micros, to_micros

#: A flow that has not come back within this is over.
LIFE = timedelta(minutes=10)
#: Random bytes, the time in microseconds, and its seal: a multiple of three, so that there is one way to write them.
_BITS, _TIME, _SEAL = 32, 8, 17


def sealed(bits: bytes, now: datetime, key: bytes) -> str:
    """What the cookie of a new flow holds. ``bits``: 32 random bytes. ``key``: what the seal of its time is made with."""
    raw = bits + to_micros(now).to_bytes(_TIME)
    return _text(raw + _seal(raw, key))


def begun(secret: str, key: bytes) -> datetime | None:
    """When a flow began; None for what is none of ours."""
    try:
        raw = base64.urlsafe_b64decode(secret.encode("ascii"))
    except ValueError:
        return None
    if len(raw) != _BITS + _TIME + _SEAL or _text(raw) != secret:
        return None
    if not hmac.compare_digest(raw[-_SEAL:], _seal(raw[:-_SEAL], key)):
        return None
    return from_micros(int.from_bytes(raw[_BITS:-_SEAL]))


def _seal(raw: bytes, key: bytes) -> bytes:
    return hmac.new(key, b"duly oidc flow " + raw, hashlib.sha256).digest()[:_SEAL]


class Flow:
    """One login on its way. ``secret``: what the cookie holds."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode("utf-8", "surrogateescape")

    @property
    def state(self) -> str:
        return self._made("state")

    @property
    def nonce(self) -> str:
        return self._made("nonce")

    @property
    def verifier(self) -> str:
        return self._made("verifier")

    @property
    def challenge(self) -> str:
        """What is told of the verifier at the beginning (S256)."""
        return _text(hashlib.sha256(self.verifier.encode()).digest())

    def began(self, state: str) -> bool:
        """Is this the flow that a ``state`` belongs to?"""
        return hmac.compare_digest(self.state.encode(), state.encode("utf-8", "surrogateescape"))

    def _made(self, purpose: str) -> str:
        return _text(hmac.new(self._secret, f"oidc {purpose}".encode(), hashlib.sha256).digest())


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
