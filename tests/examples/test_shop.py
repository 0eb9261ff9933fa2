"""The shop example does what it says, as programs of their own in an empty folder, whoever is killed meanwhile."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import hmac
import json
import os
import pty
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from examples import programs
from keeper import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "shop"
CREW = ("api", "relay", "worker", "billing")

#: What is wrong with lines of the example's file, by their numbers.
BAD = {
    32: "amount is '8,40'",
    59: "amount is empty",
    85: "has 3 columns of 5",
    107: "quantity is 'two'",
    141: "has 6 columns of 5",
    169: "has a quotation mark that is not closed",
    198: "number is 'x2007'",
    226: "amount is '-9.60'",
    253: "quantity is '0'",
    280: "amount is '22.199'",
    302: "item is empty",
}
#: Lines with the number of an earlier order and other contents, and that number.
CHANGED = {77: 1020, 132: 1044, 224: 1099, 257: 1140, 283: 1187}


def expected() -> dict[int, tuple[str, str, int, int]]:
    """Number → (customer, item, quantity, cents) of every order of the example's file, read in another way."""
    out: dict[int, tuple[str, str, int, int]] = {}
    for number, line in enumerate((EXAMPLE / "orders.csv").read_text(encoding="utf-8").splitlines(), start=1):
        if number > 1 and number not in BAD:
            order, customer, item, quantity, amount = next(csv.reader([line]))
            euros, _, cents = amount.strip().partition(".")
            told = (customer.strip(), item, int(quantity), int(euros) * 100 + int(cents.ljust(2, "0")))
            out.setdefault(int(order), told)
    return out


def small(folder: Path, orders: int, first: int = 1) -> Path:
    """A file of so many orders by five customers."""
    file = folder / "small.csv"
    lines = (f"{n},C{n % 5},Boskoop,1,{n}.50" for n in range(first, first + orders))
    file.write_text("number,customer,item,quantity,amount\n" + "\n".join(lines) + "\n")
    return file


