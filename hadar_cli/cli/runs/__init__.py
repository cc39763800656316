"""Commands on runs: start, resume, watch, cancel, logs, report.

Imports what ``cli`` may. No command imports another.
"""
