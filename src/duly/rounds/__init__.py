"""Rounds: groups in their own time zones, each with a question that opens at a local time and closes 24 hours later.

``Rounds(app)`` is the door. ``group.py`` and ``round.py`` hold the nouns and the lifecycle, ``plan.py`` decides (pure), ``store.py``
and ``records.py`` hold every statement, ``tick.py`` moves what is due, ``notify.py`` tells members. Source: R000, T000.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.rounds.group import Channel, Group, Member, Prompt
    from duly.rounds.plan import Upcoming
    from duly.rounds.round import Comment, Round, Status, Submission, Vote
    from duly.rounds.rounds import Rounds
    from duly.rounds.tick import TickReport

__all__ = [
    "Channel",
    "Comment",
    "Group",
    "Member",
    "Prompt",
    "Round",
    "Rounds",
    "Status",
    "Submission",
    "TickReport",
    "Upcoming",
    "Vote",
]

#: Where these names live; each module is imported when a name of it is first asked for.
_HOMES = {
    "Channel": "group",
    "Comment": "round",
    "Group": "group",
    "Member": "group",
    "Prompt": "group",
    "Round": "round",
    "Rounds": "rounds",
    "Status": "round",
    "Submission": "round",
    "TickReport": "tick",
    "Upcoming": "plan",
    "Vote": "round",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(f"duly.rounds.{_HOMES[name]}"), name)
        return found
    raise AttributeError(f"module 'duly.rounds' has no attribute {name!r}")
