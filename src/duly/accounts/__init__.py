"""Accounts: who may come in over HTTP, and what they may do there. ``door.Accounts`` is the door."""
