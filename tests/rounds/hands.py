"""What the tests of rounds hold in their hands: ears, groups that are ready, and a look at the tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import text

from duly import Duly
from duly.kernel.events import Event
from duly.rounds import Group, Rounds


def utc(said: str) -> datetime:
    """``2026-03-29 01:00`` as an instant."""
    return datetime.fromisoformat(said).replace(tzinfo=UTC)


class Ear:
    """Hears the events of an application."""

    def __init__(self, app: Duly) -> None:
        self.events: list[Event] = []
        app.events.listen(self.events.append)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [dict(e.facts) for e in self.events if e.name == name]


def ready(
    rounds: Rounds,
    name: str,
    zone: str = "UTC",
    *,
    prompts: int = 9,
    members: int = 0,
    channel: str = "log",
    **options: Any,
) -> Group:
    """A group with prompts, and members who want to be told by one channel."""
    group = rounds.groups.add(name, zone, **options)
    if prompts:
        rounds.prompts.add(group.id, *(f"p{n}" for n in range(1, prompts + 1)), tenant=group.tenant)
    for n in range(members):
        rounds.members.add(group.id, f"m{n}", channels=[channel], email=f"m{n}@example.org", tenant=group.tenant)
    return group


def change(app: Duly, sql: str, **parameters: Any) -> int:
    """Do to the database what somebody else might. Returns how many rows it touched."""
    return app.db.write(lambda c: c.execute(text(sql), parameters).rowcount)


def ask(app: Duly, sql: str, **parameters: Any) -> list[Any]:
    return app.db.read(lambda c: list(c.execute(text(sql), parameters)))


def scalar(app: Duly, sql: str, **parameters: Any) -> Any:
    return ask(app, sql, **parameters)[0][0]


def refuse(app: Duly, table: str, event: str, condition: str) -> None:
    """Let the database refuse a change of some rows: ``condition`` speaks of NEW."""

    def install(c: Any) -> None:
        if app.db.is_sqlite:
            c.exec_driver_sql(
                f"CREATE TRIGGER refused BEFORE {event} ON {table} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'refused by the test'); END"
            )
            return
        c.exec_driver_sql(
            "CREATE OR REPLACE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'refused by the test'; END $$"
        )
        c.exec_driver_sql(
            f"CREATE TRIGGER refused BEFORE {event} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refused()"
        )

    app.db.write(install)


def allow(app: Duly, table: str) -> None:
    drop = "DROP TRIGGER refused" if app.db.is_sqlite else f"DROP TRIGGER refused ON {table}"
    app.db.write(lambda c: c.exec_driver_sql(drop))
