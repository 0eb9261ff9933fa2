"""The application of the morning briefing: the files of a small shop, and what an AI may do with them.

Three kinds of tools stand here, because they differ in what a crash does to them:

=================================  =======================  ===========================================================
tool                               what it is               after a crash in its middle
=================================  =======================  ===========================================================
`begin_briefing`, `note`           a function that takes    its effect and the record of the call are one commit: there
                                   a session                are both or none, and it is called again if there are none
`orders`, `appointments`,          a function, `repeat`     it is called again: reading twice does no harm, and writing
`write_briefing`                                            the same file twice makes the same file
`CHECK_STOCK`                      a task                   its job is there under a key of the call, and is rescued and
                                                            tried again as any job
=================================  =======================  ===========================================================
"""

from __future__ import annotations

import csv
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from duly import Duly, PermanentError
from duly.automations import Automations

HERE = Path(__file__).parent
#: Where the files of the shop lie, where the briefing goes, and for how long each look at a file takes, in seconds.
DATA = Path(os.environ.get("BRIEFING_DATA", HERE))
FOLDER = Path(os.environ.get("BRIEFING_FOLDER", "."))
LATENCY = float(os.environ.get("BRIEFING_LATENCY", "0"))
TABLE = """CREATE TABLE IF NOT EXISTS briefing_lines (
    day VARCHAR(10) NOT NULL, place INTEGER NOT NULL, part VARCHAR(40) NOT NULL, line VARCHAR(1000) NOT NULL)"""
PARTS = ("Orders", "Today", "Stock")

os.environ.setdefault("DULY_AI_SCRIPT", str(HERE / "script.yaml"))
app = Duly()  # the database is DULY_DATABASE_URL, or ./duly.db
automations = Automations(app)


# --- the files --------------------------------------------------------------------------------------------------------


class Unusable(Exception):
    """A file cannot be what it is said to be."""


def rows(name: str, columns: dict[str, str]) -> list[dict[str, str]]:
    """The rows of a CSV file. ``columns``: what each value must look like. Raises Unusable with the line that is wrong."""
    file = DATA / name
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            found = list(_checked(file, reader, columns))
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Unusable(f"{file} is not UTF-8: save it as CSV in UTF-8.") from None
    if not found:
        raise Unusable(f"{file} has no rows below its heading.")
    return found


def _checked(file: Path, reader: csv.DictReader[str], columns: dict[str, str]) -> Iterator[dict[str, str]]:
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise Unusable(f"{file} has no column {missing[0]!r} in its first line; it needs {', '.join(columns)}.")
    for row in reader:
        for name, wanted in columns.items():
            value = row[name] or ""
            if not re.fullmatch(wanted, value):
                raise Unusable(f"{file}, line {reader.line_num}: {name} cannot be {value!r}.")
        yield row


DAY, NUMBER, WORDS, CLOCK = r"\d{4}-\d\d-\d\d", r"\d{1,9}", r"[^\x00-\x1f]{1,200}", r"\d\d:\d\d"


def all_orders() -> list[dict[str, str]]:
    columns = {"order": NUMBER, "day": DAY, "product": WORDS, "quantity": NUMBER, "cents": NUMBER, "state": "open|paid|packed|sent"}  # fmt: skip
    return rows("orders.csv", columns)


def all_appointments() -> list[dict[str, str]]:
    return rows("calendar.csv", {"day": DAY, "from": CLOCK, "until": CLOCK, "what": WORDS})


def all_stock() -> dict[str, int]:
    return {row["product"]: int(row["pieces"]) for row in rows("stock.csv", {"product": WORDS, "pieces": NUMBER})}


def today() -> str:
    """The day of the briefing is the last one of which there are orders: a day's briefing is the same whenever it is written."""
    return max(row["day"] for row in all_orders())


def check() -> str:
    """The day, if all files are as they should be. Raises Unusable."""
    all_appointments()
    all_stock()
    return today()


