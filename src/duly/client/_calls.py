"""The calls of the REST API. Written by `python docs/make_client.py` from its description; do not edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NotRequired, TypedDict, Unpack

Send = Callable[..., Any]


class Act(TypedDict):
    """Why something is done."""

    reason: NotRequired[str]


class Acted(TypedDict):
    done: list[int]
    refused: dict[str, Any]
    dry_run: bool


class Alert(TypedDict):
    """Something that a person must know. Instants are UTC."""

    id: int
    rule: str
    subject: str
    state: Literal["pending", "raised", "cleared"]
    severity: Literal["warning", "critical"]
    detail: str
    value: float
    since: str
    last_seen: str
    raised_at: str | None
    fine_since: str | None
    cleared_at: str | None
    acked_at: str | None
    acked_by: str | None
    ack_reason: str | None
    noticed_at: str | None
    remedy: str | None
    terms: str | None


class AlertPage(TypedDict):
    alerts: list[Alert]
    next: str | None
    judged_at: str | None
    stale: str | None
    unknown: dict[str, Any]


class ApproveIn(TypedDict):
    approved: NotRequired[bool]
    name: NotRequired[str | None]
    reason: NotRequired[str]


class Archive(TypedDict):
    """A round with everything in it. Texts of members are hidden from who may not see payloads."""

    round: RoundsRound
    submissions: list[Submission]
    comments: list[Comment]
    votes: list[Vote]
    hidden: bool


class AssetIn(TypedDict):
    """An image or a video; at least one of url and reference."""

    kind: NotRequired[Literal["image", "video"]]
    url: NotRequired[str | None]
    checksum: NotRequired[str | None]
    reference: NotRequired[str | None]
    alt: NotRequired[str]


class Automation(TypedDict):
    """An automation as it stands. Its messages are hidden from who may not see payloads."""

    id: int
    tenant: str
    name: str
    messages: list[MessageOut] | None
    schedule: dict[str, Any] | None
    when: str
    triggers: list[str]
    tools: list[str]
    slot: str
    provider: str | None
    model: str | None
    dismiss_older_instances: bool
    catch_up_window: float | None
    limits: dict[str, Any]
    max_tokens: int | None
    temperature: float | None
    no_call: NoCall
    max_unanswered: int | None
    is_enabled: bool
    version: int
    error: str | None
    next_run: str | None
    last_execution_id: int | None
    execution_history: list[int]
    created_at: str
    updated_at: str
    hidden: bool
    warnings: NotRequired[list[str]]
    etag: str


class AutomationChange(TypedDict):
    """What is not given stays. Null for schedule, provider, model, catch_up_window, max_tokens, temperature and max_unanswered takes it away; elsewhere it is nothing."""

    prompt: NotRequired[str | None]
    messages: NotRequired[list[MessageIn] | None]
    schedule: NotRequired[dict[str, Any] | None]
    triggers: NotRequired[list[str] | None]
    tools: NotRequired[list[str] | None]
    slot: NotRequired[str | None]
    provider: NotRequired[str | None]
    model: NotRequired[str | None]
    dismiss_older_instances: NotRequired[bool | None]
    catch_up_window: NotRequired[float | str | None]
    limits: NotRequired[dict[str, Any] | None]
    max_tokens: NotRequired[int | None]
    temperature: NotRequired[float | None]
    no_call: NotRequired[NoCall | None]
    max_unanswered: NotRequired[int | None]
    name: NotRequired[str | None]


class AutomationIn(TypedDict):
    prompt: NotRequired[str | None]
    messages: NotRequired[list[MessageIn] | None]
    schedule: NotRequired[dict[str, Any] | None]
    triggers: NotRequired[list[str] | None]
    tools: NotRequired[list[str] | None]
    slot: NotRequired[str | None]
    provider: NotRequired[str | None]
    model: NotRequired[str | None]
    dismiss_older_instances: NotRequired[bool | None]
    catch_up_window: NotRequired[float | str | None]
    limits: NotRequired[dict[str, Any] | None]
    max_tokens: NotRequired[int | None]
    temperature: NotRequired[float | None]
    no_call: NotRequired[NoCall | None]
    max_unanswered: NotRequired[int | None]
    name: str
    is_enabled: NotRequired[bool]
    tenant: NotRequired[str | None]


class AutomationsCondition(TypedDict):
    """One condition that has to hold before an automation starts."""

    name: str
    met: bool
    detail: str
    remedy: str


class AutomationsPage(TypedDict):
    automations: list[Automation]
    next: str | None


class AutomationsWhy(TypedDict):
    id: int
    starts: bool
    checks: list[AutomationsCondition]


class BackfillIn(TypedDict):
    start: str
    end: NotRequired[str | None]
    reason: NotRequired[str]
    dry_run: NotRequired[bool]


class Backfilled(TypedDict):
    fired: list[str]
    deferred: list[str]
    left: list[str]
    dry_run: bool


class Backlog(TypedDict):
    """How it stands with one destination."""

    destination: str
    pending: int
    due: int
    in_flight: int
    parked: int
    sent: int | None
    oldest_at: str | None
    oldest_age: float
    hold: Hold | None


class Blackout(TypedDict):
    """A window that holds work, under a name."""

    name: str
    scope: str
    window: dict[str, Any] | None
    problem: str | None
    description: str
    enabled: bool
    version: int
    holds_from: str | None
    holds_until: str | None
    reason: str | None
    source: str | None
    created_at: str
    updated_at: str
    updated_by: str
    etag: str


class BlackoutIn(TypedDict):
    tz: str
    start: NotRequired[str]
    end: NotRequired[str]
    days: NotRequired[list[str] | None]
    dates: NotRequired[list[str | Span] | None]
    scope: NotRequired[str]
    enabled: NotRequired[bool]
    reason: NotRequired[str]


class Blackouts(TypedDict):
    blackouts: list[Blackout]
    next: str | None


class Branch(TypedDict):
    """A job below a run."""

    id: int
    parent_id: int
    depth: int
    task: str
    status: str
    workflow: str | None


class Call(TypedDict):
    """A call of a tool."""

    number: int
    round: int
    tool: str
    arguments: Any
    status: str
    result: str | None
    job_id: int | None
    asked_at: str | None
    finished_at: str | None


class CancelIn(TypedDict):
    reason: NotRequired[str]
    undo: NotRequired[bool]


class Cancelled(TypedDict):
    cancelled: list[int]
    refused: dict[str, Any]


class ChangeIn(TypedDict):
    """What is left out stays. Logins of the user end."""

    password: NotRequired[str | None]
    role: NotRequired[Literal["viewer", "operator", "admin"] | None]
    disabled: NotRequired[bool | None]
    reason: NotRequired[str]


class Changed(TypedDict):
    changed: bool


class ChatIn(TypedDict):
    title: NotRequired[str]
    slot: NotRequired[str]
    provider: NotRequired[str | None]
    model: NotRequired[str | None]
    tools: NotRequired[list[str]]
    tenant: NotRequired[str | None]


class Coming(TypedDict):
    """A planned instant to come, and what is special about it."""

    due_at: str
    local: str | None
    effect: str
    special: str | None
    blackout: list[str]
    blackout_until: str | None


class Comment(TypedDict):
    id: int
    round_id: int
    submission_id: int
    member_id: int
    text: str | None
    created_at: str
    edited_at: str | None


class Counted(TypedDict):
    count: int
    capped: bool


class Definition(TypedDict):
    """A workflow that this process knows. Workers may know others."""

    name: str
    versions: list[int]
    queue: str


class Definitions(TypedDict):
    workflows: list[Definition]


class Entry(TypedDict):
    """A row of the trail: who did what to what, and when."""

    id: int
    at: str
    tenant: str
    actor: str
    level: str
    action: str
    entity: str
    entity_id: str
    meta: Any


class EntryPage(TypedDict):
    entries: list[Entry]
    next: str | None


class FilterIn(TypedDict):
    """Which publications. Everything given must hold, and something besides the status must be given."""

    channel: NotRequired[str | None]
    status: NotRequired[list[Literal["pending", "running", "completed", "failed", "cancelled"]]]
    type: NotRequired[Literal["publish", "ig_first_comment"] | None]
    idempotency_key: NotRequired[str | None]
    remote_id: NotRequired[str | None]
    parent_id: NotRequired[int | None]
    run_from: NotRequired[str | None]
    run_until: NotRequired[str | None]
    ids: NotRequired[list[int]]


class Finding(TypedDict):
    severity: Literal["error", "warning", "hint"]
    field: str
    message: str


class Fired(TypedDict):
    sessions: list[Wanted]


class ForgetJobKeyIn(TypedDict):
    key: str
    queue: NotRequired[str]
    reason: str
    job_id: NotRequired[int | None]
    force: NotRequired[bool]


class ForgetKeyIn(TypedDict):
    reason: str
    force: NotRequired[bool]


class Gate(TypedDict):
    """While it is offline no worker claims anything and no relay of the outbox sends anything; running jobs go on, new ones are accepted and wait."""

    online: bool
    outbox: bool
    since: str | None
    by: str | None
    reason: str | None


class GateIn(TypedDict):
    """Why the gate is moved, and for what."""

    reason: NotRequired[str]
    scope: NotRequired[list[Literal["jobs", "outbox"]] | None]


class Group(TypedDict):
    """A group with its clock on the wall."""

    id: int
    tenant: str
    name: str
    zone: str
    drop_time: str | None
    is_active: bool
    notifications: bool
    cooldown: float | None
    plan_at: str | None
    error: str | None
    error_at: str | None
    failures: int
    created_at: str | None
    etag: str


class GroupChange(TypedDict):
    """What is not given stays. Null for drop_time and cooldown is the setting; elsewhere it is nothing."""

    reason: NotRequired[str]
    name: NotRequired[str | None]
    zone: NotRequired[str | None]
    drop_time: NotRequired[str | None]
    cooldown: NotRequired[float | str | None]
    is_active: NotRequired[bool | None]
    notifications: NotRequired[bool | None]


class GroupIn(TypedDict):
    name: str
    zone: str
    drop_time: NotRequired[str | None]
    cooldown: NotRequired[float | str | None]
    is_active: NotRequired[bool]
    notifications: NotRequired[bool]


class Groups(TypedDict):
    groups: list[Group]
    next: str | None


class Health(TypedDict):
    """``ok``; ``degraded``: alerts are raised, or rules cannot be judged; ``failing`` (503): the database does not answer."""

    status: Literal["ok", "degraded", "failing"]
    reasons: list[str]
    alerts: list[Raised]
    unknown: dict[str, Any]
    judged_at: str | None
    judged_by: str | None


class HeldJob(TypedDict):
    id: int
    task: str
    at: str


class HeldQueue(TypedDict):
    queue: str
    count: int
    at_least: bool
    first: list[HeldJob]


class HeldSchedule(TypedDict):
    schedule: str
    count: int
    first: list[str]


class Hold(TypedDict):
    """Why a relay sends nothing to a destination at this moment. Its messages wait and use no attempt."""

    kind: Literal["away", "refused"]
    since: str
    until: str
    tries: int
    problem: str


class HoldIn(TypedDict):
    until: str
    reason: NotRequired[str]


class Impact(TypedDict):
    """What a window would hold, the first of each named."""

    start: str
    end: str
    stretches: list[Stretch]
    queues: list[HeldQueue]
    schedules: list[HeldSchedule]


class ImpactIn(TypedDict):
    tz: str
    start: NotRequired[str]
    end: NotRequired[str]
    days: NotRequired[list[str] | None]
    dates: NotRequired[list[str | Span] | None]
    scope: NotRequired[str]
    since: NotRequired[str | None]
    until: NotRequired[str | None]


class JobAttempt(TypedDict):
    """One start that did not end well."""

    number: int
    outcome: str
    worker: str | None
    started_at: str | None
    ended_at: str
    error: Any


class JobKey(TypedDict):
    """A key that a job was enqueued with, and that is taken."""

    tenant: str
    queue: str
    key: str
    job_id: int
    task: str | None
    status: str | None
    pruned: bool
    scope: Literal["start", "done", "forever", "until"]
    until: str | None
    since: str


class JobKeyPage(TypedDict):
    keys: list[JobKey]
    next: str | None


class JobsBulkIn(TypedDict):
    filter: JobsFilterIn
    reason: NotRequired[str]
    limit: NotRequired[int]
    force: NotRequired[bool]
    dry_run: NotRequired[bool]
    undo_seconds: NotRequired[float | str]


class JobsCondition(TypedDict):
    """One condition that has to hold before a job runs."""

    name: str
    met: bool
    detail: str
    remedy: str


class JobsFilterIn(TypedDict):
    """Which jobs. Everything given must hold, and something besides the status must be given."""

    status: NotRequired[list[Literal["queued", "running", "succeeded", "failed", "cancelled"]]]
    queue: NotRequired[str | None]
    task: NotRequired[str | None]
    key: NotRequired[str | None]
    parent_id: NotRequired[int | None]
    error: NotRequired[str | None]
    since: NotRequired[str | None]
    before: NotRequired[str | None]
    ids: NotRequired[list[int]]
    tenant: NotRequired[str | None]


class JobsJob(TypedDict):
    """A job as it stands. Instants are UTC. What it carries is hidden from who may not see payloads."""

    id: int
    tenant: str
    queue: str
    task: str
    status: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    priority: int
    key: str | None
    concurrency_key: str | None
    parent_id: int | None
    attempts: int
    max_attempts: int
    created_at: str | None
    run_at: str | None
    due_at: str | None
    next_retry_at: str | None
    started_at: str | None
    finished_at: str | None
    worker: str | None
    lease_until: str | None
    cancel_requested: bool
    waits_for_children: bool
    cost_cents: int
    remote_id: str | None
    input: Any
    output: Any
    error: Any
    meta: Any
    hidden: bool


class JobsJobIn(TypedDict):
    """A job to be made."""

    task: str
    input: NotRequired[dict[str, Any]]
    queue: NotRequired[str | None]
    key: NotRequired[str | None]
    priority: NotRequired[int | None]
    run_at: NotRequired[str | None]
    run_in: NotRequired[float | str | None]
    max_attempts: NotRequired[int | None]
    concurrency_key: NotRequired[str | None]
    tenant: NotRequired[str | None]


class JobsMade(TypedDict):
    job: JobsJob
    created: bool
    warnings: NotRequired[list[str]]


class JobsMadeMany(TypedDict):
    jobs: list[JobsMade]
    created: int
    warnings: NotRequired[list[str]]


class JobsPage(TypedDict):
    jobs: list[JobsJob]
    next: str | None


class JobsReplayIn(TypedDict):
    reason: NotRequired[str]
    force: NotRequired[bool]


class JobsWhole(TypedDict):
    """A job with what became of each start, and its children."""

    id: int
    tenant: str
    queue: str
    task: str
    status: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    priority: int
    key: str | None
    concurrency_key: str | None
    parent_id: int | None
    attempts: int
    max_attempts: int
    created_at: str | None
    run_at: str | None
    due_at: str | None
    next_retry_at: str | None
    started_at: str | None
    finished_at: str | None
    worker: str | None
    lease_until: str | None
    cancel_requested: bool
    waits_for_children: bool
    cost_cents: int
    remote_id: str | None
    input: Any
    output: Any
    error: Any
    meta: Any
    hidden: bool
    attempts_made: list[JobAttempt]
    children: list[int]


class JobsWhy(TypedDict):
    id: int
    runs: bool
    checks: list[JobsCondition]


class Key(TypedDict):
    """A key as it stands."""

    tenant: str
    key: str
    task: str
    state: Literal["in_progress", "succeeded", "failed"]
    owner: str
    attempts: int
    since: str
    seen_at: str
    locked_until: str | None
    kept_until: str
    result_size: int | None


class KeyPage(TypedDict):
    keys: list[Key]
    next: str | None


class KnownAs(TypedDict):
    """What a provider calls a person for ever."""

    issuer: str
    subject: str


class Ledger(TypedDict):
    occurrences: list[Occurrence]
    next: str | None


class LimitsIn(TypedDict):
    """What limits a queue. All of it is replaced: what is left out, or null, is no limit."""

    limit: NotRequired[int | None]
    key_limit: NotRequired[int | None]
    rate: NotRequired[RateIn | None]
    fair: NotRequired[bool]
    reason: NotRequired[str]


class Listed(TypedDict):
    id: int
    name: str
    tenant: str
    version: int
    state: Literal["active", "paused", "broken", "ended"]
    when: str | None
    recurrence: dict[str, Any] | None
    tz: str | None
    task: str | None
    input: Any
    queue: str | None
    priority: int | None
    max_attempts: int | None
    catch_up: str | None
    overlap: str | None
    blackout: str | None
    starts_at: str | None
    ends_at: str | None
    next_at: str | None
    next_local: str | None
    decided_until: str
    paused_at: str | None
    paused_by: str | None
    paused_reason: str | None
    error: str | None
    error_at: str | None
    created_at: str | None
    updated_at: str | None
    updated_by: str | None
    undeclared: bool
    hidden: bool
    warnings: NotRequired[list[str]]
    last: Occurrence | None
    etag: str


class MadeToken(TypedDict):
    token: str
    record: Token


class ManyIn(TypedDict):
    jobs: list[JobsJobIn]


class Me(TypedDict):
    """Who asks, and what they may."""

    actor: str
    role: Literal["viewer", "operator", "admin"]
    tenant: str | None
    scopes: list[str]
    user: str | None
    csrf: str | None
    sees_payloads: bool


class Member(TypedDict):
    """Somebody in a group. Addresses are hidden from who may not see payloads."""

    id: int
    group_id: int
    name: str
    email: str | None
    webhook: str | None
    channels: list[str]
    is_active: bool
    created_at: str | None
    hidden: bool
    etag: str


class MemberChange(TypedDict):
    """What is not given stays. Null takes an address away; elsewhere it is nothing."""

    reason: NotRequired[str]
    email: NotRequired[str | None]
    webhook: NotRequired[str | None]
    channels: NotRequired[list[Literal["email", "webhook", "log"]] | None]
    is_active: NotRequired[bool | None]


class MemberIn(TypedDict):
    name: str
    email: NotRequired[str | None]
    webhook: NotRequired[str | None]
    channels: NotRequired[list[Literal["email", "webhook", "log"]]]


class Members(TypedDict):
    members: list[Member]
    next: str | None


class Message(TypedDict):
    """A message as it stands. Payload, headers and error are hidden from who may not see payloads."""

    id: int
    message_id: str
    tenant: str
    destination: str
    status: Literal["pending", "sent", "parked"]
    label: str
    key: str | None
    ordering_key: str | None
    attempts: int
    losses: int
    created_at: str | None
    due_at: str | None
    sent_at: str | None
    parked_at: str | None
    relay: str | None
    lease_until: str | None
    payload: Any
    headers: dict[str, Any] | None
    error: Any
    hidden: bool


class MessageIn(TypedDict):
    role: Literal["system", "user", "assistant"]
    text: str


class MessageOut(TypedDict):
    role: Literal["system", "user", "assistant", "tool"]
    text: str


class Minute(TypedDict):
    """What ended within a minute, the last one until now."""

    start: str
    succeeded: int
    failed: int
    cancelled: int
    wait_median: float | None
    wait_p95: float | None


class Next(TypedDict):
    next_rounds: list[Upcoming]
    next: str | None


class NoCall(TypedDict):
    """What an answer means that neither calls a tool nor says that the work is done."""

    pass


class Occurrence(TypedDict):
    """What became of one planned instant."""

    due_at: str
    status: Literal["fired", "skipped", "missed", "deferred"]
    reason: str | None
    policy: str
    trigger: str
    version: int
    job_id: int | None
    job_status: str | None
    start_at: str | None
    release_at: str | None
    acted_at: str
    late: float


class Oldest(TypedDict):
    """The ready job that was planned for the earliest instant."""

    queue: str
    at: str
    seconds: float


class OutboxBulkIn(TypedDict):
    """Parked messages: those to a destination, or all."""

    destination: NotRequired[str | None]
    everything: NotRequired[bool]
    tenant: NotRequired[str | None]
    reason: NotRequired[str]
    limit: NotRequired[int]
    dry_run: NotRequired[bool]


class OutboxPage(TypedDict):
    messages: list[Message]
    next: str | None


class Outcome(TypedDict):
    """What followed from a report. Numbers count recipients."""

    kind: str
    suppressed: int
    known: int
    soft: int
    strangers: int
    repeated: bool


class Overview(TypedDict):
    """How things stand. Jobs are counted as far as is told, so that no backlog makes it slow."""

    now: str
    online: bool
    gate_reason: str | None
    capped_at: int
    queues: list[QueueDepth]
    oldest: Oldest | None
    minutes: list[Minute]
    totals: Totals
    system: Told | None


class ParkIn(TypedDict):
    reason: str


class PauseIn(TypedDict):
    reason: NotRequired[str]
    span: NotRequired[float | str | None]
    now: NotRequired[bool]


class PlannedAct(TypedDict):
    """An act on many jobs that can be undone until it begins. It is there for who asked for it, in the process that was asked."""

    id: str
    event: Literal["cancel", "replay"]
    state: Literal["waits", "runs", "done", "undone", "failed"]
    count: int
    begins_at: str
    done: int
    refused: dict[str, Any]
    problem: str | None
    reason: str


class PlannedActs(TypedDict):
    acts: list[PlannedAct]
    next: str | None


class PostIn(TypedDict):
    """What is to be published; at least one of caption, title, link and assets."""

    brand: NotRequired[str]
    caption: NotRequired[str]
    title: NotRequired[str]
    link: NotRequired[str]
    assets: NotRequired[list[AssetIn]]
    ig_first_comment: NotRequired[str | None]
    options: NotRequired[dict[str, Any]]
    preview: NotRequired[bool]


class Preflight(TypedDict):
    score: int
    ok: bool
    findings: list[Finding]


class Preview(TypedDict):
    when: str
    tz: str | None
    next: list[Coming]
    clock_changes: list[str]


class Previewed(TypedDict):
    preview: dict[str, Any]
    preflight: Preflight


class Probe(TypedDict):
    status: str
    reasons: list[str] | None


class Prompt(TypedDict):
    id: int
    group_id: int
    text: str
    is_active: bool
    created_at: str | None
    etag: str


class PromptChange(TypedDict):
    reason: NotRequired[str]
    text: NotRequired[str | None]
    is_active: NotRequired[bool | None]


class Prompts(TypedDict):
    prompts: list[Prompt]
    next: NotRequired[str | None]


class PromptsIn(TypedDict):
    texts: list[str]


class PublishingBulkIn(TypedDict):
    filter: FilterIn
    reason: NotRequired[str]
    limit: NotRequired[int]


class PublishingJob(TypedDict):
    """A publication, or the first comment beneath one. Instants are UTC."""

    id: int
    channel: str
    type: str
    status: Literal["pending", "running", "completed", "failed", "cancelled"]
    idempotency_key: str | None
    payload: dict[str, Any]
    run_at: str | None
    attempts: int
    max_attempts: int
    remote_id: str | None
    url: str | None
    error: str | None
    progress: str | None
    parent_id: int | None
    children: list[int]
    created_at: str | None
    started_at: str | None
    finished_at: str | None
    gone: bool


class PublishingJobIn(TypedDict):
    """A channel and a payload, or a plan."""

    channel: NotRequired[str | None]
    payload: NotRequired[PostIn | None]
    run_at: NotRequired[str | None]
    idempotency_key: NotRequired[str | None]
    plan: NotRequired[dict[str, Any] | None]
    skip_past: NotRequired[bool]
    override: NotRequired[str | None]


class PublishingMade(TypedDict):
    """A publication, and whether this request made it."""

    job: PublishingJob
    created: bool
    past: NotRequired[bool]


class PublishingMadeMany(TypedDict):
    jobs: list[PublishingMade]
    created: int
    past: NotRequired[int]
    skipped: NotRequired[int]


class PublishingPage(TypedDict):
    jobs: list[PublishingJob]
    next: str | None


class PublishingPreviewIn(TypedDict):
    channel: str
    payload: PostIn


class PublishingReplayIn(TypedDict):
    reason: NotRequired[str]


class Queue(TypedDict):
    """A queue: what stands in it, who serves it, what governs it. Instants are UTC."""

    name: str
    ready: int
    later: int
    running: int
    at_least: list[Literal["ready", "later", "running"]]
    oldest: str | None
    workers: int
    limit: int | None
    key_limit: int | None
    rate: Rate | None
    fair: bool
    paused_at: str | None
    paused_reason: str | None
    paused_by: str | None
    held_until: str | None
    held_reason: str | None
    blackout: str | None
    blackout_until: str | None
    etag: str


class QueueDepth(TypedDict):
    queue: str
    ready: int
    later: int
    running: int
    oldest: str | None
    at_least: list[Literal["ready", "later", "running"]]


class QueuePage(TypedDict):
    queues: list[Queue]
    next: str | None


class Raised(TypedDict):
    id: int
    rule: str
    subject: str
    severity: Literal["warning", "critical"]
    detail: str
    raised_at: str | None
    acked_by: str | None


class Rate(TypedDict):
    count: int
    seconds: float


class RateIn(TypedDict):
    count: int
    seconds: float | str


class Received(TypedDict):
    received: bool


class RedriveIn(TypedDict):
    reason: NotRequired[str]
    force: NotRequired[bool]


class Redriven(TypedDict):
    count: int
    dry_run: bool


class Replayed(TypedDict):
    replayed: list[int]
    refused: dict[str, Any]


class RoundsPage(TypedDict):
    rounds: list[RoundsRound]
    next: str | None


class RoundsRound(TypedDict):
    """A round as it stands."""

    id: int
    tenant: str
    group_id: int
    scheduled_for: str
    status: Literal["scheduled", "open", "closed"]
    label: str
    zone: str
    drop_time: str
    planned_at: str
    created_at: str
    prompt_id: int | None
    prompt_text: str | None
    due_at: str | None
    open_at: str | None
    close_at: str | None
    opened_at: str | None
    closed_at: str | None
    late: float | None


class Run(TypedDict):
    """A run as it stands. What it carries is hidden from who may not see payloads."""

    id: int
    tenant: str
    workflow: str
    version: int | None
    state: str
    waits: list[Wait]
    input: Any
    output: Any
    error: Any
    parent_id: int | None
    forked_from: int | None
    attempts: int
    created_at: str | None
    finished_at: str | None
    hidden: bool


class RunIn(TypedDict):
    reason: NotRequired[str]
    key: NotRequired[str | None]


class Said(TypedDict):
    """Something that was said."""

    position: int
    role: Literal["system", "user", "assistant", "tool"]
    text: str | None
    calls: list[SaidCall]
    call_id: str | None
    round: int | None
    at: str


class SaidCall(TypedDict):
    id: str
    name: str
    arguments: Any


class SayIn(TypedDict):
    text: str


class Schedule(TypedDict):
    """A schedule as it stands. Of one that cannot be read (`broken`), what it does is null."""

    id: int
    name: str
    tenant: str
    version: int
    state: Literal["active", "paused", "broken", "ended"]
    when: str | None
    recurrence: dict[str, Any] | None
    tz: str | None
    task: str | None
    input: Any
    queue: str | None
    priority: int | None
    max_attempts: int | None
    catch_up: str | None
    overlap: str | None
    blackout: str | None
    starts_at: str | None
    ends_at: str | None
    next_at: str | None
    next_local: str | None
    decided_until: str
    paused_at: str | None
    paused_by: str | None
    paused_reason: str | None
    error: str | None
    error_at: str | None
    created_at: str | None
    updated_at: str | None
    updated_by: str | None
    undeclared: bool
    hidden: bool
    warnings: NotRequired[list[str]]
    etag: str


class ScheduleIn(TypedDict):
    """A definition, whole: what is left out has its default."""

    recurrence: dict[str, Any]
    task: str
    input: NotRequired[dict[str, Any]]
    queue: NotRequired[str | None]
    priority: NotRequired[int | None]
    max_attempts: NotRequired[int | None]
    catch_up: NotRequired[str]
    overlap: NotRequired[Literal["allow", "skip", "queue", "replace"]]
    blackout: NotRequired[Literal["defer", "skip", "run_after"]]
    starts_at: NotRequired[str | None]
    ends_at: NotRequired[str | None]


class SchedulesPage(TypedDict):
    schedules: list[Listed]
    next: str | None


class SchedulesPreviewIn(TypedDict):
    """A recurrence that is tried out; nothing is written."""

    recurrence: dict[str, Any]
    name: NotRequired[str]
    queue: NotRequired[str]
    blackout: NotRequired[Literal["defer", "skip", "run_after"]]
    starts_at: NotRequired[str | None]
    ends_at: NotRequired[str | None]
    since: NotRequired[str | None]
    n: NotRequired[int]


class Sent(TypedDict):
    sent: bool
    warnings: NotRequired[list[str]]


class Session(TypedDict):
    """A session: an execution of an automation, or a chat."""

    id: int
    tenant: str
    type: Literal["CHAT", "AUTOMATION"]
    status: Literal["queued", "active", "interrupted", "ended"]
    trigger: Literal["SCHEDULED", "MANUAL", "EVENT"] | None
    automation_id: int | None
    title: str
    slot: str
    job_id: int | None
    created_at: str
    scheduled_at: str | None
    started_at: str | None
    last_activity_at: str | None
    ended_at: str | None
    resume_at: str | None
    end_reason: str | None
    end_detail: str | None
    is_waiting_for_network: bool
    rounds: int
    calls: int
    crashes: int
    input_tokens: int
    output_tokens: int
    cost_cents: float
    provider: str | None
    key: str | None


class Sessions(TypedDict):
    sessions: list[Session]
    next: str | None


class SessionsOutRound(TypedDict):
    """A question to the AI, and its answer."""

    number: int
    reason: str
    started_at: str
    answered_at: str | None
    input_tokens: int
    output_tokens: int
    cost_cents: float
    error: str | None


class SessionsOutWhole(TypedDict):
    """A session with what was said and done in it."""

    id: int
    tenant: str
    type: Literal["CHAT", "AUTOMATION"]
    status: Literal["queued", "active", "interrupted", "ended"]
    trigger: Literal["SCHEDULED", "MANUAL", "EVENT"] | None
    automation_id: int | None
    title: str
    slot: str
    job_id: int | None
    created_at: str
    scheduled_at: str | None
    started_at: str | None
    last_activity_at: str | None
    ended_at: str | None
    resume_at: str | None
    end_reason: str | None
    end_detail: str | None
    is_waiting_for_network: bool
    rounds: int
    calls: int
    crashes: int
    input_tokens: int
    output_tokens: int
    cost_cents: float
    provider: str | None
    key: str | None
    transcript: list[Said]
    partial: str | None
    calls_made: list[Call]
    rounds_made: list[SessionsOutRound]
    hidden: bool


class SignalIn(TypedDict):
    name: str
    payload: NotRequired[Any]
    key: NotRequired[str | None]


class SinceIn(TypedDict):
    reason: NotRequired[str]
    since: NotRequired[int | str | None]


class Slot(TypedDict):
    name: str
    held: bool
    session_id: int | None
    since: str | None


class Slots(TypedDict):
    slots: list[Slot]


Span = TypedDict(
    "Span",
    {
        "from": "str",
        "to": "str",
    },
)


class Standing(TypedDict):
    """How the outbox stands."""

    pending: int
    due: int
    in_flight: int
    parked: int
    sent: int | None
    oldest_at: str | None
    oldest_age: float
    drained: bool
    destinations: list[Backlog]


class StartIn(TypedDict):
    """A run to be made."""

    workflow: str
    input: NotRequired[dict[str, Any]]
    key: NotRequired[str | None]
    priority: NotRequired[int | None]
    run_at: NotRequired[str | None]
    run_in: NotRequired[float | str | None]
    tenant: NotRequired[str | None]


class Started(TypedDict):
    run: Run
    created: bool
    warnings: NotRequired[list[str]]


class Step(TypedDict):
    """Something that a run has on record. ``position`` counts from 1; an undo has the negative of its step's."""

    position: int
    kind: str
    name: str
    status: str | None
    attempts: int
    child_id: int | None
    output: Any
    error: Any
    due_at: str | None
    started_at: str | None
    finished_at: str | None


