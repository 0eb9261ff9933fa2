"""Times on the command line: spans and instants in, words out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duly.cli.times import before, parse_instant, parse_span, relative, span, stamp

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("2.5", 2.5),
        ("90s", 90),
        ("250ms", 0.25),
        ("15min", 900),
        ("15m", 900),
        ("1h30m", 5400),
        ("1h 30min", 5400),
        ("14d", 1_209_600),
        ("2w", 1_209_600),
        (" 1H ", 3600),
    ],
)
def test_a_span_is_read(text: str, seconds: float) -> None:
    assert parse_span(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "soon", "-5", "1h30", "5 minutes and", "1y", "h", "1e3", "99999999999w", "1..5s", "٣"]
)
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_span(text)


@pytest.mark.parametrize(
    ("text", "hour"),
    [("2026-03-29T12:00:00Z", 12), ("2026-03-29T12:00:00+02:00", 10), ("2026-03-29 12:00+00:00", 12)],
)
def test_an_instant_is_read_as_utc(text: str, hour: int) -> None:
    assert parse_instant(text) == datetime(2026, 3, 29, hour, tzinfo=UTC)
    assert parse_instant(text).tzinfo is UTC


def test_a_local_time_without_a_zone_is_refused_not_guessed() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        parse_instant("2026-03-29T02:30:00")
    with pytest.raises(ValueError, match="not an instant"):
        parse_instant("tomorrow")
    with pytest.raises(ValueError, match="calendar"):
        parse_instant("0001-01-01T00:00:00+14:00")


def test_the_past_is_a_span_ago_or_an_instant() -> None:
    assert before(NOON, timedelta(hours=1)) == datetime(2026, 3, 29, 11, tzinfo=UTC)
    assert before(NOON, NOON) == NOON
    assert before(NOON, None) is None
    assert before(NOON, timedelta.max) == datetime.min.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"), (0.0004, "0.4 ms"), (0.0123, "12 ms"), (0.9994, "999 ms"), (0.9996, "1.0 s"), (4.06, "4.1 s"), (9.96, "10 s"), (59, "59 s"),
        (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172_800, "2 d"),
    ],
)  # fmt: skip
def test_a_span_in_words(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_instants_are_shown_in_utc_and_from_now() -> None:
    assert stamp(NOON) == "2026-03-29 12:00:00Z"
    assert stamp(None) == ""
    assert relative(NOON + timedelta(minutes=5), NOON) == "in 5 min"
    assert relative(NOON - timedelta(hours=3), NOON) == "3 h ago"
    assert relative(NOON, NOON) == "now"
    assert relative(None, NOON) == ""
