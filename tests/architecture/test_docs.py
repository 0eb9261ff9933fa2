"""What the documentation shows is what happens.

A page is a story told in one folder. A fenced block says in its first line what it is:

* a second word with a dot in it, as in ``python shop.py``: a file of that name;
* ``python run``: a program of its own, run beside the files above it;
* ``console run``: commands, each behind ``$``, and what a terminal shows of them;
* ``text output``: what the program or the commands before it print.

Blocks without a second word are illustrations, and nobody runs them. What differs from one run to the next (instants,
durations, sizes, names of workers, paths) is compared as such; ``…`` stands for anything at all.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import io
import itertools
import os
import pty
import re
import runpy
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

import pytest

import duly
from duly.automations.session import CALL_LIFECYCLE
from duly.automations.session import LIFECYCLE as SESSION
from duly.jobs.filter import JobFilter
from duly.jobs.job import LIFECYCLE, Job
from duly.jobs.task import Options, Task
from duly.kernel import errors
from duly.publishing.state import LIFECYCLE as PUBLICATION
from duly.schedules.schedule import LIFECYCLE as OCCURRENCE
from duly.settings import Settings
from duly.storage.migrate import all_metadata
from duly.workflows.step import LIFECYCLE as STEP
from forked import Forked
from keeper import until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
COLUMNS = 110


class Block(NamedTuple):
    """A fenced block of a page that is run, written or compared."""

    line: int
    language: str
    #: ``run``, ``output``, or the name of a file.
    what: str
    body: str


FENCE = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(text[: m.start()].count("\n") + 1, m[1], m[2], m[3]) for m in FENCE.finditer(text)]


STORIES = [page for page in pages() if blocks(page)]


# --- Telling a story ----------------------------------------------------------------------------------------------------


class Story:
    """A page, told in a folder. ``names`` says what a name in the page is called here (a database, for example)."""

    def __init__(self, page: Path, folder: Path, names: dict[str, str], commands: Path) -> None:
        self.page, self.folder, self.names = page, folder, names
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("DULY_", "PYTEST_", "COV_"))}
        self.environment |= {"NO_COLOR": "1", "TERM": "xterm", "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"}
        self.environment["PATH"] = os.pathsep.join(
            [str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        self.said = ""

    def tell(self) -> None:
        for block in blocks(self.page):
            if block.what == "run" and block.language == "python":
                self.said = self.program(block)
            elif block.what == "run" and block.language == "console":
                self.console(block)
            elif block.what == "output":
                self.compare(block.body, self.said, block.line)
            elif "." in block.what:
                file = self.folder / block.what
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(self.here(block.body), encoding="utf-8")
            else:
                pytest.fail(f"{self.where(block.line)}: a block cannot be {block.what!r}")

    def where(self, line: int) -> str:
        return f"{self.page.relative_to(ROOT)}:{line}"

    def here(self, text: str) -> str:
        for name, meant in self.names.items():
            text = text.replace(name, meant)
        return text

    def program(self, block: Block) -> str:
        """Run a program in this process, as if it were started in the folder."""
        file = self.folder / "_program.py"
        # the same line numbers as in the page, so that a traceback leads there
        file.write_text("\n" * block.line + self.here(block.body), encoding="utf-8")
        with self.beside_the_files(), contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                runpy.run_path(str(file), run_name="__main__")
            except SystemExit as end:
                assert not end.code, f"{self.where(block.line)}: ends with {end.code}"
            except BaseException as error:
                raise AssertionError(f"{self.where(block.line)}: {type(error).__name__}: {error}") from error
        return out.getvalue()

    @contextlib.contextmanager
    def beside_the_files(self) -> Iterator[None]:
        """In the folder, with its modules freshly importable and its environment."""
        folder, environment, modules = Path.cwd(), dict(os.environ), set(sys.modules)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.path.insert(0, str(self.folder))
        try:
            yield
        finally:
            sys.path.remove(str(self.folder))
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            for name in set(sys.modules) - modules:
                made = getattr(sys.modules[name], "__file__", None) or ""
                if made.startswith(str(self.folder)):
                    for app in [v for v in vars(sys.modules[name]).values() if isinstance(v, duly.Duly)]:
                        app.close()
                    del sys.modules[name]

    def console(self, block: Block) -> None:
        line = block.line
        for part in re.split(r"^(?=\$ )", block.body, flags=re.MULTILINE):
            line += 1
            if not part.startswith("$ "):
                assert not part.strip(), f"{self.where(line)}: a line before the first command"
                continue
            command, _, shown = part[2:].partition("\n")
            while command.endswith("\\"):
                more, _, shown = shown.partition("\n")
                command = f"{command[:-1]}{more.removeprefix('> ')}"
            self.command(command, shown, line)
            line += part.count("\n") - 1

    def command(self, command: str, shown: str, line: int) -> None:
        said = re.fullmatch(r"export (\w+)=(\S+)", command)
        if said:
            self.environment[said[1]] = self.here(said[2])
        elif made := re.fullmatch(r"(mkdir|cd) (\S+)", command):
            if made[1] == "mkdir":
                (self.folder / made[2]).mkdir()
            else:
                self.folder = (self.folder / made[2]).resolve()
        else:
            code, self.said = on_a_terminal(self.here(command), self.folder, self.environment)
            wanted = re.search(r"^\[exit code (\d+)\]\n", shown, re.MULTILINE)
            assert code == (int(wanted[1]) if wanted else 0), f"{self.where(line)}: ends with {code}\n{self.said}"
            if shown.strip():
                self.compare(shown.replace(wanted[0], "") if wanted else shown, self.said, line)

    def compare(self, shown: str, said: str, line: int) -> None:
        want, got = as_such(self.here(shown)), as_such(said)
        if not re.fullmatch(re.escape(want).replace("…", ".*"), got):
            raise AssertionError(
                f"{self.where(line)} shows\n\n{want}\n\nand what happens is\n\n{got}\n\nas in\n\n{said}"
            )


def on_a_terminal(command: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """(exit code, what is on the screen) of a command run in a terminal of its own, with nobody at its keyboard."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    screen = b""
    with contextlib.suppress(OSError):  # Linux says EIO when the last process has let go of the terminal
        while data := os.read(master, 65536):
            screen += data
    os.close(master)
    written = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode()).replace("\r\n", "\n")
    return process.wait(), re.sub(r"[^\n]*\r", "", written)  # a line that is written again is wiped before


