"""``duly keys``: the keys of idempotent functions and of HTTP requests, and with ``--jobs`` those of jobs: looking at them, forgetting one."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import Group, actor, state
from duly.cli.times import SPAN, relative, stamp
from duly.kernel.errors import NotFound

if TYPE_CHECKING:
    from duly.idempotency.keys import Key, Keys
    from duly.jobs.keys import JobKey


@click.group(cls=Group)
def keys() -> None:
    """Look at idempotency keys, and forget them."""


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--queue", "-q", help="With --jobs: the queue of the key.")(command)
    return click.option("--jobs", is_flag=True, help="Keys that jobs were enqueued with (enqueue --key).")(command)


def _only(jobs: bool, with_jobs: dict[str, object], without: dict[str, object]) -> None:
    """Refuse options that belong to the other kind of keys."""
    for name, value in (without if jobs else with_jobs).items():
        if value:
            raise click.UsageError(f"{name} {'does not go with' if jobs else 'goes with'} --jobs.")


def _stored(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--prefix", default="duly:idempotency:", show_default=True, help="With --redis: how its keys begin."
    )(command)
    return click.option("--redis", metavar="URL", help="Keys of a RedisStore, there instead of in the database.")(
        command
    )


def _keys(redis: str | None, prefix: str) -> Keys:
    app = state().open()
    if redis is None:
        return app.keys
    from duly.idempotency.redis import RedisStore

    store = RedisStore(redis, prefix=prefix)
    click.get_current_context().call_on_close(store.close)
    return app.keys.at(store)


@keys.command("list")
@_which
@click.option("--task", "-t", help="Only keys of this task.")
@click.option(
    "--state", "-s", "which", type=click.Choice(["in_progress", "succeeded", "failed"]), help="Only keys in this state."
)
@click.option("--older-than", type=SPAN, metavar="SPAN", help="Only keys without a sign of life for so long: 10m, 2h.")
@click.option("--tenant", help="Only keys of this tenant.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number of keys."
)
@click.option("--after", metavar="CURSOR", help="Show the next page.")
@_stored
def list_(
    jobs: bool, queue: str | None, task: str | None, which: str | None, older_than: timedelta | None, tenant: str | None, limit: int,
    after: str | None, redis: str | None, prefix: str,
) -> None:  # fmt: skip
    """List keys.

    Keys of functions and requests are hashes; what a call was given is not in them. With --jobs: keys that jobs hold, newest job first.
    """
    _only(jobs, {"--queue": queue}, {"--state": which, "--older-than": older_than, "--redis": redis})
    at = _keys(redis, prefix)
    now = at.db.clock.now()
    listed: Any
    rows: Iterable[tuple[object, ...]]
    if jobs:
        held, following = at.jobs.find(limit, after, tenant=tenant, queue=queue, task=task)
        columns, listed = "#job status task queue !key until", held
        rows = ((one.job_id, _status(one), one.task, one.queue, one.key, _until(one, now)) for one in held)
    else:
        found, following = at.find(limit, after, tenant=tenant, task=task, state=which, older_than=older_than)
        columns, listed = "state task !key owner #attempts heard", found
        rows = (
            (one.state.value, one.task, one.key, one.owner, one.attempts, relative(one.seen_at, now)) for one in found
        )
    if state().json:
        show.as_json({"keys": [asdict(one) for one in listed], "next": following})
        return
    show.table(columns, rows, empty="No key fits." if following is None else "No key on this page fits.")
    if following is not None:
        show.say(f"\nThere are more: --after {following}")


def _status(key: JobKey) -> str:
    status = "" if key.status is None else key.status.value
    return f"{status} (pruned)".strip() if key.pruned else status


def _until(key: JobKey, now: datetime) -> str:
    """What frees a key."""
    if key.until is not None:
        return relative(key.until, now)
    return {"start": "its job starts", "done": "its job ends"}.get(key.scope, "forever")


@keys.command("show")
@click.argument("key")
@_which
@click.option("--tenant", default="default", show_default=True, help="Tenant of the key.")
@_stored
def show_(key: str, jobs: bool, queue: str | None, tenant: str, redis: str | None, prefix: str) -> None:
    """Show one key: who has or had it, since when, and until when."""
    _only(jobs, {"--queue": queue}, {"--redis": redis})
    at = _keys(redis, prefix)
    if jobs:
        held = at.jobs.get(key, queue or "default", tenant)
        if state().json:
            show.as_json(asdict(held))
            return
        show.facts([
            ("key", held.key),
            ("queue", held.queue),
            ("tenant", held.tenant if held.tenant != "default" else ""),
            ("job", held.job_id),
            ("task", held.task),
            ("status", _status(held)),
            ("since", stamp(held.since)),
            ("until", stamp(held.until) if held.until else _until(held, held.since)),
        ])  # fmt: skip
        return
    with _hint(at, key, tenant):
        found = at.get(key, tenant)
    if state().json:
        show.as_json(asdict(found))
        return
    show.facts([
        ("key", found.key),
        ("task", found.task),
        ("state", found.state.value),
        ("tenant", found.tenant if found.tenant != "default" else ""),
        ("owner", found.owner),
        ("attempts", found.attempts),
        ("since", stamp(found.since)),
        ("last heard", stamp(found.seen_at)),
        ("locked until", stamp(found.locked_until) if found.locked_until else ""),
        ("kept until", stamp(found.kept_until)),
        ("result", "" if found.result_size is None else show.count(found.result_size, "byte")),
        ("error", found.error),
    ])  # fmt: skip


@contextlib.contextmanager
def _hint(at: Keys, key: str, tenant: str) -> Iterator[None]:
    """Where there is no such key, say so of a job's key of that name."""
    try:
        yield
    except NotFound as error:
        held, _ = at.jobs.find(1, tenant=tenant, key=key)
        if not held:
            raise
        where = "" if held[0].queue == "default" else f" --queue {shlex.quote(held[0].queue)}"
        raise click.ClickException(
            f"{error} Job {held[0].job_id} holds a key of that name: use --jobs{where}."
        ) from None


@keys.command()
@click.argument("key")
@_which
@click.option("--reason", required=True, help="Reason, for the audit trail.")
@click.option("--tenant", default="default", show_default=True, help="Tenant of the key.")
@click.option("--force", is_flag=True, help="Also a key that is in use: its work may then be done twice at once.")
@_stored
def forget(
    key: str, jobs: bool, queue: str | None, reason: str, tenant: str, force: bool, redis: str | None, prefix: str
) -> None:
    """Forget a key: what it stands for may be done again.

    Its effects are repeated.
    """
    _only(jobs, {"--queue": queue}, {"--redis": redis})
    at = _keys(redis, prefix)
    if jobs:
        held = at.jobs.forget(key, reason, actor(), queue=queue or "default", tenant=tenant, force=force)
        if state().json:
            show.as_json({"forgotten": asdict(held)})
        else:
            show.say(
                f"Forgot key {held.key} of job {held.job_id} ({_status(held)}). The next enqueue under it makes a job."
            )
        return
    with _hint(at, key, tenant):
        found: Key = at.forget(key, reason, actor(), tenant, force)
    if state().json:
        show.as_json({"forgotten": asdict(found)})
    else:
        show.say(f"Forgot key {found.key} of {found.task} ({found.state.value}). The next call runs the body.")
