"""The servers that the tests run against are real, private where it matters, and gone afterwards."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import redis
from sqlalchemy import create_engine, inspect, make_url

from servers import PostgresServer, Stop, ValkeyServer

TESTS = Path(__file__).parents[1]

#: A test that starts every kind of server, says where, and then hangs.
HANGS = """
import time
from pathlib import Path

def test_hangs(pg_url, redis_url, own_postgres, own_valkey, this_run):
    said = Path(__file__).with_name("said")
    said.write_text(" ".join([str(this_run.folder), pg_url, redis_url, own_postgres.url, own_valkey.url]))
    said.rename(said.with_name("ready"))
    time.sleep(100)
"""

#: A run that was started in the background ignores Ctrl-C, and hands that down. The inner run must not.
HEEDS = """
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def test_each_test_gets_a_migrated_database(db_url: str) -> None:
    engine = create_engine(db_url.replace("postgresql://", "postgresql+psycopg://"))
    assert "jobs" in inspect(engine).get_table_names()
    engine.dispose()


@pytest.mark.parametrize("turn", [1, 2])
def test_two_tests_do_not_share_a_database(pg_url: str, turn: int) -> None:
    with psycopg.connect(pg_url) as connection:
        connection.execute("CREATE TABLE mine (turn int)")  # the second turn would fail on the first one's table


@pytest.mark.parametrize("turn", [1, 2])
def test_two_tests_do_not_share_a_file(sqlite_url: str, turn: int) -> None:
    with closing(sqlite3.connect(str(make_url(sqlite_url).database))) as connection, connection:
        connection.execute("CREATE TABLE mine (turn int)")


@pytest.mark.parametrize("turn", [1, 2])
def test_two_tests_do_not_share_a_key(redis_url: str, turn: int) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys() == []
        client.set("mine", turn)


def test_an_empty_database_has_no_tables(empty_pg_url: str) -> None:
    with psycopg.connect(empty_pg_url) as connection:
        row = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    assert row == (0,)


def test_the_shared_server_has_room_for_many_connections(pg_url: str) -> None:
    with psycopg.connect(pg_url) as connection:
        row = connection.execute("SELECT current_setting('max_connections')::int").fetchone()
    assert row is not None
    assert row[0] >= 200


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_what_was_committed_survives_a_stop_of_postgres(own_postgres: PostgresServer, mode: Stop) -> None:
    with psycopg.connect(own_postgres.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    own_postgres.stop(mode)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(own_postgres.url)
    own_postgres.start()
    with psycopg.connect(own_postgres.url) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (7,)
        assert connection.execute("SHOW fsync").fetchone() == ("on",)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_what_was_answered_survives_a_stop_of_valkey(own_valkey: ValkeyServer, mode: Stop) -> None:
    with redis.Redis.from_url(own_valkey.url) as client:
        client.set("kept", "7")
    own_valkey.restart(mode)
    with redis.Redis.from_url(own_valkey.url) as client:
        assert client.get("kept") == b"7"


@pytest.mark.postgres
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda end: end.name)
def test_no_server_outlives_its_run(tmp_path: Path, end: signal.Signals) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text() + HEEDS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "PYTEST_"))}
    inner = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(TESTS)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until((tmp_path / "ready").exists)
    folder, *urls = (tmp_path / "ready").read_text().split()

    # Ctrl-C in a terminal reaches a whole group; a kill is for one process.
    (os.killpg if end is signal.SIGINT else os.kill)(inner.pid, end)
    inner.wait(60)

    wait_until(lambda: not Path(folder).exists())  # after a kill, nobody is left to wait for the keeper
    for url in urls[::2]:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
    for url in urls[1::2]:
        with pytest.raises(redis.ConnectionError), redis.Redis.from_url(url, retry=None) as client:
            client.ping()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.05)
