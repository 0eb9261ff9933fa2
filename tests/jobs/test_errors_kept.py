"""What is kept of an error: its chained traceback, without secrets, and told to ``app.on_error``. A6, C007."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from duly import Backoff, Duly, Job, PermanentError, Retry, Snooze, Status
from duly.jobs.chain import LINES, chained
from duly.kernel.errors import brief
from duly.kernel.events import Event
from duly.kernel.masking import masked
from duly.testing import drain


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Duly]:
    app = Duly(f"sqlite:///{tmp_path}/duly.db")
    yield app
    app.close()


def test_the_cause_is_kept_with_its_source_lines_oldest_first(app: Duly) -> None:
    @app.task(max_attempts=1)
    def charge() -> None:
        try:
            {"a": 1}["order"]  # the first cause
        except KeyError as error:
            raise ValueError("no such order") from error

    ident = charge.enqueue().job.id
    drain(app)
    trace = app.jobs.get(ident).error["trace"]
    assert trace[1] == '  {"a": 1}["order"]  # the first cause'
    assert trace[2] == "KeyError: 'order'"
    assert trace[3].startswith("The above exception was the direct cause")
    assert trace[-2:] == ['  raise ValueError("no such order") from error', "ValueError: no such order"]
    assert not any("duly/jobs" in line for line in trace)


def test_an_error_within_a_group_keeps_what_led_to_it() -> None:  # A6
    orders: dict[str, int] = {}

    def load() -> None:
        try:
            orders["order"]
        except KeyError as error:
            raise ValueError("no such order") from error

    with pytest.raises(ExceptionGroup) as raised:
        try:
            load()
        except ValueError as error:
            raise ExceptionGroup("several", [error, TypeError("t")]) from None
    lines = [line.strip() for line in chained(raised.value)]
    assert [line for line in lines if line.endswith(("KeyError: 'order'", "no such order", "TypeError: t"))] == [
        "KeyError: 'order'", "ValueError: no such order", "+ 2: TypeError: t",
    ]  # fmt: skip
    assert "The above exception was the direct cause of the following exception:" in lines


def test_an_error_may_have_attributes_of_any_name(app: Duly) -> None:
    class Odd(Exception):
        def __init__(self) -> None:
            self.trace, self.kind = [1, None], 5
            super().__init__("odd")

    @app.task(max_attempts=1)
    def odd() -> None:
        raise Odd

    ident = odd.enqueue().job.id
    drain(app)
    error = app.jobs.get(ident).error
    assert (error["type"], error["trace"][-1].rpartition(".")[2]) == ("Odd", "Odd: odd")


def test_a_traceback_is_bounded_whatever_was_raised() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("x" * 100_000)

    def nested(n: int) -> None:
        try:
            nested(n - 1) if n else deep(200)
        except ValueError as error:
            raise ExceptionGroup("g", [error] * 50) from error

    with pytest.raises(ExceptionGroup) as raised:
        nested(3)
    lines = chained(raised.value)
    assert len(lines) <= LINES + 1
    assert sum(map(len, lines)) < 20_000
    loop = ValueError("me")
    loop.__cause__ = loop
    assert chained(loop) == ["ValueError: me"]


SECRETS = [
    "Server error '500' for url 'https://api.example/v1/pay?currency=eur&api_key=SECRET_1&page=2'",
    "HTTPSConnectionPool(host='h'): /v1?X-Amz-Signature=SECRET_2&token=SECRET_2",
    "could not connect to postgresql://u:SECRET_3@db/x",
    "Authorization: Bearer SECRET_4",
    "headers={'authorization': 'Basic U0VDUkVUXzU='}",
    "login(user='ada', password='SECRET_6')",
    '{"client_secret": "SECRET_7"}',
    "-----BEGIN RSA PRIVATE KEY-----\nSECRET_8\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("said", SECRETS)
def test_a_secret_in_an_error_never_reaches_the_row(app: Duly, said: str) -> None:  # C007
    @app.task(max_attempts=1)
    def call() -> None:
        try:
            raise ConnectionError(said)
        except ConnectionError as error:
            raise RuntimeError(f"failed: {said}") from error

    ident = call.enqueue().job.id
    drain(app)
    with app.db.engine.connect() as connection:
        rows = [
            str(row)
            for table in ("jobs_done", "attempts", "audit_log")
            for row in connection.execute(text(f"SELECT * FROM {table}"))
        ]
    assert not [row for row in rows if "SECRET" in row or "U0VD" in row]
    assert "SECRET" not in brief(ValueError(said))
    assert app.jobs.get(ident).error["message"].startswith("failed: " + said[:8])


def test_what_is_no_secret_stays() -> None:
    for plain in (
        "basic authentication failed",
        "the bearer token is missing",
        "the key=value pairs of a token",
        "https://h/v1?page=2&sort=key",
    ):
        assert masked(plain) == plain


@pytest.mark.parametrize(
    "seed", ['host "', "//a:", "=?token", "password='", "?token='", "a:b@", "//@", 'address "@', '"a": "', "Bearer a"]
)
@pytest.mark.parametrize("tail", ["", "@", " @ = ' \" Bearer"])
def test_masking_takes_time_in_proportion_to_the_text(seed: str, tail: str) -> None:  # S1 of the faults
    def spent(size: int) -> float:
        one = (seed * (size // len(seed) + 1))[:size] + tail
        best = 1e9
        for _ in range(3):
            begun = time.process_time()
            masked(one)
            best = min(best, time.process_time() - begun)
        return best

    assert spent(80_000) < 10 * spent(20_000) + 0.2  # a quadratic one takes seconds


def test_on_error_is_called_once_for_each_failed_attempt_and_says_what_happens_next(app: Duly) -> None:
    told: list[tuple[str, int, Status, bool]] = []
    events: list[Event] = []
    app.listen(events.append)

    @app.on_error
    def report(error: BaseException, job: Job) -> None:
        told.append((repr(error), job.attempts, job.status, job.next_retry_at is not None))

    @app.on_error
    async def later(error: BaseException, job: Job) -> None:
        await asyncio.sleep(0)
        told.append(("async", job.id, job.status, job.finished_at is not None))

    @app.on_error
    def broken(error: BaseException, job: Job) -> None:
        raise SystemExit("no")

    @app.task(max_attempts=2, backoff=Backoff(base=0))
    async def work(what: str) -> None:
        if what == "snooze":
            raise Snooze(after=60)
        raise {"retry": Retry("again"), "never": PermanentError("gone"), "ok": ValueError("x")}[what]

    first, second = work.enqueue("retry").job.id, work.enqueue("never").job.id
    work.enqueue("snooze")
    drain(app)
    assert {entry for entry in told if entry[0] != "async"} == {
        ("Retry('again')", 1, Status.QUEUED, True), ("Retry('again')", 2, Status.FAILED, False), ("PermanentError('gone')", 1, Status.FAILED, False)
    }  # fmt: skip
    assert sorted(entry[1] for entry in told if entry[0] == "async") == sorted([first, first, second])
    assert [app.jobs.get(i).status for i in (first, second)] == [Status.FAILED] * 2
    assert {e.facts["hook"].rpartition(".")[2] for e in events if e.name == "on_error_failed"} == {"broken"}


def test_a_worker_that_ends_has_told_on_error(app: Duly) -> None:
    told: list[str] = []
    app.on_error(lambda error, job: told.append(type(error).__name__))

    @app.task(max_attempts=1, timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(60)

    slow.enqueue()
    app.worker().run(until_idle=True)
    assert told == ["TimeoutError"]
