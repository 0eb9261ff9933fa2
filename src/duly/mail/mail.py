"""``Mail(app)``: the task EMAIL_SEND in an application, and what programs and people do with mail.

Making one defines the task on queue ``mail``; its success is audited as EMAIL_SENT. Source: R003-7, T003-d, T003-h.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from duly.jobs.admin import JobAdmin
from duly.jobs.job import Enqueued, Job, Status
from duly.jobs.run import INJECT, Context
from duly.kernel.backoff import Backoff
from duly.kernel.errors import InvalidArgument, PermanentError, Snooze, WrongState, brief
from duly.kernel.events import Event
from duly.kernel.owned import OnePer
from duly.kernel.payload import check_text
from duly.kernel.verdict import Kind
from duly.mail import providers
from duly.mail.bounces import Bounces
from duly.mail.handler import SENT, SWEEP, Sending, pause
from duly.mail.host import Host
from duly.mail.message import Letter, check_addressed, read_letter, read_recipients
from duly.mail.plan import Standing, State, standing
from duly.mail.providers.base import ChecksSize, Provider
from duly.mail.store import MailStore
from duly.mail.suppressions import Suppressions
from duly.mail.templates import Rendered, Templates, filled_in
from duly.mail.verdict import Undelivered
from duly.settings import Settings

EMAIL_SEND, EMAIL_SENT, QUEUE = "EMAIL_SEND", SENT, "mail"

#: Without attachments, a message of fewer characters is not measured when its job is made.
LARGE = 500_000
#: The waits of a message that is refused for now: with the attempts of the settings for about four days (RFC 5321, 4.5.4.1).
BACKOFF = Backoff(base=60.0, factor=2.0, max=3 * 3600.0)

_made = OnePer["Mail"]()


@dataclass(frozen=True, slots=True)
class ProviderState:
    """A provider as the settings have it: is it the chosen one, and what does it lack?"""

    name: str
    chosen: bool
    missing: tuple[str, ...]
    #: False: a name was chosen that no provider has.
    known: bool = True


class Mail:
    """The mail of an application.

    ``provider``: a name as in the setting ``mail_provider``, or an object that is one (``providers.base.Provider``); without it the
    settings decide, when the first message is sent. A name that nobody knows fails jobs for good, naming it.

    ``attempts``: how often a message is tried that is refused for now; without it the setting ``mail_attempts``. ``backoff``: the waits
    between attempts; without it 1, 2, 4 … minutes up to 3 hours. ``timeout``: seconds for a whole run; without it each step of an
    exchange has ``mail_timeout``.
    """

    def __init__(
        self, app: Host, provider: str | Provider | None = None, *, attempts: int | None = None, backoff: Backoff | None = None,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        self._app, self._given = app, provider
        self._options = {
            "max_attempts": app.settings.mail_attempts if attempts is None else attempts, "backoff": backoff or BACKOFF, "timeout": timeout,
        }  # fmt: skip
        self._ready: tuple[Settings, Provider] | None = None
        self._templates: Templates | None = None
        self._swept = float("-inf")
        self.suppressions, self.bounces = Suppressions(app), Bounces(app)
        self._define()
        app.events.listen(self._heard)
        _made.keep(app, self)

    @classmethod
    def of(cls, app: Host) -> Mail:
        """The mail of an application: the one that it made, or a new one."""
        return _made.get(app) or cls(app)

    def _define(self) -> None:
        async def email_send(
            context: Context = INJECT, to: Any = None, cc: Any = None, bcc: Any = None, subject: Any = None, text: Any = None,
            html: Any = None, reply_to: Any = None, headers: Any = None, attachments: Any = None, template: Any = None, data: Any = None,
            **more: Any,
        ) -> dict[str, Any]:  # fmt: skip
            # ``from`` is no name for a parameter, so it comes with the rest; anything else there is refused by name
            given = {
                "to": to, "cc": cc, "bcc": bcc, "subject": subject, "text": text, "html": html, "reply_to": reply_to,
                "headers": headers, "attachments": attachments, "template": template, "data": data,
            }  # fmt: skip
            return await self._run(context, {n: v for n, v in given.items() if v is not None} | more)

        self._app.task(EMAIL_SEND, queue=QUEUE, audit_action=EMAIL_SENT, check=self._check, **self._options)(email_send)

    async def _run(self, context: Context, given: Mapping[str, Any]) -> dict[str, Any]:
        app, db = self._app, self._app.engine.db
        try:
            provider = self.provider()
        except Undelivered as error:
            if error.verdict.kind is Kind.PERMANENT:
                raise PermanentError(error.verdict.reason) from None
            await db.arun(pause, app, context.job.queue, "", error.verdict.reason)
            raise Snooze(error.verdict.reason, after=1.0) from None
        sending = Sending(app, context, provider, self.templates)
        out = await sending.run(given)
        now = app.engine.clock.monotonic()
        if now - self._swept >= SWEEP:
            self._swept = now
            await db.arun(sending.sweep)
        return out

    # ------------------------------------------------------------------ sending

    def send(
        self, to: str | Sequence[str], subject: str | None = None, text: str | None = None, **more: Any
    ) -> Enqueued:
        """Make a job that sends a message. Returns (job, created).

        Fields: ``cc``, ``bcc``, ``reply_to`` (a text or a list of texts), ``html``, ``headers`` (a mapping), ``attachments`` (a list of
        {filename, content in base64, content_type}), ``from_`` (the sender, else the setting ``mail_from``), ``template`` and ``data``.
        What else is given are options of the job (``key``, ``run_at``, ``session``, ``tenant`` …). Raises InvalidArgument naming the field.
        """
        fields, options = self._fields({"to": to, "subject": subject, "text": text, **more})
        made: Enqueued = self._app.enqueue(EMAIL_SEND, fields, **options)
        return made

    async def asend(
        self, to: str | Sequence[str], subject: str | None = None, text: str | None = None, **more: Any
    ) -> Enqueued:
        """As ``send``, for callers on an event loop."""
        fields, options = self._fields({"to": to, "subject": subject, "text": text, **more})
        made: Enqueued = await self._app.aenqueue(EMAIL_SEND, fields, **options)
        return made

    def _fields(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(fields, options). The fields are checked; a template is filled in where the message is sent."""
        names = {"from_": "from"} | {name: name for name in _FIELDS}
        fields = {names[n]: v for n, v in given.items() if n in names and v is not None}
        options = {n: v for n, v in given.items() if n not in names}
        self._letter(fields)
        return fields, options

    def _letter(self, fields: Mapping[str, Any]) -> Letter:
        """The letter that fields make, a template left empty. Raises InvalidArgument."""
        if "template" in fields:
            checked = {n: v for n, v in fields.items() if n not in ("template", "data")} | {"text": "-"}
            checked.setdefault("subject", "-")
        else:
            checked = filled_in(fields, self.templates)
        settings = self._app.settings
        # the one who sends may be known where the worker runs only
        return read_letter(checked, sender=settings.mail_from or "unknown@example.invalid", most=settings.mail_attachments)  # fmt: skip

    def _check(self, given: Mapping[str, Any]) -> None:
        """What every door asks before it makes a job of EMAIL_SEND: is it to somebody, and not too large for the provider? What else is
        wrong fails when it is run, with the field's name. Raises InvalidArgument.
        """
        check_addressed(given)
        bodies = (given.get("text"), given.get("html"))
        if not given.get("attachments") and sum(len(body) for body in bodies if isinstance(body, str)) < LARGE:
            return
        try:
            letter, provider = self._letter(given), self.provider()
        except (InvalidArgument, Undelivered):  # the provider may be configured where the worker runs only
            return
        if isinstance(provider, ChecksSize):
            with contextlib.suppress(Undelivered):
                provider.check_size(letter)

    def resend(self, job: int, reason: str = "", *, tenant: str | None = None, actor: str = "code") -> Job:
        """Send a failed or cancelled job again to everybody who is not known to have the message, and return it.

        It is a replay that sends to those too of whom nobody knows whether they have it. That decision is the caller's, and audited
        (EMAIL_RESENT) when there is anybody of the kind. Raises NotFound, and WrongState when the job is live or has succeeded.
        """
        app, db = self._app, self._app.engine.db
        check_text(reason, "reason")
        app.open()

        def act(connection: Connection) -> Job:
            # the replay first, because it takes the job's lock: a run that has begun since would lose what it has written ahead
            found = app.engine.reader.get(connection, job, tenant)
            if found.status not in (Status.FAILED, Status.CANCELLED):
                raise WrongState(f"job {job}", found.status, "resend", (Status.FAILED, Status.CANCELLED))
            JobAdmin(app.engine).replay_in(connection, job, actor, reason)
            MailStore(db).release(connection, job, found.tenant, reason, actor)
            return app.engine.reader.get(connection, job)

        replayed = db.write(act)
        db.bells.ring()
        return replayed

    def standing(self, job: int, *, tenant: str | None = None) -> Standing:
        """Who has the message of a job, whatever has become of the job: numbers of recipients. Raises NotFound."""
        app, db = self._app, self._app.engine.db
        app.open()

        def read(connection: Connection) -> tuple[Any, list[State]]:
            given = app.engine.reader.get(connection, job, tenant).input
            return given, [d.state for d in MailStore(db).known(connection, job).values()]

        given, states = db.read(read)
        try:
            named = len(read_recipients(given)) if isinstance(given, Mapping) else 0
        except InvalidArgument:
            named = 0  # it was never sent to anybody
        return standing(named, states)

    def preview(self, template: str, data: Mapping[str, Any] | None = None) -> Rendered:
        """A template, filled in: ``subject``, ``text``, ``html``. Raises InvalidArgument naming what is missing."""
        return self.templates.render(template, data)

    # ------------------------------------------------------------------ providers

    @property
    def templates(self) -> Templates:
        folder = self._app.settings.mail_templates
        if self._templates is None or self._templates.folder != folder:
            self._templates = Templates(folder)
        return self._templates

    def provider(self) -> Provider:
        """Who carries the mail. Raises Undelivered: nobody knows the name, or it is not configured."""
        if self._given is not None and not isinstance(self._given, str):
            return self._given
        settings = self._app.settings
        if self._ready is None or self._ready[0] is not settings:
            name = self._given or providers.chosen(settings)
            self._ready = settings, providers.make(name, settings, self._app.engine.clock)
        return self._ready[1]

    def providers(self) -> list[ProviderState]:
        """Every provider, whether it is the chosen one, and the settings that it lacks. One of the program's own, and a name that nobody
        knows, stand behind the others when they are chosen.
        """
        settings = self._app.settings
        if self._given is not None and not isinstance(self._given, str):
            mine, more = "", [ProviderState(self._given.name, True, ())]
        else:
            mine = self._given or providers.chosen(settings)
            more = [ProviderState(mine, True, (), known=False)] if mine and mine not in providers.KNOWN else []
        found = [ProviderState(n, n == mine, tuple(providers.missing(n, settings))) for n in providers.KNOWN]
        return found + more

    async def check(self) -> str:
        """Look whether the provider's configuration works, without sending anything. Returns what was found; raises Undelivered."""
        return await self.provider().check()

    def _heard(self, event: Event) -> None:
        """A worker of the queue begins: what the provider takes at once becomes the queue's limit, unless one is set."""
        if event.name != "worker_started" or QUEUE not in event.facts.get("queues", ()):
            return
        try:
            most = self.provider().concurrency
            if most is not None and self._app.queues.get(QUEUE).limit is None:
                self._app.queues.set(QUEUE, limit=most, actor="mail")
        except Undelivered:
            pass  # the first job says so
        except Exception as error:
            self._app.events.emit("mail_limit_failed", "warning", queue=QUEUE, error=brief(error))


_FIELDS = (
    "to", "cc", "bcc", "subject", "text", "html", "reply_to", "headers", "attachments", "template", "data", "from",
)  # fmt: skip
