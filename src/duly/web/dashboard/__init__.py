"""The dashboard: pages for people, behind the same gate as the API. ``mount`` puts them into the application.

Pages are made on the server and can be read without JavaScript; what acts is a form. Each file of ``pages/`` is one page or a few that belong
together, with templates of its own; ``desk.py`` is what they share. They speak with rooms through their doors only. Source: ADR 0029, X8.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from duly.accounts.door import Accounts
from duly.app import Duly
from duly.web.bulk import BulkActs
from duly.web.dashboard.desk import Desk
from duly.web.dashboard.pages import PAGES


def mount(made: FastAPI, app: Duly, accounts: Accounts, acts: BulkActs) -> None:
    """Put the pages into an application, beside its API."""
    desk = Desk(app, accounts, acts)
    for routes in PAGES:
        made.include_router(routes(desk))
    made.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
