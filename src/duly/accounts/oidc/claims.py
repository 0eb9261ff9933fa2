"""Who somebody is, and what they may, by what their provider says of them. Pure.

Claims have been verified when they come here. What is missing or wrong never gives more: no role is no entry, and where tenants are named by a
claim, who has none sees nothing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from duly.accounts.account import Claimed, LoginRefused, Role, User, check_user_name
from duly.accounts.oidc.options import Options
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_name

#: The longest subject: what OpenID Connect allows (Core, 2).
LONGEST_SUBJECT = 255


def read(claims: Mapping[str, Any], options: Options) -> Claimed:
    """The person. Raises LoginRefused."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= LONGEST_SUBJECT or not subject.isprintable():
        raise LoginRefused("subject", "The provider does not say who you are (sub).")
    address = _address(claims, options)
    name = _name(claims, options, address)
    return Claimed(
        options.issuer, subject, name, _role(claims, options), _tenant(claims, options),
        rules_role=bool(options.roles_claim), rules_tenant=bool(options.tenant_claim),
    )  # fmt: skip


def wanted(claims: Mapping[str, Any], options: Options) -> bool:
    """Is something missing that the provider may tell when it is asked for more (userinfo)?"""
    places = [options.roles_claim, options.tenant_claim, *(("email", "email_verified") if options.domains else ())]
    named = any(find(claims, place) is not None for place in options.names)
    return not named or any(find(claims, place) is None for place in places if place)


def find(claims: Mapping[str, Any], place: str) -> Any:
    """A claim by its name, or by a path with dots (``realm_access.roles``); None where it is not there."""
    if place in claims:
        return claims[place]
    found: Any = claims
    for step in place.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(step)
    return found


def overflows(claims: Mapping[str, Any], options: Options) -> bool:
    """Return whether the provider left out the claim of roles because it is too long.

    Entra sends a pointer instead of more than 200 groups (``_claim_names``, OpenID Connect Core 5.6.2), or ``hasgroups``.
    """
    place = options.roles_claim
    if not place or find(claims, place) is not None:
        return False
    name, pointers = place.partition(".")[0], claims.get("_claim_names")
    if isinstance(pointers, Mapping) and (place in pointers or name in pointers):
        return True
    has_groups = str(claims.get("hasgroups", "")).lower() == "true" or any(
        key.startswith("groups:src") for key in claims
    )
    return name == "groups" and has_groups


def changes(user: User, claimed: Claimed) -> dict[str, Any]:
    """What of an account is not as the provider says any more: columns and their new values."""
    out: dict[str, Any] = {}
    if claimed.rules_role and user.role is not claimed.role:
        out["role"] = claimed.role.word
    if claimed.rules_tenant and user.tenant != claimed.tenant:
        out["tenant"] = claimed.tenant
    return out


def _address(claims: Mapping[str, Any], options: Options) -> str | None:
    """The mail address; None where the provider says that it is not theirs, or names none."""
    address, verified = claims.get("email"), claims.get("email_verified")
    if isinstance(verified, str):  # some write booleans as texts
        verified = {"true": True, "false": False}.get(verified.lower())
    if options.domains:
        domain = address.rpartition("@")[2].lower() if isinstance(address, str) and "@" in address else ""
        if verified is not True or domain not in options.domains:
            raise LoginRefused("domain", "Your mail address is not of a domain that is let in, or your provider has not verified it.")  # fmt: skip
    return address if isinstance(address, str) and verified is not False else None


def _name(claims: Mapping[str, Any], options: Options, address: str | None) -> str:
    for place in options.names:
        found = address if place == "email" else find(claims, place)
        if isinstance(
            found, str
        ):  # blanks around it are no other name, and neither is another spelling of the same characters
            found = unicodedata.normalize("NFC", found.strip())
        if found in (None, ""):
            continue
        try:
            return check_user_name(found)
        except InvalidArgument:
            raise LoginRefused("name", f"What your provider calls you ({place}) cannot be a name here.") from None
    more = " An address that it has not verified is none." if "email" in options.names else ""
    raise LoginRefused("name", f"Your provider does not say what you are called ({', '.join(options.names)}).{more}")


def _role(claims: Mapping[str, Any], options: Options) -> Role:
    if overflows(claims, options):
        # neither the role of before nor the default: what they may now, nobody can say
        raise LoginRefused(
            "groups_overage",
            f"Your groups were not sent because there are too many ({options.roles_claim}), so your role is not known. Ask an administrator to give you an app role "
            "at the identity provider, to have it send only the groups that are assigned to Duly, or to set oidc_groups_url.",
        )
    found = find(claims, options.roles_claim) if options.roles_claim else None
    values = found if isinstance(found, list) else [found]
    given = [options.roles[one] for one in values if isinstance(one, str) and one in options.roles]
    role = max(given, default=options.default_role)
    if role is None:
        raise LoginRefused("role", "You are known, and nothing that your provider says of you gives you a role here.")
    return role


def _tenant(claims: Mapping[str, Any], options: Options) -> str | None:
    if not options.tenant_claim:
        return None
    try:
        return check_name(find(claims, options.tenant_claim), "tenant")
    except InvalidArgument:
        raise LoginRefused("tenant", "Your provider does not say which tenant you belong to.") from None
