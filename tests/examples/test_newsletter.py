"""The newsletter example does what it says, as a program of its own in an empty folder."""

from __future__ import annotations

import contextlib
import csv
import os
import pty
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path

import pytest
from sqlalchemy import func, select

from duly import Duly, Job, Status
from duly.audit.seal import verify
from duly.audit.tables import audit_log
from examples import programs
from keeper import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "newsletter"

#: What the list holds that is no address, in the order of its lines.
BAD = {
    37: "@example.com",
    41: "marco..polo@example.org",
    51: "rosa rosa@example.com",
    98: "anton@-example.net",
    170: "ulla@example.org; olaf@example.org",
    181: "eva@@example.net",
    199: "tomás@",
    210: "",
    265: "kim@example",
    293: "lena.example.org",
}
#: What the mail server refuses for good, and what it puts off, with the attempt on which it gives in.
REFUSED = {"noor.moved@example.net": "550", "pauline.closed@example.com": "550"}
PUT_OFF = {"gregory.grey@example.org": 2, "gry.grey@example.net": 2, "grainne.grey@example.com": 2}
#: So many letters are under way at once: a queue's default.
CONCURRENCY = 20


def expected() -> dict[str, str]:
    """Mailbox (as the key has it) → name, of everybody who is to get the letter."""
    with (EXAMPLE / "recipients.csv").open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines)
        out: dict[str, str] = {}
        for row in rows:
            if rows.line_num not in BAD:
                out.setdefault(row["address"].strip().lower(), row["name"])
    return {mailbox: name for mailbox, name in out.items() if mailbox not in REFUSED}


