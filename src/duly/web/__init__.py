"""Doors for people and programs over HTTP: FastAPI routers, and a small application that asks for a token.

``publishing.py`` is the REST door of publications. Needs ``pip install "duly[web]"``; nothing else in Duly imports this.
"""
