"""The arithmetic of a merge: many checkpoints read, reckoned and written in one pass of blocks.

Only elementwise float64 arithmetic in the order of the copies' ids touches the numbers, so the
result is the same to the bit whatever the order, the machine or the number of threads.

With ``merge.outer`` the merged checkpoint also carries the outer step's momentum, as
``outer/<weight>``: it is committed with the weights it belongs to or not at all. Copies pass it by.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hadar_cli.core.estimates.merging import outlying, progress_factor
from hadar_cli.core.model import MergeRules
from hadar_cli.core.reasons import Unfit
from hadar_cli.weights.chunks import BLOCK, CHUNK, Piece, Scratch, divide, nbytes_of, write_at
from hadar_cli.weights.finite import finite, not_finite, refuse_not_finite
from hadar_cli.weights.late import LateCopy
from hadar_cli.weights.safetensors_file import (
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
from hadar_cli.weights.validation import (
    NOBODY,
    OPTIMIZER,
    OUTER,
    Copy,
    Objection,
    Refused,
    by_steps,
    is_weight,
    notes,
)

THREADS = min(4, os.cpu_count() or 1)

WIDE = np.dtype(np.float64)
Floats = NDArray[np.float64]


def _square(values: Array) -> float:
    """The squared length; not by BLAS, which would start threads of its own."""
    return float(np.einsum("i,i->", values, values))


class MergeArithmetic:
    """One attempt to merge these copies; it raises Refused for those that prove unfit."""

    def __init__(
        self,
        copies: list[Copy],
        base: Checkpoint | None,
        rules: MergeRules,
        warmth: float = 1.0,
        late: Sequence[LateCopy] = (),
    ) -> None:
        self._copies, self._base, self._rules, self._late = copies, base, rules, late
        self.leader = by_steps(copies)[0]
        in_order = [copy for copy in by_steps(copies) if not copy.keeps_optimizer]
        self._optimizer_leader = in_order[0] if in_order else self.leader
        self._buffers = notes(self.leader.checkpoint).buffers
        total = sum(copy.weight for copy in copies)
        self._shares = [copy.weight / total for copy in copies]
        steps = [copy.steps for copy in copies]
        self._stride = progress_factor(steps, warmth) if rules.rule == "progress" else 1.0
        self._place = {copy.id: i for i, copy in enumerate(copies)}
        self._squares = np.zeros(len(copies))
        self._still: dict[str, Checkpoint] = {}  # what nobody changed, and where it stands
        self._scratch = Scratch()
        self._spare: SimpleQueue[Array] = SimpleQueue()  # chunks that have been written

    def write(self, out: BinaryIO) -> tuple[str, int]:
        """The merged checkpoint's SHA-256 and its length in bytes."""
        tensors = list(self._tensors())
        if self.is_one_copy:
            return self._copy_leader(out)
        # Wide types first keeps every tensor aligned, as the safetensors package does.
        tensors.sort(key=lambda t: (-DTYPES[t.dtype].itemsize, t.name))
        sources = ((tensor.name, self._unchanged(tensor)) for tensor in tensors)
        self._still = {name: source for name, source in sources if source}
        head = header(tensors, self._metadata(tensors))
        out.write(head)
        out.flush()
        digest, length = hashlib.sha256(head), len(head)
        for data in self._chunks(tensors, out.fileno(), length):
            digest.update(data.data)
            length += data.size
        self._refuse_outlying()
        return digest.hexdigest(), length

    def _refuse_outlying(self) -> None:
        """Whose update is far longer than the others'; each is of the weights it began with."""
        in_time = zip(self._copies, np.sqrt(self._squares).tolist(), strict=True)
        lengths = {copy.id: (copy.steps, length) for copy, length in in_time}
        lengths |= {copy.id: (copy.steps, copy.length) for copy in self._late}
        lengths.pop(NOBODY, None)
        numbers = list(lengths)
        found_out = outlying(*zip(*lengths.values(), strict=True))
        if outliers := [numbers[i] for i in found_out]:
            found = Objection(Unfit.OUTLYING, "its update is far longer than the others'")
            raise Refused(dict.fromkeys(outliers, found))

    @functools.cached_property
    def is_one_copy(self) -> bool:
        """Whether the result is the only copy, byte for byte: a mean of one is that one."""
        only = self.leader.checkpoint
        is_all = list(self._tensors()) == list(only.tensors.values())
        return len(self._copies) == 1 and not self._late and only.is_whole and is_all

    @property
    def has_optimizer(self) -> bool:
        return any(tensor.name.startswith(OPTIMIZER) for tensor in self._tensors())

    def check_leader(self) -> None:
        for tensor in self.leader.layout.stored:
            if tensor.name in self.leader.frozen:
                self._check_hash(tensor)
        if reason := not_finite(self.leader.checkpoint, self._base):
            raise Refused({self.leader.id: Objection(Unfit.NOT_FINITE, reason)})

    def _tensors(self) -> Iterator[Tensor]:
        """What the merged checkpoint will hold: what any copy trained, and what the base held."""
        rule = self._rules.optimizer_state
        held = dict(self.leader.checkpoint.tensors)
        for copy in self._copies:
            is_asked = rule == "average" or copy is self._optimizer_leader
            for tensor in copy.checkpoint.tensors.values():
                if is_asked or not tensor.name.startswith(OPTIMIZER):
                    held.setdefault(tensor.name, tensor)
        if self._base:
            known = filter(is_weight, self._base.tensors.values())
            held |= {tensor.name: tensor for tensor in known if tensor.name not in held}
        dropped = (OUTER, OPTIMIZER) if rule == "reset" else OUTER
        yield from (tensor for tensor in held.values() if not tensor.name.startswith(dropped))
        if self._rules.outer and self._base:
            trained = filter(self._is_trained, held.values())
            yield from (_momentum_of(t) for t in trained if t.name in self._base.tensors)

    def _metadata(self, tensors: Iterable[Tensor]) -> dict[str, str]:
        """The leader's notes; of what does not train, those of the entries that are not stored."""
        metadata = dict(self.leader.checkpoint.metadata)
        stored = {tensor.name for tensor in tensors}
        frozen = {n: h for copy in self._copies for n, h in copy.frozen.items() if n not in stored}
        if frozen != self.leader.frozen:
            content = json.loads(metadata["hadar"]) | {"frozen": frozen}
            metadata["hadar"] = json.dumps(content)
        return metadata

    def _unchanged(self, tensor: Tensor) -> Checkpoint | None:
        """Where a tensor of weights stands as it is to be, if no copy changed it."""
        frozen = [copy.frozen for copy in self._copies] + [copy.frozen for copy in self._late]
        if not is_weight(tensor) or any(tensor.name not in names for names in frozen):
            return None
        if self._base and tensor.name in self._base.tensors:
            return self._base
        self._check_hash(tensor)
        return self.leader.checkpoint

    def _check_hash(self, tensor: Tensor) -> None:
        digest = hashlib.sha256()
        for start in range(0, tensor.size, BLOCK):
            block = np.empty(min(BLOCK, tensor.size - start), DTYPES[tensor.dtype])
            self.leader.checkpoint.read_into(tensor.name, start, block)
            digest.update(block.data)
        if digest.hexdigest() != self.leader.frozen[tensor.name]:
            why = f"{quote(tensor.name)} is not what its hash says"
            raise Refused({self.leader.id: Objection(Unfit.UNLIKE, why)})

    def _is_trained(self, tensor: Tensor) -> bool:
        return tensor.is_float and is_weight(tensor) and tensor.name not in self._buffers

    def _copy_leader(self, out: BinaryIO) -> tuple[str, int]:
        self.check_leader()
        digest = hashlib.sha256()
        with self.leader.path.open("rb") as file:
            while block := file.read(4 * CHUNK):
                digest.update(block)
                out.write(block)
        return digest.hexdigest(), out.tell()

    # -- chunks ------------------------------------------------------------------------------

    def _chunks(self, tensors: Iterable[Tensor], file: int, place: int) -> Iterator[Array]:
        """The merged bytes in order: made and written by threads, a few chunks ahead; where there
        is one chunk only, without threads, which would cost more than it."""
        divided = list(divide(tensors))
        if len(divided) == 1:
            yield from self._take(*self._chunk(divided[0], file, place))
            return
        with ThreadPoolExecutor(THREADS) as pool:
            ahead: deque[Future[tuple[Array, Floats]]] = deque()
            for pieces in divided:
                ahead.append(pool.submit(self._chunk, pieces, file, place))
                place += sum(nbytes_of(piece) for piece in pieces)
                if len(ahead) > 2 * THREADS:
                    yield from self._take(*ahead.popleft().result())
            while ahead:
                yield from self._take(*ahead.popleft().result())

    def _take(self, data: Array, squares: Floats) -> Iterator[Array]:
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
            begin, end = end, end + nbytes_of((tensor, start, stop))
            data = memory[begin:end].view(DTYPES[tensor.dtype])
            if source := self._still.get(tensor.name):
                source.read_into(tensor.name, start, data)
                continue
            with np.errstate(all="ignore"):  # NaN and overflow are looked for
                for at in range(start, stop, BLOCK):
                    size = min(BLOCK, stop - at)
                    merged = self._block(tensor, at, size, squares)
                    store(merged, tensor.dtype, data[at - start :][:size])
        write_at(file, place, memory[:end])
        return memory[:end], squares

    # -- blocks ------------------------------------------------------------------------------

    def _block(self, tensor: Tensor, start: int, size: int, squares: Floats) -> Array:
        """Merged values, not yet rounded to the type they are stored in."""
        copies, shares = self._holders(tensor.name.removeprefix(OUTER))
        weight = tensor
        if tensor.name.startswith(OUTER):
            weight = copies[0].checkpoint.tensors[tensor.name.removeprefix(OUTER)]
        stored = DTYPES[weight.dtype]
        blocks = [c.read(weight, start, self._array(c.id, size, stored)) for c in copies]
        origin = self._origin(weight, start, size)
        if origin is not None and len(copies) < len(self._copies):  # the others left it as it was
            own = [self._shares[self._place[copy.id]] for copy in copies]
            blocks, shares = [*blocks, origin], [*own, 1.0 - sum(own)]
        if not tensor.is_float:
            return np.asarray(np.max(blocks, axis=0))
        if tensor.name.startswith(OPTIMIZER) and tensor.name.endswith("/step"):
            refuse_not_finite(tensor, copies, blocks)
            return np.asarray(np.max(blocks, axis=0).astype(np.float64))

        mean = self._mean(blocks, shares)
        if origin is None:
            if not math.isfinite(_square(mean)):  # one look at the mean, not one at each copy
                refuse_not_finite(tensor, copies, blocks)
            return mean
        is_odd = tensor is weight and self._measure(weight, copies, blocks, origin, squares)
        is_mean = self._stride == 1.0 and not self._rules.outer and not self._late
        if is_mean or not self._is_trained(weight):
            return mean
        if not is_odd:
            return self._carry_on(tensor, weight, start, mean, origin)
        # Infinities that are the base's own stay what they are.
        fine = np.isfinite(origin)
        usual = np.where(fine, mean, 0.0), np.where(fine, origin, 0)
        return np.where(fine, self._carry_on(tensor, weight, start, *usual), origin)

    def _holders(self, name: str) -> tuple[list[Copy], list[float]]:
        """The copies whose file has the tensor, and their shares among each other."""
        if name.startswith(OPTIMIZER) and self._rules.optimizer_state == "leader":
            return [self._optimizer_leader], [1.0]
        if all(name in copy.checkpoint.tensors for copy in self._copies):
            return self._copies, self._shares
        copies = [copy for copy in self._copies if name in copy.checkpoint.tensors]
        total = sum(copy.weight for copy in copies)
        return copies, [copy.weight / total for copy in copies]

    def _origin(self, weight: Tensor, start: int, size: int) -> Array | None:
        """What the copies began with; None where they began with nothing that is known here."""
        if not self._base or not is_weight(weight) or weight.name not in self._base.tensors:
            return None
        origin = self._array("origin", size, DTYPES[weight.dtype])
        self._base.read_into(weight.name, start, origin)
        return widen(origin, weight.dtype)

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

    def _measure(
        self,
        tensor: Tensor,
        copies: Sequence[Copy],
        blocks: Sequence[Array],
        origin: Array,
        squares: Floats,
    ) -> bool:
        """Adds each copy's squared distance from the base, which no NaN or Inf passes unseen.

        Whether there are infinities of the base's own, in which copies have the same ones.
        """
        delta, is_odd = self._array("term", origin.size, origin.dtype), False
        for copy, block in zip(copies, blocks, strict=False):
            square = _square(np.subtract(block, origin, out=delta))
            if not math.isfinite(square):
                refuse_not_finite(tensor, copies, blocks[: len(copies)], origin)
            if math.isnan(square):
                if np.isnan(origin).any():
                    raise CheckpointError(f"the base has NaN or Inf in {quote(tensor.name)}")
                delta[~np.isfinite(origin)] = 0.0
                square, is_odd = _square(delta), True
            squares[self._place[copy.id]] += square
        return is_odd

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
        for copy in self._late:
            if copy.is_trained(weight):
                step -= copy.share * copy.update(weight, start, step.size)[0]
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
            if not finite(origin):
                raise CheckpointError(f"the base has NaN or Inf in {quote(tensor.name)}")
            np.clip(values, -limit, limit, out=values)
        return values


def _momentum_of(weight: Tensor) -> Tensor:
    """In float32 at least: half floats would lose it."""
    dtype = "F64" if weight.dtype == "F64" else "F32"
    return Tensor(OUTER + weight.name, dtype, weight.shape)
