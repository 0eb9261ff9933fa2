"""Answers of mail servers that are not the usual ones: the first digit decides, and what has none is no answer (RFC 5321, T003-h)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from duly import Duly, Status
from duly.testing import ManualClock, drain
from mail.hands import ON_ONE, actions, message_of, run, states

Make = Callable[..., Duly]


@contextmanager
def speaking(replies: Mapping[str, bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """A server that says what it is told to: by command, and "." for the end of the text. Yields (port, texts that it was given)."""
    texts = list[bytes]()

    def serve(line: socket.socket) -> None:
        with line, line.makefile("rb") as heard:
            line.sendall(b"220 here\r\n")
            while command := heard.readline():
                word = command.split()[0].decode()
                if word == "DATA" and "DATA" not in replies:
                    line.sendall(b"354 go on\r\n")
                    texts.append(b"".join(iter(heard.readline, b".\r\n")))
                    word = "."
                line.sendall(replies.get(word, b"250 ok\r\n"))

    def listen() -> None:
        while True:
            try:
                line, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(line,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=listen, daemon=True).start()
        yield server.getsockname()[1], texts


@pytest.mark.parametrize(
    "end", [b"251 2.0.0 will forward\r\n", b"200 ok queued as 7\r\n", b"250-first\r\n250 queued as 7\r\n"]
)
@ON_ONE
def test_a_yes_of_any_number_after_the_text_is_a_yes(make: Make, clock: ManualClock, end: bytes) -> None:
    # T003-h
    with speaking({".": end}) as (port, texts):
        app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{port}")
        job = run(app)
        clock.advance(1000)
        drain(app)
    assert (job.status, job.remote_id, len(texts)) == (Status.SUCCEEDED, None if b"251" in end else "7", 1)
    assert (states(app, job.id), actions(app, job.id)) == (["accepted"], ["EMAIL_SENT"])


@pytest.mark.parametrize(
    "end", [b"OK accepted\r\n", b"250 " + b"x" * 70_000 + b"\r\n", b"354 again\r\n", b"150 hm\r\n"], ids=len
)
@ON_ONE
def test_what_is_neither_yes_nor_no_after_the_text_leaves_open_whether_it_was_taken(
    make: Make, clock: ManualClock, end: bytes
) -> None:
    # T003-h
    with speaking({".": end}) as (port, texts):
        app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{port}")
        job = run(app)
        for _ in range(4):
            clock.advance(1000)
            drain(app)
    assert (job.status, states(app, job.id), len(texts)) == (Status.FAILED, ["unknown"], 1)
    assert "the outcome is unknown" in message_of(job)
    assert len(message_of(job)) < 2000


@pytest.mark.parametrize("start", [b"451 later\r\n", b"what?\r\n", b"250 ok\r\n"])
@ON_ONE
def test_nothing_was_handed_over_before_the_server_asked_for_the_text(make: Make, start: bytes) -> None:
    # T003-h
    with speaking({"DATA": start}) as (port, texts):
        app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{port}")
        job = run(app)
    assert (job.status, states(app, job.id), texts) == (Status.QUEUED, [], [])


@ON_ONE
def test_a_recipient_whom_the_server_cannot_verify_is_a_recipient(make: Make) -> None:
    # RFC 5321, section 3.5.3: 252 is taken
    with speaking({"RCPT": b"252 cannot verify, will try\r\n"}) as (port, texts):
        app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{port}")
        job = run(app)
    assert (job.status, states(app, job.id), len(texts)) == (Status.SUCCEEDED, ["accepted"], 1)


def test_a_server_that_wants_credentials_before_the_text_pauses_the_queue(make: Make) -> None:
    # T003-b: nothing was sent, and no attempt is used
    with speaking({"DATA": b"530 5.7.0 Authentication required\r\n"}) as (port, texts):
        app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{port}")
        job = run(app)
    assert (job.status, job.attempts, states(app, job.id), texts) == (Status.QUEUED, 0, [], [])
    assert "530" in (app.queues.get("mail").paused_reason or "")
