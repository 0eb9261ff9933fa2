"""The form of a schedule: what would come of it is shown beside it, nothing that was typed is lost, and nothing is written by looking."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from duly import Daily, Duly, Weekly
from duly.kernel.windows import Window
from duly.testing import ManualClock
from web.dashboard.conftest import Person
from web.dashboard.scene import Town


@pytest.fixture(autouse=True)
def count(app: Duly) -> None:
    @app.task("count")
    def counted(path: str = "", token: str = "") -> None: ...


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
    assert ann.act("/schedules/form", **DAILY)[0] == 409  # there is one of that name
    assert ann.act("/schedules/form", **DAILY, version="1", priority="3")[0] == 303
    status, page = ann.act("/schedules/form", **{**DAILY, "at": "04:00"}, version="1")
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
        assert ann.act("/schedules/form", **DAILY, version=version)[0] in (409, 422)
    assert ann.act("/schedules/form", version="1")[0] in (409, 422)
    assert "books" not in [s.name for s in app.schedules.all()]
