"""The ticks on both databases: what they do, that they do it once, and that what fails fails alone."""

from __future__ import annotations

import random
import threading
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError

from duly import Duly
from duly.kernel.errors import InvalidArgument
from duly.rounds import Rounds, Status
from duly.rounds.store import _ANY, _DUE, TickStore
from duly.rounds.tick import BATCH
from duly.storage.locks import lock_key
from duly.testing import ManualClock, drain, enqueued
from rounds.hands import Ear, allow, ask, change, ready, refuse, scalar, utc

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def counts(report: Any) -> tuple[int, int, int]:
    return report.done, report.skipped, report.failed


# --- A round's life ----------------------------------------------------------------------------------------------------


def test_a_round_is_planned_opens_at_its_local_time_and_closes_exactly_24_hours_after(
    rounds: Rounds, app: Duly, clock: ManualClock
) -> None:
    # R000-1, R000-5, R000-9 to R000-12, R000-14
    ready(rounds, "Paris", "Europe/Paris")
    assert counts(rounds.plan()) == (1, 0, 0)
    (planned,) = rounds.list()
    assert (planned.status, planned.scheduled_for, planned.planned_at) == (
        Status.SCHEDULED,
        date(2026, 6, 1),
        utc("2026-06-01 16:00"),
    )
    assert planned.prompt_id is not None
    assert planned.prompt_text is None

    clock.set(utc("2026-06-01 15:59:59.999999"))
    assert counts(rounds.open()) == (0, 0, 0)
    clock.set(utc("2026-06-01 16:03"))
    assert counts(rounds.open()) == (1, 0, 0)
    opened = rounds.get(planned.id)
    assert (opened.status, opened.open_at, opened.close_at) == (
        Status.OPEN,
        utc("2026-06-01 16:00"),
        utc("2026-06-02 16:00"),
    )
    assert (opened.opened_at, opened.late) == (utc("2026-06-01 16:03"), 180)
    assert opened.prompt_text == next(p.text for p in rounds.prompts.all("Paris") if p.id == opened.prompt_id)

    clock.set(utc("2026-06-02 15:59:59.999999"))
    assert counts(rounds.close()) == (0, 0, 0)
    clock.set(utc("2026-06-02 16:00"))
    assert counts(rounds.close()) == (1, 0, 0)
    closed = rounds.get(planned.id)
    assert (closed.status, closed.closed_at, closed.close_at) == (Status.CLOSED, clock.now(), opened.close_at)


@pytest.mark.parametrize(
    ("on", "opens", "closes"),
    [("2026-10-24", "2026-10-24 16:00", "2026-10-25 16:00"), ("2026-03-28", "2026-03-28 17:00", "2026-03-29 17:00")],
)
def test_a_second_before_its_end_a_round_is_open_also_on_a_day_of_23_or_25_hours(
    rounds: Rounds, clock: ManualClock, on: str, opens: str, closes: str
) -> None:
    # B012
    clock.set(utc(f"{on} 09:00"))
    ready(rounds, "Paris", "Europe/Paris")
    rounds.plan()
    clock.set(utc(opens))
    rounds.open()
    (opened,) = rounds.list(status="open")
    assert (opened.open_at, opened.close_at) == (utc(opens), utc(closes))
    clock.set(utc(closes) - timedelta(seconds=1))
    assert rounds.close().done == 0
    clock.set(utc(closes))
    assert rounds.close().done == 1


def test_in_a_gap_a_round_opens_once_at_the_first_instant_after_it(
    rounds: Rounds, app: Duly, clock: ManualClock
) -> None:
    # B013, T000-g, R000-13
    clock.set(utc("2026-03-29 00:00"))
    ready(rounds, "Paris", "Europe/Paris", drop_time="02:30", members=3)
    rounds.plan()
    done = []
    at = utc("2026-03-29 00:30")
    while at <= utc("2026-03-29 02:00"):
        clock.set(at)
        if rounds.open().done:
            done.append(at)
        at += timedelta(minutes=5)
    assert done == [utc("2026-03-29 01:00")]
    (opened,) = rounds.list()
    assert (opened.open_at, opened.close_at) == (utc("2026-03-29 01:00"), utc("2026-03-30 01:00"))
    assert len(enqueued(app, "ROUNDS_NOTIFY_LOG")) == 3


def test_in_a_fold_a_tick_after_the_clock_has_gone_back_still_opens(rounds: Rounds, clock: ManualClock) -> None:
    # T000-d, T000-g: 02:30 has been; the wall shows 02:05 for the second time
    ready(rounds, "Paris", "Europe/Paris", drop_time="02:30")
    clock.set(utc("2026-10-24 22:30"))
    rounds.plan()
    clock.set(utc("2026-10-25 01:05"))
    assert rounds.open().done == 1
    (opened,) = rounds.list()
    assert opened.open_at == utc("2026-10-25 00:30")


