"""A lease: the right to work on a row until an instant, proved by a token.

The database decides who holds a lease: every write about running work names the token, and a write with an old token
changes nothing. What stands here is the holder's side: how often to renew, and how long to trust one's own lease when
the database does not answer. Trust is measured on the monotonic clock from *before* the request was sent, so that the
holder gives up no later than the database does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How leases are given and kept.

    ``seconds`` is the length of a lease. It is renewed at a third of its length, so two renewals may fail before it lapses.
    """

    seconds: float

    @property
    def renew_every(self) -> float:
        """Seconds between renewals."""
        return self.seconds / 3

    def trusted(self, asked_at: float, now: float) -> bool:
        """May a holder who asked at monotonic ``asked_at`` (and was granted) still believe it holds, at ``now``?"""
        return now - asked_at < self.seconds
