"""How far the publishing of one job has come, as its row in ``publications`` says. Pure.

A job's status says whether it waits, runs or has ended. This says what the other side may have seen of it, and it outlives the run that
wrote it: whoever runs the job next goes on from here. ``sending`` that a later run finds means that nobody knows. Source: T002-c, T002-i.
"""

from __future__ import annotations

from enum import StrEnum

from duly.kernel.lifecycle import Lifecycle, Move


class State(StrEnum):
    """What the other side may have seen."""

    #: Nothing that people can see. Facts may be noted (a container that was made).
    PREPARING = "preparing"
    #: Written ahead of the request that publishes: from here on the post may be there.
    SENDING = "sending"
    #: It is there.
    PUBLISHED = "published"


P, S, D = State

LIFECYCLE: Lifecycle[State] = Lifecycle(
    "publication",
    (
        Move(None, "begin", P),
        Move(P, "ahead", S, "committed before the request that publishes is made"),
        Move(S, "refuse", P, "the other side answered, and published nothing"),
        Move(S, "miss", P, "it was asked, and the post is certainly not there"),
        Move(S, "forget", P, "nobody knows, and the channel is told to publish again"),
        Move(S, "publish", D),
        Move(P, "publish", D, "a connector found that it was there already"),
        Move(D, "publish", D, "a run that had lost its lease brings its answer: the id is kept, never taken away (T002-l)"),
    ),
)  # fmt: skip