def start(
    cwd: Path, *arguments: str, terminal: int = subprocess.PIPE, lease: int = 10, python: str | None = None
) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "NEWSLETTER_"))}
    return subprocess.Popen(
        [python or programs.PYTHON, EXAMPLE / "run.py", *arguments],
        cwd=cwd,
        env=environment | {"DULY_LEASE": str(lease), "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )


def run(cwd: Path, *arguments: str, code: int = 0, python: str | None = None) -> str:
    """Run it to its end. Returns what it said."""
    process = start(cwd, *arguments, python=python)
    try:
        said, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code, said
    return said


@contextmanager
def running(cwd: Path, *arguments: str, lease: int = 10) -> Iterator[subprocess.Popen[str]]:
    process = start(cwd, *arguments, lease=lease)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    assert until(condition, 240), "waited for four minutes"


def stored(folder: Path) -> int:
    """How many messages have arrived so far."""
    new = folder / "mail" / "new"
    return len(list(new.iterdir())) if new.is_dir() else 0


def messages(folder: Path) -> list[EmailMessage]:
    files = (folder / "mail" / "new").iterdir()
    return [message_from_bytes(file.read_bytes(), _class=EmailMessage, policy=policy.default) for file in files]


def mailboxes(folder: Path) -> Counter[str]:
    return Counter(str(message["Delivered-To"]).lower() for message in messages(folder))


@contextmanager
def database(url: str) -> Iterator[Duly]:
    app = Duly(url)
    try:
        yield app
    finally:
        app.close()


def sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'duly.db'}"


def actions(app: Duly) -> dict[str, int]:
    """The audit trail, counted."""
    query = select(audit_log.c.action, func.count()).group_by(audit_log.c.action)
    return dict(app.db.read(lambda c: c.execute(query).all()))


def by_mailbox(app: Duly) -> dict[str, Job]:
    return {job.input["to"].lower(): job for job in app.jobs.find(queue="mail", limit=1000)}


def check_that_all_is_done(app: Duly, folder: Path) -> None:
    """Every good address has its letter once, every refusal is on record, and the record holds."""
    wanted = expected()
    assert mailboxes(folder) == dict.fromkeys(wanted, 1)
    jobs = by_mailbox(app)
    assert {name for name, job in jobs.items() if job.status is Status.SUCCEEDED} == set(wanted)
    for name, answer in REFUSED.items():
        assert jobs[name].status is Status.FAILED
        assert (jobs[name].error or {})["message"].startswith(answer)
        assert jobs[name].attempts == 1
    assert {name: jobs[name].attempts for name in PUT_OFF} == PUT_OFF
    assert actions(app) == {"EMAIL_SENT": len(wanted), "JOB_FAILED_PERMANENT": len(REFUSED)}
    assert verify(app.db).broken is None


# ---------------------------------------------------------------------- the newsletter


def test_everybody_gets_the_letter_once_and_a_second_run_sends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "var" / "newsletter"
    said = run(tmp_path, "--until-idle", "--latency", "0", python=programs.REAL)
    for line, address in BAD.items():
        assert re.search(rf"line {line} +{re.escape(repr(address)) if address else 'no address'}", said), said
    assert "8 duplicates skipped (lines 176, 208, 221, 226, 240, 279, 291, 294)" in said
    assert "550 5.1.1 No such mailbox" in said
    assert "\x1b" not in said, "a pipe gets plain text"
    with database(sqlite(folder)) as app:
        check_that_all_is_done(app, folder)

    before = stored(folder)
    said = run(tmp_path, "--until-idle", "--latency", "0")
    assert stored(folder) == before
    assert "not sent twice" in said
    with database(sqlite(folder)) as app:
        check_that_all_is_done(app, folder)


def test_each_letter_is_addressed_to_its_reader(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(
        "name,address,since\nZoë & Ann,zoë@example.org,2019\n<Root>,ROOT+letters@example.com,2020\n,nobody@example.net,2021\n",
        encoding="utf-8-sig",
    )
    run(tmp_path, "--until-idle", "--latency", "0", "--recipients", "list.csv", "--folder", "a folder/run #1")
    got = {str(m["Delivered-To"]): m for m in messages(tmp_path / "a folder/run #1")}
    assert set(got) == {"zoë@example.org", "ROOT+letters@example.com", "nobody@example.net"}
    zoe, root, nobody = got["zoë@example.org"], got["ROOT+letters@example.com"], got["nobody@example.net"]

    assert zoe["Subject"] == "Zoë & Ann, your autumn letter from the orchard"
    assert nobody["Subject"] == "Your autumn letter from the orchard"
    for message in got.values():
        assert message["To"] == message["Delivered-To"]
        assert message["From"] == "The orchard <letter@example.org>"
        assert message["Date"] is not None
        assert re.fullmatch(r"<[\w.]+@letters\.example\.org>", message["Message-ID"])
    assert len({m["Message-ID"] for m in got.values()}) == 3

    def body(message: EmailMessage, kind: str) -> str:
        part = message.get_body((kind,))
        assert part is not None
        return str(part.get_content())

    assert "Dear Zoë & Ann,\n" in body(zoe, "plain")
    assert "Dear Zoë &amp; Ann," in body(zoe, "html")
    assert "Dear <Root>,\n" in body(root, "plain")
    assert "Dear &lt;Root&gt;," in body(root, "html")
    assert "Dear reader,\n" in body(nobody, "plain")
    assert body(nobody, "html").startswith("<!doctype html>")


def test_a_job_for_a_bad_address_is_refused_for_good(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("address,name\nann@example.org,Ann\n")
    arguments = ("--until-idle", "--latency", "0", "--recipients", "list.csv", "--folder", "run")
    run(tmp_path, *arguments, "--enqueue-only")
    with database(sqlite(tmp_path / "run")) as app:
        texts = {"subject": "Hello", "text": "Hello", "html": "<p>Hello</p>"}
        bad = [
            app.enqueue("EMAIL_SEND", {"to": to, **texts}, queue="mail").job.id
            for to in ("ann", "ann@example.org\r\nBcc: bob@example.org")
        ]
    run(tmp_path, *arguments)
    assert mailboxes(tmp_path / "run") == {"ann@example.org": 1}
    with database(sqlite(tmp_path / "run")) as app:
        for ident in bad:
            assert app.jobs.get(ident).status is Status.FAILED
        assert actions(app) == {"EMAIL_SENT": 1, "JOB_FAILED_PERMANENT": 2}


@pytest.mark.soak
@pytest.mark.postgres
def test_it_runs_on_postgresql(tmp_path: Path, pg_url: str) -> None:
    run(tmp_path, "--until-idle", "--latency", "0", "--database-url", pg_url)
    folder = tmp_path / "var" / "newsletter"
    assert not (folder / "duly.db").exists()
    with database(pg_url) as app:
        check_that_all_is_done(app, folder)


@pytest.mark.postgres
def test_a_postgresql_without_tables_is_told_what_to_do(tmp_path: Path, empty_pg_url: str) -> None:
    said = run(tmp_path, "--until-idle", "--database-url", empty_pg_url, code=1)
    assert "duly migrate" in said
    assert "Traceback" not in said


# ---------------------------------------------------------------------- interruptions


@pytest.fixture
def hundred(tmp_path: Path) -> set[str]:
    """A list of a hundred readers, ``list.csv``."""
    readers = {f"reader{n}@example.org" for n in range(100)}
    (tmp_path / "list.csv").write_text("address,name\n" + "".join(f"{one},Reader\n" for one in sorted(readers)))
    return readers


OF_HUNDRED = ("--recipients", "list.csv", "--folder", "run")


def test_what_a_kill_leaves_behind_is_sent_by_the_next_run(tmp_path: Path, hundred: set[str]) -> None:
    folder = tmp_path / "run"
    # the letters of the killed worker are taken over after its lease, so it is a short one
    with running(tmp_path, *OF_HUNDRED, "--until-idle", "--latency", "0.5", lease=3) as process:
        wait_until(lambda: stored(folder) >= 25)
        process.send_signal(signal.SIGKILL)
        process.wait(240)
    assert stored(folder) < 100, "the kill came too late to show anything"

    run(tmp_path, *OF_HUNDRED, "--until-idle", "--latency", "0")

    got = messages(folder)
    counts = Counter(str(m["Delivered-To"]).lower() for m in got)
    assert set(counts) == hundred
    # Between a server's 250 and the settlement lies a moment: what was under way may have come twice, nothing else.
    assert len(got) - len(counts) <= CONCURRENCY
    assert max(counts.values()) <= 2
    ids: dict[str, set[str]] = {}
    for message in got:
        ids.setdefault(str(message["Delivered-To"]).lower(), set()).add(message["Message-ID"])
    assert all(len(of_one) == 1 for of_one in ids.values()), "a double is known by its Message-ID"
    assert len(set.union(*ids.values())) == len(counts)
    with database(sqlite(folder)) as app:
        assert actions(app) == {"EMAIL_SENT": len(counts)}
        assert app.jobs.count(status=(Status.QUEUED, Status.RUNNING)) == 0


@pytest.mark.parametrize(
    "end", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)], ids=["SIGINT", "SIGTERM"]
)
def test_a_stopped_run_ends_well_and_the_next_one_sends_the_rest_once(
    tmp_path: Path, hundred: set[str], end: signal.Signals
) -> None:
    folder = tmp_path / "run"
    with running(tmp_path, *OF_HUNDRED, "--latency", "0.5") as process:
        wait_until(lambda: stored(folder) >= 25)
        process.send_signal(end)
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "nothing is lost" in said
    assert stored(folder) < 100, "the signal came too late to show anything"
    assert max(mailboxes(folder).values()) == 1

    run(tmp_path, *OF_HUNDRED, "--until-idle", "--latency", "0")
    assert mailboxes(folder) == dict.fromkeys(hundred, 1)


def test_it_keeps_serving_what_another_terminal_enqueues(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("address,name\nann@example.org,Ann\n")
    list_ = ("--recipients", "list.csv", "--folder", "run")
    with running(tmp_path, *list_, "--latency", "0") as process:
        wait_until(lambda: stored(tmp_path / "run") == 1)
        run(tmp_path, *list_, "--enqueue-only", "--campaign", "winter")
        wait_until(lambda: stored(tmp_path / "run") == 2)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert mailboxes(tmp_path / "run") == {"ann@example.org": 2}


def test_on_a_terminal_it_draws_a_bar_and_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("address,name\nann@example.org,Ann\npauline.closed@example.com,Pauline\n")
    ours, theirs = pty.openpty()
    process = start(tmp_path, "--until-idle", "--latency", "0.3", "--recipients", "list.csv", terminal=theirs)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # what Linux answers when the other end is closed
        while part := os.read(ours, 65_536):
            said += part
    os.close(ours)
    assert process.wait(240) == 0, said.decode()
    assert "━" in said.decode()
    assert "of 2" in said.decode()
    assert "The newsletter is out." in said.decode()
    assert "550 5.2.1 Mailbox closed" in said.decode()


def test_a_fresh_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("address,name\nann@example.org,Ann\n")
    for folder in ("run", "run-2"):
        run(tmp_path, "--until-idle", "--latency", "0", "--recipients", "list.csv", "--folder", "run", "--fresh")
        assert mailboxes(tmp_path / folder) == {"ann@example.org": 1}


# ---------------------------------------------------------------------- wrong use

WRONG: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "cannot be read: No such file or directory"),
    "empty": (b"", "has no column address and no column name"),
    "other columns": (b"email;name\nann@example.org;Ann\n", "has no column address"),
    "no rows": (b"address,name\n", "names no recipients"),
    "latin-1": ("address,name\nzoe@example.org,Zoë\n".encode("latin-1"), "is not UTF-8"),
}


@pytest.mark.parametrize(("content", "problem"), WRONG.values(), ids=list(WRONG))
def test_a_file_that_is_no_list_of_recipients_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "list.csv").write_bytes(content)
    said = run(tmp_path, "--recipients", "list.csv", code=2)
    assert problem in " ".join(said.split())
    assert "Traceback" not in said
    assert not (tmp_path / "var").exists(), "nothing was begun"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--template", "nowhere"), "nowhere.txt.j2 cannot be read"),
        (("--database-url", "mysql://localhost/x"), "mysql is not supported"),
        (("--database-url", "nonsense"), "is not a URL"),
        (("--fresh", "--database-url", "postgresql://localhost/x"), "--campaign"),
        (("--folder", "a-file"), "cannot be the run folder"),
        (("--latency", "-1"), "--latency"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_wrong_option_is_named(tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    (tmp_path / "a-file").touch()
    said = run(tmp_path, *arguments, code=2)
    assert problem in " ".join(said.split())
    assert "Traceback" not in said
