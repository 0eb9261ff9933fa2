"""Is a post fit for its channel? Looked at before a job is made: what a channel would refuse, and what people would regret.

``check`` is pure: a post, the channel's rules and what is known of the files in, a report out. ``look`` finds out what there is to
know of files on this machine. An error keeps a post from being enqueued unless somebody overrides it and says why, which is audited.
The numbers come from each connector's ``Rules``; this file knows no channel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from unicodedata import category, normalize
from urllib.parse import urlsplit

from duly.kernel.errors import InvalidArgument
from duly.publishing.post import Asset, Post, Rules


class Severity(StrEnum):
    #: The channel would refuse it, or publish something else than was meant. It blocks.
    ERROR = "error"
    #: It can be published, and somebody should look.
    WARNING = "warning"
    #: It could be better.
    HINT = "hint"


#: What a finding takes from the score of 100.
COSTS = {Severity.ERROR: 40, Severity.WARNING: 10, Severity.HINT: 2}

#: Where a hashtag begins, a full-width sign included.
_HASHTAG = re.compile(r"(?<![\w#＃&/])[#＃](?=\w)")
_LINK = re.compile(r"https?:/*[^\s<>\"]*", re.IGNORECASE)
_UNFILLED = re.compile(r"\{\{?\s*[A-Za-z_]\w*\s*\}?\}")
#: What a text may hold besides printable characters: line breaks and tabs, joiners and marks of direction, which emoji and scripts use.
_ODD = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202d\u202e\ufffd]")
#: The first bytes of what is an image or a video.
_MAGIC = (
    (b"\xff\xd8\xff", 0, "image"), (b"\x89PNG\r\n\x1a\n", 0, "image"), (b"GIF8", 0, "image"), (b"WEBP", 8, "image"), (b"ftypavif", 4, "image"),
    (b"ftypheic", 4, "image"), (b"ftyp", 4, "video"), (b"\x1a\x45\xdf\xa3", 0, "video"), (b"AVI ", 8, "video"),
)  # fmt: skip
_ENDINGS = {
    "image": {".jpg", ".jpeg", ".png", ".gif", ".webp", ".avif", ".heic", ".svg"},
    "video": {".mp4", ".mov", ".m4v", ".webm", ".avi", ".mkv"},
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to say about a post."""

    severity: Severity
    #: Where: ``caption``, ``assets[0].url``.
    field: str
    #: A sentence.
    message: str

    def __str__(self) -> str:
        return f"{self.field} {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a look at a post found. ``score``: 100 for nothing, less 40 for an error, 10 for a warning, 2 for a hint; never below 0."""

    findings: tuple[Finding, ...] = ()

    @property
    def score(self) -> int:
        return max(0, 100 - sum(COSTS[one.severity] for one in self.findings))

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.severity is Severity.ERROR)

    @property
    def ok(self) -> bool:
        """May it be enqueued without somebody saying so?"""
        return not self.errors

    def with_refusal(self, reason: str) -> Report:
        """The same with what the channel's connector refuses, ``field: reason``, where no check has said it already."""
        field, colon, said = reason.partition(": ")
        named = (field, said) if colon and " " not in field else ("payload", reason)
        if any(one.field.partition("[")[0] == named[0].partition("[")[0] for one in self.errors):
            return self
        return Report((Finding(Severity.ERROR, named[0], f"{named[1].removesuffix('.')}."), *self.findings))

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "score": self.score,
            "ok": self.ok,
            "findings": [{"severity": str(f.severity), "field": f.field, "message": f.message} for f in self.findings],
        }


@dataclass(frozen=True, slots=True)
class File:
    """What is known of a file: its size in bytes, and what its first bytes say it is (None: neither image nor video, or not known)."""

    bytes: int
    kind: str | None = None


class PreflightFailed(InvalidArgument):
    """Posts that would not go well, and nobody overrode that. ``reports``: (which post, what was found) of each that has an error."""

    def __init__(self, reports: Sequence[tuple[str, Report]]) -> None:
        self.reports = tuple(reports)
        lines = [
            f"  {place}: {finding}" if place else f"  {finding}"
            for place, report in self.reports
            for finding in report.errors
        ]
        many = f"{len(lines)} checks failed" if len(lines) > 1 else "a check failed"
        remedy = "Mend them, or override the checks and say why."
        super().__init__("payload", f"{many}:\n" + "\n".join(lines) + "\n ", remedy)


# ---------------------------------------------------------------------- checks


def check(post: Post, rules: Rules, known: Mapping[str, File | None] | None = None) -> Report:
    """Hold a post against the rules of its channel. ``known``: by path, what ``look`` found; None for a file that is not there."""
    found = [*_texts(post, rules), *_links(post), *_assets(post, rules, known or {}), *_comment(post, rules)]
    order = list(Severity)
    return Report(tuple(sorted(found, key=lambda one: order.index(one.severity))))


