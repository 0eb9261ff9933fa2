"""Logging in through a provider in a real browser: the cookie of the flow comes back from another site, and the policy lets all of it happen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from accounts.playing import CLIENT, SECRET, Playing, playing
from duly import Duly
from duly.accounts.door import Accounts
from duly.testing import ManualClock
from duly.web.app import create
from duly.web.gate import COOKIE
from web.conftest import NOW
from web.dashboard.test_browser import CHROMIUM, DRIVER, Browser, serve

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no chromium and chromedriver here: apt-get install chromium chromium-driver"),
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # a browser beside a load is slow, not red
]  # fmt: skip


@pytest.fixture
def provider() -> Iterator[Playing]:
    with playing() as made:
        made.now, made.asks = NOW.timestamp, True
        yield made


@pytest.fixture
def app(provider: Playing, sqlite_url: str) -> Iterator[Duly]:
    made = Duly(
        sqlite_url, clock=ManualClock(NOW), oidc_issuer=provider.url, oidc_client_id=CLIENT, oidc_client_secret=SECRET, oidc_default_role="operator",
        oidc_label="Log in with Example",
    )  # fmt: skip
    yield made
    made.close()


def test_somebody_logs_in_with_a_browser_and_is_where_they_wanted_to_be(
    app: Duly, provider: Playing, tmp_path: Path
) -> None:
    for site in serve(create(app)):
        # to a browser, 127.0.0.1 is another site than localhost
        browser = Browser(site.replace("127.0.0.1", "localhost"))
        try:
            browser.see("/jobs?status=failed")
            assert browser.driver.current_url.endswith("/login?next=%2Fjobs%3Fstatus%3Dfailed")
            assert browser.axe() == []
            browser.picture(tmp_path / "login.webp")
            browser.press("Log in with Example")
            browser.until(lambda: browser.driver.current_url.startswith(provider.url))
            browser.press("I am Ann")
            browser.until(lambda: browser.driver.current_url.endswith("/jobs?status=failed"))
            assert "user:ann@example.org" in browser.find("header .who").text
            cookies = {one["name"]: (one["httpOnly"], one["sameSite"]) for one in browser.driver.get_cookies()}
            assert cookies[COOKIE] == (True, "Lax")
            browser.press("Log out", "header")
            browser.until(lambda: browser.driver.current_url.endswith("/login"))
            browser.see("/")
            assert "/login" in browser.driver.current_url
            provider.claims = {"nonce": "another"}
            browser.press("Log in with Example")
            browser.until(lambda: browser.driver.current_url.startswith(provider.url))
            browser.press("I am Ann")
            browser.until(lambda: "cannot be believed" in browser.text())
            assert browser.axe() == []
            for scheme in ("light", "dark"):
                browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})  # fmt: skip
                browser.picture(tmp_path / f"refused-{scheme}.webp")
            assert [one for one in browser.complaints() if "502" not in one and "favicon" not in one] == []
        finally:
            browser.driver.quit()
    assert [one.login for one in Accounts(app).users()] == ["oidc"]
