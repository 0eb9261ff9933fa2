"""What every command shares: common options in any place, one way to find the application, one way to fail.

Exit codes: 0 done, 1 failed, 2 wrong usage. A failure is one sentence on stderr, without a traceback unless it is asked
for (``--debug`` or ``DULY_DEBUG``), and never with a password in it.
"""

from __future__ import annotations

import getpass
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from duly.kernel.errors import UnknownNameWarning
from duly.monitoring.redact import hide_passwords, visible

if TYPE_CHECKING:
    from duly.app import Duly

#: More jobs than this are not cancelled, replayed or pruned by filter without ``--yes`` or a yes on the terminal.
BULK = 20


@dataclass
class State:
    """The common options, wherever on the line they stood."""

    database_url: str | None = None
    app: str | None = None
    json: bool = False
    debug: bool = field(default_factory=lambda: os.environ.get("DULY_DEBUG", "") not in ("", "0"))

    def duly(self, target: str | None = None, *, tasks: bool = False) -> Duly:
        """The application: named on the line, by ``--app`` or by DULY_APP; else a bare one on the database.

        ``tasks``: a bare one will not do. Raises InvalidArgument when it cannot be found, or when it names another
        database than ``--database-url``.
        """
        from duly.cli import loading

        found = loading.application(target or self.app or os.environ.get("DULY_APP"), self.database_url, tasks)
        click.get_current_context().call_on_close(found.close)
        return found

    def unmigrated(self, anyhow: bool) -> Duly:
        """The application as ``duly`` gives it, or a bare one on its database where it stops because the tables are missing or too old.

        ``anyhow``: also one on the database that is named here, where the application cannot be loaded at all; stderr says so.
        """
        from duly.cli import loading

        found, told = loading.database_of(self.app or os.environ.get("DULY_APP"), self.database_url, anyhow)
        click.get_current_context().call_on_close(found.close)
        if told:
            complain(told)
        return found

    def open(self, make: bool = False) -> Duly:
        """The application with its database checked. ``make``: an embedded one is made if it is not there.

        Who looks, or acts on what is there, makes none: a wrong path is told and leaves nothing behind. Raises
        SchemaMissing then.
        """
        app = self.duly()
        if not make:
            from duly.storage.migrate import require

            require(app.db)
        app.open()
        return app


def state() -> State:
    found = click.get_current_context().find_object(State)
    assert found is not None
    return found


def actor() -> str:
    """Who asks, as it will stand in the audit trail."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):  # a container may run under a number that has no name
        return f"cli:{os.getuid()}"


class _Id(click.ParamType):  # type: ignore[type-arg]
    """The number of a job or of an audit row."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not (text.isascii() and text.isdigit() and 1 <= int(text) < 2**63):
            self.fail(f"{text!r} is not an id; ids are numbers from 1.", param, ctx)
        return int(text)


ID = _Id()


# ---------------------------------------------------------------------- options in any place


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:
        assert param.name is not None
        setattr(ctx.ensure_object(State), param.name, value)


def _common() -> list[click.Parameter]:
    kind: dict[str, Any] = {"expose_value": False, "is_eager": True, "callback": _remember}
    return [
        click.Option(
            ["--database-url"],
            metavar="URL",
            help="The database; else the application's, DULY_DATABASE_URL, or sqlite:///duly.db.",
            **kind,
        ),
        click.Option(
            ["--app"],
            metavar="MODULE:NAME",
            help="The application, such as app.py or shop.jobs:app; else DULY_APP.",
            **kind,
        ),
        click.Option(["--json"], is_flag=True, help="Print JSON.", **kind),
        click.Option(["--debug"], is_flag=True, help="Show the traceback of a failure (also DULY_DEBUG=1).", **kind),
    ]


class _Shared:
    """Adds the common options to a command and sets them apart in its help."""

    params: list[click.Parameter]
    common: list[click.Parameter]

    def _share(self) -> None:
        self.common = _common()
        self.params = [*self.params, *self.common]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [p for p in self.get_params(ctx) if isinstance(p, click.Option) and p not in self.common]  # type: ignore[attr-defined]
        _section(ctx, formatter, "Options", own)
        if ctx.parent is None:
            _section(ctx, formatter, "Common options", self.common)
        else:
            formatter.write_paragraph()
            formatter.write_text(f"Common options: {', '.join(p.opts[0] for p in self.common)} (see duly --help).")


def _section(ctx: click.Context, formatter: click.HelpFormatter, title: str, params: Sequence[click.Parameter]) -> None:
    records = [r for p in params if (r := p.get_help_record(ctx)) is not None]
    if records:
        with formatter.section(title):
            formatter.write_dl(records)


class Command(_Shared, click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._share()


class Group(_Shared, click.Group):
    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._share()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of definition, which is the order of a day's work


class Root(Group):
    """``duly`` itself: the one place where a failure becomes an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # an ASCII terminal gets escapes, not a crash
        asked = State()
        url = os.environ.get("DULY_DATABASE_URL")
        try:
            with _warnings_in_words():
                code = super().main(
                    args,
                    prog_name,
                    complete_var,
                    standalone_mode=False,
                    windows_expand_args=windows_expand_args,
                    obj=asked,
                    **extra,
                )
        except BaseException as error:
            if isinstance(error, SystemExit):
                raise
            if asked.debug and not isinstance(error, click.ClickException | click.Abort):
                click.echo(visible(hide_passwords("".join(traceback.format_exception(error)))), err=True, nl=False)
            code = fail(error)
        finally:
            _restore("DULY_DATABASE_URL", url)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # `duly jobs list | head`: the reader has seen enough. Nothing failed, and nothing more may be written.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None


@contextmanager
def _warnings_in_words() -> Iterator[None]:
    """Print a warning about a name that does not exist as one line, each once; other warnings as Python prints them."""
    with warnings.catch_warnings():
        plain, told = warnings.showwarning, set[str]()

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if not issubclass(category, UnknownNameWarning):
                plain(message, category, *rest, **more)
            elif str(message) not in told:
                told.add(str(message))
                complain(f"warning: {message}")

        warnings.simplefilter("always", UnknownNameWarning)
        warnings.showwarning = show
        yield


def _restore(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


# ---------------------------------------------------------------------- failing


def fail(error: BaseException) -> int:
    """Say what went wrong in one sentence on stderr. Returns the exit code."""
    if isinstance(error, click.UsageError):
        error.show()
        return 2
    if isinstance(error, click.Abort | KeyboardInterrupt):
        complain("stopped.")
        return 1
    if isinstance(error, click.ClickException):
        complain(error.format_message())
        return error.exit_code
    from duly.kernel.errors import DulyError, UsageError

    if isinstance(error, UsageError):
        complain(str(error))
        return 2
    if isinstance(error, DulyError):
        complain(str(error))
        return 1
    first = (str(error).strip() or "no message").splitlines()[0]
    complain(f"{type(error).__name__}: {first} (--debug shows where)")
    return 1


def complain(text: str) -> None:
    """One line on stderr."""
    click.echo(f"duly: {visible(hide_passwords(text))}", err=True)
