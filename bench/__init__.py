"""Duly measured beside its peers and beside the raw limit of its database, in one run: `python -m bench`.

The figures that count are ratios: absolute rates move with the machine and the hour, two figures taken a second apart on one
machine move together. This package is no part of the installed library. Its own code needs only what the development
environment has; each peer lives in a virtual environment of its own (`venvs.py`) and is driven from outside.

This file imports nothing, because it is also imported inside the peers' environments.
"""
