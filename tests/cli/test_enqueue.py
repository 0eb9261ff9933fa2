"""``duly enqueue``: one job, or a file of them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.hands import Run
from duly import DatabaseUnavailable, Duly, Status
from duly.jobs.enqueue import JobMaker


def lines(*jobs: Any) -> str:
    return "".join((job if isinstance(job, str) else json.dumps(job)) + "\n" for job in jobs)


# ---------------------------------------------------------------------- one


def test_a_job_is_made_without_an_application(on: Run, app: Duly) -> None:
    said = on("enqueue", "SEND", '{"to": "a@b.c"}', "--json")
    assert said.code == 0
    assert said.json["created"] is True
    job = app.jobs.get(said.json["id"])
    assert (job.task, job.queue, job.input, job.status) == ("SEND", "default", {"to": "a@b.c"}, Status.QUEUED)


def test_every_option_reaches_the_job(on: Run, app: Duly) -> None:
    parent = on("enqueue", "PARENT", "--tenant", "acme", "--json").json["id"]
    said = on(
        "enqueue", "SEND", "{}", "--key", "k", "--queue", "mail", "--priority", "-3", "--run-at", "2031-07-27T09:00:00+02:00",
        "--tenant", "acme", "--max-attempts", "7", "--concurrency-key", "host", "--parent", str(parent),
    )  # fmt: skip
    assert said.code == 0
    assert "planned in queue mail, due 2031-07-27 07:00:00Z" in said.out
    (job,) = app.jobs.find(task="SEND")
    assert (job.key, job.queue, job.priority, job.tenant, job.max_attempts) == ("k", "mail", -3, "acme", 7)
    assert (job.concurrency_key, job.parent_id, job.run_at) == ("host", parent, datetime(2031, 7, 27, 7, tzinfo=UTC))


def test_a_span_from_now_is_an_instant_later(on: Run, app: Duly) -> None:
    job = app.jobs.get(on("enqueue", "SEND", "--run-in", "1h30m", "--json").json["id"])
    assert job.run_at is not None
    assert job.created_at is not None
    assert job.run_at - job.created_at == timedelta(minutes=90)


def test_a_taken_key_answers_with_its_job_and_ends_well(on: Run) -> None:
    first = on("enqueue", "SEND", "{}", "--key", "k", "--json").json
    again = on("enqueue", "SEND", "{}", "--key", "k", "--json")
    assert again.code == 0
    assert (again.json["id"], again.json["created"]) == (first["id"], False)
    assert f"Key k has job {first['id']} already" in on("enqueue", "SEND", "{}", "--key", "k").out


def test_an_application_checks_the_input_by_the_tasks_annotations(run: Run, shop: str) -> None:
    said = run("enqueue", "hello", '{"name": 5}', "--app", shop)
    assert (said.code, said.err.startswith("duly: name: ")) == (2, True)
    assert run("enqueue", "hello", '{"name": "Ada"}', "--app", shop).code == 0
    queue = run("enqueue", "SEND", '{"to": "x"}', "--app", shop, "--json").json["queue"]
    assert queue == "mail"  # the task's own


def test_a_name_that_does_not_exist_is_taken_with_a_warning_and_the_nearest(run: Run, shop: str) -> None:
    said = run("enqueue", "helo", "{}", "--app", shop)
    assert said.code == 0
    assert 'warning: No task is called "helo". Did you mean "hello"?' in said.err


def test_the_input_may_come_from_stdin(on: Run, app: Duly) -> None:
    ident = on("enqueue", "SEND", "-", "--json", input='{"text": "Grüße"}').json["id"]
    assert app.jobs.get(ident).input == {"text": "Grüße"}


def test_a_dry_run_checks_and_writes_nothing(on: Run, app: Duly) -> None:
    assert on("enqueue", "SEND", "{}", "--dry-run").code == 0
    assert on("enqueue", "SEND", "[]", "--dry-run").code == 1
    assert app.jobs.count() == 0


# ---------------------------------------------------------------------- many

GOOD = [
    {"task": "A", "input": {"n": 1}, "key": "k1"},
    {
        "task": "B",
        "queue": "mail",
        "priority": 5,
        "run_at": "2031-01-01T00:00:00Z",
        "tenant": "acme",
        "meta": {"trace": "x"},
    },
    {"task": "C", "run_in": "15min", "max_attempts": 2, "concurrency_key": "host"},
]
BAD = [
    ('{"task": "A", "input": {', "it is not JSON"),
    ("[1, 2]", "it is a list"),
    ('"text"', "it is a text"),
    ('{"input": {}}', "task: is missing"),
    ('{"task": 5}', "task: is a number"),
    ('{"task": ""}', "task name: is empty"),
    ('{"task": "A", "input": [1]}', "input: is a list"),
    ('{"task": "A", "prio": 1}', "prio: is not a field of a job"),
    ('{"task": "A", "priority": "high"}', "priority: is a text"),
    ('{"task": "A", "priority": true}', "priority: is true or false"),
    ('{"task": "A", "priority": 5000000000}', "priority: "),
    ('{"task": "A", "max_attempts": 0}', "max_attempts: "),
    ('{"task": "A", "run_at": "2031-01-01T00:00:00"}', "run_at: '2031-01-01T00:00:00' has no time zone"),
    ('{"task": "A", "run_at": 5}', "run_at: it is a number"),
    ('{"task": "A", "run_in": true}', "run_in: it is true or false"),
    ('{"task": "A", "run_in": "soon"}', "run_in: 'soon' is not a span"),
    ('{"task": "A", "run_in": 1e300}', "run_in: "),
    ('{"task": "A", "run_in": 5, "run_at": "2031-01-01T00:00:00Z"}', "run_at: and run_in are both given"),
    ('{"task": "A", "parent": 0}', "parent: is not the number of a job"),
    ('{"task": "A", "meta": []}', "meta: is a list"),
    ('{"task": "A", "input": {"a": "\\u0000"}}', "a: contains the NUL character"),
    ('{"task": "A", "key": ""}', "key: is empty"),
]


def test_each_line_of_a_file_is_a_job(on: Run, app: Duly, folder: Path) -> None:
    (folder / "jobs.jsonl").write_text(lines(*GOOD, ""))
    said = on("enqueue", "--file", "jobs.jsonl")
    assert (said.code, said.out) == (0, "3 jobs created.\n")
    c, b, a = app.jobs.find()
    assert (a.task, a.input, a.key) == ("A", {"n": 1}, "k1")
    assert (b.queue, b.priority, b.tenant, b.meta) == ("mail", 5, "acme", {"trace": "x"})
    assert b.run_at == datetime(2031, 1, 1, tzinfo=UTC)
    assert c.run_at is not None
    assert c.created_at is not None
    assert (c.run_at - c.created_at, c.max_attempts, c.concurrency_key) == (timedelta(minutes=15), 2, "host")


def test_bad_lines_are_told_by_number_and_harm_no_other(on: Run, app: Duly) -> None:
    text = lines(GOOD[0], *(bad for bad, _ in BAD), GOOD[1])
    said = on("enqueue", "--file", "-", input=text)
    assert said.code == 1
    told = said.told
    assert len(told) == len(BAD)
    for number, ((_, reason), line) in enumerate(zip(BAD, told, strict=True), start=2):
        assert line.startswith(f"duly: line {number}: {reason}"), line
    assert f"2 jobs created, {len(BAD)} bad lines." in said.out
    assert app.jobs.count() == 2


def test_bytes_that_are_no_text_are_a_bad_line(on: Run) -> None:
    said = on("enqueue", "--file", "-", "--json", input=b'\xff\xfe\n{"task": "A"}\n')
    assert said.code == 1
    assert (said.json["created"], said.json["bad"], said.json["lines"][0]["line"]) == (1, 1, 1)


def test_a_byte_order_mark_and_other_line_ends_are_no_harm(on: Run) -> None:
    said = on("enqueue", "--file", "-", "--json", input=b'\xef\xbb\xbf{"task": "A"}\r\n\r\n{"task": "B"}')
    assert (said.code, said.json["created"]) == (0, 2)


def test_all_or_nothing_writes_nothing_when_one_line_is_bad(on: Run, app: Duly) -> None:
    said = on("enqueue", "--file", "-", "--all-or-nothing", input=lines(*GOOD, "{"))
    assert said.code == 1
    assert "Nothing was written: 3 good lines, 1 bad line." in said.out
    assert app.jobs.count() == 0


def test_all_or_nothing_writes_all_when_all_are_good(on: Run, app: Duly) -> None:
    many = [{"task": "A", "key": f"k{i % 1200}"} for i in range(1300)]
    said = on("enqueue", "--file", "-", "--all-or-nothing", "--json", input=lines(*many))
    assert (said.code, said.json) == (
        0,
        {"created": 1200, "existing": 100, "bad": 0, "lines": [], "warnings": said.json["warnings"]},
    )
    assert app.jobs.count() == 1200


def test_all_or_nothing_writes_nothing_when_the_database_fails_in_the_middle(
    on: Run, app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_in, calls = JobMaker.make_in, []

    def breaks(self: JobMaker, connection: Any, new: Any) -> Any:
        calls.append(len(new))
        if len(calls) == 2:
            raise DatabaseUnavailable("the database went away")
        return make_in(self, connection, new)

    monkeypatch.setattr(JobMaker, "make_in", breaks)
    said = on("enqueue", "--file", "-", "--all-or-nothing", input=lines(*({"task": "A"} for _ in range(1001))))
    assert (said.code, said.err) == (1, "duly: the database went away\n")
    assert calls == [500, 500]
    assert app.jobs.count() == 0


def test_a_failure_in_the_middle_says_how_far_it_came(on: Run, app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    make_many, calls = JobMaker.make_many, []

    def breaks(self: JobMaker, new: Any) -> Any:
        calls.append(len(new))
        if len(calls) == 3:
            raise DatabaseUnavailable("the database went away")
        return make_many(self, new)

    monkeypatch.setattr(JobMaker, "make_many", breaks)
    said = on("enqueue", "--file", "-", input=lines("{", *({"task": "A"} for _ in range(1400))))
    assert said.code == 1
    assert "the jobs up to line 1,001 are written, those behind it are not" in said.err
    assert said.err.endswith("duly: the database went away\n")
    assert app.jobs.count() == 1000


def test_lines_with_keys_can_be_sent_again(on: Run, app: Duly) -> None:
    text = lines(*({"task": "A", "key": f"k{i}"} for i in range(700)))
    assert on("enqueue", "--file", "-", input=text).out == "700 jobs created.\n"
    assert on("enqueue", "--file", "-", input=text).out == "0 jobs created, 700 existed already.\n"
    assert app.jobs.count() == 700


def test_a_dry_run_of_a_file_counts_and_writes_nothing(on: Run, app: Duly) -> None:
    said = on("enqueue", "--file", "-", "--dry-run", input=lines(*GOOD, "{"))
    assert (said.code, said.out) == (1, "3 good lines, 1 bad line. Nothing was written.\n")
    assert app.jobs.count() == 0


@pytest.mark.parametrize("mode", ["", "--dry-run", "--all-or-nothing"])
def test_a_line_whose_parent_is_not_there_is_told_by_number_and_harms_no_other(on: Run, app: Duly, mode: str) -> None:
    parent = on("enqueue", "PARENT", "--tenant", "acme", "--json").json["id"]
    text = lines(
        {"task": "A"}, {"task": "A", "parent": 12345}, "{", {"task": "A", "parent": parent},
        {"task": "A", "parent": parent, "tenant": "acme"},
    )  # fmt: skip
    said = on("enqueue", "--file", "-", *filter(None, [mode]), input=text)
    assert said.code == 1
    two, three, four = said.told
    assert two == "duly: line 2: parent: is 12345, and there is no such job of this tenant."
    assert three.startswith("duly: line 3: it is not JSON")
    assert four == f"duly: line 4: parent: is {parent}, and there is no such job of this tenant."
    assert app.jobs.count(task="A") == (0 if mode else 2)
    assert said.out.startswith(
        {
            "": "2 jobs created, 3 bad lines.",
            "--dry-run": "2 good lines, 3 bad lines. Nothing was written.",
            "--all-or-nothing": "Nothing was written: 2 good lines, 3 bad lines.",
        }[mode]
    )


def test_a_dry_run_without_a_database_finds_no_parent_and_makes_none(run: Run, folder: Path) -> None:
    said = run("enqueue", "--file", "-", "--dry-run", input=lines({"task": "A", "parent": 7}, {"task": "A"}))
    assert (said.code, said.out) == (1, "1 good line, 1 bad line. Nothing was written.\n")
    assert "line 1: parent: is 7, and there is no such job of this tenant." in said.err
    assert "parent: is 7" in run("enqueue", "A", "--parent", "7", "--dry-run").err
    assert list(folder.iterdir()) == []


def test_a_line_far_behind_does_not_cut_the_file(on: Run, app: Duly) -> None:
    many = [{"task": "A", **({"parent": 12345} if n == 1150 else {})} for n in range(1, 1301)]
    said = on("enqueue", "--file", "-", "--json", input=lines(*many))
    assert (said.code, said.json["created"], [told["line"] for told in said.json["lines"]]) == (1, 1299, [1150])
    assert app.jobs.count() == 1299


@pytest.mark.parametrize("mode", ["", "--all-or-nothing"])
def test_what_the_database_alone_refuses_is_told_by_line_too(
    on: Run, app: Duly, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("duly.cli.enqueue._orphans", lambda app, new: set())  # as if it was pruned a moment later
    many = [{"task": "A", **({"parent": 12345} if n in (3, 602) else {})} for n in range(1, 701)]
    said = on("enqueue", "--file", "-", "--json", *filter(None, [mode]), input=lines(*many))
    assert (said.code, said.json["bad"]) == (1, 2)
    assert [told["line"] for told in said.json["lines"]] == [3, 602]
    assert "line 602: parent: is 12345, and there is no such job" in said.err
    assert app.jobs.count() == said.json["created"] == (0 if mode else 698)


@pytest.fixture
def cut(on: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Enqueues 1,400 lines; in the middle of the second batch comes Ctrl-C, so many times."""

    def enqueue(times: int) -> Any:
        make_many, calls = JobMaker.make_many, []

        def interrupts(self: JobMaker, new: Any) -> Any:
            calls.append(len(new))
            for _ in range(times if len(calls) == 2 else 0):
                signal.raise_signal(signal.SIGINT)
            return make_many(self, new)

        monkeypatch.setattr(JobMaker, "make_many", interrupts)
        return on("enqueue", "--file", "-", input=lines(*({"task": "A"} for _ in range(1400))))

    return enqueue


