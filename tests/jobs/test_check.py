"""``Task.check`` is asked by every door that makes a job of the task (issue 16, C036)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from duly import Duly, InvalidArgument


def refuse(arguments: Mapping[str, Any]) -> None:
    if arguments.get("size", 0) > 3:
        raise InvalidArgument("size", "is more than 3.")


DOORS: list[tuple[str, Callable[[Duly, Any], Any]]] = [
    ("name", lambda app, task: app.enqueue("pack", {"size": 4})),
    ("call", lambda app, task: task.enqueue(size=4)),
    ("many by name", lambda app, task: app.enqueue_many("pack", [{"size": 1}, {"size": 4}])),
    ("many", lambda app, task: task.enqueue_many([{"size": 1}, {"size": 4}])),
    ("prepared", lambda app, task: app.prepare("pack", {"size": 4})),
]


@pytest.mark.parametrize("door", [door for _, door in DOORS], ids=[name for name, _ in DOORS])
def test_each_door_asks_the_check_of_a_task_and_makes_nothing_where_it_refuses(
    door: Callable[[Duly, Any], Any],
) -> None:
    app = Duly("sqlite://")

    @app.task("pack", check=refuse)
    def pack(size: int) -> None: ...

    with pytest.raises(InvalidArgument, match="more than 3"):
        door(app, pack)
    pack.enqueue(size=3)
    assert app.db.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM jobs").scalar()) == 1
    app.close()
