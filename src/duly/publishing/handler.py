"""The task PUBLISH: from a job's input to a post that is there once.

In order: read the payload, take over what earlier runs have left on record, ask the other side where nobody knows, publish, and write the
answer before the run is settled (T002-c, T002-i). What all runs of the room have in common stands in ``attempt.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from sqlalchemy import Connection

from duly.jobs.enqueue import NewJob
from duly.jobs.run import Context
from duly.kernel.errors import InvalidArgument, PermanentError, Retry, Signal, Snooze, brief
from duly.kernel.verdict import FIREWALL, Kind, Refusal, Verdict
from duly.publishing.attempt import Attempt, Running, known, uncount
from duly.publishing.channel import Channel
from duly.publishing.connectors.base import Comments, Linked, is_channel, looks_of, place_of
from duly.publishing.post import Limits, Post, Published, read_post
from duly.publishing.state import State
from duly.publishing.store import Rival, Row
from duly.publishing.view import COMMENT

_THERE = "it is there by now"
#: Seconds between two looks at a connector's own limits, per channel and process.
LOOK_EVERY = 60.0
#: How long a used-up quota holds a channel at the least and at the most, in seconds, where nobody said when it frees.
QUOTA_LEAST, QUOTA_MOST = 60.0, 3600.0


class Publishing(Attempt):
    """One run of PUBLISH."""

    def __init__(self, running: Running, context: Context, channel: Channel, post: Post) -> None:
        super().__init__(running, context, channel)
        self.post = post
        self.place, self.looks = place_of(channel.connector, channel.name), looks_of(channel.connector, post)

    async def run(self) -> dict[str, Any]:
        """Publish. Returns the output of the job; raises how the run ended otherwise."""
        await self.begin()
        if self.row.state is State.PUBLISHED:
            return await self._there(Published(self.row.remote_id, self.row.url), found=True)
        await self._process_job()
        if self.doubtful:
            if self.row.place and self.row.place != self.place and not is_channel(self.row.place):
                await self._unknown(f"it was handed over to {self.row.place}, and the channel leads elsewhere by now")
            found = await self._reconcile()
            if found is not None:
                return await self._there(found, found=True)
        await self._within_limits()
        try:
            published = await self.ask(lambda: self.channel.connector.publish(self.post, self))
        except Refusal as error:
            return await self._not_published(error.verdict)
        except Signal:
            # a function that said itself how its run ended: nothing was published
            await self.back("refuse")
            raise
        return await self._there(published, found=False)

    async def _process_job(self) -> None:
        self.app.events.emit("process_job", "debug", job=self.job.id, channel=self.job.queue, attempt=self.job.attempts)
        if self.running.hooks.wanted("process_job"):
            await self.running.hooks.tell("process_job", self.publication, {"attempt": self.job.attempts})

    async def _within_limits(self) -> None:
        """Look at the connector's own limits now and then; a quota that is used up holds the channel. Raises Snooze."""
        looked, now = self.running.looked, self.app.engine.clock.monotonic()
        if now - looked.get(self.job.queue, float("-inf")) < LOOK_EVERY:
            return
        looked[self.job.queue] = now
        try:
            limits: Limits | None = await self.ask(self.channel.connector.limits)
        except (Refusal, Signal):
            return  # the post itself will say what is wrong
        if limits is not None and limits.used >= limits.total:
            each = limits.seconds / max(1, limits.total)
            seconds = min(max(each, QUOTA_LEAST), QUOTA_MOST)
            looked.pop(self.job.queue)
            await self.refused(Verdict(Kind.QUOTA, f"{limits.used} of {limits.total} posts are used up", seconds))

    # ------------------------------------------------------------------ nobody knows

    async def _reconcile(self) -> Published | None:
        """Ask whether it is there. None: certainly not. Ends the run where the other side cannot tell or does not answer."""
        try:
            found = await self.ask(lambda: self.channel.connector.reconcile(self.post, self))
        except Refusal as error:
            if error.verdict.kind is Kind.UNKNOWN:
                await self._unknown(error.verdict.reason)
            await self.not_asked(error.verdict)
        self.app.events.emit(
            "publish_reconciled", "info", job=self.job.id, channel=self.job.queue, found=found is not None
        )
        if found is None:
            await self.back("miss")
        return found

    async def _not_published(self, verdict: Verdict) -> dict[str, Any]:
        """After a publish that was refused, or of which nobody knows. Ends the run, unless it turns out that it is there."""
        if verdict.kind is Kind.AWAY and verdict.owner == FIREWALL:
            await self.refused(verdict)  # what stands on record stays: the next run asks before it sends
        if verdict.kind is not Kind.UNKNOWN or not self.doubtful:
            await self.back("refuse")
            kind = Kind.TRANSIENT if verdict.kind is Kind.UNKNOWN else verdict.kind
            await self.refused(replace(verdict, kind=kind))
        if not self.last:
            # the next run asks before it sends
            await self.db.arun(self._failed, verdict.reason)
            raise Retry(f"the outcome is unknown: {verdict.reason}; it is looked for before it is published again",
                        after=self.wait(verdict.after))  # fmt: skip
        found = await self._reconcile()
        if found is None:
            await self.refused(Verdict(Kind.TRANSIENT, f"{verdict.reason}; it was looked for, and is not there"))
        return await self._there(found, found=True)

    async def alone(self, reason: str) -> NoReturn:
        """As for every run; where it is in doubt it is looked for first."""
        if self.doubtful:
            found = await self._reconcile()
            if found is not None:
                await self._there(found, found=True)
                raise Retry(_THERE, after=1.0)
        await super().alone(reason)

    async def _unknown(self, reason: str) -> NoReturn:
        """The other side cannot tell. The channel says what is done about that."""
        if self.channel.unknown == "retry" and not self.last:
            await self.back("forget")
            raise Retry(f"the outcome is unknown: {reason}; it is published again, because channel {self.job.queue} says so",
                        after=self.wait(None))  # fmt: skip
        await self.hold_back(reason)

    # ------------------------------------------------------------------ it is there

    async def _there(self, published: Published, found: bool) -> dict[str, Any]:
        """Write the answer, with the first comment's job, at once; then tell it. Returns the output."""
        rival, released, child, problem = await self.db.arun(self._write_down, published)
        if rival is not None:
            await self._not_told_apart(published, rival)
        if released:
            self.ring()
        remote_id, url = self.row.remote_id or published.remote_id, published.url or self.row.url
        if url is None and remote_id is not None:
            url = await self._link(remote_id)
        self.row = Row(State.PUBLISHED, self.known, remote_id, url, self.place)
        if remote_id is not None:
            self.context.remote_id = remote_id
        self.app.events.emit(
            "published", "info", job=self.job.id, channel=self.job.queue, remote_id=remote_id, found=found
        )
        if problem:
            self.running.emit_comment_error(self.publication, self.job.id, problem)
            facts = {"error": problem, "parent_id": self.job.id}
            await self.running.hooks.tell("ig_first_comment_error", self.publication, facts)
        if self.running.hooks.wanted("published"):
            await self.running.hooks.tell("published", self.publication, {"found": found, "child_id": child})
        return {"remote_id": remote_id, "url": url, "found": found, "child_id": child}

    def _write_down(self, published: Published) -> tuple[Rival | None, bool, int | None, str]:
        """(what it cannot be told apart from: then nothing is written; did a hold end; the first comment's job; why there is none although
        there should be).
        """

        def write(c: Connection) -> tuple[Rival | None, bool, int | None, str]:
            if published.by_looks is not None and published.remote_id is not None:
                seen = (self.place, self.looks, published.remote_id, self.job.id, published.by_looks)
                rival = self.store.rival(c, *seen)
                if rival is not None:
                    return rival, False, None, ""
            self.store.published(c, self.job.id, published.remote_id, published.url)
            released = self.well(c)
            media = self.store.traces(c, [self.job.id])[self.job.id].remote_id
            if self.post.first_comment is None or not isinstance(self.channel.connector, Comments):
                return None, released, None, ""
            if media is None:
                return None, released, None, "the post is there, and its id is not known, so it cannot be commented on"
            try:
                with c.begin_nested():  # what goes wrong here takes nothing else along (R002-20)
                    return None, released, self._comment(c, media, self.post.first_comment), ""
            except Exception as error:
                return None, released, None, f"its job could not be made: {brief(error)}"

        made = self.db.write(write)
        self.db.bells.ring()
        return made

    async def _not_told_apart(self, published: Published, rival: Rival) -> NoReturn:
        """What was found looks like this post, and may be another publication's. Ends the run."""
        mine = rival.tenant == self.job.tenant  # nothing of another tenant is told
        other = f"publication {rival.job}" if mine else "another publication"
        what = published.remote_id if mine else "a post that looks the same"
        if rival.published:
            await self._unknown(f"{what} was found, and that is {other}")
        reason = f"{what} was found, and {other}, which looks the same, is in doubt too"
        if not rival.live:
            await self._unknown(reason)
        if self.last:
            await self.hold_back(reason)
        raise Retry(f"the outcome is unknown: {reason}; it is looked for again", after=self.wait(None))

    async def _link(self, remote_id: str) -> str | None:
        """Where people see it, where the connector has to ask for that. It is published: what goes wrong here does not change that."""
        connector = self.channel.connector
        if not isinstance(connector, Linked):
            return None
        try:
            url = await self.ask(lambda: connector.link(remote_id))
        except (Refusal, Signal):
            return None
        if url is not None:
            write = self.store.published
            await self.db.arun(self.db.write, lambda c: write(c, self.job.id, remote_id, url))
        return url

    def _comment(self, c: Connection, media_id: str, text: str) -> int:
        """The job of the first comment: one per medium and text, whoever asks how often (T002-j)."""
        from duly.publishing.comments import comment_key

        new: NewJob = self.app.prepare(
            COMMENT, {"media_id": media_id, "text": text}, queue=self.job.queue, key=comment_key(media_id, text), unique_until="forever",
            max_attempts=self.channel.max_attempts, tenant=self.job.tenant, parent=self.job.id, priority=self.job.priority + 1,
        )  # fmt: skip
        new.on_conflict = "apart"  # whatever job holds the key of a first comment, it is made
        made: Sequence[Any] = self.app.engine.maker.make_in(c, [new])
        return int(made[0].job.id)


async def publishing(running: Running, context: Context, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Run PUBLISH."""
    attempt: Publishing | None = None
    try:
        channel = known(running, context.job)
        try:
            post = read_post(channel.name, payload)
        except InvalidArgument as error:
            raise PermanentError(str(error)) from None
        attempt = Publishing(running, context, channel, post)
        return await attempt.run()
    except Snooze:
        await uncount(running, context.job)
        if attempt is not None:
            await attempt.end_trial()
        raise
