"""Blackout calendars: when work is held, in local time."""
