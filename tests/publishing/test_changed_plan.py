"""A plan that has changed: other zone data, other texts, collisions, and ``plan --sync`` (R002-22 to R002-24)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.jobs.house import Housekeeper
from duly.kernel.errors import InvalidArgument
from duly.kernel.verdict import Kind
from duly.publishing import PublicationFilter, Publishing, keep
from duly.publishing import plan as plans
from duly.publishing.keys import plan_key
from duly.publishing.plan import Plan, load
from duly.testing import ManualClock, drain
from publishing.hands import POST, Ear, World, actions, app_of, put, verdict
from publishing.test_unknown import stand

WEEK: dict[str, Any] = {
    "name": "week", "brand": "orchard", "timezone": "Africa/Casablanca", "channels": ["ig"], "template": {"body": "{text}", "title": "A title"},
    "slots": [
        {"at": "2027-06-01T18:00", "placeholders": {"text": "Plums"}, "link": "https://example.org/a", "first_comment": "First",
         "assets": [{"url": "https://example.org/a.jpg", "alt": "plums"}], "options": {"location_id": "1"}},
        {"at": "2027-06-02T18:00", "placeholders": {"text": "Pears"}},
    ],
}  # fmt: skip


def week(change: Callable[[dict[str, Any]], object] = lambda plan: None) -> Plan:
    plan = deepcopy(WEEK)
    change(plan)
    return load(plan)


def slot(n: int, **fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda plan: plan["slots"][n].update(fields)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on the zone data say that Casablanca's clock is an hour behind what they said before."""

    def move() -> None:
        was = plans.resolve

        def later(local: datetime, tz: str, **more: Any) -> Any:
            return [at + timedelta(hours=1) for at in was(local, tz, **more)]

        monkeypatch.setattr(plans, "resolve", later)
        monkeypatch.setattr(keep, "resolve", later)
        monkeypatch.setattr(keep, "tz_version", lambda tz: "2999a")

    return move


def test_a_plan_makes_nothing_twice_after_an_update_of_the_zone_data_and_its_posts_keep_their_local_time(
    room: Publishing, world: World, moved: Callable[[], None]
) -> None:  # B3, R002-3
    made = room.enqueue_plan(week().items)
    ear = Ear(room)
    moved()
    again = room.enqueue_plan(week().items)
    assert [(one.created, one.job.id) for one in again] == [(False, one.job.id) for one in made]
    assert room.keep() == 0
    assert [room.get(one.job.id).run_at for one in made] == [
        (one.job.run_at or datetime.min) + timedelta(hours=1) for one in made
    ]
    assert ear.named("posts_retimed") == [{"count": 2, "jobs": [one.job.id for one in made]}]
    assert actions(room, made[0].job.id) == ["PUBLISH_RETIMED"]
    room.keep()
    assert len(ear.named("posts_retimed")) == 1


def test_the_same_instant_is_the_same_post_with_an_offset_and_by_the_clock_on_the_wall(
    room: Publishing, world: World
) -> None:  # R002-3
    [first, _] = room.enqueue_plan(week().items)
    at = (first.job.run_at or datetime.min).isoformat()
    for written in (at, at.replace("17:00:00+00:00", "19:00:00+02:00")):
        again = room.enqueue_plan(week(slot(0, at=written)).items)
        assert (again[0].created, again[0].job.id) == (False, first.job.id), written


def test_posts_under_keys_of_the_first_version_are_recognised_where_all_their_texts_are_the_same(
    room: Publishing, world: World
) -> None:  # B3, R002-22
    one = week().items[0]
    assets = load(deepcopy(WEEK)).items[0].payload["assets"]
    old = plan_key(
        "orchard", "ig", one.run_at, plans._Reading.assets(plans._Reading(_source(), None), assets, ()), "Plums"
    )
    assert old == one.old_key
    made = room.enqueue("ig", one.payload, run_at=one.run_at, key=old)
    assert room.enqueue_plan([one])[0].job.id == made.job.id
    assert room.enqueue_plan(week(slot(0, first_comment="Another")).items[:1])[0].created


def _source() -> Any:
    from duly.kernel.source import read

    return read({})


