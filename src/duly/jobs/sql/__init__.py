"""The statements of the jobs room that really differ between databases: insert, claim, finish.

Both modules offer the same functions; the contract suite judges them alike. Everything else is SQLAlchemy Core in
``store.py`` and written once.
"""
