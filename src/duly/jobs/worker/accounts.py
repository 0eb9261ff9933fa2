"""After a run: what becomes of it, letting go of it, counting it, telling it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from duly.jobs.run import Run
from duly.jobs.settle import Claimed, Settlement, settle
from duly.jobs.worker.state import WorkerState
from duly.kernel.events import Level
from duly.kernel.outcome import Outcome, OutcomeKind

#: Ends of runs that are told one by one, with how much they matter.
_TOLD: Mapping[str, tuple[str, Level]] = {
    "retry": ("job_retry", "warning"),
    "fail": ("job_failed", "error"),
    "cancel": ("job_cancelled", "warning"),
}


class Accounts(WorkerState):
    """Decides, counts, tells."""

    def _decide(self, run: Run, outcome: Outcome) -> Settlement:
        policy, u = self.engine.policy(run.claimed.task), self._dice.random()
        try:
            return settle(run.claimed, outcome, policy, u)
        except Exception as error:
            # whatever a handler put into its outcome, the job has an end
            described = {
                "type": type(error).__name__,
                "message": "the outcome of this run makes no sense to the engine",
            }
            return settle(run.claimed, Outcome(OutcomeKind.FAILED, error=described), policy, u)

    def _account(self, runs: list[Run], held: set[int]) -> None:
        """After the write: let go of what was settled, count it and tell it."""
        self._forget(runs)
        if any(lane.room() > 0 for lane in self.lanes.values()):
            self._bell.nudge()
        counts = Counter[str]()
        told: list[tuple[str, str, str, float]] | None = [] if self.emitter.active else None
        for run in runs:
            s, c = run.settlement, run.claimed
            assert s is not None
            event = s.event
            if c.id not in held:
                counts["lost"] += 1
                self.emitter.emit("lease_lost", "warning", worker=self.name, job=c.id, task=c.task, attempt=c.attempts)
                continue
            counts[event] += 1
            if run.error is not None:
                self.engine.tell_failure(run, s, self.name, self._loop)
                run.error = None
            if told is not None:
                told.append((c.queue, c.task, event, run.ended_mono - run.started_mono if run.started_mono else 0.0))
                if event in _TOLD:
                    self._tell(c, s)
        if counts["retry"] or counts["snooze"] or counts["wait"]:
            self._bell.ring()  # something may be due sooner than was known
        self.tally.add(
            succeeded=counts["succeed"] + counts["wait"], failed=counts["fail"], retried=counts["retry"], cancelled=counts["cancel"],
            snoozed=counts["snooze"], released=counts["release"], lost=counts["lost"],
        )  # fmt: skip
        if told:
            self.emitter.emit("jobs_settled", "debug", worker=self.name, jobs=told)

    def _tell(self, c: Claimed, s: Settlement) -> None:
        name, level = _TOLD[s.event]
        more = {"wait": s.wait} if s.event == "retry" else {}
        self.emitter.emit(
            name, level, job=c.id, task=c.task, queue=c.queue, attempt=c.attempts, max_attempts=c.max_attempts,
            error=(s.error or {}).get("type"), **more,
        )  # fmt: skip

    def _forget(self, runs: list[Run]) -> None:
        held = self._held
        with self._lock:
            for run in runs:
                run.lane.outstanding -= 1
                # the same job may have been claimed here again meanwhile, under another lease
                if held.get(run.claimed.id) is run:
                    del held[run.claimed.id]
