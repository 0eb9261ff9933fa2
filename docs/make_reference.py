"""Write the reference from the code: `python docs/make_reference.py` (with `--check`: say what is out of date, write nothing).

Makes `docs/reference/cli.md` from the commands, `settings.md` from `Settings`, `events.md` from the places that emit
one. What an event means stands below, in `MEANINGS`; an event without a sentence is an error. The names of events go into
`automations/event_names.py`, too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from duly.cli.command import BULK, _Shared
from duly.cli.main import cli
from duly.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
EVENT_NAMES = ROOT / "src" / "duly" / "automations" / "event_names.py"
NOTE = "<!-- Made by docs/make_reference.py from the code. Change it there. -->\n\n"

#: What each event says, in the order of a worker's life.
MEANINGS = {
    "worker_started": "A worker begins; `queues` says how many jobs of each it runs at once.",
    "worker_stopped": "It has ended, and nothing of it runs any more.",
    "signal": "It was asked to stop; `effect` says how: `drain, then stop`, and the second time `stop now`.",
    "drain_cut": "The grace is over (or a second signal came) and `jobs` still ran: they are interrupted and given back.",
    "worker_stalled": "Claimable work waits, the worker has room, and yet it claims none. It is not ready.",
    "jobs_claimed": "A batch was claimed. `lags`: (queue, task, seconds from due to claim) of each job.",
    "answer_missing": "The database has not answered a `loop` of the worker for so many `seconds`: its connection is given up, and the loop goes on with another one.",
    "collation_kept": "A migration left a table's texts to the collation of the database, because a view or another object of somebody's depends on its `columns`: drop that, run `duly migrate`, make it again.",
    "database_replaced": "The SQLite file was moved or replaced under this worker, which goes on with the old one, for nobody. It is not ready: start it anew.",
    "claim_given_back": "The answer of a claim was lost with its connection. Its `jobs`, which nobody had begun, were given back, and no attempt was used.",
    "jobs_settled": "A batch of runs was written. `jobs`: (queue, task, lifecycle event, seconds from start to settlement) of each.",
    "unknown_name": "A name was given (`unknown`; `what`: task, queue, workflow, destination, …) that neither this application nor a running worker knows; `nearest` is what was probably meant. Said once a minute for each name.",
    "on_error_failed": "A function of `app.on_error` raised or took too long; `hook` names it. The job is not concerned.",
    "judging_failed": "The alerts could not be judged by a process that serves pages. Said once for each reason.",
    "coroutine_never_awaited": "A handler, a step or a tool has called an async function and never awaited it, so nothing of that was done. `where` is the line. A run that forgets to await one of Duly's own (`app.aenqueue`) fails; this is told of all others, and the run goes on.",
    "job_unreadable": "A worker cannot read the input of a job: it was enqueued by other code. It is left to newer workers, uncounted, for as long as `unreadable_wait`. Said once for each job and worker.",
    "declaration_old": "This process declares a schedule (`schedule`) or an automation (`automation_name`) as older code did. Newer code has replaced it and its workers live, so it is left as it is.",
    "loop_blocked": "A handler has blocked the worker's event loop for longer than `loop_block`: no other async handler ran. `stack` says where. Once a minute for each task.",
    "blocking_call": "A call that waits for the database was made on a running event loop; `instead` says what to write. Once a minute for each call.",
    "job_retry": "A run failed and will be tried again after `wait` seconds.",
    "job_failed": "A job ended as failed: its attempts are used up, or trying again would not help.",
    "job_cancelled": "A running job ended as cancelled.",
    "jobs_rescued": "Jobs were taken from workers that had stopped renewing their leases; `ended` names those that had no attempt left.",
    "lease_lost": "A run ended after its lease was lost: another worker has the job, and nothing of this run was written.",
    "settle_failed": "The database did not take a batch of settlements. They are kept and written again.",
    "settlement_refused": "The database refuses the outcome of one job; it is stored without its output.",
    "loop_failed": "A loop of the worker failed; it goes on after a pause, and the worker is not ready meanwhile.",
    "loop_recovered": "That loop works again.",
    "duty_failed": "A duty of housekeeping failed; it is tried again at its next turn.",
    "goodbye_failed": "A worker ended while the database took no writes, and could not leave the list of workers within its grace. `worker_silent` is raised until what it ran was taken by others, or until a later worker of the same machine and queues lives.",
    "listen_failed": "The connection that listens for wake-ups was lost, or gave no answer for ten seconds. It reconnects; polling carries on, and the worker's reason says so.",
    "listen_recovered": "It listens again.",
    "gate_changed": "The online gate was moved.",
    "queue_failed": "What governs a queue could not be looked at; the other queues are claimed from as ever.",
    "queue_held": "A queue holds its work, told once until the reason changes.",
    "blackout_began": "A blackout holds queues of this worker from now on, `until` its end (null: none is in sight). What was fetched and has not started is given back.",
    "blackout_ended": "It has ended, or was taken away.",
    "blackout_unreadable": "A blackout cannot be read (edited by hand); `problem` says why. It holds its `scope` until somebody mends or removes it. An alert.",
    "jobs_handed_over": "Jobs that were handed to a fleet have begun there. `waits`: (queue, task, seconds from the claim to the dispatcher's notice) of each.",
    "jobs_taken_back": "A dispatcher took back jobs that nobody had begun; `reason` says why. No attempt is used.",
    "broker_reconnected": "The connection to the broker had been cut; the message is sent once more over a new one.",
    "handover_lost": "A message came for a job that is not to be run here: `reason` is `held` (paused, in a blackout, or the gate is closed), `queued`, `elsewhere`, `ended`, or `unknown` (there is no such job in this database).",
    "handover_refused": "A job was handed over whose task this fleet does not know; it waits and is handed over again.",
    "jobs_pruned": "Ended jobs past their retention were removed.",
    "schedule_changed": "A schedule was made or got a new version: `change` is `created` or `changed`.",
    "schedule_fired": "An occurrence fired: `due_at` is its planned instant, `job` the job that was made.",
    "schedule_skipped": "Occurrences were left out by a rule: `reason` is `paused`, `blackout`, `overlap` or `replaced`.",
    "schedule_missed": "Nobody looked at `count` occurrences in time, and the catch-up policy did not want them afterwards.",
    "schedule_deferred": "Occurrences wait: `reason` is `blackout`, `overlap` (an earlier job lives) or `backfill`.",
    "definition_left": "This process cannot read a definition (`what`, `definition`) and leaves it to others: its time zone is not known on this machine (`host`), or newer code wrote it. Told once. Nothing of it stands in the definition's row. An alert.",
    "schedule_broken": "A schedule cannot be planned; `error` says why, `failures` how often in a row. It is looked at again later, and the others go on. An alert.",
    "schedule_rewound": "The clock had been ahead: what was decided of occurrences that are still to come was taken back, but for those that fired.",
    "schedules_retimed": "Next instants were computed anew, because this process has other time zone data than the one that computed them.",
    "idempotency_attempt": "An idempotent function or request was called: `result` is `allowed` when its body runs, `deduped` when it does not.",
    "idempotency_state": "An idempotent function entered a state: `in_progress`, `succeeded`, `failed`.",
    "idempotency_store_evicts": "The Redis server of idempotency keys drops keys when its memory is full: set `maxmemory-policy noeviction`.",
    "idempotency_waits": "A duplicate of a call in progress was put off; it counts when it is answered.",
    "idempotency_lost": "A body ended, or still runs, after its reservation was taken over: nothing of it was recorded.",
    "idempotency_result_dropped": "The result of an idempotent function cannot be stored: duplicates are given None.",
    "idempotency_unwritten": "The end of a body could not be written, and its process ends or has tried for long enough: the key stays in progress until it lapses, and then the body runs again.",
    "idempotency_store_failed": "The store of idempotency keys did not answer.",
    "celery_task_too_long": "A task of a Celery worker has a limit of its own that outlives the visibility timeout, or `lock_ttl`; `problem` says which.",
    "postcommit_lost": "The process ended while `count` tasks that were to be sent after a commit had not been answered for, after one more wait: nobody knows whether they were sent.",
    "postcommit_late": "A commit has waited long enough (`seconds`) for the sender of its `count` tasks, and went on. They are still being sent; `postcommit` tells their results.",
    "outbox_relay_started": "A relay begins; `transports` are those it has.",
    "outbox_relay_stopped": "It has ended; `sent` is how many messages it sent.",
    "outbox_sent": "Messages of one destination were sent and marked. `took`: seconds that the transport took, of each.",
    "outbox_failed": "Sending a message failed; it is tried again after `wait` seconds. `counted`: it has used an attempt; false where its destination is at fault.",
    "outbox_gate": "The online gate was closed for the relays of the outbox, or opened (`online`), as a relay has seen it.",
    "outbox_held": "A relay sends nothing to a destination and probes it after `wait` seconds. `kind` is `away` (it cannot be reached, which passes) or `refused` (it takes nothing until an operator has acted). No attempt is used. An alert.",
    "outbox_open": "A destination that was held takes messages again, after `seconds`.",
    "outbox_hangs": "A transport has not returned for a minute; its destination has one place less, and the lease is kept.",
    "outbox_parked": "A message is put aside until somebody decides: `reason` is `exhausted` (attempts), `refused` (repeating would not help) or `lost` (its relays ended in the middle). An alert.",
    "outbox_lease_lost": "Messages were sent or tried, and another relay had taken them over before that was written: they may arrive twice.",
    "outbox_rescued": "Messages were taken over from relays that had stopped renewing their leases.",
    "outbox_stranded": "There are messages for a destination that this relay has no transport for; told once. Another relay may have it.",
    "outbox_pruned": "Sent messages past `keep` were removed, and their keys with them.",
    "alert_raised": "An alert was raised, and its audit row written: `rule`, `subject` (a queue, a worker …), `alert` (its number), and `detail`, the sentence for people.",
    "alert_cleared": "It was fine for long enough.",
    "alert_acked": "Somebody took note of it.",
    "alert_unknown": "A rule could not be judged, told once until it can: nothing is raised and nothing is cleared by it.",
    "alerts_withheld": "More alerts than `most` in an hour: of `count` of them nobody is told by job. They are in the list all the same.",
    "alert_notice_failed": "The jobs that tell people of an alert could not be made. It is raised all the same.",
    "round_tick": "A pass of a tick of rounds (`kind`: plan, open, close) has ended. `done`, `skipped` and `failed` count groups, `per_minute` is their rate.",
    "round_tick_failed": "A pass broke off; what it had committed stays, and the next pass does the rest.",
    "rounds_moved": "A batch of rounds was planned, opened or closed. `lates`: seconds between due and done, of each; for openings, what alerts look at.",
    "rounds_left": "Groups of a batch were left as they are. `reason`: `NO_ELIGIBLE_PROMPT`, `date_taken`, `hour_passed` (they wait for the next date), `locked` (another worker has them), `lost` (another was first), `live`, `inactive`. `groups` names some.",
    "rounds_postponed": "Scheduled rounds were found so late that their date was over; they wait for their groups' next hour. `late`: the longest, in seconds; `groups` names some.",
    "round_failed": "A tick failed on one group; the others went on. It is due again at the next pass.",
    "round_notified": "A round has opened, for a member who wants to read it in the log.",
    "mail_paused": "A mail provider wants other credentials, or is not configured: the `queue` is paused with the `reason`.",
    "mail_throttled": "A mail provider has too many messages, or its `quota` is used up: this job and those behind it wait `wait` seconds (it `asked` for so many; at most a day is obeyed), and no attempt is used.",
    "mail_away": "A mail provider cannot be reached, or takes nothing now: the queue is held for `wait` seconds, one message tries again then, and no attempt is used. `failures` counts the tries in a row.",
    "mail_resumed": "A mail provider answers again; `held` says what had held the queue: `away`, `throttled` or `quota`.",
    "mail_reported": "A provider or a mail server reported a bounce or a complaint (`kind`). `suppressed`: so many addresses are new on the list; `soft` may be written to again; to `strangers` Duly has not written.",
    "mail_partly": "A message was taken for some recipients, and is sent to those who are `waiting` next; no attempt is used.",
    "mail_refused": "A message was accepted for some recipients and refused for good for others; the numbers count them.",
    "mail_unknown": "A message was handed over and nobody knows whether it was taken: the job fails, and is not sent again by itself.",
    "mail_limit_failed": "The limit that the mail provider asks for could not be set on its queue when a worker began.",
    "process_job": "A run of a publication begins (`attempt`). The hook `process_job` is told the same.",
    "published": "A post is there, as `remote_id` where that is known. `found`: it was there already, by an earlier run.",
    "publish_reconciled": "The other side was asked after a post of which nobody knew; `found`: is it there?",
    "publish_failed": "A post has failed for good: `error` says why. The alert `publish_failed` is raised for it at once.",
    "publish_unknown": "Nobody knows whether a post was published, and it is not published again by itself: look at the channel. A replay asks the other side again.",
    "publish_paused": "A channel's other side wants other credentials: its queue is paused with the `reason`.",
    "posts_retimed": "Newer zone data moved `count` posts that wait for a local time; `jobs` names the first 20.",
    "publish_throttled": "A channel's other side has had enough (`quota`: a quota is used up): its queue is held for `wait` seconds, and no attempt is used.",
    "publish_definition_old": "A worker began whose application declares a `channel` as it was before it was changed. Limit, rate and blackouts stay as they were declared last.",
    "publish_resumed": "A channel that was paused for its credentials answers again, with a secret that was replaced: its posts go out in order.",
    "publish_check_failed": "A connector could not say when its access ends, and raised an error of its own.",
    "publish_held": "A channel's other side, or what stands before it (`owner`), takes nothing now: its queue is held for `wait` seconds, no attempt is used, and then one publication is tried.",
    "publish_breaker_opened": "A channel has failed `failures` times in a row: its queue is held for `wait` seconds, and then one publication is tried.",
    "publish_channel_unknown": "A publication was claimed by a worker whose application does not declare its `channel`, or cannot read its file of channels (`error`); it waits for another one.",
    "publish_function_failed": "The function of a channel raised an error after it had said how its post went. What it said stands.",
    "publish_limit_failed": "What a channel says of its limit and rate could not be set on its queue when a worker began.",
    "publish_subscriber_failed": "A subscriber of a hook (`subscribed`) raised an error. Publishing is not harmed by it.",
    "ig_first_comment_published": "A first comment is there. `found`: it was there already.",
    "ig_first_comment_error": "A first comment could not be made, or failed for good. `job`: its job, or its parent's where it has none. The parent stands as it is.",
    "workflow_unknown": "A run waits for a worker that knows its workflow, in the version that it began with: this one does not. It is left to others, and looked at again soon, then less and less often.",
    "workflow_ahead": "A run was taken further by newer code than this worker has: its history holds a guard (`ctx.patched`) or a kind of step that is not known here. It is left to others, and looked at again soon, then less and less often.",
    "workflow_history_long": "A run of a workflow has as many steps on record as `workflow_steps_warn` says: each turn goes through all of them. `most` is where it fails. Let the workflow begin anew with `ctx.continue_as_new`. Emitted once for each run.",
    "workflow_answer_waits": "A step was done, and what came of it could not be recorded because the database does not answer. The worker tries again for as long as a lease lasts, and remembers it afterwards.",
    "workflow_changed": "A document of a workflow has another text than before under the same version. New runs take the new text; those that have begun keep theirs. Told once for each version.",
    "workflows_woken": "Runs had slept through their news, after a crash in between; housekeeping has woken `count` of them.",
    "session_started": "A session has the slot for the first time; `late`: seconds behind its planned instant. `reason` is that of its first round.",
    "session_resumed": "A session that had lost the slot has it again, with nothing added: `reason` says why it had lost it.",
    "session_queued": "A chat, or an execution that a person or an event asked for, waits for the slot.",
    "session_round": "A question was answered: `seconds` it took, and the tokens that are billed for it.",
    "session_call": "A call of a tool has ended: `status` is `done`, `failed`, `refused` (nothing was called) or `unknown` (a crash came into its middle). `tool` is `(unknown)` where nobody defines it.",
    "session_waits": "A question got no answer, and `reason` says why: an automation asks it again later, a chat waits for its person. Told once for each wait.",
    "session_broke_off": "An answer of an AI broke off after it was asked for, and is counted: `times` in a row of at most `most`; it is asked again after `after` seconds, or not at all where that is missing.",
    "session_shortened": "The AI refused a conversation as too long; results of tools are told it shortened from now on, within `characters`. What is on record stays whole.",
    "session_interrupted": "A session has lost the slot and goes on later: `reason` is `CRASH`, `NETWORK_ERROR` or `SUSPENDED`.",
    "session_crashed": "A chat has lost its worker; `again`: the person's question is asked again.",
    "session_ended": "A session has ended: `reason` is `COMPLETED`, `TIMEOUT`, `ERROR` or `CANCELLED`; `detail` says why, and is left out where it is what the AI said.",
    "automation_skipped": "Planned executions were left out: `count` of them, from `first` to `last`; `reason` is `dismissed` or `catch_up_window`, `gap=` with the local times that one execution stands for after clocks went forward, or `disabled`, `rescheduled` or `removed` where a person decided so.",
    "slot_busy": "A session has lost its slot while a call of its `tool` is under way: nobody gets the slot before that has ended.",
    "automation_broken": "The schedule of an automation cannot be read; `error` says why. The others go on.",
    "automation_not_run": "An event could not run an automation that waits for it; `error` says why.",
    "oidc_failed": "Somebody could not log in through OpenID Connect, and `reason` says what the provider did: it did not answer, or its answer is not believed.",
    "postcommit": "A task that was registered for after a commit: `result` is `enqueued`, `rolled_back` or `skipped` (it could not be sent).",
    "listener_failed": "A listener of events raised an error. Work is not harmed by it.",
}


# --- cli.md -------------------------------------------------------------------------------------------------------------


def commands() -> str:
    out = [
        "# The command line\n\n",
        NOTE,
        "`duly` looks at jobs, acts on them, and runs workers. `duly COMMAND --help` says on the spot what stands here.\n\n",
        "Every command takes the common options, before or after its name:\n\n",
        _table(["option", "meaning"], [(_names(p), p.help or "") for p in cli.common if isinstance(p, click.Option)]),
        "\n**The application** is a Duly object in a module: `app.py`, `app.py:app`, `shop.jobs` and `shop.jobs:app` are ways to "
        "name it. The name behind the colon is needed when there are several. Modules are found as `python` finds them, "
        "from the current directory. Commands that run no task work without one, on the database alone.\n\n"
        "**Exit codes**: 0 done; 1 failed, and one sentence on stderr says why; 2 wrong usage, and it names the field. "
        "A traceback is printed only with `--debug`. A password is never printed.\n\n"
        "**Output**: tables on a terminal, plain columns in a pipe (no id is ever cut), one JSON document with `--json`. "
        "`NO_COLOR` is honoured. Times are UTC.\n\n"
        "**Spans** are `90` (seconds), `15min`, `1h30m`, `14d`; **instants** carry their zone: `2026-07-27T09:00:00Z` or "
        "`…+02:00`.\n\n"
        f"**In bulk**: `jobs cancel`, `jobs replay` and `jobs prune` ask before they touch more than {BULK} jobs by filter. Where nobody "
        "can be asked they want `--yes`, and end with 2 without it. `--dry-run` says how many of what and changes nothing. "
        "Jobs named by their ids are never asked about. `outbox redrive`, `outbox prune` and `outbox reconcile` do the same.\n",
    ]
    for path, command in _walk(cli, "duly"):
        out.append(f"\n## {path}\n\n")
        out.append(f"```\n{_usage(path, command)}\n```\n\n")
        out.append(_prose(command.help or "") + "\n")
        own = [p for p in command.params if isinstance(p, click.Option) and p not in _common(command)]
        if own:
            out.append("\n" + _table(["option", "meaning"], [(_names(p), _meaning(p)) for p in own]))
    return "".join(out)


def _walk(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _walk(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _common(command: click.Command) -> list[click.Parameter]:
    return command.common if isinstance(command, _Shared) else []


def _usage(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    return f"{path} {' '.join(command.collect_usage_pieces(context))}"


def _prose(text: str) -> str:
    """Help texts as paragraphs; braces and stars are nobody's markup."""
    import inspect

    return inspect.cleandoc(text).replace("<", "&lt;").replace("*", "\\*")


