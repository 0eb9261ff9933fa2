"""A webhook: signed, and told again only where the endpoint knows keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from duly.kernel.errors import InvalidArgument
from duly.kernel.verdict import Kind
from duly.publishing.connectors.webhook import WebhookConnector
from duly.publishing.post import Asset, Post, Published
from duly.testing.connectors import MemoryNotebook
from publishing.connectors.hands import refused, run
from publishing.servers import GONE, LOST, Hook

SECRET = "a-secret-of-the-endpoint"
POST = Post("hook", "Hello", assets=(Asset(path="/private/a.jpg", checksum="sha256:ab"),), options={"tags": ["a"]})


def to(hook: Hook, **options: Any) -> WebhookConnector:
    return WebhookConnector(**{"url": f"{hook.url}/in?x=1", "secret": SECRET, **options})


def test_a_post_is_signed_over_its_id_instant_and_body(hook: Hook) -> None:
    assert run(to(hook).publish(POST, MemoryNotebook())) == Published("taken-1", "https://example.org/taken-1")
    (asked,) = hook.asked
    ident, stamp = asked.headers["webhook-id"], asked.headers["webhook-timestamp"]
    digest = hmac.new(SECRET.encode(), f"{ident}.{stamp}.".encode() + asked.raw, hashlib.sha256).digest()
    assert asked.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert asked.headers["idempotency-key"] == ident
    body = json.loads(asked.raw)
    assert (body["type"], body["id"], body["data"]["caption"], body["data"]["key"]) == ("duly.post", ident, "Hello", "key-1")  # fmt: skip
    assert "/private" not in asked.raw.decode()


def test_two_secrets_sign_while_they_are_exchanged(hook: Hook) -> None:
    run(to(hook, secret=[SECRET, "the-secret-before-it"]).publish(POST, MemoryNotebook()))
    assert len(hook.asked[0].headers["webhook-signature"].split()) == 2


def test_every_attempt_is_the_same_body_under_the_same_key(hook: Hook) -> None:
    hook.script("POST", (504, {"Retry-After": "1"}, None), (500, {}, None))
    notebook = MemoryNotebook()
    one = to(hook, idempotent=True)
    assert refused(one.publish(POST, notebook)).kind is Kind.TRANSIENT
    assert refused(one.publish(POST, notebook.later())).kind is Kind.TRANSIENT
    run(one.publish(POST, notebook.later()))
    assert len({(a.raw, a.headers["idempotency-key"]) for a in hook.asked}) == 1


def test_the_same_key_on_two_channels_is_two_posts(hook: Hook) -> None:
    for channel in ("a", "b"):
        run(to(hook).publish(Post(channel, "Hello"), MemoryNotebook("K")))
    assert len(hook.taken) == 2


def test_a_lost_answer_is_told_again_only_to_an_endpoint_that_knows_keys(hook: Hook) -> None:
    for idempotent in (False, True):
        hook.script("POST", LOST)
        notebook = MemoryNotebook(f"key-{idempotent}")
        one = to(hook, idempotent=idempotent)
        assert refused(one.publish(POST, notebook)).kind is Kind.UNKNOWN
        if not idempotent:
            assert refused(one.reconcile(POST, notebook)).kind is Kind.UNKNOWN
            continue
        assert run(one.reconcile(POST, notebook)) is None
        run(one.publish(POST, notebook.later()))
    assert len(hook.taken) == 2


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, None), (202, None), (301, Kind.AWAY), (404, Kind.AWAY), (410, Kind.AWAY), (418, Kind.AWAY), (422, Kind.PERMANENT), (400, Kind.PERMANENT), (401, Kind.AUTH), (403, Kind.AUTH), (408, Kind.UNKNOWN),
        (425, Kind.TRANSIENT), (429, Kind.THROTTLED), (500, Kind.UNKNOWN), (503, Kind.AWAY),
    ],
)  # fmt: skip
def test_an_answer_means_what_its_status_says(hook: Hook, status: int, kind: Kind | None) -> None:
    hook.script("POST", (status, {}, b"plain text"))
    what = to(hook).publish(POST, MemoryNotebook())
    if kind is None:
        assert run(what) == Published()
    else:
        assert refused(what).kind is kind


HTML = {"Content-Type": "text/html; charset=utf-8"}
BARRIERS = [
    ({"cf-mitigated": "challenge"}, b""), (HTML, b"\n<!DOCTYPE html><html><head><title>Just a moment...</title>"),
    (HTML, b'\xef\xbb\xbf<html><form method=post><input type="password" name=pwd></form></html>'),
]  # fmt: skip


@pytest.mark.parametrize("status", [200, 202, 400, 403, 404, 406, 418, 422])
@pytest.mark.parametrize(("headers", "body"), BARRIERS)
def test_a_page_that_keeps_visitors_out_took_nothing_and_holds_the_channel(
    hook: Hook, status: int, headers: dict[str, str], body: bytes
) -> None:  # F, C046
    hook.script("POST", (status, headers, body))
    verdict = refused(to(hook).publish(POST, MemoryNotebook()))
    assert (verdict.kind, verdict.owner) == (Kind.AWAY, "site")


def test_a_page_from_an_endpoint_that_speaks_json_is_no_success(hook: Hook) -> None:  # F
    page = (200, HTML, b"<html><body>Welcome</body></html>")
    for idempotent, kind in ((False, Kind.UNKNOWN), (True, Kind.TRANSIENT)):
        one = to(hook, idempotent=idempotent)
        hook.script("POST", page)
        assert run(one.publish(POST, MemoryNotebook("a"))) == Published(), "perhaps it always answers so"
        run(one.publish(POST, MemoryNotebook("b")))
        hook.script("POST", page)
        assert refused(one.publish(POST, MemoryNotebook("c"))).kind is kind


@pytest.mark.parametrize(("status", "kind"), [(400, Kind.AWAY), (403, Kind.AWAY), (422, Kind.AWAY), (401, Kind.AUTH), (413, Kind.PERMANENT), (500, Kind.UNKNOWN)])  # fmt: skip
def test_a_page_that_refuses_is_not_the_posts_fault(hook: Hook, status: int, kind: Kind) -> None:  # F
    hook.script("POST", (status, HTML, b"<html>Bad Request</html>"))
    assert refused(to(hook).publish(POST, MemoryNotebook())).kind is kind


def test_an_answer_that_never_came_is_unknown(hook: Hook) -> None:
    hook.script("POST", GONE)
    assert refused(to(hook).publish(POST, MemoryNotebook())).kind is Kind.UNKNOWN


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"url": "http://example.org"}, "url"), ({"url": "nowhere"}, "url"), ({"secret": "short"}, "secret"), ({"idempotent": "yes"}, "idempotent"),
        ({"timeout": 1e9}, "timeout"),
    ],
)  # fmt: skip
def test_options_are_checked_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        WebhookConnector(**{"url": "https://example.org/in", **options})
    assert caught.value.field == field
