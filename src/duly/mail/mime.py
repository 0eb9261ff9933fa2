"""A message as the bytes that mail servers and mail programs read (RFC 5322).

The texts of headers are written here and not by ``email``, which reads what it is given as a header: it would decode what looks like an
encoded word (RFC 2047), line breaks in it included. Here such a text is encoded, and arrives as it was written.
"""

from __future__ import annotations

import email.policy
import re
import textwrap
from collections.abc import Sequence
from email.header import Header
from email.message import EmailMessage
from email.utils import format_datetime
from urllib.parse import quote

from duly.mail.address import ENCODED_WORD, Mailbox
from duly.mail.message import Message

_ASCII = email.policy.SMTP.clone(cte_type="7bit")
#: Columns of a line, and the longest word that is not broken (RFC 5322 allows 998 bytes for a line).
WIDTH, WORD = 78, 900
#: Longest name of a person or file that is written in quotes.
QUOTED = 60
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_QUOTABLE = re.compile(r"[ !#-\[\]-~]+")


class _Written(str):
    """The value of a header that is written already. ``email`` takes an object with a name and ``fold`` as it is."""

    name: str
    lines: str

    def __new__(cls, name: str, text: str, lines: str) -> _Written:
        made = super().__new__(cls, text)
        made.name, made.lines = name, lines
        return made

    def fold(self, *, policy: email.policy.Policy) -> str:
        return self.lines + policy.linesep


def compose(message: Message, *, utf8: bool = False) -> EmailMessage:
    """The message. Who gets a blind copy is not in it. ``utf8``: headers in UTF-8, for servers that say SMTPUTF8."""
    letter = message.letter
    out = EmailMessage(policy=email.policy.SMTPUTF8 if utf8 else _ASCII)
    for name, mailboxes in (("From", (letter.sender,)), ("To", letter.to), ("Cc", letter.cc), ("Reply-To", letter.reply_to)):  # fmt: skip
        if mailboxes:
            out[name] = _mailboxes(name, mailboxes)
    if not letter.to and not letter.cc:
        out["To"] = "undisclosed-recipients:;"
    for name, text in (
        ("Subject", letter.subject), ("Date", format_datetime(message.date)), ("Message-ID", message.message_id), *letter.headers
    ):  # fmt: skip
        out[name] = _text(name, text, utf8)
    if letter.text is not None:
        out.set_content(letter.text)
        if letter.html is not None:
            out.add_alternative(letter.html, subtype="html")
    else:
        out.set_content(letter.html, subtype="html")
    for attachment in letter.attachments:
        main, _, sub = attachment.content_type.partition("/")
        if main in ("multipart", "message"):
            main, sub = "application", "octet-stream"  # a part that has parts is not carried as bytes
        out.add_attachment(attachment.content, maintype=main, subtype=sub)
        *_, part = out.iter_parts()
        del part["Content-Disposition"]
        part["Content-Disposition"] = _attached(attachment.filename)
    return out


def needs_utf8(message: Message) -> bool:
    """Is there an address whose local part is not ASCII? Then the server must say SMTPUTF8."""
    letter = message.letter
    return not all(
        m.address.isascii() for group in ((letter.sender,), letter.to, letter.cc, letter.reply_to) for m in group
    ) or not all(address.isascii() for address in message.pending)


# ---------------------------------------------------------------------- headers


def _text(name: str, text: str, utf8: bool) -> _Written:
    """A text: folded between its words where that loses nothing, else in encoded words."""
    words = text.split()
    plain = (text.isascii() or utf8) and not ENCODED_WORD.search(text) and text == " ".join(words)
    if plain and all(len(word.encode()) <= WORD for word in words):
        folded = textwrap.wrap(
            text, WIDTH, initial_indent=f"{name}: ", subsequent_indent=" ", break_long_words=False, break_on_hyphens=False
        )  # fmt: skip
        return _Written(name, text, "\r\n".join(folded) or f"{name}:")
    return _Written(name, text, f"{name}: {_words(text, len(name) + 2)}")


def _words(text: str, column: int) -> str:
    """Encoded words, in lines. ``column``: where the first of them begins."""
    made = Header(text, "utf-8", maxlinelen=WIDTH - 2, header_name="x" * min(column - 2, 40))
    return made.encode(linesep="\r\n")


def _mailboxes(name: str, mailboxes: Sequence[Mailbox]) -> _Written:
    shown = [_mailbox(m) for m in mailboxes]
    lines = [f"{name}: {shown[0]}"]
    for one in shown[1:]:
        last = lines[-1].rpartition("\r\n")[2]
        if len(last) + len(one.partition("\r\n")[0]) + 3 <= WIDTH:
            lines[-1] += f", {one}"
        else:
            lines[-1] += ","
            lines.append(f" {one}")
    return _Written(name, ", ".join(shown), "\r\n".join(lines))


def _mailbox(mailbox: Mailbox) -> str:
    name, address = mailbox.name, mailbox.address
    if not name:
        return address
    if len(name) <= QUOTED and not ENCODED_WORD.search(name):
        if _ATOMS.fullmatch(name):
            return f"{name} <{address}>"
        if _QUOTABLE.fullmatch(name):
            return f'"{name}" <{address}>'
    shown = _words(name, len("Reply-To: "))
    return f"{shown}\r\n <{address}>" if len(shown) > QUOTED // 2 else f"{shown} <{address}>"


def _attached(filename: str) -> _Written:
    """Content-Disposition, with a name of any length in any script (RFC 2231)."""
    name = "Content-Disposition"
    plain = _QUOTABLE.fullmatch(filename) and filename == filename.strip() and "%" not in filename
    if plain and len(filename) <= QUOTED - 20 and not ENCODED_WORD.search(filename):
        return _Written(name, "attachment", f'{name}: attachment; filename="{filename}"')
    pieces = ["utf-8''"]
    for character in filename:  # a character is in one piece: some readers decode each by itself
        coded = quote(character, safe="")
        if len(pieces[-1]) + len(coded) > QUOTED:
            pieces.append("")
        pieces[-1] += coded
    if len(pieces) == 1:
        return _Written(name, "attachment", f"{name}: attachment;\r\n filename*={pieces[0]}")
    said = "".join(f";\r\n filename*{number}*={piece}" for number, piece in enumerate(pieces))
    return _Written(name, "attachment", f"{name}: attachment{said}")
