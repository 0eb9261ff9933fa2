"""``Rounds(app)``: what programs and people do with rounds.

Making one defines the tasks of the room (three ticks, three ways to tell members) in the application; ``schedule()`` has the ticks run
by themselves. Definitions are checked before they are written. Source: R000, T000.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, time, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sqlalchemy import Connection, select

from duly.audit.store import record
from duly.jobs.host import Host as AnyHost
from duly.jobs.run import UnreadableInput
from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument, NotFound, brief
from duly.kernel.localtime import TICK, in_utc, zone
from duly.kernel.owned import OnePer
from duly.kernel.payload import check_name, check_text
from duly.kernel.recurrence import Cron
from duly.rounds.group import (
    TICKED,
    Group,
    Member,
    Prompt,
    check_addresses,
    check_words,
    read_channels,
    read_cooldown,
    read_drop_time,
    shown_drop_time,
)
from duly.rounds.notify import EMAIL_SEND, QUEUE, Notices, Telling
from duly.rounds.plan import GroupFacts, Upcoming, upcoming
from duly.rounds.records import Archive, Check, Records
from duly.rounds.round import Comment, Round, Status, Submission, Vote
from duly.rounds.store import Tick, TickStore
from duly.rounds.tables import rounds as rounds_table
from duly.rounds.tick import Kind, TickReport, Ticks

if TYPE_CHECKING:
    from duly.jobs.enqueue import NewJob
    from duly.jobs.job import Enqueued
    from duly.outbox.transports.webhook import Secrets

R = TypeVar("R")
_KEEP: Any = object()

#: The queue of the ticks.
TICKS = "rounds"
#: Name → (cron, in UTC; priority: close before plan before open where all three are due. Nothing depends on that order, R000-24).
SCHEDULES: dict[Kind, tuple[str, int]] = {
    "close": ("*/5 * * * *", 30),
    "plan": ("0 * * * *", 20),
    "open": ("*/5 * * * *", 10),
}


class Host(AnyHost, Protocol):
    """What an application offers here besides."""

    def schedule(self, name: str, recurrence: Any, task: Any, **options: Any) -> Any: ...

    def prepare(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> NewJob: ...

    def enqueue(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> Enqueued: ...


class Rounds:
    """Rounds of an application.

    ``email_task`` and ``email_queue``: of the jobs that send e-mail (``to``, ``subject``, ``text``); the queue is the task's own where
    it is known here. ``webhook_secret``: what posts to members are signed with, as in ``WebhookTransport``. ``webhook_private``: their
    endpoints may be plain http and lie in private networks. ``draw``: gives a number from 0 until before 1 for each choice of a
    prompt. Raises InvalidArgument for a setting that cannot be used.
    """

    def __init__(
        self, app: Host, *, email_task: str = EMAIL_SEND, email_queue: str | None = None, webhook_secret: Secrets | None = None,
        webhook_private: bool = False, draw: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self._app, self._draw = app, draw or random.SystemRandom().random
        self._kept: Records | None = None
        #: When the opening tick runs, as far as it was said here.
        self._opening: Cron | None = None
        read_drop_time(app.settings.rounds_drop_time, "rounds_drop_time")
        read_cooldown(app.settings.rounds_cooldown, "rounds_cooldown")
        self._telling = Telling(
            app, lambda c, ident: self._records.round(c, ident), email_task=check_name(email_task, "email_task"), email_queue=email_queue,
            webhook_secret=webhook_secret, webhook_private=webhook_private,
        )  # fmt: skip
        self.groups, self.members, self.prompts = Groups(self), Members(self), Prompts(self)
        self._define()
        _made.keep(app, self)

    @classmethod
    def of(cls, app: Host) -> Rounds:
        """The rounds of an application: those that it made, or new ones."""
        return _made.get(app) or cls(app)

    def _define(self) -> None:
        # Whoever closed or planned something, or had its lock while the opening pass came by, opens what became due by it.
        def plan() -> dict[str, Any]:
            report = self.plan()
            if report.looked:
                self.open()
            return _done_here(report)

        def open() -> dict[str, Any]:
            return _done_here(self.open())

        def close() -> dict[str, Any]:
            report = self.close()
            if report.looked:
                self.open()
            return asdict(report)

        for kind, tick in (("plan", plan), ("open", open), ("close", close)):
            priority = SCHEDULES[kind][1]  # type: ignore[index]
            self._app.task(f"ROUNDS_{kind.upper()}", queue=TICKS, max_attempts=2, priority=priority)(tick)
        for name, tell in (
            ("EMAIL", self._telling.by_email), ("WEBHOOK", self._telling.by_webhook), ("LOG", self._telling.by_log)
        ):  # fmt: skip
            self._app.task(f"ROUNDS_NOTIFY_{name}", queue=QUEUE, max_attempts=6, timeout=60)(_plain(tell))

    def schedule(self, **crons: str) -> None:
        """Have the ticks run by themselves: planning at each full hour, opening and closing every five minutes (R000-3).

        ``plan``, ``open`` and ``close``: other cron expressions, in UTC. As ``app.schedule``: written when a worker starts, or by
        ``app.schedules.sync()``. Raises InvalidArgument.
        """
        for other in set(crons) - set(SCHEDULES):
            raise InvalidArgument(other, "is no tick.", f"Ticks are {', '.join(SCHEDULES)}.")
        for kind, (cron, priority) in SCHEDULES.items():
            when = Cron(crons.get(kind, cron), tz="UTC")
            self._opening = when if kind == "open" else self._opening
            self._app.schedule(f"rounds.{kind}", when, f"ROUNDS_{kind.upper()}", overlap="skip", priority=priority)

    # ------------------------------------------------------------------ ticks

    def plan(self, now: datetime | None = None) -> TickReport:
        """Plan a round for every group that may have one. Can be run at any time, by anybody, as often as one likes.

        ``now`` (aware) stands for the present instant. Raises InvalidArgument for a naive one, DatabaseUnavailable.
        """
        return self._ticks().run("plan", now)

    def open(self, now: datetime | None = None) -> TickReport:
        """Open every round whose moment has come, and make the jobs that tell its members. Before that, plan what opens
        at once, so that a round that is due opens in this pass (R000-24). As ``plan``."""
        return self._ticks().run("open", now)

    def close(self, now: datetime | None = None) -> TickReport:
        """Close every open round whose 24 hours are over. As ``plan``."""
        return self._ticks().run("close", now)

    def tick(
        self, now: datetime | None = None, *, kind: Kind | None = None, actor: str | None = None
    ) -> list[TickReport]:
        """All three, in the order in which they are scheduled; ``kind``: that one. ``actor``: who does it by hand, for the audit trail (ROUNDS_TICKED)."""
        if actor is not None:
            what = {"kind": kind or "all"}
            self._write(
                lambda c: record(self._db, c, actor=actor, action=TICKED, entity="rounds", entity_id=0, meta=what)
            )
        ticks = {"close": self.close, "plan": self.plan, "open": self.open}
        return [fn(now) for name, fn in ticks.items() if kind in (None, name)]

    def ticks(self, kind: Kind | None = None, limit: int = 100) -> list[Tick]:
        """Passes of the ticks, the newest first, from the ledger (T000-o)."""
        return self._read(lambda c: self._store.ticks(c, kind, _limit(limit)))

    def _ticks(self) -> Ticks:
        self._app.open()
        engine = self._app.engine
        notices = Notices(lambda c, new: engine.maker.make_in(c, new), self._app.prepare)
        return Ticks(engine, notices, self._draw)

    # ------------------------------------------------------------------ looking

    def get(self, ident: int, *, tenant: str | None = None) -> Round:
        """One round, whatever its state. Raises NotFound."""
        at = self._tenant(tenant)
        return self._read(lambda c: self._records.round(c, ident, at))

    def show(self, ident: int, *, tenant: str | None = None) -> Archive:
        """One round with its submissions, comments and votes; of a closed one this is the archive (R000-15). Raises NotFound."""
        at = self._tenant(tenant)
        return self._read(lambda c: self._records.archive(c, ident, at))

    def list(
        self, group: int | str | None = None, *, status: Status | str | None = None, limit: int = 50, below: int | None = None,
        tenant: str | None = None,
    ) -> list[Round]:  # fmt: skip
        """Rounds, the newest first. ``below``: only numbers below this one, the last of the page before."""
        wanted = None if status is None else _status(status)

        def find(c: Connection) -> list[Round]:
            ident = None if group is None else self._records.group(c, group, self._tenant(tenant)).id
            return self._records.find(c, ident, wanted, _limit(limit), below, tenant)

        return self._read(find)

    def next(
        self, group: int | str | None = None, *, now: datetime | None = None, tenant: str | None = None, limit: int = 1000, after: int = 0
    ) -> Sequence[Upcoming]:  # fmt: skip
        """When the next round of each group opens, if nothing is changed meanwhile. Nothing is written.

        A group whose zone cannot be read is in it, with the reason. ``after``: only groups with a higher number, for the next page.
        """
        given = None if now is None else in_utc(now, "now")

        def ask(c: Connection) -> list[Upcoming]:
            at = given or self._db.present(c)
            if group is not None:
                idents = [self._records.group(c, group, self._tenant(tenant)).id]
            else:
                idents = [g.id for g in self._records.groups(c, tenant, _limit(limit), after)]
            s = self._app.settings
            known = self._store.groups(c, idents, s.rounds_drop_time, s.rounds_cooldown)
            r = rounds_table.c
            query = select(r.group_id, r.due_at).where(r.group_id.in_(idents), r.status == "scheduled")
            due = {row.group_id: row.due_at for row in c.execute(query)}
            late = timedelta(seconds=s.rounds_late_open_limit)
            passes = self._passes(c)
            return [_upcoming(known[ident][1], at, due.get(ident), late, passes) for ident in idents if ident in known]

        return self._read(ask)

    def _passes(self, connection: Connection) -> Callable[[datetime], datetime | None] | None:
        """The first pass of the opening tick at or after an instant: as its schedule stands, or as it will be written; None where nothing is said."""
        from duly.schedules.plan import Facts, next_planned
        from duly.schedules.store import ScheduleStore

        found = ScheduleStore(self._db).find(connection, "rounds.open", self._tenant(None))
        if found is None or found.spec is None:
            declared = self._opening
            return None if declared is None else lambda instant: declared.next_after(instant - TICK)
        spec, is_paused = found.spec, found.paused_at is not None

        @cache
        def passes(instant: datetime) -> datetime | None:
            facts = Facts(spec.recurrence, spec.policies, instant, spec.starts_at, spec.ends_at)
            return None if is_paused else next_planned(facts, instant - TICK)

        return passes

    # ------------------------------------------------------------------ what members do

    def submit(
        self, round: int, member: int | str, text: str, *, tenant: str | None = None, actor: str = "code"
    ) -> Submission:
        """A member's answer (``member``: number, or name in the group). One per round. Audited, as all that members do, without its words;
        ``actor``: who handed it in.

        Raises NotFound, WrongState unless the round is open and its time is not over (R000-16), InvalidArgument for a second one.
        """
        check_words(text)
        at = self._tenant(tenant)
        return self._write(lambda c: self._records.submit(c, round, at, member, text, actor))

    def edit_submission(
        self, submission: int, member: int | str, text: str, *, tenant: str | None = None, actor: str = "code"
    ) -> Submission:
        """Change one's own answer while the round is open. Raises as ``submit``."""
        check_words(text)
        at = self._tenant(tenant)
        return self._write(lambda c: self._records.edit_submission(c, submission, at, member, text, actor))

    def comment(
        self, submission: int, member: int | str, text: str, *, tenant: str | None = None, actor: str = "code"
    ) -> Comment:
        """Say something of a submission while its round is open. Raises as ``submit``."""
        check_words(text)
        at = self._tenant(tenant)
        return self._write(lambda c: self._records.comment(c, submission, at, member, text, actor))

    def edit_comment(
        self, comment: int, member: int | str, text: str, *, tenant: str | None = None, actor: str = "code"
    ) -> Comment:
        """Change one's own comment while the round is open. Raises as ``submit``."""
        check_words(text)
        at = self._tenant(tenant)
        return self._write(lambda c: self._records.edit_comment(c, comment, at, member, text, actor))

    def vote(self, submission: int, member: int | str, *, tenant: str | None = None, actor: str = "code") -> Vote:
        """Vote for a submission while its round is open. One vote per round: a second one moves it. Raises as ``submit``."""
        at = self._tenant(tenant)
        return self._write(lambda c: self._records.vote(c, submission, at, member, actor))

    # ------------------------------------------------------------------ the database

    @property
    def _db(self) -> Any:
        return self._app.engine.db

    @property
    def _records(self) -> Records:
        if self._kept is None or self._kept.db is not self._db:
            self._kept = Records(self._db, TickStore(self._db))
        return self._kept

    @property
    def _store(self) -> TickStore:
        return self._records.ticks

    def _tenant(self, tenant: str | None) -> str:
        return tenant or self._app.settings.tenant

    def _read(self, fn: Callable[[Connection], R]) -> R:
        self._app.open()
        out: R = self._db.read(fn)
        return out

    def _write(self, fn: Callable[[Connection], R]) -> R:
        self._app.open()
        out: R = self._db.write(fn)
        return out


