"""Somebody signs up: an account, a letter, a confirmation, a question to a person, a payment; and all of it undone where that fails.

`duly up examples/onboarding/app.py` runs it in earnest, with letters in the folder `letters/`; `run.py` beside it lives through a month of it
in seconds.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from duly import Duly, Job, PermanentError
from duly.workflows import WorkflowContext

HERE = Path(__file__).parent
TABLES = (
    "CREATE TABLE IF NOT EXISTS accounts (email VARCHAR(200) PRIMARY KEY, plan VARCHAR(20) NOT NULL)",
    "CREATE TABLE IF NOT EXISTS payments (run BIGINT PRIMARY KEY, email VARCHAR(200) NOT NULL, amount BIGINT NOT NULL)",
)
PRICES = {"free": 0, "pro": 12, "gold": 99}


# --- steps: with a session, each is one commit with its record ------------------------------------------------------------


def create_account(email: str, session: Session) -> str:
    session.execute(text("INSERT INTO accounts (email, plan) VALUES (:email, 'none')"), {"email": email})
    return email


def delete_account(email: str, session: Session) -> None:
    session.execute(text("DELETE FROM accounts WHERE email = :email"), {"email": email})


def charge(run: int, email: str, plan: str, session: Session) -> int:
    row = {"run": run, "email": email, "amount": PRICES[plan]}
    session.execute(text("INSERT INTO payments (run, email, amount) VALUES (:run, :email, :amount)"), row)
    return run


def refund(run: int, session: Session) -> None:
    session.execute(text("DELETE FROM payments WHERE run = :run"), {"run": run})


def activate(email: str, plan: str, session: Session) -> None:
    if plan == "gold":
        raise PermanentError("gold is sold out")
    session.execute(text("UPDATE accounts SET plan = :plan WHERE email = :email"), {"plan": plan, "email": email})


# --- the application ------------------------------------------------------------------------------------------------------


def define(app: Duly, letters: Path) -> Duly:
    """Give an application its task and its workflows. Letters become files in a folder."""

    @app.task("EMAIL_SEND", queue="mail")
    def send_email(to: str, subject: str, text: str, job: Job) -> dict[str, str]:
        letters.mkdir(parents=True, exist_ok=True)
        # the same name each time that this job is run, so a letter is there once
        (letters / f"{job.id}.txt").write_text(f"To: {to}\nSubject: {subject}\n\n{text}\n", encoding="utf-8")
        return {"file": f"{job.id}.txt"}

    checkup = app.workflows.load(HERE / "checkup.yaml")

    @app.workflow("onboarding")
    async def onboarding(ctx: WorkflowContext, email: str, plan: str = "free") -> str:
        await ctx.using(compensate=delete_account).step("account", create_account, email)
        await ctx.enqueue("EMAIL_SEND", to=email, subject="Please confirm", text=f"Your number is {ctx.run_id}.")
        if await ctx.wait_event("confirmed", timeout=timedelta(days=2), default=None) is None:
            await ctx.enqueue("EMAIL_SEND", to=email, subject="Still there?", text="We keep your account for a day.")
            await ctx.wait_event("confirmed", timeout=timedelta(days=1))  # or the run fails, and the account goes
        if plan != "free" and not await ctx.approve("credit", timeout=timedelta(days=5)):
            plan = "free"
        await ctx.using(compensate=refund).step("charge", charge, ctx.run_id, email, plan)
        await ctx.step("activate", activate, email, plan)
        await ctx.start(checkup, email=email, plan=plan)  # not waited for
        return plan

    return app


def make_tables(app: Duly) -> None:
    """The example's own tables, in Duly's database."""
    app.open()
    for table in TABLES:
        app.db.write(lambda c, table=table: c.execute(text(table)))


app = define(Duly(), Path("letters"))
