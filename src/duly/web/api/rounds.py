"""``/api/v1/rounds``: groups with their members and prompts, rounds with what is in them, and the ticks.

A group is named by its number or its name; of another tenant than the usual one, with ``?tenant=``. Taking part is here as it is at the
command line: for applications that keep their members elsewhere. Source: R000, T000, B080.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Path, Query, Response
from pydantic import AfterValidator, BaseModel, Field, computed_field

from duly.accounts.account import Forbidden, Identity, Role
from duly.app import Duly
from duly.kernel.errors import InvalidArgument
from duly.rounds.group import Group as KnownGroup
from duly.rounds.group import Member as KnownMember
from duly.rounds.group import Prompt as KnownPrompt
from duly.rounds.round import Round as KnownRound
from duly.rounds.rounds import Rounds
from duly.web.api.common import (
    ETAG,
    Act,
    Cursor,
    Ident,
    IdentIn,
    IfMatch,
    Instant,
    Limit,
    Name,
    Reason,
    SecondsIn,
    Strict,
    TenantIn,
    Words,
    at_first_use,
    below,
    check_tag,
    for_whom,
    number_or_name,
    page,
    router,
    tag_of,
    whose,
)
from duly.web.identity import needs
from duly.web.problems import documented

Viewer: TypeAlias = Annotated[Identity, needs("rounds")]
Operator: TypeAlias = Annotated[Identity, needs("rounds", Role.OPERATOR)]
Which = Annotated[
    Words, Path(min_length=1, max_length=200, description="Its number, or its name."), AfterValidator(number_or_name)
]  # fmt: skip
WhichIn = IdentIn | Name
#: What a change may take away.
NULLED = ("drop_time", "cooldown", "email", "webhook")
Kind = Literal["plan", "open", "close"]
Status = Literal["scheduled", "open", "closed"]
Channel = Literal["email", "webhook", "log"]
DropTime = Annotated[Words, Field(max_length=20, description="Local time, such as 18:00; null for the setting's.")]
Cooldown = Annotated[SecondsIn, Field(ge=0, le=3.2e8, description="Seconds from the end of a round until the next; null for the setting's.")]  # fmt: skip
Text = Annotated[Words, Field(min_length=1, max_length=10_000)]


class Group(BaseModel):
    """A group with its clock on the wall."""

    id: int
    tenant: str
    name: str
    zone: str
    drop_time: str | None = Field(description="When rounds open, local time; null: the setting rounds_drop_time.")
    is_active: bool
    notifications: bool
    cooldown: float | None
    plan_at: Instant | None = Field(description="From when on a round may be planned; null while one is.")
    error: str | None
    error_at: Instant | None
    failures: int
    created_at: Instant | None

    @computed_field(description=ETAG)  # type: ignore[prop-decorator]
    @property
    def etag(self) -> str:
        # of what people change, and of nothing that ticks do
        return tag_of(self.id, self.name, self.zone, self.drop_time, self.is_active, self.notifications, self.cooldown)


class Groups(BaseModel):
    groups: list[Group]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


class GroupIn(Strict):
    name: Name
    zone: Name = Field(description="An IANA time zone, such as Europe/Paris.")
    drop_time: DropTime | None = None
    cooldown: Cooldown | None = None
    is_active: bool = True
    notifications: bool = True


class GroupChange(Act):
    """What is not given stays. Null for drop_time and cooldown is the setting; elsewhere it is nothing."""

    name: Name | None = None
    zone: Name | None = None
    drop_time: DropTime | None = None
    cooldown: Cooldown | None = None
    is_active: bool | None = None
    notifications: bool | None = None


class Member(BaseModel):
    """Somebody in a group. Addresses are hidden from who may not see payloads."""

    id: int
    group_id: int
    name: str
    email: str | None
    webhook: str | None
    channels: list[str]
    is_active: bool
    created_at: Instant | None
    hidden: bool

    @computed_field(description=ETAG)  # type: ignore[prop-decorator]
    @property
    def etag(self) -> str:
        return tag_of(self.id, self.email, self.webhook, self.channels, self.is_active)


class Members(BaseModel):
    members: list[Member]
    next: str | None


class MemberIn(Strict):
    name: Name
    email: Words | None = Field(None, max_length=320)
    webhook: Words | None = Field(None, max_length=2000)
    channels: list[Channel] = Field(default=[], max_length=10)


class MemberChange(Act):
    """What is not given stays. Null takes an address away; elsewhere it is nothing."""

    email: Words | None = Field(None, max_length=320)
    webhook: Words | None = Field(None, max_length=2000)
    channels: list[Channel] | None = Field(None, max_length=10)
    is_active: bool | None = Field(None, description="False: left.")


class Prompt(BaseModel):
    id: int
    group_id: int
    text: str
    is_active: bool
    created_at: Instant | None

    @computed_field(description=ETAG)  # type: ignore[prop-decorator]
    @property
    def etag(self) -> str:
        return tag_of(self.id, self.text, self.is_active)


class Prompts(BaseModel):
    prompts: list[Prompt]
    next: str | None = None


class PromptsIn(Strict):
    texts: list[Text] = Field(min_length=1, max_length=100)


class PromptChange(Act):
    text: Text | None = None
    is_active: bool | None = None


class Round(BaseModel):
    """A round as it stands."""

    id: int
    tenant: str
    group_id: int
    scheduled_for: date = Field(description="The local date that it is for.")
    status: Status
    label: str = Field(description="For people: an open round whose time is over is `over`.")
    zone: str
    drop_time: str
    planned_at: Instant
    created_at: Instant
    prompt_id: int | None
    prompt_text: str | None
    due_at: Instant | None
    open_at: Instant | None
    close_at: Instant | None
    opened_at: Instant | None
    closed_at: Instant | None
    late: float | None = Field(description="Seconds between due and opened.")


class Page(BaseModel):
    rounds: list[Round]
    next: str | None


class Submission(BaseModel):
    id: int
    round_id: int
    member_id: int
    text: str | None
    votes: int | None = None
    created_at: Instant
    edited_at: Instant | None


class Comment(BaseModel):
    id: int
    round_id: int
    submission_id: int
    member_id: int
    text: str | None
    created_at: Instant
    edited_at: Instant | None


class Vote(BaseModel):
    round_id: int
    member_id: int
    submission_id: int
    created_at: Instant
    edited_at: Instant | None


class Archive(BaseModel):
    """A round with everything in it. Texts of members are hidden from who may not see payloads."""

    round: Round
    submissions: list[Submission]
    comments: list[Comment]
    votes: list[Vote]
    hidden: bool


class Upcoming(BaseModel):
    """The next opening of a group, as far as it is known now."""

    group_id: int
    at: Instant | None = Field(description="Null where none is in sight; `reason` says why.")
    scheduled_for: date | None
    planned: bool
    reason: str


class Next(BaseModel):
    next_rounds: list[Upcoming]
    next: str | None


class Tick(BaseModel):
    """A pass of a tick over all groups."""

    kind: Kind
    started_at: Instant | None = None
    done: int
    skipped: int
    failed: int
    seconds: float
    mean_late: float | None
    most_late: float | None


class Ticks(BaseModel):
    ticks: list[Tick]


class TickIn(Strict):
    kind: Kind | None = Field(None, description="Null: all three, in the order in which they are scheduled.")


class SubmitIn(Strict):
    member: WhichIn
    text: Text


class VoteIn(Strict):
    member: WhichIn


def routes(app: Duly) -> Any:
    made = router("rounds")
    door = at_first_use(lambda: Rounds.of(app))

    # ------------------------------------------------------------------ groups

    @made.get("/rounds/groups", response_model=Groups)
    def groups(who: Viewer, tenant: TenantIn = None, limit: Limit = 50, cursor: Cursor = None) -> Groups:
        """List groups, in the order in which they were made."""
        found = door().groups.all(limit + 1, below(cursor) or 0, whose(who, tenant))
        kept, following = page(found, limit, lambda group: group.id)
        return Groups(groups=[_group(group) for group in kept], next=following)

    @made.post("/rounds/groups", response_model=Group, status_code=201)
    def add_group(given: GroupIn, who: Operator, tenant: TenantIn = None) -> Group:
        """Make a group. A round can be planned for it from now on."""
        at = for_whom(who, tenant, app.settings.tenant)
        return _group(door().groups.add(**given.model_dump(), tenant=at, actor=who.actor))

    @made.get("/rounds/groups/{group}", response_model=Group, responses=documented(404))
    def group(group: Which, who: Viewer, response: Response, tenant: TenantIn = None) -> Group:
        """One group. The ETag goes into If-Match of a change."""
        found = _group(door().groups.get(group, whose(who, tenant)))
        response.headers["ETag"] = found.etag
        return found

    @made.patch("/rounds/groups/{group}", response_model=Group, responses=documented(404, 412))
    def change_group(
        group: Which, given: GroupChange, who: Operator, response: Response, if_match: IfMatch = None, tenant: TenantIn = None
    ) -> Group:  # fmt: skip
        """Change a group. A round that is not open yet follows; an open one stays as it is."""
        found = _group(
            door().groups.set(
                group, **_changes(given), tenant=whose(who, tenant), actor=who.actor, reason=given.reason,
                check=lambda known: check_tag(if_match, _group(known).etag),
            )
        )  # fmt: skip
        response.headers["ETag"] = found.etag
        return found

    @made.get("/rounds/groups/{group}/members", response_model=Members, responses=documented(404))
    def members(
        group: Which, who: Viewer, tenant: TenantIn = None, limit: Limit = 50, cursor: Cursor = None
    ) -> Members:
        """The members of a group, those who left too."""
        found = door().members.all(group, whose(who, tenant), limit=limit + 1, after=below(cursor) or 0)
        kept, following = page(found, limit, lambda one: one.id)
        return Members(members=[_member(one, who) for one in kept], next=following)

    @made.post("/rounds/groups/{group}/members", response_model=Member, status_code=201, responses=documented(404))
    def add_member(group: Which, given: MemberIn, who: Operator, tenant: TenantIn = None) -> Member:
        """Add somebody to a group, and say how they want to be told."""
        added = door().members.add(group, **given.model_dump(), tenant=whose(who, tenant), actor=who.actor)
        return _member(added, who)

    @made.patch("/rounds/groups/{group}/members/{member}", response_model=Member, responses=documented(404, 412))
    def change_member(
        group: Which, member: Which, given: MemberChange, who: Operator, if_match: IfMatch = None, tenant: TenantIn = None
    ) -> Member:  # fmt: skip
        """Change a member. ``If-Match``: its ``etag`` in the list."""
        changed = door().members.set(
            group, member, **_changes(given), tenant=whose(who, tenant), actor=who.actor, reason=given.reason,
            check=lambda known: check_tag(if_match, _member(known, who).etag),
        )  # fmt: skip
        return _member(changed, who)

    @made.get("/rounds/groups/{group}/prompts", response_model=Prompts, responses=documented(404))
    def prompts(
        group: Which, who: Viewer, tenant: TenantIn = None, limit: Limit = 50, cursor: Cursor = None
    ) -> Prompts:
        """The prompts of a group, those that are not active too."""
        found = door().prompts.all(group, whose(who, tenant), limit=limit + 1, after=below(cursor) or 0)
        kept, following = page(found, limit, lambda one: one.id)
        return Prompts(prompts=[_prompt(one) for one in kept], next=following)

    @made.post("/rounds/groups/{group}/prompts", response_model=Prompts, status_code=201, responses=documented(404))
    def add_prompts(group: Which, given: PromptsIn, who: Operator, tenant: TenantIn = None) -> Prompts:
        """Add prompts to a group, active."""
        added = door().prompts.add(group, *given.texts, tenant=whose(who, tenant), actor=who.actor)
        return Prompts(prompts=[_prompt(one) for one in added])

    @made.patch("/rounds/prompts/{id}", response_model=Prompt, responses=documented(404, 412))
    def change_prompt(
        id: Ident, given: PromptChange, who: Operator, if_match: IfMatch = None, tenant: TenantIn = None
    ) -> Prompt:
        """Change a prompt. Rounds that have opened keep its text. ``If-Match``: its ``etag`` in the list."""
        return _prompt(
            door().prompts.set(
                id, **_changes(given), tenant=whose(who, tenant), actor=who.actor, reason=given.reason,
                check=lambda known: check_tag(if_match, _prompt(known).etag),
            )
        )  # fmt: skip

    @made.delete("/rounds/prompts/{id}", status_code=204, responses=documented(404, 412))
    def remove_prompt(
        id: Ident, who: Operator, reason: Annotated[Reason, Query()] = "", if_match: IfMatch = None, tenant: TenantIn = None
    ) -> None:  # fmt: skip
        """Take a prompt away. Rounds that have opened keep its text. ``If-Match``: its ``etag`` in the list."""
        door().prompts.remove(
            id, tenant=whose(who, tenant), actor=who.actor, reason=reason, check=lambda known: check_tag(if_match, _prompt(known).etag)
        )  # fmt: skip

    # ------------------------------------------------------------------ ticks

    @made.get("/rounds/ticks", response_model=Ticks)
    def ticks(who: Viewer, kind: Annotated[Kind | None, Query()] = None, limit: Limit = 50) -> Ticks:
        """The passes of the ticks, newest first; they are of all tenants, and so is who may see them."""
        _sees_all(who)
        return Ticks(ticks=[Tick(**asdict(one)) for one in door().ticks(kind, limit)])

    @made.post("/rounds/ticks", response_model=Ticks)
    def tick(given: TickIn, who: Operator) -> Ticks:
        """Plan, open or close what is due now, beside whatever schedules do the same."""
        _sees_all(who)
        reports = door().tick(kind=given.kind, actor=who.actor)
        return Ticks(ticks=[Tick(**asdict(one)) for one in reports])

    # ------------------------------------------------------------------ rounds

    @made.get("/rounds", response_model=Page, responses=documented(404))
    def find(
        who: Viewer,
        group: Annotated[Words | None, Query(min_length=1, max_length=200, description="Its number, or its name.")] = None,
        status: Annotated[Status | None, Query()] = None,
        tenant: TenantIn = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Page:  # fmt: skip
        """List rounds, newest first."""
        which = None if group is None else number_or_name(group)
        found = door().list(which, status=status, limit=limit + 1, below=below(cursor), tenant=whose(who, tenant))
        kept, following = page(found, limit, lambda one: one.id)
        return Page(rounds=[_round(app, one) for one in kept], next=following)

    @made.get("/rounds/next", response_model=Next)
    def coming(who: Viewer, tenant: TenantIn = None, limit: Limit = 50, cursor: Cursor = None) -> Next:
        """When the next round of each group opens, or why none does, in the order of the groups."""
        found = door().next(tenant=whose(who, tenant), limit=limit + 1, after=below(cursor) or 0)
        kept, following = page(found, limit, lambda one: one.group_id)
        return Next(next_rounds=[Upcoming(**asdict(one)) for one in kept], next=following)

    @made.get("/rounds/{id}", response_model=Archive, responses=documented(404))
    def show(id: Ident, who: Viewer, tenant: TenantIn = None) -> Archive:
        """One round with everything in it; of a closed one this is the archive."""
        found = door().show(id, tenant=whose(who, tenant))
        return Archive(
            round=_round(app, found.round),
            submissions=[Submission(**_said(one, who), votes=found.votes_for(one.id)) for one in found.submissions],
            comments=[Comment(**_said(one, who)) for one in found.comments],
            votes=[Vote(**asdict(one)) for one in found.votes],
            hidden=not who.sees_payloads,
        )

    # ------------------------------------------------------------------ taking part

    @made.post("/rounds/{id}/submissions", response_model=Submission, status_code=201, responses=documented(404, 409))
    def submit(id: Ident, given: SubmitIn, who: Operator, tenant: TenantIn = None) -> Submission:
        """Hand in a member's answer to an open round: one each."""
        return Submission(
            **_said(door().submit(id, given.member, given.text, tenant=whose(who, tenant), actor=who.actor), who)
        )

    @made.patch("/rounds/submissions/{id}", response_model=Submission, responses=documented(404, 409))
    def edit_submission(id: Ident, given: SubmitIn, who: Operator, tenant: TenantIn = None) -> Submission:
        """Change a member's own answer while the round is open."""
        return Submission(
            **_said(
                door().edit_submission(id, given.member, given.text, tenant=whose(who, tenant), actor=who.actor), who
            )
        )

    @made.post("/rounds/submissions/{id}/comments", response_model=Comment, status_code=201, responses=documented(404, 409))  # fmt: skip
    def comment(id: Ident, given: SubmitIn, who: Operator, tenant: TenantIn = None) -> Comment:
        """Comment a submission, as a member, while its round is open."""
        return Comment(
            **_said(door().comment(id, given.member, given.text, tenant=whose(who, tenant), actor=who.actor), who)
        )

    @made.patch("/rounds/comments/{id}", response_model=Comment, responses=documented(404, 409))
    def edit_comment(id: Ident, given: SubmitIn, who: Operator, tenant: TenantIn = None) -> Comment:
        """Change a member's own comment while the round is open."""
        return Comment(
            **_said(door().edit_comment(id, given.member, given.text, tenant=whose(who, tenant), actor=who.actor), who)
        )

    @made.post("/rounds/submissions/{id}/votes", response_model=Vote, responses=documented(404, 409))
    def vote(id: Ident, given: VoteIn, who: Operator, tenant: TenantIn = None) -> Vote:
        """Vote for a submission, as a member. A second vote moves the first."""
        return Vote(**asdict(door().vote(id, given.member, tenant=whose(who, tenant), actor=who.actor)))

    return made


