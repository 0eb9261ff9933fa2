"""Two days of a small shop's jobs, on a clock that the test moves, on both databases.

The diary is the story: who ran when. Time jumps from one due instant to the next, as a worker that sleeps would see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from duly import Backoff, Duly, Job, PermanentError, Retry, Snooze, Status
from duly.jobs.prune import prune_expired
from duly.testing import ManualClock, drain

FRIDAY, SATURDAY, SUNDAY = (datetime(2026, 3, 27 + n, tzinfo=UTC) for n in range(3))


def at(day: datetime, hour: int, minute: int = 0, second: int = 0) -> datetime:
    return day + timedelta(hours=hour, minutes=minute, seconds=second)


class Shop:
    """An application, its clock, and a diary of its runs."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock(at(FRIDAY, 5, 30))
        self.app = Duly(url, clock=self.clock, retention=14 * 86_400)
        self.diary: list[tuple[datetime, str]] = []
        #: What the carrier's computer answers, in turn; when nothing is left, it works.
        self.carrier: list[Exception] = []
        self.tasks()

    def write(self, what: str) -> None:
        self.diary.append((self.clock.now(), what))

    def until(self, instant: datetime) -> None:
        """Let time pass, and run what becomes due at the instant it is due."""
        drain(self.app)
        while (wait := self.app.db.read(self.app.engine.store.next_due)) is not None:
            if self.clock.now() + timedelta(seconds=wait) > instant:
                break
            self.clock.advance(wait)
            drain(self.app)
        self.clock.set(instant)

    def column(self, sql: str) -> list[Any]:
        return self.app.db.read(lambda c: list(c.execute(text(sql)).scalars()))

    def ran(self, what: str) -> list[datetime]:
        return [when for when, name in self.diary if name == what]

    def tasks(self) -> None:
        app = self.app

        @app.task("OPEN")
        def open_shop() -> None:
            self.write("open")

        @app.task("LABEL", max_attempts=6, backoff=Backoff(base=600, factor=2, max=3600))
        def print_label(order: int) -> str:
            self.write(f"label {order}")
            if self.carrier:
                raise self.carrier.pop(0)
            return f"label-{order}"

        @app.task("NEWS", queue="mail", max_attempts=1)
        def news(address: str) -> None:
            """Nobody gets mail from nine in the evening to seven in the morning."""
            now = self.clock.now()
            if not 7 <= now.hour < 21:
                morning = at(now.replace(hour=0, minute=0), 7)
                raise Snooze("quiet hours", until=morning if morning > now else morning + timedelta(days=1))
            self.write(f"news {address}")

        @app.task("COUNT", max_attempts=1)
        def count_till(job: Job) -> None:
            """The till is counted once the last customer has paid, which may take until after midnight."""
            self.write("till")
            if self.clock.now() < at(SATURDAY, 0, 20):
                raise Snooze("customers are still paying", after=timedelta(minutes=45))

        @app.task("INVOICE")
        def invoice(order: int) -> None:
            self.write(f"invoice {order}")


@pytest.fixture
def shop(db_url: str) -> Iterator[Shop]:
    shop = Shop(db_url)
    yield shop
    shop.app.close()


@pytest.fixture
def enqueue(shop: Shop) -> Callable[..., Job]:
    def enqueue(task: str, input: dict[str, Any] | None = None, **options: Any) -> Job:
        return shop.app.enqueue(task, input or {}, **options).job

    return enqueue


def test_scheduled_jobs_run_at_their_instants_and_not_before(shop: Shop, enqueue: Callable[..., Job]) -> None:
    """R003-4: the day is laid out in the morning, in no particular order."""
    for hour in (14, 8, 11):
        enqueue("OPEN", run_at=at(FRIDAY, hour))
    enqueue("OPEN", run_in=timedelta(minutes=30))
    shop.until(at(FRIDAY, 23))
    assert shop.ran("open") == [at(FRIDAY, 6), at(FRIDAY, 8), at(FRIDAY, 11), at(FRIDAY, 14)]