#: What differs from one run to the next, and what it is.
PASSING = [
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "«instant»"),
    (r"\b\d\d:\d\d:\d\d\b", "«time»"),
    (r"\b(?:(?:in|for) )?(?:less than )?\d[\d.,]* (?:ms|s|min|h|d)\b(?: ago)?|\bnow\b", "«span»"),
    (r"\b\d[\d.,]* (?:bytes|KB|MB|GB|TB)\b", "«size»"),
    (r"\bcli:\w+", "cli:«user»"),
    (r"[\w.-]+:\d+:[0-9a-f]{6}\b", "«worker»"),
    (r"(?<![:/\w])(?:/[\w.+-]+)+/(?=\w+\.db)", "«folder»/"),
    (r"\bSQLite 3[\d.]+|\bPostgreSQL \d[\d.]+", "«database»"),
    (r"\bDuly \d[\w.]+", "Duly «version»"),
    (r"\brevision \d{4}\b", "revision «number»"),
    (r"\d+ zones, version \w+ of the (?:system|package tzdata)", "«zones»"),
    (r"\b\w+, a local one", "«kind», a local one"),
    (r"\d[\d,]* rows? (?:is|are) not sealed yet.*|sealed to its end", "«seals»"),
    (r"(?<=The chain holds: ).*", "«seals»"),
    (r"\s+", " "),  # a narrow cell is folded where it happens to end
]


def said_of(line: str) -> str:
    """What a worker's line says, whenever that was and however long it took."""
    return re.sub(r"\d", "", line[10:])


