"""A month and a half in which five people sign up, in some seconds: `python examples/onboarding/run.py`.

The clock is the program's own and jumps twelve hours at a time; everything else is real: a database, workers, signals, a person who
answers. Every few days the application is thrown away and another one goes on with the same database. Afterwards it looks whether
what happened is what should have, and ends with 1 if not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app import define, make_tables
from sqlalchemy import text

from duly import Duly
from duly.testing import ManualClock, drain
from duly.workflows import Run
from duly.workflows.mermaid import of_run

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
STEP = timedelta(hours=12)
#: Who signs up, with which plan; after how many days they confirm; what the clerk says of their credit.
PEOPLE: dict[str, tuple[str, float | None, bool | None]] = {
    "ada@example.org": ("pro", 0.5, True),
    "bob@example.org": ("free", 2.5, None),  # after the reminder
    "cleo@example.org": ("pro", 1, False),
    "dan@example.org": ("pro", None, None),  # never
    "eve@example.org": ("gold", 0.5, True),  # and gold is sold out
}
#: What becomes of each: the state of the run, the plan of the account (None: it is gone), and what was paid.
EXPECTED = {
    "ada@example.org": ("succeeded", "pro", 12),
    "bob@example.org": ("succeeded", "free", 0),
    "cleo@example.org": ("succeeded", "free", 0),
    "dan@example.org": ("failed", None, None),
    "eve@example.org": ("failed", None, None),
}


class Month:
    """The application, its clock, and those who sign up."""

    def __init__(self, database_url: str, letters: Path) -> None:
        self.database_url, self.letters = database_url, letters
        self.clock = ManualClock(START)
        self.app = self.made()
        make_tables(self.app)
        self.runs = {email: self.app.workflows.start("onboarding", {"email": email, "plan": plan}).job.id
                     for email, (plan, _, _) in PEOPLE.items()}  # fmt: skip
        self.shown: dict[int, str] = {}
        self.restarts = 0

    def made(self) -> Duly:
        return define(Duly(self.database_url, clock=self.clock, sqlite_synchronous="NORMAL"), self.letters)

    def say(self, what: str) -> None:
        print(f"{self.clock.now():%d %b %H:%M}Z  {what}")

    def live(self, days: int) -> None:
        """Let days pass. Nothing that the runs need is in this process: it is thrown away every five days."""
        for turn in range(days * 2 + 1):
            self.work()
            if self.confirm(turn / 2):
                self.work()
            if turn % 10 == 9:
                self.app.close()
                self.app, self.restarts = self.made(), self.restarts + 1
            self.clock.advance(STEP)

    def work(self) -> None:
        drain(self.app)
        self.look()

    def confirm(self, day: float) -> bool:
        """Those whose time has come follow the link in their letter. Did anybody?"""
        now = [email for email, (_, after, _) in PEOPLE.items() if after == day]
        for email in now:
            self.app.workflows.signal(self.runs[email], "confirmed", {"by": "the link"}, key="link")
        return bool(now)

    def look(self) -> None:
        """Say what has changed since the last look, and answer what a person is asked."""
        for run in reversed(self.app.workflows.list(limit=100)):
            words = run.state + "".join(f", {wait['kind']} {wait['name']}" for wait in run.waits)
            if self.shown.get(run.id) == words:
                continue
            self.shown[run.id] = words
            self.say(f"{self.name(run):<28} {words}{self.why(run)}")
            if run.state == "AWAITING_HUMAN":
                self.answer(run)

    def name(self, run: Run) -> str:
        return f"{run.workflow} {run.input['email'].partition('@')[0]}"

    def why(self, run: Run) -> str:
        return f" ({run.error['message']})" if run.state == "failed" else ""

    def answer(self, run: Run) -> None:
        _, _, good = PEOPLE[run.input["email"]]
        said = run.workflow == "checkup" or bool(good)
        reason = "all is well" if run.workflow == "checkup" else "known" if said else "not known"
        self.app.workflows.approve(run.id, approved=said, reason=reason, actor="clerk")

    # ------------------------------------------------------------------ afterwards

    def problems(self) -> list[str]:
        """What is not as it should be."""
        out = []
        sql = self.app.db.read
        plans = dict(map(tuple, sql(lambda c: c.execute(text("SELECT email, plan FROM accounts")).all())))
        paid = dict(map(tuple, sql(lambda c: c.execute(text("SELECT email, amount FROM payments")).all())))
        for email, expected in EXPECTED.items():
            found = (self.app.workflows.get(self.runs[email]).state, plans.get(email), paid.get(email))
            if found != expected:
                out.append(f"{email}: {found} instead of {expected}")
        subjects = [
            line
            for file in self.letters.iterdir()
            for line in file.read_text().splitlines()
            if line.startswith("Subject")
        ]
        counted = {subject.removeprefix("Subject: "): subjects.count(subject) for subject in subjects}
        wanted = {"Please confirm": 5, "Still there?": 2, "How is it going?": 3, "Thank you for the call": 1}
        if counted != wanted:
            out.append(f"letters: {counted} instead of {wanted}")
        checkups = self.app.workflows.list("checkup")
        if [run.state for run in checkups] != ["succeeded"] * 3:
            out.append(f"checkups: {[run.state for run in checkups]}")
        return out


def main() -> int:
    p = argparse.ArgumentParser(description="Five people sign up, in some seconds.")
    p.add_argument("--days", type=int, default=45, help="how many days to live (45)")
    p.add_argument("--database-url", help="an empty database; without it one that goes when it ends")
    p.add_argument("--mermaid", action="store_true", help="draw Eve's run at the end")
    o = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="onboarding-") as folder:
        month = Month(o.database_url or f"sqlite:///{Path(folder) / 'onboarding.db'}", Path(folder) / "letters")
        month.live(o.days)
        problems = month.problems()
        runs = month.app.workflows.list(limit=100)
        letters = len(list(month.letters.iterdir()))
        print(f"\n{len(runs)} runs, {letters} letters, {month.restarts} restarts of the application.")
        if o.mermaid:
            eve = month.runs["eve@example.org"]
            door = month.app.workflows
            print(of_run(door.get(eve), door.history(eve), door.tree(eve)))
        month.app.close()
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
