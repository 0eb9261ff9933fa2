"""What is sent, and to whom: the recipients' file and the two templates. Knows no jobs and no mail server."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template, TemplateError

#: What a mail server would take: one address, no display name, a domain with a dot in it.
_ADDRESS = re.compile(
    r"(?P<local>[^\s@<>()\[\],;:\"\\.]+(\.[^\s@<>()\[\],;:\"\\.]+)*)"
    r"@([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}",
    re.IGNORECASE,
)


def is_address(text: str) -> bool:
    """Is this the address of one mailbox?"""
    match = _ADDRESS.fullmatch(text)
    return match is not None and len(match["local"]) <= 64 and len(text) <= 254


def key_of(campaign: str, address: str) -> str:
    """The idempotency key: at most one letter of a campaign per mailbox, however its address is capitalised."""
    key = f"{campaign}:{address.lower()}"
    return key if len(key) <= 200 else hashlib.sha256(key.encode()).hexdigest()


class Unusable(Exception):
    """A file that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class Recipient:
    #: The line of the file on which it ends, for people who look for it there.
    line: int
    address: str
    #: May be empty.
    name: str


def read_recipients(file: Path) -> list[Recipient]:
    """The lines of a CSV file with the columns ``address`` and ``name``; other columns are left alone.

    Raises Unusable when this is not such a file. Whether the addresses are any good is for others to say.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(lines, restval="")
            missing = [column for column in ("address", "name") if column not in (rows.fieldnames or ())]
            if missing:
                raise Unusable(
                    f"{file} has no column {' and no column '.join(missing)}: its first line must be 'address,name'."
                )
            found = [Recipient(rows.line_num, row["address"].strip(), row["name"].strip()) for row in rows]
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise Unusable(f"{file} is not UTF-8 (byte {error.start}): save it as CSV in UTF-8.") from None
    except csv.Error as error:
        raise Unusable(f"{file} is not CSV: {error}.") from None
    if not found:
        raise Unusable(f"{file} names no recipients.")
    return found


@dataclass(slots=True)
class Sorted:
    """The lines of a list by what becomes of them."""

    #: One for each mailbox.
    good: list[Recipient] = field(default_factory=list)
    #: Lines whose mailbox stands in an earlier line already.
    duplicates: list[int] = field(default_factory=list)
    #: Lines that nothing can be sent to, and why.
    bad: list[tuple[int, str]] = field(default_factory=list)


def sort(people: Sequence[Recipient]) -> Sorted:
    """Who gets a letter, who has got one by an earlier line, and who cannot get one."""
    out, seen = Sorted(), set[str]()
    for person in people:
        mailbox = person.address.lower()
        if not is_address(person.address):
            problem = f"{person.address!r} is not an address" if person.address else "no address"
            out.bad.append((person.line, problem))
        elif mailbox in seen:
            out.duplicates.append(person.line)
        else:
            seen.add(mailbox)
            out.good.append(person)
    return out


@dataclass(frozen=True, slots=True)
class Letter:
    """The two templates of one letter. The first line of the plain text is ``Subject: …``."""

    text: Template
    html: Template

    @classmethod
    def load(cls, stem: Path) -> Letter:
        """Read ``<stem>.txt.j2`` and ``<stem>.html.j2``. Raises Unusable."""
        return cls(_template(Path(f"{stem}.txt.j2"), html=False), _template(Path(f"{stem}.html.j2"), html=True))

    def to(self, recipient: Recipient) -> dict[str, str]:
        """The subject and both bodies for one recipient. Raises Unusable when the template asks for what is not there."""
        values = {"name": recipient.name, "address": recipient.address}
        try:
            text, html = self.text.render(values), self.html.render(values)
        except TemplateError as error:
            raise Unusable(f"the template cannot be filled in: {error}.") from None
        head, _, body = text.partition("\n")
        label, _, subject = head.partition(":")
        if label != "Subject" or not subject.strip():
            raise Unusable("the plain template does not begin with a line 'Subject: …'.")
        return {"subject": " ".join(subject.split()), "text": body.lstrip("\n"), "html": html}


def _template(file: Path, *, html: bool) -> Template:
    # a name such as <Root> must not become markup in the one, nor &lt;Root&gt; in the other
    environment = Environment(autoescape=html, undefined=StrictUndefined, keep_trailing_newline=True)
    try:
        return environment.from_string(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Unusable(f"{file} is not UTF-8.") from None
    except TemplateError as error:
        raise Unusable(f"{file} is not a Jinja2 template: {error}.") from None
