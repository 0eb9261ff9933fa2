"""A worker is killed in the middle of an opening: the next one does all of it, and members are told once."""

from __future__ import annotations

import signal

import pytest

import nursery
from duly import Duly
from duly.rounds import Rounds, Status
from duly.testing import ManualClock, drain, enqueued
from rounds import apart as program
from rounds.apart import STEPS
from rounds.hands import Ear, ready, utc
from soaking import sqlite_first

db_url = sqlite_first()

AT = "2026-06-01T18:02:00+00:00"


def apart(url: str, step: str) -> int:
    """Open what is due, in a process of its own. Returns how it ended."""
    return nursery.ended(program.main, url, AT, step)


@pytest.mark.parametrize("step", STEPS)
def test_whoever_is_killed_while_opening_leaves_all_of_it_or_nothing(
    rounds: Rounds, app: Duly, db_url: str, clock: ManualClock, ear: Ear, step: str
) -> None:
    # R000-13, T000-l
    for name in ("a", "b", "c"):
        ready(rounds, name, members=2)
    rounds.plan()
    assert apart(db_url, step) == -signal.SIGKILL
    left = {r.status for r in rounds.list()}
    jobs = len(enqueued(app))
    assert (left, jobs) == (({Status.OPEN}, 6) if step in ("committed", "noted") else ({Status.SCHEDULED}, 0))

    clock.set(utc("2026-06-01 18:05"))
    assert rounds.open().done == (0 if step in ("committed", "noted") else 3)
    assert {r.status for r in rounds.list()} == {Status.OPEN}
    drain(app)
    told = [(n["round"], n["member"]) for n in ear.named("round_notified")]
    assert len(told) == len(set(told)) == 6
    assert rounds.open().done == 0
    assert len(enqueued(app)) == 6


def test_a_process_that_is_not_killed_opens_everything(rounds: Rounds, app: Duly, db_url: str) -> None:
    ready(rounds, "a", members=2)
    rounds.plan()
    assert apart(db_url, "none") == 0
    assert len(enqueued(app)) == 2
