"""Passwords are not shown, in whatever form a URL or a driver's message has them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from duly import Duly
from duly.cli.main import cli
from duly.monitoring.examine import examine
from duly.monitoring.redact import bare_url, hide_parts, hide_passwords

HOME = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgresql://u:S3C@RETx@h:5432/d: no", "at postgresql://u:***@h:5432/d: no"),
        ("at postgresql://u@corp:S3C@h/d", "at postgresql://u:***@h/d"),
        ("failed to resolve host 'RETx@h': no", "failed to resolve host '***@h': no"),
        ('could not translate host name "R@E Tx@h" to address', 'could not translate host name "***@h" to address'),
        ("connection to server at \"RETx@h\", port 1", "connection to server at \"***@h\", port 1"),
        ("//h/d?PASSWORD=S3C&x=1", "//h/d?PASSWORD=***&x=1"),
        ("//h/d?scram_client_key=S3C&SSLPassword=S3C", "//h/d?scram_client_key=***&SSLPassword=***"),
        ("host=h oauth_client_secret='S3\\'C' scram_server_key = S3C", "host=h oauth_client_secret=*** scram_server_key = ***"),
        ("https://h/v1?api_key=S3C&key=S3C&page=2", "https://h/v1?api_key=***&key=***&page=2"),
        ("https://h/v1?X-Access-Token=S3C;sig=S3C", "https://h/v1?X-Access-Token=***"),
    ],
)  # fmt: skip
def test_what_a_url_or_a_driver_says_is_told_without_the_password(text: str, shown: str) -> None:
    assert hide_passwords(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "job 7 at 12:30, ada@example.org",
        "postgresql://ada@h:5432/d?options=a@b&application_name=x",
        "https://h/@ada?page=2",
        "the key=value pairs of a token",
        "host 'h' does not answer",
    ],
)
def test_what_is_no_password_stays(text: str) -> None:
    assert hide_passwords(text) == text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/v1", "https://h/v1"),
        ("https://u:S3C@h/v1", "https://***@h/v1"),
        ("https://S3C@h/v1?api_key=S3C#S3C", "https://***@h/v1?***"),
        ("", ""),
    ],
)
def test_of_a_url_that_may_hold_a_key_the_place_is_shown(url: str, shown: str) -> None:
    assert bare_url(url) == shown


@pytest.mark.parametrize(
    "addresses",
    [
        "amqp://u:S3C@a:5672//;amqp://u:S3C%40RETx@b:5672//",
        "sentinel://:S3C@a:26379;sentinel://:S3C@b:26379",
        "redis://:S3C@a,redis://:S3C@b",
        "['amqp://u:S3C@a', 'amqp://u:S3C@b']",
        "postgresql://u:S3C@a,b:5433/d",
    ],
)
def test_a_list_of_addresses_is_told_without_any_of_its_passwords(addresses: str) -> None:  # C018
    told = hide_passwords(f"connected to {addresses}")
    assert "S3C" not in told and "RETx" not in told
    assert "b" in told.partition("connected to")[2]


def test_a_piece_of_a_password_that_a_driver_took_for_the_host_is_hidden() -> None:
    assert hide_parts("failed to resolve host 'RE'", "postgresql://u:S3C@RE/Tx@h/d") == "failed to resolve host '***'"
    for plain in ("postgresql://u:S3C@h/d?options=a@b", "sqlite:////h@d/u:d@h", "postgresql://u@h/d"):
        assert hide_parts("failed to resolve host 'h', 'd', 'u'", plain) == "failed to resolve host 'h', 'd', 'u'"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:S3C@RETx@{HOME}/d",
        f"postgresql://u:S3C@RE/Tx@{HOME}/d",
        f"postgresql://u@{HOME}/d?scram_client_key=S3C&oauth_client_secret=RETx",
        f"postgresql://u@{HOME}/d?PASSWORD=S3CRETx",
    ],
)
def test_the_doctor_names_a_database_without_any_piece_of_its_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = examine(Duly(url).engine)
    assert facts.problem
    monkeypatch.setenv("DULY_DATABASE_URL", url)
    said = [CliRunner().invoke(cli, ["doctor", *more]).output for more in ((), ("--settings",))]
    for text in (facts.problem, facts.url, *said):
        assert not any(piece in text for piece in ("S3C", "RE/", "RETx", "'RE", "Tx"))


def test_the_doctor_lists_settings_without_what_a_url_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AI_BASE_URL", "RESEND_URL", "GRAPH_URL", "OIDC_ISSUER", "ANTHROPIC_BASE_URL", "GRAPH_LOGIN_URL"):
        monkeypatch.setenv(f"DULY_{name}", "https://u:S3C@api.example/v1?api_key=S3C")
    for form in ((), ("--json",)):
        said = CliRunner().invoke(cli, [*form, "doctor", "--settings"])
        assert said.exit_code == 0, said.output
        assert "S3C" not in said.output
        assert "https://***@api.example/v1?***" in said.output
