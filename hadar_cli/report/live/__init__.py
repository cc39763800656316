"""The live view of a run: what there is to see, laid out on a screen.

Imports ``core``, ``core.estimates``, ``engine``, ``report``, ``report.terminal`` and ``runs``. It
looks on, and changes nothing.
"""
