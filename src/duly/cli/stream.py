"""What a person at a terminal sees of a worker: a short stream of lines, and a summary at the end.

Jobs are told one by one while they are few; of a flood only the first of each second, and then how many more there
were. Signals are told in words. Everything else is an ordinary log line.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, TextIO

import click

from duly.cli.times import span, stamp
from duly.jobs.worker import Tally
from duly.kernel.events import Event, Listener
from duly.monitoring.logs import coloured
from duly.monitoring.redact import visible

#: Jobs told one by one in a second.
LINES = 8
#: What became of a job: the lifecycle's event, in a word for people, with a colour.
_WORDS = {
    "succeed": ("done", "green"),
    "wait": ("waits", "cyan"),
    "retry": ("retry", "yellow"),
    "snooze": ("snoozed", "cyan"),
    "release": ("given back", "cyan"),
    "fail": ("failed", "red"),
    "cancel": ("cancelled", "magenta"),
    "fire": ("fired", "blue"),
    "begin": ("begins", "blue"),
    "end": ("ended", "yellow"),
}


#: Events about one job, and the move they tell.
_ENDS = {"job_failed": "fail", "job_retry": "retry", "job_cancelled": "cancel"}


def _reason(facts: Mapping[str, Any]) -> str:
    wait = f", again in {span(facts['wait'])}" if facts.get("wait") is not None else ""
    error = f": {visible(str(facts['error']), keep='')}" if facts.get("error") else ""
    return f"job {facts['job']}, attempt {facts['attempt']} of {facts['max_attempts']}{error}{wait}"


#: Events about one session of automations, and the move they tell.
_SESSIONS = {
    "session_started": "begin",
    "session_resumed": "begin",
    "session_ended": "end",
    "session_interrupted": "end",
}


def _session(name: str, facts: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """A line about a session."""
    kind = f"session {facts['session']}"
    if _SESSIONS[name] == "begin":
        said = str(facts.get("reason") or "").replace("AUTOMATION_", "").replace("_", " ").lower()
        return "begin", kind, facts["slot"], f"{str(facts['type']).lower()}{f', {said}' if said else ''}"
    if facts["reason"] == "COMPLETED":
        return "succeed", kind, facts["slot"], span(facts.get("seconds") or 0.0)
    detail = f": {visible(str(facts['detail']), keep='')}" if facts.get("detail") else ""
    return "end", kind, facts["slot"], f"{str(facts['reason']).lower().replace('_', ' ')}{detail}"


class Stream:
    """A listener for a terminal. ``log`` is told everything that has no better form here."""

    def __init__(self, log: Listener, out: TextIO, grace: float) -> None:
        self._log, self._out, self._grace = log, out, grace
        self._colour = coloured(out)
        self._lock = threading.Lock()
        self._second, self._left = 0, LINES
        self._widths = [0, 0]
        self._more: Counter[str] = Counter()
        self._timer: threading.Timer | None = None

    def __call__(self, event: Event) -> None:
        facts = event.facts
        if event.name == "jobs_settled":
            # those that failed, are tried again or were cancelled have an event of their own, with the reason
            self._tell([(e, t, q, span(s)) for q, t, e, s in facts["jobs"] if e not in ("fail", "retry", "cancel")])
        elif event.name in _ENDS:
            self._tell([(_ENDS[event.name], facts["task"], facts["queue"], _reason(facts))])
        elif event.name == "schedule_fired":
            due_at = stamp(datetime.fromisoformat(facts["due_at"]))
            self._tell([("fire", facts["schedule"], "", f"job {facts['job']}, planned for {due_at}")])
        elif event.name in _SESSIONS:
            self._tell([_session(event.name, facts)])
        elif event.name == "signal":
            self._signal(facts)
        elif event.name not in ("worker_started", "worker_stopped"):  # the page around the stream says both
            self._log(event)

    def _tell(self, jobs: list[tuple[str, str, str, str]]) -> None:
        with self._lock:
            second = int(time.monotonic())
            if second != self._second:
                self._second, self._left = second, LINES
                self._rest()
            shown, rest = jobs[: self._left], jobs[self._left :]
            self._left -= len(shown)
            for event, task, queue, text in shown:
                word, colour = _WORDS.get(event, (event, "white"))
                self._line(word, colour, f"{self._padded(0, task)}  {self._padded(1, queue)}  {text}")
            if rest:
                self._more.update(event for event, *_ in rest)
                if self._timer is None:
                    self._timer = threading.Timer(1.0, self._late)
                    self._timer.daemon = True
                    self._timer.start()

    def _padded(self, column: int, text: str) -> str:
        """Names stand under each other: a column is as wide as the widest name so far."""
        text = visible(text, keep="")
        self._widths[column] = max(self._widths[column], min(len(text), 40))
        return text.ljust(self._widths[column])

    def _late(self) -> None:
        with self._lock:
            self._rest()

    def _rest(self) -> None:
        """Tell what was held back. Called under the lock."""
        self._timer = None
        if self._more:
            told = ", ".join(f"{n:,} {_WORDS.get(event, (event, ''))[0]}" for event, n in self._more.most_common())
            self._line("and more", "white", told)
            self._more.clear()

    def _signal(self, facts: Any) -> None:
        if facts.get("effect") == "stop now":
            self._line("stopping", "red", "now. What still runs is given back and will run again.")
        else:
            grace = f"Running jobs may finish (up to {self._grace:g} s). Once more stops at once."
            self._line("stopping", "yellow", grace)

    def _line(self, word: str, colour: str, text: str) -> None:
        # padded before it is coloured, so that columns stand under each other
        padded = click.style(word.ljust(11), fg=colour) if self._colour else word.ljust(11)
        self._out.write(f"{time.strftime('%H:%M:%S')}  {padded} {text}\n")
        self._out.flush()

    def close(self) -> None:
        """Tell the rest."""
        self._late()


def summary(tally: Tally, seconds: float) -> str:
    """The last line: what was done."""
    counts = asdict(tally)
    names = {
        "succeeded": "succeeded", "failed": "failed", "retried": "to be tried again", "snoozed": "snoozed", "cancelled": "cancelled",
        "released": "given back", "lost": "lost to another worker",
    }  # fmt: skip
    told = [f"{counts[name]:,} {words}" for name, words in names.items() if counts[name]]
    if not told:
        return f"No job was run in {span(seconds)}."
    rate = f" ({counts['succeeded'] / seconds:,.0f} a second)" if counts["succeeded"] >= 100 and seconds > 0.1 else ""
    return f"{', '.join(told)} in {span(seconds)}{rate}."
