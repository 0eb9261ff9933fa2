"""What is seen in a real browser while things go on: a session's facts come by themselves and leave alone what is typed; on a phone nothing is out of sight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from duly import Duly
from duly.automations import Automations
from duly.automations.providers.base import Answer, Usage
from duly.testing import drain
from duly.web.app import create
from web.dashboard.scene import SETTINGS, Clerk, Town, clock, fill
from web.dashboard.test_browser import CHROMIUM, DRIVER, Browser, serve

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no chromium and chromedriver here: apt-get install chromium chromium-driver"),
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # a browser beside a load is slow, not red
]  # fmt: skip

#: Pixels that stick out of the tables of a page, by the name of the table.
OUTSIDE = """return [...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth)
    .map((one) => `${one.getAttribute('aria-label')}: ${one.scrollWidth - one.clientWidth}`)"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duly]:
    made = Duly(f"sqlite:///{tmp_path_factory.mktemp('town') / 'duly.db'}", clock=clock(), **SETTINGS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def town(app: Duly) -> Town:
    return fill(app, app.engine.clock, busy=False)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def browser(app: Duly, town: Town) -> Iterator[Browser]:
    for site in serve(create(app, local=True)):
        made = Browser(site)
        yield made
        made.driver.quit()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["queues", "audit"])
def test_on_a_phone_no_column_is_out_of_sight(
    browser: Browser, town: Town, tmp_path: Path, name: str, scheme: str
) -> None:  # issue 8
    browser.width = 390
    try:
        browser.see(f"/{name}", scheme)
        assert browser.js(OUTSIDE) == []
        assert [*browser.axe(), *browser.complaints()] == []
        browser.picture(tmp_path / f"{name}-{scheme}.webp")
    finally:
        browser.width = 1280


def test_the_facts_of_a_session_come_by_themselves_and_what_is_typed_stays(
    browser: Browser, town: Town, app: Duly
) -> None:  # issue 8
    room = Automations.of(app)
    ferryman = Clerk()
    ferryman.script = [Answer("At noon.", (), Usage(130, 21)), Answer("By an hour.", (), Usage(150, 20))]
    room.use("ferryman", ferryman)
    chat = room.chat("about the ferry", slot="quay", provider="ferryman").session.id
    room.say(chat, "Is it due?")
    drain(app, queues=["automations"])
    browser.see(f"/automations/sessions/{chat}")
    assert "1, 0 calls" in browser.text()
    browser.find("#say textarea").send_keys("And tomorrow")
    browser.js("document.activeElement.blur()")
    room.say(chat, "Is the ferry late?")
    drain(app, queues=["automations"])
    browser.until(lambda: "2, 0 calls" in browser.text())
    assert browser.find("#say textarea").get_attribute("value") == "And tomorrow"
    room.close(chat)
    browser.until(lambda: not browser.js("return document.getElementById('say')"))
    assert [*browser.axe(), *browser.complaints()] == []
