"""A message that is too large for one request of Microsoft Graph: a draft is made, its files are attached one by one, and it is sent.

https://learn.microsoft.com/graph/outlook-large-attachments. A file that fits into a request is posted; a larger one goes in pieces to an
upload session, in order. Until the draft is sent nothing has left, so every step before that may be done again, from the beginning: what an
earlier attempt has left in Drafts is found by its Message-ID and removed, and so is a draft whose files could not be attached.

What a step is answered says nothing of other messages, because the mailbox has taken a request of ours before, or only larger messages need
this one: it uses an attempt of this message, and holds nothing. An error by which Graph says that it takes nothing at all now is left as it is.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import quote

import orjson

from duly.kernel.verdict import NETWORK, Kind, Verdict
from duly.mail.message import Attachment
from duly.mail.providers.http import Answered, checked_url, request
from duly.mail.verdict import Owner, Undelivered, undelivered

#: Bytes of a piece: a multiple of 320 KiB, below the 4 MB that the documentation advises.
PIECE = 10 * 320 * 1024
UPLOADING = "uploading a file"


class Ask(Protocol):
    """A request about the mailbox, with a token that is good."""

    async def __call__(self, path: str, content: bytes = b"", *, method: str = "POST") -> Answered: ...


class Drafts:
    """Drafts in one mailbox. ``judge``: what an answer means. ``largest``: bytes of a request. ``timeout``: seconds for a piece."""

    def __init__(self, ask: Ask, judge: Callable[[Answered], Verdict], largest: int, timeout: float) -> None:
        self._ask, self._judge, self._largest, self._timeout = ask, judge, largest, timeout

    async def make(self, message: Mapping[str, Any], files: Sequence[Attachment]) -> str:
        """Make a draft with its files. Returns its id. Raises Undelivered; nothing is left of it then, as far as that can be done."""
        for left in await self._left(str(message["internetMessageId"])):
            await self.remove(left)
        answer = await self._step("messages", orjson.dumps(message), {201}, "making a draft")
        ident = quote(_text(answer, "id"), safe="=")
        try:
            for file in files:
                await self._attach(ident, file)
        except Undelivered as error:
            await self.remove(ident)
            if error.verdict.owner == NETWORK:  # it was there a moment ago
                raise Undelivered(replace(error.verdict, kind=Kind.TRANSIENT)) from None
            raise
        return ident

    async def remove(self, ident: str) -> None:
        """Remove a draft. What stays because that fails is removed by the next attempt."""
        with suppress(Undelivered):
            await self._ask(f"messages/{ident}", method="DELETE")

    async def _left(self, message_id: str) -> list[str]:
        wanted = quote(f"internetMessageId eq '{message_id.replace(chr(39), chr(39) * 2)}'")
        path = f"mailFolders/drafts/messages?$filter={wanted}&$select=id"
        answer = await self._step(path, b"", {200}, "looking for drafts", method="GET")
        found = answer.body.get("value")
        rows = found if isinstance(found, list) else []
        return [quote(str(row["id"]), safe="=") for row in rows if isinstance(row, Mapping) and row.get("id")]

    async def _attach(self, draft: str, file: Attachment) -> None:
        whole = orjson.dumps(attached(file))
        if len(whole) <= self._largest:
            await self._step(f"messages/{draft}/attachments", whole, {201}, "attaching a file")
            return
        item = {
            "attachmentType": "file",
            "name": file.filename,
            "size": len(file.content),
            "contentType": file.content_type,
        }
        content = orjson.dumps({"AttachmentItem": item})
        answer = await self._step(f"messages/{draft}/attachments/createUploadSession", content, {200, 201}, "beginning an upload")  # fmt: skip
        url = _text(answer, "uploadUrl")
        with_token = checked_url(url.partition("?")[0], "uploadUrl") and url
        for start in range(0, len(file.content), PIECE):
            piece = file.content[start : start + PIECE]
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Range": f"bytes {start}-{start + len(piece) - 1}/{len(file.content)}",
            }
            answer = await request("PUT", with_token, timeout=self._timeout, headers=headers, content=piece)
            last = start + len(piece) == len(file.content)
            self._checked(answer, {201} if last else {200, 201, 202}, UPLOADING)

    async def _step(
        self, path: str, content: bytes, good: Collection[int], doing: str, *, method: str = "POST"
    ) -> Answered:
        answer = await self._ask(path, content, method=method)
        self._checked(answer, good, doing)
        return answer

    def _checked(self, answer: Answered, good: Collection[int], doing: str) -> None:
        if answer.status in good:
            return
        verdict = self._judge(answer)
        said = f"{verdict.reason} at {doing}; nothing was sent"
        if verdict.kind in (Kind.SENT, Kind.UNKNOWN):
            verdict = replace(verdict, kind=Kind.TRANSIENT)
        if answer.status == 403 and verdict.kind is Kind.AUTH:
            # messages that need no draft go out with what the application may do
            verdict = replace(verdict, kind=Kind.TRANSIENT, owner=Owner.ACCOUNT)
            said += ". A message of this size needs the permission Mail.ReadWrite besides Mail.Send"
        if answer.status == 401 and doing == UPLOADING:  # the token of the URL, and none of ours
            verdict = replace(verdict, kind=Kind.TRANSIENT, owner=Owner.SERVER)
        raise Undelivered(replace(verdict, reason=said))


def attached(file: Attachment) -> dict[str, Any]:
    """A file as it stands in a request."""
    return {
        "@odata.type": "#microsoft.graph.fileAttachment", "name": file.filename, "contentType": file.content_type,
        "contentBytes": base64.b64encode(file.content).decode(),
    }  # fmt: skip


def _text(answer: Answered, name: str) -> str:
    found = answer.body.get(name)
    if not isinstance(found, str) or not found:
        raise undelivered(
            Kind.TRANSIENT,
            f"Microsoft Graph answered {answer.status} without {name}; nothing was sent",
            owner=Owner.SERVER,
        )
    return found
