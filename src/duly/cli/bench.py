"""``duly bench``: what this database gives on this machine, measured on the spot in a scratch place.

Beside an embedded database's file (so on the same disk) or in a schema of its own on PostgreSQL; both are gone
afterwards, also after Ctrl-C. The measure is of the database and the way to it: the jobs do nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import Command, state
from duly.cli.times import span

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.settings import Settings

BATCH = 500


@click.command(cls=Command)
@click.option(
    "--jobs",
    type=click.IntRange(100, 1_000_000),
    default=5000,
    show_default=True,
    metavar="N",
    help="How many jobs to run.",
)
@click.option(
    "--commits",
    type=click.IntRange(10, 100_000),
    default=200,
    show_default=True,
    metavar="N",
    help="How many single commits to time.",
)
def bench(jobs: int, commits: int) -> None:
    """Measure this database, in a scratch file or schema.

    The time of a commit, and how many jobs that do nothing are enqueued and run in a second.
    """
    asked = state()
    settings = asked.duly().settings
    with _scratch(settings) as (app, where):
        app.task("BENCH", queue="bench")(_nothing)
        result = {"database": where, **_commits(app, commits), **_enqueue(app, jobs), **_drain(app, jobs + commits)}
    if asked.json:
        show.as_json(result)
        return
    show.facts([
        ("database", result["database"]),
        ("a commit takes", f"{span(result['commit_p50'])} (median), {span(result['commit_p95'])} (95 of 100)"),
        ("enqueue, one by one", f"{result['commits_per_second']:,} a second"),
        (f"enqueue, {BATCH} at once", f"{result['enqueued_per_second']:,} a second"),
        ("run by one worker", f"{result['drained_per_second']:,} a second"),
    ])  # fmt: skip


async def _nothing() -> None:
    return


def _commits(app: Duly, n: int) -> dict[str, Any]:
    times = []
    for _ in range(n):
        begun = time.perf_counter()
        app.enqueue("BENCH", queue="bench")
        times.append(time.perf_counter() - begun)
    ordered = sorted(times)
    return {
        "commit_p50": ordered[n // 2],
        "commit_p95": ordered[n * 95 // 100],
        "commits_per_second": round(n / sum(times)),
    }


def _enqueue(app: Duly, n: int) -> dict[str, Any]:
    begun = time.perf_counter()
    for start in range(0, n, BATCH):
        app.enqueue_many("BENCH", [{}] * min(BATCH, n - start), queue="bench")
    return {"enqueued_per_second": round(n / (time.perf_counter() - begun))}


def _drain(app: Duly, n: int) -> dict[str, Any]:
    """From the first claim to the last settlement; the worker's start and its look whether it is idle are left out."""
    seen: list[float] = []
    remove = app.listen(
        lambda e: seen.append(time.perf_counter()) if e.name in ("jobs_claimed", "jobs_settled") else None
    )
    app.worker({"bench": 200}).run(until_idle=True)
    remove()
    left = app.jobs.count(queue="bench", status=["queued", "running"])
    if left or len(seen) < 2:
        raise click.ClickException(f"the measure was stopped: {left:,} of {n:,} jobs are left.")
    return {"drained_per_second": round(n / max(1e-6, seen[-1] - seen[0]))}


# ---------------------------------------------------------------------- a scratch place


@contextmanager
def _scratch(settings: Settings) -> Iterator[tuple[Duly, str]]:
    from duly.storage.database import parse_url

    url = parse_url(settings.database_url)
    with (_scratch_file if url.get_backend_name() == "sqlite" else _scratch_schema)(settings, url) as found:
        yield found


def _app(settings: Settings, url: Any) -> Duly:
    from duly.app import Duly

    kept = ("sqlite_synchronous", "busy_timeout", "pooler", "notify", "claim_batch")
    return Duly(url.render_as_string(hide_password=False), **{name: getattr(settings, name) for name in kept})


@contextmanager
def _scratch_file(settings: Settings, url: Any) -> Iterator[tuple[Duly, str]]:
    folder = Path(url.database or ".").expanduser().resolve().parent
    file = folder / f"duly-bench-{secrets.token_hex(4)}.db"
    app = _app(settings, url.set(database=str(file)))
    try:
        app.migrate()
        yield app, f"SQLite, a scratch file in {folder}, synchronous {settings.sqlite_synchronous}"
    finally:
        app.close()
        for left in folder.glob(f"{file.name}*"):
            left.unlink()


@contextmanager
def _scratch_schema(settings: Settings, url: Any) -> Iterator[tuple[Duly, str]]:
    from sqlalchemy import text

    name = f"duly_bench_{secrets.token_hex(4)}"
    home = _app(settings, url)
    home.db.write(lambda c: c.execute(text(f"CREATE SCHEMA {name}")))
    try:
        app = _app(settings, url.update_query_dict({"options": f"-csearch_path={name}"}))
        try:
            app.migrate()
            yield app, f"{home.db.shown_url}, a scratch schema"
        finally:
            app.close()
    finally:
        home.db.write(lambda c: c.execute(text(f"DROP SCHEMA {name} CASCADE")))
        home.close()
