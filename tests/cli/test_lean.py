"""A worker is a process that lives for months, often many of them on one machine: it loads what its work needs and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from duly import Duly
from fronts import on_both

#: A handler that enqueues another job and looks around in its process; at its end the process says what it has loaded, its duties included.
PROGRAM = """
import atexit, pathlib, sys
from duly import Duly
app = Duly()
atexit.register(lambda: pathlib.Path("loaded.txt").write_text(chr(10).join(sys.modules)))

@app.task
async def other(name: str, often: int = 1, share: float | None = None): ...

@app.task
async def look(since: str) -> list[str]:
    await other.aenqueue(since, often=2, share=0.5)
    return sorted(sys.modules)
"""
#: What no worker of plain tasks needs, with its output in a file or a pipe.
NEEDLESS = {
    "alembic": "the schema is there",
    "click.testing": "",
    "cronsim": "there are no schedules",
    "duly.automations.store": "there are no automations",
    "duly.calendars.store": "there are no blackouts",
    "duly.cli.jobs": "another command",
    "duly.idempotency.store": "nothing is reserved",
    "duly.jobs.admin": "nobody acts on jobs",
    "duly.jobs.read": "nobody looks at jobs",
    "duly.jobs.survey": "",
    "duly.jobs.typed": "the tasks take texts and numbers",
    "duly.jobs.why": "nobody asks",
    "duly.kernel.recurrence": "there are no schedules",
    "duly.kernel.windows": "there are no blackouts",
    "duly.mail": "",
    "duly.outbox": "",
    "duly.publishing": "",
    "duly.rounds": "",
    "duly.schedules.tables": "there are no schedules",
    "duly.schedules.tick": "",
    "duly.web": "the dashboard is another process",
    "duly.workflows.step": "there are no workflows",
    "fastapi": "",
    "jinja2": "",
    "opentelemetry.trace": "nobody traces",
    "prometheus_client": "nobody asked for metrics",
    "pydantic": "the tasks take texts and numbers",
    "pydantic_core": "",
    "rich": "nobody reads along",
    "sqlalchemy.orm": "no handler asks for a session",
    "structlog": "lines are JSON",
    "uvicorn": "",
}


@on_both("the driver of the other one is not loaded")
def test_a_worker_loads_what_its_work_needs(app: Duly, db_url: str, folder: Path) -> None:
    program = folder / "lean.py"
    program.write_text(PROGRAM)
    app.enqueue("look", {"since": "monday"})
    command = [sys.executable, "-m", "duly", "worker", "lean.py", "--until-idle", "--database-url", db_url]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    look, other = app.jobs.find(task="look")[0], app.jobs.find(task="other")[0]
    assert (look.status, other.status) == ("succeeded", "succeeded")
    first, loaded = set(look.output), set((folder / "loaded.txt").read_text().split())
    assert "duly.jobs.worker" in first
    assert first < loaded
    assert sorted(loaded & NEEDLESS.keys()) == []
    foreign = "postgresql" if app.db.is_sqlite else "sqlite"
    assert [name for name in sorted(loaded) if name.startswith(f"sqlalchemy.dialects.{foreign}")] == []
    assert ("psycopg" if app.db.is_sqlite else "sqlite3") not in loaded
