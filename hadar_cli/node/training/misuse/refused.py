"""The error by which hadar refuses a script rather than train something else than by hand."""

from __future__ import annotations

from hadar_cli.node.log_phrases import FIX


class Refused(RuntimeError):
    """What is wrong, and what to change."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}{FIX}{fix}")
