"""Limits, rates, turns, pauses and the gate: held work is never claimed, and what holds one queue holds no other."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from contract.hands import NOON, Hand, Later, actions, audit, ids, rows, run_sql, together, wait_until, working
from duly import Duly, InvalidArgument, Status
from duly.kernel.gate import Rate
from duly.testing import ManualClock, drain

MICRO = timedelta(microseconds=1)
Send = Callable[..., list[int]]


@pytest.fixture
def send(app: Duly) -> Send:
    """Enqueue ``n`` jobs: ``send(n, **options)``."""

    @app.task("X")
    def x(n: int = 0) -> None: ...

    return lambda n=1, **options: [x.using(**options).enqueue().job.id for _ in range(n)]


def running(app: Duly, queue: str = "default") -> int:
    n: int = rows(app, "SELECT count(*) FROM jobs WHERE status = 'running' AND queue = :q", q=queue)[0][0]
    return n


# --- Limits ------------------------------------------------------------------------------------------------------------


def test_a_limit_is_never_exceeded_and_what_ends_makes_room(app: Duly, send: Send, hand: Hand) -> None:  # R002-7
    app.queues.set("default", limit=2)
    sent = send(5)
    first = hand.claim(n=10)
    assert ids(first) == sent[:2]
    assert hand.claim(n=10) == []
    hand.succeed(first[0])
    assert ids(hand.claim(n=10)) == sent[2:3]


def test_claimers_at_once_do_not_exceed_a_limit(app: Duly, send: Send) -> None:  # T002-f, B036
    app.queues.set("default", limit=3)
    send(40)
    most, lock = 0, threading.Lock()

    def work(name: str) -> int:
        nonlocal most
        hand, done = Hand(app, name), 0
        for _ in range(200):
            for job in hand.claim(n=2):
                with lock:
                    most = max(most, running(app))
                done += hand.succeed(job)
            if rows(app, "SELECT count(*) FROM jobs") == [(0,)]:
                return done
        return done

    done = together(*[lambda n=n: work(f"w{n}") for n in range(6)])
    assert sum(done) == 40  # type: ignore[arg-type]
    assert 2 <= most <= 3


def test_a_job_whose_lease_lapsed_fills_its_place_until_it_is_rescued(
    app: Duly, send: Send, clock: ManualClock
) -> None:  # HOUSE decision 7
    app.queues.set("default", limit=1)
    sent = send(2)
    hand = Hand(app, lease=2)
    hand.one()
    clock.advance(60)
    assert hand.claim() == []
    hand.rescue()
    assert ids(hand.claim(n=5)) == sent[:1]


def test_a_limit_that_is_taken_away_holds_nothing(app: Duly, send: Send, hand: Hand) -> None:
    app.queues.set("default", limit=1)
    send(5)
    assert len(hand.claim(n=9)) == 1
    app.queues.set("default", limit=None)
    assert app.queues.get("default").governed is False
    assert len(hand.claim(n=9)) == 4


def test_a_lower_limit_lets_running_jobs_go_on(app: Duly, send: Send, hand: Hand) -> None:
    send(6)
    first = hand.claim(n=5)
    app.queues.set("default", limit=2)
    assert hand.claim(n=9) == []
    for job in first[:3]:
        assert hand.succeed(job)
        assert hand.claim(n=9) == []
    hand.succeed(first[3])
    assert len(hand.claim(n=9)) == 1


def test_a_held_queue_never_hides_a_free_one(app: Duly, send: Send, hand: Hand) -> None:  # B061, T002-e
    app.queues.set("instagram", limit=1)
    send(100, queue="instagram")
    assert len(hand.claim("instagram", 10)) == 1
    [facebook] = send(queue="facebook")
    assert ids([*hand.claim("instagram", 10), *hand.claim("facebook", 10)]) == [facebook]
    assert running(app, "instagram") == 1


def test_one_claim_over_many_queues_passes_the_held_ones_by(app: Duly, send: Send) -> None:  # B061
    app.queues.pause("a")
    app.queues.set("b", limit=1)
    send(50, queue="a", priority=9)
    send(50, queue="b", priority=9)
    [free] = send(queue="c")
    store = app.engine.store
    got = app.db.once(lambda c: store.claim(c, {"a": 10, "b": 10, "c": 10}, ["X"], 1 << 60, 30, "w"))
    assert ids(got) == [free]


def test_after_an_outage_a_backlog_is_worked_off_within_its_limit_and_in_order(
    app: Duly, send: Send, hand: Hand, clock: ManualClock
) -> None:  # B060
    app.queues.set("default", limit=2)
    app.queues.pause("default", "blackout")
    sent = send(12)
    started: list[int] = []
    for _ in range(3):
        clock.advance(60)
        assert hand.claim(n=9) == []
    app.queues.resume("default")
    held: list[Any] = []
    for _ in range(12):  # a tick each minute, handlers of 90 s
        clock.advance(60)
        held = [
            job for job in held if not (clock.now() - job.since).total_seconds() >= 90 or not hand.succeed(job.claimed)
        ]
        for claimed in hand.claim(n=9):
            started.append(claimed.id)
            held.append(Held(claimed, clock.now()))
        assert running(app) <= 2
        assert {j.attempts for j in app.jobs.find(status=[Status.QUEUED])} <= {0}
    assert started == sent


class Held:
    def __init__(self, claimed: Any, since: Any) -> None:
        self.claimed, self.since = claimed, since


# --- Concurrency keys --------------------------------------------------------------------------------------------------


def test_one_job_per_concurrency_key_runs_unless_told_otherwise(app: Duly, send: Send, hand: Hand) -> None:
    a, b, free = send(3, concurrency_key="a"), send(2, concurrency_key="b"), send(2)
    assert ids(hand.claim(n=9)) == [a[0], b[0], *free]
    assert hand.claim(n=9) == []


def test_a_key_limit_counts_what_runs_and_what_is_taken(app: Duly, send: Send, hand: Hand) -> None:
    app.queues.set("default", key_limit=2)
    a = send(5, concurrency_key="a")
    first = hand.claim(n=1)
    assert ids(hand.claim(n=9)) == a[1:2]
    assert hand.claim(n=9) == []
    hand.succeed(first[0])
    assert ids(hand.claim(n=9)) == a[2:3]


def test_a_long_line_of_one_key_does_not_hide_the_others(app: Duly, send: Send, hand: Hand) -> None:  # B061
    send(300, concurrency_key="a", priority=5)
    others = send(3, concurrency_key="b") + send(1)
    assert len(hand.claim(n=2)) >= 1  # one of a's
    assert set(ids(hand.claim(n=9))) <= {others[0], others[3]}
    assert running(app) == 3


def test_claimers_at_once_keep_a_key_limit(app: Duly, send: Send) -> None:  # T002-f
    for key in "abc":
        send(6, concurrency_key=key)
    most, lock = Counter[str](), threading.Lock()

    def work(name: str) -> None:
        hand = Hand(app, name)
        while rows(app, "SELECT count(*) FROM jobs") != [(0,)]:
            for job in hand.claim(n=3):
                with lock:
                    for key, n in rows(
                        app, "SELECT concurrency_key, count(*) FROM jobs WHERE status = 'running' GROUP BY 1"
                    ):
                        most[key] = max(most[key], n)
                hand.succeed(job)

    assert together(*[lambda n=n: work(f"w{n}") for n in range(4)]) == [None] * 4
    assert set(most.values()) == {1}


def test_an_open_transaction_that_enqueues_with_a_key_holds_up_nobody(pg: Duly) -> None:
    @pg.task("X")
    def x() -> None: ...

    first = x.using(concurrency_key="a").enqueue().job
    with Session(pg.db.session_engine) as session:
        x.using(concurrency_key="b", session=session).enqueue()
        assert ids(Hand(pg).claim(n=9)) == [first.id]
        other = Later(lambda: x.using(concurrency_key="c").enqueue().job.id)
        assert other.result(10)
        session.commit()
    assert len(Hand(pg).claim(n=9)) == 2


# --- Rates -------------------------------------------------------------------------------------------------------------


def test_a_rate_is_exact_in_every_window(app: Duly, send: Send, hand: Hand, clock: ManualClock) -> None:
    app.queues.set("default", rate=(3, 10))
    send(20)
    starts: list[float] = []
    while len(starts) < 20:
        starts += [(clock.now() - NOON).total_seconds()] * len(hand.claim(n=9))
        clock.advance(0.25)
    assert starts[:7] == [0, 0, 0, 10, 10, 10, 20]
    for start in starts:
        assert sum(start <= other < start + 10 for other in starts) <= 3


def test_a_rate_window_slides_with_each_start(app: Duly, send: Send, hand: Hand, clock: ManualClock) -> None:
    app.queues.set("default", rate=Rate(2, 10))
    send(9)
    assert len(hand.claim(n=1)) == 1
    clock.advance(4)
    assert len(hand.claim(n=9)) == 1
    clock.set(NOON + timedelta(seconds=10) - MICRO)
    assert hand.claim(n=9) == []
    clock.set(NOON + timedelta(seconds=10))
    assert len(hand.claim(n=9)) == 1
    clock.set(NOON + timedelta(seconds=14))
    assert len(hand.claim(n=9)) == 1
    assert rows(app, "SELECT count(*) FROM queue_starts")[0][0] <= 2


def test_claimers_at_once_do_not_exceed_a_rate(app: Duly, send: Send) -> None:
    app.queues.set("default", rate=(5, 3600))
    send(40)
    got = together(*[lambda n=n: sum(len(Hand(app, f"w{n}").claim(n=2)) for _ in range(10)) for n in range(6)])
    assert sum(got) == 5  # type: ignore[arg-type]


def test_a_rate_and_a_limit_hold_together(app: Duly, send: Send, hand: Hand, clock: ManualClock) -> None:
    app.queues.set("default", rate=(3, 10), limit=2)
    send(9)
    first = hand.claim(n=9)
    assert len(first) == 2
    for job in first:
        hand.succeed(job)
    assert len(hand.claim(n=9)) == 1
    assert hand.claim(n=9) == []


# --- Turns -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 10])
def test_a_tenant_with_a_thousand_jobs_does_not_starve_one_with_five(
    app: Duly, send: Send, hand: Hand, size: int
) -> None:  # T003-g
    app.queues.set("default", fair=True)
    app.find_task("X").using(tenant="big").enqueue_many([{}] * 1000)
    small = send(5, tenant="small")
    taken = [job for _ in range(-(-12 // size)) for job in hand.claim(n=size)][:12]
    assert [j.id for j in taken if j.tenant == "small"] == small
    assert Counter(j.tenant for j in taken) == {"big": 7, "small": 5}


def test_turns_go_round_among_all_tenants(app: Duly, send: Send, hand: Hand) -> None:
    app.queues.set("default", fair=True)
    for tenant in "abc":
        send(3, tenant=tenant)
    assert [hand.one().tenant for _ in range(9)] == list("abcabcabc")


def test_turns_are_taken_at_equal_priority_only(app: Duly, send: Send, hand: Hand) -> None:  # R003-3
    app.queues.set("default", fair=True)
    send(3, tenant="a", priority=1)
    send(3, tenant="b")
    assert [j.tenant for j in hand.claim(n=4)] == ["a", "a", "a", "b"]


def test_within_a_tenant_the_order_stays(app: Duly, send: Send, hand: Hand) -> None:
    app.queues.set("default", fair=True)
    low, high = send(3, tenant="a"), send(2, tenant="a", priority=2)
    assert ids(hand.claim(n=9)) == [*high, *low]


def test_jobs_that_waited_before_turns_were_introduced_take_them_too(app: Duly, send: Send, hand: Hand) -> None:
    send(50, tenant="big")
    send(2, tenant="small")
    app.queues.set("default", fair=True)
    assert Counter(j.tenant for j in hand.claim(n=4)) == {"big": 2, "small": 2}
    app.queues.set("default", fair=False)
    assert [j.tenant for j in hand.claim(n=4)] == ["big"] * 4


@pytest.mark.parametrize("how", ["retry", "replay", "cancelled and replayed"])
def test_a_job_that_comes_back_takes_its_turn_as_before(
    app: Duly, send: Send, hand: Hand, clock: ManualClock, how: str
) -> None:
    app.queues.set("default", fair=True)
    [mine] = send(1, tenant="small", max_attempts=2 if how == "retry" else 1)
    if how == "cancelled and replayed":
        app.jobs.cancel(mine)
    else:
        hand.fail(hand.one())
    if how == "retry":
        clock.advance(10)
    else:
        app.jobs.replay(mine)
    send(30, tenant="big")
    assert mine in ids(hand.claim(n=2))


def test_a_job_that_was_running_when_turns_were_introduced_takes_its_turn_when_it_comes_back(
    app: Duly, send: Send, hand: Hand, clock: ManualClock
) -> None:
    [mine] = send(1, tenant="small")
    job = hand.one()
    app.queues.set("default", fair=True)
    hand.fail(job)
    clock.advance(10)
    send(30, tenant="big")
    assert mine in ids(hand.claim(n=2))


def test_two_processes_with_one_slot_each_serve_every_tenant(
    app: Duly, send: Send, another: Callable[[], Duly]
) -> None:
    app.queues.set("default", fair=True)
    app.find_task("X").using(tenant="big").enqueue_many([{}] * 100)
    send(3, tenant="small")
    hands = [Hand(app, "w0")]
    for n in (1, 2):
        process = another()
        process.task("X")(lambda n=0: None)
        hands.append(Hand(process, f"w{n}"))
    taken = [hand.one().tenant for _ in range(5) for hand in hands]
    assert taken.count("small") == 3


# --- Pauses ------------------------------------------------------------------------------------------------------------


def test_a_paused_queue_starts_nothing_and_goes_on_when_it_is_resumed(
    app: Duly, send: Send, hand: Hand, clock: ManualClock
) -> None:
    send(2)
    job = hand.one()
    paused = app.queues.pause("default", "provider is down", actor="cli:ada")
    assert (paused.paused_at, paused.paused_reason, paused.paused_by) == (NOON, "provider is down", "cli:ada")
    assert hand.claim() == []
    assert hand.succeed(job)  # what runs goes on
    assert len(send(1)) == 1  # enqueueing goes on
    clock.advance(60)
    app.queues.pause("default", "still down")
    assert app.queues.get("default").paused_at == NOON  # the pause began when it began
    assert app.queues.get("default").paused_reason == "still down"
    app.queues.resume("default", actor="cli:ada")
    assert len(hand.claim(n=9)) == 2
    assert actions(app, "default") == ["QUEUE_PAUSED", "QUEUE_PAUSED", "QUEUE_RESUMED"]
    assert {row["actor"] for row in audit(app, "default")} == {"cli:ada", "code"}


def test_resuming_a_queue_that_is_not_paused_is_no_act(app: Duly) -> None:
    app.queues.resume("default")
    assert actions(app) == []


def test_a_pause_keeps_limits_and_a_limit_keeps_the_pause(app: Duly, send: Send, hand: Hand) -> None:
    app.queues.set("default", limit=1)
    app.queues.pause("default")
    app.queues.set("default", rate=(5, 60))
    send(3)
    assert hand.claim(n=9) == []
    app.queues.resume("default")
    assert len(hand.claim(n=9)) == 1
    s = app.queues.get("default")
    assert (s.limit, s.rate, s.key_limit, s.fair) == (1, Rate(5, 60), None, False)
    assert [r["meta"] for r in audit(app, "default", "QUEUE_CHANGED")][-1]["rate"] == "5/60s"


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": -1}, {"key_limit": 0}, {"rate": (0, 60)}, {"rate": (1, 0)}, {"rate": (1, -5)}]
)
def test_a_limit_that_makes_no_sense_is_refused(app: Duly, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        app.queues.set("default", **wrong)
    with pytest.raises(InvalidArgument):
        app.queues.pause("")
    assert app.queues.all() == {}


# --- The gate ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["free", "governed"])
def kind(request: pytest.FixtureRequest, app: Duly) -> str:
    """The gate stands before both ways of claiming."""
    if request.param == "governed":
        app.queues.set("default", limit=100)
    return str(request.param)


def test_while_the_gate_is_closed_nothing_is_claimed_and_enqueueing_goes_on(
    app: Duly, send: Send, hand: Hand, kind: str
) -> None:  # R003-8
    send(2)
    job = hand.one()
    app.gate.offline(actor="cli:ada", reason="maintenance")
    assert app.gate.is_online is False
    assert hand.claim(n=9) == []
    assert hand.succeed(job)  # a running job is not interrupted (T003-f)
    send(1)
    app.gate.online()
    assert len(hand.claim(n=9)) == 2
    assert [(r["action"], r["level"], r["actor"], r["meta"]) for r in audit(app, "atlas_online")] == [
        ("ATLAS_OFFLINE", "warning", "cli:ada", {"reason": "maintenance"}), ("ATLAS_ONLINE", "warning", "code", {"reason": ""}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "online"),
    [("true", True), ("1", True), ("on", True), ("YES", True), (' "true" ', True), ("false", False), ("0", False), ("off", False), ("no", False),
     ("", False), ("garbage", False), ("null", False), ("true\n", False), ("\ttrue", False), ("\u00a0on", False)],
)  # fmt: skip
def test_the_gates_row_is_read_alike_by_people_and_by_claims(
    app: Duly, send: Send, hand: Hand, kind: str, value: str, online: bool
) -> None:  # T003-f
    send(1)
    run_sql(app, "UPDATE system_state SET value = :v WHERE key = 'atlas_online'", v=value)
    assert app.gate.is_online is online
    assert len(hand.claim()) == online


def test_a_missing_gate_is_open(app: Duly, send: Send, hand: Hand, kind: str) -> None:  # T003-f
    assert rows(app, "SELECT value FROM system_state WHERE key = 'atlas_online'") == [
        ("true",)
    ]  # written by the migration
    run_sql(app, "DELETE FROM system_state WHERE key = 'atlas_online'")
    send(1)
    assert app.gate.is_online
    assert len(hand.claim()) == 1
    app.gate.offline()
    assert not app.gate.is_online


def test_offline_nothing_starts_and_online_the_limit_holds(db_url: str) -> None:  # B036
    app = Duly(db_url, lease=1, poll=0.05)
    lock, at_once, most, starts, go = threading.Lock(), 0, 0, 0, threading.Event()

    @app.task("X")
    def x() -> None:
        nonlocal at_once, most, starts
        with lock:
            at_once, starts = at_once + 1, starts + 1
            most = max(most, at_once)
        go.wait(0.02)
        with lock:
            at_once -= 1

    app.queues.set("default", limit=5)
    orphan = x.enqueue().job
    Hand(app, "dead", lease=-1).one()  # its worker is gone, its lease has lapsed
    x.enqueue_many([{}] * 20)
    app.gate.offline()
    workers = [app.worker({"default": 8}, name=f"w{n}") for n in (1, 2)]
    with working(*workers):
        wait_until(lambda: app.jobs.get(orphan.id).status is Status.QUEUED)  # rescued …
        assert len(x.enqueue_many([{}] * 3)) == 3
        wait_until(lambda: all(not w.house.online for w in workers))
        assert (starts, running(app)) == (0, 0)  # … and not run
        app.gate.online()
        wait_until(lambda: app.jobs.count(status=[Status.SUCCEEDED]) == 24)
    assert starts == 24
    assert 2 <= most <= 5
    app.close()


def test_a_gate_that_closes_gives_back_what_was_claimed_and_not_started(
    db_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # HOUSE decision 1, T003-f
    monkeypatch.setattr("duly.jobs.house.STALE", 1e9)  # not because it waits, but because the gate closes
    app = Duly(db_url, poll=0.05)
    began, go = threading.Event(), threading.Event()

    @app.task("X")
    def x() -> None:
        began.set()
        assert go.wait(30)

    worker = app.worker({"default": 1}, name="w")
    worker.lanes["default"].pace = 1000.0  # as if it had seen short jobs until now: it claims ahead
    worker.lanes["default"].seen_at = 1e18
    x.enqueue_many([{}] * 20)
    with working(worker):
        assert began.wait(30)
        wait_until(lambda: running(app) > 1)
        app.gate.offline()
        wait_until(lambda: running(app) == 1)
        go.set()
        wait_until(lambda: app.jobs.count(status=[Status.SUCCEEDED]) == 1)
        wait_until(lambda: running(app) == 0)
    assert {j.attempts for j in app.jobs.find(status=[Status.QUEUED])} == {0}
    app.close()


def test_drain_obeys_what_holds_a_queue(app: Duly, send: Send, clock: ManualClock) -> None:
    send(5)
    app.queues.set("default", rate=(2, 60))
    assert drain(app).succeeded == 2
    app.queues.pause("default")
    clock.advance(60)
    assert drain(app).succeeded == 0
    app.queues.resume("default")
    app.gate.offline()
    assert drain(app).succeeded == 0
    app.gate.online()
    assert drain(app).succeeded == 2


# --- What was fetched already -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("control", ["gate", "pause"])
def test_a_gate_closed_elsewhere_reaches_jobs_that_a_worker_has_fetched_already(
    db_url: str, control: str
) -> None:  # HOUSE decision 1, R003-8
    here, elsewhere = Duly(db_url), Duly(db_url)
    done: list[int] = []
    go = threading.Event()

    @here.task
    async def short(n: int) -> None:
        while n == 100 and not go.is_set():
            await asyncio.sleep(0.01)
        done.append(n)

    short.enqueue_many([{"n": n} for n in range(400)])
    worker = here.worker(concurrency=1)
    # looking now and then is for those who cannot be told: here only the bell tells
    for duty in worker.house.duties:
        duty.every = 3600.0
    with working(worker):
        wait_until(lambda: len(done) == 100)
        wait_until(lambda: running(here) > 1)
        if control == "gate":
            elsewhere.gate.offline("works")
        else:
            elsewhere.queues.pause("default", "works")
        wait_until(lambda: running(here) == 1)
        go.set()
        wait_until(lambda: running(here) == 0)
        assert len(done) == 101
        if control == "gate":
            elsewhere.gate.online()
        else:
            elsewhere.queues.resume("default")
        wait_until(lambda: len(done) == 400)
    assert sorted(done) == list(range(400))
    here.close()
    elsewhere.close()
