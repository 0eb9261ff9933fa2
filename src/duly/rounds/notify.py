"""Telling members that a round has opened: one job per member and channel, made in the transaction that opens it.

A job carries numbers only. Where to, and whether it still is to be told, is asked when it runs: an address that was changed meanwhile
is the one that is used, and no address stands in a job, an event or an error. Source: R000-13, T000-l, HOUSE decision 11.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from duly.jobs.enqueue import NewJob
from duly.kernel.errors import DestinationUnavailable, PermanentError, Retry
from duly.rounds.group import Channel
from duly.rounds.round import Round, takes_part
from duly.rounds.store import TickStore
from duly.rounds.tables import group_members, groups

if TYPE_CHECKING:
    from duly.outbox.message import Message
    from duly.outbox.transports.webhook import Secrets, WebhookTransport
    from duly.rounds.rounds import Host

#: The queue of the jobs that tell: apart from that of the ticks, so that it can be paused and paced by itself.
QUEUE = "rounds-notify"
TASKS = {
    Channel.EMAIL: "ROUNDS_NOTIFY_EMAIL",
    Channel.WEBHOOK: "ROUNDS_NOTIFY_WEBHOOK",
    Channel.LOG: "ROUNDS_NOTIFY_LOG",
}
#: The task that sends an e-mail: ``to``, ``subject``, ``text``. Any application may define it.
EMAIL_SEND = "EMAIL_SEND"
#: How long the keys of these jobs are remembered. Long after a round has closed, nobody can open it again.
KEY_KEPT = timedelta(days=30).total_seconds()


class Notices:
    """Makes the jobs of an opening."""

    def __init__(self, make: Callable[[Connection, Sequence[NewJob]], Any], prepare: Callable[..., NewJob]) -> None:
        self._make, self._prepare = make, prepare

    def make(self, connection: Connection, store: TickStore, opened: Mapping[int, tuple[int, str]]) -> int:
        """Make the jobs of rounds that have just opened. ``opened``: group → (round, tenant). Returns how many."""
        made, after, idents = 0, (0, 0), sorted(opened)
        templates: dict[Channel, NewJob] = {}
        while idents:
            found = store.to_tell(connection, idents, after)
            if not found:
                break
            new = []
            for group, member, channels in found:
                ident, tenant = opened[group]
                for channel in (Channel(name) for name in channels.split(",")):
                    template = templates.get(channel)
                    if template is None:
                        template = templates[channel] = self._template(channel)
                    told = f'{{"round":{ident},"member":{member}}}'
                    key = notice_key(ident, member, channel)
                    new.append(dataclasses.replace(template, tenant=tenant, input=told, key=key))
            self._make(connection, new)
            made += len(new)
            after = found[-1][0], found[-1][1]
        return made

    def _template(self, channel: Channel) -> NewJob:
        kept = timedelta(seconds=KEY_KEPT)
        new = self._prepare(TASKS[channel], {"round": 0, "member": 0}, queue=QUEUE, key="template", unique_until=kept)
        # whatever job holds the key of a notice, the member is told
        return dataclasses.replace(new, on_conflict="apart")


def notice_key(round_id: int, member_id: int, channel: Channel) -> str:
    """The key under which a member is told of a round by a channel: once."""
    return f"round:{round_id}:{member_id}:{channel.value}"


@dataclass(frozen=True, slots=True)
class Recipient:
    """A member when he is to be told, and the group's name."""

    group: str
    tenant: str
    name: str
    email: str | None = dataclasses.field(repr=False)
    webhook: str | None = dataclasses.field(repr=False)
    channels: tuple[str, ...]


