"""A day at the kiosk, in some seconds: `python examples/django/run.py`. It leaves nothing behind.

Each step is a command that you could type; what it says is shown below it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).parent
STEPS = [
    ("migrate --run-syncdb --verbosity 0", "tables of the kiosk, and Duly's with them"),
    ("order tea", "an order and its two jobs, in one transaction"),
    ("order coffee --card stolen", "rolled back: no order, no jobs"),
    ("orders", ""),
    ("duly worker --until-idle", "runs Duly's tasks and Django's"),
    ("orders", ""),
    ("duly jobs list", ""),
]
EXPECTED = ["Order 1: tea", "Order 1: tea, brewed, receipt R0001", "No job waits."]


def environment(database: str | None, folder: str) -> dict[str, str]:
    """Where the kiosk's settings find their database."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("DULY_", "DJANGO_", "PG"))}
    if database is None:
        return {**own, "KIOSK_FILE": str(Path(folder) / "kiosk.db")}
    url = urlsplit(database)
    said = {
        "PGDATABASE": url.path[1:], "PGHOST": url.hostname, "PGPORT": url.port, "PGUSER": url.username, "PGPASSWORD": url.password,
    }  # fmt: skip
    return own | {name: unquote(str(value)) for name, value in said.items() if value}


def main() -> int:
    parser = argparse.ArgumentParser(description="A day at a kiosk on Django and Duly.")
    parser.add_argument("--database", metavar="URL", help="an empty PostgreSQL database, instead of an SQLite file")
    database = parser.parse_args().database
    told = ""
    with tempfile.TemporaryDirectory(prefix="kiosk-") as folder:
        where = environment(database, folder)
        for command, remark in STEPS:
            print(f"$ manage.py {command}{f'   # {remark}' if remark else ''}", flush=True)
            done = subprocess.run(
                [sys.executable, str(HERE / "manage.py"), *command.split()], cwd=folder, env=where, capture_output=True, text=True
            )  # fmt: skip
            refused = "stolen" in command
            said = done.stdout + (done.stderr if refused or done.returncode else "")
            print("".join(f"  {line}\n" for line in said.splitlines()), flush=True)
            if done.returncode != refused:
                return 1
            told += said
    return 0 if all(line in told for line in EXPECTED) and "coffee" not in told else 1


if __name__ == "__main__":
    sys.exit(main())
