"""``duly``: the commands, in the order of a day's work."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

from duly._version import __version__
from duly.cli.command import Root

#: Command → the module of ``duly.cli`` that it stands in, loaded when it is first asked for: a worker lives for months beside no
#: other command.
_HOMES = {
    "up": "work",
    "worker": "work",
    "web": "web",
    "dispatch": "dispatch",
    "enqueue": "enqueue",
    "jobs": "jobs",
    "queues": "queues",
    "blackouts": "blackouts",
    "gate": "queues",
    "why": "queues",
    "schedules": "schedules",
    "workflows": "workflows",
    "automations": "automations",
    "keys": "keys",
    "outbox": "outbox",
    "rounds": "rounds",
    "mail": "mail",
    "publish": "publish",
    "alerts": "alerts",
    "tokens": "accounts",
    "users": "accounts",
    "audit": "data",
    "migrate": "data",
    "doctor": "data",
    "bench": "bench",
}


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name, each loaded when it is looked up."""

    def __init__(self) -> None:
        self._added: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._added:
            found: click.Command = getattr(import_module(f"duly.cli.{_HOMES[name]}"), name)
            self._added[name] = found
        return self._added[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._added[name] = command

    def __delitem__(self, name: str) -> None:
        del self._added[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**_HOMES, **self._added})

    def __len__(self) -> int:
        return len({**_HOMES, **self._added})


@click.group(
    cls=Root, commands=_Commands(), context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="duly", message="%(prog)s %(version)s")
def cli() -> None:
    """Jobs done on time, once, and on the record.

    Start with `duly up app.py`. Every command takes the common options, in any place; --json makes its output a
    document for programs. Exit codes: 0 done, 1 failed (stderr says why), 2 wrong usage.
    """


def main() -> None:
    cli.main(prog_name="duly")


if __name__ == "__main__":
    main()
