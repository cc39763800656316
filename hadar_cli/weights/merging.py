"""Merging: the copies of a job become one checkpoint again, block by block.

The copies are opened and checked in validation.py and reckoned with in merge_arithmetic.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hadar_cli.core.model import MergeRules
from hadar_cli.errors import StorageError
from hadar_cli.weights.finite import not_finite
from hadar_cli.weights.late import LateCopy
from hadar_cli.weights.merge_arithmetic import MergeArithmetic
from hadar_cli.weights.safetensors_file import Checkpoint, CheckpointError
from hadar_cli.weights.validation import (
    NOBODY,
    OPTIMIZER,
    Contribution,
    Copy,
    Lateness,
    Objection,
    Refused,
    admit,
    difference,
    layout,
)

__all__ = ["OPTIMIZER", "Contribution", "Lateness", "Merged", "merge", "validate"]


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
    late: tuple[tuple[int, float], ...] = ()  # of those accepted, and the share of their updates


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
        copies, refused = admit([c for c in contributions if not c.late], origin, rules, stack)
        late = _admit_late([c for c in contributions if c.late], origin, refused, stack)
        digest, size, is_written, has_optimizer = "", 0, False, False
        while copies or late:
            try:
                arithmetic = MergeArithmetic(
                    copies or [_unmoved(origin, stack)], origin, rules, warmth, late
                )
                digest, size, is_written = _write(arithmetic, out)
                has_optimizer = arithmetic.has_optimizer
                break
            except Refused as refusal:
                refused |= _blame(refusal)
                copies = [copy for copy in copies if copy.id not in refused]
                late = [copy for copy in late if copy.id not in refused]
            except OSError as error:
                raise StorageError(f"cannot write {out}: {error.strerror}") from error
    if not is_written:
        out.unlink(missing_ok=True)
    accepted = (*(copy.id for copy in copies), *(copy.id for copy in late))
    bytes_in = sum(c.path.stat().st_size for c in contributions if c.path.is_file())
    reasons = tuple(sorted(refused.items()))
    shares = tuple((copy.id, copy.share) for copy in late)
    return Merged(digest, size, is_written, accepted, reasons, bytes_in, has_optimizer, shares)


def _admit_late(
    contributions: Sequence[Contribution],
    latest: Checkpoint | None,
    refused: dict[int, Objection],
    stack: ExitStack,
) -> list[LateCopy]:
    """Those of the late that can join; why others cannot is added to what is ``refused``."""
    copies = []
    for contribution in sorted(contributions, key=lambda contribution: contribution.copy):
        assert latest, "nobody is late before there are weights"
        try:
            copies.append(LateCopy(contribution, latest, stack))
        except Refused as refusal:
            refused |= refusal.reasons
    return copies


def _unmoved(base: Checkpoint | None, stack: ExitStack) -> Copy:
    """The base as if a copy had handed it in: what the late join where nobody is in time."""
    assert base, "nobody is late before there are weights"
    return Copy(Contribution(NOBODY, base.path, 1, 1), base, stack)


def _blame(refusal: Refused) -> dict[int, Objection]:
    if NOBODY in refusal.reasons:
        raise CheckpointError(refusal.reasons[NOBODY].why)
    return refusal.reasons


def _write(arithmetic: MergeArithmetic, out: Path) -> tuple[str, int, bool]:
    """The result's digest and length, and whether it had to be written."""
    leader = arithmetic.leader
    if leader.digest and arithmetic.is_one_copy:
        arithmetic.check_leader()
        return leader.digest, leader.checkpoint.bytes, False
    with out.open("wb") as file:
        digest, size = arithmetic.write(file)
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
