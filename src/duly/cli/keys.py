"""``duly keys``: the keys of idempotent functions and of HTTP requests: what is in progress or done, and forgetting one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import Group, actor, state
from duly.cli.times import SPAN, relative, stamp

if TYPE_CHECKING:
    from duly.idempotency.keys import Key, Keys


@click.group(cls=Group)
def keys() -> None:
    """Look at idempotency keys, and forget them."""


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
@click.option("--task", "-t", help="Of this task.")
@click.option(
    "--state", "-s", "which", type=click.Choice(["in_progress", "succeeded", "failed"]), help="In this state."
)
@click.option("--older-than", type=SPAN, metavar="SPAN", help="Of which nothing was heard for so long: 10m, 2h.")
@click.option("--tenant", help="Of this tenant.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most about so many."
)
@click.option("--after", metavar="CURSOR", help="Go on behind a page.")
@_stored
def list_(
    task: str | None, which: str | None, older_than: timedelta | None, tenant: str | None, limit: int, after: str | None, redis: str | None,
    prefix: str,
) -> None:  # fmt: skip
    """List keys. They are hashes; what a call was given is not in them."""
    at = _keys(redis, prefix)
    found, following = at.find(limit, after, tenant=tenant, task=task, state=which, older_than=older_than)
    if state().json:
        show.as_json({"keys": [asdict(one) for one in found], "next": following})
        return
    now = at.db.clock.now()
    show.table(
        "state task !key owner #attempts heard",
        ((one.state.value, one.task, one.key, one.owner, one.attempts, relative(one.seen_at, now)) for one in found),
        empty="No key fits." if following is None else "No key on this page fits.",
    )
    if following is not None:
        show.say(f"\nThere are more: --after {following}")


@keys.command("show")
@click.argument("key")
@click.option("--tenant", default="default", show_default=True, help="Whose it is.")
@_stored
def show_(key: str, tenant: str, redis: str | None, prefix: str) -> None:
    """Show one key: who has or had it, since when, and until when."""
    found = _keys(redis, prefix).get(key, tenant)
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


@keys.command()
@click.argument("key")
@click.option("--reason", required=True, help="Why, for the audit trail.")
@click.option("--tenant", default="default", show_default=True, help="Whose it is.")
@click.option(
    "--force", is_flag=True, help="Also one in progress whose owner may be alive: the body may run twice at once."
)
@_stored
def forget(key: str, reason: str, tenant: str, force: bool, redis: str | None, prefix: str) -> None:
    """Forget a key: the next call runs the body again.

    Its effects are repeated.
    """
    found: Key = _keys(redis, prefix).forget(key, reason, actor(), tenant, force)
    if state().json:
        show.as_json({"forgotten": asdict(found)})
    else:
        show.say(f"Forgot key {found.key} of {found.task} ({found.state.value}). The next call runs the body.")
