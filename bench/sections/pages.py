"""How long the server works on a page when the database is full."""

from __future__ import annotations

from bench.driver import Bench, Failed
from bench.field import DULY_PG, DULY_SQLITE
from bench.sections.once import ask
from bench.table import Section

#: No page takes longer, in milliseconds.
MOST = 100.0


def pages(bench: Bench) -> Section:
    n = 50_000 if bench.quick else 1_000_000
    section = Section(
        "pages",
        f"server time of a page with {n:,} jobs in the database, nine tenths of them ended; the target is {MOST:g} ms",
        "ms",
    )
    for label, contender, command in (("PostgreSQL", DULY_PG, "pages_pg"), ("SQLite", DULY_SQLITE, "pages_sqlite")):
        rows = {}
        for _ in range(bench.reps):
            try:
                answer = ask(bench, contender, command, n, "pairs_pages")
            except Failed as e:
                section.notes.append(str(e))
                break
            for name, value in answer.items():
                row = rows.get(name) or section.row(f"{label}: {name}", n, "1")
                rows[name] = row
                row.add(round(value, 1))
    return section