def test_dates_are_those_of_the_groups_walls(rounds: Rounds, clock: ManualClock) -> None:
    # B015, R000-9
    ready(rounds, "Auckland", "Pacific/Auckland", drop_time="09:00")
    clock.set(utc("2026-06-30 13:05"))
    assert rounds.plan().done == 1
    ready(rounds, "Los Angeles", "America/Los_Angeles", drop_time="21:30")
    ready(rounds, "Kiritimati", "Pacific/Kiritimati", drop_time="20:00")
    clock.set(utc("2026-07-01 05:00"))
    assert rounds.plan().done == 2
    assert {(r.zone, str(r.scheduled_for), r.planned_at) for r in rounds.list()} == {
        ("Pacific/Auckland", "2026-07-01", utc("2026-06-30 21:00")),
        ("America/Los_Angeles", "2026-06-30", utc("2026-07-01 04:30")),
        ("Pacific/Kiritimati", "2026-07-01", utc("2026-07-01 06:00")),
    }
    assert counts(rounds.plan()) == (0, 0, 0)  # again at once, with no effect
    assert rounds.open().done == 2  # Auckland since long, Los Angeles at once
    assert len(rounds.list()) == 3


def test_a_tick_can_be_run_again_at_once_without_any_effect(rounds: Rounds, app: Duly, clock: ManualClock) -> None:
    # R000-3, R000-13, R000-14
    ready(rounds, "a", members=2)
    for step, at in ((rounds.plan, "10:00"), (rounds.open, "18:00")):
        clock.set(utc(f"2026-06-01 {at}"))
        assert counts(step()) == (1, 0, 0)
        before = ask(app, "SELECT * FROM rounds"), len(enqueued(app))
        assert [counts(step()) for _ in range(3)] == [(0, 0, 0)] * 3
        assert (ask(app, "SELECT * FROM rounds"), len(enqueued(app))) == before
    clock.advance(DAY)
    assert counts(rounds.close()) == (1, 0, 0)
    before = ask(app, "SELECT * FROM rounds")
    clock.advance(HOUR)
    assert counts(rounds.close()) == (0, 0, 0)
    assert ask(app, "SELECT * FROM rounds") == before


def test_a_late_close_does_not_delay_the_next_round(rounds: Rounds, clock: ManualClock) -> None:
    # T000-b, R000-5
    ready(rounds, "a")
    rounds.plan()
    clock.set(utc("2026-06-01 18:00"))
    rounds.open()
    clock.set(utc("2026-06-03 17:30"))  # a day without ticks
    assert rounds.close().done == 1
    assert rounds.plan().done == 0
    clock.set(utc("2026-06-03 18:00"))
    assert rounds.plan().done == 1
    assert rounds.list()[0].scheduled_for == date(2026, 6, 3)
    assert rounds.open().done == 1
    assert rounds.list()[0].open_at == utc("2026-06-03 18:00")


def test_the_hour_does_not_drift_with_the_ticks(rounds: Rounds, clock: ManualClock) -> None:
    # T000-c, T000-e, T000-f: a round every 48 h, however late within the limit the ticks are
    ready(rounds, "a")
    numbers = random.Random(3)
    for day in range(0, 20, 2):
        clock.set(utc("2026-06-01 17:50") + day * DAY)
        if day:
            assert rounds.plan().done == 0
            clock.set(utc("2026-06-01 18:00") + day * DAY + numbers.randint(0, 55) * timedelta(minutes=1))
        assert rounds.plan().done == 1
        clock.set(max(clock.now(), utc("2026-06-01 18:00") + day * DAY) + timedelta(minutes=numbers.randint(1, 5)))
        assert rounds.open().done == 1
        assert rounds.list()[0].open_at == utc("2026-06-01 18:00") + day * DAY
        late = rounds.list()[0].late
        assert late is not None
        assert late <= 300
        clock.set(utc("2026-06-02 18:00") + day * DAY + numbers.randint(0, 20) * timedelta(minutes=1))
        assert rounds.close().done == 1


def test_after_an_outage_members_still_get_their_24_hours(rounds: Rounds, clock: ManualClock, ear: Ear) -> None:
    # T000-f, R000-20
    ready(rounds, "a")
    rounds.plan()
    clock.set(utc("2026-06-02 07:10"))
    report = rounds.open()
    (opened,) = rounds.list()
    assert (opened.open_at, opened.close_at) == (clock.now(), clock.now() + DAY)
    assert opened.late == report.most_late == 13 * 3600 + 600
    assert ear.named("rounds_moved")[-1]["lates"] == [opened.late]


def test_a_naive_instant_is_refused(rounds: Rounds) -> None:
    with pytest.raises(InvalidArgument, match="without a time zone"):
        rounds.plan(datetime(2026, 6, 1))


def test_a_tick_takes_the_instant_it_is_given(rounds: Rounds) -> None:
    ready(rounds, "a")
    assert rounds.plan(utc("2026-06-05 09:00")).done == 1
    assert rounds.list()[0].scheduled_for == date(2026, 6, 5)


# --- Who gets a round --------------------------------------------------------------------------------------------------


def test_only_active_groups_are_planned(rounds: Rounds, app: Duly) -> None:
    # R000-4
    ready(rounds, "off", is_active=False)
    ready(rounds, "by hand")
    change(app, "UPDATE groups SET is_active = false WHERE name = 'by hand'")
    assert counts(rounds.plan()) == (0, 0, 0)
    rounds.groups.set("off", is_active=True)
    assert counts(rounds.plan()) == (1, 0, 0)


