"""A fleet in the how-to's own layout: two files in a folder, `celery -A fleet worker` there, and nothing on the path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

SHOP = """
from pathlib import Path

from duly import Duly

app = Duly("sqlite:///shop.db")


@app.task(run_in="process", max_attempts=1)
def heavy(n: int) -> int:
    Path(f"heavy-{n}").touch()
    return n
"""
FLEET = """
import os

from celery import Celery

from duly.integrations.celery import apply_robust_settings, install_executor
from shop import app as duly_app

app = Celery("fleet", broker=os.environ["BROKER_URL"])
apply_robust_settings(app)
install_executor(app, duly_app)
"""


def test_handlers_in_processes_run_on_a_fleet_that_was_started_in_its_folder(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    (tmp_path / "fleet.py").write_text(textwrap.dedent(FLEET))
    scripts = Path(sys.executable).parent
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"BROKER_URL": redis_url}
    with (tmp_path / "log").open("wb") as log:
        # `celery`, not `python -m celery`, which has the folder on its path for good
        fleet = subprocess.Popen(
            [scripts / "celery", "-A", "fleet", "worker", "--concurrency", "1"],
            cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        for command in (
            ["enqueue", "heavy", '{"n": 7}', "--app", "shop.py"],
            ["dispatch", "shop:app", "--to", "celery", "--celery", "fleet:app", "--until-idle"],
        ):
            done = subprocess.run(
                [scripts / "duly", *command], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100
            )
            assert done.returncode == 0, done.stderr
        assert (tmp_path / "heavy-7").exists(), (tmp_path / "log").read_text()[-3000:]
    finally:
        os.killpg(fleet.pid, signal.SIGTERM)
        fleet.wait(30)
