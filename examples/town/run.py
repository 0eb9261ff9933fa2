"""A town in which every room of Duly is alive, on one SQLite file: `make run` starts here.

The story: make a folder and a database, let yesterday happen on a clock of its own, start a mail server for this machine, put everything of
today into the database, and run `duly up` in this process, with the dashboard. Meanwhile say what has happened, each from what really lies
there. Run it again and it goes on with the same town; `--fresh` makes another one.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import string
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

HERE = Path(__file__).parent
NEWSLETTER = HERE.parent / "newsletter"
sys.path.append(str(NEWSLETTER))  # its letters, its mail server, and its words for places are used here

from letter import Letter, Recipient, Sorted, Unusable, key_of, read_recipients, sort  # noqa: E402
from mailserver import MailServer  # noqa: E402
from places import again, make_folder, program, short, sqlite_url  # noqa: E402
from sqlalchemy.orm import Session  # noqa: E402

from duly import DulyError, UsageError  # noqa: E402
from duly.kernel.windows import Window  # noqa: E402

if TYPE_CHECKING:
    from account import Account

    from duly.publishing.plan import Plan

PATH = click.Path(path_type=Path)
CALENDAR = HERE / "calendar.yaml"
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
#: Seconds from the start until the full minute at which rounds turn: at least.
AHEAD = 20
#: For so many seconds the mayor is waited for before --until-idle answers in his place.
MAYOR = 5
#: Here lies what yesterday left: a town without it was not made to its end.
MARK = "made"
LOG = "events.log"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--folder", type=PATH, default=Path("var/town"), show_default=True, help="Where the town keeps its things."
)
@click.option("--fresh", is_flag=True, help="Begin anew, in another folder beside it.")
@click.option(
    "--until-idle",
    is_flag=True,
    help="Approve the permit, end when all of it has happened, and say what is there; with 1 where something is missing.",
)
@click.option(
    "--patience",
    type=click.IntRange(min=1),
    default=180,
    show_default=True,
    metavar="SECONDS",
    help="For so long --until-idle waits for what is missing.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Where the dashboard is served.  [default: 8787, or the next one that is free]",
)
@click.option(
    "--recipients",
    type=PATH,
    default=NEWSLETTER / "recipients.csv",
    metavar="FILE",
    help="A CSV file with the columns address and name.  [default: the newsletter's]",
)
@click.option(
    "--calendar",
    type=PATH,
    default=CALENDAR,
    metavar="FILE",
    help="A plan of posts for the channels gazette and board.  [default: the town's]",
)
def main(
    folder: Path, fresh: bool, until_idle: bool, patience: int, port: int | None, recipients: Path, calendar: Path
) -> None:
    """Show the whole of Duly: a town with a newsletter, a gazette, rounds, a briefing, a permit and a market."""
    begun = datetime.now(UTC)
    minute = (begun + timedelta(seconds=AHEAD)).replace(second=0, microsecond=0) + MINUTE
    try:
        letter, people = Letter.load(NEWSLETTER / "newsletter"), sort(read_recipients(recipients))
        text = filled(calendar, begun, minute)
        plan = read_plan(text, calendar)
        check_port(port)
        folder = make_folder(folder, fresh).absolute()
        with ExitStack() as stack:
            server = stack.enter_context(MailServer(folder / "mail", latency=0.3))
            surround(folder, server.address)
            log = stack.enter_context((folder / LOG).open("a", encoding="utf-8"))
            new = not (folder / "duly.db").exists()
            if not new and not (folder / MARK).exists():
                raise UsageError(
                    f"{short(folder)} holds a town that was not made to its end: begin another one with --fresh."
                )
            if new:
                (folder / "calendar.yaml").write_text(text, encoding="utf-8")
                make_yesterday(folder, plan, begun, minute)
            today = Today(folder, until_idle, patience, begun, minute)
            sys.exit(today.live(letter, people, plan if new or calendar != CALENDAR else None, new, port, log))
    except KeyboardInterrupt:
        click.echo(f"Stopped while the town was made. Begin another one: {again('run', ['--fresh'])}")
    except (Unusable, UsageError) as error:
        raise click.UsageError(str(error)) from None
    except (DulyError, OSError) as error:
        raise click.ClickException(str(error)) from None


def filled(calendar: Path, begun: datetime, minute: datetime) -> str:
    """The calendar's text with its instants. Raises Unusable."""
    midnight = begun.replace(hour=0, minute=0, second=0, microsecond=0)
    instants = {
        "last_night": minute - DAY + timedelta(hours=2), "this_morning": minute - timedelta(hours=4), "now": begun, "soon": begun + timedelta(seconds=15),
        "tomorrow": midnight + timedelta(days=1, hours=9), "in_two_days": midnight + timedelta(days=2, hours=8), "in_three_days": midnight + timedelta(days=3, hours=17),
    }  # fmt: skip
    try:
        text = calendar.read_text(encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{calendar} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Unusable(f"{calendar} is not UTF-8.") from None
    return string.Template(text).safe_substitute(
        {name: at.isoformat(timespec="seconds") for name, at in instants.items()}
    )


def read_plan(text: str, calendar: Path) -> Plan:
    """The plan of a calendar whose instants are filled in. Raises Unusable, InvalidDocument."""
    from duly.kernel.source import read_yaml
    from duly.publishing.plan import checked

    plan = checked(read_yaml(text, str(calendar)), calendar.resolve().parent)
    unknown = sorted({one.channel for one in plan.items} - {"gazette", "board"})
    if unknown:
        raise Unusable(f"{calendar} names the channel {unknown[0]}; the town has gazette and board.")
    return plan


def check_port(port: int | None) -> None:
    """Before anything is made: `duly up` would say it too, but later. Raises Unusable."""
    try:
        socket.create_server(("127.0.0.1", port or 0)).close()
    except OSError as error:
        raise Unusable(f"127.0.0.1:{port} cannot be listened on: {error.strerror}. Name another --port.") from None


def surround(folder: Path, smtp: str) -> None:
    """The town learns from its environment where things are, as any application would."""
    os.environ.update(
        DULY_DATABASE_URL=sqlite_url(folder), TOWN_FOLDER=str(folder), BRIEFING_FOLDER=str(folder), BRIEFING_LATENCY="1",
        DULY_PUBLISH_CHANNELS=str(HERE / "channels.yaml"), DULY_MAIL_PROVIDER="smtp", DULY_SMTP_URL=f"smtp://{smtp}",
        DULY_MAIL_FROM="The town <town@example.org>", DULY_LOG_FORMAT="json",
    )  # fmt: skip
    # for how long what a killed process held is left alone: short, so that nobody waits for an example
    os.environ.setdefault("DULY_LEASE", "10")


def make_yesterday(folder: Path, plan: Plan, begun: datetime, minute: datetime) -> None:
    """Let yesterday pass, and note whose rounds turn at that minute."""
    import yesterday

    click.echo("Yesterday is made first, on a clock of its own …")
    groups = yesterday.turning(minute)
    founded = [*groups, *yesterday.settled(begun)]
    yesterday.live(sqlite_url(folder), founded, plan.items, minute - DAY, datetime.now(UTC))
    (folder / MARK).write_text("\n".join(group.name for group in groups) + "\n", encoding="utf-8")


class Today:
    """The town in real time."""

    def __init__(self, folder: Path, until_idle: bool, patience: int, begun: datetime, minute: datetime) -> None:
        import town

        self.town, self.app, self.folder, self.until_idle, self.minute = town, town.app, folder, until_idle, minute
        self.turning = frozenset((folder / MARK).read_text(encoding="utf-8").split("\n")) - {""}
        self.patience, self.begun, self.woke = patience, begun, time.monotonic()
        #: When the mayor was asked.
        self.asked = self.woke
        self.up, self.end = threading.Event(), threading.Event()
        self.told_posts = self.said_all = self.enough = False

    def live(self, letter: Letter, people: Sorted, plan: Plan | None, new: bool, port: int | None, log: TextIO) -> int:
        """Returns the exit code."""
        from duly.cli.main import cli

        letters = self.prepare(letter, people, plan)
        self.introduce(people, letters, plan, new)
        self.app.listen(lambda event: self.up.set() if event.name == "worker_started" else None)
        watch = threading.Thread(target=self.watch, name="town", daemon=True)
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
        from duly.kernel.source import read

        app, town = self.app, self.town
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
            made = [self.send(letter, person, session) for person in people.good]
        if plan is not None:
            town.rooms.publishing.enqueue_plan(plan.items, actor="calendar")
        automation = town.automations.ensure(read(HERE.parent / "automations" / "briefing.yaml").value)
        town.automations.run(automation.id, key=town.briefing.check(), reason="the town is awake")
        app.workflows.start("stall permit", {"trader": "Ada", "goods": "apple juice"}, key="stall-ada")
        app.enqueue("TURN_WEATHERCOCK", key="weathercock")
        return sum(made)

    def send(self, letter: Letter, person: Recipient, session: Session) -> bool:
        words = letter.to(person)
        made = self.town.rooms.mail.send(
            person.address,
            words["subject"],
            words["text"],
            html=words["html"],
            key=key_of("newsletter", person.address),
            session=session,
        )
        return bool(made.created)

    # ------------------------------------------------------------------ while it runs

    def watch(self) -> None:
        """Say what has changed, as long as the town is awake."""
        while not self.up.wait(0.1):  # until then `duly up` says what it serves
            if self.end.is_set():
                return
        before: Account | None = None
        while not self.end.wait(0.5):
            try:
                now = self.look()
            except DulyError:
                continue  # the worker tells, and tries again
            self.tell(before or now, now)
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
        import account

        return account.take(self.folder, self.turning, datetime.now(UTC))

    def approve(self, now: Account) -> None:
        self.app.workflows.approve(now.permit_run, reason="nobody sits here, so --until-idle says yes", actor="mayor")
        self.say("permit", f"--until-idle says yes in the mayor's place to run {now.permit_run}")

    def tell(self, before: Account, now: Account) -> None:
        if before.unsent and not now.unsent:
            self.say("newsletter", f"{now.taken} letters are in the mailbox, {now.refused} were refused for good")
        if now.posts > before.posts and not (now.unpublished and self.told_posts):
            self.told_posts = True
            rest = f"; {now.unpublished} more are due" if now.unpublished else ""
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
                f"\nStopped in good order; nothing is lost. {again('run', self.here())} goes on, {again('run', ['--fresh'])} begins another town."
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

    def here(self) -> list[str]:
        return [] if short(self.folder) == "var/town" else ["--folder", short(self.folder)]


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


if __name__ == "__main__":
    main()
