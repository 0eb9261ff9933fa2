"""The pages in a real browser: nothing in its console, nothing that the policy of the site refuses, nothing that axe finds; what an operator does
with mouse and keys; and a picture of every page for the documentation.

They are skipped where there is no Chromium; ``apt-get install chromium chromium-driver`` brings one. Pictures are written to docs/screenshots
when DULY_SCREENSHOTS is set; else they go to the test's own folder.
"""

from __future__ import annotations

import base64
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from sqlalchemy import delete
from starlette.applications import Starlette
from starlette.routing import Mount

from duly import Duly
from duly.accounts.door import Accounts
from duly.accounts.tables import logins, users
from duly.web.app import create
from web.dashboard.conftest import PASSWORD
from web.dashboard.scene import SETTINGS, Town, clock, fill

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytest.importorskip("selenium", reason="selenium is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no chromium and chromedriver here: apt-get install chromium chromium-driver"),
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # a browser beside a load is slow, not red
]  # fmt: skip

from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

ROOT = Path(__file__).parents[3]
AXE = Path(__file__).with_name("vendor") / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
#: Not here is told by the browser in its console, too.
EXPECTED = "Failed to load resource: the server responded with a status of 404"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duly]:
    time = clock()
    made = Duly(f"sqlite:///{tmp_path_factory.mktemp('town') / 'duly.db'}", clock=time, **SETTINGS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def town(app: Duly) -> Town:
    return fill(app, app.engine.clock)  # type: ignore[arg-type]


def serve(made: Any) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(made, port=0, log_level="warning", lifespan="off"))
    ready, startup = threading.Event(), server.startup

    async def told(*given: Any, **named: Any) -> None:
        await startup(*given, **named)
        ready.set()

    server.startup = told  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert ready.wait(60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def site(app: Duly, town: Town) -> Iterator[str]:
    yield from serve(create(app, local=True))


class Browser:
    """Somebody who looks."""

    def __init__(self, site: str, width: int = 1280) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        for one in (
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--hide-scrollbars",
            "--lang=en-GB",
        ):
            options.add_argument(one)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.driver.set_page_load_timeout(90)
        self.driver.set_script_timeout(90)
        self.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Europe/Rome"})
        self.site, self.width = site, width

    def see(self, path: str, scheme: str = "light") -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        self._size(900)
        self.driver.get(self.site + path)
        self.until(
            lambda: self.js(
                "return document.readyState === 'complete' && !document.querySelector('time[data-when]:not([data-done])')"
            )
        )

    def _size(self, height: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": self.width, "height": height, "deviceScaleFactor": 1, "mobile": self.width < 600},
        )

    def js(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def until(self, holds: Callable[[], Any], seconds: float = 30) -> Any:
        return WebDriverWait(self.driver, seconds, 0.05, (StaleElementReferenceException,)).until(lambda _: holds())

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self) -> str:
        return str(self.js("return document.querySelector('main')?.innerText ?? ''"))

    def press(self, label: str, within: str = "main") -> None:
        """Press the button that is seen and says this."""

        def pressed() -> bool:
            for one in self.find(within).find_elements(By.CSS_SELECTOR, "button, a.button"):
                if one.is_displayed() and one.text.strip() == label:
                    one.click()
                    return True
            return False

        self.until(pressed)

    def keys(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> str:
        return str(self.js("return document.activeElement.getAttribute('href') || document.activeElement.id"))

    def complaints(self) -> list[str]:
        """What stands in the console since it was asked last."""
        return [one["message"] for one in self.driver.get_log("browser") if EXPECTED not in one["message"]]

    def axe(self) -> list[str]:
        if not self.js("return Boolean(window.axe)"):
            self.js(AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1]; axe.run(document, {runOnly: arguments[0]}).then((r) => done(r.violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.target).slice(0, 3).join(' | ')}`)))",
            RULES,
        )
        return [str(one) for one in found]

    def picture(self, file: Path) -> None:
        self._size(min(int(self.js("return Math.max(document.documentElement.scrollHeight, 560)")), 1_500))
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 85})
        file.write_bytes(base64.b64decode(shot["data"]))


@pytest.fixture(scope="module")
def browser(site: str) -> Iterator[Browser]:
    made = Browser(site)
    yield made
    made.driver.quit()


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = (
        ROOT / "docs" / "screenshots" if os.environ.get("DULY_SCREENSHOTS") else tmp_path_factory.mktemp("screenshots")
    )
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_in_order(browser: Browser, town: Town, album: Path, scheme: str) -> None:  # issue 8
    """In both colour schemes: a clean console, no violation of the policy, and nothing that axe finds."""
    wrong: dict[str, Any] = {}
    for name, path in {**town.pages(), "login": "/login"}.items():
        browser.see(path, scheme)
        found = [*browser.axe(), *browser.complaints()]
        if found:
            wrong[name] = found
        browser.picture(album / f"{name}-{scheme}.webp")
    assert not wrong


def test_every_page_fits_a_phone(browser: Browser, town: Town, album: Path) -> None:
    browser.width = 390
    try:
        wrong: dict[str, Any] = {}
        for name, path in town.pages().items():
            browser.see(path)
            wide = browser.js("return document.documentElement.scrollWidth")
            found = [*browser.axe(), *browser.complaints(), *([f"{wide} pixels wide"] if wide > 390 else [])]
            if found:
                wrong[name] = found
            if name in ("overview", "jobs-filtered", "job-failed", "queues", "rounds", "calendar", "failures"):
                browser.picture(album / f"{name}-phone.webp")
        assert not wrong
    finally:
        browser.width = 1280


def test_the_policy_is_kept_by_the_browser(browser: Browser) -> None:  # X8: the test above can fail
    browser.see("/")
    browser.js("const s = document.createElement('script'); s.textContent = 'window.evil = 1'; document.body.append(s)")
    assert browser.js("return window.evil") is None
    assert any("Content Security Policy" in one for one in browser.complaints())


def test_times_are_shown_in_the_viewers_zone_with_utc_in_the_title(browser: Browser, town: Town) -> None:
    browser.see(f"/jobs/{town.failed}")
    one = browser.find(".rail time")
    assert "10:07:00" in one.text  # 09:07 UTC is 10:07 in Rome
    assert one.get_attribute("title") == "2026-03-27 09:07:00 UTC"
    assert browser.complaints() == []


def test_keys_search_walk_and_help(browser: Browser, town: Town) -> None:
    browser.see("/jobs?status=failed&queue=reports")
    browser.keys("j")
    assert browser.focused() == f"/jobs/{town.failed}"
    browser.keys("j")
    second = browser.focused()
    browser.keys("k")
    assert browser.focused() == f"/jobs/{town.failed}" != second
    browser.keys("?")
    assert browser.js("return document.getElementById('keys').open")
    browser.keys(Keys.ESCAPE)
    browser.until(lambda: not browser.js("return document.getElementById('keys').open"))
    browser.keys("/")
    assert browser.focused() == "go"
    browser.keys(str(town.failed), Keys.ENTER)
    browser.until(lambda: browser.driver.current_url.endswith(f"/jobs/{town.failed}"))
    assert browser.complaints() == []


def test_a_page_refreshes_itself_but_not_while_it_is_hidden_paused_or_in_use(browser: Browser, app: Duly) -> None:
    browser.see("/queues")
    poll = "htmx.trigger(document.querySelector('[data-live]'), 'every'); const part = document.querySelector('[data-live]'); let sent = false; const note = () => { sent = true }; part.addEventListener('htmx:beforeSend', note); htmx.ajax('GET', '/queues', {source: part, target: part, select: '#queues-live', swap: 'outerHTML'}); part.removeEventListener('htmx:beforeSend', note); return sent"
    app.queues.pause("mail", "seen without a reload", "user:ann")
    browser.until(lambda: "seen without a reload" in browser.text())
    browser.press("Live", "header")
    assert browser.find("#live-switch").text == "Paused"
    assert browser.js(poll) is False
    browser.press("Paused", "header")
    browser.js("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})")
    assert browser.js(poll) is False
    browser.js("delete document.hidden")
    browser.press("Pause…")
    browser.until(lambda: browser.js("return Boolean(document.querySelector(':popover-open'))"))
    assert browser.js(poll) is False
    browser.press("Not now")
    app.queues.resume("mail", "user:ann")
    assert browser.js(poll) is True
    browser.until(lambda: "seen without a reload" not in browser.text())
    assert browser.complaints() == []


def test_an_operator_pauses_a_queue_with_a_reason(browser: Browser, app: Duly) -> None:
    browser.see("/queues")
    of_reports = "//tr[th/a='reports']//button[contains(., 'Pause')]"
    browser.until(lambda: browser.driver.find_element(By.XPATH, of_reports).click() is None)
    browser.until(lambda: browser.js("return Boolean(document.querySelector(':popover-open'))"))
    assert browser.axe() == []
    browser.find(":popover-open input[name=reason]").send_keys("the auditors are here")
    browser.press("Pause", ":popover-open")
    browser.until(lambda: "Queue reports is paused" in browser.text())
    assert app.queues.get("reports").paused_reason == "the auditors are here"
    assert browser.complaints() == []
    app.queues.resume("reports")


def test_an_operator_replays_the_jobs_that_were_chosen(browser: Browser, town: Town, app: Duly) -> None:
    browser.see("/jobs?status=failed&queue=reports")
    boxes = browser.driver.find_elements(By.CSS_SELECTOR, "input[name=ids]")
    for box in boxes[:2]:
        box.click()
    browser.press("Replay 2 jobs…")
    browser.until(lambda: "Nothing has been done yet" in browser.text())
    browser.find("input[name=reason]").send_keys("the ledger is closed")
    browser.press("Replay 2 jobs")
    browser.until(lambda: "2 jobs are queued again." in browser.text())
    assert app.jobs.count(queue="reports", status=("queued",)) == 2
    assert browser.complaints() == []


def test_a_number_of_the_failure_matrix_leads_to_its_jobs(browser: Browser, town: Town) -> None:
    browser.see("/failures")
    cell = browser.driver.find_element(By.XPATH, "//tr[th='KeyError']/td[2]/a")
    number = cell.text.split()[0]
    cell.click()
    browser.until(lambda: f"{number} fit" in browser.text())
    assert browser.find("input[name=error]").get_attribute("value") == "KeyError"
    assert browser.find("input[name=since]").get_attribute("value") == "6h"
    assert browser.complaints() == []


def test_a_calendar_is_in_the_viewers_zone_and_walks_by_weeks(site: str, town: Town) -> None:
    made = Browser(site)  # nobody who was here before
    try:
        made.see("/calendar")
        made.until(lambda: "Days of Europe/Rome" in made.text())
        assert made.find("time[datetime='2026-03-28T01:30:00Z']").text == "02:30"
        assert "2026-03-28 01:30:00 UTC" in str(
            made.find("time[datetime='2026-03-28T01:30:00Z']").get_attribute("title")
        )
        made.find("a[rel=next]").click()
        made.until(lambda: "Week 14" in made.text() and "inventory" in made.text())
        made.press("Month")
        made.until(lambda: "April 2026" in made.text())
        made.find("input[name=tz]").clear()
        made.find("input[name=tz]").send_keys("Asia/Tokyo")
        made.press("Show")
        made.until(lambda: "Days of Asia/Tokyo" in made.text())
        assert made.complaints() == []
    finally:
        made.driver.quit()


def test_an_operator_asks_what_a_blackout_would_hold(browser: Browser, town: Town, app: Duly) -> None:
    browser.see("/calendar?tz=Europe/Rome")
    browser.find("a[href='/calendar/impact']").click()
    browser.until(lambda: "Nothing is written" in browser.text())
    browser.find("select[name=scope] option[value=queue]").click()
    browser.find("input[name=of]").send_keys("mail")
    browser.press("Show what it would hold")
    browser.until(lambda: "What it would hold" in browser.text())
    assert str(town.queued) in browser.text()
    assert "every day all day, Rome time" in browser.text()
    assert set(app.calendars.all()) == {"quiet hours", "inventory"}
    assert browser.complaints() == []


def choose(browser: Browser, name: str) -> None:
    """Choose by its text in the form that is open."""
    for one in browser.find(":popover-open select").find_elements(By.TAG_NAME, "option"):
        if one.text.strip() == name:
            one.click()


def test_an_operator_answers_for_a_member_and_votes(browser: Browser, town: Town, app: Duly) -> None:
    browser.see(f"/rounds/{town.round}")
    browser.press("Answer…")
    browser.until(lambda: browser.js("return Boolean(document.querySelector(':popover-open'))"))
    assert browser.axe() == []
    choose(browser, "Cleo")
    browser.find(":popover-open textarea").send_keys("The tide, <b>twice</b>.")
    browser.press("Hand it in", ":popover-open")
    browser.until(lambda: "The answer is in." in browser.text())
    assert "The tide, <b>twice</b>." in browser.text()
    browser.driver.find_element(By.XPATH, "//article[contains(., 'tide')]//button[starts-with(., 'Vote')]").click()
    browser.until(lambda: browser.js("return Boolean(document.querySelector(':popover-open'))"))
    choose(browser, "Ann")
    browser.press("Vote", ":popover-open")
    browser.until(lambda: "The vote is in." in browser.text())
    assert "1 vote" in browser.text()
    assert browser.complaints() == []


def test_the_form_of_a_schedule_shows_what_it_means_while_it_is_typed(
    browser: Browser, town: Town, album: Path
) -> None:
    browser.see("/schedules/form")
    assert browser.find("[name=at]").is_displayed()
    assert not browser.find("[name=expression]").is_displayed()
    browser.find("[name=tz]").send_keys("Europe/Rome")
    browser.until(lambda: "every day, Rome time" in browser.text())
    browser.js(
        "const s = document.querySelector('[name=kind]'); s.value = 'weekly'; s.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    browser.until(lambda: "days: is missing" in browser.text())
    browser.find("[name=days]").send_keys("sat, sun")
    browser.find("[name=at]").clear()
    browser.find("[name=at]").send_keys("02:30")
    browser.until(lambda: "29 March 2026 runs at 03:00" in browser.text())
    assert "Europe/Rome" in browser.find("#tried th").text
    assert [*browser.axe(), *browser.complaints()] == []
    browser.picture(album / "schedule-form-light.webp")


def test_a_person_logs_in_acts_and_logs_out(app: Duly, town: Town) -> None:
    Accounts(app).create_user("ann", PASSWORD, "operator")
    for site in serve(create(app)):
        made = Browser(site)
        try:
            made.see(f"/jobs/{town.queued}")
            assert "/login?next=" in made.driver.current_url
            made.find("input[name=name]").send_keys("ann")
            made.find("input[name=password]").send_keys(PASSWORD, Keys.ENTER)
            made.until(lambda: made.driver.current_url.endswith(f"/jobs/{town.queued}"))
            made.press("Cancel…")
            made.until(lambda: made.js("return Boolean(document.querySelector(':popover-open'))"))
            made.press("Cancel", ":popover-open")
            made.until(lambda: f"Job {town.queued} is cancelled." in made.text())
            assert "user:ann" in made.text()
            made.press("Log out", "header")
            made.until(lambda: made.driver.current_url.endswith("/login"))
            assert made.complaints() == []
        finally:
            made.driver.quit()
            # the door of the other tests of this module is open as long as there is nobody, whichever of them comes next
            app.db.write(lambda c: [c.execute(delete(table)) for table in (logins, users)])


def test_the_cookie_of_the_zone_stays_below_the_mount(app: Duly, town: Town) -> None:
    for site in serve(Starlette(routes=[Mount("/duly", app=create(app, local=True))])):
        made = Browser(site)
        try:
            made.see("/duly/calendar")
            made.until(lambda: "Days of Europe/Rome" in made.text())
            kept = made.driver.get_cookie("duly_zone")
            assert kept is not None
            assert kept["path"] == "/duly/"
            assert made.complaints() == []
        finally:
            made.driver.quit()
