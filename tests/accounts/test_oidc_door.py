"""Logins through a provider, on both databases, also where several come at once. ADR 0031."""

from __future__ import annotations

import base64
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
from duly.accounts.store import AccountStore
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
    resumed = sign_on.resume(secret)
    assert resumed is not None
    assert resumed[1] == AT
    assert sorted(at_once(6, lambda _: sign_on.take(secret))) == [False] * 5 + [True]
    assert sign_on.resume(secret) is None
    assert not sign_on.take("x" * 43)
    assert sign_on.resume("x" * 43) is None
    late = sign_on.begin()
    clock.advance(LIFE - timedelta(microseconds=1))
    assert sign_on.resume(late) is not None
    clock.advance(timedelta(microseconds=1))
    assert sign_on.resume(late) is None


def test_the_time_of_a_flow_is_under_a_seal_and_a_flow_is_written_in_one_way(
    sign_on: SignOn, clock: ManualClock
) -> None:
    secret = sign_on.begin()
    raw = base64.urlsafe_b64decode(secret)
    later = raw[:32] + (int.from_bytes(raw[32:40]) + 1).to_bytes(8) + raw[40:]
    for forged in (
        base64.urlsafe_b64encode(later).decode(),
        secret + "=",
        secret + "\n",
        secret[:-1],
        "",
        "\u00e9",
        secret[:9] + "!" + secret[9:],
    ):
        assert sign_on.resume(forged) is None
        assert not sign_on.take(forged)
    assert sign_on.resume(secret) is not None


def test_flows_of_one_process_come_back_to_another(sign_on: SignOn, db_url: str, clock: ManualClock) -> None:
    other = Duly(db_url, clock=clock, oidc_issuer=ISSUER, oidc_client_id="duly", oidc_default_role="viewer")
    options = ready(other.settings)
    assert options is not None
    there, secret = SignOn(other, options), sign_on.begin()
    assert there.resume(secret) is not None
    assert sign_on.take(secret)
    assert not there.take(secret)
    other.close()


def test_flows_that_are_over_are_forgotten(app: Duly, sign_on: SignOn, clock: ManualClock) -> None:
    from sqlalchemy import func, select

    from duly.accounts.tables import oidc_flows

    def count() -> int:
        return app.db.read(lambda c: c.execute(select(func.count()).select_from(oidc_flows)).scalar_one())

    begun = [sign_on.begin() for _ in range(3)]
    assert count() == 0
    assert all(sign_on.take(one) for one in begun)
    assert count() == 3
    clock.advance(LIFE)
    assert sign_on.take(sign_on.begin())
    assert count() == 1


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


def test_who_is_known_as_one_is_not_known_as_another_too_by_mistake(app: Duly, sign_on: SignOn) -> None:
    accounts = Accounts(app)
    sign_on.enter(ANN)
    with pytest.raises(InvalidArgument, match=r"would be a second one: 'ann@example\.org' is known as '7' at"):
        accounts.link_user("ann@example.org", ISSUER, "8")
    linked = accounts.link_user("ann@example.org", ISSUER, "8", also=True)
    assert [one.subject for one in linked.identities] == ["7", "8"]
    assert accounts.by_login(sign_on.enter({**ANN, "sub": "8"})) is not None
    assert accounts.users() == [accounts.user("ann@example.org")]
    for wrong in ("not a url", "login.example.org", "http://login.example.org", f"{ISSUER}?x=1"):
        with pytest.raises(InvalidArgument) as refused:
            accounts.link_user("ann@example.org", wrong, "9", also=True)
        assert refused.value.field == "issuer"


def test_who_was_unlinked_is_out_and_has_a_password_again_when_one_is_given(app: Duly, sign_on: SignOn) -> None:
    accounts = Accounts(app)
    session = sign_on.enter(ANN)
    accounts.link_user("ann@example.org", ISSUER, "8", also=True)
    other = sign_on.enter({**ANN, "sub": "8"})
    with pytest.raises(NotFound):
        accounts.unlink_user("ann@example.org", subject="9")
    with pytest.raises(NotFound):
        accounts.unlink_user("ann@example.org", subject="8", issuer=f"{ISSUER}/")
    left = accounts.unlink_user("ann@example.org", subject="8", actor="cli:root", reason="it was not her")
    assert (left.login, [one.subject for one in left.identities]) == ("oidc", ["7"])
    assert accounts.by_login(session) is None
    assert accounts.by_login(other) is None
    entry = trail(app, "USER_CHANGED")[0]
    assert (entry.actor, entry.meta) == ("cli:root", {
        "name": "ann@example.org", "fields": ["login"], "issuer": ISSUER, "subject": "8", "unlinked": True, "reason": "it was not her",
    })  # fmt: skip
    with pytest.raises(LoginRefused) as refused:
        sign_on.enter({**ANN, "sub": "8"})
    assert refused.value.reason == "name_taken"
    with pytest.raises(InvalidArgument, match="unlink"):
        accounts.change_user("ann@example.org", password=PASSWORD)
    assert accounts.unlink_user("ann@example.org").login == "none"
    assert accounts.log_in("ann@example.org", "") is None
    assert accounts.change_user("ann@example.org", password=PASSWORD).login == "password"
    assert accounts.log_in("ann@example.org", PASSWORD) is not None
    with pytest.raises(NotFound):
        accounts.unlink_user("ann@example.org")


