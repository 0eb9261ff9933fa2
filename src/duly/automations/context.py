"""Fitting a conversation into what a model can hold: the oldest results of tools are shortened first, and marked. Pure.

Nothing on record changes: what people read stays whole, and each question is fitted anew. Lengths are characters; a provider that says
how many tokens its model holds is taken at about two characters a token, which leaves room for dense text and for the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from duly.automations.providers.base import Message, Role

#: What is left of a message that is shortened, in characters.
REST = 400
#: The sentence that marks it has no more than these.
LONGEST_MARK = 150
#: The length that is tried where nobody says how long a conversation may be.
UNKNOWN_LIMIT = 20_000
PER_TOKEN = 2


def size(messages: Sequence[Message]) -> int:
    """About how long a conversation is, in characters."""
    return sum(len(m.text) + sum(len(c.name) + len(str(c.arguments)) for c in m.calls) for m in messages)


def next_limit(messages: Sequence[Message], tokens: int | None) -> int:
    """How long a conversation may be after one of this length was refused. ``tokens``: how many the model holds, where it was said."""
    half = size(messages) // 2
    return min(half, UNKNOWN_LIMIT) if tokens is None else min(max(1_000, tokens * PER_TOKEN), size(messages) * 3 // 4)


def fit(messages: Sequence[Message], limit: int | None) -> tuple[Message, ...]:
    """The same conversation within ``limit`` characters, as far as that goes: the oldest results first, then what else was said long ago, then
    the newest results. The system's words, the first and the last message of a person stay."""
    out = list(messages)
    if limit is None or size(out) <= limit:
        return tuple(out)
    last_answer = max((n for n, m in enumerate(out) if m.role is Role.ASSISTANT), default=-1)
    people = [n for n, m in enumerate(out) if m.role is Role.USER]
    kept = {people[0], people[-1]} if people else set()
    old = [n for n, m in enumerate(out) if m.role is Role.TOOL and n < last_answer]
    said = [n for n, m in enumerate(out) if m.role in (Role.USER, Role.ASSISTANT) and n < last_answer and n not in kept]
    new = [n for n, m in enumerate(out) if m.role is Role.TOOL and n > last_answer]
    over = size(out) - limit
    for n in [*old, *said]:
        if over <= 0:
            break
        over -= _shorten(out, n, REST)
    for place, n in enumerate(new):  # the newest are what the model has just asked for: each keeps its share
        if over <= 0:
            break
        share = max(REST, len(out[n].text) - -(-over // (len(new) - place)) - LONGEST_MARK)
        over -= _shorten(out, n, share)
    return tuple(out)


def _shorten(out: list[Message], n: int, keep: int) -> int:
    """Cut the text of a message. Returns by how much."""
    text = out[n].text
    mark = f"\n(shortened: the first {keep:,} of {len(text):,} characters, because the conversation is too long for the model)"
    if len(text) <= keep + len(mark):
        return 0
    out[n] = replace(out[n], text=text[:keep] + mark, original=None)
    return len(text) - keep - len(mark)
