"""The field: who is measured, with which settings."""

from dataclasses import replace

from bench.contenders.raw_pg import BATCH
from bench.driver import Contender

DULY_PG = Contender("duly", "contenders.duly", "pg", "default")
DULY_SQLITE = Contender("duly sqlite", "contenders.duly", "sqlite", "default")
RAW_PG = Contender("raw limit", "contenders.raw_pg", "pg", str(BATCH))
RAW_SQLITE = Contender("raw limit sqlite", "contenders.raw_sqlite", "sqlite", str(BATCH))

PGQUEUER_BEST = Contender(
    "pgqueuer best", "contenders.pgqueuer", "pg", "500", venv="pgqueuer", options={"batch": 500, "uvloop": True}
)
PGQUEUER_DEFAULT = Contender("pgqueuer default", "contenders.pgqueuer", "pg", "10", share=0.15, venv="pgqueuer")
HUEY_FAST = Contender(
    "huey fsync off", "contenders.huey", "sqlite", "1", share=0.4, venv="huey", options={"fsync": False}
)
HUEY_DURABLE = Contender(
    "huey fsync on", "contenders.huey", "sqlite", "1", share=0.1, venv="huey", options={"fsync": True}
)
PROCRASTINATE = Contender("procrastinate best", "contenders.procrastinate", "pg", "1", share=0.04, venv="procrastinate")
OBAN = Contender("oban best", "contenders.oban", "pg", "1000", share=0.2, venv="oban")


def variant(base: Contender, name: str, **changes: object) -> Contender:
    """The same contender under another name, with other options or environment."""
    return replace(base, name=name, **changes)  # type: ignore[arg-type]
