"""The page of a run that goes on, served on this computer alone: `hadar watch --web`.

Imports ``report``, ``report.live``, ``report.page`` and ``runs``. It only reads, and listens on
loopback only; docs/security.md says to whom it answers.
"""
