"""Who is not written to: a list for each tenant. Works without the task, for those who only keep the list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duly.kernel.payload import check_name, check_text, check_whole
from duly.mail.address import normalised
from duly.mail.store import MailStore, Suppression

if TYPE_CHECKING:
    from duly.mail.host import Host


class Suppressions:
    """``mail.suppressions``. ``tenant``: whose list; without it the application's. Changes are audited by a hash, never by the address."""

    def __init__(self, app: Host) -> None:
        self._app = app

    def add(self, address: str, reason: str = "", *, tenant: str | None = None, actor: str = "code") -> bool:
        """Write to this address no more. False when it was on the list already. Raises InvalidArgument."""
        found, why = normalised(address), check_text(reason, "reason") or None
        at = self._tenant(tenant)
        return self._write(lambda store, c: store.suppress(c, at, found, why, actor)) is not None

    def remove(self, address: str, reason: str = "", *, tenant: str | None = None, actor: str = "code") -> bool:
        """Write to this address again. False when it was not on the list. Raises InvalidArgument."""
        found, why = normalised(address), check_text(reason, "reason") or None
        at = self._tenant(tenant)
        return bool(self._write(lambda store, c: store.unsuppress(c, at, found, why, actor)))

    def has(self, address: str, *, tenant: str | None = None) -> bool:
        """Is this address on the list? Raises InvalidArgument."""
        found, at = normalised(address), self._tenant(tenant)
        self._app.open()
        db = self._app.engine.db
        return bool(db.read(lambda c: MailStore(db).suppressed(c, at, [found])))

    def list(
        self, *, tenant: str | None = None, limit: int = 100, after: tuple[str, str] | None = None
    ) -> list[Suppression]:
        """The list, by tenant and address; without ``tenant`` of all of them. ``after``: (tenant, address), the last of the page before."""
        check_whole(limit, "limit", 1, 10_000)
        self._app.open()
        db = self._app.engine.db
        return db.read(lambda c: MailStore(db).suppressions(c, tenant, limit, after))

    def _tenant(self, tenant: str | None) -> str:
        return self._app.settings.tenant if tenant is None else check_name(tenant, "tenant")

    def _write(self, fn: Any) -> Any:
        self._app.open()
        db = self._app.engine.db
        return db.write(lambda c: fn(MailStore(db), c))
