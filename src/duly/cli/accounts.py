"""``duly tokens`` and ``duly users``: who may come in over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from duly.cli import show
from duly.cli.command import ID, Group, actor, state
from duly.cli.times import SPAN, relative

if TYPE_CHECKING:
    from duly.accounts.account import Token, User
    from duly.accounts.door import Accounts

ROLES = click.Choice(["viewer", "operator", "admin"])


def door(make: bool = False) -> Accounts:
    from duly.accounts.door import Accounts

    return Accounts(state().open(make))


@click.group(cls=Group)
def tokens() -> None:
    """Tokens for programs that come in over HTTP."""


@tokens.command("create")
@click.argument("name")
@click.option("--role", type=ROLES, default="viewer", show_default=True, help="What it may do.")
@click.option("--tenant", metavar="NAME", help="Whose things it sees; else everybody's.")
@click.option("--scope", "scopes", multiple=True, metavar="AREA", help="Only this area, such as jobs; may be repeated.")
@click.option("--expires-in", type=SPAN, metavar="SPAN", help="It ends so long from now: 90d.")
def create(name: str, role: str, tenant: str | None, scopes: Sequence[str], expires_in: timedelta | None) -> None:
    """Make a token. It is shown once."""
    token, made = door(make=True).create_token(
        name, role, tenant=tenant, scopes=list(scopes) or ["*"], expires_in=expires_in, actor=actor()
    )
    if state().json:
        show.as_json({"token": token, **_token(made)})
        return
    show.say(token)
    click.echo("It is not shown again. Send it as `Authorization: Bearer …`.", err=True)


def _token(one: Token) -> dict[str, object]:
    return {
        "id": one.id, "name": one.name, "prefix": one.prefix, "role": one.role.word, "tenant": one.tenant, "scopes": list(one.scopes),
        "created_at": one.created_at, "created_by": one.created_by, "expires_at": one.expires_at, "last_used_at": one.last_used_at,
        "revoked_at": one.revoked_at,
    }  # fmt: skip


@tokens.command("list")
@click.option("--tenant", metavar="NAME", help="Of this tenant; else all.")
def list_(tenant: str | None) -> None:
    """List tokens, newest first."""
    accounts = door()
    found, now = accounts.tokens(tenant), accounts._app.engine.clock.now()
    if state().json:
        show.as_json([{**_token(one), "state": one.state(now)} for one in found])
        return
    show.table(
        "!#id name !begins !role tenant scopes expires last_used !state",
        (
            (one.id, one.name, one.prefix, one.role.word, one.tenant or "all", ", ".join(one.scopes),
             relative(one.expires_at, now) if one.expires_at else "never", relative(one.last_used_at, now) if one.last_used_at else "never", one.state(now))
            for one in found
        ),
        empty="There is no token.",
    )  # fmt: skip


@tokens.command()
@click.argument("token", type=ID)
def revoke(token: int) -> None:
    """Let nobody in with a token any more. TOKEN: its number."""
    gone = door().revoke_token(token, actor=actor())
    if state().json:
        show.as_json(_token(gone))
    else:
        show.say(f"Token {gone.id} ({gone.name}) is revoked.")


@click.group(cls=Group)
def users() -> None:
    """People who may log in to the dashboard."""


def _password() -> str:
    """Asked for twice on a terminal; one line of stdin otherwise. Never an argument: those can be seen by others."""
    if sys.stdin.isatty():
        found: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return found
    return sys.stdin.readline().rstrip("\n")


@users.command("create")
@click.argument("name")
@click.option("--role", type=ROLES, default="viewer", show_default=True, help="What they may do.")
@click.option("--tenant", metavar="NAME", help="Whose things they see; else everybody's.")
def create_user(name: str, role: str, tenant: str | None) -> None:
    """Make a user. The password is asked for, or read from stdin."""
    made = door(make=True).create_user(name, _password(), role, tenant=tenant, actor=actor())
    _told(made, f"User {made.name} may log in as {made.role.word}.")


@users.command("list")
def list_users() -> None:
    """List users, how they log in, and as whom a provider knows them."""
    accounts = door()
    found, now = accounts.users(), accounts._app.engine.clock.now()
    if state().json:
        show.as_json([_user(one) for one in found])
        return
    show.table(
        "!user !role tenant logs_in_by made !state known_as",
        (
            (one.name, one.role.word, one.tenant or "all", one.login, relative(one.created_at, now), "off" if one.disabled_at else "on", _known_as(one))
            for one in found
        ),
        empty="There is no user.",
    )  # fmt: skip


def _known_as(one: User) -> str:
    return ", ".join(f"{known.subject} at {known.issuer}" for known in one.identities)


def _user(one: User) -> dict[str, object]:
    return {
        "id": one.id, "name": one.name, "role": one.role.word, "tenant": one.tenant, "created_at": one.created_at, "updated_at": one.updated_at,
        "disabled_at": one.disabled_at, "login": one.login,
        "identities": [{"issuer": known.issuer, "subject": known.subject} for known in one.identities],
    }  # fmt: skip


def _told(one: User, words: str) -> None:
    if state().json:
        show.as_json(_user(one))
    else:
        show.say(words)


@users.command("password")
@click.argument("name")
def password_(name: str) -> None:
    """Give a user another password. Their logins end."""
    one = door().change_user(name, password=_password(), actor=actor())
    _told(one, f"User {one.name} has another password; their logins have ended.")


@users.command()
@click.argument("name")
@click.argument("role", type=ROLES)
def role(name: str, role: str) -> None:
    """Give a user another role. Their logins end."""
    one = door().change_user(name, role=role, actor=actor())
    _told(one, f"User {one.name} is {one.role.word}; their logins have ended.")


@users.command()
@click.argument("name")
@click.option("--undo", is_flag=True, help="Let them log in again.")
def disable(name: str, undo: bool) -> None:
    """Let a user log in no more."""
    one = door().change_user(name, disabled=not undo, actor=actor())
    _told(one, f"User {one.name} may log in{'' if undo else ' no more; their logins have ended'}.")


@users.command()
@click.argument("name")
@click.argument("subject")
@click.option("--issuer", metavar="URL", help="The provider; else that of the setting oidc_issuer.")
@click.option("--also", is_flag=True, help="Beside who they are known as already.")
@click.option("--force", is_flag=True, help="Also the last administrator, to a provider that the settings do not name.")
def link(name: str, subject: str, issuer: str | None, also: bool, force: bool) -> None:
    """Let a user log in through OpenID Connect only.

    Their password is none any more, and their logins end. SUBJECT: what the provider calls them for ever (`sub`); the audit trail has it, with their name, of those who were not let in because that is taken. Ask the provider whose it is before you hand somebody an account.
    """
    from_settings = state().duly().settings.oidc_issuer
    if not issuer and not from_settings:
        raise click.UsageError("There is no provider: say --issuer, or set DULY_OIDC_ISSUER.")
    one = door().link_user(name, issuer or from_settings, subject, also=also, force=force, actor=actor())
    _told(one, f"User {one.name} logs in through {issuer or from_settings}; their logins have ended.")


@users.command()
@click.argument("name")
@click.option("--subject", metavar="SUBJECT", help="Only as this one; else as whoever they are known.")
@click.option("--issuer", metavar="URL", help="Only at this provider; else at each.")
def unlink(name: str, subject: str | None, issuer: str | None) -> None:
    """Let a user log in through OpenID Connect no more.

    Their logins end. They log in with a password again as soon as `duly users password` has given them one.
    """
    one = door().unlink_user(name, subject=subject, issuer=issuer, actor=actor())
    left = f"is still known as {_known_as(one)}" if one.identities else f"logs in again when `duly users password {one.name}` has given them one"  # fmt: skip
    _told(one, f"User {one.name} {left}; their logins have ended.")
