"""Webhooks: what is posted, how it is signed, what answers mean, and where nothing is ever posted to."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import InvalidArgument, PermanentError, Retry
from duly.kernel.answers import ANSWERS, Owner, owner_of
from duly.kernel.errors import DestinationUnavailable
from duly.outbox.box import Outbox
from duly.outbox.message import Message, Status
from duly.outbox.transports.addresses import forbidden, judged
from duly.outbox.transports.webhook import WebhookTransport, signature
from duly.testing import ManualClock
from outbox.endpoint import NAME, PEM, Endpoint, endpoint
from outbox.hands import publish

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()


def message(payload: Any = None, **more: Any) -> Message:
    facts = {"destination": "webhook:billing", "created_at": NOON, **more}
    return Message(7, "1b4e28ba-2fa1-4d5b-9c3c-0e02b2c3d479", "default", payload=payload, **facts)


@pytest.fixture
def hook() -> Iterator[Endpoint]:
    with endpoint() as told:
        yield told


@pytest.fixture
def to(hook: Endpoint) -> Iterator[Callable[..., WebhookTransport]]:
    """Transports to the endpoint on this machine, which has to be allowed."""
    made: list[WebhookTransport] = []

    def make(urls: Any = None, **options: Any) -> WebhookTransport:
        options = {"allow_private": True, "allow_http": True, "clock": ManualClock(NOON), **options}
        made.append(WebhookTransport(hook.url() if urls is None else urls, **options))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


# --- What is posted ------------------------------------------------------------------------------------------------------


def test_a_message_is_posted_as_a_cloud_event(hook: Endpoint, to: Callable[..., WebhookTransport]) -> None:
    to(source="/shop", type="shop.order").send(message({"order": 17, "note": "Grüße"}))
    [posted] = hook.posted
    assert posted.path == "/hook"
    assert posted.headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
    assert posted.headers["User-Agent"].startswith("duly/")
    assert json.loads(posted.body) == {
        "specversion": "1.0",
        "id": "1b4e28ba-2fa1-4d5b-9c3c-0e02b2c3d479",
        "source": "/shop",
        "type": "shop.order",
        "time": "2026-03-02T12:00:00Z",
        "datacontenttype": "application/json",
        "data": {"order": 17, "note": "Grüße"},
    }


def test_a_message_may_say_what_event_it_is(to: Callable[..., WebhookTransport]) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"ce-type": "order.paid", "CE-Source": "/till", "ce-subject": "17", "traceparent": trace}
    event = to().event(message(1, headers=headers, ordering_key="customer-4"))
    assert (event["type"], event["source"], event["subject"], event["traceparent"]) == (
        "order.paid",
        "/till",
        "17",
        trace,
    )
    assert (event["partitionkey"], event["sequence"]) == ("customer-4", "00000000000000000007")
    plain = to().event(message(1))
    assert not {"partitionkey", "sequence", "subject", "traceparent"} & set(plain)


def test_headers_go_along_except_those_that_belong_to_the_exchange(
    hook: Endpoint, to: Callable[..., WebhookTransport]
) -> None:
    own = {
        "Host": "evil.example",
        "Content-Length": "1",
        "Transfer-Encoding": "chunked",
        "webhook-signature": "v1,x",
        "ce-type": "t",
    }
    to().send(message(1, headers={"X-Shop": "a b", "traceparent": "t", **own}))
    headers = hook.posted[0].headers
    assert (headers["X-Shop"], headers["traceparent"]) == ("a b", "t")
    assert headers["Host"] == f"127.0.0.1:{hook.port}"
    assert not {"ce-type", "webhook-signature", "Transfer-Encoding"} & set(headers)


def test_connections_are_used_again_and_cookies_are_not(hook: Endpoint, to: Callable[..., WebhookTransport]) -> None:
    transport = to()
    hook.answers = [(200, {"Set-Cookie": "a=b"}, b"thanks")]
    for _ in range(3):
        transport.send(message(1))
    assert len({p.port for p in hook.posted}) == 1
    assert all("Cookie" not in p.headers for p in hook.posted)


# --- Signatures ----------------------------------------------------------------------------------------------------------


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The vector that its libraries are tested with."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    signed = signature([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body)
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_post_is_signed_over_its_id_its_instant_and_its_body(
    hook: Endpoint, to: Callable[..., WebhookTransport]
) -> None:
    to(secret=SECRET).send(message({"a": 1}))
    [posted] = hook.posted
    ident, stamp = posted.headers["webhook-id"], posted.headers["webhook-timestamp"]
    assert (ident, stamp) == ("1b4e28ba-2fa1-4d5b-9c3c-0e02b2c3d479", str(int(NOON.timestamp())))
    digest = hmac.new(b"k" * 24, f"{ident}.{stamp}.".encode() + posted.body, hashlib.sha256).digest()
    assert posted.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


def test_while_secrets_are_exchanged_both_sign(hook: Endpoint, to: Callable[..., WebhookTransport]) -> None:
    new = b"n" * 32
    to(secret=[new, SECRET]).send(message(1))
    signatures = hook.posted[0].headers["webhook-signature"].split(" ")
    stamp = hook.posted[0].headers["webhook-timestamp"]
    expected = [signature([s], message().message_id, stamp, hook.posted[0].body) for s in (new, b"k" * 24)]
    assert signatures == expected


def test_every_endpoint_may_have_its_own_secret(hook: Endpoint, to: Callable[..., WebhookTransport]) -> None:
    transport = to({"billing": hook.url(), "stock": hook.url()}, secret={"billing": b"b" * 16})
    transport.send(message(1))
    transport.send(message(1, destination="webhook:stock"))
    assert ["webhook-signature" in p.headers for p in hook.posted] == [True, False]


@pytest.mark.parametrize("secret", ["short", b"fifteen bytes!!", "whsec_%%%", "whsec_c2hvcnQ=", []], ids=str)
def test_a_secret_that_protects_nothing_is_refused(secret: Any) -> None:
    with pytest.raises(InvalidArgument, match="secret"):
        WebhookTransport("https://hooks.example.com", secret=secret)


# --- Answers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_good_answer_is_the_end(hook: Endpoint, to: Callable[..., WebhookTransport], status: int) -> None:
    hook.answers = [(status, {}, b"")]
    to().send(message(1))


#: What each owner of an answer is raised as: the error, and whether an operator is needed.
RAISED = {
    Owner.MESSAGE: (PermanentError, None),
    Owner.ENDPOINT: (DestinationUnavailable, True),
    Owner.NETWORK: (DestinationUnavailable, False),
    Owner.UNCLEAR: (Retry, None),
}


@pytest.mark.parametrize(("status", "owner"), sorted(ANSWERS.items()))
def test_each_answer_of_an_endpoint_has_an_owner(
    hook: Endpoint, to: Callable[..., WebhookTransport], status: int, owner: Owner
) -> None:  # R004-19
    hook.answers = [(status, {}, b"no")]
    error, attention = RAISED[owner]
    with pytest.raises(error, match=str(status)) as raised:
        to().send(message(1))
    assert getattr(raised.value, "attention", None) is attention


@pytest.mark.parametrize("status", [400, 413, 422])
def test_only_what_speaks_of_the_message_is_the_messages_fault(status: int) -> None:  # R004-19
    assert owner_of(status) is Owner.MESSAGE
    assert {s for s in range(100, 600) if owner_of(s) is Owner.MESSAGE} == {400, 409, 413, 422, 431}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 401, 403, 404, 410, 418, 499])
def test_what_is_about_the_endpoint_holds_the_destination(
    hook: Endpoint, to: Callable[..., WebhookTransport], status: int
) -> None:  # R004-19
    hook.answers = [(status, {"Location": hook.url()}, b"no")]
    with pytest.raises(DestinationUnavailable, match=str(status)) as raised:
        to().send(message(1))
    assert raised.value.attention
    assert len(hook.posted) == 1  # redirects are not followed


@pytest.mark.parametrize(
    ("header", "after"),
    [
        ("120", 120), ("0", 0), (" 7 ", 7), ("Mon, 02 Mar 2026 12:01:00 GMT", 60), ("Mon, 02 Mar 2026 11:00:00 GMT", 0),
        ("Mon, 02 Mar 2026 12:01:00 -0000", 60), ("soon", None), ("-5", None), ("1.5", 2), ("9" * 40, 86_400),
        ("Mon, 02 Mar 2099 12:01:00 GMT", 86_400), (f"Mon, 01 Jun {'9' * 20} 00:00:00 GMT", None),
    ],
)  # fmt: skip
def test_the_endpoint_says_when_to_come_back(
    hook: Endpoint, to: Callable[..., WebhookTransport], header: str, after: float | None
) -> None:
    hook.answers = [(503, {"Retry-After": header}, b"")]
    with pytest.raises(DestinationUnavailable) as raised:
        to().send(message(1))
    assert raised.value.after == after


def test_a_long_answer_is_not_read_to_its_end(hook: Endpoint, to: Callable[..., WebhookTransport]) -> None:
    hook.answers = [(200, {}, b"x" * 50_000_000)]
    transport = to()
    transport.send(message(1))
    hook.answers = [(200, {}, b"ok")]
    transport.send(message(1))
    assert len(hook.posted) == 2


def test_an_endpoint_that_dawdles_is_given_up(hook: Endpoint, to: Callable[..., WebhookTransport]) -> None:
    """Each byte comes within the timeout; the exchange as a whole does not."""

    def drip(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        for _ in range(200):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.05)

    hook.instead = drip
    with pytest.raises(DestinationUnavailable):
        to(timeout=0.4).send(message(1))


def test_an_endpoint_that_is_not_there_may_be_there_later(to: Callable[..., WebhookTransport]) -> None:
    with pytest.raises(DestinationUnavailable):
        to("http://127.0.0.1:9/hook").send(message(1))


# --- Endpoints -----------------------------------------------------------------------------------------------------------


def test_the_name_behind_the_colon_chooses_the_endpoint(hook: Endpoint, to: Callable[..., WebhookTransport]) -> None:
    to({"billing": hook.url()}).send(message(1))
    to(lambda m: hook.url() + "?for=" + m.target).send(message(1))
    assert [p.path for p in hook.posted] == ["/hook", "/hook?for=billing"]
    for urls in ({"other": hook.url()}, lambda m: None):
        with pytest.raises(DestinationUnavailable, match="no endpoint 'billing'"):
            to(urls).send(message(1))


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/", "ftp://hooks.example.com", "file:///etc/passwd", "hooks.example.com", "https://", "https://u:p@hooks.example.com",
        "https://user@hooks.example.com", "https://[::1", "https://a:b:c", "", 3, "https://x\x00y",
    ],
    ids=str,
)  # fmt: skip
def test_a_url_that_is_none_or_unsafe_is_refused_without_being_repeated(url: Any) -> None:
    with pytest.raises(InvalidArgument, match="urls") as refused:
        WebhookTransport({"billing": url})
    assert "u:p" not in str(refused.value)
    with pytest.raises(DestinationUnavailable):
        WebhookTransport(lambda m: url).send(message(1))


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"timeout": True}, {"timeout": 1e9}, {"source": ""}, {"type": ""}], ids=str
)
def test_an_option_that_cannot_be_used_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        WebhookTransport("https://hooks.example.com", **wrong)


# --- Addresses -----------------------------------------------------------------------------------------------------------

INSIDE = [
    "127.0.0.1", "127.8.9.1", "::1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "fe80::1", "fe80::1%eth0",
    "100.64.0.1", "0.0.0.0", "::", "224.0.0.1", "224.0.1.1", "239.255.255.250", "ff02::1", "240.0.0.1", "255.255.255.255", "192.0.2.1",
    "198.51.100.7", "203.0.113.9", "198.18.0.1", "fc00::1", "fd12:3456::1", "2001:db8::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "::ffff:169.254.169.254", "::127.0.0.1", "2002:7f00:1::", "2002:c0a8:0101::1", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "2001::1",
]  # fmt: skip
OUTSIDE = [
    "8.8.8.8",
    "93.184.216.34",
    "172.32.0.1",
    "2606:4700::1111",
    "2a00:1450:4001::1",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
]


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_that_is_not_of_the_public_internet_is_refused(address: str) -> None:
    assert forbidden(address) is not None
    with pytest.raises(DestinationUnavailable, match="not allowed"):
        judged("x", 443, lambda host, port: ["8.8.8.8", address], allow_private=False)
    assert judged("x", 443, lambda host, port: [address], allow_private=True) == [address]


@pytest.mark.parametrize("address", OUTSIDE)
def test_an_address_of_the_public_internet_is_not(address: str) -> None:
    assert forbidden(address) is None
    assert judged("x", 443, lambda host, port: [address], allow_private=False) == [address]


@given(st.ip_addresses(v=4))
def test_an_address_is_judged_alike_however_it_is_written(ip: ipaddress.IPv4Address) -> None:
    mapped = ipaddress.IPv6Address(b"\x00" * 10 + b"\xff\xff" + ip.packed)
    translated = ipaddress.IPv6Address(ipaddress.IPv6Address("64:ff9b::").packed[:12] + ip.packed)
    assert forbidden(str(mapped)) == forbidden(str(translated)) == forbidden(str(ip))
    if ip.is_private or ip.is_loopback or ip.is_multicast:
        assert forbidden(str(ip)) is not None


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://2130706433:{port}/", "http://0x7f.1:{port}/", "http://[::ffff:127.0.0.1]:{port}/"]
)  # fmt: skip
def test_nothing_is_posted_to_this_machine_however_it_is_called(
    hook: Endpoint, to: Callable[..., WebhookTransport], url: str
) -> None:
    with pytest.raises(DestinationUnavailable):
        to(url.format(port=hook.port), allow_private=False).send(message(1))
    assert hook.posted == []


def test_a_name_is_resolved_once_and_the_judged_address_is_the_one_connected_to(hook: Endpoint) -> None:
    """DNS rebinding: the second answer would have been another one."""
    asked: list[str] = []

    def resolve(host: str, port: int) -> Iterable[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["192.0.2.1"]

    transport = WebhookTransport(
        f"http://{NAME}:{hook.port}/hook", allow_http=True, allow_private=True, resolve=resolve, timeout=5
    )
    transport.send(message(1))
    assert asked == [NAME]
    assert hook.posted[0].headers["Host"] == f"{NAME}:{hook.port}"
    transport.close()


def test_a_name_with_one_forbidden_address_among_good_ones_is_refused(
    hook: Endpoint, to: Callable[..., WebhookTransport]
) -> None:
    transport = to(
        f"http://{NAME}:{hook.port}/", allow_private=False, resolve=lambda host, port: ["8.8.8.8", "127.0.0.1"]
    )
    with pytest.raises(DestinationUnavailable, match="loopback"):
        transport.send(message(1))


def test_of_several_addresses_the_first_that_answers_is_taken(
    hook: Endpoint, to: Callable[..., WebhookTransport]
) -> None:
    to(f"http://{NAME}:{hook.port}/", resolve=lambda host, port: ["127.0.0.9", "127.0.0.1"]).send(message(1))
    assert len(hook.posted) == 1


def test_a_name_that_is_unknown_today_may_be_known_tomorrow(to: Callable[..., WebhookTransport]) -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    for resolve in (unknown, lambda host, port: []):
        with pytest.raises(DestinationUnavailable, match="resolved"):
            to("http://hooks.example.test/", resolve=resolve).send(message(1))


# --- TLS -----------------------------------------------------------------------------------------------------------------


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(PEM))


def test_tls_verifies_the_name_although_the_connection_goes_to_an_address() -> None:
    with endpoint(tls=True) as hook:
        options: dict[str, Any] = {
            "allow_private": True,
            "resolve": lambda host, port: ["127.0.0.1"],
            "verify": trusting(),
        }
        good = WebhookTransport(hook.url("https", NAME), **options)
        good.send(message(1))
        assert len(hook.posted) == 1
        wrong = WebhookTransport(hook.url("https", "other.example.test"), **options)
        with pytest.raises(DestinationUnavailable, match="certificate") as raised:
            wrong.send(message(1))
        assert raised.value.attention
        stranger = WebhookTransport(hook.url("https", NAME), **{**options, "verify": None})
        with pytest.raises(DestinationUnavailable, match="certificate"):
            stranger.send(message(1))
        assert len(hook.posted) == 1
        for transport in (good, wrong, stranger):
            transport.close()


# --- With a relay ----------------------------------------------------------------------------------------------------------


def test_a_relay_posts_until_the_endpoint_has_it(
    make: Callable[..., Outbox], hook: Endpoint, to: Callable[..., WebhookTransport], clock: ManualClock
) -> None:
    box = make({"webhook": to(secret=SECRET)})
    hook.answers = [(500, {}, b""), (429, {"Retry-After": "30"}, b""), (200, {}, b"")]
    ident = publish(box, "webhook:billing", {"n": 1})
    relay = box.relay()
    for wait in (2, 30):
        assert relay.run_once().failed == 1
        clock.advance(wait)
    assert relay.run_once().sent == 1
    assert {p.headers["webhook-id"] for p in hook.posted} == {ident}
    assert box.get(ident).attempts == 1  # an endpoint that is away costs no attempt


def test_a_message_for_a_private_address_holds_its_destination(make: Callable[..., Outbox], hook: Endpoint) -> None:
    box = make({"webhook": WebhookTransport(hook.url(), allow_http=True)})
    ident = publish(box, "webhook:billing", 1)
    box.relay().run_once()
    m = box.get(ident)
    assert (m.status, m.attempts) == (Status.PENDING, 0)
    assert "loopback" in m.error["message"]
    assert hook.posted == []
