"""Copies that come too late for the merge they trained for, and join the next one with an update.

Such a copy began with weights that others have moved on from. What it did to them, its weights less
those, is added to the merge that it joins: as far as its own steps would have gone alone, and less
where that leads back from where the others went meanwhile. Only what trains is added; buffers and
the optimizer's state are those of the copies in time.
"""

from __future__ import annotations

import math
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from hadar_cli.core.estimates.merging import late_share
from hadar_cli.core.reasons import Unfit
from hadar_cli.weights.chunks import BLOCK
from hadar_cli.weights.finite import finite
from hadar_cli.weights.safetensors_file import (
    DTYPES,
    Checkpoint,
    CheckpointError,
    Tensor,
    quote,
    widen,
)
from hadar_cli.weights.validation import (
    Contribution,
    Copy,
    Objection,
    Refused,
    difference,
    is_weight,
    layout,
    notes,
    unreadable,
)

Floats = NDArray[np.float64]


class LateCopy:
    """An opened late contribution, and how much of its update counts."""

    def __init__(self, contribution: Contribution, latest: Checkpoint, stack: ExitStack) -> None:
        assert contribution.late, "it came in time"
        self.id, self.steps = contribution.copy, contribution.steps
        try:
            self._base = stack.enter_context(Checkpoint(contribution.late.base))
            self._copy = Copy(contribution, self._base, stack)
        except CheckpointError as error:
            raise Refused({self.id: unreadable(error)}) from error
        if reason := difference(self._copy.layout, layout(latest)):
            raise Refused({self.id: Objection(Unfit.UNLIKE, reason)})
        self.frozen = self._copy.frozen
        self._buffers = notes(self._copy.checkpoint).buffers
        self.length, cosine = self._measure(latest)
        self.share = late_share(contribution.late.lr_scale, contribution.late.merges, cosine)

    def _measure(self, latest: Checkpoint) -> tuple[float, float]:
        """How long its update is, and how far it goes where the others went since: a cosine."""
        own = others = common = 0.0
        for tensor in filter(self.is_trained, latest.tensors.values()):
            for start in range(0, tensor.size, BLOCK):
                size = min(BLOCK, tensor.size - start)
                update, given = self.update(tensor, start, size)
                with np.errstate(invalid="ignore"):
                    moved = _read(latest, tensor, start, size) - given
                moved[~np.isfinite(moved)] = 0.0
                own += _dot(update, update)
                others += _dot(moved, moved)
                common += _dot(update, moved)
        return math.sqrt(own), common / math.sqrt(own * others) if own and others else 0.0

    def is_trained(self, tensor: Tensor) -> bool:
        """Whether there is an update of the tensor: the base and the copy both hold it."""
        is_weight_of_all = tensor.is_float and is_weight(tensor)
        return is_weight_of_all and tensor.name not in self._buffers and self._holds(tensor)

    def _holds(self, tensor: Tensor) -> bool:
        both = self._base.tensors, self._copy.checkpoint.tensors
        return all(tensors.get(tensor.name) == tensor for tensors in both)

    def update(self, tensor: Tensor, start: int, size: int) -> tuple[Floats, Floats]:
        """What it did to these weights, nothing to infinities it was given; and what it was given.

        What cannot be read is its fault, even its base: the weights of the others are not.
        """
        try:
            made = self._copy.read(tensor, start, np.empty(size, DTYPES[tensor.dtype]))
            given = _read(self._base, tensor, start, size)
        except CheckpointError as error:
            raise Refused({self.id: unreadable(error)}) from error
        if not finite(made, given):
            found = Objection(Unfit.NOT_FINITE, f"NaN or Inf in {quote(tensor.name)}")
            raise Refused({self.id: found})
        with np.errstate(invalid="ignore"):
            update = made - given
        update[~np.isfinite(given)] = 0.0
        return update, given


def _read(checkpoint: Checkpoint, tensor: Tensor, start: int, size: int) -> Floats:
    """In float64, so that no difference overflows."""
    block = np.empty(size, DTYPES[tensor.dtype])
    checkpoint.read_into(tensor.name, start, block)
    return widen(block, tensor.dtype).astype(np.float64)


def _dot(one: Floats, other: Floats) -> float:
    """Not by BLAS, which would start threads of its own."""
    return float(np.einsum("i,i->", one, other))