@pytest.mark.parametrize(
    "change",
    [
        slot(0, first_comment="Other"), slot(0, title="Other"), slot(0, link="https://example.org/b"), slot(0, options={"location_id": "2"}),
        slot(0, assets=[{"url": "https://example.org/a.jpg", "alt": "sweet plums"}]), slot(0, placeholders={"text": "Plumz"}),
    ],
)  # fmt: skip
def test_every_text_that_reaches_the_connector_is_part_of_the_key(change: Callable[..., Any]) -> None:  # R002-22
    assert week().items[0].key != week(change).items[0].key


def test_a_changed_post_collides_with_the_one_it_was_and_sync_takes_its_place(
    room: Publishing, world: World
) -> None:  # D5b
    made = room.enqueue_plan(week().items)
    changed = week(slot(1, placeholders={"text": "Ripe pears"}))
    assert room.collisions(changed.items) == {1: f"publication {made[1].job.id}"}
    shown = room.sync_plan(changed, dry_run=True)
    assert [p.id for p in shown.cancelled] == [made[1].job.id]
    assert room.get(made[1].job.id).status == "pending", "a dry run changes nothing"
    done = room.sync_plan(changed, actor="ada")
    assert ([p.id for p in done.cancelled], [one.created for one in done.jobs]) == ([made[1].job.id], [False, True])
    assert room.get(made[1].job.id).error == "it was cancelled by ada: it is no longer in the plan week"
    assert room.collisions(changed.items) == {}
    # changed back: what sync cancelled comes back, and its stand-in goes
    back = room.sync_plan(week(), actor="ada")
    assert ([p.id for p in back.cancelled], [one.job.status for one in back.jobs]) == (
        [done.jobs[1].job.id],
        ["pending"] * 2,
    )
    assert back.jobs[1].job.id == made[1].job.id


def test_sync_leaves_alone_what_a_person_cancelled_what_has_begun_and_what_other_plans_made(
    room: Publishing, world: World, clock: ManualClock
) -> None:  # D5b, R002-25
    made = room.enqueue_plan(week().items)
    other = room.enqueue_plan(
        week(
            lambda plan: plan.update(
                name="other", brand="orchard", slots=[{"at": "2027-06-01T20:00", "placeholders": {"text": "Figs"}}]
            )
        ).items
    )
    single = put(room, run_at=datetime(2027, 6, 1, 19, tzinfo=UTC))
    room.cancel(made[0].job.id, "ada", "wrong price")
    done = room.sync_plan(week())
    assert (done.cancelled, [one.job.status for one in done.jobs]) == ([], ["cancelled", "pending"])
    clock.set(datetime(2027, 6, 3, tzinfo=UTC))
    drain(app_of(room))
    assert room.sync_plan(week(lambda plan: plan["slots"].pop())).cancelled == []
    assert [room.get(i).status for i in (made[1].job.id, other[0].job.id, single)] == ["completed"] * 3


def test_a_time_is_free_or_another_post_of_the_channel_is_there(
    room: Publishing, world: World, clock: ManualClock
) -> None:  # R002-23
    at = clock.now() + timedelta(days=2)
    room.channel("fb", world.connector(), apart=3600)
    room.channel("free", world.connector(), apart=0)
    idents = {name: put(room, channel=name, run_at=at) for name in ("ig", "fb", "free")}
    answer = room.test("ig", POST, at)
    assert (answer.outcome, answer.existing and answer.existing.id) == ("collision", idents["ig"])
    assert room.test("ig", POST, at + timedelta(minutes=1)).outcome == "ok"
    assert room.test("fb", POST, at + timedelta(minutes=59)).outcome == "collision"
    assert room.test("fb", POST, at - timedelta(hours=1)).outcome == "ok"
    assert room.test("free", POST, at).outcome == "ok"
    foreign = room.test("ig", POST, at, tenant="acme")
    assert (foreign.outcome, foreign.existing, str(idents["ig"]) in foreign.detail) == ("collision", None, False)
    room.cancel(idents["ig"])
    assert room.test("ig", POST, at).outcome == "ok", "what was cancelled takes no time"