def as_such(text: str) -> str:
    """A text without what differs from run to run; jobs that ran side by side end in any order."""
    lines = [line.rstrip() for line in text.splitlines()]
    runs = itertools.groupby(lines, key=lambda line: bool(re.match(r"\d\d:\d\d:\d\d  \w", line)))
    text = "\n".join(line for ended, run in runs for line in (sorted(run, key=said_of) if ended else run))
    for pattern, name in PASSING:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text.strip()


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the PATH with a ``duly`` that is quick to start."""
    forked = Forked(
        tmp_path_factory.mktemp("forked"), "duly.automations", "duly.automations.providers.registry", "duly.web.app", "duly.mail.mail",
        "duly.outbox.relay", "duly.outbox.transports.duly", "duly.schedules.door", "duly.testing", "jinja2", "uvicorn", "yaml", "httpx2",
    )  # fmt: skip
    try:
        assert until(forked.is_ready, 240)
        yield forked.bin
    finally:
        forked.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", STORIES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_happens(
    page: Path, tmp_path: Path, commands: Path, request: pytest.FixtureRequest
) -> None:
    names = {}
    if "postgresql://shop@db/shop" in "".join(block.body for block in blocks(page)):
        names["postgresql://shop@db/shop"] = str(request.getfixturevalue("empty_pg_url"))
    Story(page, tmp_path, names, commands).tell()


# --- The reference ------------------------------------------------------------------------------------------------------


def read(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def test_the_diagram_in_the_docs_is_the_lifecycle() -> None:
    assert f"```mermaid\n{LIFECYCLE.mermaid()}\n```" in read("lifecycle.md")


def test_every_move_of_a_job_is_explained() -> None:
    text = read("lifecycle.md")
    missing = [m for m in LIFECYCLE.moves if f"| {m.source or '(none)'} | `{m.event}` | {m.target} |" not in text]
    assert not missing


def test_the_lifecycle_of_an_occurrence_is_in_the_docs_as_it_is_in_the_code() -> None:
    text = read("lifecycle.md").partition("## The lifecycle of an occurrence")[2]
    assert f"```mermaid\n{OCCURRENCE.mermaid()}\n```" in text
    assert [m for m in OCCURRENCE.moves if f"| {m.source or '(none)'} | `{m.event}` | {m.target} |" not in text] == []


def test_the_lifecycle_of_a_step_is_in_the_docs_as_it_is_in_the_code() -> None:
    text = read("lifecycle.md").partition("## The lifecycle of a step")[2]
    assert f"```mermaid\n{STEP.mermaid()}\n```" in text
    assert [m for m in STEP.moves if f"| {m.source or '(none)'} | `{m.event}` | {m.target} |" not in text] == []


def test_the_lifecycle_of_a_publication_is_in_the_docs_as_it_is_in_the_code() -> None:
    text = read("lifecycle.md").partition("## The lifecycle of a publication")[2]
    assert f"```mermaid\n{PUBLICATION.mermaid()}\n```" in text
    assert [m for m in PUBLICATION.moves if f"| {m.source or '(none)'} | `{m.event}` | {m.target} |" not in text] == []


def test_the_lifecycles_of_a_session_and_of_its_calls_are_in_the_docs_as_they_are_in_the_code() -> None:
    for heading, lifecycle in (("session", SESSION), ("tool call", CALL_LIFECYCLE)):
        text = read("lifecycle.md").partition(f"## The lifecycle of a {heading}")[2].partition("\n## ")[0]
        assert f"```mermaid\n{lifecycle.mermaid()}\n```" in text
        assert [
            m for m in lifecycle.moves if f"| {m.source or '(none)'} | `{m.event}` | {m.target} |" not in text
        ] == []


def test_every_public_name_is_in_the_reference() -> None:
    text = read("api.md")
    assert [name for name in duly.__all__ if not re.search(rf"^#+ .*`{name}\b", text, re.MULTILINE)] == []


@pytest.mark.parametrize(
    ("kind", "heading"),
    [(Options, "Options of a job"), (Task, "Options of a task"), (Job, "Job"), (JobFilter, "Filters")],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_every_field_is_in_the_reference(kind: type, heading: str) -> None:
    found = re.search(rf"^#+ `?{heading}`?\n(.*?)(?=^#|\Z)", read("api.md"), re.MULTILINE | re.DOTALL)
    assert found is not None
    section = found[1]
    hidden = {"fn", "app", "codec", "injected", "transactional", "ids"}
    names = {f.name for f in fields(kind)} - hidden
    assert {name for name in names if f"`{name}`" not in section} == set()


def test_every_setting_is_in_the_reference() -> None:
    text = read("settings.md")
    assert [s for s in Settings.describe() if f"`{s['name']}`" not in text or f"`{s['variable']}`" not in text] == []


def test_every_table_and_column_is_in_the_reference() -> None:
    sections = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", read("tables.md"), re.MULTILINE | re.DOTALL))
    missing = [
        f"{table.name}.{column.name}"
        for table in all_metadata().tables.values()
        for column in table.columns
        if f"`{column.name}`" not in sections.get(table.name, "")
    ]
    assert missing == []


def test_every_error_is_in_the_reference() -> None:
    text = read("errors.md")
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.DulyError)]
    assert [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in text] == []


def test_every_audit_action_is_in_the_reference() -> None:
    text = read("audit-actions.md")
    found = set()
    for file in (ROOT / "src" / "duly").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(re.findall(r"^(?:JOB|QUEUE|ATLAS|ALERT|SCHEDULE)_[A-Z_]+$", node.value))
    assert len(found) > 8
    assert {action for action in found if f"`{action}`" not in text} == set()


def test_every_decision_is_in_its_index() -> None:
    index = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    files = sorted(file.name for file in (DOCS / "adr").glob("0*.md"))
    assert [name[:4] for name in files] == [f"{n:04}" for n in range(1, len(files) + 1)]
    assert [name for name in files if f"({name})" not in index] == []


def test_every_file_that_the_architecture_names_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z]+(?:/[a-z]+)*(?:\.py|/))`", text))
    assert len(named) > 15
    assert {name for name in named if not (ROOT / "src" / "duly" / name).exists()} == set()


def test_every_page_can_be_reached_from_the_front_page() -> None:
    spec = spec_from_file_location("check_links", DOCS / "check_links.py")
    assert spec is not None
    assert spec.loader is not None
    check_links = module_from_spec(spec)
    spec.loader.exec_module(check_links)
    seen, todo = set[Path](), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or not page.is_file():
            continue
        seen.add(page)
        if page.suffix == ".md":
            todo += [(page.parent / target.partition("#")[0]).resolve() for _, target in check_links.links(page)]
    assert [str(page.relative_to(ROOT)) for page in pages() if page not in seen] == []
