"""Which tasks are a room's own? Their jobs are made by the room alone.

Such a job does what it says without asking on whose behalf: the rounds' tasks plan, open and tell members of every tenant, a session or
a publication is named by a number. The room looks at who asks before it makes one. So whoever lets people, tenants or models name a
task asks here first: the REST API, the dashboard and the tools of automations. Code that enqueues by itself is not asked.
"""

from __future__ import annotations

from duly.kernel.errors import InvalidArgument

#: By name, and by how their names begin. Runs of workflows (``ENGINE_RUN``) and e-mail (``EMAIL_SEND``) are anybody's.
OWN = ("AI_SESSION", "PUBLISH", "ig_first_comment")
OWN_BEGINNINGS = ("ROUNDS_",)


def is_of_a_room(task: str) -> bool:
    """Are this task's jobs made by a room alone?"""
    return task in OWN or task.startswith(OWN_BEGINNINGS)


def whose(task: str) -> str:
    """What is said of such a task: the words behind ``is``."""
    return f"{task}, whose jobs a room of Duly makes itself"


def check_task(task: str, field: str = "task") -> str:
    """A task that somebody may make jobs of by its name. Raises InvalidArgument for one of a room: its jobs may reach further than who asks."""
    if is_of_a_room(task):
        raise InvalidArgument(field, f"is {whose(task)}.", "Ask that room: its methods, its commands or its routes.")
    return task
