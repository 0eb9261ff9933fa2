"""What the settings say about the provider and its people. Pure; every mistake names the setting."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from duly.accounts.account import Role, read_role
from duly.kernel.errors import InvalidArgument
from duly.settings import Settings

#: Where the provider sends browsers back to.
CALLBACK = "/login/oidc/callback"
#: What the button says where nobody has said it.
LABEL = "Log in with single sign-on"
_DOMAIN = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings that fit together."""

    #: Exactly as the provider writes it, with or without a slash at its end.
    issuer: str
    client_id: str
    #: Empty: a public client, which PKCE alone protects.
    client_secret: str = field(repr=False)
    scopes: str
    #: Empty: as the browser asked for the login page.
    redirect_url: str
    #: Claims that name a person; the first that is there.
    names: tuple[str, ...]
    #: Empty: the provider says nothing of roles.
    roles_claim: str
    roles: Mapping[str, Role]
    #: None: who has none of ``roles`` is not let in.
    default_role: Role | None
    #: Empty: everybody sees every tenant.
    tenant_claim: str
    #: Domains of mail addresses, in small letters. Empty: any.
    domains: frozenset[str]
    #: What the button says.
    label: str
    #: Where the groups of who has too many are asked for. Empty: nowhere.
    groups_url: str = ""


def read(s: Settings) -> Options | None:
    """The options; None where nobody asked for OpenID Connect. Raises InvalidArgument naming the setting."""
    if not s.oidc_issuer:
        for name in ("oidc_client_id", "oidc_client_secret"):
            if getattr(s, name):
                raise InvalidArgument(name, "is set, and oidc_issuer is not.", "Set DULY_OIDC_ISSUER to the URL of the provider.")  # fmt: skip
        return None
    check_url("oidc_issuer", s.oidc_issuer)
    if not s.oidc_client_id:
        raise InvalidArgument("oidc_client_id", "is not set.", "Set DULY_OIDC_CLIENT_ID to what the provider calls this dashboard.")  # fmt: skip
    scopes = s.oidc_scopes.split()
    if "openid" not in scopes:
        raise InvalidArgument("oidc_scopes", f"is {s.oidc_scopes!r}, without openid.", "Use `openid profile email`, for example.")  # fmt: skip
    if s.oidc_redirect_url:
        check_url("oidc_redirect_url", s.oidc_redirect_url)
        if not urlsplit(s.oidc_redirect_url).path.endswith(CALLBACK):
            raise InvalidArgument("oidc_redirect_url", f"is {s.oidc_redirect_url!r}.", f"It ends with {CALLBACK}.")
    names = tuple(one.strip() for one in s.oidc_name_claim.split(",") if one.strip())
    if not names:
        raise InvalidArgument("oidc_name_claim", "is empty.", "Name a claim, such as email or preferred_username.")
    default = None if s.oidc_default_role == "none" else read_role(s.oidc_default_role)
    roles = read_roles(s.oidc_roles)
    if bool(roles) is not bool(s.oidc_roles_claim):
        missing, there = ("oidc_roles", "oidc_roles_claim") if s.oidc_roles_claim else ("oidc_roles_claim", "oidc_roles")  # fmt: skip
        raise InvalidArgument(missing, f"is not set, and {there} is.", "They go together: a claim, and which role each of its values is.")  # fmt: skip
    if default is None and not roles:
        raise InvalidArgument("oidc_default_role", "is none, and no claim gives roles, so nobody would be let in.", "Set it to viewer, operator or admin, or set oidc_roles_claim and oidc_roles.")  # fmt: skip
    domains = frozenset(one.strip().lower() for one in s.oidc_domains.split(",") if one.strip())
    for one in sorted(domains):
        if not _DOMAIN.fullmatch(one):
            raise InvalidArgument("oidc_domains", f"names {one!r}, which is no domain.", "Write example.org, with commas between several.")  # fmt: skip
    if s.oidc_groups_url:
        check_url("oidc_groups_url", s.oidc_groups_url)
    return Options(
        s.oidc_issuer, s.oidc_client_id, s.oidc_client_secret, " ".join(scopes), s.oidc_redirect_url, names, s.oidc_roles_claim, roles, default,
        s.oidc_tenant_claim, domains, s.oidc_label or LABEL, s.oidc_groups_url,
    )  # fmt: skip


def read_roles(text: str) -> dict[str, Role]:
    """``ops=operator, heads=admin``, or the same as a JSON object, where values hold commas. Raises InvalidArgument."""
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            raise InvalidArgument("oidc_roles", "begins with { and is no JSON.", 'Write {"ops": "operator"}, or ops=operator.') from None  # fmt: skip
        pairs = list(found.items())
    else:
        parts = [one.strip() for one in text.split(",") if one.strip()]
        if any("=" not in one for one in parts):
            raise InvalidArgument("oidc_roles", "has a part without =.", "Write ops=operator, heads=admin.")
        pairs = [(value.strip(), word.strip()) for value, _, word in (one.rpartition("=") for one in parts)]
    out: dict[str, Role] = {}
    for value, word in pairs:
        try:
            out[value] = read_role(str(word))
        except InvalidArgument:
            raise InvalidArgument("oidc_roles", f"makes {value!r} a {str(word)!r}.", "Use viewer, operator or admin.") from None  # fmt: skip
    if "" in out:
        raise InvalidArgument("oidc_roles", "gives a role to an empty value.", "Write ops=operator, heads=admin.")
    return out


def check_url(name: str, url: str) -> None:
    """Refuse what is no address of a provider. Raises InvalidArgument."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidArgument(name, f"is {url!r}, which is no URL.", "Write https://login.example.org/…")
    if parts.query or parts.fragment or "?" in url or "#" in url or parts.username is not None:
        raise InvalidArgument(name, "has a user, a query or a fragment.", "Write the URL without them.")
    if not is_safe(url):
        raise InvalidArgument(name, f"is {url!r}, which is not https.", "Plain http is for this machine only: http://localhost:…")  # fmt: skip


def is_safe(url: str) -> bool:
    """Is it https, or plain http on this machine?"""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    written = url.isascii() and url.isprintable() and " " not in url
    return written and bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
