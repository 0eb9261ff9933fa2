"""What the refusals of AI providers mean, as tables: status and word → owner and consequence. Pure.

A table is read from the top; the first row that fits counts. ``word`` is what an error calls itself (its code or type); ``NOT_JSON``
stands for an answer that is not JSON at all, such as a firewall's page, which says nothing about the question. What no row names goes to
the cautious side (``UNLISTED``): it may be billed, it is asked again with longer and longer waits, and not for ever. Each row has a test.

The consequence of each kind stands in ``turn.after_refusal``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duly.automations.providers.base import Owner, Refused
from duly.kernel.verdict import Kind, Verdict

#: The word of an answer that is not JSON.
NOT_JSON = "(not JSON)"
#: The word of JSON that is neither an answer nor an error.
NO_ANSWER = "(no answer)"


@dataclass(frozen=True, slots=True)
class Row:
    """``status`` None: any. ``word`` empty: any. ``means``: what people are told besides status and word."""

    status: int | None
    word: str
    kind: Kind
    owner: Owner
    means: str = ""
    #: The conversation is longer than the model can hold: it is shortened and asked again once.
    is_too_long: bool = False

    def fits(self, status: int, words: Sequence[str]) -> bool:
        return self.status in (None, status) and (not self.word or self.word in words)


UNLISTED = Row(None, "", Kind.UNKNOWN, Owner.SERVER, "no rule knows this answer")

_PROXY = "a page instead of an answer: is a proxy or a firewall in between, or the base URL wrong?"
#: What HTTP says for every API. It stands behind the rows of each.
HTTP: tuple[Row, ...] = (
    Row(200, NOT_JSON, Kind.TRANSIENT, Owner.NETWORK, _PROXY),
    Row(200, NO_ANSWER, Kind.AUTH, Owner.CONFIGURATION, "that is not how this API answers: is the base URL right?"),
    *(Row(status, NOT_JSON, Kind.TRANSIENT, Owner.NETWORK, _PROXY) for status in (400, 401, 403, 406, 451)),
    Row(404, NOT_JSON, Kind.AUTH, Owner.CONFIGURATION, "there is no such path: is the base URL right?"),
    *(Row(status, "", Kind.AUTH, Owner.CONFIGURATION, "a redirect: is the base URL right?") for status in (301, 302, 303, 307, 308)),
    Row(400, "", Kind.PERMANENT, Owner.SESSION),
    Row(401, "", Kind.AUTH, Owner.ACCOUNT, "the key is not taken"),
    Row(402, "", Kind.QUOTA, Owner.ACCOUNT, "somebody has to pay"),
    Row(403, "", Kind.AUTH, Owner.ACCOUNT, "this key may not do that"),
    Row(404, "", Kind.AUTH, Owner.CONFIGURATION, "the model or the path is not known there"),
    Row(405, "", Kind.AUTH, Owner.CONFIGURATION, "is the base URL right?"),
    Row(407, "", Kind.TRANSIENT, Owner.NETWORK, "a proxy wants to be authorized"),
    Row(408, "", Kind.TRANSIENT, Owner.SERVER),
    Row(409, "", Kind.TRANSIENT, Owner.SERVER),
    Row(410, "", Kind.AUTH, Owner.CONFIGURATION, "the model is gone"),
    Row(413, "", Kind.PERMANENT, Owner.SESSION, "the conversation is too long", is_too_long=True),
    Row(422, "", Kind.PERMANENT, Owner.SESSION),
    Row(425, "", Kind.TRANSIENT, Owner.SERVER),
    Row(429, "", Kind.THROTTLED, Owner.ACCOUNT, "too many questions"),
    *(Row(status, "", Kind.TRANSIENT, Owner.SERVER) for status in (500, 502, 503, 520, 521, 522, 523, 529, 530)),
    # a gateway gave up waiting, and what stands behind it may have answered
    *(Row(status, "", Kind.UNKNOWN, Owner.SERVER, "it took too long, and may be billed") for status in (504, 524)),
)  # fmt: skip


def refused(
    rows: Sequence[Row], status: int, words: Sequence[str], *, after: float | None = None, said: str = "", limit: int | None = None
) -> Refused:  # fmt: skip
    """The refusal that an answer is. ``words``: what its error calls itself, the most exact first; ``said``: its own sentence, cleaned."""
    row = next((one for one in (*rows, *HTTP) if one.fits(status, words)), UNLISTED)
    word = next((one for one in words if one), "")
    reason = " ".join(filter(None, (f"the AI answered {status}", word))) + (f": {row.means}" if row.means else "")
    waits = after if row.kind in (Kind.THROTTLED, Kind.TRANSIENT, Kind.UNKNOWN) else None
    verdict = Verdict(row.kind, reason, waits)
    return Refused(verdict, owner=row.owner, said=said, is_too_long=row.is_too_long, context_limit=limit if row.is_too_long else None)  # fmt: skip


def word_of(error: object, body: Mapping[str, object] | None) -> str:
    """What stands for an answer whose error has no word. ``error``: what was found; ``body``: the JSON, None where it was none."""
    if error:
        return ""
    return NOT_JSON if body is None else NO_ANSWER
