"""Text that may be shown: without passwords, and without characters that steer a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

#: The password of a URL: what stands between the colon after the user and the last @, also where the URL is half-written.
_PASSWORD = re.compile(r"(//[^:/?#\s@]*):\S*@|(?<=[\w.+-]):[^:/@\s]+@(?=[\w.\[])")
#: The same as a parameter, in a URL or in a connection string of libpq.
_PARAMETER = re.compile(r"\b((?:ssl)?password=)(?:'[^']*'|[^&\s']+)")


def hide_passwords(text: str) -> str:
    """The text with the passwords of URLs in it replaced."""
    if "@" in text:
        text = _PASSWORD.sub(lambda m: f"{m[1] or ''}:***@", text)
    return _PARAMETER.sub(r"\1***", text) if "password=" in text else text


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
