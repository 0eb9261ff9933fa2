"""``/api/v1/me``, ``/tokens`` and ``/users``: who asks, and who may come in.

An administrator of a tenant makes tokens and users of that tenant only, and sees only those. Nobody gives away more than they have: a token
that is bounded to some areas makes no token of others, and no user. Source: ADR 0029.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Request, Response
from pydantic import BaseModel, Field, computed_field

from duly.accounts.account import LONGEST, SHORTEST, Forbidden, Identity, Role, read_scopes
from duly.accounts.account import Token as KnownToken
from duly.accounts.account import User as KnownUser
from duly.accounts.door import Accounts
from duly.app import Duly
from duly.kernel.errors import InvalidArgument
from duly.web.api.common import (  # fmt: skip
    ETAG,
    Act,
    Cursor,
    Ident,
    IfMatch,
    Instant,
    InstantIn,
    Limit,
    Name,
    Named,
    Reason,
    SecondsIn,
    Strict,
    TenantIn,
    behind,
    below,
    check_tag,
    page,
    router,
    tag_of,
    whose,
)
from duly.web.api.common import cursor as cursor_of
from duly.web.identity import identity_of, needs
from duly.web.problems import documented

Admin: TypeAlias = Annotated[Identity, needs("accounts", Role.ADMIN)]
Word = Literal["viewer", "operator", "admin"]
#: A token lives for ten years at the most.
LONGEST_LIFE = 10 * 366 * 86_400


class Me(BaseModel):
    """Who asks, and what they may."""

    actor: str = Field(description="As it stands in the audit trail.")
    role: Word
    tenant: str | None = Field(description="Null: every tenant.")
    scopes: list[str] = Field(description="Areas; * is all of them.")
    user: str | None = Field(description="The name of who logged in; null for a token.")
    csrf: str | None = Field(description="Of a login: what its mutations bring along in the header x-csrf-token.")
    sees_payloads: bool


class Token(BaseModel):
    """A token, without what lets somebody in."""

    id: int
    name: str
    prefix: str = Field(description="How it begins, to tell it from others.")
    role: Word
    tenant: str | None
    scopes: list[str]
    state: Literal["active", "expired", "revoked"]
    created_at: Instant
    created_by: str
    expires_at: Instant | None
    last_used_at: Instant | None = Field(description="To the minute.")
    revoked_at: Instant | None


class MadeToken(BaseModel):
    token: str = Field(description="Shown now, and never again.")
    record: Token


class TokenPage(BaseModel):
    tokens: list[Token]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


class TokenIn(Strict):
    name: Name
    role: Word = "viewer"
    tenant: Name | None = Field(None, description="Null: every tenant; of who belongs to one: that one.")
    scopes: list[Annotated[str, Field(max_length=40)]] = Field(default=["*"], max_length=50, description="Areas; * is all of them.")  # fmt: skip
    expires_in: SecondsIn | None = Field(None, ge=1, le=LONGEST_LIFE, description="A duration from now.")
    expires_at: InstantIn | None = None
    reason: Reason = ""


class KnownAs(BaseModel):
    """What a provider calls a person for ever."""

    issuer: str
    subject: str


class User(BaseModel):
    """A person who may log in."""

    id: int
    name: str
    role: Word
    tenant: str | None
    created_at: Instant
    updated_at: Instant
    disabled_at: Instant | None
    login: Literal["password", "oidc", "none"] = Field(
        description="How they log in: oidc is through a provider; none: they were unlinked from theirs, and have no password yet."
    )  # fmt: skip
    identities: list[KnownAs] = Field(description="As whom providers know them.")

    @computed_field(description=ETAG)  # type: ignore[prop-decorator]
    @property
    def etag(self) -> str:
        # a new password is in none of them but updated_at
        return tag_of(self.id, self.name, self.role, self.tenant, self.disabled_at, self.updated_at)


class UserPage(BaseModel):
    users: list[User]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


#: Its length is looked at by the accounts room, which repeats it in no error.
Password = Annotated[str, Field(json_schema_extra={"minLength": SHORTEST, "maxLength": LONGEST, "writeOnly": True})]


class UserIn(Strict):
    name: Name
    password: Password
    role: Word = "viewer"
    tenant: Name | None = Field(None, description="Null: every tenant; of who belongs to one: that one.")
    reason: Reason = ""


class ChangeIn(Strict):
    """What is left out stays. Logins of the user end."""

    password: Password | None = None
    role: Word | None = None
    disabled: bool | None = Field(None, description="True: they are let in no more.")
    reason: Reason = ""


def routes(app: Duly) -> Any:
    made, accounts = router("accounts"), Accounts(app)

    @made.get("/me", response_model=Me)
    def me(request: Request) -> Me:
        """Who asks. Needs no scope."""
        who = identity_of(request)
        return Me(
            actor=who.actor, role=_word(who.role), tenant=who.tenant, scopes=list(who.scopes), user=who.user, csrf=who.csrf, sees_payloads=who.sees_payloads
        )  # fmt: skip

    # ------------------------------------------------------------------ tokens

    @made.get("/tokens", response_model=TokenPage)
    def tokens(who: Admin, tenant: TenantIn = None, limit: Limit = 50, cursor: Cursor = None) -> TokenPage:
        """List tokens, newest first, those that have ended too."""
        under = below(cursor)
        found = [one for one in accounts.tokens(whose(who, tenant)) if under is None or one.id < under]
        kept, following = page(found, limit, lambda one: one.id)
        now = app._read(app.db.present)
        return TokenPage(tokens=[_token(one, now) for one in kept], next=following)

    @made.post("/tokens", response_model=MadeToken, status_code=201)
    def create_token(given: TokenIn, who: Admin) -> MadeToken:
        """Make a token. It is in this answer, and nobody can show it again."""
        scopes = _bounded(given.scopes, who)
        life = None if given.expires_in is None else timedelta(seconds=given.expires_in)
        token, record = accounts.create_token(
            given.name, given.role, tenant=_for(who, given.tenant), scopes=scopes, expires_in=life, expires_at=given.expires_at, actor=who.actor,
            reason=given.reason,
        )  # fmt: skip
        return MadeToken(token=token, record=_token(record, app._read(app.db.present)))

    @made.post("/tokens/{id}/revoke", response_model=Token, responses=documented(404))
    def revoke(id: Ident, who: Admin, given: Act | None = None) -> Token:
        """Nobody comes in with it any more. 404 also for one that is revoked."""
        reason = given.reason if given is not None else ""
        gone = accounts.revoke_token(id, tenant=who.tenant, actor=who.actor, reason=reason)
        return _token(gone, app._read(app.db.present))

    # ------------------------------------------------------------------ users

    @made.get("/users", response_model=UserPage)
    def users(who: Admin, tenant: TenantIn = None, limit: Limit = 50, cursor: Cursor = None) -> UserPage:
        """List users by name, those who are let in no more too."""
        seen = behind(cursor, str)
        found = [one for one in accounts.users(whose(who, tenant)) if seen is None or one.name > seen[0]]
        following = cursor_of(found[limit - 1].name) if len(found) > limit else None
        return UserPage(users=[_user(one) for one in found[:limit]], next=following)

    @made.post("/users", response_model=User, status_code=201)
    def create_user(given: UserIn, who: Admin) -> User:
        """Make a user. 422 for a name that is taken."""
        _unbounded(who)
        tenant = _for(who, given.tenant)
        return _user(accounts.create_user(given.name, given.password, given.role, tenant=tenant, actor=who.actor, reason=given.reason))  # fmt: skip

    @made.get("/users/{name:any}", response_model=User, responses=documented(404))
    def user(name: Named, who: Admin, response: Response) -> User:
        """One user. The ETag goes into If-Match of a change."""
        found = _user(accounts.user(name, who.tenant))
        response.headers["ETag"] = found.etag
        return found

    @made.patch("/users/{name:any}", response_model=User, responses=documented(404, 412))
    def change(name: Named, given: ChangeIn, who: Admin, response: Response, if_match: IfMatch = None) -> User:
        """Change a user's password or role, or let them in no more, or again. Their logins end."""
        _unbounded(who)
        if given.password is None and given.role is None and given.disabled is None:
            raise InvalidArgument("password", "is not given, and neither are role and disabled.", "Say what to change.")
        found = _user(
            accounts.change_user(
                name, password=given.password, role=given.role, disabled=given.disabled, tenant=who.tenant, actor=who.actor, reason=given.reason,
                check=lambda known: check_tag(if_match, _user(known).etag),
            )
        )  # fmt: skip
        response.headers["ETag"] = found.etag
        return found

    return made


