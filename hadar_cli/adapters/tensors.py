"""Merging: the copies of a job become one checkpoint again, block by block.

A checkpoint holds ``model/<i>/<name>`` (weights and buffers) and, beside them,
``optimizer/<i>/<parameter>/<state>``; its metadata under ``hadar`` name the float buffers and the
tied weights. Whatever is not optimizer state counts as weights, so plain scripts may use any names.

Only elementwise float64 arithmetic in the order of the copies' ids touches the numbers, so the
result is the same to the bit whatever the order, the machine or the number of threads.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from hadar_cli.adapters.safetensors_file import (
    DTYPES,
    FLOAT_MAX,
    Array,
    Checkpoint,
    CheckpointError,
    Tensor,
    narrow,
    quote,
    widen,
    write,
)
from hadar_cli.core.merging import outlying, progress_factor
from hadar_cli.core.model import MergeRules
from hadar_cli.errors import StorageError

OPTIMIZER = "optimizer/"
CHUNK = 1 << 20  # elements that one thread merges at a time
BLOCK = 1 << 17  # elements worked on at once: they stay in the processor's cache
THREADS = min(4, os.cpu_count() or 1)

WIDE = np.dtype(np.float64)
Floats = NDArray[np.float64]
T = TypeVar("T")
Layout = tuple[frozenset[Tensor], frozenset[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Contribution:
    """A checkpoint that a copy handed in, and the work it claims for it."""

    copy: int
    path: Path
    steps: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged file and the copies in it; with none accepted, no file and an empty digest."""

    digest: str
    bytes: int
    accepted: tuple[int, ...]
    refused: tuple[tuple[int, str], ...]


def merge(
    contributions: Sequence[Contribution], base: Path | None, out: Path, rules: MergeRules
) -> Merged:
    """Merge what the copies made of ``base`` into ``out``, which the caller syncs and names.

    A contribution that fails a guard is left out with its reason. Raises CheckpointError only for
    a bad base, which is the head's own file, and StorageError when ``out`` cannot be written.
    """
    with ExitStack() as stack:
        origin = stack.enter_context(Checkpoint(base)) if base else None
        copies, refused = _admit(contributions, origin, rules, stack)
        digest, size = "", 0
        while copies:
            try:
                with out.open("wb") as file:
                    digest, size = _Merge(copies, origin, rules).write(file)
                break
            except _Refused as refusal:
                refused |= refusal.reasons
                copies = [copy for copy in copies if copy.id not in refused]
            except OSError as error:
                raise StorageError(f"cannot write {out}: {error.strerror}") from error
    if not copies:
        out.unlink(missing_ok=True)
    accepted = tuple(copy.id for copy in copies)
    return Merged(digest, size, accepted, tuple(sorted(refused.items())))


def validate(path: Path, like: Path | None) -> str | None:
    """Why a checkpoint cannot be used in the place of ``like``, or None if it can."""
    try:
        with ExitStack() as stack:
            checkpoint = stack.enter_context(Checkpoint(path))
            layout = _layout(checkpoint)
            if like:
                other = _layout(stack.enter_context(Checkpoint(like)))
                if difference := _difference(layout, other):
                    return difference
            return _not_finite(checkpoint)
    except CheckpointError as error:
        return f"unreadable: {error}"


