"""A holder gives up its lease no later than the database does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.lease import LeaseTerms

seconds = st.floats(0.5, 86_400)
instants = st.floats(0, 1e9)


@given(seconds)
def test_two_renewals_may_fail_before_a_lease_lapses(length: float) -> None:
    terms = LeaseTerms(length)
    assert terms.renew_every * 2 < length


@given(length=seconds, asked_at=instants, waited=st.floats(0, 1e6))
def test_a_lease_is_trusted_only_while_its_length_has_not_passed_since_it_was_asked_for(
    length: float, asked_at: float, waited: float
) -> None:
    now = asked_at + waited
    assert LeaseTerms(length).trusted(asked_at, now) is (now - asked_at < length)


def test_a_lease_is_not_trusted_at_the_very_instant_of_its_end() -> None:
    assert LeaseTerms(30).trusted(100.0, 129.9)
    assert not LeaseTerms(30).trusted(100.0, 130.0)