def _for(who: Identity, tenant: str | None) -> str | None:
    """Whose a new token or user is; None: everybody's. Raises InvalidArgument for another tenant than one's own."""
    if who.tenant is not None and tenant not in (None, who.tenant):
        raise InvalidArgument("tenant", f"is {tenant!r}, and you act for {who.tenant!r}.", "Leave it out.")
    return who.tenant or tenant


def _bounded(given: list[str], who: Identity) -> list[str]:
    """The scopes of a new token. Raises InvalidArgument, and Forbidden where they reach further than those of who makes it."""
    scopes = list(read_scopes(given))
    if "*" not in who.scopes and not set(scopes) <= set(who.scopes):
        raise Forbidden(f"{who.actor} is bounded to {', '.join(who.scopes)}, and gives away no more than that.")
    return scopes


def _unbounded(who: Identity) -> None:
    """Users are bounded to no areas. Raises Forbidden for who is."""
    if "*" not in who.scopes:
        raise Forbidden(f"{who.actor} is bounded to {', '.join(who.scopes)}, and users are not.")


def _word(role: Role) -> Word:
    word: Word = role.word  # type: ignore[assignment]
    return word


def _token(known: KnownToken, now: datetime) -> Token:
    values: dict[str, Any] = {n: getattr(known, n) for n in Token.model_fields if n not in ("role", "scopes", "state")}
    values["state"] = known.state(now)
    return Token(**values, role=_word(known.role), scopes=list(known.scopes))


def _user(known: KnownUser) -> User:
    values = {name: getattr(known, name) for name in User.model_fields if name not in ("role", "identities")}
    identities = [KnownAs(issuer=one.issuer, subject=one.subject) for one in known.identities]
    return User(**values, role=_word(known.role), identities=identities)
