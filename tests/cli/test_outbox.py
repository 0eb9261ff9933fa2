"""``duly outbox``: the runbook at the command line, with and without an outbox."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from cli.hands import Run
from contract.hands import wait_until
from duly import Duly
from duly.outbox import Outbox
from duly.storage import sqlite
from fronts import on_both

#: An application with an outbox whose transport appends to a file, and refuses what is "bad".
SHOP = """
import json
from duly import Duly, PermanentError
from duly.outbox import Outbox
app = Duly()

class Paper:
    def send(self, message):
        if message.payload == "bad":
            raise PermanentError("no such endpoint")
        with open("paper", "a") as file:
            file.write(json.dumps([message.destination, message.payload]) + "\\n")

outbox = Outbox(app, transports={"paper": Paper()})

@app.task("CHARGE", queue="billing")
def charge(order: int, cents: int = 0) -> None: ...
"""


@pytest.fixture
def box(app: Duly) -> Outbox:
    """The outbox in the database that the command line is on, from the inside."""
    box = Outbox(app)
    box.open()
    return box


@pytest.fixture
def module(write: Callable[[str], str]) -> str:
    return write(SHOP)


def put(box: Outbox, *payloads: Any, destination: str = "paper:x", **options: Any) -> list[str]:
    with Session(box.db.session_engine) as session, session.begin():
        return [box.publish(session, destination, payload, **options).message_id for payload in payloads]


def on_paper(folder: Path) -> list[Any]:
    file = folder / "paper"
    return [json.loads(line)[1] for line in file.read_text().splitlines()] if file.exists() else []


# --- The runbook with an outbox ----------------------------------------------------------------------------------------------


def test_the_runbook_with_an_outbox(on: Run, box: Outbox, module: str, folder: Path) -> None:
    """Look at what is not delivered, set the relay going, see that nothing is left; have what was parked sent again."""
    put(box, 1, "bad", 2)
    before = on("outbox", "status", "--json").json
    assert (before["pending"], before["drained"]) == (3, False)
    relayed = on("outbox", "relay", module, "--until-idle", "--json")
    assert (relayed.json["sent"], relayed.json["parked"]) == (2, 1)
    assert "outbox_parked" in relayed.err
    after = on("outbox", "status", "--json").json
    assert (after["pending"], after["parked"], after["sent"], after["drained"]) == (0, 1, 2, True)
    [parked] = on("outbox", "list", "--status", "parked", "--json").json
    assert (parked["payload"], parked["error"]["message"]) == ("bad", "no such endpoint")
    again = on("outbox", "redrive", "--parked", "--reason", "mended")
    assert (again.code, again.out) == (0, "Redrove 1 message.\n")
    assert on("outbox", "relay", module, "--once").out.startswith("1 parked in")
    assert sorted(on_paper(folder)) == [1, 2]


def test_status_says_how_it_stands(on: Run, box: Outbox) -> None:
    assert on("outbox", "status").out == "Drained: nothing is pending.\n"
    put(box, 1, 2)
    put(box, 3, destination="webhook:billing", ordering_key="o")
    box.park(put(box, 4)[0], reason="x")
    said = on("outbox", "status").out
    assert "paper:x" in said
    assert "webhook:billing" in said
    assert said.splitlines()[-1].startswith("3 pending, the oldest for")
    assert said.splitlines()[-1].endswith(", 1 parked.")


def test_messages_are_listed_and_shown(on: Run, box: Outbox) -> None:
    [first] = put(box, {"order": 17}, key="k", headers={"a": "b"})
    put(box, 2, destination="paper:y", ordering_key="o", run_in=3600)
    said = on("outbox", "list").out.splitlines()
    assert [line.split()[1:3] for line in said[1:]] == [["paper:y", "planned"], ["paper:x", "pending"]]
    assert [m["payload"] for m in on("outbox", "list", "--destination", "paper:y", "--json").json] == [2]
    assert [m["payload"] for m in on("outbox", "list", "--key", "k", "--json").json] == [{"order": 17}]
    assert on("outbox", "list", "--status", "sent").out == "No such messages.\n"
    assert "--below" in on("outbox", "list", "--limit", "1").err
    by_id = on("outbox", "show", first)
    assert by_id.code == 0
    assert '{"order": 17}' in by_id.out
    number = box.get(first).id
    shown = on("outbox", "show", str(number), "--json").json
    assert (shown["message_id"], shown["headers"], shown["label"]) == (first, {"a": "b"}, "pending")
    assert "token" not in shown
    missing = on("outbox", "show", "nothing")
    assert (missing.code, missing.err) == (1, "duly: there is no message nothing.\n")


def test_messages_are_put_aside_and_sent_again_by_id(
    on: Run, app: Duly, box: Outbox, module: str, folder: Path
) -> None:
    idents = put(box, 1, 2)
    numbers = [str(box.get(ident).id) for ident in idents]
    assert on("outbox", "park", numbers[0]).code == 2  # a reason is wanted
    parked = on("outbox", "park", numbers[0], idents[1], "--reason", "wrong", "--json")
    assert parked.json == {"parked": [int(n) for n in numbers], "refused": {}}
    again = on("outbox", "redrive", idents[0], "12345", "--reason", "right after all")
    assert (again.code, again.out) == (1, f"Redriven: message {numbers[0]}.\n")
    assert "there is no message 12345" in again.err
    on("outbox", "relay", module, "--until-idle")
    assert on_paper(folder) == [1]
    sent = on("outbox", "redrive", idents[0])
    assert sent.code == 1
    assert "is sent, so it cannot redrive" in sent.err
    assert on("outbox", "redrive", idents[0], "--force").code == 0
    entries = on("audit", "list", "--entity", "message", "--json").json
    assert [e["action"] for e in entries] == ["OUTBOX_REDRIVEN", "OUTBOX_REDRIVEN", "OUTBOX_PARKED", "OUTBOX_PARKED"]
    assert entries[0]["actor"].startswith("cli:")


def test_many_are_sent_again_only_with_a_yes(on: Run, box: Outbox) -> None:
    with Session(box.db.session_engine) as session, session.begin():
        box.publish_many(session, "paper:x", range(30))
        box.publish_many(session, "paper:y", range(3))
    box.db.write(lambda c: c.execute(text("UPDATE outbox SET status = 'parked'")))
    dry = on("outbox", "redrive", "--parked", "--dry-run", "--json").json
    assert dry["would_redrive"] == 33
    assert {row["destination"]: row["count"] for row in dry["of"]} == {"paper:x": 30, "paper:y": 3}
    refused = on("outbox", "redrive", "--parked")
    assert (refused.code, box.status().parked) == (2, 33)
    assert "--yes" in refused.err
    assert on("outbox", "redrive", "--destination", "paper:y").out == "Redrove 3 messages.\n"
    assert on("outbox", "redrive", "--parked", "--limit", "5", "--json").json == {"redriven": 5}
    assert on("outbox", "redrive", "--parked", "--yes").out == "Redrove 25 messages.\n"
    assert on("outbox", "redrive", "--parked").out == "No message fits.\n"


@pytest.mark.parametrize(
    "wrong",
    [
        ["redrive"], ["redrive", "1", "--parked"], ["redrive", "--parked", "--force"], ["redrive", "1", "--dry-run"], ["park"], ["show"],
        ["relay", "--once", "--until-idle"], ["list", "--status", "lost"], ["status", "--table", "x", "--app", "shop.py"], ["sql", "--dialect", "oracle"],
        ["reconcile", "--task", "T"], ["reconcile", "--file", "x.csv"], ["reconcile", "--task", "T", "--file", "x", "--query", "y"],
        ["reconcile", "--task", "T", "--file", "x", "--on", "y"], ["reconcile", "--task", "T", "--file", "missing.csv"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_ends_with_2_and_says_why(run: Run, wrong: list[str]) -> None:
    said = run("outbox", *wrong)
    assert said.code == 2, said
    assert said.err


def test_sent_messages_are_removed_when_that_is_wanted(on: Run, box: Outbox, module: str) -> None:
    put(box, *range(25))
    on("outbox", "relay", module, "--until-idle")
    assert on("outbox", "prune").out == "Removed 0 sent messages.\n"  # they are kept for a week
    assert on("outbox", "prune", "--older-than", "0", "--dry-run", "--json").json == {"would_remove": 25}
    assert on("outbox", "prune", "--older-than", "0").code == 2
    assert on("outbox", "prune", "--older-than", "0", "--yes").out == "Removed 25 sent messages.\n"


# --- Which outbox --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "defines no Outbox object"),
        ("from duly import Duly\napp = Duly()", "defines no Outbox object"),
        ("from duly import Duly\nfrom duly.outbox import Outbox\nbox = Outbox(Duly())", "has no transports"),
        (SHOP + "\nother = Outbox(app, transports={'p': Paper()})", "several Outbox objects"),
        ("raise RuntimeError('broken')", "broken"),
    ],
    ids=["empty", "no outbox", "no transports", "several", "broken"],
)
def test_a_relay_without_an_outbox_says_what_is_missing(
    run: Run, write: Callable[[str], str], source: str, said: str
) -> None:
    answer = run("outbox", "relay", write(source))
    assert answer.code in (1, 2)
    assert said in answer.err


def test_a_relay_without_an_application_says_so(run: Run) -> None:
    answer = run("outbox", "relay")
    assert (answer.code, "app: is not named" in answer.err) == (2, True)


def test_one_of_several_is_named(on: Run, box: Outbox, write: Callable[[str], str], folder: Path) -> None:
    name = write(
        SHOP
        + "\nclass Other:\n    def send(self, m): raise PermanentError('other')\nother = Outbox(app, transports={'paper': Other()})"
    )
    put(box, 1)
    assert on("outbox", "relay", f"{name}:other", "--once", "--json").json["parked"] == 1
    put(box, 2)
    assert on("outbox", "relay", f"{name}:outbox", "--once", "--json").json["sent"] == 1
    assert on("outbox", "relay", f"{name}:nothing").code == 2
    assert on("outbox", "relay", f"{name}:Paper").code == 2
    assert on_paper(folder) == [2]


def test_the_application_may_stand_for_its_only_outbox(on: Run, box: Outbox, module: str, folder: Path) -> None:
    put(box, 1)
    assert on("outbox", "relay", f"{module}:app", "--once", "--json").json["sent"] == 1
    assert on("--app", module, "outbox", "status", "--json").json["sent"] == 1


def test_a_table_in_a_foreign_database_is_looked_at_and_nothing_of_duly_is_made_there(run: Run, folder: Path) -> None:
    url = f"sqlite:///{folder / 'foreign.db'}"
    missing = run("outbox", "status", "--database-url", url, "--table", "duly_outbox")
    assert (missing.code, "duly outbox sql" in missing.err) == (1, True)
    statements = run("outbox", "sql", "--database-url", url, "--table", "duly_outbox").out
    engine = sqlite.make_engine(url)
    with engine.begin() as connection:
        for statement in statements.split(";\n"):
            if statement.strip():
                connection.execute(text(statement))
    foreign = Outbox(engine, table="duly_outbox")
    with Session(engine) as session, session.begin():
        foreign.publish(session, "paper:x", 1)
    assert run("outbox", "status", "--database-url", url, "--table", "duly_outbox", "--json").json["pending"] == 1
    # no alert looks at it: cron asks (A4)
    check = ("outbox", "status", "--check", "--database-url", url, "--table", "duly_outbox")
    assert run(*check).code == 0
    for change in ("created_at = created_at - 901000000", "created_at = created_at + 901000000, status = 'parked'"):
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE duly_outbox SET {change}"))
        assert (run(*check).code, run(*check, "--json").code, run(*check[:2], *check[3:]).code) == (1, 1, 0)
    with engine.connect() as connection:
        tables = set(connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars())
    assert tables == {"duly_outbox", "sqlite_sequence"}
    foreign.close()
    engine.dispose()


def test_the_statements_are_those_of_the_dialect(run: Run) -> None:
    assert "AUTOINCREMENT" in run("outbox", "sql").out
    assert "GENERATED" in run("outbox", "sql", "--dialect", "postgresql", "--json").json["sql"]


# --- A relay as a process -------------------------------------------------------------------------------------------------------


def test_a_relay_works_until_it_is_told_to_stop(
    on: Run, box: Outbox, module: str, folder: Path, db_url: str, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    relay = spawn("outbox", "relay", module, "--name", "night", DULY_DATABASE_URL=db_url)
    put(box, 1)
    wait_until(lambda: on_paper(folder) == [1])
    put(box, 2)
    wait_until(lambda: on_paper(folder) == [1, 2])
    wait_until(lambda: box.status().drained)
    relay.send_signal(signal.SIGTERM)
    out, err = relay.communicate(timeout=30)
    assert relay.returncode == 0, err
    assert out.splitlines()[0] == "Relay night: paper"
    assert out.splitlines()[-1].startswith("2 sent in")


# --- The runbook without an outbox -----------------------------------------------------------------------------------------------


def write_csv(folder: Path, rows: list[str]) -> str:
    (folder / "expected.csv").write_text("\n".join(rows) + "\n", encoding="utf-8-sig")
    return "expected.csv"


def charged(app: Duly) -> dict[str | None, Any]:
    return {job.key: job.input for job in app.jobs.find(task="CHARGE", limit=1000)}


def test_the_runbook_without_an_outbox(on: Run, app: Duly, module: str, folder: Path) -> None:
    """What should be there, what was enqueued, the rest enqueued; and that a second run finds nothing to do."""
    for order in (1, 3):
        app.enqueue("CHARGE", {"order": order, "cents": 5}, key=f"charge-{order}", queue="billing")
    file = write_csv(folder, ["order,cents", "1,5", "2,7", "3,5", "4,9"])
    args = ["--app", module, "outbox", "reconcile", "--task", "CHARGE", "--file", file, "--key", "charge-{order}"]
    dry = on(*args, "--dry-run", "--json").json
    assert (dry["expected"], dry["present"], dry["missing"], dry["would_enqueue"]) == (4, 2, 2, 2)
    assert dry["keys"] == ["charge-2", "charge-4"]
    assert len(charged(app)) == 2
    done = on(*args)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "2 jobs enqueued."
    # the texts of the file became what the task's annotations say
    assert charged(app)["charge-4"] == {"order": 4, "cents": 9}
    again = on(*args, "--json").json
    assert (again["present"], again["missing"], again["enqueued"]) == (4, 0, 0)
    assert on(*args).out.splitlines()[-1] == "Nothing is missing."
    assert len(charged(app)) == 4
    assert {job.queue for job in app.jobs.find()} == {"billing"}


def test_lines_of_json_say_the_input_as_it_is(on: Run, app: Duly, folder: Path) -> None:
    lines = [{"key": "a", "input": {"order": 1}}, {"key": "b", "order": 2, "cents": 3}]
    (folder / "expected.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert on("outbox", "reconcile", "-t", "CHARGE", "-f", "expected.jsonl", "-q", "late").code == 0
    assert charged(app) == {"a": {"order": 1}, "b": {"order": 2, "cents": 3}}
    assert {job.queue for job in app.jobs.find()} == {"late"}


def test_bad_rows_are_told_and_do_not_harm_the_others(on: Run, app: Duly, folder: Path) -> None:
    lines = ['{"key": "a"}', "{no", "[1]", '{"order": 1}', '{"key": ""}', '{"key": "b", "input": 3}', '{"key": "a"}']
    (folder / "expected.jsonl").write_text("\n".join(lines))
    said = on("outbox", "reconcile", "-t", "CHARGE", "-f", "expected.jsonl", "--json")
    assert said.code == 1
    assert (said.json["expected"], said.json["repeated"], said.json["enqueued"], said.json["bad"]) == (1, 1, 1, 5)
    assert [x["line"] for x in said.json["lines"]] == [2, 3, 4, 5, 6]
    assert "row 4: key: is not a column of this row. It has: order." in said.err
    csv = write_csv(folder, ["key,order", "c,1,surplus", "d"])
    told = on("outbox", "reconcile", "-t", "CHARGE", "-f", csv, "--json").json
    assert [x["reason"] for x in told["lines"]] == ["it does not have 2 columns."] * 2


def test_a_key_counts_while_it_is_remembered_and_its_job_is_told_as_it_ended(on: Run, app: Duly, folder: Path) -> None:
    for key, until in (("failed", "forever"), ("free again", "done"), ("forgotten", "forever"), ("waits", "forever")):
        app.enqueue("CHARGE", {"order": 1}, key=key, unique_until=until)
    app.enqueue("OTHER", {}, key="taken")
    for key, status in (("failed", "failed"), ("free again", "succeeded"), ("forgotten", "succeeded")):
        _end(app, key, status)
    app.db.write(lambda c: c.execute(text("DELETE FROM job_keys WHERE key = 'free again'")))
    app.db.write(lambda c: c.execute(text("DELETE FROM jobs_done WHERE key = 'forgotten'")))
    app.db.write(lambda c: c.execute(text("UPDATE job_keys SET ended = 'succeeded' WHERE key = 'forgotten'")))
    keys = ["failed", "free again", "forgotten", "waits", "taken", "new"]
    (folder / "x.jsonl").write_text("\n".join(json.dumps({"key": key}) for key in keys))
    said = on("outbox", "reconcile", "-t", "CHARGE", "-f", "x.jsonl", "--dry-run", "--json")
    assert said.code == 1  # a key that another task has is to be looked at
    assert said.json["by_status"] == {"failed": 1, "succeeded": 2, "queued": 1}
    assert (said.json["taken"], said.json["keys"]) == (["taken"], ["new"])


def _end(app: Duly, key: str, status: str) -> None:
    columns = "id, tenant, queue, task, priority, run_at, input, attempts, max_attempts, key, key_scope, created_at"
    sql = f"INSERT INTO jobs_done ({columns}, status, finished_at) SELECT {columns}, '{status}', created_at FROM jobs WHERE key = :key"
    app.db.write(
        lambda c: (
            c.execute(text(sql), {"key": key}),
            c.execute(text("DELETE FROM jobs WHERE key = :key"), {"key": key}),
        )
    )


def test_tenants_and_queues_are_kept_apart(on: Run, app: Duly, folder: Path) -> None:  # B053
    app.enqueue("CHARGE", {}, key="a", tenant="acme", queue="billing")
    (folder / "x.jsonl").write_text('{"key": "a"}')
    ask = ["outbox", "reconcile", "-t", "CHARGE", "-f", "x.jsonl", "--dry-run", "--json"]
    assert on(*ask).json["missing"] == 1
    assert on(*ask, "--tenant", "acme").json["present"] == 1  # wherever it is
    assert on(*ask, "--tenant", "acme", "-q", "other").json["missing"] == 1


def test_expected_artefacts_may_come_from_a_query(on: Run, app: Duly, folder: Path) -> None:
    engine = create_engine(f"sqlite:///{folder / 'shop.db'}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer, total real, paid boolean)"))
        connection.execute(text("INSERT INTO orders VALUES (1, 2.5, 1), (2, 3.5, 0), (3, 4.5, 1)"))
    engine.dispose()
    url = f"sqlite:///{folder / 'shop.db'}"
    ask = [
        "outbox",
        "reconcile",
        "-t",
        "CHARGE",
        "--on",
        url,
        "--key",
        "charge-{id}",
        "--input",
        "order=id",
        "--input",
        "total",
    ]
    assert on(*ask, "--query", "SELECT id, total FROM orders WHERE paid", "--json").json["enqueued"] == 2
    assert charged(app) == {"charge-1": {"order": 1, "total": 2.5}, "charge-3": {"order": 3, "total": 4.5}}
    assert on(*ask, "--query", "DELETE FROM orders RETURNING id, total").code == 1  # a query that writes is refused
    own = on("outbox", "reconcile", "-t", "CHARGE", "--query", "SELECT key FROM job_keys", "--json").json
    assert (own["expected"], own["present"]) == (2, 2)


def test_looking_in_a_file_that_is_not_there_makes_none(on: Run, app: Duly, folder: Path) -> None:
    ask = [
        "outbox",
        "reconcile",
        "-t",
        "CHARGE",
        "--on",
        f"sqlite:///{folder / 'typo.db'}",
        "--query",
        "SELECT 1 AS key",
    ]
    said = on(*ask, "--dry-run")
    assert said.code == 2
    assert "typo.db, which is not there" in said.err
    assert not (folder / "typo.db").exists()


@on_both("drivers give bytes in different ways")
def test_bytes_of_a_query_are_refused_and_never_made_a_text(on: Run, app: Duly) -> None:
    data = "x'616263'" if app.db.is_sqlite else "decode('616263', 'hex')"
    query = f"SELECT 'charge-1' AS key, {data} AS \"order\", 5 AS cents"
    ask = ["outbox", "reconcile", "-t", "CHARGE", "--on", app.settings.database_url, "--query", query]
    said = on(*ask, "--json")
    assert (said.code, charged(app)) == (1, {})
    assert "order: holds bytes." in said.err


def test_a_row_that_cannot_be_a_job_is_told_by_its_number_and_harms_no_other(
    on: Run, app: Duly, module: str, folder: Path
) -> None:
    file = write_csv(folder, ["order,cents", "1,5", "two,7", "3,5"])
    args = ["--app", module, "outbox", "reconcile", "--task", "CHARGE", "--file", file, "--key", "charge-{order}"]
    dry = on(*args, "--dry-run", "--json").json
    assert (dry["expected"], dry["would_enqueue"], dry["bad"]) == (2, 2, 1)
    done = on(*args)
    assert done.code == 1
    assert "order" in done.err
    assert sorted(charged(app)) == ["charge-1", "charge-3"]


def test_a_colon_in_a_query_is_no_parameter(on: Run, app: Duly) -> None:
    said = on("outbox", "reconcile", "-t", "CHARGE", "--query", "SELECT 'a:b%' AS key", "--dry-run", "--json")
    assert said.json["keys"] == ["a:b%"]


def test_many_are_enqueued_only_with_a_yes_and_in_portions(on: Run, app: Duly, folder: Path) -> None:
    (folder / "x.jsonl").write_text("\n".join(json.dumps({"key": f"k{n}"}) for n in range(1200)))
    ask = ["outbox", "reconcile", "-t", "CHARGE", "-f", "x.jsonl"]
    assert on(*ask).code == 2
    assert app.jobs.count() == 0
    assert on(*ask, "--yes", "--json").json["enqueued"] == 1200
    assert app.jobs.count() == 1200


def test_a_file_that_is_none_is_told(on: Run, folder: Path) -> None:
    (folder / "x.csv").write_bytes(b"key\n\xff\xfe\n")
    said = on("outbox", "reconcile", "-t", "CHARGE", "-f", "x.csv")
    assert (said.code, "UTF-8" in said.err) == (2, True)
    (folder / "empty.csv").write_text("")
    assert (
        on("outbox", "reconcile", "-t", "CHARGE", "-f", "empty.csv").out.splitlines()[-1]
        == "Nothing was expected: there is no usable row."
    )