def test_the_last_administrator_is_not_linked_to_where_nobody_logs_in_by_mistake(app: Duly, sign_on: SignOn) -> None:
    accounts, elsewhere = Accounts(app), "https://old.example.org"
    accounts.create_user("ann", PASSWORD, "admin")
    accounts.create_user("bob", PASSWORD, "operator")
    accounts.create_user("of a tenant", PASSWORD, "admin", tenant="acme")
    accounts.create_user("off", PASSWORD, "admin")
    accounts.change_user("off", disabled=True)
    with pytest.raises(InvalidArgument, match="the last administrator"):
        accounts.link_user("ann", elsewhere, "1")
    assert accounts.log_in("ann", PASSWORD) is not None
    accounts.link_user("bob", elsewhere, "2")  # who else it is concerns nobody else
    accounts.create_user("eve", PASSWORD, "admin")
    accounts.link_user("ann", elsewhere, "1")
    with pytest.raises(InvalidArgument, match="the last administrator"):
        accounts.link_user("eve", elsewhere, "3")  # ann cannot log in any more
    accounts.link_user("eve", elsewhere, "3", force=True)
    assert accounts.user("eve").login == "oidc"


def test_who_is_unlinked_or_let_in_no_more_while_they_come_is_not_let_in(
    app: Duly, sign_on: SignOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = Accounts(app)
    sign_on.enter(ANN)
    held: list[str] = []
    hold = AccountStore.hold_user

    def slow(self: AccountStore, c: Any, ident: int) -> None:
        """Somebody else was there first, and this waited for the row."""
        for change in held:
            self.change_user(c, ident, AT, **({"disabled_at": AT} if change == "disabled" else {}))
            if change == "unlinked":
                for one in self.known_as(c, ident):
                    self.forget(c, one)
        hold(self, c, ident)

    monkeypatch.setattr(AccountStore, "hold_user", slow)
    held.append("disabled")
    with pytest.raises(LoginRefused) as refused:
        sign_on.enter(ANN)
    assert refused.value.reason == "disabled"
    accounts.change_user("ann@example.org", disabled=False)
    held[:] = ["unlinked"]
    with pytest.raises(LoginRefused) as refused:
        sign_on.enter(ANN)
    assert refused.value.reason == "name_taken"


@pytest.mark.parametrize("sub", ["\x00", "a\nb", "x" * 300, 7, None])
def test_a_subject_that_no_database_keeps_is_refused_and_on_record(app: Duly, sign_on: SignOn, sub: Any) -> None:
    with pytest.raises(LoginRefused):
        sign_on.enter({**ANN, "sub": sub})
    assert trail(app, "LOGIN_FAILED")[0].meta["reason"] == "subject"


def test_an_administrator_in_too_many_groups_neither_keeps_nor_loses_the_role_in_silence(
    db_url: str, clock: ManualClock
) -> None:
    # C048
    app = Duly(
        db_url, clock=clock, oidc_issuer=ISSUER, oidc_client_id="duly", oidc_default_role="viewer", oidc_roles_claim="groups",
        oidc_roles="heads=admin",
    )  # fmt: skip
    try:
        options = ready(app.settings)
        assert options is not None
        sign_on, accounts = SignOn(app, options), Accounts(app)
        session = sign_on.enter({**ANN, "groups": ["heads"]})
        with pytest.raises(LoginRefused, match="too many"):
            sign_on.enter({**ANN, "_claim_names": {"groups": "src1"}})
        assert accounts.by_login(session) is None  # what they may now, nobody can say
        (row,) = trail(app, "LOGIN_FAILED")
        assert (row.meta["reason"], row.meta["role"]) == ("groups_overage", "admin")
        assert sign_on.enter({**ANN, "groups": ["heads"]})
        assert accounts.user("ann@example.org").role.word == "admin"
    finally:
        app.close()
