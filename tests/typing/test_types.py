"""What a type checker says of a program that uses Duly: enqueue asks for what the function asks for."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

PROGRAM = """
from sqlalchemy.orm import Session

from duly import INJECT, Backoff, Context, Duly, Enqueued, Job

app = Duly("sqlite:///x.db")


@app.task("GREET", queue="mail", backoff=Backoff(base=1))
async def greet(name: str, times: int = 1, context: Context = INJECT) -> str:
    return name * times


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
def book(order: int, job: Job = INJECT, session: Session = INJECT) -> None: ...


booked: Enqueued = book.enqueue(17)
made: Enqueued = greet.enqueue("Ada", times=2)
job: Job = made.job
created: bool = made.created
total: int = add(1, 2)
later: Enqueued = add.using(run_in=5, key="k").enqueue(1, b=2)


async def inside() -> None:
    again: Enqueued = await greet.aenqueue("Bob")
    text: str = await greet("Bob")
    print(again, text)


greet.enqueue(1)                # wrong: name is a text
greet.enqueue("Ada", time=2)    # wrong: no such parameter
add.enqueue(1)                  # wrong: b is missing
book.enqueue()                  # wrong: order is missing
add.using(key="k").enqueue("1", 2)   # wrong: a is a number
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy says of both programs, looked at together: most of its time goes to Duly."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "refund.py").write_text(WORKFLOW)
    command = [sys.executable, "-m", "mypy", "--strict", "--enable-error-code", "truthy-bool", "--no-error-summary", "--cache-dir",
               str(folder / "cache"), "program.py", "refund.py"]  # fmt: skip
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="module")
def said(answer: str) -> dict[int, str]:
    """Line → what mypy says of it."""
    return {int(m[1]): m[2] for m in re.finditer(r"^program\.py:(\d+): error: (.*)$", answer, re.MULTILINE)}


def line(text: str) -> int:
    return next(n for n, found in enumerate(PROGRAM.splitlines(), 1) if text in found)


def test_a_right_program_is_right_for_the_type_checker(said: dict[int, str]) -> None:
    wrong = {n for n, text in enumerate(PROGRAM.splitlines(), 1) if "# wrong" in text}
    assert set(said) == wrong, said


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ("greet.enqueue(1)", "incompatible type"),
        ('greet.enqueue("Ada", time=2)', "Unexpected keyword argument"),
        ("add.enqueue(1) ", "Missing positional argument"),
        ('enqueue("1", 2)', "incompatible type"),
    ],
)
def test_a_wrong_call_is_refused_before_it_runs(said: dict[int, str], call: str, complaint: str) -> None:
    assert complaint in said[line(call)]


WORKFLOW = """
from duly.workflows import Approval, WorkflowContext


async def refund(ctx: WorkflowContext, order: int) -> str:
    total: int = await ctx.step("total", abs, order)
    said: Approval = await ctx.approve("boss")
    a, b = ctx.step("a", str, 1), ctx.step("b", str, 2)
    both = await ctx.gather(a, b)
    ctx.step("pay", print, order)   # wrong: not awaited
    ctx.gather(ctx.sleep(1))        # wrong: not awaited
    ctx.sleep(60)                   # wrong: not awaited
    if ctx.approve("boss"):         # wrong: not awaited
        return "paid"
    name: str = ctx.step("name", str, 5)  # wrong: not awaited
    return f"{said} {both} {total} {name}"
"""


def test_a_checker_reports_a_workflow_that_forgets_an_await(answer: str) -> None:  # A1
    reported = {int(line) for line in re.findall(r"refund\.py:(\d+): error", answer)}
    assert reported == {n for n, line in enumerate(WORKFLOW.splitlines(), 1) if "# wrong" in line}, answer
