"""One self-contained HTML page about a run, or about several beside each other.

Imports ``core``, ``core.measures``, ``report``, ``report.terminal`` and ``simulation``. The page
loads nothing from anywhere; what a run tells is escaped.
"""
