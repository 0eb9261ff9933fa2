"""``duly enqueue``: one job from the command line, or many from a file of JSON lines.

A file is read line by line and written in batches, so it may be larger than memory. A bad line is told with its number
and the reason and does not harm the others, also where only the database can tell that it is bad; with ``--all-or-nothing`` every line is checked first and all jobs are
written by one transaction, or none. A line that carries a key can be sent again without harm.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from duly.cli import show
from duly.cli.command import ID, Command, complain, state
from duly.cli.times import INSTANT, SPAN, parse_instant, parse_span, stamp

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.jobs.enqueue import NewJob, Parent
    from duly.jobs.job import Enqueued

#: Lines per transaction.
BATCH = 500
#: Lines, good or bad, that are looked at before the bad ones among them are told.
AHEAD = 2000
#: Bad lines that are told one by one.
TOLD = 50
_FIELDS = (
    "task", "input", "key", "queue", "priority", "run_at", "run_in", "tenant", "max_attempts", "concurrency_key", "parent", "meta",
)  # fmt: skip


@click.command(cls=Command)
@click.argument("task", required=False)
@click.argument("input", required=False, metavar="[JSON]")
@click.option(
    "--file", "-f", "file", type=click.Path(allow_dash=True, dir_okay=False), help="A job a line; - is stdin."
)
@click.option("--key", help="The idempotency key: at most one job per tenant, queue and key.")
@click.option("--queue", "-q", help="Default: the task's, or `default`.")
@click.option("--priority", type=click.IntRange(-(2**31), 2**31 - 1), metavar="N", help="Higher runs first.")
@click.option("--run-at", type=INSTANT, metavar="INSTANT", help="Not before this instant: 2026-07-27T09:00:00Z.")
@click.option("--run-in", type=SPAN, metavar="SPAN", help="Not before so long from now: 90, 15min, 1h30m.")
@click.option("--tenant", help="Whose job it is.")
@click.option("--max-attempts", type=click.IntRange(1, 2**31 - 1), metavar="N", help="How often it may run in all.")
@click.option("--concurrency-key", metavar="KEY", help="Jobs with the same one share the queue's key limit.")
@click.option("--parent", type=ID, metavar="ID", help="The job it belongs to.")
@click.option("--all-or-nothing", is_flag=True, help="With --file: one bad line, and nothing is written.")
@click.option("--dry-run", is_flag=True, help="Check only; write nothing.")
def enqueue(
    task: str | None, input: str | None, file: str | None, all_or_nothing: bool, dry_run: bool, **options: Any
) -> int:
    """Make a job of a task, or many from a file.

    The JSON object is the input of TASK; with --file each line is a job.

    With an application (--app), a task that it defines is checked by its annotations; without one, the input travels as
    it is. JSON may be - for stdin.

    A line of a file is {"task": …, "input": {…}} and may have key, queue, priority, run_at, run_in, tenant, max_attempts,
    concurrency_key, parent and meta; what it lacks is taken from the options.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if file is not None:
        if input is not None:
            raise click.UsageError("With --file the input stands in the lines.")
        if "key" in given:
            raise click.UsageError("With --file each line has its own key.")
        return _file(file, {**given, **({"task": task} if task else {})}, all_or_nothing, dry_run)
    if task is None:
        raise click.UsageError("Name a TASK, or a --file.")
    if all_or_nothing:
        raise click.UsageError("--all-or-nothing goes with --file.")
    return _one(task, input, given, dry_run)


# ---------------------------------------------------------------------- one


def _one(task: str, text: str | None, options: dict[str, Any], dry_run: bool) -> int:
    from duly.kernel.errors import InvalidArgument
    from duly.kernel.names import noticing

    asked = state()
    app = asked.duly()
    try:
        value = _object(sys.stdin.read() if text == "-" else text)
    except InvalidArgument as error:  # the command is right: it ends with 1, as with a bad line of a file (case B082)
        raise click.ClickException(str(error)) from None
    if dry_run:
        with noticing() as warned:
            new = _prepare(app, task, value, options)
        _warn(warned)
        from duly.jobs.enqueue import no_parent

        for parent, _ in _orphans(app, [new]):
            raise no_parent(parent)
        show.as_json({"would_create": 1, "warnings": warned}) if asked.json else show.say(
            "It would be accepted. Nothing was written."
        )
        return 0
    with noticing() as warned:
        job, created = app.enqueue(task, value, **options)
    _warn(warned)
    if asked.json:
        show.as_json(
            {
                "id": job.id,
                "created": created,
                "task": job.task,
                "queue": job.queue,
                "status": job.status,
                "run_at": job.run_at,
                "warnings": warned,
            }
        )
    elif created:
        later = f", due {stamp(job.due_at)}" if job.due_at else ""
        show.say(f"Job {job.id} of task {job.task} is {'planned' if later else 'waiting'} in queue {job.queue}{later}.")
    else:
        show.say(f"Key {job.key} has job {job.id} already ({job.status}). Nothing was written.")
    return 0


