"""The tables of the alerts: one row per alert from suspicion to end, and one row that says when somebody judged last.

At most one alert of a rule and a subject is open: a partial unique index holds that, whoever judges.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Float, Identity, Index, Integer, Table, Text

from duly.monitoring.alerts.alert import LIFECYCLE
from duly.storage.schema import ddl, metadata, where
from duly.storage.types import Id, Instant, Json

alerts = Table(
    "alerts",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("rule", Text, nullable=False),
    #: The queue, worker, destination, schedule or kind of tick; empty where the rule has only one.
    Column("subject", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("since", Instant, nullable=False),
    Column("last_seen", Instant, nullable=False),
    Column("value", Float, nullable=False),
    Column("detail", Text, nullable=False),
    Column("raised_at", Instant),
    Column("fine_since", Instant),
    Column("cleared_at", Instant),
    Column("acked_at", Instant),
    Column("acked_by", Text),
    Column("ack_reason", Text),
    #: When jobs were made that tell people; null where none were.
    Column("noticed_at", Instant),
    CheckConstraint(LIFECYCLE.check("state"), name="state"),
    info=ddl(sqlite_autoincrement=True),
)
_open = "state <> 'cleared'"
Index(
    "ix_alerts_open", alerts.c.rule, alerts.c.subject, unique=True, info=where(_open)
)  # fmt: skip
Index(
    "ix_alerts_cleared",
    alerts.c.cleared_at,
    info=where("cleared_at IS NOT NULL"),
)

#: One row (id 1). Who moves ``judged_at`` on has the turn to judge; its lock makes judgements one after the other.
alert_watch = Table(
    "alert_watch",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("judged_at", Instant, nullable=False),
    Column("judged_by", Text, nullable=False),
    #: By rule: the values that were read by subject, or the problem.
    Column("readings", Json, nullable=False),
    CheckConstraint("id = 1", name="one"),
)
