"""Text that may be shown: without passwords, and without characters that steer a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from duly.kernel.masking import masked

#: Kept under its old name for logs, pages and the command line.
hide_passwords = masked


def bare_url(url: str) -> str:
    """A URL that anybody may hold a key in, for people: without user and password, and without its query."""
    base, asked, _ = re.sub(r"//\S*@", "//***@", url.partition("#")[0]).partition("?")
    return f"{base}?***" if asked else base


def hide_parts(text: str, url: str) -> str:
    """``hide_passwords``, of a text about a URL (as it was given) whose password may hold an @ that was not escaped: a driver cuts it there, and
    names a piece of it as the host."""
    base = url.partition("://")[2]
    known = (base.partition("?")[0] if "@" in base.partition("?")[0] else base).rpartition("@")[0].partition(":")[2]
    if "@" in known and not url.startswith("sqlite"):
        pieces = re.split(r"[@/:?#]", known)
        for piece in sorted(filter(None, pieces), key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(piece)}(?!\w)", "***", text)
    return hide_passwords(text)


def visible(text: str, keep: str = "\n\t") -> str:
    """The text with control characters (other than ``keep``) made visible: ``\\x1b`` instead of an escape."""
    if text.isprintable():
        return text
    return "".join(c if c in keep or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else repr(c)[1:-1] for c in text)


#: Keys whose values are not shown, wherever they stand in a payload.
_SECRET = re.compile(
    r"pass(word|wd|phrase)?$|secret|token$|api_?key|access_?key|private_?key|authorization|cookie|credential|bearer|^auth$|^pin$|^cvc$|card_?number|iban",
    re.IGNORECASE,
)
HIDDEN = "*****"


def redacted(value: Any, depth: int = 50) -> Any:
    """A JSON value without the values of keys that name a secret, and without passwords of URLs in its texts. A copy."""
    if isinstance(value, str):
        return hide_passwords(value)
    if depth == 0:
        return HIDDEN
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if inner is not None and _SECRET.search(str(key)) else redacted(inner, depth - 1)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted(inner, depth - 1) for inner in value]
    return value
