"""Mailboxes: read from texts, compared, and kept out of what is written down. Pure.

An address is never repeated in an error: the field is named, and what is wrong with it.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

from duly.kernel.errors import InvalidArgument

#: One mailbox: a local part without quotes, a domain with a dot in it (RFC 5321, section 4.1.2, without its rarities).
_LOCAL = re.compile(r"[^\s@<>()\[\],;:\"\\.\x00-\x1f\x7f]+(?:\.[^\s@<>()\[\],;:\"\\.\x00-\x1f\x7f]+)*")
_DOMAIN = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+(?:[a-z]{2,63}|xn--[a-z0-9-]{2,59})", re.IGNORECASE)
_NAMED = re.compile(r"(?P<name>[^<>]*)<(?P<address>[^<>]*)>")
#: What readers of headers may decode (RFC 2047), into line breaks too.
ENCODED_WORD = re.compile(r"=\?.*\?=", re.DOTALL)
#: Anything in a text that may be an address.
_ANY = re.compile(
    r"""(?:"(?:[^"\\]|\\.)*" | (?<![^\s@<>()\[\],;:"\\])[^\s@<>()\[\],;:"\\]+)    # a local part, quoted or not
        (?:@ | %(?:25)*40 | =40(?=\S*\.[a-z]) | \uff20 | &\#(?:64|x40);)                # the sign, in each of its writings
        (?:\[[^\]\s]*\] | [^\s<>()\[\],;:"\\]+)""",
    re.IGNORECASE | re.VERBOSE,
)


#: So many times the length that is told is looked at.
LOOKED_AT = 4


@dataclass(frozen=True, slots=True)
class Mailbox:
    """A display name, which may be empty, and an address whose domain is ASCII."""

    address: str = field(repr=False)
    name: str = field(default="", repr=False)

    @property
    def domain(self) -> str:
        return self.address.rpartition("@")[2]

    @property
    def normalised(self) -> str:
        return self.address.lower()


def read_mailbox(value: object, field: str) -> Mailbox:
    """``ada@example.org`` or ``Ada <ada@example.org>``. Raises InvalidArgument naming the field."""
    text = one_line(value, field).strip()
    found = _NAMED.fullmatch(text)
    name, address = (found["name"].strip(), found["address"].strip()) if found else ("", text)
    if len(name) >= 2 and name[0] == name[-1] == '"':
        name = re.sub(r"\\(.)", r"\1", name[1:-1])
    if not found and re.search(r"[,;]", text):
        raise InvalidArgument(field, "holds more than one address.", "Give a list of them.")
    local, at, domain = address.rpartition("@")
    domain = _ascii(domain, field)
    if not at or not _LOCAL.fullmatch(local) or ENCODED_WORD.search(local) or not _DOMAIN.fullmatch(domain):
        raise InvalidArgument(field, "is not an e-mail address.")
    if len(local.encode()) > 64 or len(local.encode()) + len(domain) > 253:
        raise InvalidArgument(field, "is too long for an e-mail address.")
    return Mailbox(f"{unicodedata.normalize('NFC', local)}@{domain.lower()}", name)


def normalised(address: str, field: str = "address") -> str:
    """An address as lists keep it: in small letters, its domain in ASCII. Raises InvalidArgument."""
    return read_mailbox(address, field).normalised


def one_line(value: object, field: str) -> str:
    """A text that cannot end a header before its time. Raises InvalidArgument."""
    if not isinstance(value, str):
        raise InvalidArgument(field, f"is of type {type(value).__name__}; it must be a text.")
    if "\r" in value or "\n" in value:
        raise InvalidArgument(field, "holds a line break, which would begin another header.")
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c != "\t" for c in value):
        raise InvalidArgument(field, "holds control characters.")
    return value


def without_addresses(text: str, most: int = 500) -> str:
    """What the other side said, without any address in it, on one line."""
    if (
        len(text) > LOOKED_AT * most
    ):  # the time to look grows with the square of a word's length; a word that is cut may be an address
        cut = text[: LOOKED_AT * most]
        text = cut.rpartition(" ")[0] or cut
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return _ANY.sub("…@…", line)[:most]


def _ascii(domain: str, field: str) -> str:
    """A domain as the DNS has it (IDNA 2008, UTS 46 without the old exceptions); empty when there is none such."""
    if domain.isascii():
        return domain
    try:
        import idna
    except ImportError:
        raise InvalidArgument(
            field, "has a domain in another script, which needs idna.", 'Install "duly[mail]".'
        ) from None
    try:
        return idna.encode(domain, uts46=True, std3_rules=True, transitional=False).decode()
    except UnicodeError:  # what idna raises is one
        return ""
