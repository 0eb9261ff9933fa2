"""``@idempotent_task`` in a Celery worker: the body runs once per key, whatever becomes of messages, processes and the store.

Every worker here is a real one (prefork) in processes of its own, on a real Valkey. Nothing waits for luck: bodies wait for
the test, and the test for lines of the journal.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
import redis
from celery import Celery
from celery.result import AsyncResult

from integrations.celery_scene import Scene
from servers import ValkeyServer

pytestmark = pytest.mark.timeout(180)

PREFORK = ("-P", "prefork", "-O", "fair", "-c")


class Calls:
    """Somebody who calls tasks of the Celery application, and looks at what came of it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.app = Celery("caller", broker=scene.broker, backend=scene.broker)

    def fleet(self, processes: int) -> None:
        self.scene.fleet(*PREFORK, str(processes), program="celery_idempotent")

    def send(self, task: str, tag: str, ident: str | None = None) -> AsyncResult:
        return self.app.send_task(task, (tag,), task_id=ident or str(uuid.uuid4()))

    def wait(self, condition: Callable[[], object], what: str) -> None:
        self.scene.wait(condition, what, 60)

    def wait_for_run(self, tag: str, times: int = 1) -> None:
        self.wait(lambda: len(self.begun(tag)) >= times, f"run {times} of {tag}")

    def wait_until_sent_again(self, call: AsyncResult, times: int = 1) -> None:
        self.wait(lambda: len(self.again(call)) >= times, f"{call.id} to be sent again")

    def ends(self, *calls: AsyncResult) -> list[Any]:
        """Wait for the ends of calls: what they returned, or the name of the error."""
        self.wait(lambda: all(call.ready() for call in calls), "the end of the calls")
        return [call.result if call.successful() else type(call.result).__name__ for call in calls]

    def begun(self, tag: str) -> list[dict[str, Any]]:
        """The runs of a body."""
        return self.scene.lines("begin", tag=tag)

    def again(self, call: AsyncResult) -> list[dict[str, Any]]:
        return self.scene.lines("again", id=call.id)

    def told(self, name: str, task: str) -> list[dict[str, Any]]:
        """Facts of the idempotency events about a function."""
        return [facts for facts in self.scene.events(f"idempotency_{name}") if facts["task_name"].endswith(task)]

    def results(self, task: str) -> list[str]:
        return [facts["result"] for facts in self.told("attempt", task)]

    def states(self, task: str) -> list[str]:
        return [facts["state"] for facts in self.told("state", task)]

    def wait_until_nothing_is_left(self) -> None:
        """The broker has no message that waits, and none that is not acknowledged: nothing is lost, nothing goes round."""
        with redis.Redis.from_url(self.scene.broker) as client:
            self.wait(lambda: client.llen("celery") == client.hlen("unacked") == 0, "the broker to be empty")


