"""Requests and answers of the HTTP door as values: keys, fingerprints, what is kept, how a refusal reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.idempotency.http_answer import (
    Kept,
    Refused,
    decoded,
    encoded,
    lasting,
    problem,
    remembered,
    replayed,
)
from duly.idempotency.http_request import caller_of, fingerprint, key_of, path_of, store_key

JSON = b"application/json"


def scope(
    body_type: bytes = JSON,
    *,
    method: str = "POST",
    path: str = "/orders",
    query: bytes = b"",
    root: str = "",
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> dict[str, Any]:
    return {
        "type": "http", "method": method, "path": path, "root_path": root, "query_string": query,
        "headers": [(b"content-type", body_type), *headers],
    }  # fmt: skip


def printed(body: bytes, body_type: bytes = JSON, key: str = "k", **facts: Any) -> str:
    return fingerprint("http", scope(body_type, **facts), key, body)


def refusal(value: bytes) -> str:
    with pytest.raises(Refused) as caught:
        key_of([(b"idempotency-key", value)], "Idempotency-Key")
    return caught.value.code


# --- The key ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'"8e03978e-40d5-43e8-bc93-6894a57f9324"', "8e03978e-40d5-43e8-bc93-6894a57f9324"),
        (b"8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"),
        (b' "abc"\t', "abc"),
        (b'"order 17, again; please"', "order 17, again; please"),
        (rb'"a \"quoted\" \\ one"', r'a "quoted" \ one'),
        (b'"abc";v=1;w="x;y";z', "abc"),
        (b"order:17/charge=1", "order:17/charge=1"),
        (b"x" * 255, "x" * 255),
        (b'"' + b"x" * 255 + b'"', "x" * 255),
    ],
)
def test_a_key_is_a_quoted_string_or_the_bare_form_that_clients_send(value: bytes, key: str) -> None:
    assert key_of([(b"Idempotency-Key", value)], "Idempotency-Key") == key


@pytest.mark.parametrize(
    "value",
    [
        b"", b" ", b'""', b'"', b'"abc', b'abc"', b'"abc" x', b"a b", b"a,b", b'"a", "b"', b"a;b", b"a\\b", rb'"a\b"',
        b"a\x00b", b"caf\xc3\xa9", b'"caf\xe9"', b'"a\nb"', b"x" * 256, b'"' + b"x" * 256 + b'"', b'"abc";', b'"abc";A=1',
    ],
)  # fmt: skip
def test_what_is_no_key_is_refused(value: bytes) -> None:
    assert refusal(value) == "key-invalid"


def test_two_headers_are_refused_though_they_say_the_same() -> None:
    with pytest.raises(Refused, match="several"):
        key_of([(b"idempotency-key", b"a"), (b"IDEMPOTENCY-KEY", b"a")], "Idempotency-Key")


def test_no_header_is_no_key() -> None:
    assert key_of([(b"x-idempotency-key", b"a")], "Idempotency-Key") is None


@given(st.binary(max_size=300))
def test_any_bytes_are_a_key_or_are_refused(value: bytes) -> None:
    try:
        key = key_of([(b"idempotency-key", value)], "Idempotency-Key")
    except Refused as refused:
        assert refused.code == "key-invalid"
    else:
        assert key is not None
        assert 0 < len(key) <= 255
        assert key.isascii()
        assert key.isprintable()


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255))
def test_every_printable_text_can_be_quoted(key: str) -> None:
    value = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert key_of([(b"idempotency-key", value.encode())], "Idempotency-Key") == key


# --- What it is about ---------------------------------------------------------------------------------------------------


def test_the_key_in_the_store_is_a_hash_of_all_that_it_is_about() -> None:  # B053
    keys = {
        store_key("http", scope(), "", "secret"),
        store_key("other", scope(), "", "secret"),
        store_key("http", scope(method="PATCH"), "", "secret"),
        store_key("http", scope(path="/orders/"), "", "secret"),
        store_key("http", scope(), "anna", "secret"),
        store_key("http", scope(), "", "secre"),
        store_key("http", scope(path="/orders\x00t"), "", "secret"),
    }
    assert len(keys) == 7
    assert not any("secret" in key or "anna" in key or "orders" in key for key in keys)


def test_a_mounted_application_has_the_whole_path() -> None:
    assert path_of(scope(path="/api/orders", root="/api")) == b"/api/orders"
    assert path_of(scope(path="/orders", root="/api")) == b"/api/orders"
    assert path_of(scope(path="/apiary", root="/api")) == b"/api/apiary"
    assert path_of(scope(path="/caf\udce9")) != path_of(scope(path="/café"))


def test_json_is_compared_by_what_it_says() -> None:
    first = printed(b'{"cents": 1250, "items": [1, 2], "to": {"a": "\\u00e9", "b": null}}')
    assert first == printed(
        '{"to":{"b":null,"a":"é"},"items":[1,2],"cents":1250}'.encode(), b"Application/JSON; charset=utf-8"
    )
    assert first == printed(b'{"cents": 1250, "items": [1, 2], "to": {"a": "\\u00e9", "b": null}}', JSON)
    assert first != printed(b'{"cents": 1250, "items": [2, 1], "to": {"a": "\\u00e9", "b": null}}')
    assert printed(b'{"n": 1}') != printed(b'{"n": "1"}')
    assert printed(b'{"n": 1}') != printed(b'{"n": true}')
    assert printed(b'{"n": 123456789012345678901234567890}') != printed(b'{"n": 123456789012345678901234567891}')
    assert printed(b'{"a": 1}', b"application/merge-patch+json") == printed(
        b' {"a":1}', b"application/merge-patch+json"
    )


@pytest.mark.parametrize(
    "body",
    [b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": ', b"\xff\xfe\xfd", b"[" * 5000 + b"]" * 5000, b'{"a": 1e999}', b""],
)
def test_what_readers_of_json_disagree_about_is_compared_byte_by_byte(body: bytes) -> None:
    assert printed(body) == printed(body)
    assert printed(body) != printed(body + b" ")


def test_anything_else_is_compared_byte_by_byte() -> None:
    assert printed(b"a=1&b=2", b"application/x-www-form-urlencoded") != printed(
        b"b=2&a=1", b"application/x-www-form-urlencoded"
    )
    assert printed(b'{"a": 1}', b"text/plain") != printed(b'{"a":1}', b"text/plain")
    assert printed(b'{"a": 1}') != printed(b'{"a": 1}', b"text/plain")
    assert printed(b"", query=b"a=1") != printed(b"", query=b"a=2")
    assert printed(b'{"a": 1}', headers=((b"content-encoding", b"gzip"),)) != printed(b'{"a": 1}')


def test_each_client_chooses_a_boundary_of_its_own() -> None:
    def form(boundary: str, text: str) -> str:
        body = f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n{text}\r\n--{boundary}--\r\n'.encode()
        return printed(body, f'multipart/form-data; boundary="{boundary}"'.encode())

    assert form("one", "x") == form("two", "x")
    assert form("one", "x") != form("one", "y")


def test_a_fingerprint_cannot_be_made_without_the_key() -> None:
    assert printed(b"{}", key="a") != printed(b"{}", key="b")


def test_a_caller_is_who_shows_the_same_credentials() -> None:
    anna = caller_of("k", [(b"Authorization", b"Bearer a"), (b"accept", b"*/*")])
    assert anna == caller_of("k", [(b"authorization", b"Bearer a"), (b"accept", b"text/html")])
    others = [(b"authorization", b"Bearer b")], [], [(b"cookie", b"Bearer a")], [(b"x-api-key", b"Bearer a")]
    assert len({anna, *(caller_of("k", headers) for headers in others)}) == 5
    assert anna != caller_of("l", [(b"authorization", b"Bearer a")])


# --- Answers ------------------------------------------------------------------------------------------------------------


@given(
    st.integers(200, 599),
    st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.binary(max_size=20)), max_size=4),
    st.none() | st.binary(max_size=300),
    st.text(max_size=5),
)
def test_what_is_kept_comes_back_byte_by_byte(
    status: int, headers: list[tuple[bytes, bytes]], body: bytes | None, caller: str
) -> None:
    kept = Kept(status, tuple(headers), body, caller)
    assert decoded(encoded(kept)) == kept


@pytest.mark.parametrize(
    "text", [None, "null", "[]", "7", '{"version": 2}', '{"version": 1}', '{"version": 1, "status": "x"}', "{"]
)
def test_what_another_version_wrote_is_not_guessed_at(text: str | None) -> None:
    assert decoded(text) is None


def test_headers_of_one_exchange_are_not_kept() -> None:
    given = [
        (b"Content-Type", b"application/json"), (b"Location", b"/orders/1"), (b"Set-Cookie", b"session=1"), (b"Date", b"today"),
        (b"Server", b"x"), (b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked"), (b"Connection", b"close, X-Hop"),
        (b"X-Hop", b"1"), (b"X-Kept", b"1"), (b"X-Kept", b"2"),
    ]  # fmt: skip
    assert lasting(given) == (
        (b"content-type", b"application/json"), (b"location", b"/orders/1"), (b"x-kept", b"1"), (b"x-kept", b"2"),
    )  # fmt: skip


def test_a_replay_says_that_it_is_one_and_counts_its_bytes() -> None:
    answer = replayed(Kept(201, ((b"location", b"/orders/1"),), b'{"id":1}', ""))
    assert (answer.status, answer.body) == (201, b'{"id":1}')
    assert answer.headers == (
        (b"location", b"/orders/1"), (b"content-length", b"8"), (b"idempotency-replayed", b"true"),
    )  # fmt: skip
    assert replayed(Kept(204, (), b"", "")).headers == ((b"idempotency-replayed", b"true"),)


def test_an_answer_that_was_not_kept_is_told_with_what_is_known_of_it() -> None:
    with pytest.raises(Refused) as caught:
        replayed(Kept(201, ((b"location", b"/orders/1"),), None, ""))
    document = json.loads(problem(caught.value, "Idempotency-Key", None).body)
    assert document["status"] == 409
    assert document["code"] == "answer-not-kept"
    assert (document["original_status"], document["original_location"]) == (201, "/orders/1")


def test_the_statuses_that_a_repetition_would_meet_again_are_remembered() -> None:
    assert [s for s in (200, 201, 202, 204, 400, 405, 410, 413, 415, 422) if not remembered(s)] == []
    assert [s for s in (301, 307, 401, 403, 404, 408, 409, 412, 425, 429, 500, 502, 503, 504) if remembered(s)] == []


def test_a_refusal_is_a_problem_document_that_names_the_header() -> None:  # RFC 9457
    plain = problem(Refused("in-progress", "Wait.", retry_after=3), "X-Key", None)
    assert dict(plain.headers)[b"content-type"] == b"application/problem+json"
    assert dict(plain.headers)[b"retry-after"] == b"3"
    assert json.loads(plain.body) == {
        "type": "about:blank", "title": "Conflict", "status": 409, "code": "in-progress", "header": "X-Key",
        "detail": "A request is outstanding for this X-Key. Wait.",
    }  # fmt: skip
    linked = json.loads(problem(Refused("key-missing", "Send one."), "X-Key", "https://api.example.com/keys").body)
    assert linked["type"] == "https://api.example.com/keys#key-missing"
    assert linked["title"] == "X-Key is missing"
