"""A town in which every room of Duly is alive, on one SQLite file: `make run` starts here.

The story: make a folder and a database, let yesterday happen on a clock of its own, start a mail server for this machine, put everything of
today into the database, and run `duly up` in this process, with the dashboard. Meanwhile say what has happened, each from what really lies
there. Run it again and it goes on with the same town, which is made anew if it was not made to its end; `--fresh` makes another one.
"""

from __future__ import annotations

import os
import signal
import socket
import string
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

# until there is something to put in order, Ctrl-C just ends it
signal.signal(signal.SIGINT, signal.SIG_DFL)

import click  # noqa: E402

HERE = Path(__file__).parent
NEWSLETTER = HERE.parent / "newsletter"
sys.path.append(str(NEWSLETTER))  # its letters, its mail server, and its words for places are used here

import ground  # noqa: E402
from letter import Letter, Unusable, read_recipients, sort  # noqa: E402
from mailserver import MailServer  # noqa: E402
from places import again, make_folder, short, sqlite_url  # noqa: E402

from duly import DulyError, UsageError  # noqa: E402

if TYPE_CHECKING:
    from duly.publishing.plan import Plan

PATH = click.Path(path_type=Path)
CALENDAR = HERE / "calendar.yaml"
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
#: Seconds from the start until the full minute at which rounds turn: at least.
AHEAD = 20


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--folder",
    type=PATH,
    help=f"Where the town keeps its things.  [default: {ground.FIRST}, or the newest town beside it]",
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
    folder: Path | None,
    fresh: bool,
    until_idle: bool,
    patience: int,
    port: int | None,
    recipients: Path,
    calendar: Path,
) -> None:
    """Show the whole of Duly: a town with a newsletter, a gazette, rounds, a briefing, a permit and a market."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = datetime.now(UTC)
    minute = (begun + timedelta(seconds=AHEAD)).replace(second=0, microsecond=0) + MINUTE
    try:
        letter, people = Letter.load(NEWSLETTER / "newsletter"), sort(read_recipients(recipients))
        text = filled(calendar, begun, minute)
        plan = read_plan(text, calendar)
        check_port(port)
        folder = settle(folder, fresh)
        new = not ground.finished(folder)
        with ExitStack() as stack:
            if new and stack.enter_context(ground.begin(folder)):
                click.echo(f"{short(folder)} holds a town that was not made to its end: it is made anew.")
            server = stack.enter_context(MailServer(folder / "mail", latency=0.3))
            surround(folder, server.address)
            from today import LOG, Today

            log = stack.enter_context((folder / LOG).open("a", encoding="utf-8"))
            if new:
                (folder / "calendar.yaml").write_text(text, encoding="utf-8")
                make_yesterday(folder, plan, begun, minute)
            today = Today(folder, until_idle, patience, begun, minute)
            sys.exit(today.live(letter, people, plan if new or calendar != CALENDAR else None, new, port, log))
    except KeyboardInterrupt:
        on = again("run", [] if folder is None else ground.arguments(folder))
        click.echo(f"Stopped before the town was awake. {on} goes on, {again('run', ['--fresh'])} begins another town.")
    except (Unusable, UsageError) as error:
        raise click.UsageError(str(error)) from None
    except (DulyError, OSError) as error:
        raise click.ClickException(str(error)) from None


def settle(wanted: Path | None, fresh: bool) -> Path:
    """The town's folder, which is there then. Raises Unusable."""
    first = wanted or ground.FIRST
    folder = make_folder(first if fresh else ground.place(wanted), fresh)
    if not (fresh or ground.finished(folder) or ground.free(first)):
        click.echo(
            f"{short(first)} holds half a town, or a database of somebody else, and stays as it is: {short(folder)} is taken."
        )
    return folder.absolute()


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
    ground.finish(folder, [group.name for group in groups])


if __name__ == "__main__":
    main()
