"""A folder: each post becomes a folder of its own, with ``index.md`` (front matter and text) and its media beside it.

What static site generators read, and what a channel publishes to while it has nothing else. A post's folder is made under another name and
renamed: it is there as a whole or not at all. Its name comes from the job's key, so a post that is there is found.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from duly.clock import SystemClock
from duly.kernel.clock import Clock
from duly.kernel.errors import InvalidArgument
from duly.kernel.verdict import NETWORK, Kind, Refusal, Verdict, refusal
from duly.publishing.connectors import shared
from duly.publishing.connectors.base import Notebook
from duly.publishing.post import Limits, Post, Published, Rules


class FolderConnector:
    """Writes posts below ``folder`` (without one: ``posts`` in the folder ``beside``, which is that of the database).

    ``url``: where people see that folder, if they do. ``media_root``: local assets must be below it. Raises InvalidArgument.
    """

    name = "folder"
    rules = Rules()

    def __init__(
        self, *, folder: str | os.PathLike[str] | None = None, url: str = "", media_root: str | os.PathLike[str] | None = None,
        beside: str | os.PathLike[str] | None = None, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        found = shared.folder(folder, "folder")
        if found is None:
            near = shared.folder(beside, "beside")
            if near is None:
                raise InvalidArgument("folder", "is missing: there is no database file that it could be beside.")
            found = near / "posts"
        self.folder = found
        self._url = shared.text(url, "url").rstrip("/") if url else ""
        self._root, self._clock = shared.folder(media_root, "media_root"), clock or SystemClock()

    def __repr__(self) -> str:
        return f"FolderConnector({str(self.folder)!r})"

    async def publish(self, post: Post, notebook: Notebook) -> Published:
        key = shared.key_of(post, notebook)
        made = await asyncio.to_thread(self._prepare, post, str(notebook.facts["key"]))
        try:
            await notebook.ahead()
            await asyncio.to_thread(self._put, made, shared.name_of(post, key))
        finally:
            await asyncio.to_thread(shutil.rmtree, made, True)
        return self._published(post, key)

    async def reconcile(self, post: Post, notebook: Notebook) -> Published | None:
        key = shared.key_of(post, notebook)
        there = await asyncio.to_thread((self.folder / shared.name_of(post, key) / "index.md").exists)
        return self._published(post, key) if there else None

    def preview(self, post: Post) -> Mapping[str, Any]:
        files = [Path(a.path).name for a in post.assets if a.path]
        return shared.preview(self.name, post, folder=str(self.folder), files=["index.md", *files])

    async def limits(self) -> Limits | None:
        return None

    async def check(self) -> str:
        try:
            await asyncio.to_thread(self._try)
        except OSError as error:
            raise refusal(Kind.AUTH, f"the folder cannot be written to: {error.strerror}") from None
        return f"posts become folders in {self.folder}"

    # ------------------------------------------------------------------ files

    def _published(self, post: Post, key: str) -> Published:
        name = shared.name_of(post, key)
        return Published(name, f"{self._url}/{name}/" if self._url else None)

    def _try(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".duly-", dir=self.folder):
            pass

    def _prepare(self, post: Post, key: str) -> Path:
        """The post, complete, under a name that nobody reads. Raises Refusal."""
        made: Path | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=".duly-", dir=self.folder))
            made.chmod(0o755)
            names = []
            for number, asset in enumerate(post.assets, 1):
                if asset.path is None:
                    names.append(asset.url or asset.reference or "")
                    continue
                file = shared.read(asset, self._root)
                names.append(f"{number}-{file.name}")
                _write(made / names[-1], file.content)
            content = markdown(post, names, self._clock.now().isoformat(timespec="seconds"), key)
            _write(made / "index.md", content.encode())
            _sync(made)
        except BaseException as error:
            if made is not None:
                shutil.rmtree(made, True)
            if isinstance(error, OSError):
                raise Refusal(classify(error)) from None
            raise
        return made

    def _put(self, made: Path, name: str) -> None:
        """Give it its name. What has that name already is the same post."""
        try:
            made.rename(self.folder / name)
        except OSError as error:
            if not (self.folder / name / "index.md").exists():
                raise Refusal(classify(error)) from None
        else:
            _sync(self.folder)


class Row(NamedTuple):
    """One row of what errors of a disk mean: which errors, whose fault they are, and what follows."""

    errors: Collection[int]
    owner: str
    kind: Kind


#: The first row that fits counts. A channel that is paused goes on by itself once its check can write to the folder.
TABLE = (
    Row((errno.ENAMETOOLONG, errno.EFBIG, errno.EILSEQ), "post", Kind.PERMANENT),
    Row((errno.EACCES, errno.EPERM, errno.EROFS), "channel", Kind.AUTH),
    Row((errno.ENOENT, errno.ENOTDIR, errno.ELOOP), "channel", Kind.AWAY),
    Row((errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM), "machine", Kind.AWAY),
    Row((errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH), NETWORK, Kind.AWAY),
)  # fmt: skip
#: What fits no row.
UNLISTED = Row((), "machine", Kind.TRANSIENT)


def classify(error: OSError) -> Verdict:
    """What an error of the folder's disk means. Nothing was published."""
    row = next((one for one in TABLE if error.errno in one.errors), UNLISTED)
    return Verdict(
        row.kind, f"the folder cannot be written to: {error.strerror or type(error).__name__}", owner=row.owner
    )


def markdown(post: Post, names: list[str], date: str, key: str) -> str:
    """The file of a post. Front matter is YAML whose values are written as JSON, which is YAML too."""
    front: dict[str, Any] = {
        "title": post.title,
        "date": date,
        "brand": post.brand,
        "channel": post.channel,
        "link": post.link,
        "first_comment": post.first_comment,
        "assets": [
            {"kind": asset.kind, "file": name, "alt": asset.alt} for asset, name in zip(post.assets, names, strict=True)
        ],
        "options": dict(post.options),
        "key": key,
    }
    lines = [f"{name}: {_yaml(value)}" for name, value in front.items() if value]
    shown = [
        f"![{_plain(asset.alt)}]({name})"
        for asset, name in zip(post.assets, names, strict=True)
        if asset.kind == "image" and (asset.url or asset.path)
    ]
    parts = [post.caption.strip(), *shown, f"<{post.link}>" if post.link else ""]
    return "\n".join(["---", *lines, "---", "", "\n\n".join(part for part in parts if part), ""])


def _yaml(value: Any) -> str:
    """JSON that YAML reads as the same: what YAML takes for unprintable or for the end of a line is escaped."""
    written = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda found: f"\\u{ord(found[0]):04x}", written)


def _plain(words: str) -> str:
    return " ".join(words.split()).replace("[", "(").replace("]", ")")


def _write(file: Path, content: bytes) -> None:
    with file.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def _sync(folder: Path) -> None:
    """Make the names in a folder durable, where the system knows such a thing."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
