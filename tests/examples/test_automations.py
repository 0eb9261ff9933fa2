"""The morning briefing does what its page says."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from duly.automations.automation import Definition, read_definition
from duly.kernel.source import read
from examples import programs
from keeper import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "automations"
BRIEFING = """\
# 2026-03-02

## Orders

* 4 new, worth 81.40.
* To be sent: 1038 (2 quince jelly), 1040 (24 apple juice), 1041 (12 apple juice), 1042 (4 pear chutney), 1044 (1 apple vinegar).
* Not paid yet: 1043 (5 quince jelly).

## Today

* 09:30-10:00 the post takes parcels; 14:00-15:30 pruning class in the lower orchard.

## Stock

* 6 apple juice are missing.
"""


def command(*arguments: str) -> list[str]:
    return [programs.PYTHON, str(EXAMPLE / "run.py"), "--until-idle", *arguments]


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(command(*arguments), cwd=folder, capture_output=True, text=True, timeout=400)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def count(url: str, folder: Path, sql: str) -> int:
    """The number that a query answers; 0 while its table is not there."""
    if url:
        engine = create_engine(url)
        try:
            with engine.connect() as connection:
                there = connection.scalar(text("SELECT to_regclass('briefing_lines') IS NOT NULL"))
                return connection.scalar(text(sql)) or 0 if there else 0
        finally:
            engine.dispose()
    file = folder / "var" / "briefing" / "duly.db"
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file, timeout=10)) as connection:
        try:
            return int(connection.execute(sql).fetchone()[0])
        except sqlite3.OperationalError:
            return 0


LINES, SESSIONS = "SELECT count(*) FROM briefing_lines", "SELECT count(*) FROM ai_sessions WHERE trigger = 'MANUAL'"
#: A job of the session runs, and the session waits for it.
A_JOB = (
    "SELECT count(*) FROM jobs s, jobs j WHERE s.task = 'AI_SESSION' AND s.status = 'queued' "
    "AND j.task = 'CHECK_STOCK' AND j.status = 'running'"
)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.soak])])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the database is; empty: where the example puts it."""
    yield "" if request.param == "sqlite" else str(request.getfixturevalue("pg_url"))


def test_a_briefing_is_written_and_the_second_run_of_the_day_does_nothing_twice(tmp_path: Path, url: str) -> None:
    # R001-19, and the key of an execution
    there = ["--latency", "0", *(["--database-url", url] if url else [])]
    said = run(tmp_path, *there)
    file = tmp_path / "var" / "briefing" / "briefing.md"
    assert file.read_text() == BRIEFING
    assert "5 questions, 10 calls, 3,774 tokens" in said
    assert said.count("note: done") == 5
    assert "duly automations show" in said  # what to try next
    file.unlink()
    again = run(tmp_path, *there)
    assert "of that day is there already: nothing is done twice." in again
    assert "note" not in again
    assert not file.exists()
    assert (count(url, tmp_path, LINES), count(url, tmp_path, SESSIONS)) == (5, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there_is", "least", "crashed"),
    [(LINES, 1, True), (A_JOB, 1, False), pytest.param(LINES, 5, True, marks=pytest.mark.soak)],
    ids=["among-lines", "while-it-waits-for-a-job", "while-it-writes-the-file"],
)
def test_a_briefing_that_is_killed_goes_on_without_a_doubled_line(
    tmp_path: Path, url: str, there_is: str, least: int, crashed: bool
) -> None:
    # T001-b, R001-16. A session that waits for a job has not crashed with its worker: the job is run again, and it goes on by itself
    there = ["--database-url", url] if url else []
    process = subprocess.Popen(
        command("--latency", "1.5", *there), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert until(lambda: count(url, tmp_path, there_is) >= least or process.poll() is not None, 240)
        assert process.poll() is None, "it has ended before it could be killed"
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / "var" / "briefing" / "briefing.md").exists()
    said = run(tmp_path, "--latency", "0", *there)
    assert "it goes on" in said
    assert ("AUTOMATION_RESUME_CRASH" in said, "interrupted" in said) == (crashed, crashed)
    assert (tmp_path / "var" / "briefing" / "briefing.md").read_text() == BRIEFING
    assert (count(url, tmp_path, LINES), count(url, tmp_path, SESSIONS)) == (5, 1)


@pytest.mark.parametrize(
    ("file", "was", "is_", "words"),
    [
        ("orders.csv", "1041,2026-03-02,apple juice,12", "1041,2026-03-02,apple juice,a dozen", "orders.csv, line 6: quantity cannot be 'a dozen'."),
        ("orders.csv", "order,day", "number,day", "orders.csv has no column 'order' in its first line"),
        ("calendar.csv", "09:30,10:00", "half past nine,10:00", "calendar.csv, line 3: from cannot be 'half past nine'."),
        ("stock.csv", "", "", "stock.csv cannot be read: No such file"),
    ],
)  # fmt: skip
def test_wrong_input_is_told_with_its_file_and_line_and_nothing_is_written(
    tmp_path: Path, file: str, was: str, is_: str, words: str
) -> None:
    for name in ("orders.csv", "calendar.csv", "stock.csv"):
        shutil.copy(EXAMPLE / name, tmp_path / name)
    if was:
        content = (tmp_path / file).read_text()
        assert was in content
        (tmp_path / file).write_text(content.replace(was, is_))
    else:
        (tmp_path / file).unlink()
    said = run(tmp_path, "--data", ".", code=2)
    assert words in said
    assert "Traceback" not in said
    assert not (tmp_path / "var" / "briefing" / "duly.db").exists()


def test_an_empty_shop_has_an_honest_briefing(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text(
        "order,day,product,quantity,cents,state\n1,2026-03-05,apple juice,1,240,sent\n"
    )
    for name in ("calendar.csv", "stock.csv"):
        shutil.copy(EXAMPLE / name, tmp_path / name)
    run(tmp_path, "--data", ".", "--latency", "0")
    briefing = (tmp_path / "var" / "briefing" / "briefing.md").read_text()
    for words in ("1 new, worth 2.40.", "To be sent: nothing.", "nothing is planned", "enough of everything"):
        assert words in briefing


def test_its_automation_is_one_for_the_command_line() -> None:
    made = read_definition(read(EXAMPLE / "briefing.yaml").value)
    assert isinstance(made, Definition)
    assert made.schedule is not None
    assert made.schedule.describe() == "at 07:00 every day, Rome time"
