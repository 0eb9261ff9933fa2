"""What can be measured. A section takes the run (`Bench`) and answers a `Section`; order is the order printed."""

from collections.abc import Callable

from bench.driver import Bench
from bench.sections import (
    automations,
    drains,
    enqueue,
    memory,
    once,
    pages,
    pickup,
    publishing,
    rounds,
    ticks,
    workflows,
)
from bench.table import Section

SECTIONS: dict[str, Callable[[Bench], Section]] = {
    "drain-pg": drains.postgres,
    "drain-sqlite": drains.sqlite,
    "bulk": enqueue.bulk,
    "single": enqueue.single,
    "pickup": pickup.pickup,
    "history": drains.history,
    "memory": memory.memory,
    "features": drains.features,
    "idempotent": once.idempotent,
    "relay": once.relay,
    "schedules": ticks.schedules,
    "rounds": rounds.rounds,
    "workflows": workflows.workflows,
    "publishing": publishing.publishing,
    "automations": automations.automations,
    "pages": pages.pages,
}