def test_a_carrier_that_is_down_for_hours_gets_its_order_by_backoff(shop: Shop, enqueue: Callable[..., Job]) -> None:
    """R003-5, T003-a, T003-b: delays of 10, 20, 40 minutes, then an hour at most, once as long as the carrier asks for.
    The instant for which the job was planned never moves, and each failed attempt is on record."""
    shop.carrier = [ConnectionError("down")] * 3 + [Retry("busy", after=timedelta(hours=2)), ConnectionError("down")]
    job = enqueue("LABEL", {"order": 7}, run_at=at(FRIDAY, 9))
    shop.until(at(FRIDAY, 9, 5))
    waiting = shop.app.jobs.get(job.id)
    assert (waiting.status, waiting.retry_count, waiting.label(shop.clock.now())) == (Status.QUEUED, 1, "retrying")
    assert (waiting.next_retry_at, waiting.run_at) == (at(FRIDAY, 9, 10), at(FRIDAY, 9))
    shop.until(at(SATURDAY, 0))
    times = [
        at(FRIDAY, 9),
        at(FRIDAY, 9, 10),
        at(FRIDAY, 9, 30),
        at(FRIDAY, 10, 10),
        at(FRIDAY, 12, 10),
        at(FRIDAY, 13, 10),
    ]
    assert shop.ran("label 7") == times
    done = shop.app.jobs.get(job.id)
    assert (done.status, done.output, done.attempts, done.retry_count) == (Status.SUCCEEDED, "label-7", 6, 5)
    assert (done.run_at, done.started_at, done.finished_at) == (at(FRIDAY, 9), times[-1], times[-1])
    history = shop.app.db.read(lambda c: shop.app.engine.reader.attempts_of(c, job.id))
    assert [(a.attempt, a.outcome, a.started_at) for a in history] == [(n + 1, "failed", times[n]) for n in range(5)]


def test_snoozed_mail_waits_for_the_morning_and_uses_no_attempt(shop: Shop, enqueue: Callable[..., Job]) -> None:
    """Across midnight, with one attempt in all: mail of the late evening and of the small hours goes out at seven."""
    shop.until(at(FRIDAY, 20, 59))
    addresses = {"ada": at(FRIDAY, 20, 59), "bob": at(FRIDAY, 21), "cleo": at(SATURDAY, 2), "dan": at(SATURDAY, 7, 1)}
    jobs = [enqueue("NEWS", {"address": name}, run_at=when) for name, when in addresses.items()]
    shop.until(at(SATURDAY, 3))
    snoozed = shop.app.jobs.get(jobs[1].id)
    assert (snoozed.status, snoozed.attempts, snoozed.due_at) == (Status.QUEUED, 0, at(SATURDAY, 7))
    shop.until(at(SATURDAY, 12))
    sent = {name: shop.ran(f"news {name}") for name in addresses}
    assert sent == {
        "ada": [at(FRIDAY, 20, 59)],
        "bob": [at(SATURDAY, 7)],
        "cleo": [at(SATURDAY, 7)],
        "dan": [at(SATURDAY, 7, 1)],
    }
    assert [shop.app.jobs.get(job.id).attempts for job in jobs] == [1, 1, 1, 1]


def test_a_job_that_snoozes_again_and_again_crosses_midnight(shop: Shop, enqueue: Callable[..., Job]) -> None:
    job = enqueue("COUNT", run_at=at(FRIDAY, 22))
    shop.until(at(SATURDAY, 8))
    assert shop.ran("till") == [
        at(FRIDAY, 22),
        at(FRIDAY, 22, 45),
        at(FRIDAY, 23, 30),
        at(SATURDAY, 0, 15),
        at(SATURDAY, 1),
    ]
    assert (shop.app.jobs.get(job.id).status, shop.app.jobs.get(job.id).attempts) == (Status.SUCCEEDED, 1)


def test_a_double_click_makes_one_invoice_and_the_next_day_another(shop: Shop) -> None:
    """HOUSE decision 6: a key that is taken for a day outlives its job, and is free when the day is over."""
    options = {"key": "order-9", "unique_until": timedelta(days=1)}
    first = shop.app.enqueue("INVOICE", {"order": 9}, **options)
    shop.until(at(FRIDAY, 12))
    again = shop.app.enqueue("INVOICE", {"order": 9}, **options)
    assert (again.created, again.job.id, again.job.status) == (False, first.job.id, Status.SUCCEEDED)
    shop.until(at(SATURDAY, 5, 30) - timedelta(microseconds=1))
    assert not shop.app.enqueue("INVOICE", {"order": 9}, **options).created
    shop.until(at(SATURDAY, 5, 30))
    assert shop.app.enqueue("INVOICE", {"order": 9}, **options).created
    shop.until(at(SATURDAY, 6))
    assert shop.ran("invoice 9") == [at(FRIDAY, 5, 30), at(SATURDAY, 5, 30)]