def _admit(
    contributions: Sequence[Contribution],
    base: Checkpoint | None,
    rules: MergeRules,
    stack: ExitStack,
) -> tuple[list[_Copy], dict[int, str]]:
    """The copies that can be merged with each other, by id, and why the others cannot."""
    copies: list[_Copy] = []
    refused: dict[int, str] = {}
    for contribution in sorted(contributions, key=lambda contribution: contribution.copy):
        if contribution.steps < 1:
            refused[contribution.copy] = "it did no steps"
            continue
        try:
            copies.append(_Copy(contribution, stack))
        except CheckpointError as error:
            refused[contribution.copy] = f"unreadable: {error}"

    if copies:
        layout = _layout(base) if base else _most_common([c.layout for c in _by_steps(copies)])
        for copy in copies:
            if reason := _difference(copy.layout, layout):
                refused[copy.id] = reason
    copies = [copy for copy in copies if copy.id not in refused]

    if copies and rules.optimizer_state == "average":
        # The base has nothing to say here: it has no such state before the first merge.
        state = _most_common([c.optimizer for c in _by_steps(copies)])
        for copy in copies:
            if reason := _difference((copy.optimizer, frozenset()), (state, frozenset())):
                refused[copy.id] = reason
    return [copy for copy in copies if copy.id not in refused], refused


def _by_steps(copies: Iterable[_Copy]) -> list[_Copy]:
    """The leader first: the copy with most steps, of equals the one with the lowest id."""
    return sorted(copies, key=lambda copy: (-copy.steps, copy.id))


def _most_common(layouts: Sequence[T]) -> T:
    """Of equally common ones the first."""
    return Counter(layouts).most_common(1)[0][0]


def _is_optimizer(tensor: Tensor) -> bool:
    return tensor.name.startswith(OPTIMIZER)


def _layout(checkpoint: Checkpoint) -> Layout:
    """What must agree among checkpoints of one job: the weights and which of them are tied."""
    weights = frozenset(t for t in checkpoint.tensors.values() if not _is_optimizer(t))
    if not weights:
        raise CheckpointError("it holds no weights")
    _, tied = _notes(checkpoint)
    return weights, tied


def _notes(checkpoint: Checkpoint) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """The names of the buffers, and the tied weights as (alias, stored name)."""
    try:
        notes = json.loads(checkpoint.metadata.get("hadar", "{}"))
        buffers = frozenset(notes.get("buffers", ()))
        tied = frozenset(notes.get("tied", {}).items())
    except (ValueError, RecursionError, TypeError, AttributeError) as error:
        raise CheckpointError("its notes are not as hadar writes them") from error
    if any(alias in checkpoint.tensors or name not in checkpoint.tensors for alias, name in tied):
        raise CheckpointError("its tied weights are not stored once")
    return buffers, tied


def _difference(layout: Layout, wanted: Layout) -> str | None:
    """What sets a layout apart from the one wanted, or None."""
    (tensors, tied), (wanted_tensors, wanted_tied) = layout, wanted
    mine = {tensor.name: tensor for tensor in tensors}
    theirs = {tensor.name: tensor for tensor in wanted_tensors}
    if missing := theirs.keys() - mine.keys():
        return f"it lacks {quote(min(missing))}"
    if surplus := mine.keys() - theirs.keys():
        return f"it has {quote(min(surplus))}, which does not belong"
    for name, tensor in sorted(mine.items()):
        other = theirs[name]
        if tensor.dtype != other.dtype:
            return f"{quote(name)} is {tensor.dtype}, not {other.dtype}"
        if tensor.shape != other.shape:
            return f"{quote(name)} has shape {list(tensor.shape)}, not {list(other.shape)}"
    return None if tied == wanted_tied else "its tied weights are others"


def _not_finite(checkpoint: Checkpoint) -> str | None:
    """Why a checkpoint's numbers cannot be used, or None."""
    for tensor in filter(lambda tensor: tensor.is_float, checkpoint.tensors.values()):
        for start in range(0, tensor.size, BLOCK):
            block = np.empty(min(BLOCK, tensor.size - start), DTYPES[tensor.dtype])
            checkpoint.read_into(tensor.name, start, block)
            if not _finite(widen(block, tensor.dtype)):
                return f"NaN or Inf in {quote(tensor.name)}"
    return None


