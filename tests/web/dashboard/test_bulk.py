"""Acts on many: what was shown is what is done, once, by who still may."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from time import sleep
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from duly import Duly, PermanentError
from duly.accounts.door import Accounts
from duly.kernel.errors import InvalidArgument
from duly.testing import drain
from duly.web.bulk import BulkActs
from duly.web.dashboard.bulk import packed, unpacked
from web.dashboard.conftest import PASSWORD, Person, said
from web.hands import begin_now


@pytest.fixture(autouse=True)
def tasks(app: Duly) -> None:
    @app.task("fold", queue="paper")
    def fold(n: int = 0) -> int:
        return n

    @app.task("tear", queue="paper")
    def tear(n: int = 0) -> None:
        raise PermanentError("torn")


class Shown(HTMLParser):
    """The form of a page that asks before it acts: its fields, and its button."""

    def __init__(self, ann: TestClient, query: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.button, self._in, self._on = "", False, False
        self.feed(ann.get(f"/jobs/act?{query}").text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self._in = given.get("action") == "/jobs/act"
        elif self._in and tag == "input" and given.get("name"):
            self.fields[str(given["name"])] = given.get("value") or ""
        self._on = self._in and tag == "button"

    def handle_endtag(self, tag: str) -> None:
        self._on = False
        self._in = self._in and tag != "form"

    def handle_data(self, data: str) -> None:
        if self._on:
            self.button += data


def pressed(ann: TestClient, shown: Shown, **more: str) -> str:
    """Press its button. Returns the page that tells of it."""
    answer = ann.post("/jobs/act", data={**shown.fields, **more})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def told(ann: TestClient, where: str) -> str:
    """What the page of an act says when it is over."""
    for _ in range(600):
        page = ann.get(where).text
        if "Back to the jobs" in page:
            return page.partition('class="lead">')[2].partition("</p>")[0]
        sleep(0.05)
    raise AssertionError(page)


@pytest.mark.parametrize(
    "blank", ["queue=%20", "key=%20", "error=", "queue=paper&queue=%20", "since=%20&status=queued"]
)
def test_a_filter_of_blanks_is_none(person: Callable[..., Person], app: Duly, blank: str) -> None:
    ann = person("operator")
    app.enqueue("fold")
    answer = ann.get(f"/jobs/act?event=cancel&{blank}")
    assert answer.status_code == 422
    assert "besides a status" in answer.text
    assert "All that fit" not in ann.get(f"/jobs?{blank}").text


def test_an_act_on_many_reaches_those_that_were_counted_and_no_other(person: Callable[..., Person], app: Duly) -> None:
    ann = person("operator")
    old, first, second = (app.enqueue("tear", {"n": n}).job.id for n in range(3))
    drain(app)
    app.jobs.replay(old)
    shown = Shown(ann, "event=replay&queue=paper")
    assert shown.button == "Replay 2 jobs"
    drain(app)  # the oldest of all fails again, and fits by now
    assert told(ann, pressed(ann, shown)) == "2 jobs are queued again."
    assert [app.jobs.get(one).status for one in (old, first, second)] == ["failed", "queued", "queued"]


def test_what_has_changed_since_it_was_counted_is_refused_by_itself(person: Callable[..., Person], app: Duly) -> None:
    ann = person("operator")
    first, second = (app.enqueue("tear", {"n": n}).job.id for n in range(2))
    drain(app)
    shown = Shown(ann, "event=replay&queue=paper")
    app.jobs.replay(first)
    said_ = told(ann, pressed(ann, shown))
    assert said_.startswith("1 job is queued again. 1 job could not be:"), said_
    assert app.jobs.get(second).status == "queued"
    drain(app)
    shown = Shown(ann, "event=replay&queue=paper")
    app.jobs.replay(first)
    app.jobs.replay(second)
    assert said(ann, ann.post("/jobs/act", data=shown.fields)) == "None of them can be queued again."


@given(st.sets(st.integers(1, 2**63 - 1) | st.integers(1, 300), min_size=1).map(sorted))
def test_numbers_of_jobs_are_packed_and_come_back(ids: list[int]) -> None:
    assert unpacked(packed(ids)) == ids


def test_ten_thousand_numbers_fit_into_a_form() -> None:
    assert len(packed(range(10**9, 10**9 + 30_000, 3))) < 30_000
    assert packed(range(10**9, 10**9 + 10_000)) == "1000000000-9999"
    assert packed([7, 10, 11, 12]) == "7.3-2"


@pytest.mark.parametrize("text", ["", "0", "x", "1.", "1-0", "²", "-1", "1--1", "1-10000", "1-9999.1", str(2**63), f"{2**63 - 1}.1", f"{2**63 - 1}-1", "9" * 5000])  # fmt: skip
def test_numbers_that_no_page_has_shown_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="jobs"):
        unpacked(text)


def test_a_button_that_is_pressed_twice_acts_once(person: Callable[..., Person], app: Duly) -> None:
    ann = person("operator")
    job = app.enqueue("fold").job.id
    drain(app)
    shown = Shown(ann, f"event=replay&ids={job}&force=yes")
    where = pressed(ann, shown)
    assert pressed(ann, shown) == where
    assert told(ann, where) == "1 job is queued again."
    drain(app)
    assert pressed(ann, shown) == where  # also when it is long over
    assert app.jobs.get(job).status == "succeeded"
    assert pressed(ann, Shown(ann, f"event=replay&ids={job}&force=yes")) != where
    del shown.fields["mark"]
    assert said(ann, ann.post("/jobs/act", data=shown.fields)).startswith("mark: is missing")


def test_what_was_pressed_twice_and_undone_is_not_done(
    person: Callable[..., Person], app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.web.dashboard.bulk.WINDOW", 60.0)
    ann = person("operator")
    job = app.enqueue("fold").job.id
    shown = Shown(ann, f"event=cancel&ids={job}")
    pressed(ann, shown)
    assert ann.act(f"{pressed(ann, shown)}/undo") == (303, "Undone: no job was touched.")
    assert "Undone: no job was touched." in told(ann, pressed(ann, shown))
    assert app.jobs.get(job).status == "queued"


@pytest.mark.parametrize("change", [{"disabled": True}, {"role": "viewer"}])
def test_an_act_is_not_done_by_who_may_no_more_when_it_begins(
    person: Callable[..., Person],
    app: Duly,
    desks: list[BulkActs],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, bool | str],
) -> None:
    monkeypatch.setattr("duly.web.dashboard.bulk.WINDOW", 60.0)
    ann, accounts = person("operator"), Accounts(app)
    job = app.enqueue("fold").job.id
    where = pressed(ann, Shown(ann, f"event=cancel&ids={job}"))
    accounts.change_user("operator0", **change)  # type: ignore[arg-type]
    begin_now(desks)
    accounts.change_user("operator0", disabled=False)
    assert ann.post("/login", data={"name": "operator0", "password": PASSWORD}).status_code == 303
    assert told(ann, where) == "Nothing was done: user:operator0 may not do this any more."
    assert app.jobs.get(job).status == "queued"


def test_an_act_is_not_done_with_a_token_that_was_taken_back(
    site: FastAPI, app: Duly, desks: list[BulkActs], monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = Accounts(app)
    text, token = accounts.create_token("ci", "operator", scopes=("jobs",))
    kept, _ = accounts.create_token("other", "operator", scopes=("jobs",))
    first, second = (app.enqueue("fold", {"n": n}).job.id for n in range(2))
    with TestClient(site, follow_redirects=False) as client:
        monkeypatch.setattr("duly.web.dashboard.bulk.WINDOW", 60.0)
        for given_, job in ((text, first), (kept, second)):
            client.headers["Authorization"] = f"Bearer {given_}"
            pressed(client, Shown(client, f"event=cancel&ids={job}"))
        accounts.revoke_token(token.id)
        begin_now(desks)
    assert (app.jobs.get(first).status, app.jobs.get(second).status) == ("queued", "cancelled")


def test_an_act_goes_on_after_who_asked_has_logged_out(
    person: Callable[..., Person], app: Duly, desks: list[BulkActs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.web.dashboard.bulk.WINDOW", 60.0)
    ann = person("operator")
    job = app.enqueue("fold").job.id
    pressed(ann, Shown(ann, f"event=cancel&ids={job}"))
    ann.post("/logout", data={"csrf": ann.csrf})
    begin_now(desks)
    assert app.jobs.get(job).status == "cancelled"


@pytest.mark.parametrize(
    ("error", "words"),
    [(ValueError("row 7 holds s3cret"), "ValueError."), (InvalidArgument("reason", "is \x1b."), "reason: is \\x1b.")],
)
def test_an_act_that_an_error_stops_is_over_and_says_so(
    person: Callable[..., Person], app: Duly, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    monkeypatch.setattr("duly.web.bulk.STEP", 2)
    ann, admin = person("operator"), type(app.jobs.admin)
    act_on = admin.act_on
    jobs = [app.enqueue("fold", {"n": n}).job.id for n in range(3)]

    def breaks(self: Any, event: str, ids: list[int], *given: Any) -> object:
        if jobs[2] in ids:
            raise error
        return act_on(self, event, ids, *given)

    monkeypatch.setattr(admin, "act_on", breaks)
    shown = Shown(ann, "event=cancel&queue=paper")
    assert told(ann, pressed(ann, shown)) == f"It came to an end after 2 of 3 jobs: {words}"


def test_acts_of_one_do_not_keep_others_from_acting(
    person: Callable[..., Person], app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.web.dashboard.bulk.WINDOW", 60.0)
    theirs, ann, ben = person("operator", tenant="acme"), person("operator"), person("operator")
    asked = "event=cancel&queue=paper"
    app.enqueue("fold", tenant="acme")

    def refused(who: Person) -> str:
        answer = who.post("/jobs/act", data=Shown(who, asked).fields)
        return said(who, answer) if "/acts/" not in answer.headers["location"] else ""

    first = pressed(theirs, Shown(theirs, asked))
    assert [refused(theirs) for _ in range(4)] == [""] * 4
    assert refused(theirs) == "5 of your acts on many jobs wait or run already; try again when one of them is over."
    assert refused(ann) == ""
    theirs.act(f"{first}/undo")
    assert refused(theirs) == ""
    monkeypatch.setattr("duly.web.bulk.MOST", 6)
    assert refused(ben).startswith("6 acts on many jobs wait or run already")