class Run:
    """A run of the example in ``cwd``."""

    def __init__(self, cwd: Path, *arguments: str, terminal: int | None = None, python: str | None = None) -> None:
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("DULY_", "SHOP_", "BILLING_"))}
        self.said_in = cwd / f"said-{time.monotonic_ns()}.txt"
        with self.said_in.open("wb") as out:
            self.process = subprocess.Popen(
                [python or programs.PYTHON, "-u", EXAMPLE / "run.py", *arguments],
                cwd=cwd,
                env=kept | {"TERM": "xterm"},
                stdin=subprocess.DEVNULL,
                stdout=out if terminal is None else terminal,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self.said_in.read_text(encoding="utf-8")

    @property
    def pids(self) -> dict[str, int]:
        """The processes that it tells of."""
        return {name: int(pid) for name, pid in re.findall(r"^  (\w+) +process (\d+)", self.said, re.MULTILINE)}

    @property
    def alive(self) -> dict[str, str]:
        """Those of them that have not ended, and what they wrote last."""
        logs = self.said_in.parent / "run" / "log"
        return {n: (logs / f"{n}.log").read_text()[-500:] for n, pid in self.pids.items() if is_alive(pid)}

    def end(self, code: int) -> str:
        """Wait for its end. Returns what it said."""
        try:
            self.process.wait(400)
        finally:
            self.process.kill()
        assert self.process.returncode == code, self.said
        return self.said

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait while it runs."""

        def holds() -> bool:
            assert self.process.poll() is None, self.said
            return condition()

        wait_until(holds)

    def kill_all(self) -> None:
        """A power cut: nobody has a say in it."""
        for pid in (self.process.pid, *self.pids.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(240)


def run(cwd: Path, *arguments: str, code: int = 0, python: str | None = None) -> str:
    return Run(cwd, *arguments, python=python).end(code)


@contextmanager
def running(cwd: Path, *arguments: str, python: str | None = None) -> Iterator[Run]:
    started = Run(cwd, *arguments, python=python)
    try:
        yield started
    finally:
        started.kill_all()


def wait_until(condition: Callable[[], bool], why_not: Callable[[], object] = str) -> None:
    assert until(condition, 240), f"waited for four minutes: {why_not()}"


def receipts(folder: Path) -> list[Path]:
    return sorted((folder / "receipts").glob("*"))


def invoices(folder: Path) -> list[tuple[int, str, int, int]]:
    """(number, customer, cents, deliveries) of every invoice."""
    with closing(sqlite3.connect(folder / "billing.db")) as books:
        return books.execute("SELECT number, customer, cents, deliveries FROM invoices ORDER BY place").fetchall()


def rows(url: str, query: str) -> list[Any]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return list(connection.execute(text(query)))
    finally:
        engine.dispose()


def sqlite(file: Path) -> str:
    return f"sqlite:///{file}"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")


@pytest.fixture(scope="module")
def day_of_six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a day with six orders, to be copied."""
    folder = tmp_path_factory.mktemp("six")
    run(folder, "--orders", str(small(folder, 6)), "--folder", "run", "--calm", "--latency", "0")
    return folder / "run"


@pytest.fixture
def six_orders(tmp_path: Path, day_of_six: Path) -> None:
    """A run folder ``run`` in which six orders were taken, billed and receipted."""
    shutil.copytree(day_of_six, tmp_path / "run")


def check_once_each(folder: Path, numbers: Iterator[int] | range) -> None:
    wanted = dict.fromkeys(numbers, 1)
    assert Counter(number for number, *_ in invoices(folder)) == wanted
    assert Counter(int(file.name.partition("-")[0]) for file in receipts(folder)) == wanted


# ---------------------------------------------------------------------- the day


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.soak])])
def test_every_order_is_billed_and_receipted_once_though_the_relay_is_killed(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    folder, elsewhere = tmp_path / "var" / "shop", ()
    shop = sqlite(folder / "shop.db")
    if kind == "postgres":
        shop, jobs = request.getfixturevalue("empty_pg_url"), request.getfixturevalue("pg_url")
        elsewhere = ("--database-url", shop, "--jobs-database-url", jobs)
    said = run(tmp_path, *elsewhere, python=programs.REAL)
    wanted = expected()

    for line, problem in BAD.items():
        assert re.search(rf"line {line} +{re.escape(problem)}", said), said
    for line, number in CHANGED.items():
        assert re.search(rf"line {line} +order {number} was sent before with other contents \(422\)", said), said
    dead = re.search(r"kill -9 \d+: the relay is dead, with (\d+) messages in its hands", said)
    assert dead, said
    for event in ("another relay has begun", "billing is down", "billing is back"):
        assert event in said
    # it may have let go of the last one in the moment before it died
    assert ("receipts are asked for again" in said) == (int(dead[1]) > 0), said
    # 302 lines that are orders, of which 5 are changed ones; of each tenth number every request is made twice
    assert re.search(r"orders +282 taken +46 repeated +7 refused +0 unanswered +11 unreadable", said), said
    assert re.search(r"messages +564 published +564 sent +\d+ attempts +0 parked", said), said
    assert said.count(" yes\n") == 3
    assert "\x1b" not in said, "a pipe gets plain text"
    assert "Traceback" not in "".join(file.read_text() for file in (folder / "log").iterdir())

    check_the_books(folder, shop, wanted)

    before, files = invoices(folder), receipts(folder)
    said = run(tmp_path, *elsewhere)
    assert re.search(r"orders +0 taken +328 repeated +7 refused", said), said
    assert (invoices(folder), receipts(folder)) == (before, files), "not even a delivery more"


def check_the_books(folder: Path, shop: str, wanted: dict[int, tuple[str, str, int, int]]) -> None:
    """The shop, the billing service and the receipts against the file."""
    orders = rows(shop, "SELECT number, customer, item, quantity, cents FROM orders")
    assert {number: tuple(rest) for number, *rest in orders} == wanted
    billed = invoices(folder)
    assert sorted((n, customer, cents) for n, customer, cents, _ in billed) == [
        (number, customer, cents) for number, (customer, _, _, cents) in sorted(wanted.items())
    ]
    # a customer's invoices are in the order in which the orders were committed
    by_customer: dict[str, list[int]] = {}
    for number, customer, *_ in billed:
        by_customer.setdefault(customer, []).append(number)
    sent: dict[str, list[int]] = {}
    published = rows(shop, "SELECT ordering_key, key FROM outbox WHERE destination = 'webhook:billing' ORDER BY id")
    for customer, key in published:
        sent.setdefault(customer, []).append(int(key.removeprefix("invoice-")))
    assert by_customer == sent

    texts = {int(file.name.partition("-")[0]): file.read_text(encoding="utf-8") for file in receipts(folder)}
    assert len(texts) == len(receipts(folder)) == len(wanted)
    for number, (customer, item, quantity, cents) in wanted.items():
        assert texts[number] == (
            f"Receipt for order {number} of {customer}\n\n{quantity} x {item}\n{cents // 100}.{cents % 100:02} EUR\n"
        )
    # what may be lost: here it is not, for nobody killed the API; the pages were written at some time after the commit
    pages = {file.stem: json.loads(file.read_text()) for file in (folder / "pages").iterdir()}
    assert set(pages) == set(by_customer)


def test_a_file_of_ones_own_is_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "my orders.csv").write_bytes(
        b"\xef\xbb\xbfamount, number,customer,item,quantity,remark\r\n"
        b'12.5,1,C1,"Boskoop, 5 kg",1,\r\n'
        b"\r\n"
        b'12.50,1,C1,"Boskoop, 5 kg",1,the same again\r\n'
        b"1.00,2,C2,Gr\xfcn,1,\r\n"  # Latin-1 in a file of UTF-8
        b'1.00,3,C3,"never closed,1,\r\n'
        b"1.00,4,C/4,Boskoop,1,\r\n"
        b"1.00,5,C5,Bos\x00koop,1,\r\n"
        b"1.00,6,C6,Boskoop,1,no\x00thing\r\n"
        b"2.00,7,C7,\xc3\x84pfel,2,"
    )
    said = run(tmp_path, "--orders", "my orders.csv", "--folder", "a folder/run #1", "--latency", "0")
    for line, problem in {5: "is not UTF-8", 6: "has a quotation mark", 7: "customer is 'C/4'", 8: "item is"}.items():
        assert re.search(rf"line {line} +{problem}", said), said
    assert re.search(r"orders +3 taken +1 repeated", said), said
    assert "kill -9 " not in said.partition("logs in")[2].partition("\n")[2].partition("Look around")[0]
    check_once_each(tmp_path / "a folder/run #1", iter((1, 6, 7)))
    assert [cents for _, _, cents, _ in sorted(invoices(tmp_path / "a folder/run #1"))] == [1250, 100, 200]


