"""How a merge's work is cut up: chunks for threads, blocks for the processor's cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hadar_cli.weights.safetensors_file import DTYPES, Array, Tensor

CHUNK = 1 << 18  # elements that a thread merges at a time, few enough to be hashed in the cache
BLOCK = 1 << 17  # elements worked on at once: they stay in the processor's cache

Piece = tuple[Tensor, int, int]  # the elements of a tensor from one place to another


class Scratch(threading.local):
    """Each thread's own buffers: fresh memory for every block would cost as much as the sums."""

    def __init__(self) -> None:
        self._buffers: dict[object, Array] = {}

    def array(self, use: object, size: int, dtype: np.dtype[Any]) -> Array:
        if use not in self._buffers:
            self._buffers[use] = np.empty(BLOCK, np.float64)
        return self._buffers[use].view(dtype)[:size]


def divide(tensors: Iterable[Tensor]) -> Iterator[list[Piece]]:
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


def nbytes_of(piece: Piece) -> int:
    tensor, start, stop = piece
    return (stop - start) * DTYPES[tensor.dtype].itemsize


def write_at(file: int, place: int, data: Array) -> None:
    while data.size:
        written = os.pwrite(file, data.data, place)
        place, data = place + written, data[written:]