def test_blackouts_that_stand_beside_a_channel_hold_it(room: Publishing, world: World, clock: ManualClock) -> None:
    # R002-24
    room.channel(
        "ig", world.connector(), blackouts=[{"start": "09:00", "end": "12:00", "tz": "UTC", "name": "morning"}]
    )
    assert room.test("ig", POST, clock.now() + timedelta(days=1)).outcome == "blackout", "before a worker begins, too"
    ident = put(room)
    room._keeper._limit("ig")
    [found] = app_of(room).calendars.all().values()
    assert (found.name, found.scope, found.source) == ("channel.ig.morning", "channel:ig", "channel.ig")
    drain(app_of(room))
    assert (room.get(ident).status, world.calls) == ("pending", [])
    room.channel("ig", world.connector())
    room._keeper._limit("ig")
    assert list(app_of(room).calendars.all()) == []
    drain(app_of(room))
    assert room.get(ident).status == "completed"
    with pytest.raises(InvalidArgument, match=r"blackouts\[0\].tz"):
        room.channel("ig", world.connector(), blackouts=[{"start": "09:00"}])
    assert room.list(PublicationFilter(channel="ig"))


def test_an_old_process_does_not_put_an_old_definition_of_a_channel_back(
    make: Callable[..., Publishing], world: World, clock: ManualClock
) -> None:  # E2
    made: list[Any] = []

    def start(limit: int, count: int) -> Publishing:
        """A process whose worker is there, and begins."""
        room = make()
        room.channel("ig", world.connector(), limit=limit, rate=(count, 60))
        worker = app_of(room).worker()
        made.append(worker)
        Housekeeper(worker).presence()
        room._keeper._limit("ig")
        return room

    def stands() -> tuple[Any, Any]:
        found = app_of(bare).queues.get("ig")
        return found.limit, found.rate and found.rate.count

    bare = make()
    bare.channel("other", world.connector())
    start(1, 1)
    new = start(3, 5)
    assert stands() == (3, 5), "newer code counts at once, though old workers live"
    again = start(1, 1)  # an old worker begins last
    ear = Ear(again)
    again._keeper._limit("ig")
    again.keep()
    assert (stands(), len(ear.named("publish_definition_old"))) == ((3, 5), 1)
    clock.advance(100)
    Housekeeper(made[1]).presence()
    clock.advance(100)
    again.keep()
    assert stands() == (3, 5), "a worker with the newer code lives"
    Housekeeper(made[1]).say_goodbye()
    again.keep()
    assert stands() == (1, 1), "nobody has the newer code any more: it was rolled back"
    assert bare.undeclared == ["ig"]
    Housekeeper(made[1]).presence()
    new.keep()
    assert stands() == (3, 5), "and rolled forward again"
    again.keep()
    assert stands() == (3, 5)
    app_of(new).queues.set("ig", limit=7)
    new._keeper._limit("ig")
    assert stands() == (7, 5), "what a person has set stays"


# ---------------------------------------------------------------------- edited field by field


MOVES = {
    "text": slot(1, placeholders={"text": "Ripe pears"}), "time": slot(1, at="2027-06-02T19:30"), "zone": lambda p: p.update(timezone="Asia/Tokyo"),
    "media": slot(1, assets=[{"url": "https://example.org/b.jpg", "alt": "pears"}]), "channel": lambda p: (p.update(channels=["ig", "fb"]), slot(0, channels=["ig"])(p), slot(1, channels=["fb"])(p)),
    "channels": lambda p: p.update(channels=["fb"]), "link": slot(1, link="https://example.org/p"), "gone": lambda p: p["slots"].pop(),
    "new": lambda p: p["slots"].append({"at": "2027-06-05T18:00", "placeholders": {"text": "Figs"}}),
    "swapped": lambda p: p["slots"].reverse(), "offset": slot(1, at="2027-06-02T18:00:00+01:00"),
}  # fmt: skip


@pytest.mark.parametrize("field", MOVES)
def test_after_each_edit_of_a_plan_sync_leaves_what_the_plan_says_and_nothing_else(
    room: Publishing, world: World, field: str
) -> None:  # D5b, by other doors
    room.channel("fb", world.connector())
    change = MOVES[field]
    room.sync_plan(week())
    for plan in (week(change), week(change), week(), week(change)):
        done = room.sync_plan(plan)
        waiting = {
            (p.channel, p.run_at, p.payload["caption"]) for p in room.list(PublicationFilter(status=("pending",)))
        }  # type: ignore[arg-type]
        assert waiting == {(one.channel, one.run_at, one.payload["caption"]) for one in plan.items}
        assert (done.collisions, done.kept, len(done.jobs)) == ({}, {}, len(plan.items))
    assert len(room.list(PublicationFilter(status=("pending",)))) == len(week(change).items)  # type: ignore[arg-type]


