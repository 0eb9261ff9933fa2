"""The tables of the rounds room.

Three partial indexes find what is due, so that a pass with nothing to do costs one look at an index, however many groups there are:
groups by ``plan_at``, scheduled rounds by ``due_at``, open ones by ``close_at``. Two unique indexes hold the rules: one round per
group and date (R000-2), one round per group that is not closed (R000-6).
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Date,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

from duly.rounds.round import LIFECYCLE
from duly.storage.schema import ddl, metadata, where
from duly.storage.types import Id, Instant

groups = Table(
    "groups",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("zone", Text, nullable=False),
    #: Null: the setting rounds_drop_time.
    Column("drop_time", Text),
    Column("is_active", Boolean, nullable=False),
    Column("notifications", Boolean, nullable=False),
    #: Seconds; null: the setting rounds_cooldown.
    Column("cooldown", Float),
    #: From when on a round may be planned; null while one is scheduled or open.
    Column("plan_at", Instant),
    #: Why the last pass failed on it; the others go on.
    Column("error", Text),
    Column("error_at", Instant),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("updated_by", Text, nullable=False),
    UniqueConstraint("tenant", "name"),
    info=ddl(sqlite_autoincrement=True),
)
_plannable = "is_active AND plan_at IS NOT NULL"
Index(
    "ix_groups_plan", groups.c.plan_at, groups.c.id, info=where(_plannable)
)  # fmt: skip

group_members = Table(
    "group_members",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("group_id", Id, ForeignKey("groups.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("email", Text),
    Column("webhook", Text),
    #: Names of channels with commas between them; empty: none.
    Column("channels", Text, nullable=False),
    Column("is_active", Boolean, nullable=False),
    Column("created_at", Instant, nullable=False),
    UniqueConstraint("group_id", "name"),
    info=ddl(sqlite_autoincrement=True),
)
_told = "is_active AND channels <> ''"
Index(
    "ix_group_members_told", group_members.c.group_id, group_members.c.id, info=where(_told)
)  # fmt: skip

group_prompts = Table(
    "group_prompts",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("group_id", Id, ForeignKey("groups.id"), nullable=False),
    Column("text", Text, nullable=False),
    Column("is_active", Boolean, nullable=False),
    Column("created_at", Instant, nullable=False),
    info=ddl(sqlite_autoincrement=True),
)
Index(
    "ix_group_prompts_active", group_prompts.c.group_id, group_prompts.c.id, info=where("is_active")
)  # fmt: skip
Index("ix_group_prompts_group", group_prompts.c.group_id)

rounds = Table(
    "rounds",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("group_id", Id, ForeignKey("groups.id"), nullable=False),
    Column("scheduled_for", Date, nullable=False),
    Column("status", Text, nullable=False),
    Column("zone", Text, nullable=False),
    Column("drop_time", Text, nullable=False),
    Column("planned_at", Instant, nullable=False),
    #: No foreign key: a prompt may be removed, and the round keeps its text.
    Column("prompt_id", Id),
    Column("prompt_text", Text),
    #: From when on the opening tick takes it; null once it is open, and while its group is not active.
    Column("due_at", Instant),
    Column("open_at", Instant),
    Column("close_at", Instant),
    Column("created_at", Instant, nullable=False),
    Column("opened_at", Instant),
    Column("closed_at", Instant),
    #: Seconds between due_at and opened_at.
    Column("late", Float),
    UniqueConstraint("group_id", "scheduled_for"),
    CheckConstraint(LIFECYCLE.check("status"), name="status"),
    CheckConstraint(
        "(status = 'scheduled') = (open_at IS NULL) AND (open_at IS NULL) = (close_at IS NULL) "
        "AND (open_at IS NULL) = (opened_at IS NULL) AND (status = 'closed') = (closed_at IS NOT NULL)",
        name="instants",
    ),
    info=ddl(sqlite_autoincrement=True),
)
_due = "status = 'scheduled' AND due_at IS NOT NULL"
Index("ix_rounds_due", rounds.c.due_at, rounds.c.id, info=where(_due))
_open = "status = 'open'"
Index("ix_rounds_close", rounds.c.close_at, rounds.c.id, info=where(_open))
_live = "status <> 'closed'"
Index("ix_rounds_live", rounds.c.group_id, unique=True, info=where(_live))

round_submissions = Table(
    "round_submissions",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("round_id", Id, ForeignKey("rounds.id"), nullable=False),
    Column("member_id", Id, ForeignKey("group_members.id"), nullable=False),
    Column("text", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("edited_at", Instant),
    UniqueConstraint("round_id", "member_id"),
    info=ddl(sqlite_autoincrement=True),
)

round_comments = Table(
    "round_comments",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("round_id", Id, ForeignKey("rounds.id"), nullable=False),
    Column("submission_id", Id, ForeignKey("round_submissions.id"), nullable=False),
    Column("member_id", Id, ForeignKey("group_members.id"), nullable=False),
    Column("text", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("edited_at", Instant),
    info=ddl(sqlite_autoincrement=True),
)
Index("ix_round_comments_round", round_comments.c.round_id, round_comments.c.id)

round_votes = Table(
    "round_votes",
    metadata,
    Column("round_id", Id, ForeignKey("rounds.id"), nullable=False),
    Column("member_id", Id, ForeignKey("group_members.id"), nullable=False),
    Column("submission_id", Id, ForeignKey("round_submissions.id"), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("edited_at", Instant),
    PrimaryKeyConstraint("round_id", "member_id"),
)

round_ticks = Table(
    "round_ticks",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("done", Integer, nullable=False),
    Column("skipped", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    #: Of the openings of the pass, in seconds; null where there was none.
    Column("mean_late", Float),
    Column("most_late", Float),
    CheckConstraint("kind IN ('plan', 'open', 'close')", name="kind"),
    info=ddl(sqlite_autoincrement=True),
)
Index("ix_round_ticks_kind", round_ticks.c.kind, round_ticks.c.started_at)
