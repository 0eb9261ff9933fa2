"""``IdempotencyMiddleware``: an ASGI application runs once per ``Idempotency-Key``, and a repeated request gets its first answer.

Where it stands: between the server and an application (FastAPI, Starlette, Litestar, any other), inside whatever
authenticates, compresses or adds CORS headers. A request that carries a key is read whole, reserved in a store as any
idempotent work is, and handed on; the answer passes through and is recorded. Everything else passes untouched. It knows
no framework and no route. Sources: draft-ietf-httpapi-idempotency-key-header, RFC 9457, cases B052 and B053; the page
``docs/how-to/idempotent-http.md`` says what clients see.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Literal

from duly.idempotency.http_answer import Answer, Refused, decoded, problem, remembered, replayed
from duly.idempotency.http_request import caller_of, fingerprint, key_of, store_key, values
from duly.idempotency.http_run import App, Receive, Replay, Run, Scope, Send, on_a_thread
from duly.idempotency.keeper import KEEPER
from duly.idempotency.plan import Busy, Done, Mismatch
from duly.idempotency.reservation import Ask, State, Terms
from duly.idempotency.store import LOOK, Holding, Store, store_finder
from duly.idempotency.telling import Teller
from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument, StoreUnavailable, brief
from duly.kernel.payload import check_name, check_number, read_duration, read_seconds

MIB = 1024 * 1024
#: The longest time, in seconds, after which a client is asked to try again: a request may end at any moment.
RETRY_AFTER = 5

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class _Disconnected(Exception):
    """The client went away before its request was complete."""


class IdempotencyMiddleware:
    """Run ``app`` once per idempotency key.

    ``store``: where reservations are kept, or a function that gives it at the first request; default: what
    ``set_default_store`` was given, which a Duly application does with its database.
    ``header``: the name of the header. ``methods``: those it is looked for in.
    ``required``: whether a request of these methods without a key is refused (400), or a function of the scope that says so.
    ``tenant``: whose keys these are, or a function of the scope that says it. Nothing reaches from one tenant to another.
    ``identity``: a function of the scope that names the caller within the tenant, the same for every token of his; keys of
    two identities are two keys. None or empty, from it or instead of it: callers are told apart by their ``Authorization``,
    ``Cookie`` and ``X-API-Key`` headers, and a recorded answer is refused (422) to whoever shows others.
    ``name``: in events, metrics and the store's ``task``; two applications that share a store need two names.
    ``wait``: for how many seconds a duplicate of a request in progress waits for its answer before it gets 409.
    ``max_body``, ``max_response`` (bytes): a longer request with a key is refused (413); a longer answer is passed on, and
    not kept.
    ``lock`` (seconds): for so long a request keeps its key without a sign of life. It gives one every ``heartbeat`` seconds as
    long as it runs, so only a process that died makes others wait for that. ``keep``: for how long an answer is remembered.
    ``remember``: which statuses are recorded; default: 2xx, and those 4xx that a repetition would meet again. The key of
    any other is free again.
    ``on_store_error``: when the store does not answer, ``refuse``: 503; ``pass``: the request runs unprotected, and an event
    says so.
    ``documentation``: the URL where your API explains its keys; problem documents link to it.

    Raises InvalidArgument for options that cannot be used.
    """

    def __init__(
        self,
        app: App,
        *,
        store: Store | Callable[[], Store] | None = None,
        header: str = "Idempotency-Key",
        methods: Iterable[str] = ("POST", "PATCH"),
        required: bool | Callable[[Scope], bool] = False,
        tenant: str | Callable[[Scope], str] = "default",
        identity: Callable[[Scope], str | None] | None = None,
        name: str = "http",
        wait: Duration = 0.0,
        max_body: int = MIB,
        max_response: int = MIB,
        lock: Duration = 90.0,
        heartbeat: Duration = 10.0,
        keep: Duration = timedelta(hours=24),
        remember: Callable[[int], bool] = remembered,
        on_store_error: Literal["refuse", "pass"] = "refuse",
        documentation: str | None = None,
    ) -> None:
        if not isinstance(header, str) or not _TOKEN.fullmatch(header):
            raise InvalidArgument("header", f"is {header!r}, which cannot be the name of a header.")
        named = [methods] if isinstance(methods, str) else list(methods)
        if not named or not all(isinstance(m, str) and _TOKEN.fullmatch(m) for m in named):
            raise InvalidArgument("methods", f"is {methods!r}.", 'Give names of methods, such as ("POST", "PATCH").')
        if on_store_error not in ("refuse", "pass"):
            raise InvalidArgument("on_store_error", f"is {on_store_error!r}.", "Use 'refuse' or 'pass'.")
        for field, number in (("max_body", max_body), ("max_response", max_response)):
            check_number(number, field, "bytes, 0 or more", 0, 1e9)
        wait, lock, heartbeat = (
            read_seconds(span, field, 0, 1e9)
            for field, span in (("wait", wait), ("lock", lock), ("heartbeat", heartbeat))
        )
        keep = read_duration(keep, "keep")
        if not callable(remember) or not (identity is None or callable(identity)):
            raise InvalidArgument("identity" if callable(remember) else "remember", "must be a function.")
        self.app = app
        self._methods = frozenset(method.upper() for method in named)
        self._store = store_finder(store)
        self._header = header
        self._required: Callable[[Scope], bool] = required if callable(required) else lambda _scope: bool(required)
        self._tenant = tenant if callable(tenant) else check_name(tenant, "tenant")
        self._identity = identity
        self._name = check_name(name, "name")
        self._wait, self._max_body, self._max_response = wait, max_body, max_response
        self._terms = Terms(timedelta(seconds=lock), timedelta(seconds=heartbeat), keep)
        self._remember, self._on_store_error, self._documentation = remember, on_store_error, documentation
        #: Requests whose application runs: an event loop alone does not keep its tasks.
        self._running: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI has it."""
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self.app(scope, receive, send)
            return
        try:
            key = self._key(scope)
            serve = self.app if key is None else await self._asked(key, scope, receive)
        except Refused as refused:
            await _send(problem(refused, self._header, self._documentation), send)
        except _Disconnected:
            return
        else:
            await serve(scope, receive, send)

    # ------------------------------------------------------------------ before the application is asked

    def _key(self, scope: Scope) -> str | None:
        key = key_of(scope["headers"], self._header)
        if key is None and self._required(scope):
            raise Refused("key-missing", "This operation needs a key that names the attempt, such as a UUID.")
        return key

    def _tenant_of(self, scope: Scope) -> str:
        if not callable(self._tenant):
            return self._tenant
        try:
            return check_name(self._tenant(scope), "tenant")
        except InvalidArgument as error:
            raise Refused("tenant-invalid", f"The request names no usable tenant: it {error.problem}") from None

    async def _asked(self, key: str, scope: Scope, receive: Receive) -> App:
        """Who serves a request with a key: the application, or a record of what it answered. Raises Refused."""
        body = await self._body(scope, receive)
        identity = self._identity(scope) or "" if self._identity is not None else ""
        caller = "" if identity else caller_of(key, scope["headers"])
        ask = Ask(
            tenant=self._tenant_of(scope),
            key=store_key(self._name, scope, identity, key),
            task=self._name,
            owner=f"http:{uuid.uuid4().hex}",
            fingerprint=await self._fingerprint(scope, key, body),
            terms=self._terms,
        )
        try:
            decision = await self._decision(ask)
        except StoreUnavailable as error:
            passes = self._on_store_error == "pass"
            Teller(ask.task, ask.key).emit(
                "idempotency_store_failed", "warning", error=brief(error), unprotected=passes
            )
            if passes:
                return functools.partial(_served, self.app, body)
            raise Refused(
                "store-unavailable",
                "It is not known whether this request was carried out before, so it was not.",
                retry_after=max(1, math.ceil(error.after or 1)),
            ) from None
        if isinstance(decision, Holding):
            # a server logs its requests itself: what is told at info is how each one ended, and what is out of the ordinary
            tell = Teller(ask.task, ask.key)
            if decision.took_over:
                tell.emit("idempotency_attempt", result="allowed", took_over=True)
            else:
                tell.emit("idempotency_attempt", "debug", result="allowed", took_over=False)
            tell.emit("idempotency_state", "debug", state=State.IN_PROGRESS.value)
            return functools.partial(self._run, ask, decision, caller, body)
        Teller(ask.task, ask.key).emit("idempotency_attempt", result="deduped")
        return functools.partial(_answered, _duplicate(decision, caller))

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body. Raises Refused when it is longer than allowed, _Disconnected when it never comes."""
        refused = Refused("body-too-large", f"At most {self._max_body:,} bytes are taken.", max_bytes=self._max_body)
        if any(v.isdigit() and int(v[:20]) > self._max_body for v in values(scope["headers"], b"content-length")):
            raise refused
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Disconnected
            body += message.get("body", b"")
            if len(body) > self._max_body:
                raise refused
            if not message.get("more_body", False):
                return bytes(body)

    async def _fingerprint(self, scope: Scope, key: str, body: bytes) -> str:
        if len(body) < 4096:
            return fingerprint(self._name, scope, key, body)
        # a million bytes of JSON take a tenth of a second
        return await on_a_thread(fingerprint, self._name, scope, key, body)

    async def _decision(self, ask: Ask) -> Holding | Done | Busy | Mismatch:
        """May it run? If so, as whose holder. A duplicate of a request in progress looks again until its patience is over."""
        deadline, looks = time.monotonic() + self._wait, 0
        busy: Busy | None = None
        while True:
            try:
                decision = await self._reserved(ask)
            except StoreUnavailable:
                if busy is None:
                    raise
                return busy  # somebody was at it a moment ago
            left = deadline - time.monotonic()
            if not isinstance(decision, Busy) or left <= 0:
                return decision
            busy = decision
            looks += 1
            await asyncio.sleep(min(LOOK.delay(looks), left))

    async def _reserved(self, ask: Ask) -> Holding | Done | Busy | Mismatch:
        """Ask the store, off the loop. What is admitted when nobody waits for it any more is given back."""

        def reserve() -> Holding | Done | Busy | Mismatch:
            return KEEPER.reserve(self._store(), ask)

        work = on_a_thread(reserve)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_given_back)
            raise

    # ------------------------------------------------------------------ the application runs

    async def _run(
        self, ask: Ask, holding: Holding, caller: str, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """In a task of its own, which outlives a server that cancels when the client goes away."""
        run = Run(
            body,
            receive,
            send,
            holding,
            caller=caller,
            remember=self._remember,
            max_response=self._max_response,
            tell=Teller(ask.task, ask.key).emit,
        )
        task = asyncio.create_task(run.run(self.app, scope))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(run.over)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            run.leave(task)
            raise
        task.result()


# ------------------------------------------------------------------ who serves a request that does not run


async def _served(app: App, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
    """The application, without protection."""
    await app(scope, Replay(body, receive), send)


async def _answered(answer: Answer, _scope: Scope, _receive: Receive, send: Send) -> None:
    await _send(answer, send)


async def _send(answer: Answer, send: Send) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


def _duplicate(decision: Done | Busy | Mismatch, caller: str) -> Answer:
    """What a duplicate gets. Raises Refused.

    A stranger's duplicate is refused in the words that another body is refused with: nobody learns from them what was sent
    under a key that is not his.
    """
    if isinstance(decision, Busy):
        left = (decision.until - decision.reservation.seen_at).total_seconds()
        raise Refused(
            "in-progress", "Send the same request again later.", retry_after=max(1, min(RETRY_AFTER, math.ceil(left)))
        )
    kept = decoded(decision.reservation.result) if isinstance(decision, Done) else None
    if isinstance(decision, Done) and kept is None:
        raise Refused("answer-not-kept", "What it was answered cannot be read by this version.")
    if kept is None or kept.caller != caller:
        raise Refused(
            "key-reused", "It was sent with another request, or by another caller. Use a new key for a new request."
        )
    return replayed(kept)


def _given_back(work: asyncio.Future[Any]) -> None:
    """The request was cancelled while it was being admitted: nothing has run."""
    if not work.cancelled() and work.exception() is None and isinstance(work.result(), Holding):
        holding: Holding = work.result()
        KEEPER.end_later(holding, holding.release)
