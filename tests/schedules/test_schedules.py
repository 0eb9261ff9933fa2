"""Schedules on real databases: rows, versions, the ledger, and jobs made with it in one transaction."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from duly import Duly, Job
from duly.kernel.errors import InvalidArgument, NotFound, PermanentError
from duly.kernel.recurrence import Cron, Daily, Every, Once
from duly.kernel.windows import Window
from duly.schedules.schedule import Status, Trigger
from duly.schedules.tick import BATCH, Scheduler
from duly.storage.wake import Bell
from duly.testing import ManualClock, drain

START = datetime(2026, 5, 1, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
MINUTELY = Cron("* * * * *", tz="UTC")
HOURLY = Cron("0 * * * *", tz="UTC")


class Scene:
    """An application on a clock of its own, and what was told."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock(START)
        self.app = Duly(url, clock=self.clock)
        self.told: list[Any] = []
        self.app.listen(self.told.append)
        self.ran: list[dict[str, Any]] = []

        @self.app.task("work", queue="work")
        def work(job: Job, n: int = 0) -> None:
            self.ran.append({"n": n, **(job.meta or {})})

        @self.app.task("other", queue="work")
        def other() -> None: ...

        self.scheduler = self.app.scheduler()
        self.schedules = self.app.schedules

    def set(
        self, name: str = "s", recurrence: Any = HOURLY, task: Any = "work", input: Any = None, **options: Any
    ) -> Any:
        actor = options.pop("actor", "ann")
        return self.schedules.set(self.schedules.spec(name, recurrence, task, input, **options), actor=actor)

    def pass_time(self, span: timedelta) -> Any:
        self.clock.advance(span)
        return self.scheduler.tick()

    def ledger(self, name: str = "s") -> list[tuple[float, str, str | None]]:
        """(hours since START, status, reason), in order."""
        found = self.schedules.ledger(name, limit=10_000)
        return [((o.due_at - START) / HOUR, o.status.value, o.reason) for o in reversed(found)]

    def sql(self, statement: str, **values: Any) -> list[Any]:
        def ask(connection: Any) -> list[Any]:
            answer = connection.execute(text(statement), values)
            return list(answer) if answer.returns_rows else []

        return self.app.db.write(ask)

    def jobs(self) -> int:
        return int(self.sql("SELECT count(*) FROM jobs")[0][0])

    def names(self) -> Counter[str]:
        return Counter(event.name for event in self.told)

    def audit(self) -> list[tuple[str, str]]:
        query = "SELECT action, actor FROM audit_log WHERE entity = 'schedule' ORDER BY id"
        return [(action, actor) for action, actor in self.sql(query)]


@pytest.fixture
def scene(db_url: str) -> Iterator[Scene]:
    made = Scene(db_url)
    yield made
    made.app.close()


# --- ticks ------------------------------------------------------------------------------------------------------------


def test_an_occurrence_and_its_job_are_made_together_and_the_job_knows_which_one(scene: Scene) -> None:
    scene.set(input={"n": 7})
    assert scene.pass_time(HOUR - timedelta(seconds=1)).fired == 0
    assert scene.pass_time(timedelta(seconds=1)).fired == 1
    [occurrence] = scene.schedules.ledger("s")
    assert (occurrence.status, occurrence.trigger, occurrence.version) == (Status.FIRED, Trigger.SCHEDULE, 1)
    assert occurrence.tz_version is not None
    assert occurrence.job_id is not None
    job = scene.app.jobs.get(occurrence.job_id)
    assert (job.task, job.queue, job.run_at) == ("work", "work", START + HOUR)
    drain(scene.app)
    assert scene.ran == [{"n": 7, "schedule": "s", "due_at": "2026-05-01T01:00:00+00:00", "trigger": "schedule"}]
    # again at once: nothing
    assert scene.scheduler.tick().looked == 0


def test_a_scheduler_that_was_away_goes_on_and_catches_up_by_the_policy(scene: Scene) -> None:  # B023
    for name, catch_up in (("skip", "none"), ("one", "latest"), ("all", "all")):
        scene.set(name, MINUTELY, catch_up=catch_up)
    report = scene.pass_time(3 * HOUR + timedelta(seconds=30))
    counts = {
        name: Counter(o.status for o in scene.schedules.ledger(name, limit=1000)) for name in ("skip", "one", "all")
    }
    assert counts == {
        "skip": {Status.MISSED: 180}, "one": {Status.FIRED: 1, Status.MISSED: 179}, "all": {Status.FIRED: 180},
    }  # fmt: skip
    assert (report.fired, report.missed) == (181, 359)
    assert scene.schedules.ledger("one", statuses=["fired"])[0].due_at == START + 3 * HOUR
    report = scene.pass_time(timedelta(seconds=30))  # the next slot, 03:01Z, fires for all
    assert report.fired == 3
    assert scene.names()["schedule_missed"] == 2  # told once each, with a count


