"""The command line: its entry, and what several commands share. A command has a file of its own
below.

Imports every room of the head but ``engine`` and ``weights``. No command imports another; nothing
that takes time to load may be imported before a command needs it.
"""
