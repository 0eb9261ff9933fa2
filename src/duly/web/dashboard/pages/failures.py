"""``/failures``: which errors jobs failed with lately, by class and time. Each number leads to the jobs that it counts."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Request, Response

from duly.accounts.account import Identity
from duly.jobs.failures import Count, Failed, failures
from duly.web.api.common import whose
from duly.web.dashboard.desk import Desk, query, sees

Viewer: TypeAlias = Annotated[Identity, sees("jobs")]
#: As the filter of jobs reads them, and how long they are.
SPANS = {
    "1h": timedelta(hours=1), "6h": timedelta(hours=6), "24h": timedelta(hours=24), "3d": timedelta(days=3), "7d": timedelta(days=7)
}  # fmt: skip
#: From how many on a cell is darker than the one before.
SHADES = (1, 10, 100)


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    @made.get("/failures")
    def show(request: Request, who: Viewer) -> Response:
        mine, now = whose(who), desk.now()
        found, more = desk.lately(("failures", mine), lambda: app._read(lambda c: failures(c, now, list(SPANS.values()), mine)))  # fmt: skip
        return desk.page(
            request, "failures.html", "Failures", rows=[_row(one) for one in found], spans=[_said(name) for name in SPANS], totals=_totals(found),
            more=more, now=now, scoped=who.tenant,
        )  # fmt: skip

    return made


def address(span: str, error: str | None = None) -> str:
    """The jobs of a cell."""
    return query("/jobs", status="failed", error=error, since=span)


def _row(one: Failed) -> dict[str, Any]:
    cells = [
        {"count": count, "shade": shade(count.number), "to": address(span, one.error), "said": _said(span)}
        for span, count in zip(SPANS, one.counts, strict=True)
    ]
    return {"error": one.error, "cells": cells, "last": one.last}


def _totals(found: list[Failed]) -> list[dict[str, Any]]:
    out = []
    for place, span in enumerate(SPANS):
        counts = [one.counts[place] for one in found]
        out.append(
            {"count": Count(sum(c.number for c in counts), any(c.capped for c in counts)), "to": address(span), "said": _said(span)}
        )  # fmt: skip
    return out


def shade(number: int) -> int:
    """How dark a cell is: 0 for none."""
    return sum(number >= least for least in SHADES)


def _said(name: str) -> str:
    return f"{name[:-1]} {name[-1]}"
