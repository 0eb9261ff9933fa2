"""A disk that is full: who enqueues is told, the worker says so once and is not ready, and goes on by itself once there is room (C013)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from contract.hands import rows, wait_until, working
from duly import DatabaseUnavailable, Duly, Status
from duly.monitoring.http import serve
from duly.monitoring.metrics import Metrics

#: A disk, and how it is filled and emptied again.
Disk = tuple[str, Callable[[], object], Callable[[], object]]

_FULL = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON jobs FOR EACH STATEMENT EXECUTE FUNCTION no_room();
CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON workers FOR EACH STATEMENT EXECUTE FUNCTION no_room()
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """A real one, of 8 MB, in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, check=False)  # fmt: skip
    if mounted.returncode:
        pytest.skip("to mount a small disk takes the rights of root")
    ballast = folder / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1024))
            except OSError:
                return

    try:
        yield f"sqlite:///{folder}/duly.db", fill, ballast.unlink
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)


@pytest.fixture
def refusing_server(pg_url: str) -> Disk:
    """A server that answers writes as it does when its disk is full."""

    def run(*statements: str) -> None:
        app = Duly(pg_url)
        app.db.write(lambda c: [c.exec_driver_sql(one) for one in statements])
        app.close()

    drop = "DROP FUNCTION no_room CASCADE"
    return pg_url, lambda: run(_FULL), lambda: run(drop)


@pytest.mark.parametrize("disk", ["small_disk", "refusing_server"])
def test_a_full_disk_is_said_once_and_over_by_itself(disk: str, request: pytest.FixtureRequest) -> None:  # C013
    url, fill, empty = request.getfixturevalue(disk)
    app = Duly(url, lease=1, poll=0.05)
    done: list[int] = []
    app.task("NOTE")(lambda n, text="": done.append(n))
    told: list[tuple[str, str, Any]] = []
    app.events.listen(lambda e: told.append((e.name, e.level, e.facts.get("loop"))))
    accepted = [app.enqueue("NOTE", {"n": n}, run_in=3).job.id for n in range(3)]
    worker = app.worker()
    with working(worker):
        monitor = serve(0, Metrics(worker))

        def status(path: str) -> int:
            try:
                with urlopen(f"{monitor.url}/{path}", timeout=10) as answer:
                    return int(answer.status)
            except HTTPError as error:
                return error.code

        try:
            wait_until(lambda: status("readyz") == 200)
            fill()
            with pytest.raises(DatabaseUnavailable, match=r"disk is full|No space left"):
                for n in range(100, 2000):
                    accepted.append(app.enqueue("NOTE", {"n": n, "text": "x" * 4000}).job.id)
            wait_until(lambda: status("readyz") == 503)
            assert status("livez") == 200
            failing = [e for e in told if e[0] == "loop_failed"]
            wait_until(lambda: len([e for e in told if e[0] == "loop_failed"]) > len(failing) + 4)
            loud = [loop for name, level, loop in told if name == "loop_failed" and level == "error"]
            assert len(loud) == len(set(loud)), "each loop says it once"
            empty()
            wait_until(lambda: all(app.jobs.get(ident).status is Status.SUCCEEDED for ident in accepted))
            wait_until(lambda: status("readyz") == 200)
        finally:
            monitor.close()
    assert len(done) == len(set(done)) == len(accepted)
    if app.db.is_sqlite:
        assert rows(app, "PRAGMA integrity_check") == [("ok",)]
    app.close()
