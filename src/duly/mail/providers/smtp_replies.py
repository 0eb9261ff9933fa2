"""Whose fault a reply of a mail server is, as one table. Pure.

A row applies to steps of the exchange, reply codes, enhanced status codes (RFC 3463, RFC 5248, RFC 7372) and words; the first that fits
decides. Two rules hold throughout. What stands before a message's own data is about the server or the account, so the queue is held. What
comes after it may be about this message only, so other messages go on. A reply that no row knows never ends a message for good: it is
tried again for as long as attempts last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from duly.kernel.verdict import Kind, Verdict
from duly.mail.address import without_addresses
from duly.mail.verdict import Owner

#: The greeting, EHLO, STARTTLS, AUTH, MAIL FROM, RCPT TO, DATA until 354, and the end of the message's text.
Step = Literal["connect", "ehlo", "tls", "login", "sender", "recipient", "data", "text"]

_BEFORE: tuple[Step, ...] = ("connect", "ehlo", "tls", "login")
_AFTER: tuple[Step, ...] = ("data", "text")
_ANY: tuple[Step, ...] = (*_BEFORE, "sender", "recipient", *_AFTER)
#: Waits where a limit is reached and the server names none, as mail servers do not, in seconds.
RATE, QUOTA = 300.0, 3600.0
#: A row that applies to replies without an enhanced status code.
_NONE = "none"

_TOO_LARGE = r"size|too (?:big|large)|max(?:imum)? message"
_MAILBOX_FULL = r"mailbox[^.]{0,40}(?:full|quota|exceed)|over.?quota|quota[^.]{0,40}mailbox"
#: A limit of this message, and none of the account: how large it is, how long its lines are, how many headers it has.
_ITS_FORM = (
    r"(?:message|mail|headers?|lines?|attachments?)\b[^.]{0,20}(?:\bsize|\blength|too (?:big|large|long))"
    r"|\b(?:size|length|headers?|lines?)\b[^.]{0,20}(?:limit|exceed)"
)
#: Somebody gets more than they may, whoever sends it.
_BUSY_MAILBOX = r"receiv[^.]{0,40}rate|(?:too many|limit)[^.]{0,30}for this (?:user|recipient|mailbox)"
#: A machine that carries no mail of ours to others, whatever code it says that with (qmail: "my list of allowed rcpthosts").
_NO_RELAY = r"\brelay(?! recipient)|rcpthosts"
_RATE = (
    r"rate.?limit|throttl|too many (?:e-?mails|messages|mails|connections|concurrent|login|sessions)"
    r"|(?:sending|daily|hourly|message|submission|relay|outbound)[^.]{0,20}(?:limit|quota)|(?:limit|quota)[^.]{0,20}(?:sending|sent|hour|day|daily)"
)
_BLOCKED = r"black.?list|block.?list|blocked using|spamhaus|\brbl\b|\bdnsbl\b|reputation|client host|relay(?! recipient)|not permitted|authenticat"
_SPAM = r"spam|virus|malware|junk|phish|content"


@dataclass(frozen=True, slots=True)
class Row:
    steps: tuple[Step, ...]
    #: Reply codes, or how they begin; blanks between. Empty: any.
    codes: str
    #: Enhanced status codes, or how they begin (with a dot at the end); ``none``: there is none. Empty: any.
    enhanced: str
    #: A pattern in what the server said. Empty: any.
    words: str
    owner: Owner
    kind: Kind
    meaning: str
    after: float | None = None

    def fits(self, step: Step, code: str, enhanced: str, said: str) -> bool:
        return (
            step in self.steps
            and (not self.codes or code.startswith(tuple(self.codes.split())))
            and (not self.enhanced or any(_is(enhanced, one) for one in self.enhanced.split()))
            and (not self.words or re.search(self.words, said, re.IGNORECASE) is not None)
        )


def _is(enhanced: str, wanted: str) -> bool:
    if wanted == _NONE:
        return not enhanced
    return enhanced.startswith(wanted) if wanted.endswith(".") else enhanced == wanted


ROWS: tuple[Row, ...] = (
    # ---- credentials, whenever they are asked for
    Row(_ANY, "530 534 535 538", "", "", Owner.ACCOUNT, Kind.AUTH, "it wants other credentials"),
    Row(("login",), "432", "", "", Owner.ACCOUNT, Kind.AUTH, "the password has to be renewed"),
    # ---- what looks like a limit of the account, and is none
    Row(("recipient",), "452 552", "4.5.3 5.5.3", "", Owner.MESSAGE, Kind.TRANSIENT, "too many recipients at once"),
    Row(("recipient", *_AFTER), "4 5", "4.2.1", "", Owner.RECIPIENT, Kind.TRANSIENT, "the mailbox takes nothing now"),
    Row(("recipient", *_AFTER), "4 5", "4.2.2 5.2.2", "", Owner.RECIPIENT, Kind.TRANSIENT, "the mailbox is full"),
    Row(("recipient", *_AFTER), "4 5", "none 5.1. 5.2.0 5.2.1 5.7.1", _MAILBOX_FULL, Owner.RECIPIENT, Kind.TRANSIENT, "the mailbox is full"),
    Row(("recipient", *_AFTER), "4 5", "none 5.1. 5.2.0 5.2.1 5.7.1", _BUSY_MAILBOX, Owner.RECIPIENT, Kind.TRANSIENT, "the mailbox takes nothing now"),
    Row(("sender", "recipient", *_AFTER), "5", "5.2.3 5.3.4", "", Owner.MESSAGE, Kind.PERMANENT, "the message is too large"),
    Row(("sender", *_AFTER), "552 554", "none", _TOO_LARGE, Owner.MESSAGE, Kind.PERMANENT, "the message is too large"),
    # ---- limits of the account: of the rate, and of a day
    Row(_ANY, "4", "4.4.5 4.7.28", "", Owner.ACCOUNT, Kind.THROTTLED, "too much at once", RATE),
    Row(_ANY, "5", "5.4.5 5.1.90 5.7.28 5.7.232 5.7.233 5.7.705 5.7.708", "", Owner.ACCOUNT, Kind.QUOTA, "a limit of the account is reached", QUOTA),
    Row(("sender", "recipient", *_AFTER), "5", "", _ITS_FORM, Owner.MESSAGE, Kind.PERMANENT, "the message, or a line or header in it, is too large"),
    Row(("sender", "recipient", *_AFTER), "4", "", _ITS_FORM, Owner.MESSAGE, Kind.TRANSIENT, "the message, or a line or header in it, is too large"),
    Row(_ANY, "4", "", _RATE, Owner.ACCOUNT, Kind.THROTTLED, "too much at once", RATE),
    Row(_ANY, "5", "", _RATE, Owner.ACCOUNT, Kind.QUOTA, "a limit of the account is reached", QUOTA),
    # ---- before any message
    Row(("connect",), "521", "", "", Owner.SERVER, Kind.AUTH, "it is no mail server that takes messages (RFC 7504)"),
    Row(("connect",), "", "", "", Owner.SERVER, Kind.AWAY, "it takes no connection now"),
    Row(("ehlo",), "5", "", "", Owner.ACCOUNT, Kind.AUTH, "it does not accept the name in EHLO: set smtp_ehlo (DULY_SMTP_EHLO) to a name that it does"),
    Row(("tls",), "4", "", "", Owner.SERVER, Kind.AWAY, "it cannot begin TLS now; to go without TLS inside your own network set smtp_plain (DULY_SMTP_PLAIN) to its name"),
    Row(("tls",), "5", "", "", Owner.SERVER, Kind.AUTH, "it refuses TLS; to go without TLS inside your own network set smtp_plain (DULY_SMTP_PLAIN) to its name"),
    Row(("login",), "4", "", "", Owner.SERVER, Kind.AWAY, "it cannot check credentials now"),
    Row(("login",), "5", "", "", Owner.ACCOUNT, Kind.AUTH, "it does not accept the login"),
    # an answer that is none, as of something else on that port: nobody's credentials or name are wrong
    Row(_BEFORE, "", "", "", Owner.SERVER, Kind.AWAY, "it takes no connection now"),
    # ---- MAIL FROM
    Row(("sender",), "421", "", "", Owner.SERVER, Kind.AWAY, "it is closing down"),
    Row(("sender",), "4", "4.3.", "", Owner.SERVER, Kind.AWAY, "its system has a problem"),
    Row(("sender",), "4", "", "", Owner.SERVER, Kind.TRANSIENT, "it does not take the sender now"),
    Row(("sender",), "5", "5.7.60", "", Owner.SENDER, Kind.AUTH, "it does not accept the sender"),
    Row(("sender",), "5", "", _BLOCKED, Owner.SENDER, Kind.AWAY, "it takes nothing from this machine, or not from this sender"),
    Row(("sender",), "5", "5.1.7 5.1.8 5.7.", "", Owner.SENDER, Kind.AUTH, "it does not accept the sender"),
    Row(("sender",), "552", "none", "", Owner.MESSAGE, Kind.PERMANENT, "the message is too large"),
    Row(("sender",), "501 550 551 553 554", "none", "", Owner.SENDER, Kind.AUTH, "it does not accept the sender"),
    # ---- RCPT TO
    Row(("recipient",), "421", "", "", Owner.SERVER, Kind.AWAY, "it is closing down"),
    Row(("recipient",), "4", "", _NO_RELAY, Owner.SERVER, Kind.TRANSIENT, "it relays nothing for this machine now"),
    Row(("recipient",), "4", "", "", Owner.RECIPIENT, Kind.TRANSIENT, "it wants to be asked again, as for greylisting"),
    Row(("recipient",), "552", "none", "", Owner.RECIPIENT, Kind.TRANSIENT, "too many recipients, or a full mailbox (RFC 5321, 4.5.3.1.10)"),
    Row(("recipient",), "5", "5.1.7 5.1.8", "", Owner.SENDER, Kind.TRANSIENT, "it does not accept the sender"),
    Row(("recipient",), "5", "", _NO_RELAY, Owner.SERVER, Kind.TRANSIENT, "it relays nothing for this machine"),
    Row(("recipient",), "5", "5.1.", "", Owner.RECIPIENT, Kind.PERMANENT, "there is no such mailbox"),
    Row(("recipient",), "5", "5.2.0 5.2.1 5.4.1 5.4.4", "", Owner.RECIPIENT, Kind.PERMANENT, "the mailbox cannot be reached"),
    Row(("recipient",), "5", "5.7.", "", Owner.SERVER, Kind.TRANSIENT, "a rule of its own forbids it"),
    Row(("recipient",), "5", "", _BLOCKED, Owner.SERVER, Kind.TRANSIENT, "it takes nothing from this machine, or relays nothing for it"),
    Row(("recipient",), "501 550 551 553 556", "none 5.0.0 5.5.0", "", Owner.RECIPIENT, Kind.PERMANENT, "there is no such mailbox"),
    # ---- DATA, and the end of the text
    Row(_AFTER, "421", "", "", Owner.SERVER, Kind.TRANSIENT, "it is closing down"),
    Row(_AFTER, "4", "", "", Owner.MESSAGE, Kind.TRANSIENT, "it does not take the message now"),
    Row(_AFTER, "552", "none", "", Owner.MESSAGE, Kind.PERMANENT, "the message is too large"),
    Row(_AFTER, "5", "5.6.", "", Owner.MESSAGE, Kind.PERMANENT, "it does not take the content"),
    Row(_AFTER, "5", "5.1.7 5.1.8 5.7.20 5.7.21 5.7.22 5.7.23 5.7.24 5.7.25 5.7.26 5.7.27 5.7.60", "", Owner.SENDER, Kind.TRANSIENT, "it does not trust the sender's domain or machine"),
    Row(_AFTER, "5", "", _BLOCKED, Owner.SERVER, Kind.TRANSIENT, "it takes nothing from this machine, or relays nothing for it"),
    Row(_AFTER, "5", "5.7.0 5.7.1", "", Owner.MESSAGE, Kind.PERMANENT, "it does not take the content"),
    Row(_AFTER, "5", "none", _SPAM, Owner.MESSAGE, Kind.PERMANENT, "it does not take the content"),
    Row(_AFTER, "5", "5.1. 5.2.1", "", Owner.RECIPIENT, Kind.PERMANENT, "there is no such mailbox"),
)  # fmt: skip


def classify(code: int, said: str, step: Step) -> Verdict:
    """Return what a reply means that is not the one hoped for. ``said``: its text, as the server wrote it."""
    reason = without_addresses(f"the mail server answered {code} {said}")
    if 200 <= code < 300 and step in ("recipient", "text"):
        return Verdict(Kind.SENT)
    row = find(code, enhanced_in(said), said, step)
    if row is not None:
        told = f"{reason} ({row.meaning})" if row.kind in (Kind.AWAY, Kind.AUTH) and step in _BEFORE else reason
        return Verdict(row.kind, told, row.after, owner=row.owner)
    if step == "text" and not 400 <= code < 600:
        return Verdict(
            Kind.UNKNOWN, f"the message was handed over and the answer cannot be understood: {reason}", owner=Owner.SERVER
        )  # fmt: skip
    return Verdict(Kind.TRANSIENT, reason, owner=Owner.SERVER)


def enhanced_in(said: str) -> str:
    """The enhanced status code of a reply: at its beginning (RFC 2034), or as qmail writes it, ``(#5.7.1)``. "" where there is none."""
    found = re.match(r"\s*#?([45]\.\d{1,3}\.\d{1,3})\b", said) or re.search(r"\(#([45]\.\d{1,3}\.\d{1,3})\)", said)
    return found[1] if found else ""


def find(code: int, enhanced: str, said: str, step: Step) -> Row | None:
    """Return the row that decides; None: no row knows this reply."""
    return next((row for row in ROWS if row.fits(step, str(code), enhanced, said)), None)
