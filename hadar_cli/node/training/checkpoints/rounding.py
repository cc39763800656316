"""Smaller hand-ins: updates of the weights that a copy was given, rounded.

``bf16`` stores the difference from the base as bfloat16. ``int8`` and ``int4`` store what trains as
whole numbers, with a scale for every ``BLOCK`` of them: ``int8/<name>`` or ``int4/<name>`` (two to
a byte) and ``scale/<name>``. What such rounding takes from an update is added to the copy's next
one, once the head says that this one was merged; a hand-in that was not merged took nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import safe_open

BLOCK = 128
_LARGEST = {"int8": 127, "int4": 7}

Tensors = dict[str, torch.Tensor]


class Rounding:
    """A copy's rounded updates, and what is still owed of them."""

    def __init__(self) -> None:
        self._owed: Tensors = {}  # by what was merged
        self._left: Tensors = {}  # by the last hand-in, of which nobody knows yet

    def settle(self, was_merged: bool) -> None:
        """The copy begins anew from merged weights; whether its own last hand-in is in them."""
        if was_merged and self._left:
            self._owed = self._left
        self._left = {}

    def updates(
        self, tensors: Mapping[str, torch.Tensor], base: Path, kind: str, trained: Collection[str]
    ) -> Tensors:
        """What takes the place of the base's float32 tensors in a hand-in."""
        found: Tensors = {}
        with safe_open(base, framework="pt") as file:
            for name in sorted(tensors.keys() & set(file.keys())):
                mine, theirs = tensors[name], file.get_tensor(name)
                if not mine.dtype == theirs.dtype == torch.float32 or mine.shape != theirs.shape:
                    continue
                # Infinities of a mask are no difference.
                change = torch.where(mine == theirs, 0.0, mine - theirs)
                if kind in _LARGEST and name in trained and change.numel():
                    found |= self._whole_numbers(name, change, kind)
                else:
                    found[name] = change.to(torch.bfloat16)
        return found

    def _whole_numbers(self, name: str, change: torch.Tensor, kind: str) -> Tensors:
        owed = self._owed.get(name)
        if owed is not None and owed.shape == change.shape:
            change = change + owed
        numbers, scales = _quantized(change.reshape(-1), _LARGEST[kind])
        sent = (numbers * scales[:, None]).reshape(-1)[: change.numel()].reshape(change.shape)
        left = change - sent
        if torch.isfinite(left).all():
            self._left[name] = left
        flat = numbers.reshape(-1)[: change.numel()].to(torch.int8)
        stored = _packed(flat) if kind == "int4" else flat.reshape(change.shape)
        return {f"{kind}/{name}": stored, f"scale/{name}": scales}


def _quantized(values: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of whole numbers, still as floats, and the scale of each row."""
    rows = torch.nn.functional.pad(values, (0, -values.numel() % BLOCK)).reshape(-1, BLOCK)
    scales = rows.abs().amax(1) / largest
    divisors = torch.where(scales == 0, 1.0, scales)
    return (rows / divisors[:, None]).round().clamp(-largest, largest), scales


def _packed(numbers: torch.Tensor) -> torch.Tensor:
    """Two numbers to a byte, the first in its low half, each with 8 added."""
    pairs = torch.nn.functional.pad(numbers + 8, (0, numbers.numel() % 2)).reshape(-1, 2)
    pairs = pairs.to(torch.uint8)
    return pairs[:, 0] | (pairs[:, 1] << 4)