def test_a_group_without_prompts_is_skipped_told_and_tried_at_the_next_tick(
    rounds: Rounds, clock: ManualClock, ear: Ear
) -> None:
    # T000-h, R000-8: prompts of others, and those that are not active, do not count
    group = ready(rounds, "none", prompts=0)
    ready(rounds, "other")
    (prompt,) = rounds.prompts.add(group.id, "not now")
    rounds.prompts.set(prompt.id, is_active=False)
    assert counts(rounds.plan()) == (1, 1, 0)
    told = ear.named("rounds_left")
    assert told == [{"kind": "plan", "reason": "NO_ELIGIBLE_PROMPT", "count": 1, "groups": [group.id]}]
    clock.advance(HOUR)
    assert counts(rounds.plan()) == (0, 1, 0)
    rounds.prompts.set(prompt.id, is_active=True)
    clock.advance(HOUR)
    assert counts(rounds.plan()) == (1, 0, 0)
    assert rounds.list("none")[0].prompt_id == prompt.id


def test_three_kinds_of_groups_choose_as_they_should_in_one_run_whatever_is_drawn(
    app: Duly, clock: ManualClock
) -> None:
    # B019, R000-7, R000-8, T000-h, T000-i: of each kind 200 groups, and 200 seeds
    numbers = (random.Random(seed).random() for _ in range(3) for seed in range(200))
    rounds = Rounds(app, draw=lambda: next(numbers))
    series = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {})"
    first = ready(rounds, "first", is_active=False)
    now = f"(SELECT created_at FROM groups WHERE id = {first.id})"
    for kind, prompts in (("A", 8), ("B", 7), ("C", 12)):
        change(
            app,
            "INSERT INTO groups (tenant, name, zone, is_active, notifications, plan_at, created_at, updated_at, updated_by) "
            f"{series.format(200)} SELECT 'default', '{kind}' || n, 'UTC', true, true, {now}, {now}, {now}, 'test' FROM s",
        )
        change(
            app,
            f"INSERT INTO group_prompts (group_id, text, is_active, created_at) {series.format(prompts + 1)} "
            f"SELECT g.id, 'p' || n, n <= {prompts}, {now} FROM s, groups g WHERE substr(g.name, 1, 1) = '{kind}'",
        )
    for n in range(1, 8):
        change(
            app,
            "INSERT INTO rounds (tenant, group_id, scheduled_for, status, zone, drop_time, planned_at, prompt_id, open_at, close_at, "
            f"created_at, opened_at, closed_at) SELECT 'default', group_id, '2026-05-0{n}', 'closed', 'UTC', '18:00', {now}, id, {now}, {now}, "
            f"{now}, {now}, {now} FROM group_prompts WHERE text = 'p{n}' AND group_id <> {first.id}",
        )
    clock.advance(2 * DAY)
    assert counts(rounds.plan()) == (600, 0, 0)
    chosen: dict[str, set[str]] = {}
    for kind, words in ask(
        app,
        "SELECT substr(g.name, 1, 1), p.text FROM rounds r JOIN groups g ON g.id = r.group_id "
        "JOIN group_prompts p ON p.id = r.prompt_id AND p.group_id = g.id WHERE r.status = 'scheduled'",
    ):
        chosen.setdefault(kind, set()).add(words)
    # of B all were used lately: the one that was longest unused
    assert chosen == {"A": {"p8"}, "B": {"p1"}, "C": {"p8", "p9", "p10", "p11", "p12"}}


def test_a_prompt_used_by_the_seventh_last_round_is_not_chosen_and_the_eighth_last_may_be(
    rounds: Rounds, clock: ManualClock
) -> None:
    # R000-7 in the long run: with 8 prompts the order, once it is found, repeats
    ready(rounds, "a", prompts=8, cooldown=0)
    for _ in range(24):
        rounds.plan()
        clock.advance(DAY)
        rounds.open()
        clock.advance(DAY)
        rounds.close()
    used = [r.prompt_id for r in reversed(rounds.list())]
    assert len(used) == 24
    assert all(len(set(used[n : n + 8])) == 8 for n in range(len(used) - 7))


def test_a_group_that_moved_west_meets_the_same_date_again_and_waits(
    rounds: Rounds, clock: ManualClock, ear: Ear
) -> None:
    # T000-q, R000-2
    clock.set(utc("2026-06-01 01:00"))
    ready(rounds, "a", "Pacific/Kiritimati", cooldown=0)
    rounds.plan()
    clock.set(utc("2026-06-01 04:00"))
    rounds.open()
    clock.set(utc("2026-06-02 04:00"))
    rounds.close()
    rounds.groups.set("a", zone="Pacific/Pago_Pago")  # the first of June again
    assert counts(rounds.plan()) == (0, 1, 0)
    assert ear.named("rounds_left")[-1]["reason"] == "date_taken"
    clock.set(utc("2026-06-02 11:00"))
    assert counts(rounds.plan()) == (1, 0, 0)


# --- Between planning and opening --------------------------------------------------------------------------------------