class Stretch(TypedDict):
    start: str
    end: str


class Submission(TypedDict):
    id: int
    round_id: int
    member_id: int
    text: str | None
    votes: NotRequired[int | None]
    created_at: str
    edited_at: str | None


class SubmitIn(TypedDict):
    member: int | str
    text: str


class Suppressed(TypedDict):
    suppressions: list[Suppression]


class Suppression(TypedDict):
    """An address that is not written to."""

    tenant: str
    address: str
    reason: str | None
    source: str | None
    created_at: str
    created_by: str


class SuppressionIn(TypedDict):
    address: str
    reason: NotRequired[str]


class TestIn(TypedDict):
    channel: str
    payload: NotRequired[PostIn | None]
    run_at: NotRequired[str | None]
    idempotency_key: NotRequired[str | None]


class Tested(TypedDict):
    outcome: Literal["ok", "preflight", "blackout", "collision", "limit"]
    detail: str
    until: str | None
    existing: PublishingJob | None


class Tick(TypedDict):
    """A pass of a tick over all groups."""

    kind: Literal["plan", "open", "close"]
    started_at: NotRequired[str | None]
    done: int
    skipped: int
    failed: int
    seconds: float
    mean_late: float | None
    most_late: float | None


class TickIn(TypedDict):
    kind: NotRequired[Literal["plan", "open", "close"] | None]