def _warn(warned: Sequence[str]) -> None:
    """Print names that do not exist on stderr: they may be misspelt, or defined by a worker that starts later."""
    for said in warned[:TOLD]:
        complain(f"warning: {said}")


def _object(text: str | None) -> dict[str, Any]:
    from duly.kernel.errors import InvalidArgument
    from duly.kernel.payload import read_json

    if text is None:
        return {}
    value = read_json(text.encode("utf-8", "surrogateescape"), "input")
    if not isinstance(value, dict):
        raise InvalidArgument("input", f"is {_kind(value)}; it must be a JSON object of argument names to values.")
    return value


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _prepare(app: Duly, task: str, value: Mapping[str, Any], options: Mapping[str, Any]) -> NewJob:
    """A job checked and encoded, and not written yet."""
    return app.prepare(task, value, **options)


# ---------------------------------------------------------------------- many


@dataclass
class _Tally:
    """What became of the lines so far."""

    created: int = 0
    existing: int = 0
    #: Jobs found good and not written: a dry run, or nothing after all.
    good: int = 0
    bad: int = 0
    told: list[dict[str, Any]] = field(default_factory=list)
    #: Names in the file that do not exist.
    warned: list[str] = field(default_factory=list)
    #: The last line whose job is on disk, for those who must go on from there.
    written: int = 0
    #: First and last line of a batch whose write was cut in the middle.
    unsure: tuple[int, int] | None = None

    def refuse(self, line: int, reason: str) -> None:
        self.bad += 1
        if len(self.told) < 1000:
            self.told.append({"line": line, "reason": reason})
        if self.bad <= TOLD:
            complain(f"line {line}: {reason}")
        elif self.bad == TOLD + 1:
            complain("more bad lines follow; they are counted only.")


def _file(name: str, defaults: dict[str, Any], all_or_nothing: bool, dry_run: bool) -> int:
    from duly.kernel.errors import InvalidArgument
    from duly.kernel.names import noticing

    app = state().duly()
    if not dry_run:
        app.open()
    tally = _Tally()
    try:
        with noticing() as tally.warned, _opened(name) as (source, size), _progress(size) as step:
            batches = _batches(app, _lines(app, source, defaults, step), tally)
            if dry_run:
                tally.good = sum(len(batch) for batch in batches)
            elif all_or_nothing:
                _all(app, [line for batch in batches for line in batch], tally)
            else:
                for batch in batches:
                    _write(app, batch, tally)
    except OSError as error:
        raise InvalidArgument("file", f"{name} cannot be read: {error.strerror or error}.") from None
    except BaseException:  # an interruption too: whoever goes on must know from where
        _stopped(tally, not dry_run)
        raise
    _report(tally, all_or_nothing, dry_run)
    return 1 if tally.bad else 0


def _stopped(tally: _Tally, writes: bool) -> None:
    """Say how far it came: with the failure or the interruption still to be told."""
    upto = f"the jobs up to line {tally.written:,} are written" if tally.written else "no job is written"
    if tally.unsure:
        first, last = tally.unsure
        those = f"lines {first:,} to {last:,}" if last > first else f"line {last:,}"
        known = f"{upto}; " if tally.written else ""
        complain(f"stopped: {known}whether {those} became jobs{' too' if known else ''} is not known.")
    elif tally.written:
        complain(f"stopped: {upto}, those behind it are not.")
    elif writes and isinstance(sys.exc_info()[1], KeyboardInterrupt):
        complain(f"stopped: {upto}.")


