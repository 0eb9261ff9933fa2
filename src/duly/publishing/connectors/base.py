"""What a connector is: a channel's other side, spoken to once, without retries and without state about jobs."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from duly.publishing.post import Comment, Limits, Post, Published, Rules


class Notebook(Protocol):
    """What earlier runs of the same job have written down, and the place to write more.

    Every write is in the database, under the lease of the run, before it returns; it raises Retry when the lease is lost.
    """

    @property
    def facts(self) -> Mapping[str, Any]:
        """Everything noted so far (JSON values), e.g. the id of a container."""
        ...

    async def note(self, **facts: Any) -> None:
        """Add facts; None takes one away."""
        ...

    async def ahead(self) -> None:
        """Say that what follows cannot be taken back: from here on the post may be there, whatever becomes of this run."""
        ...


class Connector(Protocol):
    """Publishes posts. Raises ``kernel.verdict.Refusal`` when a post was not published, or nobody knows (``Kind.UNKNOWN``).

    ``publish`` awaits ``notebook.ahead()`` right before the request that publishes, not before. ``Kind.UNKNOWN`` is for a request that
    was handed over without an answer; what follows a published post (a permalink) never makes it fail. A run after ``ahead()`` that left
    no answer begins with ``reconcile``: Published when the post is there, None when it is certainly not, Refusal of ``Kind.UNKNOWN``
    when the other side cannot tell, another Refusal when it could not be asked.
    """

    #: As channels name it ("instagram").
    name: str
    rules: Rules

    async def publish(self, post: Post, notebook: Notebook) -> Published: ...

    async def reconcile(self, post: Post, notebook: Notebook) -> Published | None: ...

    def preview(self, post: Post) -> Mapping[str, Any]:
        """What would be published, for people: JSON values, no request. The same fields for every connector, and ``extra``."""
        ...

    async def limits(self) -> Limits | None:
        """What the other side's own limit endpoint says; None where there is none."""
        ...

    async def check(self) -> str:
        """Look whether the configuration works, without publishing. Returns what was found; raises Refusal."""
        ...


@runtime_checkable
class ByLooks(Protocol):
    """A connector whose other side can only be asked what its posts look like. What it finds so is ``Published(…, by_looks=…)``."""

    @property
    def place(self) -> str:
        """Where its posts are, whatever the channel is called: two channels that publish in one place see each other's posts."""
        ...

    def looks(self, post: Post) -> str:
        """What a post is known by: the same for two that cannot be told apart. Empty when there is nothing to know it by."""
        ...


@runtime_checkable
class Linked(Protocol):
    """A connector that has to ask where people see a post. It is asked once the id is on record."""

    async def link(self, remote_id: str) -> str | None:
        """The URL of a post; None when it is not known. Raises Refusal."""
        ...


@runtime_checkable
class Refuses(Protocol):
    """A connector that refuses some posts by itself, without asking: what it would say at the hour is said when the post is planned."""

    def refuses(self, post: Post) -> None:
        """Raise Refusal for a post that it would refuse. No request is made."""
        ...


@runtime_checkable
class Ends(Protocol):
    """A connector whose access ends at a time that is known before."""

    async def ends(self) -> datetime | None:
        """When the access ends (aware); None where it does not, or nobody says. Raises Refusal where it has ended."""
        ...


_CHANNEL = "channel "


def place_of(connector: object, channel: str) -> str:
    """Where a channel's posts are: the channel itself, where its connector names nothing else."""
    return connector.place if isinstance(connector, ByLooks) else _CHANNEL + channel


def is_channel(place: str) -> bool:
    """Is it a channel that nothing else was known of?"""
    return place.startswith(_CHANNEL)


def looks_of(connector: object, post: Post) -> str:
    """The hash of what a post is known by in its place; empty where it is known otherwise, or not at all."""
    looks = connector.looks(post) if isinstance(connector, ByLooks) else ""
    return hashlib.sha256(looks.encode()).hexdigest() if looks else ""


@runtime_checkable
class Comments(Protocol):
    """A connector whose posts can be commented on."""

    def comments(self, remote_id: str) -> AsyncIterator[Comment]:
        """The comments beneath a post, the newest first, page after page. Raises Refusal."""
        ...

    async def comment(self, remote_id: str, text: str) -> str:
        """Write one. Returns its id; raises Refusal."""
        ...

    async def account(self) -> str:
        """The name under which it comments; empty when it is not known."""
        ...