@pytest.mark.usefixtures("six_orders")
def test_what_the_middleware_has_forgotten_the_number_of_an_order_remembers(tmp_path: Path) -> None:
    file = small(tmp_path, 6)
    with closing(sqlite3.connect(tmp_path / "run" / "jobs.db")) as jobs:
        assert jobs.execute("DELETE FROM idempotency WHERE task = 'http'").rowcount == 6  # as after a day
        jobs.commit()
    file.write_text(file.read_text().replace("Boskoop,1,3.50", "Boskoop,2,7.00"))
    said = run(tmp_path, "--orders", str(file), "--folder", "run", "--calm", "--latency", "0")
    assert re.search(r"orders +0 taken +5 repeated +1 refused", said), said
    assert re.search(r"line 4 +order 3 was refused \(409\): Order 3 is another one", said), said
    check_once_each(tmp_path / "run", range(1, 7))


@pytest.mark.usefixtures("six_orders")
def test_what_does_not_balance_is_named_and_ends_with_1(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "run" / "billing.db")) as books:
        books.execute("INSERT INTO invoices VALUES ('again', 2, 'C2', 250, 6, 1), ('odd', 77, 'C2', 100, 7, 1)")
        books.execute("UPDATE invoices SET cents = 1 WHERE number = 3")
        books.commit()
    (tmp_path / "run" / "receipts" / "4-99.txt").touch()
    receipts(tmp_path / "run")[0].unlink()
    arguments = ("--orders", str(small(tmp_path, 6)), "--folder", "run", "--calm", "--latency", "0")
    said = run(tmp_path, *arguments, code=1)
    assert "order 2 has 2 invoices" in said
    assert "invoice for order 77, which the shop does not have" in said
    assert "the invoice for order 3 says something else than the order" in said
    assert "the invoices of C2" in said
    assert "order 4 has 2 receipts" in said
    assert "order 1 has 0 receipts" in said


