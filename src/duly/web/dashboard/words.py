"""How values are shown on a page: instants, spans, states, documents. Everything comes out escaped.

Each state has a colour, a shape and a word, so that none of the three is needed to tell it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from markupsafe import Markup

from duly.jobs.survey import Depth
from duly.monitoring.redact import redacted, visible

#: Characters of a document that a page shows.
LONGEST = 20_000
#: What is due in more than so many seconds waits for something else than an instant.
FAR = 200 * 365 * 86_400

#: What a word of any lifecycle amounts to: the shape and the colour of its mark.
KINDS = {
    "good": ("succeeded", "fired", "open", "online", "active", "on", "fine", "delivered", "sent", "completed", "done", "approved", "published", "answered", "alive"),
    "busy": ("running", "has the slot", "sending", "asking"),
    "wait": ("queued", "scheduled", "waiting", "waiting for children", "waits", "waits for the slot", "deferred", "pending", "planned", "started"),
    "warn": ("retrying", "snoozed", "cancelling", "warning", "held", "blackout", "waits for the network", "lost the network", "lost its worker", "late",
             "draining", "parked", "unknown", "interrupted", "retry", "lost", "awaiting human"),
    "bad": ("failed", "raised", "missed", "broken", "critical", "error", "offline", "silent", "dead", "failure"),
    "off": ("cancelled", "skipped", "paused", "off", "closed", "ended", "cleared", "info", "expired", "revoked", "removed", "disabled"),
}  # fmt: skip
#: An instant in UTC as sentences have it.
_INSTANT = re.compile(r"(?<![\w:+-])\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?Z(?!\w)", re.ASCII)
_KIND = {word: kind for kind, words in KINDS.items() for word in words}


def kind_of(word: str) -> str:
    """The kind of mark of a word; one that is not known waits."""
    return _KIND.get(word.lower(), "wait")


def state(word: object, kind: str | None = None, said: str | None = None) -> Markup:
    """A state as mark and word. ``said``: the words, where they differ from the state's name."""
    found = kind or kind_of(str(word))
    return Markup('<span class="state {kind}">{mark}{said}</span>').format(kind=found, mark=mark(found), said=said or str(word))  # fmt: skip


def mark(kind: str) -> Markup:
    return Markup('<svg class="mark {0}" aria-hidden="true" focusable="false"><use href="#mark-{0}"/></svg>').format(kind)  # fmt: skip


def utc(instant: datetime) -> str:
    """``2026-03-27 09:00:00``, in UTC."""
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def when(instant: datetime | str | None, empty: str = "") -> Markup:
    """An instant, or a sentence with instants in it. A script shows them in the viewer's zone; UTC stands in the title."""
    if isinstance(instant, str):
        return _sentence(instant)
    if instant is None:
        return Markup("{}").format(empty)
    stamp = utc(instant)
    return Markup('<time datetime="{iso}Z" title="{stamp} UTC" data-when>{stamp} UTC</time>').format(
        iso=stamp.replace(" ", "T"), stamp=stamp
    )


def _sentence(text: str) -> Markup:
    out, end = Markup(""), 0
    for found in _INSTANT.finditer(text):
        try:
            shown = when(datetime.fromisoformat(found[0].replace("Z", "+00:00")))
        except ValueError:  # no such day
            continue
        out, end = out + text[end : found.start()] + shown, found.end()
    return out + text[end:]


def ago(instant: datetime | None, now: datetime, empty: str = "") -> Markup:
    """``2 h ago`` or ``in 5 min``, with the instant itself in the title."""
    if instant is None:
        return Markup("{}").format(empty)
    stamp = utc(instant)
    return Markup('<time datetime="{iso}Z" title="{stamp} UTC">{said}</time>').format(
        iso=stamp.replace(" ", "T"), stamp=stamp, said=relative(instant, now)
    )


