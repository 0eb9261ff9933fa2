"""The connection that listens: its death is noticed, whether the server tells or not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy.engine import make_url

from contract.hands import Proxy
from duly.storage import postgres


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    url = make_url(pg_url)
    made = Proxy(str(url.host), int(url.port or 5432))
    yield made
    made.door.close()


def _terminate(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'duly-listen' AND datname = current_database()")  # fmt: skip


@pytest.mark.parametrize("how", ["terminated", "the server's side dropped", "packets swallowed", "registration lost"])
def test_a_listening_connection_that_died_is_noticed_and_listens_again(
    pg_url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:  # C012
    monkeypatch.setattr(postgres, "PULSE", 0.1)
    monkeypatch.setattr(postgres, "ANSWER", 0.3)
    rung, lost, again = threading.Event(), threading.Event(), threading.Event()
    listener = postgres.Listener(
        make_url(pg_url).set(port=proxy.port), lambda _: rung.set(), lambda _: lost.set(), again.set, ["duly_jobs"]
    )
    listener.start()
    assert rung.wait(5)
    assert not lost.wait(0.7)  # several pulses of a healthy one
    if how == "terminated":
        _terminate(pg_url)
    elif how == "the server's side dropped":
        proxy.servers[0].close()
    elif how == "packets swallowed":
        proxy.swallow = True
    else:
        monkeypatch.setattr(postgres, "_LISTENING", b"SELECT 0")
    assert lost.wait(5)
    assert listener.problem or again.is_set()
    proxy.swallow = False
    monkeypatch.setattr(postgres, "_LISTENING", b"SELECT pg_catalog.count(*) FROM pg_catalog.pg_listening_channels()")
    assert again.wait(5)
    rung.clear()
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute("NOTIFY duly_jobs")
    assert rung.wait(5)
    assert listener.problem == ""
    listener.stop()