def _names(option: click.Option) -> str:
    names = ", ".join(
        [*option.opts[::-1], *option.secondary_opts] if option.secondary_opts else sorted(option.opts, key=len)
    )
    if option.is_flag:
        return f"`{names}`"
    context = click.Context(cli)
    metavar = option.make_metavar(context)
    return f"`{names} {metavar}`"


def _meaning(option: click.Option) -> str:
    text = option.help or ""
    if option.required:
        text += " Required."
    if option.show_default and option.default is not None:
        text += f" Default: {option.default}."
    return text


# --- settings.md ----------------------------------------------------------------------------------------------------------


def settings() -> str:
    rows = [
        (f"`{s['name']}`", f"`{s['variable']}`", _value(s["default"]), s["unit"], s["reason"])
        for s in Settings.describe()
    ]
    return "".join([
        "# Settings\n\n",
        NOTE,
        "Every setting is an argument of `Duly(...)` and a variable of the environment. The argument wins over the variable, the "
        "variable over the default. `duly doctor --settings` shows the values in force and where each comes from.\n\n",
        _table(["setting", "variable", "default", "unit", "what it is for"], rows),
        "\n## Durations\n\nWherever Duly takes a duration (settings with the unit `s`, arguments, options of commands, REST, forms), you may write a "
        "number of seconds (`90`, `1.5`), parts with units (`500ms`, `90s`, `5m`, `1h30m`, `2d 12h`, `1w`) or an ISO 8601 duration without years and "
        "months (`PT5M`, `P1DT12H`), which have no fixed length. Python also takes a `timedelta`. Answers give seconds.\n",
    ])  # fmt: skip


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{value:,.10g}`".replace(",", "") if isinstance(value, float) else f"`{value}`"


# --- events.md ------------------------------------------------------------------------------------------------------------


@dataclass
class Emitted:
    """An event as the code emits it."""

    levels: set[str] = field(default_factory=set)
    facts: dict[str, None] = field(default_factory=dict)  # in the order of first mention


def emitted() -> dict[str, Emitted]:
    """Every event, read from the calls of ``emit``, and of ``done.tell`` for those that are told after a commit: with a name that stands
    there (or two, by a condition), or that is looked up in a table."""
    found: dict[str, Emitted] = {}
    for file in sorted((ROOT / "src" / "duly").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)):
            for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
                if not (isinstance(call.func, ast.Attribute) and call.args and _tells(call.func)):
                    continue
                facts = [k.arg for k in call.keywords if k.arg]
                first = call.args[0]
                either = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
                events = [event for at in range(len(either)) if (event := _text(either, at)) is not None]
                if events:
                    level = _text(call.args, 1) or ("info" if call.func.attr != "tell" else "info or warning")
                    named = dict.fromkeys(events, level)
                else:
                    named = _looked_up(tree)
                    facts += [
                        k.value
                        for d in ast.walk(function)
                        if isinstance(d, ast.Dict)
                        for k in d.keys
                        if isinstance(k, ast.Constant)
                    ]
                for name, level in named.items():
                    entry = found.setdefault(name, Emitted())
                    entry.levels.add(level)
                    entry.facts.update(dict.fromkeys(facts))
    return found


def _tells(func: ast.Attribute) -> bool:
    after_commit = func.attr == "tell" and isinstance(func.value, ast.Name) and func.value.id == "done"
    return func.attr in ("emit", "_tell") or after_commit


def _looked_up(tree: ast.Module) -> dict[str, str]:
    """The tables of a module whose values are (event, level)."""
    out = {}
    for table in (n.value for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign)):
        for value in table.values if isinstance(table, ast.Dict) else ():
            if isinstance(value, ast.Tuple) and len(value.elts) == 2:
                name, level = _text(value.elts, 0), _text(value.elts, 1)
                if name and level in ("debug", "info", "warning", "error"):
                    out[name] = level
    return out


def _text(args: list[ast.expr], at: int) -> str | None:
    node = args[at] if at < len(args) else None
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def events() -> str:
    found = emitted()
    unexplained = sorted(set(found) - set(MEANINGS))
    if unexplained:
        sys.exit(f"docs/make_reference.py: say in MEANINGS what these events mean: {', '.join(unexplained)}")
    if gone := sorted(set(MEANINGS) - set(found)):
        sys.exit(
            f"docs/make_reference.py: nothing emits these events, or not where they can be read: {', '.join(gone)}"
        )
    rows = [
        (f"`{name}`", ", ".join(sorted(found[name].levels)), ", ".join(f"`{f}`" for f in found[name].facts), text)
        for name, text in MEANINGS.items()
    ]
    return "".join([
        "# Events\n\n",
        NOTE,
        "What rooms say happened. Logs and metrics listen, and so can you: `app.listen(function)` hands it each `Event` (name, level, "
        "facts) and returns a function that stops it. A listener runs on the thread that emits, so it must be quick. Events "
        "carry names, ids and durations; never inputs, addresses or tokens.\n\n",
        _table(["event", "level", "facts", "meaning"], rows),
    ])  # fmt: skip


# --- writing --------------------------------------------------------------------------------------------------------------


def _table(heads: list[str], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def pages() -> dict[str, str]:
    return {"cli.md": commands(), "settings.md": settings(), "events.md": events()}


def event_names() -> str:
    """The module by which a trigger that is no event is told from one that is."""
    names = "".join(f'        "{name}",\n' for name in sorted(emitted()))
    return (
        '"""The names of Duly\'s own events. Made by ``docs/make_reference.py``: do not edit."""\n\n'
        f"from __future__ import annotations\n\nEVENT_NAMES = frozenset(\n    [\n{names}    ]\n)\n"
    )


def main() -> None:
    stale = []
    files = {REFERENCE / name: text for name, text in pages().items()} | {EVENT_NAMES: event_names()}
    for file, text in files.items():
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(file.name)
        if "--check" not in sys.argv[1:]:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {file.relative_to(ROOT)}\n")
    if "--check" in sys.argv[1:] and stale:
        sys.exit(f"out of date: {', '.join(stale)}. Run `python docs/make_reference.py`.")


if __name__ == "__main__":
    main()
