"""What the processes of the crash tests run: a scheduler with a place to die."""

from __future__ import annotations

import time

from crash.program import Here, Plan, enter_process, write

#: Where a scheduler can die.
STEPS = ("due.before", "due.found", "apply.before", "jobs.made", "ledger.before", "ledger.written", "tell.before")


def run_scheduler(plan: Plan) -> None:
    """Tick until somebody ends it."""
    enter_process(plan)
    scheduler = Here.app.scheduler()
    killer, maker = Here.die_at, Here.app.engine.maker
    killer._around(scheduler.store, "due", "due.before", "due.found", has_jobs=bool)
    killer._around(scheduler, "apply", "apply.before", None, concerns=lambda _c, planned, *_: bool(planned))
    killer._around(maker, "make_in", None, "jobs.made", has_jobs=bool)
    killer._around(scheduler.store, "write", "ledger.before", "ledger.written")
    killer._around(scheduler, "tell", "tell.before", None)
    write("ready", ready=True)
    while True:
        report = scheduler.tick()
        if report.looked:
            write("ticked", fired=report.fired, broken=report.broken)
        time.sleep(0.02)
