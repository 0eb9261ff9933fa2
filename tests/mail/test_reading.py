"""Fields in, a letter out, or an error that names the field and repeats no value (T003-d)."""

from __future__ import annotations

import base64
import re
import string
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.mail.address import normalised, read_mailbox, without_addresses
from duly.mail.message import read_letter

GOOD: dict[str, Any] = {"to": "ada@example.org", "subject": "Hi", "text": "Hello", "from": "desk@example.org"}
FILE = {"filename": "a.pdf", "content": base64.b64encode(b"x" * 60).decode()}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"to": None}, "to"),
    ({"to": []}, "to"),
    ({"to": 7}, "to"),
    ({"to": "nobody"}, "to"),
    ({"to": "a@b"}, "to"),
    ({"to": "a@example.org, b@example.org"}, "to"),
    ({"to": ["a@example.org", "b@@example.org"]}, "to[1]"),
    ({"to": "a@example.org\r\nBcc: b@example.org"}, "to"),
    ({"to": "Ada\n <a@example.org>"}, "to"),
    ({"cc": "a..b@example.org"}, "cc"),
    ({"bcc": ["a b@example.org"]}, "bcc[0]"),
    ({"reply_to": "@example.org"}, "reply_to"),
    ({"from": None}, "from"),
    ({"from": "desk"}, "from"),
    ({"subject": None}, "subject"),
    ({"subject": ""}, "subject"),
    ({"subject": "Hi\nBcc: b@example.org"}, "subject"),
    ({"subject": "Hi\x00"}, "subject"),
    ({"text": None}, "text"),
    ({"text": 7}, "text"),
    ({"html": {}}, "html"),
    ({"headers": ["X-A"]}, "headers"),
    ({"headers": {"X A": "1"}}, "headers"),
    ({"headers": {"X-A\r\nBcc": "1"}}, "headers"),
    ({"headers": {"X-A": "1\r\nBcc: b@example.org"}}, "headers.X-A"),
    ({"headers": {"Bcc": "b@example.org"}}, "headers.Bcc"),
    ({"headers": {"List-Unsubscribe": "<https://example.org/é>"}}, "headers.List-Unsubscribe"),
    ({"headers": {"References": "=?utf-8?q?<a=40example.org>?="}}, "headers.References"),
    ({"headers": {"In-Reply-To": f"<{'a' * 900}@example.org>"}}, "headers.In-Reply-To"),
    ({"headers": {"Resent-From": "b@example.org"}}, "headers.Resent-From"),
    ({"headers": {"resent-date": "now"}}, "headers.resent-date"),
    ({"headers": {"content-type": "text/html"}}, "headers.content-type"),
    ({"attachments": {}}, "attachments"),
    ({"attachments": ["a.pdf"]}, "attachments[0]"),
    ({"attachments": [FILE, {"content": ""}]}, "attachments[1].filename"),
    ({"attachments": [{"filename": "a"}]}, "attachments[0].content"),
    ({"attachments": [{"filename": "a", "content": "§"}]}, "attachments[0].content"),
    ({"attachments": [{"filename": "../a", "content": ""}]}, "attachments[0].filename"),
    ({"attachments": [{"filename": "a\r\nX: y", "content": ""}]}, "attachments[0].filename"),
    ({"attachments": [FILE | {"content_type": "pdf"}]}, "attachments[0].content_type"),
    ({"attachments": [FILE | {"url": "x"}]}, "attachments[0].url"),
    ({"attachments": [FILE, FILE]}, "attachments[1]"),
    ({"subjet": "Hi"}, "subjet"),
]


@pytest.mark.parametrize(("change", "field"), WRONG, ids=str)
def test_what_cannot_be_sent_is_refused_by_the_name_of_its_field(change: dict[str, Any], field: str) -> None:
    # T003-d
    fields = {name: value for name, value in (GOOD | change).items() if value is not None}
    with pytest.raises(InvalidArgument) as refused:
        read_letter(fields, sender="", most=100)
    assert refused.value.field == field
    assert "@" not in str(refused.value)


