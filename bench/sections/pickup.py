"""From just before the enqueue call to the start of the handler, with an idle worker: the enqueue's own commit is inside."""

import contextlib
import tempfile
import time

from bench import machine, marks
from bench.driver import Bench, Contender, Failed, Worker
from bench.field import DULY_PG, DULY_SQLITE, RAW_PG, variant
from bench.table import Ratio, Row, Section

#: Seconds an idle worker is left alone before the first probe: it has nothing more to set up then.
WARM = 1.5


def percentile(values: list[float], share: float) -> float:
    values = sorted(values)
    return round(values[min(len(values) - 1, int(share * len(values)))], 2)


def record(row: Row, run: str, n: int) -> None:
    """Wait for the last probes and add one repetition to the row."""
    give_up = time.monotonic() + 10
    while len(found := marks.probes(run)) < n and time.monotonic() < give_up:
        time.sleep(0.05)
    if len(found) < n:
        row.note = f"{n - len(found)} of {n} probes never ran"
    if found:
        row.add(
            percentile(found, 0.50), p95=percentile(found, 0.95), p99=percentile(found, 0.99), max=round(max(found), 2)
        )


def asking(contender: Contender, **options: str) -> Contender:
    return variant(contender, contender.name, path="pairs", options=options)


def postgres(bench: Bench, duly: Row, raw: Row, n: int) -> None:
    target, floor = bench.fresh(DULY_PG), bench.fresh(RAW_PG)
    bench.call(RAW_PG, floor, "prepare", 0)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(bench.worker(RAW_PG, floor, "listen"))
        listener.go()
        worker: Worker | None = None
        try:
            bench.call(DULY_PG, target, "migrate")
            worker = stack.enter_context(bench.worker(DULY_PG, target))
            worker.go()
        except Failed as e:
            duly.note = str(e)
        time.sleep(WARM)
        bench.call(asking(DULY_PG, raw=floor), target, "pickup_pg", n)
        record(raw, listener.run, n)
        if worker:
            record(duly, worker.run, n)


def across(bench: Bench, row: Row, n: int) -> None:
    target = bench.fresh(DULY_SQLITE)
    bench.call(DULY_SQLITE, target, "migrate")
    with bench.worker(DULY_SQLITE, target) as worker:
        worker.go()
        time.sleep(WARM)
        bench.call(asking(DULY_SQLITE), target, "pickup_sqlite", n)
        record(row, worker.run, n)


def within(bench: Bench, row: Row, n: int) -> None:
    with tempfile.TemporaryDirectory(dir=bench.scratch) as run:
        answer = bench.call(asking(DULY_SQLITE), bench.fresh(DULY_SQLITE), "pickup_within", n, run=run)
        if "error" in answer:
            raise Failed(answer["error"])
        record(row, run, n)


def pickup(bench: Bench) -> Section:
    n = 40 if bench.quick else 200
    section = Section("pickup", "idle worker, one probe about every 50 ms; raw and Duly in turn", "p50 ms")
    duly, raw = section.row("PostgreSQL: duly", n, "1"), section.row("PostgreSQL: raw LISTEN/NOTIFY", n, "1")
    same, other = (
        section.row("SQLite: duly, same process", n, "1"),
        section.row("SQLite: duly, another process", n, "1"),
    )
    steps = [
        (duly, lambda: postgres(bench, duly, raw, n)),
        (same, lambda: within(bench, same, n)),
        (other, lambda: across(bench, other, n)),
    ]
    for _ in range(bench.reps):
        for row, step in steps:
            if row.note and row is not duly:
                continue
            machine.wait_until_quiet(bench.patience, bench.spare)
            watch = machine.Neighbours(bench.spare)
            try:
                step()
            except Failed as e:
                row.note = str(e)
            section.others.append(watch.cores())
    extra = [round(a - b, 2) for a, b in zip(duly.values, raw.values, strict=False)]
    section.ratios = [
        Ratio("PostgreSQL: p50, duly − raw", extra, "ms", most=2.0),
        Ratio("SQLite, same process: p50", same.values, "ms", most=2.0),
        Ratio("SQLite, another process: p50", other.values, "ms", most=10.0),
    ]
    return section
