"""What a fresh look at automations has found: each once, so that it stays mended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text

from automations.hands import Ai, Stage, calls, done, lost, says
from duly import Duly
from duly.automations import Answer, Prices, Usage
from duly.automations.automation import read_definition
from duly.automations.session import ExecutionTrigger, SessionEndReason, Status
from duly.kernel.clock import to_micros
from duly.kernel.errors import InvalidArgument

DAY = datetime(2026, 3, 2, tzinfo=UTC)


def at(hour: int, minute: int = 0) -> datetime:
    return DAY.replace(hour=hour, minute=minute)


def keep_for(stage: Stage, seconds: int, step: float = 1.0) -> None:
    """A worker that is awake for so long."""
    for _ in range(int(seconds / step)):
        stage.pass_(seconds=step)
        stage.room.keep()
        stage.work()


def test_one_after_the_other_each_starts_when_it_is_due(stage: Stage) -> None:  # R001-14, T001-t
    a = stage.automation("a", "08:01", "08:02", "08:03")
    stage.room.keep()
    keep_for(stage, 200)
    assert [
        (s.started_at - s.scheduled_at).total_seconds() < 2 for s in stage.of(a) if s.started_at and s.scheduled_at
    ] == [True] * 3


def test_what_another_process_does_to_the_slot_moves_when_a_worker_looks(stage: Stage, db_url: str) -> None:  # R001-14
    a = stage.automation("a", "08:02")
    other = Stage(Duly(db_url, clock=stage.clock), stage.clock, Ai())
    chat = other.room.chat().session
    keep_for(stage, 60)
    other.room.close(chat.id)
    keep_for(stage, 70)
    (session,) = stage.of(a)
    assert session.started_at is not None
    assert session.started_at - at(8, 2) < timedelta(seconds=2)
    other.app.close()


def test_a_pause_for_a_span_ends_when_it_says_so(stage: Stage) -> None:
    a = stage.automation("a", "08:01")
    stage.ai.script = [says("half")]
    stage.at(8, 1)
    stage.room.keep()
    stage.work()
    stage.room.pause(stage.of(a)[0].id, span=15)
    keep_for(stage, 14)
    assert stage.active() is None
    keep_for(stage, 3)
    assert stage.active() is not None


def test_a_pause_without_a_span_is_not_undone_by_the_very_process_that_made_it(stage: Stage) -> None:  # R001-20
    a = stage.automation("a", "08:01")
    stage.ai.script = [says("half")]
    stage.at(8, 1)
    stage.room.keep()
    stage.work()
    stage.room.pause(stage.of(a)[0].id)
    keep_for(stage, 280, 10)
    assert stage.active() is None
    keep_for(stage, 40, 10)
    assert stage.active() is not None


def test_a_stream_that_is_cut_each_time_is_waiting_for_the_network_and_no_activity(
    stage: Stage,
) -> None:  # T001-o, T001-m
    a, b = stage.automation("a", "08:01"), stage.automation("b", "08:02")

    class Cut(Ai):
        async def ask(self, question: object, say: object) -> Answer:  # type: ignore[override]
            self.questions.append(question)  # type: ignore[arg-type]
            say("a piece")  # type: ignore[operator]
            raise lost()

    stage.room.use("ai", Cut())
    stage.at(8, 1)
    stage.tick()
    stage.work()
    for _ in range(25):
        stage.pass_(seconds=30)
        stage.work()
        stage.tick()
    assert stage.of(a)[0].end_reason is SessionEndReason.NETWORK_ERROR
    assert stage.of(b)[0].is_active


def test_a_night_without_workers_ends_nothing_that_waits_for_a_job(stage: Stage) -> None:
    @stage.app.task("LOOK", queue="looking")
    def look() -> str:
        return "seen"

    a = stage.automation("a", "08:01", tools=["LOOK"])
    stage.ai.script = [calls("LOOK"), done()]
    stage.at(8, 1)
    stage.tick()
    stage.app.queues.pause("looking")
    stage.work()
    assert stage.of(a)[0].is_active
    stage.pass_(hours=8)
    stage.tick()
    assert stage.of(a)[0].is_active
    stage.app.queues.resume("looking")
    stage.work()
    assert stage.ends(a) == ["COMPLETED"]


def test_a_bound_in_tokens_holds_where_nobody_tells_how_many_there_were(stage: Stage) -> None:  # T001-n
    a = stage.automation("a", "08:01", limits={"max_tokens": 300})
    untold = Usage(0, 0, is_complete=False)
    stage.ai.script = [Answer("", calls("nothing").calls, untold) for _ in range(30)]
    stage.at(8, 1)
    stage.tick()
    stage.work()
    (session,) = stage.of(a)
    assert session.end_reason is SessionEndReason.ERROR
    assert "limits.max_tokens" in (session.end_detail or "")
    assert len(stage.ai.questions) < 5


def test_a_bound_in_cents_is_held_or_the_run_says_why_it_cannot_be(stage: Stage) -> None:
    a = stage.automation("a", "08:01", limits={"max_cents": 1})
    stage.ai.prices = None
    stage.at(8, 1)
    stage.tick()
    stage.work()
    assert stage.ends(a) == ["ERROR"]
    assert "ai_price_input" in (stage.of(a)[0].end_detail or "")
    assert stage.ai.questions == []
    stage.ai.prices = Prices(1e6, 1e6)
    stage.room.run(a)
    stage.work()
    assert len(stage.ai.questions) == 1


def test_a_chat_whose_person_waits_for_an_answer_is_in_use(stage: Stage) -> None:  # R001-11
    stage.automation("a", "08:04")
    chat = stage.room.chat(provider="ai").session
    stage.room.say(chat.id, "Hello?")
    stage.app.db.write(lambda c: c.execute(text(
        "UPDATE jobs SET status = 'running', worker = 'w', lease_token = 1, lease_until = :until, started_at = created_at WHERE id = :id"
    ), {"id": stage.session(chat.id).job_id, "until": to_micros(at(23)) if stage.app.db.is_sqlite else at(23)}))  # fmt: skip
    stage.at(8, 6)
    stage.tick()
    assert stage.session(chat.id).is_active
    stage.at(8, 11)
    stage.tick()
    assert not stage.session(chat.id).is_active  # as long as an automation would be kept


@pytest.mark.parametrize("name", ["5", "007"])
def test_a_number_is_no_name_because_it_is_a_session(name: str) -> None:
    with pytest.raises(InvalidArgument, match="numbers are sessions"):
        read_definition({"name": name, "prompt": "Do."})


def test_a_seed_that_asks_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="nothing to answer"):
        read_definition({"name": "a", "messages": [{"role": "system", "text": "Be kind."}]})


def test_one_automation_that_is_wanted_too_often_keeps_no_other_from_its_event(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.automations.executing.MOST_QUEUED", 2)
    a, b = stage.automation("a", triggers=["rain"]), stage.automation("b", triggers=["rain"], slot="other")
    for n in range(4):
        stage.room.fire("rain", {"n": n})
        while stage.active("other"):
            stage.room.stop(stage.active("other").id)  # type: ignore[union-attr]
    assert len(stage.of(b)) == 4
    assert len(stage.of(a)) == 3
    assert [f["automation"] for f in stage.told("automation_not_run")] == [a]


def test_only_what_was_planned_is_dismissed(stage: Stage) -> None:  # T001-r
    a = stage.automation("a", triggers=["rain"], dismiss_older_instances=True)
    for n in range(2):
        stage.room.fire("rain", {"n": n})
        stage.room.pause(stage.of(a)[n].id, span=60)
    stage.pass_(minutes=2)
    stage.tick()
    stage.work()
    assert stage.ends(a) == ["COMPLETED", "COMPLETED"]


def test_an_event_that_cannot_be_told_is_said_and_stops_nothing(stage: Stage) -> None:
    a = stage.automation("a", "08:01", triggers=["odd"])
    stage.room._look()
    stage.at(8, 1)
    stage.app.events.emit("odd", "info", number=2**70, mapping={1: 2})
    stage.room.keep()
    assert [f["event"] for f in stage.told("automation_not_run")] == ["odd"]
    assert [s.trigger for s in stage.of(a)] == [ExecutionTrigger.SCHEDULED]


def test_the_same_key_of_a_session_that_has_ended_waits_for_nothing(stage: Stage) -> None:
    stage.automation("a")
    stage.room.run("a", key="k")
    stage.work()
    again = stage.room.run("a", key="k")
    assert (again.control, again.created, again.session.status) == (None, False, Status.ENDED)


def test_what_was_asked_for_by_hand_of_one_that_is_off_is_not_said_to_be_kept_by_that(stage: Stage) -> None:
    a = stage.automation("a")
    stage.room.disable(a)
    stage.room.chat()
    stage.room.run(a)
    assert {c.name: c.met for c in stage.room.why(a)}["enabled"]


def test_when_many_run_next_is_one_question(stage: Stage) -> None:
    made = [
        stage.room.create({"name": f"a{n}", "prompt": "Do.", "schedule": {"kind": "daily", "at": "09:00", "tz": "UTC"}})
        for n in range(20)
    ]
    asked = []
    facts = stage.room.controller.store.facts
    stage.room.controller.store.facts = lambda *args: asked.append(1) or facts(*args)  # type: ignore[method-assign,func-returns-value]
    assert set(stage.room.next_runs(made).values()) == {at(9)}
    assert len(asked) == 1


def test_a_chat_that_nobody_answers_ends_with_a_sentence_and_in_failure(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duly.automations import Automations
    from duly.cli.chat import _Talk

    app = Duly(sqlite_url)
    room = Automations(app)
    talk = _Talk(room, room.chat().session)
    said = room.say

    def say_and_lose(ident: int, words: str, **more: Any) -> object:
        out = said(ident, words, **more)
        app.db.write(lambda c: room.controller.store.set_job(c, ident, None))
        return out

    monkeypatch.setattr(room, "say", say_and_lose)
    from click import command

    @command
    def main() -> None:
        raise SystemExit(talk.run("Hello?"))

    result = CliRunner().invoke(main)
    assert result.exit_code == 1
    assert "no answer: the worker that was to answer was lost" in result.stderr
    app.close()


def test_stretches_of_skipped_runs_are_forgotten_in_time_but_the_last(make_stage: object) -> None:
    stage: Stage = make_stage(automation_retention=86_400.0)  # type: ignore[operator]
    every = {"kind": "every", "duration": 60, "anchor": at(0).isoformat()}
    a = stage.room.create(
        {"name": "a", "prompt": "Do.", "schedule": every, "provider": "ai", "dismiss_older_instances": True}
    ).id
    for _ in range(3):
        stage.pass_(minutes=10)
        stage.tick()
        stage.work()
    stage.room.disable(a)
    assert stage.rows("SELECT count(*) FROM automation_skips") == [(3,)]
    stage.pass_(days=3)
    stage.room._prune()
    assert stage.rows("SELECT count(*) FROM automation_skips") == [(1,)]
