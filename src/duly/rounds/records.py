"""Every statement about groups, members, prompts, rounds and what members put into them. The ticks' own stand in ``store.py``.

Who changes a group, its prompts or its members holds the group's lock, so a tick that runs at the same moment sees all of the change
or none of it. Every act of an operator is audited in the transaction of the change (R000-21), without addresses or texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from duly.audit.store import record
from duly.kernel.errors import InvalidArgument, NotFound
from duly.kernel.payload import MOST_ID, check_id
from duly.rounds.group import (
    COMMENT_CHANGED,
    COMMENTED,
    GROUP_CHANGED,
    GROUP_CREATED,
    MEMBER_ADDED,
    MEMBER_CHANGED,
    PROMPT_ADDED,
    PROMPT_CHANGED,
    PROMPT_REMOVED,
    SUBMISSION_CHANGED,
    SUBMITTED,
    VOTED,
    Channel,
    Group,
    Member,
    Prompt,
)
from duly.rounds.plan import NO_REPEAT, next_hour
from duly.rounds.round import Comment, Round, Status, Submission, Vote, check_takes_part
from duly.rounds.store import TickStore
from duly.rounds.tables import (
    group_members,
    group_prompts,
    groups,
    round_comments,
    round_submissions,
    round_votes,
    rounds,
)
from duly.rounds.tick import ROOM
from duly.storage.database import Database
from duly.storage.locks import wait_lock
from duly.storage.qualified import text
from duly.storage.types import Instant

T = TypeVar("T")
#: Is told how a thing stands while nobody else changes it; what it raises leaves it so.
Check: TypeAlias = Callable[[T], None]

#: SQL that both databases understand alike: a second vote of a member moves his first one.
_VOTE = text("""
    INSERT INTO round_votes (round_id, member_id, submission_id, created_at) VALUES (:round, :member, :submission, :now)
        ON CONFLICT (round_id, member_id) DO UPDATE SET submission_id = excluded.submission_id, edited_at = :now
