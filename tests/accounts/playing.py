"""A provider of OpenID Connect on loopback, with keys of its own, that can be told to misbehave."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from joserfc import jwk, jws, jwt

from listening import listening

CLIENT, SECRET = "duly dashboard", "a secret: of /the client+"
#: RSA keys take long to make, and no test needs one of its own.
RSA = [jwk.RSAKey.generate_key(2048, {"kid": f"rsa {n}", "use": "sig"}) for n in range(2)]
EC = jwk.ECKey.generate_key("P-256", {"kid": "ec", "use": "sig", "alg": "ES256"})
ED = jwk.OKPKey.generate_key("Ed25519", {"kid": "ed", "use": "sig"})
#: For who wants every algorithm.
ANY = [
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
    "HS256",
    "none",
]


@dataclass
class Playing:
    """The other side. What it says of the next person stands in ``person``; everything else is how it behaves."""

    url: str = ""
    #: Seconds since the epoch, by its clock.
    now: Callable[[], float] = lambda: 0.0
    person: dict[str, Any] = field(default_factory=lambda: {"sub": "248289761001", "email": "ann@example.org", "email_verified": True})  # fmt: skip
    more: dict[str, Any] = field(default_factory=dict)
    #: Laid over the claims of the ID token; None takes one away.
    claims: dict[str, Any] = field(default_factory=dict)
    #: Laid over the discovery document.
    document: dict[str, Any] = field(default_factory=dict)
    key: Any = field(default_factory=lambda: RSA[0])
    #: What is published; the key that signs, if nothing is said.
    published: list[Any] | None = None
    algorithm: str = "RS256"
    header: dict[str, Any] = field(default_factory=dict)
    #: The token itself, made from the right one.
    forge: Callable[[str], str] = lambda token: token
    #: The access token, where it is not one as any other.
    access: str = ""
    #: By path: what is answered instead.
    instead: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    #: Paths that answer only when the test is over.
    silent: set[str] = field(default_factory=set)
    #: Paths that answer a byte at a time, for ever.
    dripping: set[str] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)
    denies: str | None = None
    #: Does it ask people on a page of its own, or send browsers back at once?
    asks: bool = False
    #: What was asked: (path, form).
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    #: Everything that was secret on the way.
    secrets: list[str] = field(default_factory=lambda: [SECRET])
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    # ------------------------------------------------------------------ what it answers

    def discovery(self) -> dict[str, Any]:
        made = {
            "issuer": self.url, "authorization_endpoint": f"{self.url}/authorize", "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys", "userinfo_endpoint": f"{self.url}/me", "response_types_supported": ["code"],
            "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ANY,
            "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
        }  # fmt: skip
        return {name: value for name, value in {**made, **self.document}.items() if value is not None}

    def authorize(self, asked: dict[str, str]) -> str:
        """Where a browser is sent back to."""
        back = asked["redirect_uri"]
        if self.denies is not None:
            return f"{back}?{urlencode({'error': self.denies, 'error_description': 'no <b>', 'state': asked['state']})}"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        self.secrets += [code, asked["nonce"]]
        return f"{back}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.url})}"

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        client, secret = form.get("client_id"), form.get("client_secret")
        if authorization:
            client, secret = map(unquote_plus, base64.b64decode(authorization.removeprefix("Basic ")).decode().split(":"))  # fmt: skip
        if (client, secret) != (CLIENT, SECRET):
            return 401, {"error": "invalid_client", "error_description": SECRET}
        asked = self.codes.pop(form["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        self.secrets.append(form["code_verifier"])
        if asked is None or asked["redirect_uri"] != form["redirect_uri"] or challenge.decode() != asked["code_challenge"]:  # fmt: skip
            return 400, {"error": "invalid_grant"}
        now = int(self.now())
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"], **self.person, **self.claims}  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": self.algorithm, "kid": self.key.kid, **self.header}
        header = {name: value for name, value in header.items() if value is not None}
        registry = jws.JWSRegistry(algorithms=ANY, strict_check_header=False)
        token, access = (
            self.forge(jwt.encode(header, claims, self.key, registry=registry)),
            self.access or secrets.token_urlsafe(20),
        )
        self.secrets += [token, access]
        return 200, {"id_token": token, "access_token": access, "token_type": "Bearer"}

    def keys(self) -> dict[str, Any]:
        known = [self.key] if self.published is None else self.published
        return {"keys": [one if isinstance(one, dict) else one.as_dict(private=False) for one in known]}


@contextlib.contextmanager
def playing() -> Iterator[Playing]:
    """A provider while the block runs."""
    made = Playing()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            self.answer(dict(parse_qsl(body, keep_blank_values=True)))

        def answer(self, form: dict[str, str]) -> None:
            parts = urlsplit(self.path)
            made.asked.append((parts.path, form))
            if parts.path in made.silent:
                made.over.wait(60)
                return
            if parts.path in made.dripping:
                self.send(200, b"", length=1_000_000)
                while not made.over.wait(0.02):
                    self.wfile.write(b" ")
            if parts.path in made.instead:
                self.send(*made.instead[parts.path])
                return
            if parts.path == "/authorize" and made.asks:
                back = html.escape(made.authorize(dict(parse_qsl(parts.query))))
                page = (
                    f'<!doctype html><title>Provider</title><main><a class="button" href="{back}">I am Ann</a></main>'
                )
                self.send(200, page.encode(), "text/html")
                return
            if parts.path == "/authorize":
                self.send_response(303)
                self.send_header("location", made.authorize(dict(parse_qsl(parts.query))))
                self.send_header("content-length", "0")
                self.end_headers()
                return
            status, said = 200, {}
            if parts.path == "/.well-known/openid-configuration":
                said = made.discovery()
            elif parts.path == "/keys":
                said = made.keys()
            elif parts.path == "/token":
                status, said = made.token(form, self.headers.get("authorization", ""))
            elif parts.path == "/me":
                said = {"sub": made.person["sub"], **made.more}
            else:
                status = 404
            self.send(status, json.dumps(said).encode())

        def send(self, status: int, body: bytes, kind: str = "application/json", length: int = 0) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(length or len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with listening(Handler) as port:
        made.url = f"http://127.0.0.1:{port}"
        try:
            yield made
        finally:
            made.over.set()
