"""The queue of publications: enqueue, what is runnable, limits, retries, outcomes (R002, T002)."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from duly import Duly, InvalidArgument, NotFound, Retry, Window
from duly.kernel.verdict import Kind
from duly.publishing import Limits, Publication, PublicationFilter, Publishing, Run, Status
from duly.publishing.channel import Breaker, backoff_of
from duly.publishing.plan import Planned
from duly.publishing.preflight import PreflightFailed
from duly.testing import ManualClock, drain
from publishing.conftest import AT
from publishing.hands import POST, Ear, World, actions, app_of, go, later, put, sql, verdict

HOUR = timedelta(hours=1)
Make = Callable[..., Publishing]


# --- Enqueue ------------------------------------------------------------------------------------------------------------


def test_a_publication_goes_from_pending_to_completed_in_the_words_of_this_door(room: Publishing) -> None:
    # R002-1
    made = room.enqueue("ig", POST, key="k1").job
    assert (made.status, made.type, made.channel, made.idempotency_key, made.attempts) == (
        "pending",
        "publish",
        "ig",
        "k1",
        0,
    )
    done = go(room, made.id)
    assert (done.status, done.remote_id, done.url, done.attempts) == (
        Status.COMPLETED,
        "m1",
        "https://example.org/m1",
        1,
    )
    assert actions(room, made.id) == ["PUBLISHED"]


def test_an_existing_pair_of_channel_and_key_is_returned_unchanged(room: Publishing, world: World) -> None:
    # R002-2, R002-17
    room.channel("fb", world.connector())
    first, created = room.enqueue("ig", POST, key="k", run_at=AT + HOUR)
    again, second = room.enqueue("ig", {"caption": "other"}, key="k", run_at=AT)
    assert (created, second, again) == (True, False, first)
    assert room.enqueue("fb", POST, key="k").created  # another channel, another key
    assert room.enqueue("ig", POST, key="k", tenant="acme").created
    clock_free = room.enqueue("ig", POST, key="now").job.id
    go(room, clock_free)
    there, created = room.enqueue("ig", POST, key="now")
    assert (created, there.status, there.remote_id) == (
        False,
        "completed",
        "m1" if len(world.posts) == 1 else there.remote_id,
    )
    assert there.remote_id is not None


def test_two_enqueues_that_race_make_one(room: Publishing) -> None:
    # R002-2, B053
    answers = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        answers.append(room.enqueue("ig", POST, key="k"))

    app_of(room).open()
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({a.job.id for a in answers}) == 1
    assert [a.created for a in answers].count(True) == 1


def test_without_a_key_each_publication_has_one_of_its_own(room: Publishing) -> None:
    # R002-5
    keys = {room.enqueue("ig", POST).job.idempotency_key for _ in range(3)}
    assert len(keys) == 3
    assert all(k is not None and len(k) == 36 for k in keys)


@pytest.mark.parametrize("run_at", [datetime(2026, 6, 1), "2026-06-01", 7])
def test_an_instant_without_a_zone_is_refused_and_never_means_now(room: Publishing, run_at: object) -> None:
    # T002-m
    with pytest.raises(InvalidArgument) as caught:
        room.enqueue("ig", POST, run_at=run_at)  # type: ignore[arg-type]
    assert caught.value.field == "run_at"
    assert room.list() == []


def test_instants_are_kept_in_utc(room: Publishing) -> None:
    # R002-21
    at = datetime(2026, 6, 2, 10, 0, tzinfo=datetime.fromisoformat("2026-01-01T00:00+02:00").tzinfo)
    made = room.get(put(room, run_at=at))
    assert (made.run_at, made.run_at and made.run_at.utcoffset()) == (
        datetime(2026, 6, 2, 8, 0, tzinfo=UTC),
        timedelta(0),
    )


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({}, "payload"),
        ({"caption": "  "}, "payload"),
        ([], "payload"),
        ({"captoin": "x"}, "payload.captoin"),
        ({"caption": 7}, "payload.caption"),
        ({"caption": "a\x00b"}, "payload.caption"),
        ({"caption": "x", "options": []}, "payload.options"),
        ({"caption": "x", "preview": "yes"}, "payload.preview"),
        ({"caption": "x", "assets": {}}, "payload.assets"),
        ({"assets": [{}]}, "payload.assets[0]"),
        ({"assets": [{"url": "u", "kind": "gif"}]}, "payload.assets[0].kind"),
        ({"assets": [{"url": "u"}, {"uri": "u"}]}, "payload.assets[1].uri"),
    ],
)
def test_a_payload_that_is_none_is_refused_where_it_comes_in(room: Publishing, payload: object, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        room.enqueue("ig", payload)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_channel_that_nobody_declared_is_refused_naming_those_that_are(room: Publishing) -> None:
    with pytest.raises(InvalidArgument, match="Known are: ig"):
        room.enqueue("mastodon", POST)


def test_a_publication_exists_when_the_callers_transaction_commits(room: Publishing) -> None:
    app = app_of(room)
    app.open()
    with Session(app.db.session_engine) as session:
        made = room.enqueue("ig", POST, key="k", session=session)
        assert room.enqueue("ig", POST, key="k", session=session) == (made.job, False)
        session.rollback()
    assert room.list() == []


async def _ask(room: Publishing) -> list[bool]:
    return [(await room.aenqueue("ig", POST, key="k")).created for _ in range(2)]


def test_the_same_for_callers_on_an_event_loop(room: Publishing) -> None:
    assert asyncio.run(_ask(room)) == [True, False]


def test_an_application_has_one_door_and_what_it_was_told_stays(room: Publishing, world: World) -> None:
    told: list[int] = []
    room.on("published")(lambda publication, facts: told.append(publication.id))
    again = Publishing(app_of(room))
    assert (again is room, Publishing.of(app_of(room)) is room) == (True, True)
    assert "ig" in app_of(room)._queues()
    ident = put(again)
    assert (go(room, ident).status, told) == ("completed", [ident])


# --- Plans --------------------------------------------------------------------------------------------------------------


def test_the_same_plan_twice_gives_the_same_publications(room: Publishing, world: World) -> None:
    # R002-3, R002-17
    items = [Planned("ig", AT + n * HOUR, f"key-{n}", {"caption": f"Post {n}"}) for n in range(3)]
    first, second = room.enqueue_plan(items), room.enqueue_plan(items)
    assert [e.created for e in first] == [True] * 3
    assert [e.created for e in second] == [False] * 3
    assert [e.job.id for e in first] == [e.job.id for e in second]
    drain(app_of(room))
    third = room.enqueue_plan(items)
    assert (third[0].job.status, third[0].job.remote_id, world.posts) == ("completed", "m1", ["Post 0"])


def test_a_plan_with_errors_makes_nothing_unless_somebody_says_why(room: Publishing) -> None:
    from duly.publishing.preflight import PreflightFailed

    items = [
        Planned("ig", AT, "good", POST),
        Planned("ig", AT, "bad", {"caption": "x", "link": "http:// no"}, "posts.yaml:12"),
    ]
    with pytest.raises(PreflightFailed, match=r"posts\.yaml:12"):
        room.enqueue_plan(items)
    assert room.list() == []
    made = room.enqueue_plan(items, override="the printer says it is right", actor="ada")
    expected = ["JOB_ENQUEUED", "PUBLISH_OVERRIDDEN"]  # by somebody who has a name
    assert [actions(room, e.job.id) for e in made] == [expected[:1], expected]
    room.enqueue_plan(items, override="again")
    assert actions(room, made[1].job.id) == expected


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_a_single_post_is_checked_as_those_of_a_plan_are(room: Publishing, asynchronous: bool) -> None:
    from duly.publishing.preflight import PreflightFailed

    def ask(**more: str) -> int:
        bad = {"caption": "x", "link": "http:// no"}
        if asynchronous:
            return asyncio.run(room.aenqueue("ig", bad, key="k", **more)).job.id  # type: ignore[arg-type]
        return room.enqueue("ig", bad, key="k", **more).job.id  # type: ignore[arg-type]

    with pytest.raises(PreflightFailed, match="link has a space in it"):
        ask()
    with pytest.raises(InvalidArgument, match="Say why"):
        ask(override=" ")
    assert room.list() == []
    made = ask(override="the printer says it is right", actor="ada")
    assert actions(room, made) == ["JOB_ENQUEUED", "PUBLISH_OVERRIDDEN"]


# --- What is runnable ---------------------------------------------------------------------------------------------------


def test_runnable_is_what_is_pending_and_due_to_the_instant_in_order(room: Publishing, clock: ManualClock) -> None:
    # R002-7
    app_of(room).queues.set("ig", limit=10)
    b, a, later_, now_ = (put(room, run_at=AT + timedelta(seconds=s)) for s in (-1, -2, 1, 0))
    assert [p.id for p in room.get_runnable_jobs()] == [a, b, now_]
    clock.advance(1)
    assert [p.id for p in room.get_runnable_jobs("ig")] == [a, b, now_, later_]
    assert {p.attempts for p in room.list()} == {0}


def test_what_holds_a_channel_holds_its_publications_and_hides_no_other_channels(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # R002-7, R002-8, T002-e, B061
    room.channel("fb", world.connector())
    for n in range(100):
        put(room, run_at=AT - timedelta(minutes=200 - n))
    free = put(room, channel="fb")
    app = app_of(room)
    assert [p.channel for p in room.get_runnable_jobs(limit=10)] == ["ig", "fb"]  # one of ig: its limit
    app.calendars.set(Window(start="09:00", end="11:00", tz="UTC", name="quiet", scope="channel:ig"))
    assert [p.id for p in room.get_runnable_jobs(limit=10)] == [free]
    drain(app)
    assert room.get(free).status == "completed"
    assert {(p.status, p.attempts) for p in room.list(PublicationFilter(channel="ig"), 200)} == {("pending", 0)}
    app.calendars.remove("quiet")
    app.queues.pause("ig")
    assert room.get_runnable_jobs() == []
    app.queues.resume("ig")
    app.gate.offline()
    assert room.get_runnable_jobs() == []
    app.gate.online()
    app.queues.hold("ig", clock.now() + HOUR, "enough")
    assert room.get_runnable_jobs() == []
    clock.advance(HOUR)
    assert len(room.get_runnable_jobs()) == 1


def test_a_backlog_flows_in_the_order_of_its_instants_within_the_limit(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # B060, T002-e
    app = app_of(room)
    app.calendars.set(Window(start="09:00", end="11:00", tz="UTC", name="quiet", scope="queue:ig"))
    for n in reversed(range(12)):
        put(room, {"caption": str(n)}, run_at=AT + timedelta(minutes=n))
    clock.set(AT + timedelta(minutes=59, seconds=59))
    drain(app)
    assert world.posts == []
    clock.set(AT + HOUR)
    drain(app)
    assert world.posts == [str(n) for n in range(12)]
    assert {p.attempts for p in room.list()} == {1}


def test_testing_a_publication_says_what_would_become_of_it_and_writes_nothing(
    room: Publishing, clock: ManualClock
) -> None:
    # R002-13, B068
    app = app_of(room)
    there = put(room, key="taken", run_at=AT + HOUR)
    app.calendars.set(Window(start="20:00", end="22:00", tz="UTC", name="quiet", scope="channel:ig"))
    before = sql(room, "SELECT count(*) FROM jobs")
    answers = [
        room.test("ig", POST), room.test("ig", POST, key="taken"), room.test("ig", POST, run_at=AT + 10 * HOUR), room.test("ig", run_at=AT + 12 * HOUR),
    ]  # fmt: skip
    assert [a.outcome for a in answers] == ["ok", "collision", "blackout", "ok"]
    assert answers[1].existing is not None
    assert answers[1].existing.id == there
    assert answers[2].until == AT + 12 * HOUR
    app.queues.pause("ig", "audit")
    assert room.test("ig").outcome == "limit"
    assert "audit" in room.test("ig").detail
    assert sql(room, "SELECT count(*) FROM jobs") == before
    for wrong in ({"run_at": datetime(2026, 1, 1)}, {"payload": {}}, {"key": ""}):
        with pytest.raises(InvalidArgument):
            room.test("ig", **wrong)  # type: ignore[arg-type]


def test_what_is_known_to_hold_a_channel_at_a_later_instant_is_said(room: Publishing, world: World) -> None:
    # R002-13
    queues = app_of(room).queues
    queues.hold("ig", AT + HOUR, "the quota is used up")
    held, after = room.test("ig", POST, AT + HOUR / 2), room.test("ig", POST, AT + HOUR)
    assert (held.outcome, held.until, "quota" in held.detail, after.outcome) == ("limit", AT + HOUR, True, "ok")
    queues.release("ig")
    queues.set("ig", rate=(1, 3600), limit=1)
    go(room, put(room))
    full, after = room.test("ig", POST, AT + HOUR / 2), room.test("ig", POST, AT + HOUR)
    assert (full.outcome, full.until, after.outcome) == ("limit", AT + HOUR, "ok")
    queues.pause("ig", "no token")
    assert (room.test("ig", POST, AT + 9 * HOUR).outcome, "no token" in room.test("ig", run_at=AT + HOUR).detail) == (
        "limit",
        True,
    )


def test_a_preview_asks_nobody_makes_nothing_and_takes_no_key(room: Publishing, world: World) -> None:
    # R002-15, B068
    seen = room.preview("ig", {**POST, "ig_first_comment": "First!", "preview": True})
    assert (seen["text"], seen["first_comment"], world.calls) == (POST["caption"], "First!", [])
    with pytest.raises(InvalidArgument, match="preview"):
        room.enqueue("ig", {**POST, "preview": True}, key="k")
    assert room.list() == []
    assert room.enqueue("ig", POST, key="k").created


# --- Retry --------------------------------------------------------------------------------------------------------------


def test_five_runs_in_all_then_it_has_failed(room: Publishing, world: World, clock: ManualClock) -> None:
    # R002-10, R002-12
    room.channel("ig", world.connector(), breaker=(0, 1))
    world.script = [verdict(Kind.TRANSIENT, "it is down")] * 9
    ident, waits = put(room), list[float]()
    for _ in range(4):
        seen = go(room, ident)
        assert (seen.status, seen.error) == ("pending", "it is down")
        assert seen.run_at is not None
        waits.append((seen.run_at - clock.now()).total_seconds())
        clock.set(seen.run_at)
    last = go(room, ident)
    assert (last.status, last.attempts, world.calls.count("publish")) == ("failed", 5, 5)
    assert all(base <= w <= base + 30 for w, base in zip(waits, (60, 120, 240, 480), strict=True))
    assert world.posts == []


@given(
    failures=st.integers(1, 5000), u=st.floats(0, 1, exclude_max=True), base=st.floats(0, 7200), most=st.floats(0, 7200)
)
def test_no_wait_is_longer_than_the_longest_jitter_included(failures: int, u: float, base: float, most: float) -> None:
    # R002-11, T002-n
    wait = backoff_of(base, 2.0, most).delay(failures, u)
    assert min(base, most) <= wait <= most
    assert wait == backoff_of(base, 2.0, most).delay(failures, u)


@given(trips=st.integers(-5, 10_000), seconds=st.floats(0.001, 1e6))
def test_a_breaker_holds_twice_as_long_each_time_and_never_for_ever(trips: int, seconds: float) -> None:
    cool = Breaker(5, seconds).cool_down(trips)
    microsecond = 1e-6
    assert seconds - microsecond <= cool <= max(seconds, 3600) + microsecond
    assert cool <= Breaker(5, seconds).cool_down(trips + 1)


@pytest.mark.parametrize(
    ("told", "least", "most"), [(120, 120, 120), (0, 60, 90), (1e9, 86_400, 86_400), (None, 60, 90)]
)
def test_what_the_other_side_wants_to_be_waited_is_obeyed_within_bounds(
    room: Publishing, world: World, clock: ManualClock, told: float | None, least: float, most: float
) -> None:
    # B067
    world.script = [verdict(Kind.TRANSIENT, after=told)]
    seen = go(room, put(room))
    assert seen.run_at is not None
    assert least <= (seen.run_at - AT).total_seconds() <= most
    assert (seen.status, seen.attempts) == ("pending", 1)


def test_a_refusal_for_good_fails_at_once(room: Publishing, world: World) -> None:
    # B067, R002-12
    world.script = [verdict(Kind.PERMANENT, "the media is not supported")]
    seen = go(room, put(room))
    assert (seen.status, seen.error, seen.attempts) == ("failed", "the media is not supported", 1)


def test_a_channel_has_attempts_and_waits_of_its_own_and_else_those_of_the_settings(make: Make, world: World) -> None:
    # R002-10, R002-11
    room = make(publish_max_attempts=7, publish_backoff_base=10, publish_backoff_factor=3, publish_backoff_max=50)
    plain = room.channel("a", world.connector())
    own = room.channel("b", world.connector(), max_attempts=2, backoff={"base": 1})
    assert (plain.max_attempts, plain.backoff.base, plain.backoff.factor, plain.backoff.max, plain.backoff.jitter) == (
        7,
        10,
        3,
        50,
        5,
    )
    assert (own.max_attempts, own.backoff.base, own.backoff.factor, own.backoff.jitter) == (2, 1, 3, 0.5)
    assert room.enqueue("b", POST).job.max_attempts == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": True}, "limit"),
        ({"rate": 7}, "rate"),
        ({"rate": (0, 5)}, "rate.count"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"backoff": {"bas": 1}}, "backoff.bas"),
        ({"backoff": 7}, "backoff"),
        ({"unknown": "resend"}, "unknown"),
        ({"breaker": (-1, 5)}, "breaker.failures"),
        ({"token": "x"}, "token"),
    ],
)
def test_a_channel_that_is_none_is_refused_naming_the_field(
    room: Publishing, world: World, options: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        room.channel("c", world.connector(), **options)  # type: ignore[arg-type]
    assert caught.value.field == field


# --- Throttled, quota, auth ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.THROTTLED, Kind.QUOTA])
def test_a_channel_that_has_had_enough_is_held_and_no_attempt_is_used(
    room: Publishing, world: World, clock: ManualClock, kind: Kind
) -> None:
    # T002-b, B067
    ear = Ear(room)
    world.script = [verdict(kind, "too many posts", until=AT + 2 * HOUR)]
    first, second = put(room), put(room)
    drain(app_of(room))
    assert [(room.get(i).status, room.get(i).attempts) for i in (first, second)] == [("pending", 0)] * 2
    assert world.calls.count("publish") == 1  # nobody else asks
    assert {c.name for c in app_of(room).why(second) if not c.met} >= {"held"}
    assert "too many posts" in next(c.detail for c in app_of(room).why(second) if c.name == "held")
    later(room, clock, first, 2 * HOUR - timedelta(seconds=1))
    assert world.calls.count("publish") == 1
    later(room, clock, first, 1)
    assert [(room.get(i).status, room.get(i).attempts) for i in (first, second)] == [("completed", 1)] * 2
    assert [e["quota"] for e in ear.named("publish_throttled")] == [kind is Kind.QUOTA]
    assert actions(room, "ig") == ["QUEUE_HELD"]


def test_a_quota_that_the_other_side_says_is_used_up_holds_before_anything_is_sent(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    world.limits = Limits(50, 50, 86_400)
    ident = put(room)
    seen = go(room, ident)
    assert (seen.status, seen.attempts, world.calls) == ("pending", 0, ["limits"])
    world.limits = Limits(49, 50, 86_400)
    assert later(room, clock, ident).status == "completed"
    for _ in range(3):
        put(room)
    drain(app_of(room))
    assert world.calls.count("limits") == 2  # once a minute at most


def test_other_credentials_stop_the_channel_and_use_no_attempt(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    ear = Ear(room)
    world.script = [verdict(Kind.AUTH, "the token has expired")]
    first, second = put(room), put(room)
    drain(app_of(room))
    later(room, clock, first)
    assert [(room.get(i).status, room.get(i).attempts) for i in (first, second)] == [("pending", 0)] * 2
    assert app_of(room).queues.get("ig").paused_reason == "publishing: the token has expired"
    assert [e["channel"] for e in ear.named("publish_paused")] == ["ig"]
    app_of(room).queues.resume("ig")
    assert go(room, second).status == room.get(first).status == "completed"


# --- Functions, hooks ---------------------------------------------------------------------------------------------------


def test_a_function_ends_its_run_by_a_mark_or_as_completed(make: Make, clock: ManualClock) -> None:
    # R002-14, R002-12
    room = make()
    seen: list[object] = []

    @room.process("blog", breaker=(0, 1))
    def blog(run: Run) -> None:
        seen.append(run.payload["caption"])
        if run.payload["caption"] == "good":
            run.mark_completed("post-7", "https://example.org/7")
        if run.payload["caption"] == "later":
            run.mark_failed("the disk is full", retryable=True, after=300)
        if run.payload["caption"] == "never":
            run.mark_failed("it is forbidden")

    @room.process("async")
    async def on_loop(run: Run) -> None:
        run.mark_completed(run.post.caption)

    ids = {c: put(room, {"caption": c}, "blog") for c in ("good", "later", "never", "silent")} | {
        "x": put(room, {"caption": "x"}, "async")
    }
    drain(app_of(room))
    found = {name: room.get(i) for name, i in ids.items()}
    assert {name: str(p.status) for name, p in found.items()} == {
        "good": "completed", "later": "pending", "never": "failed", "silent": "completed", "x": "completed",
    }  # fmt: skip
    assert (found["good"].remote_id, found["good"].url, found["x"].remote_id) == (
        "post-7",
        "https://example.org/7",
        "x",
    )
    assert found["later"].run_at == AT + timedelta(seconds=300)
    assert (found["later"].error, found["never"].error) == ("the disk is full", "it is forbidden")
    clock.advance(300)
    drain(app_of(room))
    assert seen.count("later") == 2  # nothing was published, so it is not held


def test_what_a_function_raises_leaves_the_outcome_unknown(make: Make, clock: ManualClock) -> None:
    # B055
    room, calls = make(), []

    @room.process("blog")
    def blog(run: Run) -> None:
        calls.append(run.post.caption)
        raise TimeoutError

    ident = put(room, channel="blog")
    go(room, ident)
    seen = later(room, clock, ident)
    assert (seen.status, seen.unknown, len(calls)) == ("failed", True, 1)
    assert "the outcome is unknown" in (seen.error or "")


def test_subscribers_are_told_and_their_troubles_harm_nothing(room: Publishing, world: World) -> None:
    # R002-14
    told: list[tuple[str, int, str | None]] = []

    @room.on("process_job")
    def began(publication: Publication, facts: object) -> None:
        told.append(("process_job", publication.id, publication.remote_id))
        raise RuntimeError("subscriber")

    @room.on("published")
    async def done(publication: Publication, facts: object) -> None:
        told.append(("published", publication.id, publication.remote_id))

    ear, ident = Ear(room), put(room)
    assert go(room, ident).status == "completed"
    assert told == [("process_job", ident, None), ("published", ident, "m1")]
    assert [e["subscribed"] for e in ear.named("publish_subscriber_failed")] == ["process_job"]
    assert len(ear.named("process_job")) == 1
    with pytest.raises(InvalidArgument, match="ig_first_comment_error"):
        room.on("nothing")


def test_a_channel_that_this_worker_does_not_know_waits_and_uses_no_attempt(
    make: Make, world: World, clock: ManualClock
) -> None:
    knows, other = make(), make()
    knows.channel("ig", world.connector())
    ident = put(knows)
    drain(app_of(other), queues=["ig"])
    assert (knows.get(ident).status, knows.get(ident).attempts) == ("pending", 0)
    assert later(knows, clock, ident).status == "completed"


# --- Looking ------------------------------------------------------------------------------------------------------------


def test_publications_are_found_by_filter_newest_first_and_page_by_page(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    room.channel("fb", world.connector())
    world.script = [verdict(Kind.PERMANENT)]
    ids = [put(room, key=f"k{n}", channel="fb" if n % 2 else "ig", run_at=AT + n * HOUR) for n in range(6)]
    drain(app_of(room))

    def found(**filters: object) -> list[int]:
        return [p.id for p in room.list(PublicationFilter(**filters))]  # type: ignore[arg-type]

    assert found() == list(reversed(ids))
    assert found(channel="fb") == [ids[5], ids[3], ids[1]]
    assert found(status="failed") == [ids[0]]
    assert found(status=["failed", "pending"]) == list(reversed(ids))
    assert found(key="k2") == [ids[2]]
    assert found(run_from=AT + HOUR, run_until=AT + 3 * HOUR) == [ids[2], ids[1]]
    assert found(type="ig_first_comment") == found(tenant="acme") == []
    assert [p.id for p in room.list(limit=2, below=ids[4])] == [ids[3], ids[2]]
    clock.advance(HOUR)
    go(room, ids[1])
    assert found(remote_id="m1") == [ids[1]]
    for wrong in ({"status": "queued"}, {"type": "post"}, {"run_from": datetime(2026, 1, 1)}):
        with pytest.raises(InvalidArgument):
            PublicationFilter(**wrong)  # type: ignore[arg-type]


def test_nobody_sees_another_tenants_publications_or_jobs_that_are_none(room: Publishing) -> None:
    mine = put(room, tenant="acme")
    assert room.get(mine, "acme").id == mine
    with pytest.raises(NotFound):
        room.get(mine, "other")
    app = app_of(room)

    @app.task("OTHER")
    def other() -> None: ...

    with pytest.raises(NotFound):
        room.get(other.enqueue().job.id)


def test_a_taken_key_goes_before_the_checks(make: Make, tmp_path: Path) -> None:
    # R002-2, R002-17: the picture has been removed since
    room = make()
    room.channel("site", "folder", folder=str(tmp_path / "site"))
    picture = tmp_path / "a.jpg"
    picture.write_bytes(b"\xff\xd8\xff\xe0jpeg")
    payload = {"caption": "Plums", "assets": [{"kind": "image", "path": str(picture)}]}
    first = room.enqueue("site", payload, key="k").job
    picture.unlink()
    again = room.enqueue("site", payload, key="k")
    assert (again.created, again.job.id) == (False, first.id)
    assert asyncio.run(room.aenqueue("site", payload, key="k")).created is False
    with pytest.raises(PreflightFailed):
        room.enqueue("site", payload, key="other")


def test_a_post_that_was_overridden_is_given_again_without_a_reason(make: Make, tmp_path: Path) -> None:
    # R002-2
    room = make()
    room.channel("site", "folder", folder=str(tmp_path / "site"))
    wrong = {"caption": "Plums", "link": "shop"}
    first = room.enqueue("site", wrong, key="k", override="it is so").job
    assert room.enqueue("site", wrong, key="k") == (room.get(first.id), False)
    assert actions(room, first.id).count("PUBLISH_OVERRIDDEN") == 1
    with app_of(room).db.engine.begin() as connection:
        assert room.enqueue("site", wrong, key="k", session=connection).created is False


def test_a_test_says_what_would_be_refused(make: Make, tmp_path: Path) -> None:
    # R002-13: the same answer as the door itself
    room = make()
    room.channel("site", "folder", folder=str(tmp_path / "site"))
    answer = room.test("site", {"caption": "Plums", "link": "shop"})
    assert (answer.outcome, "link" in answer.detail) == ("preflight", True)
    first = room.enqueue("site", {"caption": "Plums"}, key="k").job
    answer = room.test("site", {"caption": "Plums", "link": "shop"}, key="k")
    assert (answer.outcome, answer.existing) == ("collision", first)


def test_what_a_function_has_said_stands_whatever_it_raises_after_that(make: Make) -> None:
    # T002-l
    room = make()
    ear = Ear(room)

    @room.process("good")
    def good(run: Run) -> None:
        run.mark_completed("x-1", "https://example.org/x-1")
        raise ValueError("what came after it")

    @room.process("asked")
    async def asked(run: Run) -> None:
        run.mark_completed("x-2")
        raise Retry("no")

    @room.process("bad")
    def bad(run: Run) -> None:
        run.mark_failed("not today")
        raise ValueError("what came after it")

    ids = [put(room, channel=name) for name in ("good", "asked", "bad")]
    drain(app_of(room))
    found = [room.get(i) for i in ids]
    assert [(p.status, p.remote_id, p.unknown) for p in found] == [
        ("completed", "x-1", False), ("completed", "x-2", False), ("failed", None, False)
    ]  # fmt: skip
    assert found[2].error == "not today"
    assert sorted(e["job"] for e in ear.named("publish_function_failed")) == ids


def test_an_application_that_nobody_holds_goes_and_its_publications_with_it(db_url: str) -> None:
    def one() -> weakref.ref[Duly]:
        app = Duly(db_url)
        room = Publishing(app)
        assert Publishing(app) is room
        app.close()
        return weakref.ref(app)

    gone = [one() for _ in range(3)]
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