def countdown(instant: datetime | None, now: datetime, empty: str = "") -> Markup:
    """``in 3 h 12 min``: how long until an instant, as exactly as one waits for it; the instant itself in the title."""
    if instant is None:
        return Markup("{}").format(empty)
    seconds = (instant - now).total_seconds()
    said = f"in {exactly(seconds)}" if 1 <= seconds <= FAR else relative(instant, now)
    stamp = utc(instant)
    return Markup('<time datetime="{iso}Z" title="{stamp} UTC">{said}</time>').format(
        iso=stamp.replace(" ", "T"), stamp=stamp, said=said
    )


def exactly(seconds: float) -> str:
    """A length in two units, as one waits for it: ``3 h 12 min``; the rest is left out."""
    left = int(seconds)
    for size, unit, smaller, its in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min")):
        if left >= size:
            rest = left % size // smaller
            return f"{left // size} {unit}{f' {rest} {its}' if rest else ''}"
    return span(left)


def relative(instant: datetime, now: datetime) -> str:
    seconds = (instant - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    if seconds > FAR:
        return "when it is told"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(seconds)} ago"


def span(seconds: float | None) -> str:
    """A length in words: ``12 ms``, ``4.1 s``, ``35 s``, ``12 min``, ``3 h``, ``9 d``."""
    if seconds is None:
        return ""
    length = abs(seconds)
    if length < 0.9995:
        return f"{length * 1000:.0f} ms"
    if length < 9.95:
        return f"{length:.1f} s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if length >= 2 * size:
            return f"{length / size:.0f} {unit}"
    return f"{length:.0f} s"


def between(start: datetime | None, end: datetime | None) -> str:
    return "" if start is None or end is None else span((end - start).total_seconds())


def count(number: int, cap: int | None = None) -> str:
    """A number for people; one that was counted no further says so."""
    return f"{number:,}+" if cap is not None and number >= cap else f"{number:,}"


def depth(one: Depth, kind: str) -> str:
    """Its ready, later or running jobs, for people."""
    number: int = getattr(one, kind)
    return f"{number:,}+" if kind in one.at_least else f"{number:,}"


def plural(number: int, noun: str, many: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def document(value: Any) -> str:
    """A JSON value as text, indented, without secrets, and no longer than a page bears."""
    value = redacted(value)
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str).decode()
    except (TypeError, ValueError):
        text = str(value)
    text = visible(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} characters more"


def line(value: Any, most: int = 120) -> str:
    """A value on one line, cut where it is long."""
    text = visible(value if isinstance(value, str) else orjson.dumps(value, default=str).decode(), keep="")
    return text if len(text) <= most else text[: most - 1] + "…"


def problem_of(error: Any) -> str:
    """What an error document says, in a line."""
    error = redacted(error)
    if isinstance(error, dict):
        kind = str(error.get("type") or error.get("class") or error.get("error_class") or "")
        said = str(error.get("message") or error.get("detail") or "")
        return visible(": ".join(part for part in (kind, said) if part), keep="") or line(error)
    return "" if error in (None, "", {}) else line(error)


def sparkline(values: Sequence[float], bad: Sequence[float] = (), width: int = 180, height: int = 36, said: str = "") -> Markup:  # fmt: skip
    """Bars of equal width, the newest on the right; what is bad stands at the foot of each in its own colour."""
    top = max([*values, 1])
    step = width / max(len(values), 1)
    bars = []
    for place, value in enumerate(values):
        tall, low = value / top * (height - 2), (bad[place] if place < len(bad) else 0) / top * (height - 2)
        x, wide = f"{place * step + 0.5:.1f}", f"{max(step - 1, 1):.1f}"
        if value:
            bars.append(Markup('<rect class="bar" x="{}" y="{}" width="{}" height="{}"/>').format(x, f"{height - max(tall, 1.5):.1f}", wide, f"{max(tall, 1.5):.1f}"))  # fmt: skip
        if low:
            bars.append(Markup('<rect class="bar bad" x="{}" y="{}" width="{}" height="{}"/>').format(x, f"{height - max(low, 2):.1f}", wide, f"{max(low, 2):.1f}"))  # fmt: skip
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-label="{said}">'
        '<line class="base" x1="0" x2="{w}" y1="{y}" y2="{y}"/>{bars}</svg>'
    ).format(w=width, h=height, y=height - 0.5, said=said, bars=Markup("").join(bars))