def test_a_stocktaking_holds_everything_and_nothing_is_lost_or_counted(shop: Shop, enqueue: Callable[..., Job]) -> None:
    """R003-8, HOUSE decision 7: the gate is closed for two hours in which jobs become due; the mail stays paused longer."""
    for hour in (9, 10, 11):
        enqueue("OPEN", run_at=at(FRIDAY, hour))
    enqueue("NEWS", {"address": "ada"}, run_at=at(FRIDAY, 10))
    shop.until(at(FRIDAY, 9, 30))
    shop.app.gate.offline("stocktaking", actor="manager")
    shop.app.queues.pause("mail", "the letter has a typo", "manager")
    shop.until(at(FRIDAY, 11, 30))
    assert (shop.ran("open"), shop.ran("news ada")) == ([at(FRIDAY, 9)], [])
    shop.app.gate.online(actor="manager")
    shop.until(at(FRIDAY, 13))
    assert shop.ran("open") == [at(FRIDAY, 9), at(FRIDAY, 11, 30), at(FRIDAY, 11, 30)]
    shop.app.queues.resume("mail", "manager")
    shop.until(at(FRIDAY, 14))
    assert shop.ran("news ada") == [at(FRIDAY, 13)]
    assert {job.attempts for job in shop.app.jobs.find()} == {1}


def test_old_jobs_are_pruned_after_two_weeks_and_their_keys_are_not(shop: Shop, enqueue: Callable[..., Job]) -> None:
    """T002-p: an order that was invoiced is not invoiced again because its job is forgotten."""
    shop.carrier = [PermanentError("no such street")]
    old = [enqueue("INVOICE", {"order": 1}, key="order-1"), enqueue("LABEL", {"order": 1})]
    shop.until(at(SATURDAY, 5, 30))
    young = enqueue("OPEN")
    waiting = enqueue("OPEN", run_at=at(SUNDAY, 9) + timedelta(days=30))
    shop.until(at(FRIDAY, 5, 30) + timedelta(days=14))
    assert prune_expired(shop.app.db) == 0, "two weeks are not over until they are"
    shop.clock.advance(timedelta(microseconds=1))
    assert prune_expired(shop.app.db) == 2
    assert [job.id for job in shop.app.jobs.find()] == [waiting.id, young.id]
    again = shop.app.enqueue("INVOICE", {"order": 1}, key="order-1")
    assert (again.created, again.job.id) == (False, old[0].id)
    assert shop.column("SELECT job_id FROM attempts") == []
    assert shop.column("SELECT action FROM audit_log WHERE entity = 'job' ORDER BY id") == [
        "INVOICE_COMPLETED",
        "JOB_FAILED_PERMANENT",
        "OPEN_COMPLETED",
    ], "the trail stays"


def test_a_whole_weekend_in_one_diary(shop: Shop, enqueue: Callable[..., Job]) -> None:
    """All of it at once: whatever waits, everything else runs at its instant, the more important first."""
    shop.carrier = [ConnectionError("down")] * 2
    enqueue("OPEN", run_at=at(FRIDAY, 8))
    enqueue("LABEL", {"order": 3}, run_at=at(FRIDAY, 7, 55))
    enqueue("COUNT", run_at=at(FRIDAY, 23, 50))
    enqueue("NEWS", {"address": "eve"}, run_at=at(FRIDAY, 22))
    enqueue("OPEN", run_at=at(SATURDAY, 8))
    enqueue("INVOICE", {"order": 3}, run_at=at(FRIDAY, 8), priority=5)
    shop.until(at(SUNDAY, 0))
    assert shop.diary == [
        (at(FRIDAY, 7, 55), "label 3"),
        (at(FRIDAY, 8), "invoice 3"),
        (at(FRIDAY, 8), "open"),
        (at(FRIDAY, 8, 5), "label 3"),
        (at(FRIDAY, 8, 25), "label 3"),
        (at(FRIDAY, 23, 50), "till"),
        (at(SATURDAY, 0, 35), "till"),
        (at(SATURDAY, 7), "news eve"),
        (at(SATURDAY, 8), "open"),
    ]
    assert {job.status for job in shop.app.jobs.find()} == {Status.SUCCEEDED}
