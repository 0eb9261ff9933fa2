"""A run of the tests, and the keeper that tidies up after it: no server outlives its run, however that ends.

Each run has one folder, and the process that leads the run holds a lock on a file in it for as long as it lives.
Whoever starts the first server also starts a *keeper*: this file, run as a program, which waits for that lock. The
system releases a lock when its holder ends, whatever ended it: a normal exit, Ctrl-C, a SIGTERM from an impatient CI,
a SIGKILL. Then the keeper stops every server noted in the folder and removes it. The ordinary end of a run takes the
same path, so the path for accidents is tried each time.

In the flow: `conftest.py` leads or joins a run, `servers.py` starts servers in it. Refuses to know: Duly, and what
kind of servers they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

STOPS_WITHIN = 20.0  #: seconds, after which a server is killed
IN_MEMORY = Path("/dev/shm")  #: a file system in memory, on Linux

#: Processes that outlive this one. Kept here, so that Python does not complain that nobody waits for them.
children: list[subprocess.Popen[bytes]] = []


class Run:
    """The folder that the processes of one test run share. Its leader creates it; its workers are told the path.

    The servers keep their data in a twin of it in memory where the system has one with room: copying a database
    there takes a tenth of the time. A process that is killed loses nothing either way.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._leadership: IO[str] | None = None

    @classmethod
    def lead(cls) -> Run:
        """Open a run and hold it until `end`, or until this process is no more."""
        run = cls(Path(tempfile.mkdtemp(prefix="duly-tests-")))
        if roomy(IN_MEMORY):
            _twin(run.folder).mkdir()
        for folder in {run.folder, run.data}:
            folder.chmod(0o711)  # a server that may not be root must be able to reach its own folder inside
        # A POSIX lock belongs to the process alone: a forked child does not keep the run alive by accident.
        run._leadership = (run.folder / "leader").open("w")
        fcntl.lockf(run._leadership, fcntl.LOCK_EX)
        return run

    @property
    def data(self) -> Path:
        """Where the servers of this run live."""
        twin = _twin(self.folder)
        return twin if twin.exists() else self.folder

    def end(self) -> None:
        """Let go, and wait until the keeper has stopped every server, so that nothing outlives the run."""
        assert self._leadership is not None, "only the leader ends a run"
        self._leadership.close()
        kept = (self.folder / "keeper").exists()
        if not (kept and until(lambda: not self.folder.exists(), STOPS_WITHIN + 5)):
            sweep(self.folder)

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """One process of the run at a time."""
        with (self.folder / f"{name}.lock").open("w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            yield

    def shared(self, name: str, start: Callable[[], str]) -> str:
        """Return the URL of a server that all workers share; the first one to ask starts it."""
        with self.alone(name):
            noted = self.folder / f"{name}.url"
            if not noted.exists():
                noted.write_text(start())
            return noted.read_text()

    def ensure_keeper(self) -> None:
        with self.alone("keeper"):
            if (self.folder / "keeper").exists():
                return
            # In a session of its own: Ctrl-C in the terminal is for the tests, not for the one who tidies up after.
            keeper = subprocess.Popen(
                [sys.executable, __file__, str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            (self.folder / "keeper").write_text(str(keeper.pid))
            children.append(keeper)

    def new_port(self) -> int:
        """Return a port that nobody listens on and that no other server of this run was given.

        It lies below the range from which systems pick the local end of outgoing connections. Otherwise a client
        could come to sit on the port of a server that is stopped for a moment, and the restart would fail.
        """
        while True:
            port = 15_000 + secrets.randbelow(15_000)  # not `random`, which tests and their tools may have seeded
            try:
                (self.folder / f"port-{port}").touch(exist_ok=False)
            except FileExistsError:
                continue
            if silent(port):
                return port


def sweep(folder: Path) -> None:
    """Stop every server noted in a run's folder or its twin, then remove both."""
    for note in [*folder.glob("*/server.json"), *_twin(folder).glob("*/server.json")]:
        server = json.loads(note.read_text())
        # A port that answers is the proof that the number still names our server and not a later process.
        if silent(server["port"]):
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(server["pid"], signal.SIGCONT)  # a test may have frozen it
            os.kill(server["pid"], server["signal"])
            if not until(partial(silent, server["port"]), STOPS_WITHIN):
                os.kill(server["pid"], signal.SIGKILL)
    # The leader watches the folder, so it goes last.
    until(partial(_removed, _twin(folder)), 5)
    until(partial(_removed, folder), 5)


def keep(folder: Path) -> None:
    """Wait for the end of the run, then sweep. This is what the keeper does, and all it does."""
    with (folder / "leader").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
    sweep(folder)


def _twin(folder: Path) -> Path:
    return IN_MEMORY / folder.name


def roomy(place: Path) -> bool:
    """Say whether a place can take the data of a run: it needs some 300 MB (a container often has 64 there)."""
    return os.access(place, os.W_OK) and shutil.disk_usage(place).free > 2 << 30


def silent(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return False
    return True


def _removed(tree: Path) -> bool:
    """Remove a tree. False when the last files of a server appeared in the meantime."""
    shutil.rmtree(tree, ignore_errors=True)
    return not tree.exists()


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait for a condition at most so long, and say whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def freeze(pid: int) -> None:
    """Stop a process with SIGSTOP and wait until each of its threads stands still. The signal alone is no more than a request:
    one thread takes it and stops the others, and on a busy machine these run on until that one has its turn."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")

    def stands_still() -> bool:
        try:
            states = [thread.joinpath("stat").read_text().rpartition(")")[2].split()[0] for thread in threads.iterdir()]
        except FileNotFoundError:  # a thread has ended meanwhile
            return False
        return all(state in "TtZX" for state in states)

    if threads.exists():
        assert until(stands_still, 30), f"process {pid} did not stop"
    else:
        time.sleep(0.2)  # not Linux: there is nothing to look at


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
