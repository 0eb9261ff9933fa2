"""Duly beside other programs. Each module needs the extra of its name and is imported by whoever uses it."""
