"""Blackouts are kept, replaced and removed in one transaction, and what cannot be read holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from contract.hands import NOON, actions, audit, run_sql, together
from duly import Duly, InvalidArgument, NotFound, Window
from duly.calendars.store import CalendarStore
from duly.calendars.stretch import Hold
from duly.kernel.events import Event
from duly.kernel.windows import Calendar
from duly.testing import ManualClock

NIGHT = Window(days=["wed"], start="22:00", end="07:00", tz="Europe/Rome", name="quiet", scope="queue:mail")
BEGINS, ENDS = datetime(2026, 3, 4, 21, tzinfo=UTC), datetime(2026, 3, 5, 6, tzinfo=UTC)


def write_by_hand(app: Duly, name: str, scope: str, definition: str) -> None:
    run_sql(
        app,
        "INSERT INTO blackouts (name, scope, definition, enabled, version, created_at, updated_at, updated_by) "
        "SELECT :name, :scope, :definition, true, 1, updated_at, updated_at, 'somebody' FROM blackouts LIMIT 1",
        name=name,
        scope=scope,
        definition=definition,
    )


def test_a_window_comes_back_as_it_was_set_with_who_and_why(app: Duly) -> None:  # R002-8
    made = app.calendars.set(NIGHT, "the provider sleeps", "cli:ada")
    assert made == app.calendars.get("quiet") == app.calendars.all()["quiet"]
    assert (made.window, made.scope, made.enabled, made.version) == (NIGHT, "queue:mail", True, 1)
    assert (made.reason, made.updated_by, made.created_at) == ("the provider sleeps", "cli:ada", NOON)
    assert made.hold == Hold(BEGINS, ENDS)
    [row] = audit(app, "quiet")
    assert (row["action"], row["actor"], row["entity"]) == ("BLACKOUT_SET", "cli:ada", "blackout")
    assert row["meta"]["reason"] == "the provider sleeps"


def test_setting_it_again_replaces_it_and_the_trail_says_what_it_was(app: Duly, clock: ManualClock) -> None:
    app.calendars.set(NIGHT)
    clock.advance(60)
    after = app.calendars.set(Window(days="sun", tz="UTC", name="quiet"), "moved", "cli:ada")
    assert (after.version, after.scope, after.created_at) == (2, "all", NOON)
    assert after.updated_at == NOON + timedelta(seconds=60)
    assert after.hold.since == datetime(2026, 3, 8, tzinfo=UTC)
    assert audit(app, "quiet")[-1]["meta"]["was"] == NIGHT.describe()


def test_one_that_is_switched_off_holds_nothing_and_is_kept(app: Duly) -> None:
    app.calendars.set(NIGHT)
    assert not app.calendars.disable("quiet", "a fair").enabled
    assert app.calendars.covering("queue:mail", BEGINS) is None
    assert app.calendars.enable("quiet").hold == Hold(BEGINS, ENDS)
    app.calendars.enable("quiet")  # is on already: no act
    assert actions(app, "quiet") == ["BLACKOUT_SET", "BLACKOUT_DISABLED", "BLACKOUT_ENABLED"]


def test_one_that_is_removed_is_gone_and_stays_in_the_trail(app: Duly) -> None:
    app.calendars.set(NIGHT)
    assert app.calendars.remove("quiet", "no more").window == NIGHT
    assert (app.calendars.all(), actions(app, "quiet")) == ({}, ["BLACKOUT_SET", "BLACKOUT_REMOVED"])
    for act in (app.calendars.remove, app.calendars.get, app.calendars.enable, app.calendars.disable):
        with pytest.raises(NotFound):
            act("quiet")


@pytest.mark.parametrize(
    ("window", "field"),
    [
        (Window(tz="UTC"), "window.name"),
        ("22:00-07:00", "window"),
        (Window(tz="UTC", name="x", scope="queue:a\x00b"), "window.scope"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(app: Duly, window: Window, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        app.calendars.set(window)
    assert refused.value.field == field
    assert app.calendars.all() == {}


def test_there_are_only_so_many(app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.calendars.store.MOST_WINDOWS", 2)
    for name in "ab":
        app.calendars.set(Window(tz="UTC", name=name))
    with pytest.raises(InvalidArgument, match="one more than the 2 blackouts"):
        app.calendars.set(Window(tz="UTC", name="c"))
    app.calendars.set(Window(tz="UTC", name="a", days="mon"))
    assert [b.version for b in app.calendars.all().values()] == [2, 1]


def test_of_many_who_set_one_name_at_once_each_counts_and_one_is_last(app: Duly) -> None:
    def set_it(n: int) -> int:
        return app.calendars.set(Window(tz="UTC", name="quiet", start=f"{n:02}:00", end="23:00")).version

    app.open()
    found = together(*(lambda n=n: set_it(n) for n in range(6)))  # type: ignore[misc]
    assert sorted(found) == [1, 2, 3, 4, 5, 6]  # type: ignore[type-var]
    assert (len(app.calendars.all()), len(actions(app, "quiet"))) == (1, 6)


def test_the_calendar_holds_what_is_enabled_for_those_it_is_meant_for(app: Duly) -> None:
    app.calendars.set(NIGHT)
    app.calendars.set(Window(dates="2026-12-25", tz="Europe/Rome", name="christmas"))
    app.calendars.set(Window(tz="UTC", name="off"), enabled=False)
    calendar = app.db.read(CalendarStore(app.db, app.events, app.engine.left).calendar)
    assert {w.name for w in calendar.windows} == {"quiet", "christmas"}
    assert [w.name for w in calendar.applying_to("queue:other").windows] == ["christmas"]
    assert app.calendars.covering("queue:other", BEGINS) is None
    found = app.calendars.covering("queue:mail", BEGINS)
    assert found is not None and (found.until, found.names) == (ENDS, ("quiet",))
    with pytest.raises(InvalidArgument):
        app.calendars.covering("mail")


def test_a_picture_of_a_moment_ago_is_never_used(app: Duly, db_url: str) -> None:
    store, elsewhere = CalendarStore(app.db, app.events, app.engine.left), Duly(db_url)
    app.open()
    assert app.db.read(store.calendar) == Calendar()
    elsewhere.calendars.set(NIGHT)
    assert app.db.read(store.calendar) == Calendar([NIGHT])
    run_sql(app, """UPDATE blackouts SET definition = '{"tz": "UTC"}'""")  # by hand, and nothing else touched
    assert app.db.read(store.calendar).covers(NOON)
    elsewhere.close()


# --- What cannot be read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ('{"tz": "Mars/Olympus"}', "no IANA time zone"),
        ('{"start": "99:99", "tz": "UTC"}', "which no clock shows"),
        ("[]", "Give an object"),
        ('{"tz": "UTC", "hours": 3}', "is no field of a window"),
        ('{"tz": "UTC", "dates": {"a": 1}}', "dates"),
        ("17", "Give an object"),
    ],
)
def test_one_that_cannot_be_read_stops_no_other_is_told_once_and_holds_its_scope(
    app: Duly, told: list[Event], definition: str, problem: str
) -> None:
    app.calendars.set(NIGHT)
    write_by_hand(app, "broken", "queue:other", definition)
    for _ in range(3):
        calendar = app.db.read(app.engine.calendars.calendar)
    assert calendar.applying_to("queue:mail") == Calendar([NIGHT])
    assert calendar.applying_to("queue:other").ends_after(NOON) is None and calendar.applying_to("queue:other").covers(
        NOON
    )
    [event] = [e for e in told if e.name == "blackout_unreadable"]
    assert (event.level, event.facts["blackout"], event.facts["scope"]) == ("error", "broken", "queue:other")
    found = app.calendars.get("broken")
    assert found.window is None and problem in found.problem
    # it can be mended, switched off, and removed
    assert not app.calendars.disable("broken").enabled
    assert app.calendars.set(Window(tz="UTC", days="sun", name="broken")).problem == ""
    assert app.calendars.remove("broken").name == "broken"


def test_a_text_that_is_not_json_is_no_more_than_unreadable(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    app.calendars.set(NIGHT)
    run_sql(app, "UPDATE blackouts SET definition = 'quiet at night'")
    assert app.calendars.get("quiet").problem == "it is not JSON"
    app.close()


def test_a_scope_that_nobody_understands_is_refused_by_the_database(app: Duly) -> None:
    app.calendars.set(NIGHT)
    for scope in ("", "queue:", "mail", "everything"):
        with pytest.raises(Exception, match="ck_blackouts_scope"):
            run_sql(app, "UPDATE blackouts SET scope = :s", s=scope)


# --- The mover -----------------------------------------------------------------------------------------------------------


def test_a_stretch_that_is_over_is_moved_to_the_next_and_what_is_right_stays(app: Duly, clock: ManualClock) -> None:
    app.calendars.set(NIGHT)
    app.calendars.set(Window(days="sun", tz="UTC", name="sunday"))
    store = app.engine.calendars
    assert app.db.read(store.outdated) == []
    clock.set(ENDS - timedelta(microseconds=1))
    assert app.db.read(store.outdated) == []
    clock.set(ENDS)
    assert app.db.read(store.outdated) == ["quiet"]
    assert app.db.write(lambda c: store.advance(c, ["quiet", "sunday"])) == 1
    assert app.calendars.get("quiet").hold.since == BEGINS + timedelta(days=7)
    assert app.db.write(lambda c: store.advance(c, ["quiet"])) == 0
    assert actions(app, "quiet") == ["BLACKOUT_SET"]  # nobody did anything


def test_a_row_edited_by_hand_is_found_and_put_right(app: Duly) -> None:
    app.calendars.set(NIGHT)
    run_sql(app, """UPDATE blackouts SET definition = '{"days": ["thu"], "tz": "UTC"}'""")
    store = app.engine.calendars
    assert app.db.read(store.outdated) == ["quiet"]
    app.db.write(lambda c: store.advance(c, ["quiet"]))
    assert app.calendars.get("quiet").hold == Hold(datetime(2026, 3, 5, tzinfo=UTC), datetime(2026, 3, 6, tzinfo=UTC))


def test_two_workers_that_move_the_same_row_do_it_once(app: Duly, clock: ManualClock) -> None:
    app.calendars.set(NIGHT)
    clock.set(ENDS)
    store = app.engine.calendars
    moved = together(*[lambda: app.db.write(lambda c: store.advance(c, ["quiet"]))] * 4)
    assert sum(moved) >= 1  # type: ignore[arg-type]
    assert app.db.read(store.outdated) == []


def test_a_mover_does_not_overwrite_an_edit_that_is_being_made(pg_url: str) -> None:
    clock = ManualClock(NOON)
    app = Duly(pg_url, clock=clock)
    app.calendars.set(NIGHT)
    clock.set(ENDS)
    store = app.engine.calendars
    with app.db.engine.connect() as connection, connection.begin():
        store.set(connection, Window(days="sun", tz="UTC", name="quiet"), "ada")
        assert app.db.write(lambda c: store.advance(c, ["quiet"])) == 0
    assert app.calendars.get("quiet").hold.since == datetime(2026, 3, 8, tzinfo=UTC)
    app.close()


# --- Imports -------------------------------------------------------------------------------------------------------------


def test_an_import_replaces_what_the_one_before_left_and_touches_nothing_else(app: Duly) -> None:
    app.calendars.set(NIGHT)
    first = [Window(tz="UTC", dates="2026-12-25", name=name) for name in ("holidays", "holidays-2")]
    app.calendars.replace("holidays", first, actor="cli:ada")
    app.calendars.replace("holidays", first[:1])
    assert list(app.calendars.all()) == ["holidays", "quiet"]
    assert app.calendars.get("holidays").source == "holidays"
    assert actions(app, "holidays-2") == ["BLACKOUT_SET", "BLACKOUT_REMOVED"]
    with pytest.raises(InvalidArgument, match="quiet, which is not from this import"):
        app.calendars.replace("holidays", [*first, Window(tz="UTC", name="quiet")])
    assert list(app.calendars.all()) == ["holidays", "quiet"]
