"""Settings that fit together, and who somebody is by what their provider says: facts → decisions. ADR 0031."""

from __future__ import annotations

from typing import Any

import pytest

from duly.accounts.account import LoginRefused, Role
from duly.accounts.oidc import claims, options
from duly.accounts.oidc.flow import Flow
from duly.accounts.oidc.options import Options
from duly.kernel.errors import InvalidArgument
from duly.settings import Settings

ISSUER = "https://login.example.org/realms/duly"


def settings(**given: Any) -> Settings:
    told = {"oidc_issuer": ISSUER, "oidc_client_id": "duly", "oidc_default_role": "viewer", **given}
    return Settings.load({}, **{name: value for name, value in told.items() if value is not None})


def read(**given: Any) -> Options:
    found = options.read(settings(**given))
    assert found is not None
    return found


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"oidc_issuer": None}, "oidc_client_id", "oidc_issuer is not"), ({"oidc_issuer": "http://login.example.org"}, "oidc_issuer", "not https"),
        ({"oidc_issuer": "login.example.org"}, "oidc_issuer", "no URL"), ({"oidc_issuer": "https://login.example.org/?a=b"}, "oidc_issuer", "query"),
        ({"oidc_issuer": "https://u:p@login.example.org"}, "oidc_issuer", "a user"), ({"oidc_issuer": "https://login.example.org:99999"}, "oidc_issuer", "no URL"),
        ({"oidc_issuer": "https://[::"}, "oidc_issuer", "no URL"), ({"oidc_issuer": "file:///etc/passwd"}, "oidc_issuer", "no URL"),
        ({"oidc_issuer": "http://127.0.0.1.example.org"}, "oidc_issuer", "not https"),
        ({"oidc_client_id": None}, "oidc_client_id", "not set"), ({"oidc_scopes": "email profile"}, "oidc_scopes", "without openid"),
        ({"oidc_redirect_url": "http://duly.example.org/login/oidc/callback"}, "oidc_redirect_url", "not https"),
        ({"oidc_redirect_url": "https://duly.example.org/"}, "oidc_redirect_url", "ends with"),
        ({"oidc_name_claim": " , "}, "oidc_name_claim", "empty"), ({"oidc_default_role": "none"}, "oidc_default_role", "nobody would be let in"),
        ({"oidc_roles_claim": "groups"}, "oidc_roles", "is not set"), ({"oidc_roles": "ops=operator"}, "oidc_roles_claim", "is not set"),
        ({"oidc_roles_claim": "groups", "oidc_roles": "ops"}, "oidc_roles", "without ="),
        ({"oidc_roles_claim": "groups", "oidc_roles": "ops=king"}, "oidc_roles", "'king'"),
        ({"oidc_roles_claim": "groups", "oidc_roles": "=admin"}, "oidc_roles", "empty value"),
        ({"oidc_roles_claim": "groups", "oidc_roles": "{ops"}, "oidc_roles", "no JSON"),
        ({"oidc_roles_claim": "groups", "oidc_roles": '{"ops": 3}'}, "oidc_roles", "'3'"),
        ({"oidc_domains": "example.org, @evil"}, "oidc_domains", "'@evil'"), ({"oidc_default_role": "king"}, "oidc_default_role", "king"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused_by_name(given: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read(**given)
    assert refused.value.field == field
    assert says in str(refused.value)


def test_settings_that_fit_are_options() -> None:
    found = read(
        oidc_issuer="http://localhost:8080/realms/x/", oidc_client_secret="hush", oidc_scopes=" openid   email ", oidc_roles_claim="groups",
        oidc_roles="a=b=operator, /heads = admin,", oidc_default_role="None", oidc_domains="Example.org", oidc_label="",
    )  # fmt: skip
    assert (found.issuer, found.scopes) == ("http://localhost:8080/realms/x/", "openid email")
    assert found.roles == {"a=b": Role.OPERATOR, "/heads": Role.ADMIN}
    assert (found.default_role, found.domains) == (None, {"example.org"})
    assert "hush" not in repr(found)
    assert options.read(Settings.load({})) is None
    assert options.read_roles('{"CN=ops,OU=x": "operator"}') == {"CN=ops,OU=x": Role.OPERATOR}


# ---------------------------------------------------------------------- who it is

ANN = {"sub": "248", "email": "a@b.org", "email_verified": True}


def refused(said: dict[str, Any], **given: Any) -> str:
    with pytest.raises(LoginRefused) as told:
        claims.read(said, read(**given))
    assert "248" not in str(told.value)
    return told.value.reason


@pytest.mark.parametrize(
    ("names", "person", "name"),
    [
        ("email", {"email": "a@b.org"}, "a@b.org"),
        ("email", {"email": "a@b.org", "email_verified": False}, None),
        ("email", {"email": "a@b.org", "email_verified": "false"}, None),
        ("email", {"email": ["a@b.org"]}, None),
        ("email,preferred_username", {"email": "a@b.org", "email_verified": False, "preferred_username": "ann"}, "ann"),
        ("preferred_username", {"email": "a@b.org", "preferred_username": "ann"}, "ann"),
        ("sub", {}, "248"),
        ("preferred_username", {}, None),
        ("preferred_username", {"preferred_username": ""}, None),
        ("preferred_username", {"preferred_username": "a\nb"}, None),
        ("preferred_username", {"preferred_username": ["ann"]}, None),
        ("preferred_username", {"preferred_username": "x" * 201}, None),
        ("preferred_username", {"preferred_username": "\ud800"}, None),
    ],
)
def test_the_name_is_that_of_the_first_claim_that_can_be_one(
    names: str, person: dict[str, Any], name: str | None
) -> None:
    said = {"sub": "248", **person}
    if name is None:
        assert refused(said, oidc_name_claim=names) == "name"
    else:
        assert claims.read(said, read(oidc_name_claim=names)).name == name


@pytest.mark.parametrize(
    ("person", "fine"),
    [
        ({"email": "a@Example.org", "email_verified": True}, True), ({"email": "a@example.org", "email_verified": "true"}, True),
        ({"email": "a@example.org"}, False), ({"email": "a@example.org", "email_verified": False}, False),
        ({"email": "a@example.org", "email_verified": 1}, False), ({"email": "a@evil.org", "email_verified": True}, False),
        ({"email": "a@example.org@evil.org", "email_verified": True}, False), ({"email": "a@sub.example.org", "email_verified": True}, False),
        ({"email": "example.org", "email_verified": True}, False), ({"email_verified": True, "preferred_username": "a"}, False),
    ],
)  # fmt: skip
def test_only_verified_addresses_of_the_domains_are_let_in(person: dict[str, Any], fine: bool) -> None:
    given = {"oidc_domains": "example.org, example.com", "oidc_name_claim": "email,preferred_username"}
    if fine:
        assert claims.read({"sub": "248", **person}, read(**given)).name == person["email"]
    else:
        assert refused({"sub": "248", **person}, **given) == "domain"


@pytest.mark.parametrize(
    ("groups", "default", "role"),
    [
        (["ops"], "none", Role.OPERATOR), (["ops", "heads", "x"], "none", Role.ADMIN), ("heads", "none", Role.ADMIN), (["x"], "viewer", Role.VIEWER),
        (["looks"], "operator", Role.VIEWER), (["x"], "none", None), ([], "none", None), (None, "none", None), ([["ops"], {"ops": 1}, 7], "none", None),
        ({"ops": True}, "none", None), ("ops heads", "none", None), (["OPS"], "none", None),
    ],
)  # fmt: skip
def test_the_highest_role_that_a_claim_gives_counts(groups: Any, default: str, role: Role | None) -> None:
    given = {
        "oidc_roles_claim": "groups",
        "oidc_roles": "ops=operator,heads=admin,looks=viewer",
        "oidc_default_role": default,
    }
    if role is None:
        assert refused({**ANN, "groups": groups}, **given) == "role"
    else:
        found = claims.read({**ANN, "groups": groups}, read(**given))
        assert (found.role, found.rules_role) == (role, True)


def test_a_claim_is_found_by_its_name_or_by_a_path() -> None:
    said = {"a.b": 1, "a": {"b": 2, "c": {"d": 3}}, "https://x.example/roles": ["ops"]}
    assert [claims.find(said, place) for place in ("a.b", "a.c.d", "https://x.example/roles", "a.b.c", "n", "a.c.d.e")] == [
        1, 3, ["ops"], None, None, None
    ]  # fmt: skip


@pytest.mark.parametrize("tenant", [None, "", 7, ["acme"], "a\x00b", "x" * 201])
def test_where_a_claim_names_tenants_who_has_none_sees_nothing(tenant: Any) -> None:
    assert refused({**ANN, "org": tenant}, oidc_tenant_claim="org") == "tenant"
    assert claims.read({**ANN, "org": "acme"}, read(oidc_tenant_claim="org")).tenant == "acme"


@pytest.mark.parametrize("sub", [None, "", 7, "x" * 256, "a\nb", ["x"]])
def test_a_person_without_a_subject_is_nobody(sub: Any) -> None:
    with pytest.raises(LoginRefused):
        claims.read({**ANN, "sub": sub}, read())


def test_more_is_asked_for_where_something_is_missing() -> None:
    assert not claims.wanted(ANN, read())
    assert claims.wanted({"sub": "248"}, read())
    assert claims.wanted(ANN, read(oidc_roles_claim="groups", oidc_roles="a=admin"))
    assert claims.wanted(ANN, read(oidc_tenant_claim="org"))
    assert claims.wanted({"sub": "248", "email": "a@b.org"}, read(oidc_domains="b.org"))
    assert not claims.wanted({**ANN, "groups": []}, read(oidc_roles_claim="groups", oidc_roles="a=admin"))


def test_what_a_browser_brings_back_is_made_of_its_secret_alone() -> None:
    one, other = Flow("a" * 43), Flow("b" * 43)
    made = [
        one.state,
        one.nonce,
        one.verifier,
        one.challenge,
        other.state,
        other.nonce,
        other.verifier,
        other.challenge,
    ]
    assert len(set(made)) == 8
    assert all(
        43 <= len(text) <= 128 and set(text) <= set("-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
        for text in made
    )
    assert one.began(Flow("a" * 43).state)
    assert not one.began(other.state)
    assert not one.began("\udcff")


def test_the_challenge_is_that_of_the_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    # RFC 7636, appendix B
    monkeypatch.setattr(Flow, "verifier", "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    assert Flow("").challenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


GROUPS = {"oidc_roles_claim": "groups", "oidc_roles": "heads=admin"}
POINTER = {"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "https://graph.windows.net/x"}}}


@pytest.mark.parametrize("default", ["viewer", "none"])
@pytest.mark.parametrize(
    "said", [POINTER, {"_claim_names": {"groups": "src1"}}, {"hasgroups": True}, {"hasgroups": "true"}, {"groups:src1": "https://x"}],
    ids=str,
)  # fmt: skip
def test_who_is_in_too_many_groups_gets_no_role_but_the_reason(said: dict[str, Any], default: str) -> None:
    # C048
    assert refused({**ANN, **said}, **GROUPS, oidc_default_role=default) == "groups_overage"
    with pytest.raises(LoginRefused, match=r"too many.*app role.*oidc_groups_url"):
        claims.read({**ANN, **said}, read(**GROUPS, oidc_default_role=default))


@pytest.mark.parametrize(
    ("said", "given", "role"),
    [
        ({**POINTER, "groups": ["heads"]}, GROUPS, Role.ADMIN),
        ({**POINTER, "roles": ["heads"]}, {**GROUPS, "oidc_roles_claim": "roles"}, Role.ADMIN),  # an app role is told all the same
        ({"hasgroups": True}, {**GROUPS, "oidc_roles_claim": "roles"}, Role.VIEWER),
        ({"hasgroups": False}, GROUPS, Role.VIEWER),
        ({"_claim_names": {"address": "src1"}}, GROUPS, Role.VIEWER),
        ({"_claim_names": "groups"}, GROUPS, Role.VIEWER),
        (POINTER, {}, Role.VIEWER),
    ],
)  # fmt: skip
def test_a_pointer_to_groups_matters_only_where_they_give_the_role_and_are_not_there(
    said: dict[str, Any], given: dict[str, Any], role: Role
) -> None:
    # C048
    assert claims.read({**ANN, **said}, read(**given)).role is role
