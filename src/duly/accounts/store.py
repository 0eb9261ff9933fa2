"""Every statement of the accounts room."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, case, delete, insert, select, update

from duly.accounts.account import FORGOTTEN, IDLE, LONGEST_LOGIN, KnownAs, Role, Token, User
from duly.accounts.tables import api_tokens, login_failures, logins, oidc_flows, user_identities, users
from duly.audit.store import record
from duly.storage.database import Database
from duly.storage.rows import insert_into

T, U, L, F, P, W = api_tokens.c, users.c, logins.c, login_failures.c, user_identities.c, oidc_flows.c
_TOKEN = [
    T.id, T.name, T.prefix, T.role, T.tenant, T.scopes, T.created_at, T.created_by, T.expires_at, T.last_used_at, T.revoked_at,
]  # fmt: skip
_LOGIN = case(
    (U.password != "", "password"), (select(P.subject).where(P.user_id == U.id).correlate(users).exists(), "oidc"), else_="none"
).label("login")  # fmt: skip
_USER = [U.id, U.name, U.role, U.tenant, U.created_at, U.updated_at, U.disabled_at, _LOGIN]


class AccountStore:
    def __init__(self, db: Database) -> None:
        self.db = db
        self._insert_into: Any = insert_into(db.is_sqlite)

    # ------------------------------------------------------------------ tokens

    def add_token(
        self, c: Connection, name: str, prefix: str, digest: str, role: Role, tenant: str | None, scopes: Sequence[str], now: datetime, by: str,
        expires_at: datetime | None,
    ) -> int:  # fmt: skip
        made = insert(api_tokens).values(
            name=name, prefix=prefix, digest=digest, role=role.word, tenant=tenant, scopes=list(scopes), created_at=now, created_by=by,
            expires_at=expires_at,
        )  # fmt: skip
        ident: int = c.execute(made.returning(T.id)).scalar_one()
        return ident

    def token(self, c: Connection, ident: int) -> Token | None:
        row = c.execute(select(*_TOKEN).where(T.id == ident)).first()
        return None if row is None else _token(row)

    def by_digest(self, c: Connection, digest: str) -> Token | None:
        row = c.execute(select(*_TOKEN).where(T.digest == digest)).first()
        return None if row is None else _token(row)

    def tokens(self, c: Connection, tenant: str | None = None) -> list[Token]:
        """Tokens, the newest first; of one tenant, or all."""
        query = select(*_TOKEN).order_by(T.id.desc())
        if tenant is not None:
            query = query.where(T.tenant == tenant)
        return [_token(row) for row in c.execute(query)]

    def revoke(self, c: Connection, ident: int, now: datetime) -> bool:
        """False where there is none that is not revoked."""
        done = update(api_tokens).where(T.id == ident, T.revoked_at.is_(None)).values(revoked_at=now)
        return c.execute(done).rowcount == 1

    def used(self, c: Connection, ident: int, now: datetime) -> None:
        c.execute(update(api_tokens).where(T.id == ident).values(last_used_at=now))

    # ------------------------------------------------------------------ users

    def add_user(self, c: Connection, name: str, role: Role, tenant: str | None, password: str, now: datetime) -> int:
        """``password`` as it is kept; empty: they log in through a provider."""
        made = insert(users).values(
            name=name, role=role.word, tenant=tenant, password=password, created_at=now, updated_at=now
        )
        ident: int = c.execute(made.returning(U.id)).scalar_one()
        return ident

    def user(self, c: Connection, name: str, lock: bool = False) -> User | None:
        """A user by name. ``lock``: nobody else changes it until this transaction ends."""
        query = select(*_USER).where(U.name == name)
        row = c.execute(query.with_for_update() if lock else query).first()
        return None if row is None else _user(row, self.known_as(c, row.id))

    def user_by_id(self, c: Connection, ident: int) -> User | None:
        row = c.execute(select(*_USER).where(U.id == ident)).first()
        return None if row is None else _user(row)

    def users(self, c: Connection, tenant: str | None = None) -> list[User]:
        """Users by name; of one tenant, or all."""
        query = select(*_USER).order_by(U.name)
        if tenant is not None:
            query = query.where(U.tenant == tenant)
        known = self._all_known_as(c)
        return [_user(row, known.get(row.id, ())) for row in c.execute(query)]

    def exist(self, c: Connection) -> bool:
        """Has there ever been a user or a token?"""
        return any(c.execute(select(ident).limit(1)).first() is not None for ident in (U.id, T.id))

    def password(self, c: Connection, name: str, lock: bool = False) -> tuple[User, str] | None:
        """A user and their password as it is kept. ``lock``: nobody else changes them until this transaction ends."""
        query = select(*_USER, U.password).where(U.name == name)
        row = c.execute(query.with_for_update() if lock else query).first()
        return None if row is None else (_user(row), row.password)

    def change_user(self, c: Connection, ident: int, now: datetime, **values: Any) -> None:
        c.execute(update(users).where(U.id == ident).values(updated_at=now, **values))

    # ------------------------------------------------------------------ through a provider

    def identified(self, c: Connection, issuer: str, subject: str) -> User | None:
        """Who is known to a provider as this."""
        query = select(*_USER).join(user_identities, P.user_id == U.id).where(P.issuer == issuer, P.subject == subject)
        row = c.execute(query).first()
        return None if row is None else _user(row)

    def hold_user(self, c: Connection, ident: int) -> None:
        """Nobody else changes them until this transaction ends."""
        c.execute(select(U.id).where(U.id == ident).with_for_update())

    def known_as(self, c: Connection, ident: int) -> tuple[KnownAs, ...]:
        query = select(P.issuer, P.subject).where(P.user_id == ident).order_by(P.created_at, P.issuer, P.subject)
        return tuple(KnownAs(row.issuer, row.subject) for row in c.execute(query))

    def _all_known_as(self, c: Connection) -> dict[int, tuple[KnownAs, ...]]:
        found: dict[int, tuple[KnownAs, ...]] = {}
        for row in c.execute(select(P.user_id, P.issuer, P.subject).order_by(P.created_at, P.issuer, P.subject)):
            found[row.user_id] = (*found.get(row.user_id, ()), KnownAs(row.issuer, row.subject))
        return found

    def forget(self, c: Connection, one: KnownAs) -> None:
        """A provider's person is nobody's any more."""
        c.execute(delete(user_identities).where(P.issuer == one.issuer, P.subject == one.subject))

    def identify(self, c: Connection, issuer: str, subject: str, user_id: int, now: datetime) -> None:
        c.execute(insert(user_identities).values(issuer=issuer, subject=subject, user_id=user_id, created_at=now))

    def came(self, c: Connection, issuer: str, subject: str, now: datetime) -> None:
        c.execute(update(user_identities).where(P.issuer == issuer, P.subject == subject).values(seen_at=now))

    def was_taken(self, c: Connection, digest: str) -> bool:
        return c.execute(select(W.digest).where(W.digest == digest)).first() is not None

    def take_flow(self, c: Connection, digest: str, now: datetime, life: timedelta) -> bool:
        """True once for each flow. Those that are over are forgotten: they are too old to be taken."""
        c.execute(delete(oidc_flows).where(W.taken_at <= now - life))
        made = self._insert_into(oidc_flows).values(digest=digest, taken_at=now).on_conflict_do_nothing()
        return c.execute(made.returning(W.digest)).first() is not None

    # ------------------------------------------------------------------ logins

    def add_login(self, c: Connection, digest: str, user_id: int, now: datetime) -> None:
        c.execute(insert(logins).values(digest=digest, user_id=user_id, created_at=now, seen_at=now))

    def login(self, c: Connection, digest: str, now: datetime) -> tuple[User, datetime] | None:
        """The user of a login that has not ended, and when it was used last."""
        query = (
            select(*_USER, L.seen_at).join(users, U.id == L.user_id)
            .where(L.digest == digest, L.seen_at > now - IDLE, L.created_at > now - LONGEST_LOGIN, U.disabled_at.is_(None))
        )  # fmt: skip
        row = c.execute(query).first()
        return None if row is None else (_user(row), row.seen_at)

    def seen(self, c: Connection, digest: str, now: datetime) -> None:
        c.execute(update(logins).where(L.digest == digest).values(seen_at=now))

    def end_login(self, c: Connection, digest: str) -> None:
        c.execute(delete(logins).where(L.digest == digest))

    def end_logins(self, c: Connection, user_id: int) -> None:
        c.execute(delete(logins).where(L.user_id == user_id))

    def prune(self, c: Connection, now: datetime) -> None:
        """Forget logins that have ended, and old failures."""
        c.execute(delete(logins).where((L.seen_at <= now - IDLE) | (L.created_at <= now - LONGEST_LOGIN)))
        c.execute(delete(login_failures).where(F.last_at <= now - FORGOTTEN))

    # ------------------------------------------------------------------ wrong passwords

    def hold_failures(self, c: Connection, subjects: Sequence[str], now: datetime) -> list[tuple[int, datetime]]:
        """(how many in a row, the last) of subjects that have failed lately; nobody else counts theirs until this transaction ends."""
        for subject in subjects:
            made = self._insert_into(login_failures).values(subject=subject, count=0, last_at=now)
            c.execute(made.on_conflict_do_nothing())
        query = select(F.count, F.last_at).where(F.subject.in_(subjects)).order_by(F.subject).with_for_update()
        return [(row.count, row.last_at) for row in c.execute(query) if row.last_at > now - FORGOTTEN]  # type: ignore[misc]

    def failed(self, c: Connection, subject: str, now: datetime) -> None:
        made = self._insert_into(login_failures).values(subject=subject, count=1, last_at=now)
        c.execute(made.on_conflict_do_update(index_elements=[F.subject], set_={"count": F.count + 1, "last_at": now}))

    def forgive(self, c: Connection, subject: str, all_of_it: bool) -> None:
        """Forget what a subject has failed; or only the last try, which was right."""
        c.execute(update(login_failures).where(F.subject == subject).values(count=0 if all_of_it else F.count - 1))

    def audit(self, c: Connection, actor: str, action: str, entity: str, ident: object, tenant: str | None, level: str = "info", **meta: Any) -> None:  # fmt: skip
        record(
            self.db,
            c,
            actor=actor,
            action=action,
            entity=entity,
            entity_id=ident,
            tenant=tenant or "system",
            level=level,
            meta=meta,
        )


def next_try(failures: Sequence[tuple[int, datetime]], wait: Any) -> datetime | None:
    """When the next password is looked at, by what has failed before; None: now."""
    tries = [last + wait(count) for count, last in failures if wait(count) > timedelta(0)]
    return max(tries, default=None)


def _token(row: Any) -> Token:
    return Token(
        row.id, row.name, row.prefix, Role[row.role.upper()], row.tenant, tuple(row.scopes), row.created_at, row.created_by, row.expires_at,
        row.last_used_at, row.revoked_at,
    )  # fmt: skip


def _user(row: Any, identities: tuple[KnownAs, ...] = ()) -> User:
    return User(row.id, row.name, Role[row.role.upper()], row.tenant, row.created_at, row.updated_at, row.disabled_at, row.login, identities)  # fmt: skip
