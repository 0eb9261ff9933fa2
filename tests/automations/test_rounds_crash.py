"""SIGKILL in the middle of rounds: the same session goes on with nothing added, and no effect stands twice (R001-16, T001-b, T001-z)."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from automations import crash_program as program
from crash.scene import Scene, start_nursery
from duly.automations import Automations
from duly.automations.calls import INTERRUPTED
from duly.automations.providers.base import Message, Role
from duly.automations.session import SessionEndReason
from soaking import sqlite_first

pytestmark = pytest.mark.slow

db_url = sqlite_first()

#: The commits of a run in which nobody dies, the end aside: begun, answered, note called, note closed, task made, put down, task closed, begun,
#: answered, finish noted. The effect of ``book`` is a commit of its own.
COMMITS = 10
BOTH = {"automations": 5, "files": 5}
ROLES = [Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL, Role.TOOL, Role.ASSISTANT, Role.TOOL]


@pytest.fixture(scope="module", autouse=True)
def nursery() -> None:
    start_nursery()


@pytest.fixture
def scene(db_url: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(db_url, tmp_path, lease=0.5, sqlite_synchronous="NORMAL", automation_crash_cap=100)
    made.app.open()
    made.change(program.TABLE)
    program.define(made.app)
    yield made
    made.close()


class Story:
    """One session, and what the test sees of it."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene, self.room = scene, Automations(scene.app)
        scene.change("DELETE FROM effects")
        self.before = len(scene.journal())
        self.room.create({"name": name, "prompt": "Do it.", "provider": "model", "tools": program.TOOLS})
        self.id = self.room.run(name).session.id

    @property
    def session(self) -> Any:
        return self.room.session(self.id)

    def messages(self) -> list[Message]:
        return self.scene.app.db.read(lambda c: self.room.controller.records.messages(c, self.id))

    def has_ended(self) -> bool:
        self.room.tick()
        return self.session.end_reason is not None

    def wait(self) -> None:
        self.scene.wait(self.has_ended, 240, f"the end of session {self.id}")

    def check(self) -> None:
        """It has ended as if nothing had happened."""
        session, scene = self.session, self.scene
        assert (session.end_reason, session.end_detail) == (SessionEndReason.COMPLETED, "done")
        messages = self.messages()
        assert [m.role for m in messages] == ROLES
        lines = scene.journal()[self.before :]
        noted = sum(line["what"] == "noted" for line in lines)
        # an effect outside of our database stands at most once; where it was cut off the model is told so
        assert messages[2].text in ('"noted"', INTERRUPTED)
        assert noted == 1 or (noted == 0 and messages[2].text == INTERRUPTED)
        assert [m.text for m in messages[3:5]] == ['"booked"', '"filed"']
        assert sorted(name for (name,) in scene.sql("SELECT name FROM effects")) == ["book", "file"]
        # one that is asked again is told exactly the same
        asked = [(line["round"], line["told"]) for line in lines if line["what"] == "asked"]
        assert len(set(asked)) == 2, asked
        rounds = self.room.rounds(self.id)
        # a question whose worker died was asked, and may be billed: what was reserved for it stays counted (R001-50)
        assert [r.number for r in rounds] == [1, 2]
        assert [r.input_tokens >= least for r, least in zip(rounds, (10, 20), strict=True)] == [True, True]
        assert session.tokens_used == sum(r.input_tokens + r.output_tokens for r in rounds)
        assert scene.sql("SELECT count(*) FROM jobs WHERE task = 'AI_SESSION' AND status = 'queued'") == [(0,)]


def test_a_session_in_which_nobody_dies_has_so_many_commits(scene: Scene) -> None:
    story = Story(scene, "calm")
    alone = scene.act("alone", program.run_worker, BOTH, until_idle=0.5, kill_at="committed", kill_after=COMMITS)
    assert alone.ended() == 0, alone.log
    story.wait()
    story.check()
    assert story.session.crashes == 0


#: Which commits a worker is killed at. `make test`: before and after those that could double an effect or lose an answer, the answer itself, the
#: closing of a call and the putting down for a task; `make soak`: at every one.
KILLS = [
    pytest.param("written", (1, 3), id="written-some"),
    pytest.param("committed", (1, 4), id="committed-some"),
    pytest.param("written", range(COMMITS), id="written", marks=pytest.mark.soak),
    pytest.param("committed", range(COMMITS), id="committed", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("step", "kills"), KILLS)
def test_a_worker_killed_before_or_after_a_commit_of_a_round_doubles_nothing(
    scene: Scene, step: str, kills: Collection[int]
) -> None:
    deaths = 0
    for after in kills:
        story = Story(scene, f"{step}-{after}")
        dying = scene.act(f"dying-{after}", program.run_worker, BOTH, kill_at=step, kill_after=after)
        # a job that is put down may be taken for lost at the same moment: then that commit is not counted, and the last step not reached
        scene.wait(lambda dying=dying, story=story: not dying.alive or story.has_ended(), 240, "a death")
        if dying.alive:
            dying.signal(signal.SIGTERM)
        deaths += dying.ended() == -signal.SIGKILL
        next = scene.act(f"next-{after}", program.run_worker, BOTH)
        story.wait()
        story.check()
        next.signal(signal.SIGTERM)
        next.ended()
    assert deaths >= len(kills) - 1


@pytest.mark.parametrize("step", program.STEPS)
def test_a_worker_killed_beside_an_effect_doubles_nothing(scene: Scene, step: str) -> None:
    story = Story(scene, step)
    dying = scene.act("dying", program.run_worker, BOTH, kill_at=step)
    assert dying.ended() == -signal.SIGKILL, f"{step}: {dying.log}"
    scene.act("next", program.run_worker, BOTH)
    story.wait()
    story.check()


def test_a_session_whose_worker_is_killed_with_every_other_commit_ends_all_the_same(scene: Scene) -> None:
    # with every commit it would not get beyond the beginning of a question, which is written anew each time
    story, deaths = Story(scene, "unlucky"), 0
    scene.act("files", program.run_worker, {"files": 5})
    while not story.has_ended():
        worker = scene.act(
            f"w{deaths}", program.run_worker, {"automations": 5}, kill_at="committed", kill_after=1, until_idle=0.3
        )
        deaths += worker.ended() != 0
        assert deaths < 20, worker.log
    assert deaths >= 4
    story.check()


def test_a_session_that_kills_its_worker_each_time_is_given_up(db_url: str, tmp_path: Path) -> None:
    # T001-z
    scene = Scene(db_url, tmp_path, lease=0.5, sqlite_synchronous="NORMAL", automation_crash_cap=2)
    try:
        scene.app.open()
        scene.change(program.TABLE)
        program.define(scene.app)
        story, deaths = Story(scene, "deadly"), 0
        while not story.has_ended():
            worker = scene.act(f"w{deaths}", program.run_worker, BOTH, kill_at="model.asked", until_idle=0.3)
            deaths += worker.ended() != 0
            assert deaths < 10
        assert (story.session.end_reason, deaths) == (SessionEndReason.ERROR, 3)
        assert story.session.end_detail == "its worker was lost 3 times in a row"
    finally:
        scene.close()
