"""Alerts: what a person must know now, raised once, cleared by itself, on the record.

``rules`` declares what is watched and ``judge`` decides (both pure); ``looks`` and ``readings`` gather the facts, ``store`` writes what was
decided, ``notices`` makes the jobs that tell people, ``watch`` is the thin actor, ``export`` writes the same rules for Prometheus
and Grafana.
"""
