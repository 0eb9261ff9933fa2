"""The tables of the publishing room: what the other side may have seen of each job, and how channels fare."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Float, Index, Integer, Table, Text

from duly.jobs.tables import jobs, jobs_done
from duly.publishing.state import LIFECYCLE
from duly.storage.schema import metadata, where
from duly.storage.types import Id, Instant, Json

publications = Table(
    "publications",
    metadata,
    #: No foreign key: a job moves to another table when it ends, and what was published is remembered beyond it.
    Column("job_id", Id, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("state", Text, nullable=False),
    #: What the connector has noted (JSON object), with ``key`` and ``ahead_at``.
    Column("facts", Json, nullable=False),
    #: What the other side calls the post; null while it is not known. Never set back.
    Column("remote_id", Text),
    Column("url", Text),
    #: Where it was handed over last ("facebook:1020300000001", else the channel), and what it can be known by there, where that is by its looks.
    Column("place", Text),
    Column("looks", Text),
    #: The run that may write here: whoever takes the job over takes this over first.
    Column("holder", Text, nullable=False),
    #: When the request that published was about to be made last.
    Column("sent_at", Instant),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint(LIFECYCLE.check("state"), name="state"),
)
Index("ix_publications_remote", publications.c.place, publications.c.remote_id)
Index("ix_publications_looks", publications.c.place, publications.c.looks)
Index("ix_publications_state", publications.c.state, publications.c.updated_at)
#: Which jobs are publications, word for word what the indexes are of: the few among many other jobs are found by these.
POSTS = "task IN ('PUBLISH', 'ig_first_comment')"
Index("ix_jobs_publications", jobs.c.id, info=where(POSTS))
Index("ix_jobs_done_publications", jobs_done.c.id, info=where(POSTS))

#: How a channel fares, and what publishing has set on its queue. A channel that fares well has no row, or one with zeros.
publication_channels = Table(
    "publication_channels",
    metadata,
    Column("channel", Text, primary_key=True),
    #: Failures in a row that may go better later.
    Column("failures", Integer, nullable=False),
    #: How often in a row the channel was held for them.
    Column("trips", Integer, nullable=False),
    #: What publishing has set on the queue last, null for nothing: what stands there otherwise, somebody has set.
    Column("set_limit", Integer),
    Column("set_rate_count", Integer),
    Column("set_rate_seconds", Float),
    Column("updated_at", Instant, nullable=False),
)
