"""Hand-ins that hold what became of a base: bfloat16 differences, or whole numbers and scales.

In an update, ``int8/<name>`` and ``int4/<name>`` stand for a float32 tensor of the base, as whole
numbers of a byte or half a byte, and ``scale/<name>`` for what they are multiples of: one scale for
every ``SCALED`` of them. A half byte holds its number with 8 added, the first of two in the low
half.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from hadar_cli.weights.safetensors_file import (
    DTYPES,
    Array,
    BadBase,
    Checkpoint,
    CheckpointError,
    Tensor,
    quote,
    widen,
)

UPDATE_OF = "hadar.update_of"  # in the metadata of an update: the name of its base's file
INT8, INT4, SCALE = "int8/", "int4/", "scale/"
SCALED = 128  # numbers to a scale


class Update(Checkpoint):
    """A checkpoint that holds what became of ``base``.

    It reads like the whole one; only its bytes are not those of one.
    """

    is_whole = False

    def __init__(self, path: Path, base: Checkpoint) -> None:
        super().__init__(path)
        self._base = base
        try:
            self._coded = {tensor.name: self._code_of(tensor) for tensor in self._targets()}
        except BaseException:
            self._file.close()
            raise
        plain = [t for t in self._stored.values() if not t.name.startswith((INT8, INT4, SCALE))]
        self.tensors = {tensor.name: self._restored(tensor) for tensor in plain}
        self.tensors |= {name: base.tensors[name] for name in self._coded}
        self.metadata = {k: v for k, v in self.metadata.items() if k != UPDATE_OF}

    def _targets(self) -> list[Tensor]:
        """The base's tensors that are handed in as whole numbers, or of which there are scales."""
        names = {n.partition("/")[2] for n in self._stored if n.startswith((INT8, INT4, SCALE))}
        for name in names:
            known = self._base.tensors.get(name)
            if known is None or known.dtype != "F32" or name in self._stored:
                raise CheckpointError(f"{quote(name)} is no update of the base")
        return [self._base.tensors[name] for name in sorted(names)]

    def _code_of(self, known: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers and the scales, whose types and shapes follow from the base's tensor."""
        scales = Tensor(SCALE + known.name, "F32", (-(-known.size // SCALED),))
        bytes_ = Tensor(INT8 + known.name, "I8", known.shape)
        halves = Tensor(INT4 + known.name, "U8", (-(-known.size // 2),))
        for numbers, other in ((bytes_, halves), (halves, bytes_)):
            is_right = all(self._stored.get(t.name) == t for t in (numbers, scales))
            if is_right and other.name not in self._stored:
                return self._stored[numbers.name], self._stored[scales.name]
        raise CheckpointError(f"{quote(known.name)} is not coded as updates are")

    def _restored(self, tensor: Tensor) -> Tensor:
        whole = replace(tensor, dtype="F32")
        return whole if tensor.dtype == "BF16" and self._is_known(whole) else tensor

    def _is_known(self, tensor: Tensor) -> bool:
        return self._base.tensors.get(tensor.name) == tensor

    def read_into(self, name: str, start: int, block: Array) -> None:
        if name in self._coded:
            difference = self._decoded(name, start, block.size)
        elif self._stored[name] == self.tensors[name]:
            self.read_from(self._stored[name], start, block)
            return
        else:
            stored = self._stored[name]
            raw = np.empty(block.size, DTYPES[stored.dtype])
            self.read_from(stored, start, raw)
            difference = widen(raw, stored.dtype)
        try:
            self._base.read_into(name, start, block)
        except CheckpointError as error:
            raise BadBase(str(error)) from error
        block += difference

    def _decoded(self, name: str, start: int, size: int) -> Array:
        numbers, scales = self._coded[name]
        first = start // SCALED
        factors = np.empty(-(-(start + size) // SCALED) - first, np.float32)
        self.read_from(scales, first, factors)
        if numbers.dtype == "I8":
            values = np.empty(size, np.int8)
            self.read_from(numbers, start, values)
        else:
            pairs = np.empty(-(-(start + size) // 2) - start // 2, np.uint8)
            self.read_from(numbers, start // 2, pairs)
            halves = np.stack([pairs & 0xF, pairs >> 4], axis=1).reshape(-1)
            values = halves[start % 2 :][:size].astype(np.int8) - np.int8(8)
        of_each = np.repeat(factors, SCALED)[start % SCALED :][:size]
        return np.asarray(values.astype(np.float32) * of_each)


def open_hand_in(path: Path, base: Checkpoint | None) -> Checkpoint:
    """What a copy that started from ``base`` left: all of its state, or an update of the base."""
    checkpoint = Checkpoint(path)
    if UPDATE_OF not in checkpoint.metadata:
        return checkpoint
    with checkpoint:
        if not base or checkpoint.metadata[UPDATE_OF] != base.path.name:
            raise CheckpointError("it is an update of other weights")
    return Update(path, base)
