"""One request to a provider of mail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from duly import outbound
from duly.kernel import retry_after as kernel_retry_after
from duly.kernel.verdict import Kind, Refusal
from duly.mail.verdict import Owner, Undelivered
from duly.outbound import Answered, is_loopback

__all__ = ["Answered", "checked_url", "is_loopback", "request", "retry_after", "too_large"]


async def request(
    method: str, url: str, *, timeout: float, headers: Mapping[str, str], content: bytes | None = None, sends: bool = False
) -> Answered:  # fmt: skip
    """As ``outbound.request``. Raises Undelivered: UNKNOWN where something was handed over and no answer came, else AWAY."""
    try:
        return await outbound.request(method, url, timeout=timeout, headers=headers, content=content, sends=sends)
    except Refusal as error:
        kind = Kind.AWAY if error.verdict.kind is Kind.TRANSIENT else error.verdict.kind
        raise Undelivered(replace(error.verdict, kind=kind, owner=Owner.NETWORK)) from None


def retry_after(answer: Answered, now: datetime) -> float | None:
    """Seconds that an answer wants to be waited; None when it does not say. Not bounded: ``kernel.retry_after.bounded`` does that."""
    return kernel_retry_after.retry_after(answer.headers.get("retry-after"), now)


def checked_url(url: str, setting: str) -> str:
    """As ``outbound.checked_url``. Raises Undelivered."""
    try:
        return outbound.checked_url(url, setting)
    except Refusal as error:
        raise Undelivered(error.verdict) from None


def too_large(provider: str, size: int, most: int) -> str:
    """What is said of a message that is larger than a provider takes."""
    return (
        f"make a message of {size:,} bytes (text, HTML and attachments, as they travel in base64); {provider} takes {most:,}. "
        "Send a link instead of the file."
    )
