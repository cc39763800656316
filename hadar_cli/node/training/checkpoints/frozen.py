"""What a model holds and does not train: checkpoints name it with its hash in place of its numbers.

An entry trains if an optimizer has it and it asks for gradients. Any other one (a frozen layer, a
mask, BatchNorm's statistics, a teacher that follows its student) is left out of a hand-in as long
as its numbers are those that the copy was given. A copy whose own numbers are others is refused.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence

import torch

_COLUMNS = 1 << 12
_SPREAD = -7046029254386353131  # odd, as 64 bits: 2^64 over the golden ratio
# What stays may take this share of what trains and still travel, so that models are complete.
_SMALL = 0.1

Tensors = Mapping[str, torch.Tensor]


class Frozen:
    """Remembers, by name, the numbers that do not train, and tells whether they are still those."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._seen: dict[str, int] = {}
        self._hashes: dict[tuple[str, int], str] = {}
        self._is_first = True  # nothing has been loaded or handed in yet

    def look(self, entries: Tensors) -> None:
        """Takes the models' entries as those that the next hand-in begins with."""
        self._seen = self._fingerprints(entries)

    def unchanged(self, entries: Tensors) -> dict[str, str]:
        """The entries that are as they were at the last look, each with its hash; looks again."""
        before, now = self._seen, self._fingerprints(entries)
        self._seen = now
        same = [name for name, print_ in now.items() if before.get(name) == print_]
        return {name: self._hash(name, now[name], entries[name]) for name in same}

    def left_out(self, unchanged: Mapping[str, str], stored: Tensors) -> set[str]:
        """Those of the unchanged that need not travel: all, but for small ones the first time."""
        was_first, self._is_first = self._is_first, False
        size = sum(tensor.nbytes for name, tensor in stored.items() if name in unchanged)
        rest = sum(tensor.nbytes for tensor in stored.values()) - size
        return set() if was_first and size <= _SMALL * rest else set(unchanged)

    def check(self, wanted: Mapping[str, str], entries: Tensors) -> None:
        """Raises unless the entries, which no checkpoint brings, are those that the job has."""
        self._is_first = False
        for name, digest in wanted.items():
            if name not in entries:
                raise RuntimeError(f"{name} is in the job's checkpoint, but not in this model")
            entry = entries[name]
            if self._hash(name, _fingerprint(entry), entry) != digest:
                raise RuntimeError(
                    f"{name} does not train, so it is not sent, and here it is another than where "
                    "the job began: seed before the model is built (torch.manual_seed), and take "
                    "the same base model on every node"
                )

    def _fingerprints(self, entries: Tensors) -> dict[str, int]:
        groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
        trained = {p.data_ptr() for group in groups for p in group["params"] if p.requires_grad}
        return {
            name: _fingerprint(entry)
            for name, entry in entries.items()
            if entry.data_ptr() not in trained
        }

    def _hash(self, name: str, fingerprint: int, entry: torch.Tensor) -> str:
        """Of its bytes; reckoned once for the same numbers."""
        key = (name, fingerprint)
        if key not in self._hashes:
            self._hashes[key] = digest_of(entry)
        return self._hashes[key]


def digest_of(tensor: torch.Tensor) -> str:
    """The SHA-256 of a tensor's bytes."""
    held = tensor.detach().cpu().contiguous()
    octets = (ctypes.c_char * held.nbytes).from_address(held.data_ptr()) if held.nbytes else b""
    return hashlib.sha256(octets).hexdigest()


def _fingerprint(tensor: torch.Tensor) -> int:
    """Changes with any number and with their order; a tenth of the cost of a hash, on the device.

    Sums of rows and columns, each with a weight of its own.
    """
    held = tensor.detach().contiguous().reshape(-1)
    if held.storage_offset() * held.itemsize % 8:
        held = held.clone()
    octets = held.view(torch.uint8)
    whole = octets.numel() // 8 * 8
    words = octets[:whole].view(torch.int64)
    even = words.numel() // _COLUMNS * _COLUMNS
    table = words[:even].view(-1, _COLUMNS)
    sums = torch.cat([table.sum(0), table.sum(1), words[even:], octets[whole:].to(torch.int64)])
    places = torch.arange(1, sums.numel() + 1, device=sums.device, dtype=torch.int64)
    factors = (places * _SPREAD) | 1
    return int((sums * factors).sum())
