"""The rules about single schedules, groups and workflows: whose runs fail, which grow long, which wait for code. A4."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update

from alerts.hands import NOON, MakeWorld, World
from duly import Cron, Duly, Every
from duly.jobs.house import Housekeeper
from duly.jobs.tables import workers
from duly.rounds.tables import groups
from duly.schedules.tables import schedules
from duly.testing import drain
from duly.workflows import WorkflowContext


def scheduled(world: World, fails: set[str]) -> None:
    """A daily and a minutely schedule; the runs of those named in ``fails`` fail."""

    @world.app.task("RUN", max_attempts=1)
    def run(name: str) -> None:
        if name in fails:
            raise ValueError(name)

    for name, when in (("daily", Cron("0 18 * * *", tz="UTC")), ("minutely", Cron("* * * * *", tz="UTC"))):
        world.app.schedules.set(world.app.schedules.spec(name, when, "RUN", {"name": name}))


def minute(world: World, **span: float) -> list[tuple[str, str, str]]:
    """Time passes, what is due runs, and the alerts are judged: the moves of this rule."""
    world.clock.advance(timedelta(**span or {"minutes": 1}))
    world.app.scheduler().tick()
    drain(world.app)
    return [move for move in world.judge() if move[1] == "schedule_failing"]


def test_a_schedule_whose_run_fails_is_told_at_once_and_one_that_runs_often_when_three_in_a_row_fail(
    world: World,
) -> None:
    fails: set[str] = set()
    scheduled(world, fails)
    for _ in range(4):
        assert minute(world) == []
    fails |= {"minutely"}
    assert [minute(world) for _ in range(3)] == [[], [], [("raise", "schedule_failing", "minutely")]]
    fails.clear()
    assert minute(world) == [("clear", "schedule_failing", "minutely")]
    fails |= {"daily"}
    assert minute(world, hours=6) == [("raise", "schedule_failing", "daily")]  # its only run, within minutes
    [alert] = [a for a in world.app.alerts.standing().raised if a.rule == "schedule_failing"]
    assert "ValueError" in alert.detail
    assert minute(world, hours=20) == []  # until it has run well
    world.app.schedules.pause("daily", "known")
    assert minute(world) == [("clear", "schedule_failing", "daily")]


def test_a_schedule_of_another_tenant_is_named_with_it_and_what_never_ran_is_fine(world: World) -> None:
    world.app.task("RUN", max_attempts=1)(lambda: 1 / 0)
    for tenant in ("default", "acme"):
        world.app.schedules.set(world.app.schedules.spec("s", Every("1h", anchor=NOON), "RUN", tenant=tenant))
    assert world.readings("schedule_failing") == {}
    world.clock.advance(3600)
    world.app.scheduler().tick()
    assert world.readings("schedule_failing") == {}  # it has not ended
    drain(world.app)
    assert world.readings("schedule_failing") == {"s": 1, "acme/s": 1}
    world.app.db.write(lambda c: c.execute(update(schedules).values(removed_at=NOON)))
    assert world.readings("schedule_failing") == {}


def test_a_group_that_cannot_be_planned_opened_or_closed_is_named(world: World) -> None:
    values: dict[str, Any] = {
        "tenant": "default", "name": "g", "zone": "Europe/Paris", "is_active": True, "notifications": False, "created_at": NOON,
        "updated_at": NOON, "updated_by": "t", "error": "no prompt fits", "error_at": NOON, "failures": 2,
    }  # fmt: skip
    ident = world.app.db.write(lambda c: c.execute(insert(groups).values(**values).returning(groups.c.id)).scalar_one())
    world.judge()
    world.clock.advance(30)
    assert ("raise", "group_failing", str(ident)) in world.judge()
    [alert] = [a for a in world.app.alerts.standing().raised if a.rule == "group_failing"]
    assert "2 times" in alert.detail and "g: no prompt fits" in alert.detail
    world.app.db.write(lambda c: c.execute(update(groups).values(error=None, failures=0)))
    world.clock.advance(30)
    assert ("clear", "group_failing", str(ident)) in world.judge()


def test_a_run_with_many_steps_is_told_until_it_begins_anew_or_ends(make_world: MakeWorld) -> None:
    world = make_world(workflow_steps_warn=5)

    @world.app.workflow("long")
    async def long(ctx: WorkflowContext, turns: int) -> None:
        for _ in range(turns):
            await ctx.now()
        await ctx.sleep(60)

    long.start(3)
    run = long.start(6).job.id
    drain(world.app)
    assert ("raise", "workflow_long", "long") in world.judge()
    [alert] = [a for a in world.app.alerts.standing().raised if a.rule == "workflow_long"]
    assert (alert.value, f"run {run}" in alert.detail) == (7, True)
    world.clock.advance(61)
    drain(world.app)
    assert ("clear", "workflow_long", "long") in world.judge()


def test_runs_that_no_living_workers_code_can_go_on_with_are_told(world: World, db_url: str) -> None:
    old, new = world.app, Duly(db_url, clock=world.clock)

    @old.workflow("w", version=1)
    async def one(ctx: WorkflowContext) -> None: ...

    @new.workflow("w", version=2)
    async def two(ctx: WorkflowContext) -> None:
        await ctx.sleep(60)

    run = two.start().job.id
    drain(new)
    world.clock.advance(3600)
    Housekeeper(old.worker()).presence()
    assert drain(old).claimed == 0
    assert ("raise", "code_missing", "w:2") not in world.judge()
    world.clock.advance(300)
    Housekeeper(old.worker()).presence()
    assert ("raise", "code_missing", "w:2") in world.judge()
    check = next(c for c in old.why(run) if c.name == "code")
    assert not check.met and "'w:2'" in check.detail  # and duly why says the same
    # while no worker of the queue has room it is a backlog, and while it is held it is meant
    world.app.db.write(lambda c: c.execute(update(workers).values(running=1000)))
    assert world.readings("code_missing") == {}
    world.app.db.write(lambda c: c.execute(update(workers).values(running=0)))
    assert set(world.readings("code_missing")) == {"w:2"}
    queue = old.jobs.get(run).queue
    old.queues.pause(queue, reason="deploy")
    assert world.readings("code_missing") == {}
    old.queues.resume(queue)
    drain(new)
    assert world.readings("code_missing") == {}
    new.close()


def test_a_run_that_old_code_is_given_again_and_again_is_told_by_its_worker(world: World, db_url: str) -> None:
    old, new = world.app, Duly(db_url, clock=world.clock)
    for app, guarded in ((old, False), (new, True)):

        @app.workflow("w")
        async def w(ctx: WorkflowContext, guarded: bool = guarded) -> None:
            if guarded and await ctx.patched("letter"):
                await ctx.sleep(1)
            await ctx.sleep(60)

    run = new.workflows.start("w").job.id
    drain(new)
    worker = old.worker()
    world.clock.advance(70)
    for n in range(12):
        drain(old)
        world.clock.advance(40)
        old.workflows.keep()
        Housekeeper(worker).presence()
        assert bool(world.readings("definition_left")) == (n > 7)
    drain(old)
    Housekeeper(worker).presence()
    assert f"run {run}" in next(iter(old.engine.left.standing()))
    drain(new)
    for _ in range(2):
        old.workflows.keep()
    assert old.engine.left.standing() == {}
    new.close()


@pytest.mark.parametrize("rule", ["schedule_failing", "group_failing", "workflow_long", "code_missing"])
def test_these_rules_can_be_turned_off(make_world: MakeWorld, rule: str) -> None:
    assert rule not in make_world(alerts_off=rule).app.alerts.look().readings
