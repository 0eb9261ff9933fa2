"""Idempotency keys: one job per tenant, queue and key, whoever asks, however often, at whatever moment."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from contract.hands import NOON, Hand, K, Later, audit, rows, together, wait_until
from duly import Duly, InvalidArgument, KeyConflict, NotFound, Status, WrongState
from duly.jobs.enqueue import NewJob
from duly.jobs.job import LIVE
from duly.jobs.prune import prune_expired
from duly.jobs.tables import job_keys
from duly.kernel.outcome import Outcome
from duly.outbox.reconcile import Expected, Wanted, compare
from duly.testing import ManualClock, drain

DAY = timedelta(days=1)


def new(key: str | None, input: str = "{}", **more: Any) -> NewJob:
    return NewJob(tenant="default", queue="default", task="X", input=input, max_attempts=4, key=key, **more)


@pytest.fixture
def send(app: Duly) -> Callable[..., Any]:
    """Enqueue task X: ``send(key, n, **options)``."""

    @app.task("X")
    def x(n: int = 0) -> None: ...

    return lambda key, n=0, **options: x.using(key=key, **options).enqueue(n)


def test_a_key_that_is_taken_gives_back_the_job_that_has_it(app: Duly, send: Callable[..., Any]) -> None:  # R002-2
    first = send("order-1", 1, priority=5)
    again = send("order-1", 1, priority=9)
    assert (first.created, again.created) == (True, False)
    assert again.job == app.jobs.get(first.job.id)
    assert again.job.priority == 5  # unchanged
    assert app.jobs.count() == 1


def test_a_key_belongs_to_its_tenant_and_its_queue(app: Duly, send: Callable[..., Any]) -> None:  # B053
    made = [
        send("1"),
        send("1", tenant="a"),
        send("1", tenant="b"),
        send("1", queue="instagram"),
        send("1", queue="facebook"),
    ]
    assert [m.created for m in made] == [True] * 5
    assert len({m.job.id for m in made}) == 5
    assert not send("1", tenant="a").created


def test_twenty_threads_with_one_key_make_one_job_and_all_hear_of_it(
    app: Duly, send: Callable[..., Any]
) -> None:  # B053
    answers = together(*[lambda: send("k", 7)] * 20)
    assert len({m.job.id for m in answers}) == 1  # type: ignore[union-attr]
    assert sum(m.created for m in answers) == 1  # type: ignore[union-attr]
    assert rows(app, "SELECT count(*) FROM jobs") == [(1,)]


def test_a_race_of_transactions_is_won_by_the_one_that_commits(pg: Duly) -> None:  # R002-2, B053
    @pg.task("X")
    def x(n: int = 0) -> None: ...

    pg.open()
    for end, created in (("rollback", True), ("commit", False)):
        with Session(pg.db.session_engine) as session:
            first = x.using(key=end, session=session).enqueue(1).job
            second = Later(partial(x.using(key=end).enqueue, 2))
            wait_until(lambda: second.is_waiting(pg))
            getattr(session, end)()
        made = second.result()
        assert made.created is created
        assert (made.job.id == first.id) is not created


# --- Another payload ---------------------------------------------------------------------------------------------------


def test_another_payload_under_a_taken_key_is_a_conflict_when_asked_so(
    app: Duly, send: Callable[..., Any]
) -> None:  # B053
    first = send("k", 1).job
    assert not send("k", 1, on_conflict="raise").created
    with pytest.raises(KeyConflict) as conflict:
        send("k", 2, on_conflict="raise")
    assert (conflict.value.key, conflict.value.queue, conflict.value.job_id) == ("k", "default", first.id)
    assert not send("k", 2).created
    assert app.jobs.get(first.id) == first
    assert app.jobs.count() == 1


def test_another_task_under_a_taken_key_is_a_conflict_too(app: Duly, send: Callable[..., Any]) -> None:
    send("k")
    with pytest.raises(KeyConflict):
        app.enqueue("OTHER", {}, key="k", on_conflict="raise")


def test_a_payload_in_another_order_is_the_same_payload(app: Duly) -> None:
    @app.task("D")
    def d(options: dict[str, dict[str, int]], tags: set[str]) -> None: ...

    raising = {"key": "k", "on_conflict": "raise"}
    first = d.using(key="k").enqueue({"a": {"x": 1, "y": 2}, "b": {}}, {"red", "green", "blue"})
    again = d.using(**raising).enqueue({"b": {}, "a": {"y": 2, "x": 1}}, {"blue", "green", "red"})
    assert (again.created, again.job.id) == (False, first.job.id)
    with pytest.raises(KeyConflict):
        d.using(**raising).enqueue({"a": {"x": 2, "y": 1}, "b": {}}, {"red", "green", "blue"})
    app.enqueue("UNKNOWN", {"a": 1, "b": [1, 2]}, key="n")
    assert not app.enqueue("UNKNOWN", {"b": [1, 2], "a": 1}, key="n", on_conflict="raise").created
    with pytest.raises(KeyConflict):  # the order of a list says something
        app.enqueue("UNKNOWN", {"b": [2, 1], "a": 1}, key="n", on_conflict="raise")


_SENDS_A_SET = """
import sys
from duly import Duly
app = Duly(sys.argv[1])
@app.task("TAG")
def tag(tags: set[str]) -> None: ...
print(tag.using(key="k", on_conflict="raise").enqueue({"red", "green", "blue", "black"}).created)
"""


def test_a_set_is_the_same_payload_in_every_process(db_url: str) -> None:
    Duly(db_url).open()
    said = []
    for seed in ("1", "2", "3"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", _SENDS_A_SET, db_url], env=environment, capture_output=True, text=True, check=True
        )
        said.append(done.stdout.strip())
    assert said == ["True", "False", "False"]


def test_a_key_whose_payload_was_hashed_as_it_stood_knows_its_payload(app: Duly) -> None:
    app.open()
    text = '{"b":1,"a":"é"}'
    job = app.engine.maker.make(new("old", text)).job
    older = hashlib.sha256(f"X\n{text}".encode()).hexdigest()
    with app.db.engine.begin() as connection:
        connection.execute(job_keys.update().values(payload_hash=older))
    assert app.engine.maker.make(new("old", text, on_conflict="raise")).job == job
    with pytest.raises(KeyConflict):
        app.engine.maker.make(new("old", '{"b":2,"a":"é"}', on_conflict="raise"))


def test_numbers_that_differ_in_their_last_digit_are_two_payloads() -> None:
    assert (
        new("k", '{"a":1180591620717411303424}').payload_hash != new("k", '{"a":1180591620717411303425}').payload_hash
    )
    assert new("k", '{"a":1}').payload_hash != new("k", '{"a":"1"}').payload_hash
    endless = '{"a":' + "1" * 5000 + "}"
    assert new("k", endless).fits(new("k", endless).payload_hash)


def test_a_conflict_takes_the_whole_batch_along(app: Duly) -> None:
    maker = app.engine.maker
    app.open()
    maker.make(new("taken", '{"n":1}'))
    with pytest.raises(KeyConflict):
        maker.make_many([new("fresh"), new(None), new("taken", '{"n":2}', on_conflict="raise")])
    assert app.jobs.count() == 1
    assert rows(app, "SELECT key FROM job_keys") == [("taken",)]


# --- In bulk -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 60])
def test_a_key_repeated_inside_one_batch_makes_one_job(app: Duly, n: int) -> None:
    app.open()
    old = app.engine.maker.make(new("old")).job
    wanted = [new("a"), new(None), new("b"), new("a"), new("old"), new("b"), *[new("a")] * n]
    made = app.engine.maker.make_many(wanted)
    assert [m.created for m in made] == [True, True, True, False, False, False, *[False] * n]
    assert made[4].job == old
    assert {m.job.id for m in made[3::3]} <= {made[0].job.id, made[2].job.id}
    assert made[5].job == made[2].job
    assert app.jobs.count() == 4


def test_a_repeated_key_with_another_payload_conflicts_inside_one_batch(app: Duly) -> None:
    app.open()
    with pytest.raises(KeyConflict):
        app.engine.maker.make_many([new("a", '{"n":1}'), new("a", '{"n":2}', on_conflict="raise")])
    assert app.jobs.count() == 0


def test_one_key_for_many_different_jobs_is_refused(app: Duly, send: Callable[..., Any]) -> None:
    with pytest.raises(InvalidArgument, match="key"):
        app.find_task("X").using(key="k").enqueue_many([{"n": 1}, {"n": 2}])


def test_batches_that_share_keys_in_another_order_do_not_deadlock(app: Duly) -> None:  # R002-2
    app.open()
    make, keys = app.engine.maker.make_many, [f"k{i}" for i in range(3000)]
    answers = together(*[partial(make, [new(k) for k in order]) for order in (keys, keys[::-1]) * 2])
    assert not [a for a in answers if isinstance(a, Exception)]
    assert {sum(m.created for m in a) for a in answers} == {0, 3000}  # type: ignore[union-attr]
    assert app.jobs.count() == 3000


# --- For how long ------------------------------------------------------------------------------------------------------


def test_a_key_outlives_the_end_of_its_job_and_its_row(
    app: Duly, send: Callable[..., Any], clock: ManualClock
) -> None:  # T002-p
    job = send("k").job
    drain(app)
    again = send("k")
    assert (again.created, again.job.id, again.job.status) == (False, job.id, Status.SUCCEEDED)
    clock.advance(30 * DAY)
    assert app.jobs.admin.prune(clock.now()) == 1
    assert app.jobs.count() == 0
    forgotten = send("k")
    assert (forgotten.created, forgotten.job.id, forgotten.job.meta) == (False, job.id, {"pruned": True})
    assert app.jobs.count() == 0


def test_the_key_of_a_failed_job_stays_taken(app: Duly, send: Callable[..., Any], hand: Hand) -> None:  # T002-g
    job = send("k", max_attempts=1).job
    hand.fail(hand.one())
    again = send("k")
    assert (again.created, again.job.id, again.job.status) == (False, job.id, Status.FAILED)


def test_a_key_until_start_is_free_as_soon_as_its_job_is_claimed(
    app: Duly, send: Callable[..., Any], hand: Hand
) -> None:
    first = send("k", unique_until="start").job
    assert not send("k", unique_until="start").created
    running = hand.one()
    second = send("k", unique_until="start")
    assert (running.id, second.created) == (first.id, True)
    hand.fail(running)  # its retry neither wants the key back nor frees the other's
    app.db.clock.advance(10)  # type: ignore[attr-defined]
    assert [j.id for j in hand.claim(n=2)] == [first.id, second.job.id]


def test_of_many_changes_in_a_row_the_last_run_sees_the_latest_state(
    app: Duly, hand: Hand, clock: ManualClock
) -> None:  # C015
    rounds, saves, savers = 15, 8, 2
    whens = ("before the save", "after the save", "after the commit")
    seen: list[int] = []

    @app.task("X")
    def index(document: int) -> None: ...

    def state() -> int:
        return int(rows(app, "SELECT state FROM documents")[0][0])

    def save(when: str) -> None:
        asked = index.using(key="index-1", unique_until="start", run_in=10)
        for _ in range(saves):
            with Session(app.db.session_engine) as session, session.begin():
                if when == "before the save":
                    asked.using(session=session).enqueue(1)
                session.execute(text("UPDATE documents SET state = state + 1"))
                if when == "after the save":
                    asked.using(session=session).enqueue(1)
            if when == "after the commit":
                asked.enqueue(1)

    def work() -> None:
        for _ in range(saves):
            clock.advance(5)
            for job in hand.claim():
                seen.append(state())
                assert hand.succeed(job)

    app.db.write(lambda c: c.execute(text("CREATE TABLE documents (state INTEGER)")))
    app.db.write(lambda c: c.execute(text("INSERT INTO documents VALUES (0)")))
    for n in range(1, rounds + 1):
        assert together(*[partial(save, whens[n % 3])] * savers, work) == [None] * (savers + 1)
        clock.advance(10)
        for job in hand.claim(n=10):
            seen.append(state())
            assert hand.succeed(job)
        assert seen[-1] == n * saves * savers, "the last run has seen the last save"
    assert app.jobs.count(status=LIVE) == 0
    assert len(seen) < rounds * saves * savers


@pytest.mark.parametrize("end", [K.SUCCEEDED, K.REFUSED, K.CANCELLED])
def test_a_key_until_done_is_free_when_its_job_has_ended(
    app: Duly, send: Callable[..., Any], hand: Hand, end: K
) -> None:
    first = send("k", unique_until="done").job
    running = hand.one()
    assert not send("k", unique_until="done").created
    hand.end(running, Outcome(end, "{}"))
    second = send("k", unique_until="done")
    assert second.created
    assert second.job.id != first.id


def test_a_key_until_done_stays_taken_while_its_job_waits_for_a_retry(
    app: Duly, send: Callable[..., Any], hand: Hand, clock: ManualClock
) -> None:
    first = send("k", unique_until="done").job
    hand.fail(hand.one())
    assert send("k", unique_until="done").job.id == first.id
    clock.advance(10)
    hand.succeed(hand.one())
    assert send("k", unique_until="done").created


@pytest.mark.parametrize("scope", ["start", "done"])
def test_cancelling_a_waiting_job_frees_its_key(app: Duly, send: Callable[..., Any], scope: str) -> None:
    first = send("k", unique_until=scope).job
    app.jobs.cancel(first.id)
    assert send("k", unique_until=scope).created
    forever = send("f").job
    app.jobs.cancel(forever.id)
    assert not send("f").created


def test_a_key_for_a_duration_is_free_at_the_very_end_of_it(
    app: Duly, send: Callable[..., Any], clock: ManualClock
) -> None:
    first = send("k", unique_until=timedelta(minutes=5)).job
    drain(app)
    clock.set(NOON + timedelta(minutes=5) - timedelta(microseconds=1))
    assert send("k", unique_until=timedelta(minutes=5)).job.id == first.id
    clock.set(NOON + timedelta(minutes=5))
    second = send("k", unique_until=timedelta(minutes=5))
    assert second.created
    clock.advance(timedelta(minutes=5) - timedelta(microseconds=1))
    assert send("k").job.id == second.job.id
    assert app.jobs.count() == 2


def test_twenty_threads_that_find_a_key_expired_make_one_job(
    app: Duly, send: Callable[..., Any], clock: ManualClock
) -> None:
    send("k", unique_until=timedelta(seconds=1))
    clock.advance(1)
    answers = together(*[lambda: send("k")] * 20)
    assert sum(m.created for m in answers) == 1  # type: ignore[union-attr]
    assert len({m.job.id for m in answers}) == 1  # type: ignore[union-attr]


def test_keys_of_pruned_jobs_are_remembered_as_long_as_the_setting_says(db_url: str, clock: ManualClock) -> None:
    app = Duly(db_url, clock=clock, key_retention=DAY.total_seconds(), retention=DAY.total_seconds())

    @app.task("X")
    def x(n: int = 0) -> None: ...

    x.using(key="k").enqueue()
    drain(app)
    clock.advance(DAY + timedelta(seconds=1))
    assert prune_expired(app.db) == 1
    assert not x.using(key="k").enqueue().created
    clock.advance(DAY)
    assert x.using(key="k").enqueue().created
    app.close()


def test_the_key_of_a_live_job_is_never_pruned(app: Duly, send: Callable[..., Any], clock: ManualClock) -> None:
    job = send("k", run_in=400 * DAY).job
    clock.advance(399 * DAY)
    prune_expired(app.db)
    assert send("k").job.id == job.id


def test_a_job_without_a_key_is_never_a_repetition(app: Duly, send: Callable[..., Any]) -> None:
    assert [send(None).created for _ in range(3)] == [True] * 3
    assert rows(app, "SELECT count(*) FROM job_keys") == [(0,)]


def test_a_key_that_a_job_of_another_task_holds_is_a_conflict_that_names_the_job(
    app: Duly, send: Callable[..., Any]
) -> None:  # D3
    @app.task("Y")
    def y(n: int = 0) -> None: ...

    holder = send("k", 1).job.id
    for options in ({}, {"on_conflict": "raise"}):
        with pytest.raises(KeyConflict, match=f"belongs to job {holder} of task 'X', so no job of task 'Y'") as caught:
            y.using(key="k", **options).enqueue(1)
        assert (caught.value.job_id, caught.value.task) == (holder, "X")
    assert app.jobs.count() == 1


def test_a_room_makes_its_job_once_whatever_job_holds_its_key(app: Duly, send: Callable[..., Any]) -> None:  # D3
    holder = send("round:1", 1).job.id
    told = [
        app.engine.maker.make(NewJob("default", "default", "TELL", "{}", 4, key="round:1", on_conflict="apart"))
        for _ in range(2)
    ]
    assert ([one.created for one in told], len({one.job.id for one in told})) == ([True, False], 1)
    assert app.jobs.get(told[0].job.id).key == "round:1:TELL"
    [taken, *_] = rows(app, "SELECT entity_id, actor FROM audit_log WHERE action = 'JOB_KEY_TAKEN'")
    assert tuple(taken) == (str(holder), "TELL")


def test_whose_a_key_was_is_known_when_its_job_is_gone(
    app: Duly, send: Callable[..., Any], clock: ManualClock
) -> None:  # D3
    @app.task("Y")
    def y(n: int = 0) -> None: ...

    holder = send("k").job.id
    app.jobs.cancel(holder)
    clock.advance(30 * DAY)
    assert prune_expired(app.db) == 1
    with pytest.raises(KeyConflict, match=f"job {holder} of task 'X' .cancelled, and pruned since.") as caught:
        y.using(key="k").enqueue(1)
    assert (caught.value.job_id, caught.value.task, send("k").created) == (holder, "X", False)
    room = NewJob("default", "default", "TELL", "{}", 4, key="k", on_conflict="apart")
    assert app.engine.maker.make(room).created, "a room makes its own"
    expected = [Expected("k", {})]
    assert compare(app, expected, Wanted("X")).present == {"cancelled": 1}
    assert compare(app, expected, Wanted("Y")).taken == ["k"]


def test_what_is_known_of_a_pruned_job_goes_with_its_key_to_no_other(
    app: Duly, send: Callable[..., Any], clock: ManualClock
) -> None:  # D3
    first = send("k", unique_until=40 * DAY).job.id
    app.jobs.cancel(first)
    clock.advance(31 * DAY)
    assert prune_expired(app.db) == 1
    assert rows(app, "SELECT task, ended FROM job_keys") == [("X", "cancelled")]
    clock.advance(9 * DAY)
    assert send("k").created
    assert rows(app, "SELECT task, ended FROM job_keys") == [(None, None)]


def test_keys_of_jobs_are_listed_with_who_holds_them_and_until_when(
    app: Duly, send: Callable[..., Any], hand: Hand, clock: ManualClock
) -> None:  # D2
    keys = app.keys.jobs
    gone = send("gone").job.id
    app.jobs.cancel(gone)
    clock.advance(30 * DAY)
    assert prune_expired(app.db) == 1
    done = send("done").job.id
    hand.succeed(hand.one())
    send("lapsed", unique_until=timedelta(seconds=5))
    clock.advance(5)
    day = send("day", unique_until=DAY, tenant="acme").job.id
    start = send("start", unique_until="start", queue="other").job.id
    seen = [(one.key, one.job_id, one.task, one.status, one.pruned, one.scope, one.until) for one in keys.find()[0]]
    assert seen == [
        ("start", start, "X", "queued", False, "start", None),
        ("day", day, "X", "queued", False, "until", clock.now() + DAY),
        ("done", done, "X", "succeeded", False, "forever", None),
        ("gone", gone, "X", "cancelled", True, "forever", None),
    ]
    paged: list[str] = []
    cursor = None
    while True:
        page, cursor = keys.find(1, cursor)
        paged += [one.key for one in page]
        if cursor is None:
            break
    assert paged == ["start", "day", "done", "gone"]
    for wanted in ({"tenant": "acme"}, {"key": "day"}):
        assert [one.key for one in keys.find(**wanted)[0]] == ["day"]
    assert [one.key for one in keys.find(queue="other", task="X")[0]] == ["start"]
    assert keys.find(task="Y") == ([], None)
    for wrong in ("nonsense", "zz", "5b5d", "6e756c6c", "5b312c322c332c345d"):
        with pytest.raises(InvalidArgument, match="cursor"):
            keys.find(10, wrong)


def test_a_forgotten_key_of_a_job_is_free_and_the_trail_says_why(
    app: Duly, send: Callable[..., Any], hand: Hand
) -> None:  # D2
    keys = app.keys.jobs
    first = send("k", unique_until="done").job.id
    with pytest.raises(WrongState, match=f"held by job {first}, which is queued"):
        keys.forget("k", "the wrong amount")
    with pytest.raises(WrongState, match="by now"):
        keys.forget("k", "looked at before", force=True, job_id=first + 1)
    for other in ({"queue": "other"}, {"tenant": "acme"}):
        with pytest.raises(NotFound):
            keys.forget("k", "not this one", **other)
    with pytest.raises(InvalidArgument, match="reason"):
        keys.forget("k", "  ")
    assert keys.forget("k", "the wrong amount", "cli:ann", force=True).job_id == first
    second = send("k").job.id
    hand.succeed(hand.one())  # the first, whose key it is no longer
    assert (second != first, keys.get("k").job_id) == (True, second)
    told = [row["meta"] for row in audit(app, str(first)) if row["action"] == "JOB_KEY_FORGOTTEN"]
    assert [(one["reason"], one["was"], one["forced"]) for one in told] == [("the wrong amount", "queued", True)]
