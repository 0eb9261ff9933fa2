"""``duly up`` runs what the application's module defines: its worker, and the relays of its outboxes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from duly.cli.work import Relays
from duly.kernel.errors import DatabaseUnavailable
from duly.kernel.events import Emitter
from keeper import until

SHOP = """
from duly import Duly
from duly.outbox import Outbox
from duly.outbox.transports.duly import DulyTransport

app = Duly("sqlite:///up.db")
box = Outbox(app, transports={"duly": DulyTransport(app)})


@app.task
def receipt(order: int) -> None:
    open("receipts.txt", "a").write(f"{order}\\n")


@app.task
def order(n: int, session) -> None:
    box.publish(session, "duly:receipt", {"order": n}, key=f"r-{n}")
"""


def duly(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "duly", *args], cwd=folder, capture_output=True, text=True, timeout=60)


def test_what_jobs_publish_is_relayed_and_what_that_makes_is_run(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    lines = "".join(json.dumps({"task": "order", "input": {"n": n}}) + "\n" for n in range(7))
    (tmp_path / "orders.jsonl").write_text(lines)
    assert duly(tmp_path, "enqueue", "--file", "orders.jsonl", "--app", "shop.py").returncode == 0
    done = duly(tmp_path, "up", "shop.py", "--until-idle")
    assert done.returncode == 0, done.stderr
    assert "14 succeeded" in done.stdout
    assert "outbox" in done.stdout
    assert sorted(map(int, (tmp_path / "receipts.txt").read_text().split())) == list(range(7))


def test_a_relay_of_duly_up_works_beside_the_worker_and_stops_with_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    up = subprocess.Popen(
        [sys.executable, "-m", "duly", "up", "shop.py", "--metrics-port", "0"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert up.stdout is not None
        url = ""
        while "http://" not in url:
            url = up.stdout.readline()
            assert url, "it has ended"
        base = "http://" + url.split("http://")[1].split("/metrics")[0]
        assert duly(tmp_path, "enqueue", "order", '{"n": 5}', "--app", "shop.py").returncode == 0
        assert until((tmp_path / "receipts.txt").exists, 30)

        def told() -> bool:  # the job can be done before the relay has written that the message was sent
            with urllib.request.urlopen(base + "/metrics") as page:
                sent = 'duly_outbox_attempts_total{destination="duly:receipt",result="sent"} 1.0'
                return sent in page.read().decode()

        assert until(told, 30)
    finally:
        up.send_signal(signal.SIGINT)
        _, said = up.communicate(timeout=30)
    assert up.returncode == 0, said
    assert "outbox_relay_stopped" in said


def test_an_outbox_without_its_table_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("Outbox(app,", 'Outbox("sqlite:///guest.db",'))
    (tmp_path / "guest.db").touch()
    done = duly(tmp_path, "up", "shop.py", "--until-idle")
    assert done.returncode == 1
    assert "create_table()" in done.stderr
    assert "Traceback" not in done.stderr


#: ``duly up`` whose owner presses Ctrl-C between the start of the relays and that of the worker.
EARLY = """
import os, signal
from duly.cli import main, work

start = work.Relays.start


def then(self):
    start(self)
    os.kill(os.getpid(), signal.SIGINT)


work.Relays.start = then
main.cli.main(["up", "shop.py"], prog_name="duly")
"""


def test_a_signal_that_comes_before_the_worker_hears_any_ends_it_too(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "early.py").write_text(EARLY)
    done = subprocess.run([sys.executable, "early.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "worker_stopped" in done.stderr


class FailsOnce:
    """Stands for a relay whose database is away when it is started."""

    name, ready = "r", True

    def __init__(self) -> None:
        self.emitter, self.runs, self.options = Emitter(), 0, SimpleNamespace(grace=0.1)
        self._stopped = threading.Event()

    def run(self) -> None:
        self.runs += 1
        if self.runs == 1:
            raise DatabaseUnavailable("away")
        self._stopped.wait(20)

    def stop(self) -> None:
        self._stopped.set()


def test_a_relay_that_cannot_start_is_started_again_and_not_ready_meanwhile() -> None:
    relay, told = FailsOnce(), []
    posts = Relays()
    posts.boxes = [SimpleNamespace(relay=lambda: relay)]
    relay.emitter.listen(lambda event: told.append((event.name, posts.unready())))
    posts.start()
    for _ in range(400):
        if relay.runs == 2:
            break
        time.sleep(0.02)
    posts.stop()
    assert relay.runs == 2
    assert told[0] == ("loop_failed", ["relay r: DatabaseUnavailable: away"])


SLOW = """
import time
from pathlib import Path
from sqlalchemy.orm import Session
from duly import Duly
from duly.outbox import Outbox


class Slow:
    def send(self, message):
        Path("sending").touch()
        time.sleep(300)


app = Duly("sqlite:///up.db")
box = Outbox(app, transports={"slow": Slow()}, grace=250)


@app.task
def order(n: int, session) -> None:
    box.publish(session, "slow:x", n)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_second_signal_does_not_wait_for_what_is_being_sent(tmp_path: Path, number: signal.Signals) -> None:
    """Wherever the program is by then: the worker has nothing to finish, so it ends at the first one."""
    (tmp_path / "slow.py").write_text(SLOW)
    assert duly(tmp_path, "enqueue", "order", '{"n": 5}', "--app", "slow.py").returncode == 0
    up = subprocess.Popen(
        [sys.executable, "-m", "duly", "up", "slow.py"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert until((tmp_path / "sending").exists, 30)
        up.send_signal(number)
        assert up.stderr is not None
        for line in up.stderr:
            if "worker_stopped" in line:
                break
        assert up.poll() is None, "it does not wait for what is being sent"
        up.send_signal(number)
        up.communicate(timeout=30)
    finally:
        up.kill()
        up.wait()
    assert up.returncode == 0
