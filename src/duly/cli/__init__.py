"""The command line: ``duly …``.

Commands ask the application, the jobs room and the audit trail, and show what they say. Nothing is decided here, and
nothing heavy is imported before a command needs it: ``duly --help`` answers at once.
"""
