"""``/audit``: who did what to what, and when; and whether the chain still holds."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Query, Request, Response

from duly.accounts.account import Identity, Role
from duly.audit.read import TrailFilter, find, tail
from duly.audit.seal import verify
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_text, read_duration
from duly.kernel.recurrence.reading import read_instant
from duly.web.api.common import Cursor, below, page, whose
from duly.web.dashboard.desk import Act, Desk, acts, query, sees
from duly.web.dashboard.words import plural

Viewer: TypeAlias = Annotated[Identity, sees("audit")]
Admin: TypeAlias = Annotated[Act, acts("audit", Role.ADMIN, everywhere=True)]
Text: TypeAlias = Annotated[str, Query(max_length=300)]
LIMIT = 100
LEVELS = ("info", "warning", "error")


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    @made.get("/audit")
    def show(
        request: Request, who: Viewer, actor: Text = "", action: Text = "", entity: Text = "", entity_id: Text = "", level: Text = "", since: Text = "",
        before: Text = "", tenant: Text = "", cursor: Cursor = None,
    ) -> Response:  # fmt: skip
        given = {"actor": actor, "action": action, "entity": entity, "entity_id": entity_id, "level": level, "since": since, "before": before, "tenant": tenant}  # fmt: skip
        for name, value in given.items():
            check_text(value, name)
        now, problem = desk.now(), ""
        equal: dict[str, Any] = {
            name: given[name].strip() or None for name in ("actor", "action", "entity", "entity_id", "level")
        }
        rows, following = [], None
        try:
            if level and level not in LEVELS:
                raise InvalidArgument("level", f"is {level!r}.", f"Use one of {', '.join(LEVELS)}.")
            bounds: dict[str, Any] = {}
            for name in ("since", "before"):
                if given[name].strip():
                    try:
                        bounds[name] = read_instant(given[name].strip(), name)
                    except InvalidArgument:
                        bounds[name] = now - read_duration(given[name], name)
            wanted = TrailFilter(tenant=whose(who, tenant.strip() or None), **equal, **bounds)
            found = app._read(lambda c: find(c, wanted, LIMIT + 1, below(cursor)))
            kept, following = page(found, LIMIT, lambda entry: entry.id)
            rows = list(kept)
        except (InvalidArgument, OverflowError) as error:
            problem = str(error)
        here = {name: value for name, value in given.items() if value}
        return desk.page(
            request, "audit.html", "Audit", 422 if problem else 200, rows=rows, given=given, problem=problem, now=now, levels=LEVELS,
            following=query("/audit", **here, cursor=following) if following else None, first=query("/audit", **here) if cursor else None,
            several=who.tenant is None, unsealed=app._read(tail) if who.tenant is None else None,
        )  # fmt: skip

    @made.post("/audit/verify")
    def check(request: Request, form: Admin) -> Response:
        app.open()
        found = verify(app.db)
        if found.broken is not None:
            return desk.done(request, form.back, f"The chain is broken: {found.broken}.", "bad")
        more = f" {plural(found.unsealed, 'row')} are behind the last seal." if found.unsealed else ""
        return desk.done(
            request, form.back, f"The chain holds: {plural(found.rows, 'row')} in {plural(found.seals, 'seal')}.{more}"
        )

    return made
