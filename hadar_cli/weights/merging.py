"""Merging: the copies of a job become one checkpoint again, block by block.

The copies are opened and checked in admission.py and reckoned with in blending.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hadar_cli.core.model import MergeRules
from hadar_cli.errors import StorageError
from hadar_cli.weights.admission import (
    OPTIMIZER,
    Contribution,
    Copy,
    Objection,
    Refused,
    admit,
    difference,
    layout,
)
from hadar_cli.weights.blending import Blend
from hadar_cli.weights.finite import not_finite
from hadar_cli.weights.safetensors_file import Checkpoint, CheckpointError

__all__ = ["OPTIMIZER", "Contribution", "Merged", "merge", "validate"]


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged file and the copies in it; with none accepted, no file and an empty digest.

    What is one copy's own file, of a known digest, is not written once more.
    """

    digest: str
    bytes: int
    is_written: bool
    accepted: tuple[int, ...]
    refused: tuple[tuple[int, Objection], ...]
    bytes_in: int  # of all files that were handed in
    has_optimizer: bool  # whether the optimizer's state is in the merged file


def merge(
    contributions: Sequence[Contribution],
    base: Path | None,
    out: Path,
    rules: MergeRules,
    warmth: float = 1.0,
) -> Merged:
    """Merge what the copies made of ``base`` into ``out``, which the caller syncs and names.

    ``warmth`` is the share of its full length that a longer stride has (``core.merging.warmth``).
    A contribution that fails a guard is left out with its reason. Raises CheckpointError only for
    a bad base, which is the head's own file, and StorageError when ``out`` cannot be written.
    """
    with ExitStack() as stack:
        origin = stack.enter_context(Checkpoint(base)) if base else None
        copies, refused = admit(contributions, origin, rules, stack)
        digest, size, is_written, has_optimizer = "", 0, False, False
        while copies:
            try:
                blend = Blend(copies, origin, rules, warmth)
                digest, size, is_written = _write(blend, copies[0], out)
                has_optimizer = blend.has_optimizer
                break
            except Refused as refusal:
                refused |= refusal.reasons
                copies = [copy for copy in copies if copy.id not in refused]
            except OSError as error:
                raise StorageError(f"cannot write {out}: {error.strerror}") from error
    if not is_written:
        out.unlink(missing_ok=True)
    accepted = tuple(copy.id for copy in copies)
    bytes_in = sum(c.path.stat().st_size for c in contributions if c.path.is_file())
    reasons = tuple(sorted(refused.items()))
    return Merged(digest, size, is_written, accepted, reasons, bytes_in, has_optimizer)


def _write(blend: Blend, first: Copy, out: Path) -> tuple[str, int, bool]:
    """The result's digest and length, and whether it had to be written."""
    if first.digest and blend.is_one_copy:
        blend.check_leader()
        return first.digest, first.checkpoint.bytes, False
    with out.open("wb") as file:
        digest, size = blend.write(file)
    return digest, size, True


def validate(path: Path, like: Path | None) -> str | None:
    """Why a checkpoint cannot be used in the place of ``like``, or None if it can."""
    try:
        with ExitStack() as stack:
            checkpoint = stack.enter_context(Checkpoint(path))
            own = layout(checkpoint)
            if like:
                other = layout(stack.enter_context(Checkpoint(like)))
                if reason := difference(own, other):
                    return reason
            return not_finite(checkpoint)
    except CheckpointError as error:
        return f"unreadable: {error}"
