"""The worker's resident memory while it drains a long queue: how high, and whether it grows."""

import statistics
import time

from bench import machine
from bench.driver import Bench, Contender, Failed, Worker
from bench.field import DULY_PG, DULY_SQLITE
from bench.table import Ratio, Row, Section

#: Times the depth of the other drains: a million jobs, so that most of the time lies behind the first moments.
LONGER = 25
#: Seconds between two samples.
EVERY = 0.2


class Samples:
    """Resident memory of a worker, taken no more often than `EVERY`."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._next = 0.0

    def __call__(self, worker: Worker) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self.taken.append(machine.rss_mib(machine.tree(worker.process.pid)) or 0.0)

    def growth(self) -> float:
        """MiB gained from the second quarter of the drain to the last one; the first is start-up."""
        quarter = max(1, len(self.taken) // 4)
        return round(statistics.median(self.taken[-quarter:]) - statistics.median(self.taken[quarter : 2 * quarter]), 2)


def memory(bench: Bench) -> Section:
    n = bench.jobs * LONGER
    section = Section("memory", "resident memory of one worker during a long drain", "peak MiB")
    for contender, name in ((DULY_PG, "PostgreSQL"), (DULY_SQLITE, "SQLite")):
        row = section.row(f"{name}: duly", n, contender.batch)
        growth = watched(bench, contender, n, row, section)
        section.ratios += [
            Ratio(f"{name}: peak", row.values, "MiB", most=60.0),
            Ratio(f"{name}: growth, last quarter − second", growth, "MiB", most=2.0),
        ]
    return section


def watched(bench: Bench, contender: Contender, n: int, row: Row, section: Section) -> list[float]:
    """Drain once, fill the row, answer the growth."""
    samples = Samples()
    try:
        drain = bench.drain(contender, jobs=n, limit=600, during=samples)
    except Failed as e:
        row.note = str(e)
        return []
    quarter = max(1, len(samples.taken) // 4)
    row.add(
        drain.rss or 0.0,
        first_quarter=statistics.median(samples.taken[:quarter]),
        last_quarter=statistics.median(samples.taken[-quarter:]),
        samples=float(len(samples.taken)),
        per_second=drain.rate,
    )
    section.others.append(drain.others)
    return [samples.growth()]
