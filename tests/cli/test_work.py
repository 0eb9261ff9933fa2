"""``duly up`` and ``duly worker``: work, signals, and what is seen of them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.hands import Run
from duly import Duly

Spawn = Callable[..., "subprocess.Popen[str]"]


def until(what: Callable[[], object], seconds: float = 30) -> None:
    """Wait for a condition, not for a time."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


# ---------------------------------------------------------------------- until idle


def test_a_worker_that_ends_when_idle_runs_what_is_there(run: Run, shop: str) -> None:
    for name in ("Ada", "Bob"):
        assert run("enqueue", "hello", f'{{"name": "{name}"}}').code == 0
    assert run("enqueue", "fails", "--app", shop).code == 0
    said = run("worker", shop, "--until-idle", "--json")
    assert said.code == 1  # B082
    assert (said.json["succeeded"], said.json["failed"], said.json["claimed"]) == (2, 1, 3)
    assert [j["status"] for j in run("jobs", "list", "--json").json] == ["failed", "succeeded", "succeeded"]
    logged = [json.loads(line) for line in said.err.splitlines()]
    assert [e["event"] for e in logged] == ["worker_started", "job_failed", "worker_stopped"]
    assert list(logged[0])[:3] == ["timestamp", "level", "event"]


def test_up_says_where_the_database_is_and_what_it_does(run: Run, shop: str, folder: Path) -> None:
    said = run("up", shop, "--until-idle", "--metrics-port", "0")
    assert said.code == 0
    assert str(folder / "duly.db") in said.out
    assert "hello, SEND, fails, nap" in said.out
    assert "default (20 at once), mail (20 at once), slow (20 at once)" in said.out
    assert "http://127.0.0.1:" in said.out
    assert "No job was run" in said.out


def test_a_worker_serves_the_queues_it_is_told(run: Run, shop: str) -> None:
    said = run("worker", shop, "--until-idle", "-q", "mail=3", "-q", "a=b=2", "-q", "plain", "--concurrency", "7")
    assert "mail (3 at once), a=b (2 at once), plain (7 at once)" in said.out
    assert run("worker", shop, "--until-idle", "-q", "mail", "-q", "mail=2").code == 2
    assert run("worker", shop, "--until-idle", "-q", "").code == 2


def test_with_patience_a_worker_waits_for_what_is_due_soon(run: Run, shop: str) -> None:
    run("enqueue", "hello", '{"name": "Bob"}', "--run-in", "1h")
    assert run("worker", shop, "--until-idle", "--json").json["succeeded"] == 0
    run("enqueue", "hello", '{"name": "Ada"}', "--run-in", "4s")
    assert run("worker", shop, "--until-idle", "--patience", "1min", "--json").json["succeeded"] == 1


def test_a_worker_carries_the_name_it_is_given(run: Run, shop: str) -> None:
    run("enqueue", "hello", '{"name": "Ada"}')
    assert run("worker", shop, "--until-idle", "--name", "box-7").code == 0
    (entry,) = run("audit", "list", "--json").json
    assert entry["actor"] == "box-7"


def test_an_application_without_tasks_has_nothing_to_work_on(run: Run, write: Callable[[str], str]) -> None:
    said = run("worker", write("from duly import Duly\napp = Duly()\n"))
    assert (said.code, "has no tasks to run" in said.err) == (2, True)


def test_a_port_that_is_taken_is_wrong_usage(run: Run, shop: str) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = run("worker", shop, "--metrics-port", str(taken.getsockname()[1]))
    assert (said.code, said.err.startswith("duly: metrics_port: ")) == (2, True)


def test_a_worker_works_on_both_databases(on: Run, app: Duly, shop: str) -> None:
    on("enqueue", "hello", '{"name": "Ada"}')
    assert on("worker", shop, "--until-idle").code == 0
    (job,) = app.jobs.find()
    assert job.output == {"greeting": "Hello Ada"}


# ---------------------------------------------------------------------- signals


