"""Publishing: posts on channels, each once, at its time.

``Publishing(app)`` is the door. A channel is a queue and a connector; ``post.py`` and ``channel.py`` say what is published and where,
``handler.py`` and ``comments.py`` are the tasks, ``attempt.py`` is what they share, ``state.py`` and ``store.py`` keep what the other side may have seen, ``connectors/``
speak to it. Source: R002, T002.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.publishing.channel import Breaker, Channel
    from duly.publishing.connectors.base import ByLooks, Comments, Connector, Linked, Notebook
    from duly.publishing.door import Publishing
    from duly.publishing.function import Run
    from duly.publishing.post import Asset, Comment, Limits, Post, Published, Rules
    from duly.publishing.view import Bulk, Enqueued, Publication, PublicationFilter, Status, TestAnswer

__all__ = [
    "Asset",
    "Breaker",
    "Bulk",
    "ByLooks",
    "Channel",
    "Comment",
    "Comments",
    "Connector",
    "Enqueued",
    "Limits",
    "Linked",
    "Notebook",
    "Post",
    "Publication",
    "PublicationFilter",
    "Published",
    "Publishing",
    "Rules",
    "Run",
    "Status",
    "TestAnswer",
]

#: Where these names live; each module is imported when a name of it is first asked for.
_HOMES = {
    "Asset": "post",
    "Breaker": "channel",
    "Bulk": "view",
    "ByLooks": "connectors.base",
    "Channel": "channel",
    "Comment": "post",
    "Comments": "connectors.base",
    "Connector": "connectors.base",
    "Enqueued": "view",
    "Limits": "post",
    "Linked": "connectors.base",
    "Notebook": "connectors.base",
    "Post": "post",
    "Publication": "view",
    "PublicationFilter": "view",
    "Published": "post",
    "Publishing": "door",
    "Rules": "post",
    "Run": "function",
    "Status": "view",
    "TestAnswer": "view",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(f"duly.publishing.{_HOMES[name]}"), name)
        return found
    raise AttributeError(f"module 'duly.publishing' has no attribute {name!r}")
