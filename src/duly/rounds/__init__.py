"""Rounds: groups in their own time zones; a round is planned, opened at the local drop time, closed 24 hours later."""
