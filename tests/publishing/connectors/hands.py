"""Running a connector, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from duly.kernel.verdict import Refusal, Verdict

T = TypeVar("T")


def run(what: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(what)


def refused(what: Coroutine[Any, Any, Any]) -> Verdict:
    """The verdict of what is refused."""
    with pytest.raises(Refusal) as caught:
        asyncio.run(what)
    return caught.value.verdict
