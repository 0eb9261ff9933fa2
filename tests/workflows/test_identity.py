"""A step is recognised by its arguments, too: code that asks for it with others is stopped before any effect.  # G1, C041"""

from __future__ import annotations

import copy
import functools
import math
import os
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, timedelta, timezone
from fractions import Fraction
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from duly import Duly
from duly.testing import ManualClock, drain
from duly.workflows import WorkflowContext, identity
from duly.workflows.advance import Memory
from duly.workflows.identity import different, fingerprint, of_call

#: What a workflow reads that it should not: it is another value when the run goes on.
Code = Callable[[WorkflowContext, str, list[str]], Awaitable[Any]]


@dataclass
class Point:
    x: int
    y: int = 0


class Thing:
    pass


def charge(user: str, cents: int = 5, *more: str, note: str = "") -> str:
    return user


async def _step(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    await ctx.step("charge", done.append, value)
    await ctx.wait_event("go")
    await ctx.step("end", done.append, "end")


async def _partial(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    await ctx.step("charge", functools.partial(done.append, value))
    await ctx.wait_event("go")


async def _lambda(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    await ctx.step("charge", lambda: done.append(value))
    await ctx.wait_event("go")


async def _lambda_with_default(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    await ctx.step("charge", lambda user=value: done.append(user))
    await ctx.wait_event("go")


async def _inner_function(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    async def pay() -> None:
        done.append(value)

    await ctx.step("charge", pay)
    await ctx.wait_event("go")


async def _gather(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    await ctx.gather(*(ctx.step("charge", done.append, one) for one in (value, "cy")))
    await ctx.wait_event("go")


async def _child(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    await ctx.enqueue("kid", user=value)
    await ctx.wait_event("go")


async def _child_not_waited_for(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    await ctx.using(name="kid").start("kid", user=value)
    await ctx.wait_event("go")


async def _another_task(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    await ctx.using(name="kid").enqueue("kid" if value == "ann" else "kid2", user="x")
    await ctx.wait_event("go")


async def _sleep(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    await ctx.sleep(0 if value == "ann" else 1)
    await ctx.wait_event("go")


async def _waiting(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    await ctx.wait_event("go", timeout=timedelta(days=len(value)))


async def _question(ctx: WorkflowContext, value: str, done: list[str]) -> None:
    await ctx.approve("go", timeout=timedelta(days=5), default=value)


@pytest.fixture
def app(tmp_path: Any, clock: ManualClock) -> Any:
    app = Duly(f"sqlite:///{tmp_path}/w.db", clock=clock, sqlite_synchronous="NORMAL")
    yield app
    app.close()


def rerun(app: Duly, code: Code, *values: str, before: Callable[[], None] = lambda: None) -> tuple[str, str, list[str]]:
    """State and error of a run whose code is run again, once for each value that it is given, and what its steps did after the first time."""
    now, done = [values[0]], list[str]()

    async def w(ctx: WorkflowContext) -> Any:
        return await code(ctx, now[0], done)

    app.task("kid", queue="work")(lambda user: done.append(user))
    app.task("kid2", queue="work")(lambda user: done.append(user))
    run = app.workflow("w")(w).start().job.id
    drain(app)
    done.clear()
    before()
    now[0] = values[1]
    app.workflows.signal(run, "go")
    drain(app)
    found = app.workflows.get(run)
    return found.state, str((found.error or {}).get("message", "")), done


@pytest.mark.parametrize(
    "code",
    [_step, _partial, _lambda, _lambda_with_default, _inner_function, _gather, _child, _child_not_waited_for, _another_task, _sleep,
     _waiting, _question],
)  # fmt: skip
def test_a_step_that_is_asked_for_with_other_arguments_stops_the_run_before_any_effect(app: Duly, code: Code) -> None:
    state, said, done = rerun(app, code, "ann", "robert")
    assert (state, done) == ("failed", [])
    assert (
        "on record" in said
        and "with other arguments" in said
        and fingerprint("ann") + fingerprint("robert") not in said
    )
    assert "ann" not in said.replace("changed", "") and "robert" not in said  # nothing in clear


@pytest.mark.parametrize("code", [_step, _partial, _lambda, _inner_function, _gather, _child, _sleep])
def test_the_same_arguments_go_on(app: Duly, code: Code) -> None:
    assert rerun(app, code, "ann", "ann")[:2] == ("succeeded", "")


def test_a_set_in_another_order_names_both_steps(app: Duly) -> None:
    async def code(ctx: WorkflowContext, value: str, done: list[str]) -> None:
        for user in sorted(("ann", "bob"), reverse=value == "backwards"):
            await ctx.step("charge", done.append, user)
        await ctx.wait_event("go")

    state, said, done = rerun(app, code, "forwards", "backwards")
    assert (state, done) == ("failed", [])
    assert "step 1 of this run is on record as step 'charge' with other arguments" in said
    assert "What is asked for now is on record as step 2 'charge'." in said


def test_a_history_without_arguments_goes_on_and_records_them_from_there(app: Duly) -> None:
    def forget() -> None:
        app.db.write(lambda c: c.execute(text("UPDATE workflow_steps SET arguments = NULL")))
        app.workflows._memory = Memory()  # as another worker, which reads it

    state, _, done = rerun(app, _step, "ann", "robert", before=forget)
    assert (state, done) == ("succeeded", ["end"])
    [run] = app.workflows.list()
    assert [step.arguments is not None for step in app.workflows.history(run.id)] == [False, False, True]


def test_equal_calls_have_equal_fingerprints_however_they_are_written() -> None:
    same = of_call(charge, ("ann", 7), {})
    assert (
        same == of_call(charge, (), {"cents": 7, "user": "ann"}) == of_call(functools.partial(charge, "ann"), (7,), {})
    )
    assert different(same, of_call(lambda person, amount: None, ("ann", 7), {})) == []  # renamed
    assert [d[0] for d in different(of_call(charge, ("a", "b"), {}), of_call(charge, ("b", "a"), {}))] == [
        "user",
        "cents",
    ]
    assert [d[0] for d in different(same, of_call(charge, ("ann",), {}))] == ["cents"]


def test_objects_that_do_not_say_what_they_are_worth_are_known_by_their_type() -> None:
    assert fingerprint(Thing()) == fingerprint(Thing()) != fingerprint(Point(1)) != fingerprint(Point(2))
    assert fingerprint([Thing()]) == fingerprint([Thing()])
    loop: list[Any] = []
    loop += [loop, loop]
    assert fingerprint(loop) == fingerprint(loop)


class Customer:
    """An object that is compared by what it holds."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Customer) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @functools.cached_property
    def initial(self) -> str:
        return self.name[0]


class Slotted(Customer):
    __slots__ = ("more",)

    def __init__(self, name: str, more: int) -> None:
        super().__init__(name)
        self.more = more


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"who": "ann", "rate": math.nan}, {"who": "bob", "rate": math.nan}), ([math.inf, "ann"], [math.inf, "bob"]), (math.nan, math.inf),
        ({"\ud800", "ann"}, {"\ud800", "bob"}), ("\ud800a", "\ud800b"), (Point(math.nan), Point(math.inf)), (Customer("ann"), Customer("bob")),
        ([Customer("ann")], [Customer("bob")]), (Slotted("ann", 1), Slotted("ann", 2)), (Fraction(1, 2), Fraction(1, 3)), (range(3), range(4)),
        (ip_address("10.0.0.1"), ip_address("10.0.0.2")), (deque([1]), deque([2])), (array("i", [1]), array("i", [2])), (1j, 2j),
        (ValueError("ann"), ValueError("bob")), (len, max), (Customer, Slotted), (True, 1), (UTC, timezone(timedelta(hours=1))),
    ],
)  # fmt: skip
def test_values_that_differ_have_other_fingerprints_though_json_cannot_carry_them(one: Any, other: Any) -> None:
    # C041: what a dictionary holds beside a number that is not finite decides who is charged
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(copy.deepcopy(one)) == fingerprint(one)


def test_what_an_object_has_worked_out_meanwhile_is_no_part_of_it() -> None:
    ann = Customer("ann")
    before = fingerprint(ann)
    assert (ann.initial, fingerprint(ann)) == ("a", before)


def test_a_fingerprint_is_the_same_in_every_process(tmp_path: Path) -> None:
    program = "from duly.workflows.identity import fingerprint; print(fingerprint({'who': {'ann', 'bob', 'cy', 'dora', 'eve'}}))"
    said = {
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(said) == 1


class Name(str):
    """A text that says something else of itself."""


@pytest.mark.parametrize(
    "value",
    [1, True, 1.0, 0.0, -0.0, "1", None, Name("1"), [1], (1,), [True], [1.0], {"a": 1}, {"a": True}, {"a": 1.0}, {1: "a"}, {"b": 1, "a": 2},
     {"a": 2, "b": 1}, {"a": "b"}, ["a", "b"], math.nan, [math.nan], "x" * 300, ["x" * 300], list(range(30)), {"a": [1]}],
)  # fmt: skip
def test_a_fingerprint_that_is_remembered_is_the_one_that_is_made_afresh(value: Any) -> None:  # G3
    for one in (1, True, 1.0, [1], (1,), {"a": 1}, {"a": True}, "1", ["a", "b"]):
        fingerprint(one)
    assert fingerprint(value) == fingerprint(value) == identity._digest(value)


def test_what_is_remembered_of_arguments_is_bounded_and_knows_a_changed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # G3
    monkeypatch.setattr(identity, "_seen", {})
    monkeypatch.setattr(identity, "MOST_SEEN", 10)
    basket = {"apple": 1}
    before = fingerprint(basket)
    basket["apple"] = 2
    assert fingerprint(basket) != before
    assert len({fingerprint(n) for n in range(100)}) == 100
    assert len(identity._seen) <= 10