class Telling:
    """The handlers of the three tasks."""

    def __init__(
        self, app: Host, round_of: Callable[[Connection, int], Round], *, email_task: str = EMAIL_SEND, email_queue: str | None = None,
        webhook_secret: Secrets | None = None, webhook_private: bool = False,
    ) -> None:  # fmt: skip
        self._app, self._round_of = app, round_of
        self.email_task, self.email_queue = email_task, email_queue
        self._secret, self._private = webhook_secret, webhook_private
        self._transport: WebhookTransport | None = None
        #: Message id → URL, for as long as it is being sent: an endpoint's URL is in no message and no error.
        self._urls: dict[str, str] = {}

    def by_email(self, round: int, member: int) -> dict[str, Any]:
        """Have a member told by e-mail: makes a job of the task EMAIL_SEND, once."""
        opened, to, why_not = self._look(round, member, Channel.EMAIL)
        if opened is None or to is None or to.email is None:
            return {"told": False, "reason": why_not or "no address"}
        options: dict[str, Any] = {} if self.email_queue is None else {"queue": self.email_queue}
        made = self._app.enqueue(
            self.email_task,
            {"to": to.email, "subject": f"{to.group}: {_short(opened.prompt_text)}", "text": _letter(opened, to)},
            key=f"{notice_key(round, member, Channel.EMAIL)}:send",
            tenant=to.tenant,
            **options,
        )
        return {"told": True, "job": made.job.id}

    def by_webhook(self, round: int, member: int) -> dict[str, Any]:
        """Post a signed CloudEvent to a member's endpoint. Its id is the same at every attempt."""
        opened, to, why_not = self._look(round, member, Channel.WEBHOOK)
        if opened is None or to is None or to.webhook is None:
            return {"told": False, "reason": why_not or "no address"}
        from duly.outbox.message import Message

        ident = notice_key(round, member, Channel.WEBHOOK)
        payload = {
            "round": round, "group": to.group, "member": to.name, "prompt": opened.prompt_text,
            "open_at": _iso(opened.open_at), "close_at": _iso(opened.close_at),
        }  # fmt: skip
        self._urls[ident] = to.webhook
        try:
            self._sender().send(
                Message(round, ident, to.tenant, f"webhook:member {member}", payload, created_at=opened.opened_at)
            )
        except (Retry, PermanentError):
            raise
        except DestinationUnavailable as error:
            # an answer, or a URL that cannot be used, is told in its own words; a connection's error may name the host
            if error.__cause__ is None:
                raise Retry(error.problem, after=error.after) from None
            raise Retry(f"the endpoint of member {member} cannot be reached", after=error.after) from None
        except Exception as error:
            raise Retry(f"the endpoint of member {member} does not answer: {type(error).__name__}") from None
        finally:
            self._urls.pop(ident, None)
        return {"told": True}

    def by_log(self, round: int, member: int) -> dict[str, Any]:
        """Say in the log that a round has opened."""
        opened, to, why_not = self._look(round, member, Channel.LOG)
        if opened is None or to is None:
            return {"told": False, "reason": why_not}
        self._app.events.emit("round_notified", "info", round=round, group=opened.group_id, member=member)
        return {"told": True}

    def _look(self, round: int, member: int, channel: Channel) -> tuple[Round | None, Recipient | None, str]:
        """The round and the member as they are now; and why nobody is told, when nobody is."""
        db = self._app.engine.db

        def ask(connection: Connection) -> tuple[Round, Recipient | None, datetime]:
            m, g = group_members.c, groups.c
            query = (
                select(g.name.label("group"), g.tenant, m.name, m.email, m.webhook, m.channels)
                .join(groups, g.id == m.group_id)
                .where(m.id == member, m.is_active)
            )
            row = connection.execute(query).first()
            to = None if row is None else Recipient(*row[:5], channels=tuple(row.channels.split(",")))
            return self._round_of(connection, round), to, db.present(connection)

        opened, to, now = db.read(ask)
        if not takes_part(opened, now):
            return None, None, "the round is over"
        if to is None:
            return None, None, "the member has left"
        if channel.value not in to.channels:
            return None, None, "the member does not want it any more"
        return opened, to, ""

    def _sender(self) -> WebhookTransport:
        if self._transport is None:
            from duly.outbox.transports.webhook import WebhookTransport

            self._transport = WebhookTransport(
                self._url, secret=self._secret, source="/duly/rounds", type="duly.round.opened",
                allow_http=self._private, allow_private=self._private,
            )  # fmt: skip
        return self._transport

    def _url(self, message: Message) -> str | None:
        return self._urls.get(message.message_id)


def _letter(opened: Round, to: Recipient) -> str:
    assert opened.close_at is not None
    from duly.kernel.localtime import zone

    ends = opened.close_at.astimezone(zone(opened.zone))
    return (
        f"Hello {to.name},\n\na round of {to.group} has opened:\n\n{opened.prompt_text}\n\n"
        f"It closes on {ends:%Y-%m-%d} at {ends:%H:%M}, {opened.zone} time.\n"
    )


def _short(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= 80 else line[:79] + "…"


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
