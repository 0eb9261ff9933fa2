"""The task EMAIL_SEND: from a job's input to what is known of each of its recipients.

In order: read and check the fields, look at what earlier runs have left on record, leave out who is suppressed, hand the message to the
provider, write down what was answered, and end the run. Retries are the job's own. No address leaves this file but to the provider.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, NoReturn

from sqlalchemy import Connection

from duly.jobs.run import CURRENT, Context
from duly.kernel.errors import InvalidArgument, PermanentError, Retry, Snooze
from duly.kernel.hold import IN_A_ROW, Hold, Step, step
from duly.kernel.retry_after import bounded
from duly.kernel.verdict import Kind, Verdict
from duly.mail.address import Mailbox, read_mailbox, without_addresses
from duly.mail.host import Host
from duly.mail.message import Letter, Message, message_id, message_key, read_letter
from duly.mail.plan import NOW, Delivery, Ending, Start, State, back_at, conclude, held, start
from duly.mail.providers.base import Provider
from duly.mail.store import MailStore, fingerprint
from duly.mail.templates import Templates, filled_in
from duly.mail.verdict import Answer, Owner, Receipt, Undelivered

#: The audit action of a job whose recipients are all on the list of those who are not written to.
SUPPRESSED = "EMAIL_SUPPRESSED"
#: Seconds for which a job whose queue was paused stays away, so that the pause is there before it is looked at again.
ASIDE = 1.0
#: That of a job that was sent, and that of one that was replayed when everybody had it.
SENT, ALREADY = "EMAIL_SENT", "EMAIL_ALREADY_SENT"
#: How long deliveries of jobs that are gone are kept at the least, and how often that is looked at, in seconds.
KEPT, SWEEP = 30 * 86_400.0, 3600.0


class Prepared(NamedTuple):
    """What is known before a message is handed over."""

    mark: str
    plan: Start
    now: datetime
    hold: Hold | None
    #: Is the queue held, by whom ever?
    queue_is_held: bool


#: Characters of an error about the fields of a message.
MOST = 2000


class Sending:
    """One run of one job."""

    def __init__(
        self, app: Host, context: Context, provider: Provider, templates: Templates
    ) -> None:  # fmt: skip
        self.app, self.context, self.provider, self.templates = app, context, provider, templates
        self.db, self.job = app.engine.db, context.job
        self.store = MailStore(self.db)
        #: Who writes: another run of the same job has another name.
        self.holder = secrets.token_hex(8)
        #: The lease it runs under; asked here, because storage has threads of its own.
        self.token: int | None = getattr(getattr(CURRENT.get(), "claimed", None), "token", None)
        #: Fingerprint → address of everybody the job names.
        self.addresses: dict[str, str] = {}
        self.known: dict[str, Delivery] = {}
        self.codes: dict[str, Answer] = {}
        #: Fingerprints of those who may have the message from an earlier run: that they do not have it now does not clear that.
        self.doubtful: frozenset[str] = frozenset()
        #: What held the queue when this run began.
        self.hold: Hold | None = None
        #: Does this run try whether the other side is back?
        self.is_probe = False
        #: Is the sender the one of the settings, so that what is said of them is about every message?
        self.is_usual_sender = True
        #: Does the job end while no one knows whether some have its message?
        self.in_doubt = False

    @property
    def road(self) -> tuple[str, str]:
        """(queue, provider): what is held together."""
        return self.job.queue, self.provider.name

    async def run(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Send. Returns the output of the job; raises how the run ended otherwise."""
        try:
            return await self._run(given)
        finally:
            if self.in_doubt:  # what the alert mail_unknown is raised by
                ident, queue = self.job.id, self.job.queue
                await self.db.arun(
                    self.db.write, lambda c: self.store.note(c, f"unknown:{ident}", "unknown", queue=queue, job=ident)
                )

    async def _run(self, given: Mapping[str, Any]) -> dict[str, Any]:
        settings = self.app.settings
        try:
            letter = read_letter(
                filled_in(given, self.templates), sender=settings.mail_from, most=settings.mail_attachments
            )
        except InvalidArgument as error:
            raise PermanentError(without_addresses(str(error), MOST)) from None
        mark, plan, now, self.hold, queue_is_held = await self.db.arun(self._prepare, letter)
        self.is_usual_sender = given.get("from") is None or _is(letter.sender, settings.mail_from)
        states: dict[str, State | None] = {f: d.state for f, d in self.known.items() if f in self.addresses}
        states |= dict.fromkeys(plan.suppressed, State.SUPPRESSED) | dict.fromkeys(plan.pending)
        key = message_key(mark, self.job.created_at, self.job.id)
        after: float | None = None
        if plan.pending:
            await self._wait_for_others(now, queue_is_held)
            message = self._message(letter, states, plan, key, now)
            answered, after = await self._hand_over(message, key)
            states |= answered
        ending = conclude(list(states.values()), len(plan.pending))
        if ending.kind == "sent" and not any(states[f] is State.ACCEPTED for f in plan.pending):
            audited = self.store.is_audited
            if await self.db.arun(self.db.read, lambda c: audited(c, self.job.id, SENT)):
                self.context.audit_action = ALREADY  # the trail does not say twice that it was sent
        return self._end(ending, states, message_id(key, letter), after)

    # ------------------------------------------------------------------ before

    async def _wait_for_others(self, now: datetime, queue_is_held: bool) -> None:
        """Go on, also as the one that tries whether the other side is back. Raises Snooze while it is not wanted."""
        hold = self.hold
        what = step(hold, now, opened=hold is not None and hold.wide and not queue_is_held)
        if hold is None or what is Step.GO:
            return
        if what is Step.PROBE:
            until = now + timedelta(seconds=2 * self.app.settings.mail_timeout)
            self.is_probe = await self.db.arun(self.db.write, lambda c: self.store.probe(c, *self.road, hold, until))
            if self.is_probe:
                return
        raise Snooze(hold.problem, until=back_at(hold, now, random.random()))  # noqa: S311

    def _prepare(self, letter: Letter) -> Prepared:
        """What is on record, and who is to be sent to. Suppressions are written down."""

        mark = self.store.kept_mark()

        def read(c: Connection) -> tuple[Start, datetime, Hold | None, bool]:
            now = self.db.present(c)
            self.addresses = {fingerprint(mark, m.normalised): m.normalised for _, m in letter.recipients()}
            self.known = self.store.known(c, self.job.id)
            self.doubtful = frozenset(f for f, d in self.known.items() if d.doubtful())
            on_list = self.store.suppressed(c, self.job.tenant, list(self.addresses.values()))
            plan = start(
                list(self.addresses), self.known, frozenset(f for f, a in self.addresses.items() if a in on_list),
                provider=self.provider.name, remembers=self.provider.remembers, unknown=self.app.settings.mail_unknown, now=now,
                since=self.job.run_at,
            )  # fmt: skip
            hold = self.store.hold(c, *self.road) if self.job.queue != NOW else None
            return plan, now, hold, hold is not None and self.app.engine.queues.get(c, self.job.queue).is_held(now)

        plan, now, hold, queue_is_held = self.db.read(read)
        if plan.suppressed:
            self.db.write(
                lambda c: self.store.suppress_recipients(
                    c, self.job.id, self.job.tenant, plan.suppressed, self.known, self.holder
                )
            )
        return Prepared(mark, plan, now, hold, queue_is_held)

    def _message(
        self, letter: Letter, states: Mapping[str, State | None], plan: Start, key: str, now: datetime
    ) -> Message:
        """The letter without those who are suppressed, to those who are to get it now."""
        kept = frozenset(self.addresses[f] for f, state in states.items() if state is not State.SUPPRESSED)
        seen = {m.normalised: m.address for _, m in letter.recipients()}
        pending = tuple(seen[self.addresses[f]] for f in plan.pending)
        marks = {seen[address]: f for f, address in self.addresses.items()}

        async def ahead(addresses: Sequence[str]) -> None:
            await self.db.arun(self._ahead, [marks[a] for a in addresses])

        return Message(letter.only(kept), message_id(key, letter), now, pending, ahead)

    def _ahead(self, recipients: Sequence[str]) -> None:
        """Written, as the holder of the lease, before anything is handed over. Raises Retry when another run is at it."""
        token = self.token

        def write(c: Connection) -> bool:
            if token and not self.store.holds(c, self.job.id, token):
                return False
            return self.store.ahead(
                c, self.job.id, self.job.tenant, recipients, self.known, provider=self.provider.name, holder=self.holder
            )

        if not self.db.write(write):
            raise Retry("another run of this job has begun to send it")

    # ------------------------------------------------------------------ the provider

    async def _hand_over(self, message: Message, key: str) -> tuple[dict[str, State | None], float | None]:
        """(what is known of each recipient now, seconds to wait before those without an answer are tried again)."""
        marks = {address: f for f, address in self.addresses.items()}
        pending = {address.lower(): marks[address.lower()] for address in message.pending}
        try:
            receipt = await self.provider.send(message, key)
        except Undelivered as error:
            return await self._undelivered(error.verdict, list(pending.values()))
        self.context.remote_id = receipt.remote_id
        states, told = dict[str, State | None](), _told(receipt)
        for address, recipient in pending.items():
            state, answer = told.get(address, (State.ACCEPTED, None))
            states[recipient] = State.UNKNOWN if state is State.REFUSED and recipient in self.doubtful else state
            if answer is not None:
                self.codes[recipient] = answer
        await self.db.arun(self._written, states)
        answers = [self.codes.get(f) for f in states]
        is_of_all = all(a is not None and self._is_of_all(a.owner) for a in answers)
        found = set(states.values())
        if is_of_all and found in ({None}, {State.UNKNOWN}):
            await self._declined(self.codes[next(iter(states))].said, ends=found != {None})
        else:
            await self._answered()
        return states, None

    async def _undelivered(
        self, verdict: Verdict, pending: Sequence[str]
    ) -> tuple[dict[str, State | None], float | None]:  # fmt: skip
        """What becomes of everybody when the answer was about the message as a whole."""
        self.codes |= dict.fromkeys(pending, Answer(None, verdict.reason))
        if verdict.owner == Owner.SENDER and not self.is_usual_sender and verdict.kind in (Kind.AUTH, Kind.AWAY):
            # this message names them, and no other is stopped for it
            verdict = replace(verdict, kind=Kind.PERMANENT if verdict.kind is Kind.AUTH else Kind.TRANSIENT)
        declined = verdict.kind is Kind.TRANSIENT and self._is_of_all(verdict.owner)
        if verdict.kind in (Kind.PERMANENT, Kind.TRANSIENT, Kind.BUSY) and not declined:
            await self._answered()
        again: dict[str, State | None] = dict.fromkeys(pending)
        if verdict.kind is Kind.BUSY:  # an earlier run's request, which its side gives up after mail_timeout
            raise Snooze(verdict.reason, after=bounded(verdict.after, self.app.settings.mail_timeout))
        if verdict.kind is Kind.UNKNOWN:
            if self.provider.remembers:
                # what stands there since before the sending lets the next run ask again, and says from when the key counts
                if self._is_of_all(verdict.owner):
                    await self._declined(verdict.reason)
                accepted = sum(d.state is State.ACCEPTED for f, d in self.known.items() if f in self.addresses)
                why = self._in_doubt(len(pending), accepted, verdict.reason) if self._last else verdict.reason
                raise Retry(why, after=self._wait(verdict.after))
            if self._is_of_all(verdict.owner):
                await self._declined(verdict.reason, ends=True)
            return dict.fromkeys(pending, State.UNKNOWN), None
        if verdict.kind is Kind.PERMANENT:
            states: dict[str, State | None] = {
                f: State.UNKNOWN if f in self.doubtful else State.REFUSED for f in pending
            }
            await self.db.arun(self._written, states)
            return states, None
        await self.db.arun(self._written, again)
        if verdict.kind is Kind.TRANSIENT:
            if declined:
                await self._declined(verdict.reason)
            return again, self._wait(verdict.after)
        if verdict.kind is Kind.AUTH:
            await self.db.arun(pause, self.app, *self.road, verdict.reason)
            raise Snooze(verdict.reason, after=ASIDE)
        await self._hold(verdict)

    def _wait(self, told: float | None) -> float | None:
        """Seconds until the next attempt, where the other side named some: not fewer than the job's own."""
        if told is None:
            return None
        own = self.app.engine.policy(self.job.task).backoff.delay(max(1, self.job.attempts), random.random())  # noqa: S311
        return bounded(told, own)

    def _is_of_all(self, owner: str) -> bool:
        """Is it about every message, if it is said of several?"""
        return owner in (Owner.SERVER, Owner.NETWORK) or (owner == Owner.SENDER and self.is_usual_sender)

    async def _declined(self, reason: str, ends: bool = False) -> None:
        """The other side took this message for nobody, as far as anyone knows, and the reason lies with it or with us. One message may be
        the cause of that; several in a row are not: then the queue is held. Raises Snooze, unless the run ends by itself (``ends``).
        """
        if self.job.queue == NOW:
            return
        several = await self.db.arun(
            self.db.write, lambda c: self.store.decline(c, *self.road, self.job.id, reason, most=IN_A_ROW)
        )
        away = Verdict(Kind.AWAY, reason, owner=Owner.SERVER)
        if several and ends:
            await self._keep_hold(away)
        elif several:
            await self._hold(away, shared=True)

    async def _hold(self, verdict: Verdict, shared: bool = False) -> NoReturn:
        """Put this job off, and with it everything else that the queue has for the provider. No attempt is used. ``shared``: another
        message is as good for trying whether it is over.
        """
        if self.job.queue == NOW:
            raise Retry(verdict.reason)  # someone waits for the answer, and cancels it
        before, hold, now = await self._keep_hold(verdict)
        # the first that was told comes back exactly then; who was under way meanwhile is spread as all others are
        first = (before is None or before.until <= now) and not shared
        raise Snooze(verdict.reason, until=hold.until if first else back_at(hold, now, random.random()))  # noqa: S311

    async def _keep_hold(self, verdict: Verdict) -> tuple[Hold | None, Hold, datetime]:
        """(the hold of before, the hold that follows from an answer, now). It is told as an event."""

        def keep(c: Connection) -> tuple[Hold | None, Hold, datetime]:
            now = self.db.present(c)
            queue, _ = self.road
            self.app.engine.queues.locked(c, queue)  # one after the other
            before = self.store.hold(c, *self.road)
            hold = held(before, verdict, queue, now, self.is_probe)
            self.store.keep_hold(c, *self.road, hold)
            if hold.wide:
                self.app.engine.queues.hold(c, queue, hold.until, f"mail: {verdict.reason}"[:500], "mail")
            return before, hold, now

        before, hold, now = await self.db.arun(self.db.write, keep)
        more = {"failures": hold.tries} if verdict.kind is Kind.AWAY else {"quota": verdict.kind is Kind.QUOTA}
        self.app.events.emit(
            "mail_away" if verdict.kind is Kind.AWAY else "mail_throttled", "warning", job=self.job.id, queue=self.job.queue,
            provider=self.provider.name, reason=verdict.reason, wait=(hold.until - now).total_seconds(), asked=verdict.after, **more,
        )  # fmt: skip
        return before, hold, now

    async def _answered(self) -> None:
        """The other side has answered about this message: what held the queue is over."""
        hold = self.hold
        if hold is None:
            return
        self.hold = None
        if (
            await self.db.arun(self.db.write, lambda c: self.store.end_hold(c, *self.road, hold))
            and hold.kind != Kind.TRANSIENT
        ):
            self.app.events.emit("mail_resumed", "info", queue=self.job.queue, provider=self.provider.name, held=str(hold.kind))  # fmt: skip

    def _written(self, states: Mapping[str, State | None]) -> None:
        """Put on record what was answered; who is to be tried again was never handed anything."""
        answers = {f: (s, self.codes[f].code if f in self.codes else None) for f, s in states.items() if s is not None}
        again = [f for f, s in states.items() if s is None and f not in self.doubtful]

        def write(c: Connection) -> None:
            self.store.answer(
                c, self.job.id, self.job.tenant, answers, self.known, provider=self.provider.name, holder=self.holder
            )
            if again:
                self.store.withdraw(c, self.job.id, again, self.known, self.holder)

        self.db.write(write)

    # ------------------------------------------------------------------ the end

    def _end(
        self, ending: Ending, states: Mapping[str, State | None], ident: str, after: float | None
    ) -> dict[str, Any]:
        """The output of a job that is done; else raises what became of it."""
        names = {f: n for n, f in enumerate(self.addresses)}
        known = {f: d.code for f, d in self.known.items()} | {f: a.code for f, a in self.codes.items()}
        refused = [
            {"recipient": names[f], **({"code": known[f]} if known.get(f) else {})}
            for f, s in states.items() if s is State.REFUSED
        ]  # fmt: skip
        said = next((a.said for f, a in self.codes.items() if a.said and states.get(f) is not State.ACCEPTED), "")
        said = without_addresses(said)  # a provider of somebody's own may not have done so
        if ending.kind in ("sent", "suppressed"):
            if ending.kind == "suppressed":
                self.context.audit_action = SUPPRESSED  # the trail does not say that anything was sent
            if refused:
                self.app.events.emit(
                    "mail_refused", "warning", job=self.job.id, provider=self.provider.name, refused=ending.refused, accepted=ending.accepted
                )  # fmt: skip
            return {
                "outcome": ending.kind, "provider": self.provider.name, "message_id": ident, "accepted": ending.accepted,
                "suppressed": ending.suppressed, "refused": refused,
            }  # fmt: skip
        everybody = len(self.addresses)
        if ending.kind in ("on", "retry"):
            some = f"{ending.waiting} of {everybody} recipients do not have it yet: " if everybody > 1 else ""
            # that they are to be tried again does not clear that they may have it
            unknown = ending.unknown + sum(s is None and f in self.doubtful for f, s in states.items())
            if ending.kind == "on":
                self.app.events.emit(
                    "mail_partly", "info", job=self.job.id, provider=self.provider.name, accepted=ending.accepted, waiting=ending.waiting
                )  # fmt: skip
                raise Snooze(some + said, after=self.app.engine.policy(self.job.task).backoff.delay(1, random.random()))  # noqa: S311
            said = said or "the provider asked to be tried again"
            if unknown and self._last:
                raise Retry(self._in_doubt(unknown, ending.accepted, some + said))
            raise Retry(some + said, after=after)
        if ending.kind == "unknown":
            self._unknown(ending, said)
        raise PermanentError(
            said or _refused({known[f] for f, s in states.items() if s is State.REFUSED and known.get(f)})
        )

    def _unknown(self, ending: Ending, said: str) -> NoReturn:
        if self.app.settings.mail_unknown != "resend":
            raise PermanentError(self._in_doubt(ending.unknown, ending.accepted, said, "mail_unknown is hold"))
        if self._last:
            raise Retry(self._in_doubt(ending.unknown, ending.accepted, said))
        raise Retry(f"{said or 'no answer is on record'}; it is sent again, because mail_unknown is resend")

    @property
    def _last(self) -> bool:
        """Does nothing follow on a failure of this run?"""
        return self.job.attempts >= self.job.max_attempts

    def _in_doubt(self, unknown: int, accepted: int, said: str, why: str = "its attempts are used up") -> str:
        """What is said of a job that ends while nobody knows whether some have its message. Told as an event too."""
        self.in_doubt = True
        self.app.events.emit(
            "mail_unknown", "error", job=self.job.id, provider=self.provider.name, unknown=unknown, accepted=accepted
        )
        return (
            f"the outcome is unknown for {unknown} of {len(self.addresses)} recipients: the message was handed over and no answer is on "
            f"record{f' ({said})' if said else ''}, so it may have been sent, and it is not sent again ({why}). Look at the other side; "
            f"if it was not sent, `duly mail resend {self.job.id}` sends it, under the same Message-ID."
        )

    def sweep(self) -> int:
        """Remove deliveries of jobs that are gone. Returns how many rows."""
        retention = self.app.settings.retention
        if not retention:
            return 0
        kept = timedelta(seconds=max(retention, KEPT))
        return self.db.write(lambda c: self.store.prune(c, self.db.present(c) - kept))