def _refuse_not_finite(tensor: Tensor, copies: list[_Copy], blocks: list[Array]) -> None:
    bad = [copy.id for copy, block in zip(copies, blocks, strict=True) if not _finite(block)]
    if bad:
        raise _Refused(dict.fromkeys(bad, f"NaN or Inf in {quote(tensor.name)}"))


def _finite(values: Array) -> bool:
    return bool(np.isfinite(values).all())


class _Refused(Exception):
    """Some copies proved unfit while being merged."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class _Copy:
    """An opened contribution."""

    def __init__(self, contribution: Contribution, stack: ExitStack) -> None:
        self.id = contribution.copy
        self.steps = contribution.steps
        self.weight = contribution.steps * contribution.batch_size
        self.path = contribution.path
        self.checkpoint = stack.enter_context(Checkpoint(contribution.path))
        self.layout = _layout(self.checkpoint)
        self.optimizer = frozenset(filter(_is_optimizer, self.checkpoint.tensors.values()))

    def read(self, tensor: Tensor, start: int, block: Array) -> Array:
        """The values from ``start`` on, read into ``block``."""
        try:
            self.checkpoint.read_into(tensor.name, start, block)
            return widen(block, tensor.dtype)
        except CheckpointError as error:
            raise _Refused({self.id: f"unreadable: {error}"}) from error


class _Scratch(threading.local):
    """Each thread's own buffers: fresh memory for every block would cost as much as the sums."""

    def __init__(self) -> None:
        self._buffers: dict[object, Array] = {}

    def array(self, use: object, size: int, dtype: np.dtype[Any]) -> Array:
        if use not in self._buffers:
            self._buffers[use] = np.empty(BLOCK, np.float64)
        return self._buffers[use].view(dtype)[:size]


