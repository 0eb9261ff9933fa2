"""Time is handed in: on either database a test stands at any instant, and machines with wrong clocks agree."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from contract.hands import NOON, Hand, K, attempts, audit, ids, rows, run_sql
from duly import Duly, Status
from duly.kernel.outcome import Outcome
from duly.testing import ManualClock, drain

FAR = datetime(2099, 7, 1, 0, 0, 0, 1, tzinfo=UTC)


class Skewed:
    """The clock of a machine that is wrong by a day."""

    manual = False

    def __init__(self, days: int) -> None:
        self.days = days

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(days=self.days)

    def monotonic(self) -> float:
        return 0.0


def test_every_instant_of_a_life_is_the_clocks(app: Duly, clock: ManualClock) -> None:
    clock.set(FAR)
    app.task("X", max_attempts=2)(lambda: None)
    ident = app.enqueue("X", key="k", unique_until=timedelta(minutes=1)).job.id
    hand = Hand(app)
    clock.advance(1)
    hand.fail(hand.one())
    clock.advance(10)
    hand.succeed(hand.one())
    job = app.jobs.get(ident)
    assert (job.created_at, job.run_at) == (FAR, FAR)
    assert job.started_at == job.finished_at == FAR + timedelta(seconds=11)
    assert attempts(app, ident)[0].ended_at == FAR + timedelta(seconds=1)
    assert audit(app, ident)[0]["at"] == FAR + timedelta(seconds=11)
    app.queues.pause("q")
    assert app.queues.get("q").paused_at == clock.now()


def test_a_year_passes_in_a_moment(app: Duly, clock: ManualClock) -> None:
    runs: list[datetime] = []

    @app.task("MONTHLY")
    def monthly(left: int) -> None:
        runs.append(clock.now())
        if left:
            monthly.using(run_in=timedelta(days=30)).enqueue(left - 1)

    monthly.enqueue(12)
    for _ in range(13):
        drain(app)
        clock.advance(timedelta(days=30))
    assert runs == [NOON + timedelta(days=30 * n) for n in range(13)]


def test_a_clock_that_is_set_back_makes_nothing_due_twice_and_nothing_early(app: Duly, clock: ManualClock) -> None:
    app.task("X")(lambda: None)
    early, late = app.enqueue("X").job.id, app.enqueue("X", run_in=60).job.id
    hand = Hand(app, lease=30)
    job = hand.one()
    clock.set(NOON - timedelta(hours=1))
    assert hand.claim() == []
    assert hand.rescue() == []
    assert hand.succeed(job)
    assert hand.claim() == []
    clock.set(NOON + timedelta(seconds=60))
    assert ids(hand.claim(n=5)) == [late]
    assert app.jobs.get(early).status is Status.SUCCEEDED


def test_the_zone_of_the_server_changes_nothing(pg: Duly) -> None:
    for zone in ("Australia/Lord_Howe", "America/St_Johns", "UTC"):
        run_sql(pg, f"ALTER DATABASE {pg.db.url.database} SET timezone TO '{zone}'")
        pg.db.engine.dispose()
        # as the server would have it; our own connections say UTC
        assert rows(pg, "SELECT reset_val FROM pg_settings WHERE name = 'TimeZone'") == [(zone,)]
        job = pg.jobs.get(pg.enqueue("X", run_at=FAR).job.id)
        assert (job.run_at, job.created_at) == (FAR, NOON)
        assert job.run_at is not None and job.run_at.tzinfo is UTC


@pytest.mark.parametrize("days", [-1, 1])
def test_a_worker_with_a_wrong_clock_goes_by_the_databases(pg_url: str, days: int) -> None:  # T003-j
    right, wrong = Duly(pg_url), Duly(pg_url, clock=Skewed(days))
    for app in (right, wrong):
        app.task("X")(lambda: None)
    now = right.enqueue("X").job
    later = wrong.enqueue("X", run_in=3600).job
    made = wrong.enqueue("X").job
    for job in (now, made):
        assert job.created_at is not None
        assert abs(job.created_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert later.due_at is not None
    assert abs(later.due_at - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=5)
    hand = Hand(wrong)
    got = hand.claim(n=9)
    assert ids(got) == [now.id, made.id]
    assert hand.rescue() == Hand(right).rescue() == []
    assert hand.end(got[0], Outcome(K.FAILED))
    retry = right.jobs.get(now.id).next_retry_at
    assert retry is not None
    assert abs(retry - datetime.now(UTC) - timedelta(seconds=10)) < timedelta(minutes=5)
    assert hand.succeed(got[1])
    ended = right.jobs.get(made.id).finished_at
    assert ended is not None
    assert abs(ended - datetime.now(UTC)) < timedelta(minutes=5)
    right.close()
    wrong.close()


def test_a_key_for_a_duration_goes_by_the_databases_clock(pg_url: str) -> None:  # T003-j
    right, fast = Duly(pg_url), Duly(pg_url, clock=Skewed(1))
    first = right.enqueue("X", key="k", unique_until=timedelta(hours=1))
    assert not fast.enqueue("X", key="k").created
    assert fast.enqueue("X", key="k").job.id == first.job.id
    right.close()
    fast.close()


def test_a_rate_goes_by_the_databases_clock(pg_url: str) -> None:  # T003-j
    right, fast = Duly(pg_url), Duly(pg_url, clock=Skewed(1))
    for app in (right, fast):
        app.task("X")(lambda: None)
    right.queues.set("default", rate=(1, 3600))
    right.enqueue_many("X", [{}] * 3)
    assert len(Hand(right).claim(n=5)) == 1
    assert Hand(fast).claim(n=5) == []
    right.close()
    fast.close()


def test_a_pass_of_the_mover_knows_when_the_next_is_worth_making(app: Duly, clock: ManualClock) -> None:
    app.task("X")(lambda: None)
    store = app.engine.store
    app.open()
    assert app.db.read(store.next_due) is None
    app.enqueue("X", run_in=90)
    app.enqueue("X", run_in=60)
    assert app.db.read(store.next_due) == 60
    clock.advance(61)
    assert app.db.read(store.next_due) == -1
    assert app.db.once(store.promote) == 1
    assert app.db.read(store.next_due) == 29


def test_times_that_lie_far_apart_are_kept_exactly(app: Duly, another: Callable[[], Duly]) -> None:
    for year in (1901, 1969, 1970, 2038, 2262, 8999):
        at = datetime(year, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
        ident = app.enqueue("X", run_at=at).job.id
        assert another().jobs.get(ident).run_at == at


def test_a_job_made_late_in_a_long_transaction_counts_from_the_moment_it_was_made(pg_url: str) -> None:  # C011
    app = Duly(pg_url)
    task = app.task("X")(lambda: None)
    with app.db.session_engine.begin() as connection:
        begun, woken = connection.execute(text("SELECT now(), clock_timestamp() FROM pg_sleep(0.05)")).one()
        made = [
            task.using(session=connection).enqueue().job,
            task.using(session=connection, run_in=60).enqueue().job,
            task.using(session=connection, run_in=60, key="k").enqueue().job,
            *[one.job for one in task.using(session=connection, run_in=60).enqueue_many([{}, {}])],
        ]
    assert begun < woken
    assert all(job.created_at >= woken for job in made if job.created_at)
    assert all(job.run_at >= woken + timedelta(seconds=60) for job in made[1:] if job.run_at)
    with app.db.engine.begin() as connection:  # leases, audit rows, keys: every instant of the database's own
        [later] = connection.execute(text("SELECT clock_timestamp() FROM pg_sleep(0.01)")).one()
        assert app.db.present(connection) >= later
    app.close()
