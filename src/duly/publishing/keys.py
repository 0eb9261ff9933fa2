"""What makes two planned posts the same post: the key of a slot on a channel. Pure.

The key is ``duly:publish:v1:`` and the SHA-256 of the canonical JSON array of five texts: brand, channel, instant in UTC, media hash,
caption hash. An array tells its parts apart where texts set one behind the other would not ("a" and "bc", "ab" and "c"). Texts are in
Unicode's normal form C. The caption is what will be published, its placeholders filled in: a template that is written in another way
and says the same makes no second post. Source: R002-3, R002-4, T002-a.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime

from duly.kernel.canonical import canonical
from duly.kernel.localtime import in_utc
from duly.kernel.recurrence.reading import write_instant
from duly.publishing.post import Asset

#: Stands in every key; the rules can change only together with it.
PREFIX = "duly:publish:v1:"


def plan_key(brand: str, channel: str, scheduled_at: datetime, assets: Iterable[Asset] = (), caption: str = "") -> str:
    """The key of a planned post. ``scheduled_at`` is aware; the order of assets counts.

    Raises InvalidArgument for an instant without a time zone, InvalidPayload for a text that is no Unicode.
    """
    parts = [
        brand,
        channel,
        write_instant(in_utc(scheduled_at, "scheduled_at")),
        media_hash(assets),
        caption_hash(caption),
    ]
    return PREFIX + _sha256(canonical(parts, "plan"))


def media_hash(assets: Iterable[Asset]) -> str:
    """The hash of what names the assets, in their order: the checksum, else the reference, else the address, else the path."""
    return _sha256(canonical([_named(one) for one in assets], "assets"))


def caption_hash(caption: str) -> str:
    """The hash of the text that is published."""
    return _sha256(canonical(caption, "caption"))


def _named(asset: Asset) -> list[str]:
    """Which name counts, and the name: a reference that looks like a checksum is none."""
    for kind, name in (("checksum", asset.checksum), ("reference", asset.reference), ("url", asset.url)):
        if name:
            return [kind, name]
    return ["path", asset.path or ""]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
