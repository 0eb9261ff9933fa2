"""What the answers of Meta's Graph API mean, by code and subcode (PROVIDERS sections 1 and 2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.retry_after import LONGEST
from duly.kernel.verdict import Kind
from duly.publishing.connectors.graph_api import Doing, MetaRefusal, classify, fault

NOW = datetime(2026, 6, 1, 10, 0, tzinfo=UTC)
W = Kind.AWAY
P, T, H, A, Q, U = Kind.PERMANENT, Kind.TRANSIENT, Kind.THROTTLED, Kind.AUTH, Kind.QUOTA, Kind.UNKNOWN


def said(code: object, subcode: object = None, **more: Any) -> dict[str, Any]:
    return {"error": {"message": "no", "code": code, **({} if subcode is None else {"error_subcode": subcode}), **more}}


@pytest.mark.parametrize(
    ("code", "subcode", "writing", "sending"),
    [
        (-2, 2207003, T, T), (-2, 2207020, T, T), (-1, 2207001, T, U), (-1, 2207032, T, T), (-1, 2207053, T, T), (1, 2207057, P, P),
        (4, 2207051, W, U), (9, 2207042, Q, Q), (36000, 2207004, P, P), (9007, 2207027, T, T), (9004, 2207052, T, T), (24, 2207008, T, T),
        (100, None, P, P), (100, 33, P, P), (1, None, T, U), (2, None, T, U), (4, None, H, H), (17, None, H, H), (341, None, H, H),
        (368, None, W, W), (32, None, H, H), (613, None, H, H), (80001, None, H, H), (80002, None, H, H), (3, None, A, A),
        (10, None, A, A), (200, None, A, A), (230, None, A, A), (299, None, A, A), (25, 2207050, A, A), (9004, None, T, T), (9007, 1, T, T), (352, 2207026, P, P), (36001, 2207005, P, P), (36003, 2207009, P, P), (36004, 2207010, P, P), (102, None, A, A), (190, None, A, A), (190, 458, A, A),
        (190, 459, A, A), (190, 460, A, A), (190, 463, A, A), (190, 467, A, A), (506, None, P, P), (1609005, None, P, P),
        (12345, None, T, U), (24, 77, T, U), ("190", "463", A, A), (4, 99, H, H),
    ],
)  # fmt: skip
def test_an_error_means_what_its_code_and_subcode_say_whatever_the_status(
    code: object, subcode: object, writing: Kind, sending: Kind
) -> None:
    for status in (400, 403, 500):
        for doing, kind in (("write", writing), ("send", sending)):
            verdict = classify(status, said(code, subcode), {}, NOW, doing)  # type: ignore[arg-type]
            assert verdict.kind is kind, (doing, verdict)
            assert str(code) in verdict.reason


@pytest.mark.parametrize(
    ("status", "writing", "sending"),
    [
        (200, T, U),
        (400, W, U),
        (403, W, W),
        (401, A, A),
        (404, W, U),
        (408, W, U),
        (413, P, P),
        (429, H, H),
        (500, W, U),
        (502, W, U),
        (503, W, U),
    ],
)
def test_an_answer_without_a_code_means_what_its_status_says(status: int, writing: Kind, sending: Kind) -> None:
    body = {"error": {}} if status == 200 else None
    assert classify(status, body, {}, NOW).kind is writing
    assert classify(status, body, {}, NOW, "send").kind is sending


def test_an_answer_is_a_success_only_without_an_error() -> None:
    assert classify(200, {"id": "1"}, {}, NOW).kind is Kind.SENT
    assert classify(200, said(190), {}, NOW).kind is A


@pytest.mark.parametrize("body", [None, [], "Just a moment...", 7])
def test_a_page_in_metas_place_is_no_answer_whatever_its_status(body: Any) -> None:  # F, C046
    kinds = [classify(200, body, {}, NOW, doing).kind for doing in ("read", "write", "send", "comment")]
    assert kinds == [T, W, U, U]


def test_what_was_made_a_moment_ago_may_not_be_there_yet() -> None:
    # T002-k: a comment before its media can be seen
    assert classify(400, said(100, 33), {}, NOW, "read").kind is T
    assert classify(400, said(100, 33), {}, NOW, "comment").kind is T


def test_an_error_that_passes_is_tried_again_though_nobody_knows_its_code() -> None:
    assert classify(400, said(77, is_transient=True), {}, NOW).kind is T
    assert classify(400, said(77, is_transient=True), {}, NOW, "send").kind is U
    assert classify(400, said(77, is_transient="true"), {}, NOW).kind is T


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "120"}, 120),
        ({"retry-after": "Mon, 01 Jun 2026 10:10:00 GMT"}, 600),
        ({"retry-after": "99999999999"}, LONGEST),
        ({"x-business-use-case-usage": '{"1":[{"type":"instagram","call_count":100,"estimated_time_to_regain_access":19}]}'}, 1140),
        ({"x-business-use-case-usage": '{"1":[{"estimated_time_to_regain_access":2}],"2":[{"estimated_time_to_regain_access":7}]}'}, 420),
        ({"x-business-use-case-usage": '{"1":[{"estimated_time_to_regain_access":19}]}', "retry-after": "5"}, 1140),
        ({"x-app-usage": '{"call_count":100,"total_time":25,"total_cputime":25}'}, None),
        ({"x-business-use-case-usage": '{"1":[{"estimated_time_to_regain_access":0}]}'}, None),
        ({"x-business-use-case-usage": '{"1":[{"estimated_time_to_regain_access":-5}]}'}, None),
        ({"x-business-use-case-usage": '{"1":[{"estimated_time_to_regain_access":1e300}]}'}, LONGEST),
        ({"x-business-use-case-usage": "[]"}, None), ({"x-business-use-case-usage": "{"}, None),
    ],
)  # fmt: skip
def test_too_many_calls_are_waited_for_as_long_as_the_headers_say(
    headers: dict[str, str], seconds: float | None
) -> None:
    # B067: a date is honoured, an absurd value is capped. Where they say nothing, the channel's waits grow
    verdict = classify(400, said(4), headers, NOW)
    assert (verdict.kind, verdict.after) == (H, seconds)


def test_a_restriction_is_no_ordinary_limit_and_is_not_retried_quickly() -> None:
    assert classify(400, said(4, 2207051), {}, NOW).after == 3600
    assert classify(400, said(368), {}, NOW).after == 3600


def test_a_used_up_limit_is_looked_at_again_while_its_window_rolls() -> None:
    assert classify(400, said(9, 2207042), {}, NOW).until == NOW + timedelta(hours=1)


def test_a_duplicate_says_that_it_was_probably_published() -> None:
    assert "probably been published" in classify(400, said(506), {}, NOW).reason


def test_no_token_of_a_message_is_repeated() -> None:
    message = "Bad value EAABsbCS1234567890 at ?access_token=abc and IGQVJabcdefgh123"
    reason = classify(400, said(100, message=message), {}, NOW).reason
    assert "Bad value" in reason
    assert not any(part in reason for part in ("EAAB", "abc and", "IGQV"))


def test_a_new_container_is_needed_after_some_errors() -> None:
    for code, subcode, renews in ((-2, 2207020, True), (-1, 2207053, True), (24, 2207008, True), (9007, 2207027, False)):  # fmt: skip
        body = said(code, subcode)
        assert MetaRefusal(classify(400, body, {}, NOW), fault(body)).renews is renews


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(10**4000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
errors = st.fixed_dictionaries(
    {},
    optional={
        "code": st.sampled_from([-1, 1, 4, 9, 100, 190, 250, 80001]) | anything,
        "error_subcode": st.sampled_from([33, 463, 2207051, 2207042]) | anything,
        "message": anything,
        "error_user_msg": anything,
        "is_transient": anything,
    },
)
usage = st.sampled_from(["", "{", "[]", "null", '{"1": 5}', '{"1": [5, {"estimated_time_to_regain_access": "x"}]}'])
headers = st.dictionaries(
    st.sampled_from(["retry-after", "x-app-usage", "x-business-use-case-usage"]),
    st.text(max_size=30) | usage | st.from_type(int).map(str),
)


@given(
    st.integers(100, 599), anything | st.fixed_dictionaries({"error": errors | anything}), headers,
    st.sampled_from(["read", "write", "send", "comment"]),
)  # fmt: skip
def test_no_answer_is_too_strange_to_be_classified(status: int, body: Any, given_headers: Any, doing: Doing) -> None:
    verdict = classify(status, body, given_headers, NOW, doing)
    assert (verdict.kind is Kind.SENT) == (200 <= status < 300 and isinstance(body, dict) and fault(body) is None)
    assert verdict.after is None or 0 <= verdict.after <= LONGEST
    assert verdict.kind is not Kind.UNKNOWN or doing in ("send", "comment")
    assert verdict.kind is Kind.SENT or verdict.reason
