"""What is composed reads back as it was written, whatever was written (R003-7)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.utils import collapse_rfc2231_value, getaddresses, unquote
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duly import InvalidArgument
from duly.mail.message import Message, read_letter
from duly.mail.mime import compose

#: Reads as "a", a line break, and a header that gives a copy to somebody else.
INJECTED = "=?utf-8?q?a=0D=0ABcc:_evil=40example.com?="
BODY = "=?utf-8?q?a=0D=0A=0D=0A<h1>?="

_CALM = st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))
_PIECES = st.sampled_from(
    [INJECTED, BODY, "=?utf-8?b?YSwgYg==?=", "=?utf-8?q?a=2C_b?=", "=?", "?=", " ", "  ", ",", '"', "é", "%41"]
)
_TEXT = st.lists(_CALM | _PIECES | st.text(_CALM, max_size=30), min_size=1, max_size=12).map("".join).filter(bool)
_SHORT = st.lists(_CALM | _PIECES, min_size=1, max_size=4).map("".join).filter(bool)


def written(utf8: bool = False, **given: Any) -> bytes:
    fields = {"to": "ada@example.org", "from": "desk@example.org", "subject": "Hi", "text": "Hello"} | {n.rstrip("_"): v for n, v in given.items()}  # fmt: skip
    letter = read_letter(fields, sender="", most=10_000)
    return compose(Message(letter, "<duly-1@example.org>", datetime(2026, 6, 1, tzinfo=UTC), ()), utf8=utf8).as_bytes()


def plain(value: Any) -> str:
    """As readers of the older kind see it."""
    return str(make_header(decode_header(re.sub(r"\r?\n", "", str(value)))))


def whole(content: bytes, *more: str) -> EmailMessage:
    """It has these headers once each and no others, in short lines of ASCII."""
    new, old = message_from_bytes(content, _class=EmailMessage, policy=policy.default), message_from_bytes(content)
    expected = sorted(["from", "to", "subject", "date", "message-id", "mime-version", "content-type", *more])
    for read in (new, old):
        names = sorted(name.lower() for name in read)
        assert [name for name in names if name != "content-transfer-encoding"] == expected
    assert max(map(len, content.split(b"\r\n"))) <= 998
    return new


@settings(max_examples=50)
@given(_TEXT, st.booleans())
@example(INJECTED, False)
@example(f"Re: {BODY}", True)
@example("x" * 2000, False)
@example(" a  b\t", True)
def test_a_subject_arrives_as_it_was_written(subject: str, utf8: bool) -> None:
    # R003-7
    content = written(utf8, subject=subject)
    new = whole(content)
    assert str(new["Subject"]) == subject
    if not utf8:
        assert content.isascii()
        assert plain(message_from_bytes(content)["Subject"]) == subject


@settings(max_examples=50)
@given(_TEXT)
@example(INJECTED)
def test_a_header_arrives_as_it_was_written(value: str) -> None:
    # R003-7
    content = written(headers={"X-Note": value})
    assert str(whole(content, "x-note")["X-Note"]) == value
    assert plain(message_from_bytes(content)["X-Note"]) == value


@settings(max_examples=50)
@given(_SHORT.filter(lambda name: not set(name) & set("<>")), st.booleans())
@example(INJECTED, False)
@example("=?utf-8?q?a=2C_b?=", True)
def test_a_name_arrives_as_it_was_written_and_is_one_recipient(name: str, utf8: bool) -> None:
    # R003-7
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    three = {f: f'"{quoted}" <{f}@example.org>' for f in ("to", "from", "reply_to")}
    content = written(utf8, **three)
    new, old = whole(content, "reply-to"), message_from_bytes(content)
    for field in three:
        header = field.replace("_", "-")
        (found,) = new[header].addresses
        assert found.addr_spec == f"{field}@example.org"
        # this reader keeps the space between encoded words of a name, which RFC 2047 drops
        assert found.display_name.replace(" ", "") == name.replace(" ", "")
        if not utf8:
            ((shown, address),) = getaddresses([str(old[header])])
            assert (plain(shown), address) == (name, f"{field}@example.org")


@settings(max_examples=50)
@given(st.lists(_TEXT.filter(lambda name: not set(name) & set('<>"\\')), min_size=1, max_size=5))
def test_long_names_are_as_many_recipients_as_there_are(names: list[str]) -> None:
    # R003-7
    content = written(to=[f'"{name}" <a{number}@example.org>' for number, name in enumerate(names)])
    found = getaddresses([re.sub(r"\r?\n", "", str(message_from_bytes(content)["To"]))])
    assert [(plain(name), address) for name, address in found] == [
        (n, f"a{i}@example.org") for i, n in enumerate(names)
    ]
    assert len(whole(content)["To"].addresses) == len(names)


@settings(max_examples=50)
@given(_TEXT.filter(lambda name: not set(name) & set("/\\")))
@example(INJECTED)
@example("é" * 300)
def test_the_name_of_a_file_arrives_as_it_was_written(filename: str) -> None:
    # R003-7
    content = written(attachments=[{"filename": filename, "content": "aGk=", "content_type": "text/plain"}])
    (part,) = whole(content).iter_attachments()
    assert sorted(name.lower() for name in part) == ["content-disposition", "content-transfer-encoding", "content-type", "mime-version"]  # fmt: skip
    assert (part["Content-Disposition"].params["filename"], part.get_content()) == (filename, "hi")
    parts: Any = message_from_bytes(content).get_payload()
    _, old = parts
    named = old.get_param("filename", header="Content-Disposition", unquote=False)
    assert unquote(named if isinstance(named, str) else collapse_rfc2231_value(named)) == filename


def test_an_address_that_reads_as_an_encoded_word_is_refused() -> None:
    # R003-7
    with pytest.raises(InvalidArgument, match="to: is not an e-mail address"):
        written(to="=?utf-8?q?a=0D=0A?=@example.org")


def test_long_headers_with_a_grammar_of_their_own_are_folded_between_words_alone() -> None:
    # R003-7
    ids = " ".join(f"<{'x' * 60}{n}@example.org>" for n in range(30))
    link = f"<https://example.org/off?{'t' * 300}>, <mailto:off@example.org>"
    content = written(headers={"References": ids, "List-Unsubscribe": link})
    assert b"=?" not in content
    new = whole(content, "references", "list-unsubscribe")
    assert (new["References"], new["List-Unsubscribe"]) == (ids, link)


_MARK = st.text("abcdefghijklmnopqrstuvwxyz0123456789=?&%./_-", min_size=1, max_size=400).filter(
    lambda mark: "=?" not in mark
)


@settings(max_examples=50)
@given(st.sampled_from(["List-Unsubscribe", "References", "In-Reply-To"]), st.lists(_MARK, min_size=1, max_size=9), st.booleans())  # fmt: skip
def test_a_header_that_machines_read_is_carried_as_it_is_however_long(name: str, marks: list[str], utf8: bool) -> None:
    # R003-7; RFC 2047 section 5, RFC 8058: who unsubscribes does so by this very URL
    value = "  ".join(f"<https://example.org/{mark}>" for mark in marks)
    content = written(utf8, headers={name: value})
    raw = message_from_bytes(content)[name]
    assert raw.split() == value.split()
    assert all(len(line) <= 998 for line in content.split(b"\r\n"))
