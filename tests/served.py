"""A web application on a real connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI


@contextmanager
def served(made: FastAPI, headers: dict[str, str] | None = None) -> Iterator[httpx2.Client]:
    """``with served(site, headers) as client``: a server on a free port of loopback, and a client that asks it."""
    server = uvicorn.Server(
        uvicorn.Config(made, port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=3)
    )
    ready = threading.Event()
    startup = server.startup

    async def told(*given: Any, **named: Any) -> None:
        await startup(*given, **named)
        ready.set()

    server.startup = told  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert ready.wait(30)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30, verify=False
        ) as client:  # plain HTTP: no certificates to load
            yield client
    finally:
        server.should_exit = True
        thread.join(30)
