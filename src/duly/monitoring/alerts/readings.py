"""What each rule is judged by: one small function per rule, from a look at the database to a reading.

A new rule needs one more here; its name is that of the rule. Only reads, each bounded (see ``looks``). A function that fails makes
its own rule unknown and no other's.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, exists, func, literal, or_, select, text
from sqlalchemy.exc import SQLAlchemyError

from duly.audit.tables import audit_log, audit_seals
from duly.jobs.engine import Engine
from duly.jobs.lapsed import lapsed
from duly.jobs.run import UNREADABLE
from duly.jobs.tables import GATE_KEY, error_class, jobs, jobs_done, system_state, workers
from duly.kernel.errors import brief
from duly.kernel.rooms import is_of_a_room
from duly.monitoring.alerts.alert import MOST_SUBJECTS, Facts, Reading, Rule, Sample
from duly.monitoring.alerts.looks import HOPS, ROWS, Look
from duly.monitoring.alerts.runs import code_missing, group_failing, schedule_failing, workflow_long
from duly.monitoring.alerts.tables import alerts

#: Seconds that all looks together may take.
ALL = 8.0
#: The ticks of the rounds.
TICKS = ("plan", "open", "close")
#: How far back passes of the ticks are looked at, in seconds.
DAY = 86_400.0
#: A worker that has been silent for longer is not asked about any more: it is gone, and its jobs were rescued.
GONE = timedelta(hours=1)
#: For so long what happens once is in the readings.
LATELY = timedelta(days=1)
#: Seconds after a hold in which a provider that is away counts as such: twice the longest wait between tries.
MAIL_TRIES = 600.0
#: What happens once stays in the readings for so long, unless it is replayed or somebody takes note of it.
RECENT = timedelta(days=7)
#: Who pauses a channel because of its credentials; the keys of ``system_state`` under which the ends of channels' tokens stand, and how long
#: before its end one is told of.
PUBLISHING, TOKENS, SOON = "publishing", "publish_token:", timedelta(days=7)
#: Seconds after a hold within which the next try shows how it stands.
TRIED = 900.0


def look(engine: Engine, rules: tuple[Rule, ...], connection: Connection) -> Facts:
    """What the rules are judged by, as of now. Raises DatabaseUnavailable when the database is away."""
    look = Look(engine, connection)
    begun = time.monotonic()
    readings: dict[str, Reading] = {}
    for rule in rules:
        read = LOOKS.get(rule.name)
        if read is None:
            continue
        if time.monotonic() - begun > ALL:
            readings[rule.name] = Reading.unknown("the looks before it took too long")
            continue
        try:
            with look.guarded():
                readings[rule.name] = read(look)
        except SQLAlchemyError as error:
            if engine.db.translated(error) is not error and not _took_too_long(error):
                raise  # it is away: nothing can be read
            readings[rule.name] = Reading.unknown(brief(error))
        except Exception as error:
            readings[rule.name] = Reading.unknown(brief(error))
    return Facts(look.now, readings)


def _took_too_long(error: SQLAlchemyError) -> bool:
    """Was it our own limit that ended the statement (query_canceled)?"""
    return getattr(getattr(error, "orig", None), "sqlstate", None) == "57014"


# ---------------------------------------------------------------------- jobs


def jobs_idle(look: Look) -> Reading:
    """Since when nothing was done: the last run, or the moment from which there was something to do."""
    if not look.due:
        return Reading()
    queue, oldest = min(look.due.items(), key=lambda item: item[1])
    last = look.last_run(oldest)
    idle = look.since(oldest if last is None else max(last, oldest))
    return Reading.of([Sample("", idle, detail=f"the oldest waits in queue {queue}")])


def jobs_failing(look: Look) -> Reading:
    good, bad = (sum(column) for column in zip(*look.ended.values(), strict=True)) if look.ended else (0, 0)
    return _share({"": (good, bad)}, {"": look.streaks[""]} if "" in look.streaks else {})


def queue_failing(look: Look) -> Reading:
    return _share(look.ended, {name: n for name, n in look.streaks.items() if name})


def task_failing(look: Look) -> Reading:
    """Tasks that end too seldom for a share of failures, and whose last runs within a day have failed: how many in a row."""
    c, window, few = jobs_done.c, look.ago(look.settings.alerts_window), look.settings.alerts_samples
    newest = (
        select(c.task, c.status, c.finished_at, error_class(c.error))
        .where(c.finished_at > look.ago(DAY), c.finished_at <= look.now, c.status.in_(("succeeded", "failed")))
        .order_by(c.finished_at.desc())
        .limit(ROWS)
    )
    streaks: dict[str, list[str]] = {}
    over, often = set[str](), Counter[str]()
    for task, status, at, kind in look.connection.execute(newest):
        often[task] += at > window
        if status == "failed" and task not in over:
            streaks.setdefault(task, []).append(kind or "")
        else:
            over.add(task)
    return Reading.of(
        [
            Sample(task, len(kinds), detail=kinds[0])
            for task, kinds in streaks.items()
            if often[task] < few and not is_of_a_room(task)
        ]
    )


def jobs_unreadable(look: Look) -> Reading:
    """Jobs that wait because no worker could read their input, by task."""
    c = jobs.c
    waiting = select(c.task, error_class(c.error).label("kind")).where(c.error.is_not(None), c.status == "queued")
    some = waiting.order_by(c.id).limit(ROWS).subquery()
    counted = select(some.c.task, func.count()).where(some.c.kind == UNREADABLE).group_by(some.c.task)
    return Reading.of([Sample(task, n) for task, n in look.connection.execute(counted)])


def _share(counts: Mapping[str, tuple[int, int]], streaks: Mapping[str, int]) -> Reading:
    """Failures among what was taken up, by subject; a subject without any is left out.

    ``streaks``: where everything failed for longer than the window, how much that was. It is judged however little (A window that is
    shorter than the period of what it judges is empty most of the time.)
    """
    samples = [
        Sample(name, bad / (good + bad), good + bad, decisive=not bad)
        for name, (good, bad) in counts.items()
        if good + bad
    ]
    few = {name: n for name, n in streaks.items() if n > sum(counts.get(name, (0, 0)))}
    return Reading.of(
        [sample for sample in samples if sample.subject not in few]
        + [Sample(name, 1.0, n, decisive=True) for name, n in few.items()]
    )


def queue_backlog(look: Look) -> Reading:
    return Reading.of([Sample(queue, look.since(at)) for queue, at in look.due.items()], complete=len(look.due) < HOPS)


def queue_unserved(look: Look) -> Reading:
    return Reading.of(
        [Sample(queue, look.since(at)) for queue, at in look.due.items() if queue not in look.alive],
        complete=len(look.due) < HOPS,
    )


def queue_paused(look: Look) -> Reading:
    return Reading.of(
        [
            Sample(name, look.since(row.paused_at), detail=_by(row.paused_by, row.paused_reason))
            for name, row in look.paused.items()
            if row.paused_by != PUBLISHING  # that is told at once, by publish_paused
        ]
    )


def _by(actor: str | None, reason: str | None) -> str:
    return ": ".join(part for part in (f"by {actor}" if actor else "", reason or "") if part)


def gate_offline(look: Look) -> Reading:
    if look.online:
        return Reading()
    at = look.connection.execute(select(system_state.c.updated_at).where(system_state.c.key == GATE_KEY)).scalar_one()
    return Reading.of([Sample("", look.since(at))])


def leases_stuck(look: Look) -> Reading:
    found = lapsed(look.connection, look.now)
    if not found.count or found.oldest is None:
        return Reading()
    return Reading.of([Sample("", look.since(found.oldest), detail=_count(found.count, "job"))])


def worker_silent(look: Look) -> Reading:
    """How long ago each worker was heard of. One that has ended without goodbye (killed, or stopped while the database took no writes) is left
    out once what it ran was taken by others, or once a later one of the same machine and queues lives."""
    c = workers.c
    seen = select(c.name, c.seen_at, c.host, c.queues, c.started_at, c.running).where(c.seen_at >= look.now - GONE)
    rows = look.connection.execute(seen).all()
    late = look.ago(look.settings.alerts_worker * 0.5)
    silent = [row for row in rows if row.seen_at < late]
    living = [row for row in rows if row.seen_at >= late]
    held = set[str]()
    if any(row.running for row in silent):
        mine = select(jobs.c.worker).where(jobs.c.status == "running", jobs.c.worker.in_([row.name for row in silent]))
        held = set(look.connection.execute(mine.distinct()).scalars())

    def is_over(row: Any) -> bool:
        rescued = row.running > 0 and row.name not in held
        return rescued or any((w.host, w.queues) == (row.host, row.queues) and w.started_at > row.seen_at for w in living)  # fmt: skip

    counted = [*living, *(row for row in silent if not is_over(row))]
    return Reading.of([Sample(row.name, look.since(row.seen_at)) for row in counted])


def worker_unready(look: Look) -> Reading:
    lately = workers.c.seen_at >= look.ago(look.settings.alerts_worker)
    unready = select(workers.c.name, workers.c.reason).where(workers.c.state == "unready", lately)
    return Reading.of([Sample(name, 1, detail=reason or "") for name, reason in look.connection.execute(unready)])


# ---------------------------------------------------------------------- audit, outbox


def seals_behind(look: Look) -> Reading:
    """The age of the first row behind the last seal. Workers seal, so without one nothing is expected."""
    if not look.alive:
        return Reading()
    last = look.connection.execute(select(audit_seals.c.last_id).order_by(audit_seals.c.id.desc()).limit(1)).scalar()
    first = select(audit_log.c.at).where(audit_log.c.id > (last or 0)).order_by(audit_log.c.id).limit(1)
    at = look.connection.execute(first).scalar()
    return Reading() if at is None else Reading.of([Sample("", look.since(at))])


def outbox_parked(look: Look) -> Reading:
    if not look.any("outbox"):
        return Reading()
    from duly.outbox.tables import outbox

    parked = select(outbox.c.destination).where(outbox.c.status == "parked").limit(ROWS).subquery()
    counted = select(parked.c.destination, func.count()).group_by(parked.c.destination)
    rows = look.connection.execute(counted).all()
    return Reading.of([Sample(name, n) for name, n in rows], complete=sum(n for _, n in rows) < ROWS)


def outbox_refused(look: Look) -> Reading:
    return _held(look, "refused")


def outbox_away(look: Look) -> Reading:
    return _held(look, "away")


def _held(look: Look, kind: str) -> Reading:
    """For how long a relay has held each destination that messages wait for."""
    if not look.any("outbox_holds"):
        return Reading()
    from duly.outbox.tables import outbox, outbox_holds

    c, h = outbox.c, outbox_holds.c
    waits = [
        exists().where(c.destination == h.destination, *mine)
        for mine in (
            (c.status == "pending", c.ordering_key.is_(None)),
            (c.ordering_key.is_not(None), c.status != "sent"),
        )
    ]
    held = select(h.destination, h.since, h.problem).where(h.kind == kind, or_(*waits)).order_by(h.destination)
    rows = look.connection.execute(held.limit(HOPS)).all()
    return Reading.of(
        [Sample(r.destination, look.since(r.since), detail=r.problem) for r in rows], complete=len(rows) < HOPS
    )


def outbox_waiting(look: Look) -> Reading:
    """The oldest pending message of each destination, of the first few thousand by its index."""
    if not look.any("outbox"):
        return Reading()
    from duly.outbox.tables import outbox

    c = outbox.c
    oldest: dict[str, datetime] = {}
    full = False
    for mine, order in (
        ([c.status == "pending", c.ordering_key.is_(None)], (c.due_at, c.id)),
        ([c.ordering_key.is_not(None), c.status != "sent"], (c.ordering_key, c.id)),
    ):
        last = ""
        for hop in range(HOPS):
            first = select(c.destination).where(*mine, c.destination > last).order_by(c.destination, *order).limit(1)
            found = look.connection.execute(first).scalar()
            if found is None:
                break
            last, full = found, full or hop == HOPS - 1
            some = select(c.created_at, c.status).where(*mine, c.destination == last).order_by(*order).limit(ROWS)
            few = some.subquery()
            at = look.connection.execute(select(func.min(few.c.created_at)).where(few.c.status == "pending")).scalar()
            if at is not None:
                oldest[last] = min(at, oldest.get(last, at))
    return Reading.of([Sample(name, look.since(at)) for name, at in oldest.items()], complete=not full)


# ---------------------------------------------------------------------- schedules


def schedules_overdue(look: Look) -> Reading:
    if not look.any("schedules"):
        return Reading()
    from duly.schedules.tables import schedules

    c = schedules.c
    late = [c.look_at.is_not(None), c.look_at < look.now]
    rows = look.connection.execute(select(c.name, c.look_at).where(*late).order_by(c.look_at).limit(100)).all()
    if not rows:
        return Reading()
    few = ", ".join(row.name for row in rows[:3])
    more = f" and {len(rows) - 3}{' or more' if len(rows) == 100 else ''} others" if len(rows) > 3 else ""
    return Reading.of([Sample("", look.since(rows[0].look_at), detail=few + more)])


def schedules_missed(look: Look) -> Reading:
    if not look.any("schedules"):
        return Reading()
    from duly.schedules.tables import occurrences, schedules

    c = occurrences.c
    missed = (
        select(c.schedule_id)
        .where(c.acted_at > look.ago(look.settings.alerts_window), c.acted_at <= look.now, c.status == "missed")
        .limit(ROWS)
        .subquery()
    )
    counted = (
        select(schedules.c.name, func.count().label("n"))
        .join_from(missed, schedules, schedules.c.id == missed.c.schedule_id)
        .group_by(schedules.c.name)
        .order_by(literal(0) - func.count(), schedules.c.name)
    )
    rows = look.connection.execute(counted).all()
    if not rows:
        return Reading()
    return Reading.of([Sample("", sum(row.n for row in rows), detail=", ".join(row.name for row in rows[:5]))])


def schedule_broken(look: Look) -> Reading:
    if not look.any("schedules"):
        return Reading()
    from duly.schedules.tables import schedules

    c = schedules.c
    broken = select(c.name, c.failures).where(c.error.is_not(None), c.removed_at.is_(None))
    rows = look.connection.execute(broken.order_by(c.error_at).limit(MOST_SUBJECTS + 1)).all()
    return Reading.of([Sample(name, max(1, failures), detail=_count(failures, "failure")) for name, failures in rows])


def definition_left(look: Look) -> Reading:
    """What living workers cannot read, by host: in a zone that is not known there, or of newer code (C023, E1)."""
    lately = workers.c.seen_at >= look.ago(look.settings.alerts_worker)
    found: dict[str, dict[str, str]] = {}
    for host, leaves in look.connection.execute(select(workers.c.host, workers.c.leaves).where(lately)):
        if leaves:
            found.setdefault(host, {}).update(leaves)
    return Reading.of([
        Sample(host, len(left), detail="; ".join(f"{what}: {why}" for what, why in sorted(left.items())[:5])[:500])
        for host, left in sorted(found.items())
    ])  # fmt: skip


# ---------------------------------------------------------------------- mail


def mail_held(look: Look) -> Reading:
    """Queues from which no mail leaves: paused by mail, held until a quota's end, or in front of a provider that was away, or had
    too many messages for minutes, twice in a row."""
    found = {
        name: Sample(name, 1, detail=row.paused_reason or "")
        for name, row in look.paused.items()
        if row.paused_by == "mail"
    }
    if look.any("mail_holds"):
        from duly.mail.tables import mail_holds

        c = mail_holds.c
        # between two tries the hold of a provider that is away has just passed; without messages nothing tries. Short waits of one that has
        # too many messages are its usual pace
        no_pace = or_(c.kind != "throttled", c.holds_queue)
        again = and_(c.failures > 1, no_pace, c.until > look.ago(MAIL_TRIES))
        still = or_(and_(c.kind == "quota", c.until > look.now), again)
        for row in look.connection.execute(select(c.queue, c.provider, c.reason).where(still).limit(HOPS)):
            found.setdefault(row.queue, Sample(row.queue, 1, detail=f"{row.provider}: {row.reason}"))
    return Reading.of(list(found.values()))


def mail_unknown(look: Look) -> Reading:
    """Messages of the last day whose job ended while no one knew whether they were taken, and that no one has sent again since."""
    if not look.any("mail_events"):
        return Reading()
    from duly.mail.tables import mail_deliveries, mail_events

    e, d = mail_events.c, mail_deliveries.c
    doubtful = exists().where(d.job_id == e.job_id, d.state == "unknown", d.holder != "released")
    some = select(e.queue).where(e.kind == "unknown", e.at > look.now - LATELY, doubtful).limit(ROWS).subquery()
    counted = select(some.c.queue, func.count()).group_by(some.c.queue)
    return Reading.of([Sample(queue, n) for queue, n in look.connection.execute(counted)])


# ---------------------------------------------------------------------- publishing


def publish_failed(look: Look) -> Reading:
    """Posts and first comments that failed within the last days, each by itself; those that somebody took note of are left out."""
    return _ended(look, "publish_failed", unknown=False)


def publish_unknown(look: Look) -> Reading:
    """The same for those that ended while nobody knew whether they are there."""
    return _ended(look, "publish_unknown", unknown=True)


def _ended(look: Look, rule: str, unknown: bool) -> Reading:
    if not look.any("publications"):
        return Reading()
    from duly.publishing.tables import POSTS, publications

    d, p = jobs_done.c, publications.c
    doubtful = exists().where(p.job_id == d.id, p.state == "sending")
    ended = d.status.in_(("failed", "cancelled")) if unknown else d.status == "failed"
    mine: list[Any] = [text(POSTS), ended, d.finished_at >= look.now - RECENT, doubtful if unknown else ~doubtful]
    newest = select(d.id, d.queue, d.error, d.finished_at).where(*mine).order_by(d.finished_at.desc()).limit(ROWS)
    rows = look.connection.execute(newest).all()
    noted = _noted(look, rule) if rows else {}
    found = [row for row in rows if noted.get(str(row.id), row.finished_at - RECENT) < row.finished_at]
    more = f"; {_count(len(found) - MOST_SUBJECTS, 'more')}" if len(found) > MOST_SUBJECTS else ""
    said = (
        (row, row.error.get("message") if isinstance(row.error, Mapping) else None) for row in found[:MOST_SUBJECTS]
    )
    return Reading(
        tuple(Sample(str(row.id), 1, detail=f"channel {row.queue}: {str(why or 'no reason is on record')[:300]}{more}") for row, why in said),
        complete=len(found) <= MOST_SUBJECTS,
    )  # fmt: skip


def _noted(look: Look, rule: str) -> dict[str, datetime]:
    """When somebody took note of alerts of a rule, by subject."""
    c = alerts.c
    noted = select(c.subject, func.max(c.acked_at)).where(c.rule == rule, c.acked_at.is_not(None)).group_by(c.subject)
    return {row[0]: row[1] for row in look.connection.execute(noted)}


def publish_paused(look: Look) -> Reading:
    """Channels that publishing has paused."""
    mine = {name: row for name, row in look.paused.items() if row.paused_by == PUBLISHING}
    return Reading.of([Sample(name, 1, detail=row.paused_reason or "") for name, row in mine.items()])


def publish_held(look: Look) -> Reading:
    """Channels that are held in front of another side that takes nothing; also between two tries, while none has gone well."""
    if not look.any("publication_channels"):
        return Reading()
    from duly.jobs.tables import queues
    from duly.publishing.tables import publication_channels

    c, q = publication_channels.c, queues.c
    tried = (
        select(c.channel, q.held_reason).join_from(publication_channels, queues, q.name == c.channel).where(c.trips > 0)
    )
    rows = look.connection.execute(tried.where(q.held_until > look.ago(TRIED)).limit(HOPS))
    return Reading.of([Sample(row.channel, 1, detail=row.held_reason or "") for row in rows])


def publish_token_ending(look: Look) -> Reading:
    """Channels whose access ends within a week, as their connectors were told last."""
    if not look.any("publications"):
        return Reading()
    c = system_state.c
    said = select(c.key, c.value).where(c.key >= TOKENS, c.key < TOKENS + "\U0010ffff").limit(HOPS)
    out = []
    for key, value in look.connection.execute(said):
        at = datetime.fromisoformat(value)
        if at - look.now < SOON:
            out.append(Sample(key.removeprefix(TOKENS), 1, detail=f"on {at:%Y-%m-%d %H:%M}Z"))
    return Reading.of(out)


# ---------------------------------------------------------------------- rounds


def rounds_idle(look: Look) -> Reading:
    """Since when each tick has not begun, as its ledger says (T000-o). Nothing is expected where there is no group."""
    if not (look.any("groups") or look.any("rounds")):
        return Reading()
    from duly.rounds.tables import groups, round_ticks, rounds

    first = look.connection.execute(select(func.min(groups.c.created_at)).where(groups.c.is_active)).scalar()
    live = select(rounds.c.created_at).where(rounds.c.status != "closed").order_by(rounds.c.group_id).limit(1)
    waiting_since = first or look.connection.execute(live).scalar()
    if waiting_since is None:
        return Reading()
    out = []
    for kind in TICKS:
        c = round_ticks.c
        newest = select(c.started_at).where(c.kind == kind).order_by(c.started_at.desc()).limit(1)
        last = look.connection.execute(newest).scalar()
        out.append(Sample(kind, look.since(waiting_since if last is None else max(last, waiting_since))))
    return Reading.of(out)


#: Passes of a tick that are added up, the newest first, where they are further apart than the window: planning comes once an hour.
PASSES = 3


def rounds_failing(look: Look) -> Reading:
    """The share of groups that failed, by tick: within the window, or in the last passes that had any where these are rarer."""
    if not look.any("round_ticks"):
        return Reading()
    from duly.rounds.tables import round_ticks

    c, window = round_ticks.c, look.ago(look.settings.alerts_window)
    samples = []
    for kind in TICKS:
        mine = [c.kind == kind, c.started_at <= look.now, c.done + c.failed > 0]
        summed = select(func.sum(c.done), func.sum(c.failed)).where(*mine, c.started_at > window)
        good, bad = (int(n or 0) for n in look.connection.execute(summed).one())
        decisive = False
        if good + bad < look.settings.alerts_samples:
            begun = select(c.started_at).where(c.kind == kind, c.started_at <= look.now).order_by(c.started_at.desc())
            last = look.connection.execute(begun.limit(2)).scalars().all()
            if len(last) == 2 and last[0] - last[1] >= look.now - window:
                good = bad = 0
                newest = select(c.done, c.failed).where(*mine, c.started_at > look.ago(DAY))
                for one in look.connection.execute(newest.order_by(c.started_at.desc()).limit(PASSES)):
                    good, bad = good + one.done, bad + one.failed
                    if good + bad >= look.settings.alerts_samples:
                        break
                decisive = not good or not bad
        if good + bad:
            samples.append(Sample(kind, bad / (good + bad), good + bad, decisive=decisive))
    return Reading.of(samples)


def rounds_late(look: Look) -> Reading:
    """The latest opening within the window, or what is due and not open yet; measured from ``due_at`` (T000-e)."""
    if not (look.any("round_ticks") or look.any("rounds")):
        return Reading()
    from duly.rounds.tables import round_ticks, rounds

    c = round_ticks.c
    window = [c.kind == "open", c.started_at > look.ago(look.settings.alerts_window), c.started_at <= look.now]
    opened = look.connection.execute(select(func.max(c.most_late)).where(*window)).scalar()
    r = rounds.c
    due = select(r.due_at, r.group_id).where(r.status == "scheduled", r.due_at.is_not(None)).order_by(r.due_at, r.id)
    first = look.connection.execute(due.limit(1)).first()
    waiting = look.since(first.due_at) if first is not None else 0.0
    if opened is None and waiting <= 0:
        return Reading()
    if first is not None and waiting >= (opened or 0.0):
        return Reading.of([Sample("", waiting, detail=f"of group {first.group_id}")])
    return Reading.of([Sample("", max(0.0, opened or 0.0))])


# ---------------------------------------------------------------------- automations


def automation_failing(look: Look) -> Reading:
    """How many runs of each automation have failed in a row, the last one among them."""
    if not look.any("automations"):
        return Reading()
    from duly.automations.session import FAILED
    from duly.automations.tables import ai_sessions, automations

    a, s = automations.c, ai_sessions.c
    samples = []
    living = select(a.id, a.name, a.execution_history).where(a.removed_at.is_(None), a.is_enabled).order_by(a.id)
    history = {row.id: (row.name, row.execution_history) for row in look.connection.execute(living.limit(ROWS))}
    ids = sorted({ident for _, some in history.values() for ident in some})
    ends: dict[int, tuple[str | None, str | None]] = {}
    for start in range(0, len(ids), 500):
        ended = select(s.id, s.end_reason, s.end_detail).where(s.id.in_(ids[start : start + 500]), s.status == "ended")
        ends |= {row.id: (row.end_reason, row.end_detail) for row in look.connection.execute(ended)}
    for name, some in history.values():
        done = [ends[ident] for ident in some if ident in ends]
        failed = list(itertools.takewhile(lambda end: end[0] in FAILED, done))
        if failed:
            samples.append(Sample(name, len(failed), detail=f"the last one: {failed[0][0]}"))
    return Reading.of(samples, complete=len(history) < ROWS)


def automation_waiting(look: Look) -> Reading:
    """Since when a session that waits has done nothing, by its automation (a chat's person sees that it waits)."""
    if not look.any("automations"):
        return Reading()
    from duly.automations.tables import ai_sessions, automations

    a, s = automations.c, ai_sessions.c
    waits = s.is_waiting_for_network, s.status.in_(["active", "interrupted"])
    query = select(a.name, s.last_activity_at).join(automations, a.id == s.automation_id).where(*waits)
    rows = look.connection.execute(query.limit(ROWS)).all()
    return Reading.of([Sample(name, look.since(at)) for name, at in rows if at is not None], complete=len(rows) < ROWS)


def automation_late(look: Look) -> Reading:
    """Since when the next execution of each automation is due."""
    if not look.any("automations"):
        return Reading()
    from duly.automations.plan import AutomationScheduler, Create
    from duly.automations.store import SessionStore
    from duly.automations.tables import automations

    scheduler, due = AutomationScheduler(), {}
    for facts, _ in SessionStore(look.engine.db).all_facts(look.connection).values():
        for each in scheduler.in_order(facts, look.now):
            if isinstance(each, Create):
                due[each.automation_id] = each.scheduled_for
    if not due:
        return Reading()
    a = automations.c
    rows = look.connection.execute(select(a.id, a.name).where(a.id.in_(sorted(due)[:ROWS])))
    return Reading.of([Sample(row.name, look.since(due[row.id])) for row in rows], complete=len(due) <= ROWS)


def automation_broken(look: Look) -> Reading:
    if not look.any("automations"):
        return Reading()
    from duly.automations.tables import automations

    a = automations.c
    broken = select(a.name, a.error).where(a.error.is_not(None), a.removed_at.is_(None), a.is_enabled)
    rows = look.connection.execute(broken.order_by(a.id).limit(MOST_SUBJECTS + 1)).all()
    return Reading.of([Sample(row.name, 1, detail=row.error) for row in rows])


def slot_busy(look: Look) -> Reading:
    """Since when a slot is kept for what is under way of a session that has lost it."""
    if not look.any("automation_slots"):
        return Reading()
    from duly.automations.store import SessionStore
    from duly.automations.tables import automation_slots

    t, store = automation_slots.c, SessionStore(look.engine.db)
    kept = select(t.slot).where(t.session_id.is_(None), (t.busy_job_id.is_not(None)) | (t.busy_session_id.is_not(None)))
    names = set(look.connection.execute(kept.limit(ROWS)).scalars())
    busy = [slot for slot in store.slots(look.connection) if slot.name in names] if names else []
    return Reading.of(
        [
            Sample(one.name, look.since(one.since))
            for one in busy
            if one.since and store.is_busy(look.connection, one, look.now)
        ]
    )


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


#: By the name of the rule.
LOOKS: dict[str, Callable[[Look], Reading]] = {
    fn.__name__: fn
    for fn in (
        jobs_idle,
        jobs_failing,
        queue_failing,
        task_failing,
        jobs_unreadable,
        queue_backlog,
        queue_unserved,
        queue_paused,
        gate_offline,
        leases_stuck,
        worker_silent,
        worker_unready,
        seals_behind,
        outbox_parked,
        outbox_refused,
        outbox_away,
        outbox_waiting,
        schedules_overdue,
        schedules_missed,
        schedule_broken,
        schedule_failing,
        definition_left,
        workflow_long,
        code_missing,
        mail_held,
        mail_unknown,
        publish_failed,
        publish_unknown,
        publish_paused,
        publish_held,
        publish_token_ending,
        rounds_idle,
        rounds_failing,
        group_failing,
        rounds_late,
        automation_failing,
        automation_waiting,
        automation_late,
        automation_broken,
        slot_busy,
    )
}
