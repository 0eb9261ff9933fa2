"""Through Microsoft Graph (PROVIDERS section 3): tokens, throttling, lost answers, four at once."""

from __future__ import annotations

import asyncio
import base64
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from duly import Duly, InvalidArgument, Status
from duly.mail import Mail, Undelivered
from duly.testing import ManualClock, drain
from mail.hands import ON_ONE, actions, message_of, put, read, run, states
from mail.servers import LOST, Graph

Make = Callable[..., Duly]


@pytest.fixture
def app(make: Make, graph: Graph) -> Duly:
    return make(**settings(graph))


def settings(graph: Graph) -> dict[str, Any]:
    return {
        "mail_provider": "graph", "graph_tenant": "contoso", "graph_client_id": "app", "graph_client_secret": "hush",
        "graph_url": f"{graph.url}/v1.0", "graph_token_url": graph.url,
    }  # fmt: skip


def test_a_message_is_accepted_with_202(app: Duly, graph: Graph) -> None:
    # R003-7
    job = run(
        app, to=["Ada <ada@example.org>", "bob@example.org"], cc="eve@example.org", text=None, html="<p>", reply_to="help@example.org",
        headers={"X-Shop": "7"}, attachments=[{"filename": "a.txt", "content": base64.b64encode(b"a").decode()}],
    )  # fmt: skip
    assert (job.status, job.remote_id, actions(app, job.id)) == (Status.SUCCEEDED, "request-1", ["EMAIL_SENT"])
    token, sent = graph.asked
    assert token.path == "/contoso/oauth2/v2.0/token"
    assert token.body == {
        "grant_type": ["client_credentials"], "client_id": ["app"], "client_secret": ["hush"],
        "scope": ["https://graph.microsoft.com/.default"],
    }  # fmt: skip
    assert (sent.path, sent.headers["authorization"]) == ("/v1.0/users/desk@example.org/sendMail", "Bearer token-1")
    message = sent.body["message"]
    assert message["toRecipients"] == [
        {"emailAddress": {"address": "ada@example.org", "name": "Ada"}}, {"emailAddress": {"address": "bob@example.org"}}
    ]  # fmt: skip
    assert message["body"] == {"contentType": "HTML", "content": "<p>"}
    assert message["internetMessageId"] == job.output["message_id"]
    assert [h["name"] for h in message["internetMessageHeaders"]] == ["X-Shop", "x-duly-key"]
    assert message["attachments"][0]["contentBytes"] == base64.b64encode(b"a").decode()


def test_a_token_is_kept_until_shortly_before_it_expires(app: Duly, graph: Graph, clock: ManualClock) -> None:
    for _ in range(3):
        run(app)
    assert graph.tokens == 1
    clock.advance(3299)
    run(app)
    assert graph.tokens == 1
    clock.advance(2)  # five minutes before the end of the hour
    run(app)
    assert graph.tokens == 2


@pytest.mark.parametrize(
    ("expires_in", "tokens"),
    [("3599", 1), ("3599.5", 1), (3599.5, 1), (None, 2), ("soon", 2), ("nan", 2), ("1e999", 2)],
)
@ON_ONE
def test_the_life_of_a_token_is_read_as_it_is_written(app: Duly, graph: Graph, expires_in: Any, tokens: int) -> None:
    graph.expires_in = expires_in
    run(app)
    run(app)
    assert graph.tokens == tokens


def test_a_token_that_is_refused_is_fetched_anew_once(app: Duly, graph: Graph) -> None:
    run(app)
    graph.good = {"token-2"}
    job = run(app)
    assert (job.status, job.attempts, graph.tokens) == (Status.SUCCEEDED, 1, 2)
    assert len(graph.taken) == 2


def test_a_new_token_that_is_refused_too_pauses_the_queue(app: Duly, graph: Graph) -> None:
    graph.good = set()
    job = run(app)
    assert (job.status, job.attempts, graph.tokens, states(app, job.id)) == (Status.QUEUED, 0, 2, [])
    assert app.queues.get("mail").paused_reason == "mail: Microsoft Graph answered 401 InvalidAuthenticationToken"


