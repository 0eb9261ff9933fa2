"""What would a window hold? Counted, and nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import update

from contract.hands import NOON, rows
from duly import Daily, Duly, InvalidArgument, Window
from duly.jobs.impact import impact
from duly.jobs.store import FAR
from duly.jobs.tables import jobs
from duly.testing import ManualClock

Send = Callable[..., list[int]]
HOUR = timedelta(hours=1)
#: From 13:00 to 15:00 each day; NOON is Monday at 12:00 UTC.
LUNCH = Window(start="13:00", end="15:00", tz="UTC", scope="queue:mail")


def test_jobs_whose_moment_falls_into_the_window_are_counted_by_queue(app: Duly, send: Send) -> None:
    send(1, queue="mail")  # ready: it starts before the window begins
    held = [send(1, queue="mail", run_at=NOON + n * HOUR)[0] for n in (1, 2, 25)]
    for n in (0.5, 3, 27):  # 13:00 is in, 15:00 is not
        send(1, queue="mail", run_at=NOON + n * HOUR)
    send(1, queue="web", run_at=NOON + HOUR)
    found = app.calendars.impact(LUNCH)
    assert (found.start, found.end, len(found.stretches)) == (NOON, NOON + timedelta(days=7), 7)
    [queue] = found.queues
    assert (queue.queue, queue.count, [j.id for j in queue.first]) == ("mail", 3, held)
    assert [j.at for j in queue.first] == [NOON + n * HOUR for n in (1, 2, 25)]
    assert len(app.calendars.impact(Window(start="13:00", end="15:00", tz="UTC")).queues) == 2
    assert app.calendars.all() == {} and rows(app, "SELECT count(*) FROM audit_log WHERE entity = 'blackout'") == [(0,)]


def test_ready_jobs_are_held_by_a_window_that_holds_now(app: Duly, send: Send) -> None:
    ready = send(7, queue="mail")
    found = app.calendars.impact(Window(start="11:00", end="13:00", tz="UTC", scope="queue:mail"))
    assert (found.queues[0].count, [j.id for j in found.queues[0].first]) == (7, ready[:5])
    assert (
        app.calendars.impact(Window(start="11:00", end="13:00", tz="UTC", scope="channel:mail")).queues == found.queues
    )
    assert {j.at for j in found.queues[0].first} == {NOON}


def test_the_first_are_those_that_would_start_first(app: Duly, send: Send, clock: ManualClock) -> None:
    """By priority, also where some became due and no worker has noticed yet; then those that come later, by their moment."""
    low = send(2, queue="mail")
    [due] = send(1, queue="mail", run_at=NOON + HOUR, priority=5)
    [later] = send(1, queue="mail", run_at=NOON + 3 * HOUR, priority=9)
    high = send(1, queue="mail", priority=7)
    clock.advance(HOUR)
    [queue] = app.calendars.impact(Window(tz="UTC", scope="queue:mail")).queues
    assert (queue.count, queue.at_least) == (5, False)
    assert [j.id for j in queue.first] == [*high, due, *low, later]


def test_jobs_of_other_queues_hide_none_that_is_due(app: Duly, send: Send, clock: ManualClock) -> None:
    """However many became due before it; and of those that are ready the order is that of claims."""
    send(1_005, queue="web", run_at=NOON + timedelta(minutes=1))
    [due] = send(1, queue="mail", run_at=NOON + timedelta(minutes=5))
    clock.advance(timedelta(minutes=10))
    [ready] = send(1, queue="mail")
    [later] = send(1, queue="mail", run_at=NOON + HOUR)
    [queue] = app.calendars.impact(Window(tz="UTC", scope="queue:mail")).queues
    assert [j.id for j in queue.first] == [due, ready, later]
    assert [(q.queue, q.count, q.first[0].id) for q in app.calendars.impact(Window(tz="UTC")).queues] == [
        ("mail", 3, due),
        ("web", 1_005, 1),
    ]


def test_of_a_deep_backlog_what_is_not_counted_to_the_end_says_so(
    app: Duly, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.jobs.impact.MOST_DUE", 6)
    for n in range(1, 5):
        send(1, queue="mail", run_at=NOON + n * HOUR)
        send(1, queue="web", run_at=NOON + n * HOUR)
    window = Window(tz="UTC")
    found = app.calendars.impact(window).queues
    assert [(q.queue, q.count, q.at_least, len(q.first)) for q in found] == [("mail", 3, True, 3), ("web", 3, True, 3)]
    [web] = app.calendars.impact(Window(tz="UTC", scope="queue:web")).queues
    assert (web.count, web.at_least) == (3, True)
    monkeypatch.setattr("duly.jobs.impact.MOST_DUE", 9)
    assert [(q.count, q.at_least) for q in app.calendars.impact(window).queues] == [(4, False)] * 2


def test_a_window_of_another_scope_holds_no_job_of_a_queue(app: Duly, send: Send) -> None:
    send(1, queue="mail", run_at=NOON + HOUR)
    for scope in ("channel:other", "schedule:mail", "queue:other"):
        assert app.calendars.impact(Window(tz="UTC", scope=scope)).queues == ()


def test_a_parent_that_waits_for_its_children_is_not_counted(app: Duly, send: Send) -> None:
    send(1, queue="mail")
    app.db.write(lambda c: c.execute(update(jobs).values(due_at=FAR)))  # as such a parent is kept
    assert app.calendars.impact(Window(tz="UTC")).queues == ()


def test_occurrences_of_schedules_come_from_whoever_knows_them(app: Duly) -> None:
    app.open()
    asked = []

    def planned(start, end):  # type: ignore[no-untyped-def]
        asked.append((start, end))
        yield "lunch", {"schedule:lunch", "queue:mail"}, iter([start, start + HOUR])
        yield "other", {"schedule:other", "queue:web"}, iter([start])

    found = impact(app.db, LUNCH, NOON, NOON + timedelta(days=2), planned)
    assert asked == [(NOON + n * HOUR, NOON + (n + 2) * HOUR) for n in (1, 25)]
    [schedule] = found.schedules
    assert (schedule.schedule, schedule.count, schedule.first[0]) == ("lunch", 4, NOON + HOUR)
    everything = impact(app.db, Window(start="13:00", end="15:00", tz="UTC"), NOON, None, planned)
    assert [s.schedule for s in everything.schedules] == ["lunch", "other"]


def test_the_schedules_of_an_application_are_asked(app: Duly) -> None:
    @app.task("X", queue="mail")
    def x() -> None: ...

    app.schedule("lunch", Daily("14:00", tz="UTC"), x)
    app.schedules.sync()
    [schedule] = app.calendars.impact(LUNCH).schedules
    assert (schedule.schedule, schedule.count, schedule.first[0]) == ("lunch", 7, NOON + 2 * HOUR)
    app.schedules.pause("lunch")
    assert app.calendars.impact(LUNCH).schedules == ()


@pytest.mark.parametrize("end", [NOON, NOON - HOUR, NOON + timedelta(days=401)])
def test_a_time_that_cannot_be_looked_at_is_refused(app: Duly, end: object) -> None:
    with pytest.raises(InvalidArgument):
        app.calendars.impact(LUNCH, NOON, end)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        app.calendars.impact(LUNCH, NOON.replace(tzinfo=None))
