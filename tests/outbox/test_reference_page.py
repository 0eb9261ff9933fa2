"""The reference of the outbox says what the code is."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from duly.outbox.box import Outbox
from duly.outbox.message import LIFECYCLE, Message
from duly.outbox.options import Options
from duly.outbox.plan import Policy
from duly.outbox.read import Backlog, MessageFilter, Standing
from duly.outbox.relay import Report

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "outbox.md").read_text(encoding="utf-8")


def test_the_diagram_is_the_lifecycle() -> None:
    assert f"```mermaid\n{LIFECYCLE.mermaid()}\n```" in PAGE


def test_every_field_and_setting_is_there() -> None:
    kinds = (Message, Options, Policy, Standing, MessageFilter, Report)
    names = {f"{kind.__name__}.{f.name}" for kind in kinds for f in fields(kind)}
    missing = {name for name in names if f"`{name.partition('.')[2]}`" not in PAGE}
    assert missing == set()
    assert {f.name for f in fields(Backlog)} <= {f.name for f in fields(Standing)} | {"destination", "hold"}
    assert "`hold`" in PAGE


def test_every_default_is_told() -> None:
    for f in fields(Options):
        default = f"{f.default:g}" if isinstance(f.default, float) else f"{f.default}"
        assert f"| `{f.name}` | `{default}` |" in PAGE, f.name


def test_every_public_method_is_there() -> None:
    methods = {name for name, value in vars(Outbox).items() if callable(value) and not name.startswith("_")}
    assert {name for name in methods if f"`{name}" not in PAGE and f"{name}(" not in PAGE} == set()
