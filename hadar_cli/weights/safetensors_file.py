"""Checkpoints on disk: a strict, bounded reader and a streaming writer of the safetensors format.

The safetensors package is not used on the head for three reasons: its numpy side knows no
bfloat16, it hands out whole tensors where merging wants small blocks of many files at once, and a
file from a node must be refused for anything odd, in one plain line.

Blocks are read by position into a buffer and not through a memory map: mapped pages count as
resident memory, and a mapped file that another process truncates kills the reader (SIGBUS).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hadar_cli.errors import HadarError

Array = NDArray[Any]

# The numpy type that holds each stored type; bfloat16 and booleans are held as their bits.
DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("u1"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
# In finished models there may be complex numbers; checkpoints hold them as pairs of real ones.
_SIZES = {**{name: dtype.itemsize for name, dtype in DTYPES.items()}, "C64": 8}
# The largest finite number of each floating-point type.
FLOAT_MAX: Mapping[str, float] = {
    "F16": float(np.finfo(np.float16).max),
    "BF16": (2 - 2**-7) * 2.0**127,
    "F32": float(np.finfo(np.float32).max),
    "F64": float(np.finfo(np.float64).max),
}
HEADER_LIMIT = 16 << 20
DIMENSIONS_LIMIT = 32
DIMENSION_LIMIT = 1 << 63


class CheckpointError(HadarError):
    """A file that is not the checkpoint it should be, with a one-line reason."""


class BadBase(CheckpointError):
    """An update cannot be read, and it is not the update's fault."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a header says of one tensor. Equal when name, type and shape are; place is no matter."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int = field(default=0, compare=False)  # in the file's data, which follow its header
    size: int = field(init=False, compare=False)
    nbytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", math.prod(self.shape))
        object.__setattr__(self, "nbytes", self.size * _SIZES[self.dtype])

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOAT_MAX


class Checkpoint:
    """An open file whose header has been checked in full; its data are read block by block."""

    is_whole = True

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise CheckpointError(f"cannot be opened: {error.strerror}") from error
        try:
            self.bytes = os.fstat(self._file.fileno()).st_size
            header = self._read_header()
            self._data_begin = 8 + len(header)
            parse = _parse_again if len(header) <= _REMEMBERED else _parse
            tensors, metadata = parse(header, self.bytes - self._data_begin)
            self.tensors = self._stored = tensors.copy()
            self.metadata = metadata.copy()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def read(self, name: str) -> Array:
        """A whole tensor as stored, flat."""
        tensor = self.tensors[name]
        block = np.empty(tensor.size, DTYPES[tensor.dtype])
        self.read_into(name, 0, block)
        return block

    def neighbours(self) -> Iterator[list[Tensor]]:
        """The stored tensors, those of one type together that lie one after another."""
        for _, tensors in itertools.groupby(self._stored.values(), lambda tensor: tensor.dtype):
            yield list(tensors)

    def read_into(self, name: str, start: int, block: Array) -> None:
        """Fill ``block`` with the elements from ``start`` on. Safe to call from threads."""
        tensor = self.tensors[name]
        assert start + block.size <= tensor.size
        self.read_from(tensor, start, block)

    def read_from(self, tensor: Tensor, start: int, block: Array) -> None:
        """The same, on into the tensor's neighbours."""
        assert block.dtype == DTYPES[tensor.dtype]
        place = self._data_begin + tensor.begin + start * block.itemsize
        self._fill(block.view(np.uint8).data, place)

    def _read_header(self) -> bytes:
        length = bytearray(8)
        self._fill(memoryview(length), 0)
        size = int.from_bytes(length, "little")
        if size > HEADER_LIMIT:
            raise CheckpointError(f"its header claims {size} bytes, over the limit")
        header = bytearray(min(size, self.bytes))
        self._fill(memoryview(header), 8)
        return bytes(header)

    def _fill(self, buffer: memoryview, offset: int) -> None:
        while buffer:
            try:
                count = os.preadv(self._file.fileno(), [buffer], offset)
            except OSError as error:
                raise CheckpointError(f"cannot be read: {error.strerror}") from error
            if count == 0:
                raise CheckpointError("it ends too early")
            buffer, offset = buffer[count:], offset + count


