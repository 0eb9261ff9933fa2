"""Whatever is asked for at the same time, a slot has one session, and an occurrence one execution. R001-1, T001-f, T001-h, B069."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from automations.hands import Ai, Stage
from automations.interleaved import START
from duly import Duly
from duly.testing import ManualClock

TESTS = Path(__file__).parents[1]
#: Acts of each of three threads in three processes: some hundreds in all, and a thousand on each database in `make soak`.
SOME, MANY = 40, 115


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "each"),
    [
        ("sqlite_url", SOME),
        pytest.param("sqlite_url", MANY, marks=pytest.mark.soak),
        pytest.param("pg_url", MANY, marks=[pytest.mark.postgres, pytest.mark.soak]),
    ],
)
def test_in_hundreds_of_acts_of_three_processes_no_slot_has_two_sessions_and_no_occurrence_two_executions(
    kind: str, each: int, request: pytest.FixtureRequest
) -> None:
    db_url = request.getfixturevalue(kind)
    clock = ManualClock(START)
    app = Duly(db_url, clock=clock)
    app.open()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])}
    begun = [
        subprocess.Popen([sys.executable, "-m", "automations.interleaved", db_url, str(seed), str(each)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True, env=environ)
        for seed in (1, 2, 3)
    ]  # fmt: skip
    told = [process.communicate(timeout=500) for process in begun]
    assert [process.returncode for process in begun] == [0, 0, 0], "\n".join(err[-3000:] for _, err in told)
    done: Counter[str] = sum((Counter(json.loads(out)) for out, _ in told), Counter())
    assert {"tick", "run", "chat", "stop"} <= set(done)
    assert each == SOME or {"pause", "create", "update", "fire"} <= set(done)  # the rarer ones
    stage = Stage(app, clock, Ai())
    moves: dict[str, Counter[int]] = {}
    for action, ident in stage.rows("SELECT action, entity_id FROM audit_log WHERE entity = 'session'"):
        moves.setdefault(action, Counter())[int(ident)] += 1
    # each session began once, and ended at most once
    assert max(moves["SESSION_STARTED"].values()) == 1
    assert max(moves["SESSION_ENDED"].values()) == 1
    doubled = stage.rows(
        "SELECT automation_id, scheduled_at FROM ai_sessions WHERE trigger = 'SCHEDULED' GROUP BY 1, 2 HAVING count(*) > 1"
    )
    assert doubled == []
    keyed = stage.rows(
        "SELECT automation_id, key FROM ai_sessions WHERE key IS NOT NULL GROUP BY 1, 2 HAVING count(*) > 1"
    )
    assert keyed == []
    # the slot says the same as the sessions
    (slot,) = stage.rows("SELECT session_id, activation FROM automation_slots WHERE slot = 'default'")
    assert stage.rows("SELECT id, activation FROM ai_sessions WHERE status = 'active'") == (
        [] if slot[0] is None else [slot]
    )
    # and it goes on: what is left can be ended, and the next occurrence is executed
    for automation in stage.room.list():
        stage.room.delete(automation.id)
    for session in stage.room.sessions(1000, status=["active", "queued", "interrupted"]):
        if stage.session(session.id).status != "ended":
            stage.room.stop(session.id)
    clock.set(START + timedelta(days=2))
    last = stage.automation("last", "12:00")
    clock.advance(timedelta(hours=5))
    stage.tick()
    stage.work()
    assert stage.ends(last) == ["COMPLETED"]
    app.close()
