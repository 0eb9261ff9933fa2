"""A copy that `pg_dump` makes and `pg_restore` brings into another database, with other defaults, is as good as what it was made of."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from duly import Duly, Every
from duly.audit import seal
from duly.monitoring.examine import examine
from duly.monitoring.health import Grade, judge
from duly.testing import drain
from duly.workflows import WorkflowContext
from keeper import Run
from servers import postgres_binaries

#: Legal, and none of it what the first database has.
OTHER = {
    "datestyle": "SQL, DMY",
    "timezone": "'Asia/Kathmandu'",
    "intervalstyle": "'sql_standard'",
    "bytea_output": "'escape'",
    "extra_float_digits": "'-15'",
    "standard_conforming_strings": "'off'",
    "default_transaction_isolation": "'serializable'",
}


def _application(url: str, schema: str) -> Duly:
    app = Duly(url, schema=schema)
    app.task("X")(lambda text, at: text)
    app.schedule("nightly", Every("1d"), "X", {"text": "☕", "at": 0.1})

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        return f"{await ctx.step('first', lambda: 'é')} {await ctx.wait_event('go')}"

    return app


@pytest.fixture
def other_url(empty_pg_url: str) -> Iterator[str]:
    """An empty database that sorts and shows everything in another way."""
    url = make_url(empty_pg_url)
    url = url.set(database=f"{url.database}_other")
    name = sql.Identifier(str(url.database))
    with psycopg.connect(empty_pg_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER libc LOCALE 'C'").format(name))  # fmt: skip
        for setting, value in OTHER.items():
            connection.execute(f"ALTER DATABASE {url.database} SET {setting} TO {value}")  # type: ignore[call-overload]
        yield url.render_as_string(hide_password=False)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.mark.parametrize("schema", ["", "Duly's own"])
def test_a_restored_copy_verifies_and_works_whatever_the_other_database_sets(
    empty_pg_url: str, other_url: str, this_run: Run, tmp_path: Path, schema: str
) -> None:  # G5, C049
    app = _application(empty_pg_url, schema)
    app.migrate()
    given: dict[str, Any] = {"text": "İstanbul ß é ☕", "at": 1 / 3}
    first = app.enqueue("X", given, key="Iı").job.id
    run = app.workflows.start("w").job.id
    drain(app)
    waiting = app.enqueue("X", given, key="later", run_in="1h").job.id
    app.queues.pause("default", reason="İ ☕", actor="ann")
    app.queues.resume("default", actor="ann")
    assert seal.Sealer(app.db).seal() > 0
    app.close()

    binaries, file = postgres_binaries(this_run), tmp_path / "duly.dump"
    subprocess.run([binaries / "pg_dump", "--format=custom", f"--file={file}", empty_pg_url], check=True)
    subprocess.run([binaries / "pg_restore", "--no-owner", "--exit-on-error", f"--dbname={other_url}", file], check=True)  # fmt: skip

    copy = _application(other_url, schema)
    verified = seal.verify(copy.db)
    assert (verified.broken, verified.seals) == (None, 1)
    assert [f.check for f in judge(examine(copy.engine)) if f.grade is Grade.FAIL] == []
    # what was there is there, and what comes is numbered behind it
    assert (copy.jobs.get(first).output, copy.jobs.get(first).input) == (given["text"], given)
    assert not copy.enqueue("X", given, key="Iı").created
    assert copy.enqueue("X", given, key="ii").job.id > waiting
    copy.workflows.signal(run, "go", "ş")
    assert drain(copy).succeeded == 2
    assert copy.workflows.get(run).output == "é ş"
    assert seal.Sealer(copy.db).seal() > 0
    assert seal.verify(copy.db).broken is None
    copy.close()
