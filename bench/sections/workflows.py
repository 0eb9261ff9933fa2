"""What a workflow's steps cost beside bare commits, how long a long history takes to be gone through again, and many children."""

from __future__ import annotations

from bench.driver import Bench, Failed
from bench.field import DULY_PG, DULY_SQLITE
from bench.sections.once import ask
from bench.table import Section, over


def workflows(bench: Bench) -> Section:
    n = 100 if bench.quick else 10_000
    section = Section(
        "workflows",
        "a run of many steps, one commit each; a parent of many children; beside as many bare commits of one row",
        "per second",
    )
    for label, contender, command in (("PostgreSQL", DULY_PG, "flow_pg"), ("SQLite", DULY_SQLITE, "flow_sqlite")):
        steps, children, raw = (
            section.row(f"{label}: {what}", n, "1")
            for what in ("steps of one run", "children of one run", "bare commits")
        )
        for _ in range(bench.reps):
            try:
                answer = ask(bench, contender, command, n, "pairs_workflows")
            except Failed as e:
                steps.note = str(e)
                break
            # the replay includes a worker's start and end
            steps.add(round(n / answer["steps"], 1), replay_s=answer["replay"], MiB_more=answer["memory"])
            children.add(round(n / answer["children"], 1))
            raw.add(round(n / answer["raw"], 1))
        section.ratios.append(over(f"{label}: steps / bare commits", steps, raw))
    return section
