"""The other side: its discovery document, its keys, and what it says of somebody. HTTP by ``outbound``, signatures by joserfc.

Nothing of an answer is believed before it is checked (OpenID Connect Core, 3.1.3.7): the ID token is signed by a key of the provider with one
of ``ALGORITHMS``, which are all asymmetric; it is for this client and this login, and of now. A message of an error names no value of a token.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote_plus, urlencode

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.jws import JWSRegistry, extract_compact

from duly import outbound
from duly.accounts.account import ProviderFailed
from duly.accounts.oidc import claims as reading
from duly.accounts.oidc.flow import Flow
from duly.accounts.oidc.options import Options, is_safe
from duly.kernel.verdict import Refusal

#: What an ID token may be signed with. No `none`, and no HMAC, whose key the provider would share with whoever knows it.
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
#: Seconds for one exchange, from the connection to the last byte.
WITHIN = 10.0
#: Seconds that the discovery document and the keys are kept. A key that is not among them is asked for at once.
KEPT = 600.0
#: Seconds that the clocks of both sides may differ.
LEEWAY = 60
#: The longest header of an ID token, in bytes as sent: some carry certificates.
LONGEST_HEADER = 8_192


class _Registry(JWSRegistry):
    max_header_length = LONGEST_HEADER


_SIGNED = _Registry(algorithms=ALGORITHMS, strict_check_header=False)


@dataclass(frozen=True, slots=True)
class Discovered:
    """What of the discovery document is used."""

    authorization: str
    token: str
    keys: str
    userinfo: str | None
    #: How the client says who it is.
    by_header: bool
    #: Does the provider name itself when it sends a browser back (RFC 9207)?
    names_itself: bool
    algorithms: tuple[str, ...]


class Provider:
    """The provider of some options. ``now``: seconds that only go forward."""

    def __init__(self, options: Options, now: Callable[[], float] = time.monotonic) -> None:
        self.options, self._now = options, now
        self._discovered: tuple[float, Discovered] | None = None
        self._keys: tuple[float, list[Key]] | None = None

    async def address(self, flow: Flow, redirect_url: str) -> str:
        """Where a browser is sent to. Raises ProviderFailed."""
        found = await self.discover()
        asked = {
            "response_type": "code", "client_id": self.options.client_id, "redirect_uri": redirect_url, "scope": self.options.scopes,
            "state": flow.state, "nonce": flow.nonce, "code_challenge": flow.challenge, "code_challenge_method": "S256",
        }  # fmt: skip
        return f"{found.authorization}{'&' if '?' in found.authorization else '?'}{urlencode(asked)}"

    async def claims(self, flow: Flow, code: str, redirect_url: str, now: datetime) -> dict[str, Any]:
        """What the provider says of who came back with a code; verified. Raises ProviderFailed."""
        found = await self.discover()
        said = await self._exchange(found, flow, code, redirect_url)
        token, access = said.get("id_token"), said.get("access_token")
        if not isinstance(token, str):
            raise ProviderFailed("answered without an ID token. Is `openid` among the scopes of the client?")
        claims = await self._verified(found, token, flow.nonce, now)
        if found.userinfo is not None and isinstance(access, str) and reading.wanted(claims, self.options):
            more = await self._more(found.userinfo, access)
            # of somebody else nothing may be used (Core, 5.3.4), and some know people by another subject there
            claims = {**more, **claims} if more.get("sub") == claims["sub"] else claims
        if isinstance(access, str) and self.options.groups_url and reading.overflows(claims, self.options):
            groups = await self._groups(access)
            claims = claims if groups is None else {**claims, self.options.roles_claim: groups}
        return claims

    async def _groups(self, access: str) -> list[str] | None:
        """Return the groups of who has too many for a token; None where they are refused. Raises ProviderFailed where no one answers."""
        headers = {"Authorization": f"Bearer {access}", "Content-Type": "application/json"}
        try:
            found = await self._ask(
                "the groups", "POST", self.options.groups_url, headers, content=b'{"securityEnabledOnly":false}'
            )
        except ProviderFailed as failed:
            if failed.away:
                raise
            return None
        listed = found.get("value")
        return [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else None

    async def _more(self, url: str, access: str) -> Mapping[str, Any]:
        """What the provider tells besides; empty where it does not want to. Raises ProviderFailed where it is away."""
        try:
            return await self._ask("userinfo", "GET", url, {"Authorization": f"Bearer {access}"})
        except ProviderFailed as failed:
            if failed.away:
                raise
            return {}

    # ------------------------------------------------------------------ discovery

    async def discover(self) -> Discovered:
        """The discovery document, of a while ago at most. Raises ProviderFailed."""
        kept = self._discovered
        if kept is not None and self._now() < kept[0]:
            return kept[1]
        place = f"{self.options.issuer.rstrip('/')}/.well-known/openid-configuration"
        found = self._read(await self._ask("the discovery document", "GET", place))
        self._discovered = (self._now() + KEPT, found)
        return found

    def _read(self, document: Mapping[str, Any]) -> Discovered:
        issuer, wanted = document.get("issuer"), self.options.issuer
        if issuer != wanted:
            named = f"{issuer!r}"[:200]
            raise ProviderFailed(f"calls itself {named}, and oidc_issuer is {wanted!r}; they have to be the same, to the last slash.")  # fmt: skip

        def endpoint(name: str) -> str:
            url = document.get(name)
            if not isinstance(url, str) or not is_safe(url) or (wanted.startswith("https:") and not url.startswith("https:")):  # fmt: skip
                raise ProviderFailed(f"names no {name} that is an https:// URL.")
            return url

        methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        signed = document.get("id_token_signing_alg_values_supported", ["RS256"])
        algorithms = tuple(one for one in ALGORITHMS if isinstance(signed, list) and one in signed)
        if not algorithms:
            raise ProviderFailed(f"signs with none of {', '.join(ALGORITHMS)}.")
        return Discovered(
            endpoint("authorization_endpoint"), endpoint("token_endpoint"), endpoint("jwks_uri"),
            endpoint("userinfo_endpoint") if "userinfo_endpoint" in document else None,
            "client_secret_basic" in methods if isinstance(methods, list) else True,
            document.get("authorization_response_iss_parameter_supported") is True, algorithms,
        )  # fmt: skip

    # ------------------------------------------------------------------ the code

    async def _exchange(self, found: Discovered, flow: Flow, code: str, redirect_url: str) -> Mapping[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_url,
            "code_verifier": flow.verifier,
        }
        headers, secret, client = {}, self.options.client_secret, self.options.client_id
        if secret and found.by_header:  # RFC 6749, 2.3.1: both are form-encoded first
            packed = base64.b64encode(f"{quote_plus(client)}:{quote_plus(secret)}".encode()).decode()
            headers["Authorization"] = f"Basic {packed}"
        else:
            form |= {"client_id": client, **({"client_secret": secret} if secret else {})}
        return await self._ask("the token endpoint", "POST", found.token, headers, form)

    async def _verified(self, found: Discovered, token: str, nonce: str, now: datetime) -> dict[str, Any]:
        try:
            header = extract_compact(token.encode(), registry=_SIGNED).headers()
            algorithm, kid = header.get("alg"), header.get("kid")
        except (JoseError, ValueError, TypeError, AttributeError, RecursionError):
            raise ProviderFailed("sent an ID token that cannot be read.") from None
        if algorithm not in found.algorithms:
            raise ProviderFailed("sent an ID token that is not signed with one of the algorithms that are believed.")
        keys = await self._known(found)
        fitting = _fitting(keys, algorithm, kid)
        if not fitting:  # the provider has new ones
            self._keys = None
            fitting = _fitting(await self._known(found), algorithm, kid)
        for key in fitting:
            claims = _opened(token, key)
            if claims is not None:
                return self._checked(claims, nonce, now)
        raise ProviderFailed("sent an ID token that none of its keys has signed.")

    def _checked(self, claims: dict[str, Any], nonce: str, now: datetime) -> dict[str, Any]:
        client = self.options.client_id
        asked = jwt.JWTClaimsRegistry(
            int(now.timestamp()), LEEWAY,
            iss={"essential": True, "value": self.options.issuer}, aud={"essential": True, "value": client}, sub={"essential": True},
            exp={"essential": True}, iat={"essential": True}, nonce={"essential": True},
        )  # fmt: skip
        try:
            asked.validate(claims)
        except JoseError as error:
            claim = getattr(error, "claim", None) or str(error.description)
            raise ProviderFailed(f"sent an ID token that does not fit this login ({str(claim)[:60]}).") from None
        given, azp, aud = claims["nonce"], claims.get("azp"), claims["aud"]
        if not isinstance(given, str) or not hmac.compare_digest(given.encode("utf-8", "replace"), nonce.encode()):
            raise ProviderFailed("sent an ID token that does not fit this login (nonce).")
        if azp not in (None, client) or (isinstance(aud, list) and len(aud) > 1 and azp is None):
            raise ProviderFailed("sent an ID token that does not fit this login (azp).")
        return claims

    async def _known(self, found: Discovered) -> list[Key]:
        kept = self._keys
        if kept is not None and self._now() < kept[0]:
            return kept[1]
        listed = (await self._ask("its keys", "GET", found.keys)).get("keys")
        keys = [key for one in (listed if isinstance(listed, list) else [])[:100] if (key := _imported(one)) is not None]  # fmt: skip
        self._keys = (self._now() + KEPT, keys)
        return keys

    # ------------------------------------------------------------------ asking

    async def _ask(
        self, what: str, method: str, url: str, headers: Mapping[str, str] = {}, form: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Mapping[str, Any]:  # fmt: skip
        """One exchange, whose answer is a JSON object. Raises ProviderFailed."""
        content = content if form is None else urlencode(form).encode()
        kind = {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            async with asyncio.timeout(WITHIN):
                sent = {"Accept": "application/json", **kind, **headers}
                async with outbound.stream(method, url, timeout=WITHIN, headers=sent, content=content) as streamed:
                    answer = await streamed.whole()
        except TimeoutError:
            raise ProviderFailed(f"did not answer within {WITHIN:g} s ({what}).", away=True) from None
        except (ValueError, httpx2.InvalidURL):  # an address or a token that cannot be sent
            raise ProviderFailed(f"named something that cannot be asked ({what}).") from None
        except Refusal as refused:
            raise ProviderFailed(f"does not answer ({what}): {refused.verdict.reason}.", away=True) from None
        if answer.status >= 500 or answer.status == 429:
            raise ProviderFailed(f"answered with {answer.status} ({what}).", away=True)
        if answer.status != 200:
            # RFC 6749, 5.2: a word such as invalid_client. A description may hold anything.
            word = answer.body.get("error")
            known = f" {word}" if isinstance(word, str) and word.isascii() and word.replace("_", "").isalnum() and len(word) <= 60 else ""  # fmt: skip
            raise ProviderFailed(f"answered with {answer.status}{known} ({what}).")
        if not answer.body:
            raise ProviderFailed(f"answered with something that is no JSON object ({what}).")
        return answer.body


def _imported(given: object) -> Key | None:
    """A key that may sign; None for any other, and for what is no key."""
    if not isinstance(given, dict) or given.get("kty") not in ("RSA", "EC", "OKP") or given.get("use", "sig") != "sig":
        return None
    try:
        return JWKRegistry.import_key(given)
    except Exception:  # joserfc hands on what cryptography raises for numbers that are no key
        return None


def _fitting(keys: list[Key], algorithm: str, kid: object) -> list[Key]:
    """Keys that an ID token may be signed with, by what its header says."""
    kind = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}[algorithm[:2]]
    return [
        key for key in keys
        if key.key_type == kind and (kid is None or key.kid == kid) and key.get("alg") in (None, algorithm)
    ]  # fmt: skip


def _opened(token: str, key: Key) -> dict[str, Any] | None:
    """The claims, if this key has signed them."""
    try:
        return jwt.decode(token, key, registry=_SIGNED).claims
    except Exception:  # whatever is wrong with it: it is not believed
        return None
