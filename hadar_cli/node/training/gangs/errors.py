"""Why a gang cannot go on: names that the head looks for in a worker's last words (contract.py)."""

from __future__ import annotations


class CannotShare(RuntimeError):
    """The script's steps cannot be shared by several processes: its job needs ``gpus: 1``."""


class MemberLost(RuntimeError):
    """Another member of the gang is gone, or has said nothing for too long."""
