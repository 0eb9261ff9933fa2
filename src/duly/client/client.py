"""How the calls of the client are sent, and what their answers mean. The calls themselves are generated (``_calls.py``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx2
import orjson

from duly.client._calls import Calls

#: Seconds between two tries of a stream that was cut, and of how many in a row that bring nothing the last one is told.
AGAIN, TRIES = 3.0, 5


class ApiError(Exception):
    """What the API refused. ``status``: its HTTP status; ``detail``: what was wrong; ``field``: where, if it knows; ``errors``: (field, detail) of
    each thing, where there are several; ``retry_after``: seconds, where it says so. Source: RFC 9457."""

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after: float | None = None) -> None:
        self.status, self.retry_after = status, retry_after
        self.detail = str(problem.get("detail") or problem.get("title") or "no reason was given")
        self.field: str | None = problem.get("field")
        errors = problem.get("errors")
        self.errors: list[tuple[str, str]] = [
            (str(e.get("field", "")), str(e.get("detail", "")))
            for e in (errors if isinstance(errors, list) else ())
            if isinstance(e, dict)
        ]
        super().__init__(f"{status}: {self.detail}")


@dataclass(frozen=True, slots=True)
class Change:
    """Something that has changed: ``what`` says what and not how. ``id``: where the stream goes on after it, None in the middle of several.

    ``kind`` is ``change``; or ``reset``, where so much was missed that everything should be looked at anew.
    """

    kind: str
    what: dict[str, Any]
    id: str | None


def _segment(text: str) -> str:
    """A value as a part of a path. Raises ApiError for ``.`` and ``..``: they mean another path to everything on the way, however they are written."""
    if text in (".", ".."):
        raise ApiError(422, {"detail": f"{text!r} cannot stand in a path: ask for it by its number, or in a list."})
    return quote(text, safe="")


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """Lines as a stream of events has them: a text may hold other characters that end lines elsewhere."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        yield from (line.removesuffix("\r") for line in whole)


class Client(Calls):
    """The API at an address.

    ``token``: of ``duly tokens create``; blank where everybody at this machine is let in. ``timeout``: seconds for each call. ``http``: a client of
    your own, for proxies or certificates. Calls raise ApiError where the API refuses, and ``httpx2.HTTPError`` where it cannot be reached; a POST with an
    ``idempotency_key`` may be sent again after that. It may be used from several threads.
    """

    def __init__(self, url: str, token: str = "", *, timeout: float = 30.0, http: httpx2.Client | None = None) -> None:
        self._url, self._own = url.rstrip("/"), http is None
        self._http = http or httpx2.Client(timeout=timeout)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        super().__init__(self.send)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections; a client of your own stays open."""
        if self._own:
            self._http.close()

    def send(
        self, method: str, path: str, values: Mapping[str, Any] | None = None, query: Mapping[str, Any] | None = None, body: Any = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Any:  # fmt: skip
        """One call. ``values`` stand in the path, ``query`` behind it; what is None is left out. Returns what the answer says. Raises ApiError."""
        answer = self._http.request(
            method, self._address(path, values), params={n: v for n, v in (query or {}).items() if v is not None},
            content=None if body is None else orjson.dumps(body),
            headers={
                **self._headers, **({} if body is None else {"Content-Type": "application/json"}),
                **{name: value for name, value in (headers or {}).items() if value is not None},
            },
        )  # fmt: skip
        return self._said(answer)

    def every(self, call: Callable[..., Any], *given: Any, **query: Any) -> Iterator[Any]:
        """What a list has, page after page: ``client.every(client.jobs.find, status=["failed"])``."""
        cursor: str | None = None
        while True:
            page = call(*given, **query, **({} if cursor is None else {"cursor": cursor}))
            yield from next(value for value in page.values() if isinstance(value, list))
            cursor = page.get("next")
            if cursor is None:
                return

    def changes(self, *, tenant: str | None = None, after: str | None = None) -> Iterator[Change]:
        """Changes as they happen, without end; ``after``: the ``id`` of one that was seen. A stream that is cut goes on where it was.

        Raises ApiError where it is refused, and ``httpx2.HTTPError`` where nothing answers several times in a row.
        """
        tries = 0
        while True:
            try:
                for change in self._listen({"tenant": tenant}, after):
                    tries, after = 0, change.id or after
                    if change.kind:
                        yield change
            except (httpx2.HTTPError, ApiError) as error:
                tries += 1
                # what stands between may be away for a moment, as the server may
                lasting = isinstance(error, ApiError) and error.status not in (429, 502, 503, 504)
                if lasting or tries >= TRIES:
                    raise
            time.sleep(AGAIN)

    def _listen(self, query: Mapping[str, Any], after: str | None) -> Iterator[Change]:
        headers = {**self._headers, **({} if after is None else {"Last-Event-ID": after})}
        params = {n: v for n, v in query.items() if v is not None}
        # longer than what comes on a stream of which nothing is to be told
        timeout = httpx2.Timeout(30.0, read=60.0)
        with self._http.stream(
            "GET", self._address("/api/v1/events"), params=params, headers=headers, timeout=timeout
        ) as answer:
            if answer.status_code != HTTPStatus.OK or "event-stream" not in answer.headers.get("content-type", ""):
                answer.read()
                if answer.is_success:
                    raise ApiError(502, {"detail": "what answers there is no stream of events"})
                self._said(answer)
            fields: dict[str, str] = {}
            for line in _lines(answer.iter_text()):
                if line:
                    name, _, value = line.partition(":")
                    fields[name] = value.removeprefix(" ")
                    continue
                yield Change(fields.get("event", ""), orjson.loads(fields.get("data") or "{}"), fields.get("id"))
                fields = {}

    def _address(self, path: str, values: Mapping[str, Any] | None = None) -> str:
        return self._url + path.format(**{name: _segment(str(value)) for name, value in (values or {}).items()})

    def _said(self, answer: httpx2.Response) -> Any:
        kind = answer.headers.get("content-type", "").partition(";")[0]
        if answer.is_success:
            return (
                None
                if not answer.content
                else orjson.loads(answer.content)
                if kind == "application/json"
                else answer.text
            )
        try:
            problem = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            problem = {}
        after = answer.headers.get("retry-after", "")
        raise ApiError(
            answer.status_code,
            problem if isinstance(problem, dict) else {},
            float(after) if after.isascii() and after.isdigit() else None,
        )
