"""Enqueueing against the bare statement of the same driver, in one process and in turn."""

from bench import machine
from bench.driver import Bench, Contender, Failed
from bench.field import DULY_PG, DULY_SQLITE, variant
from bench.table import Row, Section, over


def pair(
    bench: Bench, section: Section, command: str, contender: Contender, n: int, names: tuple[str, str], batch: str
) -> tuple[Row, Row]:
    """Fresh databases and a fresh process each time; rates of Duly's side and the bare side."""
    duly, raw = section.row(names[0], n, batch), section.row(names[1], n, batch)
    bare = variant(contender, "bare")
    for _ in range(bench.reps):
        target, options = bench.fresh(contender), {"raw": bench.fresh(bare)}
        machine.wait_until_quiet(bench.patience, bench.spare)
        watch = machine.Neighbours(bench.spare)
        try:
            answer = bench.call(variant(contender, contender.name, path="pairs", options=options), target, command, n)
        except Failed as e:
            duly.note = raw.note = str(e)
            break
        section.others.append(watch.cores())
        raw.add(round(n / answer["raw"], 1))
        if "duly" in answer:
            duly.add(round(n / answer["duly"], 1))
        else:
            duly.note = answer.get("error", "")
    return duly, raw


def bulk(bench: Bench) -> Section:
    n = 2_000 if bench.quick else 10_000
    section = Section(
        "bulk", "one bulk enqueue against COPY / executemany of the same rows into a bare table", "jobs/s"
    )
    pg = pair(bench, section, "bulk_pg", DULY_PG, n, ("PostgreSQL: enqueue_many", "PostgreSQL: COPY"), f"{n:,}")
    lite = pair(
        bench, section, "bulk_sqlite", DULY_SQLITE, n, ("SQLite: enqueue_many", "SQLite: executemany"), f"{n:,}"
    )
    section.ratios = [over("PostgreSQL: duly / COPY", *pg, least=0.30), over("SQLite: duly / executemany", *lite)]
    return section


def single(bench: Bench) -> Section:
    n = 200 if bench.quick else 1_000
    section = Section(
        "single", "one enqueue, one commit against one bare INSERT, one commit, through the same driver", "per second"
    )
    pg = pair(bench, section, "single_pg", DULY_PG, n, ("PostgreSQL: enqueue", "PostgreSQL: INSERT"), "1")
    lite = pair(bench, section, "single_sqlite", DULY_SQLITE, n, ("SQLite: enqueue", "SQLite: INSERT"), "1")
    section.ratios = [
        over("PostgreSQL: duly / INSERT", *pg, least=0.80),
        over("SQLite: duly / INSERT", *lite, least=0.80),
    ]
    return section
