"""Deciding: rules, what was read, and the alerts that are open → what changes. Pure.

Two kinds of patience keep an alert from flapping. It is raised only after the value was beyond the threshold at every look for
``hold`` seconds, and cleared only after it was at or below the lower mark at every look for ``calm`` seconds. What cannot be read,
and what has too few samples, changes nothing either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from duly.monitoring.alerts.alert import Alert, Facts, Reading, Rule, Sample, State

#: An alert that nobody has judged for so long (its rule is off everywhere, or gone) is cleared.
FORGOTTEN = timedelta(days=1)

#: ``suspect``, ``raise`` and ``clear`` are moves of the lifecycle; ``pass`` takes a suspicion back, ``note`` keeps what was seen.
Event = Literal["suspect", "raise", "clear", "pass", "note"]


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one alert."""

    event: Event
    rule: str
    subject: str
    value: float
    detail: str
    #: Since when the value is beyond the threshold.
    since: datetime
    #: Since when it is fine; None while it is not.
    fine_since: datetime | None = None
    #: The alert as it was; None where there was none.
    alert: Alert | None = None


def judge(rules: Iterable[Rule], facts: Facts, alerts: Iterable[Alert], now: datetime) -> list[Change]:
    """What changes. ``alerts``: those that are pending or raised. Aware instants."""
    standing = {(alert.rule, alert.subject): alert for alert in alerts if alert.state is not State.CLEARED}
    out: list[Change] = []
    judged = set[str]()
    for rule in rules:
        judged.add(rule.name)
        reading = facts.readings.get(rule.name)
        if reading is not None and reading.known:
            out += _judge(rule, reading, standing, now)
    for alert in standing.values():
        if alert.rule not in judged and now - alert.last_seen > FORGOTTEN:
            told = "nobody judges this rule any more"
            event: Event = "clear" if alert.state is State.RAISED else "pass"
            out.append(Change(event, alert.rule, alert.subject, alert.value, told, alert.since, now, alert))
    return out


def _judge(rule: Rule, reading: Reading, standing: Mapping[tuple[str, str], Alert], now: datetime) -> Iterator[Change]:
    seen = set[str]()
    for sample in reading.samples:
        seen.add(sample.subject)
        if sample.samples is not None and sample.samples < rule.samples and not sample.decisive:
            continue
        change = _one(rule, sample, standing.get((rule.name, sample.subject)), now)
        if change is not None:
            yield change
    if reading.complete:
        for (name, subject), alert in standing.items():
            if name == rule.name and subject not in seen:
                change = _one(rule, Sample(subject, 0.0), alert, now)
                if change is not None:
                    yield change


def _one(rule: Rule, sample: Sample, alert: Alert | None, now: datetime) -> Change | None:
    over, fine = sample.value > rule.threshold, sample.value <= rule.mark
    event: Event | None = "note"
    since, fine_since = (alert.since if alert is not None else now), None
    if alert is None:
        event = None if not over else "raise" if rule.hold <= 0 else "suspect"
    elif alert.state is State.PENDING:
        if not over:
            event = "pass"
        elif now - alert.since >= timedelta(seconds=rule.hold):
            event = "raise"
    elif fine:
        fine_since = alert.fine_since or now
        if now - fine_since >= timedelta(seconds=rule.calm):
            event = "clear"
    if event is None:
        return None
    # while it calms down, the words of what was wrong stay
    detail = words(rule, sample) if over or alert is None else alert.detail
    return Change(event, rule.name, sample.subject, sample.value, detail, since, fine_since, alert)


def words(rule: Rule, sample: Sample) -> str:
    """The sentence of a rule about a sample, with what the sample adds."""
    told = rule.sentence(sample.subject, sample.value, sample.samples)
    return f"{told.removesuffix('.')} ({sample.detail})." if sample.detail else told
