"""Who did what stands on the trail (T003-i): every route that changes something is asked, and its caller is looked for there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fastapi import FastAPI
from sqlalchemy import func, select
from starlette.testclient import TestClient

from duly import Duly
from duly.audit.read import TrailFilter, find
from duly.audit.tables import audit_log
from duly.testing import ManualClock
from web.test_tenants import BODIES, EVERYBODYS, site, things
from web.walk import SAFE, filled, names, request, routes

Caller = Callable[..., TestClient]
__all__ = ["site"]
#: Routes with another method than GET that change nothing, but for what is wanted a little longer.
ASK = ("/wanted", "/preview", "/test", "/impact", "/check")
#: What is so already is left as it is.
SO = ("/enable",)


@pytest.mark.parametrize("last", [False, True], ids=["what-stays", "what-ends"])
def test_every_change_over_rest_stands_in_the_trail_with_who_asked_for_it(
    app: Duly, site: FastAPI, client: Caller, clock: ManualClock, last: bool
) -> None:
    ours = client("admin", tenant="acme")
    known = things(app, ours, clock)
    actor = app.db.read(lambda c: find(c, TrailFilter(action="TOKEN_CREATED"), 1))[0].actor
    silent, changed = [], []
    for method, path in routes(site):
        ends = method == "DELETE" or path.endswith(("/cancel", "/close", "/stop", "/disable", "/revoke"))
        if method in SAFE or not path.startswith(("/api/", "/fp-publisher/")) or path.startswith(EVERYBODYS):
            continue
        if ends is not last or path.endswith((*ASK, *SO)):
            continue
        of = max((start for start in known if path.startswith(start)), key=len, default=None)
        values = known[of] if of is not None else {}
        if not set(names(path)) <= set(values):
            continue
        given = request(site, method, path)
        given["json"] = BODIES.get((method, path), given.get("json"))
        before = app.db.read(lambda c: c.execute(select(func.max(audit_log.c.id))).scalar_one())
        answer = ours.request(method, filled(path, values), **given)
        if answer.is_success:
            new = select(audit_log.c.actor).where(audit_log.c.id > before)
            changed.append(f"{method} {path}")
            if actor not in app.db.read(lambda c, new=new: c.execute(new).scalars().all()):  # type: ignore[misc]
                silent.append(f"{method} {path}")
    assert not silent, "\n".join(silent)
    assert len(changed) > (5 if last else 10), changed
