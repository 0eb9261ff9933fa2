"""``duly``: the commands, in the order of a day's work."""

from __future__ import annotations

import click

from duly._version import __version__
from duly.cli.accounts import tokens, users
from duly.cli.alerts import alerts
from duly.cli.automations import automations
from duly.cli.bench import bench
from duly.cli.blackouts import blackouts
from duly.cli.command import Root
from duly.cli.data import audit, doctor, migrate
from duly.cli.dispatch import dispatch
from duly.cli.enqueue import enqueue
from duly.cli.jobs import jobs
from duly.cli.mail import mail
from duly.cli.outbox import outbox
from duly.cli.publish import publish
from duly.cli.queues import gate, queues, why
from duly.cli.rounds import rounds
from duly.cli.schedules import schedules
from duly.cli.web import web
from duly.cli.work import up, worker
from duly.cli.workflows import workflows


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="duly", message="%(prog)s %(version)s")
def cli() -> None:
    """Jobs done on time, once, and on the record.

    Start with `duly up app.py`. Every command takes the common options, in any place; --json makes its output a
    document for programs. Exit codes: 0 done, 1 failed (stderr says why), 2 wrong usage.
    """


for command in (
    up,
    worker,
    web,
    dispatch,
    enqueue,
    jobs,
    queues,
    blackouts,
    gate,
    why,
    schedules,
    workflows,
    automations,
    outbox,
    rounds,
    mail,
    publish,
    alerts,
    tokens,
    users,
    audit,
    migrate,
    doctor,
    bench,
):
    cli.add_command(command)


def main() -> None:
    cli.main(prog_name="duly")


if __name__ == "__main__":
    main()
