"""What becomes of a message after an attempt, and which messages may go: facts in, decisions out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import Backoff, InvalidArgument, PermanentError, Retry
from duly.kernel.retry_after import LONGEST
from duly.outbox.message import LIFECYCLE, Destination, Message, Status, checked_headers
from duly.outbox.plan import (
    Link,
    Policy,
    is_suspect,
    leading,
    lost,
    release,
    settle,
    shares,
    single_file,
    unbroken,
    units,
)

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def message(ident: int = 1, **more: Any) -> Message:
    return Message(ident, f"m{ident}", "default", more.pop("destination", "t:x"), None, token=ident * 10, **more)


# --- After an attempt -------------------------------------------------------------------------------------------------


def test_what_was_handed_over_is_sent() -> None:
    s = settle(message(attempts=1), None, Policy())
    assert (s.id, s.token, s.event, s.status, s.wait) == (1, 10, "send", Status.SENT, None)


@pytest.mark.parametrize(("attempt", "wait"), [(1, 1), (2, 2), (3, 4), (4, 8)])
def test_a_failure_is_tried_again_after_a_pause_that_grows(attempt: int, wait: float) -> None:
    policy = Policy(backoff=Backoff(base=1, factor=2, max=300))
    s = settle(message(attempts=attempt), OSError("no"), policy, error={"message": "no"})
    assert (s.event, s.status, s.wait, s.error) == ("fail", Status.PENDING, wait, {"message": "no"})


def test_pauses_are_capped_and_the_dice_is_handed_in() -> None:
    policy = Policy(max_attempts=50, backoff=Backoff(base=1, factor=2, max=300, jitter=0.5))
    assert settle(message(attempts=1), OSError(), policy, u=0.5).wait == 1.25
    assert settle(message(attempts=40), OSError(), policy, u=0.9).wait == 300


def test_the_default_is_five_attempts_with_pauses_from_one_second_to_five_minutes() -> None:
    policy = Policy()
    assert (policy.max_attempts, policy.backoff.base, policy.backoff.factor, policy.backoff.max) == (5, 1, 2, 300)


def test_the_last_failure_parks() -> None:
    s = settle(message(attempts=5), OSError("no"), Policy(max_attempts=5), error={"message": "no"})
    assert (s.event, s.status, s.reason, s.error) == ("park", Status.PARKED, "exhausted", {"message": "no"})


def test_what_would_not_help_to_try_again_is_parked_at_once() -> None:
    s = settle(message(attempts=1), PermanentError("gone"), Policy())
    assert (s.event, s.reason) == ("park", "refused")


@pytest.mark.parametrize(
    ("after", "wait"),
    [(7, 7), (0, 1), (-3, 1), (1e9, LONGEST), (timedelta(minutes=2), 120)],
)
def test_the_other_side_may_say_when_to_come_back(after: Any, wait: float) -> None:
    assert settle(message(attempts=1), Retry(after=after), Policy()).wait == wait


def test_a_retry_that_names_no_time_backs_off_and_one_on_the_last_attempt_parks() -> None:
    assert settle(message(attempts=2), Retry(), Policy(backoff=Backoff(base=1, factor=2))).wait == 2
    assert settle(message(attempts=5), Retry(after=3), Policy()).event == "park"


def test_a_message_given_back_has_used_no_attempt() -> None:
    s = release(message())
    assert (s.event, s.status, s.counted, s.wait) == ("release", Status.PENDING, False, None)


@pytest.mark.parametrize("losses", [0, 1])
def test_the_first_losses_use_no_attempt_and_the_message_comes_back_at_once(losses: int) -> None:
    s = lost(message(attempts=5, losses=losses), Policy(max_attempts=5))
    assert (s.event, s.counted, s.wait, s.losses) == ("fail", False, 0, losses + 1)


def test_a_message_that_is_lost_alone_has_used_an_attempt() -> None:
    s = lost(message(attempts=4, losses=2), Policy(max_attempts=5))
    assert (s.event, s.counted, s.wait, s.losses) == ("fail", True, 0, 3)


def test_a_message_that_kills_its_relays_is_parked_in_the_end() -> None:
    s = lost(message(attempts=5, losses=6), Policy(max_attempts=5))
    assert (s.event, s.reason) == ("park", "lost")
    assert "5 attempts" in s.error["message"]


def test_an_answer_ends_a_row_of_losses_and_giving_back_does_not() -> None:
    lossy = message(attempts=1, losses=3)
    assert settle(lossy, None, Policy()).losses == 0
    assert settle(lossy, OSError(), Policy()).losses == 0
    assert release(lossy).losses == 3


messages = st.lists(
    st.builds(message, losses=st.integers(0, 4), ordering_key=st.sampled_from([None, "a", "b"])),
    max_size=12,
).map(lambda each: [replace(m, id=n) for n, m in enumerate(each)])


@given(messages, st.booleans())
def test_a_relay_has_one_suspect_at_a_time_and_all_others_pass(taken: list[Message], busy: bool) -> None:
    to_send, back = single_file(taken, busy)
    assert sorted([m.id for m in to_send] + [s.id for s in back]) == [m.id for m in taken]
    assert all(s.event == "release" and not s.counted for s in back)
    assert sum(map(is_suspect, to_send)) <= (0 if busy else 1)
    if any(map(is_suspect, taken)) and not any(m.ordering_key for m in taken) and not busy:
        assert any(map(is_suspect, to_send)), "somebody goes"
    loose = [m for m in taken if m.ordering_key is None and not is_suspect(m)]
    assert [m for m in to_send if m in loose] == loose
    for key in ("a", "b"):
        line, sent = ([m for m in many if m.ordering_key == key] for many in (taken, to_send))
        assert sent == line[: len(sent)], "a line goes without gaps"
        assert len(sent) == 1 or not any(map(is_suspect, sent)), "a suspect of a line goes without the others"
        assert sent or not line or is_suspect(line[0]), "who waits has a reason"


def test_suspects_that_wait_their_turn_are_put_off_one_behind_the_other() -> None:
    _, back = single_file([message(ident=n, losses=2) for n in range(100)], busy=False)
    waits = [s.wait for s in back]
    assert waits[:3] == [0.5, 1.0, 1.5]
    assert waits[-1] == 30.0


@pytest.mark.parametrize(
    "wrong",
    [{"max_attempts": 0}, {"max_attempts": True}, {"max_attempts": 1.5}, {"backoff": 3}, {"on_parked": "wait"}],
    ids=str,
)
def test_a_policy_that_cannot_be_followed_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Policy(**wrong)


# --- What may go ------------------------------------------------------------------------------------------------------


def link(ident: int, status: str = "pending", free: bool = True, due: bool = True) -> Link:
    return Link(ident, status, free, due)


@pytest.mark.parametrize(
    ("line", "hold", "skip"),
    [
        ([link(1), link(2), link(3)], [1, 2, 3], [1, 2, 3]),
        ([link(1, free=False), link(2)], [], []),
        ([link(1, due=False), link(2)], [], []),
        ([link(1), link(2, due=False), link(3)], [1], [1]),
        ([link(1, "parked"), link(2)], [], [2]),
        ([link(1), link(2, "parked"), link(3)], [1], [1, 3]),
        ([], [], []),
    ],
    ids=["all", "the head is being sent", "the head waits", "one waits", "parked head", "parked between", "none"],
)
def test_a_line_goes_up_to_the_first_that_has_to_wait(line: list[Link], hold: list[int], skip: list[int]) -> None:
    assert leading(line, "hold") == hold
    assert leading(line, "skip") == skip


links = st.lists(st.builds(Link, st.just(0), st.sampled_from(["pending", "parked"]), st.booleans(), st.booleans()))


@given(links)
def test_nothing_ever_overtakes_one_that_has_to_wait(line: list[Link]) -> None:
    line = [found._replace(id=place) for place, found in enumerate(line)]
    assert leading(line, "hold") == list(range(len(leading(line, "hold"))))
    may = [x.status == "pending" and x.free and x.due for x in line]
    assert all(may[i] for i in leading(line, "hold"))
    for i in leading(line, "skip"):
        assert all(may[j] or line[j].status == "parked" for j in range(i))


def test_a_line_that_an_operator_broke_ends_at_the_break() -> None:
    assert unbroken([5, 6, 7, 8], {5, 6, 7, 8}) == ([5, 6, 7, 8], [])
    assert unbroken([5, 6, 7, 8], {5, 7, 8}) == ([5], [7, 8])
    assert unbroken([5, 6], {6}) == ([], [6])


def test_each_line_is_sent_by_one_thread_in_order_and_everything_else_by_itself() -> None:
    work = units(
        [
            message(1), message(4, ordering_key="a"), message(2, ordering_key="a"), message(3, ordering_key="b"),
            message(5, ordering_key="a", destination="t:y"), message(6),
        ],
        asked_at=7.0,
    )  # fmt: skip
    assert [[m.id for m in unit.messages] for unit in work] == [[1], [2, 4], [3], [5], [6]]
    assert [unit.ordered for unit in work] == [False, True, True, True, False]
    assert {unit.asked_at for unit in work} == {7.0}


def test_lines_get_half_of_the_room_and_a_single_place_goes_by_turns() -> None:
    assert [shares(10, first) for first in (True, False)] == [5, 5]
    assert [shares(1, first) for first in (True, False)] == [1, 0]


# --- Nouns ------------------------------------------------------------------------------------------------------------


def test_a_destination_is_a_transport_and_the_rest() -> None:
    to = Destination.parse("webhook:https://x.example/a:b")
    assert (to.transport, to.target, str(to)) == ("webhook", "https://x.example/a:b", "webhook:https://x.example/a:b")
    assert Destination.parse("redis") == Destination("redis", "")
    assert message(destination="duly:send").to == Destination("duly", "send")


@pytest.mark.parametrize("wrong", ["", ":x", "Webhook:x", "web hook:x", "1:x", "w\x00:x", "x" * 201, None, 3])
def test_a_destination_without_a_transport_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="destination"):
        Destination.parse(wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"a b": "x"}, {"a:": "x"}, {"": "x"}, {"a": 1}, {"a": "x\r\ny"}, {"a": "x" * 5000}, {"\u00e4": "x"}, ["a"], {1: "x"}],
    ids=str,
)  # fmt: skip
def test_headers_that_not_every_transport_can_carry_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="headers"):
        checked_headers(wrong)


@pytest.mark.parametrize(
    ("facts", "label"),
    [
        ({}, "pending"),
        ({"due_at": NOON + timedelta(minutes=1)}, "planned"),
        ({"due_at": NOON + timedelta(minutes=1), "attempts": 2}, "retrying"),
        ({"lease_until": NOON}, "sending"),
        ({"status": Status.SENT}, "sent"),
        ({"status": Status.PARKED}, "parked"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_people_are_told_what_a_message_is_doing(facts: dict[str, Any], label: str) -> None:
    assert message(**facts).label(NOON) == label


def test_only_an_operator_brings_a_parked_or_sent_message_back() -> None:
    assert LIFECYCLE.sources("redrive") == {"parked", "sent"}
    assert LIFECYCLE.sources("send") == LIFECYCLE.sources("fail") == LIFECYCLE.sources("park") == {"pending"}
