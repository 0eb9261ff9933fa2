"""What ``Retry-After`` says (RFC 9110, 10.2.3), and what others write there."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from duly.kernel.retry_after import retry_after

NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0), (" 30 ", 30.0), ("1.5", 2.0), ("30.0", 30.0), ("Tue, 01 Dec 2026 00:10:00 GMT", 600.0),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0.0), ("99999999999999", 999_999_999.0), ("-5", None), ("1e3", None), ("soon", None), ("١٢", None),
        ("120, 60", None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_a_wait_is_seconds_with_or_without_a_fraction_or_a_date_and_nothing_else(
    text: str | None, seconds: float | None
) -> None:
    # issue 16, F: an odd Retry-After is no reason to ask again at once
    assert retry_after(text, NOW) == seconds
