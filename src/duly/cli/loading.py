"""Finding the application that a command is about.

``shop.jobs:app`` is a module and a name in it, ``app.py:app`` a file and a name; without the name the only Duly object in
the module is meant. Modules are imported as ``python`` would from the current directory, so that a handler that runs in
a process of its own finds its module under the same name.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from duly.kernel.errors import InvalidArgument, UsageError

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.storage.database import Database


def application(target: str | None, database_url: str | None, tasks: bool) -> Duly:
    """The application ``target``, or without one a bare one on the database, unless ``tasks`` are needed and it has none (``find_rooms``).

    ``database_url`` wins over the environment, and must agree with a URL that the application names itself. Raises
    InvalidArgument when nothing, or more than one thing, fits.
    """
    if database_url is not None:
        os.environ["DULY_DATABASE_URL"] = database_url  # for Duly() without a URL, here and in processes of handlers
    if target is None:
        from duly.app import Duly

        bare = Duly(database_url)
        if tasks and not bare.find_rooms():  # channels and automations are work, too
            bare.close()
            raise InvalidArgument("app", "is not named, so there are no tasks.", _suggestion())
        return bare
    found = _load(target)
    if database_url is not None:
        _agree(found, target, database_url)
    return found


def database_of(target: str | None, database_url: str | None, anyhow: bool) -> tuple[Duly, str]:
    """(an application, what is to be told) for commands that only need its database, and are there for one whose tables are missing.

    An application that touches its database while it is imported stops there until it is migrated. Then a bare one on that database stands
    in for it, or on ``database_url``, which wins. ``anyhow``: one that cannot be loaded for another reason does not stand in the way either
    where ``database_url`` or the environment names a database. Raises as ``application`` does, and what it told there.
    """
    from duly.app import Duly

    try:
        return application(target, database_url, tasks=False), ""
    except (click.ClickException, InvalidArgument) as error:
        if isinstance(error, InvalidArgument) and error.field != "app":
            raise  # it was loaded, and is on another database
        told = error.message if isinstance(error, click.ClickException) else str(error)
        missing, url = _unmigrated(error), database_url or os.environ.get("DULY_DATABASE_URL")
        if missing is not None:
            missing.close()
        if missing is not None and database_url is None:
            # with its settings: it may be behind a pooler
            return Duly(**{f.name: getattr(missing.settings, f.name) for f in fields(missing.settings)}), ""
        if url is None or (missing is None and not anyhow):
            raise
        bare = Duly(url)
        same = missing is not None and _absolute(missing.url) == _absolute(bare.db.url)
        return bare, "" if same else f"{told} It is left out: the database is {bare.db.shown_url}."


def _unmigrated(error: BaseException | None) -> Database | None:
    """The database whose tables are missing or too old, where that is what stopped an application."""
    from duly.kernel.errors import SchemaMissing

    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, SchemaMissing) and error.database is not None:
            found: Database = error.database
            return found
        error = error.__cause__ or error.__context__
    return None


def _suggestion() -> str:
    """What to write instead, from a look at the current directory."""
    seen = []
    for file in sorted(Path().glob("*.py"))[:50]:
        try:
            if "Duly(" in file.read_text(encoding="utf-8", errors="replace"):
                seen.append(file.name)
        except OSError:
            continue
    if seen:
        return f"Say which: {' or '.join(seen[:3])} here, or set DULY_APP."
    return "Name a module or a file that defines a Duly object, such as app.py, or set DULY_APP."


def _load(target: str) -> Duly:
    return _pick(*located(target))


def located(target: str) -> tuple[ModuleType, str, str]:
    """(module, how it was called, name in it or "") of ``module:name`` or ``file.py:name``. Raises InvalidArgument."""
    # A name after the last colon, unless the colon belongs to a path of Windows.
    where, colon, name = target.rpartition(":")
    if not colon or "/" in name or "\\" in name or name.endswith(".py"):
        where, name = target, ""
    if not where or (colon and not name and where != target):
        raise InvalidArgument("app", f"is {target!r}.", "Write module:name or file.py:name.")
    try:
        module = _import_file(Path(where)) if _is_path(where) else _import_module(where)
    except UsageError as error:
        if isinstance(error, InvalidArgument) and error.field == "app":
            raise
        raise InvalidArgument("app", f"{where} cannot be loaded: {error}") from error
    except (Exception, SystemExit) as error:
        raise click.ClickException(
            f"{where} cannot be loaded: {type(error).__name__}: {error}{_line(error)}"
        ) from error
    return module, where, name


def _line(error: BaseException) -> str:
    """Where in the application's code it happened."""
    tb, found = error.__traceback__, ""
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if "importlib" not in file and not file.startswith("<") and "duly/cli" not in file.replace(os.sep, "/"):
            found = f" ({Path(file).name}, line {tb.tb_lineno})"
        tb = tb.tb_next
    return found


