"""Today, in real time: what is to be done is put into the database, `duly up` does it, and what has happened is said."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import account
import click
import ground
import town
from letter import Letter, Recipient, Sorted, key_of
from places import again, program, short, sqlite_url
from sqlalchemy.orm import Session
from town import app

from duly import DulyError, InvalidArgument
from duly.cli.main import cli
from duly.kernel.source import read
from duly.kernel.windows import Window

if TYPE_CHECKING:
    from account import Account

    from duly.publishing.plan import Plan

HERE = Path(__file__).parent
#: For so many seconds the mayor is waited for before --until-idle answers in his place.
MAYOR = 5
#: Every event, as a line of JSON.
LOG = "events.log"


class Today:
    """The town in real time."""

    def __init__(self, folder: Path, until_idle: bool, patience: int, begun: datetime, minute: datetime) -> None:
        self.app, self.folder, self.until_idle, self.minute = app, folder, until_idle, minute
        self.turning = frozenset((folder / ground.MADE).read_text(encoding="utf-8").split("\n")) - {""}
        self.patience, self.begun, self.woke = patience, begun, time.monotonic()
        #: When the mayor was asked.
        self.asked = self.woke
        self.up, self.end = threading.Event(), threading.Event()
        self.told_posts = self.said_all = self.enough = False

    def live(self, letter: Letter, people: Sorted, plan: Plan | None, new: bool, port: int | None, log: TextIO) -> int:
        """Returns the exit code."""
        letters = self.prepare(letter, people, plan)
        self.introduce(people, letters, plan, new)
        self.app.listen(lambda event: self.up.set() if event.name == "worker_started" else None)
        watch = threading.Thread(target=self.watch, args=(self.look(),), name="town", daemon=True)
        up = ["up", str(HERE / "town.py"), *([] if port is None else ["--port", str(port)])]
        code = 0
        watch.start()
        try:
            with events_to(log):
                cli.main(up, prog_name="duly")
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            self.end.set()
            watch.join()
        return code or self.finish()

    def prepare(self, letter: Letter, people: Sorted, plan: Plan | None) -> int:
        """Put into the database what is to be done today. Whatever is there already stays. Returns how many letters are new."""
        app = self.app
        town.make_tables()
        app.queues.set("rounds", limit=1, reason="what closes goes before what opens")
        if not app.calendars.all():
            start = self.begun.replace(second=0, microsecond=0)
            rest = Window(
                dates=start.date(),
                start=f"{start:%H:%M}",
                end=f"{self.minute:%H:%M}",
                tz="UTC",
                name="the gazette rests",
                scope="channel:gazette",
            )
            app.calendars.set(rest, "the printers have a break")
        with Session(app.db.session_engine) as session, session.begin():
            made = [self.send(letter, person, session, people) for person in people.good]
        if plan is not None:
            town.rooms.publishing.enqueue_plan(plan.items, actor="calendar")
        automation = town.automations.ensure(read(HERE.parent / "automations" / "briefing.yaml").value)
        town.automations.run(automation.id, key=town.briefing.check(), reason="the town is awake")
        app.workflows.start("stall permit", {"trader": "Ada", "goods": "apple juice"}, key="stall-ada")
        app.enqueue("TURN_WEATHERCOCK", key="weathercock")
        return sum(made)

    def send(self, letter: Letter, person: Recipient, session: Session, people: Sorted) -> bool:
        """Make the letter's job. Returns whether it is new; what cannot be a letter is noted among the bad lines."""
        words = letter.to(person)
        try:
            made = town.rooms.mail.send(
                person.address,
                words["subject"],
                words["text"],
                html=words["html"],
                key=key_of("newsletter", person.address),
                session=session,
                max_attempts=10,  # a mail server that is started anew puts off anew whom it did not know
            )
        except InvalidArgument as error:
            people.bad.append((person.line, str(error)))
            return False
        return bool(made.created)

    # ------------------------------------------------------------------ while it runs

    def watch(self, before: Account) -> None:
        """Say what has changed since ``before``, as long as the town is awake."""
        while not self.up.wait(0.1):  # until then `duly up` says what it serves
            if self.end.is_set():
                return
        while not self.end.wait(0.5):
            try:
                now = self.look()
            except DulyError:
                continue  # the worker tells, and tries again
            self.tell(before, now)
            before = now
            if self.enough:
                continue
            if self.until_idle and now.permit == "AWAITING_HUMAN" and time.monotonic() - self.asked > MAYOR:
                self.approve(now)
            late = time.monotonic() - self.woke
            # without --until-idle the permit is for somebody who looks at it
            done = not now.missing(permit=self.until_idle)
            if done and not self.said_all:
                self.said_all = True
                self.suggest(now)
            if self.until_idle and (done or late > self.patience):
                self.enough = True
                os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C would

    def look(self) -> Account:
        return account.take(self.folder, self.turning, datetime.now(UTC))

    def approve(self, now: Account) -> None:
        self.app.workflows.approve(now.permit_run, reason="nobody sits here, so --until-idle says yes", actor="mayor")
        self.say("permit", f"--until-idle says yes in the mayor's place to run {now.permit_run}")

    def tell(self, before: Account, now: Account) -> None:
        if before.unsent and not now.unsent:
            self.say("newsletter", f"{now.taken} letters are in the mailbox, {now.refused} were refused for good")
        if now.posts > before.posts and not (now.unpublished and self.told_posts):
            self.told_posts = True
            rest = f"; due and held: {now.unpublished}" if now.unpublished else ""
            self.say("gazette", f"{now.posts} posts are on disk{rest}")
        for name, (closed, opened) in now.groups.items():
            was_closed, was_open = before.groups[name]
            news = []
            if closed and (was_closed is None or closed.id != was_closed.id):
                news.append(f"{closed.scheduled_for:%A}'s round is closed")
            if opened and (was_open is None or opened.id != was_open.id):
                news.append(
                    f"{opened.scheduled_for:%A}'s is open until {opened.drop_time} tomorrow: {opened.prompt_text}"
                )
            if news:
                self.say("rounds", f"{name}: {', '.join(news)}")
        if now.briefing and not before.briefing:
            self.say("briefing", f"{short(self.folder / 'briefing.md')} is written")
        if now.permit != before.permit and now.permit == "AWAITING_HUMAN":
            self.asked = time.monotonic()
            self.say(
                "permit",
                f"workflow run {now.permit_run} waits for the mayor{'' if self.until_idle else ': answer it on the dashboard'}",
            )
        if now.permitted and not before.permitted:
            self.say("permit", f"approved; {short(self.folder / 'permit.txt')} is written")
        if now.sent and not before.sent:
            self.say("market", "the message of the first sale was relayed to the board")
        if now.failed > before.failed:
            self.say("weathercock", "a job has failed, on purpose: look at Failures on the dashboard")

    def say(self, who: str, what: str) -> None:
        click.echo(f"{datetime.now():%H:%M:%S}  {who:<11}  {what}")

    # ------------------------------------------------------------------ before and after

    def introduce(self, people: Sorted, letters: int, plan: Plan | None, new: bool) -> None:
        """What is there."""
        at = self.minute.astimezone()
        newsletter = f"{letters} letters go out over SMTP, to a mail server in here" if letters else "everybody has it"
        if people.bad or people.duplicates:
            newsletter += f" ({len(people.bad)} lines cannot be used, {len(people.duplicates)} are there twice)"
        gazette = "its calendar goes on" if plan is None else f"{len(plan.items)} posts of a calendar"
        rounds = "they go on"
        if new:
            gazette += f"; a blackout holds the gazette until {at:%H:%M}"
            rounds = f"yesterday's close and today's open at {at:%H:%M} for the {', the '.join(sorted(self.turning))}"
        parts = (
            ("newsletter", newsletter),
            ("gazette", gazette),
            ("rounds", rounds),
            ("briefing", "an AI session (a script) looks at a shop's files and writes what matters today"),
            ("permit", "a workflow that waits until the mayor says yes"),
            ("market", "something is sold every ten seconds; its message leaves with the sale, and a relay carries it"),
            ("weathercock", "a job that fails on purpose"),
        )
        click.echo(
            f"\n{'A new town' if new else 'The town goes on'}, in {short(self.folder)}, all of it on one SQLite file:\n"
        )
        for name, what in parts:
            click.echo(f"  {name:<11}  {what}")
        click.echo()

    def suggest(self, now: Account) -> None:
        """What to try next, once everything has happened."""
        if self.until_idle:
            return
        here = short(self.folder)
        duly = program("duly")
        click.echo(
            "\nAll of it has happened; the town goes on, and the market sells. In another terminal:\n"
            f"  export DULY_DATABASE_URL={shlex.quote(sqlite_url(self.folder))}\n"
            + (f"  {duly} workflows approve {now.permit_run} --reason 'good juice'\n" if not now.permitted else "")
            + f"  {duly} jobs list --status failed\n"
            f"  {duly} rounds next\n"
            f"  cat {here}/briefing.md; ls {here}/mail/new {here}/posts/* {here}/notices; tail -f {here}/{LOG}\n"
            "On the dashboard: make a schedule, pause a queue, replay what failed, look a week ahead on the calendar.\n"
            "Ctrl-C stops it in good order.\n"
        )

    def finish(self) -> int:
        """Say what is there in the end. Returns the exit code."""
        now = self.look()
        if not self.until_idle or not self.enough:
            click.echo(
                f"\nStopped in good order; nothing is lost. {again('run', ground.arguments(self.folder))} goes on, {again('run', ['--fresh'])} begins another town."
            )
            return 0
        folder = short(self.folder)
        lines = (
            ("letters", f"{now.messages} in {folder}/mail/new, {now.refused} refused for good"),
            ("posts", f"{now.posts} in {folder}/posts"),
            ("rounds", f"{now.closed} closed and {now.opened} opened, of {len(now.groups)} groups"),
            ("briefing", f"{folder}/briefing.md" if now.briefing else "none"),
            ("messages", f"{now.sent} relayed, {now.notices} notices in {folder}/notices"),
            (
                "permit",
                f"{folder}/permit.txt, approved by the mayor (by --until-idle)" if now.permitted else now.permit,
            ),
            ("failed", f"{now.failed} on purpose: duly jobs list --status failed"),
            ("database", f"{folder}/duly.db, {(self.folder / 'duly.db').stat().st_size / 1e6:.1f} MB"),
        )
        click.echo(f"\nDone in {(datetime.now(UTC) - self.begun).total_seconds():.0f} s. What is there:")
        for name, what in lines:
            click.echo(f"  {name:<9}  {what}")
        missing = now.missing()
        if missing:
            click.echo(f"Missing: {'; '.join(missing)}. {folder}/{LOG} says more.", err=True)
        return 1 if missing else 0


class Sieve:
    """A stream that keeps events, which are lines of JSON, in a file; what is for people goes on."""

    def __init__(self, log: TextIO, people: TextIO) -> None:
        self.log, self.people = log, people

    def write(self, text: str) -> int:
        self.log.write(text)
        if text.strip() and not text.lstrip().startswith("{"):
            self.people.write(text if text.endswith("\n") else f"{text}\n")
        return len(text)

    def flush(self) -> None:
        self.log.flush()
        self.people.flush()

    def isatty(self) -> bool:
        return False


@contextmanager
def events_to(log: TextIO) -> Iterator[None]:
    with redirect_stderr(Sieve(log, sys.stderr)):  # type: ignore[type-var]
        yield