def test_a_secret_that_has_expired_pauses_the_queue_and_is_not_repeated(app: Duly, graph: Graph) -> None:
    graph.refuses = 401, {}, {"error": "invalid_client", "error_codes": [7000222], "error_description": "hush"}
    job = run(app)
    assert (job.status, job.attempts, graph.sent) == (Status.QUEUED, 0, [])
    assert app.queues.get("mail").paused_reason == "mail: no token of Microsoft Graph: 401 invalid_client AADSTS7000222"


def test_throttling_is_waited_for_exactly_and_costs_no_attempt(app: Duly, graph: Graph, clock: ManualClock) -> None:
    graph.answers = [(429, {"Retry-After": "150"}, {"error": {"code": "ApplicationThrottled"}})]
    job = run(app)
    assert (job.status, job.attempts, (job.due_at - clock.now()).total_seconds()) == (Status.QUEUED, 0, 150)  # type: ignore[operator]
    clock.advance(149)
    drain(app)
    assert len(graph.sent) == 1
    clock.advance(1)
    drain(app)
    assert (app.jobs.get(job.id).status, len(graph.taken)) == (Status.SUCCEEDED, 1)


def test_a_service_that_is_not_there_for_a_while_is_tried_again(app: Duly, graph: Graph, clock: ManualClock) -> None:
    graph.answers = [(503, {"Retry-After": "33"}, None)]
    job = run(app)
    assert (job.attempts, (job.due_at - clock.now()).total_seconds()) == (0, 33)  # type: ignore[operator]
    clock.advance(33)
    drain(app)
    assert app.jobs.get(job.id).status is Status.SUCCEEDED


@pytest.mark.parametrize(("status", "code"), [(400, "ErrorInvalidRecipients"), (413, "ErrorX")])
@ON_ONE
def test_what_graph_refuses_fails_at_once(app: Duly, graph: Graph, status: int, code: str) -> None:
    # T003-d
    graph.answers = [(status, {}, {"error": {"code": code, "message": "ada@example.org"}})]
    job = run(app)
    assert (job.status, job.attempts, actions(app, job.id)) == (Status.FAILED, 1, ["JOB_FAILED_PERMANENT"])
    assert message_of(job) == f"Microsoft Graph answered {status} {code}"


def test_what_was_refused_is_asked_again_when_a_person_wants_it(app: Duly, graph: Graph) -> None:
    # T003-d: what is known of a refusal ends where a person wants it tried again
    graph.answers = [(400, {}, {"error": {"code": "ErrorInvalidRecipients"}})]
    job = run(app)
    assert (job.status, states(app, job.id)) == (Status.FAILED, ["refused"])
    app.jobs.replay(job.id)
    drain(app)
    assert (app.jobs.get(job.id).status, len(graph.taken)) == (Status.SUCCEEDED, 1)


def test_an_answer_that_is_lost_is_an_outcome_that_nobody_knows(app: Duly, graph: Graph) -> None:
    # T003-h: there is no key to ask by
    graph.answers = [LOST]
    job = run(app)
    assert (job.status, job.attempts, states(app, job.id)) == (Status.FAILED, 1, ["unknown"])
    assert "the outcome is unknown for 1 of 1 recipients" in message_of(job)
    app.jobs.replay(job.id)
    drain(app)
    assert (app.jobs.get(job.id).status, len(graph.taken)) == (Status.FAILED, 1)


def test_a_header_that_graph_does_not_carry_is_named(app: Duly, graph: Graph) -> None:
    job = run(app, headers={"List-Unsubscribe": "<https://example.org>"})
    assert message_of(job) == "headers.List-Unsubscribe: Microsoft Graph carries only headers that begin with x-"
    assert graph.asked == []


def test_four_at_once_are_the_limit_of_the_queue_when_a_worker_begins(make: Make, graph: Graph) -> None:
    app = make(**settings(graph))
    busy, most, lock = [0], [0], threading.Lock()
    reply = graph.reply

    def slow(asked: Any, sending: bool) -> Any:
        with lock:
            busy[0] += sending
            most[0] = max(most[0], busy[0])
        threading.Event().wait(0.02)
        try:
            return reply(asked, sending)
        finally:
            with lock:
                busy[0] -= sending

    graph.reply = slow  # type: ignore[method-assign]
    jobs = [put(app) for _ in range(12)]
    app.worker({"mail": 12}).run(until_idle=True)
    assert app.queues.get("mail").limit == 4
    assert {app.jobs.get(n).status for n in jobs} == {Status.SUCCEEDED}
    assert 1 <= most[0] <= 4


