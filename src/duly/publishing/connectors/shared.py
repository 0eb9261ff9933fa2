"""What connectors have in common: options that are checked, files that are read, one form of preview."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
import secrets
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_number
from duly.kernel.verdict import Kind, refusal
from duly.publishing.connectors.base import Notebook
from duly.publishing.post import Asset, Post

#: The largest file that is read, in bytes, unless a connector says otherwise.
MOST = 256 * 1024 * 1024
#: Seconds for a request where the options say nothing. Below the setting ``lease``: a run that lost its lease is not still sending when the
#: next one asks.
TIMEOUT = 20.0


# ---------------------------------------------------------------------- options


def text(value: object, field: str) -> str:
    """A text that is not empty, on one line. Raises InvalidArgument."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidArgument(field, "is missing." if value in (None, "") else "is not a text.")
    if not value.isprintable():
        raise InvalidArgument(field, "holds what cannot be printed.")
    return value


def secret(value: object, field: str) -> str:
    """A text that can stand in a header, and is not repeated in errors. Raises InvalidArgument."""
    found = text(value, field)
    if not found.isascii() or found != found.strip():
        raise InvalidArgument(field, "holds what no such secret holds (blanks around it, letters beyond ASCII).")
    return found


def number_name(value: object, field: str) -> str:
    """The number by which the other side names an account or a page, also given as a number. Raises InvalidArgument."""
    found = str(value) if isinstance(value, int) and not isinstance(value, bool) else text(value, field)
    if not re.fullmatch(r"[0-9]{1,30}", found):
        raise InvalidArgument(field, f"is {found!r}; it is the number that the other side has given it.")
    return found


def url(value: object, field: str) -> str:
    """The beginning of URLs: https, or plain http on this machine. Raises InvalidArgument."""
    from duly.kernel.verdict import Refusal
    from duly.outbound import checked_url

    given = text(value, field)
    if "@" in given.split("?")[0].split("://")[-1].split("/")[0]:
        raise InvalidArgument(field, "holds a user or a password.")
    try:
        return checked_url(given, field)
    except Refusal as error:
        raise InvalidArgument(field, error.verdict.reason.removeprefix(field).strip() + ".") from None


def endpoint(value: object, field: str) -> str:
    """As ``url``, for a whole one: as it is given. Raises InvalidArgument."""
    url(value, field)
    return str(value)


def one_of(value: object, field: str, among: Collection[str]) -> str:
    """Raises InvalidArgument."""
    if value not in among:
        raise InvalidArgument(field, f"is {value!r}; it is one of {', '.join(among)}.")
    return str(value)


def number(value: object, field: str, *, above: float = -1.0, most: float = 1e9) -> float:
    """A number greater than ``above``, at most ``most``. Raises InvalidArgument."""
    check_number(value, field, f"a number above {above:g}, up to {most:g}", above, most * (1 + 1e-9), above=True)
    return float(value)  # type: ignore[arg-type]  # checked above


def known(post: Post, names: Collection[str], connector: str) -> Mapping[str, Any]:
    """The options of a post. Raises Refusal (for good) when there are some that the connector does not know."""
    strange = sorted(set(post.options) - set(names))
    if strange:
        there = ", ".join(sorted(names)) or "none"
        raise refusal(Kind.PERMANENT, f"options.{strange[0]}: {connector} knows no such option; it knows {there}")
    return post.options


# ---------------------------------------------------------------------- names


def key_of(post: Post, notebook: Notebook) -> str:
    """What names the job: its idempotency key, its channel, and its tenant where the notebook knows it."""
    facts = notebook.facts
    tenant = facts.get("tenant")
    return "\x1f".join([*([str(tenant)] if tenant is not None else []), post.channel, str(facts["key"])])


def mark(key: str, length: int = 16) -> str:
    """A short name of a key, for file names and URLs."""
    return hashlib.sha256(key.encode()).hexdigest()[:length]


def slug(words: str, most: int = 48) -> str:
    """Words as they stand in a URL: small letters of ASCII, digits, hyphens. May be empty."""
    plain = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain)[:most].strip("-")


def name_of(post: Post, key: str) -> str:
    """A name for people that is as unique as the key: the beginning of the title (else of the text), and the mark of the key."""
    words = slug(post.title or post.caption.strip().partition("\n")[0])
    return f"{words}-{mark(key)}" if words else f"post-{mark(key)}"


