"""A plain function as a channel's connector: it is handed a ``Run`` and says how it went (R002-14)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument, Signal
from duly.kernel.exception_group import decisive
from duly.kernel.payload import read_seconds
from duly.kernel.verdict import Kind, Refusal, refusal
from duly.publishing.connectors.base import Notebook
from duly.publishing.post import Limits, Post, Published, Rules
from duly.publishing.view import Publication


class Run:
    """One run of a publication, for the function that does it. It ends with ``mark_completed`` or ``mark_failed``, or as completed."""

    def __init__(self, publication: Publication, post: Post, notebook: Notebook) -> None:
        self.publication, self.post, self.notebook = publication, post, notebook
        self.published: Published | None = None
        self.refusal: Refusal | None = None

    @property
    def payload(self) -> Mapping[str, Any]:
        return self.publication.payload

    def mark_completed(self, remote_id: str | None = None, url: str | None = None) -> None:
        """It is published. ``remote_id``: what the other side calls it."""
        self.published, self.refusal = Published(remote_id, url), None

    def mark_failed(self, error: str, retryable: bool = False, after: Duration | None = None) -> None:
        """It is not published. ``retryable``: another run may go better (R002-12), ``after`` that duration at the least."""
        if not retryable and after is not None:
            raise InvalidArgument("after", "is given for a failure that is not tried again.")
        if after is not None:
            after = read_seconds(after, "after", 0)
        self.published = None
        self.refusal = refusal(Kind.TRANSIENT if retryable else Kind.PERMANENT, error, after)


class FunctionConnector:
    """Publishes by calling ``fn(run)``, plain (on a thread) or async.

    Its call is written ahead. What it has said with ``mark_…`` stands, whatever it raises after that. What it raises otherwise, other than Retry, Snooze, PermanentError, Cancel and Refusal, and a worker that dies in its
    middle, leave the outcome unknown, because nobody can say whether it had published.
    """

    rules = Rules(first_comment=False)

    def __init__(self, fn: Callable[[Run], Any], name: str = "function") -> None:
        self.fn, self.name = fn, name

    async def publish(self, post: Post, notebook: Notebook) -> Published:
        publication: Publication = notebook.publication  # type: ignore[attr-defined]  # the room's own notebook
        run = Run(publication, post, notebook)
        await notebook.ahead()
        try:
            if inspect.iscoroutinefunction(self.fn):
                await self.fn(run)
            else:
                await asyncio.to_thread(self.fn, run)
        except Exception as error:
            self._raised(run, post, error)
        if run.refusal is not None:
            raise run.refusal
        return run.published or Published()

    def _raised(self, run: Run, post: Post, error: Exception) -> None:
        """It raised: what it had said before stands, and the error is told. Raises what ends the run otherwise."""
        asked = decisive(error)
        if run.published is None and isinstance(asked, Signal | Refusal):
            raise asked
        if run.published is None and run.refusal is None:
            reason = f"the function of channel {post.channel} raised {type(error).__name__}"
            raise refusal(Kind.UNKNOWN, reason) from error
        run.notebook.erred(error)  # type: ignore[attr-defined]  # the room's own notebook

    async def reconcile(self, post: Post, notebook: Notebook) -> Published | None:
        raise refusal(Kind.UNKNOWN, "a function cannot look whether it has published")

    def preview(self, post: Post) -> Mapping[str, Any]:
        return {
            "channel": post.channel, "connector": self.name, "title": post.title, "text": post.caption, "link": post.link,
            "assets": [{"kind": a.kind, "url": a.url, "path": a.path, "reference": a.reference, "alt": a.alt} for a in post.assets],
            "first_comment": post.first_comment, "extra": {},
        }  # fmt: skip

    async def limits(self) -> Limits | None:
        return None

    async def check(self) -> str:
        return f"calls {getattr(self.fn, '__qualname__', 'a function')}"