#: The rounds of each application, for those who come with the application only (the command line).
_made = OnePer[Rounds]()


class Groups:
    """``rounds.groups``. A group is named by its number, or by its name within the tenant."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def add(
        self, name: str, zone: str, *, drop_time: str | time | None = None, is_active: bool = True, notifications: bool = True,
        cooldown: Duration | None = None, tenant: str | None = None, actor: str = "code",
    ) -> Group:  # fmt: skip
        """Make a group. ``drop_time``: when rounds open, local time; None is the setting. ``cooldown``: from the end of a round until
        the next may be planned, seconds, a timedelta, or a text such as 12h; None is the setting. Audited as GROUP_CREATED. Raises InvalidArgument."""
        wanted = _checked(
            name=name,
            zone=zone,
            drop_time=drop_time,
            is_active=is_active,
            notifications=notifications,
            cooldown=cooldown,
        )
        values = {**wanted, "tenant": check_name(self._rounds._tenant(tenant), "tenant")}
        return self._rounds._write(lambda c: self._rounds._records.add_group(c, values, actor))

    def set(
        self, group: int | str, *, name: str = _KEEP, zone: str = _KEEP, drop_time: str | time | None = _KEEP, is_active: bool = _KEEP,
        notifications: bool = _KEEP, cooldown: Duration | None = _KEEP, tenant: str | None = None, actor: str = "code",
        reason: str = "", check: Check[Group] | None = None,
    ) -> Group:  # fmt: skip
        """Change a group; what is not given stays. A round that is not open yet follows its zone and its time, an open one never
        (R000-21). ``check``: is told how it stands while nobody else changes it; what it raises leaves it so. Audited as GROUP_CHANGED.
        Raises NotFound, InvalidArgument."""
        given = {
            "name": name,
            "zone": zone,
            "drop_time": drop_time,
            "is_active": is_active,
            "notifications": notifications,
            "cooldown": cooldown,
        }
        changes = _checked(**{key: value for key, value in given.items() if value is not _KEEP})
        check_text(reason, "reason")
        at, s = self._rounds._tenant(tenant), self._rounds._app.settings
        return self._rounds._write(
            lambda c: self._rounds._records.change_group(
                c, group, at, changes, actor, reason, s.rounds_drop_time, s.rounds_cooldown, check
            )
        )

    def get(self, group: int | str, tenant: str | None = None) -> Group:
        """Raises NotFound."""
        return self._rounds._read(lambda c: self._rounds._records.group(c, group, self._rounds._tenant(tenant)))

    def all(self, limit: int = 1000, after: int = 0, tenant: str | None = None) -> list[Group]:
        """Groups by number. ``after``: only higher numbers, for the next page."""
        return self._rounds._read(lambda c: self._rounds._records.groups(c, tenant, _limit(limit), after))


class Members:
    """``rounds.members``. Addresses are shown where they are asked for, and appear in no log and no trail."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def add(
        self, group: int | str, name: str, *, email: str | None = None, webhook: str | None = None, channels: Iterable[str] = (),
        tenant: str | None = None, actor: str = "code",
    ) -> Member:  # fmt: skip
        """Add somebody to a group. ``channels``: how he wants to be told, of email, webhook and log. Audited as MEMBER_ADDED.

        Raises NotFound, InvalidArgument for a name that is taken in the group, or a channel without its address.
        """
        wanted = read_channels(channels)
        check_addresses(email, webhook, wanted)
        values = {"name": check_name(name, "name"), "email": email, "webhook": webhook, "channels": wanted}
        at = self._rounds._tenant(tenant)

        def add(c: Connection) -> Member:
            return self._rounds._records.add_member(c, self._rounds._records.group(c, group, at), values, actor)

        return self._rounds._write(add)

    def set(
        self, group: int | str, member: int | str, *, email: str | None = _KEEP, webhook: str | None = _KEEP, channels: Iterable[str] = _KEEP,
        is_active: bool = _KEEP, tenant: str | None = None, actor: str = "code", reason: str = "", check: Check[Member] | None = None,
    ) -> Member:  # fmt: skip
        """Change a member; what is not given stays. ``is_active=False``: he has left. ``check``: as for groups. Audited as MEMBER_CHANGED. Raises as ``add``."""
        given = {"email": email, "webhook": webhook, "channels": channels, "is_active": is_active}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not _KEEP}
        if "is_active" in changes:
            _flag(changes["is_active"], "is_active")
        if "channels" in changes:
            changes["channels"] = read_channels(changes["channels"])
        check_text(reason, "reason")
        at = self._rounds._tenant(tenant)

        def change(c: Connection) -> Member:
            home = self._rounds._records.group(c, group, at)
            was = self._rounds._records.member(c, home.id, member)
            after = replace(was, **changes)
            check_addresses(after.email, after.webhook, after.channels)
            return self._rounds._records.change_member(c, home, was.id, changes, actor, reason, check)

        return self._rounds._write(change)

    def all(
        self, group: int | str, tenant: str | None = None, *, limit: int | None = None, after: int = 0
    ) -> list[Member]:
        """Members of a group, those who left too. ``after``: only higher numbers, for the next page. Raises NotFound."""
        at = self._rounds._tenant(tenant)
        return self._rounds._read(
            lambda c: self._rounds._records.members(c, self._rounds._records.group(c, group, at).id, limit, after)
        )


