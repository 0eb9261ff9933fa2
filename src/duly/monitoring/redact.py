"""Text that may be shown: without passwords, and without characters that steer a terminal."""

from __future__ import annotations

import re
import unicodedata

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