def test_an_interruption_waits_for_the_batch_and_says_how_far_it_came(app: Duly, cut: Callable[[int], Any]) -> None:
    said = cut(1)
    assert (said.code, said.out) == (1, "")
    assert "stopped: the jobs up to line 1,000 are written, those behind it are not.\n" in said.err
    assert said.err.endswith("duly: stopped.\n")
    assert app.jobs.count() == 1000
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interruption_does_not_wait_and_owns_what_it_does_not_know(
    app: Duly, cut: Callable[[int], Any]
) -> None:
    said = cut(2)
    assert said.code == 1
    unsure = "the jobs up to line 500 are written; whether lines 501 to 1,000 became jobs too is not known"
    assert unsure in said.err
    assert app.jobs.count() == 500


@pytest.mark.parametrize("mode", ["", "--all-or-nothing"])
def test_an_interruption_before_anything_is_written_says_so(
    on: Run, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("duly.cli.enqueue._line", interrupted)
    said = on("enqueue", "--file", "-", *filter(None, [mode]), input=lines({"task": "A"}))
    assert (said.code, said.err.split("\n")[0]) == (1, "duly: stopped: no job is written.")


def test_an_interruption_of_the_one_write_of_all_owns_what_it_does_not_know(
    on: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("duly.storage.database.Database.write", interrupted)
    said = on("enqueue", "--file", "-", "--all-or-nothing", input=lines({"task": "A"}, {"task": "B"}))
    assert (said.code, said.err.split("\n")[0]) == (1, "duly: stopped: whether lines 1 to 2 became jobs is not known.")


def test_options_stand_in_for_what_lines_lack(on: Run, app: Duly) -> None:
    text = lines({"input": {"n": 1}}, {"task": "B", "queue": "own", "run_in": 0})
    said = on("enqueue", "A", "--file", "-", "--queue", "bulk", "--run-at", "2031-01-01T00:00:00Z", input=text)
    assert said.code == 0
    b, a = app.jobs.find()
    assert (a.task, a.queue, b.task, b.queue) == ("A", "bulk", "B", "own")
    assert a.due_at == datetime(2031, 1, 1, tzinfo=UTC)
    assert b.due_at is None


def test_an_application_checks_every_line(run: Run, shop: str) -> None:
    text = lines({"task": "hello", "input": {"name": "Ada"}}, {"task": "hello", "input": {"name": 5}})
    said = run("enqueue", "--file", "-", "--app", shop, input=text)
    assert said.code == 1
    assert said.err.startswith("duly: line 2: name: ")


def test_a_flood_of_bad_lines_is_counted_not_printed(run: Run) -> None:
    said = run("enqueue", "--file", "-", input="{\n" * 5000)
    assert said.code == 1
    assert len(said.told) == 51
    assert "0 jobs created, 5,000 bad lines." in said.out


def test_a_file_that_is_not_there_is_wrong_usage(run: Run, folder: Path) -> None:
    said = run("enqueue", "--file", "nosuch.jsonl")
    assert (said.code, "nosuch.jsonl cannot be read: No such file" in said.err) == (2, True)
    assert run("enqueue", "--file", str(folder)).code == 2


def test_an_empty_file_is_no_work(run: Run) -> None:
    said = run("enqueue", "--file", "-", input="")
    assert (said.code, said.out) == (0, "0 jobs created.\n")


def test_a_file_with_a_name_that_does_not_exist_says_so_once(run: Run, shop: str) -> None:
    given = lines(*[{"task": "helo"}] * 3, {"task": "hello", "input": {"name": "Ada"}})
    said = run("enqueue", "--file", "-", "--app", shop, "--json", input=given)
    assert (said.code, said.json["created"], len(said.json["warnings"])) == (0, 4, 1)
    assert said.err.count("Did you mean") == 1
    assert run("enqueue", "helo", "--app", shop, "--json").json["warnings"]


def test_strict_names_refuses_a_command_and_the_lines_of_a_file(
    run: Run, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DULY_STRICT_NAMES", "1")
    given = lines(*[{"task": "helo"}] * 3, {"task": "hello", "input": {"name": "Ada"}})
    said = run("enqueue", "--file", "-", "--app", shop, "--json", input=given)
    assert (said.code, said.json["created"], said.json["bad"]) == (1, 1, 3)
    assert run("enqueue", "helo", "--app", shop).code == 2