class Ticks(TypedDict):
    ticks: list[Tick]


class Token(TypedDict):
    """A token, without what lets somebody in."""

    id: int
    name: str
    prefix: str
    role: Literal["viewer", "operator", "admin"]
    tenant: str | None
    scopes: list[str]
    state: Literal["active", "expired", "revoked"]
    created_at: str
    created_by: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class TokenIn(TypedDict):
    name: str
    role: NotRequired[Literal["viewer", "operator", "admin"]]
    tenant: NotRequired[str | None]
    scopes: NotRequired[list[str]]
    expires_in: NotRequired[float | str | None]
    expires_at: NotRequired[str | None]
    reason: NotRequired[str]


class TokenPage(TypedDict):
    tokens: list[Token]
    next: str | None


class Told(TypedDict):
    """What is everybody's: null in the overview of who belongs to a tenant."""

    workers: int
    unserved: list[str]
    alerts_raised: int
    alerts_critical: int
    alerts_noted: int
    judged_at: str | None


class Totals(TypedDict):
    """Over all queues and the minutes that are shown."""

    ready: int
    later: int
    running: int
    at_least: list[Literal["ready", "later", "running"]]
    succeeded: int
    failed: int
    cancelled: int
    wait_median: float | None
    wait_p95: float | None


class Upcoming(TypedDict):
    """The next opening of a group, as far as it is known now."""

    group_id: int
    at: str | None
    scheduled_for: str | None
    planned: bool
    reason: str


