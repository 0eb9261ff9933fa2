"""Acts on many jobs as the pages have them: their window, their words, and the numbers of jobs in a form. The acts are ``web/bulk.py``'s."""

from __future__ import annotations

import re
from collections.abc import Sequence

from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import MOST_ID
from duly.web.bulk import MOST_JOBS, BulkAct
from duly.web.dashboard.words import plural

#: Seconds in which an act can be undone.
WINDOW = 8.0
WHAT = {"cancel": "cancelled, or asked to stop", "replay": "queued again"}


def told(act: BulkAct) -> str:
    """What an act has done."""
    said = f"{plural(act.done, 'job')} {'is' if act.done == 1 else 'are'} {WHAT[act.event]}."
    if act.refused:
        said += f" {plural(len(act.refused), 'job')} could not be: {next(iter(act.refused.values()))}"
    return said


def packed(ids: Sequence[int]) -> str:
    """Numbers of jobs, in order, in few characters: how far each is from the one before, and how many follow it without a gap. ``7.3-2`` is
    7, 10, 11, 12."""
    runs: list[list[int]] = []
    last = 0
    for ident in ids:
        if runs and ident == last + 1:
            runs[-1][1] += 1
        else:
            runs.append([ident - last, 0])
        last = ident
    return ".".join(f"{gap}-{more}" if more else str(gap) for gap, more in runs)


_RUN = re.compile(r"([1-9][0-9]{0,18})(?:-([1-9][0-9]{0,4}))?", re.ASCII)


def unpacked(text: str) -> list[int]:
    """The numbers again. Raises InvalidArgument."""
    out: list[int] = []
    last = 0
    for part in text.split("."):
        run = _RUN.fullmatch(part)
        more = int(run[2] or 0) if run else 0
        if run is None or len(out) + 1 + more > MOST_JOBS or last + int(run[1]) + more > MOST_ID:
            raise InvalidArgument(
                "jobs", "names no jobs of a page that was shown.", "Load the page again, and press its button."
            )
        first = last + int(run[1])
        out.extend(range(first, first + more + 1))
        last = out[-1]
    return out
