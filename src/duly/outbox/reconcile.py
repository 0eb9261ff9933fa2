"""For those without an outbox: what should have been enqueued, compared with what was, and the rest enqueued.

The expected artefacts come from elsewhere (a file, a query): rows with a key each. A key counts as enqueued when a job has
it, or had it and is remembered; how that job ended is told too. What is missing is enqueued under the same key, so doing
it twice, or beside the application, doubles nothing.

Source: the runbook of specs/idempotency-outbox (catching up without a transactional outbox).
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from sqlalchemy import Connection, create_engine

from duly.jobs.engine import Engine
from duly.jobs.enqueue import NewJob
from duly.jobs.job import Enqueued
from duly.kernel.errors import InvalidArgument, InvalidPayload, UsageError
from duly.kernel.payload import check_name, read_json
from duly.storage.database import parse_url
from duly.storage.qualified import text
from duly.storage.rows import encode, relation
from duly.storage.sqlite import is_memory

#: Keys looked up in one statement.
LOOK = 2000
#: Jobs made in one transaction.
BATCH = 500

_COLUMN = re.compile(r"\{([^{}]*)\}")


class Application(Protocol):
    """What is needed of a Duly application."""

    engine: Engine

    def open(self) -> None: ...

    def prepare(self, name: str, input: Mapping[str, Any] | None = None, /, **options: Any) -> NewJob: ...

    def enqueue_prepared(self, prepared: Sequence[NewJob], /) -> Sequence[Enqueued]: ...


@dataclass(frozen=True, slots=True)
class Expected:
    """An artefact that somebody expects: the key of its job, and the input to make it with if it is missing."""

    key: str
    input: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Findings:
    """What a comparison found."""

    #: Different keys that were expected, and rows that repeated one.
    expected: int = 0
    repeated: int = 0
    #: Keys that were enqueued, by what became of their jobs.
    present: Counter[str] = field(default_factory=Counter)
    #: Keys that another task's job has: they look enqueued and are not.
    taken: list[str] = field(default_factory=list)
    missing: list[Expected] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The jobs that are expected. Without a queue a key counts wherever it is, and jobs are made in the task's queue."""

    task: str
    queue: str | None = None
    tenant: str = "default"


def compare(app: Application, expected: Iterable[Expected], wanted: Wanted) -> Findings:
    """Compare. Writes nothing. Raises InvalidArgument for a key that cannot be one."""
    app.open()
    found, seen, part = Findings(), set[str](), list[Expected]()
    for one in expected:
        check_name(one.key, "key")
        if one.key in seen:
            found.repeated += 1
            continue
        seen.add(one.key)
        part.append(one)
        if len(part) == LOOK:
            _look(app, part, wanted, found)
            part = []
    if part:
        _look(app, part, wanted, found)
    found.expected = len(seen)
    return found


def enqueue(app: Application, missing: Sequence[Expected], wanted: Wanted) -> Iterator[tuple[int, int]]:
    """Make jobs of what is missing, in portions; (made, existed after all) of each. Raises as ``app.prepare``."""
    options: dict[str, Any] = {"tenant": wanted.tenant}
    if wanted.queue is not None:
        options["queue"] = wanted.queue
    for start in range(0, len(missing), BATCH):
        part = missing[start : start + BATCH]
        made = app.enqueue_prepared([app.prepare(wanted.task, e.input, key=e.key, **options) for e in part])
        created = sum(m.created for m in made)
        yield created, len(made) - created


def check(app: Application, one: Expected, wanted: Wanted) -> str:
    """Why a job cannot be made of an artefact; empty when one can."""
    options: dict[str, Any] = {"tenant": wanted.tenant} | ({} if wanted.queue is None else {"queue": wanted.queue})
    try:
        app.prepare(wanted.task, one.input, key=one.key, **options)
    except UsageError as error:
        return str(error)
    return ""


def _look(app: Application, part: Sequence[Expected], wanted: Wanted, found: Findings) -> None:
    db = app.engine.db
    keys = relation(db.is_sqlite, {"key": "text"})
    # a key that is free again (unique_until) is known by its job's row only, so both are asked
    sql = text(f"""
        SELECT r.key, j.task, j.status, NULL AS ended FROM {keys} JOIN all_jobs j ON j.key = r.key AND j.tenant = :tenant
         WHERE CAST(:queue AS text) IS NULL OR j.queue = :queue
         UNION ALL
        SELECT r.key, coalesce(j.task, k.task), j.status, k.ended FROM {keys} JOIN job_keys k ON k.key = r.key AND k.tenant = :tenant
          LEFT JOIN all_jobs j ON j.id = k.job_id
         WHERE CAST(:queue AS text) IS NULL OR k.queue = :queue""")
    rows = encode(db.is_sqlite, ({"key": one.key} for one in part))
    parameters = {"rows": rows, "tenant": wanted.tenant, "queue": wanted.queue}

    def look(connection: Connection) -> dict[str, str | None]:
        """Key → what became of its job; None when only another task's job has it."""
        known: dict[str, str | None] = {}
        for key, task, status, ended in connection.execute(sql, parameters):
            if task is None or task == wanted.task:
                known[key] = status or ended or "forgotten"
            else:
                known.setdefault(key, None)
        return known

    known = db.read(look)
    for one in part:
        if one.key not in known:
            found.missing.append(one)
        elif (status := known[one.key]) is None:
            found.taken.append(one.key)
        else:
            found.present[status] += 1