def _changes(given: Act) -> dict[str, Any]:
    """What a change says, and nothing of what it leaves out. Raises InvalidArgument where that is nothing."""
    said = {
        name: value
        for name, value in given.model_dump(exclude_unset=True, exclude={"reason"}).items()
        if value is not None or name in NULLED
    }
    if not said:
        raise InvalidArgument("body", "changes nothing.", f"Give some of {', '.join(type(given).model_fields)}.")
    return said


def _sees_all(who: Identity) -> None:
    if who.tenant is not None:
        raise Forbidden("ticks are of all tenants, and you act for one.")


def _group(g: KnownGroup) -> Group:
    return Group(**asdict(g))


def _member(m: KnownMember, who: Identity) -> Member:
    said = asdict(m) | {"channels": [channel.value for channel in m.channels]}
    if not who.sees_payloads:
        said |= {"email": None, "webhook": None}
    return Member(**said, hidden=not who.sees_payloads)


def _prompt(p: KnownPrompt) -> Prompt:
    return Prompt(**asdict(p))


def _round(app: Duly, r: KnownRound) -> Round:
    return Round(**{**asdict(r), "status": r.status.value}, label=r.label(app.engine.clock.now()))


def _said(one: Any, who: Identity) -> dict[str, Any]:
    """What a member wrote, as somebody may see it."""
    return asdict(one) if who.sees_payloads else asdict(one) | {"text": None}