class User(TypedDict):
    """A person who may log in."""

    id: int
    name: str
    role: Literal["viewer", "operator", "admin"]
    tenant: str | None
    created_at: str
    updated_at: str
    disabled_at: str | None
    login: Literal["password", "oidc", "none"]
    identities: list[KnownAs]
    etag: str


class UserIn(TypedDict):
    name: str
    password: str
    role: NotRequired[Literal["viewer", "operator", "admin"]]
    tenant: NotRequired[str | None]
    reason: NotRequired[str]


class UserPage(TypedDict):
    users: list[User]
    next: str | None


class Verdict(TypedDict):
    """What a walk along the hash chain found."""

    holds: bool
    rows: int
    seals: int
    unsealed: int
    broken: str | None
    seal_id: int | None
    row_id: int | None


class Version(TypedDict):
    version: int
    definition: dict[str, Any] | None
    made_at: str
    made_by: str


class Versions(TypedDict):
    versions: list[Version]


class Vote(TypedDict):
    round_id: int
    member_id: int
    submission_id: int
    created_at: str
    edited_at: str | None


class VoteIn(TypedDict):
    member: int | str


class Wait(TypedDict):
    """Something that a run waits for."""

    kind: str
    name: str
    until: str | None


class Wanted(TypedDict):
    session: Session
    control: Literal["ACTIVATED", "QUEUED", "BUSY"] | None
    created: bool


class Worker(TypedDict):
    """A worker as it last said it was. Nothing is decided by it."""

    name: str
    host: str
    pid: int
    version: str
    state: str
    reason: str | None
    queues: dict[str, Any]
    tasks: list[str]
    running: int
    started_at: str
    seen_at: str
    age: float


class Workers(TypedDict):
    workers: list[Worker]


class WorkflowsPage(TypedDict):
    runs: list[Run]
    next: str | None


class WorkflowsWhole(TypedDict):
    """A run with its history and everything below it."""

    id: int
    tenant: str
    workflow: str
    version: int | None
    state: str
    waits: list[Wait]
    input: Any
    output: Any
    error: Any
    parent_id: int | None
    forked_from: int | None
    attempts: int
    created_at: str | None
    finished_at: str | None
    hidden: bool
    steps: list[Step]
    steps_count: int
    steps_limit: int
    stays: list[str]
    jobs: list[Branch]


