"""The processes of the example: each in a session of its own, and none that outlives the one who started it.

``Child`` is the parent's side: start, wait until it listens, end, kill. Run as a program, this file is the child's side: it
runs another program, and tells it to stop (SIGTERM) when the parent has gone, however that went: the parent holds the
other end of the standard input, and the system closes it.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
#: Seconds until a process that was told to stop is killed.
GRACE = 15.0
#: A process that ends unbidden is started again so often, and not once more.
RESTARTS = 5


class Failed(Exception):
    """A process that cannot be kept alive, and where it says why."""


class Child:
    """One process. ``serves``: it takes ``--port`` and writes its address as the first line of its output."""

    def __init__(self, name: str, arguments: list[str], log: Path, *, serves: bool = False) -> None:
        self.name, self.address = name, ""
        self._arguments, self._log, self._serves = arguments, log, serves
        self._process: subprocess.Popen[str] | None = None
        self._restarts = 0

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start it, on the port that it had before. Raises Failed when it ends before it listens."""
        port = ["--port", self.address.rpartition(":")[2] or "0"] if self._serves else []
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "processes.py"), *self._arguments, *port],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._serves else log,
                stderr=log,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the parent, who ends the others in good order
            )
        if self._serves:
            assert self._process.stdout is not None
            address = self._process.stdout.readline().strip()
            if not address:
                raise Failed(f"The {self.name} did not start: {self._last_words()}")
            self.address = address

    def keep_alive(self) -> bool:
        """Start it again if it has ended unbidden. Returns whether it had. Raises Failed when it does so again and again."""
        if self._process is None or self._process.poll() is None:
            return False
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise Failed(f"The {self.name} has ended {self._restarts} times: {self._last_words()}")
        time.sleep(0.2 * self._restarts)
        self.start()
        return True

    def kill(self) -> None:
        """SIGKILL: it has no say in it."""
        if self._process is not None:
            self._process.kill()
        self._gone()

    def tell(self) -> None:
        """Tell it to stop, and do not wait."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Tell it to stop, and wait until it has."""
        self.tell()
        self._gone()

    def _gone(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _last_words(self) -> str:
        said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{said[-1]} ({self._log})" if said else f"it says nothing in {self._log}"


def _stop_with_the_parent() -> None:
    while os.read(0, 1024):  # not sys.stdin: its lock would be held while the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """``processes.py program.py [arguments]`` or ``processes.py -m module [arguments]``."""
    threading.Thread(target=_stop_with_the_parent, daemon=True).start()
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(str(HERE / sys.argv[0]), run_name="__main__")


if __name__ == "__main__":
    main()
