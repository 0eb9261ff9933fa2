"""``duly`` and programs without the wait: forked from a process that has imported everything.

The pages of the documentation show some hundreds of commands. Each would spend a third of a second on imports and a few hundredths on its
work. ``Forked`` starts one process that imports the command line; a small program named ``duly``, put before the real one on the PATH,
hands it its arguments, folder, environment, standard streams and signals, and ends as it ended.

The examples are programs of their own, and start others with ``sys.executable``: the small program ``python`` beside it runs any file that way,
and what that starts; whatever else it is told is the real one's to do.

In the flow: ``architecture/test_docs.py`` and ``examples/`` ask for it. Refuses to know: pytest. Run as a program: ``serve SOCKET MODULE…``, or (by
the small programs) ``SOCKET`` and a command's arguments, or ``SOCKET --program FILE`` and its arguments.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

TYPE_CHECKING = False  # `typing` would take longer to import than all the rest
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

#: Longest message: arguments and environment of one command.
MOST = 4 << 20


def command(path: str, arguments: list[str]) -> int:
    """The small program: ask, forward signals, and say how it ended."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        told = json.dumps(
            {
                "arguments": arguments,
                "folder": os.path.realpath("."),
                "environment": dict(os.environ),
                "python": f"{path.removesuffix('socket')}bin/python",
            }
        ).encode()
        socket.send_fds(line, [len(told).to_bytes(8, "big")], [0, 1, 2])
        line.sendall(told)
        child = int.from_bytes(line.recv(8), "big")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda received, _: os.kill(child, received))
        ended = line.recv(8)
    code = int.from_bytes(ended, "big", signed=True) if ended else 1
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def serve(path: str, more: list[str]) -> None:
    """Import the command line and ``more``, then fork a process for each who asks. Ends when its own parent does."""
    import gc
    from importlib import import_module

    for name in ("duly", "duly.cli.main", "duly.app", "duly.jobs.worker", "duly.cli.show", "duly.cli.stream", "duly.storage.postgres",
                 "duly.storage.migrate", "duly.rounds", "duly.mail", "duly.workflows", "duly.publishing", "duly.outbox", "duly.monitoring.logs",
                 "rich.table", "rich.console", "rich.markup", "rich.progress", "asyncio", "psycopg", "alembic.command", "sqlalchemy.dialects.sqlite",
                 "sqlalchemy.dialects.postgresql.psycopg", "click.testing", *more):  # fmt: skip
        import_module(name)
    import pkgutil

    import duly.cli

    for found in pkgutil.iter_modules(duly.cli.__path__):
        import_module(f"duly.cli.{found.name}")
    gc.freeze()
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(64)
        door.settimeout(2)
        while True:
            try:
                line, _ = door.accept()
            except TimeoutError:
                _reap()
                if os.getppid() != parent:
                    return
                continue
            _reap()
            if os.fork() == 0:
                door.close()
                _accompany(line)
            line.close()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _accompany(line: socket.socket) -> None:
    """In a process for one command: fork it, say its number, wait, and say how it ended. It does not outlive who asked."""
    line.settimeout(None)
    head, streams, _, _ = socket.recv_fds(line, 8, 3)
    length, told = int.from_bytes(head, "big"), b""
    while len(told) < min(length, MOST):
        told += line.recv(length - len(told))
    child = os.fork()
    if child == 0:
        line.close()
        _become(json.loads(told), streams)
        return
    for stream in streams:
        os.close(stream)
    line.sendall(child.to_bytes(8, "big"))
    gone = os.fork()
    if gone == 0:
        line.recv(1)  # who asked was killed, or has its answer
        try:
            os.kill(child, signal.SIGKILL)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    os.kill(gone, signal.SIGKILL)
    os.waitpid(gone, 0)
    line.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
    os._exit(0)


def _become(told: dict[str, Any], streams: list[int]) -> None:
    """Be the command, as if it had been started."""
    import io

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as at a terminal, wherever the tests were started
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")  # type: ignore[misc]
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        made = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=True, write_through=True)
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)
    if told["arguments"][:1] == ["--program"]:
        import runpy

        sys.argv = told["arguments"][1:]
        sys.path.insert(0, os.path.dirname(os.path.realpath(sys.argv[0])))  # noqa: PTH120
        sys.executable = told["python"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit(0)
    sys.argv = ["duly", *told["arguments"]]
    from duly.cli.main import main

    main()
    sys.exit(0)


class Forked:
    """The process that commands are forked from, and the folder of the small programs named ``duly`` and ``python``."""

    def __init__(self, folder: Path, *modules: str) -> None:
        import subprocess

        socket_, self.bin = folder / "socket", folder / "bin"
        self.bin.mkdir()
        asks = f'exec "{sys.executable}" -I -S "{__file__}" "{socket_}"'
        run = f'test "$1" = -u && shift\ncase "$1" in *.py) {asks} --program "$@";; *) exec "{sys.executable}" "$@";; esac'
        for name, body in (("duly", f'{asks} "$@"'), ("python", run)):
            (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
            (self.bin / name).chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", str(socket_), *modules],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        self._socket = socket_

    def is_ready(self) -> bool:
        assert self._process.poll() is None, "the process that commands are forked from has ended"
        return self._socket.exists()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(command(sys.argv[1], sys.argv[2:]))
