"""Logins through a provider, on both databases, also where several come at once. ADR 0031."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import pytest

from duly import Duly
from duly.accounts.account import LoginRefused
from duly.accounts.door import Accounts
from duly.accounts.oidc.door import SignOn, ready
from duly.accounts.oidc.flow import LIFE
from duly.audit.read import TrailFilter, find
from duly.kernel.errors import InvalidArgument, NotFound
from duly.testing import ManualClock

AT = datetime(2026, 5, 1, 9, 0, tzinfo=UTC)
ISSUER = "https://login.example.org"
ANN = {"sub": "7", "email": "ann@example.org"}
PASSWORD = "a battery of correct horses"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(AT)


@pytest.fixture
def app(db_url: str, clock: ManualClock) -> Iterator[Duly]:
    made = Duly(db_url, clock=clock, oidc_issuer=ISSUER, oidc_client_id="duly", oidc_default_role="operator")
    yield made
    made.close()


@pytest.fixture
def sign_on(app: Duly) -> SignOn:
    options = ready(app.settings)
    assert options is not None
    return SignOn(app, options)


def at_once(count: int, act: Any) -> list[Any]:
    """What many threads get that act at the same moment; errors as they are."""
    barrier = Barrier(count)

    def go(number: int) -> Any:
        barrier.wait(30)
        try:
            return act(number)
        except LoginRefused as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(go, range(count)))


def trail(app: Duly, action: str) -> list[Any]:
    return app.db.read(lambda c: find(c, TrailFilter(action=action)))


def test_a_flow_is_taken_once_and_within_ten_minutes(sign_on: SignOn, clock: ManualClock) -> None:
    secret = sign_on.begin()
    taken = [one for one in at_once(6, lambda _: sign_on.take(secret)) if one is not None]
    assert [now for _, now in taken] == [AT]
    assert sign_on.take("x" * 43) is None
    late = sign_on.begin()
    clock.advance(LIFE)
    assert sign_on.take(late) is None


def test_flows_that_are_over_are_forgotten(app: Duly, sign_on: SignOn, clock: ManualClock) -> None:
    from sqlalchemy import func, select

    from duly.accounts.tables import oidc_flows

    for _ in range(3):
        sign_on.begin()
    clock.advance(LIFE)
    sign_on.begin()
    assert app.db.read(lambda c: c.execute(select(func.count()).select_from(oidc_flows)).scalar_one()) == 1


def test_a_person_who_comes_twice_at_once_has_one_account(app: Duly, sign_on: SignOn) -> None:
    sessions = at_once(6, lambda _: sign_on.enter(ANN))
    accounts = Accounts(app)
    assert len(set(sessions)) == 6
    assert {accounts.by_login(one).user for one in sessions} == {"ann@example.org"}  # type: ignore[union-attr]
    assert len(accounts.users()) == len(trail(app, "USER_CREATED")) == 1


def test_of_many_with_one_name_one_has_it(app: Duly, sign_on: SignOn) -> None:
    came = at_once(6, lambda number: sign_on.enter({**ANN, "sub": f"{number}"}))
    assert [type(one) for one in came].count(str) == 1
    assert {one.reason for one in came if not isinstance(one, str)} == {"name_taken"}
    assert len(Accounts(app).users()) == 1
    assert len(trail(app, "LOGIN_FAILED")) == 5


def test_a_login_through_the_provider_is_one_like_any_other(app: Duly, sign_on: SignOn, clock: ManualClock) -> None:
    accounts = Accounts(app)
    session = sign_on.enter(ANN)
    found = accounts.by_login(session)
    assert found is not None
    assert (found.actor, found.role.word, found.csrf is not None) == ("user:ann@example.org", "operator", True)
    clock.advance(timedelta(hours=12, seconds=1))
    assert accounts.by_login(session) is None
    again = sign_on.enter(ANN)
    accounts.log_out(again)
    assert accounts.by_login(again) is None
    third = sign_on.enter(ANN)
    accounts.change_user("ann@example.org", role="viewer")  # no claim gives roles, so it is kept here
    assert accounts.by_login(third) is None
    assert accounts.by_login(sign_on.enter(ANN)).role.word == "viewer"  # type: ignore[union-attr]


def test_the_same_subject_of_another_provider_is_somebody_else(app: Duly, sign_on: SignOn, db_url: str) -> None:
    sign_on.enter(ANN)
    other = Duly(
        db_url, clock=app.engine.clock, oidc_issuer=f"{ISSUER}/", oidc_client_id="duly", oidc_default_role="admin"
    )
    options = ready(other.settings)
    assert options is not None
    with pytest.raises(LoginRefused) as refused:
        SignOn(other, options).enter(ANN)
    assert refused.value.reason == "name_taken"
    other.close()


def test_an_account_is_linked_by_an_administrator_and_to_one_person(app: Duly, sign_on: SignOn) -> None:
    accounts = Accounts(app)
    accounts.create_user("ann@example.org", PASSWORD, "admin", tenant="acme")
    session = accounts.log_in("ann@example.org", PASSWORD)
    assert session is not None
    with pytest.raises(LoginRefused):
        sign_on.enter(ANN)
    assert accounts.by_login(session) is not None  # somebody else's failure is not theirs
    accounts.link_user("ann@example.org", ISSUER, "7", actor="cli:root", reason="it is her")
    [entry] = trail(app, "USER_CHANGED")
    assert (entry.actor, entry.meta["fields"], entry.meta["reason"]) == ("cli:root", ["login"], "it is her")
    assert accounts.by_login(session) is None
    assert accounts.log_in("ann@example.org", PASSWORD) is None
    found = accounts.by_login(sign_on.enter(ANN))
    assert found is not None
    assert (found.user, found.role.word, found.tenant) == ("ann@example.org", "admin", "acme")
    accounts.create_user("bob", PASSWORD)
    with pytest.raises(InvalidArgument, match="subject"):
        accounts.link_user("bob", ISSUER, "7")
    with pytest.raises(NotFound):
        accounts.link_user("nobody", ISSUER, "8")
    assert accounts.log_in("bob", PASSWORD) is not None


@pytest.mark.parametrize("sub", ["\x00", "a\nb", "x" * 300, 7, None])
def test_a_subject_that_no_database_keeps_is_refused_and_on_record(app: Duly, sign_on: SignOn, sub: Any) -> None:
    with pytest.raises(LoginRefused):
        sign_on.enter({**ANN, "sub": sub})
    assert trail(app, "LOGIN_FAILED")[0].meta["reason"] == "subject"
