"""A worker is killed around the moment at which a message is taken (T003-h)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from duly import Duly, Status
from duly.testing import ManualClock, drain
from mail.apart import BEHIND
from mail.conftest import AT
from mail.hands import ON_ONE, actions, message_of, put, read, states
from mail.servers import MailServer, Resend
from soaking import sqlite_first

db_url = sqlite_first()

Make = Callable[..., Duly]
Apart = Callable[[str, str, Mapping[str, str]], int]


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    """Send what is ready, in a process of its own: (url, step, settings). Returns how it ended."""
    program = Path(__file__).with_name("apart.py")
    with subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin and running.stdout

        def call(url: str, step: str, settings: Mapping[str, str]) -> int:
            assert running.stdin and running.stdout
            given = [url, AT.isoformat(), step, *(f"{name}={value}" for name, value in settings.items())]
            running.stdin.write(json.dumps(given) + "\n")
            running.stdin.flush()
            ended = int(running.stdout.readline())
            assert ended in (0, -signal.SIGKILL)
            return ended

        yield call
        running.stdin.close()


@pytest.mark.parametrize("step", BEHIND)
def test_with_a_key_one_message_comes_of_it_whenever_the_worker_is_killed(
    make: Make, db_url: str, resend: Resend, clock: ManualClock, apart: Apart, step: str
) -> None:
    # T003-h, Resend
    settings = {
        "mail_provider": "resend",
        "resend_api_key": "re_good",
        "resend_url": resend.url,
        "mail_from": "desk@example.org",
    }
    app = make(**settings)
    ident = put(app)
    assert apart(db_url, step, settings) == -signal.SIGKILL
    assert app.jobs.get(ident).status is Status.RUNNING
    clock.advance(600)
    drain(app)
    job = app.jobs.get(ident)
    assert (job.status, job.attempts, len(resend.taken)) == (Status.SUCCEEDED, 2, 1)
    assert actions(app, ident) == ["EMAIL_SENT"]


@pytest.mark.parametrize("step", BEHIND)
def test_without_a_key_nobody_is_sent_to_twice_and_what_is_unknown_is_told(
    make: Make, db_url: str, smtp: MailServer, clock: ManualClock, apart: Apart, step: str
) -> None:
    # T003-h, SMTP
    settings = {"mail_provider": "smtp", "smtp_url": f"smtp://127.0.0.1:{smtp.port}", "mail_from": "desk@example.org"}
    app = make(**settings)
    ident = put(app, to=["ada@example.org", "bob@example.org"])
    assert apart(db_url, step, settings) == -signal.SIGKILL
    assert states(app, ident) == ["accepted" if step == "written" else "unknown"] * 2
    clock.advance(600)
    drain(app)
    job = app.jobs.get(ident)
    assert smtp.got == ([] if step == "ahead" else ["ada@example.org", "bob@example.org"])
    if step == "written":
        assert (job.status, job.output["accepted"], actions(app, ident)) == (Status.SUCCEEDED, 2, ["EMAIL_SENT"])
    else:
        assert (job.status, actions(app, ident)) == (Status.FAILED, ["JOB_FAILED_PERMANENT"])
        assert message_of(job).startswith("the outcome is unknown for 2 of 2 recipients")
        # an operator may have it sent again
        app.jobs.replay(ident)
        app = make(**settings, mail_unknown="resend")
        drain(app)
        assert app.jobs.get(ident).status is Status.SUCCEEDED
        assert len({read(a.content)["Message-ID"] for a in smtp.arrived}) == 1
        assert len(smtp.arrived) == (1 if step == "ahead" else 2)


@ON_ONE
def test_a_process_that_is_not_killed_sends_it(make: Make, db_url: str, smtp: MailServer, apart: Apart) -> None:
    settings = {"mail_provider": "smtp", "smtp_url": f"smtp://127.0.0.1:{smtp.port}", "mail_from": "desk@example.org"}
    app = make(**settings)
    ident = put(app)
    assert apart(db_url, "none", settings) == 0
    assert (app.jobs.get(ident).status, smtp.got) == (Status.SUCCEEDED, ["ada@example.org"])
