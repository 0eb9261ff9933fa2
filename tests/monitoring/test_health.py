"""Facts and findings: what the doctor says of what was found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duly.audit.read import Tail
from duly.jobs.lapsed import Lapsed
from duly.jobs.survey import Waiting
from duly.monitoring.examine import file_system, zone_facts
from duly.monitoring.health import (
    Facts,
    FileFacts,
    GateFacts,
    Grade,
    LiveWorker,
    PausedQueue,
    ScheduleFacts,
    WakeFacts,
    judge,
    worst,
)

NOW = datetime(2026, 7, 27, 12, tzinfo=UTC)
WORKER = LiveWorker("box-1", "running", None, frozenset({"default", "mail"}), frozenset({"SEND", "X"}), "0.1.0")
WAKE = WakeFacts(pooled=False, heard_in=0.002, tried=True, pooler="none", notify=True, poll=1.0)
FILE = FileFacts("/data/duly.db", size=10_000_000, free=50 << 30, filesystem="ext4")
FINE = Facts(
    url="postgresql://db/x", now=NOW, version="PostgreSQL 18.1", duly="0.1.0", head="0002", latency=0.0005, revision="0002", skew=0.003,
    zones=599, zone_data="version 2026a", wake=WAKE, gate=GateFacts(True), workers=[WORKER], lapsed=Lapsed(0, None), tail=Tail(0, None),
)  # fmt: skip


def ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


def waiting(queue: str = "default", task: str = "X", count: int = 1, **span: float) -> Waiting:
    return Waiting(queue, task, count, ago(**(span or {"seconds": 1})))


def found(**changes: Any) -> dict[str, list[Any]]:
    """The findings that are not ok, by check."""
    out: dict[str, list[Any]] = {}
    for f in judge(replace(FINE, **changes)):
        assert bool(f.remedy) is (f.grade is not Grade.OK), f
        if f.grade is not Grade.OK:
            out.setdefault(f.check, []).append(f)
    return out


def test_a_healthy_system_has_no_finding_but_ok() -> None:
    assert found() == {}
    assert worst(judge(FINE)) is Grade.OK
    assert found(file=FILE, wake=None, skew=None) == {}


def test_schedules_in_order_are_counted_and_the_next_one_is_named() -> None:
    facts = replace(FINE, schedules=ScheduleFacts(3, 1, ("nightly", NOW + timedelta(hours=5))))
    assert found(schedules=facts.schedules) == {}
    assert [f.detail for f in judge(facts) if f.check == "schedules"] == ["3, 1 paused; next is nightly in 5 hours"]
    assert not [f for f in judge(replace(FINE, schedules=ScheduleFacts(0, 0, None))) if f.check == "schedules"]


@pytest.mark.parametrize(
    ("changes", "check", "grade", "says"),
    [
        ({"zones": 0}, "time zones", "fail", "no zone data"),
        ({"problem": "the database does not answer"}, "database", "fail", "does not answer"),
        ({"latency": 0.2}, "database", "warn", "200 ms"),
        ({"revision": None}, "schema", "fail", "not there"),
        ({"revision": "0001"}, "schema", "fail", "needs 0002"),
        ({"revision": "0003"}, "schema", "warn", "newer"),
        ({"revision": "0003", "barred": "x cannot work beside it."}, "schema", "fail", "x cannot work beside it."),
        ({"skew": 30.0}, "clock", "warn", "30 s ahead of"),
        ({"skew": -3.0}, "clock", "warn", "3.0 s behind"),
        ({"wake": replace(WAKE, pooled=True)}, "wake-ups", "warn", "pooler"),
        ({"wake": replace(WAKE, pooled=True, heard_in=None)}, "wake-ups", "fail", "NOTIFY does not arrive"),
        ({"wake": replace(WAKE, heard_in=None)}, "wake-ups", "warn", "did not arrive"),
        ({"wake": replace(WAKE, heard_in=None, tried=False)}, "wake-ups", "warn", "could not be tried"),
        (
            {"gate": GateFacts(False, ago(hours=3), "cli:ada", "deploy")},
            "gate",
            "warn",
            "3 hours, closed by cli:ada: deploy",
        ),
        ({"read_only": "a standby"}, "database", "fail", "the database is read-only (a standby): PostgreSQL 18.1"),
        ({"gate": GateFacts(False)}, "gate", "warn", "offline; no worker"),
        (
            {"paused": [PausedQueue("mail", ago(days=2), "cli:bob", "bounce")]},
            "paused",
            "warn",
            "2 days by cli:bob: bounce",
        ),
        ({"workers": []}, "workers", "warn", "none is alive"),
        ({"workers": [], "waiting": [waiting(count=1200)]}, "workers", "fail", "1,200 jobs could run now"),
        ({"workers": [replace(WORKER, state="unready", reason="claim: x")]}, "workers", "fail", "not ready: claim: x"),
        ({"workers": [replace(WORKER, version="0.0.9")]}, "workers", "warn", "0.0.9"),
        ({"waiting": [waiting("video", "CUT", 3)]}, "queues", "fail", "no worker serves queue video, where 3 jobs"),
        ({"waiting": [waiting("mail", "LOST", 2)]}, "tasks", "fail", "knows task LOST, of which 2 jobs"),
        ({"waiting": [waiting(minutes=6)]}, "backlog", "warn", "default (6 min)"),
        ({"lapsed": Lapsed(2, ago(minutes=4))}, "leases", "fail", "leases of 2 jobs have lapsed, the first 4 min ago"),
        ({"tail": Tail(7, ago(minutes=10))}, "audit trail", "warn", "7 rows are not sealed"),
        (
            {"schedules": ScheduleFacts(2, 0, None, [("nightly", "recurrence.tz is 'X'", ago(hours=3))])},
            "schedules",
            "fail",
            "nightly could not be planned for 3 hours: recurrence.tz is 'X'",
        ),
        (
            {"schedules": ScheduleFacts(2, 0, None, (), [("nightly", ago(hours=2)), ("hourly", ago(hours=1))])},
            "schedules",
            "fail",
            "nobody has looked at nightly and 1 more since 2 hours ago",
        ),
    ],
)
def test_what_is_wrong_is_found_and_graded(changes: dict[str, Any], check: str, grade: str, says: str) -> None:
    trouble = found(**changes)
    assert list(trouble) == [check]
    (finding,) = trouble[check]
    assert finding.grade == grade
    assert says in finding.detail


@pytest.mark.parametrize(
    ("file", "check", "grade"),
    [
        (replace(FILE, filesystem="nfs4"), "file system", "fail"),
        (replace(FILE, filesystem="CIFS"), "file system", "fail"),
        (replace(FILE, free=10 << 20), "disk", "fail"),
        (replace(FILE, free=500 << 20), "disk", "warn"),
        (replace(FILE, journal="delete"), "journal", "warn"),
        (replace(FILE, wal_size=2 << 30), "journal", "warn"),
    ],
)
def test_the_file_of_an_embedded_database_is_looked_at(file: FileFacts, check: str, grade: str) -> None:
    ((name, (finding,)),) = found(file=file, wake=None, skew=None).items()
    assert (name, finding.grade) == (check, grade)


def test_a_file_that_is_not_there_yet_is_in_order() -> None:
    facts = Facts(
        url="sqlite:///x.db",
        now=NOW,
        version="",
        duly="0.1.0",
        head="0002",
        zones=599,
        file=replace(FILE, exists=False),
    )
    assert worst(judge(facts)) is Grade.OK
    assert "does not exist yet" in judge(facts)[-1].detail


def test_nothing_is_said_of_a_database_that_does_not_answer_but_that() -> None:
    facts = Facts(url="x", now=NOW, version="", duly="0.1.0", head="0002", zones=599, problem="it does not answer")
    assert [f.check for f in judge(facts)] == ["time zones", "database"]


def test_held_work_is_no_backlog() -> None:
    old = [waiting("mail", "SEND", minutes=60)]
    assert "backlog" not in found(waiting=old, paused=[PausedQueue("mail", ago(hours=1), None, None)])
    assert "backlog" not in found(waiting=old, gate=GateFacts(False))
    assert "backlog" in found(waiting=old)


def test_a_tail_is_old_only_while_somebody_could_seal_it() -> None:
    assert "audit trail" not in found(tail=Tail(7, ago(minutes=10)), workers=[])
    assert "audit trail" not in found(tail=Tail(7, ago(seconds=5)))


def test_behind_a_pooler_that_is_declared_all_is_well() -> None:
    assert found(wake=WakeFacts(True, None, False, "transaction", True, 1.0)) == {}


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export /shared nfs4 rw 0 0
tmpfs /shared/ada/my\\040files tmpfs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/shared", "nfs4"),
        ("/shared/bob", "nfs4"),
        ("/shareds", "ext4"),
        ("/shared/ada/my files/x", "tmpfs"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(folder: str, kind: str) -> None:
    assert file_system(Path(folder), MOUNTS) == kind


def test_this_machine_knows_its_zones() -> None:
    zones, where = zone_facts()
    assert zones > 300
    assert where