def test_the_text_is_copied_when_a_round_opens_and_stays(rounds: Rounds, clock: ManualClock) -> None:
    # T000-j
    group = ready(rounds, "a", prompts=0)
    (prompt,) = rounds.prompts.add(group.id, "first words")
    rounds.plan()
    rounds.prompts.set(prompt.id, text="second words")
    clock.set(utc("2026-06-01 18:00"))
    rounds.open()
    rounds.prompts.set(prompt.id, text="third words")
    rounds.prompts.remove(prompt.id)
    (opened,) = rounds.list()
    assert opened.prompt_text == "second words"


@pytest.mark.parametrize("how", ["deactivated", "removed"])
def test_a_prompt_that_is_gone_at_the_opening_is_chosen_again(
    rounds: Rounds, clock: ManualClock, how: str, ear: Ear
) -> None:
    # T000-j
    group = ready(rounds, "a", prompts=2)
    rounds.plan()
    first = rounds.list()[0].prompt_id
    assert first is not None
    others = [p.id for p in rounds.prompts.all(group.id) if p.id != first]
    rounds.prompts.remove(first) if how == "removed" else rounds.prompts.set(first, is_active=False)
    rounds.prompts.set(others[0], is_active=False)
    clock.set(utc("2026-06-01 18:00"))
    assert counts(rounds.open()) == (0, 1, 0)
    assert ear.named("rounds_left")[-1]["reason"] == "NO_ELIGIBLE_PROMPT"
    rounds.prompts.set(others[0], is_active=True)
    assert counts(rounds.open()) == (1, 0, 0)
    assert (rounds.list()[0].prompt_id, rounds.list()[0].prompt_text) == (
        others[0],
        "p2" if others[0] > first else "p1",
    )


def test_a_group_that_is_deactivated_opens_nothing_and_closes_what_is_open(
    rounds: Rounds, app: Duly, clock: ManualClock
) -> None:
    # T000-k
    ready(rounds, "waits")
    ready(rounds, "by hand")
    ready(rounds, "runs", drop_time="11:00")
    rounds.plan()
    clock.set(utc("2026-06-01 11:00"))
    assert rounds.open().done == 1
    rounds.groups.set("waits", is_active=False, reason="holidays")
    rounds.groups.set("runs", is_active=False)
    change(app, "UPDATE groups SET is_active = false WHERE name = 'by hand'")
    clock.set(utc("2026-06-04 18:00"))
    assert counts(rounds.open()) == (0, 0, 0)
    assert counts(rounds.close()) == (1, 0, 0)
    rounds.groups.set("waits", is_active=True)
    clock.advance(timedelta(minutes=1))
    assert counts(rounds.open()) == (1, 0, 0)
    (opened,) = rounds.list("waits")
    # R000-25: for the hour at which it is activated, and not for the one it has missed
    assert (opened.scheduled_for, opened.open_at, opened.late) == (date(2026, 6, 4), utc("2026-06-04 18:00"), 60)


def test_a_changed_time_changes_the_round_that_is_not_open_and_no_other(rounds: Rounds, clock: ManualClock) -> None:
    # R000-21
    ready(rounds, "a")
    ready(rounds, "b", drop_time="10:30")
    rounds.plan()
    clock.set(utc("2026-06-01 12:00"))
    assert rounds.open().done == 1
    before = rounds.list("b")
    for name in ("a", "b"):
        rounds.groups.set(name, drop_time="15:00")
    assert rounds.list("b") == before
    assert rounds.list("a")[0].planned_at == rounds.list("a")[0].due_at == utc("2026-06-01 15:00")
    rounds.groups.set("a", drop_time="09:00")  # that is over: it opens at its next hour (R000-25)
    clock.set(utc("2026-06-01 12:02"))
    assert rounds.open().done == 0
    assert rounds.list("a")[0].due_at == rounds.next("a")[0].at == utc("2026-06-02 09:00")
    rounds.groups.set("a", drop_time="13:00")  # a slip of the pen: it is for today again
    assert (rounds.list("a")[0].scheduled_for, rounds.list("a")[0].due_at) == (
        date(2026, 6, 1),
        utc("2026-06-01 13:00"),
    )


def test_a_changed_zone_never_touches_an_open_round(rounds: Rounds, clock: ManualClock) -> None:
    # T000-q, R000-21
    ready(rounds, "a", "Europe/Paris")
    rounds.plan()
    rounds.groups.set("a", zone="America/New_York")
    assert rounds.list("a")[0].planned_at == utc("2026-06-01 22:00")
    clock.set(utc("2026-06-01 22:00"))
    rounds.open()
    before = rounds.list("a")
    rounds.groups.set("a", zone="Asia/Tokyo", drop_time="03:00", cooldown=0)
    assert rounds.list("a") == before
    clock.set(utc("2026-06-02 22:00"))
    assert rounds.close().done == 1


def test_a_changed_time_leaves_what_is_closed_as_it_was(rounds: Rounds, clock: ManualClock) -> None:
    # R000-21
    ready(rounds, "a", cooldown=0)
    rounds.plan()
    clock.set(utc("2026-06-01 18:00"))
    rounds.open()
    clock.advance(DAY)
    rounds.close()
    rounds.plan()
    waiting, closed = rounds.list("a")
    rounds.groups.set("a", drop_time="20:00", zone="Europe/Paris")
    assert rounds.get(closed.id) == closed
    assert rounds.get(waiting.id).drop_time == "20:00"


