"""What operators do on the pages, and that it stands on record with who did it and why."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep

import pytest
from starlette.testclient import TestClient

from duly import Duly
from duly.accounts.door import Accounts
from duly.audit.read import Entry, TrailFilter, find
from duly.automations import Automations
from duly.jobs.filter import JobFilter
from duly.outbox import Outbox
from duly.publishing.door import Publishing
from duly.testing import ManualClock
from duly.web.app import create
from duly.web.gate import COOKIE
from web.dashboard.conftest import PASSWORD, Person, said
from web.dashboard.scene import Town
from web.dashboard.test_bulk import Shown, pressed, told


def last(app: Duly, **wanted: str) -> Entry:
    return app.db.read(lambda c: find(c, TrailFilter(**wanted), 1))[0]


def test_a_job_is_cancelled_and_replayed_with_a_reason(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann = person("operator")
    status, words = ann.act(f"/jobs/{town.queued}/cancel", reason="not wanted")
    assert (status, words) == (303, f"Job {town.queued} is cancelled.")
    entry = last(app, entity="job", entity_id=str(town.queued))
    assert (entry.actor, entry.meta["reason"]) == ("user:operator0", "not wanted")
    assert "queued again" in ann.act(f"/jobs/{town.failed}/replay", reason="closed now")[1]
    assert app.jobs.get(town.failed).status == "queued"


def test_an_act_that_is_refused_is_said_on_the_page_it_was_asked_from(person: Callable[..., Person], town: Town) -> None:  # fmt: skip
    ann = person("operator")
    answer = ann.post(f"/jobs/{town.queued}/replay", data={"csrf": ann.csrf, "back": "/jobs?queue=mail"})
    assert answer.headers["location"] == "/jobs?queue=mail"
    assert "replay" in said(ann, answer)
    assert ann.act("/jobs/999999999/cancel")[0] == 404


def begun(ann: Person, query: str, **more: str) -> str:
    """Press the button of the page that asks before an act on many. Returns the page that tells of it."""
    return pressed(ann, Shown(ann, query), **more)


def test_what_was_begun_on_many_can_be_undone_by_who_began_it_as_long_as_nothing_is_done(
    person: Callable[..., Person], town: Town, app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.web.dashboard.bulk.WINDOW", 60.0)
    ann, ben = person("operator"), person("operator")
    before = app.jobs.count(queue="media", status=("cancelled",))
    where = begun(ann, "event=cancel&queue=media")
    assert "Begins in 60 s. Nothing has been done yet." in ann.get(where).text
    assert ben.get(where).status_code == 404  # nobody else sees or undoes it
    assert ben.act(f"{where}/undo")[0] == 404
    assert ann.act(f"{where}/undo") == (303, "Undone: no job was touched.")
    assert "Undone: no job was touched." in ann.get(where).text
    assert app.jobs.count(queue="media", status=("cancelled",)) == before
    assert last(app, entity="job").action != "JOB_CANCELLED"


def test_many_are_replayed_by_filter_without_what_a_person_cancelled_which_is_chosen(
    person: Callable[..., Person], town: Town, app: Duly
) -> None:  # D5, R002-25
    ann = person("operator")
    app.jobs.cancel(town.queued, "withdrawn", "ann")
    task = app.jobs.get(town.queued).task
    assert town.queued not in app.jobs.admin.matching(JobFilter(task=task), "replay")
    assert ann.get(f"/jobs/act?event=replay&task={task}&status=cancelled").status_code == 422
    where = begun(ann, f"event=replay&ids={town.queued}", reason="right after all")
    while "Back to the jobs" not in ann.get(where).text:
        sleep(0.05)
    assert app.jobs.get(town.queued).status == "queued"


def test_what_is_done_to_many_is_done_and_cannot_be_undone_any_more(
    person: Callable[..., Person], town: Town, app: Duly
) -> None:
    ann = person("operator")
    where = begun(ann, f"event=cancel&ids={town.queued}", reason="twice")
    while "Back to the jobs" not in ann.get(where).text:
        sleep(0.05)
    assert ann.act(f"{where}/undo") == (303, "It had begun already.")
    assert (app.jobs.get(town.queued).status, last(app, action="JOB_CANCELLED").meta["reason"]) == (
        "cancelled",
        "twice",
    )


def test_many_are_acted_on_as_the_button_says(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann = person("operator")
    shown = Shown(ann, "event=cancel&queue=media")
    waiting = app.jobs.count(queue="media", status=("queued",))
    assert shown.button == f"Cancel {waiting} jobs"
    app.enqueue("image.resize", {"path": "late"}, queue="media")  # after the button was made
    assert told(ann, pressed(ann, shown, reason="disk")).startswith(f"{waiting} jobs are cancelled, or asked to stop.")
    assert app.jobs.count(queue="media", status=("queued",)) == 1
    assert ann.act("/jobs/act", event="cancel")[1].startswith("jobs")
    assert ann.act("/jobs/act", event="cancel", jobs="999999", mark="m")[1] == "None of them can be cancelled."


def test_queues_and_the_gate_are_moved(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann = person("admin")
    ann.act("/queues/pause", queue="mail", reason="printer on fire")
    assert app.queues.get("mail").paused_reason == "printer on fire"
    ann.act("/queues/resume", queue="mail")
    ann.act("/queues/release", queue="default")
    ann.act("/queues/limits", queue="mail", limit="2", key_limit="", rate="10", per="1m", fair="yes")
    found = app.queues.get("mail")
    assert (found.paused_at, found.limit, found.key_limit, found.fair) == (None, 2, None, True)
    assert found.rate is not None
    assert (found.rate.count, found.rate.seconds) == (10, 60)
    assert app.queues.get("default").held_until is None
    assert "limit" in ann.act("/queues/limits", queue="mail", limit="many")[1]
    assert "closed" in ann.act("/gate", to="offline", reason="stocktaking")[1]
    assert not app.gate.is_online
    assert "stocktaking" in ann.get("/").text
    ann.act("/gate", to="online")
    assert app.gate.is_online
    page = ann.get("/queues").text
    assert ("Close the gate…" in page, "Open the gate…" in page) == (True, False)
    assert "closed for the outbox" in ann.act("/gate", to="offline", scope="outbox")[1]  # R003-14, X6
    assert (app.gate.is_online, app.gate.is_outbox_online) == (True, False)
    assert "offline for the outbox" in ann.get("/").text
    page = ann.get("/queues").text
    assert ("Close the gate…" in page, "Open the gate…" in page) == (True, True)
    ann.act("/gate", to="offline", scope="jobs")
    assert "open for jobs" in ann.act("/gate", to="online", scope="jobs")[1]
    assert (app.gate.is_online, app.gate.is_outbox_online) == (True, False)
    assert "scope" in ann.act("/gate", to="offline", scope="rounds")[1]
    ann.act("/gate", to="online")
    assert app.gate.is_outbox_online


def test_a_schedule_is_paused_resumed_run_and_filled(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann = person("operator")
    which = {"name": "feeds", "tenant": "default"}
    ann.act("/schedules/pause", **which, reason="holiday")
    assert app.schedules.get("feeds").paused_reason == "holiday"
    ann.act("/schedules/resume", **which)
    assert app.schedules.get("feeds").paused_at is None
    assert "was run by hand: job" in ann.act("/schedules/run", **which)[1]
    span = {"start": "2026-03-27T00:00:00Z", "end": "2026-03-27T01:00:00Z"}
    assert "4 occurrences would fire" in ann.act("/schedules/backfill", **which, **span, what="look")[1]
    assert "4 occurrences fired" in ann.act("/schedules/backfill", **which, **span, what="fire")[1]
    assert "start" in ann.act("/schedules/backfill", **which, start="soon", end="later")[1]


def test_an_automation_is_run_paused_resumed_and_stopped(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann, room = person("operator"), Automations.of(app)
    assert room.session(town.session).is_active
    assert "paused" in ann.act(f"/automations/sessions/{town.session}/pause", reason="lunch")[1]
    holder = next(slot.session_id for slot in room.slots())
    assert holder != town.session
    assert "stopped" in ann.act(f"/automations/sessions/{town.session}/stop", reason="enough")[1]
    ann.act(f"/automations/{town.automation}/disable")
    assert not room.get(town.automation).is_enabled
    ann.act(f"/automations/{town.automation}/enable")
    assert room.get(town.automation).is_enabled
    assert "was made" in ann.act(f"/automations/{town.automation}/run")[1]


def test_a_chat_is_begun_spoken_in_and_closed(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann, room = person("operator"), Automations.of(app)
    answer = ann.post("/automations/chat", data={"csrf": ann.csrf, "text": "Good morning", "slot": "other"})
    ident = int(answer.headers["location"].rpartition("/")[2])
    ann.act(f"/automations/sessions/{ident}/say", text="And the tide?")
    assert [one.message.text for one in room.transcript(ident)] == ["Good morning", "And the tide?"]
    assert "over" in ann.act(f"/automations/sessions/{ident}/close")[1]
    assert "text" in ann.act(f"/automations/sessions/{ident}/say", text=" ")[1]


def test_a_run_is_answered_and_cancelled(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann = person("operator")
    assert "give ann a key" in ann.get(f"/workflows/{town.run}").text
    assert "yes or no" in ann.act(f"/workflows/{town.run}/answer", answer="perhaps")[1]
    assert "was told yes" in ann.act(f"/workflows/{town.run}/answer", answer="yes", reason="she is known")[1]
    assert last(app, action="WORKFLOW_APPROVED").actor == "user:operator0"
    assert "waiting for a person" in ann.act(f"/workflows/{town.run}/answer", answer="yes")[1]
    ann.act(f"/workflows/{town.run}/cancel", reason="enough")
    assert app.workflows.get(town.run).state == "cancelled"
    assert "cancelled" in ann.act(f"/workflows/{town.run}/signal", event="news")[1]


def test_a_parked_message_is_sent_again(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann, box = person("operator"), Outbox(app)
    assert "destination" in ann.act("/outbox/redrive")[1]
    # what a person has parked is sent by its id alone (R002-25)
    assert "0 messages" in ann.act("/outbox/redrive", destination="webhook:town")[1]
    assert "is due again" in ann.act(f"/outbox/{town.message}/redrive", reason="it is open")[1]
    assert box.get(town.message).status == "pending"


def test_a_publication_is_replayed_and_called_off(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann = person("operator")
    assert "tried again" in ann.act(f"/publishing/{town.post}/replay", reason="a smaller picture")[1]
    assert Publishing.of(app).get(town.post).status == "pending"
    assert "called off" in ann.act(f"/publishing/{town.post}/cancel")[1]
    assert Publishing.of(app).get(town.post).status == "cancelled"


def test_alerts_are_judged_and_noted(person: Callable[..., Person], town: Town, app: Duly) -> None:
    ann = person("operator")
    assert "Judged" in ann.act("/alerts/judge")[1]
    assert town.alert
    assert "is noted by" in ann.act(f"/alerts/{town.alert}/ack", reason="I know")[1]
    assert app.alerts.get(town.alert).acked_by is not None


def test_the_chain_is_verified(person: Callable[..., Person], town: Town) -> None:
    assert "The chain holds" in person("admin").act("/audit/verify")[1]


# ---------------------------------------------------------------------- coming in


def test_a_login_is_new_each_time_and_ends(app: Duly) -> None:  # X8
    Accounts(app).create_user("ann", PASSWORD, "admin")
    client = TestClient(create(app), base_url="https://duly.example", follow_redirects=False)
    led = client.get("/jobs?queue=a", headers={"Accept": "text/html"})
    assert led.headers["location"] == "/login?next=%2Fjobs%3Fqueue%3Da"
    assert 'name="next" value="/jobs?queue=a"' in client.get(led.headers["location"]).text
    form = {"name": "ann", "password": PASSWORD, "next": "/jobs?queue=a"}
    answer = client.post("/login", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?queue=a")
    cookie = answer.headers["set-cookie"].lower()
    for word in ("httponly", "samesite=lax", "secure", "path=/"):
        assert word in cookie
    first = client.cookies[COOKIE]
    client.post("/login", data=form)
    assert client.cookies[COOKIE] != first
    assert Accounts(app).by_login(first) is None  # the one before has ended
    second = client.cookies[COOKIE]
    page = client.get("/").text
    csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
    assert client.post("/logout", data={"csrf": csrf}).headers["location"] == "/login"
    assert Accounts(app).by_login(second) is None


def test_a_login_over_http_is_kept_there_too(app: Duly) -> None:
    Accounts(app).create_user("ann", PASSWORD, "viewer")
    client = TestClient(create(app), base_url="http://127.0.0.1", follow_redirects=False)
    assert (
        "secure" not in client.post("/login", data={"name": "ann", "password": PASSWORD}).headers["set-cookie"].lower()
    )


def test_wrong_passwords_are_told_alike_and_then_made_to_wait(app: Duly, time: ManualClock) -> None:  # X8
    Accounts(app).create_user("ann", PASSWORD, "admin")
    client = TestClient(create(app), follow_redirects=False)
    known = client.post("/login", data={"name": "ann", "password": "wrong"})
    other = client.post("/login", data={"name": "bob", "password": "wrong"})
    assert known.status_code == other.status_code == 401
    assert known.text.replace("ann", "bob") == other.text
    for _ in range(6):
        answer = client.post("/login", data={"name": "ann", "password": "wrong"})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    assert "Too many wrong passwords" in answer.text
    time.advance(3_600)
    assert client.post("/login", data={"name": "ann", "password": PASSWORD}).status_code == 303


@pytest.mark.parametrize("to", ["https://example.com", "//example.com", "/\\example.com", "javascript:alert(1)", "\\\\example.com", "/a\nb"])  # fmt: skip
def test_nobody_is_led_away_from_here(app: Duly, to: str) -> None:
    Accounts(app).create_user("ann", PASSWORD, "admin")
    client = TestClient(create(app), follow_redirects=False)
    assert client.post("/login", data={"name": "ann", "password": PASSWORD, "next": to}).headers["location"] == "/"


def test_pages_of_other_sites_act_on_nothing(local: TestClient, town: Town, app: Duly) -> None:  # X8
    for headers in ({"Origin": "https://example.com"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "duly.example"}):
        assert local.post("/gate", data={"to": "offline"}, headers=headers).status_code == 403
    assert app.gate.is_online
