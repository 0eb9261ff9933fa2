"""``duly web``, and the dashboard beside ``duly up``: who is let in where."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cli.hands import Run
from duly import Duly
from duly.accounts.door import Accounts
from duly.kernel.errors import InvalidArgument
from duly.web import serve
from duly.web.ending import Ending
from fronts import on_both

APP = """
from duly import Duly
app = Duly("sqlite:///work.db")

@app.task("greet")
def greet(name: str = "you") -> str:
    return f"hello {name}"
"""


def begun(folder: Path, *args: str) -> tuple[subprocess.Popen[str], list[str]]:
    """A process, and what it says until it says how to stop it."""
    (folder / "work.py").write_text(APP)
    made = subprocess.Popen(
        [sys.executable, "-m", "duly", *args], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    assert made.stdout is not None
    while not said or "Ctrl-C" not in said[-1]:
        line = made.stdout.readline()
        assert line, made.communicate(timeout=30)[1]
        said.append(line)
    return made, said


def page(url: str) -> str:
    request = urllib.request.Request(url, headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: str = answer.read().decode()
        return found


def address(said: list[str]) -> str:
    line = next(one for one in said if "http://" in one)
    return "http://" + line.partition("http://")[2].split()[0].rstrip(",")


#: Sends itself a signal, once, when a module is looked for: in the middle of its start.
INTERRUPTED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "MODULE":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGNAL)

sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("module", ["work", "uvicorn", "duly.web.app"])
def test_a_signal_while_it_starts_ends_duly_web(tmp_path: Path, module: str, number: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED.replace("MODULE", module).replace("SIGNAL", number))
    (tmp_path / "work.py").write_text(APP)
    web = [sys.executable, "-m", "duly", "web", "work.py", "--port", "0"]
    done = subprocess.run(
        web, cwd=tmp_path, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_signal_is_not_lost_where_its_exception_is() -> None:
    class Server:
        heard = 0

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.heard = sig

    before = signal.getsignal(signal.SIGTERM)
    reached = False
    with Ending() as ending:
        signal.raise_signal(signal.SIGTERM)
        reached = True
    assert ending.asked
    assert not reached
    with Ending() as ending:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)
        server = Server()
        assert not ending.serves(server)
    with Ending() as ending:
        assert ending.serves(server)
        signal.raise_signal(signal.SIGTERM)
        assert server.heard == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("command", ["web", "up"])
def test_it_ends_quietly_while_somebody_follows_changes(tmp_path: Path, command: str) -> None:
    process, said = begun(tmp_path, command, "work.py", "--port", "0")
    try:
        with urllib.request.urlopen(address(said) + "/api/v1/events", timeout=60) as stream:
            assert stream.readline().startswith(b"retry:")
            process.send_signal(signal.SIGTERM)
            stream.read()  # raises where the answer is cut off
    finally:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "ERROR" not in err
    assert "Traceback" not in err


def test_an_answer_that_takes_too_long_when_the_server_ends_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sqlite_url: str
) -> None:
    asked = threading.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.set()
            await asyncio.sleep(300)

    monkeypatch.setattr("duly.web.app.create", lambda *given, **options: slow)
    got: list[tuple[int, str]] = []

    def ask(url: str) -> None:
        try:
            urllib.request.urlopen(url, timeout=60)
        except urllib.error.HTTPError as error:
            got.append((error.code, error.read().decode()))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = serve._server(Duly(sqlite_url), "", None, True)
        monkeypatch.setattr(
            logging.getLogger("uvicorn.error"), "handlers", [caplog.handler]
        )  # its making takes handlers off
        runs = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        runs.start()
        asks = threading.Thread(target=ask, args=(f"http://127.0.0.1:{listener.getsockname()[1]}/",))
        asks.start()
        assert asked.wait(30)
        server.should_exit = True
        runs.join(60)
        asks.join(60)
    [(status, said)] = got
    assert status == 503 and "The server is ending" in said
    assert ["timeout graceful shutdown exceeded" in one.getMessage() for one in caplog.records] == [True], (
        "no traceback"
    )


def test_duly_up_serves_the_dashboard_and_ends_with_it(tmp_path: Path) -> None:  # issue 8
    up, said = begun(tmp_path, "up", "work.py")
    try:
        assert "no account: for everybody on this machine" in "".join(said)
        assert "<h1>Overview</h1>" in page(address(said) + "/")
    finally:
        up.send_signal(signal.SIGINT)
        _, err = up.communicate(timeout=60)
    assert up.returncode == 0, err
    assert "Traceback" not in err


def test_duly_up_leaves_it_out_when_asked_and_when_it_ends_by_itself(tmp_path: Path) -> None:
    up, said = begun(tmp_path, "up", "work.py", "--no-web")
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=60)
    assert "dashboard" not in "".join(said)
    done = subprocess.run(
        [sys.executable, "-m", "duly", "up", "work.py", "--until-idle"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "dashboard" not in done.stdout


def test_duly_up_serves_it_where_it_is_told_to_or_not_at_all(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (tmp_path / "work.py").write_text(APP)
        up = [sys.executable, "-m", "duly", "up", "work.py", "--port", port]
        refused = subprocess.run(up, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2
        assert f"127.0.0.1:{port} cannot be listened on: Address already in use" in refused.stderr
        both = subprocess.run([*up, "--no-web"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert both.returncode == 2
        assert "--port" in both.stderr
    served, said = begun(tmp_path, "up", "work.py", "--port", port)
    try:
        assert address(said) == f"http://127.0.0.1:{port}"
    finally:
        served.send_signal(signal.SIGINT)
        served.communicate(timeout=60)


def test_duly_web_says_that_everybody_is_let_in(tmp_path: Path) -> None:
    web, said = begun(tmp_path, "web", "work.py", "--port", "0")
    try:
        assert "everybody on this machine" in "".join(said)
        assert "<h1>Jobs</h1>" in page(address(said) + "/jobs")
    finally:
        web.send_signal(signal.SIGINT)
        _, err = web.communicate(timeout=60)
    assert web.returncode == 0, err


def test_duly_web_is_shown_below_a_path_by_a_proxy_that_takes_it_off(tmp_path: Path) -> None:
    web, said = begun(tmp_path, "web", "work.py", "--port", "0", "--root-path", "/duly")
    try:
        assert 'href="/duly/queues"' in page(address(said) + "/jobs")
    finally:
        web.send_signal(signal.SIGINT)
        _, err = web.communicate(timeout=60)
    assert web.returncode == 0, err


@pytest.mark.parametrize("path", ["duly", "/duly/", "/", "//x", "/a b", '/"><script>'])
def test_a_path_that_no_proxy_shows_it_below_is_refused(run: Run, path: str) -> None:
    said = run("web", "--root-path", path)
    assert said.code == 2
    assert "root_path: is" in said.err


def test_any_other_door_is_refused_without_accounts(run: Run, tmp_path: Path) -> None:  # issue 8
    said = run("web", "--host", "0.0.0.0", "--allow-remote")
    assert said.code == 1 or said.code == 2
    assert "web_token" in said.err
    assert "duly users create" in said.err


@on_both("a door of a server is not open")
def test_a_door_is_open_on_an_embedded_database_on_loopback_without_accounts_only(db_url: str) -> None:  # issue 8
    app = Duly(db_url)
    try:
        embedded = db_url.startswith("sqlite")
        assert serve.is_local(app, "", "127.0.0.1") is embedded
        assert serve.is_local(app, "", "::1") is embedded
        assert serve.is_local(app, "", "localhost") is embedded
        assert not serve.is_local(app, "", "0.0.0.0")
        assert not serve.is_local(app, "", "192.0.2.1")
        assert not serve.is_local(app, "a token of the settings", "127.0.0.1")
        assert not serve.is_guarded(app, "")
        with pytest.raises(InvalidArgument, match="web_token"):
            serve.run(app, "", host="0.0.0.0", allow_remote=True, local=True)
        Accounts(app).create_token("ci", "viewer")
        assert not serve.is_local(app, "", "127.0.0.1")
        assert serve.is_guarded(app, "")
        with pytest.raises(InvalidArgument, match="--allow-remote"):
            serve.run(app, "", host="0.0.0.0", local=True)
    finally:
        app.close()


def test_the_next_port_is_taken_where_one_is_in_use(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if port > 65_000:
            port -= 1_000
        site = serve.Beside(app, "", port)
        try:
            assert int(site.url.rpartition(":")[2]) >= port
            assert site.url != f"http://127.0.0.1:{taken.getsockname()[1]}"
            site.start()
            assert "<h1>Overview</h1>" in page(site.url + "/")
        finally:
            site.stop()
            app.close()
