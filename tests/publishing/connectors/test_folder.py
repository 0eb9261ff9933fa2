"""Posts as files: whole or not there."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.kernel.verdict import Kind
from duly.publishing.connectors import shared
from duly.publishing.connectors.folder import FolderConnector, markdown
from duly.publishing.post import Asset, Post
from duly.testing import ManualClock
from duly.testing.connectors import MemoryNotebook
from publishing.connectors.hands import refused, run

NOW = datetime(2026, 6, 1, 10, 0, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> FolderConnector:
    return FolderConnector(folder=tmp_path / "site", url="https://example.org/", clock=ManualClock(NOW))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "Shop: été.jpg"
    file.write_bytes(b"jpeg")
    return file


def test_a_post_is_a_folder_with_its_text_and_media(folder: FolderConnector, image: Path) -> None:
    post = Post(
        "site", "Come and see.", brand="shop", title='Sale: "20 %"', link="https://example.org/sale", first_comment="First!",
        assets=(Asset(path=str(image), alt="The [shop]"), Asset(url="https://example.org/b.jpg")), options={"draft": False},
    )  # fmt: skip
    answer = run(folder.publish(post, MemoryNotebook()))
    assert answer.remote_id is not None
    made = folder.folder / answer.remote_id
    assert made.name.startswith("sale-20-")
    assert answer.url == f"https://example.org/{made.name}/"
    assert sorted(file.name for file in made.iterdir()) == ["1-Shop-t-.jpg", "index.md"]
    head, text = made.joinpath("index.md").read_text().split("---\n")[1:]
    assert yaml.safe_load(head) == {
        "title": 'Sale: "20 %"', "date": "2026-06-01T10:00:00+00:00", "brand": "shop", "channel": "site", "link": "https://example.org/sale",
        "first_comment": "First!", "options": {"draft": False}, "key": "key-1",
        "assets": [
            {"kind": "image", "file": "1-Shop-t-.jpg", "alt": "The [shop]"}, {"kind": "image", "file": "https://example.org/b.jpg", "alt": ""}
        ],
    }  # fmt: skip
    assert text.strip().split("\n\n") == [
        "Come and see.", "![The (shop)](1-Shop-t-.jpg)", "![](https://example.org/b.jpg)", "<https://example.org/sale>"
    ]  # fmt: skip


def test_twenty_runs_of_one_job_leave_one_post(folder: FolderConnector, image: Path) -> None:
    # B054, as far as files go
    post, gate = Post("site", "Hello", assets=(Asset(path=str(image)),)), threading.Barrier(20)

    def publish() -> None:
        run(folder.publish(post, MemoryNotebook(at_ahead=gate.wait)))  # type: ignore[arg-type]

    threads = [threading.Thread(target=publish) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(folder.folder.iterdir())) == 1


def test_what_a_killed_run_leaves_is_no_post(folder: FolderConnector) -> None:
    folder.folder.mkdir()
    (folder.folder / ".duly-left").mkdir()
    post = Post("site", "Hello")
    assert run(folder.reconcile(post, MemoryNotebook())) is None
    run(folder.publish(post, MemoryNotebook()))
    assert run(folder.reconcile(post, MemoryNotebook())) is not None


def test_a_file_must_be_below_the_root_and_be_what_was_planned(tmp_path: Path, image: Path) -> None:
    root = tmp_path / "media"
    root.mkdir()
    (root / "a.jpg").write_bytes(b"good")
    (root / "link.jpg").symlink_to(image)
    folder = FolderConnector(folder=tmp_path / "site", media_root=root)
    good = f"sha256:{hashlib.sha256(b'good').hexdigest()}"

    def kind(path: str, checksum: str | None = None) -> Kind | None:
        post = Post("site", path, assets=(Asset(path=path, checksum=checksum),))
        notebook = MemoryNotebook(path)
        try:
            run(folder.publish(post, notebook))
        except Exception:
            assert notebook.aheads == 0
            return refused(folder.publish(post, MemoryNotebook(path))).kind
        return None

    assert kind("a.jpg", good) is None
    assert kind(str(root / "a.jpg")) is None
    assert kind("a.jpg", "sha256:00") is Kind.PERMANENT
    for outside in (str(image), "../Shop: été.jpg", "link.jpg", "/etc/passwd", "nowhere.jpg", ".", "a\0b"):
        assert kind(outside) in (Kind.PERMANENT, Kind.TRANSIENT), outside
    assert len(list((tmp_path / "site").glob("*/index.md"))) == 1 + 1


def test_a_folder_is_beside_the_database_unless_it_is_named(tmp_path: Path) -> None:
    assert FolderConnector(beside=tmp_path).folder == tmp_path / "posts"
    with pytest.raises(InvalidArgument, match="folder"):
        FolderConnector()


def test_a_folder_that_cannot_be_written_to_stops_the_channel(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refused(FolderConnector(folder=tmp_path / "file" / "x").check()).kind is Kind.AUTH


@pytest.mark.parametrize(
    ("number", "kind", "owner"),
    [
        (errno.ENOSPC, Kind.AWAY, "machine"), (errno.EDQUOT, Kind.AWAY, "machine"), (errno.EROFS, Kind.AUTH, "channel"), (errno.EACCES, Kind.AUTH, "channel"),
        (errno.EIO, Kind.AWAY, "network"), (errno.ENAMETOOLONG, Kind.PERMANENT, "post"), (errno.EXDEV, Kind.TRANSIENT, "machine"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["tempfile.mkdtemp", "pathlib.Path.rename"])
def test_an_error_of_the_disk_has_an_owner_and_leaves_nothing(
    folder: FolderConnector, monkeypatch: pytest.MonkeyPatch, number: int, kind: Kind, owner: str, place: str
) -> None:  # F
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(place, fails)
        verdict = refused(folder.publish(Post("site", "Hello"), MemoryNotebook()))
    assert (verdict.kind, verdict.owner, os.strerror(number) in verdict.reason) == (kind, owner, True)
    assert list(folder.folder.iterdir()) == []
    assert run(folder.publish(Post("site", "Hello"), MemoryNotebook())).remote_id


@given(st.text(max_size=80), st.text(max_size=40), st.text(max_size=40))
def test_front_matter_says_what_it_was_given(title: str, brand: str, key: str) -> None:
    made = markdown(Post("site", "", title=title, brand=brand), [], NOW.isoformat(), key)
    assert made.startswith("---\n")
    head = made[4:].partition("\n---\n")[0]
    wanted = {"title": title, "brand": brand, "key": key, "channel": "site", "date": NOW.isoformat()}
    assert yaml.safe_load(head) == {name: value for name, value in wanted.items() if value}


@given(st.text(max_size=200), st.text(min_size=1, max_size=40))
def test_a_name_is_safe_in_a_folder_and_as_unique_as_its_key(title: str, key: str) -> None:
    post = Post("site", title=title)
    name = shared.name_of(post, key)
    assert name.isascii()
    assert "/" not in name
    assert not name.startswith((".", "-"))
    assert len(name) <= 66
    assert name != shared.name_of(post, key + "x")