def same_text(one: str, other: str) -> bool:
    """Is it the same text, but for its blanks and how its letters are composed?"""
    return folded(one) == folded(other)


def folded(words: str) -> str:
    return " ".join(unicodedata.normalize("NFC", words).split())


def segment(value: object) -> str:
    """A value as one step of a URL's path."""
    return quote(str(value), safe="")


def query(fields: Mapping[str, object]) -> str:
    """``?a=1&b=2`` of the fields that are not None; empty when there are none."""
    given = {name: value for name, value in fields.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


# ---------------------------------------------------------------------- files


@dataclass(frozen=True, slots=True)
class File:
    """A file's content, and what it is."""

    name: str
    type: str
    content: bytes


def read(asset: Asset, root: Path | None, most: int = MOST) -> File:
    """The file of an asset. ``root``: it must be below this folder. Raises Refusal: for good when it may not, cannot or must not be used."""
    assert asset.path is not None
    given = Path(asset.path)
    try:
        file = ((root / given) if root is not None else given).resolve(strict=True)
        if root is not None and not file.is_relative_to(root.resolve()):
            raise refusal(Kind.PERMANENT, f"the asset {given.name!r} is not below media_root")
        if not file.is_file():
            raise refusal(Kind.PERMANENT, f"the asset {given.name!r} is not a file")
        if file.stat().st_size > most:
            raise refusal(Kind.PERMANENT, f"the asset {given.name!r} has more than {most} bytes")
        content = file.read_bytes()
    except FileNotFoundError:
        raise refusal(Kind.PERMANENT, f"the asset {given.name!r} is not there") from None
    except (OSError, ValueError) as error:
        raise refusal(Kind.TRANSIENT, f"the asset {given.name!r} cannot be read: {type(error).__name__}") from None
    wanted = (asset.checksum or "").removeprefix("sha256:")
    if asset.checksum and asset.checksum.startswith("sha256:") and hashlib.sha256(content).hexdigest() != wanted:
        raise refusal(Kind.PERMANENT, f"the asset {given.name!r} has changed since its checksum was taken")
    kind = mimetypes.guess_type(file.name)[0] or ""
    if not kind.startswith(f"{asset.kind}/"):
        kind = "image/jpeg" if asset.kind == "image" else "video/mp4"
    return File(re.sub(r"[^A-Za-z0-9._-]+", "-", file.name).lstrip(".-") or "asset", kind, content)


def folder(value: str | os.PathLike[str] | None, field: str) -> Path | None:
    """An option that names a folder. Raises InvalidArgument."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise InvalidArgument(field, "is not the name of a folder.")
    return Path(value).expanduser()


def instant(value: object) -> datetime | None:
    """An instant that was noted or answered, aware; None where it is none."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def multipart(fields: Mapping[str, str], files: Mapping[str, File]) -> tuple[bytes, str]:
    """A form with files (RFC 7578): its content, and the header Content-Type."""
    edge = secrets.token_hex(16)
    out = bytearray()
    for name, value in fields.items():
        out += f'--{edge}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode()
        out += value.encode() + b"\r\n"
    for name, file in files.items():
        out += f'--{edge}\r\nContent-Disposition: form-data; name="{name}"; filename="{file.name}"\r\n'.encode()
        out += f"Content-Type: {file.type}\r\n\r\n".encode() + file.content + b"\r\n"
    return bytes(out) + f"--{edge}--\r\n".encode(), f"multipart/form-data; boundary={edge}"


# ---------------------------------------------------------------------- previews


def preview(connector: str, post: Post, **extra: Any) -> Mapping[str, Any]:
    """A post as every connector shows it; ``extra`` is what only this one knows."""
    return {
        "connector": connector,
        "channel": post.channel,
        "brand": post.brand,
        "title": post.title,
        "caption": post.caption,
        "length": len(post.caption),
        "link": post.link,
        "assets": [
            {"kind": a.kind, "source": a.url or a.path or a.reference or "", "checksum": a.checksum, "alt": a.alt}
            for a in post.assets
        ],
        "first_comment": post.first_comment,
        "options": dict(post.options),
        "extra": extra,
    }