def _is_path(where: str) -> bool:
    return where.endswith(".py") or os.sep in where or (os.altsep is not None and os.altsep in where)


def _import_file(path: Path) -> ModuleType:
    file = path.expanduser().resolve()
    if file.is_dir():
        file = file / "__init__.py"
    if not file.is_file():
        raise InvalidArgument("app", f"there is no file {path}.")
    # A file inside a package is imported as part of it, so that its relative imports work.
    parts = [] if file.name == "__init__.py" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    name = ".".join(parts)
    known = sys.modules.get(name)
    if known is not None and not _same(known, file):
        raise InvalidArgument("app", f"{path} has the name of a module that is in use ({name}).", "Rename the file.")
    _on_path(folder)
    module = importlib.import_module(name)
    if not _same(module, file):
        raise InvalidArgument("app", f"{path} has the name of another module ({name}).", "Rename the file.")
    return module


def _same(module: ModuleType, file: Path) -> bool:
    known = getattr(module, "__file__", None)
    return known is not None and Path(known).resolve() == file


def _import_module(name: str) -> ModuleType:
    _on_path(Path())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # the module asked for, or one that it imports?
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidArgument(
                "app", f"there is no module {name!r} here.", "For a file write its path: app.py"
            ) from None
        raise


def _on_path(folder: Path) -> None:
    text = str(folder.resolve())
    if text not in sys.path:
        sys.path.insert(0, text)


def _pick(module: ModuleType, where: str, name: str) -> Duly:
    from duly.app import Duly

    if name:
        found: object = module
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, Duly):
            return found
        names = _names(module, Duly)
        problem = f"has no {name!r}" if found is None else f"has {name!r}, but that is of type {type(found).__name__}"
        raise InvalidArgument(
            "app", f"{where} {problem}.", f"It has: {', '.join(names)}." if names else "It defines no Duly object."
        )
    names = _names(module, Duly)
    if not names:
        raise InvalidArgument("app", f"{where} defines no Duly object.", 'Write app = Duly("sqlite:///duly.db") in it.')
    if len({id(getattr(module, n)) for n in names}) > 1:
        choices = " or ".join(f"{where}:{n}" for n in names)
        raise InvalidArgument("app", f"{where} defines several Duly objects.", f"Say which: {choices}.")
    only: Duly = getattr(module, names[0])
    return only


def _names(module: ModuleType, kind: type) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, kind)]


def _agree(app: Duly, target: str, database_url: str) -> None:
    """Refuse to work on another database than the one asked for."""
    from duly.storage.database import parse_url, shown

    if _absolute(app.db.url) != _absolute(parse_url(database_url)):
        raise InvalidArgument(
            "database_url",
            f"asks for {shown(parse_url(database_url))}, but {target} names {app.db.shown_url} itself.",
            "Write Duly() there without a URL, and the command line and DULY_DATABASE_URL decide.",
        )


def _absolute(url: object) -> object:
    from sqlalchemy.engine import URL

    assert isinstance(url, URL)
    if url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:":
        return url.set(database=str(Path(url.database).expanduser().resolve()))
    return url.set(drivername=url.get_backend_name())  # a driver in the URL makes no other database of it
