"""Channels in a file: the setting publish_channels, with secrets from the environment and mistakes with their places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from duly import Duly, InvalidArgument
from duly.kernel.gate import Rate
from duly.kernel.source import InvalidDocument
from duly.publishing import Publishing
from duly.testing import drain
from publishing.hands import POST, Ear, World, app_of

Make = Callable[..., Publishing]


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "channels.yaml"
    file.write_text(text)
    return str(file)


def test_a_file_names_channels_with_everything_that_code_could_say(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERE", str(tmp_path / "posts"))
    room = make(publish_channels=write(tmp_path, """
notes:
  connector: folder
  options: {folder: "${WHERE}"}
busy:
  connector: folder
  limit: 3
  rate: {count: 50, seconds: 86400}
  max_attempts: 2
  backoff: {base: 10, max: 100}
  unknown: retry
  breaker: {failures: 2, seconds: 30}
  options: {folder: "${WHERE}"}
"""))  # fmt: skip
    busy = room.channels["busy"]
    assert list(room.channels) == ["notes", "busy"]
    assert (busy.limit, busy.rate, busy.max_attempts, busy.unknown) == (3, Rate(50, 86_400.0), 2, "retry")
    assert (busy.backoff.base, busy.backoff.max, busy.breaker.failures, busy.breaker.seconds) == (10, 100, 2, 30)
    ident = room.enqueue("notes", POST).job.id
    drain(app_of(room))
    assert (room.get(ident).status, len(list((tmp_path / "posts").glob("*/index.md")))) == ("completed", 1)


def test_a_worker_serves_the_channels_of_the_file_without_a_word_of_code(db_url: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"notes: {{connector: folder, options: {{folder: '{tmp_path}/posts'}}}}\n")
    app = Duly(db_url, publish_channels=file)
    ident = Publishing.of(Duly(db_url, publish_channels=file)).enqueue("notes", POST).job.id
    app.worker().run(until_idle=True)
    assert Publishing.of(app).get(ident).status == "completed"
    assert app.queues.get("notes").limit == 1
    app.close()


def test_a_worker_that_names_its_queues_keeps_the_limits_of_the_file_too(db_url: str, tmp_path: Path) -> None:
    # R002-7: nothing has read the file before the worker begins
    file = write(tmp_path, f"notes: {{connector: folder, rate: [5, 60], options: {{folder: '{tmp_path}/posts'}}}}\n")
    app = Duly(db_url, publish_channels=file)
    app.worker(queues=["notes"]).run(until_idle=True)
    found = app.queues.get("notes")
    assert (found.limit, found.rate) == (1, Rate(5, 60.0))
    app.close()


def test_what_code_declares_goes_before_the_file(make: Make, tmp_path: Path, world: World) -> None:
    room = make(publish_channels=write(tmp_path, f"ig: {{connector: folder, options: {{folder: '{tmp_path}'}}}}\n"))
    mine = room.channel("ig", world.connector())
    assert room.channels["ig"] is mine


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "names no channel"),
        ("a: 7", "channels.yaml:1:4: a is no mapping"),
        ("a: {limit: 1}", "has no connector"),
        ("a:\n  connector: folder\n  limt: 1", "channels.yaml:3:3: a.limt is not a field"),
        ("a:\n  connector: folder\n  limit: 0", "channels.yaml:3:10: a.limit"),
        (
            "a:\n  connector: folder\n  options: {folder: '${NO_SUCH}'}",
            "the environment variable NO_SUCH, which is not set",
        ),
        ("a:\n  connector: nosuch", "channels.yaml:2:14: a.connector"),
        ("a:\n  connector: 7", "a.connector"),
        ("a:\n  connector: folder\n  options: {foldr: x}", "channels.yaml:3:20: a.options.foldr"),
        ("a:\n  connector: folder\n  rate: {count: 1}", "a.rate"),
        ("a:\n  connector: webhook", "channels.yaml:2:3: a.options.url is missing"),
    ],
)
def test_a_mistake_is_told_with_its_place(make: Make, tmp_path: Path, text: str, said: str) -> None:
    room = make(publish_channels=write(tmp_path, text))
    with pytest.raises(InvalidDocument) as caught:
        room.channels
    assert said in str(caught.value)


def test_every_mistake_is_told_at_once_and_no_value_of_the_environment(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    room = make(
        publish_channels=write(tmp_path, "a: {connector: folder, limit: '${TOKEN}'}\nb: {connector: nosuch}\nc: 7\n")
    )
    with pytest.raises(InvalidDocument) as caught:
        room.channels
    assert len(caught.value.problems) == 3


def test_a_file_that_is_not_there_is_told(make: Make, tmp_path: Path) -> None:
    room = make(publish_channels=str(tmp_path / "none.yaml"))
    with pytest.raises(InvalidArgument, match=r"none\.yaml"):
        room.enqueue("ig", POST)


BROKEN = """
notes: {connector: folder, limit: 1, options: {folder: '%s/posts'}}
site: {connector: wordpress, options: {url: "https://example.org", user: u, password: "${NOT_THERE}"}}
"""


def test_a_worker_does_not_start_on_a_file_that_cannot_be_read_whichever_queues_it_names(
    db_url: str, tmp_path: Path
) -> None:
    # limits and rates stand there: without them a channel would run as if it had none
    app = Duly(db_url, publish_channels=write(tmp_path, BROKEN % tmp_path))
    for queues in (None, ["notes"]):
        with pytest.raises(InvalidDocument, match="NOT_THERE"):
            app.worker(queues)
    app.close()


def test_a_post_whose_channels_cannot_be_read_waits_and_uses_no_attempt(make: Make, tmp_path: Path) -> None:
    good = make(publish_channels=write(tmp_path, (BROKEN % tmp_path).split("site")[0]))
    ident = good.enqueue("notes", POST).job.id
    (tmp_path / "other").mkdir()
    room = make(publish_channels=write(tmp_path / "other", BROKEN % tmp_path))
    ear = Ear(room)
    drain(app_of(room), queues=["notes"])
    seen = room.get(ident)
    assert (seen.status, seen.attempts, seen.progress) == ("pending", 0, None)
    assert [e["job"] for e in ear.named("publish_channel_unknown")] == [ident]
    assert "notes" not in room._channels._declared


def test_a_newsletter_of_a_file_of_channels_is_mailed_without_a_word_of_code(db_url: str, tmp_path: Path) -> None:
    text = "letter: {connector: newsletter, options: {to: [ada@example.org]}}\n"
    folder = tmp_path / "mail"
    app = Duly(db_url, publish_channels=write(tmp_path, text), mail_from="shop@example.org", mail_folder=str(folder))
    Publishing.of(app).enqueue("letter", POST)
    app.worker().run(until_idle=True)
    assert len(list((folder / "new").iterdir())) == 1
    app.close()
