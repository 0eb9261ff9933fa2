"""Who may come in: tokens, users, logins, and wrong passwords, on both databases. ADR 0029."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from duly import Duly
from duly.accounts import door
from duly.accounts.account import AREAS, Identity, Role, Throttled, read_scopes, wait_after
from duly.accounts.door import Accounts, csrf_of
from duly.kernel.errors import InvalidArgument, NotFound
from duly.testing import ManualClock

AT = datetime(2026, 5, 1, 9, 0, tzinfo=UTC)
WORDS = "a battery of correct horses"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(AT)


@pytest.fixture
def accounts(db_url: str, clock: ManualClock) -> Iterator[Accounts]:
    app = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL")
    yield Accounts(app)
    app.close()


def everything(accounts: Accounts) -> str:
    """All that stands in the tables of the room and in the trail."""

    def read(c: object) -> str:
        return "".join(
            str(tuple(row)) for table in ("api_tokens", "users", "logins", "login_failures", "audit_log")
            for row in c.execute(text(f"SELECT * FROM {table}"))  # type: ignore[attr-defined]
        )  # fmt: skip

    found: str = accounts._app.engine.db.read(read)
    return found


def test_a_token_lets_in_who_has_it_and_stands_nowhere(accounts: Accounts) -> None:
    token, made = accounts.create_token("ci", "operator", tenant="acme", scopes=["jobs"])
    assert token.startswith(made.prefix)
    assert accounts.by_token(token) == Identity("token:ci", Role.OPERATOR, "acme", ("jobs",), key=f"token {made.id}")
    assert accounts.by_token(token[:-1] + ("a" if token[-1] != "a" else "b")) is None
    assert accounts.by_token("duly_" + "x" * 5000) is None
    assert accounts.by_token("") is None
    assert token not in everything(accounts)


def test_a_token_ends_when_it_expires_or_is_revoked(accounts: Accounts, clock: ManualClock) -> None:
    token, made = accounts.create_token("soon", expires_in=timedelta(hours=1))
    clock.advance(timedelta(minutes=59))
    assert accounts.by_token(token) is not None
    clock.advance(timedelta(minutes=1))
    assert accounts.by_token(token) is None
    other, record = accounts.create_token("other", tenant="acme")
    with pytest.raises(NotFound):
        accounts.revoke_token(record.id, tenant="zeta")
    accounts.revoke_token(record.id, tenant="acme")
    assert accounts.by_token(other) is None
    with pytest.raises(NotFound):
        accounts.revoke_token(record.id)
    assert [t.state(clock.now()) for t in accounts.tokens()] == ["revoked", "expired"]
    assert [t.name for t in accounts.tokens("acme")] == ["other"]
    assert made.state(AT) == "active"


def test_when_a_token_was_used_is_known_to_the_minute(accounts: Accounts, clock: ManualClock) -> None:
    token, _ = accounts.create_token("ci")
    accounts.by_token(token)
    clock.advance(30)
    accounts.by_token(token)
    assert accounts.tokens()[0].last_used_at == AT
    clock.advance(31)
    accounts.by_token(token)
    assert accounts.tokens()[0].last_used_at == AT + timedelta(seconds=61)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"role": "king"}, "role"),
        ({"scopes": ["jobs", "moon"]}, "scopes[1]"),
        ({"scopes": "jobs"}, "scopes"),
        ({"tenant": ""}, "tenant"),
        ({"expires_in": timedelta(0)}, "expires_in"),
        ({"expires_at": AT - timedelta(seconds=1)}, "expires_at"),
        ({"expires_at": datetime(2030, 1, 1)}, "expires_at"),
    ],
)
def test_what_cannot_be_a_token_is_refused_by_its_field(
    accounts: Accounts, options: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        accounts.create_token("ci", **options)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert accounts.tokens() == []


def test_a_password_is_kept_as_argon2_and_nowhere_else(accounts: Accounts) -> None:
    accounts.create_user("ann", WORDS, "admin")
    session = accounts.log_in("ann", WORDS)
    assert session is not None
    kept = everything(accounts)
    assert "$argon2id$" in kept
    assert WORDS not in kept
    assert session not in kept


def test_a_password_costs_who_guesses_what_the_library_advises() -> None:
    from argon2 import PasswordHasher, extract_parameters

    asked = subprocess.run(
        [sys.executable, "-c", f"from duly.accounts.door import hashed; print(hashed({WORDS!r}))"],
        capture_output=True,
        text=True,
        check=True,
    )  # a process of its own: the suite's passwords are cheap
    meant = PasswordHasher()
    got = extract_parameters(asked.stdout.strip())
    assert (got.memory_cost, got.time_cost) == (meant.memory_cost, meant.time_cost)
    assert meant.memory_cost >= 19 * 1024  # OWASP's least


def test_a_login_is_new_each_time_and_ends(accounts: Accounts, clock: ManualClock) -> None:
    ann = accounts.create_user("ann", WORDS, "operator", tenant="acme")
    first, second = accounts.log_in("ann", WORDS), accounts.log_in("ann", WORDS)
    assert first is not None
    assert second is not None
    assert first != second
    assert accounts.by_login(first) == Identity(
        "user:ann", Role.OPERATOR, "acme", csrf=csrf_of(first), user="ann", key=f"user {ann.id}"
    )
    accounts.log_out(first)
    assert accounts.by_login(first) is None
    assert accounts.by_login(second) is not None
    clock.advance(timedelta(hours=12, seconds=1))
    assert accounts.by_login(second) is None  # nobody used it
    third = accounts.log_in("ann", WORDS)
    assert third is not None
    for _ in range(14):
        assert accounts.by_login(third) is not None
        clock.advance(timedelta(hours=11))
    clock.advance(timedelta(hours=14))
    assert accounts.by_login(third) is None  # seven days, however much it was used


@pytest.mark.parametrize("change", [{"password": "another long password"}, {"role": "viewer"}, {"disabled": True}])
def test_a_change_of_a_user_ends_their_logins(accounts: Accounts, change: dict[str, object]) -> None:
    accounts.create_user("ann", WORDS, "admin")
    session = accounts.log_in("ann", WORDS)
    assert session is not None
    accounts.change_user("ann", **change)  # type: ignore[arg-type]
    assert accounts.by_login(session) is None
    again = accounts.log_in("ann", WORDS)
    assert (again is not None) is (change == {"role": "viewer"})


def test_a_wrong_name_and_a_wrong_password_are_told_apart_by_nobody(accounts: Accounts) -> None:
    accounts.create_user("ann", WORDS)
    assert accounts.log_in("ann", "wrong") is None
    assert accounts.log_in("nobody", WORDS) is None
    accounts.change_user("ann", disabled=True)
    assert accounts.log_in("ann", WORDS) is None


def test_wrong_passwords_are_looked_at_later_and_later(accounts: Accounts, clock: ManualClock) -> None:
    accounts.create_user("ann", WORDS)
    for _ in range(5):
        assert accounts.log_in("ann", "wrong", "10.0.0.1") is None
    with pytest.raises(Throttled) as held:
        accounts.log_in("ann", WORDS, "10.0.0.2")  # the name is held, from wherever
    assert 0 < held.value.after <= 1
    with pytest.raises(Throttled):
        accounts.log_in("bob", "wrong", "10.0.0.1")  # and the address, for whatever name
    clock.advance(1.5)
    assert accounts.log_in("ann", "wrong", "10.0.0.3") is None
    with pytest.raises(Throttled) as held:
        accounts.log_in("ann", WORDS)
    assert 1 < held.value.after <= 2
    clock.advance(2.5)
    assert accounts.log_in("ann", WORDS) is not None
    assert accounts.log_in("ann", "wrong") is None  # the count began again


def test_of_many_at_once_no_more_passwords_are_looked_at_than_of_many_in_a_row(accounts: Accounts) -> None:
    accounts.create_user("ann", WORDS)
    from concurrent.futures import ThreadPoolExecutor

    def guess(n: int) -> bool:
        try:
            accounts.log_in("ann", f"wrong {n}", "10.0.0.1")
        except Throttled:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(guess, range(24))) == 5


def test_an_account_of_ones_own_does_not_let_one_guess_at_others(accounts: Accounts) -> None:
    accounts.create_user("mallory", WORDS)
    looked = 0
    for n in range(40):
        try:
            accounts.log_in(f"victim{n}", "wrong", "10.0.0.1")
            looked += 1
            if n % 4 == 3:
                accounts.log_in("mallory", WORDS, "10.0.0.1")
        except Throttled:
            break
    assert looked <= 6


@pytest.mark.parametrize(("name", "password"), [("a\x00", "b" * 20), ("a", "b\x00" * 9), ("a\ud800", "b" * 20)])
def test_what_no_database_keeps_is_nobody(accounts: Accounts, name: str, password: str) -> None:
    assert accounts.log_in(name, password) is None
    with pytest.raises(InvalidArgument):
        accounts.create_user("bob", "\ud800" * 20)


def test_the_wait_grows_and_is_bounded() -> None:
    waits = [wait_after(n) for n in range(200)]
    assert waits[:5] == [timedelta(0)] * 5
    assert waits == sorted(waits)
    assert waits[-1] == timedelta(minutes=15)


def test_names_are_taken_once_and_passwords_are_long(accounts: Accounts) -> None:
    accounts.create_user("ann", WORDS)
    with pytest.raises(InvalidArgument, match="there is a user of that name"):
        accounts.create_user("ann", WORDS)
    with pytest.raises(InvalidArgument) as refused:
        accounts.create_user("bob", "short")
    assert refused.value.field == "password"
    assert "short" not in str(refused.value)
    with pytest.raises(NotFound):
        accounts.change_user("zoe", role="admin")


def test_once_there_was_somebody_there_always_was(accounts: Accounts) -> None:
    assert not accounts.exist()
    _, token = accounts.create_token("ci")
    assert accounts.exist()
    accounts.revoke_token(token.id)
    assert accounts.exist()  # what was taken away lets nobody in


def test_roles_and_areas_say_what_somebody_may() -> None:
    viewer, operator = Identity("v", Role.VIEWER, None), Identity("o", Role.OPERATOR, None, ("jobs",))
    assert viewer.may("jobs", Role.VIEWER)
    assert not viewer.may("jobs", Role.OPERATOR)
    assert operator.may("jobs", Role.OPERATOR)
    assert not operator.may("queues", Role.VIEWER)
    assert not viewer.sees_payloads
    assert Identity("v", Role.VIEWER, None, read_scopes(["*", "payloads"])).sees_payloads
    assert operator.sees_payloads
    assert read_scopes([]) == ("*",)
    assert read_scopes(["*", "jobs"]) == ("*",)
    assert set(read_scopes(list(AREAS))) == set(AREAS)


def test_who_came_in_by_a_token_is_asked_for_again_while_it_lasts(accounts: Accounts, clock: ManualClock) -> None:
    token, made = accounts.create_token("ci", "operator", tenant="acme", scopes=["jobs"], expires_in=timedelta(hours=1))
    who = accounts.by_token(token)
    assert who is not None
    assert accounts.still(who) == who
    clock.advance(timedelta(hours=1))
    assert accounts.still(who) is None
    other, record = accounts.create_token("other")
    who = accounts.by_token(other)
    assert who is not None
    clock.advance(timedelta(hours=1))
    assert accounts.still(who) == who
    assert [one.last_used_at for one in accounts.tokens()] == [AT + timedelta(hours=1), AT]  # looking is no use
    accounts.revoke_token(record.id)
    assert accounts.still(who) is None
    assert made.id != record.id


def test_who_logged_in_is_asked_for_again_with_the_rights_that_they_have_by_now(accounts: Accounts) -> None:
    ann = accounts.create_user("ann", WORDS, "admin", tenant="acme")
    first, second = accounts.log_in("ann", WORDS), accounts.log_in("ann", WORDS)
    assert first is not None
    assert second is not None
    who, beside = accounts.by_login(first), accounts.by_login(second)
    assert who is not None
    assert beside is not None
    assert accounts.still(who) == who
    accounts.log_out(first)
    assert accounts.still(who) is None
    assert accounts.still(beside) == beside
    person = replace(beside, login="")
    db, store = accounts._app.engine.db, accounts._store
    db.write(lambda c: store.change_user(c, ann.id, AT, tenant="zeta", role="viewer"))  # as a provider does at a login
    assert accounts.still(beside) == replace(beside, tenant="zeta", role=Role.VIEWER)
    accounts.change_user("ann", role="operator")
    assert accounts.still(beside) is None  # a change ends logins
    assert accounts.still(person) == replace(person, tenant="zeta", role=Role.OPERATOR)
    accounts.change_user("ann", disabled=True)
    assert accounts.still(person) is None


def test_who_came_in_without_an_account_does_until_there_is_one(accounts: Accounts) -> None:
    local, setting = Identity("local", Role.ADMIN, None, key="local"), Identity("token:web_token", Role.ADMIN, None, key="web_token")  # fmt: skip
    assert accounts.still(local) == local
    accounts.create_token("ci")
    assert accounts.still(local) is None
    assert accounts.still(setting) == setting
    assert accounts.still(Identity("somebody", Role.ADMIN, None)) is None
    assert accounts.still(Identity("token:x", Role.ADMIN, None, key="token 999")) is None
    assert accounts.still(Identity("user:x", Role.ADMIN, None, key="user 999")) is None


@pytest.mark.parametrize("change", ["password", "linked", "disabled", "another"])
def test_a_password_that_is_changed_or_taken_away_while_it_is_looked_at_lets_nobody_in(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    accounts.create_user("ann", WORDS, "admin")
    verified = door._verified

    def meanwhile(kept: str, password: str) -> bool:
        right = verified(kept, password)
        if change == "password":
            accounts.change_user("ann", password="another long password")
        elif change == "linked":
            accounts.link_user("ann", "https://login.example.org", "7", force=True)
        elif change == "disabled":
            accounts.change_user("ann", disabled=True)
        else:
            accounts.create_user("bob", WORDS)  # which concerns nobody else
        return right

    monkeypatch.setattr(door, "_verified", meanwhile)
    session = accounts.log_in("ann", WORDS)
    assert (session is not None) is (change == "another")
    rows = accounts._app.engine.db.read(lambda c: c.execute(text("SELECT count(*) FROM logins")).scalar_one())
    assert rows == (1 if session else 0)
    assert ("LOGIN_FAILED" in everything(accounts)) is (session is None)


@pytest.mark.parametrize(
    "name", [" ann", "ann ", "ann\u00a0", "a  nn", "a\u200bnn", "a\u3164nn", "ann\ufe0f", "\u202eann", "zoe\u0301", " ", "", "a\nb"]
)  # fmt: skip
def test_a_name_that_looks_like_another_is_nobodys(accounts: Accounts, name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        accounts.create_user(name, WORDS)
    assert refused.value.field == "name"
    accounts.create_user("Zo\u00e9 van der Berg", WORDS)


def test_every_change_is_on_the_trail_with_who_made_it(accounts: Accounts) -> None:
    _, token = accounts.create_token("ci", actor="cli:ann")
    accounts.revoke_token(token.id, actor="cli:bob")
    accounts.create_user("ann", WORDS, actor="cli:ann")
    accounts.log_in("ann", "wrong")
    session = accounts.log_in("ann", WORDS)
    assert session is not None
    accounts.log_out(session)
    rows = accounts._app.engine.db.read(
        lambda c: c.execute(text("SELECT action, actor FROM audit_log ORDER BY id")).all()
    )
    assert [tuple(row) for row in rows] == [
        ("TOKEN_CREATED", "cli:ann"), ("TOKEN_REVOKED", "cli:bob"), ("USER_CREATED", "cli:ann"), ("LOGIN_FAILED", "anonymous"),
        ("LOGGED_IN", "user:ann"), ("LOGGED_OUT", "user:ann"),
    ]  # fmt: skip
