"""What becomes of a job after a run: facts and an outcome in, a settlement out."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.jobs.claim import Lane
from duly.jobs.job import ENDED, LIFECYCLE, LIVE, Status
from duly.jobs.run import Run
from duly.jobs.settle import CANCELLED, EXHAUSTED, PERMANENT, Claimed, Policy, Settlement, settle
from duly.kernel.backoff import Backoff
from duly.kernel.outcome import Outcome, OutcomeKind

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
ERROR = {"type": "ValueError", "message": "no", "attempted_at": NOW.isoformat()}
POLICY = Policy(Backoff(), "EMAIL_SENT")
FATHER = Policy(Backoff(), "BATCH_DONE", wait_for_children="fail")


def job(attempts: int = 1, max_attempts: int = 4, **more: Any) -> Claimed:
    facts: dict[str, Any] = {
        "id": 7, "tenant": "acme", "queue": "mail", "task": "EMAIL_SEND", "input": "{}", "attempts": attempts, "max_attempts": max_attempts,
        "priority": 0, "run_at": NOW, "created_at": NOW, "lag": 0.0, "key": None, "key_scope": None, "concurrency_key": None,
        "parent_id": None, "meta": None, "token": 99,
    }  # fmt: skip
    return Claimed(**{**facts, **more})


K = OutcomeKind
#: (outcome, attempts used of 4, event, status, audit action, attempts row, attempt counted?, wait)
TABLE: list[tuple[Outcome, int, str, Status, str | None, str | None, bool, float | None]] = [
    (Outcome(K.SUCCEEDED, "{}"), 1, "succeed", Status.SUCCEEDED, "EMAIL_SENT", None, True, None),
    (Outcome(K.SUCCEEDED, "{}"), 4, "succeed", Status.SUCCEEDED, "EMAIL_SENT", None, True, None),
    (Outcome(K.FAILED, error=ERROR), 1, "retry", Status.QUEUED, None, "failed", True, 10),
    (Outcome(K.FAILED, error=ERROR), 2, "retry", Status.QUEUED, None, "failed", True, 20),
    (Outcome(K.FAILED, error=ERROR), 3, "retry", Status.QUEUED, None, "failed", True, 40),
    (Outcome(K.FAILED, error=ERROR), 4, "fail", Status.FAILED, EXHAUSTED, "failed", True, None),
    (Outcome(K.FAILED, error=ERROR, after=120), 1, "retry", Status.QUEUED, None, "failed", True, 120),
    (Outcome(K.FAILED, error=ERROR, after=0), 1, "retry", Status.QUEUED, None, "failed", True, 0),
    (Outcome(K.FAILED, error=ERROR, after=-5), 1, "retry", Status.QUEUED, None, "failed", True, 0),
    (Outcome(K.FAILED, error=ERROR, after=120), 4, "fail", Status.FAILED, EXHAUSTED, "failed", True, None),
    (Outcome(K.TIMED_OUT, error=ERROR), 1, "retry", Status.QUEUED, None, "timed_out", True, 10),
    (Outcome(K.TIMED_OUT, error=ERROR), 4, "fail", Status.FAILED, EXHAUSTED, "timed_out", True, None),
    (Outcome(K.LOST, error=ERROR), 1, "rescue", Status.QUEUED, None, "lost", True, None),
    (Outcome(K.LOST, error=ERROR, after=5), 1, "rescue", Status.QUEUED, None, "lost", True, 5),
    (Outcome(K.LOST, error=ERROR), 4, "fail", Status.FAILED, EXHAUSTED, "lost", True, None),
    (Outcome(K.REFUSED, error=ERROR), 1, "fail", Status.FAILED, PERMANENT, "refused", True, None),
    (Outcome(K.REFUSED, error=ERROR), 4, "fail", Status.FAILED, PERMANENT, "refused", True, None),
    (Outcome(K.SNOOZED, after=60), 1, "snooze", Status.QUEUED, None, None, False, 60),
    (Outcome(K.SNOOZED, after=60), 4, "snooze", Status.QUEUED, None, None, False, 60),
    (Outcome(K.RELEASED), 1, "release", Status.QUEUED, None, None, False, None),
    (Outcome(K.RELEASED), 4, "release", Status.QUEUED, None, None, False, None),
    (Outcome(K.UNREADABLE, error=ERROR, after=5), 1, "snooze", Status.QUEUED, None, None, False, 5),
    (Outcome(K.CANCELLED, error=ERROR), 1, "cancel", Status.CANCELLED, CANCELLED, "cancelled", True, None),
]


@pytest.mark.parametrize(
    ("outcome", "attempts", "event", "status", "action", "record", "counted", "wait"),
    TABLE,
    ids=lambda v: v.kind.value if isinstance(v, Outcome) else str(v),
)
def test_an_outcome_leads_to_its_settlement(
    outcome: Outcome,
    attempts: int,
    event: str,
    status: Status,
    action: str | None,
    record: str | None,
    counted: bool,
    wait: float | None,
) -> None:  # R003-5, R003-6, R003-7, T003-c, T003-d, T003-e
    s = settle(job(attempts), outcome, POLICY)
    assert (s.id, s.token, s.event, s.status) == (7, 99, event, status)
    assert (s.action, s.record, s.counted, s.wait) == (action, record, counted, wait)
    assert s.error == outcome.error
    assert s.final is (status in ENDED)


def test_every_kind_of_outcome_stands_in_the_table() -> None:
    assert {row[0].kind for row in TABLE} == set(OutcomeKind)


def test_exhaustion_and_a_lost_worker_are_told_apart_in_the_audit() -> None:  # T003-c
    assert settle(job(4), Outcome(K.FAILED), POLICY).meta == {"attempts": 4, "reason": "failed"}
    assert settle(job(4), Outcome(K.TIMED_OUT), POLICY).meta == {"attempts": 4, "reason": "timed_out"}
    assert settle(job(4), Outcome(K.LOST), POLICY).meta == {"attempts": 4, "reason": "worker_lost"}
    assert settle(job(2), Outcome(K.REFUSED), POLICY).meta == {"attempts": 2}


def test_failures_are_audited_as_errors_and_cancellations_as_warnings() -> None:
    assert settle(job(4), Outcome(K.FAILED), POLICY).level == "error"
    assert settle(job(), Outcome(K.REFUSED), POLICY).level == "error"
    assert settle(job(), Outcome(K.CANCELLED), POLICY).level == "warning"
    assert settle(job(), Outcome(K.SUCCEEDED), POLICY).level == "info"


def test_a_success_is_not_audited_when_the_setting_says_so_and_a_failure_still_is() -> None:
    quiet = Policy(Backoff(), "EMAIL_SENT", audit_success=False)
    assert settle(job(), Outcome(K.SUCCEEDED), quiet).action is None
    assert settle(job(4), Outcome(K.FAILED), quiet).action == EXHAUSTED


def test_a_parent_waits_for_its_children_after_a_success_only() -> None:
    s = settle(job(), Outcome(K.SUCCEEDED, '{"n":2}'), FATHER)
    assert (s.event, s.status, s.on_child_failure, s.output) == ("wait", Status.QUEUED, "fail", '{"n":2}')
    assert not s.final
    assert settle(job(), Outcome(K.FAILED), FATHER).event == "retry"
    assert settle(job(), Outcome(K.REFUSED), FATHER).event == "fail"


def test_the_dice_add_jitter_to_the_backoff_and_to_nothing_else() -> None:  # R002-11
    policy = Policy(Backoff(base=10, jitter=10), "X")
    assert settle(job(), Outcome(K.FAILED), policy, u=0.5).wait == 15
    assert settle(job(), Outcome(K.FAILED, after=120), policy, u=0.5).wait == 120


def test_a_snooze_until_an_instant_keeps_the_instant() -> None:
    s = settle(job(), Outcome(K.SNOOZED, until=NOW), POLICY)
    assert (s.until, s.wait, s.counted) == (NOW, None, False)


def test_what_a_run_cost_and_made_is_kept_whatever_its_end() -> None:
    for kind in (K.SUCCEEDED, K.FAILED, K.REFUSED, K.CANCELLED):
        s = settle(job(), Outcome(kind, cost_cents=12, remote_id="msg-1"), POLICY)
        assert (s.cost_cents, s.remote_id) == (12, "msg-1")


@pytest.mark.parametrize("kind", [K.SUCCEEDED, K.REFUSED, K.CANCELLED, K.FAILED])
def test_what_follows_from_an_end_is_taken_over_from_the_job(kind: OutcomeKind) -> None:
    s = settle(job(4, parent_id=3, key_scope="done"), Outcome(kind), POLICY)
    assert (s.parent_id, s.key_scope) == (3, "done")


@pytest.mark.parametrize(
    ("outcome", "what"),
    [
        (Outcome(K.FAILED, after=math.inf), "retry"),
        (Outcome(K.FAILED, after=1e18), "retry"),
        (Outcome(K.SNOOZED, after=math.inf), "snooze"),
        (Outcome(K.SNOOZED, after=1e18), "snooze"),
    ],
)
def test_an_absurd_delay_is_cut_to_one_that_a_database_can_add(outcome: Outcome, what: str) -> None:  # B067
    s = settle(job(), outcome, POLICY)
    assert s.event == what
    assert s.wait is not None
    assert 86_400 <= s.wait <= 100 * 366 * 86_400


@pytest.mark.parametrize("kind", [K.FAILED, K.SNOOZED])
def test_a_delay_that_is_no_number_means_at_once(kind: OutcomeKind) -> None:
    assert settle(job(), Outcome(kind, after=math.nan), POLICY).wait == 0


@given(
    kind=st.sampled_from(OutcomeKind),
    attempts=st.integers(1, 10),
    max_attempts=st.integers(1, 10),
    after=st.none() | st.floats(),
    u=st.floats(0, 1, exclude_max=True),
)
def test_every_settlement_is_a_move_of_the_lifecycle_and_ends_or_waits(
    kind: OutcomeKind, attempts: int, max_attempts: int, after: float | None, u: float
) -> None:
    s: Settlement = settle(job(attempts, max_attempts), Outcome(kind, after=after), POLICY, u)
    assert LIFECYCLE.target(Status.RUNNING, s.event) is s.status
    assert s.final is (s.status not in LIVE)
    assert s.wait is None or s.wait >= 0
    if s.status is Status.FAILED:
        assert s.action in (EXHAUSTED, PERMANENT)
    if kind in (K.FAILED, K.TIMED_OUT, K.LOST):
        assert (s.status is Status.FAILED) is (attempts >= max_attempts)


def test_what_thousands_are_at_hand_of_is_made_without_a_dictionary_of_its_own() -> None:  # ADR 0032
    run = Run(job(), None, Lane("mail", 1, 1), 0.0)
    assert not hasattr(run, "__dict__")
    # what is set later than in __init__ is what makes an object leave the keys that it shares with others
    done = settle(job(), Outcome(K.SUCCEEDED, "{}"), POLICY)
    assert list(vars(done)) == list(vars(Settlement(7, 99, "succeed", Status.SUCCEEDED)))
