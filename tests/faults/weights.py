"""Tiny real checkpoints: vectors that remember, by their values, what they were trained from."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hadar_cli.adapters.safetensors_file import (
    UPDATE_OF,
    Checkpoint,
    Tensor,
    narrow,
    widen,
    write,
)
from hadar_cli.adapters.store import RunStore
from hadar_cli.core.model import MergeRules

Vector = NDArray[np.float64]
SIZE = 4
ROUNDING = 1e-6  # checkpoints hold float32
_NAME = "model/0/weight"


@dataclass(frozen=True, slots=True)
class Trained:
    """What a copy truly did: the weights it began with, and those it left."""

    base: Vector
    made: Vector
    steps: int


def _stored(vector: Vector) -> Vector:
    """As it comes out of a checkpoint again."""
    return vector.astype(np.float32).astype(np.float64)


def untrained(job: int) -> Vector:
    return _stored(np.random.default_rng(job).normal(size=SIZE))


@cache
def _move(job: int, step: int) -> tuple[float, ...]:
    return tuple(np.random.default_rng((1, job, step)).normal(1.0, 0.1, size=SIZE))


def train(base: Vector, job: int, steps: Sequence[int]) -> Trained:
    """Every step moves the weights its own way, so that other steps make other weights."""
    moves = np.array([_move(job, step) for step in steps]).reshape(-1, SIZE)
    return Trained(base, _stored(base + moves.sum(axis=0)), len(steps))


def rounded(trained: Trained) -> Trained:
    """What is left of it when its update is handed in as bfloat16."""
    update = widen(narrow(trained.made - trained.base, "BF16"), "BF16")
    return replace(trained, made=_stored(trained.base + update))


def whole(vector: Vector) -> bytes:
    """A checkpoint of these weights."""
    return _file("F32", vector, {})


def update(made: Vector, base: Vector, base_name: str) -> bytes:
    """A checkpoint of what became of the base; of other shapes there is no update."""
    moved = made - base if made.shape == base.shape else made
    return _file("BF16", moved, {UPDATE_OF: base_name})


def _file(dtype: str, vector: Vector, metadata: dict[str, str]) -> bytes:
    file = io.BytesIO()
    write(file, [Tensor(_NAME, dtype, vector.shape)], metadata, [narrow(vector, dtype)])
    return file.getvalue()


def hand_in(store: RunStore, name: str, content: bytes) -> str:
    """Puts weights into the store as a transfer does: scratch file, hash, ``keep``."""
    scratch, digest = store.scratch_path(name), hashlib.sha256(content).hexdigest()
    scratch.write_bytes(content)
    store.keep(scratch, digest)
    return digest


def load(path: Path) -> Vector:
    """The weights of a checkpoint, or of a model that was put out for the user."""
    with Checkpoint(path) as checkpoint:
        return checkpoint.read(next(iter(checkpoint.tensors))).astype(np.float64)


def average(
    base: Vector | None, copies: Sequence[Trained], rules: MergeRules, share_done: float = 1.0
) -> Vector:
    """The merge by its definition, apart from the product's code; so much was done before it."""
    steps = np.array([copy.steps for copy in copies], dtype=float)
    mean: Vector = np.average([copy.made for copy in copies], axis=0, weights=steps)
    if rules.rule == "mean" or base is None:
        return mean
    alpha = steps.max() * steps.sum() / (steps**2).sum()
    longer = (alpha - 1) * min(1.0, share_done / rules.warmup)
    return base + (1 + longer) * (mean - base)
