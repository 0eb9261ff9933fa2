"""``Accounts(app)``: making tokens and users, and finding out who asks.

A token is shown once, when it is made; what is kept of it is its SHA-256. Passwords are kept as argon2id. What is wrong with a token or a
password is never told to who sent it, only that it is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from duly.accounts.account import (
    Identity,
    Role,
    Throttled,
    Token,
    User,
    check_password,
    check_user_name,
    read_role,
    read_scopes,
    wait_after,
)
from duly.accounts.oidc.options import check_url
from duly.accounts.store import AccountStore, next_try
from duly.jobs.host import Host
from duly.kernel.errors import InvalidArgument, NotFound
from duly.kernel.localtime import in_utc
from duly.kernel.payload import check_id, check_name, check_text

T = TypeVar("T")

TOKEN_CREATED, TOKEN_REVOKED = "TOKEN_CREATED", "TOKEN_REVOKED"
USER_CREATED, USER_CHANGED, USER_DISABLED = "USER_CREATED", "USER_CHANGED", "USER_DISABLED"
LOGGED_IN, LOGIN_FAILED, LOGGED_OUT = "LOGGED_IN", "LOGIN_FAILED", "LOGGED_OUT"
#: What every token begins with, so that a scanner of secrets knows it.
HEAD = "duly_"
#: The use of a token or login is written down this often at the most.
NOTED = timedelta(minutes=1)


class Accounts:
    """Who may come in."""

    def __init__(self, app: Host) -> None:
        self._app = app

    @property
    def _store(self) -> AccountStore:
        return AccountStore(self._app.engine.db)

    # ------------------------------------------------------------------ tokens

    def create_token(
        self, name: str, role: Role | str = Role.VIEWER, *, tenant: str | None = None, scopes: Sequence[str] = ("*",), expires_in: timedelta | None = None,
        expires_at: datetime | None = None, actor: str = "code", reason: str = "",
    ) -> tuple[str, Token]:  # fmt: skip
        """Make a token. Returns (the token, which nobody can show again; its record). ``tenant`` None: every tenant.

        Raises InvalidArgument naming the field.
        """
        check_name(name, "name")
        if tenant is not None:
            check_name(tenant, "tenant")
        what = role if isinstance(role, Role) else read_role(role)
        areas = read_scopes(scopes if isinstance(scopes, str) else list(scopes))
        if expires_in is not None and (expires_at is not None or expires_in <= timedelta(0)):
            raise InvalidArgument("expires_in", "is not a span from now on.", "Give one of expires_in and expires_at.")
        prefix = HEAD + secrets.token_hex(4)
        token = f"{prefix}_{secrets.token_urlsafe(32)}"

        def act(c: Connection) -> Token:
            now = self._app.engine.db.present(c)
            until = now + expires_in if expires_in is not None else None if expires_at is None else in_utc(expires_at, "expires_at")  # fmt: skip
            if until is not None and until <= now:
                raise InvalidArgument("expires_at", f"is {until.isoformat()}, which has passed.")
            ident = self._store.add_token(c, name, prefix, digest(token), what, tenant, areas, now, actor, until)
            self._store.audit(c, actor, TOKEN_CREATED, "token", ident, tenant, name=name, role=what.word, scopes=list(areas), **_why(reason))  # fmt: skip
            made = self._store.token(c, ident)
            assert made is not None
            return made

        return token, self._write(act)

    def tokens(self, tenant: str | None = None) -> list[Token]:
        return self._read(lambda c: self._store.tokens(c, tenant))

    def revoke_token(self, ident: int, *, tenant: str | None = None, actor: str = "code", reason: str = "") -> Token:
        """Nobody comes in with it any more. ``tenant``: only one of this one. Raises NotFound, also for one that is revoked."""
        check_id(ident, "token")

        def act(c: Connection) -> Token:
            known = self._store.token(c, ident)
            if known is None or (tenant is not None and known.tenant != tenant) or not self._store.revoke(c, ident, self._app.engine.db.present(c)):  # fmt: skip
                raise NotFound("token", ident)
            self._store.audit(
                c, actor, TOKEN_REVOKED, "token", ident, known.tenant, level="warning", name=known.name, **_why(reason)
            )
            found = self._store.token(c, ident)
            assert found is not None
            return found

        return self._write(act)

    def by_token(self, token: str) -> Identity | None:
        """Who has a token; None for one that is not there, has expired or was revoked."""
        if not token.startswith(HEAD) or len(token) > 200:
            return None

        def look(c: Connection) -> tuple[Token | None, datetime]:
            return self._store.by_digest(c, digest(token)), self._app.engine.db.present(c)

        found, now = self._read(look)
        if found is None or found.state(now) != "active":
            return None
        if found.last_used_at is None or found.last_used_at < now - NOTED:
            self._write(lambda c: self._store.used(c, found.id, now))
        return Identity(f"token:{found.name}", found.role, found.tenant, found.scopes, key=f"token {found.id}")

    # ------------------------------------------------------------------ users

    def create_user(
        self, name: str, password: str, role: Role | str = Role.VIEWER, *, tenant: str | None = None, actor: str = "code", reason: str = "",
    ) -> User:  # fmt: skip
        """Make a user. Raises InvalidArgument naming the field, also for a name that is taken."""
        check_user_name(name)
        if tenant is not None:
            check_name(tenant, "tenant")
        what = role if isinstance(role, Role) else read_role(role)
        kept = hashed(check_password(password))

        def act(c: Connection) -> User:
            try:
                with c.begin_nested():
                    ident = self._store.add_user(c, name, what, tenant, kept, self._app.engine.db.present(c))
            except IntegrityError:
                raise InvalidArgument("name", f"is {name!r}, and there is a user of that name.") from None
            self._store.audit(c, actor, USER_CREATED, "user", ident, tenant, name=name, role=what.word, **_why(reason))
            return self._known(c, name)

        return self._write(act)

    def change_user(
        self, name: str, *, password: str | None = None, role: Role | str | None = None, disabled: bool | None = None, tenant: str | None = None,
        actor: str = "code", reason: str = "", check: Callable[[User], None] | None = None,
    ) -> User:  # fmt: skip
        """Change a user's password or role, or let them in no more. Their logins end.

        ``tenant``: only a user of this one. ``check``: is told who they are while nobody else changes them; what it raises leaves all as it is.
        Raises NotFound, InvalidArgument.
        """
        values: dict[str, Any] = {}
        if password is not None:
            values["password"] = hashed(check_password(password))
        if role is not None:
            values["role"] = (role if isinstance(role, Role) else read_role(role)).word

        def act(c: Connection) -> User:
            known, now = self._known(c, name, lock=True), self._app.engine.db.present(c)
            if tenant is not None and known.tenant != tenant:
                raise NotFound("user", repr(name))
            if check is not None:
                check(known)
            if password is not None and known.login == "oidc":
                raise InvalidArgument("password", f"is not what {name!r} logs in with: the provider knows them.", "Unlink them first (duly users unlink), or make another user.")  # fmt: skip
            if disabled is not None:
                values["disabled_at"] = now if disabled else None
            self._store.change_user(c, known.id, now, **values)
            self._store.end_logins(c, known.id)
            what = USER_DISABLED if disabled else USER_CHANGED
            self._store.audit(
                c, actor, what, "user", known.id, known.tenant, name=name, fields=sorted(values), **_why(reason)
            )
            return self._known(c, name)

        return self._write(act)

    def link_user(
        self, name: str, issuer: str, subject: str, *, also: bool = False, force: bool = False, actor: str = "code", reason: str = ""
    ) -> User:  # fmt: skip
        """A user logs in through a provider from now on, as who is ``subject`` there, and with their password no more. Their logins end.

        ``also``: beside who they are known as already. ``force``: also the last administrator who could log in, to a provider that the settings do
        not name. Raises NotFound; InvalidArgument, also for a subject that is somebody's already.
        """
        check_name(issuer, "issuer", 2_000)
        check_url("issuer", issuer)
        check_name(subject, "subject", 255)

        def act(c: Connection) -> User:
            known, now = self._known(c, name, lock=True), self._app.engine.db.present(c)
            there = self._store.identified(c, issuer, subject)
            if there is not None:
                raise InvalidArgument("subject", f"is known already, as {there.name!r}.")
            if known.identities and not also:
                shown = ", ".join(f"{one.subject!r} at {one.issuer}" for one in known.identities)
                raise InvalidArgument("subject", f"would be a second one: {name!r} is known as {shown}.", "Unlink that, or say --also (also=True).")  # fmt: skip
            if not force and issuer != self._app.settings.oidc_issuer and self._is_last(c, known):
                raise InvalidArgument("issuer", f"is not the provider that the settings name, and {name!r} is the last administrator who can log in.", "Set DULY_OIDC_ISSUER to it, make another administrator, or say --force (force=True).")  # fmt: skip
            try:
                with c.begin_nested():
                    self._store.identify(c, issuer, subject, known.id, now)
            except IntegrityError:  # they came for the first time at this moment
                raise InvalidArgument("subject", "is known already, as somebody who has just come.") from None
            self._store.change_user(c, known.id, now, password="")
            self._store.end_logins(c, known.id)
            self._store.audit(
                c, actor, USER_CHANGED, "user", known.id, known.tenant, name=name, fields=["login"], issuer=issuer, subject=subject, **_why(reason)
            )  # fmt: skip
            return self._known(c, name)

        return self._write(act)

    def unlink_user(
        self, name: str, *, issuer: str | None = None, subject: str | None = None, actor: str = "code", reason: str = ""
    ) -> User:  # fmt: skip
        """A user logs in through a provider no more: as nobody, or not as a ``subject`` or at an ``issuer``. Their logins end.

        Who is known as nobody then cannot log in until they have a password. Raises NotFound, also where they are not known so.
        """

        def act(c: Connection) -> User:
            known, now = self._known(c, name, lock=True), self._app.engine.db.present(c)
            gone = [one for one in known.identities if subject in (None, one.subject) and issuer in (None, one.issuer)]
            if not gone:
                raise NotFound("subject", repr(subject) if subject is not None else f"of {name!r}")
            for one in gone:
                self._store.forget(c, one)
            self._store.change_user(c, known.id, now)
            self._store.end_logins(c, known.id)
            for one in gone:
                self._store.audit(
                    c, actor, USER_CHANGED, "user", known.id, known.tenant, name=name, fields=["login"], issuer=one.issuer, subject=one.subject,
                    unlinked=True, **_why(reason),
                )  # fmt: skip
            return self._known(c, name)

        return self._write(act)

    def _is_last(self, c: Connection, known: User) -> bool:
        """Is it an administrator of everything, and would no other be able to log in?"""
        here = self._app.settings.oidc_issuer

        def rules(one: User) -> bool:
            able = one.login == "password" or any(here and known.issuer == here for known in one.identities)
            return one.role is Role.ADMIN and one.tenant is None and one.disabled_at is None and able

        return rules(known) and not any(rules(one) for one in self._store.users(c) if one.id != known.id)

    def users(self, tenant: str | None = None) -> list[User]:
        return self._read(lambda c: self._store.users(c, tenant))

    def user(self, name: str, tenant: str | None = None) -> User:
        """One user by name. Raises NotFound, also for one of another tenant."""
        found = self._read(lambda c: self._known(c, name))
        if tenant is not None and found.tenant != tenant:
            raise NotFound("user", repr(name))
        return found

    def exist(self) -> bool:
        """Is there somebody who could come in, or has there ever been? Tokens that were revoked count: taking the last away lets nobody in.

        Where a provider is named there is somebody, before the first of its people has come.
        """
        return bool(self._app.settings.oidc_issuer) or self._read(self._store.exist)

    def _known(self, c: Connection, name: str, lock: bool = False) -> User:
        found = self._store.user(c, name, lock)
        if found is None:
            raise NotFound("user", repr(name))
        return found

    # ------------------------------------------------------------------ logins

    def log_in(self, name: str, password: str, address: str = "") -> str | None:
        """Let somebody in. Returns what their cookie holds, new at each login; None for a wrong name or password.

        Raises Throttled after too many, of a name or from an address.
        """
        subjects = sorted([f"user:{name[:200]}", *([f"address:{address[:100]}"] if address else [])])
        try:
            for given in (name, password, address):
                check_text(given, "name")
        except InvalidArgument:  # nobody is called so, and no database keeps it
            return None

        def reserve(c: Connection) -> tuple[tuple[User, str] | None, datetime | None, datetime]:
            """Count the try before it is looked at, so that of many at once no more are than of many in a row."""
            now = self._app.engine.db.present(c)
            until = next_try(self._store.hold_failures(c, subjects, now), wait_after)
            if until is None or until <= now:
                for subject in subjects:
                    self._store.failed(c, subject, now)
            return self._store.password(c, name), until, now

        found, until, now = self._write(reserve)
        if until is not None and until > now:
            raise Throttled((until - now).total_seconds())
        # as long for a name that nobody has, or that has no password
        right = _verified(found[1] if found is not None and found[1] else _nobody(), password)
        session = secrets.token_urlsafe(32)

        def begin(c: Connection) -> bool:
            # verifying takes a while, in which the password may have been changed or taken away, and the user let in no more
            held = self._store.password(c, name, lock=True) if found is not None and right else None
            if held is None or found is None or (held[0].id, held[1]) != (found[0].id, found[1]) or held[0].disabled_at is not None:  # fmt: skip
                self._store.prune(c, self._app.engine.db.present(c))
                ident, told = found[0].id if found else 0, {"address": address} if address else {}
                self._store.audit(c, "anonymous", LOGIN_FAILED, "user", ident, None, level="warning", **told)
                return False
            user = held[0]
            # the name is forgiven, the address only this try: somebody may have an account of their own and guess at others
            for subject in subjects:
                self._store.forgive(c, subject, all_of_it=subject.startswith("user:"))
            self._store.add_login(c, digest(session), user.id, self._app.engine.db.present(c))
            self._store.prune(c, self._app.engine.db.present(c))
            self._store.audit(c, f"user:{user.name}", LOGGED_IN, "user", user.id, user.tenant)
            return True

        return session if self._write(begin) else None

    def by_login(self, session: str) -> Identity | None:
        """Who has a cookie; None for one whose login has ended."""
        if not 20 <= len(session) <= 200:
            return None
        key = digest(session)

        def look(c: Connection) -> tuple[tuple[User, datetime] | None, datetime]:
            now = self._app.engine.db.present(c)
            return self._store.login(c, key, now), now

        found, now = self._read(look)
        if found is None:
            return None
        user, seen = found
        if seen < now - NOTED:
            self._write(lambda c: self._store.seen(c, key, now))
        return Identity(f"user:{user.name}", user.role, user.tenant, csrf=csrf_of(session), user=user.name, key=f"user {user.id}", login=key)  # fmt: skip

    def still(self, who: Identity) -> Identity | None:
        """Who somebody is now that came in before: of the role, tenant and scopes that they have by now. None: not let in any more.

        A login that has ended lets nobody in; for what outlives a login, ask with ``replace(who, login="")``: then the user counts. Writes nothing:
        being asked for is no use of a token.
        """
        kind, _, number = who.key.partition(" ")

        def look(c: Connection) -> Identity | None:
            now = self._app.engine.db.present(c)
            if kind == "token":
                token = self._store.token(c, int(number))
                known = token is not None and token.state(now) == "active"
                return replace(who, role=token.role, tenant=token.tenant, scopes=token.scopes) if token and known else None  # fmt: skip
            if who.login:
                login = self._store.login(c, who.login, now)
                user = None if login is None else login[0]
            else:
                user = self._store.user_by_id(c, int(number))
            if user is None or user.id != int(number) or user.disabled_at is not None:
                return None
            return replace(who, role=user.role, tenant=user.tenant)

        if kind in ("token", "user"):
            return self._read(look)
        if kind == "local":  # until there is somebody
            return None if self.exist() else who
        return who if kind == "web_token" else None

    def log_out(self, session: str) -> None:
        found = self.by_login(session)

        def act(c: Connection) -> None:
            self._store.end_login(c, digest(session))
            if found is not None and found.user is not None:
                self._store.audit(c, found.actor, LOGGED_OUT, "user", self._known(c, found.user).id, found.tenant)

        self._write(act)

    # ------------------------------------------------------------------

    def _write(self, fn: Callable[[Connection], T]) -> T:
        self._app.open()
        return self._app.engine.db.write(fn)

    def _read(self, fn: Callable[[Connection], T]) -> T:
        self._app.open()
        return self._app.engine.db.read(fn)


def _why(reason: str) -> dict[str, str]:
    return {"reason": check_text(reason, "reason")} if reason else {}


def digest(secret: str) -> str:
    """What is kept of a token or a cookie: both are 256 random bits, so a plain hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def csrf_of(session: str) -> str:
    """What the mutations of a login bring along; it tells nothing of the cookie."""
    made = hmac.new(session.encode(), b"csrf", hashlib.sha256).digest()
    return base64.urlsafe_b64encode(made).decode().rstrip("=")


def _hasher() -> Any:
    try:
        from argon2 import PasswordHasher
    except ImportError:
        raise InvalidArgument("password", "cannot be kept: argon2-cffi is not installed.", 'Install it with `pip install "duly[web]"`.') from None  # fmt: skip
    return PasswordHasher()


def hashed(password: str) -> str:
    """A password as it is kept: argon2id."""
    made: str = _hasher().hash(password)
    return made


#: Passwords that are looked at side by side: each takes 64 MiB while it is.
_AT_ONCE = threading.BoundedSemaphore(2)


def _verified(kept: str, password: str) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        with _AT_ONCE:
            return bool(_hasher().verify(kept, password[:1024]))
    except (VerificationError, InvalidHashError):
        return False


_NOBODY: list[str] = []


def _nobody() -> str:
    """A hash that no password fits, as costly to look at as any other."""
    if not _NOBODY:
        _NOBODY.append(hashed(secrets.token_urlsafe(16)))
    return _NOBODY[0]
