"""Ticks of rounds: groups per minute, and what a pass with nothing to do costs, beside many groups that are not due."""

from __future__ import annotations

from bench import machine
from bench.driver import Bench, Failed
from bench.field import DULY_PG, DULY_SQLITE, variant
from bench.table import Ratio, Section

KINDS = ("plan", "open", "close")


def rounds(bench: Bench) -> Section:
    n, totals = (500, (5_000, 5_000)) if bench.quick else (10_000, (1_000_000, 100_000))
    section = Section(
        "rounds",
        "ticks of which each moves the same groups, beside many that are not due; an opening makes a job too",
        "groups/min",
    )
    for label, contender, command, total in (
        ("PostgreSQL", DULY_PG, "rounds_pg", totals[0]), ("SQLite", DULY_SQLITE, "rounds_sqlite", totals[1])
    ):  # fmt: skip
        rows = {kind: section.row(f"{label}: {kind}, of {total:,}", n, "250") for kind in KINDS}
        idle, growth = list[float](), list[float]()
        for _ in range(bench.reps):
            target = bench.fresh(contender)
            machine.wait_until_quiet(bench.patience, bench.spare)
            try:
                answer = bench.call(variant(contender, contender.name, path="pairs_rounds"), target, command, n, total)
            except Failed as e:
                rows["plan"].note = str(e)
                break
            for kind, row in rows.items():
                row.add(round(60 * n / answer[kind], 1), seconds=round(answer[kind], 2))
            idle.append(round(1000 * answer["idle"], 2))
            growth.append(answer["MiB"])
        section.ratios += [
            Ratio(f"{label}: a pass with nothing to do", idle, "ms", most=50.0),
            Ratio(f"{label}: memory that the three passes add", growth, "MiB", most=30.0),
        ]
    return section