def test_a_limit_that_an_operator_has_set_stays(make: Make, graph: Graph) -> None:
    app = make(**settings(graph))
    app.queues.set("mail", limit=2)
    put(app)
    app.worker({"mail": 12}).run(until_idle=True)
    assert app.queues.get("mail").limit == 2


def test_a_look_fetches_a_token_and_sends_nothing(app: Duly, graph: Graph) -> None:
    assert asyncio.run(Mail.of(app).check()) == "a token was given out"
    assert graph.sent == []
    graph.refuses = 400, {}, {"error": "unauthorized_client", "error_codes": [700016]}
    with pytest.raises(Undelivered, match="AADSTS700016"):
        asyncio.run(Mail.of(app).check())


def test_a_secret_is_not_sent_over_plain_http_to_elsewhere(make: Make, graph: Graph) -> None:
    app = make(**settings(graph) | {"graph_token_url": "http://login.example.org"})
    run(app)
    assert app.queues.get("mail").paused_reason == "mail: graph_token_url is not an https:// URL"
    assert not re.search("hush", str(app.db.read(lambda c: c.exec_driver_sql("SELECT * FROM audit_log").all())))


def file(size: int) -> list[dict[str, str]]:
    return [{"filename": "a.pdf", "content": base64.b64encode(b"x" * size).decode()}]


BIG = {"mail_attachments": 10_000_000, "max_payload": 10_000_000}


@pytest.mark.parametrize("size", [3_140_000, 3_200_000])
@ON_ONE
def test_a_message_above_the_size_that_graph_takes_is_refused_before_it_is_sent(make: Make, graph: Graph, size: int) -> None:  # fmt: skip
    # C036: base64 and the text are counted
    app = make(**settings(graph), **BIG, graph_message_size=4_194_304)
    large: dict[str, Any] = {
        "to": "ada@example.org",
        "subject": "Hi",
        "text": "Hello" * 2_000,
        "attachments": file(size),
    }
    doors: list[Callable[[], Any]] = [
        lambda: Mail.of(app).send(**large),
        lambda: app.enqueue("EMAIL_SEND", large),
        lambda: app.enqueue_many("EMAIL_SEND", [{**large, "attachments": None}, large]),
        lambda: app.prepare("EMAIL_SEND", large),
        lambda: app.enqueue(
            "EMAIL_SEND", {**large, "template": "receipt", "text": None, "attachments": file(3_200_000)}
        ),
        lambda: app.enqueue("EMAIL_SEND", {"to": "ada@example.org", "subject": "Hi", "html": "x" * 4_300_000}),
    ]
    for door in doors:
        with pytest.raises(InvalidArgument, match="4,194,304"):
            door()
    assert app.db.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM jobs").scalar()) == 0
    elsewhere = Duly(
        app.settings.database_url, clock=app.engine.clock, max_payload=10_000_000
    )  # a program without Mail(app)
    ident = elsewhere.enqueue("EMAIL_SEND", large, queue="mail").job.id
    elsewhere.close()
    drain(app)
    job = app.jobs.get(ident)
    assert (job.status, job.attempts, graph.asked) == (Status.FAILED, 1, [])
    assert "Microsoft Graph takes 4,194,304" in message_of(job)
    assert run(app, attachments=file(2_900_000)).status is Status.SUCCEEDED


@ON_ONE
def test_a_message_that_graph_finds_too_large_ends_and_the_others_go_on(app: Duly, graph: Graph) -> None:
    # C036: no outage
    graph.answers = [(413, {}, None)]
    assert run(app).status is Status.FAILED
    assert run(app).status is Status.SUCCEEDED


