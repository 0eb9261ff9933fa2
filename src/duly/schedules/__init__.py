"""Schedules: recurring work as rows, and a ledger of every occurrence."""
