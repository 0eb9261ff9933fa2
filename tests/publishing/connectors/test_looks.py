"""Posts that are known by nothing but their looks: none is completed with what may be another one's (B055, T002-i)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from duly.publishing import Post, Publishing
from duly.publishing.connectors.facebook import FacebookConnector
from duly.publishing.state import State
from duly.testing import ManualClock, drain
from publishing.connectors.test_through_the_engine import insta, until_it_ends
from publishing.hands import Ear, World, app_of, go, later, put, sql
from publishing.servers import GONE, LOST, PAGE, PASSWORD, TOKEN, USER, Meta, WordPress
from publishing.servers.meta import error

__all__ = ["insta"]

TEXT = {"caption": "Good morning"}


def two(room: Publishing, clock: ManualClock, second: str = "fb") -> tuple[int, int]:
    """Two posts with the same words, ten seconds apart."""
    first = room.enqueue("fb", TEXT, key="a").job.id
    drain(app_of(room))
    clock.advance(10)
    other = room.enqueue(second, TEXT, key="b").job.id
    drain(app_of(room))
    return first, other


def test_a_duplicate_that_another_publication_has_made_is_not_taken_for_this_one(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    # the first run's request never arrived, the second run was put off, and then the other publication was posted
    meta.refuses_duplicates = True
    meta.script("POST .*/feed", GONE, error(4))
    first = insta.enqueue("fb", TEXT, key="a").job.id
    drain(app_of(insta))
    clock.advance(120)
    drain(app_of(insta))
    clock.advance(299)
    other = insta.enqueue("fb", TEXT, key="b", run_at=clock.now() - timedelta(minutes=20)).job.id
    clock.advance(2)
    drain(app_of(insta))
    one, two = until_it_ends(insta, clock, first), insta.get(other)
    assert (two.status, two.remote_id) == ("completed", meta.posts[0].id)
    assert (one.status, one.unknown, one.remote_id) == ("failed", True, None)
    assert f"that is publication {other}" in one.error


def test_two_channels_that_lead_to_one_page_do_not_share_a_post(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    insta.channel("fb2", "facebook", page=PAGE, token=TOKEN, url=meta.graph)
    meta.script("POST .*/feed", GONE)
    first, other = two(insta, clock, "fb2")
    one, two_ = until_it_ends(insta, clock, first), insta.get(other)
    assert (two_.status, two_.remote_id, one.status, one.remote_id) == ("completed", meta.posts[0].id, "failed", None)
    assert one.unknown


def test_while_another_with_the_same_looks_is_in_doubt_none_of_them_is_completed(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    meta.script("POST .*/feed", GONE, LOST)
    ids = two(insta, clock)
    found = [until_it_ends(insta, clock, ident) for ident in ids]
    assert len(meta.posts) == 1
    assert [(one.status, one.unknown, one.remote_id) for one in found] == [("failed", True, None)] * 2


def test_one_in_doubt_is_looked_for_again_once_the_other_is_settled(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    # the other's request is under way in another worker: it looks the same, and will be told apart by its answer
    meta.script("POST .*/feed", LOST)
    ear = Ear(insta)
    first = insta.enqueue("fb", TEXT, key="a").job.id
    drain(app_of(insta))
    other = insta.enqueue("fb", TEXT, key="b", run_at=clock.now() + timedelta(days=1)).job.id
    app, store = app_of(insta), insta._store
    sent = "INSERT INTO publications (job_id, tenant, channel, state, facts, place, looks, holder, sent_at, updated_at) SELECT :b, tenant, channel, state, facts, place, looks, 'x', sent_at, updated_at FROM publications"  # fmt: skip
    app.db.write(lambda c: c.execute(text(sent), {"b": other}))
    clock.advance(300)
    drain(app)
    seen = insta.get(first)
    assert (seen.status, seen.progress) == ("pending", State.SENDING)
    assert "in doubt too" in (seen.error or "")
    app.db.write(lambda c: store.published(c, other, "another", None))
    done = until_it_ends(insta, clock, first)
    assert (done.status, done.remote_id, len(meta.posts)) == ("completed", meta.posts[0].id, 1)
    assert ear.named("publish_unknown") == []


def test_two_that_are_looked_for_at_once_do_not_both_take_the_one_post_that_is_there(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    # the question whose it is belongs to the transaction that writes it
    meta.script("POST .*/feed", LOST)
    app, store, place = app_of(insta), insta._store, f"facebook:{PAGE}"
    first = insta.enqueue("fb", TEXT, key="a").job.id
    drain(app)
    other = insta.enqueue("fb", {"caption": "Good evening"}, key="b").job.id
    drain(app)
    since, asked, written, answers = clock.now(), threading.Event(), threading.Event(), list[Any]()

    def slow(c: Any) -> None:
        answers.append(store.rival(c, place, "", meta.posts[0].id, first, since))
        asked.set()
        written.wait(0.5)  # the second one asks meanwhile: where locks work, it waits
        store.published(c, first, meta.posts[0].id, None)

    def quick(c: Any) -> None:
        answers.append(store.rival(c, place, "", meta.posts[0].id, other, since))
        written.set()

    one = threading.Thread(target=lambda: app.db.write(slow))
    one.start()
    assert asked.wait(10)
    app.db.write(quick)
    one.join()
    assert answers[0] is None
    assert (answers[1].job, answers[1].published) == (first, True)


def test_what_was_in_doubt_long_ago_says_nothing_of_a_post_of_today(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    meta.script("POST .*/feed", *[GONE] * 20)
    meta.script("GET .*/posts", *[(500, {}, None)] * 20)
    old = insta.enqueue("fb", TEXT, key="old").job.id
    assert until_it_ends(insta, clock, old).unknown
    meta.scripts.clear()
    clock.advance(timedelta(days=1))
    app_of(insta).queues.release("fb")
    meta.script("POST .*/feed", LOST)
    ident = insta.enqueue("fb", TEXT, key="new").job.id
    done = until_it_ends(insta, clock, ident)
    assert (done.status, done.remote_id) == ("completed", meta.posts[0].id)


def test_nothing_of_another_tenants_publication_is_told(insta: Publishing, meta: Meta, clock: ManualClock) -> None:
    meta.script("POST .*/feed", GONE)
    first = insta.enqueue("fb", TEXT, key="a", tenant="one").job.id
    drain(app_of(insta))
    clock.advance(10)
    other = insta.enqueue("fb", TEXT, key="b", tenant="two").job.id
    drain(app_of(insta))
    done = until_it_ends(insta, clock, first)
    assert (done.status, done.unknown) == ("failed", True)
    assert f"publication {other}" not in done.error
    assert meta.posts[0].id not in done.error


def test_a_post_in_doubt_is_not_looked_for_where_the_channel_leads_by_now(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    meta.script("POST .*/feed", LOST)
    ident = insta.enqueue("fb", TEXT, key="a").job.id
    drain(app_of(insta))
    insta.channel("fb", "facebook", page="999", token=TOKEN, url=meta.graph)
    done = until_it_ends(insta, clock, ident)
    assert (done.status, done.unknown, meta.count("/999/")) == ("failed", True, 0)
    assert "leads elsewhere" in done.error
    insta.channel("fb", "facebook", page=PAGE, token=TOKEN, url=meta.graph)
    insta.replay(ident)
    assert until_it_ends(insta, clock, ident).status == "completed"


def test_what_two_posts_look_like_is_their_text_and_whether_they_are_videos() -> None:
    page = FacebookConnector(page=PAGE, token=TOKEN)
    assert page.place == f"facebook:{PAGE}"
    assert page.looks(Post("a", " Good  morning")) == page.looks(Post("b", "Good morning"))
    assert page.looks(Post("a", "Good morning")) != page.looks(Post("a", "Good evening"))
    assert page.looks(Post("a", "", link="https://example.org")) == ""


def test_an_id_that_names_the_post_needs_no_question_whose_it_is(
    make: Any, wordpress: WordPress, clock: ManualClock
) -> None:
    # a site that was set up anew begins to count at 1
    room = make()
    room.channel("wp", "wordpress", url=wordpress.site, user=USER, password=PASSWORD)
    for number in range(3):
        put(room, {"caption": f"old {number}", "title": "T"}, "wp")
    drain(app_of(room))
    wordpress.posts.clear()
    wordpress.made = 0
    wordpress.script(r"POST .*/posts/\d+$", LOST)
    done = until_it_ends(room, clock, put(room, {"caption": "new", "title": "N"}, "wp"))
    assert (done.status, done.remote_id) == ("completed", "1")


def test_two_tenants_may_have_posts_of_one_id(room: Publishing, world: World, clock: ManualClock) -> None:
    go(room, put(room, key="k", tenant="one"))
    world.script = ["gone"]
    ident = put(room, key="k", tenant="two")
    go(room, ident)
    done = later(room, clock, ident)
    assert (done.status, done.remote_id, done.progress) == ("completed", "m1", State.PUBLISHED)
    assert sql(room, "SELECT DISTINCT place FROM publications") == [("channel ig",)]