def test_two_schedulers_800_ms_apart_make_one_job_for_each_occurrence(scene: Scene, db_url: str) -> None:  # B022
    scene.set("s", MINUTELY)
    behind = Duly(db_url, clock=ManualClock(START - timedelta(milliseconds=800)))
    other = behind.scheduler()
    silent: list[Any] = []
    behind.listen(silent.append)
    for _ in range(10 * 5 + 2):
        for one, clock in ((scene.scheduler, scene.clock), (other, behind.db.clock)):
            clock.advance(6)  # type: ignore[attr-defined]
            one.tick()
    assert scene.jobs() == 5
    assert [o.status for o in scene.schedules.ledger("s")] == [Status.FIRED] * 5
    assert not [e for e in [*scene.told, *silent] if e.level in ("warning", "error")]
    behind.close()


def test_schedulers_that_tick_at_the_same_moment_fire_each_occurrence_once(scene: Scene) -> None:  # B022
    for n in range(30):
        scene.set(f"s{n}", MINUTELY, catch_up="all")
    scene.clock.advance(10 * MINUTE)
    problems: list[BaseException] = []

    def tick() -> None:
        try:
            scene.app.scheduler().tick()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    scene.scheduler.tick()
    assert problems == []
    assert scene.sql("SELECT count(*), count(DISTINCT job_id) FROM occurrences") == [(300, 300)]
    assert scene.jobs() == 300
    assert not scene.names()["schedule_broken"]


@pytest.mark.parametrize(
    "damage",
    [
        """UPDATE schedules SET recurrence = '{"kind":"cron","expression":"* * * * *","tz":"America/New_Yrok"}' WHERE name = 'bad'""",
        """UPDATE schedules SET recurrence = '{"kind":"cron","expression":"61 * * * *","tz":"UTC"}' WHERE name = 'bad'""",
        """UPDATE schedules SET recurrence = '[]' WHERE name = 'bad'""",
        "UPDATE schedules SET queue = '' WHERE name = 'bad'",
    ],
    ids=["zone", "expression", "shape", "queue"],
)
def test_one_bad_row_never_stops_the_others(scene: Scene, damage: str) -> None:  # B010
    for name in ("a", "bad", "b", "c"):
        scene.set(name, MINUTELY)
    scene.sql(damage)
    for _ in range(3):
        scene.pass_time(MINUTE)
    assert [len(scene.schedules.ledger(name)) for name in ("a", "b", "c")] == [3, 3, 3]
    [bad] = [s for s in scene.schedules.all() if s.name == "bad"]
    if "queue" not in damage:  # an empty name is no good name, yet it can be planned
        assert bad.state == "broken"
        assert bad.error
        assert scene.names()["schedule_broken"] >= 1
        # it can be set right, and is looked at again
        scene.set("bad", MINUTELY, input={"n": 2})
        assert scene.schedules.get("bad").state == "active"
        assert scene.pass_time(MINUTE).fired == 4


@pytest.mark.parametrize(
    "column", ["next_at", "decided_until", "starts_at", "ends_at", "created_at", "look_at", "input"]
)
def test_a_row_that_cannot_even_be_read_never_stops_the_others(scene: Scene, column: str) -> None:  # B010
    for name in ("a", "bad", "b"):
        scene.set(name, MINUTELY)
    if column == "input" and not scene.app.db.is_sqlite:
        pytest.skip("PostgreSQL keeps no text in a column of JSON that is none")
    wrong = (
        "'nope'" if scene.app.db.is_sqlite else "'-infinity'" if column in ("look_at", "starts_at") else "'infinity'"
    )
    scene.sql(f"UPDATE schedules SET {column} = {wrong} WHERE name = 'bad'")
    for _ in range(3):
        scene.pass_time(MINUTE)
    assert [len(scene.schedules.ledger(name)) for name in ("a", "b")] == [3, 3]
    assert {s.name for s in scene.schedules.all()} == {"a", "b", "bad"}
    if column == "input":
        assert scene.schedules.get("bad").state == "broken"
    scene.scheduler.step()


