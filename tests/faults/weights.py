"""Tiny real checkpoints: vectors that remember, by their values, what they were trained from."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hadar_cli.core.model import MergeRules
from hadar_cli.runs.store import RunStore
from hadar_cli.weights.safetensors_file import (
    Array,
    Checkpoint,
    Tensor,
    narrow,
    widen,
    write,
)
from hadar_cli.weights.updates import UPDATE_OF

Vector = NDArray[np.float64]
SIZE = 4
ROUNDING = 1e-6  # checkpoints hold float32
_NAME, _MODEL = "model/0/weight", "weight"
_STATE = "optimizer/0/0/exp_avg"
_FROZEN = "model/0/frozen"
_LARGEST = {"int8": 127, "int4": 7}
NONE: Vector = np.zeros(SIZE)


@dataclass(frozen=True, slots=True)
class Trained:
    """What a copy truly did: the weights and optimizer state it began with, and those it left."""

    base: Vector
    made: Vector
    steps: int
    state_base: Vector = field(default_factory=lambda: NONE)
    state: Vector = field(default_factory=lambda: NONE)
    sends_state: bool = True
    previous: str = ""  # the attempt that its process handed in before


def _stored(vector: Vector) -> Vector:
    """As it comes out of a checkpoint again."""
    return vector.astype(np.float32).astype(np.float64)


def untrained(job: int) -> Vector:
    return _stored(np.random.default_rng(job).normal(size=SIZE))


def frozen_hash(job: int) -> str:
    """Of a part of the model that every copy builds and none sends; every other job has one."""
    return hashlib.sha256(b"frozen %d" % job).hexdigest() if job % 2 == 0 else ""


@cache
def _move(job: int, step: int) -> tuple[float, ...]:
    return tuple(np.random.default_rng((1, job, step)).normal(1.0, 0.1, size=SIZE))


def train(base: Vector, state: Vector, job: int, steps: Sequence[int]) -> Trained:
    """Every step moves the weights its own way, so that other steps make other weights."""
    moves = np.array([_move(job, step) for step in steps]).reshape(-1, SIZE).sum(axis=0)
    return Trained(base, _stored(base + moves), len(steps), state, _stored(state + 0.1 * moves))


@dataclass(frozen=True, slots=True)
class Coded:
    """An update as it is handed in; ``made`` is what the head makes of it."""

    tensors: dict[str, tuple[str, Array]]
    made: Vector
    left: Vector  # what rounding took


def code(made: Vector, base: Vector, kind: str, owed: Vector) -> Coded:
    if kind == "bf16":
        update = narrow(made - base, "BF16")
        moved = base + widen(update, "BF16")
        return Coded({_NAME: ("BF16", update)}, _stored(moved), np.zeros_like(made))
    change = (made - base + owed).astype(np.float32)
    scale = np.float32(np.abs(change).max() / np.float32(_LARGEST[kind]))
    numbers = np.rint(change / (scale or np.float32(1))).astype(np.int8)
    if kind == "int8":
        stored: tuple[str, Array] = ("I8", numbers)
    else:
        halves = (numbers + 8).astype(np.uint8)
        halves = np.append(halves, np.zeros(halves.size % 2, np.uint8))
        stored = ("U8", halves[::2] | (halves[1::2] << 4))
    sent = numbers.astype(np.float32) * scale
    tensors = {f"{kind}/{_NAME}": stored, f"scale/{_NAME}": ("F32", np.array([scale]))}
    moved = (base.astype(np.float32) + sent).astype(np.float64)
    return Coded(tensors, moved, (change - sent).astype(np.float64))


def whole(vector: Vector) -> dict[str, tuple[str, Array]]:
    """The tensors of a checkpoint of these weights."""
    return {_NAME: ("F32", narrow(vector, "F32"))}


def checkpoint(
    tensors: dict[str, tuple[str, Array]], state: Vector | None, frozen: str, base: str | None
) -> bytes:
    """A file of these tensors and of the optimizer's state, if that is handed in."""
    if state is not None:
        tensors = {**tensors, _STATE: ("F32", narrow(state, "F32"))}
    notes = {"frozen": {_FROZEN: frozen} if frozen else {}, "keeps_optimizer": state is None}
    metadata = {"hadar": json.dumps(notes), **({UPDATE_OF: base} if base else {})}
    in_order = sorted(tensors.items(), key=lambda item: -item[1][1].itemsize)
    described = [Tensor(name, dtype, array.shape) for name, (dtype, array) in in_order]
    file = io.BytesIO()
    write(file, described, metadata, [array for _, (_, array) in in_order])
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
        name = _NAME if _NAME in checkpoint.tensors else _MODEL
        return checkpoint.read(name).astype(np.float64)


def load_state(path: Path) -> Vector | None:
    """The optimizer's state of a checkpoint, if it holds one."""
    with Checkpoint(path) as checkpoint:
        has_state = _STATE in checkpoint.tensors
        return checkpoint.read(_STATE).astype(np.float64) if has_state else None


@dataclass(frozen=True, slots=True)
class Given:
    """What an order brings: weights, the optimizer's state with them, and the last there was."""

    weights: Vector
    state: Vector | None
    older_state: Vector | None


def given(store: RunStore, weights: str | None, optimizer: str | None) -> Given | None:
    if not weights:
        return None
    path = store.object_path(weights)
    older = load_state(store.object_path(optimizer)) if optimizer else None
    return Given(load(path), load_state(path), older)


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


def late_update(base: Vector, copy: Trained, merges: int, lr_scale: float) -> tuple[Vector, float]:
    """What a late copy adds to a merge of those who went on from its base to this one, and which
    share of what it did that is."""
    update, others = copy.made - copy.base, base - copy.base
    product = float(np.linalg.norm(update) * np.linalg.norm(others))
    cosine = float(update @ others) / product if product else 0.0
    share = min(1.0, 1.0 + cosine) / lr_scale / (1 + merges)
    return share * update, share
