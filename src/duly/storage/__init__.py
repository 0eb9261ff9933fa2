"""The database: engines, transactions, types, migrations, and the few statements that really differ.

``database.py`` is the one door. ``sqlite.py`` and ``postgres.py`` hold what differs: claim, settle, lock, ids and wake.
"""