class Calls:
    """Every call, by what it is about."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.alerts = AlertsCalls(send)
        self.audit = AuditCalls(send)
        self.automations = AutomationsCalls(send)
        self.blackouts = BlackoutsCalls(send)
        self.gate = GateCalls(send)
        self.jobs = JobsCalls(send)
        self.keys = KeysCalls(send)
        self.mail = MailCalls(send)
        self.outbox = OutboxCalls(send)
        self.publications = PublicationsCalls(send)
        self.queues = QueuesCalls(send)
        self.rounds = RoundsCalls(send)
        self.schedules = SchedulesCalls(send)
        self.tokens = TokensCalls(send)
        self.users = UsersCalls(send)
        self.workflows = WorkflowsCalls(send)

    def workers(self) -> Workers:
        """Workers that were heard of lately, by name."""
        found: Workers = self._send("GET", "/api/v1/workers")
        return found

    def health(self) -> Health:
        """How things stand, in one word, with the raised alerts. 503 while it is failing."""
        found: Health = self._send("GET", "/api/v1/health")
        return found

    def metrics(self) -> str:
        """For Prometheus: what this process counted, and the alerts."""
        found: str = self._send("GET", "/api/v1/metrics")
        return found

    def overview(self, *, tenant: str | None = None) -> Overview:
        """What waits and runs in each queue, what ended in the last minutes and how long it had waited; workers and alerts."""
        found: Overview = self._send("GET", "/api/v1/overview", query={"tenant": tenant})
        return found

    def livez(self) -> Probe:
        """The process answers."""
        found: Probe = self._send("GET", "/livez")
        return found

    def readyz(self) -> Probe:
        """It can do what it is there for: the database answers, has room on its disk (SQLite), and has the schema of this version. 503 with
        the reasons otherwise."""
        found: Probe = self._send("GET", "/readyz")
        return found

    def me(self) -> Me:
        """Who asks. Needs no scope."""
        found: Me = self._send("GET", "/api/v1/me")
        return found


class AlertsCalls:
    """Calls about alerts."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def find(
        self,
        *,
        state: list[Literal["pending", "raised", "cleared"]] | None = None,
        rule: str | None = None,
        subject: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> AlertPage:
        """List alerts, newest first, as they were judged last."""
        found: AlertPage = self._send(
            "GET",
            "/api/v1/alerts",
            query={"state": state, "rule": rule, "subject": subject, "limit": limit, "cursor": cursor},
        )
        return found

    def show(self, id: int, /) -> Alert:
        """One alert, and what to do about it."""
        found: Alert = self._send("GET", "/api/v1/alerts/{id}", {"id": id})
        return found

    def acknowledge(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[Act]) -> Alert:
        """Take note of a raised alert. It stays raised until it is fine again; the others see that somebody knows."""
        found: Alert = self._send(
            "POST",
            "/api/v1/alerts/{id}/ack",
            {"id": id},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found


class AuditCalls:
    """Calls about audit."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def trail(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        level: Literal["info", "warning", "error"] | None = None,
        entity: str | None = None,
        entity_id: str | None = None,
        since: str | None = None,
        before: str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> EntryPage:
        """List what was done, by whom and to what, newest first."""
        found: EntryPage = self._send(
            "GET",
            "/api/v1/audit",
            query={
                "actor": actor,
                "action": action,
                "level": level,
                "entity": entity,
                "entity_id": entity_id,
                "since": since,
                "before": before,
                "tenant": tenant,
                "limit": limit,
                "cursor": cursor,
            },
        )
        return found

    def verify(self, *, idempotency_key: str | None = None) -> Verdict:
        """Walk the hash chain over the trail from its start, and name the first link that is broken. Nothing is changed."""
        found: Verdict = self._send("POST", "/api/v1/audit/verify", headers={"idempotency-key": idempotency_key})
        return found


class AutomationsCalls:
    """Calls about automations."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def find(
        self,
        *,
        is_enabled: bool | None = None,
        slot: str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> AutomationsPage:
        """List automations, newest first."""
        found: AutomationsPage = self._send(
            "GET",
            "/api/v1/automations",
            query={"is_enabled": is_enabled, "slot": slot, "tenant": tenant, "limit": limit, "cursor": cursor},
        )
        return found

    def create(self, *, idempotency_key: str | None = None, **given: Unpack[AutomationIn]) -> Automation:
        """Make an automation. Nothing that was planned before this moment runs."""
        found: Automation = self._send(
            "POST", "/api/v1/automations", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def slots(self, *, tenant: str | None = None) -> Slots:
        """Every slot: who has it, and since when."""
        found: Slots = self._send("GET", "/api/v1/automations/slots", query={"tenant": tenant})
        return found

    def fire(
        self,
        event: str,
        /,
        given: dict[str, Any] | None = None,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Fired:
        """A webhook: say that something has happened. Automations that are on and have this trigger are executed. 400 for a key that is
        none, 409 while the first request with it is under way."""
        found: Fired = self._send(
            "POST",
            "/api/v1/automations/events/{event}",
            {"event": event},
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def sessions(
        self,
        *,
        automation: str | None = None,
        type: Literal["CHAT", "AUTOMATION"] | None = None,
        status: list[Literal["queued", "active", "interrupted", "ended"]] | None = None,
        slot: str | None = None,
        end_reason: Literal["COMPLETED", "TIMEOUT", "ERROR", "CANCELLED", "NETWORK_ERROR", "SUSPENDED"] | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Sessions:
        """List sessions, newest first."""
        found: Sessions = self._send(
            "GET",
            "/api/v1/automations/sessions",
            query={
                "automation": automation,
                "type": type,
                "status": status,
                "slot": slot,
                "end_reason": end_reason,
                "tenant": tenant,
                "limit": limit,
                "cursor": cursor,
            },
        )
        return found

    def chat(self, *, idempotency_key: str | None = None, **given: Unpack[ChatIn]) -> Wanted:
        """Begin a chat. It has the slot at once, or waits for it; one that waits is given up unless its stream is listened to."""
        found: Wanted = self._send(
            "POST", "/api/v1/automations/chats", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def session(self, id: int, /, *, after: int | None = None) -> SessionsOutWhole:
        """One session, with what was said, the calls of tools, and the questions."""
        found: SessionsOutWhole = self._send(
            "GET", "/api/v1/automations/sessions/{id}", {"id": id}, query={"after": after}
        )
        return found

    def say(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[SayIn]) -> Session:
        """Say something in a chat. It is answered as soon as the chat has the slot."""
        found: Session = self._send(
            "POST",
            "/api/v1/automations/sessions/{id}/say",
            {"id": id},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def close(self, id: int, /, *, idempotency_key: str | None = None) -> Session:
        """End a chat."""
        found: Session = self._send(
            "POST", "/api/v1/automations/sessions/{id}/close", {"id": id}, headers={"idempotency-key": idempotency_key}
        )
        return found

    def stop(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[Act]) -> Session:
        """End a session: CANCELLED. What the AI answers afterwards is discarded."""
        found: Session = self._send(
            "POST",
            "/api/v1/automations/sessions/{id}/stop",
            {"id": id},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def pause(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[PauseIn]) -> Session:
        """Take the slot from an automation for a while. It goes on where it was, when nothing else wants the slot."""
        found: Session = self._send(
            "POST",
            "/api/v1/automations/sessions/{id}/pause",
            {"id": id},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def resume(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[Act]) -> Session:
        """Let an interrupted session go on now, as soon as it gets the slot."""
        found: Session = self._send(
            "POST",
            "/api/v1/automations/sessions/{id}/resume",
            {"id": id},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def show(self, automation: str, /, *, tenant: str | None = None) -> Automation:
        """One automation. Its ETag goes into If-Match of a change."""
        found: Automation = self._send(
            "GET", "/api/v1/automations/{automation}", {"automation": automation}, query={"tenant": tenant}
        )
        return found

    def change(
        self,
        automation: str,
        /,
        *,
        tenant: str | None = None,
        if_match: str | None = None,
        **given: Unpack[AutomationChange],
    ) -> Automation:
        """Change an automation. Only a change of its schedule moves what is wanted of it to from now on."""
        found: Automation = self._send(
            "PATCH",
            "/api/v1/automations/{automation}",
            {"automation": automation},
            query={"tenant": tenant},
            body=given,
            headers={"if-match": if_match},
        )
        return found

    def delete(
        self, automation: str, /, *, reason: str | None = None, tenant: str | None = None, if_match: str | None = None
    ) -> None:
        """Remove an automation. Its sessions that have not ended are cancelled; all stay to be looked at."""
        self._send(
            "DELETE",
            "/api/v1/automations/{automation}",
            {"automation": automation},
            query={"reason": reason, "tenant": tenant},
            headers={"if-match": if_match},
        )

    def enable(
        self, automation: str, /, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[Act]
    ) -> Automation:
        """Switch it on. What was planned while it was off does not run."""
        found: Automation = self._send(
            "POST",
            "/api/v1/automations/{automation}/enable",
            {"automation": automation},
            query={"tenant": tenant},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def disable(
        self, automation: str, /, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[Act]
    ) -> Automation:
        """Switch it off: nothing of it starts or goes on. A session that has the slot keeps it."""
        found: Automation = self._send(
            "POST",
            "/api/v1/automations/{automation}/disable",
            {"automation": automation},
            query={"tenant": tenant},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def run(
        self,
        automation: str,
        /,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        **given: Unpack[RunIn],
    ) -> Wanted:
        """Execute it now, also one that is off. It waits for the slot where that is held."""
        found: Wanted = self._send(
            "POST",
            "/api/v1/automations/{automation}/run",
            {"automation": automation},
            query={"tenant": tenant},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def why(self, automation: str, /, *, tenant: str | None = None) -> AutomationsWhy:
        """Why it does not start: every condition, met or not, with its remedy."""
        found: AutomationsWhy = self._send(
            "GET", "/api/v1/automations/{automation}/why", {"automation": automation}, query={"tenant": tenant}
        )
        return found


class BlackoutsCalls:
    """Calls about blackouts."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def find(self, *, limit: int | None = None, cursor: str | None = None) -> Blackouts:
        """List blackouts by name: what they hold, and when next."""
        found: Blackouts = self._send("GET", "/api/v1/blackouts", query={"limit": limit, "cursor": cursor})
        return found

    def impact(self, *, idempotency_key: str | None = None, **given: Unpack[ImpactIn]) -> Impact:
        """Say what a window would hold, without setting it: waiting jobs by queue, and planned occurrences of schedules."""
        found: Impact = self._send(
            "POST", "/api/v1/blackouts/impact", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def show(self, name: str, /) -> Blackout:
        """One blackout, with its ETag."""
        found: Blackout = self._send("GET", "/api/v1/blackouts/{name}", {"name": name})
        return found

    def put(self, name: str, /, *, if_match: str | None = None, **given: Unpack[BlackoutIn]) -> Blackout:
        """Hold work in a window; a blackout that is there by this name is replaced. With ``If-Match``, only the version that was looked at."""
        found: Blackout = self._send(
            "PUT", "/api/v1/blackouts/{name}", {"name": name}, body=given, headers={"if-match": if_match}
        )
        return found

    def remove(self, name: str, /, *, reason: str | None = None, if_match: str | None = None) -> Blackout:
        """Take a blackout away, and say what it was. What it held may start at once."""
        found: Blackout = self._send(
            "DELETE",
            "/api/v1/blackouts/{name}",
            {"name": name},
            query={"reason": reason},
            headers={"if-match": if_match},
        )
        return found

    def enable(
        self, name: str, /, *, if_match: str | None = None, idempotency_key: str | None = None, **given: Unpack[Act]
    ) -> Blackout:
        """Let a blackout hold again."""
        found: Blackout = self._send(
            "POST",
            "/api/v1/blackouts/{name}/enable",
            {"name": name},
            body=given or None,
            headers={"if-match": if_match, "idempotency-key": idempotency_key},
        )
        return found

    def disable(
        self, name: str, /, *, if_match: str | None = None, idempotency_key: str | None = None, **given: Unpack[Act]
    ) -> Blackout:
        """Keep a blackout without holding anything."""
        found: Blackout = self._send(
            "POST",
            "/api/v1/blackouts/{name}/disable",
            {"name": name},
            body=given or None,
            headers={"if-match": if_match, "idempotency-key": idempotency_key},
        )
        return found


class GateCalls:
    """Calls about gate."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def show(self) -> Gate:
        """The online gate: whether it is open, and who moved it last."""
        found: Gate = self._send("GET", "/api/v1/gate")
        return found

    def online(self, *, idempotency_key: str | None = None, **given: Unpack[GateIn]) -> Gate:
        """Open the gate for every worker and relay."""
        found: Gate = self._send(
            "POST", "/api/v1/gate/online", body=given or None, headers={"idempotency-key": idempotency_key}
        )
        return found

    def offline(self, *, idempotency_key: str | None = None, **given: Unpack[GateIn]) -> Gate:
        """Close the gate for every worker and relay. Running jobs go on; new jobs and messages are accepted and wait."""
        found: Gate = self._send(
            "POST", "/api/v1/gate/offline", body=given or None, headers={"idempotency-key": idempotency_key}
        )
        return found


class JobsCalls:
    """Calls about jobs."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def cancel_many(self, *, idempotency_key: str | None = None, **given: Unpack[JobsBulkIn]) -> Acted | PlannedAct:
        """Cancel the jobs that fit a filter. With `undo_seconds`, 202 with an act that begins later and can be undone until then."""
        found: Acted | PlannedAct = self._send(
            "POST", "/api/v1/jobs/cancel", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def replay_many(self, *, idempotency_key: str | None = None, **given: Unpack[JobsBulkIn]) -> Acted | PlannedAct:
        """Replay the ended jobs that fit a filter. With `undo_seconds`, 202 with an act that begins later and can be undone until then."""
        found: Acted | PlannedAct = self._send(
            "POST", "/api/v1/jobs/replay", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def acts(self, *, limit: int | None = None, cursor: str | None = None) -> PlannedActs:
        """Your own acts on many jobs, the newest first: those that wait or run, and for ten minutes those that are over, twenty at the most.
        They are known to the process that was asked, and to no other."""
        found: PlannedActs = self._send("GET", "/api/v1/jobs/acts", query={"limit": limit, "cursor": cursor})
        return found

    def act(self, act: str, /) -> PlannedAct:
        """How far an act of yours on many jobs is. 404 for somebody else's, and ten minutes after it was over. It lives in the process that
        was asked: where that ends before it has begun, nothing is done; what it has done by then stays done."""
        found: PlannedAct = self._send("GET", "/api/v1/jobs/acts/{act}", {"act": act})
        return found

    def undo(self, act: str, /, *, idempotency_key: str | None = None, **given: Unpack[Act]) -> PlannedAct:
        """Have an act not done. No job is touched then. One that is undone stays so; 409 where it has begun, or is over."""
        found: PlannedAct = self._send(
            "POST",
            "/api/v1/jobs/acts/{act}/undo",
            {"act": act},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def enqueue(self, *, idempotency_key: str | None = None, **given: Unpack[JobsJobIn]) -> JobsMade:
        """Enqueue a job. 201 when it was made; 200 with the job that has the key when it was there already."""
        found: JobsMade = self._send("POST", "/api/v1/jobs", body=given, headers={"idempotency-key": idempotency_key})
        return found

    def find(
        self,
        *,
        status: list[Literal["queued", "running", "succeeded", "failed", "cancelled"]] | None = None,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        parent_id: int | None = None,
        error: str | None = None,
        since: str | None = None,
        before: str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JobsPage:
        """List jobs, newest first."""
        found: JobsPage = self._send(
            "GET",
            "/api/v1/jobs",
            query={
                "status": status,
                "queue": queue,
                "task": task,
                "key": key,
                "parent_id": parent_id,
                "error": error,
                "since": since,
                "before": before,
                "tenant": tenant,
                "limit": limit,
                "cursor": cursor,
            },
        )
        return found

    def enqueue_many(self, *, idempotency_key: str | None = None, **given: Unpack[ManyIn]) -> JobsMadeMany:
        """Enqueue many jobs in one transaction: all of them, or none."""
        found: JobsMadeMany = self._send(
            "POST", "/api/v1/jobs/batch", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def count(
        self,
        *,
        status: list[Literal["queued", "running", "succeeded", "failed", "cancelled"]] | None = None,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        parent_id: int | None = None,
        error: str | None = None,
        since: str | None = None,
        before: str | None = None,
        tenant: str | None = None,
    ) -> Counted:
        """How many jobs fit, counted as far as ten thousand, and for no longer than a second."""
        found: Counted = self._send(
            "GET",
            "/api/v1/jobs/count",
            query={
                "status": status,
                "queue": queue,
                "task": task,
                "key": key,
                "parent_id": parent_id,
                "error": error,
                "since": since,
                "before": before,
                "tenant": tenant,
            },
        )
        return found

    def show(self, id: int, /) -> JobsWhole:
        """One job, with its failed starts and its children."""
        found: JobsWhole = self._send("GET", "/api/v1/jobs/{id}", {"id": id})
        return found

    def why(self, id: int, /) -> JobsWhy:
        """Why a job does not run: every condition, met or not, with its remedy."""
        found: JobsWhy = self._send("GET", "/api/v1/jobs/{id}/why", {"id": id})
        return found

    def cancel(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[Act]) -> JobsJob:
        """Cancel a job: at once where it waits; one that runs is asked to stop."""
        found: JobsJob = self._send(
            "POST",
            "/api/v1/jobs/{id}/cancel",
            {"id": id},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def replay(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[JobsReplayIn]) -> JobsJob:
        """Run an ended job again: same id, input and key, attempts from 0. 409 where it has not ended; of two at once, one gets that."""
        found: JobsJob = self._send(
            "POST",
            "/api/v1/jobs/{id}/replay",
            {"id": id},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found


class KeysCalls:
    """Calls about keys."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def find_keys(
        self,
        *,
        task: str | None = None,
        state: Literal["in_progress", "succeeded", "failed"] | None = None,
        older_than: float | str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> KeyPage:
        """List the keys of idempotent functions and requests, in the order of tenant and key."""
        found: KeyPage = self._send(
            "GET",
            "/api/v1/keys",
            query={
                "task": task,
                "state": state,
                "older_than": older_than,
                "tenant": tenant,
                "limit": limit,
                "cursor": cursor,
            },
        )
        return found

    def find_job_keys(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JobKeyPage:
        """List the keys that jobs hold, newest job first. With ``task``, a page may hold fewer keys than ``limit`` and others behind it."""
        found: JobKeyPage = self._send(
            "GET",
            "/api/v1/keys/jobs",
            query={"queue": queue, "task": task, "key": key, "tenant": tenant, "limit": limit, "cursor": cursor},
        )
        return found

    def forget_job(
        self, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[ForgetJobKeyIn]
    ) -> JobKey:
        """Forget a key that a job holds, so that the next enqueue under it makes a job. Answers how it stood. Keys of jobs that a room of
        Duly makes itself, such as publications, are refused here: ``duly keys forget --jobs`` forgets them."""
        found: JobKey = self._send(
            "POST",
            "/api/v1/keys/jobs/forget",
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def show(self, key: str, /, *, tenant: str | None = None) -> Key:
        """One key: who has it or had it, since when, and until when."""
        found: Key = self._send("GET", "/api/v1/keys/{key}", {"key": key}, query={"tenant": tenant})
        return found

    def forget(
        self,
        key: str,
        /,
        *,
        tenant: str | None = None,
        if_match: str | None = None,
        idempotency_key: str | None = None,
        **given: Unpack[ForgetKeyIn],
    ) -> Key:
        """Forget a key, so that the next call runs the body again and repeats its effects. Answers how it stood."""
        found: Key = self._send(
            "POST",
            "/api/v1/keys/{key}/forget",
            {"key": key},
            query={"tenant": tenant},
            body=given,
            headers={"if-match": if_match, "idempotency-key": idempotency_key},
        )
        return found


class MailCalls:
    """Calls about mail."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def suppressions(self, *, limit: int | None = None, tenant: str | None = None) -> Suppressed:
        """List the addresses that are not written to, by tenant and address."""
        found: Suppressed = self._send("GET", "/api/v1/mail/suppressions", query={"limit": limit, "tenant": tenant})
        return found

    def suppress(
        self, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[SuppressionIn]
    ) -> Changed:
        """Write to an address no more."""
        found: Changed = self._send(
            "POST",
            "/api/v1/mail/suppressions",
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def unsuppress(
        self, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[SuppressionIn]
    ) -> Changed:
        """Write to an address again. The address is in the body, because paths are logged."""
        found: Changed = self._send(
            "POST",
            "/api/v1/mail/suppressions/remove",
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def bounce(self, *, tenant: str | None = None, idempotency_key: str | None = None) -> Outcome:
        """Take a bounce (RFC 3464) or a complaint (RFC 5965) as it lies in a mailbox: the message, unchanged, is the body. Recipients whose
        mailbox is gone, and those who complain, are suppressed if Duly wrote to them."""
        found: Outcome = self._send(
            "POST", "/api/v1/mail/bounces", query={"tenant": tenant}, headers={"idempotency-key": idempotency_key}
        )
        return found

    def resend(self, *, idempotency_key: str | None = None) -> Received:
        """Take a webhook of Resend, signed with `resend_webhook_secret`. Bounces for good and complaints become suppressions. A signature
        that is missing, wrong, or older than 5 minutes is refused with 401. An event that came before changes nothing."""
        found: Received = self._send(
            "POST", "/api/v1/mail/webhooks/resend", headers={"idempotency-key": idempotency_key}
        )
        return found


class OutboxCalls:
    """Calls about outbox."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def standing(self, *, sent: bool | None = None, tenant: str | None = None) -> Standing:
        """How it stands: what waits and since when, what is being sent, and what is parked, by destination."""
        found: Standing = self._send("GET", "/api/v1/outbox", query={"sent": sent, "tenant": tenant})
        return found

    def find(
        self,
        *,
        status: list[Literal["pending", "sent", "parked"]] | None = None,
        destination: str | None = None,
        key: str | None = None,
        ordering_key: str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> OutboxPage:
        """List messages, newest first."""
        found: OutboxPage = self._send(
            "GET",
            "/api/v1/outbox/messages",
            query={
                "status": status,
                "destination": destination,
                "key": key,
                "ordering_key": ordering_key,
                "tenant": tenant,
                "limit": limit,
                "cursor": cursor,
            },
        )
        return found

    def show(self, message: str, /) -> Message:
        """One message, by its number or its message id."""
        found: Message = self._send("GET", "/api/v1/outbox/messages/{message}", {"message": message})
        return found

    def redrive(self, message: str, /, *, idempotency_key: str | None = None, **given: Unpack[RedriveIn]) -> Message:
        """Have a parked message sent again: same message id, attempts from 0, due now."""
        found: Message = self._send(
            "POST",
            "/api/v1/outbox/messages/{message}/redrive",
            {"message": message},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def park(self, message: str, /, *, idempotency_key: str | None = None, **given: Unpack[ParkIn]) -> Message:
        """Put a pending message aside until somebody redrives it. One that is being sent at this moment may arrive all the same."""
        found: Message = self._send(
            "POST",
            "/api/v1/outbox/messages/{message}/park",
            {"message": message},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def redrive_many(self, *, idempotency_key: str | None = None, **given: Unpack[OutboxBulkIn]) -> Redriven:
        """Have parked messages sent again, the oldest first."""
        found: Redriven = self._send(
            "POST", "/api/v1/outbox/redrive", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found


class PublicationsCalls:
    """Calls about publications."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def enqueue(
        self, given: PublishingJobIn, *, idempotency_key: str | None = None
    ) -> PublishingMade | PublishingMadeMany | Previewed:
        """Enqueue a post, or all posts of a plan. 201 when something was made, 200 when everything was there already: the job that has the
        key, unchanged. A payload with `preview` is only shown."""
        found: PublishingMade | PublishingMadeMany | Previewed = self._send(
            "POST", "/fp-publisher/v1/jobs", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def find(
        self,
        *,
        channel: str | None = None,
        status: list[Literal["pending", "running", "completed", "failed", "cancelled"]] | None = None,
        type: Literal["publish", "ig_first_comment"] | None = None,
        idempotency_key: str | None = None,
        remote_id: str | None = None,
        parent_id: int | None = None,
        run_from: str | None = None,
        run_until: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> PublishingPage:
        """List publications, newest first."""
        found: PublishingPage = self._send(
            "GET",
            "/fp-publisher/v1/jobs",
            query={
                "channel": channel,
                "status": status,
                "type": type,
                "idempotency_key": idempotency_key,
                "remote_id": remote_id,
                "parent_id": parent_id,
                "run_from": run_from,
                "run_until": run_until,
                "limit": limit,
                "cursor": cursor,
            },
        )
        return found

    def test(self, given: TestIn, *, idempotency_key: str | None = None) -> Tested:
        """Say what would become of a post: nothing is enqueued."""
        found: Tested = self._send(
            "POST", "/fp-publisher/v1/jobs/test", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def preview(self, *, idempotency_key: str | None = None, **given: Unpack[PublishingPreviewIn]) -> Previewed:
        """Show what would be published: nothing is asked of the other side, and nothing is enqueued."""
        found: Previewed = self._send(
            "POST", "/fp-publisher/v1/preview", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def show(self, id: int, /) -> PublishingJob:
        """One publication as it stands."""
        found: PublishingJob = self._send("GET", "/fp-publisher/v1/jobs/{id}", {"id": id})
        return found

    def replay_many(self, *, idempotency_key: str | None = None, **given: Unpack[PublishingBulkIn]) -> Replayed:
        """Replay the failed publications that fit the filter. A cancelled one is replayed only where the filter names its id: a person ended
        it. 422 for the status `cancelled` without ids."""
        found: Replayed = self._send(
            "POST", "/fp-publisher/v1/jobs/replay", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def cancel_many(self, *, idempotency_key: str | None = None, **given: Unpack[PublishingBulkIn]) -> Cancelled:
        """Cancel the publications that fit the filter and have not ended."""
        found: Cancelled = self._send(
            "POST", "/fp-publisher/v1/jobs/cancel", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def replay(
        self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[PublishingReplayIn]
    ) -> PublishingJob:
        """Run a failed or cancelled publication again: attempts from 0, due now, same key. One that was cancelled before its planned time
        goes back to it. 409 when it has neither failed nor been cancelled; of two at once, one gets that. What is published by
        what is on record ends as completed."""
        found: PublishingJob = self._send(
            "POST",
            "/fp-publisher/v1/jobs/{id}/replay",
            {"id": id},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found


class QueuesCalls:
    """Calls about queues."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def find(self, *, limit: int | None = None, cursor: str | None = None) -> QueuePage:
        """List queues by name: what waits, runs and governs them. Who belongs to a tenant sees those with jobs of that tenant."""
        found: QueuePage = self._send("GET", "/api/v1/queues", query={"limit": limit, "cursor": cursor})
        return found

    def show(self, name: str, /) -> Queue:
        """One queue, with the ETag of its limits. 404 where nothing is set for it, nobody serves it and no job stands in it."""
        found: Queue = self._send("GET", "/api/v1/queues/{name}", {"name": name})
        return found

    def pause(self, name: str, /, *, idempotency_key: str | None = None, **given: Unpack[Act]) -> Queue:
        """Stop claims. Running jobs go on, new ones are accepted and wait. Pausing a paused queue changes its reason."""
        found: Queue = self._send(
            "POST",
            "/api/v1/queues/{name}/pause",
            {"name": name},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def resume(self, name: str, /, *, idempotency_key: str | None = None, **given: Unpack[Act]) -> Queue:
        """Let claims go on. A queue that is not paused stays as it is."""
        found: Queue = self._send(
            "POST",
            "/api/v1/queues/{name}/resume",
            {"name": name},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def hold(self, name: str, /, *, idempotency_key: str | None = None, **given: Unpack[HoldIn]) -> Queue:
        """Stop claims until an instant; it opens by itself. A hold that lasts longer stays as it is."""
        found: Queue = self._send(
            "POST",
            "/api/v1/queues/{name}/hold",
            {"name": name},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def release(self, name: str, /, *, idempotency_key: str | None = None, **given: Unpack[Act]) -> Queue:
        """End a hold before its instant. A queue that is not held stays as it is."""
        found: Queue = self._send(
            "POST",
            "/api/v1/queues/{name}/release",
            {"name": name},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def limit(self, name: str, /, *, if_match: str | None = None, **given: Unpack[LimitsIn]) -> Queue:
        """Set what limits a queue. All of it is replaced. With ``If-Match``, only the limits that were looked at."""
        found: Queue = self._send(
            "PUT", "/api/v1/queues/{name}/limits", {"name": name}, body=given, headers={"if-match": if_match}
        )
        return found


class RoundsCalls:
    """Calls about rounds."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def groups(self, *, tenant: str | None = None, limit: int | None = None, cursor: str | None = None) -> Groups:
        """List groups, in the order in which they were made."""
        found: Groups = self._send(
            "GET", "/api/v1/rounds/groups", query={"tenant": tenant, "limit": limit, "cursor": cursor}
        )
        return found

    def add_group(
        self, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[GroupIn]
    ) -> Group:
        """Make a group. A round can be planned for it from now on."""
        found: Group = self._send(
            "POST",
            "/api/v1/rounds/groups",
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def group(self, group: str, /, *, tenant: str | None = None) -> Group:
        """One group. The ETag goes into If-Match of a change."""
        found: Group = self._send("GET", "/api/v1/rounds/groups/{group}", {"group": group}, query={"tenant": tenant})
        return found

    def change_group(
        self, group: str, /, *, tenant: str | None = None, if_match: str | None = None, **given: Unpack[GroupChange]
    ) -> Group:
        """Change a group. A round that is not open yet follows; an open one stays as it is."""
        found: Group = self._send(
            "PATCH",
            "/api/v1/rounds/groups/{group}",
            {"group": group},
            query={"tenant": tenant},
            body=given,
            headers={"if-match": if_match},
        )
        return found

    def members(
        self, group: str, /, *, tenant: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Members:
        """The members of a group, those who left too."""
        found: Members = self._send(
            "GET",
            "/api/v1/rounds/groups/{group}/members",
            {"group": group},
            query={"tenant": tenant, "limit": limit, "cursor": cursor},
        )
        return found

    def add_member(
        self, group: str, /, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[MemberIn]
    ) -> Member:
        """Add somebody to a group, and say how they want to be told."""
        found: Member = self._send(
            "POST",
            "/api/v1/rounds/groups/{group}/members",
            {"group": group},
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def change_member(
        self,
        group: str,
        member: str,
        /,
        *,
        tenant: str | None = None,
        if_match: str | None = None,
        **given: Unpack[MemberChange],
    ) -> Member:
        """Change a member. ``If-Match``: its ``etag`` in the list."""
        found: Member = self._send(
            "PATCH",
            "/api/v1/rounds/groups/{group}/members/{member}",
            {"group": group, "member": member},
            query={"tenant": tenant},
            body=given,
            headers={"if-match": if_match},
        )
        return found

    def prompts(
        self, group: str, /, *, tenant: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Prompts:
        """The prompts of a group, those that are not active too."""
        found: Prompts = self._send(
            "GET",
            "/api/v1/rounds/groups/{group}/prompts",
            {"group": group},
            query={"tenant": tenant, "limit": limit, "cursor": cursor},
        )
        return found

    def add_prompts(
        self,
        group: str,
        /,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        **given: Unpack[PromptsIn],
    ) -> Prompts:
        """Add prompts to a group, active."""
        found: Prompts = self._send(
            "POST",
            "/api/v1/rounds/groups/{group}/prompts",
            {"group": group},
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def change_prompt(
        self, id: int, /, *, tenant: str | None = None, if_match: str | None = None, **given: Unpack[PromptChange]
    ) -> Prompt:
        """Change a prompt. Rounds that have opened keep its text. ``If-Match``: its ``etag`` in the list."""
        found: Prompt = self._send(
            "PATCH",
            "/api/v1/rounds/prompts/{id}",
            {"id": id},
            query={"tenant": tenant},
            body=given,
            headers={"if-match": if_match},
        )
        return found

    def remove_prompt(
        self, id: int, /, *, reason: str | None = None, tenant: str | None = None, if_match: str | None = None
    ) -> None:
        """Take a prompt away. Rounds that have opened keep its text. ``If-Match``: its ``etag`` in the list."""
        self._send(
            "DELETE",
            "/api/v1/rounds/prompts/{id}",
            {"id": id},
            query={"reason": reason, "tenant": tenant},
            headers={"if-match": if_match},
        )

    def ticks(self, *, kind: Literal["plan", "open", "close"] | None = None, limit: int | None = None) -> Ticks:
        """The passes of the ticks, newest first; they are of all tenants, and so is who may see them."""
        found: Ticks = self._send("GET", "/api/v1/rounds/ticks", query={"kind": kind, "limit": limit})
        return found

    def tick(self, *, idempotency_key: str | None = None, **given: Unpack[TickIn]) -> Ticks:
        """Plan, open or close what is due now, beside whatever schedules do the same."""
        found: Ticks = self._send(
            "POST", "/api/v1/rounds/ticks", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def find(
        self,
        *,
        group: str | None = None,
        status: Literal["scheduled", "open", "closed"] | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> RoundsPage:
        """List rounds, newest first."""
        found: RoundsPage = self._send(
            "GET",
            "/api/v1/rounds",
            query={"group": group, "status": status, "tenant": tenant, "limit": limit, "cursor": cursor},
        )
        return found

    def coming(self, *, tenant: str | None = None, limit: int | None = None, cursor: str | None = None) -> Next:
        """When the next round of each group opens, or why none does, in the order of the groups."""
        found: Next = self._send(
            "GET", "/api/v1/rounds/next", query={"tenant": tenant, "limit": limit, "cursor": cursor}
        )
        return found

    def show(self, id: int, /, *, tenant: str | None = None) -> Archive:
        """One round with everything in it; of a closed one this is the archive."""
        found: Archive = self._send("GET", "/api/v1/rounds/{id}", {"id": id}, query={"tenant": tenant})
        return found

    def submit(
        self, id: int, /, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[SubmitIn]
    ) -> Submission:
        """Hand in a member's answer to an open round: one each."""
        found: Submission = self._send(
            "POST",
            "/api/v1/rounds/{id}/submissions",
            {"id": id},
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def edit_submission(self, id: int, /, *, tenant: str | None = None, **given: Unpack[SubmitIn]) -> Submission:
        """Change a member's own answer while the round is open."""
        found: Submission = self._send(
            "PATCH", "/api/v1/rounds/submissions/{id}", {"id": id}, query={"tenant": tenant}, body=given
        )
        return found

    def comment(
        self, id: int, /, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[SubmitIn]
    ) -> Comment:
        """Comment a submission, as a member, while its round is open."""
        found: Comment = self._send(
            "POST",
            "/api/v1/rounds/submissions/{id}/comments",
            {"id": id},
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def edit_comment(self, id: int, /, *, tenant: str | None = None, **given: Unpack[SubmitIn]) -> Comment:
        """Change a member's own comment while the round is open."""
        found: Comment = self._send(
            "PATCH", "/api/v1/rounds/comments/{id}", {"id": id}, query={"tenant": tenant}, body=given
        )
        return found

    def vote(
        self, id: int, /, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[VoteIn]
    ) -> Vote:
        """Vote for a submission, as a member. A second vote moves the first."""
        found: Vote = self._send(
            "POST",
            "/api/v1/rounds/submissions/{id}/votes",
            {"id": id},
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found


class SchedulesCalls:
    """Calls about schedules."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def find(self, *, tenant: str | None = None, limit: int | None = None, cursor: str | None = None) -> SchedulesPage:
        """List schedules, by tenant and name."""
        found: SchedulesPage = self._send(
            "GET", "/api/v1/schedules", query={"tenant": tenant, "limit": limit, "cursor": cursor}
        )
        return found

    def try_out(
        self, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[SchedulesPreviewIn]
    ) -> Preview:
        """When a recurrence would run, with days on which clocks change, and blackouts."""
        found: Preview = self._send(
            "POST",
            "/api/v1/schedules/preview",
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def ledger(
        self,
        name: str,
        /,
        *,
        status: list[Literal["fired", "skipped", "missed", "deferred"]] | None = None,
        since: str | None = None,
        until: str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Ledger:
        """What became of its occurrences, the newest first."""
        found: Ledger = self._send(
            "GET",
            "/api/v1/schedules/{name}/ledger",
            {"name": name},
            query={
                "status": status,
                "since": since,
                "until": until,
                "tenant": tenant,
                "limit": limit,
                "cursor": cursor,
            },
        )
        return found

    def preview(
        self, name: str, /, *, n: int | None = None, since: str | None = None, tenant: str | None = None
    ) -> Preview:
        """When it runs next, with days on which clocks change, and blackouts."""
        found: Preview = self._send(
            "GET", "/api/v1/schedules/{name}/preview", {"name": name}, query={"n": n, "since": since, "tenant": tenant}
        )
        return found

    def versions(self, name: str, /, *, tenant: str | None = None) -> Versions:
        """The definitions that it has had, the newest first."""
        found: Versions = self._send(
            "GET", "/api/v1/schedules/{name}/versions", {"name": name}, query={"tenant": tenant}
        )
        return found

    def pause(
        self, name: str, /, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[Act]
    ) -> Schedule:
        """Skip what is planned, on record, until it is resumed. Of a paused one this changes the reason."""
        found: Schedule = self._send(
            "POST",
            "/api/v1/schedules/{name}/pause",
            {"name": name},
            query={"tenant": tenant},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def resume(
        self, name: str, /, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[Act]
    ) -> Schedule:
        """Let it fire again, from now on."""
        found: Schedule = self._send(
            "POST",
            "/api/v1/schedules/{name}/resume",
            {"name": name},
            query={"tenant": tenant},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def run(
        self, name: str, /, *, tenant: str | None = None, idempotency_key: str | None = None, **given: Unpack[Act]
    ) -> Occurrence:
        """Make its job now, whether it is due, paused or neither. It uses up no planned instant."""
        found: Occurrence = self._send(
            "POST",
            "/api/v1/schedules/{name}/run",
            {"name": name},
            query={"tenant": tenant},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def backfill(
        self,
        name: str,
        /,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        **given: Unpack[BackfillIn],
    ) -> Backfilled:
        """Fire what was planned in a range of the past and has not fired, each once."""
        found: Backfilled = self._send(
            "POST",
            "/api/v1/schedules/{name}/backfill",
            {"name": name},
            query={"tenant": tenant},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def show(self, name: str, /, *, tenant: str | None = None) -> Schedule:
        """One schedule. Its ETag goes into If-Match of a change."""
        found: Schedule = self._send("GET", "/api/v1/schedules/{name}", {"name": name}, query={"tenant": tenant})
        return found

    def put(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        tenant: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        **given: Unpack[ScheduleIn],
    ) -> Schedule:
        """Make a schedule (201), or a new version of the one of that name. What was due until now is decided by its old version."""
        found: Schedule = self._send(
            "PUT",
            "/api/v1/schedules/{name}",
            {"name": name},
            query={"reason": reason, "tenant": tenant},
            body=given,
            headers={"if-match": if_match, "if-none-match": if_none_match},
        )
        return found

    def remove(
        self, name: str, /, *, reason: str | None = None, tenant: str | None = None, if_match: str | None = None
    ) -> None:
        """Let it fire no more. Jobs that it made go on; its ledger stays in the database."""
        self._send(
            "DELETE",
            "/api/v1/schedules/{name}",
            {"name": name},
            query={"reason": reason, "tenant": tenant},
            headers={"if-match": if_match},
        )


class TokensCalls:
    """Calls about tokens."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def find(self, *, tenant: str | None = None, limit: int | None = None, cursor: str | None = None) -> TokenPage:
        """List tokens, newest first, those that have ended too."""
        found: TokenPage = self._send(
            "GET", "/api/v1/tokens", query={"tenant": tenant, "limit": limit, "cursor": cursor}
        )
        return found

    def create(self, *, idempotency_key: str | None = None, **given: Unpack[TokenIn]) -> MadeToken:
        """Make a token. It is in this answer, and nobody can show it again."""
        found: MadeToken = self._send(
            "POST", "/api/v1/tokens", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def revoke(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[Act]) -> Token:
        """Nobody comes in with it any more. 404 also for one that is revoked."""
        found: Token = self._send(
            "POST",
            "/api/v1/tokens/{id}/revoke",
            {"id": id},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found


class UsersCalls:
    """Calls about users."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def find(self, *, tenant: str | None = None, limit: int | None = None, cursor: str | None = None) -> UserPage:
        """List users by name, those who are let in no more too."""
        found: UserPage = self._send("GET", "/api/v1/users", query={"tenant": tenant, "limit": limit, "cursor": cursor})
        return found

    def create(self, *, idempotency_key: str | None = None, **given: Unpack[UserIn]) -> User:
        """Make a user. 422 for a name that is taken."""
        found: User = self._send("POST", "/api/v1/users", body=given, headers={"idempotency-key": idempotency_key})
        return found

    def show(self, name: str, /) -> User:
        """One user. The ETag goes into If-Match of a change."""
        found: User = self._send("GET", "/api/v1/users/{name}", {"name": name})
        return found

    def change(self, name: str, /, *, if_match: str | None = None, **given: Unpack[ChangeIn]) -> User:
        """Change a user's password or role, or let them in no more, or again. Their logins end."""
        found: User = self._send(
            "PATCH", "/api/v1/users/{name}", {"name": name}, body=given, headers={"if-match": if_match}
        )
        return found


class WorkflowsCalls:
    """Calls about workflows."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def definitions(self) -> Definitions:
        """The workflows that are defined in this process."""
        found: Definitions = self._send("GET", "/api/v1/workflows")
        return found

    def start(self, *, idempotency_key: str | None = None, **given: Unpack[StartIn]) -> Started:
        """Start a run by its workflow's name, also of one that only workers know. 200 with the run that has the key."""
        found: Started = self._send(
            "POST", "/api/v1/workflows/runs", body=given, headers={"idempotency-key": idempotency_key}
        )
        return found

    def find(
        self,
        *,
        workflow: str | None = None,
        status: list[Literal["queued", "running", "succeeded", "failed", "cancelled"]] | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> WorkflowsPage:
        """List runs, newest first."""
        found: WorkflowsPage = self._send(
            "GET",
            "/api/v1/workflows/runs",
            query={"workflow": workflow, "status": status, "tenant": tenant, "limit": limit, "cursor": cursor},
        )
        return found

    def run(self, id: int, /, *, last: int | None = None) -> WorkflowsWhole:
        """One run, with its steps and the jobs below it."""
        found: WorkflowsWhole = self._send("GET", "/api/v1/workflows/runs/{id}", {"id": id}, query={"last": last})
        return found

    def mermaid(self, id: int, /) -> str:
        """A Mermaid flowchart of a run."""
        found: str = self._send("GET", "/api/v1/workflows/runs/{id}/mermaid", {"id": id})
        return found

    def signal(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[SignalIn]) -> Sent:
        """Tell a run something it waits for, or will. Each signal is taken once."""
        found: Sent = self._send(
            "POST",
            "/api/v1/workflows/runs/{id}/signal",
            {"id": id},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def approve(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[ApproveIn]) -> Run:
        """Answer a run that waits for a person: yes, or no. 409 where it waits for none."""
        found: Run = self._send(
            "POST",
            "/api/v1/workflows/runs/{id}/approve",
            {"id": id},
            body=given,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def replay(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[SinceIn]) -> Run:
        """Have an ended run go on again: that step and all behind it are forgotten and done anew."""
        found: Run = self._send(
            "POST",
            "/api/v1/workflows/runs/{id}/replay",
            {"id": id},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def fork(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[SinceIn]) -> Run:
        """Make another run with the same input, and with what this one has done before a step."""
        found: Run = self._send(
            "POST",
            "/api/v1/workflows/runs/{id}/fork",
            {"id": id},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found

    def cancel(self, id: int, /, *, idempotency_key: str | None = None, **given: Unpack[CancelIn]) -> Run:
        """Cancel a run and everything below it. With `undo`, a worker undoes what it has done before it ends as cancelled; its error then
        names what stays."""
        found: Run = self._send(
            "POST",
            "/api/v1/workflows/runs/{id}/cancel",
            {"id": id},
            body=given or None,
            headers={"idempotency-key": idempotency_key},
        )
        return found
