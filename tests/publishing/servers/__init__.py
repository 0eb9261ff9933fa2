"""Servers on this machine that answer as Meta, WordPress and webhook endpoints do, mishaps included.

``with serving(Meta()) as meta: InstagramConnector(account=IG, token=TOKEN, url=meta.graph)``; ``meta.media`` is what was really published.
"""

from publishing.servers.hook import Hook
from publishing.servers.http import GONE, LOST, PLAINLY, Api, Asked, First, Slow, Step, Then, serving
from publishing.servers.meta import IG, PAGE, TOKEN, Meta
from publishing.servers.wordpress import PASSWORD, USER, WordPress

__all__ = [
    "GONE", "IG", "LOST", "PAGE", "PASSWORD", "PLAINLY", "TOKEN", "USER", "Api", "Asked", "First", "Hook", "Meta", "Slow", "Step", "Then", "WordPress",
    "serving",
]  # fmt: skip
