"""Blackout calendars: when work is held, in local time.

A *blackout* is a window (``kernel.windows``) that is kept under a name: ``blackout.py`` says what is known of one, ``plan.py``
decides from when and until when it holds next, ``store.py`` keeps it and answers those who must obey, ``ical.py`` reads
calendar files. What a blackout means for claims is the business of the jobs room; whether a schedule obeys, of the schedules
room. Nothing here knows of either. Source: R002-8, T002-d, T002-e; ADR 0023.
"""