# ---------------------------------------------------------------------- where expected artefacts come from


@dataclass(frozen=True, slots=True)
class Shape:
    """How a row becomes an expected artefact.

    ``key``: a template of columns, such as ``charge-{order}``. ``input``: parameter name → column; empty for the column
    ``input`` (a JSON object) if there is one, else for every column but ``key``.
    """

    key: str = "{key}"
    input: Mapping[str, str] = field(default_factory=dict)

    def of(self, row: Mapping[str, Any]) -> Expected:
        """Raises InvalidArgument for a column that is missing or empty."""

        def column(name: str) -> Any:
            if name not in row:
                raise InvalidArgument(name, "is not a column of this row.", f"It has: {', '.join(map(str, row))}.")
            return row[name]

        def part(match: re.Match[str]) -> str:
            value = column(match[1])
            if value is None or value == "":
                raise InvalidArgument(match[1], "is empty, so it makes no key.")
            return str(value)

        key = check_name(_COLUMN.sub(part, self.key), "key")
        if self.input:
            return Expected(key, {parameter: column(name) for parameter, name in self.input.items()})
        if "input" in row:
            return Expected(key, _object(row["input"]))
        return Expected(key, {name: value for name, value in row.items() if name != "key"})


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str | bytes):
        value = read_json(value, "input")
    if not isinstance(value, dict):
        raise InvalidArgument("input", "is not a JSON object of argument names to values.")
    return value


def read_csv(file: IO[str], shape: Shape) -> Iterator[tuple[int, Expected | str]]:
    """(line, artefact) of each row of a CSV file with a head; what is wrong, in words, instead of an artefact."""
    rows = csv.DictReader(file, strict=True)
    if rows.fieldnames is None:
        return
    try:
        for row in rows:
            if None in row or None in row.values():
                yield rows.line_num, f"it does not have {len(rows.fieldnames)} columns."
            else:
                yield rows.line_num, _shaped(shape, row)
    except csv.Error as error:
        raise InvalidArgument("file", f"is not CSV at line {rows.line_num}: {error}.") from None


def read_jsonl(file: IO[str], shape: Shape) -> Iterator[tuple[int, Expected | str]]:
    """The same of a file with a JSON object in each line."""
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = read_json(line, "")
        except InvalidPayload as error:
            yield number, str(error)
            continue
        except InvalidArgument as error:
            yield number, f"it {error.problem}"
            continue
        yield number, _shaped(shape, row) if isinstance(row, dict) else "it is not a JSON object."


def read_query(url: str, sql: str, shape: Shape) -> Iterator[tuple[int, Expected | str]]:
    """The same of the rows of a query, which may not write. Raises InvalidArgument for a URL that cannot be used."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "sqlite" and not is_memory(parsed):
        file = Path(parsed.database or "").expanduser()
        if not file.is_file():
            raise InvalidArgument("on", f"names the file {file}, which is not there.", "Looking makes none.")
    engine = create_engine(parsed, hide_parameters=True)
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA query_only=ON")
            else:
                connection = connection.execution_options(postgresql_readonly=True, stream_results=True)
            # as it stands: a colon in a text of the query is no parameter
            plain = sql.replace("%", "%%") if engine.dialect.name == "postgresql" else sql
            for number, row in enumerate(connection.exec_driver_sql(plain).mappings(), start=1):
                yield number, _of_row(shape, dict(row))
    finally:
        engine.dispose()


def _of_row(shape: Shape, row: Mapping[str, Any]) -> Expected | str:
    plain = {}
    for name, value in row.items():
        try:
            plain[name] = _plain(value)
        except InvalidArgument as error:
            return f"{name}: {error.problem} {error.remedy}"
    return _shaped(shape, plain)


def _shaped(shape: Shape, row: Mapping[str, Any]) -> Expected | str:
    try:
        return shape.of(row)
    except UsageError as error:
        return str(error)


def _plain(value: Any) -> Any:
    """A value of a database as JSON carries it: texts for what it has no form for."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise InvalidArgument(
            "column", "holds bytes.", "Let the query give a text: encode(…, 'hex') on PostgreSQL, hex(…) on SQLite."
        )
    return value if value is None or isinstance(value, bool | int | float | str | dict | list) else str(value)
