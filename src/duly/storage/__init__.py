"""The database: engines, transactions, types, migrations.

``database.py`` is the one door. ``sqlite.py`` and ``postgres.py`` hold what differs: engines, ids and waking up. The
statements that differ know the jobs room's tables, so they live there (``jobs/sql``).
"""
