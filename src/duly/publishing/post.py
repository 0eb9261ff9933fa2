"""One post for one channel: what a connector is handed, and what it says of it. Pure.

A post is read from a job's input (``read_post``), which is also what the doors check before a job is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_text


@dataclass(frozen=True, slots=True)
class Asset:
    """An image or a video. At least one of ``url``, ``path`` and ``reference`` is given."""

    kind: Literal["image", "video"] = "image"
    #: Where the other side can fetch it.
    url: str | None = None
    #: A file beside the plan, absolute once the plan was read.
    path: str | None = None
    #: ``sha256:…`` or another name of the content; what is hashed into the key, before ``reference``.
    checksum: str | None = None
    #: A name in somebody's library.
    reference: str | None = None
    #: A description for those who do not see it.
    alt: str = ""


@dataclass(frozen=True, slots=True)
class Post:
    """What is to be published. Texts are final: placeholders are filled in."""

    channel: str
    caption: str = ""
    brand: str = ""
    title: str = ""
    link: str = ""
    assets: tuple[Asset, ...] = ()
    #: The first comment beneath it, where the channel knows such a thing.
    first_comment: str | None = None
    #: What only this connector knows (e.g. ``media_type``, ``status``, ``categories``).
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Published:
    """It is there. ``remote_id`` is None where the other side says so without naming it."""

    remote_id: str | None = None
    #: Where people can see it.
    url: str | None = None
    #: It was known by nothing but its looks, among what is there since this instant (aware): another that looks the same may be meant. None:
    #: the other side, or what was noted, names it.
    by_looks: datetime | None = None


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment that stands beneath a post."""

    id: str
    text: str
    username: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the other side allows: ``used`` of ``total`` posts in a rolling window of ``seconds``."""

    used: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Rules:
    """What a channel takes; what a preflight holds a post against. None: no limit is known."""

    caption_most: int | None = None
    assets_least: int = 0
    assets_most: int | None = None
    kinds: frozenset[str] = frozenset({"image", "video"})
    #: Bytes, by kind.
    asset_bytes: Mapping[str, int] = field(default_factory=dict)
    hashtags_most: int | None = None
    comment_most: int | None = None
    #: The assets must be on a public URL.
    needs_url: bool = False
    first_comment: bool = False
    #: How names of images end that it takes; empty: any.
    image_endings: frozenset[str] = frozenset()
    #: Fields of a post that it does not publish.
    ignored: tuple[str, ...] = ()


#: The fields of a payload. ``preview`` is read where a payload comes in; ``scheduled_at`` is the planned instant, for people.
FIELDS = (
    "brand", "caption", "title", "link", "assets", "ig_first_comment", "options", "scheduled_at", "preview",
)  # fmt: skip
_ASSET = ("kind", "url", "path", "checksum", "reference", "alt")
#: The longest text of a field, in characters, and the most assets of one post.
LONGEST, MOST_ASSETS = 100_000, 100


def read_post(channel: str, payload: object) -> Post:
    """A payload, checked: ``{brand, caption, title, link, assets, ig_first_comment, options, scheduled_at, preview}``, everything optional,
    but one of caption, title, link and assets is given. Raises InvalidArgument naming the field.
    """
    if not isinstance(payload, Mapping):
        raise InvalidArgument("payload", f"is of type {type(payload).__name__}.", "Give a mapping of fields.")
    for name in payload:
        if name not in FIELDS:
            raise InvalidArgument(f"payload.{name}", "is not a field of a post.", f"Fields are: {', '.join(FIELDS)}.")
    texts = {name: _text(payload.get(name), f"payload.{name}") for name in ("brand", "caption", "title", "link")}
    comment = _text(payload.get("ig_first_comment"), "payload.ig_first_comment")
    preview, options = payload.get("preview"), payload.get("options")
    if preview is not None and not isinstance(preview, bool):
        raise InvalidArgument("payload.preview", f"is {preview!r}.", "Give true or false.")
    if options is not None and not isinstance(options, Mapping):
        raise InvalidArgument("payload.options", f"is of type {type(options).__name__}.", "Give a mapping.")
    _text(payload.get("scheduled_at"), "payload.scheduled_at")
    assets = payload.get("assets")
    if assets is not None and not isinstance(assets, list | tuple):
        raise InvalidArgument("payload.assets", f"is of type {type(assets).__name__}.", "Give a list of assets.")
    if assets is not None and len(assets) > MOST_ASSETS:
        raise InvalidArgument("payload.assets", f"has {len(assets)} assets; at most {MOST_ASSETS} are allowed.")
    read = tuple(_asset(one, f"payload.assets[{n}]") for n, one in enumerate(assets or ()))
    if not read and not any(texts[name].strip() for name in ("caption", "title", "link")):
        raise InvalidArgument("payload", "has nothing to publish.", "Give a caption, a title, a link or an asset.")
    return Post(
        channel, texts["caption"], texts["brand"], texts["title"], texts["link"], read, comment if comment.strip() else None, dict(options or {})
    )  # fmt: skip


def _text(value: object, field: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidArgument(field, f"is of type {type(value).__name__}; it must be a text.")
    if len(value) > LONGEST:
        raise InvalidArgument(field, f"has {len(value):,} characters; at most {LONGEST:,} are allowed.")
    return check_text(value, field)


def _asset(value: object, field: str) -> Asset:
    if not isinstance(value, Mapping):
        raise InvalidArgument(
            field, f"is of type {type(value).__name__}.", "Give a mapping with url, path or reference."
        )
    for name in value:
        if name not in _ASSET:
            raise InvalidArgument(f"{field}.{name}", "is not a field of an asset.", f"Fields are: {', '.join(_ASSET)}.")
    kind = value.get("kind", "image")
    if kind not in ("image", "video"):
        raise InvalidArgument(f"{field}.kind", f"is {kind!r}.", "Use 'image' or 'video'.")
    given = {name: _text(value.get(name), f"{field}.{name}") or None for name in _ASSET[1:5]}
    if not any(given[name] for name in ("url", "path", "reference")):
        raise InvalidArgument(field, "has neither a url nor a path nor a reference.")
    return Asset(kind, **given, alt=_text(value.get("alt"), f"{field}.alt"))
