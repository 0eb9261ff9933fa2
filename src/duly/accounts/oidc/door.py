"""``SignOn(app)``: logins through a provider begin here, come back here, and become logins like any other.

A person is known by issuer and subject, which never change; their name is that of their first login, and stays, because the audit trail has it.
Nobody gets an account of somebody else by having the same name.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from duly.accounts.account import Claimed, LoginRefused, User
from duly.accounts.door import LOGGED_IN, LOGIN_FAILED, USER_CHANGED, USER_CREATED, digest
from duly.accounts.oidc import claims as reading
from duly.accounts.oidc import options
from duly.accounts.oidc.flow import LIFE, Flow, begun, sealed
from duly.accounts.oidc.options import Options
from duly.accounts.store import AccountStore
from duly.jobs.host import Host
from duly.kernel.errors import InvalidArgument
from duly.settings import Settings

if TYPE_CHECKING:
    from duly.accounts.oidc.provider import Provider

T = TypeVar("T")

#: What it needs besides Duly: the extra ``oidc``.
NEEDED = ("joserfc", "httpx2")
OIDC = "oidc"


def ready(given: Settings) -> Options | None:
    """The options; None where nobody asked for OpenID Connect. Raises InvalidArgument, also where what it needs is not installed."""
    found = options.read(given)
    lacking = next((name for name in NEEDED if importlib.util.find_spec(name) is None), None)
    if found is not None and lacking is not None:
        raise InvalidArgument("oidc_issuer", f"needs {lacking}, which is not installed.", 'Install it with `pip install "duly[oidc]"`.')  # fmt: skip
    return found


class SignOn:
    """Logins through the provider that the settings name."""

    def __init__(self, app: Host, chosen: Options) -> None:
        from duly.accounts.oidc.provider import Provider

        self._app, self.options = app, chosen
        self.provider: Provider = Provider(chosen)

    @property
    def _store(self) -> AccountStore:
        return AccountStore(self._app.engine.db)

    # ------------------------------------------------------------------ on the way

    def begin(self) -> str:
        """What the cookie of a new flow holds. Nothing is written: anybody can ask for one."""
        return sealed(secrets.token_bytes(32), self._read(self._app.engine.db.present), self._key)

    def resume(self, secret: str) -> tuple[Flow, datetime] | None:
        """The flow of a cookie, and the time; None for one that is over, or has been taken before. Writes nothing."""
        at = begun(secret, self._key)
        if at is None:
            return None
        was_taken, now = self._read(lambda c: (self._store.was_taken(c, digest(secret)), self._app.engine.db.present(c)))  # fmt: skip
        return None if was_taken or at <= now - LIFE else (Flow(secret), now)

    def take(self, secret: str) -> bool:
        """True once for each flow, in which process ever: for who has come back with what the provider stands for."""

        def act(c: Connection) -> bool:
            return self._store.take_flow(c, digest(secret), self._app.engine.db.present(c), LIFE)

        return begun(secret, self._key) is not None and self._write(act)

    @property
    def _key(self) -> bytes:
        """The same in each process, and known to no browser where the client has a secret."""
        o = self.options
        return hmac.new(o.client_secret.encode(), f"{o.issuer} {o.client_id}".encode(), hashlib.sha256).digest()

    # ------------------------------------------------------------------ back again

    def enter(self, claims: Mapping[str, Any]) -> str:
        """Let somebody in of whom a provider says this. Returns what their cookie holds. Raises LoginRefused, and puts that on record."""
        try:
            claimed = reading.read(claims, self.options)
        except LoginRefused as refused:
            subject, why = str(claims.get("sub", ""))[: reading.LONGEST_SUBJECT], refused
            self._write(lambda c: self._refuse(c, subject, why))
            raise
        session = secrets.token_urlsafe(32)

        def act(c: Connection) -> LoginRefused | None:
            now, store = self._app.engine.db.present(c), self._store
            try:
                user = self._account(c, claimed, now)
            except LoginRefused as refused:
                self._refuse(c, claimed.subject, refused)
                return refused
            store.add_login(c, digest(session), user.id, now)
            store.prune(c, now)
            store.audit(c, f"user:{user.name}", LOGGED_IN, "user", user.id, user.tenant, by=OIDC)
            return None

        refusal = self._write(act)
        if refusal is not None:
            raise refusal
        return session

    def _account(self, c: Connection, claimed: Claimed, now: datetime) -> User:
        """The account of a person as it is to be from now on; made if there is none. Raises LoginRefused."""
        store = self._store
        known = store.identified(c, claimed.issuer, claimed.subject)
        if known is not None:  # who is unlinked or disabled while this waits is so afterwards
            store.hold_user(c, known.id)
            known = store.identified(c, claimed.issuer, claimed.subject)
        if known is None:
            try:
                with c.begin_nested():
                    ident = store.add_user(c, claimed.name, claimed.role, claimed.tenant, "", now)
                    store.identify(c, claimed.issuer, claimed.subject, ident, now)
            except IntegrityError:
                # somebody has the name; or it is the same person, from another tab
                known = store.identified(c, claimed.issuer, claimed.subject)
                if known is None:
                    raise LoginRefused("name_taken", f"There is a user {claimed.name!r} already, who is not known to log in with this provider. An administrator can say that it is you (duly users link).", claimed.name) from None  # fmt: skip
            else:
                store.audit(
                    c, f"user:{claimed.name}", USER_CREATED, "user", ident, claimed.tenant, name=claimed.name, role=claimed.role.word, by=OIDC,
                    issuer=claimed.issuer, subject=claimed.subject,
                )  # fmt: skip
                known = store.identified(c, claimed.issuer, claimed.subject)
                assert known is not None
        if known.disabled_at is not None:
            raise LoginRefused("disabled", "You are not let in any more. Ask an administrator.")
        changed = reading.changes(known, claimed)
        if changed:
            store.change_user(c, known.id, now, **changed)
            store.audit(c, f"user:{known.name}", USER_CHANGED, "user", known.id, changed.get("tenant", known.tenant), name=known.name, fields=sorted(changed), by=OIDC)  # fmt: skip
        store.came(c, claimed.issuer, claimed.subject, now)
        again = store.identified(c, claimed.issuer, claimed.subject)
        assert again is not None
        return again

    def _refuse(self, c: Connection, subject: str, refused: LoginRefused) -> None:
        """Write it down; and whoever was let in before, and would not be now, is out."""
        user = self._store.identified(c, self.options.issuer, subject) if subject.isprintable() else None
        if user is not None:
            self._store.end_logins(c, user.id)
        shown, told = subject if subject.isprintable() else "", {}
        if (
            user is not None and refused.reason == "groups_overage"
        ):  # it stays what it was, and lets them do nothing meanwhile
            told = {"role": user.role.word}
        if refused.name:  # whose name it is, of whom nothing is touched
            user, told = self._store.user(c, refused.name), {"name": refused.name}
        self._store.audit(
            c, "anonymous", LOGIN_FAILED, "user", 0 if user is None else user.id, None, level="warning", by=OIDC, reason=refused.reason,
            issuer=self.options.issuer, subject=shown, **told,
        )  # fmt: skip

    # ------------------------------------------------------------------

    def _write(self, fn: Callable[[Connection], T]) -> T:
        self._app.open()
        return self._app.engine.db.write(fn)

    def _read(self, fn: Callable[[Connection], T]) -> T:
        self._app.open()
        return self._app.engine.db.read(fn)
