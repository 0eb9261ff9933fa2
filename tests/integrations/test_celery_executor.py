"""An executor takes a job over by its token, or leaves it alone; on both databases, without a broker. T004-c, T004-d."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from contract.hands import Hand, Later, actions, attempts, rows, run_sql, wait_until
from duly import INJECT, Backoff, Context, Duly, Job, Status, Window
from duly.integrations.celery.executor import UNKNOWN_TASK_WAIT, Executor
from duly.jobs.handover import HOLDER
from duly.jobs.settle import Claimed
from duly.kernel.errors import DatabaseUnavailable
from duly.kernel.events import Event


class Bench:
    """An application, a dispatcher's hand and an executor in this process, and what was told."""

    def __init__(self, url: str) -> None:
        self.app = Duly(url, lease=6, poll=0.05, grace=1)
        self.told: list[Event] = []
        self.app.listen(self.told.append)
        self.begun: list[int] = []
        self.go_on = threading.Event()
        app = self.app

        @app.task("WORK", backoff=Backoff(base=0))
        def work(value: str = "", job: Job = INJECT) -> dict[str, Any]:
            self.begun.append(job.id)
            return {"value": value, "by": job.worker}

        @app.task("WAIT", backoff=Backoff(base=0))
        def wait(run: Context = INJECT) -> str:
            self.begun.append(run.job.id)
            while not self.go_on.wait(0.01):
                run.checkpoint()
            return "done"

        app.open()
        self.holder = Hand(app, f"{HOLDER}here", lease=30)
        self.executor = Executor(app.engine, "fleet@here:1")
        self.executor.start()

    def close(self) -> None:
        self.go_on.set()
        self.executor.stop()
        self.executor.join(20)
        assert not self.executor.alive
        self.app.close()

    def handed(self, task: str = "WORK", **input: Any) -> Claimed:
        """A job that a dispatcher has claimed and sent word of."""
        self.app.enqueue(task, input)
        return self.holder.one()

    def execute(self, job: Claimed, limit: float | None = None) -> str:
        return self.executor.execute(job.id, job.token, limit)

    def facts(self, name: str) -> list[Mapping[str, Any]]:
        return [event.facts for event in self.told if event.name == name]


@pytest.fixture
def bench(db_url: str) -> Iterator[Bench]:
    made = Bench(db_url)
    yield made
    made.close()


def test_a_job_is_taken_over_run_and_settled(bench: Bench) -> None:
    job = bench.handed(value="ä")
    assert bench.execute(job) == "succeed"
    done = bench.app.jobs.get(job.id)
    assert (done.status, done.output) == (Status.SUCCEEDED, {"value": "ä", "by": "fleet@here:1"})
    assert (done.attempts, done.worker, attempts(bench.app, job.id)) == (1, "fleet@here:1", [])
    assert actions(bench.app, job.id) == ["WORK_COMPLETED"]


def test_from_the_take_over_on_the_dispatcher_can_neither_renew_nor_settle(bench: Bench) -> None:
    job = bench.handed("WAIT")
    running = Later(lambda: bench.execute(job))
    wait_until(lambda: bench.begun)
    assert bench.holder.renew(job) == set()
    assert not bench.holder.succeed(job)
    assert bench.app.jobs.get(job.id).worker == "fleet@here:1"
    bench.go_on.set()
    assert running.result() == "succeed"


def test_a_run_keeps_its_lease_for_as_long_as_it_takes(bench: Bench) -> None:
    job = bench.handed("WAIT")
    running = Later(lambda: bench.execute(job))
    wait_until(lambda: bench.begun)
    before = bench.app.jobs.get(job.id).lease_until
    wait_until(lambda: bench.app.jobs.get(job.id).lease_until > before)  # type: ignore[operator]
    bench.go_on.set()
    assert running.result() == "succeed"


def test_the_same_word_twice_at_the_same_moment_begins_the_job_once(bench: Bench) -> None:
    job = bench.handed("WAIT")
    both = [Later(lambda: bench.execute(job)) for _ in range(2)]
    wait_until(lambda: bench.begun and bench.facts("handover_lost"))
    bench.go_on.set()
    assert sorted(each.result() for each in both) == ["not run: elsewhere", "succeed"]
    assert bench.begun == [job.id]


def give_back(bench: Bench, job: Claimed) -> None:
    from duly.kernel.outcome import Outcome, OutcomeKind

    assert bench.holder.end(job, Outcome(OutcomeKind.RELEASED))


def finish(bench: Bench, job: Claimed) -> None:
    assert bench.holder.succeed(job)


def claim_again(bench: Bench, job: Claimed) -> None:
    give_back(bench, job)
    assert bench.holder.one().id == job.id


def forget(bench: Bench, job: Claimed) -> None:
    run_sql(bench.app, "DELETE FROM jobs")


@pytest.mark.parametrize(
    ("meanwhile", "reason"),
    [(give_back, "queued"), (finish, "ended"), (claim_again, "elsewhere"), (forget, "unknown")],
)
def test_a_late_word_changes_nothing(bench: Bench, meanwhile: Callable[[Bench, Claimed], None], reason: str) -> None:
    job = bench.handed()
    meanwhile(bench, job)
    before = rows(bench.app, "SELECT id, status, attempts, lease_token, worker FROM jobs")
    assert bench.execute(job) == f"not run: {reason}"
    assert rows(bench.app, "SELECT id, status, attempts, lease_token, worker FROM jobs") == before
    assert bench.begun == []
    assert [facts["reason"] for facts in bench.facts("handover_lost")] == [reason]


