"""Watching: logs, metrics, health. Everything here listens to events or asks the database; nothing here acts.

* ``logs`` writes events as lines, JSON or for people.
* ``metrics`` counts them for Prometheus; ``http`` serves the counts, and whether this worker lives and is ready.
* ``health`` judges (pure) what ``examine`` found in the database and on this machine: ``duly doctor``.
"""