@ON_ONE
def test_text_and_html_both_arrive_and_blind_copies_too(app: Duly, graph: Graph) -> None:
    # FAULTS_2 F11
    job = run(app, html="<p>Grüße</p>", text="Grüße", bcc="eve@example.org", headers={"X-Shop": "7"})
    assert job.status is Status.SUCCEEDED
    message = read(base64.b64decode(graph.taken[0]))
    html, text = (message.get_body((kind,)) for kind in ("html", "plain"))
    assert html is not None
    assert text is not None
    assert (html.get_content().strip(), text.get_content().strip()) == ("<p>Grüße</p>", "Grüße")
    assert (message["To"], message["Bcc"], message["X-Shop"]) == ("ada@example.org", "eve@example.org", "7")
    assert message["Message-ID"] == job.output["message_id"]
    assert message["x-duly-key"]


@ON_ONE
def test_what_mime_would_make_too_large_goes_with_its_html_alone(make: Make, graph: Graph) -> None:
    app = make(**settings(graph), **BIG)
    assert run(app, html="<p>", attachments=file(2_900_000)).status is Status.SUCCEEDED
    assert graph.taken[0]["message"]["body"] == {"contentType": "HTML", "content": "<p>"}


@ON_ONE
def test_no_copy_is_kept_in_sent_items_where_the_settings_say_so(make: Make, graph: Graph) -> None:
    run(make(**settings(graph), graph_save=False), html="<p>")
    assert (graph.taken[0]["saveToSentItems"], graph.taken[0]["message"]["body"]["contentType"]) == (False, "HTML")


# ---------------------------------------------------------------------- larger than a request


LARGE = {"mail_attachments": 40_000_000, "max_payload": 60_000_000}


def of(**files: int) -> list[dict[str, str]]:
    """Files of these sizes, none like another."""
    return [
        {"filename": f"{name}.pdf", "content": base64.b64encode((name.encode() * size)[:size]).decode()}
        for name, size in files.items()
    ]


def sent_files(graph: Graph) -> list[dict[str, int]]:
    for draft in graph.gone:
        for name, _, content in draft.files:
            stem = name.removesuffix(".pdf").encode()
            assert content == (stem * len(content))[: len(content)]
    return [{name: len(content) for name, _, content in draft.files} for draft in graph.gone]


@ON_ONE
def test_a_letter_that_is_too_large_for_one_request_goes_as_a_draft_with_uploads(make: Make, graph: Graph) -> None:
    # issue 16, F3; PROVIDERS section 3
    app = make(**settings(graph), **LARGE)
    job = run(
        app, to=["ada@example.org", "bob@example.org"], html="<p>", headers={"X-Shop": "7"},
        attachments=of(first=9_000_001, small=1_000, third=3_276_800, fits=3_140_000),
    )  # fmt: skip
    assert (job.status, job.attempts, job.remote_id) == (Status.SUCCEEDED, 1, "request-1")
    assert sent_files(graph) == [
        {"first.pdf": 9_000_001, "small.pdf": 1_000, "third.pdf": 3_276_800, "fits.pdf": 3_140_000}
    ]
    message = graph.taken[0]
    assert (message["body"]["contentType"], message["internetMessageId"]) == ("HTML", job.output["message_id"])
    assert [h["name"] for h in message["internetMessageHeaders"]] == ["X-Shop", "x-duly-key"]
    assert len(message["toRecipients"]) == 2 and "attachments" not in message
    spans = [a.headers["content-range"] for a in graph.asked if a.method == "PUT"]
    assert spans == [
        "bytes 0-3276799/9000001", "bytes 3276800-6553599/9000001", "bytes 6553600-9000000/9000001", "bytes 0-3276799/3276800",
    ]  # fmt: skip
    assert graph.drafts == {}


BROKEN: Any = (503, {"Content-Type": "text/html"}, "<html>")
GONE: Any = (404, {}, {"error": {"code": "ErrorItemNotFound"}})
STEPS = ["GET /v1.0", "/messages", "/createUploadSession", "PUT /upload", "/attachments"]