# --- the tools --------------------------------------------------------------------------------------------------------


@automations.tool(repeat=True)
def orders() -> dict[str, Any]:
    """The orders of the shop: how many came in today, what is to be sent, and what is not paid yet."""
    time.sleep(LATENCY)
    day, found = today(), all_orders()
    new = [row for row in found if row["day"] == day]
    return {
        "day": day,
        "new": len(new),
        "worth": f"{sum(int(row['cents']) for row in new) / 100:.2f}",
        "to_send": told(row for row in found if row["state"] in ("paid", "packed")),
        "unpaid": told(row for row in found if row["state"] == "open"),
    }


def told(found: Iterator[dict[str, str]]) -> str:
    return ", ".join(f"{row['order']} ({row['quantity']} {row['product']})" for row in found) or "nothing"


@automations.tool(repeat=True)
def appointments() -> dict[str, str]:
    """What stands in the shop's calendar for today."""
    time.sleep(LATENCY)
    day = today()
    lines = [f"{row['from']}-{row['until']} {row['what']}" for row in all_appointments() if row["day"] == day]
    return {"day": day, "said": "; ".join(sorted(lines)) or "nothing is planned"}


@app.task("CHECK_STOCK", queue="shop")
def check_stock(day: str) -> dict[str, str]:
    """Whether there is enough of everything that has been ordered up to a day (2026-03-02) and not been sent."""
    time.sleep(LATENCY)
    wanted: dict[str, int] = {}
    for row in all_orders():
        if row["state"] != "sent" and row["day"] <= day:
            wanted[row["product"]] = wanted.get(row["product"], 0) + int(row["quantity"])
    there = all_stock()
    short = {p: n - there.get(p, 0) for p, n in sorted(wanted.items()) if n > there.get(p, 0)}
    return {"said": "; ".join(f"{n} {p} are missing" for p, n in short.items()) or "there is enough of everything"}


@automations.tool
def begin_briefing(session: Session) -> str:
    """Begin the briefing of today: it is empty then."""
    day = today()
    session.execute(text("DELETE FROM briefing_lines WHERE day = :day"), {"day": day})
    return f"the briefing of {day} is empty"


@automations.tool
def note(part: str, line: str, session: Session) -> str:
    """Add one line to a part of the briefing: Orders, Today or Stock."""
    if part not in PARTS:
        raise PermanentError(f"there is no part {part!r}; the parts are {', '.join(PARTS)}")
    # nothing here looks whether the line is there already: that the call is made once is Duly's business
    day = today()
    place = session.scalar(text("SELECT count(*) + 1 FROM briefing_lines WHERE day = :day"), {"day": day})
    row = {"day": day, "place": place, "part": part, "line": line}
    session.execute(
        text("INSERT INTO briefing_lines (day, place, part, line) VALUES (:day, :place, :part, :line)"), row
    )
    return "noted"


@automations.tool(repeat=True)
def write_briefing() -> str:
    """Write the briefing of today as it stands into its file."""
    time.sleep(LATENCY)
    day = today()
    found = app.db.read(lambda c: c.execute(text("SELECT part, line FROM briefing_lines WHERE day = :day ORDER BY place"), {"day": day}).all())  # fmt: skip
    out = [f"# {day}"]
    for part in PARTS:
        out += ["", f"## {part}", "", *(f"* {line}" for named, line in found if named == part)]
    draft = FOLDER / "briefing.md.draft"
    draft.write_text("\n".join(out) + "\n", encoding="utf-8")
    draft.replace(FOLDER / "briefing.md")  # the old one or the new one, and never half of it
    return f"{len(found)} lines are written"


def make_tables() -> None:
    """Make the table of the briefing's lines in Duly's database, which keeps them and the records of their calls in one commit."""
    app.open()
    app.db.write(lambda c: c.execute(text(TABLE)))
