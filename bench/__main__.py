"""`python -m bench [section…] [--jobs N] [--reps N] [--quick] [--peers] [--json FILE]`

Sections: drain-pg, drain-sqlite, bulk, single, pickup, history, memory, features, idempotent, relay, schedules,
rounds, workflows, publishing, automations (none named: all). `profile-pg` and
`profile-sqlite` show where a worker's time goes instead. See `bench/README.md`.
"""

import argparse
import json
import os
import signal
import sys

from bench import machine, profile
from bench.driver import Bench
from bench.sections import SECTIONS

PROFILES = ("profile-pg", "profile-sqlite")


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="python -m bench", description="Duly beside its peers and the raw limit, as ratios of one run."
    )
    p.add_argument(
        "sections", nargs="*", metavar="section", help=f"any of {', '.join([*SECTIONS, *PROFILES])}; none: all sections"
    )
    p.add_argument("--jobs", type=int, help="queue depth of a drain (default 60000, quick 5000, profile 30000)")
    p.add_argument("--reps", type=int, help="repetitions, interleaved (default 5, quick 1)")
    p.add_argument(
        "--quick", action="store_true", help="shallow queues, one repetition, no waiting: to see that it works"
    )
    p.add_argument("--peers", action="store_true", help="procrastinate and oban too")
    p.add_argument(
        "--patience",
        type=float,
        help="seconds to wait for a quiet machine before each repetition (default 45, quick 0)",
    )
    p.add_argument("--sample", action="store_true", help="profile by sampling instead of cProfile")
    p.add_argument("--json", metavar="FILE", help="write every figure there")
    o = p.parse_args()
    unknown = [s for s in o.sections if s not in SECTIONS and s not in PROFILES]
    if unknown:
        p.error(f"unknown section {', '.join(unknown)}; there are {', '.join([*SECTIONS, *PROFILES])}")
    return o


def header(facts: dict[str, object]) -> str:
    order = [
        f"{facts['cores']} cores",
        f"Python {facts['python']}",
        f"SQLite {facts['sqlite']}",
        f"scratch on {facts['filesystem']}",
        f"load {facts['load']}",
        str(facts["taken"]),
        str(facts["system"]),
    ]
    warning = (
        "\nScratch lies in memory: fsync is free here and every figure of a durable database is too good. Set TMPDIR."
        if facts["filesystem"] in ("tmpfs", "ramfs")
        else ""
    )
    given = [
        f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("DULY_") and not k.startswith("DULY_BENCH_")
    ]
    warning += "\nNot the defaults: " + " ".join(given) if given else ""
    return " · ".join(order) + warning + "\n"


def main() -> int:
    o = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` stops what was started
    names = o.sections or list(SECTIONS)
    bench = Bench(
        jobs=o.jobs or (5_000 if o.quick else 60_000),
        reps=o.reps or (1 if o.quick else 5),
        quick=o.quick,
        peers=o.peers,
        patience=o.patience if o.patience is not None else (0.0 if o.quick else 45.0),
    )
    try:
        facts = machine.facts(str(bench.scratch))
        print(header(facts), flush=True)
        found = []
        for name in names:
            if name in PROFILES:
                print(
                    profile.run(bench, name.removeprefix("profile-"), jobs=o.jobs or 30_000, sample=o.sample),
                    flush=True,
                )
                continue
            section = SECTIONS[name](bench)
            found.append(section)
            print(section.text(), flush=True)
        if o.json:
            postgres = bench.server.facts() if bench.started else None
            with open(o.json, "w") as f:
                json.dump(
                    {"machine": facts, "postgres": postgres, "sections": [s.plain() for s in found]},
                    f,
                    indent=1,
                    ensure_ascii=False,
                )
    finally:
        bench.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
