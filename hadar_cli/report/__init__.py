"""What people look at: words and figures that the terminal, the live view and the page share.

Imports ``core``, ``core.measures`` and ``runs``. It shows, and decides nothing.
"""
