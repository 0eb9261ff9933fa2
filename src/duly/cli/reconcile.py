"""``duly outbox reconcile``: catching up without an outbox.

Expected artefacts are read from a file or a query, compared with what was enqueued, and the missing jobs are made under
their keys. A bad row is told with its number and does not harm the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import BULK, Command, complain, state
from duly.cli.jobs import _confirm, _progress

if TYPE_CHECKING:
    from duly.outbox.reconcile import Application, Expected, Findings, Wanted

#: Rows of a file that are told one by one, and keys that are listed.
TOLD, LISTED = 50, 1000


class _Column(click.ParamType):  # type: ignore[type-arg]
    name = "name[=column]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, _, column = str(value).partition("=")
        if not name:
            self.fail(f"{value!r}: before = stands the name of a parameter.", param, ctx)
        return name, column or name


@click.command(cls=Command)
@click.option("--task", "-t", required=True, help="The task whose jobs are expected.")
@click.option(
    "--queue", "-q", help="Their queue. Default: a key counts wherever it is, and jobs are made in the task's queue."
)
@click.option("--tenant", default="default", show_default=True, help="Their tenant.")
@click.option(
    "--file",
    "-f",
    "file",
    type=click.Path(allow_dash=True, dir_okay=False),
    help="Expected artefacts: .csv, or a JSON object a line; - is stdin.",
)
@click.option(
    "--format", "format_", type=click.Choice(["csv", "jsonl"]), help="Of the file. Default: by its name, else jsonl."
)
@click.option("--query", metavar="SQL", help="Expected artefacts: the rows of this query, which may not write.")
@click.option("--on", metavar="URL", help="With --query: on this database. Default: the application's own.")
@click.option(
    "--key", default="{key}", show_default=True, metavar="TEMPLATE", help="The key, from columns: charge-{order}."
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    type=_Column(),
    metavar="NAME[=COLUMN]",
    help="A parameter and its column; may be repeated. Default: the column `input` (JSON), else every column but `key`.",
)
@click.option("--dry-run", is_flag=True, help="Compare only; enqueue nothing.")
@click.option("--yes", "-y", is_flag=True, help=f"Do not ask (more than {BULK} are asked for).")
def reconcile(
    task: str, queue: str | None, tenant: str, file: str | None, format_: str | None, query: str | None, on: str | None, key: str,
    inputs: Sequence[tuple[str, str]], dry_run: bool, yes: bool,
) -> int:  # fmt: skip
    """Enqueue what should have been and was not.

    For those who enqueue without an outbox, after a crash between a commit and its enqueue. A row of the file or of the
    query is an artefact that should exist. Its key makes the job, so nothing is made twice: not by a second run, not by the
    application beside it.
    """
    from duly.outbox import reconcile as work

    if (file is None) == (query is None):
        raise click.UsageError("Give a --file or a --query with the expected artefacts.")
    if on is not None and query is None:
        raise click.UsageError("--on goes with --query.")
    app: Any = state().open(make=not dry_run)
    wanted = work.Wanted(task, queue, tenant)
    bad: list[dict[str, Any]] = []
    shape = work.Shape(key, dict(inputs))
    with _rows(file, format_, query, on or app.settings.database_url, shape) as rows:
        found = work.compare(app, _good(rows, bad, lambda one: work.check(app, one, wanted)), wanted)
    created = existing = 0
    if not dry_run and found.missing:
        if len(found.missing) > BULK and not yes:
            _confirm(f"enqueue {show.count(len(found.missing), 'job')} of task {task}")
        created, existing = _enqueue(app, found.missing, wanted)
    _tell(found, bad, dry_run, created, existing)
    return 1 if bad or found.taken else 0


@contextmanager
def _rows(
    file: str | None, format_: str | None, query: str | None, url: str, shape: Any
) -> Iterator[Iterator[tuple[int, Any]]]:
    from duly.kernel.errors import InvalidArgument
    from duly.outbox import reconcile as work

    if query is not None:
        yield work.read_query(url, query, shape)
        return
    assert file is not None
    read: Callable[[IO[str], Any], Iterator[tuple[int, Any]]]
    read = work.read_csv if format_ == "csv" or (format_ is None and file.lower().endswith(".csv")) else work.read_jsonl
    try:
        with click.open_file(file, encoding="utf-8-sig") as opened:
            yield read(opened, shape)
    except OSError as error:
        raise InvalidArgument("file", f"{file} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise InvalidArgument("file", f"{file} is not UTF-8.") from None


def _good(
    rows: Iterator[tuple[int, Any]], bad: list[dict[str, Any]], check: Callable[[Expected], str]
) -> Iterator[Expected]:
    """The artefacts; rows that are none are told with their number and do not harm the others."""
    for number, row in rows:
        if not isinstance(row, str):
            row = check(row) or row
        if not isinstance(row, str):
            yield row
            continue
        bad.append({"line": number, "reason": row})
        if len(bad) <= TOLD:
            complain(f"row {number}: {row}")
        elif len(bad) == TOLD + 1:
            complain("more bad rows follow; they are counted only.")


def _enqueue(app: Application, missing: Sequence[Expected], wanted: Wanted) -> tuple[int, int]:
    from duly.outbox import reconcile as work

    created = existing = 0
    with _progress("enqueue", len(missing)) as step:
        for made, there in work.enqueue(app, missing, wanted):
            created, existing = created + made, existing + there
            step(made + there)
    return created, existing


def _tell(found: Findings, bad: list[dict[str, Any]], dry_run: bool, created: int, existing: int) -> None:
    present: Counter[str] = found.present
    if state().json:
        done = {"would_enqueue": len(found.missing)} if dry_run else {"enqueued": created, "existing": existing}
        show.as_json({
            "expected": found.expected, "repeated": found.repeated, "present": sum(present.values()), "by_status": dict(present),
            "missing": len(found.missing), **done, "taken": found.taken[:LISTED], "keys": [e.key for e in found.missing[:LISTED]],
            "bad": len(bad), "lines": bad[:LISTED],
        })  # fmt: skip
        return
    of = f" ({', '.join(f'{n:,} {status}' for status, n in sorted(present.items()))})" if present else ""
    show.facts([
        ("expected", f"{found.expected:,}"),
        ("repeated", f"{found.repeated:,}" if found.repeated else ""),
        ("enqueued", f"{sum(present.values()):,}{of}"),
        ("missing", f"{len(found.missing):,}"),
        ("bad rows", f"{len(bad):,}" if bad else ""),
    ])  # fmt: skip
    for key in found.taken[:TOLD]:
        complain(f"key {key} belongs to a job of another task.")
    if dry_run:
        for one in found.missing[:BULK]:
            show.say(f"  would enqueue {one.key}")
        if len(found.missing) > BULK:
            show.say(f"  and {len(found.missing) - BULK:,} more")
        show.say("Nothing was written.")
    elif found.missing:
        show.say(f"{show.count(created, 'job')} enqueued{f', {existing:,} existed after all' if existing else ''}.")
    elif found.expected == 0:
        show.say("Nothing was expected: there is no usable row.")
    else:
        show.say("Nothing is missing.")