def test_on_a_terminal_it_draws_bars_and_says_the_same(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    started = Run(tmp_path, "--orders", str(small(tmp_path, 5)), "--calm", terminal=theirs)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # what Linux answers when the other end is closed
        while part := os.read(ours, 65_536):
            said += part
    os.close(ours)
    assert started.process.wait(240) == 0, said.decode()
    assert "━" in said.decode()
    assert "of 5" in said.decode()
    assert "every order billed exactly once" in said.decode()


@pytest.mark.usefixtures("six_orders")
def test_a_fresh_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    run(tmp_path, "--orders", str(small(tmp_path, 2)), "--folder", "run", "--calm", "--latency", "0", "--fresh")
    check_once_each(tmp_path / "run", range(1, 7))
    check_once_each(tmp_path / "run-2", range(1, 3))


# ---------------------------------------------------------------------- interruptions


@pytest.mark.slow
def test_whoever_is_killed_is_started_again_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    file = small(tmp_path, 100)
    with running(tmp_path, "--orders", str(file), "--folder", "run", "--calm", "--latency", "0.02") as started:
        for n, name in enumerate(CREW, start=1):
            started.wait_until(lambda n=n: len(receipts(folder)) >= 10 * n)  # type: ignore[misc]
            os.kill(started.pids[name], signal.SIGKILL)
        said = started.end(0)
        for name in CREW:
            assert f"the {name} was gone; it is back" in said
    check_once_each(folder, range(1, 101))


@pytest.mark.slow
@pytest.mark.soak  # `make test` ends one with a signal, and kills each of its processes and its leader
def test_after_a_power_cut_the_next_run_goes_on(tmp_path: Path) -> None:
    folder, file = tmp_path / "run", small(tmp_path, 120)
    arguments = ("--orders", str(file), "--folder", "run", "--calm")
    with running(tmp_path, *arguments) as started:
        started.wait_until(lambda: len(receipts(folder)) >= 30)
        started.kill_all()
    assert 0 < len(invoices(folder)) < 120, "the cut came too late to show anything"
    said = run(tmp_path, *arguments, "--latency", "0")
    assert re.search(r"[1-9]\d* repeated", said)
    check_once_each(folder, range(1, 121))


@pytest.mark.slow
def test_a_stopped_run_ends_well_and_the_next_one_does_the_rest(tmp_path: Path) -> None:
    folder, file = tmp_path / "run", small(tmp_path, 60)
    arguments = ("--orders", str(file), "--folder", "run", "--calm")
    with running(tmp_path, *arguments, "--latency", "0.5") as started:
        started.wait_until(lambda: len(receipts(folder)) >= 15)
        started.process.send_signal(signal.SIGINT)
        assert "Nothing is lost: run it again." in started.end(1)
        assert started.alive == {}
    assert len(invoices(folder)) < 60, "the signal came too late to show anything"
    run(tmp_path, *arguments, "--latency", "0")
    check_once_each(folder, range(1, 61))


@pytest.mark.parametrize(
    "end", [pytest.param(signal.SIGTERM, marks=pytest.mark.soak), signal.SIGKILL], ids=["SIGTERM", "SIGKILL"]
)
def test_no_process_outlives_a_run_that_is_ended_or_killed(tmp_path: Path, end: signal.Signals) -> None:
    with running(
        tmp_path, "--orders", str(small(tmp_path, 120)), "--folder", "run", "--calm", python=programs.REAL
    ) as started:
        started.wait_until(lambda: len(receipts(tmp_path / "run")) >= 10)
        assert len(started.pids) == len(CREW)
        started.process.send_signal(end)
        wait_until(lambda: not started.alive, lambda: started.alive)


# ---------------------------------------------------------------------- the billing service

SECRET = base64.b64encode(b"a secret of thirty-two bytes .. ").decode()


@pytest.fixture
def billing(tmp_path: Path) -> Iterator[str]:
    """The URL of a billing service."""
    arguments = [programs.PYTHON, EXAMPLE / "billing.py", tmp_path / "billing.db", "--port", "0", "--latency", "0"]
    environment = {**os.environ, "BILLING_SECRET": f"whsec_{SECRET}"}
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def deliver(url: str, ident: str, number: int, *, signed_with: str = SECRET, age: float = 0) -> int:
    """POST a message as the webhook transport does. Returns the status."""
    body = json.dumps({"id": ident, "data": {"number": number, "customer": "C1", "cents": 100}}).encode()
    stamp = str(int(time.time() - age))
    digest = hmac.new(base64.b64decode(signed_with), f"{ident}.{stamp}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(bytes(32)).decode()} v1,{base64.b64encode(digest).decode()}"
    headers = {"webhook-id": ident, "webhook-timestamp": stamp, "webhook-signature": signature}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


def test_a_message_that_comes_again_is_billed_once(tmp_path: Path, billing: str) -> None:
    assert [deliver(billing, "m1", 1) for _ in range(3)] == [201, 200, 200]
    assert [deliver(billing, "m2", 14) for _ in range(3)] == [503, 201, 200], "moods"
    assert invoices(tmp_path) == [(1, "C1", 100, 3), (14, "C1", 100, 2)]


def test_what_is_not_signed_by_the_shop_is_not_billed(tmp_path: Path, billing: str) -> None:
    other = base64.b64encode(b"a secret of somebody else, 32 b.").decode()
    assert deliver(billing, "m1", 1, signed_with=other) == 401
    assert deliver(billing, "m1", 1, age=3600) == 401
    assert deliver(billing, "m1", 1, age=-3600) == 401
    assert invoices(tmp_path) == []


# ---------------------------------------------------------------------- wrong use

HEADER = b"number,customer,item,quantity,amount\n"
WRONG: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "cannot be read: No such file or directory"),
    "empty": (b"", "has no column number and no column customer"),
    "other columns": (b"number;customer;item;quantity;amount\n1;C1;x;1;1.00\n", "has no column number"),
    "a column short": (b"number,customer,item,quantity\n1,C1,x,1\n", "has no column amount:"),
    "no rows": (HEADER + b"\n\n", "holds no orders"),
    "utf-16": ("number,customer,item,quantity,amount\n".encode("utf-16"), "is not CSV in UTF-8"),
}


