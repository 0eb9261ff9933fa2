"""SIGKILL between any two steps: what was committed is sent, what was not is not, and the effect is there once."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from crash.scene import Actor, Scene, start_nursery
from duly.outbox.box import Outbox
from keeper import until
from outbox import crash_program as program
from outbox.hands import Recorder, publish
from soaking import sqlite_first

db_url = sqlite_first()

#: Where a relay can die, and whether its message had been handed over by then.
STEPS = {
    "claim.before": False, "claim.taken": False, "claim.committed": False, "send.before": False, "send.after": True, "mark.before": True,
    "mark.written": True, "mark.after": True,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def nursery() -> None:
    start_nursery()


@pytest.fixture
def scene(db_url: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(db_url, tmp_path, lease=1)
    made.change(program.ORDERS)
    made.change(program.RECEIVED)
    yield made
    made.close()


@pytest.fixture
def box(scene: Scene) -> Outbox:
    return Outbox(scene.app, transports={"t": Recorder()})


def wait_until_drained(scene: Scene) -> None:
    pending = "SELECT count(*) FROM outbox WHERE status <> 'sent'"
    scene.wait(lambda: scene.sql(pending) == [(0,)], 30, "an empty outbox")


def deliveries(scene: Scene) -> Counter[Any]:
    """Payload → how often it was handed over."""
    return Counter(line["payload"] for line in scene.lines("delivery"))


def test_a_writer_killed_anywhere_leaves_the_order_and_its_message_or_neither(scene: Scene) -> None:  # R004-7
    steps = {"published": False, "commit": False, "committed": True}
    for n, step in enumerate(steps):
        actor = scene.act(step, program.run_publisher, kill_at=step, args={"n": n})
        assert actor.ended() == -signal.SIGKILL, f"{step}: {actor.log}"
    there = [(n,) for n, step in enumerate(steps) if steps[step]]
    assert scene.sql("SELECT n FROM orders ORDER BY n") == there
    assert scene.sql("SELECT CAST(payload AS text) FROM outbox") == [(str(n),) for (n,) in there]
    # what was committed is sent after a restart, although its writer is dead
    scene.act("relay", program.run_relay)
    wait_until_drained(scene)
    assert deliveries(scene) == Counter({2: 1})


@pytest.mark.parametrize("step", STEPS)
def test_a_relay_killed_anywhere_forgets_nothing_and_the_effect_is_there_once(
    scene: Scene, box: Outbox, step: str
) -> None:
    idents = {publish(box, "t:x", n) for n in range(3)}
    dying = scene.act("dying", program.run_relay, kill_at=step)
    assert dying.ended() == -signal.SIGKILL, f"{step}: {dying.log}"
    before = deliveries(scene)
    assert bool(before) == STEPS[step] or step == "send.before", f"{step}: {before}"
    scene.act("next", program.run_relay)
    wait_until_drained(scene)
    handed = deliveries(scene)
    assert set(handed) == {0, 1, 2}
    assert max(handed.values()) <= 2  # handed over and not marked: once more
    assert {line["message"] for line in scene.lines("delivery")} == idents  # under the same message id
    assert scene.sql("SELECT payload FROM received ORDER BY payload") == [
        (0,),
        (1,),
        (2,),
    ]  # so the effect is there once
    if step in ("send.after", "mark.before", "mark.written"):
        assert max(handed.values()) == 2, "nothing was in danger, so nothing was shown"


@pytest.mark.parametrize("step", ["send.after", "mark.written", "mark.after"])
def test_a_relay_killed_in_a_line_keeps_its_order(scene: Scene, box: Outbox, step: str) -> None:
    count = itertools.count()

    def add(n: int) -> None:
        for _ in range(n):
            publish(box, "t:x", next(count), ordering_key="o")

    add(6)
    dying = scene.act("dying", program.run_relay, kill_at=step, kill_after=2)
    while not until(lambda: not dying.alive, 0.2):  # all that is there may be marked at once: it dies at the third time
        add(1)
    assert dying.ended() == -signal.SIGKILL, f"{step}: {dying.log}"
    scene.act("next", program.run_relay)
    wait_until_drained(scene)
    order = [line["payload"] for line in scene.lines("delivery")]
    first = list(dict.fromkeys(order))
    assert first == list(range(next(count)))  # each came for the first time behind all before it
    # and what was repeated was repeated from one place on, in order
    assert all(b <= a + 1 for a, b in itertools.pairwise(order))


def test_a_relay_that_is_told_to_stop_ends_in_good_order(scene: Scene, box: Outbox) -> None:
    for n in range(50):
        publish(box, "t:x", n)
    relay = scene.act("relay", program.run_relay)
    scene.wait(lambda: len(scene.lines("delivery")) >= 5, 30, "the first deliveries")
    relay.signal(signal.SIGTERM)
    assert relay.ended() == 0, relay.log
    [end] = scene.told("relay", "finished")
    sent = scene.sql("SELECT count(*) FROM outbox WHERE status = 'sent'")[0][0]
    assert end["sent"] == sent == len(scene.lines("delivery"))
    assert scene.sql("SELECT count(*) FROM outbox WHERE lease_token IS NOT NULL") == [(0,)]


def test_relays_that_are_killed_again_and_again_deliver_everything(scene: Scene, box: Outbox) -> None:
    for n in range(60):
        publish(box, "t:x", n, ordering_key=str(n % 5) if n % 2 else None)
    for life in range(4):
        actor = scene.act(f"life{life}", program.run_relay, kill_at="send.after", kill_after=5)
        assert actor.ended() == -signal.SIGKILL, actor.log
    scene.act("last", program.run_relay)
    wait_until_drained(scene)
    assert set(deliveries(scene)) == set(range(60))
    assert scene.sql("SELECT count(*) FROM received") == [(60,)]
    for key in range(5):
        line = [x["payload"] for x in scene.lines("delivery") if x["payload"] % 2 and x["payload"] % 5 == key]
        assert list(dict.fromkeys(line)) == sorted(set(line))


@pytest.mark.parametrize("line", [None, "o"])
def test_a_message_that_kills_its_relays_is_parked_and_no_other(scene: Scene, box: Outbox, line: str | None) -> None:
    """Each relay has everything due that waits, as one that was down for long, so the deadly one always has company."""
    payloads = [*range(15), program.DEADLY, *range(15, 30)]
    with Session(scene.app.db.session_engine) as session, session.begin():
        box.publish_many(session, "t:x", payloads, ordering_key=line)
    relays: list[Actor] = []

    def drained() -> bool:
        if not relays or not relays[-1].alive:
            relays.append(scene.act(f"relay {len(relays)}", program.run_fragile_relay))
        return bool(scene.lines("finished"))

    scene.wait(drained, 60, "an outbox in which nothing is pending")
    assert [line["attempt"] for line in scene.lines("death")] == [1, 1, 1, 2, 3]
    assert scene.sql("SELECT CAST(payload AS text), attempts FROM outbox WHERE status <> 'sent'") == [("-1", 3)]
    assert scene.sql("SELECT count(*) FROM received") == [(30,)]
    if line is not None:
        order = [x["payload"] for x in scene.lines("delivery")]
        assert list(dict.fromkeys(order)) == list(range(30))
