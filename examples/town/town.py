"""The town's application: every room of Duly on one database.

`run.py` beside it makes the town, and runs `duly up` on this file. What an AI may look at, and its script, are those of the morning briefing
(`examples/automations/app.py`), whose application this one begins with.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType

from sqlalchemy import text
from sqlalchemy.orm import Session

from duly import Duly, Job, PermanentError
from duly.kernel.recurrence import Cron, Every
from duly.mail import Mail
from duly.outbox import Outbox
from duly.outbox.transports.duly import DulyTransport
from duly.publishing import Publishing
from duly.rounds import Rounds
from duly.workflows import WorkflowContext

HERE = Path(__file__).parent
#: Where the town keeps its things.
FOLDER = Path(os.environ.get("TOWN_FOLDER", "."))
ZONE = "Europe/Paris"
TABLES = (
    "CREATE TABLE IF NOT EXISTS sales (job BIGINT PRIMARY KEY, product VARCHAR(100) NOT NULL)",
    "CREATE TABLE IF NOT EXISTS stalls (run BIGINT PRIMARY KEY, trader VARCHAR(100) NOT NULL, goods VARCHAR(100) NOT NULL)",
)


def example(name: str, file: str) -> ModuleType:
    """The module of another example, under a name of its own: two of them have an app.py."""
    spec = importlib.util.spec_from_file_location(name, HERE.parent / file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ring_bell(job: Job) -> str:
    """The bell of the church strikes the hour in which it was told to."""
    assert job.created_at is not None
    return f"{(job.created_at.hour - 1) % 12 + 1} strokes"


def turn_weathercock() -> None:
    """Fails, on purpose: so there is something to look at where failures are shown."""
    raise PermanentError("the weathercock has flown away")


class Rooms:
    """What there was yesterday already, and is today."""

    def __init__(self, app: Duly) -> None:
        self.app, self.mail, self.rounds, self.publishing = app, Mail(app), Rounds(app), Publishing(app)
        app.task("RING_BELL", queue="town")(ring_bell)
        app.task("TURN_WEATHERCOCK", queue="town", max_attempts=1)(turn_weathercock)
        app.schedule("church bell", Cron("0 * * * *", tz=ZONE), "RING_BELL")


briefing = example("briefing", "automations/app.py")
app: Duly = briefing.app
automations = briefing.automations
rooms = Rooms(app)
outbox = Outbox(app, transports={"duly": DulyTransport(app)})

# one tick at a time, so that what closes makes room for what opens in the same minute
rooms.rounds.schedule(close="* * * * *", plan="* * * * *", open="* * * * *")
app.schedule("weathercock", Cron("30 6 * * *", tz=ZONE), "TURN_WEATHERCOCK")
app.schedule("market", Every("10s"), "SELL", catch_up="none")


# --- the market: a sale and its message are one commit ----------------------------------------------------------------


@app.task("SELL", queue="market")
def sell(session: Session, job: Job) -> dict[str, str]:
    """Something is sold, and a notice of it leaves if, and only if, the sale is on the books."""
    products = sorted(briefing.all_stock())
    product = products[job.id % len(products)]
    session.execute(
        text("INSERT INTO sales (job, product) VALUES (:job, :product)"), {"job": job.id, "product": product}
    )
    outbox.publish(session, "duly:PIN_NOTICE", {"number": job.id, "what": f"{product} is sold"}, key=f"sale-{job.id}")
    return {"product": product}


@app.task("PIN_NOTICE", queue="board")
def pin_notice(number: int, what: str) -> dict[str, str]:
    """Pin a notice to the board of the town hall: a file."""
    board = FOLDER / "notices"
    board.mkdir(parents=True, exist_ok=True)
    # the same name each time that this job is run, so a notice is there once
    (board / f"{number}.txt").write_text(f"{what}\n", encoding="utf-8")
    return {"file": f"{number}.txt"}


# --- the town hall: a permit needs the mayor --------------------------------------------------------------------------


def register(run: int, trader: str, goods: str, session: Session) -> int:
    row = {"run": run, "trader": trader, "goods": goods}
    session.execute(text("INSERT INTO stalls (run, trader, goods) VALUES (:run, :trader, :goods)"), row)
    return run


def strike_out(run: int, session: Session) -> None:
    session.execute(text("DELETE FROM stalls WHERE run = :run"), {"run": run})


def write_permit(trader: str, goods: str, by: str) -> str:
    file = FOLDER / "permit.txt"
    file.write_text(f"{trader} may sell {goods} on the market. Signed: {by}\n", encoding="utf-8")
    return file.name


@app.workflow("stall permit")
async def stall_permit(ctx: WorkflowContext, trader: str, goods: str) -> str:
    await ctx.using(compensate=strike_out).step("register", register, ctx.run_id, trader, goods)
    answer = await ctx.approve("mayor", timeout=timedelta(days=7))
    if not answer:
        raise PermanentError(f"the mayor says no: {answer.reason}")
    return await ctx.step("write", write_permit, trader, goods, answer.by)


def make_tables() -> None:
    """Make the tables of the town and of the briefing in Duly's database."""
    briefing.make_tables()
    for table in TABLES:
        app.db.write(lambda c, table=table: c.execute(text(table)))