def look(post: Post) -> dict[str, File | None]:
    """What this machine knows of the files of a post, by path."""
    return {one.path: _file(Path(one.path)) for one in post.assets if one.path}


def length(text: str) -> int:
    """Characters as channels count them: code points of the composed form."""
    return len(normalize("NFC", text))


#: What shows nothing, though no category of characters says so: blanks of Braille and of Hangul.
_BLANK = frozenset("\u2800\u3164\u115f\u1160\uffa0")


def is_blank(text: str) -> bool:
    """Does a text show nothing? Blanks, and characters that nobody sees."""
    return all(char.isspace() or char in _BLANK or category(char) in ("Cf", "Cc", "Mn") for char in text)


def _error(name: str, message: str) -> Finding:
    return Finding(Severity.ERROR, name, message)


def _warning(name: str, message: str) -> Finding:
    return Finding(Severity.WARNING, name, message)


def _texts(post: Post, rules: Rules) -> Iterator[Finding]:
    if is_blank(post.caption) and is_blank(post.title) and not (post.link or post.assets):
        yield _error("caption", "is empty, and there is no title, no link and no asset: nothing would be published.")
    long = length(post.caption)
    if rules.caption_most is not None and long > rules.caption_most:
        yield _error("caption", f"has {long:,} characters; {post.channel} takes {rules.caption_most:,}.")
    tags = hashtags(post.caption)
    if rules.hashtags_most is not None and len(tags) > rules.hashtags_most:
        yield _error("caption", f"has {len(tags)} hashtags; {post.channel} takes {rules.hashtags_most}.")
    twice = [tag for tag, times in Counter(tags).items() if times > 1]
    if twice:
        yield _warning("caption", f"has {_tags(twice)} more than once.")
    for name, text in (
        ("caption", post.caption),
        ("title", post.title),
        ("ig_first_comment", post.first_comment or ""),
    ):
        if gap := _UNFILLED.search(text):
            yield _warning(name, f"still has {gap[0]}: a placeholder that nobody filled in?")
        if _ODD.search(text):
            yield _warning(
                name, "has characters that are not printed: was it copied from somewhere, or read in a wrong encoding?"
            )
    for name in rules.ignored:
        if getattr(post, name):
            yield _warning(name, f"is left out: {post.channel} publishes none.")
    if "\n" in post.title:
        yield _warning("title", "has more than one line.")


def hashtags(text: str) -> list[str]:
    """The hashtags of a text, folded: letters, digits and underscores with their marks, in every script."""
    text, out = normalize("NFC", text), list[str]()
    for begin in _HASHTAG.finditer(text):
        rest = text[begin.end() :]
        end = next((n for n, c in enumerate(rest) if not (c.isalnum() or c == "_" or category(c)[0] == "M")), len(rest))
        out.append(rest[:end].casefold())
    return out


def _tags(names: Iterable[str]) -> str:
    return ", ".join(f"#{name}" for name in names)


def _links(post: Post) -> Iterator[Finding]:
    if post.link:
        yield from _link("link", post.link)
    for name, text in (("caption", post.caption), ("ig_first_comment", post.first_comment or "")):
        for written in _LINK.findall(text):
            problem = _wrong_link(written.rstrip(".,;:!?)]}'’”"))
            if problem:
                yield _warning(name, f"has the link {written}, which {problem}.")


def _link(name: str, url: str) -> Iterator[Finding]:
    problem = _wrong_link(url)
    if problem:
        yield _error(name, f"{problem}.")
        return
    parts = urlsplit(url)
    if parts.scheme.lower() == "http":
        yield Finding(Severity.HINT, name, "goes by http://; use https:// where the site has it.")
    if _is_private(parts.hostname or ""):
        yield _warning(name, f"leads to {parts.hostname}, which only this network can reach.")


def _wrong_link(url: str) -> str:
    """What is wrong with a link, empty if nothing is."""
    if any(char.isspace() for char in url):
        return "has a space in it"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"cannot be read ({str(error).lower()})"
    if parts.scheme.lower() not in ("http", "https"):
        return "does not begin with https://"
    if not host:
        return "names no host"
    if parts.username is not None or parts.password is not None:
        return "has a user name in it"
    bare = host.rstrip(".")
    if "." not in bare and ":" not in bare and bare != "localhost":
        return f"leads to {host}, which is no host on the internet"
    if ".." in host or any(not label or len(label) > 63 for label in bare.split(".")):
        return f"leads to {host}, which is no name of a host"
    return ""


