"""The form of a schedule: what would come of it is shown beside it, nothing that was typed is lost, and nothing is written by looking."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from duly import Daily, Duly, Every, Monthly, Weekly
from duly.accounts.door import Accounts
from duly.audit.read import TrailFilter, find
from duly.kernel.recurrence import Schedule
from duly.kernel.windows import Window
from duly.testing import ManualClock
from kernel.test_recurrence_forms import schedules
from web.dashboard.conftest import Person, said
from web.dashboard.scene import Town


@pytest.fixture(autouse=True)
def count(app: Duly) -> None:
    @app.task("count")
    def counted(path: str = "", token: str = "") -> None: ...


@pytest.fixture
def ann(person: Callable[..., Person]) -> Person:
    return person("operator")


DAILY = {
    "kind": "daily",
    "at": "02:30",
    "tz": "Europe/Rome",
    "name": "books",
    "task": "count",
    "expression": "left over",
}


def test_what_is_typed_is_told_in_words_with_the_next_ten_instants_and_the_days_on_which_clocks_change(
    person: Callable[..., Person], town: Town, app: Duly, time: ManualClock
) -> None:
    # R000-11
    ann = person("operator")
    time.set(time.now().replace(month=3, day=27))
    shown = ann.get("/schedules/form/try", params=DAILY).text
    assert shown.count("<tr><td>") == 10
    assert "2026-03-29 03:00:00" in shown
    assert "29 March 2026 runs at 03:00" in shown
    assert "<html" not in shown
    assert app.schedules.all() == app.schedules.all()
    assert "books" not in [s.name for s in app.schedules.all()]


def test_a_blackout_marks_the_instants_that_it_covers(person: Callable[..., Person], town: Town, app: Duly) -> None:
    app.calendars.set(Window(start="01:00", end="05:00", tz="Europe/Rome", name="quiet", scope="schedule:books"))
    shown = person("operator").get("/schedules/form/try", params=DAILY).text
    assert shown.count("deferred") == 10
    assert "quiet until" in shown


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"at": "25:00"}, "at: "), ({"at": ""}, "at: is missing"), ({"tz": "Europe/Rom"}, "Europe/Rome"), ({"kind": "lunar"}, "kind: is"),
        ({"kind": "cron", "expression": "* * *"}, "expression: "), ({"starts_at": "2026-07-27T09:00:00"}, "starts_at"),
        ({"kind": "yearly", "dates": "02-30"}, "dates"), ({"name": "a\x00b"}, "name"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_by_the_name_of_its_field_while_it_is_typed(
    person: Callable[..., Person], town: Town, given: dict[str, str], names: str
) -> None:
    shown = person("operator").get("/schedules/form/try", params={**DAILY, **given})
    assert shown.status_code == 200
    assert names in shown.text
    assert "<td>" not in shown.text


def test_a_schedule_is_made_and_changed_by_the_form(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann = person("operator")
    status, words = ann.act(
        "/schedules/form", **DAILY, input='{"path": "a.png", "token": "s3cret"}', catch_up="within(2h)"
    )
    assert (status, words) == (303, "Schedule books is made.")
    spec = app.schedules.get("books").spec
    assert spec is not None
    assert (spec.recurrence, spec.policies.catch_up_text) == (
        Daily("02:30", tz="Europe/Rome").named("books"),
        "within(7200)",
    )

    page = ann.get("/schedules/form", params={"name": "books"}).text
    assert "s3cret" not in page
    assert page.count("<tr><td>") == 10  # what it means, without a script
    shown = dict(re.findall(r'<input[^>]* name="(\w+)" value="([^"]*)"', page))
    assert (shown["at"], shown["tz"], shown["task"]) == ("02:30", "Europe/Rome", "count")
    given = {**shown, "kind": "weekly", "days": "mon, thu", "at": "06:00, 18:00"}
    status, words = ann.act("/schedules/form", **{k: v for k, v in given.items() if k not in ("csrf", "back", "q")})
    assert (status, words) == (303, "Schedule books has version 2 now.")
    spec = app.schedules.get("books").spec
    assert spec is not None
    assert spec.recurrence == Weekly(["mon", "thu"], ["06:00", "18:00"], tz="Europe/Rome").named("books")
    assert "s3cret" in spec.input  # a blank field leaves the input as it is
    entry = app.schedules.versions("books")[0]
    assert entry["made_by"] == "user:operator0"


def test_what_was_typed_stays_when_it_is_refused(person: Callable[..., Person], town: Town) -> None:
    status, page = person("operator").act("/schedules/form", **{**DAILY, "at": "half past two"}, input="{")
    assert status == 422
    assert 'value="half past two"' in page
    assert "at: " in page


def test_two_who_change_one_schedule_do_not_write_over_each_other(
    person: Callable[..., Person], town: Town, app: Duly
) -> None:
    # B076: a stale edit is refused
    ann = person("operator")
    ann.act("/schedules/form", **DAILY)
    number = str(app.schedules.get("books").id)
    assert ann.act("/schedules/form", **DAILY)[0] == 409  # there is one of that name
    assert ann.act("/schedules/form", **DAILY, version="1", id=number, priority="3")[0] == 303
    status, page = ann.act("/schedules/form", **{**DAILY, "at": "04:00"}, version="1", id=number)
    assert status == 409
    assert "Somebody else has changed it" in page
    assert app.schedules.get("books").version == 2


def test_a_viewer_gets_no_form(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann = person("viewer")
    assert ann.get("/schedules/form").status_code == 403
    assert ann.act("/schedules/form", **DAILY)[0] == 403
    assert "New schedule" not in ann.get("/schedules").text
    assert "books" not in [s.name for s in app.schedules.all()]


def test_nonsense_in_an_address_or_a_form_is_a_sentence_and_no_fault(
    person: Callable[..., Person], town: Town, app: Duly
) -> None:
    ann = person("operator")
    for path in ("/schedules/form?version=1", "/schedules/form?kind=daily&version=1"):
        assert ann.get(path).status_code == 200
    assert ann.get("/schedules/form", params={"name": "a\x00b"}).status_code == 422
    monthly = {**DAILY, "kind": "monthly"}
    for day in ("²", "9" * 5_000, "0", "32", ","):
        assert "day" in ann.get("/schedules/form/try", params={**monthly, "day": day}).text
        status, page = ann.act("/schedules/form", **monthly, day=day)
        assert (status, "day: " in page or "day[" in page) == (422, True)
    for version in ("²", "9" * 5_000):
        assert ann.act("/schedules/form", **DAILY, version=version)[0] == 409
    assert ann.act("/schedules/form", version="1")[0] in (409, 422)
    assert "books" not in [s.name for s in app.schedules.all()]


def fields_of(page: str) -> dict[str, str]:
    """The form as a browser sends it, unchanged."""
    found = page[page.index('action="/schedules/form"') :]
    found = found[: found.index("</form>")]
    out = {name: unescape(value) for name, value in re.findall(r'<input[^>]* name="(\w+)" value="([^"]*)"', found)}
    for name, options in re.findall(r'<select name="(\w+)">(.*?)</select>', found, re.S):
        out[name] = unescape(re.findall(r'<option value="([^"]*)" selected', options)[0])
    return {"input": "", **out}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    recurrence=schedules,
    name=st.sampled_from([" books ", "books", "a'b\"<&>", "бук"]),
    within=st.sampled_from(["latest", "all", "within(2h)"]),
    starts=st.none() | st.just(datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    number=st.sampled_from([2**63, 1, -(2**63)]),
)
def test_every_schedule_that_can_be_goes_through_the_form_and_is_as_it_was(
    ann: Person, app: Duly, recurrence: Schedule, name: str, within: str, starts: datetime | None, number: int
) -> None:
    spec = app.schedules.spec(name, recurrence, "elsewhere", {"n": number, "f": 0.1}, catch_up=within, starts_at=starts)
    app.schedules.set(spec)
    was = app.schedules.get(name)
    given = fields_of(ann.get("/schedules/form", params={"name": name}).text)
    answer = ann.post("/schedules/form", data=given)
    assert answer.status_code == 303, re.findall(r"banner bad.*?<span>(.*?)</span>", answer.text, re.S)
    assert "is as it was" in said(ann, answer)
    # one thing is changed: all others stay
    assert ann.post("/schedules/form", data={**given, "overlap": "skip"}).status_code == 303
    now = app.schedules.get(name)
    assert was.spec is not None
    assert now.spec is not None
    assert {**now.spec.to_json(), "overlap": "allow"} == was.spec.to_json()
    app.schedules.remove(name)


@pytest.mark.parametrize(
    ("recurrence", "field", "text"),
    [
        (Every("1h", jitter="10m"), "duration", "1h"), (Every("1h30m", jitter="10m"), "jitter", "10m"), (Every(1.5), "duration", "1.5"),
        (Monthly([1, 15], "9:00", tz="UTC"), "day", "1, 15"),
    ],
)  # fmt: skip
def test_spans_and_days_stand_in_the_form_as_people_write_them(
    ann: Person, app: Duly, recurrence: Schedule, field: str, text: str
) -> None:
    app.schedules.set(app.schedules.spec("books", recurrence, "count"))
    given = fields_of(ann.get("/schedules/form", params={"name": "books"}).text)
    assert given[field] == text
    assert ann.act("/schedules/form", **{**given, field: {"day": "1, 20"}.get(field, "90")})[0] == 303
    spec = app.schedules.get("books").spec
    assert spec is not None
    assert spec.recurrence.to_json()[field] == ([1, 20] if field == "day" else 90)


def test_looking_without_a_script_puts_nothing_into_an_address_and_writes_nothing(
    person: Callable[..., Person], town: Town, app: Duly
) -> None:
    ann = person("operator")
    page = ann.get("/schedules/form").text
    assert 'formaction="/schedules/form/look"' in page
    assert 'formmethod="get"' not in page
    status, page = ann.act("/schedules/form/look", **DAILY, input='{"token": "typed"}')
    assert (status, page.count("<tr><td>"), "typed" in page) == (200, 10, True)
    assert (
        ann.post("/schedules/form/look", data=DAILY).status_code == 403
    )  # as with every form: only from a page of ours
    assert "books" not in [s.name for s in app.schedules.all()]


def test_a_form_of_a_schedule_that_was_removed_and_made_anew_changes_nothing(
    person: Callable[..., Person], town: Town, app: Duly
) -> None:
    ann = person("operator")
    app.schedules.set(app.schedules.spec("books", Daily("09:00", tz="UTC"), "count"))
    given = fields_of(ann.get("/schedules/form", params={"name": "books"}).text)
    app.schedules.remove("books")
    assert ann.act("/schedules/form", **{**given, "at": "12:00"})[0] == 409
    app.schedules.set(app.schedules.spec("books", Daily("01:00", tz="UTC"), "count"))
    assert ann.act("/schedules/form", **{**given, "at": "12:00"})[0] == 409
    assert app.schedules.get("books").version == 1


def test_names_that_differ_in_blanks_are_two_schedules(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann = person("operator")
    for name in ("x", " x "):
        app.schedules.set(app.schedules.spec(name, Daily("09:00", tz="UTC"), "count"))
    given = fields_of(ann.get("/schedules/form", params={"name": " x "}).text)
    assert ann.act("/schedules/form", **{**given, "at": "12:00"})[0] == 303
    assert [app.schedules.get(name).version for name in ("x", " x ")] == [1, 2]
    assert ann.act("/schedules/pause", name=" x ")[0] == 303
    assert [app.schedules.get(name).state for name in ("x", " x ")] == ["active", "paused"]


def test_why_a_schedule_was_made_or_changed_stands_in_the_audit_trail(
    person: Callable[..., Person], town: Town, app: Duly
) -> None:
    ann = person("operator")
    assert 'name="reason"' in ann.get("/schedules/form").text
    ann.act("/schedules/form", **DAILY, reason="the books are kept at night")
    given = fields_of(ann.get("/schedules/form", params={"name": "books"}).text)
    ann.act("/schedules/form", **{**given, "at": "04:00", "reason": "not so early"})
    changed, made = app.db.read(lambda c: find(c, TrailFilter(entity="schedule"), 2))
    assert (made.action, made.meta["reason"]) == ("SCHEDULE_CREATED", "the books are kept at night")
    assert (changed.action, changed.meta) == ("SCHEDULE_CHANGED", {"name": "books", "version": 2, "reason": "not so early"})  # fmt: skip


def test_who_belongs_to_a_tenant_is_told_no_names_of_the_whole_system(
    person: Callable[..., Person], town: Town, app: Duly
) -> None:
    theirs, ours = person("operator", tenant="acme"), person("operator")
    assert '<option value="count">' in ours.get("/schedules/form").text
    for page in (theirs.get("/schedules/form").text, theirs.act("/schedules/form", **{**DAILY, "at": "x"})[1]):
        assert '<option value="count">' not in page
        assert re.findall(r'<datalist id="\w+">(.*?)</datalist>', page, re.S) == re.findall(
            r'<datalist id="\w+">(.*?)</datalist>', theirs.get("/jobs").text, re.S
        )


def test_names_of_blackouts_are_for_those_who_may_see_queues(site: FastAPI, app: Duly) -> None:
    app.calendars.set(Window(start="00:00", end="24:00", tz="UTC", name="hushed"))
    app.schedules.set(app.schedules.spec("books", Daily("09:00", tz="UTC"), "count"))
    pages = ("/schedules/form/try", "/schedules/form?name=books", "/schedules/show?name=books", "/calendar")
    for scopes, seen in ((("schedules",), False), (("schedules", "queues"), True)):
        token, _ = Accounts(app).create_token("-".join(scopes), "operator", scopes=scopes)
        client = TestClient(site, headers={"Authorization": f"Bearer {token}"})
        for path in pages:
            text = client.get(path, params=DAILY if "try" in path else None).text
            assert "deferred" in text
            assert ("hushed" in text) is seen, path