def test_a_round_that_was_put_off_while_it_was_looked_at_does_not_open(
    rounds: Rounds, app: Duly, clock: ManualClock, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    # T000-l: the change is guarded by what it starts from
    ready(rounds, "a", members=1)
    rounds.plan()
    clock.set(utc("2026-06-01 18:00"))
    look = TickStore.rounds

    def put_off(self: TickStore, connection: Any, idents: Any) -> Any:
        found = look(self, connection, idents)
        later = "due_at + 1000000" if app.db.is_sqlite else "due_at + interval '1 second'"
        connection.exec_driver_sql(f"UPDATE rounds SET due_at = {later}")
        return found

    monkeypatch.setattr(TickStore, "rounds", put_off)
    assert counts(rounds.open()) == (0, 1, 0)
    assert ear.named("rounds_left")[-1]["reason"] == "lost"
    monkeypatch.undo()
    clock.advance(1)
    assert counts(rounds.open()) == (1, 0, 0)
    assert len(enqueued(app)) == 1


def test_a_changed_cooldown_counts_at_once(rounds: Rounds, clock: ManualClock) -> None:
    # T000-c
    ready(rounds, "a")
    rounds.plan()
    clock.set(utc("2026-06-01 18:00"))
    rounds.open()
    clock.advance(DAY)
    rounds.close()
    assert rounds.plan().done == 0
    rounds.groups.set("a", cooldown=timedelta(hours=2))
    assert rounds.next("a")[0].at == utc("2026-06-03 18:00")  # free at 20:00, it waits for its hour (R000-24)
    clock.set(utc("2026-06-03 00:00"))
    assert rounds.plan().done == 1


def test_groups_that_name_none_have_the_time_and_the_cooldown_of_the_settings(db_url: str, clock: ManualClock) -> None:
    # T000-n
    app = Duly(db_url, clock=clock, rounds_drop_time="11:15", rounds_cooldown=0)
    rounds = Rounds(app)
    ready(rounds, "a")
    rounds.plan()
    assert rounds.list()[0].planned_at == utc("2026-06-01 11:15")
    clock.set(utc("2026-06-01 11:15"))
    rounds.open()
    clock.advance(DAY)
    assert [r.done for r in (rounds.close(), rounds.plan(), rounds.open())] == [1, 1, 1]
    app.close()
    with pytest.raises(InvalidArgument, match="rounds_drop_time"):
        Rounds(Duly(db_url, rounds_drop_time="6 pm"))


# --- The database's own rules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE rounds SET status = 'paused'",  # R000-1
        "UPDATE rounds SET status = 'closed'",
        "UPDATE rounds SET status = 'open'",
        "INSERT INTO rounds (tenant, group_id, scheduled_for, status, zone, drop_time, planned_at, created_at) "  # R000-2
        "SELECT tenant, group_id, scheduled_for, status, zone, drop_time, planned_at, created_at FROM rounds",
        "INSERT INTO rounds (tenant, group_id, scheduled_for, status, zone, drop_time, planned_at, created_at) "  # R000-6
        "SELECT tenant, group_id, '2020-01-01', status, zone, drop_time, planned_at, created_at FROM rounds",
    ],
)
def test_the_database_refuses_what_no_round_can_be(rounds: Rounds, app: Duly, sql: str) -> None:
    ready(rounds, "a")
    rounds.plan()
    before = rounds.list()
    with pytest.raises(IntegrityError):
        change(app, sql)
    assert rounds.list() == before


def test_a_round_that_somebody_else_made_meanwhile_is_no_error(rounds: Rounds, app: Duly, ear: Ear) -> None:
    # R000-2, R000-6
    group = ready(rounds, "a")
    other = ready(rounds, "b")
    rounds.plan()
    change(app, "UPDATE groups SET plan_at = created_at WHERE id = :g", g=group.id)  # as if it had not been seen
    assert counts(rounds.plan()) == (0, 1, 0)
    assert ear.named("rounds_left")[-1]["reason"] == "live"
    assert counts(rounds.plan()) == (0, 0, 0)
    assert len(rounds.list()) == 2
    assert other.plan_at is not None