def _is(sender: Mailbox, usual: str) -> bool:
    """Is it who sends what names no one? True also where the settings name no one: then no message is unlike the others."""
    try:
        return not usual or read_mailbox(usual, "mail_from").normalised == sender.normalised
    except InvalidArgument:
        return False


def pause(app: Host, queue: str, provider: str, reason: str) -> None:
    """Nothing of this queue would be sent: no attempt is used up for that."""
    if app.queues.get(queue).paused_at is None:
        app.queues.pause(queue, f"mail: {reason}", actor="mail")
        app.events.emit("mail_paused", "error", queue=queue, provider=provider, reason=reason)


def _told(receipt: Receipt) -> dict[str, tuple[State | None, Answer]]:
    """What was said of whom, by addresses in small letters: the other side need not write them as they were given. The last one counts."""
    groups = ((State.UNKNOWN, receipt.unknown), (None, receipt.deferred), (State.REFUSED, receipt.refused))
    return {address.lower(): (state, answer) for state, answers in groups for address, answer in answers.items()}


def _refused(codes: Collection[int | None]) -> str:
    """What is said where an earlier run was answered, and died before it could say so."""
    answered = ", ".join(str(code) for code in sorted(code for code in codes if code))
    return f"every recipient was refused{f' (the other side answered {answered})' if answered else ''}"
