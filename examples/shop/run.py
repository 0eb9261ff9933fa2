"""A shop's day, from a file of orders to an account that balances. Start here: ``python examples/shop/run.py``.

The story: read the orders, start four processes (the API, a relay, a worker, and the billing service of somebody else), send
the orders to the API as customers do, in a hurry and some of them twice, kill the relay and the billing service in the
middle of it, wait until nothing is left to do, and compare everybody's books. Run it again and nothing is billed twice;
stop or kill it whenever you like, and the next run goes on where this one was.
"""

from __future__ import annotations

import base64
import os
import secrets
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import click
from orders import Unusable, read_orders
from processes import HERE, Failed
from rich.console import Console
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from duly import DulyError, UsageError
from duly.storage.database import parse_url, shown
from duly.storage.sqlite import is_memory

PATH = click.Path(path_type=Path)
EXAMPLE, FOLDER = HERE / "orders.csv", Path("var/shop")
#: Not installed with Duly itself.
NEEDED = ("fastapi", "uvicorn", "httpx2")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--orders",
    type=PATH,
    default=EXAMPLE,
    metavar="FILE",
    help="A CSV file with the columns number, customer, item, quantity and amount.  [default: the example's]",
)
@click.option(
    "--folder",
    type=PATH,
    default=FOLDER,
    show_default=True,
    help="The run folder, for databases, invoices, receipts and logs.",
)
@click.option("--fresh", is_flag=True, help="Begin anew, in another folder beside it.")
@click.option(
    "--database-url", metavar="URL", help="The shop's database elsewhere, such as postgresql://user@host/shop."
)
@click.option(
    "--jobs-database-url", metavar="URL", help="Duly's own database elsewhere; a PostgreSQL wants `duly migrate`."
)
@click.option("--calm", is_flag=True, help="Kill nobody, and let the billing service be up all the time.")
@click.option(
    "--latency",
    type=click.FloatRange(0, 5),
    default=0.05,
    show_default=True,
    metavar="SECONDS",
    help="How long the billing service takes over each invoice.",
)
def main(
    orders: Path,
    folder: Path,
    fresh: bool,
    database_url: str | None,
    jobs_database_url: str | None,
    calm: bool,
    latency: float,
) -> None:
    """Take orders over HTTP, and have each of them billed and receipted exactly once. Nothing leaves this machine.

    Ends with 0 if the books balance, with 1 if they do not or if it was stopped, with 2 for wrong usage.
    """
    if fresh and (database_url or jobs_database_url):
        raise click.UsageError("--fresh begins with new databases, and --database-url names one. Name another there.")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"not installed: {', '.join(missing)}. Run: pip install -e '.[all]' fastapi uvicorn")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False)
    try:
        for url in filter(None, (database_url, jobs_database_url)):
            if parse_url(url).get_backend_name() == "sqlite" and is_memory(parse_url(url)):
                raise click.UsageError("A database in memory cannot be opened by several processes. Name a file.")
        lines, bad = read_orders(orders)
        folder = make_folder(folder, fresh)
        surround(folder, database_url, jobs_database_url)
        # the modules of the shop open their databases where the environment says, which is known now
        from day import Plan, day

        back = [*given("--orders", orders, EXAMPLE), *given("--folder", folder, FOLDER)]
        back += [*given("--database-url", database_url), *given("--jobs-database-url", jobs_database_url)]
        balances = day(Plan(orders, lines, bad, folder, calm, latency, back), console)
    except KeyboardInterrupt:
        console.print("Stopped. Nothing is lost: run it again.")
        sys.exit(1)
    except (Unusable, UsageError) as error:
        raise click.UsageError(str(error)) from None
    except SQLAlchemyError as error:
        raise click.ClickException(f"the shop's database: {getattr(error, 'orig', None) or error}") from None
    except (DulyError, Failed, OSError) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(0 if balances else 1)


def make_folder(folder: Path, fresh: bool) -> Path:
    """The run folder, made if it is not there. ``fresh``: the first of folder, folder-2, folder-3 … that is not."""
    wanted, n = folder, 1
    while fresh and wanted.exists():
        n += 1
        wanted = folder.with_name(f"{folder.name}-{n}")
    try:
        (wanted / "log").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unusable(f"{wanted} cannot be the run folder: {error.strerror}.") from None
    return wanted


def surround(folder: Path, database_url: str | None, jobs_database_url: str | None) -> None:
    """Set the environment from which the programs of the example, this one too, learn where things are."""
    os.environ["SHOP_FOLDER"] = str(folder)
    os.environ["SHOP_DATABASE_URL"] = database_url or sqlite_url(folder / "shop.db")
    os.environ["DULY_DATABASE_URL"] = jobs_database_url or sqlite_url(folder / "jobs.db")
    # for how long the jobs of a killed worker are left alone: short, so that nobody waits for an example
    os.environ.setdefault("DULY_LEASE", "5")
    os.environ["BILLING_SECRET"] = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"


def sqlite_url(file: Path) -> str:
    return URL.create("sqlite", database=str(file)).render_as_string()


def given(name: str, value: Path | str | None, default: Path | str | None = None) -> list[str]:
    """An option as it is written on a command line; nothing when it has its default. Without the password of a URL."""
    if value is None or value == default:
        return []
    return [name, str(value) if isinstance(value, Path) else shown(parse_url(value))]


if __name__ == "__main__":
    main()
