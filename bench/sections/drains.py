"""Drains side by side: against the peers and the raw limit, with a long history, with single features switched on."""

import psycopg

from bench.driver import Bench, Contender, Drain, Failed
from bench.field import (
    DULY_PG,
    DULY_SQLITE,
    HUEY_DURABLE,
    HUEY_FAST,
    OBAN,
    PGQUEUER_BEST,
    PGQUEUER_DEFAULT,
    PROCRASTINATE,
    RAW_PG,
    RAW_SQLITE,
    variant,
)
from bench.table import Row, Section, over
from bench.venvs import Unavailable

HISTORY = 1_000_000
FUTURE = 200_000


def interleave(
    bench: Bench, section: Section, contenders: list[Contender], templates: dict[str, str] | None = None
) -> list[Row]:
    """One drain of each in turn, `reps` times round. One that fails says so in its row and is left out from then on."""
    rows = [section.row(c.label, c.depth(bench.jobs), c.batch) for c in contenders]
    for _ in range(bench.reps):
        for contender, row in zip(contenders, rows, strict=True):
            if row.note:
                continue
            try:
                drain = undisturbed(bench, contender, (templates or {}).get(contender.name))
            except (Unavailable, Failed) as e:
                row.note = str(e).removeprefix(contender.name + ": ")
                continue
            row.add(
                drain.rate, worker_µs=drain.worker_us, server_µs=drain.server_us, MiB=drain.rss, pause_ms=drain.pause_ms
            )
            section.others.append(drain.others)
            if drain.stopped:
                row.note = f"stopped after {drain.seconds:.0f} s"
    return rows


def undisturbed(bench: Bench, contender: Contender, template: str | None) -> Drain:
    """A drain during which others left the machine alone; the quietest of three when they never do.

    Only the neighbours' use of the processor decides, never the figure itself.
    """
    drains: list[Drain] = []
    for _ in range(3 if bench.patience else 1):
        target = None
        if template:
            target = bench.fresh(contender, template)
            bench.call(contender, target, "fill", contender.depth(bench.jobs))
        drains.append(bench.drain(contender, target=target))
        if not drains[-1].disturbed:
            break
    return min(drains, key=lambda d: d.others)


def postgres(bench: Bench) -> Section:
    section = Section("drain-pg", "no-op async jobs on durable PostgreSQL, one worker process", "jobs/s")
    more = [PROCRASTINATE, OBAN] if bench.peers else []
    duly, best, default, raw, *_ = interleave(bench, section, [DULY_PG, PGQUEUER_BEST, PGQUEUER_DEFAULT, RAW_PG, *more])
    section.ratios = [
        over("duly / pgqueuer best", duly, best, least=2.2, goal=3.0),
        over("duly / pgqueuer default", duly, default),
        over("duly / raw limit", duly, raw, least=0.65),
    ]
    return section


def sqlite(bench: Bench) -> Section:
    section = Section("drain-sqlite", "no-op async jobs on SQLite, synchronous=FULL, one worker process", "jobs/s")
    duly, raw, fast, durable = interleave(bench, section, [DULY_SQLITE, RAW_SQLITE, HUEY_FAST, HUEY_DURABLE])
    section.ratios = [
        over("duly / raw limit", duly, raw, least=0.50),
        over("duly / huey fsync off (not durable)", duly, fast, least=3.5),
        over("duly / huey fsync on", duly, durable),
    ]
    return section


# ------------------------------------------------------------------ history


def history(bench: Bench) -> Section:
    finished, future = (HISTORY // 20, FUTURE // 20) if bench.quick else (HISTORY, FUTURE)
    section = Section(
        "history",
        "the plain drain on PostgreSQL, with finished jobs on record, with jobs due from tomorrow on",
        "jobs/s",
    )
    long = variant(DULY_PG, f"duly, {finished:,} finished")
    later = variant(DULY_PG, f"duly, {future:,} future")
    try:
        templates = {c.name: name for c, name in ((DULY_PG, "plain"), (long, "finished"), (later, "future"))}
        for contender, name in templates.items():
            target = bench.server.scratch(name)
            if contender == long.name:
                bench.drain(DULY_PG, jobs=200, target=_filled(bench, target))
                _multiply(target, finished)
            else:
                bench.call(DULY_PG, target, "migrate")
                if contender == later.name:
                    bench.call(DULY_PG, target, "future", future)
            with psycopg.connect(target, autocommit=True) as c:
                c.execute("vacuum analyze")
    except Failed as e:
        section.notes.append(str(e))
        return section
    plain, with_history, with_future = interleave(bench, section, [DULY_PG, long, later], templates)
    section.ratios = [
        over(f"{finished:,} finished / plain", with_history, plain, least=0.85),
        over(f"{future:,} future / plain", with_future, plain, least=0.85),
    ]
    return section


def _filled(bench: Bench, target: str) -> str:
    bench.call(DULY_PG, target, "prepare", 200)
    return target


def _multiply(target: str, n: int) -> None:
    """Make n more finished jobs out of one that Duly itself finished: the same row under other ids."""
    with psycopg.connect(target, autocommit=True) as c:
        columns = [
            r[0]
            for r in c.execute(
                "select quote_ident(attname) from pg_attribute where attrelid = 'jobs_done'::regclass and attnum > 0 and not attisdropped"
                " and attname <> 'id' and attgenerated = '' order by attnum"
            )
        ]
        c.execute(
            f"insert into jobs_done (id, {', '.join(columns)}) select 1000000 + g, {', '.join('d.' + x for x in columns)}"
            f" from (select * from jobs_done order by id limit 1) d, generate_series(1, {int(n)}) g".encode()
        )
        c.execute("select setval(pg_get_serial_sequence('jobs', 'id'), (select max(id) + 1 from jobs_done))")


# ------------------------------------------------------------------ features


def features(bench: Bench) -> Section:
    section = Section("features", "what a feature costs: Duly's drain on PostgreSQL with one thing changed", "jobs/s")
    changed = [
        variant(DULY_PG, "audit of successes off", environment={"DULY_AUDIT_SUCCESS": "false"}),
        variant(DULY_PG, "queue limit 1000", options={"limit": 1000}, share=0.25),
        variant(DULY_PG, "queue limit 10", options={"limit": 10}, share=0.25),
        variant(DULY_PG, "fair queue, 10 tenants", options={"fair": True, "tenants": 10}, share=0.25),
        variant(DULY_PG, "a key per job", options={"key": True}, share=0.25),
        variant(DULY_PG, "sync handlers", options={"sync": True}, share=0.5),
    ]
    plain, *rows = interleave(bench, section, [variant(DULY_PG, "plain"), *changed])
    section.ratios = [over(f"{row.name} / plain", row, plain) for row in rows]
    return section