class Prompts:
    """``rounds.prompts``."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def add(self, group: int | str, *texts: str, tenant: str | None = None, actor: str = "code") -> list[Prompt]:
        """Add prompts to a group, active. Audited as PROMPT_ADDED. Raises NotFound, InvalidArgument."""
        if not texts:
            raise InvalidArgument("texts", "are none.", "Give at least one.")
        checked = [check_words(one) for one in texts]
        at = self._rounds._tenant(tenant)
        return self._rounds._write(
            lambda c: self._rounds._records.add_prompts(c, self._rounds._records.group(c, group, at), checked, actor)
        )

    def set(
        self, prompt: int, *, text: str = _KEEP, is_active: bool = _KEEP, tenant: str | None = None, actor: str = "code", reason: str = "",
        check: Check[Prompt] | None = None,
    ) -> Prompt:  # fmt: skip
        """Change a prompt. Rounds that have opened keep the text they opened with. ``check``: as for groups. Audited as PROMPT_CHANGED. Raises NotFound."""
        changes: dict[str, Any] = {}
        if text is not _KEEP:
            changes["text"] = check_words(text)
        if is_active is not _KEEP:
            changes["is_active"] = _flag(is_active, "is_active")
        if not changes:
            raise InvalidArgument("prompt", "has nothing to change.", "Give text= or is_active=.")
        check_text(reason, "reason")
        at = self._rounds._tenant(tenant)
        return self._rounds._write(
            lambda c: self._rounds._records.change_prompt(c, prompt, at, changes, actor, reason, check)
        )

    def remove(
        self, prompt: int, *, tenant: str | None = None, actor: str = "code", reason: str = "", check: Check[Prompt] | None = None
    ) -> None:  # fmt: skip
        """Take a prompt away. ``check``: as for groups. Audited as PROMPT_REMOVED. Raises NotFound."""
        check_text(reason, "reason")
        at = self._rounds._tenant(tenant)
        self._rounds._write(lambda c: self._rounds._records.remove_prompt(c, prompt, at, actor, reason, check))

    def all(
        self, group: int | str, tenant: str | None = None, *, limit: int | None = None, after: int = 0
    ) -> list[Prompt]:
        """Prompts of a group, those that are not active too. ``after``: only higher numbers, for the next page. Raises NotFound."""
        at = self._rounds._tenant(tenant)
        return self._rounds._read(
            lambda c: self._rounds._records.prompts(c, self._rounds._records.group(c, group, at).id, limit, after)
        )


# --- Reading what is given ----------------------------------------------------------------------------------------------


def _checked(**given: Any) -> dict[str, Any]:
    """Columns of a group, as they are kept. Raises InvalidArgument."""
    out = dict(given)
    if "name" in out:
        check_name(out["name"], "name")
        if out["name"].isdigit():
            raise InvalidArgument(
                "name", f"is {out['name']!r}, which reads as a number.", "Choose a name with a letter."
            )
    if "zone" in out:
        zone(out["zone"], "zone")
    if out.get("drop_time") is not None:
        out["drop_time"] = shown_drop_time(read_drop_time(out["drop_time"]))
    if out.get("cooldown") is not None:
        out["cooldown"] = read_cooldown(out["cooldown"])
    for flag in ("is_active", "notifications"):
        if flag in out:
            _flag(out[flag], flag)
    return out


def _flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(field, f"is {value!r}; it must be true or false.")
    return value


def _limit(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000:
        raise InvalidArgument("limit", f"is {value!r}.", "Give a number from 1 to 10,000.")
    return value


def _status(value: Status | str) -> Status:
    try:
        return Status(value)
    except ValueError:
        raise InvalidArgument("status", f"is {value!r}.", f"Use one of {', '.join(Status)}.") from None


def _upcoming(
    facts: GroupFacts, now: datetime, due_at: datetime | None, late: timedelta, passes: Callable[[datetime], datetime | None] | None
) -> Upcoming:  # fmt: skip
    try:
        return upcoming(facts, now, due_at, late, passes)
    except InvalidArgument as error:
        return Upcoming(facts.id, None, reason=str(error))


def _plain(method: Callable[[int, int], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A bound method as a function of its own, so that two rounds of one application define the same tasks."""

    def tell(round: int, member: int) -> dict[str, Any]:
        try:
            return method(round, member)
        except NotFound as error:
            return {"told": False, "reason": brief(error)}

    return tell


def _done_here(report: TickReport) -> dict[str, Any]:
    """What a pass did. Where it met groups whose zone this machine does not know, its job goes on to another worker."""
    if report.far:
        groups = f"{report.far} group{'s' if report.far > 1 else ''}"
        raise UnreadableInput("zone", f"of {groups} is one that this machine does not know.", "Update its zone data.")
    return asdict(report)
