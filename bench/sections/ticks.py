"""A scheduler's tick against a bulk enqueue of as many jobs: what planning and the ledger cost."""

from __future__ import annotations

from bench.driver import Bench, Failed
from bench.field import DULY_PG, DULY_SQLITE
from bench.sections.once import ask
from bench.table import Section, over


def schedules(bench: Bench) -> Section:
    n = 200 if bench.quick else 10_000
    section = Section(
        "schedules",
        "minutely schedules that fire in one tick, against making as many jobs in one transaction",
        "per second",
    )
    for label, contender, command in (("PostgreSQL", DULY_PG, "tick_pg"), ("SQLite", DULY_SQLITE, "tick_sqlite")):
        fired, alone = (
            section.row(f"{label}: fired by a tick", n, "200"),
            section.row(f"{label}: overlap=skip", n, "200"),
        )
        raw = section.row(f"{label}: bulk enqueue", n, "200")
        for _ in range(bench.reps):
            try:
                answer = ask(bench, contender, command, n, "pairs_ticks")
            except Failed as e:
                fired.note = str(e)
                break
            fired.add(round(n / answer["fired"], 1))
            alone.add(round(n / answer["alone"], 1))
            raw.add(round(n / answer["raw"], 1))
        section.ratios.append(over(f"{label}: tick / bulk enqueue", fired, raw))
    return section
