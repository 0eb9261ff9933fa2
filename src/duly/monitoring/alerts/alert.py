"""The nouns: a rule, what was read, an alert, and the one table of its moves.

A rule says what is watched and from which value on it is worth a person's attention. An alert is one rule about one subject (a
queue, a worker, a kind of tick; the empty subject where a rule has only one). This file knows no database and no clock.
Source: R000-20, T000-o, T000-p.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from duly.kernel.lifecycle import Lifecycle, Move

#: Audit actions.
RAISED, CLEARED, ACKED = "ALERT_RAISED", "ALERT_CLEARED", "ALERT_ACKED"
#: The most subjects of one rule that are told apart; the worst come first.
MOST_SUBJECTS = 20


class State(StrEnum):
    """Where an alert stands."""

    #: The value is beyond the threshold, and the rule waits whether that lasts.
    PENDING = "pending"
    #: A person should look.
    RAISED = "raised"
    #: It was fine for long enough. Kept as history.
    CLEARED = "cleared"


class Severity(StrEnum):
    #: Somebody should look today.
    WARNING = "warning"
    #: Work is not done, or is about to be lost: somebody should look now.
    CRITICAL = "critical"


LIFECYCLE: Lifecycle[State] = Lifecycle(
    "alert",
    (
        Move(None, "suspect", State.PENDING),
        Move(None, "raise", State.RAISED, "the rule waits for nothing: the time is part of its threshold"),
        Move(State.PENDING, "raise", State.RAISED, "it has held for as long as the rule asks"),
        Move(State.RAISED, "clear", State.CLEARED, "it was below the lower mark for as long as the rule asks"),
    ),
)
"""A suspicion that passes leaves no row."""

Unit = Literal["s", "ratio", "count"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What is watched, and when that is worth an alert."""

    name: str
    #: The room that it is about.
    watches: str
    #: What a subject is, such as ``queue``; empty where there is only one.
    noun: str
    unit: Unit
    #: Beyond this value it is raised; the value itself is still fine.
    threshold: float
    #: At or below this value it is fine again. Between the two nothing changes, so that nothing flaps.
    mark: float
    severity: Severity
    #: A sentence with ``{subject}``, ``{value}``, ``{threshold}`` and ``{samples}``.
    says: str
    #: What to do about it.
    remedy: str
    #: Seconds that it must hold before it is raised.
    hold: float = 0.0
    #: Seconds that it must be fine before it is cleared.
    calm: float = 300.0
    #: With fewer samples nothing is judged.
    samples: int = 0
    #: The setting that the threshold comes from; empty where it is fixed.
    setting: str = ""

    def sentence(self, subject: str, value: float, samples: int | None = None) -> str:
        """What is the case, for people."""
        return self.says.format(
            subject=subject, value=shown(value, self.unit), threshold=shown(self.threshold, self.unit), samples=samples
        )

    def terms(self) -> str:
        """When it is raised and when it is fine again, in a sentence."""
        least = f" of at least {self.samples} samples" if self.samples else ""
        held = f" for {shown(self.hold, 's')}" if self.hold else ""
        calm = f" for {shown(self.calm, 's')}" if self.calm else ""
        low = shown(self.mark, self.unit)
        return f"Raised beyond {shown(self.threshold, self.unit)}{least}{held}; fine again at {low} or less{calm}."


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured of one subject."""

    subject: str
    value: float
    #: From how many things it was measured, where that matters.
    samples: int | None = None
    #: More words for people: a reason, a name, the worst of several.
    detail: str = ""
    #: Is it to be judged although the samples are few: nothing failed, or everything that ran for longer than the window?
    decisive: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"the value of {self.subject!r} is {self.value}")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rule is judged by: samples of its subjects, or the reason why there are none."""

    samples: tuple[Sample, ...] = ()
    #: Why it could not be read; then nothing is raised and nothing is cleared.
    problem: str = ""
    #: Are these all the subjects? One that is missing from a complete reading is fine.
    complete: bool = True

    @property
    def known(self) -> bool:
        return not self.problem

    @classmethod
    def unknown(cls, problem: str) -> Reading:
        return cls(problem=problem or "it could not be read")

    @classmethod
    def of(cls, samples: list[Sample], complete: bool = True) -> Reading:
        """The worst of many: no more than ``MOST_SUBJECTS`` are told apart."""
        by_subject: dict[str, Sample] = {}
        for sample in sorted(samples, key=lambda s: (-s.value, s.subject)):
            by_subject.setdefault(sample.subject, sample)
        worst = list(by_subject.values())
        return cls(tuple(worst[:MOST_SUBJECTS]), complete=complete and len(worst) <= MOST_SUBJECTS)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was read at one instant, by rule. A rule that is not named here was not looked at."""

    #: Aware, UTC, by the clock that stamps what is watched.
    now: datetime
    readings: Mapping[str, Reading] = field(default_factory=dict)

    @property
    def unknown(self) -> dict[str, str]:
        """Rules that could not be judged, and why."""
        return {name: reading.problem for name, reading in self.readings.items() if not reading.known}


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert as its row says. Fields in the order of its life; instants are aware, in UTC."""

    id: int
    rule: str
    subject: str
    state: State
    severity: Severity
    #: When the value was first seen beyond the threshold, and last looked at.
    since: datetime
    last_seen: datetime
    value: float
    #: The sentence and the words of the sample.
    detail: str
    raised_at: datetime | None = None
    #: Since when it is at or below the lower mark.
    fine_since: datetime | None = None
    cleared_at: datetime | None = None
    acked_at: datetime | None = None
    acked_by: str | None = None
    ack_reason: str | None = None
    #: When people were told that it is raised.
    noticed_at: datetime | None = None

    @property
    def is_acked(self) -> bool:
        return self.acked_at is not None


def shown(value: float, unit: Unit) -> str:
    """A value with its unit, for people."""
    if unit == "ratio":
        return f"{value * 100:.3g} %"
    if unit == "count":
        return f"{value:,.0f}"
    seconds = abs(value)
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            whole = f"{seconds / size:.1f}"
            return f"{whole.removesuffix('.0')} {name}"
    return f"{seconds:.3g} s"
