"""The same key in every process, under every hash seed, on every Python, and in another language.

The published vectors are frozen: a change of a text or a key in them is a change of every key that anybody has stored, and
wants a new version.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from duly.kernel.canonical import canonical
from duly.kernel.errors import InvalidPayload
from kernel import canonical_child
from kernel.test_canonical_properties import values

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "docs" / "reference" / "canonical-keys.json"
PACKAGE = ROOT / "src" / "duly"
PUBLISHED = json.loads(VECTORS.read_text(encoding="utf-8"))
JAVASCRIPT = ROOT / "tests" / "kernel" / "canonical_keys.mjs"
#: How many vectors there were when they were published first, and the digest of their texts and keys. Later ones are added behind.
FROZEN = (32, "a2b926e667bc6a351c3384c0a8692972dfe08f7548726a61a16cc3a9f9522713")
ABOUT = {"PATH": os.environ["PATH"], "SYSTEMROOT": os.environ.get("SYSTEMROOT", "")}


@cache
def pythons() -> list[str]:
    """Other Pythons of this machine that Duly supports: on the path, or installed beside the one that runs this."""
    found: dict[str, str] = {}
    beside = Path(sys.base_prefix).parent.glob("*/bin/python3.[1-9][0-9]")
    on_path = [shutil.which(f"python3.{minor}") for minor in range(11, 20)]
    for candidate in [*map(str, beside), *filter(None, on_path)]:
        asked = subprocess.run(
            [candidate, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
        )
        version = asked.stdout.split()
        if asked.returncode == 0 and len(version) == 2 and int(version[1]) >= 11:
            found.setdefault(".".join(version), candidate)
    found.pop(f"{sys.version_info.major}.{sys.version_info.minor}", None)
    return sorted(found.values())


def made_by(command: list[str | Path], **environment: str) -> Any:
    made = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=ABOUT | environment)
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


def child(python: str, file: Path = VECTORS, **environment: str) -> Any:
    return made_by([python, "-X", "utf8", canonical_child.__file__, PACKAGE, file], **environment)


def check(made: Any) -> None:
    """Everything that is published, and nothing else."""
    for vector, one in zip(PUBLISHED["keys"], made["keys"], strict=True):
        assert (one["text"], one["key"]) == (vector["text"], vector["key"]), vector["says"]
    for vector, where in zip(PUBLISHED["refused"], made["refused"], strict=True):
        assert where != "nowhere", vector["says"]
        assert vector["where"] in (where, None), vector["says"]


def test_the_published_vectors_hold() -> None:  # R004-10
    check(canonical_child.run(PUBLISHED))


def test_the_published_vectors_are_frozen() -> None:
    frozen = json.dumps([[vector["text"], vector["key"]] for vector in PUBLISHED["keys"][: FROZEN[0]]])
    assert sha256(frozen.encode()).hexdigest() == FROZEN[1], "give VERSION a successor, and let these stay as they are"


@pytest.mark.parametrize("vector", PUBLISHED["keys"], ids=lambda vector: vector["says"])
def test_a_published_key_is_the_digest_of_its_published_text(vector: Any) -> None:
    digest = sha256(vector["text"].encode()).hexdigest()
    assert vector["key"] == f"duly:v1:{vector['namespace']}:{digest}"


@pytest.mark.parametrize("seed", ["0", "1", "2", "random"])
def test_no_hash_seed_changes_a_key(seed: str) -> None:  # B046, T004-n
    check(child(sys.executable, PYTHONHASHSEED=seed))


@pytest.mark.parametrize("environment", [{"LC_ALL": "C", "TZ": "Asia/Tokyo"}, {"LC_ALL": "tr_TR.UTF-8", "TZ": "UTC"}])
def test_neither_locale_nor_local_time_changes_a_key(environment: dict[str, str]) -> None:  # T004-n
    check(child(sys.executable, **environment))


def test_other_pythons_make_the_same_keys() -> None:
    if not pythons():
        pytest.skip("there is no other Python of 3.11 or later here")
    for python in pythons():
        check(child(python, PYTHONHASHSEED="random"))


def has_a_text(value: Any) -> bool:
    """Not with two keys that are one text in Unicode: these are refused."""
    try:
        canonical(value)
    except InvalidPayload:
        return False
    return True


def node() -> str:
    found = shutil.which("node")
    if not found:
        pytest.skip("there is no Node.js here")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").split(".")[0]) < 20:
        pytest.skip("Node.js is older than 20 and does not know isWellFormed")
    return found


def test_another_language_makes_the_same_keys_from_the_reference() -> None:
    check(made_by([node(), JAVASCRIPT, VECTORS]))


@settings(max_examples=4, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.lists(values.filter(has_a_text), min_size=20, max_size=60))
def test_another_language_agrees_on_values_that_nobody_chose(chosen: list[Any]) -> None:
    described = [canonical_child.describe(value) for value in chosen]
    vectors = {"keys": [{"task": "t", "namespace": "task", "args": [value], "kwargs": {}} for value in described]}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "vectors.json"
        file.write_text(json.dumps(vectors | {"refused": []}), encoding="utf-8")
        assert made_by([node(), JAVASCRIPT, file]) == canonical_child.run(vectors | {"refused": []})