@pytest.fixture
def napping(run: Run, shop: str, spawn: Spawn, folder: Path) -> Callable[..., subprocess.Popen[str]]:
    """A worker in the middle of a job of so many seconds."""

    def start(seconds: float, *args: str, **env: str) -> subprocess.Popen[str]:
        run("enqueue", "nap", f'{{"seconds": {seconds}}}', "--queue", "slow")
        process = spawn("worker", shop, *args, **env)
        until(lambda: (folder / "napping").exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return process

    return start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_lets_the_running_job_finish(run: Run, napping: Spawn, number: signal.Signals) -> None:
    process = napping(1.0)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "1 succeeded in" in out
    signals = [e for e in map(json.loads, err.splitlines()) if e["event"] == "signal"]
    assert [(e["signal"], e["effect"]) for e in signals] == [(number.name, "drain, then stop")]
    (job,) = run("jobs", "list", "--json").json
    assert (job["status"], job["attempts"]) == ("succeeded", 1)


def test_a_second_signal_does_not_wait_and_gives_the_job_back(run: Run, napping: Spawn) -> None:
    process = napping(600)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    until(lambda: '"drain, then stop"' in process.stderr.readline())  # type: ignore[union-attr]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "1 given back" in out
    assert '"stop now"' in err
    (job,) = run("jobs", "list", "--json").json
    assert (job["status"], job["attempts"]) == ("queued", 0)  # no attempt was used


def test_a_job_that_outlasts_the_grace_is_given_back(run: Run, napping: Spawn) -> None:
    process = napping(600, DULY_GRACE="0.2")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "1 given back" in out
    (job,) = run("jobs", "list", "--json").json
    assert (job["status"], job["attempts"]) == ("queued", 0)


def test_a_worker_answers_over_http_while_it_runs(napping: Spawn) -> None:
    process = napping(600, "--metrics-port", "0")
    assert process.stdout is not None
    line = ""
    while "http://" not in line:
        line = process.stdout.readline()
        assert line, "the address was not told"
    base = line.split()[1].removesuffix("/metrics,")
    until(lambda: _status(f"{base}/readyz") == 200)
    assert _status(f"{base}/livez") == 200
    with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
        assert 'duly_worker_running{queue="slow"} 1.0' in answer.read().decode()
    process.send_signal(signal.SIGINT)
    until(lambda: _status(f"{base}/readyz") == 503)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_doctor_sees_the_lease_of_a_worker_that_died(
    run: Run, napping: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = napping(600, DULY_LEASE="0.5")
    process.kill()
    process.communicate(timeout=30)
    monkeypatch.setenv("DULY_LEASE", "0.5")
    until(lambda: "the leases of 1 job have lapsed" in run("doctor").out)
    assert run("doctor").code == 1


# ---------------------------------------------------------------------- on a terminal


def test_on_a_terminal_jobs_and_signals_are_told_in_lines(run: Run, shop: str, folder: Path) -> None:
    run("enqueue", "hello", '{"name": "Ada"}')
    run("enqueue", "fails", "--max-attempts", "1")
    run("enqueue", "nap", '{"seconds": 1}', "--queue", "slow")
    screen = _on_a_terminal(
        [shop], folder, lambda seen: (folder / "napping").exists() and "failed" in seen and "hello" in seen
    )
    assert "\x1b[" in screen  # in colour
    plain = screen.replace("\x1b", "")
    assert "Duly " in plain
    assert "stopping" in plain
    assert "Running jobs may finish (up to 25 s). Once more stops at once." in plain
    assert "2 succeeded, 1 failed in" in plain
    assert "job 2, attempt 1 of 1: ValueError" in plain


def test_no_color_is_honoured_on_a_terminal(run: Run, shop: str, folder: Path) -> None:
    run("enqueue", "hello", '{"name": "Ada"}')
    screen = _on_a_terminal([shop], folder, lambda seen: "hello" in seen.partition("stops it")[2], NO_COLOR="1")
    assert "\x1b[" not in screen
    assert "done" in screen


def _on_a_terminal(args: list[str], folder: Path, ready: Callable[[str], bool], **env: str) -> str:
    """Run ``duly up`` on a pseudo-terminal, press Ctrl-C when ``ready``, and return everything on the screen."""
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "duly", "up", *args], cwd=folder, env={**os.environ, **env},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen, pressed, end = "", False, time.monotonic() + 60
    try:
        while time.monotonic() < end:
            try:
                part = os.read(mine, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
            if not pressed and ready(seen):
                process.send_signal(signal.SIGINT)
                pressed = True
        assert process.wait(timeout=30) == 0, seen
    finally:
        os.close(mine)
        if process.poll() is None:
            process.kill()
            process.wait()
    assert pressed, seen
    return seen
