"""The examples as programs of their own, without the wait for their imports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples import programs
from forked import Forked
from keeper import until


@pytest.fixture(scope="session", autouse=True)
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    forked = Forked(tmp_path_factory.mktemp("programs"), *programs.IMPORTED)
    try:
        assert until(forked.is_ready, 120)
        programs.PYTHON = str(forked.bin / "python")
        yield
    finally:
        programs.PYTHON = programs.REAL
        forked.close()