class _Merge:
    """One attempt to merge these copies; it raises _Refused for those that prove unfit."""

    def __init__(self, copies: list[_Copy], base: Checkpoint | None, rules: MergeRules) -> None:
        self.copies = copies
        self.base = base
        self.optimizer_state = rules.optimizer_state
        self.leader = _by_steps(copies)[0]
        self.buffers, _ = _notes(self.leader.checkpoint)
        total = sum(copy.weight for copy in copies)
        self.shares = [copy.weight / total for copy in copies]
        stride = base is not None and rules.rule == "progress"
        self.stride = progress_factor([copy.steps for copy in copies]) if stride else 1.0
        self.squares = np.zeros(len(copies))
        self.scratch = _Scratch()

    def write(self, out: BinaryIO) -> tuple[str, int]:
        drop = bool(self.leader.optimizer) and self.optimizer_state == "reset"
        if len(self.copies) == 1 and not drop:
            return self._copy_leader(out)
        checkpoint = self.leader.checkpoint
        tensors = [t for t in checkpoint.tensors.values() if not (drop and _is_optimizer(t))]
        # Wide types first keeps every tensor aligned, as the safetensors package does.
        tensors.sort(key=lambda t: (-DTYPES[t.dtype].itemsize, t.name))
        result = write(out, tensors, checkpoint.metadata, self._blocks(tensors))
        steps, lengths = [copy.steps for copy in self.copies], np.sqrt(self.squares).tolist()
        if outliers := [self.copies[i].id for i in outlying(steps, lengths)]:
            raise _Refused(dict.fromkeys(outliers, "its update is far longer than the others'"))
        return result

    def _copy_leader(self, out: BinaryIO) -> tuple[str, int]:
        """The only copy, byte for byte: a mean of one is that one, under either rule."""
        if reason := validate(self.leader.path, None):
            raise _Refused({self.leader.id: reason})
        digest = hashlib.sha256()
        with self.leader.path.open("rb") as file:
            while block := file.read(CHUNK):
                digest.update(block)
                out.write(block)
        return digest.hexdigest(), out.tell()

    def _blocks(self, tensors: Iterable[Tensor]) -> Iterator[Array]:
        """The merged data in order, made by threads a few chunks ahead of the writer."""
        with ThreadPoolExecutor(THREADS) as pool:
            ahead: deque[Future[tuple[Array, Floats]]] = deque()
            for tensor in tensors:
                for start in range(0, tensor.size, CHUNK):
                    stop = min(start + CHUNK, tensor.size)
                    ahead.append(pool.submit(self._chunk, tensor, start, stop))
                    if len(ahead) > 2 * THREADS:
                        yield self._take(ahead.popleft())
            while ahead:
                yield self._take(ahead.popleft())

    def _take(self, chunk: Future[tuple[Array, Floats]]) -> Array:
        data, squares = chunk.result()
        self.squares += squares
        return data

    def _chunk(self, tensor: Tensor, start: int, stop: int) -> tuple[Array, Floats]:
        """One chunk of the result, and each copy's squared distance from the base in it."""
        data = np.empty(stop - start, DTYPES[tensor.dtype])
        squares = np.zeros(len(self.copies))
        with np.errstate(all="ignore"):  # NaN and overflow are looked for
            for at in range(start, stop, BLOCK):
                size = min(BLOCK, stop - at)
                data[at - start :][:size] = self._block(tensor, at, size, squares)
        return data, squares

    def _block(self, tensor: Tensor, start: int, size: int, squares: Floats) -> Array:
        copies, shares = self.copies, self.shares
        if _is_optimizer(tensor) and self.optimizer_state == "leader":
            copies, shares = [self.leader], [1.0]
        stored = DTYPES[tensor.dtype]
        blocks = [c.read(tensor, start, self.scratch.array(c.id, size, stored)) for c in copies]
        if not tensor.is_float:
            return np.asarray(np.max(blocks, axis=0))
        if _is_optimizer(tensor) and tensor.name.endswith("/step"):
            _refuse_not_finite(tensor, copies, blocks)
            return narrow(np.max(blocks, axis=0).astype(np.float64), tensor.dtype)

        result = self._mean(blocks, shares)
        if not math.isfinite(result.sum()):  # one look at the sum, not one at each copy
            _refuse_not_finite(tensor, copies, blocks)
        if self.base and not _is_optimizer(tensor):
            origin = self.scratch.array("origin", size, stored)
            self.base.read_into(tensor.name, start, origin)
            origin = widen(origin, tensor.dtype)
            delta = self.scratch.array("delta", size, origin.dtype)
            for i, block in enumerate(blocks):
                np.subtract(block, origin, out=delta)
                squares[i] += np.einsum("i,i->", delta, delta)
            if self.stride != 1.0 and tensor.name not in self.buffers:
                self._carry_on(tensor, result, origin)
        return narrow(result, tensor.dtype)

    def _mean(self, blocks: list[Array], shares: list[float]) -> Floats:
        total, term = (self.scratch.array(use, blocks[0].size, WIDE) for use in ("total", "term"))
        np.multiply(blocks[0], shares[0], out=total, dtype=WIDE)
        for block, share in zip(blocks[1:], shares[1:], strict=True):
            np.multiply(block, share, out=term, dtype=WIDE)
            np.add(total, term, out=total)
        if blocks[0].dtype == WIDE:
            # Narrower types round the last bit's error away; here a mean could leave its bounds.
            np.clip(total, np.min(blocks, axis=0), np.max(blocks, axis=0), out=total)
        return total

    def _carry_on(self, tensor: Tensor, mean: Floats, origin: Array) -> None:
        """Move the mean on along its way from the base: x + α (mean − x)."""
        limit = FLOAT_MAX[tensor.dtype]
        np.subtract(origin, mean, out=mean)  # this way round a zero keeps its sign
        mean *= -self.stride
        mean += origin
        if not -limit <= mean.min() <= mean.max() <= limit:
            if not _finite(origin):
                raise CheckpointError(f"the base has NaN or Inf in {quote(tensor.name)}")
            np.clip(mean, -limit, limit, out=mean)
