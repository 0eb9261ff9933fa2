"""A maildir: a folder of files, one for each message. What mail is sent to while nobody is to get any.

The file's name is the job's key, so a repeated message is the same file. https://cr.yp.to/proto/maildir.html
"""

from __future__ import annotations

import asyncio
import glob
import os
from pathlib import Path

from duly.kernel.clock import Clock
from duly.kernel.verdict import Kind
from duly.mail.message import Message
from duly.mail.mime import compose
from duly.mail.verdict import Receipt, undelivered
from duly.settings import Settings
from duly.storage.database import parse_url


def folder_of(settings: Settings) -> Path | None:
    """Where the maildir is; None when nothing says so: the database is no file, and no folder is named."""
    if settings.mail_folder:
        return Path(settings.mail_folder).expanduser()
    url = parse_url(settings.database_url)
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    file = Path(url.database).expanduser()
    return file.with_name(f"{file.stem}-mail")


class MaildirProvider:
    name = "maildir"
    remembers = float("inf")
    concurrency = None

    def __init__(self, settings: Settings, clock: Clock) -> None:
        found = folder_of(settings)
        assert found is not None, "providers.missing() asks before"
        self.folder = found

    async def send(self, message: Message, key: str) -> Receipt:
        await message.ahead(message.pending)
        try:
            await asyncio.to_thread(self._write, message, key)
        except OSError as error:
            raise undelivered(Kind.TRANSIENT, f"the maildir cannot be written to: {error.strerror}") from None
        return Receipt(remote_id=key)

    async def check(self) -> str:
        try:
            await asyncio.to_thread(self._make)
        except OSError as error:
            raise undelivered(Kind.AUTH, f"the maildir cannot be made: {error.strerror}") from None
        return f"messages become files in {self.folder / 'new'}"

    def _make(self) -> None:
        for name in ("tmp", "new", "cur"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def _was_read(self, key: str) -> bool:
        """Has a mail program moved it? It may put flags after the name, with a colon (or what stands for one where there is none)."""
        names = (file.name for file in (self.folder / "cur").glob(f"{glob.escape(key)}*"))
        return any(not name[len(key) : len(key) + 1].isalnum() for name in names)

    def _write(self, message: Message, key: str) -> None:
        self._make()
        if self._was_read(key):
            return
        envelope = "".join(f"Delivered-To: {address}\n" for address in message.pending)
        content = envelope.encode() + compose(message, utf8=True).as_bytes().replace(b"\r\n", b"\n")
        made = self.folder / "tmp" / key
        with made.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        made.replace(self.folder / "new" / key)
