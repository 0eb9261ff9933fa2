"""Commands that look, or act on what is there, make no database: a wrong path is told and leaves nothing behind."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cli.hands import Run

LOOKS = [
    "outbox status", "outbox list", "outbox show 1", "outbox redrive 1", "outbox redrive --parked", "outbox park 1 --reason x",
    "outbox prune --older-than 1d", "jobs list", "jobs show 1", "jobs cancel 1", "jobs replay 1", "jobs prune --older-than 1d", "why 1",
    "queues list", "queues resume mail", "gate", "audit list", "audit verify", "alerts list", "alerts show 1", "alerts check",
    "schedules list", "schedules show x", "schedules ledger x", "schedules preview x", "schedules tick", "blackouts list", "blackouts show x",
    "rounds list", "rounds show 1", "rounds groups list", "rounds ticks",
]  # fmt: skip


@pytest.mark.parametrize("command", LOOKS)
def test_in_an_empty_folder_it_says_that_there_is_no_database_and_makes_none(
    run: Run, folder: Path, command: str
) -> None:
    said = run(*command.split())
    assert (said.code, said.out) == (1, ""), said
    assert "there is no database at sqlite:///duly.db" in said.err
    assert list(folder.iterdir()) == []


def test_a_table_of_its_own_is_looked_for_and_no_file_is_made(run: Run, folder: Path) -> None:
    said = run("outbox", "status", "--table", "x")
    assert (said.code, said.out) == (1, "")
    assert "there is no table x in sqlite:///duly.db" in said.err
    assert list(folder.iterdir()) == []
    assert run("outbox", "sql", "--table", "x").code == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", ["outbox status", "jobs list", "gate", "audit verify"])
def test_a_wrong_path_is_told_and_made_into_nothing(run: Run, folder: Path, command: str) -> None:
    said = run(*command.split(), "--database-url", "sqlite:///wrong.db", "--json")
    assert (said.code, said.out) == (1, "")
    assert "wrong.db" in said.err
    assert list(folder.iterdir()) == []
    (folder / "empty.db").touch()
    assert run(*command.split(), "--database-url", "sqlite:///empty.db").code == 1
    assert (folder / "empty.db").stat().st_size == 0


@pytest.mark.parametrize("command", ["outbox status", "jobs list", "gate"])
def test_a_database_of_somebody_else_gets_no_tables(run: Run, folder: Path, command: str) -> None:
    with sqlite3.connect("shop.db") as connection:
        connection.execute("CREATE TABLE orders (n integer)")
    said = run(*command.split(), "--database-url", "sqlite:///shop.db")
    assert (said.code, said.out) == (1, "")
    assert "the tables of Duly are not in sqlite:///shop.db" in said.err
    with sqlite3.connect("shop.db") as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("orders",)]


@pytest.mark.parametrize(
    "command",
    ["queues pause mail --reason x", "queues limit mail --limit 3", "gate offline --reason x", "rounds groups add a --zone Europe/Paris"],
)  # fmt: skip
def test_who_puts_something_in_makes_the_database(run: Run, folder: Path, command: str) -> None:
    said = run(*command.split())
    assert said.code == 0, said
    assert (folder / "duly.db").exists()


@pytest.mark.postgres
@pytest.mark.parametrize("command", ["outbox status", "jobs list"])
def test_on_postgresql_it_says_what_makes_the_tables(run: Run, empty_pg_url: str, command: str) -> None:
    said = run(*command.split(), "--database-url", empty_pg_url)
    assert said.code == 1
    assert "Run `duly migrate` first." in said.err