@pytest.mark.parametrize(
    ("step", "mishap"),
    [*((step, mishap) for step in STEPS for mishap in (LOST, BROKEN, GONE)), ("PUT /upload", (401, {}, None))],
    ids=str,
)
@ON_ONE
def test_nothing_is_sent_before_the_end_so_each_step_is_repeated_and_no_draft_stays(
    make: Make, graph: Graph, clock: ManualClock, step: str, mishap: Any
) -> None:
    app = make(**settings(graph), **LARGE)
    graph.mishaps = [(step, mishap)] * 2
    job = run(app, attachments=of(small=9, big=3_300_000))
    assert (job.status, graph.taken, states(app, job.id)) == (Status.QUEUED, [], [])
    for _ in range(3):
        clock.advance(60)
        drain(app)
    assert (app.jobs.get(job.id).status, sent_files(graph)) == (
        Status.SUCCEEDED,
        [{"small.pdf": 9, "big.pdf": 3_300_000}],
    )
    assert graph.drafts == {}


@ON_ONE
def test_a_large_letter_whose_steps_fail_holds_up_no_other(make: Make, graph: Graph) -> None:
    app = make(**settings(graph), **LARGE)
    graph.mishaps = [("PUT /upload", LOST)] * 9
    large = run(app, attachments=of(big=3_300_000))
    assert (large.status, large.attempts) == (Status.QUEUED, 1)
    assert run(app).status is Status.SUCCEEDED


@ON_ONE
def test_the_lost_answer_of_a_draft_that_was_sent_is_an_outcome_that_nobody_knows(make: Make, graph: Graph) -> None:
    # T003-h: as for sendMail
    app = make(**settings(graph), **LARGE)
    graph.answers = [LOST]
    job = run(app, attachments=of(big=3_300_000))
    assert (job.status, states(app, job.id), len(graph.taken)) == (Status.FAILED, ["unknown"], 1)
    app.jobs.replay(job.id)
    drain(app)
    assert len(graph.taken) == 1


@ON_ONE
def test_a_draft_that_is_refused_when_it_is_sent_is_removed(make: Make, graph: Graph, clock: ManualClock) -> None:
    app = make(**settings(graph), **LARGE)
    graph.largest = 3_000_000  # an administrator has set a lower limit
    job = run(app, attachments=of(big=3_300_000))
    assert (job.status, graph.drafts, graph.taken) == (Status.FAILED, {}, [])
    assert message_of(job) == "Microsoft Graph answered 413 ErrorMessageSizeExceeded"
    graph.largest = 35_000_000
    graph.answers = [(429, {"Retry-After": "20"}, {"error": {"code": "ApplicationThrottled"}})]
    job = run(app, attachments=of(big=3_300_000))
    assert (job.attempts, graph.drafts, states(app, job.id)) == (0, {}, [])
    clock.advance(20)
    drain(app)
    assert len(sent_files(graph)) == 1


@ON_ONE
def test_an_application_that_may_make_no_drafts_is_told_so_and_small_letters_go_out(
    make: Make, graph: Graph, clock: ManualClock
) -> None:
    app = make(**settings(graph), **LARGE)
    graph.drafts_allowed = False
    job = run(app, attachments=of(big=3_300_000))
    assert (job.status, app.queues.get("mail").paused_at) == (Status.QUEUED, None)
    assert "needs the permission Mail.ReadWrite besides Mail.Send" in message_of(job)
    assert run(app).status is Status.SUCCEEDED
    graph.drafts_allowed = True
    clock.advance(60)
    drain(app)
    assert app.jobs.get(job.id).status is Status.SUCCEEDED


@ON_ONE
def test_a_letter_beyond_what_exchange_takes_or_may_keep_no_copy_is_refused_before_it_is_sent(
    make: Make, graph: Graph
) -> None:
    app = make(**settings(graph), **LARGE)
    with pytest.raises(InvalidArgument, match=r"takes 36,700,160.*DULY_GRAPH_MESSAGE_SIZE"):
        put(app, attachments=of(big=27_600_000))
    assert put(app, attachments=of(big=27_400_000))
    no_copy = make(**settings(graph), **LARGE, graph_save=False)
    with pytest.raises(InvalidArgument, match="graph_save is off"):
        put(no_copy, attachments=of(big=3_300_000))
    assert graph.asked == []
