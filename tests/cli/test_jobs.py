"""``duly jobs``: looking, and acting on one or many."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from cli.hands import Run
from duly import Cancel, Duly, PermanentError, Retry, Status
from duly.cli import command
from duly.testing import drain


@pytest.fixture
def tried(app: Duly) -> dict[str, int]:
    """One job of each kind, by a name for its state: five that ended or wait, on two queues and two tenants."""

    @app.task("OK")
    def fine(n: int) -> dict[str, int]:
        return {"twice": 2 * n}

    @app.task("BAD", queue="mail")
    def bad() -> None:
        raise PermanentError("no such address")

    @app.task("AGAIN", queue="mail")
    def again() -> None:
        raise Retry("come back", after=600)

    @app.task("STOP")
    def stop() -> None:
        raise Cancel("not wanted")

    out = {
        "succeeded": fine.using(key="invoice-7").enqueue(21).job.id,
        "failed": bad.using(tenant="acme").enqueue().job.id,
        "retrying": again.enqueue().job.id,
        "cancelled": stop.enqueue().job.id,
        "scheduled": fine.using(run_in=timedelta(hours=1)).enqueue(1).job.id,
    }
    drain(app)
    return out


def ids(said: Any) -> list[int]:
    assert said.code == 0, said
    return [job["id"] for job in said.json]


# ---------------------------------------------------------------------- list


def test_a_list_shows_the_newest_first_with_labels_for_people(on: Run, tried: dict[str, int]) -> None:
    said = on("jobs", "list", "--json")
    assert ids(said) == sorted(tried.values(), reverse=True)
    assert {job["label"]: job["id"] for job in said.json} == tried
    rows = on("jobs", "list").out.splitlines()
    assert rows[0].split() == ["id", "task", "queue", "status", "attempts", "when", "tenant", "key", "what"]
    assert "PermanentError: no such address" in rows[4]
    assert "invoice-7" in rows[5]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        (["--status", "failed"], ["failed"]),
        (["--status", "failed", "--status", "cancelled"], ["failed", "cancelled"]),
        (["--status", "queued"], ["retrying", "scheduled"]),
        (["--queue", "mail"], ["failed", "retrying"]),
        (["--task", "OK"], ["succeeded", "scheduled"]),
        (["--tenant", "acme"], ["failed"]),
        (["--key", "invoice-7"], ["succeeded"]),
        (["--queue", "mail", "--status", "succeeded"], []),
        (["--error", "PermanentError"], ["failed"]),
        (["--error", "PermanentError", "--tenant", "other"], []),
        (["--error", "Retry"], []),  # of jobs that failed
        (["--error", "Retry", "--status", "queued"], ["retrying"]),
        (["--error", "(none)"], []),
        (["--since", "1h"], ["succeeded", "failed", "retrying", "cancelled", "scheduled"]),
        (["--before", "1h"], []),
        (["--since", "2100-01-01T00:00:00Z"], []),
    ],
)
def test_filters_must_all_hold(on: Run, tried: dict[str, int], filters: list[str], wanted: list[str]) -> None:
    assert sorted(ids(on("jobs", "list", "--json", *filters))) == sorted(tried[name] for name in wanted)


def test_pages_follow_each_other(on: Run, tried: dict[str, int]) -> None:
    first = on("jobs", "list", "--limit", "2")
    newest = sorted(tried.values(), reverse=True)
    assert f"--below {newest[1]}" in first.err
    assert ids(on("jobs", "list", "--limit", "2", "--below", str(newest[1]), "--json")) == newest[2:4]
    assert on("jobs", "list", "--below", str(newest[-1])).out == "No such jobs.\n"


def test_children_are_listed_by_their_parent(on: Run, app: Duly) -> None:
    parent = app.enqueue("P").job.id
    child = app.enqueue("C", parent=parent).job.id
    assert ids(on("jobs", "list", "--parent", str(parent), "--json")) == [child]


def test_no_id_is_ever_cut_in_a_pipe(on: Run, app: Duly) -> None:
    long = "q" * 190
    app.enqueue("T" * 200, queue=long, key="k" * 200)
    out = on("jobs", "list").out
    assert long in out
    assert "k" * 200 in out


# ---------------------------------------------------------------------- show


def test_a_job_is_shown_in_full(on: Run, tried: dict[str, int]) -> None:
    said = on("jobs", "show", str(tried["failed"]))
    assert said.code == 0
    for words in (
        "task      BAD",
        "acme",
        "PermanentError: no such address",
        "Attempts that did not succeed",
        "JOB_FAILED_PERMANENT",
    ):
        assert words in said.out
    good = on("jobs", "show", str(tried["succeeded"])).out
    assert '"n": 21' in good
    assert '"twice": 42' in good
    assert "Attempts that" not in good


def test_a_job_is_shown_to_programs_with_its_attempts_children_and_trail(
    on: Run, app: Duly, tried: dict[str, int]
) -> None:
    child = app.enqueue("C", parent=tried["failed"], tenant=app.jobs.get(tried["failed"]).tenant).job.id
    shown = on("jobs", "show", str(tried["failed"]), "--json").json
    assert (shown["id"], shown["status"], shown["label"]) == (tried["failed"], "failed", "failed")
    assert [a["outcome"] for a in shown["failed_attempts"]] == ["refused"]
    assert [c["id"] for c in shown["children"]] == [child]
    assert [e["action"] for e in shown["audit"]] == ["JOB_FAILED_PERMANENT"]


def test_a_job_that_is_not_there_ends_with_1(on: Run, tried: dict[str, int]) -> None:
    said = on("jobs", "show", "987654321")
    assert (said.code, said.err) == (1, "duly: there is no job 987654321.\n")
    assert on("jobs", "show", str(tried["failed"]), "--tenant", "other").code == 1
    assert on("why", "987654321").code == 1


# ---------------------------------------------------------------------- cancel and replay by id


def test_jobs_are_cancelled_by_id_and_the_trail_knows_by_whom_and_why(
    on: Run, app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    one, two = (app.enqueue("X").job.id for _ in range(2))
    said = on("jobs", "cancel", str(one), str(two), str(one), "--reason", "mistake", "--json")
    assert (said.code, said.json) == (0, {"cancelled": [one, two], "stopping": [], "refused": {}})
    assert app.jobs.get(one).status is Status.CANCELLED
    (entry,) = on("audit", "list", "--job", str(one), "--json").json
    assert (entry["actor"], entry["action"], entry["meta"]["reason"]) == ("cli:ada", "JOB_CANCELLED", "mistake")


def test_the_actor_of_an_account_without_a_name_is_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert command.actor().removeprefix("cli:").isdigit()


def test_a_running_job_is_asked_to_stop_and_a_waiting_one_ends(on: Run, app: Duly) -> None:
    running, waits = (app.enqueue("X").job.id for _ in range(2))
    app.db.write(lambda c: app.engine.store.claim(c, {"default": 1}, ["X"], 7, 30, "box-1"))
    said = on("jobs", "cancel", str(running), str(waits))
    assert (said.code, said.out) == (0, f"Cancelled job {waits}.\nAsked job {running} to stop.\n")
    assert app.jobs.get(running).cancel_requested
    assert on("jobs", "cancel", "--task", "X", "--json").json == {"cancelled": [], "stopping": [running], "refused": {}}


def test_what_cannot_be_cancelled_is_said_and_the_rest_is_done(on: Run, app: Duly, tried: dict[str, int]) -> None:
    said = on("jobs", "cancel", str(tried["succeeded"]), "987654321", str(tried["scheduled"]))
    assert said.code == 1
    assert said.out == f"Cancelled job {tried['scheduled']}.\n"
    first, second = said.err.splitlines()
    assert f"job {tried['succeeded']}" in first
    assert "succeeded" in first
    assert second == "duly: there is no job 987654321."


def test_children_are_cancelled_with_their_parent(on: Run, app: Duly) -> None:
    parent = app.enqueue("P").job.id
    child = app.enqueue("C", parent=parent).job.id
    assert on("jobs", "cancel", str(parent), "--children").out == f"Cancelled job {parent}.\n"
    assert app.jobs.get(child).status is Status.CANCELLED
    assert on("jobs", "cancel", str(parent), "--children").code == 1


def test_an_ended_job_is_replayed_and_one_that_succeeded_only_by_force(
    on: Run, app: Duly, tried: dict[str, int]
) -> None:
    assert on("jobs", "replay", str(tried["failed"])).code == 0
    assert app.jobs.get(tried["failed"]).status is Status.QUEUED
    good = str(tried["succeeded"])
    assert on("jobs", "replay", good).code == 1
    assert on("jobs", "replay", good, "--force").code == 0
    assert on("jobs", "replay", good, "--force").code == 1  # it waits already


def test_jobs_of_another_tenant_are_left_alone(on: Run, app: Duly) -> None:
    job = app.enqueue("X", tenant="acme").job.id
    assert on("jobs", "cancel", str(job), "--tenant", "other").code == 1
    assert app.jobs.get(job).status is Status.QUEUED
    assert on("jobs", "cancel", str(job), "--tenant", "acme").code == 0


# ---------------------------------------------------------------------- in bulk


def test_a_dry_run_says_how_many_of_what_and_changes_nothing(on: Run, app: Duly) -> None:
    app.enqueue_many("A", [{}] * 30)
    app.enqueue_many("B", [{}] * 2, queue="mail")
    said = on("jobs", "cancel", "--status", "queued", "--dry-run")
    assert said.code == 0
    assert [line.split() for line in said.out.splitlines()[1:3]] == [
        ["30", "A", "default", "queued"], ["2", "B", "mail", "queued"],
    ]  # fmt: skip
    assert "Would cancel 32 jobs. Nothing was changed." in said.out
    told = on("jobs", "cancel", "--status", "queued", "--dry-run", "--json", "--limit", "5").json
    assert told["would_cancel"] == 5
    assert {(b["task"], b["count"]) for b in told["of"]} == {("A", 30), ("B", 2)}
    assert app.jobs.count(status=[Status.QUEUED]) == 32


def test_few_jobs_are_acted_on_at_once_many_want_a_yes(on: Run, app: Duly) -> None:
    app.enqueue_many("A", [{}] * command.BULK)
    said = on("jobs", "cancel", "--task", "A", "--json")
    assert (said.code, len(said.json["cancelled"])) == (0, command.BULK)
    app.enqueue_many("B", [{}] * (command.BULK + 1))
    said = on("jobs", "cancel", "--task", "B")
    assert said.code == 2
    assert "This would cancel 21 jobs. Add --yes" in said.err
    assert app.jobs.count(task="B", status=[Status.QUEUED]) == 21
    assert on("jobs", "cancel", "--task", "B", "--yes").out == "Cancelled 21 jobs.\n"
    assert app.jobs.count(task="B", status=[Status.CANCELLED]) == 21


def test_a_bulk_act_can_be_limited_and_takes_the_oldest(on: Run, app: Duly) -> None:
    made = [e.job.id for e in app.enqueue_many("A", [{}] * 5)]
    assert on("jobs", "cancel", "--task", "A", "--limit", "2", "--json").json["cancelled"] == made[:2]


def test_replay_by_filter_takes_what_can_be_replayed(on: Run, app: Duly, tried: dict[str, int]) -> None:
    said = on("jobs", "replay", "--queue", "mail", "--reason", "provider is back", "--json")
    assert (said.code, said.json["replayed"]) == (0, [tried["failed"]])
    assert on("jobs", "replay", "--queue", "mail").out == "No job fits.\n"
    forced = on("jobs", "replay", "--status", "succeeded", "--force", "--json").json
    assert forced["replayed"] == [tried["succeeded"]]


def test_jobs_that_failed_with_an_error_of_a_class_are_replayed(on: Run, app: Duly, tried: dict[str, int]) -> None:
    assert on("jobs", "replay", "--error", "Timeout").out == "No job fits.\n"
    said = on("jobs", "replay", "--error", "PermanentError", "--dry-run").out
    assert "Would replay 1 job" in said
    assert on("jobs", "replay", "--error", "PermanentError", "--json").json["replayed"] == [tried["failed"]]
    # what waits for its next try has failed, too
    assert on("jobs", "cancel", "--error", "Retry", "--json").json["cancelled"] == [tried["retrying"]]


def test_a_job_that_is_refused_in_bulk_is_told_with_the_reason(on: Run, app: Duly) -> None:
    made = app.enqueue("X", key="k", unique_until="done").job.id
    assert on("jobs", "cancel", str(made)).code == 0
    other = app.enqueue("X", key="k").job.id
    left = on("jobs", "replay", "--task", "X")  # R002-25
    assert (left.code, "1 job that was cancelled left out" in left.err, "No job fits." in left.out) == (0, True, True)
    assert on("jobs", "replay", "--task", "X", "--status", "cancelled").code == 2
    said = on("jobs", "replay", str(made))
    assert said.code == 1
    assert f"job {made} cannot replay: its key 'k' on queue 'default' is taken by job {other}." in said.err
    told = on("why", str(made)).out
    assert "duly jobs replay" not in told
    assert "uniqueness: enqueue its input again under another key" in told


# ---------------------------------------------------------------------- prune


def test_ended_jobs_are_pruned_and_waiting_ones_stay(on: Run, app: Duly, tried: dict[str, int]) -> None:
    assert on("jobs", "prune", "--older-than", "1h", "--json").json == {"removed": 0}
    assert on("jobs", "prune", "--older-than", "0", "--dry-run", "--json").json == {"would_remove": 3}
    assert on("jobs", "prune", "--older-than", "0", "--status", "failed").out == "Removed 1 ended job.\n"
    assert on("jobs", "prune", "--older-than", "0", "--json").json == {"removed": 2}
    assert sorted(ids(on("jobs", "list", "--json"))) == sorted([tried["retrying"], tried["scheduled"]])


def test_pruning_many_wants_a_yes(on: Run, app: Duly) -> None:
    app.enqueue_many("A", [{}] * 25)
    assert on("jobs", "cancel", "--task", "A", "--yes").code == 0
    said = on("jobs", "prune", "--older-than", "0")
    assert (said.code, "remove 25 ended jobs" in said.err) == (2, True)
    assert on("jobs", "prune", "--older-than", "0", "--yes", "--json").json == {"removed": 25}