@pytest.mark.parametrize(("content", "problem"), WRONG.values(), ids=list(WRONG))
def test_a_file_that_holds_no_orders_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "orders.csv").write_bytes(content)
    said = run(tmp_path, "--orders", "orders.csv", code=2)
    assert problem in " ".join(said.split())
    assert "Traceback" not in said
    assert not (tmp_path / "var").exists(), "nothing was begun"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--database-url", "mysql://localhost/x"), "mysql is not supported"),
        (("--jobs-database-url", "nonsense"), "is not a URL"),
        (("--jobs-database-url", "sqlite://"), "in memory"),
        (("--fresh", "--database-url", "postgresql://localhost/x"), "Name another there"),
        (("--folder", "a-file"), "cannot be the run folder"),
        (("--latency", "-1"), "--latency"),
        (("--nonsense",), "No such option"),
        (("orders.csv",), "unexpected extra argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_option_is_named(tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    (tmp_path / "a-file").touch()
    said = run(tmp_path, *arguments, code=2)
    assert problem in " ".join(said.split())
    assert "Traceback" not in said


@pytest.mark.postgres
def test_a_postgresql_without_dulys_tables_is_told_what_to_do(tmp_path: Path, empty_pg_url: str) -> None:
    said = run(tmp_path, "--jobs-database-url", empty_pg_url, code=1)
    assert "duly migrate" in said
    assert "Traceback" not in said


def test_a_database_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"postgresql://shop:geheim@127.0.0.1:{taken.getsockname()[1]}/shop"
        said = run(tmp_path, "--database-url", url, code=1)
    assert "the shop's database" in said
    assert "Traceback" not in said
    assert "geheim" not in said
