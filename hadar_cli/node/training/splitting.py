"""Batches in parts: micro-batches that fit a card, and the shares of a gang's members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch

from hadar_cli.node.training.gangs.cutting import Cutter
from hadar_cli.node.training.gangs.errors import CannotShare

NO_SAMPLES = (
    "its data comes as whole mini-batches, and nobody can tell which dimension of them is samples: "
    "give t.loader single samples and a batch_size"
)


def parts_by(cutter: Cutter, batches: Iterator[Any], batch_size: int | None) -> Iterator[Any]:
    """This process's part of a stream's batches, which every member of the gang reads whole."""
    if batch_size is None:
        raise CannotShare(NO_SAMPLES)
    is_first = True
    for batch in batches:
        try:
            samples = _samples_in(batch)
            if samples > batch_size or (is_first and samples != batch_size):
                raise TypeError(f"a batch of {batch_size} begins with a tensor of {samples}")
            is_first, mine = False, cutter.cut(samples)
            yield _part(batch, mine.start, mine.stop, samples)
        except TypeError as error:
            raise CannotShare(str(error)) from error


def split(batch: Any, pieces: int) -> list[tuple[Any, float]]:
    """The batch in so many pieces, or one for each sample, each with its share of the samples.

    Raises TypeError where nobody can tell what its samples are.
    """
    samples = _samples_in(batch)
    pieces = min(pieces, samples)
    if pieces <= 1:
        return [(batch, 1.0)]
    bounds = [round(i * samples / pieces) for i in range(pieces + 1)]
    return [
        (_part(batch, first, end, samples), (end - first) / samples)
        for first, end in pairwise(bounds)
    ]


def _samples_in(batch: Any) -> int:
    """How long the batch's first tensor is."""
    for value in _leaves(batch):
        if isinstance(value, torch.Tensor) and value.dim():
            return len(value)
    raise TypeError(f"a {type(batch).__name__} without a tensor cannot be split")


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, (tuple, list)):
        for value in batch:
            yield from _leaves(value)
    else:
        yield batch


def _part(batch: Any, first: int, end: int, samples: int, is_whole: bool = True) -> Any:
    """The samples from ``first`` to ``end``; a list with an entry a sample is cut, too."""
    if isinstance(batch, torch.Tensor):
        if batch.dim() == 0:
            return batch
        if len(batch) != samples:
            raise TypeError(f"a tensor of {len(batch)} in a batch of {samples} cannot be split")
        return batch[first:end]
    if isinstance(batch, Mapping):
        parts = {k: _part(v, first, end, samples, False) for k, v in batch.items()}
        return parts if type(batch) is dict else type(batch)(parts)  # type: ignore[call-arg]
    if isinstance(batch, (tuple, list)):
        lengths = {len(v) for v in batch if isinstance(v, torch.Tensor) and v.dim()}
        if not is_whole and len(batch) == samples and lengths != {samples}:
            return batch[first:end]
        parts_of = [_part(v, first, end, samples, False) for v in batch]
        return type(batch)(*parts_of) if hasattr(batch, "_fields") else type(batch)(parts_of)
    if batch is None or isinstance(batch, (bool, int, float, str)):
        return batch
    raise TypeError(f"a {type(batch).__name__} in a batch cannot be split")
