"""Providers by name, Duly's own and those of other packages."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from automations.providers.hands import KEY, ask
from duly.automations.providers import registry
from duly.automations.providers.base import Prices, Provider
from duly.automations.providers.scripted import Scripted
from duly.kernel.errors import InvalidArgument
from duly.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


def test_what_is_built_in_is_what_the_package_declares() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared[registry.GROUP] == {
        name: f"{registry.__name__}:{made.__name__}" for name, made in registry.BUILT_IN.items()
    }
    for name in registry.BUILT_IN:
        assert registry.named(name, Settings()).name == name


def test_an_automation_runs_without_a_network_by_a_script_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"default": [{"say": "Good morning."}]}')
    settings = Settings(ai_script=str(script))
    assert ask(registry.named(settings.ai_provider, settings)).text == "Good morning."


def test_a_name_that_nobody_knows_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(InvalidArgument, match="anthropic, openai, scripted"):
        registry.named("opnai", Settings())


def test_prices_are_those_of_the_settings() -> None:
    assert registry.prices(Settings()) is None
    assert registry.prices(Settings(ai_price_input=250.0)) == Prices(250.0, 0.0)
    for name in registry.BUILT_IN:
        assert registry.named(name, Settings(ai_price_input=1.5, ai_price_output=2.0)).prices == Prices(1.5, 2.0)


def test_a_key_is_not_shown_by_what_is_made_with_it() -> None:
    settings = Settings(ai_api_key=KEY, anthropic_api_key=KEY)
    assert KEY not in repr(settings)
    for name in registry.BUILT_IN:
        assert KEY not in repr(registry.named(name, settings))


def other(settings: Settings) -> Provider:
    return Scripted(name=f"other for {settings.tenant}")


nothing = 3


def test_a_provider_of_another_package_is_found_and_cannot_take_a_name_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint(name, f"{__name__}:{value}", registry.GROUP) for name, value in (
        ("theirs", "other"), ("openai", "other"), ("broken", "nothing"), ("gone", "never"),
    )]  # fmt: skip
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert registry.names() == ["anthropic", "broken", "gone", "openai", "scripted", "theirs"]
    assert registry.named("theirs", Settings()).name == "other for default"
    assert registry.named("openai", Settings()).name == "openai"
    with pytest.raises(InvalidArgument, match="names nothing that makes a provider"):
        registry.named("broken", Settings())
    with pytest.raises(InvalidArgument, match="cannot be loaded"):
        registry.named("gone", Settings())


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_without_the_extra_its_name_is_said_and_scripts_still_run(name: str) -> None:
    program = f"""
import sys
sys.modules["httpx2"] = None
from duly.automations.providers import registry
from duly.settings import Settings
registry.named("scripted", Settings())
registry.named({name!r}, Settings())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stderr.strip().endswith(
        'ai_provider: needs httpx2, which is not installed. Install it with `pip install "duly[ai]"`.'
    )
