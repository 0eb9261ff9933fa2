"""Jobs of a channel, published through real connectors on servers that answer as the real ones do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duly.kernel.errors import Snooze
from duly.publishing import Publishing
from duly.publishing.handler import Publishing as Run
from duly.testing import ManualClock, drain
from publishing.servers import GONE, IG, LOST, PAGE, PASSWORD, TOKEN, USER, First, Meta, Step, Then, WordPress
from publishing.servers.http import Asked, Reply
from publishing.servers.meta import error

IMAGE = {"kind": "image", "url": "https://example.org/a.jpg"}
POST = {"caption": "Sale", "assets": [IMAGE]}
Make = Callable[..., Publishing]


@pytest.fixture
def insta(make: Make, meta: Meta, clock: ManualClock) -> Publishing:
    meta.now = clock.now
    room = make()
    room.channel("ig", "instagram", account=IG, token=TOKEN, url=meta.graph, poll_interval=0.001)
    room.channel("fb", "facebook", page=PAGE, token=TOKEN, url=meta.graph)
    return room


def until_it_ends(room: Publishing, clock: ManualClock, ident: int) -> Any:
    """Let hours pass until a job has ended."""
    for _ in range(8):
        drain(room._app)  # type: ignore[arg-type]
        found = room.get(ident)
        if found.status in ("completed", "failed"):
            break
        clock.advance(timedelta(hours=1))
    return found


def once(room: Publishing, clock: ManualClock, channel: str, payload: Any) -> Any:
    return until_it_ends(room, clock, room.enqueue(channel, payload, key="k").job.id)


@pytest.mark.parametrize("step", [LOST, GONE, (500, {}, None), error(1), Then(lambda _: error(4, 2207051))])
def test_whatever_becomes_of_the_answer_there_is_one_post_on_instagram(
    insta: Publishing, meta: Meta, clock: ManualClock, step: Step
) -> None:
    # B055, T002-i
    meta.script("POST .*/media_publish", step)
    done = once(insta, clock, "ig", POST)
    assert (done.status, len(meta.media), len(meta.containers)) == ("completed", 1, 1)


def test_a_request_that_arrives_late_and_a_container_that_is_said_to_be_missing_make_one_post(insta: Publishing, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    # B055: the first run's request is on its way while the second one is told that a new container is needed
    late: list[Asked] = []

    def on_its_way(asked: Asked) -> Reply:
        late.append(asked)
        return 504, {}, None

    meta.script("POST .*/media_publish", First(on_its_way), error(24, 2207008))
    ident = insta.enqueue("ig", POST, key="k").job.id
    app: Any = insta._app
    for _ in range(2):
        drain(app)
        clock.advance(timedelta(hours=1))
    assert (meta.count("POST .*/media_publish"), len(meta.containers)) == (2, 1)
    meta.real(late[0])
    assert until_it_ends(insta, clock, ident).status == "completed"
    assert (len(meta.media), len(meta.containers)) == (1, 1)


def test_a_container_that_is_gone_for_ever_is_made_anew_where_the_channel_says_retry(make: Make, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    # T002-i
    room = make()
    room.channel("ig", "instagram", account=IG, token=TOKEN, url=meta.graph, unknown="retry")
    meta.script("POST .*/media_publish", GONE)
    ident = room.enqueue("ig", POST, key="k").job.id
    app: Any = room._app
    drain(app)
    meta.containers.clear()
    done = until_it_ends(room, clock, ident)
    assert (done.status, len(meta.media), done.remote_id) == ("completed", 1, meta.media[0].id)


def test_a_container_that_is_gone_for_ever_is_held_and_a_replay_asks_for_it_again(insta: Publishing, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    meta.script("POST .*/media_publish", GONE)
    ident = insta.enqueue("ig", POST, key="k").job.id
    app: Any = insta._app
    drain(app)
    kept = dict(meta.containers)
    meta.containers.clear()
    done = until_it_ends(insta, clock, ident)
    assert (done.status, "no longer known" in done.error, meta.count("POST .*/media$")) == ("failed", True, 1)
    insta.replay(ident)
    assert until_it_ends(insta, clock, ident).status == "failed"
    meta.containers.update(kept)
    insta.replay(ident)
    assert until_it_ends(insta, clock, ident).status == "completed"
    assert (len(meta.media), len(meta.containers)) == (1, 1)


@pytest.mark.parametrize("step", [LOST, GONE, (502, {}, None), error(2)])
def test_whatever_becomes_of_the_answer_there_is_one_post_on_a_page(
    insta: Publishing, meta: Meta, clock: ManualClock, step: Step
) -> None:
    meta.script("POST .*/feed", step)
    done = once(insta, clock, "fb", {"caption": "Sale today"})
    assert (done.status, len(meta.posts), done.remote_id) == ("completed", 1, meta.posts[0].id)


def test_too_many_calls_hold_the_channel_for_as_long_as_they_say_and_use_no_attempt(insta: Publishing, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    # B067
    usage = {"X-Business-Use-Case-Usage": '{"1":[{"type":"instagram","estimated_time_to_regain_access":19}]}'}
    meta.script("POST .*/media$", error(80002, headers=usage))
    ids = [insta.enqueue("ig", POST, key=f"k{n}").job.id for n in range(3)]
    app: Any = insta._app
    drain(app)
    clock.advance(timedelta(minutes=18, seconds=59))
    drain(app)
    assert (meta.count("POST"), [insta.get(i).attempts for i in ids]) == (1, [0, 0, 0])
    clock.advance(1)
    drain(app)
    assert (len(meta.media), [insta.get(i).attempts for i in ids]) == (3, [1, 1, 1])


def test_the_limit_of_the_account_is_looked_at_before_it_is_met(insta: Publishing, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    meta.quota_used = meta.quota_total
    ident = insta.enqueue("ig", POST, key="k").job.id
    app: Any = insta._app
    drain(app)
    assert (insta.get(ident).status, insta.get(ident).attempts, meta.count("POST")) == ("pending", 0, 0)
    meta.quota_used = 0
    assert until_it_ends(insta, clock, ident).status == "completed"


def test_a_token_that_has_expired_stops_the_channel(insta: Publishing, meta: Meta, clock: ManualClock) -> None:
    meta.script("GET .*/content_publishing_limit", error(190, 463))
    meta.script("POST", error(190, 463))
    ident = insta.enqueue("ig", POST, key="k").job.id
    app: Any = insta._app
    drain(app)
    assert (insta.get(ident).status, insta.get(ident).attempts) == ("pending", 0)
    assert "the token has expired" in app.queues.get("ig").paused_reason
    assert TOKEN not in app.queues.get("ig").paused_reason


def test_the_first_comment_is_written_once_whatever_becomes_of_its_answer(insta: Publishing, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    # R002-18, R002-19
    meta.page_size = 2
    meta.script("POST .*/comments", LOST)
    done = once(insta, clock, "ig", {**POST, "ig_first_comment": "First!  Ciao"})

    def others(_: Any) -> None:  # three others came since
        for number in range(3):
            meta.comment({"message": f"Nice {number}"}, meta.media[0].id)

    others(None)
    (child,) = done.children
    child = until_it_ends(insta, clock, child if isinstance(child, int) else child.id)
    assert (done.status, child.status, child.type) == ("completed", "completed", "ig_first_comment")
    assert [one["text"] for one in meta.media[0].comments] == ["First!  Ciao", "Nice 0", "Nice 1", "Nice 2"]


def test_a_comment_that_is_refused_for_good_leaves_the_post_alone(insta: Publishing, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    # T002-k
    meta.comments_disabled = True
    done = once(insta, clock, "ig", {**POST, "ig_first_comment": "First!"})
    (child,) = done.children
    assert until_it_ends(insta, clock, child if isinstance(child, int) else child.id).status == "failed"
    assert insta.get(done.id).status == "completed"


@pytest.fixture
def blog(make: Make, wordpress: WordPress, tmp_path: Path) -> Iterator[Publishing]:
    room = make()
    room.channel("blog", "wordpress", url=wordpress.site, user=USER, password=PASSWORD, media_root=str(tmp_path))
    yield room


@pytest.mark.parametrize("request_of", ["POST .*/media$", "POST .*/posts$", r"POST .*/posts/\d+"])
def test_whichever_answer_is_lost_there_is_one_post_on_the_blog(
    blog: Publishing, wordpress: WordPress, clock: ManualClock, tmp_path: Path, request_of: str
) -> None:
    (tmp_path / "a.jpg").write_bytes(b"jpeg")
    wordpress.script(request_of, LOST)
    payload = {"title": "Sale", "caption": "Hello", "assets": [{"kind": "image", "path": str(tmp_path / "a.jpg")}]}
    done = once(blog, clock, "blog", payload)
    assert (done.status, len(wordpress.posts), len(wordpress.media), wordpress.publications) == ("completed", 1, 1, 1)


def test_a_draft_that_somebody_removes_before_it_is_public_is_written_anew(blog: Publishing, wordpress: WordPress, clock: ManualClock) -> None:  # fmt: skip
    wordpress.script(r"POST .*/posts/\d+", (429, {"Retry-After": "60"}, {}))
    ident = blog.enqueue("blog", {"title": "Sale"}, key="k").job.id
    app: Any = blog._app
    drain(app)
    wordpress.posts.clear()
    assert until_it_ends(blog, clock, ident).status == "completed"
    assert (len(wordpress.published), wordpress.publications) == (1, 1)


def test_a_post_that_somebody_removes_is_not_published_again_by_a_run_that_ended_early_nor_by_a_replay(
    blog: Publishing, wordpress: WordPress, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # T002-i: the site said that it does not have the post, and the worker died before that was decided upon
    wordpress.script(r"POST .*/posts/\d+", LOST)
    ident = blog.enqueue("blog", {"title": "Sale"}, key="k").job.id
    app: Any = blog._app
    drain(app)
    wordpress.posts.clear()

    async def ends(self: Any, reason: str) -> None:
        monkeypatch.undo()
        raise Snooze("the worker stops", after=1)

    monkeypatch.setattr(Run, "_unknown", ends)
    done = until_it_ends(blog, clock, ident)
    assert (done.status, "was it public" in done.error) == ("failed", True)
    blog.replay(ident)
    assert until_it_ends(blog, clock, ident).status == "failed"
    assert (wordpress.posts, wordpress.publications) == ({}, 1)


def test_a_post_that_somebody_removes_is_published_again_where_the_channel_says_retry(make: Make, wordpress: WordPress, clock: ManualClock) -> None:  # fmt: skip
    room = make()
    room.channel("blog", "wordpress", url=wordpress.site, user=USER, password=PASSWORD, unknown="retry")
    wordpress.script(r"POST .*/posts/\d+", LOST)
    ident = room.enqueue("blog", {"title": "Sale"}, key="k").job.id
    app: Any = room._app
    drain(app)
    wordpress.posts.clear()
    assert until_it_ends(room, clock, ident).status == "completed"
    assert (len(wordpress.published), wordpress.publications) == (1, 2)


def test_a_channel_of_a_folder_needs_nothing_but_its_name(make: Make, clock: ManualClock, tmp_path: Path, db_url: str) -> None:  # fmt: skip
    room = make()
    room.channel("site", "folder", folder=str(tmp_path / "site"))
    done = once(room, clock, "site", {"title": "Sale", "caption": "Hello"})
    assert (done.status, (tmp_path / "site" / done.remote_id / "index.md").exists()) == ("completed", True)
