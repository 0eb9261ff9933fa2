"""How many short sessions one slot has in a second, and how long a pass over many automations takes."""

from __future__ import annotations

from bench.driver import Bench, Failed
from bench.field import DULY_PG, DULY_SQLITE
from bench.pairs_automations import MANY, PASSES
from bench.sections.once import ask
from bench.table import Section


def automations(bench: Bench) -> Section:
    n = 20 if bench.quick else 500
    section = Section(
        "automations",
        f"sessions of one question through one slot, of an AI that answers at once; passes over {MANY:,} automations, none due",
        "per second",
    )
    for label, contender, command in (("PostgreSQL", DULY_PG, "slot_pg"), ("SQLite", DULY_SQLITE, "slot_sqlite")):
        sessions, passes = section.row(f"{label}: sessions", n, "1"), section.row(f"{label}: passes", PASSES, "1")
        for _ in range(bench.reps):
            try:
                answer = ask(bench, contender, command, n, "pairs_automations")
            except Failed as e:
                sessions.note = str(e)
                break
            sessions.add(round(n / answer["sessions"], 1))
            passes.add(round(PASSES / answer["passes"], 1))
    return section