@contextmanager
def _opened(name: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """The file and its size in bytes; None for stdin."""
    if name == "-":
        yield sys.stdin.buffer, None
        return
    path = Path(name)
    with path.open("rb") as file:
        yield file, path.stat().st_size


@contextmanager
def _progress(size: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, on a terminal only, for files that take longer than a blink."""
    if not sys.stderr.isatty() or size is None or size < 200_000:
        yield lambda _: None
        return
    with click.progressbar(length=size, label="enqueue", file=sys.stderr) as bar:
        yield bar.update


def _lines(
    app: Duly, source: IO[bytes], defaults: Mapping[str, Any], step: Callable[[int], None]
) -> Iterator[tuple[int, NewJob | str]]:
    """(line number, job) of each line that can become one, as far as the line itself tells; else why it cannot."""
    from duly.kernel.errors import UsageError

    read = 0
    for number, data in enumerate(source, start=1):
        read += len(data)
        if number % 100 == 0:
            step(read)
            read = 0
        line = data.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else data.strip()
        if not line:
            continue
        try:
            task, value, options = _line(line, defaults)
            new = _prepare(app, task, value, options)
        except (UsageError, ValueError) as error:
            yield number, str(error)
            continue
        yield number, new
    step(read)


def _line(data: bytes, defaults: Mapping[str, Any]) -> tuple[str, Any, dict[str, Any]]:
    """(task, input, options) of a line. Raises InvalidArgument naming the field, ValueError about the whole line."""
    from duly.kernel.errors import InvalidArgument, InvalidPayload
    from duly.kernel.payload import read_json

    try:
        found = read_json(data, "")
    except InvalidPayload:
        raise
    except InvalidArgument as error:
        raise ValueError(f"it {error.problem}") from None
    if not isinstance(found, dict):
        raise ValueError(f"it is {_kind(found)}; it must be a JSON object.")
    for name in found:
        if name not in _FIELDS:
            raise InvalidArgument(name, "is not a field of a job.", f"Fields are: {', '.join(_FIELDS)}.")
    own = {name: value for name, value in found.items() if value is not None}
    if "run_at" in own or "run_in" in own:
        defaults = {name: value for name, value in defaults.items() if name not in ("run_at", "run_in")}
    values = {**defaults, **own}
    task = values.pop("task", None)
    if task is None:
        raise InvalidArgument("task", "is missing.")
    if not isinstance(task, str):
        raise InvalidArgument("task", f"is {_kind(task)}; it must be a text.")
    value = values.pop("input", {})
    if not isinstance(value, dict):
        raise InvalidArgument("input", f"is {_kind(value)}; it must be an object of argument names to values.")
    return task, value, _typed(values)


def _typed(values: dict[str, Any]) -> dict[str, Any]:
    from duly.kernel.errors import InvalidArgument

    for name in ("priority", "max_attempts", "parent"):
        if name in values and type(values[name]) is not int:
            raise InvalidArgument(name, f"is {_kind(values[name])}; it must be a whole number.")
    if "meta" in values and not isinstance(values["meta"], dict):
        raise InvalidArgument("meta", f"is {_kind(values['meta'])}; it must be an object.")
    if "parent" in values and not 1 <= values["parent"] < 2**63:
        raise InvalidArgument("parent", "is not the number of a job.")
    run_at, run_in = values.get("run_at"), values.get("run_in")
    try:
        if run_at is not None and not isinstance(run_at, datetime):
            if not isinstance(run_at, str):
                raise ValueError(f"it is {_kind(run_at)}; write an instant like 2026-07-27T09:00:00Z")
            values["run_at"] = parse_instant(run_at)
    except ValueError as error:
        raise InvalidArgument("run_at", f"{error}.") from None
    try:
        if run_in is not None and not isinstance(run_in, timedelta):
            if isinstance(run_in, bool) or not isinstance(run_in, str | int | float):
                raise ValueError(f"it is {_kind(run_in)}; write seconds, or a span such as 15min")
            values["run_in"] = parse_span(run_in) if isinstance(run_in, str) else timedelta(seconds=run_in)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument("run_in", f"{error}.") from None
    return values


def _batches(app: Duly, lines: Iterator[tuple[int, NewJob | str]], tally: _Tally) -> Iterator[list[tuple[int, NewJob]]]:
    """The good lines, up to BATCH of them at a time. The bad ones are told in the order of the file on the way."""
    seen: list[tuple[int, NewJob | str]] = []
    good = 0
    for line in lines:
        seen.append(line)
        good += not isinstance(line[1], str)
        if good == BATCH or len(seen) == AHEAD:
            yield _good(app, seen, tally)
            seen, good = [], 0
    if seen:
        yield _good(app, seen, tally)


def _good(app: Duly, lines: Sequence[tuple[int, NewJob | str]], tally: _Tally) -> list[tuple[int, NewJob]]:
    """Those of some lines that can become jobs; the others are told."""
    from duly.jobs.enqueue import no_parent

    orphans = _orphans(app, [new for _, new in lines if not isinstance(new, str)])
    out: list[tuple[int, NewJob]] = []
    for number, new in lines:
        if isinstance(new, str):
            tally.refuse(number, new)
        elif new.parent_id is not None and (new.parent_id, new.tenant) in orphans:
            tally.refuse(number, str(no_parent(new.parent_id)))
        else:
            out.append((number, new))
    return out


def _orphans(app: Duly, new: Sequence[NewJob]) -> set[Parent]:
    """Parents that are no job of their tenant. Looks only: a dry run makes no database."""
    from sqlalchemy import Connection

    from duly.jobs.enqueue import orphans, wanted_parents
    from duly.storage import migrate

    db, wanted = app.db, wanted_parents(new)
    if not wanted or (db.is_sqlite and not db.memory and not db.is_there):
        return wanted

    def ask(connection: Connection) -> set[Parent]:
        if migrate.current(connection) is not None:
            return orphans(connection, wanted)
        if not db.is_sqlite:
            migrate.check(connection, db.shown_url)  # refuses, as the run would
        return wanted

    return db.read(ask)


@contextmanager
def _whole() -> Iterator[None]:
    """An interruption waits until what is within is done, so that it is known what is written. A second one does not."""
    before = signal.getsignal(signal.SIGINT)
    # ignored, or somebody else's: left as it is, and only the main thread may change it
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def interrupted(*_: Any) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True
        complain("stopping when this batch is written; press Ctrl-C again to stop at once.")

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _write(app: Duly, batch: Sequence[tuple[int, NewJob]], tally: _Tally) -> None:
    """A batch in one transaction; where the database refuses it, each job in one of its own."""
    if not batch:
        return
    with _whole():
        tally.unsure = batch[0][0], batch[-1][0]
        try:
            _count(tally, app.engine.maker.make_many([new for _, new in batch]))
        except Exception as error:
            tally.unsure = None  # what raised was rolled back
            if not _is_refusal(error):
                raise
            for number, new in batch:
                tally.unsure = number, number
                try:
                    _count(tally, app.engine.maker.make_many([new]))
                except Exception as refused:
                    tally.unsure = None
                    if not _is_refusal(refused):
                        raise
                    tally.refuse(number, _reason(refused))
                tally.written = number
        tally.written, tally.unsure = batch[-1][0], None


def _count(tally: _Tally, made: Sequence[Enqueued]) -> None:
    for one in made:
        tally.created += one.created
        tally.existing += not one.created


def _is_refusal(error: Exception) -> bool:
    """Is it about the jobs, not about the database? Then others can be written all the same."""
    from sqlalchemy.exc import DataError, IntegrityError

    from duly.kernel.errors import UsageError

    return isinstance(error, UsageError | DataError | IntegrityError)


def _reason(error: Exception) -> str:
    """In one line. The database quotes the row in those that follow."""
    return (str(getattr(error, "orig", None) or error).strip() or type(error).__name__).splitlines()[0]


class _Refused(Exception):
    """Some lines were refused while all were to be written."""


def _all(app: Duly, good: Sequence[tuple[int, NewJob]], tally: _Tally) -> None:
    """Everything in one transaction, or nothing."""
    tally.good = len(good)
    if tally.bad or not good:
        return

    def write(connection: Any) -> tuple[int, int]:
        created = 0
        refused: dict[int, str] = {}
        for start in range(0, len(good), BATCH):
            part = good[start : start + BATCH]
            try:
                with connection.begin_nested():
                    made = app.engine.maker.make_in(connection, [new for _, new in part])
            except Exception as error:
                if not _is_refusal(error):
                    raise
                made = []
                for number, new in part:
                    try:
                        with connection.begin_nested():
                            made += app.engine.maker.make_in(connection, [new])
                    except Exception as one:
                        if not _is_refusal(one):
                            raise
                        refused[number] = _reason(one)
            created += sum(one.created for one in made)
        if refused:
            raise _Refused(refused)
        return created, len(good) - created

    tally.unsure = good[0][0], good[-1][0]
    try:
        tally.created, tally.existing = app.db.write(write)
    except Exception as error:
        tally.unsure = None  # what raised was rolled back
        if not isinstance(error, _Refused):
            raise
        for number, reason in error.args[0].items():
            tally.refuse(number, reason)
        tally.good -= len(error.args[0])
        return
    tally.written, tally.unsure = good[-1][0], None
    app.db.bells.ring()


def _report(tally: _Tally, all_or_nothing: bool, dry_run: bool) -> None:
    _warn(tally.warned)
    if state().json:
        counts = {"would_create": tally.good} if dry_run else {"created": tally.created, "existing": tally.existing}
        show.as_json({**counts, "bad": tally.bad, "lines": tally.told, "warnings": tally.warned})
        return
    bad = f", {show.count(tally.bad, 'bad line')}" if tally.bad else ""
    if dry_run:
        show.say(f"{show.count(tally.good, 'good line')}{bad}. Nothing was written.")
    elif all_or_nothing and tally.bad:
        show.say(f"Nothing was written: {show.count(tally.good, 'good line')}{bad}.")
    else:
        existing = f", {tally.existing:,} existed already" if tally.existing else ""
        show.say(f"{show.count(tally.created, 'job')} created{existing}{bad}.")
