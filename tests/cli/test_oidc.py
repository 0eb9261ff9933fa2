"""The command line where people log in through OpenID Connect: what the doctor says, how users are listed and linked, what is refused. ADR 0031."""

from __future__ import annotations

import importlib.util
import json
import signal
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from accounts.playing import CLIENT, SECRET, playing
from cli.hands import Run
from cli.test_web import address, begun, page
from duly import Duly
from duly.accounts.account import Claimed, Role
from duly.accounts.door import Accounts
from duly.accounts.oidc.door import SignOn, ready
from duly.kernel.errors import InvalidArgument
from duly.web import serve

ISSUER = "https://login.example.org"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``told(issuer=…)``: settings of a provider in the environment."""

    def tell(**given: str) -> None:
        for name, value in {"issuer": ISSUER, "client_id": CLIENT, "client_secret": SECRET, "default_role": "viewer", **given}.items():  # fmt: skip
            monkeypatch.setenv(f"DULY_OIDC_{name.upper()}", value)

    return tell


def finding(run: Run) -> Any:
    said = run("doctor", "--json")
    assert SECRET not in said.out + said.err
    return next((one for one in said.json["findings"] if one["check"] == "log in"), None)


def test_the_doctor_asks_the_provider_and_says_what_is_wrong_with_the_settings(run: Run, told: Any) -> None:
    assert finding(run) is None
    with playing() as there:
        told(issuer=there.url)
        assert finding(run) == {
            "check": "log in",
            "grade": "ok",
            "detail": f"through {there.url}, which answers as it should",
            "remedy": "",
        }
        there.document = {"issuer": "https://evil.example"}
        said = finding(run)
        assert (said["grade"], "calls itself" in said["detail"]) == ("warn", True)
    assert "does not answer" in finding(run)["detail"]
    told(default_role="none")
    said = finding(run)
    assert said["grade"] == "fail"
    assert "oidc_default_role is none" in said["detail"]
    assert "oidc_roles" in said["remedy"]


def test_a_secret_of_the_client_is_not_listed(run: Run, told: Any) -> None:
    told()
    rows = {row["name"]: row for row in run("doctor", "--settings", "--json").json}
    assert (rows["oidc_client_secret"]["value"], rows["oidc_issuer"]["value"]) == ("(set)", ISSUER)
    assert SECRET not in run("doctor", "--settings").out


def test_users_are_listed_with_how_they_log_in_and_one_is_linked(run: Run, told: Any, folder: Path) -> None:
    told()
    app = Duly()
    accounts = Accounts(app)
    accounts.create_user("ann", "a sentence of my own", "admin")
    options = ready(app.settings)
    assert options is not None
    app.db.write(lambda c: SignOn(app, options)._account(c, Claimed(ISSUER, "7", "bob@example.org", Role.VIEWER, None), app.db.present(c)))  # fmt: skip
    listed = run("users", "list")
    lines = {line.split()[0]: line.split() for line in listed.out.splitlines()[1:]}
    assert "password" in lines["ann"]
    assert "oidc" in lines["bob@example.org"]
    assert f"7 at {ISSUER}" in listed.out
    assert {one["name"]: (one["login"], one["identities"]) for one in run("users", "list", "--json").json} == {
        "ann": ("password", []),
        "bob@example.org": ("oidc", [{"issuer": ISSUER, "subject": "7"}]),
    }
    taken = run("users", "link", "ann", "7")
    assert (taken.code, "is known already, as 'bob@example.org'" in taken.err) == (2, True)
    linked = run("users", "link", "ann", "8")
    assert linked.out == f"User ann logs in through {ISSUER}; their logins have ended.\n"
    assert accounts.user("ann").login == "oidc"
    assert run("users", "link", "nobody", "9").code == 1
    second = run("users", "link", "ann", "9")
    assert (second.code, "--also" in second.err) == (2, True)
    assert run("users", "link", "ann", "9", "--also").code == 0
    some = run("users", "unlink", "ann", "--subject", "9")
    assert some.out == f"User ann is still known as 8 at {ISSUER}; their logins have ended.\n"
    assert run("users", "unlink", "ann", "--subject", "9").code == 1
    last = run("users", "unlink", "ann")
    assert (
        last.out
        == "User ann logs in again when `duly users password ann` has given them one; their logins have ended.\n"
    )
    assert run("users", "password", "ann", input="a sentence of my own\n").code == 0
    assert accounts.log_in("ann", "a sentence of my own") is not None
    app.close()


def test_a_link_to_nowhere_and_of_the_last_administrator_is_refused(run: Run, folder: Path) -> None:
    app = Duly()
    Accounts(app).create_user("ann", "a sentence of my own", "admin")
    app.close()
    wrong = run("users", "link", "ann", "8", "--issuer", "not a url")
    assert (wrong.code, "is no URL" in wrong.err) == (2, True)
    last = run("users", "link", "ann", "8", "--issuer", ISSUER)
    assert (last.code, "the last administrator" in last.err, "--force" in last.err) == (2, True, True)
    assert run("users", "link", "ann", "8", "--issuer", ISSUER, "--force").code == 0


def test_a_link_needs_a_provider(run: Run, folder: Path) -> None:
    app = Duly()
    Accounts(app).create_user("ann", "a sentence of my own")
    app.close()
    said = run("users", "link", "ann", "8")
    assert (said.code, "DULY_OIDC_ISSUER" in said.err) == (2, True)
    assert run("users", "link", "ann", "8", "--issuer", ISSUER).code == 0


def test_nothing_is_served_with_settings_that_nobody_could_log_in_by(run: Run, told: Any, folder: Path) -> None:
    told(scopes="email")
    said = run("web", "--port", "0")
    assert (said.code, "oidc_scopes" in said.err) == (2, True)
    app = Duly()
    with pytest.raises(InvalidArgument, match="oidc_scopes"):
        serve.Beside(app, "", 0)
    app.close()


def test_why_nobody_could_log_in_stands_in_the_log(told: Any, tmp_path: Path) -> None:
    with playing() as there:
        there.instead["/.well-known/openid-configuration"] = (500, b"")
        told(issuer=there.url)
        web, said = begun(tmp_path, "web", "--port", "0")
        with pytest.raises(HTTPError, match="503"):
            page(f"{address(said)}/login/oidc")
        web.send_signal(signal.SIGTERM)
        _, log = web.communicate(timeout=30)
    [line] = [json.loads(one) for one in log.splitlines() if "oidc_failed" in one]
    assert (line["level"], line["reason"]) == ("warning", "answered with 500 (the discovery document).")
    assert SECRET not in log


def test_without_the_extra_the_settings_say_what_to_install(
    run: Run, told: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told()
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "joserfc" else found(name, *more)
    )
    said = run("web", "--port", "0")
    assert (said.code, 'pip install "duly[oidc]"' in said.err) == (2, True)
    assert 'pip install "duly[oidc]"' in finding(run)["remedy"]


def test_a_provider_guards_a_door_and_closes_the_one_that_is_open_to_all(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    assert serve.is_local(app, "", "127.0.0.1")
    assert not serve.is_guarded(app, "")
    app.close()
    app = Duly(sqlite_url, oidc_issuer=ISSUER, oidc_client_id=CLIENT, oidc_default_role="viewer")
    assert not serve.is_local(app, "", "127.0.0.1")
    assert serve.is_guarded(app, "")
    app.close()
