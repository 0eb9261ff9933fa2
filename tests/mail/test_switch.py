"""Another provider carries on: who has the message from the one before is not sent it again (T003-h)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from duly import Duly, Status
from duly.testing import ManualClock, drain
from mail.hands import ON_ONE, message_of, run, states
from mail.servers import Graph, MailServer, Resend

Make = Callable[..., Duly]
FOUR = {"to": ["Ada <ada@example.org>", "bob@example.org"], "cc": ["Cy <cy@example.org>"], "bcc": ["eve@example.org"]}


def through(server: MailServer | Graph | Resend) -> Mapping[str, Any]:
    """The settings of a provider."""
    if isinstance(server, MailServer):
        return {"mail_provider": "smtp", "smtp_url": f"smtp://127.0.0.1:{server.port}"}
    if isinstance(server, Resend):
        return {"mail_provider": "resend", "resend_api_key": "re_good", "resend_url": server.url}
    return {
        "mail_provider": "graph", "graph_tenant": "t", "graph_client_id": "i", "graph_client_secret": "hush",
        "graph_url": server.url, "graph_token_url": server.url,
    }  # fmt: skip


def addresses(found: list[dict[str, Any]]) -> list[str]:
    return [one["emailAddress"]["address"] for one in found]


@pytest.mark.parametrize(
    ("later", "left"),
    [
        (["bob"], {"to": ["bob"]}),
        (["cy"], {"cc": ["cy"]}),
        (["eve"], {"bcc": ["eve"]}),
        (["bob", "eve"], {"to": ["bob"], "bcc": ["eve"]}),
    ],
)
@pytest.mark.parametrize("name", ["graph", "resend"])
@ON_ONE
def test_the_next_provider_sends_to_nobody_who_has_it(
    make: Make, smtp: MailServer, graph: Graph, resend: Resend, clock: ManualClock, name: str, later: list[str],
    left: dict[str, list[str]],
) -> None:  # fmt: skip
    # T003-h
    smtp.replies = {f"{one}@example.org": ["451 later"] for one in later}
    job = run(make(**through(smtp)), **FOUR)
    clock.advance(60)
    app = make(**through(graph if name == "graph" else resend))
    drain(app)
    if name == "graph":
        roles = {"toRecipients": "to", "ccRecipients": "cc", "bccRecipients": "bcc"}
        sent = {roles[n]: addresses(v) for n, v in graph.taken[0]["message"].items() if n in roles}
    else:
        sent = {n: v for n, v in resend.taken[0].items() if n in ("to", "cc", "bcc")}
        if "to" not in left:
            left = {"to": [one for names in left.values() for one in names]}  # Resend wants somebody there
    assert {n: [one.rpartition("<")[2].partition("@")[0] for one in found] for n, found in sent.items()} == left
    assert (app.jobs.get(job.id).output["accepted"], states(app, job.id)) == (4, ["accepted"] * 4)


@pytest.mark.parametrize("name", ["resend", "maildir"])
def test_a_memory_of_keys_is_not_trusted_with_what_another_provider_was_handed(
    make: Make, smtp: MailServer, resend: Resend, clock: ManualClock, name: str
) -> None:
    # T003-h
    smtp.ends = ["LOST"]
    job = run(make(**through(smtp)))
    app = make(**(through(resend) if name == "resend" else {"mail_provider": "maildir"}))
    app.jobs.replay(job.id)
    drain(app)
    found = app.jobs.get(job.id)
    assert (found.status, states(app, job.id), resend.taken) == (Status.FAILED, ["unknown"], [])
    assert "the outcome is unknown" in message_of(found)
