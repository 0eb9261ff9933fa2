"""``duly keys``: both kinds of keys. Source: R004-8, R002-2."""

from __future__ import annotations

import pytest

from cli.hands import Run
from contract.hands import audit
from duly import Duly


@pytest.fixture
def db_url(sqlite_url: str) -> str:
    return sqlite_url


def test_keys_of_jobs_are_listed_shown_and_forgotten(on: Run, app: Duly) -> None:  # D2
    app.task("CHARGE")(lambda: None)
    first = app.enqueue("CHARGE", {}, key="order 1", queue="billing").job.id
    app.enqueue("CHARGE", {}, key="b", unique_until="start")
    said = on("keys", "list", "--jobs").out
    assert ("order 1" in said, "forever" in said, "its job starts" in said) == (True, True, True)
    assert [one["key"] for one in on("keys", "list", "--jobs", "-q", "billing", "--json").json["keys"]] == ["order 1"]
    hint = on("keys", "show", "order 1")
    assert hint.code != 0
    assert f"Job {first} holds a key of that name: use --jobs --queue billing." in hint.err
    where = ("--jobs", "--queue", "billing", "order 1")
    assert on("keys", "show", *where, "--json").json["job_id"] == first
    assert str(first) in on("keys", "show", *where).out
    refused = on("keys", "forget", *where, "--reason", "the wrong amount")
    assert (refused.code != 0, "without force" in refused.err) == (True, True)
    assert "makes a job" in on("keys", "forget", *where, "--reason", "the wrong amount", "--force").out
    assert app.enqueue("CHARGE", {}, key="order 1", queue="billing").created
    assert [row["actor"].partition(":")[0] for row in audit(app, str(first))] == ["cli"]


@pytest.mark.parametrize("words", [("--jobs", "--state", "failed"), ("--queue", "billing"), ("--jobs", "--redis", "redis://x")])  # fmt: skip
def test_options_of_the_other_kind_of_keys_are_refused(on: Run, app: Duly, words: tuple[str, ...]) -> None:  # D2
    said = on("keys", "list", *words)
    assert said.code == 2
    assert "--jobs" in said.err
