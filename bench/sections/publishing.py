"""What the publishing room costs: posts of a channel that does nothing, beside plain jobs of an empty handler."""

from __future__ import annotations

from bench.driver import Bench, Failed
from bench.field import DULY_PG, DULY_SQLITE
from bench.sections.once import ask
from bench.table import Section, over


def publishing(bench: Bench) -> Section:
    n = 500 if bench.quick else 5_000
    section = Section(
        "publishing",
        "posts of a channel without a limit whose function does nothing, each with its write-ahead and its answer, beside plain jobs",
        "per second",
    )
    for label, contender, command in (("PostgreSQL", DULY_PG, "posts_pg"), ("SQLite", DULY_SQLITE, "posts_sqlite")):
        posts, jobs = (section.row(f"{label}: {what}", n, "20") for what in ("posts", "jobs that do nothing"))
        for _ in range(bench.reps):
            try:
                answer = ask(bench, contender, command, n, "pairs_publishing")
            except Failed as e:
                posts.note = str(e)
                break
            posts.add(round(n / answer["posts"], 1))
            jobs.add(round(n / answer["jobs"], 1))
        section.ratios.append(over(f"{label}: posts / jobs", posts, jobs))
    return section
