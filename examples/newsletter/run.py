"""The newsletter, from a list of recipients to a mailbox full of letters. ``make newsletter`` starts here.

The story: make a run folder with a database in it, start a mail server for this machine, read the recipients, put a job
for each of them into the database (all or none), and let a worker send them. Run it again and nothing is sent twice;
kill it in the middle and the next run goes on where this one stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from letter import Letter, Recipient, Unusable, key_of, read_recipients, sort
from mailserver import MailServer
from places import make_folder, sqlite_url
from progress import Burst, Progress
from rich.console import Console
from sqlalchemy.orm import Session
from tell import Put, Teller

from duly import DulyError, InvalidArgument, Status, UsageError

if TYPE_CHECKING:
    from duly import Duly

HERE = Path(__file__).parent
PATH = click.Path(path_type=Path)
#: How long --until-idle waits for retries that are due later, in seconds.
PATIENCE = 60.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--recipients",
    type=PATH,
    default=HERE / "recipients.csv",
    metavar="FILE",
    help="A CSV file with the columns address and name.  [default: the example's]",
)
@click.option(
    "--template",
    type=PATH,
    default=HERE / "newsletter",
    metavar="STEM",
    help="The letter: STEM.txt.j2 and STEM.html.j2.  [default: the example's]",
)
@click.option(
    "--campaign", metavar="NAME", help="Nobody gets two letters of one campaign.  [default: the template's name]"
)
@click.option(
    "--folder",
    type=PATH,
    default=Path("var/newsletter"),
    show_default=True,
    help="The run folder, for the database and the messages.",
)
@click.option("--fresh", is_flag=True, help="Begin anew, in another folder beside it.")
@click.option("--database-url", metavar="URL", help="A database elsewhere, such as postgresql://user@host/name.")
@click.option("--until-idle", is_flag=True, help="End when every letter is sent or refused.")
@click.option("--enqueue-only", is_flag=True, help="Leave the sending to a run in another terminal.")
@click.option(
    "--latency",
    type=click.FloatRange(min=0),
    default=0.3,
    show_default=True,
    metavar="SECONDS",
    help="How long the mail server takes over each message.",
)
def main(
    recipients: Path,
    template: Path,
    campaign: str | None,
    folder: Path,
    fresh: bool,
    database_url: str | None,
    until_idle: bool,
    enqueue_only: bool,
    latency: float,
) -> None:
    """Send a newsletter through Duly to a mail server on this machine. No message leaves it."""
    if fresh and database_url:
        raise click.UsageError(
            "--fresh begins with a new database, and --database-url names one. Use another --campaign there."
        )
    tell = Teller(Console(highlight=False))
    try:
        letter, people = Letter.load(template), read_recipients(recipients)
        folder = make_folder(folder, fresh)
        with ExitStack() as stack:
            server = None if enqueue_only else stack.enter_context(MailServer(folder / "mail", latency=latency))
            app = open_app(database_url or sqlite_url(folder), server)
            stack.callback(app.close)
            with tell.writing(len(people)):
                began = time.monotonic()
                put = enqueue(app, letter, people, campaign or template.name)
            tell.enqueued(put, app, time.monotonic() - began)
            if server is not None:
                tell.started(app, folder, server.address)
                work(app, put, tell, folder, until_idle)
    except KeyboardInterrupt:
        tell.interrupted()
    except (Unusable, UsageError) as error:
        raise click.UsageError(str(error)) from None
    except (DulyError, OSError) as error:
        raise click.ClickException(str(error)) from None


def open_app(database_url: str, server: MailServer | None) -> Duly:
    """The application of app.py. It learns from its environment where things are, as it would anywhere else."""
    os.environ["DULY_DATABASE_URL"] = database_url
    # for how long the letters of a killed worker are left alone: short, so that nobody waits for an example
    os.environ.setdefault("DULY_LEASE", "10")
    # not a line for each letter: the progress tells of them (DULY_LOG_LEVEL=info tells every one)
    os.environ.setdefault("DULY_LOG_LEVEL", "warning")
    if server is not None:
        os.environ["NEWSLETTER_SMTP"] = server.address

    from app import app

    app.open()
    return app


def enqueue(app: Duly, letter: Letter, people: Sequence[Recipient], campaign: str) -> Put:
    """Make a job for each mailbox, all in one transaction: whatever happens in here, there are all of them or none."""
    from app import send_email

    found = sort(people)
    put = Put(campaign, duplicates=found.duplicates, bad=found.bad)
    with Session(app.db.session_engine) as session, session.begin():
        for person in found.good:
            key = key_of(campaign, person.address)
            try:
                made = send_email.using(session=session, key=key).enqueue(to=person.address, **letter.to(person))
            except InvalidArgument as error:
                put.bad.append((person.line, str(error)))
                continue
            put.new += made.created
            put.before += not made.created
    put.bad.sort()
    return put


def work(app: Duly, put: Put, tell: Teller, folder: Path, until_idle: bool) -> None:
    """Start ``duly up`` in this process: it sends until all is done, or until Ctrl-C, which lets running jobs finish."""
    from duly.cli.main import cli

    def out(burst: Burst) -> None:
        tell.out(app, put, burst, folder, serving=not until_idle)

    up = ["up", str(HERE / "app.py"), *(["--until-idle", f"--patience={PATIENCE:g}"] if until_idle else [])]
    with Progress(app, "mail", tell.console, out, serving=not until_idle):
        try:
            cli.main(up, prog_name="duly")
        except SystemExit as end:
            # it ends with 1 where jobs have failed: mailboxes that refuse are part of any list
            if end.code and not (until_idle and all_ended(app)):
                raise


def all_ended(app: Duly) -> bool:
    return not app.jobs.count(queue="mail", status=(Status.QUEUED, Status.RUNNING))


if __name__ == "__main__":
    main()
