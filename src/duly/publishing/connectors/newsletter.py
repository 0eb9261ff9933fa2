"""A newsletter by e-mail: a job of task EMAIL_SEND for each reader, made under keys that come from the publication's.

The mail itself is the business of the mail room: its retries, its suppressions, its limits. A publication is done once the jobs are there, and
making them again gives the same jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from duly.kernel.errors import DatabaseError, DatabaseUnavailable, InvalidArgument, KeyConflict, UnknownName
from duly.kernel.verdict import NETWORK, Kind, Refusal, Verdict, refusal
from duly.publishing.connectors import shared
from duly.publishing.connectors.base import Notebook
from duly.publishing.post import Limits, Post, Published, Rules

EMAIL_SEND = "EMAIL_SEND"
_OPTIONS = frozenset({"html", "template", "data", "reply_to"})


class NewsletterConnector:
    """Mails to ``to``: an address or a list of them, each of whom gets a message of their own. Many readers are better served by the address
    of a mailing list.

    ``enqueue``: makes a job, as ``app.aenqueue`` does (called with the task's name, its input, ``key`` and the options below). ``queue``: of
    the mail; ``template``: of the mail room, which is given ``title``, ``caption``, ``link`` and ``assets``. Raises InvalidArgument.
    """

    name = "newsletter"
    rules = Rules()
    #: Whose jobs it makes.
    tasks = frozenset({EMAIL_SEND})

    def __init__(
        self, *, to: str | Sequence[str], enqueue: Callable[..., Any], queue: str = "", template: str = "", most: int = 1000
    ) -> None:  # fmt: skip
        given = [to] if isinstance(to, str) else list(to)
        if not given or not all(isinstance(one, str) and "@" in one and one.isprintable() for one in given):
            raise InvalidArgument("to", "is no list of addresses.")
        self._to = list(dict.fromkeys(one.strip() for one in given))
        if len(self._to) > most:
            raise InvalidArgument("to", f"has {len(self._to)} addresses; at most {most} are mailed one by one.")
        if not callable(enqueue):
            raise InvalidArgument("enqueue", "is nothing that makes jobs.")
        self._enqueue, self._template = enqueue, template
        self._options = {"queue": queue} if queue else {}

    def __repr__(self) -> str:
        return f"NewsletterConnector({len(self._to)} readers)"

    async def publish(self, post: Post, notebook: Notebook) -> Published:
        letter, key = self.letter(post), f"post:{shared.mark(shared.key_of(post, notebook), 32)}"
        options = dict(self._options)
        tenant = notebook.facts.get("tenant")
        if tenant is not None:
            options["tenant"] = str(tenant)
        await notebook.ahead()
        first: object = None
        for address in self._to:
            own = key if len(self._to) == 1 else f"{key}:{shared.mark(address, 12)}"
            try:
                made = self._enqueue(EMAIL_SEND, {"to": address, **letter}, key=own, **options)
                made = await made if inspect.isawaitable(made) else made
            except (UnknownName, InvalidArgument, KeyConflict, DatabaseError) as error:
                raise Refusal(classify(error)) from None
            first = first if first is not None else getattr(getattr(made, "job", None), "id", None)
        return Published(None if first is None else str(first))

    async def reconcile(self, post: Post, notebook: Notebook) -> Published | None:
        return None  # the same keys give the same jobs

    def letter(self, post: Post) -> dict[str, Any]:
        """The input of EMAIL_SEND but for ``to``. Raises Refusal when there is no subject."""
        options = shared.known(post, _OPTIONS, self.name)
        subject = " ".join((post.title or post.caption.strip().partition("\n")[0]).split())[:200]
        if not subject:
            raise refusal(Kind.PERMANENT, "title: is missing, and there is no text to take its place")
        out: dict[str, Any] = {"subject": subject}
        if "reply_to" in options:
            out["reply_to"] = options["reply_to"]
        template = options.get("template", self._template)
        if template:
            shown = [{"kind": a.kind, "url": a.url, "alt": a.alt} for a in post.assets]
            data = {"title": post.title, "caption": post.caption, "link": post.link, "assets": shown}
            return out | {"template": template, "data": data | dict(options.get("data") or {})}
        links = [post.link, *(a.url for a in post.assets if a.url)]
        out["text"] = "\n\n".join(part for part in (post.caption.strip(), *links) if part) + "\n"
        return out | ({"html": options["html"]} if "html" in options else {})

    def refuses(self, post: Post) -> None:
        self.letter(post)

    def preview(self, post: Post) -> Mapping[str, Any]:
        left_out = [a.path or a.reference for a in post.assets if not a.url]
        try:
            mail, problem = self.letter(post), ""
        except Refusal as error:
            mail, problem = {}, error.verdict.reason
        return shared.preview(
            self.name, post, readers=len(self._to), mail=mail, problem=problem, left_out=left_out
        )  # fmt: skip

    async def limits(self) -> Limits | None:
        return None

    async def check(self) -> str:
        return f"{len(self._to)} readers are mailed to"


class Row(NamedTuple):
    """One row of what it means that a letter's job could not be made: whose fault it is, and what follows."""

    errors: tuple[type[Exception], ...]
    owner: str
    kind: Kind


#: The first row that fits counts. Letters that were made before it are found by their keys.
TABLE = (
    Row((UnknownName,), "channel", Kind.AUTH),
    Row((InvalidArgument, KeyConflict), "post", Kind.PERMANENT),
    Row((DatabaseUnavailable,), NETWORK, Kind.AWAY),
    Row((DatabaseError,), "database", Kind.TRANSIENT),
)
#: Arguments that the channel's options give, and not the post.
_OF_CHANNEL = frozenset({"queue", "task", "name", "tenant"})


def classify(error: Exception) -> Verdict:
    """What it means that a letter's job could not be made."""
    row = next(one for one in TABLE if isinstance(error, one.errors))
    if isinstance(error, InvalidArgument):
        if error.field in _OF_CHANNEL:
            row = TABLE[0]
        return Verdict(row.kind, f"{error.field}: {error.problem}", owner=row.owner)
    said = (
        str(error)
        if isinstance(error, KeyConflict | UnknownName)
        else f"the jobs could not be made: {type(error).__name__}"
    )
    return Verdict(row.kind, said, owner=row.owner)
