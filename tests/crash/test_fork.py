"""An application that was used before a fork is used on both sides of it, as pre-forking web servers do."""

from __future__ import annotations

from crash import program
from crash.scene import Scene


def test_parent_and_child_enqueue_after_a_fork_and_every_job_is_run_once(scene: Scene) -> None:
    forked = scene.act("forking", program.run_fork)
    assert forked.ended() == 0, forked.log
    assert scene.errors() == []
    [parent], [child] = scene.lines("parent"), scene.lines("forked")
    assert (parent["child"], parent["seen"], child["seen"]) == (0, True, True)
    assert len({*parent["jobs"], *child["jobs"]}) == 10
    scene.worker("w", lease=60)
    scene.wait_for_end()
    jobs = [ident for (ident,) in scene.sql("SELECT id FROM jobs_done")]
    assert len(jobs) == 11
    assert scene.check(jobs, most=1) == []
    if scene.app.db.is_sqlite:
        assert scene.sql("PRAGMA integrity_check") == [("ok",)]