def _parse(header: bytes, data_bytes: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not header.startswith(b"{"):
        raise CheckpointError("its header is not a JSON object")
    try:
        entries = json.loads(header.decode(), object_pairs_hook=_unique)
        metadata = entries.pop("__metadata__", {})
        "".join(metadata.values()).encode()
    except (ValueError, RecursionError) as error:
        raise CheckpointError("its header is not valid JSON in UTF-8") from error
    except (TypeError, AttributeError) as error:
        raise CheckpointError("its metadata are not strings") from error

    tensors = [_parse_entry(name, entry) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.size))  # of an empty one and another
    expected = 0
    for tensor in tensors:
        if tensor.begin != expected:
            raise CheckpointError(f"{quote(tensor.name)} overlaps another tensor or leaves a gap")
        expected += tensor.nbytes
    if expected != data_bytes:
        raise CheckpointError(f"it holds {data_bytes} bytes of data, its header says {expected}")
    return {tensor.name: tensor for tensor in tensors}, metadata


# What a copy handed in is soon the base of others: the same file, opened again.
_REMEMBERED = 1 << 17  # bytes of a header, at the most
_parse_again = functools.lru_cache(maxsize=16)(_parse)


def _parse_entry(name: str, entry: object) -> Tensor:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end], **rest}:
            numbers = [*shape, begin, end]
            sound = all(type(n) is int and 0 <= n < DIMENSION_LIMIT for n in numbers)
            if rest or not sound or len(shape) > DIMENSIONS_LIMIT:
                raise CheckpointError(f"{quote(name)} is badly described")
            if dtype not in DTYPES:
                raise CheckpointError(f"{quote(name)} has the unknown type {quote(dtype)}")
            tensor = Tensor(name, dtype, tuple(shape), begin)
            if end - begin != tensor.nbytes:
                raise CheckpointError(f"{quote(name)} has a length that does not fit its shape")
            return tensor
    raise CheckpointError(f"{quote(name)} is badly described")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name appears twice")
    "".join(entries).encode()  # JSON can spell names that UTF-8 cannot
    return entries


def quote(name: str) -> str:
    """A name out of a file, made fit for one line of a message: escaped and bounded."""
    return ascii(name if len(name) <= 80 else name[:77] + "...")


def write(
    out: BinaryIO,
    tensors: Sequence[Tensor],
    metadata: Mapping[str, str],
    blocks: Iterable[Array],
) -> tuple[str, int]:
    """Write ``blocks``, the tensors' data in their order. The SHA-256 and the length in bytes."""
    head = header(tensors, metadata)
    length = len(head) + sum(tensor.nbytes for tensor in tensors)
    digest = hashlib.sha256(head)
    written = out.write(head)
    for block in blocks:
        digest.update(block.data)
        written += out.write(block.data)
    if written != length:
        raise ValueError(f"{length} bytes were announced, {written} given")
    return digest.hexdigest(), written


def header(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> bytes:
    """What stands before the data of these tensors, in this order."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    begin = 0
    for tensor in tensors:
        end = begin + tensor.nbytes
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def widen(block: Array, dtype: str) -> Array:
    """Stored values as numpy can reckon with them, exactly: half floats become float32."""
    if dtype == "BOOL":
        return np.not_equal(block, 0)
    if dtype == "BF16":
        return (block.astype(np.uint32) << 16).view(np.float32)
    return block.astype(np.float32) if dtype == "F16" else block


def narrow(values: NDArray[np.float64], dtype: str) -> Array:
    """Float64 rounded once, to nearest even, to the stored type."""
    block = np.empty(values.shape, DTYPES[dtype])
    store(values, dtype, block)
    return block


def store(values: Array, dtype: str, block: Array) -> None:
    """Put values into ``block``, of the stored type: floats rounded once, to nearest even."""
    if dtype != "BF16":
        block[...] = values
        return
    # By way of float32, but rounded to odd there (cut off, lowest bit set when something was lost),
    # for two roundings to nearest are not one.
    single = values.astype(np.float32)
    bits = single.view(np.uint32)
    bits -= np.abs(single) > np.abs(values)
    bits |= single != values
    bits += 0x7FFF + ((bits >> 16) & 1)
    block[...] = bits >> 16
