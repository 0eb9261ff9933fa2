"""Finding the application: by module, by file, by name; and what is said when it is not found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.hands import SHOP, Run

TWO = "from duly import Duly\none = Duly()\ntwo = Duly('sqlite:///two.db')\nsame = one\n"


def test_an_application_is_found_by_file_by_module_and_by_name(run: Run, shop: str) -> None:
    module = shop.removesuffix(".py")
    for target in (shop, f"{shop}:app", f"./{shop}", module, f"{module}:app"):
        assert run("worker", target, "--until-idle").code == 0, target


def test_an_application_is_named_by_argument_option_or_variable(
    run: Run, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("worker", "--until-idle").code == 2
    assert run("worker", "--until-idle", "--app", shop).code == 0
    assert run("--app", shop, "worker", "--until-idle").code == 0
    monkeypatch.setenv("DULY_APP", shop)
    assert run("worker", "--until-idle").code == 0


def test_a_file_inside_a_package_is_imported_as_part_of_it(run: Run, folder: Path) -> None:
    package = folder / "bakery" / "jobs"
    package.mkdir(parents=True)
    for place in (package, package.parent):
        (place / "__init__.py").touch()
    (package / "other.py").write_text(SHOP)
    (package / "main.py").write_text("from .other import app\n")
    assert run("worker", "bakery/jobs/main.py", "--until-idle").code == 0
    assert "bakery.jobs.main" in sys.modules
    assert run("worker", "bakery.jobs.main:app", "--until-idle").code == 0


def test_several_applications_in_a_module_are_named_in_the_error(run: Run, write: Callable[[str], str]) -> None:
    name = write(TWO)
    said = run("worker", name, "--until-idle")
    assert said.code == 2
    assert f"{name}:one or {name}:two" in said.err
    assert run("migrate", "--app", f"{name}:two").code == 0


def test_one_application_under_two_names_is_one(run: Run, write: Callable[[str], str]) -> None:
    assert run("migrate", "--app", write("from duly import Duly\napp = Duly()\nagain = app\n")).code == 0


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nosuch.py", "there is no file nosuch.py"),
        ("nosuch", "no module 'nosuch'"),
        ("nosuch.deep:app", "no module 'nosuch.deep'"),
        ("shop:", "Write module:name"),
        (":app", "Write module:name"),
        ("os", "defines no Duly object"),
        ("json:dumps", "has 'dumps', but that is of type function"),
    ],
)
def test_an_application_that_is_not_there_is_wrong_usage(run: Run, target: str, says: str) -> None:
    said = run("worker", target)
    assert said.code == 2
    assert says in said.err
    assert said.err.startswith("duly: app: ")


def test_a_wrong_name_is_answered_with_the_right_ones(run: Run, shop: str) -> None:
    said = run("worker", f"{shop}:ap")
    assert (said.code, f"{shop} has no 'ap'. It has: app." in said.err) == (2, True)


def test_a_file_that_hides_a_module_in_use_is_refused(run: Run, folder: Path) -> None:
    (folder / "json.py").write_text(SHOP)
    said = run("worker", "json.py")
    assert (said.code, "Rename the file" in said.err) == (2, True)


def test_an_error_inside_the_application_is_told_with_its_line(run: Run, write: Callable[[str], str]) -> None:
    name = write("import os\n\nx = nothing_here\n")
    said = run("worker", name)
    assert said.code == 1
    assert f"{name} cannot be loaded: NameError: name 'nothing_here' is not defined ({name}, line 3)" in said.err
    assert "Traceback" not in said.err


def test_a_missing_dependency_of_the_application_is_not_taken_for_a_missing_application(
    run: Run, write: Callable[[str], str]
) -> None:
    name = write("import not_installed_anywhere\n")
    said = run("worker", name.removesuffix(".py"))
    assert (said.code, "No module named 'not_installed_anywhere'" in said.err) == (1, True)


def test_a_mistake_in_the_applications_settings_names_the_setting(run: Run, write: Callable[[str], str]) -> None:
    said = run("worker", write("from duly import Duly\napp = Duly('sqlite:///missing/folder/x.db')\n"))
    assert said.code == 2
    assert "database_url: the folder" in said.err


def test_files_that_define_an_application_are_suggested(run: Run, shop: str) -> None:
    said = run("up")
    assert (said.code, f"Say which: {shop}" in said.err) == (2, True)


def test_the_line_decides_on_the_database_of_an_application_that_names_none(run: Run, folder: Path, shop: str) -> None:
    assert run("worker", shop, "--until-idle", "--database-url", "sqlite:///other.db").code == 0
    assert (folder / "other.db").exists()
    assert not (folder / "duly.db").exists()


def test_a_database_that_the_application_does_not_use_is_refused(run: Run, write: Callable[[str], str]) -> None:
    name = write(f"from duly import Duly\napp = Duly('sqlite:///mine.db')\n{SHOP.split('app = Duly()')[1]}")
    said = run("jobs", "list", "--app", name, "--database-url", "sqlite:///other.db")
    assert (said.code, "names sqlite:///mine.db itself" in said.err) == (2, True)
    assert run("migrate", "--app", name, "--database-url", "sqlite:///./mine.db").code == 0


def test_the_variable_is_as_before_when_a_command_has_ended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("DULY_DATABASE_URL", "sqlite:///before.db")
    assert run("migrate", "--database-url", "sqlite:///other.db").code == 0
    assert os.environ["DULY_DATABASE_URL"] == "sqlite:///before.db"


def test_a_module_that_exits_while_it_is_loaded_is_a_failure_and_said(run: Run, write: Callable[[str], str]) -> None:
    said = run("up", write("import sys\nsys.exit(0)\n"))
    assert (said.code, "cannot be loaded: SystemExit" in said.err) == (1, True)
