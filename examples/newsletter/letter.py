"""What is sent, and to whom: the recipients' file and the two templates. Knows no jobs and no mail server."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template, TemplateError


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