def test_a_letter_has_what_was_given() -> None:
    letter = read_letter(
        {
            "to": ["Ada <ADA@Example.org>", "bob@example.org"],
            "cc": "bob@EXAMPLE.org",
            "bcc": "zoë@bücher.example",
            "subject": "Hi",
            "html": "<p>",
            "reply_to": '"Desk, the" <desk@example.org>',
            "headers": {"List-Unsubscribe": "<mailto:off@example.org>"},
            "attachments": [FILE],
        },
        sender="Desk <desk@example.org>",
        most=60,
    )
    assert (letter.sender.name, letter.sender.address, letter.sender.domain) == (
        "Desk",
        "desk@example.org",
        "example.org",
    )
    assert [(name, m.normalised) for name, m in letter.recipients()] == [
        ("to[0]", "ada@example.org"), ("to[1]", "bob@example.org"), ("bcc[0]", "zoë@xn--bcher-kva.example"),
    ]  # fmt: skip
    assert (letter.to[0].name, letter.reply_to[0].name) == ("Ada", "Desk, the")
    assert (letter.text, letter.html, letter.attachments[0].content_type) == (None, "<p>", "application/pdf")
    some = letter.only(frozenset({"bob@example.org"}))
    assert ([m.address for m in some.to], some.cc, some.bcc) == (["bob@example.org"], (), ())


def test_an_address_does_not_show_when_a_letter_is_printed() -> None:
    assert "ada" not in repr(read_letter(GOOD, sender="", most=0))


_PART = st.text(string.ascii_letters + string.digits + "!#$%&'*+-/=?^_`{|}~", min_size=1, max_size=12)
_LABEL = st.from_regex(r"[a-z][a-z0-9]{0,10}", fullmatch=True)


@settings(max_examples=50)
@given(st.lists(_PART, min_size=1, max_size=3), st.lists(_LABEL, min_size=1, max_size=3), st.text(max_size=20))
def test_every_ordinary_address_is_read_and_never_survives_in_what_is_said(
    local: list[str], domain: list[str], around: str
) -> None:
    assume(not re.search(r"=\?.*\?=", ".".join(local)))
    address = f"{'.'.join(local)}@{'.'.join(domain)}.example"
    assert read_mailbox(address, "to").address == address
    assert normalised(address.upper()) == normalised(f" {address} ")
    assert address not in without_addresses(f"{around} {address} {around}")


@settings(max_examples=50)
@given(st.text())
def test_no_text_becomes_an_address_that_ends_a_header(text: str) -> None:
    try:
        found = read_mailbox(text, "to")
    except InvalidArgument:
        return
    assert found.address.count("@") == 1
    assert not set(found.address + found.name) & set("\r\n\x00")


def test_what_servers_say_is_cleared_of_addresses() -> None:
    assert (
        without_addresses("550 5.1.1 <ada@example.org>: no such user\r\n ada@x.example")
        == "550 5.1.1 <…@…>: no such user …@…"
    )


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("ada@straße.de", "ada@xn--strae-oqa.de"),  # not strasse.de, which is somebody else's
        ("ada@Bücher.Example", "ada@xn--bcher-kva.example"),
        ("ada@xn--strae-oqa.de", "ada@xn--strae-oqa.de"),
        ("ada@βόλος.com", "ada@xn--nxasmm1c.com"),
        ("ada@bücher。example", "ada@xn--bcher-kva.example"),
    ],
)
def test_a_domain_in_another_script_is_the_one_that_is_registered_today(written: str, kept: str) -> None:
    # R003-7; RFC 5891 (IDNA 2008)
    assert normalised(written) == kept


@pytest.mark.parametrize("address", ["ada@☃.example", "ada@-ü.example", "ada@ü..example", "ada@ü_b.example"])
def test_a_domain_that_cannot_be_registered_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument):
        normalised(address)
