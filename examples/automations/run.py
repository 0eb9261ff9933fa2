"""A morning briefing: `python examples/automations/run.py --until-idle`.

The story: make a run folder with a database in it, look at the files of a small shop, make the automation of `briefing.yaml`, ask for one
execution under the key of its day, and let a worker run it. Run it again and nothing is done twice; kill it in the middle and the next run
goes on where this one stopped, in the same session. The AI is a script, so it says the same each time and nothing leaves the machine.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from sqlalchemy.engine import URL

from duly import DulyError
from duly.kernel.events import Event

if TYPE_CHECKING:
    from duly.automations import Session

HERE = Path(__file__).parent
PATH = click.Path(path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--folder", type=PATH, default=Path("var/briefing"), show_default=True, help="Where the briefing and the database go.")  # fmt: skip
@click.option("--data", type=PATH, default=HERE, metavar="FOLDER", help="Where orders.csv, calendar.csv and stock.csv lie.  [default: the example's]")  # fmt: skip
@click.option("--database-url", metavar="URL", help="A database elsewhere, such as postgresql://user@host/name.")
@click.option("--until-idle", is_flag=True, help="End when today's briefing is written; else go on, and write one each morning.")  # fmt: skip
@click.option("--latency", type=click.FloatRange(0, 60), default=0.2, show_default=True, metavar="SECONDS", help="How long each look at a file takes.")  # fmt: skip
def main(folder: Path, data: Path, database_url: str | None, until_idle: bool, latency: float) -> None:
    """Have a briefing written, once for each day."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"{folder} cannot be the run folder: {error.strerror}.") from None
    url = database_url or URL.create("sqlite", database=str(folder / "duly.db")).render_as_string()
    os.environ.update(DULY_DATABASE_URL=url, BRIEFING_FOLDER=str(folder), BRIEFING_DATA=str(data), BRIEFING_LATENCY=str(latency))  # fmt: skip
    # for how long what a killed worker held is left alone: short, so that nobody waits for an example
    os.environ.setdefault("DULY_LEASE", "3")
    os.environ.setdefault("DULY_LOG_LEVEL", "warning")
    import app

    try:
        day = app.check()
        sys.exit(Morning(folder, until_idle).live(day))
    except app.Unusable as error:
        raise click.UsageError(str(error)) from None
    except (DulyError, OSError) as error:
        raise click.ClickException(str(error)) from None


class Morning:
    """One run of this program."""

    def __init__(self, folder: Path, until_idle: bool) -> None:
        import app

        from duly.kernel.source import read

        self.folder, self.until_idle = folder, until_idle
        self.app, self.automations = app.app, app.automations
        app.make_tables()
        self.automation: Any = self.automations.ensure(read(HERE / "briefing.yaml").value)
        self.asked_to_stop = False
        self.app.listen(self.hear)

    def hear(self, event: Event) -> None:
        told = event.facts
        if event.name == "signal":
            self.asked_to_stop = True
        elif event.name == "session_started":
            click.echo(f"  session {told['session']} has the slot")
        elif event.name == "session_resumed":
            click.echo(f"  session {told['session']} goes on ({told['reason']})")
        elif event.name == "session_call":
            click.echo(f"  {told['tool']}: {told['status']}")

    def live(self, day: str) -> int:
        """Returns the exit code."""
        click.echo(f"The briefing of {day}, process {os.getpid()}; kill -9 it in the middle, and run this again.")
        asked = self.automations.run(self.automation.id, key=day)
        session = asked.session
        if not asked.created:
            ended = session.end_reason is not None and not session.is_active
            click.echo(f"Session {session.id} of that day is there already: {'nothing is done twice' if ended else 'it goes on'}.")  # fmt: skip
        if self.until_idle:
            session = self.until_ended(session)
        else:
            click.echo("A worker runs until Ctrl-C, and writes a briefing every morning at seven in Rome.")
            self.app.worker().run()
            session = self.automations.session(session.id)
        self.show(session)
        failed = [call for call in self.automations.calls(session.id) if call.status != "done"]
        for call in failed:
            click.echo(f"wrong: call {call.number}, {call.tool}, {call.status}: {call.result}", err=True)
        self.app.close()
        if self.asked_to_stop:
            return 0
        return 0 if session.end_reason == "COMPLETED" and not failed else 1

    def until_ended(self, session: Session) -> Session:
        """Work until the session has ended. A worker that ends when it is idle does not wait for the pass that has a session go on."""
        while str(session.status) != "ended" and not self.asked_to_stop:
            self.automations.tick()
            self.app.worker().run(until_idle=True)
            session = self.automations.session(session.id)
            time.sleep(0 if str(session.status) == "ended" else 0.1)
        return session

    def show(self, session: Session) -> None:
        """What happened, and what to try next."""
        click.echo()
        if session.end_reason != "COMPLETED":
            click.echo(
                f"Session {session.id}: {session.end_reason or session.status}. {session.end_detail or ''}".rstrip()
            )
            if str(session.status) == "ended":
                click.echo("It stays so under its key; `duly automations run 'morning briefing'` has it written anew.")
        else:
            file = self.folder / "briefing.md"
            click.echo(file.read_text(encoding="utf-8") if file.is_file() else f"{file} is not there any more.\n")
            seconds = (session.ended_at - session.started_at).total_seconds() if session.ended_at and session.started_at else 0.0  # fmt: skip
            rounds, calls = self.automations.rounds(session.id), self.automations.calls(session.id)
            lives = len({one.activation for one in rounds})
            goes = "" if lives == 1 else f", interrupted {lives - 1} times" if lives > 2 else ", interrupted once"
            click.echo(f"Session {session.id}: {len(rounds)} questions, {len(calls)} calls, {session.tokens_used:,} tokens, {seconds:.1f} s{goes}.")  # fmt: skip
        click.echo(
            f"\nLook at it, and talk with it:\n"
            f"  export DULY_APP={HERE / 'app.py'} DULY_DATABASE_URL='{self.app.db.shown_url}'\n"
            f"  duly automations show {session.id}\n"
            f"  duly automations why '{self.automation.name}'\n"
            f"  duly automations chat 'Where is the briefing?'\n"
            f"Run this again: the day has its briefing, and nothing is done. Add an order of the next day to orders.csv, and there is a new one."
        )


if __name__ == "__main__":
    main()
