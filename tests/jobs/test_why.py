"""Why a job does not run: every condition, met and unmet, each with what to do about it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.jobs.job import Job, Status
from duly.jobs.why import Check, KeyOwner, WhyFacts, WorkerFacts, why
from duly.kernel.gate import QueueFacts, Rate

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
JOB = Job(id=7, tenant="acme", queue="mail", task="SEND", status=Status.QUEUED, run_at=NOW)
WORKER = WorkerFacts("w1", frozenset({"mail"}), frozenset({"SEND"}), "running", 1.0)
FINE = WhyFacts(JOB, NOW, QueueFacts("mail"), [WORKER])
NAMES = [
    "due",
    "gate",
    "paused",
    "held",
    "blackout",
    "limit",
    "rate",
    "concurrency key",
    "worker",
    "attempts",
    "uniqueness",
    "turn",
]


def check(name: str, facts: WhyFacts) -> Check:
    return next(c for c in why(facts) if c.name == name)


def with_job(**facts: Any) -> WhyFacts:
    return replace(FINE, job=replace(JOB, **facts))


def with_queue(**facts: Any) -> WhyFacts:
    return replace(FINE, queue=replace(FINE.queue, **facts))


def test_a_job_that_nothing_holds_meets_every_condition_in_order() -> None:
    checks = why(FINE)
    assert [c.name for c in checks] == NAMES
    assert all(c.met for c in checks)


UNMET: list[tuple[str, WhyFacts, str, str]] = [
    ("due", with_job(run_at=NOW + timedelta(minutes=5), due_at=NOW + timedelta(minutes=5)), "it is planned for later: due at 2026-03-02T12:05:00Z, in 5 min", "duly jobs cancel 7, then duly jobs replay 7"),
    ("due", with_job(due_at=NOW + timedelta(minutes=5)), "it was put off: due at 2026-03-02T12:05:00Z", "duly jobs cancel 7, then duly jobs replay 7"),
    ("due", with_job(due_at=NOW + timedelta(seconds=10), next_retry_at=NOW + timedelta(seconds=10)), "waits for its retry", "duly jobs cancel 7, then duly jobs replay 7"),
    ("gate", with_queue(online=False), "the online gate is closed", "duly gate online"),
    ("paused", with_queue(paused_at=NOW, paused_reason="audit"), "queue mail is paused: audit", "duly queues resume mail"),
    ("held", with_queue(held_until=NOW + timedelta(hours=1), held_reason="429"), "queue mail is held: 429; free again at 2026-03-02T13:00:00Z", "duly queues release mail"),
    ("blackout", with_queue(blackout="quiet", blackout_until=NOW + timedelta(hours=1)), "queue mail is in the blackout quiet until 2026-03-02T13:00:00Z", "duly blackouts disable quiet"),
    ("blackout", with_queue(blackout="quiet, ever"), "queue mail is in the blackout quiet, ever, and no end of it is in sight", "duly blackouts disable quiet"),
    ("limit", replace(with_queue(limit=2, running=2), limit_held_by=[3, 4]), "(held by jobs 3, 4)", "duly queues limit mail"),
    ("rate", with_queue(rate=Rate(5, 60), started=5, rate_frees_at=NOW + timedelta(seconds=9)), "free again at 2026-03-02T12:00:09Z", "duly queues limit mail"),
    ("concurrency key", replace(with_job(concurrency_key="k"), key_limit=1, key_held_by=[3]), "1 of 1 jobs with key 'k' are running (3)", "wait for them"),
    ("worker", replace(FINE, workers=[]), "no worker is alive", "duly worker"),
    ("worker", replace(FINE, workers=[replace(WORKER, queues=frozenset({"other"}))]), "no worker serves queue 'mail'", "duly worker --queue mail"),
    ("worker", replace(FINE, workers=[replace(WORKER, tasks=frozenset({"OTHER"}))]), "no worker of this queue knows task 'SEND' (w1 do not)", "deploy"),
    ("worker", replace(FINE, workers=[replace(WORKER, state="draining")]), "worker w1 is draining", "duly doctor"),
    ("attempts", with_job(attempts=4, max_attempts=4), "4 of 4 attempts used", "duly jobs cancel 7, then duly jobs replay 7"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "facts", "detail", "remedy"), UNMET, ids=[u[0] for u in UNMET])
def test_a_condition_that_is_not_met_says_so_with_a_remedy(
    name: str, facts: WhyFacts, detail: str, remedy: str
) -> None:
    found = check(name, facts)
    assert not found.met
    assert detail in found.detail
    assert found.remedy.startswith(remedy) or remedy in found.remedy
    assert [c.name for c in why(facts) if not c.met] == [name]


def test_each_of_several_holds_is_shown_and_not_only_the_first() -> None:
    facts = with_queue(online=False, paused_at=NOW, limit=1, running=1, rate=Rate(1, 60), started=1)
    assert [c.name for c in why(facts) if not c.met] == ["gate", "paused", "limit", "rate"]


def test_every_condition_of_a_waiting_job_has_been_seen_unmet_or_cannot_be() -> None:
    assert {u[0] for u in UNMET} | {"uniqueness", "turn"} == set(NAMES)


def test_a_running_job_names_its_worker_and_one_whose_lease_lapsed_will_be_rescued() -> None:
    held = with_job(
        status=Status.RUNNING, worker="w1", attempts=1, started_at=NOW, lease_until=NOW + timedelta(seconds=30)
    )
    [running] = why(held)
    assert (running.name, running.met) == ("running", True)
    assert "worker w1 runs it since 2026-03-02T12:00:00Z (attempt 1 of 4)" in running.detail
    [lapsed] = why(replace(held, now=NOW + timedelta(seconds=90)))
    assert not lapsed.met
    assert "lapsed 60 s ago" in lapsed.detail


@pytest.mark.parametrize(("status", "remedy"), [(Status.FAILED, "duly jobs replay 7"), (Status.CANCELLED, "duly jobs replay 7"), (Status.SUCCEEDED, "duly jobs replay 7 --force")])  # fmt: skip
def test_an_ended_job_says_how_and_how_to_run_it_again(status: Status, remedy: str) -> None:
    [ended] = why(with_job(status=status, finished_at=NOW))
    assert (ended.name, ended.met, ended.remedy) == ("ended", False, remedy)
    assert ended.detail == f"it ended as {status} at 2026-03-02T12:00:00Z"


LATER = NOW + timedelta(minutes=5)


def test_the_remedy_of_a_job_that_is_not_due_never_names_a_cancel_that_would_lose_it() -> None:
    child = check("due", with_job(due_at=LATER, parent_id=3))
    assert child.remedy == "wait; to cancel and replay it would end it for its parent, job 3"
    robbed = check("due", replace(with_job(due_at=LATER, key="k"), key_owner=KeyOwner(9, "start")))
    assert robbed.remedy == "wait; once cancelled it could not be replayed, because job 9 has its key"
    assert (
        "enqueue" not in check("due", replace(with_job(due_at=LATER, key="k"), key_owner=KeyOwner(7, "forever"))).remedy
    )


@pytest.mark.parametrize(
    ("owner", "remedy"),
    [
        (KeyOwner(9, "done"), "wait until job 9 has ended, then duly jobs replay 7; or enqueue its input again under another key"),
        (KeyOwner(9, "start"), "wait until job 9 has started, then duly jobs replay 7; or enqueue its input again under another key"),
        (KeyOwner(9, "until", LATER), "wait until 2026-03-02T12:05:00Z, then duly jobs replay 7; or enqueue its input again under another key"),
        (KeyOwner(9, "forever"), "enqueue its input again under another key"),
    ],
    ids=lambda v: v.scope if isinstance(v, KeyOwner) else "",
)  # fmt: skip
def test_an_ended_job_whose_key_another_job_has_is_not_to_be_replayed(owner: KeyOwner, remedy: str) -> None:
    ended, unique = why(replace(with_job(status=Status.FAILED, finished_at=NOW, key="k"), key_owner=owner))
    assert (ended.name, ended.met, ended.remedy) == ("ended", False, "")
    assert (unique.name, unique.met) == ("uniqueness", False)
    assert (unique.detail, unique.remedy) == ("key 'k' belongs to job 9 by now", remedy)


def test_an_ended_job_that_has_its_key_still_can_be_replayed() -> None:
    for owner in (None, KeyOwner(7, "forever")):
        [ended] = why(replace(with_job(status=Status.FAILED, finished_at=NOW, key="k"), key_owner=owner))
        assert ended.remedy == "duly jobs replay 7"


def test_a_key_is_told_and_holds_no_live_job() -> None:
    def told(owner: KeyOwner | None) -> str:
        found = check("uniqueness", replace(with_job(key="k"), key_owner=owner))
        assert found.met
        return found.detail

    assert told(KeyOwner(7, "forever")) == "key 'k' is its own"
    assert told(None) == "key 'k' is free again"
    assert told(KeyOwner(9, "start")) == "key 'k' belongs to job 9 by now, which does not hold this one"


def test_a_waiting_parent_counts_its_open_children() -> None:
    [waits] = why(replace(with_job(waits_for_children=True, due_at=NOW), open_children=3))
    assert not waits.met
    assert "3 of its children have not ended" in waits.detail


def test_a_place_in_the_line_is_told_and_holds_nobody() -> None:
    assert check("turn", replace(FINE, ahead=12)).detail == "12 ready job(s) of this queue come first"
    assert check("turn", replace(FINE, ahead=12)).met


def test_what_the_code_of_a_worker_must_have_is_named_and_unmet_when_nobody_has_claimed_it() -> None:  # E1
    fresh = replace(FINE, needs="order:2")
    assert "code" not in {c.name for c in why(FINE)}
    assert check("code", fresh).met
    late = check("code", replace(fresh, now=NOW + timedelta(minutes=5)))
    assert not late.met
    assert "'order:2'" in late.detail and "none has in 5 min" in late.detail
    assert late.remedy == "start a worker with that code"
    assert check("code", replace(fresh, now=NOW + timedelta(minutes=5), ahead=3)).met