@pytest.mark.parametrize("status", ["scheduled", "closed"])
def test_a_second_creation_at_the_same_moment_ends_with_one_round_and_no_error(
    rounds: Rounds, app: Duly, clock: ManualClock, ear: Ear, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    # R000-2, R000-6: somebody who asks for no lock, between the look and the write
    group, other = ready(rounds, "a"), ready(rounds, "b")
    look = TickStore.groups

    def meanwhile(self: TickStore, connection: Any, *args: Any) -> Any:
        found = look(self, connection, *args)
        ended = "created_at, created_at, created_at, created_at" if status == "closed" else "NULL, NULL, NULL, NULL"
        connection.exec_driver_sql(
            "INSERT INTO rounds (tenant, group_id, scheduled_for, status, zone, drop_time, planned_at, created_at, open_at, close_at, opened_at, "
            f"closed_at) SELECT tenant, id, '2026-06-01', '{status}', zone, '18:00', created_at, created_at, {ended} FROM groups WHERE id = {group.id}"
        )
        return found

    monkeypatch.setattr(TickStore, "groups", meanwhile)
    assert counts(rounds.plan()) == (1, 1, 0)
    assert ear.named("rounds_left")[-1] == {"kind": "plan", "reason": "lost", "count": 1, "groups": [group.id]}
    assert ear.named("round_failed") == []
    monkeypatch.undo()
    assert [r.group_id for r in rounds.list()] == [other.id, group.id]


# --- Isolation ---------------------------------------------------------------------------------------------------------


def test_a_zone_that_vanished_is_the_error_of_its_group_alone(
    rounds: Rounds, app: Duly, clock: ManualClock, ear: Ear
) -> None:
    # R000-18, T000-n, B010
    for n in range(3):
        ready(rounds, f"good{n}")
    bad = ready(rounds, "bad")
    change(app, "UPDATE groups SET zone = 'America/New_Yrok' WHERE id = :g", g=bad.id)
    assert counts(rounds.plan()) == (3, 0, 1)
    failed = ear.named("round_failed")
    assert [(f["kind"], f["group"]) for f in failed] == [("plan", bad.id)]
    assert "Did you mean America/New_York?" in failed[0]["error"]
    assert counts(rounds.plan()) == (0, 0, 1)  # again at the next pass
    told = rounds.groups.get("bad")
    assert (told.failures, told.error_at, told.error) == (2, clock.now(), failed[0]["error"])
    assert "New_Yrok" in rounds.next("bad")[0].reason
    rounds.groups.set("bad", zone="America/New_York")
    assert counts(rounds.plan()) == (1, 0, 0)
    assert (rounds.groups.get("bad").failures, rounds.groups.get("bad").error) == (0, None)


@pytest.mark.parametrize("kind", ["plan", "open", "close"])
def test_what_the_database_refuses_for_one_group_is_done_for_all_others(
    rounds: Rounds, app: Duly, clock: ManualClock, ear: Ear, kind: str
) -> None:
    # R000-18, R000-13
    groups = [ready(rounds, f"g{n:02}", members=1) for n in range(11)]
    bad = groups[6].id
    steps = {"plan": (rounds.plan, "10:00"), "open": (rounds.open, "18:00"), "close": (rounds.close, "18:00")}
    for name, (step, at) in steps.items():
        clock.set(utc(f"2026-06-0{2 if name == 'close' else 1} {at}"))
        if name == kind:
            refuse(app, "rounds", "INSERT" if kind == "plan" else "UPDATE", f"NEW.group_id = {bad}")
            assert counts(step()) == (10, 0, 1)
            assert [(f["kind"], f["group"]) for f in ear.named("round_failed")] == [(kind, bad)]
            assert "refused by the test" in rounds.groups.get(bad).error  # type: ignore[operator]
            allow(app, "rounds")
            assert counts(step()) == (1, 0, 0)
            assert rounds.groups.get(bad).failures == 0
        else:
            assert counts(step()) == (11, 0, 0)
    assert len(enqueued(app, "ROUNDS_NOTIFY_LOG")) == 11


def test_where_jobs_cannot_be_made_a_round_does_not_open(rounds: Rounds, app: Duly, clock: ManualClock) -> None:
    # T000-l: the change of status and the jobs are one transaction
    bad, good = ready(rounds, "bad", members=2), ready(rounds, "good", members=2)
    rounds.plan()
    clock.set(utc("2026-06-01 18:00"))
    wanted = rounds.list("bad")[0].id
    refuse(app, "jobs", "INSERT", f"substr(NEW.key, 1, {len(f'round:{wanted}:')}) = 'round:{wanted}:'")
    assert counts(rounds.open()) == (1, 0, 1)
    assert [r.status for r in rounds.list(bad.id)] == [Status.SCHEDULED]
    assert {job.input["round"] for job in enqueued(app)} == {rounds.list(good.id)[0].id}
    allow(app, "jobs")
    assert counts(rounds.open()) == (1, 0, 0)
    assert len(enqueued(app)) == 4


def test_what_fails_once_is_tried_again_in_the_same_pass(rounds: Rounds, app: Duly) -> None:
    # R000-18: bounded
    ready(rounds, "a")
    failures = iter([True, True, False])
    original = TickStore.add_rounds
    asked = []

    def add(self: Any, *args: Any) -> Any:
        asked.append(1)
        if next(failures):
            raise ValueError("for a moment")
        return original(self, *args)

    TickStore.add_rounds = add  # type: ignore[method-assign]
    try:
        assert counts(rounds.plan()) == (0, 0, 1)
        assert len(asked) == 2
        assert counts(rounds.plan()) == (1, 0, 0)
    finally:
        TickStore.add_rounds = original  # type: ignore[method-assign]


# --- Locks, and more than one worker ------------------------------------------------------------------------------------

#: Of this database: the server is shared with other tests.
LOCKS = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE l.locktype = 'advisory' AND d.datname = current_database()"


@pytest.mark.postgres
def test_a_group_that_is_locked_is_passed_by_and_the_others_go_on(pg_url: str, clock: ManualClock) -> None:
    # R000-17, T000-m
    app = Duly(pg_url, clock=clock)
    rounds, ear = Rounds(app), Ear(app)
    held, free = ready(rounds, "held"), ready(rounds, "free")
    with app.db.session_engine.connect() as other:
        other.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": lock_key("rounds", held.id)})
        assert counts(rounds.plan()) == (1, 1, 0)
        assert ear.named("rounds_left") == [{"kind": "plan", "reason": "locked", "count": 1, "groups": [held.id]}]
        assert [r.group_id for r in rounds.list()] == [free.id]
        other.rollback()
    assert counts(rounds.plan()) == (1, 0, 0)
    app.close()


@pytest.mark.postgres
def test_a_tick_that_fails_leaves_no_lock_behind(pg_url: str, clock: ManualClock) -> None:
    # B020, T000-m
    app = Duly(pg_url, clock=clock)
    rounds = Rounds(app)
    ready(rounds, "a", members=1)
    rounds.plan()
    clock.set(utc("2026-06-01 18:00"))
    ticks = rounds._ticks()

    def breaks(*_: Any) -> None:
        raise KeyboardInterrupt

    ticks.store.note_well = breaks  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        ticks.run("open")
    assert scalar(app, LOCKS) == 0
    assert rounds.list()[0].status is Status.SCHEDULED
    assert counts(rounds.open()) == (1, 0, 0)
    assert scalar(app, LOCKS) == 0
    assert len(enqueued(app)) == 1
    app.close()


def test_workers_that_tick_at_once_make_exactly_one_transition_each(db_url: str, clock: ManualClock) -> None:
    # B020, R000-2, R000-13, R000-17
    apps = [Duly(db_url, clock=clock) for _ in range(4)]
    crews = [Rounds(app) for app in apps]
    for n in range(40):
        ready(crews[0], f"g{n}", members=2, prompts=2)
    for kind, at in (("plan", "2026-06-01 10:00"), ("open", "2026-06-01 18:00"), ("close", "2026-06-02 18:00")):
        clock.set(utc(at))
        reports: list[Any] = []
        start = threading.Barrier(len(crews))

        def run(crew: Rounds, kind: str = kind, start: threading.Barrier = start, reports: list[Any] = reports) -> None:
            start.wait()
            reports.extend(getattr(crew, kind)() for _ in range(3))

        threads = [threading.Thread(target=run, args=(crew,)) for crew in crews]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(reports) == 12
        assert sum(r.done for r in reports) == 40
        assert sum(r.failed for r in reports) == 0
    assert len(crews[0].list(status="closed", limit=100)) == 40
    jobs = enqueued(apps[0], "ROUNDS_NOTIFY_LOG")
    assert len(jobs) == 80 == len({job.key for job in jobs})
    for app in apps:
        app.close()


# --- Batches, and a pass with nothing to do -----------------------------------------------------------------------------


def fill(app: Duly, n: int) -> None:
    """Many groups with a prompt each, as a bulk import would make them."""
    now = "(SELECT max(created_at) FROM groups)"
    series = (
        f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {n}) "
        if app.db.is_sqlite
        else f"WITH s AS (SELECT n FROM generate_series(1, {n}) n) "
    )
    change(
        app,
        "INSERT INTO groups (tenant, name, zone, is_active, notifications, plan_at, created_at, updated_at, updated_by) "
        f"{series} SELECT 'default', 'many' || n, 'UTC', true, true, {now}, {now}, {now}, 'test' FROM s",
    )
    change(
        app,
        f"INSERT INTO group_prompts (group_id, text, is_active, created_at) SELECT id, 'p', true, {now} FROM groups",
    )


