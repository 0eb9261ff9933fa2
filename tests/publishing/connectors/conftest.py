"""The other sides that connectors are tried against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from publishing.servers import Hook, Meta, WordPress, serving


@pytest.fixture
def meta() -> Iterator[Meta]:
    with serving(Meta()) as server:
        yield server


@pytest.fixture
def wordpress() -> Iterator[WordPress]:
    with serving(WordPress()) as server:
        yield server


@pytest.fixture
def hook() -> Iterator[Hook]:
    with serving(Hook()) as server:
        yield server