@pytest.fixture
def calls(sqlite_url: str, redis_url: str, make_scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Reservations in the Valkey that is the broker too."""
    monkeypatch.setenv("FLEET_STORE", redis_url)
    return Calls(make_scene(sqlite_url, redis_url))


@pytest.fixture(params=["valkey", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def calls_anywhere(request: pytest.FixtureRequest) -> Iterator[Calls]:
    """Reservations in each kind of store."""
    if request.param == "valkey":
        return request.getfixturevalue("calls")
    url = request.getfixturevalue({"sqlite": "sqlite_url", "postgres": "pg_url"}[request.param])
    return Calls(request.getfixturevalue("make_scene")(url, request.getfixturevalue("redis_url")))


# --- Duplicates ---------------------------------------------------------------------------------------------------------


def test_of_two_calls_with_one_key_one_runs_and_both_have_its_result(
    calls_anywhere: Calls,
) -> None:  # R004-8, R004-9, R004-11
    calls = calls_anywhere
    calls.fleet(2)
    one = calls.send("wait", "x")
    calls.wait_for_run("x")
    two = calls.send("wait", "x")
    calls.wait_until_sent_again(two)
    assert not two.ready()
    calls.scene.go_on()
    assert calls.ends(one, two) == [{"by": one.id}] * 2
    assert len(calls.begun("x")) == 1
    assert calls.states("wait") == ["in_progress", "succeeded"]
    # however often it was sent again, the duplicate is counted once
    calls.wait_until_nothing_is_left()
    assert calls.results("wait") == ["allowed", "deduped"]
    # a later one has it as well, at once
    three = calls.send("wait", "x")
    assert calls.ends(three) == [{"by": one.id}]
    assert calls.again(three) == []
    assert len(calls.begun("x")) == 1


def test_two_calls_at_the_same_time_run_the_body_once_and_count_one_duplicate(calls: Calls) -> None:  # R004-9
    calls.fleet(2)
    both = [calls.send("named", "x"), calls.send("named", "x")]
    ends = calls.ends(*both)
    assert ends[0] == ends[1]
    assert len(calls.begun("x")) == 1
    calls.wait(lambda: len(calls.results("named")) >= 2, "both calls to be counted")
    assert sorted(calls.results("named")) == ["allowed", "deduped"]


def test_a_duplicate_that_had_to_wait_runs_when_the_first_fails_with_all_its_own_retries(calls: Calls) -> None:
    """R004-13, T004-d: the task may be retried no time at all, and waiting is no retry."""
    calls.fleet(2)
    one = calls.send("fail_first", "x")
    calls.wait_for_run("x")
    two = calls.send("fail_first", "x")
    calls.wait_until_sent_again(two, times=2)
    calls.scene.go_on()
    assert calls.ends(one, two) == ["ValueError", {"by": two.id}]
    assert [(run["id"], run["retries"]) for run in calls.begun("x")] == [(one.id, 0), (two.id, 0)]
    assert {line["retries"] for line in calls.again(two)} == {0}
    assert calls.results("fail_first") == ["allowed", "allowed"]
    assert calls.states("fail_first") == ["in_progress", "failed", "in_progress", "succeeded"]
    calls.wait_until_nothing_is_left()


def test_the_task_itself_is_no_part_of_the_key_whatever_its_parameter_is_called(calls: Calls) -> None:  # T004-l
    calls.fleet(1)
    calls.scene.go_on()
    for task in ("wait", "named", "unbound"):
        one = calls.send(task, task)
        [result] = calls.ends(one)
        assert result == (task.upper() if task == "unbound" else {"by": one.id})
        two = calls.app.send_task(task, (), {"tag": task})  # by name: the same call
        assert calls.ends(two) == [result]
        assert len(calls.begun(task)) == 1
        assert calls.results(task) == ["allowed", "deduped"]


# --- Locks --------------------------------------------------------------------------------------------------------------


def test_a_lock_shorter_than_its_task_is_renewed_and_keeps_others_out(calls: Calls) -> None:  # B050, T004-c
    calls.fleet(2)
    one = calls.send("wait", "x")
    calls.wait_for_run("x")
    with redis.Redis.from_url(calls.scene.broker) as client:

        def record() -> dict[str, str]:
            [key] = client.keys("duly:idempotency:*")  # type: ignore[misc]
            return orjson.loads(client.get(key))  # type: ignore[arg-type, no-any-return]

        lapses = record()["locked_until"]
        calls.wait(lambda: record()["seen_at"] > lapses, "the first lock to lapse, had it not been renewed")
    two = calls.send("wait", "x")
    calls.wait_until_sent_again(two)
    calls.scene.go_on()
    assert calls.ends(one, two) == [{"by": one.id}] * 2
    assert len(calls.begun("x")) == 1
    assert calls.told("lost", "wait") == []


def test_a_message_delivered_again_while_its_task_runs_runs_nothing(calls: Calls) -> None:
    """T004-d: a visibility timeout shorter than the task. The broker's own restoring is done by hand, so nobody waits for it."""
    calls.fleet(2)
    one = calls.send("wait", "x")
    calls.wait_for_run("x")
    with calls.app.connection_for_read(transport_options={"visibility_timeout": -1}) as connection:
        connection.default_channel.qos.restore_visible(interval=1)
    calls.wait_until_sent_again(one, times=2)
    calls.scene.go_on()
    assert calls.ends(one) == [{"by": one.id}]
    calls.wait_until_nothing_is_left()
    assert one.result == {"by": one.id}
    assert len(calls.begun("x")) == 1
    assert calls.states("wait") == ["in_progress", "succeeded"]
    assert calls.told("lost", "wait") == []


# --- Ends that are none -------------------------------------------------------------------------------------------------


def test_who_asks_for_another_run_frees_the_key(calls: Calls) -> None:  # T004-f
    calls.fleet(2)
    ends = calls.ends(*[calls.send(task, task) for task in ("retry", "auto", "requeue")])
    assert ends == [1, 2, "done"]
    assert [[run["retries"] for run in calls.begun(tag)] for tag in ("retry", "auto", "requeue")] == [
        [0, 1],
        [0, 1, 2],
        [0, 0],
    ]
    for task, runs in (("retry", 2), ("auto", 3), ("requeue", 2)):
        assert [(f["result"], f["took_over"]) for f in calls.told("attempt", task)] == [("allowed", False)] * runs
    assert calls.states("retry") == calls.states("requeue") == ["in_progress", "in_progress", "succeeded"]
    assert calls.states("auto") == ["in_progress", "failed"] * 2 + ["in_progress", "succeeded"]


def test_a_body_that_returns_after_asking_for_a_retry_has_not_succeeded(calls: Calls) -> None:  # T004-f
    calls.fleet(2)
    calls.send("retry_quietly", "quiet")
    calls.wait_for_run("quiet", 2)
    calls.wait(lambda: "succeeded" in calls.states("retry_quietly"), "the end of the second run")
    calls.wait_until_nothing_is_left()
    assert [run["retries"] for run in calls.begun("quiet")] == [0, 1]
    assert calls.states("retry_quietly") == ["in_progress", "in_progress", "succeeded"]


def test_the_trace_of_a_message_is_the_trace_of_the_body_and_of_what_is_told(calls: Calls) -> None:
    """W3C Trace Context: as the post-commit sender and the outbox send it, and through a retry."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    calls.fleet(1)
    call = calls.app.send_task("traced", ("traced",), headers={"traceparent": trace})
    assert calls.ends(call) == [trace]
    told = [*calls.told("attempt", "traced"), *calls.told("state", "traced")]
    assert {facts.get("trace_id") for facts in told} == {trace.split("-")[1]}
    assert calls.ends(calls.send("unbound", "x")) == ["X"]
    assert {facts.get("trace_id") for facts in calls.told("attempt", "unbound")} == {None}


def test_who_gives_up_without_an_effect_frees_the_key(calls: Calls) -> None:
    """T004-f, B052: Ignore, Reject and a soft time limit; another call may run at once, not only when the lock has lapsed."""
    calls.fleet(3)
    slow = calls.send("slow", "slow")
    for task in ("ignore", "reject"):
        calls.send(task, task)
    calls.wait(lambda: all(calls.begun(tag) for tag in ("slow", "ignore", "reject")), "the first runs")
    assert calls.ends(slow) == ["SoftTimeLimitExceeded"]
    calls.wait_until_nothing_is_left()
    assert calls.ends(*[calls.send(task, task) for task in ("slow", "ignore", "reject")]) == ["done"] * 3
    for task in ("slow", "ignore", "reject"):
        assert len(calls.begun(task)) == 2
        assert [(f["result"], f["took_over"]) for f in calls.told("attempt", task)] == [("allowed", False)] * 2
    assert calls.states("slow") == ["in_progress", "failed", "in_progress", "succeeded"]
    assert calls.states("ignore") == calls.states("reject") == ["in_progress", "in_progress", "succeeded"]


# --- Deaths -------------------------------------------------------------------------------------------------------------


def test_a_call_whose_process_is_killed_is_delivered_again_and_takes_over_from_its_dead_self(calls: Calls) -> None:
    """T004-d, B052: it waits as long as the dead one may still be alive. Who calls meanwhile waits, and has the result."""
    calls.fleet(2)
    one = calls.send("die", "x")
    calls.wait_for_run("x")
    two = calls.send("die", "x")
    assert calls.ends(one, two) == [{"by": one.id}] * 2
    assert [run["id"] for run in calls.begun("x")] == [one.id, one.id]
    assert len(calls.scene.lines("effect", tag="x")) == 1
    assert [f["took_over"] for f in calls.told("attempt", "die_first") if f["result"] == "allowed"] == [False, True]
    assert calls.states("die_first") == ["in_progress", "in_progress", "succeeded"]
    calls.wait_until_nothing_is_left()
    if not calls.again(one):
        pytest.skip("the redelivery came when the dead one was taken for dead already, so its waiting was not shown")


def test_a_dead_call_that_nobody_delivers_again_is_followed_by_another_when_its_lock_lapses(
    calls: Calls,
) -> None:  # B052
    calls.fleet(2)
    one = calls.send("die_unheard", "x")
    calls.wait_for_run("x")
    two = calls.send("die_unheard", "x")
    calls.wait_until_sent_again(two)
    assert calls.ends(one, two) == ["WorkerLostError", {"by": two.id}]
    assert [run["id"] for run in calls.begun("x")] == [one.id, two.id]
    assert len(calls.scene.lines("effect", tag="x")) == 1
    allowed = [f["took_over"] for f in calls.told("attempt", "die_unheard") if f["result"] == "allowed"]
    assert allowed == [False, True]


def test_while_the_store_is_away_nothing_runs_and_nothing_is_lost(
    sqlite_url: str,
    redis_url: str,
    own_valkey: ValkeyServer,
    make_scene: Callable[..., Scene],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T004-g: a body that runs goes on, and its end is written when the store is back; all else waits."""
    monkeypatch.setenv("FLEET_STORE", own_valkey.url)
    calls = Calls(make_scene(sqlite_url, redis_url))
    calls.fleet(3)
    running = calls.send("wait_long", "running")
    calls.wait_for_run("running")
    own_valkey.stop()
    duplicate, new = calls.send("wait_long", "running"), calls.send("wait_long", "new")
    calls.wait_until_sent_again(duplicate)
    calls.wait_until_sent_again(new)
    calls.scene.go_on()
    assert calls.ends(running) == [{"by": running.id}]
    assert (len(calls.begun("running")), calls.begun("new")) == (1, [])
    assert calls.states("wait_long") == ["in_progress"]
    own_valkey.start()
    assert calls.ends(duplicate, new) == [{"by": running.id}, {"by": new.id}]
    assert [run["id"] for run in calls.begun("running")] == [running.id]
    assert [(run["id"], run["retries"]) for run in calls.begun("new")] == [(new.id, 0)]
    assert calls.told("store_failed", "wait_long")
    calls.wait_until_nothing_is_left()