def test_a_definition_that_cannot_be_is_refused_by_field(scene: Scene) -> None:  # B010
    for given, field in (
        ({"recurrence": "0 * * * *"}, "recurrence"), ({"name": ""}, "name"), ({"input": {"m": 1}}, "m"), ({"overlap": "x"}, "overlap"),
        ({"catch_up": "x"}, "catch_up"), ({"blackout": "x"}, "blackout"), ({"priority": "x"}, "priority"), ({"delay": 3}, "delay"),
        ({"starts_at": datetime(2026, 1, 1)}, "starts_at"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument) as refused:
            scene.set(**given)
        assert field in str(refused.value), given
    for tz in ("America/New_Yrok", "UTC+3", ""):
        with pytest.raises(InvalidArgument, match="tz"):
            Cron("* * * * *", tz=tz)
    assert scene.schedules.all() == []


def test_more_schedules_than_one_batch_are_all_looked_at(scene: Scene) -> None:
    for n in range(BATCH + 5):
        scene.set(f"s{n}", HOURLY)
    assert scene.pass_time(HOUR).fired == BATCH + 5


def test_what_the_database_refuses_of_one_schedule_is_that_schedules_trouble(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        scene.set(name, MINUTELY)
    b = scene.schedules.get("b")
    taken = {"i": b.id, "d": START + MINUTE}
    # somebody wrote b's next occurrence by hand, so that the scheduler's own row is refused
    now = "2026-05-01 00:01:00+00" if not scene.app.db.is_sqlite else int((START + MINUTE).timestamp() * 1_000_000)
    scene.sql(
        "INSERT INTO occurrences (schedule_id, due_at, status, policy, trigger, version, acted_at) VALUES (:i, :d, 'skipped', '', 'manual', 1, :d)",
        i=taken["i"], d=now,
    )  # fmt: skip
    report = scene.pass_time(MINUTE)
    assert (report.fired, report.broken) == (2, 1)
    assert scene.jobs() == 2
    assert scene.schedules.get("b").state == "broken"


def test_the_gate_holds_the_job_and_not_the_record(scene: Scene) -> None:
    scene.set()
    scene.app.gate.offline("maintenance")
    assert scene.pass_time(HOUR).fired == 1
    assert drain(scene.app).succeeded == 0
    scene.app.gate.online()
    assert drain(scene.app).succeeded == 1


# --- definitions ------------------------------------------------------------------------------------------------------


def test_an_edit_is_a_new_version_and_what_was_due_is_decided_by_the_old_one(scene: Scene) -> None:
    scene.set(catch_up="all")
    scene.clock.advance(2.5 * HOUR)
    schedule, change = scene.set(recurrence=Cron("30 * * * *", tz="UTC"), task="other", catch_up="none")
    assert (schedule.version, change) == (2, "changed")
    assert scene.ledger() == [(1, "fired", None), (2, "fired", None)]
    assert {o.version for o in scene.schedules.ledger("s")} == {1}
    assert {scene.app.jobs.get(o.job_id or 0).task for o in scene.schedules.ledger("s")} == {"work"}
    scene.pass_time(HOUR)
    assert scene.ledger()[2:] == [(3.5, "fired", None)]
    assert scene.schedules.ledger("s")[0].version == 2
    assert [(v["version"], v["definition"]["task"]) for v in scene.schedules.versions("s")] == [
        (2, "other"),
        (1, "work"),
    ]
    assert scene.audit() == [("SCHEDULE_CREATED", "ann"), ("SCHEDULE_CHANGED", "ann")]


def test_setting_what_stands_there_changes_nothing(scene: Scene) -> None:
    scene.set()
    assert scene.set()[1] == "unchanged"
    assert scene.schedules.get("s").version == 1


def test_code_declares_a_schedule_and_a_person_may_change_it_until_code_changes(scene: Scene) -> None:
    scene.app.schedule("s", HOURLY, "work")
    assert scene.schedules.sync() == {"s": "created"}
    assert scene.schedules.sync() == {"s": "unchanged"}
    scene.set(recurrence=MINUTELY)
    assert scene.schedules.sync() == {"s": "unchanged"}  # the person's change stays
    again = Duly(scene.app.settings.database_url, clock=scene.clock)

    @again.task("work", queue="work")
    def work() -> None: ...

    again.schedule("s", Daily("12:00", tz="UTC"), "work")
    assert again.schedules.sync() == {"s": "changed"}
    assert again.schedules.get("s").next_at == START + 12 * HOUR
    again.close()


def test_what_a_person_made_as_code_declares_it_is_code_s_from_then_on(scene: Scene) -> None:
    scene.set()
    scene.app.schedule("s", HOURLY, "work")
    assert scene.schedules.sync() == {"s": "unchanged"}
    scene.set(recurrence=MINUTELY)
    assert scene.schedules.sync() == {"s": "unchanged"}
    assert scene.schedules.get("s").version == 2


def test_a_name_that_two_tenants_declare_is_synced_for_both(scene: Scene) -> None:
    scene.app.schedule("s", HOURLY, "work")
    scene.schedules.sync()
    scene.app.schedule("s", HOURLY, "work", tenant="b")
    assert scene.schedules.sync() == {"s": "unchanged", "b/s": "created"}


def test_what_an_edit_decides_by_the_way_is_told_as_a_tick_tells_it(scene: Scene) -> None:
    scene.set(catch_up="all")
    scene.clock.advance(2.5 * HOUR)
    scene.told.clear()
    scene.set(recurrence=MINUTELY)
    assert scene.names()["schedule_fired"] == 2


def test_a_bound_that_was_changed_by_hand_counts(scene: Scene) -> None:
    scene.set()
    scene.pass_time(HOUR)
    end = (
        (START + 2 * HOUR).isoformat()
        if not scene.app.db.is_sqlite
        else int((START + 2 * HOUR).timestamp() * 1_000_000)
    )
    scene.sql("UPDATE schedules SET ends_at = :end", end=end)
    scene.pass_time(5 * HOUR)
    assert scene.ledger() == [(1, "fired", None)]
    assert scene.schedules.get("s").state == "ended"


def test_two_declarations_of_one_name_are_refused_unless_they_are_the_same(scene: Scene) -> None:
    scene.app.schedule("s", HOURLY, "work")
    scene.app.schedule("s", HOURLY, "work")
    with pytest.raises(InvalidArgument, match="declared twice"):
        scene.app.schedule("s", MINUTELY, "work")


def test_processes_that_declare_the_same_at_the_same_moment_make_one_schedule(scene: Scene, db_url: str) -> None:
    made: list[Any] = []

    def declare() -> None:
        app = Duly(db_url, clock=scene.clock)
        app.task("work", queue="work")(lambda: None)
        app.schedule("s", HOURLY, "work")
        made.append(app.schedules.sync()["s"])
        app.close()

    threads = [threading.Thread(target=declare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == ["created", "unchanged", "unchanged", "unchanged"]


def test_a_removed_schedule_fires_no_more_and_its_name_is_free(scene: Scene) -> None:
    scene.set(overlap="queue")
    scene.pass_time(HOUR)
    scene.pass_time(HOUR)
    assert scene.ledger() == [(1, "fired", None), (2, "deferred", "overlap")]
    old = scene.schedules.get("s").id
    scene.schedules.remove("s", actor="ann", reason="no more")
    assert scene.sql("SELECT status, reason FROM occurrences WHERE schedule_id = :i ORDER BY due_at", i=old) == [
        ("fired", None),
        ("skipped", "removed"),
    ]
    assert scene.pass_time(5 * HOUR).looked == 0
    with pytest.raises(NotFound):
        scene.schedules.get("s")
    with pytest.raises(NotFound):
        scene.schedules.remove("s")
    scene.set()
    assert scene.schedules.get("s").id != old
    assert scene.audit()[-2:] == [("SCHEDULE_REMOVED", "ann"), ("SCHEDULE_CREATED", "ann")]


def test_tenants_have_schedules_of_the_same_name_and_do_not_see_each_others(scene: Scene) -> None:
    scene.set(tenant="a", input={"n": 1})
    scene.set(tenant="b", input={"n": 2})
    scene.pass_time(HOUR)
    assert {scene.app.jobs.get(o.job_id or 0).tenant for o in scene.schedules.ledger("s", tenant="a")} == {"a"}
    scene.schedules.remove("s", tenant="a")
    with pytest.raises(NotFound):
        scene.schedules.pause("s", tenant="a")
    assert [s.tenant for s in scene.schedules.all(tenant="b")] == ["b"]
    assert [s.tenant for s in scene.schedules.all()] == ["b"]


def test_a_schedule_whose_only_instant_has_passed_is_made_and_has_ended(scene: Scene) -> None:
    schedule, _ = scene.set(recurrence=Once(START - HOUR))
    assert schedule.state == "ended"
    assert scene.pass_time(HOUR).looked == 0


# --- pause, run, backfill ---------------------------------------------------------------------------------------------


def test_a_paused_schedule_skips_on_record_and_says_why(scene: Scene) -> None:
    scene.set()
    scene.clock.advance(timedelta(hours=1, minutes=1))
    paused = scene.schedules.pause("s", "too loud", actor="bob")
    assert (paused.state, paused.paused_reason, paused.paused_by) == ("paused", "too loud", "bob")
    scene.pass_time(HOUR)
    scene.clock.advance(HOUR)
    scene.schedules.resume("s", actor="bob")
    scene.pass_time(HOUR)
    assert scene.ledger() == [
        (1, "fired", None),
        (2, "skipped", "paused"),
        (3, "skipped", "paused"),
        (4, "fired", None),
    ]
    assert scene.audit()[1:] == [("SCHEDULE_PAUSED", "bob"), ("SCHEDULE_RESUMED", "bob")]
    assert scene.schedules.resume("s").state == "active"
    assert len(scene.audit()) == 3  # what was not paused stays as it is


def test_a_run_by_hand_is_an_occurrence_of_its_own(scene: Scene) -> None:
    scene.set()
    scene.schedules.pause("s")
    done = [scene.schedules.run("s", actor="bob", reason="now") for _ in range(2)]
    assert [o.trigger for o in done] == [Trigger.MANUAL] * 2
    assert len({o.due_at for o in done}) == 2
    drain(scene.app)
    assert [ran["trigger"] for ran in scene.ran] == ["manual", "manual"]
    assert scene.audit()[-1] == ("SCHEDULE_RUN", "bob")


def test_a_run_by_hand_at_a_planned_instant_takes_nothing_from_it(scene: Scene) -> None:
    scene.set()
    scene.clock.advance(HOUR)
    scene.schedules.run("s")
    scene.pass_time(HOUR)
    assert [o.trigger for o in scene.schedules.ledger("s")] == [Trigger.SCHEDULE, Trigger.MANUAL, Trigger.SCHEDULE]


def test_a_backfill_fires_what_has_not_fired_and_each_once(scene: Scene) -> None:
    scene.set(catch_up="none")
    scene.pass_time(2.5 * HOUR)
    scene.pass_time(0.5 * HOUR)
    assert scene.ledger() == [(1, "missed", "late"), (2, "missed", "late"), (3, "fired", None)]
    span = START - 2 * HOUR, START + 9 * HOUR
    trial = scene.schedules.backfill("s", *span, dry_run=True)
    assert len(trial.fired) == 5
    assert scene.jobs() == 1
    done = scene.schedules.backfill("s", *span, actor="bob", reason="outage")
    assert (done.fired, done.left) == (trial.fired, trial.left)
    assert scene.ledger() == [(h, "fired", None if h == 3 else "backfill") for h in (-2, -1, 0, 1, 2, 3)]
    assert scene.schedules.backfill("s", *span).fired == ()
    drain(scene.app)
    assert Counter(ran["due_at"] for ran in scene.ran).most_common(1)[0][1] == 1
    assert scene.audit()[-1] == ("SCHEDULE_BACKFILLED", "bob")


def test_a_backfill_without_overlap_runs_one_after_the_other_behind_what_is_due(scene: Scene) -> None:
    scene.set(overlap="skip")
    scene.schedules.backfill("s", START - 3 * HOUR, START)
    assert [status for _, status, _ in scene.ledger()] == ["deferred"] * 3
    for fired in (1, 2, 3):
        scene.pass_time(timedelta(seconds=2))
        assert [status for _, status, _ in scene.ledger()].count("fired") == fired
        scene.pass_time(timedelta(seconds=2))  # its job still lives
        assert scene.jobs() == 1
        drain(scene.app)
    assert [ran["due_at"][11:13] for ran in scene.ran] == ["21", "22", "23"]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_backfill_of_what_the_ledger_does_not_know_any_more_is_refused_and_says_from_when_it_does(
    scene: Scene, dry_run: bool
) -> None:
    scene.set("s", Every("1d", anchor=START))
    for _ in range(3):
        scene.pass_time(timedelta(days=1))
    drain(scene.app)
    scene.schedules.pause("s")
    for _ in range(41):
        scene.pass_time(timedelta(days=10))
    scene.scheduler.keep()
    span = START, START + timedelta(days=4)
    with pytest.raises(InvalidArgument) as refused:
        scene.schedules.backfill("s", *span, dry_run=dry_run)
    assert refused.value.field == "start"
    known = scene.clock.now() - timedelta(seconds=scene.app.settings.schedule_retention)
    since = known.replace(second=0, microsecond=0) + timedelta(minutes=2)
    assert since.isoformat() in str(refused.value)
    assert len(scene.ran) == 3
    # from that instant on it is known, and a person may want the rest all the same
    later = scene.schedules.backfill("s", since, since + timedelta(days=3), dry_run=True)
    assert len(later.fired) == 3
    assert len(scene.schedules.backfill("s", *span, dry_run=dry_run, forgotten=True).fired) == 4


def test_a_schedule_that_has_lost_nothing_may_be_backfilled_from_any_time(scene: Scene, db_url: str) -> None:
    scene.set("young", Every("1d", anchor=START))
    years = timedelta(days=800)
    assert len(scene.schedules.backfill("young", START - years, START, dry_run=True).fired) == 800
    # nobody looked for longer than the ledger is kept: what was due meanwhile was not decided, so it was not forgotten
    scene.clock.advance(years)
    assert len(scene.schedules.backfill("young", START + HOUR, scene.clock.now(), dry_run=True).fired) == 799
    # a ledger that is kept for ever knows it all
    scene.scheduler.tick()
    keeper = Duly(db_url, clock=scene.clock, schedule_retention=0)
    assert keeper.schedules.backfill("young", START - years, START, dry_run=True).fired
    keeper.close()


def test_a_backfill_without_a_past_is_refused(scene: Scene) -> None:
    scene.set(recurrence=Every(1, anchor=START))
    for start, end in ((START + HOUR, START + 2 * HOUR), (START, START - HOUR), (START - 9 * HOUR, START)):
        with pytest.raises(InvalidArgument):
            scene.schedules.backfill("s", start, end)
    assert scene.ledger() == []


# --- overlap and blackout, with jobs that run -------------------------------------------------------------------------


def test_while_a_job_is_alive_the_next_occurrence_is_skipped_queued_or_takes_its_place(scene: Scene) -> None:
    for rule in ("allow", "skip", "queue", "replace"):
        scene.set(rule, overlap=rule)
    scene.pass_time(HOUR)
    scene.pass_time(HOUR)
    assert {rule: scene.ledger(rule)[1:] for rule in ("allow", "skip", "queue")} == {
        "allow": [(2, "fired", None)], "skip": [(2, "skipped", "overlap")], "queue": [(2, "deferred", "overlap")],
    }  # fmt: skip
    # the waiting job of "replace" was cancelled at once; its successor fires at the next look
    scene.pass_time(timedelta(seconds=2))
    assert scene.ledger("replace") == [(1, "fired", None), (2, "fired", "overlap")]
    first = scene.schedules.ledger("replace")[1].job_id
    assert scene.app.jobs.get(first or 0).status == "cancelled"
    drain(scene.app)
    scene.pass_time(timedelta(seconds=2))
    assert scene.ledger("queue")[1:] == [(2, "fired", "overlap")]


def test_a_replaced_job_that_runs_is_asked_to_stop_once_and_waited_for(scene: Scene) -> None:
    scene.set(overlap="replace")
    scene.pass_time(HOUR)
    scene.sql("UPDATE jobs SET status = 'running', lease_token = 1, lease_until = created_at, attempts = 1")
    for _ in range(3):
        scene.pass_time(HOUR)
    assert scene.sql("SELECT cancel_requested FROM jobs") in ([(True,)], [(1,)])
    assert scene.sql("SELECT count(*) FROM audit_log WHERE action = 'JOB_CANCEL_REQUESTED'") == [(1,)]
    assert scene.ledger()[1:] == [(2, "skipped", "replaced"), (3, "skipped", "replaced"), (4, "deferred", "overlap")]
    scene.sql("DELETE FROM jobs")
    scene.pass_time(timedelta(seconds=2))
    assert scene.ledger()[-1] == (4, "fired", "overlap")


def test_an_occurrence_within_a_blackout_waits_for_its_end_and_then_flows_in_order(scene: Scene) -> None:
    scene.app.calendars.set(Window(start="01:30", end="03:30", tz="UTC", name="quiet", scope="schedule:s"), actor="ann")
    scene.set("s", catch_up="all")
    scene.set("free")
    for _ in range(3):
        scene.pass_time(HOUR)
    assert scene.ledger("s") == [(1, "fired", None), (2, "deferred", "blackout"), (3, "deferred", "blackout")]
    assert [status for _, status, _ in scene.ledger("free")] == ["fired"] * 3
    scene.pass_time(timedelta(minutes=29))
    assert scene.ledger("s")[-1] == (3, "deferred", "blackout")
    scene.pass_time(timedelta(minutes=1))
    assert scene.ledger("s") == [(1, "fired", None), (2, "fired", "blackout"), (3, "fired", "blackout")]
    assert len({o.job_id for o in scene.schedules.ledger("s")}) == 3


def test_more_than_a_thousand_deferred_occurrences_all_flow_in_the_end(scene: Scene) -> None:
    scene.app.calendars.set(Window(dates="2026-05-01", tz="UTC", name="closed", scope="schedule:s"), actor="ann")
    scene.set("s", MINUTELY, catch_up="all", ends_at=START + 18 * HOUR)
    scene.pass_time(20 * HOUR)
    assert Counter(o.status for o in scene.schedules.ledger("s", limit=2000)) == {Status.DEFERRED: 1079}
    scene.pass_time(4 * HOUR)
    scene.pass_time(timedelta(seconds=2))
    assert Counter(o.status for o in scene.schedules.ledger("s", limit=2000)) == {Status.FIRED: 1079}


def test_a_long_backfill_does_not_crowd_out_what_is_due_by_itself(scene: Scene) -> None:
    scene.set("s", MINUTELY, overlap="queue")
    scene.schedules.backfill("s", START - 20 * HOUR, START)
    scene.pass_time(timedelta(seconds=2))  # one of them
    scene.pass_time(MINUTE)
    drain(scene.app)
    scene.pass_time(timedelta(seconds=2))
    assert [o.trigger for o in scene.schedules.ledger("s", statuses=["fired"])] == [Trigger.SCHEDULE, Trigger.BACKFILL]


@pytest.mark.parametrize("act", ["edit", "remove", "pause"])
def test_what_was_due_while_a_schedule_was_broken_is_decided_before_it_is_changed(scene: Scene, act: str) -> None:
    scene.set("s", MINUTELY, catch_up="all")
    ident = scene.schedules.get("s").id
    good = scene.sql("SELECT CAST(recurrence AS text) FROM schedules")[0][0]
    scene.sql("UPDATE schedules SET recurrence = '[]'")
    scene.pass_time(40 * MINUTE)
    scene.sql("UPDATE schedules SET recurrence = :good", good=good)
    scene.clock.advance(30)
    if act == "edit":
        scene.set("s", HOURLY)
    elif act == "remove":
        scene.schedules.remove("s")
    else:
        scene.schedules.pause("s")
    assert scene.sql("SELECT count(*), min(status), max(status) FROM occurrences WHERE schedule_id = :i", i=ident) == [
        (40, "fired", "fired")
    ]


def test_what_waits_on_is_not_written_again_at_each_look(scene: Scene) -> None:
    scene.app.calendars.set(Window(tz="UTC", name="closed"), actor="ann")
    scene.set(ends_at=START + 1.5 * HOUR)
    scene.pass_time(HOUR)
    before = scene.sql("SELECT acted_at, release_at FROM occurrences")
    for _ in range(3):
        assert scene.pass_time(MINUTE).looked == 1
    assert scene.sql("SELECT acted_at, release_at FROM occurrences") == before
    assert scene.schedules.get("s").state == "active"  # for something of it is still to come


@pytest.mark.postgres
def test_a_scheduler_does_not_spin_beside_a_row_that_another_has_locked(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(pg_url)
    scene.set()
    scene.clock.advance(HOUR)
    waits: list[float] = []

    class Deaf(Bell):
        def wait(self, timeout: float) -> bool:
            waits.append(timeout)
            return False

    scene.scheduler.bell = Deaf()
    # by a clock that stands still it would wait for its poll in any case
    monkeypatch.setattr(scene.scheduler, "_until_next", lambda _connection: 0.0)
    with scene.app.db.session_engine.begin() as other:
        other.execute(text("SELECT id FROM schedules FOR UPDATE"))
        scene.scheduler.step()
    assert waits and min(waits) > 0
    scene.scheduler.step()
    assert scene.ledger() == [(1, "fired", None)]
    scene.app.close()


def test_a_blackout_that_is_taken_away_lets_what_waits_go(scene: Scene) -> None:
    scene.app.calendars.set(Window(tz="UTC", name="quiet"), actor="ann")
    scene.set()
    scene.pass_time(HOUR)
    scene.app.calendars.remove("quiet", actor="ann")
    scene.pass_time(MINUTE)
    assert scene.ledger() == [(1, "fired", "blackout")]


# --- looking ahead, and behind ----------------------------------------------------------------------------------------


def test_a_preview_marks_days_on_which_clocks_change_and_blackouts(scene: Scene) -> None:
    scene.app.calendars.set(Window(dates="2026-03-30", tz="Europe/Paris", name="holiday"), actor="ann")
    scene.set("n", Daily("02:30", tz="Europe/Paris"), blackout="skip")
    shown = scene.schedules.preview("n", 3, since=datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert [(p.due_at.isoformat(), p.special, p.effect, p.blackout) for p in shown] == [
        ("2026-03-29T01:00:00+00:00", "29 March 2026 runs at 03:00", "fires", ()),
        ("2026-03-30T00:30:00+00:00", None, "skipped", ("holiday",)),
        ("2026-03-31T00:30:00+00:00", None, "fires", ()),
    ]
    assert shown[0].local is not None
    assert shown[0].local.isoformat() == "2026-03-29T03:00:00+02:00"
    assert shown[1].blackout_until == datetime(2026, 3, 30, 22, tzinfo=UTC)


def test_other_time_zone_data_has_next_instants_computed_anew(scene: Scene) -> None:
    scene.set()
    scene.sql("UPDATE schedules SET tz_version = '2019a', next_at = NULL, look_at = NULL")
    assert scene.scheduler.retime() == 1
    assert scene.schedules.get("s").next_at == START + HOUR
    assert scene.scheduler.retime() == 0
    assert scene.pass_time(HOUR).fired == 1


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_a_clock_that_was_ahead_silences_no_schedule_and_fires_none_twice(scene: Scene, catch_up: str) -> None:
    scene.set("s", catch_up=catch_up)
    scene.set("once", Once(START + 6 * HOUR), catch_up=catch_up)
    scene.pass_time(HOUR)
    scene.pass_time(24 * HOUR)  # somebody set the clock a day ahead
    early = {at for at, status, _ in scene.ledger() if status == "fired"}
    scene.clock.set(START + HOUR + timedelta(seconds=10))
    assert scene.scheduler.tick().looked == 0
    scene.scheduler.keep()
    assert scene.names()["schedule_rewound"] == 2
    assert ("SCHEDULE_REWOUND", "scheduler") in scene.audit()
    assert {at for at, status, _ in scene.ledger() if at > 1} == early - {1}
    scene.scheduler.keep()  # nothing is ahead any more
    assert scene.names()["schedule_rewound"] == 2
    for _ in range(25):
        scene.pass_time(HOUR)
        scene.scheduler.keep()
    assert scene.ledger() == [(n, "fired", None) for n in range(1, 27)]
    assert scene.ledger("once") == [(6, "fired", None)]
    assert scene.jobs() == 27


def test_a_clock_that_was_ahead_puts_off_nothing_that_waits_or_is_broken(scene: Scene) -> None:
    scene.set("s", overlap="queue")
    scene.pass_time(HOUR)
    scene.pass_time(HOUR)  # the second waits for the first
    scene.set("b", Daily("12:00", tz="UTC"))
    scene.sql("UPDATE schedules SET task = '' WHERE name = 'b'")
    scene.sql(
        "UPDATE schedules SET decided_until = (SELECT decided_until FROM schedules WHERE name = 's') WHERE name = 'b'"
    )
    scene.clock.advance(8 * HOUR + MINUTE)
    scene.scheduler.tick()
    scene.clock.set(START + 2 * HOUR + MINUTE)
    scene.scheduler.keep()
    drain(scene.app)
    assert scene.pass_time(timedelta(seconds=2)).fired == 1
    assert scene.ledger() == [(1, "fired", None), (2, "fired", "overlap")]


def test_the_ledger_is_pruned_but_not_what_waits_or_lives(scene: Scene) -> None:
    scene.set("s", overlap="queue")
    scene.set("past", catch_up="none")
    scene.pass_time(HOUR + MINUTE)
    scene.pass_time(HOUR)
    scene.clock.advance(timedelta(days=401))
    assert scene.scheduler.prune() == 2
    assert scene.ledger("s") == [(1, "fired", None), (2, "deferred", "overlap")]


def test_the_ledger_is_read_in_pages_and_wrong_questions_are_refused(scene: Scene) -> None:
    scene.set("s", MINUTELY, catch_up="all")
    scene.pass_time(10 * MINUTE)
    first = scene.schedules.ledger("s", limit=4)
    rest = scene.schedules.ledger("s", limit=100, before=first[-1].due_at)
    dues = [o.due_at for o in [*first, *rest]]
    assert dues == sorted(dues, reverse=True)
    assert len(dues) == 10
    for wrong in ({"limit": 0}, {"limit": True}, {"statuses": ["lost"]}, {"since": datetime(2026, 1, 1)}):
        with pytest.raises(InvalidArgument):
            scene.schedules.ledger("s", **wrong)


def test_trouble_in_planning_passes_with_its_cause(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.set()
    scene.clock.advance(HOUR)

    def fails(*_: Any) -> None:
        raise PermanentError("no")

    monkeypatch.setattr(Scheduler, "facts", fails)
    assert scene.scheduler.tick().broken == 1
    monkeypatch.undo()
    assert scene.pass_time(HOUR).fired == 1


def test_a_blackout_may_hold_a_schedule_of_one_tenant_only(scene: Scene) -> None:
    for tenant in ("a", "b"):
        scene.set("s", tenant=tenant, blackout="skip")
    scene.app.calendars.set(
        Window(name="quiet", scope="schedule:a/s", start="00:00", end="12:00", tz="UTC"), actor="ann"
    )
    scene.pass_time(HOUR)
    found = {t: [o.status.value for o in scene.schedules.ledger("s", tenant=t)] for t in ("a", "b")}
    assert found == {"a": ["skipped"], "b": ["fired"]}
    assert scene.schedules.preview("s", 1, tenant="a")[0].effect == "skipped"
    assert scene.schedules.preview("s", 1, tenant="b")[0].effect == "fires"


def test_occurrences_due_while_a_row_was_damaged_are_decided_by_what_it_said_before(scene: Scene) -> None:
    scene.set(catch_up="all")
    scene.sql("UPDATE schedules SET recurrence = '[]' WHERE name = 's'")
    assert scene.pass_time(3 * HOUR).broken == 1
    scene.set(catch_up="all", input={"n": 2})
    assert scene.ledger() == [(n, "fired", None) for n in (1, 2, 3)]
    scene.pass_time(HOUR)
    assert [o.version for o in scene.schedules.ledger("s")] == [2, 1, 1, 1]
    # and where nothing can be read any more, the new definition counts from now on
    scene.sql("UPDATE schedules SET catch_up = 'x' WHERE name = 's'")
    scene.sql("UPDATE schedule_versions SET definition = '[]'")
    scene.pass_time(HOUR)
    scene.set(catch_up="all", input={"n": 3})
    assert scene.pass_time(HOUR).fired == 1


def test_bytes_that_are_no_text_in_one_row_stop_no_other_schedule(sqlite_url: str) -> None:  # B010
    scene = Scene(sqlite_url)
    for name in ("good", "bad", "also"):
        scene.set(name)
    scene.app.calendars.set(Window(tz="UTC", name="odd", scope="queue:elsewhere"), actor="ann")
    scene.sql("UPDATE schedules SET recurrence = x'7bff7d' WHERE name = 'bad'")
    scene.sql("UPDATE blackouts SET definition = x'7bff7d'")
    report = scene.pass_time(HOUR)
    assert (report.fired, report.broken) == (2, 1)
    assert [(s.name, s.state) for s in scene.schedules.all()] == [
        ("also", "active"),
        ("bad", "broken"),
        ("good", "active"),
    ]
    scene.schedules.remove("bad")  # what it had due by then is decided as its version says
    assert drain(scene.app).succeeded == 3
    scene.app.close()


def test_a_backfill_stays_within_the_bounds_of_its_schedule(scene: Scene) -> None:
    scene.set(starts_at=START + 3 * HOUR, ends_at=START + 5 * HOUR)
    scene.clock.advance(8 * HOUR)
    assert [len(found) for found in _filled(scene, True)] == [2, 0]
    assert [len(found) for found in _filled(scene, False)] == [1, 1]
    assert [at for at, *_ in scene.ledger()] == [3, 4]


def _filled(scene: Scene, dry_run: bool) -> tuple[Any, Any]:
    made = scene.schedules.backfill("s", START, START + 8 * HOUR, dry_run=dry_run)
    return made.fired, made.left


def test_other_time_zone_data_is_not_taken_for_a_clock_that_was_ahead(scene: Scene) -> None:
    scene.set("d", Daily("18:00", tz="Europe/Paris"))
    scene.set("w", HOURLY, overlap="queue")
    scene.pass_time(HOUR)
    scene.pass_time(HOUR)  # the second of w waits for the first
    move = "- 3600000000" if scene.app.db.is_sqlite else "- interval '1 hour'"
    scene.sql(f"UPDATE schedules SET tz_version = '2020a', next_at = next_at {move}, look_at = look_at {move}")
    scene.scheduler.keep()
    scene.clock.advance(MINUTE)
    scene.scheduler.keep()
    assert scene.names()["schedule_rewound"] == 0
    assert scene.names()["schedules_retimed"] == 1
    assert scene.schedules.get("d").next_at == scene.schedules.get("d").look_at == START + 16 * HOUR
    drain(scene.app)
    scene.pass_time(timedelta(seconds=2))
    assert scene.ledger("w") == [(1, "fired", None), (2, "fired", "overlap")]


def test_a_slash_in_a_name_means_no_tenant(scene: Scene) -> None:
    scene.set("x", tenant="b", blackout="skip")
    scene.set("b/x", tenant="acme", blackout="skip")
    for scope, held in (
        ("schedule:b/x", ["skipped", "fired"]),
        ("schedule:b%2Fx", ["fired", "skipped"]),
        ("schedule:acme/b%2Fx", ["fired", "skipped"]),
    ):
        scene.app.calendars.set(Window(name="quiet", scope=scope, tz="UTC"), actor="ann")
        scene.pass_time(HOUR)
        found = [
            scene.schedules.ledger(name, tenant=tenant)[0].status.value
            for name, tenant in (("x", "b"), ("b/x", "acme"))
        ]
        assert found == held
