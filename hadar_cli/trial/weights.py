"""What a script's checkpoints tell: how far two of them are apart, and a copy of one, altered."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hadar_cli.weights.safetensors_file import (
    DTYPES,
    Array,
    Checkpoint,
    CheckpointError,
    Tensor,
    narrow,
    widen,
    write,
)

_BLOCK = 1 << 20  # elements
_OPTIMIZER = "optimizer/"

# Shrinking keeps what must be positive positive, and what a script clips unclipped.
_OPTIMIZER_FACTOR, _WEIGHTS_FACTOR = 0.5, 0.9


def alter(path: Path, out: Path, optimizer: bool) -> str:
    """Writes the checkpoint with its weights, or its optimizer state, shrunk; returns the hash."""
    with Checkpoint(path) as source, out.open("wb") as file:
        # Wide types first keeps every tensor aligned.
        tensors = sorted(source.tensors.values(), key=lambda t: -DTYPES[t.dtype].itemsize)
        blocks = _altered(source, tensors, optimizer)
        return write(file, tensors, source.metadata, blocks)[0]


def _altered(source: Checkpoint, tensors: Sequence[Tensor], optimizer: bool) -> Iterator[Array]:
    factor = _OPTIMIZER_FACTOR if optimizer else _WEIGHTS_FACTOR
    for tensor in tensors:
        chosen = tensor.name.startswith(_OPTIMIZER) is optimizer and _is_number(tensor)
        for block in _blocks(source, tensor):
            if chosen:
                shrunk = widen(block, tensor.dtype).astype(np.float64) * factor
                yield narrow(shrunk, tensor.dtype)
            else:
                yield block


def distances(one: Path, other: Path) -> dict[str, float]:
    """How far the weights of two checkpoints are apart: by model, or by tensor if unnamed."""
    squares: dict[str, float] = {}
    with Checkpoint(one) as a, Checkpoint(other) as b:
        buffers = set(_notes(a).get("buffers", ()))
        for tensor in a.tensors.values():
            if not _is_number(tensor) or tensor.name.startswith(_OPTIMIZER):
                continue
            if tensor.name in buffers or tensor.name not in b.tensors:
                continue
            group = _group(tensor.name)
            squares.setdefault(group, 0.0)
            for left, right in zip(_blocks(a, tensor), _blocks(b, tensor), strict=True):
                gap = widen(left, tensor.dtype).astype(np.float64) - widen(right, tensor.dtype)
                squares[group] += float(np.dot(gap, gap))
    return {group: math.sqrt(square) for group, square in squares.items()}


def has_optimizer_state(path: Path) -> bool:
    with Checkpoint(path) as checkpoint:
        return any(name.startswith(_OPTIMIZER) for name in checkpoint.tensors)


def is_of_training(path: Path) -> bool:
    """Whether ``hadar_cli.training`` wrote it."""
    with Checkpoint(path) as checkpoint:
        return "format" in _notes(checkpoint)


def describe(path: Path) -> str:
    with Checkpoint(path) as checkpoint:
        count = len(checkpoint.tensors)
    return f"{count} tensor{'s' * (count != 1)}, {path.stat().st_size / 1e6:.3g} MB"


def _notes(checkpoint: Checkpoint) -> dict[str, Any]:
    try:
        notes = json.loads(checkpoint.metadata.get("hadar", "{}"))
    except ValueError as error:
        raise CheckpointError("its notes are not as hadar writes them") from error
    return notes if isinstance(notes, dict) else {}


def _group(name: str) -> str:
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == "model" and len(parts) > 2 else name


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_float and not tensor.name.endswith("/step")


def _blocks(source: Checkpoint, tensor: Tensor) -> Iterator[Array]:
    for start in range(0, tensor.size, _BLOCK):
        block = np.empty(min(_BLOCK, tensor.size - start), DTYPES[tensor.dtype])
        source.read_into(tensor.name, start, block)
        yield block
