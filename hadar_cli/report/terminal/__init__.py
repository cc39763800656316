"""A run's report on the terminal, and as tables to export.

Imports ``core``, ``core.measures``, ``report`` and ``simulation``. What machines told is made
harmless before it is printed.
"""
