"""The tables of the automations room: automations, sessions with what was said in them, and the slot.

Everything that gives or takes a slot is decided under the lock of its row in ``automation_slots``. A partial unique index allows one active
session per slot whatever else is wrong (R001-1), another one execution per planned instant (case B069).
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
)

from duly.automations.session import CALL_LIFECYCLE, LIFECYCLE
from duly.storage.schema import ddl, metadata, where
from duly.storage.types import Id, Instant, Json

automation_slots = Table(
    "automation_slots",
    metadata,
    Column("slot", Text, primary_key=True),
    #: Who has it; null when nobody has.
    Column("session_id", Id),
    Column("activation", Text),
    Column("since", Instant),
    #: The job of the session that had the slot before, while a function that it called is still under way …
    Column("busy_job_id", Id),
    #: … and that session, while the job of one of its calls runs. Until that has ended, nobody gets the slot (R001-54).
    Column("busy_session_id", Id),
)

automations = Table(
    "automations",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("slot", Text, nullable=False),
    Column("seed_session_id", Id, nullable=False),
    #: A recurrence, as the schedules room keeps it; null for one that only people and events run.
    Column("schedule", Json),
    #: Names of events that run it (JSON array).
    Column("triggers", Json, nullable=False),
    Column("dismiss_older_instances", Boolean, nullable=False),
    #: Seconds; null for no bound.
    Column("catch_up_window", Float),
    #: Null: the setting ai_provider.
    Column("provider", Text),
    Column("model", Text),
    #: Names of tools that it may call (JSON array).
    Column("tools", Json, nullable=False),
    #: Bounds of a run and of a day (JSON object).
    Column("limits", Json, nullable=False),
    Column("is_enabled", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
    #: Occurrences up to this instant are not wanted (T001-i).
    Column("reference_at", Instant, nullable=False),
    #: Why its schedule could not be read; the others go on.
    Column("error", Text),
    Column("last_execution_id", Id),
    #: Ids of its last sessions, the newest first (JSON array, bounded).
    Column("execution_history", Json, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("updated_by", Text, nullable=False),
    Column("removed_at", Instant),
    #: How it is asked (JSON object: max_tokens, temperature, no_call, max_unanswered), where it is not as usual.
    Column("asking", Json),
    #: What code has declared of it (``ensure``; JSON object): `last`, a mark of the last definition, and `order`, the marks as they came first.
    Column("declared", Json),
    info=ddl(sqlite_autoincrement=True),
)
_there = "removed_at IS NULL"
Index(
    "ix_automations_name", automations.c.tenant, automations.c.name, unique=True, info=where(_there)
)  # fmt: skip

ai_sessions = Table(
    "ai_sessions",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("slot", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("trigger", Text),
    Column("automation_id", Id),
    Column("scheduled_at", Instant),
    Column("title", Text, nullable=False),
    #: Of a chat: its provider, model and tools (JSON object); an automation's are its definition's. Of what an event has run: `caused_by`.
    Column("options", Json),
    #: Of what a person or an event runs: once per key and automation.
    Column("key", Text),
    Column("created_at", Instant, nullable=False),
    #: The place in the queue, of those that wait.
    Column("queued_at", Instant),
    #: Until when somebody waits for a queued chat, or is there in an active one; null where nobody has to (T001-y) or has said so.
    Column("wanted_until", Instant),
    Column("started_at", Instant),
    Column("activation", Text),
    Column("job_id", Id),
    Column("last_activity_at", Instant),
    Column("is_waiting_for_network", Boolean, nullable=False),
    Column("end_reason", Text),
    Column("end_detail", Text),
    Column("ended_at", Instant),
    #: It does not go on before this …
    Column("resume_at", Instant),
    #: … unless another session has had the slot meanwhile and has left it (a pause without a span).
    Column("resumes_early", Boolean, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost_micros", BigInteger, nullable=False),
    Column("provider", Text),
    #: What is being said at this moment.
    Column("partial", Text),
    CheckConstraint(LIFECYCLE.check("status"), name="status"),
    CheckConstraint("(status = 'active') = (activation IS NOT NULL)", name="activation"),
    CheckConstraint("(status = 'ended') = coalesce(end_reason IN ('COMPLETED', 'CANCELLED', 'TIMEOUT', 'ERROR'), false)", name="end_reason"),
    info=ddl(sqlite_autoincrement=True),
)  # fmt: skip
_active = "status = 'active'"
Index(
    "ix_ai_sessions_active",
    ai_sessions.c.slot,
    unique=True,
    info=where(_active),
)
_scheduled = "trigger = 'SCHEDULED'"
Index(
    "ix_ai_sessions_occurrence", ai_sessions.c.automation_id, ai_sessions.c.scheduled_at, unique=True, info=where(_scheduled),
)  # fmt: skip
_keyed = "key IS NOT NULL"
Index(
    "ix_ai_sessions_key", ai_sessions.c.automation_id, ai_sessions.c.key, unique=True, info=where(_keyed)
)  # fmt: skip
_open = "status IN ('queued', 'interrupted')"
Index("ix_ai_sessions_open", ai_sessions.c.slot, ai_sessions.c.status, info=where(_open))  # fmt: skip
Index("ix_ai_sessions_automation", ai_sessions.c.automation_id, ai_sessions.c.id)

ai_messages = Table(
    "ai_messages",
    metadata,
    Column("session_id", Id, nullable=False),
    Column("position", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("text", Text, nullable=False),
    #: Calls that an assistant asked for (JSON array).
    Column("calls", Json),
    #: Of a tool's result: the call.
    Column("call_id", Text),
    #: The round in which it was said; null for what people and seeds say.
    Column("round", Integer),
    Column("created_at", Instant, nullable=False),
    #: Of an assistant: the message as its provider sent it, and which one that was (JSON object: origin, message).
    Column("original", Json),
    PrimaryKeyConstraint("session_id", "position"),
)

ai_calls = Table(
    "ai_calls",
    metadata,
    Column("session_id", Id, nullable=False),
    #: Counts the calls of a session from 1; with the session it is the idempotency key of the effect.
    Column("number", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    #: The model's own name of it.
    Column("call_id", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("arguments", Json, nullable=False),
    Column("status", Text, nullable=False),
    Column("result", Text),
    Column("job_id", Id),
    Column("asked_at", Instant, nullable=False),
    #: When its function was called last; null before, and for a task.
    Column("begun_at", Instant),
    #: Until when it may go on without a sign, where the function has a timeout; far away where it was given up then and goes on.
    Column("may_take_until", Instant),
    Column("finished_at", Instant),
    PrimaryKeyConstraint("session_id", "number"),
    CheckConstraint(CALL_LIFECYCLE.check("status"), name="status"),
)

ai_rounds = Table(
    "ai_rounds",
    metadata,
    Column("session_id", Id, nullable=False),
    Column("number", Integer, nullable=False),
    Column("automation_id", Id),
    Column("reason", Text, nullable=False),
    Column("activation", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    #: Null: no answer has come (yet).
    Column("answered_at", Instant),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cost_micros", BigInteger, nullable=False),
    #: Why the last question of this round was not answered.
    Column("error", Text),
    #: How many answers to it broke off in a row; null for none.
    Column("unanswered", Integer),
    PrimaryKeyConstraint("session_id", "number"),
)
Index("ix_ai_rounds_spent", ai_rounds.c.automation_id, ai_rounds.c.started_at)

#: Planned instants that were left out, by the stretch (T001-k).
automation_skips = Table(
    "automation_skips",
    metadata,
    Column("automation_id", Id, nullable=False),
    Column("first_at", Instant, nullable=False),
    Column("last_at", Instant, nullable=False),
    #: How many; at least so many where they were not counted to the end.
    Column("count", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("acted_at", Instant, nullable=False),
    PrimaryKeyConstraint("automation_id", "first_at"),
)
