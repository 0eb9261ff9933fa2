"""What every test may ask for: a database of its own, a real server of its own.

Nothing starts before a test asks for it, and nothing is left when the run ends, however it ends (see `keeper.py`).
A server that does not start is a failure, never a reason to skip.

Ask for                to get
---------------------  --------------------------------------------------------------------------------------------
`db_url`               the test twice, as [sqlite] and [postgres]: the URL of an empty, migrated database
`pg_url`, `sqlite_url` one of the two
`empty_pg_url`         a PostgreSQL database without Duly's tables
`redis_url`            an empty Valkey database (one number per worker)
`own_postgres`         a durable, migrated PostgreSQL server for this test alone, to stop and start in the middle
`own_valkey`           the same for Valkey
"""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest
import redis
from psycopg import sql

from keeper import IN_MEMORY, Run, roomy
from servers import TEMPLATE, PostgresServer, ValkeyServer, database_url, make_template, migrate

RUN = pytest.StashKey[Run]()

# Examples share two cores with servers and each other: how long one took says nothing about the code.
hypothesis.settings.register_profile("duly", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("duly")


# --- The run --------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    # A program that a test starts finds compiled what the one before it has compiled, whatever the environment says.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        # Whoever is started in the background of a script ignores Ctrl-C, and so would each program that a test starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Under xdist the controller leads the run and tells its workers where the folder is.
    told = getattr(config, "workerinput", None)
    if told is None and roomy(IN_MEMORY):
        # Each commit on SQLite waits for the disk, and no test pulls the plug: a process that is killed loses nothing in memory.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))
    config.stash[RUN] = Run.lead() if told is None else Run(Path(told["run"]))


@pytest.hookimpl(optionalhook=True)  # xdist's
def pytest_configure_node(node: Any) -> None:
    node.workerinput["run"] = str(node.config.stash[RUN].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[RUN].end()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs PostgreSQL, so that `-m "not postgres"` is the quick half; a soak tries each property DULY_SEEDS times as often."""
    times = int(os.environ.get("DULY_SEEDS", "1"))
    for item in items:
        tried = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)
        if tried is not None and times > 1:
            more = hypothesis.settings(tried, max_examples=times * tried.max_examples)
            item.obj._hypothesis_internal_use_settings = more  # type: ignore[attr-defined]  # no public name says it afterwards
        if {"pg_url", "empty_pg_url", "own_postgres"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.postgres)


def pytest_collection_finish() -> None:
    """What is there by now stays until the end: whoever collects garbage during a test need not look at it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def this_run(request: pytest.FixtureRequest) -> Run:
    """What the processes of this test run share."""
    return request.config.stash[RUN]


# --- A database for each test ---------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def db_url(request: pytest.FixtureRequest) -> str:
    """A migrated database of this test's own; the test runs once on each kind."""
    url: str = request.getfixturevalue({"sqlite": "sqlite_url", "postgres": "pg_url"}[request.param])
    return url


@pytest.fixture(autouse=True)
def no_site_is_remembered() -> Iterator[None]:
    """FastAPI remembers thousands of functions, and with them the applications of tests that are over: a heap that slows down whoever collects."""
    yield
    module = sys.modules.get("fastapi.dependencies.models")
    for one in vars(module).values() if module else ():
        if hasattr(one, "cache_clear"):
            one.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def passwords_cost_little() -> Iterator[None]:
    """A fifth of a second of a core for each password is meant for those who guess; `tests/accounts` asks for the real ones."""
    from argon2 import PasswordHasher
    from argon2.profiles import CHEAPEST

    from duly.accounts import door

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door, "_hasher", lambda: PasswordHasher.from_parameters(CHEAPEST))
        yield


@pytest.fixture(autouse=True, scope="module")
def nothing_is_kept_for_other_modules(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a module of tests has worked out for itself (clocks of every zone, minute by minute) goes with it."""
    yield
    for one in vars(request.module).values():
        if hasattr(one, "cache_clear"):
            one.cache_clear()


@pytest.fixture
def sqlite_url(tmp_path: Path, migrated_file: Path) -> str:
    """A migrated SQLite database in a file of this test's own."""
    copy = tmp_path / "duly.db"
    shutil.copyfile(migrated_file, copy)
    return f"sqlite:///{copy}"


@pytest.fixture
def pg_url(new_database: Callable[[str], str]) -> str:
    """A migrated PostgreSQL database of this test's own."""
    return new_database(TEMPLATE)


@pytest.fixture
def empty_pg_url(new_database: Callable[[str], str]) -> str:
    """A PostgreSQL database without tables, for those who test migrations."""
    return new_database("template0")


@pytest.fixture
def new_database(postgres_admin: Admin) -> Iterator[Callable[[str], str]]:
    """Create databases from a template, by its name; they go when the test ends."""
    yield postgres_admin.create
    postgres_admin.finished()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SQLite file that each test gets a copy of."""
    file = tmp_path_factory.mktemp("template") / "duly.db"
    migrate(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as connection:  # bring everything home from the write-ahead log
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file


@pytest.fixture(scope="session")
def postgres_server_url(this_run: Run) -> str:
    """The one PostgreSQL server of the run: yours (DULY_TEST_POSTGRES_URL) or a fast and forgetful one."""

    def start() -> str:
        if url := os.environ.get("DULY_TEST_POSTGRES_URL"):
            make_template(url)
            return url
        server = PostgresServer(this_run, durable=False)
        server.start()
        server.hand_over()
        make_template(server.url)
        return server.url

    return this_run.shared("postgres", start)


@pytest.fixture(scope="session")
def postgres_admin(postgres_server_url: str) -> Iterator[Admin]:
    admin = Admin(postgres_server_url)
    yield admin
    admin.close()


class Admin:
    """Creates and drops databases for one worker.

    A test's databases are dropped when the next test wants one. Done at once, the drop would often find the last
    connection still closing, and PostgreSQL then sleeps for a tenth of a second before it looks again.
    """

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._connection = psycopg.connect(server_url, autocommit=True)
        self._in_use: list[str] = []
        self._to_drop: list[str] = []

    def create(self, template: str) -> str:
        self._drop()
        name = f"duly_test_{secrets.token_hex(5)}"
        # a copy of files, file by file, takes half the time where nothing has to reach a disk
        strategy = "" if os.environ.get("DULY_TEST_POSTGRES_URL") else " STRATEGY file_copy"
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}" + strategy)
        self._connection.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        self._in_use.append(name)
        return database_url(self._server_url, name)

    def finished(self) -> None:
        self._to_drop += self._in_use
        self._in_use.clear()

    def close(self) -> None:
        self._drop()
        self._connection.close()

    def _drop(self) -> None:
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
        while self._to_drop:
            self._connection.execute(drop.format(sql.Identifier(self._to_drop.pop())))


@pytest.fixture(scope="session")
def valkey_server_url(this_run: Run) -> str:
    """The one Valkey server of the run: yours (DULY_TEST_REDIS_URL, whose databases it empties) or a fast one."""

    def start() -> str:
        if url := os.environ.get("DULY_TEST_REDIS_URL"):
            return url
        server = ValkeyServer(this_run, durable=False)
        server.start()
        server.hand_over()
        return server.url

    return this_run.shared("valkey", start)


@pytest.fixture
def redis_url(valkey_server_url: str) -> str:
    """An empty Valkey database. Its number is the worker's, so workers do not empty each other's."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    url = database_url(valkey_server_url, worker.removeprefix("gw"))
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


# --- A server for one test ------------------------------------------------------------------------------------------


@pytest.fixture
def own_postgres(this_run: Run) -> Iterator[PostgresServer]:
    """A migrated PostgreSQL server that this test may stop, crash and restart; the URL stays."""
    server = PostgresServer(this_run, durable=True)
    server.start()
    yield server
    server.discard()


@pytest.fixture
def own_valkey(this_run: Run) -> Iterator[ValkeyServer]:
    """A Valkey server that this test may stop, crash and restart; it remembers its data, and the URL stays."""
    server = ValkeyServer(this_run, durable=True)
    server.start()
    yield server
    server.discard()
