"""Logging in through OpenID Connect, by the authorization code flow with PKCE. ``door.SignOn`` is the door.

``options`` reads the settings, ``claims`` decides who somebody is and what they may, ``flow`` is what a browser brings back, and ``provider``
speaks with the other side. Needs ``pip install "duly[oidc]"``. Source: ADR 0031, OpenID Connect Core 1.0, RFC 7636, RFC 9207.
"""
