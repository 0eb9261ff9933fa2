"""Acts on many: what was shown is what is done, once, by who still may."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duly import Duly
from web.dashboard.conftest import Person


@pytest.fixture(autouse=True)
def tasks(app: Duly) -> None:
    @app.task("fold", queue="paper")
    def fold(n: int = 0) -> int:
        return n


@pytest.mark.parametrize(
    "blank", ["queue=%20", "key=%20", "error=", "queue=paper&queue=%20", "since=%20&status=queued"]
)
def test_a_filter_of_blanks_is_none(person: Callable[..., Person], app: Duly, blank: str) -> None:
    ann = person("operator")
    app.enqueue("fold")
    answer = ann.get(f"/jobs/act?event=cancel&{blank}")
    assert answer.status_code == 422
    assert "besides a status" in answer.text
    assert "All that fit" not in ann.get(f"/jobs?{blank}").text