""").bindparams(bindparam("now", type_=Instant))


@dataclass(frozen=True, slots=True)
class Archive:
    """A round with everything in it, in the order in which it was put there."""

    round: Round
    submissions: tuple[Submission, ...] = ()
    comments: tuple[Comment, ...] = ()
    votes: tuple[Vote, ...] = ()

    def votes_for(self, submission: int) -> int:
        """How many members voted for a submission."""
        return sum(vote.submission_id == submission for vote in self.votes)


class Records:
    """Groups and rounds in a database."""

    def __init__(self, db: Database, ticks: TickStore) -> None:
        self.db, self.ticks = db, ticks

    # ------------------------------------------------------------------ groups

    def group(self, connection: Connection, which: int | str, tenant: str) -> Group:
        """A group of a tenant by its number or its name. Raises NotFound, also for another tenant's."""
        named = groups.c.name == which if isinstance(which, str) else groups.c.id == check_id(which, "group")
        row = connection.execute(select(groups).where(groups.c.tenant == tenant, named)).first()
        if row is None:
            raise NotFound("group", which)
        return to_group(row)

    def groups(self, connection: Connection, tenant: str | None, limit: int, after: int) -> list[Group]:
        """Groups in the order of their numbers, behind one of them."""
        query = select(groups).where(groups.c.id > after).order_by(groups.c.id).limit(limit)
        if tenant is not None:
            query = query.where(groups.c.tenant == tenant)
        return [to_group(row) for row in connection.execute(query)]

    def add_group(self, connection: Connection, values: dict[str, Any], actor: str) -> Group:
        """Make a group; a round can be planned for it from now on (T000-a). Raises InvalidArgument for a name that is taken."""
        now = self.db.present(connection)
        row = {**values, "plan_at": now, "created_at": now, "updated_at": now, "updated_by": actor}
        ident = self._insert(
            connection, groups, row, "name", f"is {values['name']!r}, and there is a group of that name."
        )
        self._audit(
            connection, actor, GROUP_CREATED, "group", ident, values["tenant"], zone=values["zone"], name=values["name"]
        )
        return self.group(connection, ident, values["tenant"])

    def change_group(
        self, connection: Connection, which: int | str, tenant: str, changes: dict[str, Any], actor: str, reason: str, default_drop_time: str,
        default_cooldown: float, check: Check[Group] | None = None,
    ) -> Group:  # fmt: skip
        """Change a group, and the round that is not open yet with it (R000-21, T000-k, T000-q). An open round is never touched."""
        ident = self.group(connection, which, tenant).id
        wait_lock(self.db, connection, ROOM, ident)
        was, now = self.group(connection, ident, tenant), self.db.present(connection)
        if check is not None:
            check(was)
        told = {name: value for name, value in changes.items() if getattr(was, name) != value}
        if not told:
            return was
        started = {"cooldown", "zone", "drop_time"} & set(told) or told.get("is_active")
        if started:
            free = self._free_from(connection, ident, told.get("cooldown", was.cooldown), default_cooldown) or now
            if was.plan_at is not None:
                told["plan_at"] = max(free, now)
        try:
            with connection.begin_nested():
                values = {**told, "updated_at": now, "updated_by": actor}
                connection.execute(update(groups).where(groups.c.id == ident).values(**values))
        except IntegrityError:
            raise InvalidArgument(
                "name", f"is {changes['name']!r}, and there is a group of that name.", "Choose another."
            ) from None
        group = self.group(connection, ident, tenant)
        moved = self._change_scheduled(
            connection, group, set(told), max(free, now) if started else now, default_drop_time
        )
        told.pop("plan_at", None)
        meta = {name: [getattr(was, name), value] for name, value in told.items()} | moved
        self._audit(connection, actor, GROUP_CHANGED, "group", ident, group.tenant, reason=reason, **meta)
        return group

    def _free_from(self, connection: Connection, ident: int, cooldown: float | None, default: float) -> datetime | None:
        query = (
            select(rounds.c.close_at)
            .where(rounds.c.group_id == ident, rounds.c.status != "scheduled")
            .order_by(rounds.c.scheduled_for.desc())
            .limit(1)
        )
        last: datetime | None = connection.execute(query).scalar()
        return None if last is None else last + timedelta(seconds=default if cooldown is None else cooldown)

    def _change_scheduled(
        self, connection: Connection, group: Group, changed: set[str], since: datetime, default: str
    ) -> dict[str, Any]:
        """Let the scheduled round of a group follow its zone and its time, and wait while the group is not active.

        It is for the first of the group's hours that is not before ``since`` (R000-25). Returns what the trail is to say of its date.
        """
        if not changed & {"zone", "drop_time", "is_active"}:
            return {}
        r = rounds.c
        row = connection.execute(select(rounds).where(r.group_id == group.id, r.status == "scheduled")).first()
        if row is None:
            return {}
        clock = {"zone": row.zone, "drop_time": row.drop_time}
        if changed & {"zone", "drop_time"}:
            clock = {"zone": group.zone, "drop_time": group.drop_time or default}
        elif row.planned_at >= since or not group.is_active:  # only whether it is active has changed
            return self._place(connection, row, {"due_at": row.planned_at if group.is_active else None})
        taken = select(r.scheduled_for).where(r.group_id == group.id, r.id != row.id)
        day, planned_at = next_hour(
            clock["drop_time"], clock["zone"], since, set(connection.execute(taken.order_by(r.scheduled_for.desc()).limit(NO_REPEAT)).scalars())
        )  # fmt: skip
        due_at = planned_at if group.is_active else None
        return self._place(connection, row, {**clock, "scheduled_for": day, "planned_at": planned_at, "due_at": due_at})

    def _place(self, connection: Connection, row: Any, values: dict[str, Any]) -> dict[str, Any]:
        r = rounds.c
        connection.execute(update(rounds).where(r.id == row.id, r.status == "scheduled").values(**values))
        day = values.get("scheduled_for", row.scheduled_for)
        return (
            {} if day == row.scheduled_for else {"round": row.id, "scheduled_for": [str(row.scheduled_for), str(day)]}
        )

    def _unblock(self, connection: Connection, group: Group, now: datetime) -> None:
        """A group that had nothing to ask has something now: its next round is at its next hour (R000-25)."""
        connection.execute(update(groups).where(groups.c.id == group.id, groups.c.plan_at < now).values(plan_at=now))
        r = rounds.c
        row = connection.execute(
            select(rounds).where(
                r.group_id == group.id, r.status == "scheduled", r.planned_at < now, r.due_at.is_not(None)
            )
        ).first()
        if row is not None:
            try:
                day, planned_at = next_hour(row.drop_time, row.zone, now)
            except InvalidArgument:
                return  # this machine does not know the zone; another one opens it
            self._place(connection, row, {"scheduled_for": day, "planned_at": planned_at, "due_at": planned_at})

    def _is_blocked(self, connection: Connection, group: Group) -> bool:
        p = group_prompts.c
        asks = select(p.id).where(p.group_id == group.id, p.is_active).limit(1)
        return connection.execute(asks).first() is None

    # ------------------------------------------------------------------ members

    def member(self, connection: Connection, group_id: int, which: int | str) -> Member:
        """A member of a group, by number or name. Raises NotFound."""
        m = group_members.c
        mine = m.name == which if isinstance(which, str) else m.id == check_id(which, "member")
        row = connection.execute(select(group_members).where(m.group_id == group_id, mine)).first()
        if row is None:
            raise NotFound("member", which)
        return _member(row)

    def members(self, connection: Connection, group_id: int, limit: int | None = None, after: int = 0) -> list[Member]:
        """Members of a group, those who left too, in the order in which they came, behind one of them."""
        m = group_members.c
        query = select(group_members).where(m.group_id == group_id, m.id > after).order_by(m.id).limit(limit)
        return [_member(row) for row in connection.execute(query)]

    def add_member(self, connection: Connection, group: Group, values: dict[str, Any], actor: str) -> Member:
        """Add somebody to a group. Raises InvalidArgument for a name that is taken there."""
        wait_lock(self.db, connection, ROOM, group.id)
        row = {**values, "group_id": group.id, "channels": ",".join(values["channels"]), "is_active": True,
               "created_at": self.db.present(connection)}  # fmt: skip
        problem = f"is {values['name']!r}, and the group has a member of that name."
        ident = self._insert(connection, group_members, row, "name", problem)
        channels = list(values["channels"])
        self._audit(connection, actor, MEMBER_ADDED, "member", ident, group.tenant, group=group.id, channels=channels)
        return self.member(connection, group.id, ident)

    def change_member(
        self, connection: Connection, group: Group, which: int | str, changes: dict[str, Any], actor: str, reason: str,
        check: Check[Member] | None = None,
    ) -> Member:  # fmt: skip
        """Change a member. Of addresses the trail says only that they were changed."""
        wait_lock(self.db, connection, ROOM, group.id)
        was = self.member(connection, group.id, which)
        if check is not None:
            check(was)
        values = {k: ",".join(v) if k == "channels" else v for k, v in changes.items()}
        if values:
            connection.execute(update(group_members).where(group_members.c.id == was.id).values(**values))
            self._audit(
                connection, actor, MEMBER_CHANGED, "member", was.id, group.tenant, reason=reason, changed=sorted(changes)
            )  # fmt: skip
        return self.member(connection, group.id, was.id)

    # ------------------------------------------------------------------ prompts

    def prompt(self, connection: Connection, ident: int, tenant: str) -> Prompt:
        """A prompt of a tenant's group. Raises NotFound."""
        home = select(groups.c.id).where(groups.c.id == group_prompts.c.group_id, groups.c.tenant == tenant)
        row = connection.execute(
            select(group_prompts).where(group_prompts.c.id == check_id(ident, "prompt"), home.exists())
        ).first()
        if row is None:
            raise NotFound("prompt", ident)
        return _prompt(row)

    def prompts(self, connection: Connection, group_id: int, limit: int | None = None, after: int = 0) -> list[Prompt]:
        """Prompts of a group, those that are not active too, in the order in which they were added, behind one of them."""
        p = group_prompts.c
        query = select(group_prompts).where(p.group_id == group_id, p.id > after).order_by(p.id).limit(limit)
        return [_prompt(row) for row in connection.execute(query)]

    def add_prompts(self, connection: Connection, group: Group, texts: Sequence[str], actor: str) -> list[Prompt]:
        """Add prompts, active, in order."""
        wait_lock(self.db, connection, ROOM, group.id)
        now = self.db.present(connection)
        if self._is_blocked(connection, group):
            self._unblock(connection, group, now)
        rows = [{"group_id": group.id, "text": one, "is_active": True, "created_at": now} for one in texts]
        made = connection.execute(
            insert(group_prompts).returning(group_prompts.c.id, sort_by_parameter_order=True), rows
        )
        idents = list(made.scalars())
        for ident in idents:
            self._audit(connection, actor, PROMPT_ADDED, "prompt", ident, group.tenant, group=group.id)
        return [Prompt(ident, group.id, one, True, now) for ident, one in zip(idents, texts, strict=True)]

    def change_prompt(
        self, connection: Connection, ident: int, tenant: str, changes: dict[str, Any], actor: str, reason: str,
        check: Check[Prompt] | None = None,
    ) -> Prompt:  # fmt: skip
        """Change a prompt. Rounds that are open keep the text they opened with (T000-j)."""
        group = self._group_of_prompt(connection, ident, tenant)
        if check is not None:
            check(self.prompt(connection, ident, tenant))
        if changes.get("is_active") and self._is_blocked(connection, group):
            self._unblock(connection, group, self.db.present(connection))
        connection.execute(update(group_prompts).where(group_prompts.c.id == ident).values(**changes))
        active = {"is_active": changes["is_active"]} if "is_active" in changes else {}
        self._audit(
            connection, actor, PROMPT_CHANGED, "prompt", ident, group.tenant, reason=reason, changed=sorted(changes), **active
        )  # fmt: skip
        return self.prompt(connection, ident, tenant)

    def remove_prompt(
        self, connection: Connection, ident: int, tenant: str, actor: str, reason: str, check: Check[Prompt] | None = None
    ) -> None:  # fmt: skip
        """Take a prompt away. A scheduled round that has it chooses again when it opens."""
        group = self._group_of_prompt(connection, ident, tenant)
        if check is not None:
            check(self.prompt(connection, ident, tenant))
        connection.execute(delete(group_prompts).where(group_prompts.c.id == ident))
        self._audit(connection, actor, PROMPT_REMOVED, "prompt", ident, group.tenant, reason=reason, group=group.id)

    def _group_of_prompt(self, connection: Connection, ident: int, tenant: str) -> Group:
        found = select(groups).where(groups.c.id == self.prompt(connection, ident, tenant).group_id)
        group = to_group(connection.execute(found).one())
        wait_lock(self.db, connection, ROOM, group.id)
        self.prompt(connection, ident, tenant)
        return group

    # ------------------------------------------------------------------ rounds

    def round(self, connection: Connection, ident: int, tenant: str | None = None) -> Round:
        """A round by its number, whatever its state. ``tenant``: whose it has to be, if that matters. Raises NotFound."""
        query = select(rounds).where(rounds.c.id == check_id(ident, "round"))
        row = connection.execute(query if tenant is None else query.where(rounds.c.tenant == tenant)).first()
        if row is None:
            raise NotFound("round", ident)
        return to_round(row)

    def find(
        self, connection: Connection, group_id: int | None, status: Status | None, limit: int, below: int | None, tenant: str | None
    ) -> list[Round]:  # fmt: skip
        """Rounds, the newest first."""
        r = rounds.c
        query = select(rounds).order_by(r.id.desc()).limit(limit)
        if group_id is not None:
            query = query.where(r.group_id == group_id)
        if status is not None:
            query = query.where(r.status == status)
        if below is not None:
            query = query.where(r.id < min(below, MOST_ID))
        if tenant is not None:
            query = query.where(r.tenant == tenant)
        return [to_round(row) for row in connection.execute(query)]

    def archive(self, connection: Connection, ident: int, tenant: str) -> Archive:
        """A round and everything in it. Raises NotFound."""
        found = self.round(connection, ident, tenant)
        parts: list[tuple[Any, ...]] = []
        for table, make in ((round_submissions, Submission), (round_comments, Comment), (round_votes, Vote)):
            order = table.c.created_at if table is round_votes else table.c.id
            rows = connection.execute(select(table).where(table.c.round_id == ident).order_by(order))
            parts.append(tuple(make(**row._mapping) for row in rows))
        return Archive(found, *parts)

    # ------------------------------------------------------------------ what members do

    def _taking_part(
        self, connection: Connection, round_id: int, tenant: str, member: int | str, what: str
    ) -> tuple[Round, Member, datetime]:
        """Raises NotFound, WrongState for a round that is not open, InvalidArgument for one who has left."""
        found = self.round(connection, round_id, tenant)
        now = self.db.present(connection)
        check_takes_part(found, now, what)
        who = self.member(connection, found.group_id, member)
        if not who.is_active:
            raise InvalidArgument("member", f"is {member!r}, who has left the group.")
        return found, who, now

    def submit(
        self, connection: Connection, round_id: int, tenant: str, member: int | str, words: str, actor: str
    ) -> Submission:
        """A member's answer, the only one (by a unique index)."""
        found, who, now = self._taking_part(connection, round_id, tenant, member, "take a submission")
        row = {"round_id": found.id, "member_id": who.id, "text": words, "created_at": now}
        problem = f"is {member!r}, who has submitted to this round already."
        ident = self._insert(connection, round_submissions, row, "member", problem, "Edit that submission.")
        self._audit(connection, actor, SUBMITTED, "submission", ident, tenant, round=found.id, member=who.id)
        return Submission(ident, found.id, who.id, words, now)

    def edit_submission(
        self, connection: Connection, ident: int, tenant: str, member: int | str, words: str, actor: str
    ) -> Submission:
        was = self.submission(connection, ident, tenant)
        _, who, now = self._taking_part(connection, was.round_id, tenant, member, "take an edit")
        _own(was.member_id, who, "submission")
        s = round_submissions.c
        connection.execute(update(round_submissions).where(s.id == ident).values(text=words, edited_at=now))
        self._audit(
            connection, actor, SUBMISSION_CHANGED, "submission", ident, tenant, round=was.round_id, member=who.id
        )
        return self.submission(connection, ident, tenant)

    def submission(self, connection: Connection, ident: int, tenant: str) -> Submission:
        """A submission to a tenant's round. Raises NotFound."""
        s, home = round_submissions.c, select(rounds.c.id).where(rounds.c.tenant == tenant)
        row = connection.execute(
            select(round_submissions).where(s.id == check_id(ident, "submission"), s.round_id.in_(home))
        ).first()
        if row is None:
            raise NotFound("submission", ident)
        return Submission(**row._mapping)

    def comment(
        self, connection: Connection, submission: int, tenant: str, member: int | str, words: str, actor: str
    ) -> Comment:
        about = self.submission(connection, submission, tenant)
        found, who, now = self._taking_part(connection, about.round_id, tenant, member, "take a comment")
        row = {"round_id": found.id, "submission_id": about.id, "member_id": who.id, "text": words, "created_at": now}
        ident = connection.execute(insert(round_comments).values(**row).returning(round_comments.c.id)).scalar_one()
        self._audit(
            connection, actor, COMMENTED, "comment", ident, tenant, round=found.id, submission=about.id, member=who.id
        )
        return Comment(ident, found.id, about.id, who.id, words, now)

    def edit_comment(
        self, connection: Connection, ident: int, tenant: str, member: int | str, words: str, actor: str
    ) -> Comment:
        row = connection.execute(
            select(round_comments).where(round_comments.c.id == check_id(ident, "comment"))
        ).first()
        if row is None:
            raise NotFound("comment", ident)
        try:
            _, who, now = self._taking_part(connection, row.round_id, tenant, member, "take an edit")
        except NotFound as error:
            raise NotFound("comment", ident) if error.what == "round" else error from None
        _own(row.member_id, who, "comment")
        connection.execute(update(round_comments).where(round_comments.c.id == ident).values(text=words, edited_at=now))
        self._audit(connection, actor, COMMENT_CHANGED, "comment", ident, tenant, round=row.round_id, member=who.id)
        return Comment(ident, row.round_id, row.submission_id, who.id, words, row.created_at, now)

    def vote(self, connection: Connection, submission: int, tenant: str, member: int | str, actor: str) -> Vote:
        """A member's vote; a second one moves the first."""
        about = self.submission(connection, submission, tenant)
        found, who, now = self._taking_part(connection, about.round_id, tenant, member, "take a vote")
        connection.execute(_VOTE, {"round": found.id, "member": who.id, "submission": about.id, "now": now})
        self._audit(connection, actor, VOTED, "submission", about.id, tenant, round=found.id, member=who.id)
        v = round_votes.c
        row = connection.execute(select(round_votes).where(v.round_id == found.id, v.member_id == who.id)).one()
        return Vote(**row._mapping)

    # ------------------------------------------------------------------ helpers

    def _insert(
        self, connection: Connection, table: Table, row: dict[str, Any], field: str, problem: str, remedy: str = "Choose another."
    ) -> int:  # fmt: skip
        """Insert a row and return its number. Raises InvalidArgument where a unique index refuses it."""
        try:
            with connection.begin_nested():
                ident: int = connection.execute(insert(table).values(**row).returning(table.c.id)).scalar_one()
                return ident
        except IntegrityError:
            raise InvalidArgument(field, problem, remedy) from None

    def _audit(
        self, connection: Connection, actor: str, action: str, entity: str, ident: int, tenant: str, **meta: Any
    ) -> None:
        record(
            self.db, connection, actor=actor, action=action, entity=entity, entity_id=ident, tenant=tenant, meta=meta
        )


def _own(owner: int, who: Member, what: str) -> None:
    if owner != who.id:
        raise InvalidArgument("member", f"is {who.name!r}, whose {what} this is not.")


def to_group(row: Any) -> Group:
    return Group(
        row.id, row.tenant, row.name, row.zone, row.drop_time, bool(row.is_active), bool(row.notifications), row.cooldown, row.plan_at,
        row.error, row.error_at, row.failures, row.created_at,
    )  # fmt: skip


def _member(row: Any) -> Member:
    channels = tuple(Channel(name) for name in row.channels.split(",") if name)
    return Member(row.id, row.group_id, row.name, row.email, row.webhook, channels, bool(row.is_active), row.created_at)


def _prompt(row: Any) -> Prompt:
    return Prompt(row.id, row.group_id, row.text, bool(row.is_active), row.created_at)


def to_round(row: Any) -> Round:
    return Round(
        row.id, row.tenant, row.group_id, row.scheduled_for, Status(row.status), row.zone, row.drop_time, row.planned_at, row.created_at,
        row.prompt_id, row.prompt_text, row.due_at, row.open_at, row.close_at, row.opened_at, row.closed_at, row.late,
    )  # fmt: skip
