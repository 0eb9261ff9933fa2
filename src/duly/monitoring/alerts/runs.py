"""What the rules about single schedules, groups and workflows are judged by: whose runs fail, which grow long, which wait for code."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from sqlalchemy import literal_column, select

from duly.jobs.tables import error_class, jobs, jobs_done, workers
from duly.monitoring.alerts.alert import MOST_SUBJECTS, Reading, Sample
from duly.monitoring.alerts.looks import ROWS, Look

#: The last runs of a schedule that are looked at. Where this many end within the window, so many in a row must have failed; where fewer do, one.
LAST, FEW = 5, 3


def schedule_failing(look: Look) -> Reading:
    """How many runs of each schedule have failed in a row, the last one among them. One that runs often may fail now and then."""
    if not look.any("schedules"):
        return Reading()
    from duly.schedules.tables import occurrences, schedules

    s, o, d = schedules.c, occurrences.c, jobs_done.c
    its = select(o.job_id).where(o.schedule_id == s.id, o.job_id.is_not(None)).order_by(o.job_id.desc()).limit(1)
    newest = [its.offset(n).scalar_subquery().label(f"job{n}") for n in range(LAST)]
    there = select(s.tenant, s.name, *newest).where(s.removed_at.is_(None), s.paused_at.is_(None)).order_by(s.id)
    rows = look.connection.execute(there.limit(ROWS)).all()
    made = [[job for job in row[2:] if job is not None] for row in rows]
    ids = sorted({job for some in made for job in some})
    ends: dict[int, Any] = {}
    for at in range(0, len(ids), 500):
        ended = select(d.id, d.status, d.finished_at, error_class(d.error).label("kind")).where(
            d.id.in_(ids[at : at + 500]), d.status.in_(("succeeded", "failed"))
        )
        ends |= {row.id: row for row in look.connection.execute(ended)}
    window, samples = look.ago(look.settings.alerts_window), []
    for row, some in zip(rows, made, strict=True):
        done = [ends[job] for job in some if job in ends]
        failed = list(itertools.takewhile(lambda one: one.status == "failed", done))
        is_seldom = len(done) < FEW or done[FEW - 1].finished_at <= window
        if len(failed) >= (1 if is_seldom else FEW):
            name = row.name if row.tenant == look.settings.tenant else f"{row.tenant}/{row.name}"
            samples.append(Sample(name, len(failed), detail=f"job {failed[0].id}: {failed[0].kind or 'no class'}"))
    return Reading.of(samples, complete=len(rows) < ROWS)


def group_failing(look: Look) -> Reading:
    """How often in a row each group of the rounds could not be planned, opened or closed."""
    if not look.any("groups"):
        return Reading()
    from duly.rounds.tables import groups

    g = groups.c
    failing = select(g.id, g.name, g.error, g.failures).where(g.is_active, g.error.is_not(None)).order_by(g.error_at)
    rows = look.connection.execute(failing.limit(MOST_SUBJECTS + 1)).all()
    return Reading.of([Sample(str(r.id), max(1, r.failures), detail=f"{r.name}: {r.error}") for r in rows])


def workflow_long(look: Look) -> Reading:
    """The steps of the longest run of each workflow, of runs that have not ended: the oldest ones first."""
    if not look.any("workflow_runs"):
        return Reading()
    from duly.workflows.tables import RUNS, workflow_runs, workflow_steps

    j, r, t = jobs.c, workflow_runs.c, workflow_steps.c
    last = select(t.position).where(t.run_id == j.id).order_by(t.position.desc()).limit(1).scalar_subquery()
    live = select(j.id, last.label("steps")).where(literal_column(RUNS)).order_by(j.id).limit(ROWS)
    rows = look.connection.execute(live).all()
    long = {row.id: row.steps for row in rows if (row.steps or 0) >= look.settings.workflow_steps_warn}
    named = select(r.id, r.workflow).where(r.id.in_(sorted(long)[:ROWS]))
    runs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for ident, workflow in look.connection.execute(named) if long else ():
        runs[workflow].append((long[ident], ident))
    return Reading.of(
        [
            Sample(name, max(its)[0], detail=f"run {max(its)[1]}" + (f"; {len(its)} such runs" if len(its) > 1 else ""))
            for name, its in runs.items()
        ],
        complete=len(rows) < ROWS,
    )


def code_missing(look: Look) -> Reading:
    """How many runs of workflows are due that no worker takes although one of their queue has room, by the code that they need. (How long is seen
    from look to look: when a run that slept was woken stands nowhere.)

    A worker without that code passes them by, so they are no backlog that more workers of the same code would work off.
    """
    if not look.any("workflow_runs"):
        return Reading()
    from duly.workflows.tables import RUNS

    j, w = jobs.c, workers.c
    mine: Any = literal_column(RUNS), j.status == "queued", j.due_at.is_(None), j.needs.is_not(None)
    rows = look.connection.execute(select(j.id, j.queue, j.needs).where(*mine).order_by(j.id).limit(ROWS)).all()
    if not rows:
        return Reading()
    living = select(w.queues, w.running).where(w.seen_at >= look.ago(look.settings.alerts_worker))
    free = {q for queues, running in look.connection.execute(living) if running < sum(queues.values()) for q in queues}
    running = select(j.needs).where(j.status == "running", j.needs.is_not(None)).distinct()
    taken = set(look.connection.execute(running).scalars())
    waiting: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row.queue in free and row.queue in look.due and row.needs not in taken:  # what is held is not due
            waiting[row.needs].append(row.id)
    return Reading.of(
        [Sample(needs, len(ids), detail=f"run {ids[0]}") for needs, ids in waiting.items()], complete=len(rows) < ROWS
    )
