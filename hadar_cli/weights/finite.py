"""Whether the numbers of a checkpoint can be used: no NaN, and no infinity that training made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hadar_cli.core.reasons import Unfit
from hadar_cli.weights.chunks import BLOCK
from hadar_cli.weights.safetensors_file import DTYPES, Array, Checkpoint, Tensor, quote, widen
from hadar_cli.weights.validation import Copy, Objection, Refused, is_weight, notes


def not_finite(checkpoint: Checkpoint, base: Checkpoint | None = None) -> str | None:
    """Why a checkpoint's numbers cannot be used, or None.

    Infinities of the base are no fault, nor are those that the job began with, as in a mask.
    """
    passed = set() if base else set(notes(checkpoint).frozen)
    for tensors in checkpoint.neighbours():
        if not tensors[0].is_float:
            continue
        ends = np.cumsum([tensor.size for tensor in tensors])
        dtype = tensors[0].dtype
        for start in range(0, int(ends[-1]), BLOCK):
            block = np.empty(min(BLOCK, int(ends[-1]) - start), DTYPES[dtype])
            checkpoint.read_from(tensors[0], start, block)
            bad = start + np.flatnonzero(~np.isfinite(widen(block, dtype)))
            for number in np.unique(np.searchsorted(ends, bad, side="right")):
                tensor = tensors[number]
                if tensor.name not in passed and not _is_like(checkpoint, tensor, base):
                    return f"NaN or Inf in {quote(tensor.name)}"
                passed.add(tensor.name)
    return None


def _is_like(checkpoint: Checkpoint, tensor: Tensor, base: Checkpoint | None) -> bool:
    """Whether a tensor of weights has infinities only where, and as, the base has them."""
    if not base or not is_weight(tensor) or base.tensors.get(tensor.name) != tensor:
        return False
    for start in range(0, tensor.size, BLOCK):
        size = min(BLOCK, tensor.size - start)
        mine, theirs = (np.empty(size, DTYPES[tensor.dtype]) for _ in range(2))
        checkpoint.read_into(tensor.name, start, mine)
        base.read_into(tensor.name, start, theirs)
        if not finite(widen(mine, tensor.dtype), widen(theirs, tensor.dtype)):
            return False
    return True


def refuse_not_finite(
    tensor: Tensor, copies: Sequence[Copy], blocks: Sequence[Array], origin: Array | None = None
) -> None:
    bad = [c.id for c, block in zip(copies, blocks, strict=True) if not finite(block, origin)]
    if bad:
        found = Objection(Unfit.NOT_FINITE, f"NaN or Inf in {quote(tensor.name)}")
        raise Refused(dict.fromkeys(bad, found))


def finite(values: Array, origin: Array | None = None) -> bool:
    """Whether there is no NaN, and no infinity that the origin has not in the same place."""
    fine = np.isfinite(values)
    if origin is not None:
        fine |= values == origin
    return bool(fine.all())
