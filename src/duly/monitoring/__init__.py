"""Watching: logs, metrics, health, alerts. Everything here listens to events or asks the database, and writes nothing but alerts.

* ``logs`` writes events as lines, JSON or for people.
* ``metrics`` and ``ticks`` count them for Prometheus; ``http`` serves the counts, and whether this worker lives and is ready.
* ``health`` judges (pure) what ``examine`` found in the database and on this machine: ``duly doctor``.
* ``alerts`` judges by rules what a person must know now, raises it once and clears it when it is over: ``duly alerts``.
"""
