"""Connectors by name, Duly's own and those of other packages."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import EntryPoint
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from duly.kernel.errors import InvalidArgument
from duly.publishing.connectors import registry
from duly.publishing.connectors.folder import FolderConnector
from duly.settings import Settings
from duly.testing import ManualClock
from publishing.servers import IG

ROOT = Path(__file__).resolve().parents[3]


def test_what_is_built_in_is_what_the_package_declares() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared[registry.GROUP] == registry.BUILT_IN
    for name in registry.BUILT_IN:
        assert registry.find(name).name == name  # type: ignore[attr-defined]


def test_a_request_is_given_up_before_a_lease_lapses() -> None:
    # a run that lost its lease is not still sending when the next one asks
    made = {name: signature(registry.find(name)).parameters.get("timeout") for name in registry.BUILT_IN}
    waits = {name: option.default for name, option in made.items() if option is not None}
    assert sorted(waits) == ["facebook", "instagram", "webhook", "wordpress"]
    assert max(waits.values()) <= Settings().lease * 2 / 3


def test_a_connector_gets_its_options_and_what_it_takes_of_the_application(tmp_path: Path) -> None:
    clock = ManualClock()
    made = registry.make("folder", {}, clock=clock, beside=tmp_path, enqueue=print)
    assert isinstance(made, FolderConnector)
    assert (made.folder, made._clock) == (tmp_path / "posts", clock)


@pytest.mark.parametrize(
    ("name", "options", "field", "words"),
    [
        ("myspace", {}, "connector", "folder, instagram"), ("instagram", {"account": IG}, "options.token", "cannot do without"),
        ("instagram", {"account": IG, "token": "t", "colour": 1}, "options.colour", "knows no such option"),
        ("instagram", {"account": IG, "token": 5}, "options.token", "is not a text"), ("newsletter", {"to": "a@example.org"}, "options.enqueue", "missing"),
        ("folder", {}, "options.folder", "missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(name: str, options: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        registry.make(name, options)
    assert caught.value.field == field
    assert words in str(caught.value)


class Paper:
    name = "paper"

    def __init__(self, *, size: str = "A4", clock: object = None) -> None:
        self.size, self.clock = size, clock


def test_connectors_of_other_packages_are_found_and_those_of_duly_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    here = f"{__name__}:Paper"
    sys.modules.setdefault(__name__, sys.modules[Paper.__module__])
    found = [EntryPoint("paper", here, registry.GROUP), EntryPoint("folder", here, registry.GROUP), EntryPoint("torn", "nowhere_at_all:X", registry.GROUP)]  # fmt: skip
    monkeypatch.setattr(registry, "entry_points", lambda group: found)
    assert "paper" in registry.names()
    made: Any = registry.make("paper", {"size": "A3"}, clock=1, beside=2)
    assert (made.size, made.clock) == ("A3", 1)
    assert registry.find("folder") is FolderConnector
    with pytest.raises(InvalidArgument, match="nowhere_at_all"):
        registry.find("torn")


def test_a_library_that_is_not_there_is_named_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duly.publishing.connectors.instagram", None)
    with pytest.raises(InvalidArgument, match=r"duly\[publishing\]"):
        registry.find("instagram")
