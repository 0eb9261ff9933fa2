"""What makes two planned posts the same post: the key of a slot on a channel. Pure.

The key is ``duly:publish:v2:`` and the SHA-256 of the canonical JSON array of what the post says: brand, channel, when, assets with their
descriptions, the texts (caption, title, link, first comment) and the options, so that every text that reaches the connector is part of it
(R002-22). An array tells its parts apart where texts set one behind the other would not ("a" and "bc", "ab" and "c"). Texts are in Unicode's
normal form C, and their placeholders are filled in: a template that is written in another way and says the same makes no second post.

When: a local time is the wall clock's time and its zone, so an update of the zone data makes no second post; an instant with an offset is that
instant in UTC. A post of a local time takes the key of its instant, too (``Keys.also``), so a plan that names the same instant with an offset
finds it. ``Keys.old`` is the key of the first version, by which posts are found that were made under it: brand, channel, instant, media and
caption. Source: R002-3, R002-4, R002-22, T002-a, ADR 0041.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from duly.kernel.canonical import canonical
from duly.kernel.localtime import in_utc
from duly.kernel.recurrence.reading import write_instant
from duly.publishing.post import Asset

#: Stands in every key; the rules can change only together with it. ``OLD``: in keys of the first version.
PREFIX, OLD = "duly:publish:v2:", "duly:publish:v1:"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a planned post: its own, those of the same post written in another way, and that of the first version."""

    key: str
    also: tuple[str, ...]
    old: str


def post_keys(
    brand: str, channel: str, run_at: datetime, local: str | None, tz: str | None, assets: Sequence[Asset], payload: Mapping[str, Any]
) -> Keys:  # fmt: skip
    """The keys of a planned post. ``run_at``: aware; ``local`` and ``tz``: the wall clock's time, where the plan gave one; ``payload``: what
    ``read_post`` reads.

    Raises InvalidArgument for an instant without a time zone, InvalidPayload for a text that is no Unicode.
    """
    media = [[*_named(one), one.alt] for one in assets]
    texts = [str(payload.get(name) or "") for name in ("caption", "title", "link", "ig_first_comment")]
    options = payload.get("options") or {}

    def key(when: str) -> str:
        return PREFIX + _sha256(canonical([brand, channel, when, media, texts, options], "plan"))

    instant = key(write_instant(in_utc(run_at, "run_at")))
    old = plan_key(brand, channel, run_at, assets, texts[0])
    return Keys(instant, (), old) if local is None else Keys(key(f"{local}[{tz}]"), (instant,), old)


def plan_key(brand: str, channel: str, scheduled_at: datetime, assets: Iterable[Asset] = (), caption: str = "") -> str:
    """The key of a planned post in the first version. ``scheduled_at`` is aware; the order of assets counts.

    Raises InvalidArgument for an instant without a time zone, InvalidPayload for a text that is no Unicode.
    """
    parts = [
        brand,
        channel,
        write_instant(in_utc(scheduled_at, "scheduled_at")),
        media_hash(assets),
        caption_hash(caption),
    ]
    return OLD + _sha256(canonical(parts, "plan"))


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
