"""A provider that is asked, and believed only as far as it can show what it says. ADR 0031; OpenID Connect Core, 3.1.3.7."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256

from accounts.playing import CLIENT, EC, ED, RSA, SECRET, Playing, playing
from duly.accounts.account import ProviderFailed
from duly.accounts.oidc import options
from duly.accounts.oidc import provider as module
from duly.accounts.oidc.flow import Flow
from duly.accounts.oidc.provider import Provider
from duly.settings import Settings

NOW = datetime(2026, 3, 27, 9, tzinfo=UTC)
AT = NOW.timestamp()
BACK = "http://duly.example/login/oidc/callback"
FLOW = Flow("a secret of a browser")


@pytest.fixture
def there() -> Iterator[Playing]:
    with playing() as made:
        made.now = lambda: AT
        yield made


def provider(there: Playing, **given: str) -> Provider:
    told = {"oidc_issuer": there.url, "oidc_client_id": CLIENT, "oidc_client_secret": SECRET, "oidc_default_role": "viewer", **given}  # fmt: skip
    found = options.read(Settings.load({}, **told))
    assert found is not None
    return Provider(found)


def log_in(one: Provider) -> dict[str, Any]:
    """All the way: to the provider, back with a code, and what it then says."""

    async def go() -> dict[str, Any]:
        sent = await one.address(FLOW, BACK)
        answer = await asyncio.to_thread(httpx2.get, sent, follow_redirects=False)
        code = dict(parse_qsl(urlsplit(answer.headers["location"]).query))["code"]
        return await one.claims(FLOW, code, BACK, NOW)

    return asyncio.run(go())


def failed(one: Provider, asking: Any = log_in) -> ProviderFailed:
    with pytest.raises(ProviderFailed) as told:
        asking(one)
    return told.value


def discover(one: Provider) -> Any:
    return asyncio.run(one.discover())


def text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def with_header(header: dict[str, Any], payload: str) -> str:
    return f"{text(json.dumps(header).encode())}.{payload}"


def unsigned(token: str) -> str:
    return with_header({"alg": "none"}, token.split(".")[1]) + "."


def shared(token: str) -> str:
    """Signed with the published key, as if it were a secret of both."""
    body = with_header({"alg": "HS256", "kid": "rsa 0"}, token.split(".")[1])
    return f"{body}.{text(hmac.new(RSA[0].as_pem(private=False), body.encode(), hashlib.sha256).digest())}"


def critical(token: str) -> str:
    """Rightly signed, under a header that asks for something that nobody here understands."""
    body = with_header({"alg": "RS256", "kid": "rsa 0", "crit": ["mine"], "mine": 1}, token.split(".")[1])
    return f"{body}.{text(RSA[0].get_op_key('sign').sign(body.encode(), PKCS1v15(), SHA256()))}"


def given(there: Playing, how: dict[str, Any]) -> None:
    for name, value in how.items():
        setattr(there, name, value)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"claims": {"nonce": "another"}}, "(nonce)"), ({"claims": {"nonce": None}}, "nonce"), ({"claims": {"nonce": ["x"]}}, "(nonce)"),
        ({"claims": {"aud": "another"}}, "(aud)"), ({"claims": {"aud": None}}, "aud"), ({"claims": {"aud": [CLIENT, "another"]}}, "(azp)"),
        ({"claims": {"aud": [CLIENT, "another"], "azp": "another"}}, "(azp)"), ({"claims": {"azp": "another"}}, "(azp)"),
        ({"claims": {"aud": {CLIENT: 1}}}, "(aud)"), ({"claims": {"iss": "https://evil.example"}}, "(iss)"), ({"claims": {"iss": None}}, "iss"),
        ({"claims": {"sub": None}}, "sub"), ({"claims": {"sub": 7}}, "(sub)"),
        ({"claims": {"exp": AT - 60}}, "(exp)"), ({"claims": {"exp": None}}, "exp"), ({"claims": {"exp": "never"}}, "(exp)"),
        ({"claims": {"exp": float("inf")}}, "(exp)"), ({"claims": {"iat": AT + 61}}, "(iat)"), ({"claims": {"iat": None}}, "iat"),
        ({"claims": {"nbf": AT + 61}}, "(nbf)"),
        ({"forge": unsigned}, "algorithms"), ({"forge": shared}, "algorithms"), ({"forge": critical}, "none of its keys"),
        ({"forge": lambda token: token[:-8] + "AAAAAAAA"}, "none of its keys"), ({"forge": lambda token: "a.b.c"}, "cannot be read"),
        ({"forge": lambda token: ""}, "cannot be read"), ({"forge": lambda token: "."}, "cannot be read"), ({"forge": lambda token: 7}, "without an ID token"),
        ({"forge": lambda token: f"{text(b'[' * 4000)}.e30.AA"}, "cannot be read"), ({"forge": lambda token: f"{text(b'[7]')}.e30.AA"}, "cannot be read"),
        ({"forge": lambda token: token + "A" * 200_000}, "cannot be read"), ({"forge": lambda token: with_header({"alg": ["RS256"]}, "e30.AA")}, "algorithms"),
        ({"key": RSA[1], "published": [RSA[0]]}, "none of its keys"), ({"key": RSA[1], "published": [RSA[0]], "header": {"kid": "rsa 0"}}, "none of its keys"),
        ({"key": RSA[1], "published": [RSA[0]], "header": {"kid": None}}, "none of its keys"), ({"published": []}, "none of its keys"),
        ({"published": [{"kty": "oct", "k": "c2VjcmV0"}, {"kty": "RSA", "n": "!", "e": "AQAB"}, {"kty": "EC"}, {}, {"kty": "RSA", "n": 7, "e": []}]}, "none of its keys"),
        ({"published": [{**RSA[0].as_dict(private=False), "use": "enc"}]}, "none of its keys"),
        ({"published": [{**RSA[0].as_dict(private=False), "alg": "RS512"}]}, "none of its keys"),
        ({"document": {"id_token_signing_alg_values_supported": ["ES256"]}}, "algorithms"),
    ],
)  # fmt: skip
def test_an_id_token_that_is_not_of_now_for_us_and_from_them_is_not_believed(
    there: Playing, how: dict[str, Any], says: str
) -> None:
    given(there, how)
    error = failed(provider(there))
    assert says in error.told
    assert not error.away


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
@pytest.mark.parametrize(
    "how",
    [
        {"claims": {"exp": AT - 59}}, {"claims": {"iat": AT + 59}}, {"claims": {"aud": [CLIENT]}}, {"claims": {"aud": [CLIENT, "another"], "azp": CLIENT}},
        {"key": EC, "algorithm": "ES256"}, {"algorithm": "PS512"}, {"key": EC, "algorithm": "ES256", "published": [RSA[0], RSA[1], EC]},
        {"key": ED, "algorithm": "EdDSA"}, {"key": ED, "algorithm": "Ed25519", "document": {"id_token_signing_alg_values_supported": ["Ed25519"]}},
        {"header": {"kid": None}, "published": [RSA[1], RSA[0]]}, {"header": {"typ": "JWT", "x5t": "abc", "of": "their own", "x5c": ["M" * 3000]}},
        {"document": {"token_endpoint_auth_methods_supported": ["client_secret_post"]}}, {"document": {"token_endpoint_auth_methods_supported": None}},
        {"document": {"userinfo_endpoint": None}}, {"published": [{"kty": "quantum"}, RSA[0]]},
    ],
)  # fmt: skip
def test_what_providers_may_do_is_believed(there: Playing, how: dict[str, Any]) -> None:
    given(there, how)
    assert log_in(provider(there))["email"] == "ann@example.org"


def test_more_is_believed_of_the_same_person_only(there: Playing) -> None:
    there.person, there.more = {"sub": "248"}, {"email": "ann@example.org", "sub": "248", "aud": "another", "iss": "x"}
    found = log_in(provider(there))
    assert (found["email"], found["aud"]) == ("ann@example.org", CLIENT)
    there.more["sub"] = "somebody else"
    assert "email" not in log_in(provider(there))
    there.instead["/me"] = (401, b"{}")
    assert "email" not in log_in(provider(there))
    there.instead["/me"] = (500, b"{}")  # who has a role is not to lose it because nobody answered
    assert failed(provider(there)).away


def test_new_keys_are_asked_for_when_they_are_met_and_old_ones_after_a_while(
    there: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [0.0]
    one = provider(there)
    one._now = lambda: seconds[0]

    def asked() -> tuple[int, int]:
        paths = [path for path, _ in there.asked]
        return paths.count("/keys"), paths.count("/.well-known/openid-configuration")

    log_in(one)
    there.key = RSA[1]
    log_in(one)
    log_in(one)
    assert asked() == (2, 1)
    seconds[0] = module.KEPT
    log_in(one)
    assert asked() == (3, 2)
    # what was taken away is not believed for longer than that
    there.published, seconds[0] = [RSA[0]], 3 * module.KEPT
    assert "none of its keys" in failed(one).told


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"issuer": "https://evil.example"}, "calls itself 'https://evil.example'"), ({"issuer": None}, "calls itself None"),
        ({"token_endpoint": "http://example.org/token"}, "token_endpoint"), ({"jwks_uri": None}, "jwks_uri"), ({"jwks_uri": ["x"]}, "jwks_uri"),
        ({"token_endpoint": "https://exa mple.org"}, "token_endpoint"), ({"token_endpoint": "https://ex\x00ample.org"}, "token_endpoint"),
        ({"token_endpoint": "https://b\u00fccher.example"}, "token_endpoint"), ({"token_endpoint": "https://[::1/"}, "token_endpoint"),
        ({"userinfo_endpoint": "ftp://example.org"}, "userinfo_endpoint"), ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint"),
        ({"id_token_signing_alg_values_supported": ["HS256", "none"]}, "signs with none of"), ({"id_token_signing_alg_values_supported": 7}, "signs with none of"),
    ],
)  # fmt: skip
def test_a_discovery_document_that_does_not_hold_is_not_believed(
    there: Playing, document: dict[str, Any], says: str
) -> None:
    there.document = document
    error = failed(provider(there), discover)
    assert (says in error.told, error.away) == (True, False)


@pytest.mark.parametrize("access", ["€", "a\nX-Other: b", "\x00"])
def test_a_token_that_cannot_be_sent_is_no_failure_of_ours(there: Playing, access: str) -> None:
    there.person, there.access = {"sub": "248"}, access
    try:
        assert log_in(provider(there))["sub"] == "248"
    except ProviderFailed as error:
        assert access not in str(error)
    assert [path for path, _ in there.asked].count("/me") == 0


def test_a_slash_at_the_end_of_the_issuer_counts(there: Playing) -> None:
    assert "to the last slash" in failed(provider(there, oidc_issuer=f"{there.url}/"), discover).told


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token", "/keys"])
@pytest.mark.parametrize(
    ("how", "away"),
    [
        ((500, b"{}"), True), ((429, b"{}"), True), ((404, b"<html>"), False), ((302, b""), False), ((200, b"[]"), False), ((200, b"not JSON"), False),
        ((200, b"[" * 100_000), False), ((200, b'{"keys": "' + b"x" * 5_000_000 + b'"}'), True), ("silent", True),
    ],
)  # fmt: skip
def test_a_provider_that_is_away_or_talks_nonsense_is_told_from_one_that_answers(
    there: Playing, monkeypatch: pytest.MonkeyPatch, path: str, how: Any, away: bool
) -> None:
    one = provider(there)
    if how == "silent":
        there.silent.add(path)
        monkeypatch.setattr(module, "WITHIN", 0.3)
    else:
        there.instead[path] = how
    error = failed(one, discover if "well-known" in path else log_in)
    assert error.away is away
    there.instead.clear()
    there.silent.clear()
    monkeypatch.undo()
    assert log_in(one)  # nothing of it stays


def test_a_provider_that_never_ends_is_not_waited_for(there: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WITHIN", 0.5)
    there.dripping.add("/.well-known/openid-configuration")
    error = failed(provider(there), discover)
    assert (error.away, "within 0.5 s" in error.told) == (True, True)


def test_a_provider_that_nobody_listens_for_is_away(there: Playing) -> None:
    assert failed(provider(there, oidc_issuer="http://127.0.0.1:1"), discover).away


def test_a_refusal_is_told_by_its_word_alone(there: Playing) -> None:
    assert failed(provider(there, oidc_client_secret="another")).told == "answered with 401 invalid_client (the token endpoint)."  # fmt: skip
    there.instead["/token"] = (400, json.dumps({"error": "<b>" + SECRET, "error_description": SECRET}).encode())
    assert failed(provider(there)).told == "answered with 400 (the token endpoint)."


def test_a_code_is_worth_nothing_without_what_the_browser_began_with(there: Playing) -> None:
    one = provider(there)

    async def go() -> dict[str, Any]:
        sent = await one.address(Flow("somebody else"), BACK)
        answer = await asyncio.to_thread(httpx2.get, sent, follow_redirects=False)
        code = dict(parse_qsl(urlsplit(answer.headers["location"]).query))["code"]
        return await one.claims(FLOW, code, BACK, NOW)

    assert "400 invalid_grant" in failed(one, lambda _: asyncio.run(go())).told


def test_groups_that_are_too_many_for_a_token_are_asked_for_where_the_settings_say(there: Playing) -> None:
    # C048
    given = {"oidc_roles_claim": "groups", "oidc_roles": "heads=admin"}
    there.claims = {"_claim_names": {"groups": "src1"}}
    there.instead["/groups"] = (200, json.dumps({"value": ["x", "heads", 3]}).encode())
    assert "groups" not in log_in(provider(there, **given))
    assert ("/groups", {}) not in [(path, {}) for path, _ in there.asked]
    given["oidc_groups_url"] = f"{there.url}/groups"
    assert log_in(provider(there, **given))["groups"] == ["x", "heads"]
    there.instead["/groups"] = (403, b'{"error": {"code": "Authorization_RequestDenied"}}')
    assert "groups" not in log_in(provider(there, **given))  # refused in words, where the claims are read
    there.instead["/groups"] = (503, b"{}")
    assert failed(provider(there, **given)).away
    there.claims = {"groups": ["heads"]}
    assert log_in(provider(there, **given))["groups"] == ["heads"]
