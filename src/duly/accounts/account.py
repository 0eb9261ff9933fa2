"""Who asks, and what they may. The nouns of the accounts room; pure.

A *token* is for programs, a *user* for a person with a password, a *login* a person's session in a browser. Each has one role, and sees one
tenant, or all of them. Source: ADR 0029.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum

from duly.kernel.errors import DulyError, InvalidArgument
from duly.kernel.payload import check_name


class Role(IntEnum):
    """What somebody may do; each may do what those before it may."""

    #: Look. Payloads are hidden unless granted.
    VIEWER = 1
    #: Act on work: enqueue, cancel, replay, pause, run, approve.
    OPERATOR = 2
    #: Change what work there is, who may come in, and look at everything.
    ADMIN = 3

    @property
    def word(self) -> str:
        return self.name.lower()


def read_role(text: str) -> Role:
    """A role by its word. Raises InvalidArgument."""
    try:
        return Role[text.upper()]
    except KeyError:
        raise InvalidArgument("role", f"is {text!r}.", "Use viewer, operator or admin.") from None


#: What a token may be bounded to. Each names the routes beneath it.
AREAS = (
    "jobs", "queues", "schedules", "workflows", "outbox", "rounds", "publishing", "automations", "audit", "alerts", "system", "accounts", "payloads",
)  # fmt: skip


def read_scopes(names: object) -> tuple[str, ...]:
    """Areas by name; ``*`` is all of them but ``payloads`` for a viewer. Raises InvalidArgument."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InvalidArgument("scopes", "is not a list of names.", f"Use some of {', '.join(AREAS)}, or *.")
    for place, name in enumerate(names):
        if name != "*" and name not in AREAS:
            raise InvalidArgument(f"scopes[{place}]", f"is {name!r}.", f"Use some of {', '.join(AREAS)}, or *.")
    return ("*",) if not names or ("*" in names and "payloads" not in names) else tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks. ``tenant`` None: sees every tenant."""

    #: As it stands in the audit trail: ``token:ci``, ``user:ann``, ``local``.
    actor: str
    role: Role
    tenant: str | None
    scopes: tuple[str, ...] = ("*",)
    #: Of a browser's session: what its mutations have to bring along.
    csrf: str | None = None
    #: Of a browser's session: the name of the user.
    user: str | None = None
    #: Tells them from everybody else for ever: names may be given again.
    key: str = ""
    #: Of a browser's session: which one, as it is kept. Two sessions of one person are the same person.
    login: str = field(default="", compare=False, repr=False)

    def may(self, area: str, role: Role) -> bool:
        """May it act so in an area?"""
        return self.role >= role and ("*" in self.scopes or area in self.scopes)

    @property
    def sees_payloads(self) -> bool:
        """May it see what jobs carry? Operators may; a viewer where it was granted."""
        return self.role >= Role.OPERATOR or "payloads" in self.scopes


class Forbidden(DulyError):
    """Who asks is known, and may not."""


class Throttled(DulyError):
    """Too many wrong passwords. ``after``: seconds until the next try is looked at."""

    def __init__(self, after: float) -> None:
        self.after = after
        super().__init__(f"too many wrong passwords; try again in {max(1, round(after))} s.")


class LoginRefused(DulyError):
    """Their provider has said who they are, and they are not let in. ``reason``: one word, for the trail."""

    def __init__(self, reason: str, message: str, name: str = "") -> None:
        #: ``name``: of ``name_taken``, the name that they would have.
        self.reason, self.name = reason, name
        super().__init__(message)


class ProviderFailed(DulyError):
    """Nobody can log in through the provider: it did not answer (``away``), or its answer is not believed. ``told``: what it did."""

    def __init__(self, told: str, *, away: bool = False) -> None:
        self.told, self.away = told, away
        super().__init__(f"the identity provider {told}")


@dataclass(frozen=True, slots=True)
class Token:
    """A token as its row says; the token itself is known to who made it only. Instants are aware, in UTC."""

    id: int
    name: str
    #: The beginning of it, to tell it from others.
    prefix: str
    role: Role
    tenant: str | None
    scopes: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None

    def state(self, now: datetime) -> str:
        """``active``, ``expired`` or ``revoked``."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


@dataclass(frozen=True, slots=True)
class KnownAs:
    """What a provider calls a person for ever."""

    issuer: str
    subject: str


@dataclass(frozen=True, slots=True)
class User:
    """A person who may log in. Instants are aware, in UTC."""

    id: int
    name: str
    role: Role
    tenant: str | None
    created_at: datetime
    updated_at: datetime
    disabled_at: datetime | None = None
    #: ``password``; ``oidc``: through a provider; ``none``: they were unlinked, and have no password yet.
    login: str = "password"
    #: Where ``login`` is ``oidc``.
    identities: tuple[KnownAs, ...] = ()


@dataclass(frozen=True, slots=True)
class Claimed:
    """A person as their provider says. Issuer and subject tell them from everybody else for ever; the rest may change."""

    issuer: str
    subject: str
    name: str
    role: Role
    tenant: str | None
    #: Does the provider say which role and tenant, at each login? Else they are those of the first login, and changed here.
    rules_role: bool = False
    rules_tenant: bool = False


#: Wrong passwords that cost nothing but the time of looking at them, and the longest wait after more.
FREE, LONGEST_WAIT = 5, timedelta(minutes=15)
#: Failures older than this are forgotten.
FORGOTTEN = timedelta(hours=1)
#: A login ends this long after it was used last, and this long after it began.
IDLE, LONGEST_LOGIN = timedelta(hours=12), timedelta(days=7)
#: The shortest password, in characters; the longest that is looked at.
SHORTEST, LONGEST = 12, 1024


def wait_after(failures: int) -> timedelta:
    """How long nobody is let in after so many wrong passwords in a row."""
    if failures < FREE:
        return timedelta(0)
    return min(timedelta(seconds=2 ** min(failures - FREE, 12)), LONGEST_WAIT)


def _can_be_kept(text: str) -> bool:
    """Is it text at all? Half of a surrogate pair is none."""
    return text.encode("utf-8", "replace").decode() == text


#: Characters that count as printable and are seen by nobody: fillers, joiners, selectors of variants.
_UNSEEN = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def check_user_name(name: str) -> str:
    """A name for a user: no two of them look alike because of what nobody sees. Raises InvalidArgument."""
    check_name(name, "name")
    if _UNSEEN.search(name) is not None:
        raise InvalidArgument("name", "contains characters that nobody sees.", "Use printable characters only.")
    if name != name.strip() or "  " in name:
        raise InvalidArgument("name", f"is {name!r}, with blanks that nobody sees.", "Leave them out.")
    if name != unicodedata.normalize("NFC", name):
        raise InvalidArgument("name", "is not written in composed characters.", "Normalize it (Unicode NFC).")
    return name


def check_password(password: str) -> str:
    """Refuse one that is too short or too long. Raises InvalidArgument, which does not repeat it."""
    if not isinstance(password, str) or not SHORTEST <= len(password) <= LONGEST or not _can_be_kept(password):
        raise InvalidArgument("password", f"must have {SHORTEST} to {LONGEST} characters.", "Use a sentence, or a password manager.")  # fmt: skip
    return password