def test_a_pass_takes_everything_that_is_due_in_batches(
    rounds: Rounds, app: Duly, clock: ManualClock, ear: Ear
) -> None:
    ready(rounds, "first", prompts=0)
    fill(app, 2 * BATCH + 30)
    n = 2 * BATCH + 31
    assert counts(rounds.plan()) == (n, 0, 0)
    assert ear.named("round_tick")[-1]["batches"] == 3
    clock.set(utc("2026-06-01 18:00"))
    assert counts(rounds.open()) == (n, 0, 0)
    clock.advance(DAY)
    assert counts(rounds.close()) == (n, 0, 0)


def test_groups_that_stay_due_are_looked_at_once_in_a_pass(rounds: Rounds, app: Duly) -> None:
    ready(rounds, "first", prompts=0)
    fill(app, BATCH + 10)
    change(app, "UPDATE group_prompts SET is_active = false")
    assert counts(rounds.plan()) == (0, BATCH + 11, 0)


def test_a_pass_with_nothing_to_do_asks_one_question_and_writes_one_line(rounds: Rounds, app: Duly) -> None:
    ready(rounds, "a")
    rounds.plan()
    said: list[str] = []
    for engine in {app.db.engine, app.db._reader}:
        event.listen(engine, "before_cursor_execute", lambda c, cur, sql, *rest: said.append(sql.split()[0]))
    for kind in ("plan", "open", "close"):
        said.clear()
        assert counts(getattr(rounds, kind)()) == (0, 0, 0)
        # the question; the line in the ledger, and its old ones
        assert [word for word in said if word in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")] == [
            "SELECT",
            "INSERT",
            "DELETE",
        ]