def test_a_post_that_has_gone_out_is_not_published_again_in_other_words(
    room: Publishing, world: World, clock: ManualClock
) -> None:  # D5b
    made = room.enqueue_plan(week().items)
    clock.set(datetime(2027, 6, 1, 20, tzinfo=UTC))
    drain(app_of(room))
    changed = week(slot(0, placeholders={"text": "Plumz, with the typo mended"}))
    for dry_run in (True, False):
        done = room.sync_plan(changed, dry_run=dry_run)
        assert (done.kept, done.cancelled, done.collisions) == ({0: made[0].job.id}, [], {})
    assert [(one.job.id, one.created) for one in done.jobs] == [(one.job.id, False) for one in made]
    drain(app_of(room))
    assert world.posts == ["Plums"]
    # at another time it is another post
    again = room.sync_plan(week(slot(0, at="2027-06-03T18:00", placeholders={"text": "Plumz"})))
    assert (sorted(one.created for one in again.jobs), again.kept) == ([False, True], {})


@pytest.mark.parametrize("waits_again", [False, True])
def test_a_post_that_may_be_there_is_neither_cancelled_nor_made_in_other_words(
    room: Publishing, world: World, clock: ManualClock, waits_again: bool
) -> None:  # D5b, T002-c
    made = room.enqueue_plan(week().items)
    clock.set(datetime(2027, 6, 1, 20, tzinfo=UTC))
    if waits_again:
        world.script = ["lost"]
        drain(app_of(room))
        assert app_of(room).jobs.get(made[0].job.id).due_at > clock.now()  # type: ignore[operator]
    else:
        app_of(room).queues.pause("ig")
        stand(room, made[0].job.id, "sending")
    done = room.sync_plan(week(slot(0, placeholders={"text": "Other words"})))
    assert (done.cancelled, done.kept) == ([], {0: made[0].job.id})


def test_sync_says_with_which_posts_of_others_its_own_collide(room: Publishing, world: World) -> None:  # R002-23
    room.enqueue_plan(week().items)
    single = put(room, {"caption": "Mine"}, run_at=datetime(2027, 6, 3, 18, tzinfo=UTC))
    moved = week(slot(1, at="2027-06-03T18:00:00+00:00"))
    assert room.sync_plan(moved, dry_run=True).collisions == {1: f"publication {single}"}
    assert room.sync_plan(moved).collisions == {1: f"publication {single}"}


def test_a_plan_that_got_another_name_or_zone_keeps_its_posts(room: Publishing, world: World) -> None:
    made = room.enqueue_plan(week().items)

    def named(plan: dict[str, Any]) -> None:  # the same instants in June
        plan.update(name="june", timezone="Europe/London")

    room.sync_plan(week(named))
    metas = [app_of(room).jobs.get(one.job.id).meta or {} for one in made]
    assert {(meta["plan"], meta["tz"]) for meta in metas} == {("june", "Europe/London")}

    def both(plan: dict[str, Any]) -> None:
        named(plan)
        slot(1, placeholders={"text": "Ripe pears"})(plan)

    assert [p.id for p in room.sync_plan(week(both)).cancelled] == [made[1].job.id]


def test_a_filter_that_found_a_failed_post_leaves_it_alone_once_a_person_has_ended_it(
    room: Publishing, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # R002-25
    world.script = [verdict(Kind.PERMANENT, "refused")]
    ident = put(room)
    drain(app_of(room))
    find = room._store.find

    def meanwhile(*args: Any) -> Any:
        found = find(*args)
        room.replay(ident, "eve")
        room.cancel(ident, "ada", "not this one")
        return found

    monkeypatch.setattr(type(room._store), "find", lambda self, *args: meanwhile(*args))
    done = room.replay_many(PublicationFilter(channel="ig"))
    assert (done.done, list(done.refused), room.get(ident).status) == ([], [ident], "cancelled")
