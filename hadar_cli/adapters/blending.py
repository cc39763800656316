"""The arithmetic of a merge: many checkpoints read, reckoned and written in one pass of blocks.

Only elementwise float64 arithmetic in the order of the copies' ids touches the numbers, so the
result is the same to the bit whatever the order, the machine or the number of threads.

With ``merge.outer`` the merged checkpoint also carries the outer step's momentum, as
``outer/<weight>``: it is committed with the weights it belongs to or not at all. Copies pass it by.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hadar_cli.adapters.contributions import (
    OPTIMIZER,
    OUTER,
    Copy,
    Refused,
    by_steps,
    is_weight,
    notes,
)
from hadar_cli.adapters.safetensors_file import (
    DTYPES,
    FLOAT_MAX,
    Array,
    Checkpoint,
    CheckpointError,
    Tensor,
    header,
    quote,
    store,
    widen,
)
from hadar_cli.core.merging import outlying, progress_factor
from hadar_cli.core.model import MergeRules

CHUNK = 1 << 18  # elements that a thread merges at a time, few enough to be hashed in the cache
BLOCK = 1 << 17  # elements worked on at once: they stay in the processor's cache
THREADS = min(4, os.cpu_count() or 1)

WIDE = np.dtype(np.float64)
Floats = NDArray[np.float64]
Piece = tuple[Tensor, int, int]  # the elements of a tensor from one place to another


def not_finite(checkpoint: Checkpoint) -> str | None:
    """Why a checkpoint's numbers cannot be used, or None."""
    for tensors in checkpoint.neighbours():
        if not tensors[0].is_float:
            continue
        size, dtype = sum(tensor.size for tensor in tensors), tensors[0].dtype
        for start in range(0, size, BLOCK):
            block = np.empty(min(BLOCK, size - start), DTYPES[dtype])
            checkpoint.read_from(tensors[0], start, block)
            bad = np.flatnonzero(~np.isfinite(widen(block, dtype)))
            if bad.size:
                ends = np.cumsum([tensor.size for tensor in tensors])
                culprit = tensors[np.searchsorted(ends, start + bad[0], side="right")]
                return f"NaN or Inf in {quote(culprit.name)}"
    return None


def _refuse_not_finite(tensor: Tensor, copies: list[Copy], blocks: list[Array]) -> None:
    bad = [copy.id for copy, block in zip(copies, blocks, strict=True) if not _finite(block)]
    if bad:
        raise Refused(dict.fromkeys(bad, f"NaN or Inf in {quote(tensor.name)}"))


def _finite(values: Array) -> bool:
    return bool(np.isfinite(values).all())


def _square(values: Array) -> float:
    """The squared length; not by BLAS, which would start threads of its own."""
    return float(np.einsum("i,i->", values, values))


class _Scratch(threading.local):
    """Each thread's own buffers: fresh memory for every block would cost as much as the sums."""

    def __init__(self) -> None:
        self._buffers: dict[object, Array] = {}

    def array(self, use: object, size: int, dtype: np.dtype[Any]) -> Array:
        if use not in self._buffers:
            self._buffers[use] = np.empty(BLOCK, np.float64)
        return self._buffers[use].view(dtype)[:size]