@pytest.mark.parametrize("held_by", ["gate", "pause", "blackout"])
def test_what_is_held_meanwhile_does_not_begin_and_goes_back(bench: Bench, held_by: str) -> None:  # R003-8
    job = bench.handed()
    if held_by == "gate":
        bench.app.gate.offline()
    elif held_by == "pause":
        bench.app.queues.pause("default")
    else:
        bench.app.calendars.set(Window(tz="UTC", name="quiet", scope="queue:default"))
    assert bench.execute(job) == "not run: held"
    found = bench.app.jobs.get(job.id)
    assert (found.status, found.attempts, bench.begun) == (Status.QUEUED, 0, [])
    bench.app.gate.online()
    bench.app.queues.resume("default")
    if held_by == "blackout":
        bench.app.calendars.remove("quiet")
    again = bench.holder.one()
    assert (bench.execute(again), bench.app.jobs.get(job.id).attempts) == ("succeed", 1)


def test_a_job_that_was_cancelled_on_the_way_does_not_begin(bench: Bench) -> None:
    job = bench.handed()
    bench.app.jobs.cancel(job.id)
    bench.execute(job)
    assert (bench.app.jobs.get(job.id).status, bench.begun) == (Status.CANCELLED, [])
    assert actions(bench.app, job.id) == ["JOB_CANCEL_REQUESTED", "JOB_CANCELLED"]


def test_a_running_job_hears_of_its_cancel(bench: Bench) -> None:
    job = bench.handed("WAIT")
    running = Later(lambda: bench.execute(job))
    wait_until(lambda: bench.begun)
    bench.app.jobs.cancel(job.id)
    assert running.result() == "cancel"
    assert bench.app.jobs.get(job.id).status is Status.CANCELLED


def test_an_unknown_task_is_put_off_without_an_attempt(bench: Bench) -> None:
    job = bench.handed()
    del bench.app.engine.tasks["WORK"]
    assert bench.execute(job) == "snooze"
    found = bench.app.jobs.get(job.id)
    assert (found.status, found.attempts) == (Status.QUEUED, 0)
    assert found.due_at is not None
    assert 0 < (found.due_at - bench.app.engine.clock.now()).total_seconds() <= UNKNOWN_TASK_WAIT
    assert bench.facts("handover_refused")[0]["task"] == "WORK"


def test_a_task_without_a_timeout_has_what_celery_allows(bench: Bench) -> None:
    job = bench.handed("WAIT")
    assert bench.execute(job, limit=0.2) == "retry"
    [attempt] = attempts(bench.app, job.id)
    assert (attempt.outcome, attempt.error["type"]) == ("timed_out", "Timeout")
    assert "may take where it ran" in attempt.error["message"]


def test_a_timeout_of_its_own_counts_for_more(bench: Bench) -> None:
    @bench.app.task("LONG", timeout=30)
    def long() -> None:
        time.sleep(0.5)

    assert bench.execute(bench.handed("LONG"), limit=0.1) == "succeed"


def test_a_database_that_is_away_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job = bench.handed()
    real, tries = bench.app.db.write, []

    def away(fn: Any) -> Any:
        if threading.current_thread() is not threading.main_thread() or len(tries) >= 3:
            return real(fn)
        tries.append(1)
        raise DatabaseUnavailable("it is away")

    monkeypatch.setattr(bench.app.db, "write", away)
    assert bench.execute(job) == "succeed"
    assert len(tries) == 3


def test_a_rescue_of_what_nobody_has_begun_costs_no_attempt(bench: Bench) -> None:
    jobs = [bench.handed() for _ in range(3)]
    begun = bench.handed("WAIT")
    running = Later(lambda: bench.execute(begun))
    wait_until(lambda: bench.begun)
    assert bench.app.jobs.get(begun.id).worker == "fleet@here:1"
    run_sql(bench.app, "UPDATE jobs SET lease_until = created_at")
    rescued = dict(Hand(bench.app, "another").rescue())
    assert rescued == {**{job.id: "release" for job in jobs}, begun.id: "rescue"}
    for job in jobs:
        found = bench.app.jobs.get(job.id)
        assert (found.status, found.attempts, found.due_at, attempts(bench.app, job.id)) == (Status.QUEUED, 0, None, [])
    assert [a.outcome for a in attempts(bench.app, begun.id)] == ["lost"]
    bench.go_on.set()
    running.result()  # its settlement finds another owner
    assert bench.app.jobs.get(begun.id).status is Status.QUEUED


def test_what_an_operator_asked_to_stop_ends_when_its_holder_is_gone(bench: Bench) -> None:
    job = bench.handed()
    bench.app.jobs.cancel(job.id)
    run_sql(bench.app, "UPDATE jobs SET lease_until = created_at")
    assert Hand(bench.app, "another").rescue() == [(job.id, "cancel")]
    assert bench.app.jobs.get(job.id).status is Status.CANCELLED
