"""One run of one job of the room, whether it publishes or comments: what it writes and when, and what a refusal means.

A run takes over what earlier ones have left on record, under its lease. ``ahead`` is committed, as the holder of the lease, before the
request that publishes; so whatever kills a worker, the next run knows whether the post may be there, and asks before it sends (T002-c,
T002-i). Retries, waits and limits are the job's and the queue's; what a refusal means for them stands in ``Attempt.refused``.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar

from sqlalchemy import Connection

from duly.jobs.job import Job
from duly.jobs.run import CURRENT, Context
from duly.kernel.backoff import Backoff
from duly.kernel.errors import InvalidArgument, PermanentError, Retry, Signal, Snooze, brief
from duly.kernel.exception_group import decisive
from duly.kernel.hold import IN_A_ROW, Hold, Pace, held
from duly.kernel.retry_after import bounded
from duly.kernel.source import InvalidDocument
from duly.kernel.verdict import NETWORK, Kind, Refusal, Verdict
from duly.publishing.channel import Channel
from duly.publishing.hooks import Hooks
from duly.publishing.host import Host
from duly.publishing.state import State
from duly.publishing.store import BREAKER, HELD, TRIAL, Fare, PublicationStore, Row
from duly.publishing.view import Publication, Trace, publication

T = TypeVar("T")

#: Who holds a publication of which people were told that nobody knows.
TOLD = "told"
#: Seconds for which a job whose queue was paused or held stays away, so that this is there before it is looked at again. The queue keeps it
#: longer, and gives it back when it opens, however that comes.
ASIDE = 1.0
#: Seconds after which a channel that nobody declared is asked for again.
ELSEWHERE = 60.0
#: For how long a channel is held in front of another side that takes nothing, or has had too many posts and names no time.
AWAY = Pace(Backoff(base=60.0, factor=2.0, max=900.0))
_TAKEN = "another run of this job has taken over"


@dataclass(slots=True)
class Running:
    """What runs share: the application, its channels by name, its subscribers."""

    app: Host
    channel: Callable[[str], Channel | None]
    hooks: Hooks
    #: When a connector's own limits were looked at last, by channel (monotonic).
    looked: dict[str, float] = field(default_factory=dict)

    def tell_unknown(self, ident: int, channel: str, reason: str) -> None:
        """Nobody knows whether it was published, and it is not published again by itself."""
        self.app.events.emit("publish_unknown", "error", job=ident, channel=channel, reason=reason)

    def tell_failed(self, found: Publication) -> None:
        """A post has failed for good. From a thread without an event loop. An unknown outcome has an event of its own."""
        error = found.error or "it failed"
        if not found.unknown:
            self.app.events.emit("publish_failed", "error", job=found.id, channel=found.channel, error=error)
        self.hooks.tell_here("failed", found, {"error": error, "unknown": found.unknown})

    def tell_comment_error(self, found: Publication, parent: int | None, error: str) -> None:
        """A first comment could not be made, or failed for good. From a thread without an event loop."""
        self.emit_comment_error(found, parent, error)
        self.hooks.tell_here("ig_first_comment_error", found, {"error": error, "parent_id": parent})

    def emit_comment_error(self, found: Publication, parent: int | None, error: str) -> None:
        self.app.events.emit(
            "ig_first_comment_error", "warning", job=found.id, parent=parent, channel=found.channel, error=error
        )  # fmt: skip


class Attempt:
    """One run of one job of the room."""

    def __init__(self, running: Running, context: Context, channel: Channel) -> None:
        self.running, self.app, self.context, self.channel = running, running.app, context, channel
        self.job: Job = context.job
        self.db = self.app.engine.db
        self.store = PublicationStore(self.db)
        #: Who writes: another run of the same job has another name.
        self.holder = secrets.token_hex(8)
        #: The lease it runs under; asked here, because storage has threads of its own.
        self.token = _token()
        self.row = Row(State.PREPARING)
        #: What is noted, as the connector sees it.
        self.known: dict[str, Any] = {}
        #: The request that publishes may have been made, in this run or before it, and no answer is on record.
        self.doubtful = False
        #: It is the one that is tried after a hold of the circuit breaker.
        self.trial = False
        #: Where it is published, and what it can be known by there: written ahead with it.
        self.place, self.looks = "", ""

    # ------------------------------------------------------------------ the notebook (connectors.base.Notebook)

    @property
    def facts(self) -> Mapping[str, Any]:
        return dict(self.known)

    @property
    def publication(self) -> Publication:
        """The job as the door shows it, for functions that publish."""
        return publication(self.job, Trace(self.row.state, self.row.remote_id, self.row.url))

    async def note(self, **facts: Any) -> None:
        """Add facts; None takes one away. Raises Retry when the lease is lost."""
        known = {name: value for name, value in {**self.known, **facts}.items() if value is not None}
        await self._held(self.store.note, known)
        self.known = known

    async def ahead(self) -> None:
        """Write down that the request that publishes is next. Raises Retry when the lease is lost."""

        def write(c: Connection) -> dict[str, Any] | None:
            # the first instant since the last answer: a reconcile looks from there on
            facts = {**self.known, "ahead_at": self.known.get("ahead_at") or self.db.present(c).isoformat()}
            mine = (self.job.id, self.token, self.holder)
            return facts if self.store.ahead(c, *mine, facts, self.place, self.looks) else None

        written = await self.db.arun(self.db.write, write)
        if written is None:
            raise Retry(_TAKEN)
        self.known, self.doubtful = written, True

    async def back(self, event: str) -> None:
        """After ``refuse`` and ``miss`` it is certain that nothing is there; ``forget`` only acts as if it were."""
        if not self.doubtful:
            return
        kept = self.known if event == "forget" else {n: v for n, v in self.known.items() if n != "ahead_at"}
        await self._held(self.store.back, event, kept)
        self.known, self.doubtful = dict(kept), False

    async def _held(self, write: Callable[..., bool], *more: Any) -> None:
        if not await self.db.arun(self.db.write, lambda c: write(c, self.job.id, self.token, self.holder, *more)):
            raise Retry(_TAKEN)

    # ------------------------------------------------------------------ before

    async def begin(self) -> None:
        """Take over what is on record. Raises Retry when the lease is lost, Snooze when the channel is held by now."""
        job, key = self.job, self.job.key or str(self.job.id)

        def take(c: Connection) -> tuple[Row | None, datetime | None, str, bool]:
            row = self.store.begin(
                c, job.id, self.token, self.holder, job.tenant, job.queue, {"key": key, "tenant": job.tenant}
            )
            if row is None:
                return None, None, "", False
            # after a hold of the circuit breaker one run goes first: who asks at the same time waits here, and finds the hold
            fare = self.store.fare(c, job.queue, lock=True)
            until, why = self._held_now(c)
            return row, until, why, until is None and self._try_one(c, fare)

        row, until, why, self.trial = await self.db.arun(self.db.write, take)
        if row is None:
            raise Retry(_TAKEN)
        self.row, self.known = row, {**row.facts, "key": key, "tenant": job.tenant}
        self.doubtful = row.state is State.SENDING
        if until is not None and row.state is not State.PUBLISHED:
            raise Snooze(f"channel {job.queue} is held: {why}" if why else f"channel {job.queue} is held", after=ASIDE)

    def _held_now(self, c: Connection) -> tuple[datetime | None, str]:
        """(until when the channel's queue is held now, why); (None, "") when it is not."""
        queue = self.app.engine.queues.get(c, self.job.queue)
        return (queue.held_until, queue.held_reason or "") if queue.is_held(self.db.present(c)) else (None, "")

    def _try_one(self, c: Connection, fare: Fare) -> bool:
        """After a hold of the circuit breaker one run is a trial: the channel is held again until it has ended."""
        if fare.trips == 0 or fare.failures < max(1, self.channel.breaker.failures):
            return False
        self._hold(c, min(self.channel.breaker.cool_down(fare.trips), AWAY.backoff.max), f"{TRIAL} is under way")
        return True

    def _hold(self, c: Connection, seconds: float, reason: str) -> None:
        until = self.db.present(c) + timedelta(seconds=seconds)
        # the hold for a trial ends with the trial, whatever comes after it
        longer = not (self.trial and self._held_now(c)[1].startswith(TRIAL))
        self.app.engine.queues.hold(c, self.job.queue, until, reason[:500], "publishing", longer=longer)

    # ------------------------------------------------------------------ asking the other side

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask a connector. Raises Refusal whatever it raises, and how a handler says its run ended."""
        try:
            return await call()
        except (Refusal, Signal):
            raise
        except Exception as error:
            asked = decisive(error)
            if isinstance(asked, Refusal | Signal):
                raise asked from error
            # a connector's own mistake: whether it had sent by then, nobody knows
            raise Refusal(Verdict(Kind.UNKNOWN if self.doubtful else Kind.TRANSIENT, brief(error))) from error

    async def refused(self, verdict: Verdict) -> NoReturn:
        """What a refusal means for the job and its channel. Ends the run."""
        kind = verdict.kind
        reason = verdict.reason or f"the other side refused ({kind})"
        if kind is Kind.PERMANENT:
            await self._fares_well()
            raise PermanentError(reason)
        if kind is Kind.AWAY or (kind is Kind.TRANSIENT and verdict.owner == NETWORK):
            await self._away(verdict, reason)
        if kind is Kind.AUTH:
            await self.db.arun(self._pause, reason)
            raise Snooze(reason, after=ASIDE)
        if kind in (Kind.THROTTLED, Kind.QUOTA):
            await self.db.arun(self._throttled, verdict, reason)
            raise Snooze(reason, after=ASIDE)
        if kind is Kind.BUSY:
            raise Snooze(reason, after=bounded(verdict.after, ASIDE))
        await self.db.arun(self._failed, reason)
        raise Retry(reason, after=self.wait(verdict.after))

    def wait(self, told: float | None) -> float:
        """Seconds until the next run: the channel's backoff, and not sooner than the other side asked; a day at the most (R002-11)."""
        own = self.channel.backoff.delay(max(1, self.job.attempts), random.random())  # noqa: S311
        return bounded(told, own)

    @property
    def last(self) -> bool:
        """Is there no run after this one?"""
        return self.job.attempts >= self.job.max_attempts

    def _pause(self, reason: str) -> None:
        if self.app.queues.get(self.job.queue).paused_at is None:
            self.app.queues.pause(self.job.queue, f"publishing: {reason}"[:500], actor="publishing")
            self.app.events.emit("publish_paused", "error", job=self.job.id, channel=self.job.queue, reason=reason)

    async def _away(self, verdict: Verdict, reason: str) -> NoReturn:
        """The other side, or what stands before it, takes nothing now: the channel is held and nothing is used up. One post is tried after each
        hold, another one where there is one; a post that is refused so while others get through is refused for itself (case C046)."""
        times = int(self.known.get("away") or 0) + 1
        since = self.known.get("away_since") or self.app.engine.clock.now().isoformat()
        await self.note(away=times, away_since=since)
        if times >= IN_A_ROW and verdict.owner != NETWORK:
            since_at = datetime.fromisoformat(since)
            through = await self.db.arun(
                self.db.read, lambda c: self.store.went_through(c, self.job.queue, self.job.id, since_at)
            )
            if through:
                await self.alone(reason)

        seconds, counts = await self.db.arun(self.db.write, lambda c: self._hold_again(c, verdict, f"{HELD}: {reason}"))
        if not counts:
            raise Snooze(reason, after=ASIDE)
        self.ring()
        self.app.events.emit(
            "publish_held", "warning", job=self.job.id, channel=self.job.queue, reason=reason, owner=verdict.owner, wait=seconds
        )  # fmt: skip
        raise Snooze(reason, after=seconds + (AWAY.backoff.base if times > 1 else ASIDE))

    def _hold_again(self, c: Connection, verdict: Verdict, reason: str) -> tuple[float, bool]:
        """Hold the channel, or hold it for longer (``kernel.hold``). Returns for how many seconds, and whether this refusal counts: of those that
        were on their way together, one does."""
        queue = self.job.queue
        self.app.engine.queues.locked(c, queue)  # one after the other
        now, fare = self.db.present(c), self.store.fare(c, queue)
        until, why = self._held_now(c)
        # the hold for a trial ends with it
        before = (
            Hold(now, now if self.trial or until is None else until, why, verdict.kind, fare.trips)
            if fare.trips
            else None
        )
        hold = held(before, verdict.kind, reason, now, AWAY, after=verdict.after, is_probe=self.trial)
        if hold is not before:
            self._hold(c, (hold.until - now).total_seconds(), reason)
        if hold.tries > fare.trips:
            self.store.away(c, queue, max(1, self.channel.breaker.failures))
        return (hold.until - now).total_seconds(), hold.tries > fare.trips

    async def alone(self, reason: str) -> NoReturn:
        """It is refused where other posts of the channel get through. Ends the run."""
        raise PermanentError(
            f"{reason}. Other posts of this channel get through, so it is this post that is not let in: look at its text and links."
        )

    def _throttled(self, verdict: Verdict, reason: str) -> None:
        """Hold the channel: nobody of it asks before the other side will have it."""

        def write(c: Connection) -> float:
            now = self.db.present(c)
            named = (verdict.until - now).total_seconds() if verdict.until is not None else verdict.after
            if not named:
                return self._hold_again(c, verdict, reason)[0]
            seconds = bounded(named, ASIDE)
            self._hold(c, seconds, reason)
            return seconds

        seconds = self.db.write(write)
        self.ring()
        self.app.events.emit(
            "publish_throttled",
            "warning",
            job=self.job.id,
            channel=self.job.queue,
            reason=reason,
            quota=verdict.kind is Kind.QUOTA,
            wait=seconds,
        )

    def _failed(self, reason: str) -> None:
        """Count a failure that may go better later; too many in a row hold the channel."""
        breaker = self.channel.breaker
        if not breaker.failures:
            return

        def write(c: Connection) -> tuple[int, float] | None:
            fare = self.store.failed(c, self.job.queue)
            until, why = self._held_now(c)
            if fare.failures < breaker.failures or (until is not None and not why.startswith(TRIAL)):
                return None
            self.store.tripped(c, self.job.queue)
            seconds = breaker.cool_down(fare.trips + 1)
            self._hold(c, seconds, f"{BREAKER}: {fare.failures} failures in a row, the last: {reason}")
            return fare.failures, seconds

        tripped = self.db.write(write)
        if tripped is not None:
            self.ring()
            self.app.events.emit(
                "publish_breaker_opened",
                "warning",
                job=self.job.id,
                channel=self.job.queue,
                failures=tripped[0],
                wait=tripped[1],
            )

    async def hold_back(self, reason: str) -> NoReturn:
        """Nobody can tell whether it is there: the job ends, and people are told."""
        self.running.tell_unknown(self.job.id, self.job.queue, reason)
        await self.db.arun(self.db.write, lambda c: self.store.mark_told(c, self.job.id, self.holder, TOLD))
        raise PermanentError(
            f"the outcome is unknown: it may have been published, and nobody can say ({reason}). It is not published again by itself. "
            f"Look at the channel; a replay of {self.job.id} asks the other side again before it publishes."
        )

    async def not_asked(self, verdict: Verdict) -> NoReturn:
        """It is in doubt, and the other side could not be asked. What is on record stays; the next run asks, if there is one."""
        if self.doubtful and self.last and verdict.kind in (Kind.TRANSIENT, Kind.UNKNOWN):
            await self.db.arun(self._failed, verdict.reason)
            await self.hold_back(verdict.reason)
        await self.refused(verdict)

    def erred(self, error: Exception) -> None:
        """A function has raised an error after it had said how it went: that stands, and the error is told."""
        self.app.events.emit(
            "publish_function_failed", "error", job=self.job.id, channel=self.job.queue, error=brief(error)
        )

    async def _fares_well(self) -> None:
        """The other side answers."""
        if await self.db.arun(self.db.write, self.well):
            self.ring()

    def well(self, c: Connection) -> bool:
        """The same, in a transaction: the count of failures begins again, and a hold of the circuit breaker ends. Returns whether one did."""
        before = self.store.well(c, self.job.queue)
        _, why = self._held_now(c)
        held = before.trips > 0 and why.startswith((BREAKER, HELD))
        if held:
            self.app.engine.queues.release(c, self.job.queue, "publishing")
        return held

    async def end_trial(self) -> None:
        """This run was put off: if it was a trial, the next one is."""
        if not self.trial:
            return

        def write(c: Connection) -> None:
            if self._held_now(c)[1].startswith(TRIAL):
                self.app.engine.queues.release(c, self.job.queue, "publishing")

        await self.db.arun(self.db.write, write)
        self.ring()

    def ring(self) -> None:
        """Workers look again: what is held has changed."""
        self.db.controls.ring()
        self.db.bells.ring()


async def uncount(running: Running, job: Job) -> None:
    """Take a run out of its queue's rate: that counts posts, and none was made."""
    engine, token = running.app.engine, _token()

    def write(c: Connection) -> None:
        claimed_at = PublicationStore(engine.db).claimed_at(c, job.id, token)
        if claimed_at is not None:
            engine.queues.give_back(c, job.queue, claimed_at)

    await engine.db.arun(engine.db.write, write)


def _token() -> int | None:
    """The lease of the run that is on; None outside of one."""
    found: int | None = getattr(getattr(CURRENT.get(), "claimed", None), "token", None)
    return found


def known(running: Running, job: Job) -> Channel:
    """The channel of a job. Raises Snooze where this worker does not know it: another one may."""
    try:
        channel = running.channel(job.queue)
    except (InvalidDocument, InvalidArgument) as error:
        # nothing of it is known, its limit included
        running.app.events.emit("publish_channel_unknown", "error", job=job.id, channel=job.queue, error=brief(error))
        raise Snooze("the channels cannot be read in this worker's application", after=ELSEWHERE) from None
    if channel is None:
        running.app.events.emit("publish_channel_unknown", "warning", job=job.id, channel=job.queue)
        raise Snooze(f"channel {job.queue} is not declared in this worker's application", after=ELSEWHERE)
    return channel