def _is_private(host: str) -> bool:
    try:
        return not ip_address(host).is_global
    except ValueError:
        return host == "localhost" or host.endswith((".local", ".localhost", ".internal"))


# ---------------------------------------------------------------------- assets


def _assets(post: Post, rules: Rules, known: Mapping[str, File | None]) -> Iterator[Finding]:
    number = len(post.assets)
    if number < rules.assets_least:
        yield _error("assets", f"has {number}; {post.channel} needs at least {rules.assets_least}.")
    if rules.assets_most is not None and number > rules.assets_most:
        yield _error("assets", f"has {number}; {post.channel} takes at most {rules.assets_most}.")
    seen: dict[tuple[str, str], int] = {}
    for n, asset in enumerate(post.assets):
        at = f"assets[{n}]"
        yield from _asset(asset, at, post.channel, rules)
        if asset.path and asset.path in known:
            yield from _on_disk(asset, at, post.channel, rules, known[asset.path])
        name = _name(asset)
        if name in seen:
            yield _warning(at, f"is the same as assets[{seen[name]}].")
        seen.setdefault(name, n)


def _name(asset: Asset) -> tuple[str, str]:
    for kind in ("checksum", "url", "path", "reference"):
        if value := getattr(asset, kind):
            return kind, value
    return "nothing", ""


def _asset(asset: Asset, at: str, channel: str, rules: Rules) -> Iterator[Finding]:
    if asset.kind not in rules.kinds:
        takes = ", ".join(f"{kind}s" for kind in sorted(rules.kinds)) or "no assets"
        yield _error(f"{at}.kind", f"is {asset.kind}; {channel} takes {takes}.")
    if asset.url:
        yield from _link(f"{at}.url", asset.url)
    elif rules.needs_url:
        yield _error(f"{at}.url", f"is not given; {channel} fetches assets from a public address.")
    where = asset.path or (urlsplit(asset.url).path if asset.url and not _wrong_link(asset.url) else "")
    ending = Path(where).suffix.lower()
    for kind, endings in _ENDINGS.items():
        if kind != asset.kind and ending in endings:
            yield _warning(f"{at}.kind", f"is {asset.kind}, and the name ends in {ending}.")
    if asset.kind == "image" and rules.image_endings and ending in _ENDINGS["image"] - rules.image_endings:
        takes = ", ".join(sorted(rules.image_endings))
        yield _warning(f"{at}.url" if asset.url else f"{at}.path", f"ends in {ending}; {channel} takes {takes}.")
    if asset.kind == "image" and not asset.alt.strip():
        yield Finding(Severity.HINT, f"{at}.alt", "is empty: describe the image for those who do not see it.")


def _on_disk(asset: Asset, at: str, channel: str, rules: Rules, file: File | None) -> Iterator[Finding]:
    if file is None:
        yield _error(f"{at}.path", f"{Path(asset.path or '').name} is not there, or cannot be read.")
        return
    if not file.bytes:
        yield _error(f"{at}.path", "is an empty file.")
        return
    most = rules.asset_bytes.get(asset.kind)
    if most is not None and file.bytes > most:
        yield _error(f"{at}.path", f"has {size(file.bytes)}; {channel} takes {size(most)} for {_article(asset.kind)}.")
    if file.kind is not None and file.kind != asset.kind:
        yield _error(f"{at}.kind", f"is {asset.kind}, and the file is {_article(file.kind)}.")


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def size(number: int) -> str:
    """Bytes for people: ``8.0 MiB``."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number} bytes"


def _file(path: Path) -> File | None:
    try:
        with path.open("rb") as file:
            head = file.read(16)
            return File(path.stat().st_size, _kind(head))
    except (OSError, ValueError):
        return None


def _kind(head: bytes) -> str | None:
    for magic, at, kind in _MAGIC:
        if head[at : at + len(magic)] == magic:
            return kind
    return None


# ---------------------------------------------------------------------- the first comment


def _comment(post: Post, rules: Rules) -> Iterator[Finding]:
    text = post.first_comment
    if text is None:
        return
    name = "ig_first_comment"
    if is_blank(text):
        yield _error(name, "is empty.")
        return
    if not rules.first_comment:
        yield Finding(Severity.HINT, name, f"is left out: {post.channel} knows no first comment.")
        return
    long = length(text)
    tags = len(hashtags(text))
    if rules.hashtags_most is not None and tags > rules.hashtags_most:
        yield _error(name, f"has {tags} hashtags; {post.channel} takes {rules.hashtags_most}.")
    if rules.comment_most is not None and long > rules.comment_most:
        yield _error(name, f"has {long:,} characters; {post.channel} takes {rules.comment_most:,}.")
    if " ".join(text.split()).casefold() == " ".join(post.caption.split()).casefold():
        yield _warning(name, "says the same as the caption.")