class Blend:
    """One attempt to merge these copies; it raises Refused for those that prove unfit."""

    def __init__(
        self, copies: list[Copy], base: Checkpoint | None, rules: MergeRules, warmth: float = 1.0
    ) -> None:
        self._copies, self._base, self._rules = copies, base, rules
        self._leader = by_steps(copies)[0]
        self._buffers, _ = notes(self._leader.checkpoint)
        total = sum(copy.weight for copy in copies)
        self._shares = [copy.weight / total for copy in copies]
        steps = [copy.steps for copy in copies]
        self._stride = progress_factor(steps, warmth) if rules.rule == "progress" else 1.0
        self._squares = np.zeros(len(copies))
        self._scratch = _Scratch()
        self._spare: SimpleQueue[Array] = SimpleQueue()  # chunks that have been written

    def write(self, out: BinaryIO) -> tuple[str, int]:
        """The merged checkpoint's SHA-256 and its length in bytes."""
        tensors = list(self._tensors())
        if self.is_one_copy:
            return self._copy_leader(out)
        # Wide types first keeps every tensor aligned, as the safetensors package does.
        tensors.sort(key=lambda t: (-DTYPES[t.dtype].itemsize, t.name))
        head = header(tensors, self._leader.checkpoint.metadata)
        out.write(head)
        out.flush()
        digest, length = hashlib.sha256(head), len(head)
        for data in self._chunks(tensors, out.fileno(), length):
            digest.update(data.data)
            length += data.size
        steps, lengths = [copy.steps for copy in self._copies], np.sqrt(self._squares).tolist()
        if outliers := [self._copies[i].id for i in outlying(steps, lengths)]:
            raise Refused(dict.fromkeys(outliers, "its update is far longer than the others'"))
        return digest.hexdigest(), length

    @functools.cached_property
    def is_one_copy(self) -> bool:
        """Whether the result is the only copy, byte for byte: a mean of one is that one."""
        only = self._leader.checkpoint
        is_all = list(self._tensors()) == list(only.tensors.values())
        return len(self._copies) == 1 and only.is_whole and is_all

    def check_leader(self) -> None:
        if reason := not_finite(self._leader.checkpoint):
            raise Refused({self._leader.id: reason})

    def _tensors(self) -> Iterator[Tensor]:
        """What the merged checkpoint will hold."""
        dropped = (OUTER, OPTIMIZER) if self._rules.optimizer_state == "reset" else OUTER
        for tensor in self._leader.checkpoint.tensors.values():
            if not tensor.name.startswith(dropped):
                yield tensor
        if self._rules.outer and self._base:
            trained = filter(self._is_trained, self._leader.checkpoint.tensors.values())
            yield from map(_momentum_of, trained)

    def _is_trained(self, tensor: Tensor) -> bool:
        return tensor.is_float and is_weight(tensor) and tensor.name not in self._buffers

    def _copy_leader(self, out: BinaryIO) -> tuple[str, int]:
        self.check_leader()
        digest = hashlib.sha256()
        with self._leader.path.open("rb") as file:
            while block := file.read(4 * CHUNK):
                digest.update(block)
                out.write(block)
        return digest.hexdigest(), out.tell()

    # -- chunks ------------------------------------------------------------------------------

    def _chunks(self, tensors: Iterable[Tensor], file: int, place: int) -> Iterator[Array]:
        """The merged bytes in order: made and written by threads, a few chunks ahead."""
        with ThreadPoolExecutor(THREADS) as pool:
            ahead: deque[Future[tuple[Array, Floats]]] = deque()
            for pieces in _divide(tensors):
                ahead.append(pool.submit(self._chunk, pieces, file, place))
                place += sum(_nbytes(piece) for piece in pieces)
                if len(ahead) > 2 * THREADS:
                    yield from self._take(ahead.popleft())
            while ahead:
                yield from self._take(ahead.popleft())

    def _take(self, chunk: Future[tuple[Array, Floats]]) -> Iterator[Array]:
        data, squares = chunk.result()
        self._squares += squares
        yield data
        assert data.base is not None
        self._spare.put(data.base)

    def _chunk(self, pieces: Sequence[Piece], file: int, place: int) -> tuple[Array, Floats]:
        """One chunk of the result, and each copy's squared distance from the base in it."""
        try:
            memory = self._spare.get_nowait()
        except Empty:
            memory = np.empty(2 * CHUNK * WIDE.itemsize, np.uint8)
        squares = np.zeros(len(self._copies))
        end = 0
        for tensor, start, stop in pieces:
            begin, end = end, end + _nbytes((tensor, start, stop))
            data = memory[begin:end].view(DTYPES[tensor.dtype])
            with np.errstate(all="ignore"):  # NaN and overflow are looked for
                for at in range(start, stop, BLOCK):
                    size = min(BLOCK, stop - at)
                    merged = self._block(tensor, at, size, squares)
                    store(merged, tensor.dtype, data[at - start :][:size])
        _write_at(file, place, memory[:end])
        return memory[:end], squares

    # -- blocks ------------------------------------------------------------------------------

    def _block(self, tensor: Tensor, start: int, size: int, squares: Floats) -> Array:
        """Merged values, not yet rounded to the type they are stored in."""
        copies, shares = self._copies, self._shares
        if tensor.name.startswith(OPTIMIZER) and self._rules.optimizer_state == "leader":
            copies, shares = [self._leader], [1.0]
        weight = self._leader.checkpoint.tensors[tensor.name.removeprefix(OUTER)]
        stored = DTYPES[weight.dtype]
        blocks = [c.read(weight, start, self._array(c.id, size, stored)) for c in copies]
        if not tensor.is_float:
            return np.asarray(np.max(blocks, axis=0))
        if tensor.name.startswith(OPTIMIZER) and tensor.name.endswith("/step"):
            _refuse_not_finite(tensor, copies, blocks)
            return np.asarray(np.max(blocks, axis=0).astype(np.float64))

        mean = self._mean(blocks, shares)
        if self._base is None or not is_weight(weight):
            if not math.isfinite(_square(mean)):  # one look at the mean, not one at each copy
                _refuse_not_finite(tensor, copies, blocks)
            return mean
        origin = self._array("origin", size, stored)
        self._base.read_into(weight.name, start, origin)
        origin = widen(origin, weight.dtype)
        if tensor is weight:
            self._measure(weight, blocks, origin, squares)
        if self._is_trained(weight) and (self._stride != 1.0 or self._rules.outer):
            return self._carry_on(tensor, weight, start, mean, origin)
        return mean

    def _array(self, use: object, size: int, dtype: np.dtype[Any]) -> Array:
        return self._scratch.array(use, size, dtype)

    def _mean(self, blocks: list[Array], shares: list[float]) -> Floats:
        total, term = (self._array(use, blocks[0].size, WIDE) for use in ("total", "term"))
        np.copyto(total, blocks[0])
        total *= shares[0]
        for block, share in zip(blocks[1:], shares[1:], strict=True):
            np.copyto(term, block)  # a cast, then two sums: numpy is slower at all in one
            term *= share
            total += term
        if blocks[0].dtype == WIDE:
            # Narrower types round the last bit's error away; here a mean could leave its bounds.
            np.clip(total, np.min(blocks, axis=0), np.max(blocks, axis=0), out=total)
        return total

    def _measure(self, tensor: Tensor, blocks: list[Array], origin: Array, squares: Floats) -> None:
        """Adds each copy's squared distance from the base, which no NaN or Inf passes unseen."""
        delta = self._array("term", origin.size, origin.dtype)
        for i, block in enumerate(blocks):
            square = _square(np.subtract(block, origin, out=delta))
            if not math.isfinite(square):
                _refuse_not_finite(tensor, self._copies, blocks)
            squares[i] += square

    def _carry_on(
        self, tensor: Tensor, weight: Tensor, start: int, mean: Floats, origin: Array
    ) -> Floats:
        """Moves on from the base by the mean update, longer or with momentum: the weights then,
        or that momentum, whichever ``tensor`` is."""
        outer = self._rules.outer
        here = self._array("here", origin.size, WIDE)
        np.copyto(here, origin)  # a cast of its own, as for the mean
        step = np.subtract(here, mean, out=mean)
        step *= self._stride
        if outer:
            momentum = self._momentum(weight, start, step.size)
            momentum *= outer.momentum
            momentum += step
            if tensor is not weight:
                return self._bounded(tensor, momentum, origin)
            step += np.multiply(momentum, outer.momentum, out=momentum)  # Nesterov looks ahead
            step *= outer.lr
        np.subtract(here, step, out=step)
        return self._bounded(weight, step, origin)

    def _momentum(self, weight: Tensor, start: int, size: int) -> Floats:
        """What the merge before this one left in the base; nothing at first."""
        tensor, values = _momentum_of(weight), self._array("momentum", size, WIDE)
        assert self._base is not None
        if self._base.tensors.get(tensor.name) != tensor:
            values.fill(0.0)
            return values
        stored = self._array("term", size, DTYPES[tensor.dtype])
        self._base.read_into(tensor.name, start, stored)
        np.copyto(values, stored)
        return values

    def _bounded(self, tensor: Tensor, values: Floats, origin: Array) -> Floats:
        """Kept within the range of the type, where an update could leave it."""
        limit = FLOAT_MAX[tensor.dtype]
        square = _square(values)  # one look at all of them; a closer one where it is large
        if math.isfinite(square) and square <= limit * limit:
            return values
        if not -limit <= values.min() <= values.max() <= limit:
            if not _finite(origin):
                raise CheckpointError(f"the base has NaN or Inf in {quote(tensor.name)}")
            np.clip(values, -limit, limit, out=values)
        return values


def _divide(tensors: Iterable[Tensor]) -> Iterator[list[Piece]]:
    """Large tensors in pieces, small ones together: CHUNK elements at least, two at the most."""
    pieces: list[Piece] = []
    size = 0
    for tensor in tensors:
        for start in range(0, tensor.size, CHUNK):
            stop = min(start + CHUNK, tensor.size)
            pieces.append((tensor, start, stop))
            size += stop - start
            if size >= CHUNK:
                yield pieces
                pieces, size = [], 0
    if pieces:
        yield pieces


def _nbytes(piece: Piece) -> int:
    tensor, start, stop = piece
    return (stop - start) * DTYPES[tensor.dtype].itemsize


def _write_at(file: int, place: int, data: Array) -> None:
    while data.size:
        written = os.pwrite(file, data.data, place)
        place, data = place + written, data[written:]


def _momentum_of(weight: Tensor) -> Tensor:
    """In float32 at least: half floats would lose it."""
    dtype = "F64" if weight.dtype == "F64" else "F32"
    return Tensor(OUTER + weight.name, dtype, weight.shape)