@pytest.mark.postgres
def test_what_is_due_is_found_by_an_index(pg_url: str) -> None:
    app = Duly(pg_url)
    rounds = Rounds(app)
    ready(rounds, "a")
    for kind, index in (("plan", "ix_groups_plan"), ("open", "ix_rounds_due"), ("close", "ix_rounds_close")):
        for sql in (_ANY[kind], _DUE[kind]):
            filled = (
                sql.replace(":now", "now()")
                .replace(":after_id", "0")
                .replace(":after", "'-infinity'")
                .replace(":n", "250")
            )

            def plan(c: Any, filled: str = filled) -> str:
                c.exec_driver_sql("SET LOCAL enable_seqscan = off")  # the tables are small here
                c.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
                return "\n".join(row[0] for row in c.exec_driver_sql(f"EXPLAIN {filled}"))

            shown = app.db.write(plan)
            assert index in shown, shown
            assert "Sort" not in shown, shown
    app.close()


# --- The ledger, and running by themselves ------------------------------------------------------------------------------


def test_every_pass_stands_in_the_ledger_until_it_is_old(rounds: Rounds, clock: ManualClock, ear: Ear) -> None:
    # R000-19, R000-20, T000-o
    ready(rounds, "a")
    rounds.plan()
    clock.set(utc("2026-06-01 18:04"))
    rounds.open()
    rounds.close()
    told = [(t.kind, t.started_at, t.done, t.skipped, t.failed, t.mean_late, t.most_late) for t in rounds.ticks()]
    assert told == [
        ("close", utc("2026-06-01 18:04"), 0, 0, 0, None, None),
        ("open", utc("2026-06-01 18:04"), 1, 0, 0, 240, 240),
        ("plan", utc("2026-06-01 10:00"), 1, 0, 0, None, None),
    ]
    assert all(t.seconds >= 0 for t in rounds.ticks())
    for said in ear.named("round_tick"):
        assert set(said) == {"kind", "seconds", "done", "skipped", "failed", "per_minute", "batches"}
    assert ear.named("round_tick")[0]["per_minute"] > 0
    clock.advance(8 * DAY)
    rounds.close()
    assert [t.kind for t in rounds.ticks()] == ["close", "open", "plan"]  # each kind forgets its own
    assert len(rounds.ticks("close")) == 1


def test_a_tick_that_breaks_is_told_and_raises(rounds: Rounds, ear: Ear) -> None:
    # R000-19
    ready(rounds, "a")
    ticks = rounds._ticks()

    def breaks(*_: Any) -> None:
        raise RuntimeError("no")

    ticks.store.due = breaks  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError):
        ticks.run("plan")
    assert ear.named("round_tick_failed") == [{"kind": "plan", "error": "RuntimeError: no"}]
    assert rounds.ticks() == []


def test_the_ticks_are_tasks_that_answer_with_their_reports(rounds: Rounds, app: Duly, clock: ManualClock) -> None:
    ready(rounds, "a", members=1)
    for name in ("PLAN", "OPEN", "CLOSE"):
        clock.set(utc({"PLAN": "2026-06-01 17:00", "OPEN": "2026-06-01 18:00", "CLOSE": "2026-06-02 18:00"}[name]))
        job = app.enqueue(f"ROUNDS_{name}").job
        drain(app, queues=["rounds"])
        ended = app.jobs.get(job.id)
        assert (ended.queue, ended.output["done"], ended.output["kind"]) == ("rounds", 1, name.lower())


def test_the_ticks_run_by_themselves_when_they_are_scheduled(rounds: Rounds, app: Duly, clock: ManualClock) -> None:
    # R000-3
    ready(rounds, "Kathmandu", "Asia/Kathmandu", members=1)
    clock.set(utc("2026-06-01 10:01"))
    rounds.schedule()
    assert set(app.schedules.sync()) == {"rounds.plan", "rounds.open", "rounds.close"}
    scheduler = app.scheduler()
    seen: dict[Status, Any] = {}

    def until(said: str) -> None:
        while clock.now() < utc(said):
            clock.advance(timedelta(minutes=1 if clock.now().minute % 5 else 5) - timedelta(seconds=clock.now().second))
            scheduler.tick()
            drain(app)
            for r in rounds.list():
                seen.setdefault(r.status, clock.now())

    until("2026-06-01 12:20")
    clock.set(utc("2026-06-02 12:00"))
    until("2026-06-02 12:20")
    # planned at the full hour; opened at 18:00 there, closed 24 h later, each at the next five minutes
    assert seen == {
        Status.SCHEDULED: utc("2026-06-01 11:00"),
        Status.OPEN: utc("2026-06-01 12:15"),
        Status.CLOSED: utc("2026-06-02 12:15"),
    }
    ran = {kind: [t.started_at for t in rounds.ticks(kind, limit=1000)] for kind in ("plan", "open", "close")}
    # the one of 12:00 on the second day came with the first look
    assert {at.minute for at in ran["plan"]} <= {0, 5}
    assert {at.minute % 5 for at in ran["open"] + ran["close"]} == {0}
    assert len(ran["plan"]) == 3
    # one opening pass more follows what planned or closed something
    assert (len(ran["open"]), len(ran["close"])) == (28 + 4 + 2, 28 + 4)
