"""The task ig_first_comment: a comment beneath a post, once.

Before it writes one it reads those that are there, page after page, and compares hashes: whether a run before this one, a person or another
program wrote it, it is not written twice (R002-19, T002-j). The other side may trim a text or draw an emoji another way, so both sides of
the comparison are brought to one form first, and the account counts where it is known.
"""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Any

from sqlalchemy import Connection

from duly.jobs.run import Context
from duly.kernel.errors import PermanentError, Snooze
from duly.kernel.verdict import Kind, Refusal, Verdict
from duly.publishing.attempt import Attempt, Running, known, uncount
from duly.publishing.channel import Channel
from duly.publishing.connectors.base import Comments
from duly.publishing.post import Comment
from duly.publishing.state import State

#: Variation selectors: they say how an emoji is drawn, not which.
_DRAWN = dict.fromkeys((0xFE0E, 0xFE0F))


def normalised(text: str) -> str:
    """A comment's text in the form in which it is compared: NFC, whitespace collapsed, case folded, without variation selectors."""
    folded = unicodedata.normalize("NFC", text).translate(_DRAWN).casefold()
    return unicodedata.normalize("NFC", " ".join(folded.split()))


def comment_hash(text: str) -> str:
    """SHA-256 of the normalised text, 64 hex digits."""
    return hashlib.sha256(normalised(text).encode()).hexdigest()


def comment_key(media_id: str, text: str) -> str:
    """The key of a comment's job: SHA-256 of the media id, a separator that neither has, and the normalised text (R002-18)."""
    return hashlib.sha256(f"{media_id}\x1f{normalised(text)}".encode()).hexdigest()


class Commenting(Attempt):
    """One run of ig_first_comment."""

    def __init__(
        self, running: Running, context: Context, channel: Channel, connector: Comments, media_id: str, text: str
    ) -> None:
        super().__init__(running, context, channel)
        self.connector, self.media_id, self.text = connector, media_id, text

    async def run(self) -> dict[str, Any]:
        """Comment. Returns the output of the job; raises how the run ended otherwise."""
        await self.begin()
        if self.row.state is State.PUBLISHED:
            return self._output(self.row.remote_id, found=True)
        there = await self._looked()
        if there is not None:
            return await self._there(there.id, found=True)
        await self.back("miss")
        await self.ahead()
        try:
            ident = await self.ask(lambda: self.connector.comment(self.media_id, self.text))
        except Refusal as error:
            return await self._not_written(error.verdict)
        return await self._there(ident or None, found=False)

    async def _looked(self) -> Comment | None:
        """The comment, if it is there. Ends the run where the comments cannot be read: what is on record stays, because that is no answer."""
        try:
            return await self.ask(self._find)
        except Refusal as error:
            await self.not_asked(error.verdict)

    async def _not_written(self, verdict: Verdict) -> dict[str, Any]:
        """After a comment that was refused, or of which nobody knows. Ends the run, unless it turns out that it is there."""
        if verdict.kind is not Kind.UNKNOWN:
            await self.back("refuse")
            await self.refused(verdict)
        if not self.last:
            await self.refused(verdict)  # the next run looks before it writes
        there = await self._looked()
        if there is not None:
            return await self._there(there.id, found=True)
        await self.back("miss")
        await self.refused(Verdict(Kind.TRANSIENT, f"{verdict.reason}; it was looked for, and is not there"))

    async def _find(self) -> Comment | None:
        """The comment, if it is there already, among all that are, the newest first."""
        account, wanted = await self.connector.account(), comment_hash(self.text)
        async for one in self.connector.comments(self.media_id):
            mine = not account or not one.username or one.username.casefold() == account.casefold()
            if mine and comment_hash(one.text) == wanted:
                return one
        return None

    async def _there(self, ident: str | None, found: bool) -> dict[str, Any]:
        def write(c: Connection) -> bool:
            self.store.published(c, self.job.id, ident, None)
            return self.well(c)

        if await self.db.arun(self.db.write, write):
            self.ring()
        self.app.events.emit(
            "ig_first_comment_published",
            "info",
            job=self.job.id,
            channel=self.job.queue,
            found=found,
            parent=self.job.parent_id,
        )
        return self._output(ident, found)

    def _output(self, ident: str | None, found: bool) -> dict[str, Any]:
        if ident is not None:
            self.context.remote_id = ident
        return {"remote_id": ident, "media_id": self.media_id, "found": found}


async def commenting(running: Running, context: Context, media_id: str, text: str) -> dict[str, Any]:
    """Run ig_first_comment."""
    await uncount(running, context.job)
    channel = known(running, context.job)
    if not isinstance(channel.connector, Comments):
        raise PermanentError(f"the connector of channel {channel.name} cannot comment")
    attempt = Commenting(running, context, channel, channel.connector, media_id, text)
    try:
        return await attempt.run()
    except Snooze:
        await attempt.end_trial()
        raise
