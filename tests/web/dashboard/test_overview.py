"""What the overview draws: how much ended lately, and how soon after it was due."""

from __future__ import annotations

from datetime import timedelta

from starlette.testclient import TestClient

from duly import Duly, PermanentError
from duly.testing import ManualClock, drain
from duly.web.dashboard.pages.overview import STRETCHES, beats_of
from web.dashboard.scene import START


def test_ends_failures_and_delays_stand_in_their_stretch(app: Duly, time: ManualClock) -> None:
    @app.task("work")
    def work(fails: bool = False) -> None:
        if fails:
            raise PermanentError("no")

    time.set(START)  # 06:02
    for fails in (False, False, True):
        work.enqueue(fails)
    work.using(tenant="other").enqueue()
    time.advance(90)
    drain(app)
    time.set(START + timedelta(minutes=11))
    work.enqueue()
    drain(app)
    beats = app.db.read(lambda c: beats_of(app, c, None))
    assert len(beats) == STRETCHES
    assert [beat.start.strftime("%H:%M") for beat in beats[-3:]] == ["06:00", "06:05", "06:10"]
    assert [(beat.ended, beat.failed, beat.p50, beat.p95) for beat in beats[-3:]] == [
        (4, 1, 90.0, 90.0),
        (0, 0, None, None),
        (1, 0, 0.0, 0.0),
    ]
    assert sum(beat.ended for beat in beats[:-3]) == 0
    mine = app.db.read(lambda c: beats_of(app, c, "other"))
    assert [beat.ended for beat in mine[-3:]] == [1, 0, 0]


def test_the_tile_of_alerts_never_says_none_where_nobody_judges(
    app: Duly, local: TestClient, time: ManualClock
) -> None:  # A5
    assert "not known" in local.get("/").text
    app.alerts.judge("somebody")
    assert "nothing is raised" in local.get("/").text
    time.advance(timedelta(minutes=9))
    for path in ("/", "/alerts", "/api/v1/alerts"):
        assert "last judged 9 minutes ago" in local.get(path).text
