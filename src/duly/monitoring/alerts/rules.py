"""The rules, declared once. The command line, the documentation, Prometheus and Grafana are given what stands here.

Thresholds come from settings; ``alerts_off`` names rules that are not judged. A rule whose value is itself a span of time, or is
taken over a window, waits for nothing more (``hold`` is 0) unless it says why. The lower mark lies below the threshold where a value may hover.
Sources: R000-20 (an hour, 10 %, 5 minutes), T000-o, T000-p (30 minutes, at least 10 samples).
"""

from __future__ import annotations

from duly.kernel.errors import InvalidArgument
from duly.monitoring.alerts.alert import Rule, Severity
from duly.settings import Settings

#: When a blackout, a pause or the closed gate ends, old work is due at once: workers have so many seconds to begin with it.
AFTER_A_HOLD = 120.0
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


def every_rule(s: Settings) -> tuple[Rule, ...]:
    """All rules with the thresholds of these settings, also those that are off."""
    return (
        Rule(
            "jobs_idle", "jobs", "", "s", s.alerts_idle, s.alerts_idle, CRITICAL,
            "No job has started or ended for {value} although work is due; {threshold} is fine.",
            "duly doctor says who is alive and what holds work; then duly worker, or duly why JOB.",
            hold=AFTER_A_HOLD, calm=60, setting="alerts_idle",
        ),
        Rule(
            "jobs_failing", "jobs", "", "ratio", s.alerts_failures, s.alerts_failures * 0.8, CRITICAL,
            "{value} of the {samples} jobs that ended lately have failed; {threshold} is fine.",
            "duly jobs list --status failed shows them; once the cause is gone, duly jobs replay.",
            samples=s.alerts_samples, setting="alerts_failures",
        ),
        Rule(
            "queue_failing", "jobs", "queue", "ratio", s.alerts_failures, s.alerts_failures * 0.8, WARNING,
            "{value} of the {samples} jobs of queue {subject} that ended lately have failed; {threshold} is fine.",
            "duly jobs list --status failed --queue NAME shows them; duly queues pause NAME stops more from failing.",
            samples=s.alerts_samples, setting="alerts_failures",
        ),
        Rule(
            "task_failing", "jobs", "task", "count", 0.0, 0.0, WARNING,
            "Task {subject} runs seldom, and its last runs have failed: {value} in a row.",
            "duly jobs list --status failed --task NAME shows why; once the cause is gone, duly jobs replay.",
            hold=30, calm=0,
        ),
        Rule(
            "jobs_unreadable", "jobs", "task", "count", 0.0, 0.0, WARNING,
            "No worker has been able to read the input of {value} jobs of task {subject}.",
            "Start workers with the code that enqueued them; duly jobs list --error Unreadable shows why.",
            hold=300, calm=0,
        ),
        Rule(
            "queue_backlog", "jobs", "queue", "s", s.alerts_backlog, s.alerts_backlog * 0.5, WARNING,
            "Queue {subject} has a job that has been due for {value}; {threshold} is fine.",
            "Start more workers or raise their concurrency; duly queues list shows limits.",
            hold=AFTER_A_HOLD, calm=120, setting="alerts_backlog",
        ),
        Rule(
            "queue_unserved", "jobs", "queue", "s", s.alerts_worker, s.alerts_worker, CRITICAL,
            "No worker that is alive serves queue {subject}, where a job has been due for {value}.",
            "duly worker --queue NAME.",
            hold=30, calm=30, setting="alerts_worker",
        ),
        Rule(
            "queue_paused", "jobs", "queue", "s", s.alerts_paused, s.alerts_paused, WARNING,
            "Queue {subject} has been paused for {value}; {threshold} is fine.",
            "duly queues resume NAME, or take note that it is meant: duly alerts ack ID.",
            calm=0, setting="alerts_paused",
        ),
        Rule(
            "gate_offline", "jobs", "", "s", s.alerts_gate, s.alerts_gate, WARNING,
            "The online gate has been closed for {value}; {threshold} is fine. No worker claims anything.",
            "duly gate online.",
            calm=0, setting="alerts_gate",
        ),
        Rule(
            "leases_stuck", "jobs", "", "s", s.alerts_leases, 0.0, CRITICAL,
            "The lease of a running job lapsed {value} ago and nobody has rescued it.",
            "Start a worker: any worker rescues them.",
            calm=30, setting="alerts_leases",
        ),
        Rule(
            "worker_silent", "jobs", "worker", "s", s.alerts_worker, s.alerts_worker * 0.5, CRITICAL,
            "Worker {subject} did not say goodbye and has not been heard of for {value}.",
            "Look whether its process hangs or was killed; its jobs are rescued when their leases lapse.",
            calm=30, setting="alerts_worker",
        ),
        Rule(
            "worker_unready", "jobs", "worker", "count", 0.0, 0.0, WARNING,
            "Worker {subject} is not ready.",
            "Look at its log.",
            hold=120, calm=60,
        ),
        Rule(
            "seals_behind", "audit", "", "s", s.alerts_seals, s.alerts_seals * 0.5, WARNING,
            "The audit trail has not been sealed for {value}; {threshold} is fine.",
            "Look for duty_failed in the logs of the workers: they seal it.",
            calm=60, setting="alerts_seals",
        ),
        Rule(
            "outbox_parked", "outbox", "destination", "count", 0.0, 0.0, WARNING,
            "{value} messages to {subject} are put aside.",
            "duly outbox list --status parked shows why; then duly outbox redrive.",
            calm=60,
        ),
        Rule(
            "outbox_refused", "outbox", "destination", "s", 0.0, 0.0, CRITICAL,
            "{subject} has refused everything for {value}.",
            "duly outbox list --destination NAME shows the answer: correct the address, the login or the certificate. Its messages wait.",
            calm=0,
        ),
        Rule(
            "outbox_away", "outbox", "destination", "s", s.alerts_outbox_away, s.alerts_outbox_away, WARNING,
            "{subject} has not been reachable for {value}; {threshold} is fine.",
            "duly outbox list --destination NAME shows the error. Its messages wait, and are sent when it is back.",
            calm=0, setting="alerts_outbox_away",
        ),
        Rule(
            "outbox_waiting", "outbox", "destination", "s", s.alerts_outbox, s.alerts_outbox * 0.5, WARNING,
            "A message to {subject} has waited for {value}; {threshold} is fine.",
            "duly outbox status shows whether a relay runs, and duly outbox list the last error.",
            calm=120, setting="alerts_outbox",
        ),
        Rule(
            "schedules_overdue", "schedules", "", "s", s.alerts_schedule, s.alerts_schedule * 0.5, CRITICAL,
            "A schedule should have been looked at {value} ago and nobody did; {threshold} is fine.",
            "Start a worker: each one looks at the schedules.",
            calm=60, setting="alerts_schedule",
        ),
        Rule(
            "schedules_missed", "schedules", "", "count", 0.0, 0.0, WARNING,
            "{value} planned instants were found too late and not made up for.",
            "Look at the ledger of the schedule; run what must be run after all.",
        ),
        Rule(
            "schedule_broken", "schedules", "schedule", "count", 0.0, 0.0, WARNING,
            "Schedule {subject} cannot be planned.",
            "Read its error and define it anew; the others go on.",
            calm=0,
        ),
        Rule(
            "schedule_failing", "schedules", "schedule", "count", 0.0, 0.0, WARNING,
            "Runs of schedule {subject} that have failed in a row, the last one among them: {value}.",
            "duly schedules show NAME and duly jobs show JOB say why; once the cause is gone, duly schedules run NAME, or duly jobs replay JOB.",
            calm=0,
        ),
        Rule(
            "workflow_long", "workflows", "workflow", "count", s.workflow_steps_warn - 1.0, s.workflow_steps_warn - 1.0, WARNING,
            "A run of workflow {subject} has {value} steps on record: each turn goes through all of them.",
            "Let the workflow begin anew now and then with ctx.continue_as_new; beyond workflow_steps_max a run fails.",
            calm=0, setting="workflow_steps_warn",
        ),
        Rule(
            "code_missing", "workflows", "code", "count", 0.0, 0.0, WARNING,
            "Runs that are due, that need the code {subject}, and that no worker takes: {value}.",
            "Start a worker with that code (a workflow, its version, the guard that a run has passed); duly why RUN says the same.",
            hold=s.alerts_code, calm=30, setting="alerts_code",
        ),
        Rule(
            "definition_left", "schedules", "host", "count", 0.0, 0.0, WARNING,
            "Workers on {subject} cannot read {value} definitions and leave them to others.",
            "Update the zone data of that machine, or the code of its workers; where no worker can read them, nothing of them runs.",
            calm=120,
        ),
        Rule(
            "mail_held", "mail", "queue", "count", 0.0, 0.0, CRITICAL,
            "No mail leaves from queue {subject}: its provider is away, has too many messages, refuses the credentials, or a quota is used up.",
            "duly queues list shows the reason; fix it, then duly queues resume NAME, or duly queues release NAME to try at once.",
            calm=0,
        ),
        Rule(
            "mail_unknown", "mail", "queue", "count", 0.0, 0.0, WARNING,
            "The outcome of {value} messages of queue {subject} is unknown: they may have been sent, and are not sent again.",
            "Look in the provider's log; duly mail resend JOB sends a message that did not arrive.",
            calm=0,
        ),
        Rule(
            "automation_failing", "automations", "automation", "count", 0.0, 0.0, WARNING,
            "Runs of automation {subject} that have failed in a row, the last one among them: {value}.",
            "duly automations show NAME, and duly automations show ID of its last session, say why.",
            calm=0,
        ),
        Rule(
            "automation_waiting", "automations", "automation", "s", s.alerts_automation, s.alerts_automation * 0.5, WARNING,
            "A session of automation {subject} has waited for the network or the AI for {value}; {threshold} is fine.",
            "duly automations check asks the provider; duly automations stop ID ends the session.",
            calm=60, setting="alerts_automation",
        ),
        Rule(
            "automation_late", "automations", "automation", "s", s.alerts_automation, s.alerts_automation * 0.5, WARNING,
            "Automation {subject} has been due for {value} and has not begun; {threshold} is fine.",
            "duly automations why NAME says what keeps it from starting.",
            calm=60, setting="alerts_automation",
        ),
        Rule(
            "automation_broken", "automations", "automation", "count", 0.0, 0.0, WARNING,
            "The schedule of automation {subject} cannot be read.",
            "duly automations why NAME says the error; give it another schedule.",
            calm=0,
        ),
        Rule(
            "slot_busy", "automations", "slot", "s", s.automation_max_session_duration, s.automation_max_session_duration, CRITICAL,
            "Slot {subject} has been kept for {value} by a tool whose session has lost the slot; {threshold} is fine.",
            "The tool does not end, and no automation of this slot runs meanwhile. Restart its worker, and give the tool a timeout.",
            calm=0, setting="automation_max_session_duration",
        ),
        Rule(
            "publish_failed", "publishing", "publication", "count", 0.0, 0.0, WARNING,
            "Publication {subject} has failed.",
            "duly publish show ID says why. Fix the cause, then duly publish replay ID; or take note of it: duly alerts ack ALERT.",
            calm=0,
        ),
        Rule(
            "publish_unknown", "publishing", "publication", "count", 0.0, 0.0, CRITICAL,
            "Publication {subject} has ended, and nobody knows whether it was published.",
            "Look at the channel. duly publish replay ID asks the other side before it publishes; or take note of it: duly alerts ack ALERT.",
            calm=0,
        ),
        Rule(
            "publish_paused", "publishing", "channel", "count", 0.0, 0.0, CRITICAL,
            "Channel {subject} is paused, because its other side does not accept its credentials. Its posts wait.",
            "Replace the secret; the channel is tried again every minute, or at once after duly queues resume CHANNEL.",
            calm=0,
        ),
        Rule(
            "publish_held", "publishing", "channel", "count", 0.0, 0.0, WARNING,
            "Channel {subject} is held, because its other side cannot be reached or takes nothing now. Its posts wait.",
            "Look at the site and what stands before it. One post is tried after each hold, and the others follow by themselves.",
            calm=60,
        ),
        Rule(
            "publish_token_ending", "publishing", "channel", "count", 0.0, 0.0, WARNING,
            "The access of channel {subject} ends soon.",
            "Make a new token and replace the secret. duly publish channels --check says when it ends.",
            calm=0,
        ),
        Rule(
            "rounds_idle", "rounds", "tick", "s", s.alerts_idle, s.alerts_idle, CRITICAL,
            "The {subject} tick of the rounds has not run for {value}; {threshold} is fine.",
            "Start a worker: each one does the ticks that are due.",
            # creation runs once an hour by plan (R000-3), so a run that comes a little late is no alert
            hold=300, calm=60, setting="alerts_idle",
        ),
        Rule(
            "rounds_failing", "rounds", "tick", "ratio", s.alerts_failures, s.alerts_failures * 0.8, CRITICAL,
            "{value} of the {samples} groups that the {subject} tick took up lately have failed; {threshold} is fine.",
            "The log names each group and its error; it is tried again at the next pass.",
            samples=s.alerts_samples, setting="alerts_failures",
        ),
        Rule(
            "group_failing", "rounds", "group", "count", 0.0, 0.0, WARNING,
            "Group {subject} could not be planned, opened or closed, {value} times in a row.",
            "duly rounds groups show GROUP says why; it is tried again at each pass.",
            hold=30, calm=0,
        ),
        Rule(
            "rounds_late", "rounds", "", "s", s.alerts_late, s.alerts_late, WARNING,
            "A round opened {value} after its time, or still waits to; {threshold} is fine.",
            "Look whether the open tick runs every five minutes, and how long it takes.",
            calm=60, setting="alerts_late",
        ),
    )  # fmt: skip


def rules_of(s: Settings) -> tuple[Rule, ...]:
    """The rules that are judged. Raises InvalidArgument for a name in ``alerts_off`` that is no rule's."""
    every = every_rule(s)
    off = {name.strip() for name in s.alerts_off.split(",")} - {""}
    known = {rule.name for rule in every}
    if off - known:
        raise InvalidArgument(
            "alerts_off", f"names {sorted(off - known)[0]!r}, which is no rule.", f"Rules are: {', '.join(known)}."
        )
    return tuple(rule for rule in every if rule.name not in off)
