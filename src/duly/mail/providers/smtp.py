"""SMTP (RFC 5321), with an answer for each recipient. Needs aiosmtplib.

The steps are taken one by one, because they mean different things: until DATA nothing was sent, whatever happens; from DATA on, an
answer decides and a lost connection leaves an unknown outcome. What was refused, and what is to be tried again, is said per recipient.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from urllib.parse import unquote, urlsplit

import aiosmtplib

from duly.kernel.clock import Clock
from duly.kernel.verdict import Kind, Verdict
from duly.mail.address import without_addresses
from duly.mail.message import Message
from duly.mail.mime import compose, needs_utf8
from duly.mail.providers.http import is_loopback, too_large
from duly.mail.providers.smtp_replies import Step, classify
from duly.mail.verdict import Answer, Owner, Receipt, Undelivered, undelivered
from duly.settings import Settings

#: Seconds that a goodbye may take.
GOODBYE = 2.0
#: Answers that are about everything that is sent, and not about this message.
_OF_ALL = frozenset({Kind.AWAY, Kind.THROTTLED, Kind.QUOTA})
_LOST = (aiosmtplib.SMTPServerDisconnected, aiosmtplib.SMTPTimeoutError, OSError)


class SmtpProvider:
    name = "smtp"
    remembers = 0.0
    concurrency = None

    def __init__(self, settings: Settings, clock: Clock, tls: ssl.SSLContext | None = None) -> None:
        try:
            url = urlsplit(settings.smtp_url)
            self._host, port = url.hostname or "", url.port
        except ValueError:
            raise undelivered(Kind.AUTH, "smtp_url is not a URL") from None
        if url.scheme not in ("smtp", "smtps") or not self._host:
            raise undelivered(Kind.AUTH, "smtp_url is not smtp://host:port or smtps://host:port")
        self._user = unquote(url.username) if url.username else None
        self._password = unquote(url.password) if url.password else None
        self._timeout, self._from_start = settings.mail_timeout, url.scheme == "smtps"
        self._ehlo = settings.smtp_ehlo or socket.gethostname() or "localhost"
        if not (self._ehlo.isascii() and self._ehlo.isprintable() and " " not in self._ehlo):
            raise undelivered(Kind.AUTH, "smtp_ehlo (DULY_SMTP_EHLO) is not a host name or an address in brackets")
        self._tls = tls or _trusting(settings.smtp_ca)
        plain = not self._from_start and self._host.lower() in _hosts(settings.smtp_plain)
        self._starttls = not self._from_start and not plain and (tls is not None or not is_loopback(self._host))
        if plain and self._user is not None and not is_loopback(self._host) and not settings.smtp_plain_password:
            raise undelivered(
                Kind.AUTH,
                f"smtp_url has a password, and smtp_plain says that {self._host} is reached without TLS: the password would cross the network "
                "in the clear. Leave it out, use TLS, or set smtp_plain_password (DULY_SMTP_PLAIN_PASSWORD=true)",
                owner=Owner.ACCOUNT,
            )
        self._port = port or (465 if self._from_start else 25 if plain else 587)

    async def send(self, message: Message, key: str) -> Receipt:
        client = await self._connected()
        try:
            return await self._exchange(client, message)
        finally:
            with contextlib.suppress(aiosmtplib.SMTPException, OSError):
                await client.quit(timeout=GOODBYE)
            client.close()

    async def check(self) -> str:
        client = await self._connected()
        with contextlib.suppress(aiosmtplib.SMTPException, OSError):
            await client.quit(timeout=GOODBYE)
        client.close()
        return "connected" + (" and logged in" if self._user else "")

    # ------------------------------------------------------------------ the steps

    async def _connected(self) -> aiosmtplib.SMTP:
        """A connection that is logged in. Raises Undelivered."""
        client = aiosmtplib.SMTP(
            hostname=self._host, port=self._port, timeout=self._timeout, use_tls=self._from_start, start_tls=False,
            tls_context=self._tls, local_hostname=self._ehlo,
        )  # fmt: skip
        step: Step = "connect"
        try:
            await client.connect()
            step = "ehlo"
            await client.ehlo()
            if self._starttls:
                if not client.supports_extension("starttls"):
                    raise undelivered(Kind.AUTH, f"the mail server {self._host} offers no TLS (STARTTLS). {self._without_tls}", owner=Owner.SERVER)  # fmt: skip
                step = "tls"
                await client.starttls()
                step = "ehlo"
                await client.ehlo()
            step = "login"
            if self._user is not None:
                await client.login(self._user, self._password or "")
        except Undelivered:
            client.close()
            raise
        except aiosmtplib.SMTPResponseException as error:
            client.close()
            raise Undelivered(classify(error.code, error.message, step)) from None
        except _LOST as error:
            client.close()
            tls = next((e for e in (error, error.__cause__, error.__context__) if isinstance(e, ssl.SSLError)), None)
            if tls is not None:
                why = getattr(tls, "verify_message", "") or tls.reason or type(tls).__name__
                raise undelivered(
                    Kind.AUTH, f"no TLS with the mail server {self._host}: its certificate or version is not good ({why}). If your own "
                    "authority signed it, name that certificate's file in smtp_ca (DULY_SMTP_CA)", owner=Owner.SERVER,
                ) from None  # fmt: skip
            owner = Owner.NETWORK if step == "connect" else Owner.SERVER
            raise undelivered(
                Kind.AWAY,
                f"no connection to the mail server {self._host}:{self._port}: {type(error.__cause__ or error).__name__}",
                owner=owner,
            ) from None
        except aiosmtplib.SMTPException as error:  # no way to log in that both know
            client.close()
            raise undelivered(Kind.AUTH, f"the mail server does not fit: {error.message}", owner=Owner.ACCOUNT) from None  # fmt: skip
        return client

    @property
    def _without_tls(self) -> str:
        return f"To send without TLS inside your own network set smtp_plain (DULY_SMTP_PLAIN={self._host})"

    async def _exchange(self, client: aiosmtplib.SMTP, message: Message) -> Receipt:
        utf8 = needs_utf8(message)
        encoding = "utf-8" if utf8 else "ascii"
        refused, deferred = dict[str, Answer](), dict[str, Answer]()
        content = compose(message, utf8=utf8).as_bytes()
        is_sender_taken = False
        try:
            options = await _options(client, utf8)
            _check_size(client, len(content))
            await client.mail(message.letter.sender.address, options=options, encoding=encoding)
            is_sender_taken = True
            for position, address in enumerate(message.pending):
                try:
                    await client.rcpt(address, encoding=encoding)
                except aiosmtplib.SMTPResponseException as error:
                    verdict = classify(error.code, error.message, "recipient")
                    if verdict.kind is Kind.SENT:  # 252 and others of the kind
                        continue
                    # what is about everything stops the message, unless recipients before were answered: that counts
                    if verdict.kind is Kind.AUTH or (verdict.kind in _OF_ALL and position == 0):
                        raise Undelivered(verdict) from None
                    _sorted(verdict, refused, deferred)[address] = Answer(error.code, verdict.reason, verdict.owner)
        except aiosmtplib.SMTPResponseException as error:
            raise Undelivered(classify(error.code, error.message, "sender")) from None
        except _LOST as error:
            gone = f"the mail server hung up: {type(error).__name__}"
            if not is_sender_taken:  # nothing of this message was looked at
                raise undelivered(Kind.AWAY, f"{gone}, before it took the sender", owner=Owner.SERVER) from None
            if not refused:
                raise undelivered(Kind.TRANSIENT, gone, owner=Owner.SERVER) from None
            # it may have had enough of bad addresses: the next run goes on without them
            waiting = [address for address in message.pending if address not in refused]
            return Receipt(refused=refused, deferred=dict.fromkeys(waiting, Answer(None, gone)) | deferred)
        taken = [address for address in message.pending if address not in refused and address not in deferred]
        if not taken:
            return Receipt(refused=refused, deferred=deferred)
        await message.ahead(taken)
        return await self._data(client, content, taken, refused, deferred)

    async def _data(
        self, client: aiosmtplib.SMTP, content: bytes, taken: Sequence[str], refused: dict[str, Answer], deferred: dict[str, Answer]
    ) -> Receipt:  # fmt: skip
        """Hand it over. Whatever comes now is about those in ``taken``, all alike."""
        began = _watched(client)
        try:
            said = (await client.data(content)).message
        except aiosmtplib.SMTPResponseException as error:
            verdict = classify(error.code, error.message, "text" if began() else "data")
            if verdict.kind is Kind.SENT:
                return Receipt(remote_id=_queued_as(error.message), refused=refused, deferred=deferred)
            if verdict.kind is Kind.UNKNOWN:
                unclear = dict.fromkeys(taken, Answer(None, verdict.reason, verdict.owner))
                return Receipt(refused=refused, deferred=deferred, unknown=unclear)
            if verdict.kind is Kind.AUTH or verdict.kind in _OF_ALL:
                raise Undelivered(verdict) from None
            _sorted(verdict, refused, deferred).update(
                dict.fromkeys(taken, Answer(error.code, verdict.reason, verdict.owner))
            )
            return Receipt(refused=refused, deferred=deferred)
        except _LOST as error:
            if not began():
                gone = f"the mail server hung up before it took the message: {type(error).__name__}"
                return Receipt(
                    refused=refused, deferred=deferred | dict.fromkeys(taken, Answer(None, gone, Owner.SERVER))
                )
            said = f"the message was handed over and the mail server did not answer: {type(error).__name__}"
            return Receipt(
                refused=refused, deferred=deferred, unknown=dict.fromkeys(taken, Answer(None, said, Owner.SERVER))
            )
        return Receipt(remote_id=_queued_as(said), refused=refused, deferred=deferred)


def _hosts(text: str) -> frozenset[str]:
    return frozenset(one.strip().lower() for one in text.split(",")) - {""}


def _trusting(file: str) -> ssl.SSLContext | None:
    """A context that trusts the authorities of a file, and those of the system; None where no file is named. Raises Undelivered."""
    if not file:
        return None
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(cafile=file)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or "it holds no certificate in PEM"
        raise undelivered(Kind.AUTH, f"smtp_ca (DULY_SMTP_CA) cannot be read: {why}", owner=Owner.ACCOUNT) from None
    return context


def _watched(client: aiosmtplib.SMTP) -> Callable[[], bool]:
    """Asks whether the text of a message has begun to go out. A connection that is lost before 354 and one that is lost after it raise
    the same error, and only the second leaves something unknown: so it is seen by what is written after DATA.
    """
    protocol, written = client.protocol, list[bool]()
    if protocol is None:
        return lambda: True
    write = protocol.write

    def watching(data: bytes) -> None:
        write(data)
        written.append(True)

    protocol.write = watching  # type: ignore[method-assign]
    return lambda: len(written) > 1


def _sorted(verdict: Verdict, refused: dict[str, Answer], deferred: dict[str, Answer]) -> dict[str, Answer]:
    """Where an answer belongs. Only a plain no is one for good."""
    return refused if verdict.kind is Kind.PERMANENT else deferred


async def _options(client: aiosmtplib.SMTP, utf8: bool) -> list[str]:
    """Options of MAIL. Raises Undelivered when the server takes no addresses in other scripts."""
    if not utf8:
        return []
    if client.is_ehlo_or_helo_needed:
        await client.ehlo()
    if not client.supports_extension("smtputf8"):
        raise undelivered(Kind.PERMANENT, "the mail server takes no addresses in other scripts (SMTPUTF8)")
    return ["SMTPUTF8", *(["BODY=8BITMIME"] if client.supports_extension("8bitmime") else [])]


def _check_size(client: aiosmtplib.SMTP, size: int) -> None:
    """Refuse what is larger than the server says that it takes (RFC 1870): some hang up in the middle of it, and nobody would know.
    Raises Undelivered.
    """
    most = client.esmtp_extensions.get("size", "").strip()
    if most.isascii() and most.isdigit() and 0 < int(most[:18]) < size:
        raise undelivered(
            Kind.PERMANENT, f"attachments: {too_large('the mail server', size, int(most[:18]))}", owner=Owner.MESSAGE
        )


def _queued_as(said: str) -> str | None:
    """What servers call a message that they took, such as ``queued as 4F2C``."""
    _, found, name = said.rpartition("queued as ")
    return without_addresses(name.strip(), 100) or None if found else None
